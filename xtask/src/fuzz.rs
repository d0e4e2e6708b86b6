//! Comparison of random programs with JAX: `tools/fuzz` makes them, the test `fuzz` runs them, and failures are
//! reduced. The sweep runs the committed programs in every way. Mutants of files are read by the readers of three crates.
//!
//! Reruns resume: the counts so far are in a file of `target/fuzz`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The number of programs in a file. It is small because each file has its own process, whose memory should stay small.
const AT_ONCE: usize = 250;

const PYTHON: &str = "SHARDAX_TEST_GOLDEN_PYTHON";

pub fn run(root: &Path, options: &[&str]) -> Result<(), String> {
    let (mut count, mut seed, mut mode) = (1000, 0, None);
    for pair in options.chunks(2) {
        match pair {
            ["--count", n] => count = n.parse::<usize>().map_err(|e| format!("{n:?}: {e}"))?,
            ["--seed", n] => seed = n.parse::<usize>().map_err(|e| format!("{n:?}: {e}"))?,
            ["--mode", name] => mode = Some(*name),
            _ => return Err(crate::USAGE.to_owned()),
        }
    }
    let work = root.join("target/fuzz");
    let mut progress =
        Progress::of(&work, &format!("{seed}{}", mode.map_or(String::new(), |mode| format!("_{mode}"))))?;
    while progress.done < count {
        let done = progress.done;
        let size = AT_ONCE.min(count - done);
        let file = work.join(format!("{seed}_{done}.safetensors"));
        let part = format!("{seed}{:05}", done / AT_ONCE);
        let (size_text, out) = (size.to_string(), path(&file));
        let mut args = vec!["--count", &size_text, "--seed", &part, "--out", &out];
        args.extend(mode.iter().flat_map(|mode| ["--mode", mode]));
        python(root, FUZZ_PROGRAM, &args)?;
        let outcome = compare(root, &file)?;
        let mut blamed = BTreeMap::new();
        if outcome.failures.is_empty() {
            std::fs::remove_file(&file).map_err(|e| e.to_string())?;
        } else {
            // Sub-programs of the failures with JAX's results; the test prints the smallest that still differs.
            let parts = file.with_extension("parts.safetensors");
            let (failures_path, parts_path) = (path(&file), path(&parts));
            let mut args = vec!["--reduce", failures_path.as_str(), "--out", parts_path.as_str()];
            args.extend(outcome.failures.iter().map(String::as_str));
            python(root, FUZZ_PROGRAM, &args)?;
            let reduced = compare(root, &parts)?;
            blamed = if reduced.blamed.is_empty() { outcome.blamed } else { reduced.blamed };
        }
        progress.add(size, outcome.failures.len(), &outcome.modes, &blamed)?;
        println!("{} programs, {} differ from JAX", progress.done, progress.differ);
        print(&progress.modes);
    }
    progress.end(&format!("differ from JAX; they are in {}", work.display()))
}

/// Runs the committed programs in every way, piece by piece, until so many pieces are done.
pub fn sweep(root: &Path, options: &[&str]) -> Result<(), String> {
    let count = match options {
        [] => 1000,
        ["--pieces", n] => n.parse().map_err(|e| format!("{n:?}: {e}"))?,
        _ => return Err(crate::USAGE.to_owned()),
    };
    let mut progress = Progress::of(&root.join("target/fuzz"), "sweep")?;
    let report = progress.file.with_extension("report");
    while progress.done < count {
        let pieces = progress.done..count.min(progress.done + PIECES_AT_ONCE);
        let mut test = test(root, FUZZ, "programs_are_the_same");
        test.env("SHARDAX_TEST_FUZZ_PIECES", format!("{}..{}", pieces.start, pieces.end));
        let outcome = reported(test, &report)?;
        progress.add(pieces.len(), outcome.failures.len(), &outcome.modes, &outcome.blamed)?;
        let programs: usize = progress.modes.values().sum();
        println!("{programs} programs in {} pieces, {} differ", progress.done, progress.differ);
    }
    print(&progress.modes);
    progress.end("of these pieces gave programs that differ: `SHARDAX_TEST_FUZZ_PIECES=FROM..TO` names them")
}

/// The packages whose tests read mutants, the test binaries, and the features that add formats.
const READERS: [(&str, &str, &str); 4] = [
    ("shardax-train", "train", "image,parquet"),
    ("shardax-models", "huggingface", ""),
    ("shardax-models", "files", ""),
    ("shardax", "export", ""),
];

/// Mutants of each format in one run of a test binary.
const MUTANTS_AT_ONCE: usize = 1000;

/// Reads mutants of every format, piece by piece, until each format has had the number asked for.
pub fn mutants(root: &Path, options: &[&str]) -> Result<(), String> {
    let (mut count, mut only) = (10_000, None);
    for pair in options.chunks(2) {
        match pair {
            ["--count", n] => count = n.parse().map_err(|e| format!("{n:?}: {e}"))?,
            ["--package", name] if READERS.iter().any(|(package, ..)| package == name) => only = Some(*name),
            _ => return Err(crate::USAGE.to_owned()),
        }
    }
    // A fault of one package must not hide the faults of the others, so all packages run.
    let mut faults = Vec::new();
    let chosen = READERS.into_iter().filter(|(package, ..)| only.is_none_or(|only| only == *package));
    for (package, binary, features) in chosen {
        let mut progress = Progress::of(&root.join("target/fuzz"), &format!("mutants_{package}_{binary}"))?;
        let report = progress.file.with_extension("report");
        while progress.done < count {
            let size = MUTANTS_AT_ONCE.min(count - progress.done);
            let mut test = test(root, (package, binary), "mutated_");
            test.args(["--features", features]);
            test.env("SHARDAX_TEST_MUTANTS_FROM", progress.done.to_string())
                .env("SHARDAX_TEST_MUTANTS", size.to_string());
            let outcome = reported(test, &report)?;
            progress.add(size, outcome.failures.len(), &outcome.modes, &outcome.blamed)?;
            println!("{} mutants of each format of {package}/{binary}, {} findings", progress.done, progress.differ);
        }
        print(&progress.modes);
        faults.extend(progress.end("mutants of a format were neither read nor an error").err());
    }
    if faults.is_empty() { Ok(()) } else { Err(faults.join("\n")) }
}

