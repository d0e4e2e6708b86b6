//! Runs examples as a newcomer does, each in its own process.

// Each test program uses only part of it.
#![allow(dead_code)]

use std::path::PathBuf;
use std::process::{Command, Output};

/// The path of an example: Cargo puts examples next to the folder of the test binary.
pub fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the test's path");
    let profile = test.parent().and_then(|deps| deps.parent()).expect("target/PROFILE/deps");
    let path = profile.join("examples").join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    assert!(path.exists(), "{} is missing: `cargo test` without a filter on targets builds it", path.display());
    path
}

/// Of so many runs `cargo test` makes one; `.ci/run sweeps` makes all. As in `quick.rs` of shardax's tests.
pub fn one_of(every: usize) -> usize {
    if std::env::var("SHARDAX_TEST_SLICES").is_ok_and(|value| value == "all") { 1 } else { every }
}

/// Options of XLA that compile in half of the time, for what compiles longer than it runs; as in `quick.rs` of shardax's tests.
const QUICK: &str = "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=0 \
    --xla_llvm_disable_expensive_passes=true --xla_cpu_parallel_codegen_split_count=1";

/// Has an example compile quickly, unless it runs longer than it compiles, or a complete run of the tests or `cargo xtask
/// platforms` compiles what users compile.
pub fn compile_quickly(args: &[&str], command: &mut Command) {
    let as_users = ["SHARDAX_TEST_SLICES", "SHARDAX_COMPILE_ALSO_FOR", "XLA_FLAGS"];
    // Gradients are accumulated in a loop, where XLA then computes convolutions 20 times slower.
    let runs_long = args.contains(&"--accumulate");
    if !runs_long && as_users.iter().all(|variable| std::env::var_os(variable).is_none()) {
        command.env("XLA_FLAGS", QUICK);
    }
}

pub fn run(name: &str, args: &[&str]) -> Output {
    // A user's second run finds the programs of the first; `.cargo/config.toml` turns that off.
    let cache = concat!(env!("CARGO_TARGET_TMPDIR"), "/cache");
    let mut command = Command::new(example(name));
    compile_quickly(args, &mut command);
    let out = command.args(args).env("SHARDAX_COMPILATION_CACHE_DIR", cache).output().expect("the example starts");
    // If programs are compiled for TPUs and GPUs as well, forwards the results, which `cargo xtask platforms` counts.
    if std::env::var_os("SHARDAX_COMPILE_ALSO_FOR").is_some() {
        let stderr = String::from_utf8_lossy(&out.stderr);
        stderr
            .lines()
            .filter(|line| line.contains(" compiles for ") || line.contains(" does not compile for "))
            .for_each(|line| eprintln!("{name}: {line}"));
    }
    out
}

/// The output of an example that succeeds.
pub fn output(name: &str, args: &[&str]) -> String {
    let out = run(name, args);
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{text}\n{}", String::from_utf8_lossy(&out.stderr));
    text
}

/// The number that follows each occurrence of `label`.
pub fn numbers(text: &str, label: &str) -> Vec<f64> {
    text.split(label)
        .skip(1)
        .filter_map(|rest| rest.split([',', '\n', ' ']).find(|w| !w.is_empty())?.parse().ok())
        .collect()
}

/// The error output of an example that fails.
pub fn run_of(name: &str, args: &[&str]) -> String {
    let out = run(name, args);
    assert!(!out.status.success());
    String::from_utf8_lossy(&out.stderr).into_owned()
}
