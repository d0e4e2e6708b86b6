//! Benchmarks of the time before the first step.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use shardax::prelude::*;
use shardax::{Error, ErrorKind};

use crate::clock::{MIN_RUNS, Timing, measure_parts};
use crate::dispatch::scale;
use crate::{DEVICES, gpt, peak_mib};

/// The time from spawning a process to its first output, with everything compiled.
pub fn first_result() -> Result<Timing> {
    first("result", Path::new(""))
}

/// The time from spawning a process to its first output, with a filled disk cache.
pub fn first_result_warm() -> Result<Timing> {
    with_cache(|cache| first("result", cache))
}

/// The time from spawning a process to the loss of a GPT's first step, with a filled disk cache.
pub fn second_start_gpt() -> Result<Timing> {
    with_cache(|cache| first("step", cache))
}

/// Runs `f` with a temporary folder as the disk cache.
pub fn with_cache<R>(f: impl FnOnce(&Path) -> Result<R>) -> Result<R> {
    let folder = std::env::temp_dir().join(format!("shardax-bench-{}", std::process::id()));
    let result = f(&folder);
    let _ = std::fs::remove_dir_all(&folder);
    result
}

/// Times child processes until their first line of output.
fn first(child: &str, cache: &Path) -> Result<Timing> {
    spawn(child, cache)?; // fills the file system's caches
    let mut spawned_mib = 0.0f64;
    let timing = measure_parts(MIN_RUNS, || {
        let (time, mib) = spawn(child, cache)?;
        spawned_mib = spawned_mib.max(mib);
        Ok(time)
    })?;
    Ok(Timing { spawned_mib, ..timing })
}

/// Runs a child process. Returns the time until its first line of output, and its peak memory in MiB.
fn spawn(child: &str, cache: &Path) -> Result<(Duration, f64)> {
    read_child(child, cache).map_err(|e| Error::new(ErrorKind::Runtime, e.to_string()))
}

fn read_child(child: &str, cache: &Path) -> std::io::Result<(Duration, f64)> {
    let start = Instant::now();
    let mut child = Command::new(std::env::current_exe()?)
        .args(["--child", child])
        .env("SHARDAX_COMPILATION_CACHE_DIR", cache)
        .stdout(Stdio::piped())
        .spawn()?;
    let (mut line, mut peak) = (String::new(), String::new());
    let mut out = child.stdout.take().map(BufReader::new).ok_or_else(|| std::io::Error::other("no output"))?;
    out.read_line(&mut line)?;
    // The clock stops before the child ends, because a user sees the first line then.
    let time = start.elapsed();
    out.read_line(&mut peak)?;
    match (child.wait()?.success() && !line.is_empty(), peak.trim().parse::<f64>()) {
        (true, Ok(mib)) => Ok((time, mib)),
        _ => Err(std::io::Error::other("the child process failed")),
    }
}

/// The child processes of these rows: a GPT's first step, or `pmap` of `scale` on host values; prints the peak memory.
pub fn child(what: &str) -> Result<()> {
    match what {
        "step" => gpt::first_step()?,
        _ => result()?,
    }
    println!("{}", peak_mib());
    Ok(())
}

fn result() -> Result<()> {
    let values: Vec<f32> = (0..DEVICES * 4).map(|i| i as f32).collect();
    let x = Array::from_vec(values, &[DEVICES, 4])?;
    let y = pmap(scale).axis_name("i").call(&x)?;
    println!("{:?}", y.to_vec::<f32>()?);
    Ok(())
}
