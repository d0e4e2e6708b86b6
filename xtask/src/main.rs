//! Tasks of the workspace.
//!
//! `cargo xtask docs` writes the generated pages of `docs`; with `--check` it fails if the committed ones are stale. Both
//! check the names of tests on pages and the style of pages and rustdoc.
//! `cargo xtask style [FOLDER]` lists faults of style in rustdoc.
//! `cargo xtask addition` checks what a new function, layer or optimizer must come with; with a family also its reference cases.
//! `cargo xtask book` checks the links of all pages and builds the book (`docs`) with mdBook; `--links` only checks.
//! `cargo xtask fuzz --count N --seed S` compares random programs with JAX; a rerun resumes.
//! `cargo xtask sweep --pieces N` runs the committed random programs in every way (compiled, batched, split, exported, …); a
//! rerun resumes.
//! `cargo xtask mutants --count N` reads so many mutants of every format of files, in bounded time and memory; a rerun resumes.
//! `cargo xtask texts FILE` writes hashes of the StableHLO text of all reference cases and random programs, or compares them
//! with those in the file.
//! `cargo xtask accelerators` fetches the compilers for TPUs and GPUs, for tests, into the user's cache.
//! `cargo xtask platforms` compiles programs and operations with them and writes `docs/platforms.md`; a rerun
//! resumes.
//! `cargo xtask attention` compiles the implementations of attention with them and writes the table of `docs/kernels.md`.
//! `cargo xtask device cpu|cuda|tpu` builds and runs `shardax-doctor`, which checks a platform and writes a report, and adds
//! rows of the benchmarks to it.
//! `cargo xtask licences` fails where a crate that is built in has a licence that `deny.toml` does not allow.
//! `cargo xtask sanitize [address] [thread] [miri]` runs the tests of `shardax-pjrt` under these, or all three.

#![forbid(unsafe_code)]

mod accelerators;
mod attention;
mod book;
mod counts;
mod device;
#[cfg(test)]
mod features;
mod fuzz;
mod licences;
mod links;
mod names;
mod platforms;
mod quirks;
mod sanitize;
mod style;
mod tests;
mod texts;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask docs [--check]
       cargo xtask style [FOLDER]
       cargo xtask addition [FAMILY]
       cargo xtask book [--links]
       cargo xtask fuzz [--count N] [--seed S] [--mode explicit]
       cargo xtask sweep [--pieces N]
       cargo xtask mutants [--count N] [--package P]
       cargo xtask texts FILE
       cargo xtask accelerators
       cargo xtask attention
       cargo xtask platforms [--every N] [--on TOPOLOGY,TOPOLOGY] [--processes N]
       cargo xtask platforms --from LINES...
       cargo xtask device [cpu|cuda|tpu] [OPTIONS of shardax-doctor]
       cargo xtask licences
       cargo xtask sanitize [address] [thread] [miri]";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    // Slices instead of a parser of options: the tool has one word for each task, and few options.
    let done = match args.as_slice() {
        ["docs"] => docs(false),
        ["docs", "--check"] => docs(true),
        ["style", folders @ ..] => style::list(&root(), folders),
        ["addition"] => addition(None),
        ["addition", family] => addition(Some(family)),
        ["book"] => book::run(&root(), false),
        ["book", "--links"] => book::run(&root(), true),
        ["texts", file] => texts::run(&root(), file),
        ["accelerators"] => accelerators::run(),
        ["attention"] => attention::run(&root()),
        ["platforms", "--from", files @ ..] => platforms::from(&root(), files),
        ["platforms", options @ ..] => platforms::run(&root(), options),
        ["device", options @ ..] => device::run(&root(), options),
        ["licences"] => licences::run(&root()),
        ["sanitize", tools @ ..] => {
            let selected = sanitize::TOOLS.iter().filter(|tool| tools.is_empty() || tools.contains(&tool.name));
            sanitize::run(&root(), &selected.collect::<Vec<_>>())
        }
        ["fuzz", options @ ..] => fuzz::run(&root(), options),
        ["sweep", options @ ..] => fuzz::sweep(&root(), options),
        ["mutants", options @ ..] => fuzz::mutants(&root(), options),
        _ => Err(USAGE.to_owned()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

/// Checks what an addition must come with (docs/adding.md), and the reference cases of a family; reports all failures.
fn addition(family: Option<&str>) -> Result<(), String> {
    let mut steps: Vec<Vec<&str>> = vec![
        vec!["fmt", "--all", "--check"],
        vec!["test", "--quiet", "-p", "shardax", "--test", "functions", "every_"],
        vec!["test", "--quiet", "-p", "shardax", "--test", "layers"],
    ];
    if let Some(family) = family {
        let count = steps.len();
        for package in ["shardax", "shardax-nn"] {
            let tests = read(&root().join("crates").join(package).join("tests/golden.rs")).unwrap_or_default();
            if tests.split_whitespace().any(|word| word == family) {
                steps.push(vec!["test", "--quiet", "-p", package, "--test", "golden", "--", "--exact", family]);
            }
        }
        if steps.len() == count {
            return Err(format!("no tests/golden.rs lists the family {family:?}"));
        }
    }
    // All steps run after a failure too, so that one run reports everything that is missing.
    let mut failures: Vec<String> = steps.iter().filter_map(|step| cargo(step).err()).collect();
    failures.extend(docs(true).err());
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

/// Runs Cargo; fails if it does.
fn cargo(args: &[&str]) -> Result<(), String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    match std::process::Command::new(cargo).args(args).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("cargo {}: {status}", args.join(" "))),
        Err(error) => Err(format!("cargo cannot be run: {error}")),
    }
}

/// The folder of the workspace.
fn root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask).to_owned()
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|e| file_error(path, &e))
}

fn file_error(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}

/// Writes the generated pages, or with `check` compares them with the committed ones. Then checks names of tests on
/// pages, and style.
fn docs(check: bool) -> Result<(), String> {
    let root = root();
    let docs = root.join("docs");
    let all_tests = tests::find(&root)?;
    let mut faults = Vec::new();
    let pages = [
        ("plugin.md", quirks::page(&root, &read(&docs.join("plugin.md"))?)?),
        ("testing.md", counts::page(&root, &read(&docs.join("testing.md"))?, &all_tests)?),
        ("where-is-x.md", names::page(&root, &read(&docs.join("where-is-x.txt"))?)?),
    ];
    for (name, text) in pages {
        let path = docs.join(name);
        if !check {
            std::fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))?;
        } else if read(&path).ok().as_ref() != Some(&text) {
            faults.push(format!("docs/{name} is stale: run `cargo xtask docs` and commit what it writes"));
        }
    }
    for path in tests::files(&docs, "md")? {
        let name = path.strip_prefix(&root).unwrap_or(&path).to_string_lossy();
        faults.extend(counts::unknown_tests(&name, &read(&path)?, &all_tests));
    }
    faults.extend(style::check(&root)?);
    if faults.is_empty() { Ok(()) } else { Err(faults.join("\n")) }
}
