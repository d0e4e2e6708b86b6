//! The benchmarks of shardax. `bench/README.md` defines the rows, and `bench/jax_bench.py` runs them in JAX, so that you
//! can compare both on your machine.

#![forbid(unsafe_code)]

mod accelerators;
mod arithmetic;
mod census;
mod clock;
mod cnn;
mod data;
mod dispatch;
mod gpt;
mod growth;
mod kernels;
mod operations;
mod planning;
mod processes;
mod resnet;
mod runs;
mod scaling;
mod simulated;
mod startup;
mod sums;
mod tokens;
mod training;

use std::path::{Path, PathBuf};

use clap::Parser;
use clock::Timing;
use serde::Serialize;
use shardax::Result;
use shardax::prelude::DType;
use shardax_alloc as _;
use shardax_nn::Implementation;
use shardax_train::checkpoint::{self, SaveArgs};

/// The number of simulated devices; rows with fewer devices use the first of them.
const DEVICES: usize = 8;

/// A row: its name and function.
type Row = (&'static str, fn() -> Result<Timing>);

const ROWS: &[Row] = &[
    ("jit_tiny", dispatch::jit_tiny),
    ("jit_64_args", dispatch::jit_64_args),
    ("args_10k_dispatch", dispatch::args_10k_dispatch),
    ("pmap_scale_8", dispatch::pmap_scale_8),
    ("pmap_psum_8", dispatch::pmap_psum_8),
    ("shard_map_scale_8", dispatch::shard_map_scale_8),
    ("psum_16mib_8", dispatch::psum_16mib_8),
    ("matmul_2048", arithmetic::matmul_2048),
    ("fused_elementwise_16m", arithmetic::fused_elementwise_16m),
    ("reduce_axis0_16m", arithmetic::reduce_axis0_16m),
    ("matmul_f64_1024", arithmetic::matmul_f64_1024),
    ("batched_matmul", arithmetic::batched_matmul),
    ("weights_f32_1", || arithmetic::weights(1, DType::F32)),
    ("weights_bf16_1", || arithmetic::weights(1, DType::Bf16)),
    ("weights_int8_1", || arithmetic::weights(1, DType::I8)),
    ("weights_f32_8", || arithmetic::weights(8, DType::F32)),
    ("weights_bf16_8", || arithmetic::weights(8, DType::Bf16)),
    ("weights_int8_8", || arithmetic::weights(8, DType::I8)),
    ("softmax_grad", arithmetic::softmax_grad),
    ("layernorm_grad", arithmetic::layernorm_grad),
    ("embedding_grad", arithmetic::embedding_grad),
    ("scan_1000", arithmetic::scan_1000),
    ("conv_3x3_fwd", || arithmetic::conv(3, 1, 1, false)),
    ("conv_3x3_grad", || arithmetic::conv(3, 1, 1, true)),
    ("conv_1x1_fwd", || arithmetic::conv(1, 1, 1, false)),
    ("conv_1x1_grad", || arithmetic::conv(1, 1, 1, true)),
    ("conv_strided_fwd", || arithmetic::conv(3, 2, 1, false)),
    ("conv_strided_grad", || arithmetic::conv(3, 2, 1, true)),
    ("conv_depthwise_fwd", || arithmetic::conv(3, 1, 64, false)),
    ("conv_depthwise_grad", || arithmetic::conv(3, 1, 64, true)),
    ("cumsum_16m", operations::cumsum_16m),
    ("sort_16m", operations::sort_16m),
    ("argsort_16m", operations::argsort_16m),
    ("top_k_16m", operations::top_k_16m),
    ("normal_16m", operations::normal_16m),
    ("gather_1m", operations::gather_1m),
    ("scatter_add_1m", operations::scatter_add_1m),
    ("einsum_scores", operations::einsum_scores),
    ("fft_1m", operations::fft_1m),
    ("dct_1m", operations::dct_1m),
    ("cholesky_512", operations::cholesky_512),
    ("qr_512", operations::qr_512),
    ("svd_512", operations::svd_512),
    ("eigh_512", operations::eigh_512),
    ("bcoo_matmul", operations::bcoo_matmul),
    ("max_pool_grad", operations::max_pool_grad),
    ("avg_pool_3x3", operations::avg_pool_3x3),
    ("conv_grouped", || operations::conv(4, 1, false)),
    ("conv_dilated", || operations::conv(1, 2, false)),
    ("conv_transposed", || operations::conv(1, 1, true)),
    ("cnn_step_1", || cnn::cnn_step(1)),
    ("cnn_step_2", || cnn::cnn_step(2)),
    ("cnn_step_8", || cnn::cnn_step(8)),
    ("mlp_step_1", || training::mlp_step(1)),
    ("mlp_step_8", || training::mlp_step(8)),
    ("resnet18_step_1", resnet::resnet18_step_1),
    ("gpt_step_1", gpt::gpt_step_1),
    ("gpt_pmap_8", gpt::gpt_pmap_8),
    ("gpt_fsdp_tp_8", gpt::gpt_fsdp_tp_8),
    ("gpt_trace_lower", gpt::gpt_trace_lower),
    ("gpt_compile", gpt::gpt_compile),
    ("gpt_decode", || gpt::gpt_decode(1)),
    ("gpt_decode_8", || gpt::gpt_decode(8)),
    ("compile_48_layers", || gpt::compile_48_layers(false)),
    ("compile_48_layers_scanned", || gpt::compile_48_layers(true)),
    ("memory_blocks", || gpt::memory_blocks(false)),
    ("memory_blocks_remat", || gpt::memory_blocks(true)),
    ("memory_update", || arithmetic::memory_update(false)),
    ("memory_update_donated", || arithmetic::memory_update(true)),
    ("cnn_trace_lower", cnn::cnn_trace_lower),
    ("cnn_compile", cnn::cnn_compile),
    ("cnn_compile_warm", cnn::cnn_compile_warm),
    ("checkpoint_save", runs::checkpoint_save),
    ("checkpoint_restore", runs::checkpoint_restore),
    ("checkpoint_stall", runs::checkpoint_stall),
    ("step_while_saving", runs::step_while_saving),
    ("disk_write", runs::disk_write),
    ("disk_read", runs::disk_read),
    ("data_prefetch", || runs::data_prefetch(true)),
    ("data_between_steps", || runs::data_prefetch(false)),
    ("read_tree", || runs::read_tree(true)),
    ("read_tree_one_by_one", || runs::read_tree(false)),
    ("init_sharded", runs::init_sharded),
    ("first_result", startup::first_result),
    ("first_result_warm", startup::first_result_warm),
    ("second_start_gpt", startup::second_start_gpt),
];

/// Rows of a size for GPUs and TPUs, which run on CPU only if they are named.
const ON_ACCELERATORS: &[Row] = &[
    ("attention_bf16", || accelerators::attention(None)),
    ("attention_bf16_flash", || accelerators::attention(Some(Implementation::Flash))),
    ("attention_bf16_plain", || accelerators::attention(Some(Implementation::Xla))),
    ("gpt2_step_bf16", accelerators::gpt2_step),
];

/// Runs the benchmark rows
#[derive(Parser)]
struct Options {
    /// Where the results go (default: standard output)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Run only the row NAME, or rows whose names contain it if no row has that name; with --processes, names separated
    /// by commas
    #[arg(long, value_name = "NAME", default_value = "")]
    filter: String,
    /// Print the row names and stop
    #[arg(long)]
    list: bool,
    /// Run as one process of the rows with several processes
    #[arg(long)]
    processes: bool,
    /// Print what preparing a program for N processes costs each of them, as a row of a table
    #[arg(long, value_name = "N")]
    simulated: Option<usize>,
    /// Measure how times grow with sizes and devices, print a table, and write a picture (SVG) to FILE
    #[arg(long, value_name = "FILE")]
    scaling: Option<PathBuf>,
    /// Measure how costs grow with everything that can grow, print a table, and write a picture (SVG) to FILE; results
    /// are kept next to it, so that a rerun continues
    #[arg(long, value_name = "FILE")]
    growth: Option<PathBuf>,
    /// With --growth, the Python with JAX that runs the same cases
    #[arg(long, value_name = "PYTHON")]
    jax: Option<PathBuf>,
    /// The arguments of the processes that `--growth` spawns
    #[arg(long, hide = true, requires = "growth_size")]
    growth_case: Option<String>,
    #[arg(long, hide = true)]
    growth_size: Option<usize>,
    /// Write the models and batches of the training rows to a folder, as safetensors, and stop
    #[arg(long, value_name = "FOLDER")]
    inputs: Option<PathBuf>,
    /// Measure tracing and lowering for 8 and for 1,024 devices
    #[arg(long)]
    plan: bool,
    /// Time each function in several ways and at up to three sizes, and add the rows to shardax.tsv in FOLDER, which may have some
    /// already; `bench/census.py` measures them in JAX. With --filter, functions whose expression contains NAME
    #[arg(long, value_name = "FOLDER")]
    census: Option<PathBuf>,
    /// Measure the error and the time of each operation that adds many elements, and add the rows to shardax.tsv in FOLDER, like
    /// --census; `bench/sums.py` measures them in JAX
    #[arg(long, value_name = "FOLDER")]
    sums: Option<PathBuf>,
    /// Measure the tokens a second of the decoder in a GGUF file, which `bench/tokens.py` writes
    #[arg(long, value_name = "FILE")]
    tokens: Option<PathBuf>,
    /// Times of single operations by XLA and by the CPU kernels, as a table; with --filter, of operations whose names contain NAME
    #[arg(long)]
    cpu_kernels: bool,
    /// The argument of the processes that `--cpu-kernels` spawns
    #[arg(long, hide = true)]
    kernel: Option<usize>,
    /// The argument of the processes that `first_result` and `second_start_gpt` spawn
    #[arg(long, hide = true)]
    child: Option<String>,
}

#[derive(Serialize)]
struct Measured {
    name: &'static str,
    #[serde(flatten)]
    timing: Timing,
    /// The peak memory in MiB of the process so far, or of one that it spawned. It is the row's if only one row runs.
    peak_mib: f64,
}

impl Measured {
    fn new(name: &'static str, timing: Timing) -> Self {
        let peak_mib = peak_mib().max(timing.spawned_mib);
        Measured { name, timing, peak_mib }
    }
}

/// The peak memory of this process.
fn peak_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next()?.parse::<f64>().ok());
    peak.map_or(0.0, |kib| kib / 1024.0)
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let options = Options::parse();
    if let Some(n) = options.simulated {
        return Ok(simulated::run(n)?);
    }
    if options.processes {
        shardax::config::set_compilation_cache_dir("")?;
        return write(&processes::run(&options.filter)?, options.json);
    }
    if options.cpu_kernels {
        return Ok(kernels::run(&options.filter)?);
    }
    if options.plan {
        return write(&planning::run()?, options.json);
    }
    if let Some(picture) = options.growth {
        return growth::run(&picture, &options.filter, options.jax.as_deref());
    }
    if let (Some(case), Some(size)) = (options.growth_case, options.growth_size) {
        shardax::config::set_compilation_cache_dir("")?;
        return growth::child(&case, size);
    }
    if let Some(file) = options.tokens {
        return Ok(tokens::run(&file)?);
    }
    // More devices have more threads, among which XLA divides even short loops: JAX runs the census on one device.
    shardax::config::set_num_cpu_devices(if options.census.is_some() { 1 } else { DEVICES })?;
    if let Some(what) = options.child {
        return Ok(startup::child(&what)?);
    }
    // Only some rows use the disk cache, and they enable it.
    shardax::config::set_compilation_cache_dir("")?;
    if let Some(folder) = options.census {
        return census::run(&folder, &options.filter);
    }
    if let Some(picture) = options.scaling {
        return scaling::run(&picture, &options.filter);
    }
    if let Some(folder) = options.sums {
        return sums::run(&folder, &options.filter);
    }
    if let Some(folder) = options.inputs {
        return Ok(write_inputs(&folder)?);
    }
    if let Some(number) = options.kernel {
        return Ok(kernels::child(number)?);
    }
    run_rows(&options.filter, options.list, options.json)
}

