//! Benchmarks of small programs, which measure the cost of a call.

use shardax::prelude::*;

use crate::DEVICES;
use crate::clock::{Timing, measure};
use crate::data::{line, split};

pub fn scale(x: Array) -> Array {
    x * 2 + 100
}

fn rows_of_four() -> Result<Array> {
    split(arange(0.0f32..(DEVICES * 4) as f32).reshape([DEVICES, 4]), &line(DEVICES, "i")?, "i")
}

pub fn jit_tiny() -> Result<Timing> {
    let x = arange(0.0f32..4.0);
    let f = jit(|x: Array| x * 2 + 1);
    measure(|| block_until_ready(f.call(&x)?))
}

pub fn jit_64_args() -> Result<Timing> {
    let xs: Vec<Array> = (0..64).map(|i| array([i as f32; 4])).collect();
    let f = jit(|xs: Vec<Array>| xs.iter().map(|x| x + 1).collect::<Vec<_>>());
    measure(|| block_until_ready(f.call(&xs)?))
}

/// A state of many small arrays. The program reads only one of them.
pub fn args_10k_dispatch() -> Result<Timing> {
    let xs: Vec<Array> = (0..10_000).map(|i| array([i as f32; 4])).collect();
    let f = jit(|xs: Vec<Array>| &xs[0] + 1).keep_unused(true);
    measure(|| block_until_ready(f.call(&xs)?))
}

pub fn pmap_scale_8() -> Result<Timing> {
    let x = rows_of_four()?;
    let f = pmap(scale).axis_name("i");
    measure(|| block_until_ready(f.call(&x)?))
}

pub fn pmap_psum_8() -> Result<Timing> {
    let x = rows_of_four()?;
    let f = pmap(|x: Array| {
        let scaled = x * 2;
        let total = psum(scaled.sum(..), "i");
        (scaled, total)
    })
    .axis_name("i");
    measure(|| block_until_ready(f.call(&x)?))
}

pub fn shard_map_scale_8() -> Result<Timing> {
    let x = rows_of_four()?;
    let mesh = line(DEVICES, "i")?;
    let f = jit(shard_map(scale, &mesh).in_specs(P!["i"]).out_specs(P!["i"]));
    measure(|| block_until_ready(f.call(&x)?))
}

pub fn psum_16mib_8() -> Result<Timing> {
    let mesh = line(DEVICES, "i")?;
    let x = split(ones([DEVICES, 4 << 20]), &mesh, "i")?;
    let f = jit(shard_map(|x: Array| psum(x, "i"), &mesh).in_specs(P!["i"]).out_specs(P![]));
    measure(|| block_until_ready(f.call(&x)?))
}
