//! Benchmarks of several processes that communicate over MPI. `bench/processes.sh` runs them and JAX's.

use std::time::{SystemTime, UNIX_EPOCH};

use shardax::prelude::*;
use shardax::{distributed, multihost};

use crate::clock::{Timing, measure_times, thread_us};
use crate::{Measured, Row, cnn, training};

/// The number of measured exchanges of large arrays, which take long.
const LARGE_EXCHANGES: usize = 20;
/// The number of measured exchanges of small arrays.
const SMALL_EXCHANGES: usize = 500;
/// Enough calls for a thread's CPU clock, which the system updates every few milliseconds.
const OFTEN: usize = 20_000;

pub const ROWS: &[Row] = &[
    ("mp_psum_4", || exchange(4, SMALL_EXCHANGES, |x| psum(x, "i"))),
    ("mp_psum_16mib", || exchange(4 << 20, LARGE_EXCHANGES, |x| psum(x, "i"))),
    ("mp_all_gather_1mib", || {
        exchange(256 << 10, LARGE_EXCHANGES, |x| all_gather_tiled(x, "i", 0).sum(..).expand_dims(0))
    }),
    ("mp_all_to_all_1mib", || exchange(256 << 10, LARGE_EXCHANGES, |x| all_to_all_tiled(x, "i", 0, 0))),
    ("mp_pmap_rewrap", rewrap),
    ("mp_shard_map_local", || exchange(4, SMALL_EXCHANGES, |x| x * 2.0)),
    ("mp_cnn_step", cnn::mp_cnn_step),
    ("mp_mlp_step", training::mp_mlp_step),
    ("mp_compile_cnn", cnn::mp_compile_cnn),
    ("mp_scale", scale),
];

/// The time when the launcher was started, in seconds since 1970.
const BEGAN: &str = "SHARDAX_TEST_BENCH_BEGAN";

/// Times `f` on `n` numbers per device.
fn exchange(n: usize, runs: usize, f: fn(Array) -> Array) -> Result<Timing> {
    let mesh = make_mesh([("i", device_count())])?;
    let rows = NamedSharding::new(&mesh, P!["i"]);
    let x = make_array_from_process_local_data(&rows, &ones([n * local_device_count()]))?;
    let f = jit(shard_map(f, &mesh).in_specs(P!["i"]).out_specs(P!["i"]).check_vma(false));
    measure_times(runs, || block_until_ready(f.call(&x)?))
}

/// A `pmap` without communication, with local arrays as arguments and results.
fn rewrap() -> Result<Timing> {
    let f = pmap(|x: Array| x * 2.0);
    let x = f.call(&ones([local_device_count(), 4]))?;
    measure_times(SMALL_EXCHANGES, || block_until_ready(f.call(&x)?))
}

/// The CPU time of a thread for one call, which does not depend on the other processes.
fn scale() -> Result<Timing> {
    let mesh = make_mesh([("i", device_count())])?;
    let rows = NamedSharding::new(&mesh, P!["i"]);
    let x = make_array_from_process_local_data(&rows, &ones([4 * local_device_count()]))?;
    let f = jit(shard_map(|x: Array| x * 2.0, &mesh).in_specs(P!["i"]).out_specs(P!["i"]));
    let mut means = Vec::new();
    for _ in 0..4 {
        let begin = thread_us();
        for _ in 0..OFTEN {
            f.call(&x)?.block_until_ready()?;
        }
        means.push((thread_us() - begin) / OFTEN as f64);
    }
    // The first run is a warm-up.
    Ok(Timing::of(means.split_off(1)))
}

/// The time from starting the launcher to having the devices of all processes.
fn start() -> Option<Timing> {
    let began: f64 = std::env::var(BEGAN).ok()?.parse().ok()?;
    let end = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs_f64();
    Some(Timing::of(vec![(end - began) * 1e6]))
}

/// Joins the other processes and runs the named rows, or all; the first process returns the times.
pub fn run(names: &str) -> Result<Vec<Measured>> {
    distributed::initialize()?;
    devices()?;
    let mut measured = Vec::new();
    if let Some(timing) = start() {
        record(&mut measured, "mp_start", timing);
    }
    for &(name, run) in ROWS.iter().filter(|(name, _)| names.is_empty() || names.split(',').any(|n| n == *name)) {
        // The processes start a row together. Otherwise the first runs would include the wait for the slowest one.
        multihost::sync_global_devices(name)?;
        record(&mut measured, name, run()?);
    }
    Ok(measured)
}

/// Adds a row to the results and prints it. Only the first process does, so that each row appears once.
fn record(measured: &mut Vec<Measured>, name: &'static str, timing: Timing) {
    if process_index() == 0 {
        let (processes, devices) = (process_count(), local_device_count());
        let (median, min, runs) = (timing.median_us, timing.min_us, timing.runs);
        eprintln!("{name:20} {processes} × {devices} {median:12.1} µs  (min {min:.1}, {runs} runs)");
        measured.push(Measured::new(name, timing));
    }
}
