//! Mutants of files: each is read or is an error, within bounded time and memory.
//!
//! Another process reads them, so that a panic, an abort, a hang and memory beyond the bound are found, each with the mutant's
//! number; the next process continues after it. `cargo xtask mutants` makes many.
//! `SHARDAX_TEST_MUTANTS_OF=tar SHARDAX_TEST_MUTANTS_FROM=4711 SHARDAX_TEST_MUTANTS=1` makes one, of the tests whose names contain "mutated".

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use fastrand::Rng;
use shardax::Result;

/// A format of files, with examples of it and its reader.
pub struct Format<'a> {
    name: &'static str,
    seeds: Vec<Vec<u8>>,
    read: Box<dyn Fn(&Path) -> Result<()> + 'a>,
    part: fn(&[u8]) -> Range<usize>,
    repair: Option<fn(Vec<u8>) -> Vec<u8>>,
    memory: u64,
}

impl<'a> Format<'a> {
    pub fn new(name: &'static str, seeds: Vec<Vec<u8>>, read: impl Fn(&Path) -> Result<()> + 'a) -> Format<'a> {
        Format { name, seeds, read: Box::new(read), part: |bytes| 0..bytes.len(), repair: None, memory: 512 }
    }

    /// Sets checksums and lengths of every second mutant right, or packs it.
    pub fn repaired(mut self, repair: fn(Vec<u8>) -> Vec<u8>) -> Self {
        self.repair = Some(repair);
        self
    }

    /// Changes this part of the bytes only.
    #[allow(dead_code)] // Not all readers need it.
    pub fn within(mut self, part: fn(&[u8]) -> Range<usize>) -> Self {
        self.part = part;
        self
    }

    /// Memory that a process may allocate, in MiB.
    pub fn memory(mut self, memory: u64) -> Self {
        self.memory = memory;
        self
    }

    fn mutant(&self, seed: u64) -> Vec<u8> {
        let name_hash = self.name.bytes().fold(0u64, |hash, byte| hash.wrapping_mul(131).wrapping_add(byte.into()));
        let mut rng = Rng::with_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ name_hash);
        let mut bytes = self.seeds[rng.usize(..self.seeds.len())].clone();
        mutate(&mut rng, &mut bytes, self.part);
        match self.repair {
            Some(repair) if rng.bool() => repair(bytes),
            _ => bytes,
        }
    }
}

/// Time for one mutant and the start of its process, on a busy machine.
const LONGEST: Duration = Duration::from_secs(120);

/// Findings after which a run stops.
const MOST_FINDINGS: usize = 50;

/// Values of JSON, and numbers as text.
const VALUES: [&str; 14] = [
    "0",
    "-1",
    "2",
    "1e308",
    "4294967296",
    "18446744073709551615",
    "0.5",
    "null",
    "true",
    "[]",
    "{}",
    "[[[[",
    "\"\"",
    "\"gemma\"",
];

