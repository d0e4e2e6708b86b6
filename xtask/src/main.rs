//! Chores of the workspace.
//!
//! `cargo xtask docs` writes the pages of `docs` that follow from tests and lists of rows; with `--check` it fails where the
//! committed ones are stale.
//! `cargo xtask book` checks the links of all pages and builds the book (`docs`) with mdBook; `--links` only checks.
//! `cargo xtask fuzz --count N --seed S` compares random programs with JAX.
//! `cargo xtask accelerators` fetches the compilers for TPUs and GPUs, for tests, into the user's cache.
//! `cargo xtask platforms` compiles programs and operations with them and writes `docs/platforms.md`; a run that was
//! ended goes on where it was.
//! `cargo xtask licences` fails where a crate that is built in has a licence that `deny.toml` does not allow.
//! `cargo xtask sanitize [address] [thread] [miri]` runs the tests of `shardax-pjrt` under these, or all three.

#![forbid(unsafe_code)]

mod accelerators;
mod book;
mod counts;
mod coverage;
mod fuzz;
mod licences;
mod links;
mod pages;
mod platforms;
mod rows;
mod sanitize;
mod tests;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask docs [--check]
       cargo xtask book [--links]
       cargo xtask fuzz [--count N] [--seed S]
       cargo xtask accelerators
       cargo xtask platforms [--every N] [--on TOPOLOGY,TOPOLOGY] [--processes N]
       cargo xtask platforms --from LINES...
       cargo xtask licences
       cargo xtask sanitize [address] [thread] [miri]";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args.as_slice() {
        ["docs"] => docs(false),
        ["docs", "--check"] => docs(true),
        ["book"] => book::run(&root(), false),
        ["book", "--links"] => book::run(&root(), true),
        ["accelerators"] => accelerators::run(),
        ["platforms", "--from", files @ ..] => platforms::from(&root(), files),
        ["platforms", options @ ..] => platforms::run(&root(), options),
        ["licences"] => licences::run(&root()),
        ["sanitize", tools @ ..] => {
            let known = sanitize::TOOLS.iter().filter(|tool| tools.is_empty() || tools.contains(&tool.name));
            sanitize::run(&root(), &known.collect::<Vec<_>>())
        }
        ["fuzz", options @ ..] => fuzz::run(&root(), options),
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

/// The folder of the workspace.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

/// Writes the pages, or with `check` compares them with what is committed.
fn docs(check: bool) -> Result<(), String> {
    let root = root();
    let docs = root.join("docs");
    let found = tests::find(&root)?;
    let spec = pages::spec(&rows::spec(&read(&docs.join("spec-rows.txt"))?)?, &found)?;
    let scorecard = pages::scorecard(&rows::scorecard(&read(&docs.join("scorecard-rows.txt"))?)?, &found);
    let testing = counts::page(&root, &read(&docs.join("testing.md"))?, &found)?;
    let coverage = coverage::page(&root, &read(&docs.join("coverage-rows.txt"))?)?;
    let mut stale = Vec::new();
    let pages = [
        ("spec.md", &spec.text),
        ("scorecard.md", &scorecard.text),
        ("testing.md", &testing),
        ("coverage.md", &coverage),
    ];
    for (name, text) in pages {
        let path = docs.join(name);
        if check {
            if std::fs::read_to_string(&path).ok().as_ref() != Some(text) {
                stale.push(format!("docs/{name}"));
            }
        } else {
            std::fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))?;
        }
    }
    for (name, page) in [("spec.md", &spec), ("scorecard.md", &scorecard)] {
        println!("docs/{name}: {} of {} rows have a test", page.proved, page.rows);
    }
    match stale.as_slice() {
        [] => Ok(()),
        _ => Err(format!("stale: {}. Run `cargo xtask docs` and commit what it writes", stale.join(", "))),
    }
}
