//! Rows of arithmetic on one device.

use shardax::prelude::*;

use crate::clock::{Timing, measure};
use crate::data::uniform;

pub fn matmul_2048() -> Result<Timing> {
    let (a, b) = (uniform(&[2048, 2048], 0)?, uniform(&[2048, 2048], 1)?);
    let f = jit(|a: Array, b: Array| a.matmul(b));
    measure(|| block_until_ready(f.call((&a, &b))?))
}

pub fn fused_elementwise_16m() -> Result<Timing> {
    let a = uniform(&[16 << 20], 0)?;
    let f = jit(|a: Array| a.tanh() * &a + (-&a * &a).exp());
    measure(|| block_until_ready(f.call(&a)?))
}

pub fn reduce_axis0_16m() -> Result<Timing> {
    let a = uniform(&[4096, 4096], 0)?;
    let f = jit(|a: Array| a.sum(0));
    measure(|| block_until_ready(f.call(&a)?))
}