/// One to four changes of bytes, numbers and lengths, in a part.
fn mutate(rng: &mut Rng, bytes: &mut Vec<u8>, part: fn(&[u8]) -> Range<usize>) {
    let part = part(bytes);
    for _ in 0..rng.usize(1..5) {
        let last = part.end.min(bytes.len());
        if part.start >= last {
            return bytes.push(rng.u8(..));
        }
        let index = rng.usize(part.start..last);
        let end = (index + rng.usize(1..64)).min(last);
        match rng.u8(..11) {
            0 => bytes[index] ^= 1 << rng.u8(..8),
            1 => bytes[index] = [0, 1, 0x7f, 0x80, 0xff, b'0', b'9', b'-'][rng.usize(..8)],
            2 => bytes[index] = rng.u8(..),
            3 => bytes.truncate(index),
            4 | 5 => {
                // A number of several bytes, at one of the ends of its range.
                let width = [2, 4, 8][rng.usize(..3)];
                let value = [0, 1, u64::MAX, u64::MAX >> 1, 1 << 31, 1 << 40, 1 << 63][rng.usize(..7)];
                let number = if rng.bool() { value.to_le_bytes() } else { (value << (64 - 8 * width)).to_be_bytes() };
                let end = (index + width).min(last);
                bytes[index..end].copy_from_slice(&number[..end - index]);
            }
            6 => {
                // The next number of a text.
                let Some(from) = (index..last).find(|i| bytes[*i].is_ascii_digit()) else { continue };
                let to = (from..last).find(|i| !bytes[*i].is_ascii_digit()).unwrap_or(last);
                bytes.splice(from..to, VALUES[rng.usize(..VALUES.len())].bytes());
            }
            7 => {
                let copied = bytes[index..end].to_vec();
                let to = rng.usize(part.start..last);
                bytes.splice(to..to, copied);
            }
            8 => {
                // The value behind the next colon.
                let Some(from) = (index..last).find(|i| bytes[*i] == b':').map(|i| i + 1) else { continue };
                let to = (from..last).find(|i| b",}]".contains(&bytes[*i])).unwrap_or(last);
                bytes.splice(from..to, VALUES[rng.usize(..VALUES.len())].bytes());
            }
            9 => drop(bytes.drain(index..end)),
            _ => bytes.splice(index..index, (0..rng.usize(1..300)).map(|_| b'[')).for_each(drop),
        }
    }
}

fn setting(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn number(name: &str, default: u64) -> u64 {
    setting(name).map_or(default, |text| text.parse().expect(name))
}

/// The folder of [`run`], in the process that it starts.
pub fn folder() -> Option<PathBuf> {
    setting("SHARDAX_TEST_MUTANTS_FOLDER").map(PathBuf::from)
}

/// Reads the mutants that [`run`] asks for, and writes a line before and after each.
pub fn read(formats: &[Format], folder: &Path) {
    let mut out = std::io::stdout();
    let mut line = |text: String| out.write_all(text.as_bytes()).and_then(|()| out.flush()).expect("the other process");
    let path = folder.join("mutant");
    for job in setting("SHARDAX_TEST_MUTANTS_JOBS").expect("jobs").lines() {
        let words: Vec<&str> = job.split('\t').collect();
        let format = formats.iter().find(|format| format.name == words[0]).expect("a format");
        let [from, to] = [1, 2].map(|i| words[i].parse::<u64>().expect("a number"));
        for seed in from..to {
            std::fs::write(&path, format.mutant(seed)).expect("the mutant");
            line(format!("\nmutant\t{}\t{seed}\n", format.name));
            let begin = Instant::now();
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (format.read)(&path)));
            let outcome_name = match result {
                Ok(Ok(())) => "read",
                Ok(Err(error)) if error.to_string().is_empty() => "an error without a text",
                Ok(Err(_)) => "error",
                Err(_) => "panic",
            };
            line(format!("\nresult\t{outcome_name}\t{}\n", begin.elapsed().as_millis()));
        }
    }
}

/// The figures of a format.
#[derive(Default)]
struct Figures {
    mutants: u64,
    read: u64,
    slowest: u64,
}

