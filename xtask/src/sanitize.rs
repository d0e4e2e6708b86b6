//! The tests of `shardax-pjrt`, which has most of the `unsafe` code, under AddressSanitizer, ThreadSanitizer and Miri.
//! The report says which tools could not run, and why.

use std::path::Path;
use std::process::Command;

/// A sanitizer.
pub struct Tool {
    pub name: &'static str,
    run: fn(&Path) -> Result<String, Missing>,
}

/// Why a tool did not run or pass.
pub enum Missing {
    NotHere(String),
    Failed(String),
}

pub const TOOLS: &[Tool] =
    &[Tool { name: "address", run: address }, Tool { name: "thread", run: thread }, Tool { name: "miri", run: miri }];

/// Runs these tools and prints a line for each.
pub fn run(root: &Path, tools: &[&Tool]) -> Result<(), String> {
    let mut report = Vec::new();
    let mut failed = false;
    for tool in tools {
        println!("== {}", tool.name);
        report.push(match (tool.run)(root) {
            Ok(counts) => format!("{}: {counts}", tool.name),
            Err(Missing::NotHere(why)) => format!("{}: not run: {why}", tool.name),
            Err(Missing::Failed(why)) => {
                failed = true;
                format!("{}: FAILED: {why}", tool.name)
            }
        });
    }
    println!("== sanitize\n{}", report.join("\n"));
    if failed { Err("see above".to_owned()) } else { Ok(()) }
}

/// Runs the tests with AddressSanitizer, without leak detection, because the plugin never frees its statics.
fn address(root: &Path) -> Result<String, Missing> {
    let test = sanitized(root, "address", &["--lib", "--tests"], &[]);
    tested(test.env("ASAN_OPTIONS", "detect_leaks=0:abort_on_error=0:detect_stack_use_after_return=1"))
}

/// Runs the tests with ThreadSanitizer, which finds data races in this crate. The plugin is not instrumented, so its
/// synchronization is invisible: passing a value through it to another thread looks like a race, see `xtask/tsan.txt`.
fn thread(root: &Path) -> Result<String, Missing> {
    let rustc = Command::new("rustc").args(["--print", "sysroot"]).output().map_err(not_here)?;
    let sysroot = String::from_utf8_lossy(&rustc.stdout).trim().to_owned();
    // The standard library must be instrumented too, or every use of its locks would look like a race.
    let std = Path::new(&sysroot).join("lib/rustlib/src/rust/library/std");
    if !std.exists() {
        return Err(Missing::NotHere(
            "it needs the source of the standard library, which is not installed (`rustup component add rust-src`)"
                .to_owned(),
        ));
    }
    let test = sanitized(root, "thread", &["--lib", "--tests"], &["-Zbuild-std"]);
    // The plugin's mutexes are not instrumented either, so its waits look like unlocking an unlocked mutex. A test
    // forks, and ThreadSanitizer ends a child that creates a thread.
    let options =
        format!("report_mutex_bugs=0:die_after_fork=0:suppressions={}", root.join("xtask/tsan.txt").display());
    tested(test.env("TSAN_OPTIONS", options))
}

/// Runs the tests that do not need the plugin with Miri, because Miri cannot load it.
fn miri(root: &Path) -> Result<String, Missing> {
    let has = Command::new("cargo").args(["+nightly", "miri", "--version"]).output();
    if !has.is_ok_and(|output| output.status.success()) {
        return Err(Missing::NotHere(
            "it is a component of nightly Rust that is not installed (`rustup +nightly component add miri`)".to_owned(),
        ));
    }
    let mut test = Command::new("cargo");
    test.args(["+nightly", "miri", "test", "-p", "shardax-pjrt", "--lib", "--", "--skip", "hlo::localize"]);
    test.current_dir(root);
    tested(test.env("MIRIFLAGS", "-Zmiri-disable-isolation"))
}

/// `cargo test` of the crate with a sanitizer, which stable Rust accepts only with `RUSTC_BOOTSTRAP`.
fn sanitized(root: &Path, sanitizer: &str, tests: &[&str], more: &[&str]) -> &'static mut Command {
    let mut test = Command::new("cargo");
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    test.args(["test", "-p", "shardax-pjrt", "--no-fail-fast", "--target", &target]).args(tests).args(more);
    test.arg("--target-dir").arg(root.join("target/sanitize").join(sanitizer));
    test.env("SHARDAX_TEST_PATIENCE", "10")
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", format!("-Zsanitizer={sanitizer}"))
        .current_dir(root);
    Box::leak(Box::new(test))
}

fn not_here(error: std::io::Error) -> Missing {
    Missing::NotHere(error.to_string())
}

/// Runs the tests and returns their counts.
fn tested(test: &mut Command) -> Result<String, Missing> {
    let output = test.stderr(std::process::Stdio::inherit()).output().map_err(not_here)?;
    let text = String::from_utf8_lossy(&output.stdout);
    print!("{text}");
    let results = text.lines().filter(|line| line.starts_with("test "));
    let [passed, failed] = ["... ok", "FAILED"].map(|end| results.clone().filter(|line| line.ends_with(end)).count());
    let counts = format!("{passed} tests passed, {failed} failed");
    if output.status.success() { Ok(counts) } else { Err(Missing::Failed(format!("{counts} ({})", output.status))) }
}
