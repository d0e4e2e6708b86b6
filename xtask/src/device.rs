//! A first run on hardware: `shardax-doctor`, and rows of the benchmarks in its report.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The rows that need one device.
const ROWS: [&str; 14] = [
    "jit_tiny",
    "jit_64_args",
    "matmul_2048",
    "fused_elementwise_16m",
    "reduce_axis0_16m",
    "batched_matmul",
    "softmax_grad",
    "layernorm_grad",
    "scan_1000",
    "conv_3x3_grad",
    "read_tree",
    "mlp_step_1",
    "resnet18_step_1",
    "gpt_step_1",
];

/// Rows that would take CPUs minutes.
const ON_ACCELERATORS: [&str; 2] = ["attention_bf16", "gpt2_step_bf16"];

/// Runs the doctor with these options, then the rows. `--only` is a run of some checks, without rows.
pub fn run(root: &Path, options: &[&str]) -> Result<(), String> {
    let doctor = ["run", "--release", "--quiet", "-p", "shardax-cli", "--bin", "shardax-doctor", "--"];
    let checked = crate::cargo(&[&doctor[..], options].concat());
    if options.iter().any(|option| option.starts_with("--only") || *option == "--help") {
        return checked;
    }
    // The rows are written even if a check fails, so that a report of a new machine is complete.
    let platform = options.first().filter(|option| !option.starts_with('-'));
    let accelerator_rows: &[&str] =
        if platform.is_some_and(|platform| *platform != "cpu") { &ON_ACCELERATORS } else { &[] };
    let rows: Vec<String> =
        ROWS.iter().chain(accelerator_rows).map(|name| row(root, name, platform.copied())).collect();
    let report = option(options, "--report").unwrap_or_else(|| PathBuf::from("shardax-doctor.md"));
    let text = format!("\nRows of the benchmarks (bench/README.md):\n\n```text\n{}```\n", rows.concat());
    let written =
        std::fs::File::options().append(true).open(&report).and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| format!("cannot write {}: {error}", report.display()))?;
    checked
}

/// The value of an option, `--report FILE` or `--report=FILE`.
fn option(options: &[&str], name: &str) -> Option<PathBuf> {
    let joined = options.iter().find_map(|option| option.strip_prefix(name)?.strip_prefix('='));
    let separate = options.iter().skip_while(|option| **option != name).nth(1).copied();
    joined.or(separate).map(PathBuf::from)
}

/// A row's line, or why there is none. Each runs in a process of its own: one that fails is only a line.
fn row(root: &Path, name: &str, platform: Option<&str>) -> String {
    let mut bench = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    bench.args(["run", "--release", "--quiet", "-p", "shardax-bench", "--", "--filter", name]).current_dir(root);
    bench.envs(platform.map(|platform| ("SHARDAX_PLATFORM", platform)));
    let output_text = match bench.output() {
        Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Err(error) => error.to_string(),
    };
    let line = line(&output_text, name);
    print!("{line}");
    line
}

/// The line about this row, or the first one of what was said instead.
fn line(said: &str, name: &str) -> String {
    let about = said.lines().find(|line| line.split_whitespace().next() == Some(name));
    match about.or_else(|| said.lines().find(|line| !line.trim().is_empty())) {
        Some(line) if about.is_some() => format!("{line}\n"),
        other => format!("{name:24} failed: {}\n", other.unwrap_or("without a word")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_and_lines_are_read() {
        let options = ["cuda", "--limit", "9", "--report", "a.md"];
        assert_eq!(option(&options, "--report"), Some(PathBuf::from("a.md")));
        assert_eq!(option(&["--report=b.md"], "--report"), Some(PathBuf::from("b.md")));
        assert_eq!(option(&["cuda"], "--report"), None);
        let text = "  a remark\njit_tiny                         63.7 µs  (min 60.1, 3000 runs)\n";
        assert_eq!(line(text, "jit_tiny"), "jit_tiny                         63.7 µs  (min 60.1, 3000 runs)\n");
        assert_eq!(line("\nError: no memory\n", "jit_tiny"), "jit_tiny                 failed: Error: no memory\n");
        assert_eq!(line("", "x"), "x                        failed: without a word\n");
    }

    #[test]
    fn rows_match_benchmarks() {
        let bench = include_str!("../../bench/src/main.rs");
        for row in ROWS.iter().chain(&ON_ACCELERATORS) {
            assert!(bench.contains(&format!("(\"{row}\", ")), "{row}");
        }
    }
}