/// Starts processes for `count` mutants of each format, of the ignored test with this name, which calls [`read`]. Formats with the
/// same bound of memory share a process. Panics if there are findings.
pub fn run(test: &str, formats: &[Format], folder: &Path, count: u64) {
    let from = number("SHARDAX_TEST_MUTANTS_FROM", 0);
    let to = from + number("SHARDAX_TEST_MUTANTS", count);
    let only = setting("SHARDAX_TEST_MUTANTS_OF");
    let chosen = formats.iter().filter(|format| only.as_ref().is_none_or(|only| only == format.name));
    let mut figures: BTreeMap<String, Figures> = BTreeMap::new();
    let mut findings = Vec::new();
    for memory in chosen.clone().map(|format| format.memory).collect::<BTreeSet<_>>() {
        let of_process = chosen.clone().filter(|format| format.memory == memory);
        let mut jobs: Vec<(&str, u64)> = of_process.map(|format| (format.name, from)).collect();
        // A process reads mutants until one of them ends it. The next process continues with the mutant after that
        // one.
        while !jobs.is_empty() && findings.len() < MOST_FINDINGS {
            let Some((name, seed, what)) = process(test, &jobs, to, memory, folder, &mut figures) else { break };
            jobs.drain(..jobs.iter().position(|(job, _)| *job == name).expect("one of the jobs"));
            jobs[0].1 = seed + 1;
            findings.push(format!("{name} {seed}: {what}"));
        }
    }
    let mut report = String::new();
    for (name, Figures { mutants, read, slowest }) in &figures {
        println!("mutants of {name}: {mutants}, of which {read} are read, the slowest in {slowest} ms");
        let _ = writeln!(report, "mode\t{mutants}\t{name}\nmode\t{read}\t{name}, read");
    }
    for finding in &findings {
        let _ = writeln!(report, "blamed\t1\t{finding}\nfailure\t{finding}");
    }
    if let Some(path) = setting("SHARDAX_TEST_FUZZ_REPORT") {
        std::fs::write(path, report).expect("the report");
    }
    assert!(findings.is_empty(), "mutants:\n{}", findings.join("\n"));
}

fn parse_number(text: &str) -> u64 {
    text.parse::<u64>().expect("a number")
}

/// Runs a process for these jobs; returns the mutant that ended it, and how.
fn process(
    test: &str,
    jobs: &[(&str, u64)],
    to: u64,
    memory: u64,
    folder: &Path,
    figures: &mut BTreeMap<String, Figures>,
) -> Option<(String, u64, String)> {
    let jobs: Vec<String> = jobs.iter().map(|(name, from)| format!("{name}\t{from}\t{to}")).collect();
    // The shell limits the memory of the process, so that a reader that trusts a length in the file fails here and
    // not on the user's machine.
    let mut child = Command::new("sh")
        .args(["-c", &format!("ulimit -d {} && exec \"$0\" \"$@\"", memory << 10)])
        .arg(std::env::current_exe().expect("this program has a path"))
        .args(["--exact", test, "--ignored", "--nocapture", "-q"])
        .env("SHARDAX_TEST_MUTANTS_JOBS", jobs.join("\n"))
        .env("SHARDAX_TEST_MUTANTS_FOLDER", folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it can be started");
    let output = BufReader::new(child.stdout.take().expect("its output"));
    let (send, lines) = mpsc::channel();
    // Lines are read on a thread, because a mutant that hangs must not make this loop wait forever.
    std::thread::spawn(move || output.split(b'\n').map_while(|line| line.ok()).try_for_each(|line| send.send(line)));
    let mut current: Option<(String, u64)> = None;
    let end = loop {
        let line = match lines.recv_timeout(LONGEST) {
            Ok(line) => String::from_utf8_lossy(&line).into_owned(),
            Err(mpsc::RecvTimeoutError::Timeout) => break Some(format!("takes longer than {LONGEST:?}")),
            Err(mpsc::RecvTimeoutError::Disconnected) => break None,
        };
        // `mutant` announces the mutant that is read next; `result` says how it ended.
        match *line.split('\t').collect::<Vec<_>>() {
            ["mutant", name, seed] => current = Some((name.to_owned(), parse_number(seed))),
            ["result", what, millis] => {
                let Some((name, _)) = &current else { continue };
                let entry = figures.entry(name.clone()).or_default();
                entry.mutants += 1;
                entry.read += u64::from(what == "read");
                entry.slowest = entry.slowest.max(parse_number(millis));
                if what != "read" && what != "error" {
                    break Some(what.to_owned());
                }
                current = current.filter(|(_, seed)| seed + 1 < to);
            }
            _ => {}
        }
    };
    if end.is_some() {
        child.kill().expect("it can be ended");
    }
    let status = child.wait().expect("it can be waited for");
    let end_text = end.unwrap_or_else(|| format!("{status}, with at most {memory} MiB of memory"));
    match current {
        Some((name, seed)) => Some((name, seed, end_text)),
        None => {
            assert!(status.success(), "the process that reads mutants of {jobs:?}: {end_text}");
            None
        }
    }
}
