//! Four rows of `shardax-bench` with candle and burn, on CPU: the same models, batches and optimizers.
//!
//! Run from this folder, after `shardax-bench --inputs FOLDER` wrote the models and batches:
//!
//! ```sh
//! RUSTFLAGS="-C target-cpu=native" cargo run --release -- candle --inputs FOLDER [--filter NAME] [--json FILE]
//! ```
//!
//! `RUSTFLAGS` matters: both libraries compile most of their loops for the target CPU. `RAYON_NUM_THREADS` limits their
//! threads, and `MATMUL_NUM_THREADS` limits the threads of `burn-ndarray`'s matmuls. `BENCH_SECONDS` and `BENCH_CLOCK` have the
//! same meaning as for `shardax-bench`.

#![forbid(unsafe_code)]

mod burn;
mod candle;
mod clock;
mod inputs;
mod settings;

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use clock::Timing;
use serde::Serialize;
use shardax_alloc as _;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// A prepared row. A call computes all its results and returns the loss if it is a training step.
type Call = Box<dyn FnMut() -> Result<Option<f32>>>;

#[derive(Clone, Copy, ValueEnum)]
enum Backend {
    Candle,
    BurnFlex,
    /// Deprecated in burn in favour of `burn-flex`
    #[value(name = "burn-ndarray")]
    BurnNdArray,
}

#[derive(Clone, Copy)]
enum Row {
    Matmul,
    Mlp,
    Cnn,
    Gpt,
}

impl Row {
    const ALL: [Row; 4] = [Row::Matmul, Row::Mlp, Row::Cnn, Row::Gpt];

    fn name(self) -> &'static str {
        match self {
            Row::Matmul => "matmul_2048",
            Row::Mlp => "mlp_step_1",
            Row::Cnn => "cnn_step_1",
            Row::Gpt => "gpt_step_1",
        }
    }
}

/// Runs benchmark rows with candle or burn
#[derive(Parser)]
struct Options {
    /// The library and its backend
    backend: Backend,
    /// The folder that `shardax-bench --inputs FOLDER` wrote
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    inputs: PathBuf,
    /// Run only the row NAME, or rows whose names contain it if no row has that name
    #[arg(long, value_name = "NAME", default_value = "")]
    filter: String,
    /// Print the row names and stop
    #[arg(long)]
    list: bool,
    /// Where the results go (default: standard output)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Serialize)]
struct Measured {
    name: &'static str,
    #[serde(flatten)]
    timing: Timing,
    /// The peak memory in MiB of the process so far. It is the row's if only one row runs.
    peak_mib: f64,
}

fn main() -> Result<()> {
    let options = Options::parse();
    // The name of one row may be a part of the names of others.
    let is_exact_name = Row::ALL.iter().any(|row| row.name() == options.filter);
    let chosen = |row: &Row| if is_exact_name { row.name() == options.filter } else { row.name().contains(&options.filter) };
    if options.list {
        Row::ALL.iter().filter(|row| chosen(row)).for_each(|row| println!("{}", row.name()));
        return Ok(());
    }
    let mut measured = Vec::new();
    for row in Row::ALL.into_iter().filter(chosen) {
        let name = row.name();
        let call = match options.backend {
            Backend::Candle => candle::prepare(row, &options.inputs)?,
            Backend::BurnFlex => burn::prepare(row, &options.inputs, burn::flex())?,
            Backend::BurnNdArray => burn::prepare(row, &options.inputs, burn::ndarray())?,
        };
        let timing = clock::measure(call)?;
        eprintln!("{name:24} {:12.1} µs  (min {:.1}, {} runs)", timing.median_us, timing.min_us, timing.runs);
        measured.push(Measured { name, timing, peak_mib: peak_mib()? });
    }
    if measured.is_empty() {
        return Err(format!("no row's name contains {:?}", options.filter).into());
    }
    let text = serde_json::to_string_pretty(&measured)? + "\n";
    match options.json {
        Some(path) => std::fs::write(path, text)?,
        None => print!("{text}"),
    }
    Ok(())
}

/// The peak memory of this process.
fn peak_mib() -> Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next());
    Ok(peak.ok_or("/proc/self/status has no VmHWM")?.parse::<f64>()? / 1024.0)
}
