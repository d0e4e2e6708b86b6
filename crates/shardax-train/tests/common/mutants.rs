//! Mutants of files: each is read or is an error, within bounded time and memory.
//!
//! A process of its own reads them, so that an abort, a hang or memory beyond the bound is seen, with the mutant's number.
//! `cargo xtask mutants --count 100000` makes so many of every format; `SHARDAX_MUTANTS_OF=tar SHARDAX_MUTANTS_FROM=4711 SHARDAX_MUTANTS=1`
//! makes that one alone.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fastrand::Rng;
use shardax::Result;

/// A format of files.
pub struct Format<'a> {
    pub name: &'static str,
    pub seeds: Vec<Vec<u8>>,
    /// Sets checksums right, or packs the bytes: of every second mutant.
    pub repair: fn(Vec<u8>) -> Vec<u8>,
    pub read: Box<dyn Fn(&Path) -> Result<()> + 'a>,
    /// Of address space, in MiB.
    pub memory: u64,
}

/// Of formats without checksums.
pub fn unchanged(bytes: Vec<u8>) -> Vec<u8> {
    bytes
}

/// What one mutant may take, and the start of the process, on a busy machine.
const LONGEST: Duration = Duration::from_secs(180);

/// Values of JSON.
const VALUES: [&str; 12] =
    ["0", "-1", "2", "1e308", "18446744073709551615", "0.5", "null", "true", "[]", "{}", "\"\"", "\"gemma\""];

/// A few changes of bytes, numbers and lengths.
fn mutate(rng: &mut Rng, bytes: &mut Vec<u8>) {
    for _ in 0..rng.usize(1..5) {
        if bytes.is_empty() {
            return bytes.push(rng.u8(..));
        }
        let at = rng.usize(..bytes.len());
        match rng.u8(..11) {
            0 => bytes[at] ^= 1 << rng.u8(..8),
            1 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff, b'0', b'9', b'-'][rng.usize(..8)],
            2 => bytes[at] = rng.u8(..),
            3 => bytes.truncate(at),
            4 | 5 => {
                // A number of several bytes, at one of the ends of its range.
                let width = [2, 4, 8][rng.usize(..3)];
                let value = [0, 1, u64::MAX, u64::MAX >> 1, 1 << 31, 1 << 40, 1 << 63][rng.usize(..7)];
                let number = if rng.bool() { value.to_le_bytes() } else { (value << (64 - 8 * width)).to_be_bytes() };
                let end = (at + width).min(bytes.len());
                bytes[at..end].copy_from_slice(&number[..end - at]);
            }
            6 => {
                // A number as text becomes another.
                let digit = bytes[at..].iter().position(u8::is_ascii_digit).map(|next| at + next);
                if let Some(from) = digit {
                    let end = bytes[from..].iter().position(|b| !b.is_ascii_digit()).map_or(bytes.len(), |n| from + n);
                    let new = ["0", "1", "4294967296", "18446744073709551615", "-1", "1e308", "0.1", "[[[[", "null"];
                    bytes.splice(from..end, new[rng.usize(..new.len())].bytes());
                }
            }
            7 => {
                let end = (at + rng.usize(1..64)).min(bytes.len());
                let part = bytes[at..end].to_vec();
                let to = rng.usize(..bytes.len());
                bytes.splice(to..to, part);
            }
            8 => {
                // The value behind the next colon.
                let Some(from) = (at..bytes.len()).find(|i| bytes[*i] == b':').map(|i| i + 1) else { continue };
                let to = (from..bytes.len()).find(|i| b",}]".contains(&bytes[*i])).unwrap_or(bytes.len());
                bytes.splice(from..to, VALUES[rng.usize(..VALUES.len())].bytes());
            }
            9 => drop(bytes.drain(at..(at + rng.usize(1..64)).min(bytes.len()))),
            _ => bytes.splice(at..at, (0..rng.usize(1..300)).map(|_| b'[')).for_each(drop),
        }
    }
}

fn setting(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn number(name: &str, default: u64) -> u64 {
    setting(name).map_or(default, |text| text.parse().expect(name))
}

/// Reads the mutants of the format that [`run`] asks for; writes the number of each before it, and at the end the figures.
pub fn read(formats: Vec<Format>, folder: &Path) {
    let Some(name) = setting("SHARDAX_MUTANTS_OF") else { return };
    let format = formats.into_iter().find(|format| format.name == name).expect("a format");
    let progress = setting("SHARDAX_MUTANTS_PROGRESS").expect("a file");
    std::panic::set_hook(Box::new(|_| ()));
    let (from, count) = (number("SHARDAX_MUTANTS_FROM", 0), number("SHARDAX_MUTANTS", 0));
    let own = name.bytes().fold(0u64, |hash, byte| hash.wrapping_mul(131).wrapping_add(byte.into()));
    let (mut read, mut slowest) = (0, Duration::ZERO);
    let path = folder.join("mutant");
    for seed in from..from + count {
        let mut rng = Rng::with_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ own);
        let mut bytes = format.seeds[rng.usize(..format.seeds.len())].clone();
        mutate(&mut rng, &mut bytes);
        if rng.bool() {
            bytes = (format.repair)(bytes);
        }
        std::fs::write(&path, &bytes).expect("the mutant");
        std::fs::write(&progress, seed.to_string()).expect("the progress");
        let begin = Instant::now();
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (format.read)(&path)));
        slowest = slowest.max(begin.elapsed());
        match result {
            Ok(result) => read += u64::from(result.is_ok()),
            Err(_) => {
                std::fs::write(&progress, format!("{seed}, which panicked")).expect("the progress");
                std::process::exit(1)
            }
        }
    }
    let text = format!("{read} of {count} were read, the slowest in {} ms", slowest.as_millis());
    std::fs::write(&progress, text).expect("the progress");
}

/// Starts a process for the mutants of each format: of the test with this name, which calls [`read`].
pub fn run(test: &str, formats: &[Format], folder: &Path, count: u64) {
    let (from, count) = (number("SHARDAX_MUTANTS_FROM", 0), number("SHARDAX_MUTANTS", count));
    let only = setting("SHARDAX_MUTANTS_OF");
    for format in formats.iter().filter(|format| only.as_ref().is_none_or(|only| only == format.name)) {
        let progress = folder.join(format!("{}.progress", format.name));
        let bounded = format!("ulimit -v {} && exec \"$0\" \"$@\"", format.memory << 10);
        let mut child = Command::new("sh")
            .args(["-c", &bounded])
            .arg(std::env::current_exe().expect("this program has a path"))
            .args(["--exact", test, "--ignored", "-q"])
            .env("SHARDAX_MUTANTS_OF", format.name)
            .env("SHARDAX_MUTANTS_FROM", from.to_string())
            .env("SHARDAX_MUTANTS", count.to_string())
            .env("SHARDAX_MUTANTS_PROGRESS", &progress)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it can be started");
        let at = || std::fs::read_to_string(&progress).unwrap_or_default();
        let (mut last, mut since) = (at(), Instant::now());
        let status = loop {
            if let Some(status) = child.try_wait().expect("it can be waited for") {
                break status;
            }
            std::thread::sleep(Duration::from_millis(20));
            if last != at() {
                (last, since) = (at(), Instant::now());
            }
            if since.elapsed() > LONGEST {
                child.kill().expect("it can be ended");
                panic!("{}: mutant {last} took longer than {LONGEST:?}", format.name);
            }
        };
        assert!(status.success() && at().contains(" of "), "{}: mutant {}: {status}", format.name, at());
        println!("mutants of {}: {}", format.name, at());
    }
}
