//! Programs compiled for TPUs and GPUs you do not have, by their own compilers.
//!
//! The compilers are the platforms' plugins: `cargo xtask accelerators` fetches them. Where they are not, these tests
//! say so and end, unless `SHARDAX_TEST_ACCELERATORS=required` says that they must be there. Each runs in a process of its own that can reach no network where the system allows that, and that
//! is ended after two minutes: libtpu asks servers, and an abort inside of it hangs.

mod attention;
#[path = "../../../shardax/tests/common/child.rs"]
mod child;
#[path = "../../../shardax/tests/common/explicit_programs.rs"]
#[allow(dead_code)]
mod explicit_programs;
#[path = "../../../shardax/tests/common/flash.rs"]
mod flash;
mod kernels;
mod layouts;
mod memory;
mod narrow;
mod plugins;
mod programs;
#[path = "../../../shardax/tests/common/quick.rs"]
#[allow(dead_code)]
mod quick;
mod rust_kernels;
mod table;

use std::path::PathBuf;
use std::process::Command;

use shardax::prelude::*;

/// The plugin of a platform: the file that its variable names, or the one that was fetched.
fn plugin(variable: &str, member: &str) -> Option<PathBuf> {
    let named = std::env::var_os(variable).map(PathBuf::from);
    let fetched = || {
        let cache = shardax_pjrt::Environment::from_process().cache_folder()?;
        Some(cache.join("accelerators").join(member)).filter(|path| path.is_file())
    };
    named.or_else(fetched)
}

/// Runs the ignored test of this name where these plugins are, by itself, with these variables.
fn apart(test: &str, plugins: &[(&str, &str)], variables: &[(&str, &str)]) {
    let mut paths = Vec::new();
    for (variable, member) in plugins {
        match plugin(variable, member) {
            Some(path) => paths.push((variable, path)),
            None => {
                let required = std::env::var("SHARDAX_TEST_ACCELERATORS").is_ok_and(|value| value == "required");
                assert!(!required, "there is no {member}, which `cargo xtask accelerators` fetches");
                eprintln!("{test} is left out: there is no {member}, which `cargo xtask accelerators` fetches");
                return;
            }
        }
    }
    let program = std::env::current_exe().expect("this program has a path");
    // A network of its own, with nothing in it.
    let without_network = ["unshare", "--map-root-user", "--net"];
    let allowed = Command::new(without_network[0])
        .args(&without_network[1..])
        .arg("true")
        .output()
        .is_ok_and(|o| o.status.success());
    let mut command = if allowed {
        let mut command = Command::new(without_network[0]);
        command.args(&without_network[1..]).arg(program);
        command
    } else {
        Command::new(program)
    };
    command.args(["--exact", test, "--ignored", "--nocapture", "-q"]);
    command.envs(paths).envs(variables.iter().copied());
    child::run(&mut command);
}

/// Whoever starts a client of the CPU fails.
const NO_CPU: (&str, &str) = ("SHARDAX_CPU_PLUGIN", "/nowhere/this.test/starts/no/client");
const TPU: (&str, &str) = ("SHARDAX_TPU_PLUGIN", "libtpu/libtpu.so");
const GPU: (&str, &str) = ("SHARDAX_CUDA_PLUGIN", "jax_plugins/xla_cuda12/xla_cuda_plugin.so");

#[test]
fn programs_compile_for_tpus() {
    apart("on_tpus", &[TPU], &[NO_CPU]);
}

#[test]
fn programs_compile_for_gpus() {
    apart("on_gpus", &[GPU], &[NO_CPU]);
}

#[test]
fn explicit_programs_compile_for_tpus() {
    apart("explicit_on_tpus", &[TPU], &[NO_CPU]);
}

#[test]
fn explicit_programs_compile_for_gpus() {
    apart("explicit_on_gpus", &[GPU], &[NO_CPU]);
}

