//! Rows of several processes: what it costs that devices meet over MPI. `bench/processes.sh` starts them beside JAX's.

use shardax::prelude::*;
use shardax::{distributed, multihost};

use crate::clock::{Timing, measure_times};
use crate::{Measured, Row};

const FEW: usize = 20;
const MANY: usize = 500;

pub const ROWS: &[Row] = &[
    ("mp_psum_4", || exchange(4, MANY, |x| psum(x, "i"))),
    ("mp_psum_16mib", || exchange(4 << 20, FEW, |x| psum(x, "i"))),
    ("mp_all_gather_1mib", || exchange(256 << 10, FEW, |x| all_gather_tiled(x, "i", 0).sum(..).expand_dims(0))),
    ("mp_all_to_all_1mib", || exchange(256 << 10, FEW, |x| all_to_all_tiled(x, "i", 0, 0))),
    ("mp_pmap_rewrap", rewrap),
    ("mp_shard_map_local", || exchange(4, MANY, |x| x * 2.0)),
];

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

/// Joins the others and runs the rows; the first process has the times.
pub fn run(filter: &str) -> Result<Vec<Measured>> {
    distributed::initialize()?;
    let mut measured = Vec::new();
    for &(name, run) in ROWS.iter().filter(|(name, _)| name.contains(filter)) {
        multihost::sync_global_devices(name)?;
        let timing = run()?;
        if process_index() == 0 {
            let (processes, each) = (process_count(), local_device_count());
            eprintln!(
                "{name:20} {processes} × {each} {:12.1} µs  (min {:.1}, {} runs)",
                timing.median_us, timing.min_us, timing.runs
            );
            measured.push(Measured { name, timing });
        }
    }
    Ok(measured)
}
