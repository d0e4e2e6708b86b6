//! Sums, means and extremes over the participants of axes.

use super::{is_constant, on_leaves};
use crate::core::array::Array;
use crate::core::tree::IntoTree;
use crate::dtype::{DType, Scalar};
use crate::ops::collective::axes::Axes;
use crate::ops::collective::reduce::AllReduce;
use crate::ops::primitive::reduce::Reducer;
use crate::ops::promotion::{convert, to_inexact};
use crate::shape::IntoAxisNames;

/// Sums over all participants of the axis; every participant receives the sum. Booleans are counted as int32.
///
/// Use it in functions that run on one device each: inside of [`shard_map`](crate::shard_map), [`pmap`](crate::pmap()) or a
/// [`vmap`](crate::vmap()) with an axis name. In [`jit`](crate::jit()) with sharded arguments you write `x.sum(0)`, and the
/// compiler inserts the communication.
///
/// ```text
/// device   0  1  2  3  4  5  6  7
/// x        0  1  2  3  4  5  6  7
/// psum    28 28 28 28 28 28 28 28
/// ```
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let total = pmap(|x: Array| psum(x, "i")).axis_name("i").call(arange(0..8))?;
/// assert_eq!(total.to_vec::<i32>()?, [28; 8]);
///
/// // A Rust number is equal on all devices, so that its sum is a Rust number too.
/// let scaled = pmap(|x: Array| x * psum(1, "i")).axis_name("i").call(ones(8))?;
/// assert_eq!(scaled.to_vec::<f32>()?, [8.0; 8]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[must_use = "the result is a new tree; the argument is unchanged"]
#[track_caller]
pub fn psum<T: IntoTree>(x: T, axis: impl IntoAxisNames) -> T::Tree {
    on_leaves(x.into_tree(), axis, "psum", |x, axes| Ok(sum(x, axes)))
}

#[track_caller]
fn sum(x: &Array, axes: &Axes) -> Array {
    let x = if x.dtype() == DType::Bool { x.astype(DType::I32) } else { x.clone() };
    // A constant needs no communication if all groups have one size.
    if is_constant(&x) && axes.size != 0 {
        return x * axes.size;
    }
    AllReduce { reducer: Reducer::Sum, axes: axes.clone() }.apply(&x)
}

/// Averages over all participants of the axis; every participant receives the mean. Integers and booleans become
/// float32.
///
/// ```text
/// device    0    1    2    3
/// x         1    2    3    6
/// pmean   3.0  3.0  3.0  3.0
/// ```
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let mean = pmap(|x: Array| pmean(x, "i")).axis_name("i").call(array([1, 2, 3, 6]))?;
/// assert_eq!(mean.to_vec::<f32>()?, [3.0; 4]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[must_use = "the result is a new tree; the argument is unchanged"]
#[track_caller]
pub fn pmean<T: IntoTree>(x: T, axis: impl IntoAxisNames) -> T::Tree {
    on_leaves(x.into_tree(), axis, "pmean", |x, axes| {
        let x = convert(x, to_inexact(x.dtype()), x.weak_type());
        let count = match axes.size {
            0 => sum(&Array::literal(Scalar::Int(1), x.dtype(), false), axes),
            n => Array::literal(Scalar::Int(n as i128), x.dtype(), true),
        };
        Ok(sum(&x, axes) / count)
    })
}

/// Computes the elementwise maximum over all participants of the axis.
///
/// ```text
/// device       0       1
/// x       [1, 8]  [5, 2]
/// pmax    [5, 8]  [5, 8]
/// ```
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let most = pmap(|x: Array| pmax(x, "i")).axis_name("i").call(array([[1, 8], [5, 2]]))?;
/// assert_eq!(most.to_vec::<i32>()?, [5, 8, 5, 8]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[must_use = "the result is a new tree; the argument is unchanged"]
#[track_caller]
pub fn pmax<T: IntoTree>(x: T, axis: impl IntoAxisNames) -> T::Tree {
    on_leaves(x.into_tree(), axis, "pmax", |x, axes| Ok(extreme(x, axes, Reducer::Max)))
}

/// Computes the elementwise minimum over all participants of the axis.
///
/// ```text
/// device       0       1
/// x       [1, 8]  [5, 2]
/// pmin    [1, 2]  [1, 2]
/// ```
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let least = pmap(|x: Array| pmin(x, "i")).axis_name("i").call(array([[1, 8], [5, 2]]))?;
/// assert_eq!(least.to_vec::<i32>()?, [1, 2, 1, 2]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[must_use = "the result is a new tree; the argument is unchanged"]
#[track_caller]
pub fn pmin<T: IntoTree>(x: T, axis: impl IntoAxisNames) -> T::Tree {
    on_leaves(x.into_tree(), axis, "pmin", |x, axes| Ok(extreme(x, axes, Reducer::Min)))
}

#[track_caller]
fn extreme(x: &Array, axes: &Axes, reducer: Reducer) -> Array {
    if is_constant(x) {
        return x.clone();
    }
    AllReduce { reducer, axes: axes.clone() }.apply(x)
}
