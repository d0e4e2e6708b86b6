//! Random programs against JAX: made by `tools/fuzz`, run by the test `fuzz`, and those that differ taken apart.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Programs in a file: each is made by a process of its own, so that neither side grows.
const AT_ONCE: usize = 250;

const PYTHON: &str = "SHARDAX_GOLDEN_PYTHON";

pub fn run(root: &Path, options: &[&str]) -> Result<(), String> {
    let (mut count, mut seed) = (1000, 0);
    for pair in options.chunks(2) {
        let number = |text: &str| text.parse::<usize>().map_err(|e| format!("{text:?}: {e}"));
        match pair {
            ["--count", n] => count = number(n)?,
            ["--seed", n] => seed = number(n)?,
            _ => return Err(crate::USAGE.to_owned()),
        }
    }
    let work = root.join("target/fuzz");
    std::fs::create_dir_all(&work).map_err(|e| format!("{}: {e}", work.display()))?;
    let (mut modes, mut blamed) = (BTreeMap::new(), BTreeMap::new());
    let (mut done, mut differ) = (0, 0);
    while done < count {
        let size = AT_ONCE.min(count - done);
        let file = work.join(format!("{seed}_{done}.safetensors"));
        let part = format!("{seed}{:05}", done / AT_ONCE);
        python(root, &["--count", &size.to_string(), "--seed", &part, "--out", &path(&file)])?;
        let found = compare(root, &file)?;
        done += size;
        add(&mut modes, &found.modes);
        if found.failures.is_empty() {
            std::fs::remove_file(&file).map_err(|e| e.to_string())?;
        } else {
            differ += found.failures.len();
            // Parts of what differs, with JAX's answers: the test prints the smallest that still does.
            let parts = file.with_extension("parts.safetensors");
            let (of, to) = (path(&file), path(&parts));
            let mut args = vec!["--reduce", of.as_str(), "--out", to.as_str()];
            args.extend(found.failures.iter().map(String::as_str));
            python(root, &args)?;
            let reduced = compare(root, &parts)?;
            add(&mut blamed, if reduced.blamed.is_empty() { &found.blamed } else { &reduced.blamed });
        }
        println!("{done} programs, {differ} differ from JAX");
        print(&modes);
    }
    match differ {
        0 => Ok(()),
        _ => {
            print(&blamed);
            Err(format!("{differ} of {done} programs differ from JAX; they are in {}", work.display()))
        }
    }
}

fn path(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn print(counts: &BTreeMap<String, usize>) {
    counts.iter().for_each(|(name, n)| println!("{n:8} {name}"));
}

fn add(to: &mut BTreeMap<String, usize>, more: &BTreeMap<String, usize>) {
    more.iter().for_each(|(name, n)| *to.entry(name.clone()).or_default() += n);
}

fn python(root: &Path, args: &[&str]) -> Result<(), String> {
    let python = std::env::var_os(PYTHON).map_or_else(|| root.join(".venv/golden/bin/python"), PathBuf::from);
    let mut command = Command::new(&python);
    match command.arg(root.join("tools/fuzz/fuzz.py")).args(args).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("tools/fuzz/fuzz.py: {status}")),
        Err(e) => Err(format!("{}: {e}. Make it as tools/golden/README.md says, or set {PYTHON}", python.display())),
    }
}

/// The output of the test for a file: lines of counts, in three parts.
#[derive(Default)]
struct Found {
    modes: BTreeMap<String, usize>,
    blamed: BTreeMap<String, usize>,
    failures: Vec<String>,
}

fn compare(root: &Path, file: &Path) -> Result<Found, String> {
    let report = file.with_extension("report");
    let mut test = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    test.current_dir(root).args(["test", "--quiet", "--package", "shardax", "--test", "fuzz", "random_programs"]);
    test.env("SHARDAX_FUZZ_FILE", file).env("SHARDAX_FUZZ_REPORT", &report).env("RUST_BACKTRACE", "0");
    test.status().map_err(|e| e.to_string())?;
    let text = crate::read(&report)?;
    let mut found = Found::default();
    for line in text.lines() {
        let mut parts = line.splitn(3, '\t');
        match (parts.next(), parts.next(), parts.next()) {
            (Some("mode"), Some(n), Some(name)) => {
                found.modes.insert(name.to_owned(), n.parse().unwrap_or(0));
            }
            (Some("blamed"), Some(n), Some(name)) => {
                found.blamed.insert(name.to_owned(), n.parse().unwrap_or(0));
            }
            (Some("failure"), Some(name), None) => found.failures.push(name.to_owned()),
            _ => return Err(format!("{}: {line:?} is no line of a report", report.display())),
        }
    }
    std::fs::remove_file(&report).map_err(|e| e.to_string())?;
    Ok(found)
}