#[test]
fn attention_of_gpus_is_cudnns() {
    apart("attention_on_gpus", &[GPU], &[NO_CPU]);
}

#[test]
fn attention_of_tpus_is_flash() {
    apart("attention_on_tpus", &[TPU], &[NO_CPU]);
}

#[test]
fn kernels_of_pallas_compile_for_tpus() {
    apart("kernels_on_tpus", &[TPU], &[NO_CPU]);
}

#[test]
fn kernels_of_pallas_compile_for_gpus() {
    apart("kernels_on_gpus", &[GPU], &[NO_CPU]);
}

#[test]
fn float8_and_int8_are_multiplied_as_they_are() {
    apart("narrow_on_gpus", &[GPU], &[NO_CPU]);
    apart("narrow_on_tpus", &[TPU], &[NO_CPU]);
}

#[test]
#[ignore = "run by other tests, where the plugin is"]
fn narrow_on_gpus() -> Result<()> {
    narrow::on_gpus(&Topology::gpu(GpuSpec::H100)?)
}

#[test]
#[ignore = "run by other tests, where the plugin is"]
fn narrow_on_tpus() -> Result<()> {
    narrow::on_tpus(&Topology::tpu("v5e:2x4")?)
}

#[test]
#[ignore = "run by other tests, where the plugin is"]
fn explicit_on_tpus() -> Result<()> {
    programs::explicit(&Topology::tpu("v5e:2x4")?)
}

#[test]
#[ignore = "run by other tests, where the plugin is"]
fn kernels_on_tpus() -> Result<()> {
    kernels::all(&Topology::tpu("v5e:2x4")?, "tpu_custom_call")
}

#[test]
#[ignore = "run by other tests, where the plugin is"]
fn explicit_on_gpus() -> Result<()> {
    programs::explicit(&Topology::gpu(GpuSpec::H100)?)
}

#[test]
#[ignore = "run by other tests, where the plugin is"]
fn kernels_on_gpus() -> Result<()> {
    kernels::all(&Topology::gpu(GpuSpec::H100)?, "__gpu$xla.gpu.triton")
}

#[test]
fn kernels_in_rust_compile_for_gpus() {
    apart("rust_kernels_on_gpus", &[GPU], &[NO_CPU]);
}

#[test]
#[ignore = "run by other tests, where the plugin is"]
fn rust_kernels_on_gpus() -> Result<()> {
    rust_kernels::on_gpus(&Topology::gpu(GpuSpec::H100)?)
}

#[test]
fn kernels_in_rust_compile_for_tpus() {
    apart("rust_kernels_on_tpus", &[TPU], &[NO_CPU]);
}

#[test]
#[ignore = "run by other tests, where the plugin is"]
fn rust_kernels_on_tpus() -> Result<()> {
    rust_kernels::on_tpus(&Topology::tpu("v5e:2x4")?)
}

#[test]
#[ignore = "run by other tests, where the plugin is"]
fn attention_on_gpus() -> Result<()> {
    attention::all(&Topology::gpu(GpuSpec::H100)?, "__cudnn$fmhaSoftmax", 2)
}

#[test]
#[ignore = "run by other tests, where the plugin is"]
fn attention_on_tpus() -> Result<()> {
    let topology = Topology::tpu("v5p:2x2x2")?;
    attention::all(&topology, "tpu_custom_call", 3)?;
    attention::masks(&topology)?;
    attention::files(&topology)
}

#[test]
#[ignore = "run by `cargo xtask attention`"]
fn attention_table() -> Result<()> {
    table::attention()
}

#[test]
fn one_program_runs_on_the_cpu_and_compiles_for_tpus_and_gpus() {
    apart("on_all_three", &[TPU, GPU], &[("SHARDAX_NUM_CPU_DEVICES", "8")]);
}

