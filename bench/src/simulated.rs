//! The cost of preparing a program for many processes, measured in one process: the training step of the convolutional
//! network is partitioned over `n` devices, localized for the single device of this process, and compiled.

use std::time::Instant;

use shardax::{Error, ErrorKind, Result, config};
use shardax_pjrt::{Client, CompileOptions, Plugin, Value};

use crate::cnn;

/// The peak memory of this process in MiB.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) / 1024
}

fn failed(error: shardax_pjrt::Error) -> Error {
    Error::new(ErrorKind::Runtime, error.to_string())
}

/// Prints a row of a table: devices; ms to start a client, trace and lower, partition, localize; KiB of the program as
/// StableHLO, partitioned, and localized; peak MiB before and after partitioning.
pub fn run(n: usize) -> Result<()> {
    config::set_num_cpu_devices(n)?;
    // The first call compiles the initialization of the model, which is not part of the measured times.
    cnn::text(n)?;
    let mut begin = Instant::now();
    let mut lap = || {
        let took = begin.elapsed().as_secs_f64() * 1e3;
        begin = Instant::now();
        took
    };
    let text = cnn::text(n)?;
    let lower = lap();
    let plugin = Plugin::cpu().map_err(failed)?;
    let count = [("cpu_device_count", Value::Int(n as i64))];
    lap();
    let client = Client::with_owners(&plugin, &count, 0, |id| id).map_err(failed)?;
    let start = lap();
    let before = peak();
    let options = CompileOptions { num_partitions: n, ..Default::default() };
    let partitioned = client.partition(&text, &options).map_err(failed)?;
    let partition = lap();
    let module = partitioned.localize_as(2, true).map_err(failed)?;
    let localize = lap();
    let after = peak();
    let sizes = (text.len() >> 10, partitioned.module().len() >> 10, module.len() >> 10);
    println!(
        "| {n} | {start:.0} | {lower:.0} | {partition:.0} | {localize:.1} | {} | {} | {} | {before} | {after} |",
        sizes.0, sizes.1, sizes.2
    );
    Ok(())
}
