//! Collectives: on every dtype, in groups, over several axes, and mapped by `vmap`.

mod cases;
#[path = "../common/mod.rs"]
mod common;
mod dtypes;
mod groups;
mod nests;

use shardax::prelude::*;
use shardax_alloc as _;

/// The numbers 0, 1, 2, … as float32 or another dtype.
fn ramp(shape: impl IntoShape + Clone, dtype: DType) -> Array {
    let n: i64 = shape.clone().into_dims().iter().product();
    arange(0..n as i32).astype(dtype).reshape(shape)
}

/// Both have the same type and the same bits.
#[track_caller]
fn same(a: &Array, b: &Array) {
    assert_eq!((a.dtype(), a.shape()), (b.dtype(), b.shape()));
    assert_eq!(a.to_bytes().expect("values"), b.to_bytes().expect("values"), "{a}\nis not\n{b}");
}