#[test]
fn what_runs_here_is_compiled_for_others_too() {
    let devices = ("SHARDAX_NUM_CPU_DEVICES", "8");
    apart("elsewhere", &[TPU, GPU], &[devices, ("SHARDAX_COMPILE_ALSO_FOR", "v5e:2x4, h100,abacus")]);
}

#[test]
#[ignore = "run by other tests, where the plugins are"]
fn elsewhere() -> Result<()> {
    programs::elsewhere()
}

#[test]
#[ignore = "run by other tests, where the plugins are"]
fn on_all_three() -> Result<()> {
    programs::on_all_three(&[Topology::tpu("v5e:2x4")?, Topology::gpu(GpuSpec::H100)?])
}

/// Returns true if two chips of a torus have a common link.
fn are_neighbours(a: &[usize; 3], b: &[usize; 3]) -> bool {
    a.iter().zip(b).map(|(a, b)| a.abs_diff(*b)).sum::<usize>() == 1
}

#[test]
#[ignore = "run by other tests, where the plugin is"]
fn on_tpus() -> Result<()> {
    let topology = Topology::tpu("v5e:2x4")?;
    assert_eq!((topology.num_devices(), topology.platform()), (8, "tpu"));
    assert_eq!(topology.to_string(), "Topology(v5e:2x4, 8 × TPU v5 lite)");
    let devices = topology.devices();
    assert_eq!((devices[0].coords(), devices[0].core_on_chip()), (Some([0, 0, 0]), Some(0)));
    assert!(devices[0].memory_limit().is_some_and(|bytes| bytes > 15 << 30));
    assert!(devices.iter().all(|d| !d.is_addressable() && d.kind() == "TPU v5 lite"));
    // The ring through the slice.
    let ring: Vec<_> =
        Topology::tpu("v5e:4x2")?.mesh([("x", 8)])?.devices().iter().filter_map(Device::coords).collect();
    assert!(ring.windows(2).all(|pair| are_neighbours(&pair[0], &pair[1])), "{ring:?}");

    programs::all(&topology)?;
    programs::rejected(&topology)?;
    programs::nothing_runs_there(&topology)?;
    programs::fully_sharded_on_tpus(&topology)?;
    memory::all(&topology)?;
    layouts::all(&topology)?;
    plugins::records(topology.platform());

    // What does not fit is an error, and says what helps.
    let mesh = topology.mesh([("x", 8)])?;
    let x = shape_dtype_struct_on([1 << 16, 1 << 16], DType::F32, NamedSharding::new(&mesh, P![]));
    let error = jit(|x: Array| x.sin().dot(&x)).lower(&x)?.compile_for(&topology).err().expect("it does not fit");
    assert!(
        error.message().contains("RESOURCE_EXHAUSTED") && error.to_string().contains("split more of it"),
        "{error}"
    );

    // Slices, joined by the data centre's network.
    let slices = Topology::tpu(TpuTopology { num_slices: 2, ..TpuTopology::new("v5p:2x2x1") })?;
    let mesh = slices.mesh([("data", 4), ("model", 2)])?;
    let slice_indices: Vec<_> = mesh.devices().iter().filter_map(Device::slice_index).collect();
    assert_eq!(slice_indices, [0, 0, 0, 0, 1, 1, 1, 1]);
    programs::data_parallel(&slices, &mesh)?;

    // The options of training programs, those of other platforms left out.
    config::set_compiler_options(config::gpu_training());
    config::set_compiler_options(config::tpu_training());
    if quick::is_complete() {
        let v5p = Topology::tpu("v5p:2x2x2")?;
        programs::data_parallel(&v5p, &v5p.mesh([("data", 8)])?)?;
    }
    config::set_compiler_options(config::v5e_training());
    programs::data_parallel(&topology, &topology.mesh([("data", 8)])?)?;

    for (name, words) in [
        ("v5e:0x4", "must have between 1 and"),
        ("v5e:3x3", "is not divisible by"),
        ("v9:2x2", "v9"),
        ("v5e", "is not a TPU topology"),
        ("", "is not a TPU topology"),
    ] {
        let error = Topology::tpu(name).expect_err(name);
        assert!(error.message().contains(words), "{name:?}: {error}");
    }
    Ok(())
}

