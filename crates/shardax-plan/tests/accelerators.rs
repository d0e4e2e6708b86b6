//! Plans with the platforms' own compilers. The tests are skipped with a message if `cargo xtask accelerators` has not
//! installed them. Each runs the command in its own process, without a network if the system allows that, because
//! libtpu contacts servers.

use std::path::PathBuf;
use std::process::Command;

/// The plugin of a platform: from its environment variable, or installed by xtask.
fn plugin(variable: &str, member: &str) -> Option<PathBuf> {
    let named = std::env::var_os(variable).map(PathBuf::from);
    fn absolute(name: &str) -> Option<PathBuf> {
        std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute())
    }
    let fetched = || {
        let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
        Some(cache.join("shardax/accelerators").join(member)).filter(|path| path.is_file())
    };
    named.or_else(fetched)
}

const TPU: (&str, &str) = ("SHARDAX_TPU_PLUGIN", "libtpu/libtpu.so");
const GPU: (&str, &str) = ("SHARDAX_CUDA_PLUGIN", "jax_plugins/xla_cuda12/xla_cuda_plugin.so");
const MLP: [&str; 3] = ["mlp", "--micro-batch", "256"];

/// The plan of a step on eight devices of a target.
fn planned(variable: &str, member: &str, target: &str, step: &[&str]) -> Option<serde_json::Value> {
    let Some(path) = plugin(variable, member) else {
        eprintln!("{target} is skipped: there is no {member}; `cargo xtask accelerators` installs it");
        return None;
    };
    let name = format!("shardax-plan-{variable}-{}-{}.json", step.concat(), std::process::id());
    let json = std::env::temp_dir().join(name);
    let without_network = ["unshare", "--map-root-user", "--net"];
    let allowed = Command::new(without_network[0])
        .args(&without_network[1..])
        .arg("true")
        .output()
        .is_ok_and(|o| o.status.success());
    // An abort inside libtpu hangs.
    let mut command = Command::new("timeout");
    command.arg("120");
    if allowed {
        command.args(without_network);
    }
    command.arg(env!("CARGO_BIN_EXE_shardax-plan")).args(step).args(["--target", target, "--mesh", "fsdp=8"]);
    command.arg("--json").arg(&json).env(variable, path);
    let output = command.output().expect("the command starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(&json).expect("it is written");
    let _ = std::fs::remove_file(json);
    Some(serde_json::from_str(&text).expect("JSON"))
}

fn check(report: &serde_json::Value, compiler: &str, link: &str) {
    assert_eq!(report["compiler"], compiler, "{report:#}");
    assert_eq!(report["memory"]["fits"], true, "{report:#}");
    // The kernels and biases are split over eight devices.
    let parameters = 4.0 * f64::from(1024 * 4096 + 4096 * 4096 + 4096 * 1024) / 8.0;
    let bytes = report["memory"]["held"]["parameters"].as_f64().expect("parameters are held");
    assert!(bytes >= parameters && bytes < parameters * 1.05, "{bytes} for {parameters}");
    fn flops(name: &str, report: &serde_json::Value) -> Option<f64> {
        report["flops"][name].as_f64()
    }
    assert_eq!(flops("products_per_device", report), flops("products", report).map(|all| all / 8.0), "{report:#}");
    let collectives = report["collectives"].as_array().expect("a list");
    assert!(collectives.iter().any(|c| c["link"] == link && c["axes"][0] == "fsdp"), "{report:#}");
    assert!(report["roofline"]["step"].as_f64().is_some_and(|time| time > 0.0 && time < 1.0), "{report:#}");
}

#[test]
fn an_mlp_on_tpus() {
    if let Some(report) = planned(TPU.0, TPU.1, "v5e:2x4", &MLP) {
        check(&report, "XLA's tpu compiler", "ICI");
    }
}

/// Also with the options of training: collectives start and end apart, with work between them, and all of the donated state
/// is taken over.
#[test]
fn an_mlp_on_gpus() {
    let step = [&MLP[..], &["--xla", "training"]].concat();
    if let Some(report) = planned(GPU.0, GPU.1, "h100:8", &step) {
        check(&report, "XLA's cuda compiler", "NVLink");
        let collectives = report["collectives"].as_array().expect("a list");
        assert!(collectives.iter().all(|c| c["asynchronous"] == c["count"]), "{report:#}");
        fn hidden(c: &serde_json::Value) -> Option<bool> {
            Some(c["hidden"].as_f64()? <= c["seconds"].as_f64()?)
        }
        assert!(collectives.iter().all(|c| hidden(c) == Some(true)), "{report:#}");
        assert!(collectives.iter().any(|c| c["hidden"].as_f64() > Some(0.0)), "{report:#}");
        fn memory(name: &str, report: &serde_json::Value) -> f64 {
            report["memory"][name].as_f64().expect("a number")
        }
        assert!(
            memory("donated", &report) > 0.0 && memory("aliased", &report) >= memory("donated", &report),
            "{report:#}"
        );
    }
}

/// The matmuls of cuDNN's attention are counted: each device has its even share.
#[test]
fn fused_attention_on_gpus() {
    let decoder = ["gpt", "--micro-batch", "64", "--set", "length=512", "--set", "attention=cudnn"];
    let Some(report) = planned(GPU.0, GPU.1, "h100:8", &decoder) else { return };
    fn products(name: &str, report: &serde_json::Value) -> f64 {
        report["flops"][name].as_f64().expect("a number")
    }
    let share = products("products_per_device", &report) / products("products", &report) * 8.0;
    assert!((share - 1.0).abs() < 0.01, "{share} in {report:#}");
}
