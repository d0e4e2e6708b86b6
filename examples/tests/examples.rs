//! Runs the examples as a newcomer does, each in a process of its own, and reads what they print.

use std::path::PathBuf;
use std::process::{Command, Output};

/// Cargo puts examples beside the folder of the test's own program.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the test's path");
    let profile = test.parent().and_then(|deps| deps.parent()).expect("target/PROFILE/deps");
    let path = profile.join("examples").join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    assert!(path.exists(), "{} is missing: `cargo test` without a filter on targets builds it", path.display());
    path
}

fn run(name: &str, args: &[&str]) -> Output {
    Command::new(example(name)).args(args).output().expect("the example starts")
}

/// What it prints, when it succeeds.
fn output(name: &str, args: &[&str]) -> String {
    let out = run(name, args);
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{text}\n{}", String::from_utf8_lossy(&out.stderr));
    text
}

/// The number that follows each occurrence of `label`.
fn numbers(text: &str, label: &str) -> Vec<f64> {
    let number = |rest: &str| rest.split([',', '\n', ' ']).find(|w| !w.is_empty())?.parse().ok();
    text.split(label).skip(1).filter_map(number).collect()
}

/// SPEC 51–63, 73, 74, 90, 97
#[test]
fn scale() {
    let text = output("scale", &[]);
    assert!(text.contains("[CpuDevice(id=0), CpuDevice(id=1), CpuDevice(id=2), CpuDevice(id=3)]"), "{text}");
    assert!(text.contains("[[100. 102. 104. 106.]"), "{text}");
    assert!(text.contains("as each device has it: [240 240 240 240]"), "{text}");
    assert!(text.contains("without devices: 240"), "{text}");

    let text = output("scale", &["2"]);
    assert!(text.contains("[[ 0  2  4  6]\n [ 8 10 12 14]]"), "{text}");
    assert!(text.contains("[56 56]"), "{text}");
}

/// SPEC 178, 179: the losses that JAX prints.
#[test]
fn linear_regression() {
    let text = output("linear_regression", &[]);
    assert_eq!(numbers(&text, "loss"), [1.7352, 0.2214, 0.0359, 0.0127, 0.0098], "{text}");
    assert!(text.contains("replicas identical: true"), "{text}");
}

/// SPEC 10: on one device the program runs all the same.
#[test]
fn linear_regression_on_one_device() {
    let text = output("linear_regression", &["--devices", "1"]);
    assert!(numbers(&text, "loss").last().is_some_and(|loss| *loss < 0.05), "{text}");
}