#[test]
#[ignore = "run by other tests, where the plugin is"]
fn on_gpus() -> Result<()> {
    let topology = Topology::gpu(GpuSpec::H100)?;
    assert_eq!((topology.num_devices(), topology.platform()), (8, "cuda"));
    assert_eq!(topology.to_string(), "Topology(h100:1x1x8, 8 × NVIDIA H100 80GB HBM3)");
    assert!(topology.devices()[0].memory_limit().is_some_and(|bytes| bytes > 75 << 30));
    programs::all(&topology)?;
    programs::rejected(&topology)?;
    programs::nothing_runs_there(&topology)?;
    memory::all(&topology)?;
    layouts::all(&topology)?;
    plugins::records(topology.platform());
    plugins::calls(&topology)?;
    for gpu in [GpuSpec::B200, GpuSpec::H200, GpuSpec::A100].into_iter().step_by(quick::one_of(3)) {
        let topology = Topology::gpu(GpuTopology { hosts: 2, gpus_per_host: 2, ..GpuTopology::new(gpu) })?;
        programs::data_parallel(&topology, &topology.mesh([("data", 4)])?)?;
    }
    // Options by name: those of GPUs are known to their compiler, those of other platforms left out.
    config::set_compiler_options([("xla_gpu_enable_command_buffer", "FUSION,CUBLAS"), ("xla_tpu_no_such_option", "1")]);
    for (name, value) in [
        ("xla_gpu_enable_latency_hiding_scheduler", "true"),
        ("xla_gpu_autotune_level", "0"),
        ("xla_gpu_all_reduce_combine_threshold_bytes", "33554432"),
        ("xla_gpu_nccl_termination_timeout_seconds", "60"),
    ] {
        config::update(name, value)?;
    }
    programs::data_parallel(&topology, &topology.mesh([("data", 8)])?)?;
    let unknown = jit(|x: Array| x * 2).compiler_options([("xla_gpu_no_such_option", true)]);
    let unknown = unknown.lower(shape_dtype_struct_on([4], DType::F32, &topology.devices()[0]))?.compile_for(&topology);
    let unknown = unknown.err().expect("an option that nobody knows");
    assert!(unknown.to_string().contains("xla_gpu_no_such_option"), "{unknown}");

    // The options of training programs, those of other platforms left out.
    config::set_compiler_options(config::gpu_training());
    config::set_compiler_options(config::tpu_training());
    programs::data_parallel(&topology, &topology.mesh([("data", 8)])?)?;

    // A thousand of them, without a thousand of anything.
    let many = Topology::gpu(GpuTopology { hosts: 128, ..GpuTopology::new(GpuSpec::H100) })?;
    programs::data_parallel(&many, &many.mesh([("data", 128), ("model", 8)])?)?;

    let nonsense = Topology::gpu(GpuSpec::Text("nonsense".into())).expect_err("no description");
    assert!(nonsense.message().contains("GpuTargetConfigProto"), "{nonsense}");
    let none = Topology::gpu(GpuTopology { hosts: 0, ..GpuTopology::new(GpuSpec::H100) }).expect_err("no hosts");
    assert!(none.message().contains("has 0 devices"), "{none}");

    // The plugin accepts the options of its client by name and type, so the only error is the missing GPU.
    config::set_platform("cuda")?;
    config::set_client_options(config::ClientOptions {
        memory_fraction: Some(0.5),
        preallocate: Some(false),
        allocator: Some(config::Allocator::Bfc),
        visible_devices: Some(vec![0]),
    })?;
    if let Err(error) = shardax::devices() {
        assert!(error.message().contains("No visible GPU devices"), "{error}");
    }
    Ok(())
}
