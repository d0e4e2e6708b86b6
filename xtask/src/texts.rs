//! `cargo xtask texts`: the StableHLO text of every reference case and random program, on every platform, as hashes.
//!
//! A change of structure must leave all of them unchanged: you write a file before it, and compare after it.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// The package, the test binary and the test.
const TESTS: [[&str; 3]; 3] = [
    ["shardax", "golden", "texts_of_families"],
    ["shardax-nn", "golden", "texts_of_families"],
    ["shardax", "fuzz", "texts_of_random_programs"],
];

/// Values of `SHARDAX_CPU_KERNELS`: no kernels, the kernels for the sizes that users meet, and all kernels.
const KERNELS: [&str; 3] = ["xla", "auto", "all"];

/// Differences that are printed.
const MAX_PRINTED: usize = 40;

/// Writes the hashes to `file`, or compares them with the hashes in it.
pub fn run(root: &Path, file: &str) -> Result<(), String> {
    let path = std::env::current_dir().map_err(|e| e.to_string())?.join(file);
    let mut texts = String::new();
    for kernels in KERNELS {
        for test in TESTS {
            let out = root.join("target/texts.txt");
            // The test appends to the file.
            let _ = std::fs::remove_file(&out);
            std::fs::create_dir_all(root.join("target")).map_err(|e| e.to_string())?;
            hashes(root, test, kernels, &out)?;
            let lines = crate::read(&out)?;
            texts.extend(lines.lines().map(|line| format!("{kernels}|{line}\n")));
        }
    }
    if !path.exists() {
        println!("{} hashes in {file}", texts.lines().count());
        return std::fs::write(&path, texts).map_err(|e| format!("{}: {e}", path.display()));
    }
    compare(&crate::read(&path)?, &texts)
}

fn hashes(root: &Path, [package, test, name]: [&str; 3], kernels: &str, out: &Path) -> Result<(), String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .current_dir(root)
        .args(["test", "--quiet", "-p", package, "--test", test, "--", "--ignored", "--exact", name])
        .env("SHARDAX_TEST_TEXTS_OUT", out)
        .env("SHARDAX_CPU_KERNELS", kernels)
        .status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("the test {name} of {package}: {status}")),
        Err(error) => Err(format!("cargo cannot be run: {error}")),
    }
}

/// The hashes of texts by program, from lines of both separated by a bar.
fn parse_hashes(text: &str) -> BTreeMap<String, String> {
    text.lines().filter_map(|line| line.rsplit_once('|')).map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
}

/// Fails if a program has another text. Programs that are new, or that are gone, are counted.
fn compare(before: &str, after: &str) -> Result<(), String> {
    let (before, after) = (parse_hashes(before), parse_hashes(after));
    let new = after.keys().filter(|name| !before.contains_key(*name)).count();
    let gone = before.keys().filter(|name| !after.contains_key(*name)).count();
    let differ: Vec<&str> = after
        .iter()
        .filter(|(name, hash)| before.get(*name).is_some_and(|known| known != *hash))
        .map(|(name, _)| name.as_str())
        .collect();
    println!("{} texts, {} differ, {new} are new, {gone} are gone", after.len(), differ.len());
    if differ.is_empty() {
        Ok(())
    } else {
        Err(format!(
            "these texts changed; `SHARDAX_TEST_TEXTS_SHOW` names a program whose texts the test prints:\n{}",
            differ[..differ.len().min(MAX_PRINTED)].join("\n")
        ))
    }
}
