//! The growth of costs with everything that can grow: a table with fitted powers, and a picture.
//!
//! Each case and size runs in a separate process with limits of time and memory. Results are appended to a file
//! immediately, so that you can interrupt a run and continue it later. JAX runs the same cases if you name its Python.

mod cases;
mod nesting;
mod picture;
mod results;
mod storage;

use std::collections::BTreeMap;
use std::error::Error;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub use cases::child;
use cases::{CASES, Case, PEAK};
use results::{Outcome, Record, Results};

/// The limits of a process: a case that exceeds one is not measured at larger sizes.
const MAX_SECONDS: u64 = 300;
const MAX_MIB: f64 = 6144.0;
/// The time between two looks at a process.
const POLL: Duration = Duration::from_millis(20);

/// One of the two libraries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Shardax,
    Jax,
}

impl Side {
    pub fn name(self) -> &'static str {
        match self {
            Side::Shardax => "shardax",
            Side::Jax => "jax",
        }
    }
}

/// The number of processes of shardax for a size; JAX, which takes seconds to start, has one. Each phase has its least
/// cost, because other processes on the machine only add to it.
const REPEATS: usize = 3;
/// A process that takes longer is measured once.
const SHORT: Duration = Duration::from_secs(6);

/// Measures the cases whose names contain `filter`, and writes the table and the picture.
pub fn run(picture: &Path, filter: &str, python: Option<&Path>) -> Result<(), Box<dyn Error>> {
    // Results of earlier runs are read first, because only missing ones are measured.
    let mut results = Results::open(&picture.with_extension("jsonl"))?;
    let chosen: Vec<&Case> = CASES.iter().filter(|case| case.name.contains(filter)).collect();
    for case in &chosen {
        for side in [Side::Shardax, Side::Jax] {
            let python = match side {
                Side::Shardax => None,
                Side::Jax if !case.in_jax || python.is_none() => continue,
                Side::Jax => python,
            };
            for &size in case.sizes {
                if results.find(case.name, side, size).is_none() {
                    let record = measure_repeatedly(case, side, size, python)?;
                    eprintln!("{:24} {:8} {size:10} {}", case.name, side.name(), record.summary());
                    results.add(record)?;
                }
                // A size that ran out of time or memory ends the row, because larger sizes would too.
                if results.find(case.name, side, size).is_some_and(|record| record.outcome != Outcome::Measured) {
                    break;
                }
            }
        }
    }
    print!("{}", results.table(&chosen));
    std::fs::write(picture, picture::draw(&results, &chosen)?)?;
    Ok(())
}

/// Runs a case at one size several times, unless it takes long or fails.
fn measure_repeatedly(case: &Case, side: Side, size: usize, python: Option<&Path>) -> Result<Record, Box<dyn Error>> {
    let start = Instant::now();
    let mut least = measure(case, side, size, python)?;
    let repeats = if side == Side::Shardax { REPEATS } else { 1 };
    for _ in 1..repeats {
        if least.outcome != Outcome::Measured || start.elapsed() > SHORT {
            break;
        }
        let again = measure(case, side, size, python)?;
        for (phase, cost) in again.phases {
            least.phases.entry(phase).and_modify(|least| *least = least.min(cost));
        }
    }
    Ok(least)
}

/// Runs a case at one size in a process of its own.
fn measure(case: &Case, side: Side, size: usize, python: Option<&Path>) -> Result<Record, Box<dyn Error>> {
    let mut command = match python {
        None => {
            let mut command = Command::new(std::env::current_exe()?);
            command.args(["--growth-case", case.name, "--growth-size", &size.to_string()]);
            command
        }
        Some(python) => {
            let mut command = Command::new(python);
            command.args([concat!(env!("CARGO_MANIFEST_DIR"), "/jax_growth.py"), case.name, &size.to_string()]);
            command
        }
    };
    let mut process = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let start = Instant::now();
    let mut peak_mib = 0.0f64;
    let outcome = loop {
        peak_mib = peak_mib.max(peak_of(process.id()));
        match process.try_wait()? {
            Some(status) if status.success() => break Outcome::Measured,
            Some(_) => break Outcome::Failed,
            None if start.elapsed() > Duration::from_secs(MAX_SECONDS) => break Outcome::OutOfTime,
            None if peak_mib > MAX_MIB => break Outcome::OutOfMemory,
            None => std::thread::sleep(POLL),
        }
    };
    // The process has ended, or is ended here.
    let _ = process.kill();
    let mut text = String::new();
    if let Some(output) = &mut process.stdout {
        output.read_to_string(&mut text)?;
    }
    process.wait()?;
    let mut phases: BTreeMap<String, f64> =
        text.lines().last().and_then(|line| serde_json::from_str(line).ok()).unwrap_or_default();
    // A short process ends before its memory is looked at.
    peak_mib = peak_mib.max(phases.remove(PEAK).unwrap_or(0.0));
    Ok(Record { case: case.name.to_owned(), side: side.name().to_owned(), size, outcome, phases, peak_mib })
}

/// The peak memory of a process so far, in MiB.
fn peak_of(id: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next()?.parse().ok());
    peak.map_or(0.0, |kib: f64| kib / 1024.0)
}
