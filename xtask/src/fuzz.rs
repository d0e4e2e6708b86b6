//! Comparison of random programs with JAX: `tools/fuzz` makes them, the test `fuzz` runs them, and failures are
//! reduced.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The number of programs in a file. A process for each file limits the memory of both sides.
const AT_ONCE: usize = 250;

const PYTHON: &str = "SHARDAX_GOLDEN_PYTHON";

pub fn run(root: &Path, options: &[&str]) -> Result<(), String> {
    let (mut count, mut seed, mut mode) = (1000, 0, None);
    for pair in options.chunks(2) {
        let number = |text: &str| text.parse::<usize>().map_err(|e| format!("{text:?}: {e}"));
        match pair {
            ["--count", n] => count = number(n)?,
            ["--seed", n] => seed = number(n)?,
            ["--mode", name] => mode = Some(*name),
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
        let (size_text, out) = (size.to_string(), path(&file));
        let mut args = vec!["--count", &size_text, "--seed", &part, "--out", &out];
        args.extend(mode.iter().flat_map(|mode| ["--mode", mode]));
        python(root, &args)?;
        let found = compare(root, &file)?;
        done += size;
        add(&mut modes, &found.modes);
        if found.failures.is_empty() {
            std::fs::remove_file(&file).map_err(|e| e.to_string())?;
        } else {
            differ += found.failures.len();
            // Sub-programs of the failures with JAX's results; the test prints the smallest that still differs.
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
        Err(e) => Err(format!("{}: {e}. Install it as tools/golden/README.md says, or set {PYTHON}", python.display())),
    }
}

/// The report of the test for a file: three lists of counts.
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
            _ => return Err(format!("{}: {line:?} is not a line of a report", report.display())),
        }
    }
    std::fs::remove_file(&report).map_err(|e| e.to_string())?;
    Ok(found)
}