/// Pieces of a sweep in one process.
const PIECES_AT_ONCE: usize = 70;

/// The counts of a run, in a file that a rerun reads.
struct Progress {
    file: PathBuf,
    done: usize,
    differ: usize,
    modes: BTreeMap<String, usize>,
    blamed: BTreeMap<String, usize>,
}

impl Progress {
    fn of(folder: &Path, name: &str) -> Result<Progress, String> {
        std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let file = folder.join(format!("{name}.progress"));
        let resumed = if file.exists() { Found::read(&file)? } else { Found::default() };
        let Found { modes, blamed, done, differ, .. } = resumed;
        if done > 0 {
            println!(
                "resumes after {done} results, {differ} of them different; delete {} to start again",
                file.display()
            );
        }
        Ok(Progress { file, done, differ, modes, blamed })
    }

    fn add(
        &mut self,
        done: usize,
        differ: usize,
        modes: &BTreeMap<String, usize>,
        blamed: &BTreeMap<String, usize>,
    ) -> Result<(), String> {
        self.done += done;
        self.differ += differ;
        add(&mut self.modes, modes);
        add(&mut self.blamed, blamed);
        let mut text = format!("done\t{}\t{}\n", self.done, self.differ);
        for (kind, counts) in [("mode", &self.modes), ("blamed", &self.blamed)] {
            text.extend(counts.iter().map(|(name, n)| format!("{kind}\t{n}\t{name}\n")));
        }
        std::fs::write(&self.file, text).map_err(|e| format!("{}: {e}", self.file.display()))
    }

    fn end(&self, what: &str) -> Result<(), String> {
        match self.differ {
            0 => Ok(()),
            differ => {
                print(&self.blamed);
                Err(format!("{differ} of {} {what}", self.done))
            }
        }
    }
}

pub fn path(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn print(counts: &BTreeMap<String, usize>) {
    counts.iter().for_each(|(name, n)| println!("{n:8} {name}"));
}

fn add(to: &mut BTreeMap<String, usize>, more: &BTreeMap<String, usize>) {
    more.iter().for_each(|(name, n)| *to.entry(name.clone()).or_default() += n);
}

pub fn python(root: &Path, program: &str, args: &[&str]) -> Result<(), String> {
    let python = std::env::var_os(PYTHON).map_or_else(|| root.join(".venv/golden/bin/python"), PathBuf::from);
    let mut command = Command::new(&python);
    match command.arg(root.join(program)).args(args).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{program}: {status}")),
        Err(e) => Err(format!("{}: {e}. Install it as tools/golden/README.md says, or set {PYTHON}", python.display())),
    }
}

/// The report of the test for a file, or of all so far.
#[derive(Default)]
struct Found {
    done: usize,
    differ: usize,
    modes: BTreeMap<String, usize>,
    blamed: BTreeMap<String, usize>,
    failures: Vec<String>,
}

fn compare(root: &Path, file: &Path) -> Result<Found, String> {
    let mut test = test(root, FUZZ, "random_programs_are");
    test.env("SHARDAX_TEST_FUZZ_FILE", file);
    reported(test, &file.with_extension("report"))
}

/// The program that makes random programs and computes them with JAX.
const FUZZ_PROGRAM: &str = "tools/fuzz/fuzz.py";

/// The package and the test binary of random programs.
const FUZZ: (&str, &str) = ("shardax", "fuzz");

/// The command that runs the tests with such a name of a binary.
fn test(root: &Path, (package, binary): (&str, &str), name: &str) -> Command {
    let mut test = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    test.current_dir(root).args(["test", "--quiet", "--package", package, "--test", binary, name]);
    test
}

/// Runs a test that writes a report, and reads it.
fn reported(mut test: Command, report: &Path) -> Result<Found, String> {
    test.env("SHARDAX_TEST_FUZZ_REPORT", report).env("RUST_BACKTRACE", "0");
    test.status().map_err(|e| e.to_string())?;
    let outcome = Found::read(report)?;
    std::fs::remove_file(report).map_err(|e| e.to_string())?;
    Ok(outcome)
}

/// Parses a number of a report.
fn count(text: &str) -> usize {
    text.parse().unwrap_or(0)
}

impl Found {
    fn read(file: &Path) -> Result<Found, String> {
        let mut outcome = Found::default();
        for line in crate::read(file)?.lines() {
            let mut parts = line.splitn(3, '\t');
            match (parts.next(), parts.next(), parts.next()) {
                (Some("done"), Some(n), Some(differ)) => (outcome.done, outcome.differ) = (count(n), count(differ)),
                (Some("mode"), Some(n), Some(name)) => drop(outcome.modes.insert(name.to_owned(), count(n))),
                (Some("blamed"), Some(n), Some(name)) => drop(outcome.blamed.insert(name.to_owned(), count(n))),
                (Some("failure"), Some(name), None) => outcome.failures.push(name.to_owned()),
                _ => return Err(format!("{}: {line:?} is not a line of a report", file.display())),
            }
        }
        Ok(outcome)
    }
}
