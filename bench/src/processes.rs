//! Rows of several processes: what it costs that devices meet over MPI. `bench/processes.sh` starts them beside JAX's.

use std::time::{SystemTime, UNIX_EPOCH};

use shardax::prelude::*;
use shardax::{distributed, multihost};

use crate::clock::{Timing, measure_times, thread_us};
use crate::{Measured, Row, cnn, training};

const FEW: usize = 20;
const MANY: usize = 500;
/// Enough for the clock of a thread, which the system sets forward every few milliseconds.
const OFTEN: usize = 20_000;

pub const ROWS: &[Row] = &[
    ("mp_psum_4", || exchange(4, MANY, |x| psum(x, "i"))),
    ("mp_psum_16mib", || exchange(4 << 20, FEW, |x| psum(x, "i"))),
    ("mp_all_gather_1mib", || exchange(256 << 10, FEW, |x| all_gather_tiled(x, "i", 0).sum(..).expand_dims(0))),
    ("mp_all_to_all_1mib", || exchange(256 << 10, FEW, |x| all_to_all_tiled(x, "i", 0, 0))),
    ("mp_pmap_rewrap", rewrap),
    ("mp_shard_map_local", || exchange(4, MANY, |x| x * 2.0)),
    ("mp_cnn_step", cnn::mp_cnn_step),
    ("mp_mlp_step", training::mp_mlp_step),
    ("mp_compile_cnn", cnn::mp_compile_cnn),
    ("mp_scale", scale),
];

/// When the launcher was started, in seconds since 1970.
const BEGAN: &str = "SHARDAX_BENCH_BEGAN";

/// `f` on `n` numbers of each device.
fn exchange(n: usize, runs: usize, f: fn(Array) -> Array) -> Result<Timing> {
    let mesh = make_mesh([("i", device_count())])?;
    let rows = NamedSharding::new(&mesh, P!["i"]);
    let x = make_array_from_process_local_data(&rows, &ones([n * local_device_count()]))?;
    let f = jit(shard_map(f, &mesh).in_specs(P!["i"]).out_specs(P!["i"]).check_vma(false));
    measure_times(runs, || block_until_ready(f.call(&x)?))
}

/// A `pmap` without communication: taking local arrays, and giving local ones.
fn rewrap() -> Result<Timing> {
    let f = pmap(|x: Array| x * 2.0);
    let x = f.call(&ones([local_device_count(), 4]))?;
    measure_times(MANY, || block_until_ready(f.call(&x)?))
}

/// What a thread computes for one call, whatever the others do meanwhile.
fn scale() -> Result<Timing> {
    let mesh = make_mesh([("i", device_count())])?;
    let rows = NamedSharding::new(&mesh, P!["i"]);
    let x = make_array_from_process_local_data(&rows, &ones([4 * local_device_count()]))?;
    let f = jit(shard_map(|x: Array| x * 2.0, &mesh).in_specs(P!["i"]).out_specs(P!["i"]));
    let mut means = Vec::new();
    for _ in 0..4 {
        let begin = thread_us()?;
        for _ in 0..OFTEN {
            block_until_ready(f.call(&x)?)?;
        }
        means.push((thread_us()? - begin) / OFTEN as f64);
    }
    // The first warms up.
    Ok(Timing::of(means.split_off(1)))
}

/// From before the launcher to the devices of all processes.
fn start() -> Option<Timing> {
    let began: f64 = std::env::var(BEGAN).ok()?.parse().ok()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs_f64();
    Some(Timing::of(vec![(now - began) * 1e6]))
}

/// Joins the others and runs the rows of these names, or all; the first process has the times.
pub fn run(names: &str) -> Result<Vec<Measured>> {
    distributed::initialize()?;
    devices()?;
    let mut measured = Vec::new();
    let mut keep = |name, timing: Timing| {
        if process_index() == 0 {
            let (processes, each) = (process_count(), local_device_count());
            let (median, min, runs) = (timing.median_us, timing.min_us, timing.runs);
            eprintln!("{name:20} {processes} × {each} {median:12.1} µs  (min {min:.1}, {runs} runs)");
            measured.push(Measured::new(name, timing));
        }
    };
    if let Some(timing) = start() {
        keep("mp_start", timing);
    }
    for &(name, run) in ROWS.iter().filter(|(name, _)| names.is_empty() || names.split(',').any(|n| n == *name)) {
        multihost::sync_global_devices(name)?;
        keep(name, run()?);
    }
    Ok(measured)
}