/// Runs the rows that the filter selects, or lists them. A filter that is the name of a row selects only that row.
fn run_rows(
    filter: &str,
    only_list: bool,
    json: Option<PathBuf>,
) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let is_exact_name = ROWS.iter().chain(ON_ACCELERATORS).any(|(name, _)| *name == filter);
    // Rows of a size for accelerators take minutes on CPU, so you must name them there.
    let on_cpu = std::env::var("SHARDAX_PLATFORM").map_or(true, |platform| platform == "cpu");
    let accelerator_rows = if is_exact_name || !on_cpu { ON_ACCELERATORS } else { &[] };
    let rows = ROWS
        .iter()
        .chain(accelerator_rows)
        .filter(|(name, _)| if is_exact_name { *name == filter } else { name.contains(filter) });
    if only_list {
        rows.for_each(|(name, _)| println!("{name}"));
        return Ok(());
    }

    let mut measured = Vec::new();
    for &(name, run) in rows {
        let timing = run()?;
        eprintln!("{name:24} {:12.1} µs  (min {:.1}, {} runs)", timing.median_us, timing.min_us, timing.runs);
        measured.push(Measured::new(name, timing));
    }
    if measured.is_empty() {
        return Err(format!("no row's name contains {filter:?}").into());
    }
    write(&measured, json)
}

/// The models and batches of training rows, which other sides read so that their first losses are the same.
fn write_inputs(folder: &Path) -> Result<()> {
    let options = SaveArgs::new().force(true);
    checkpoint::save_with(folder.join("mlp_step_1"), &training::mlp_inputs()?, &options)?;
    checkpoint::save_with(folder.join("cnn_step_1"), &cnn::inputs()?, &options)?;
    checkpoint::save_with(folder.join("resnet18_step_1"), &resnet::inputs()?, &options)?;
    checkpoint::save_with(folder.join("gpt_step_1"), &gpt::inputs()?, &options)
}

fn write(measured: &[Measured], to: Option<PathBuf>) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let text = serde_json::to_string_pretty(measured)? + "\n";
    match to {
        Some(path) => std::fs::write(path, text)?,
        None => print!("{text}"),
    }
    Ok(())
}
