//! Mutants of the files of every reader, in pieces: each must be read or be an error, within bounded time and memory. A rerun
//! goes on where an earlier run ended.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use crate::fuzz::Progress;

/// The tests that read them.
const TESTS: [&[&str]; 3] = [
    &["--package", "shardax", "--test", "export", "mutated"],
    &["--package", "shardax-train", "--all-features", "--test", "train", "mutated"],
    &["--package", "shardax-models", "--test", "huggingface", "mutated"],
];

/// Mutants of a format in one process.
const AT_ONCE: usize = 5000;

pub fn run(root: &Path, options: &[&str]) -> Result<(), String> {
    let count = match options {
        [] => AT_ONCE,
        ["--count", n] => n.parse().map_err(|e| format!("{n:?}: {e}"))?,
        _ => return Err(crate::USAGE.to_owned()),
    };
    let mut progress = Progress::of(&root.join("target/fuzz"), "mutants")?;
    while progress.done < count {
        let (from, size) = (progress.done, AT_ONCE.min(count - progress.done));
        let mut found = BTreeMap::new();
        for test in TESTS {
            found.extend(piece(root, test, from, size)?);
        }
        progress.add(size, 0, &found, &BTreeMap::new())?;
        println!("{} mutants of each format", progress.done);
    }
    progress.print();
    Ok(())
}

/// Runs a test for so many mutants, and reads the count of each format.
fn piece(root: &Path, test: &[&str], from: usize, count: usize) -> Result<BTreeMap<String, usize>, String> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root).args(["test", "--quiet"]).args(test).args(["--", "--nocapture"]);
    command.env("SHARDAX_MUTANTS_FROM", from.to_string()).env("SHARDAX_MUTANTS", count.to_string());
    let output = command.output().map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        return Err(format!("{text}{}", String::from_utf8_lossy(&output.stderr)));
    }
    // `mutants of npy: 12 of 300 were read, …`, behind what the test runner writes.
    let lines = text.lines().filter_map(|line| line.split_once("mutants of ")?.1.split_once(": "));
    lines
        .map(|(name, rest)| {
            println!("  {name}: {rest}");
            Ok((name.to_owned(), count))
        })
        .collect()
}
