//! Partitions, functions by pieces, and bits in bytes.

use super::indexing::{IntoAxis, with_axis};
use super::{complex, convert, made, where_};
use crate::core::array::Array;
use crate::core::program::trace::at_caller;
use crate::dtype::{DType, Scalar};
use crate::error::{Result, err};
use crate::ops::lax;
use crate::ops::operators::{ArrayLike, into_arrays};
use crate::ops::primitive::elementwise_rules::Accepts;

/// The size of an axis, which must have the element `kth`.
fn has_element(name: &str, x: &Array, kth: i32, axis: usize) -> Result<()> {
    let n = x.shape().get(axis).copied().unwrap_or(0) as i64;
    match (-n..n).contains(&i64::from(kth)) {
        true => Ok(()),
        false => Err(err!(Index, "{name}: kth {kth} is out of bounds of axis {axis} of {}", x.type_name())
            .help("elements count from 0, negative ones from the end")),
    }
}

/// The elements with the one that is at `kth` in ascending order in its place, no larger ones before it, and no smaller
/// ones after it. Here all are in order.
///
/// ```
/// # use shardax::prelude::*;
/// let x = shardax::numpy::partition(array([3, 1, 2]), 1, 0);
/// assert_eq!(x.get(1).item::<i32>()?, 2);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// Fails for an element out of bounds.
#[track_caller]
pub fn partition(x: impl ArrayLike, kth: i32, axis: impl IntoAxis) -> Array {
    let x = x.into_array();
    made(&x, || {
        let (x, axis) = with_axis(&x, axis)?;
        has_element("partition", &x, kth, axis)?;
        Ok(x.sort(axis as i32))
    })
}

/// The indices, int32, of [`partition`].
///
/// ```
/// # use shardax::prelude::*;
/// let x = array([5, 1, 4]);
/// assert_eq!(argpartition(&x, 0, 0).get(0).item::<i32>()?, 1);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn argpartition(x: impl ArrayLike, kth: i32, axis: impl IntoAxis) -> Array {
    let x = x.into_array();
    made(&x, || {
        let (x, axis) = with_axis(&x, axis)?;
        has_element("argpartition", &x, kth, axis)?;
        Ok(x.argsort(axis as i32))
    })
}

/// The elements that [`top_k`] returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TopKMode {
    /// The largest ones, in descending order.
    #[default]
    Largest,
    /// The smallest ones, in ascending order.
    Smallest,
}

/// The `k` largest or smallest elements along an axis, in order, and their indices (int32). Of equal elements the first
/// comes first; NaN is the largest.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::numpy::{TopKMode, top_k};
/// let (values, indices) = top_k(array([3, 1, 2]), 2, -1, TopKMode::Smallest);
/// assert_eq!((values.to_vec::<i32>()?, indices.to_vec::<i32>()?), (vec![1, 2], vec![1, 2]));
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// Fails if `k` is larger than the axis, and for complex numbers.
#[track_caller]
pub fn top_k(x: impl ArrayLike, k: usize, axis: impl IntoAxis, mode: TopKMode) -> (Array, Array) {
    let x = x.into_array();
    let found = at_caller(|| {
        let (x, axis) = with_axis(&x, axis)?;
        if mode == TopKMode::Largest {
            let (values, indices) = lax::TopKOptions::new().axis(axis as i32).top_k(&x, k);
            return values.check().map(|()| (values, indices));
        }
        let n = x.shape()[axis];
        Accepts::Real.check("top_k", x.dtype())?;
        if k > n {
            return Err(err!(Value, "top_k of {k} elements of axis {axis} of {}, which has {n}", x.type_name())
                .help("take at most as many as the axis has"));
        }
        let places = lax::iota(DType::I32, x.shape(), axis);
        let sorted = lax::sort(&[x, places], axis as i32, 1)?;
        let first = |y: &Array| lax::slice_in_dim(y, 0, k, axis);
        Ok((first(&sorted[0]), first(&sorted[1])))
    });
    found.unwrap_or_else(|e| {
        let failed = Array::from_result(Err(e), &x);
        (failed.clone(), failed)
    })
}

/// The elements sorted along the last axis, as complex numbers.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(sort_complex(array([2.0f32, 1.0])).type_name(), "complex64[2]");
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn sort_complex(x: impl ArrayLike) -> Array {
    let x = x.into_array();
    made(&x, || {
        x.check()?;
        let sorted = x.sort(-1);
        Ok(if sorted.dtype().is_complex() { sorted } else { complex(&sorted, 0) })
    })
}

/// `functions[i]` of `x` where `conditions[i]` holds, the last one that does; elsewhere a further function, if there is one
/// more than there are conditions, and 0 otherwise. All functions are computed everywhere.
///
/// ```
/// # use shardax::prelude::*;
/// let x = array([-2.0f32, 0.5, 3.0]);
/// let y = shardax::numpy::piecewise(&x, [x.less(0), x.greater(1)], &[&|x| -x, &|x| x * 10, &|x| x.clone()]);
/// assert_eq!(y.to_vec::<f32>()?, [2.0, 0.5, 30.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// Fails for another number of functions. The result has the dtype of `x`.
#[track_caller]
pub fn piecewise(
    x: impl ArrayLike,
    conditions: impl IntoIterator<Item = impl ArrayLike>,
    functions: &[&dyn Fn(&Array) -> Array],
) -> Array {
    let (x, conditions) = (x.into_array(), into_arrays(conditions));
    made(&x, || {
        x.check()?;
        let n = conditions.len();
        if functions.len() != n && functions.len() != n + 1 {
            return Err(err!(
                Value,
                "with {n} condition(s), either {n} or {} functions are expected; got {}",
                n + 1,
                functions.len()
            )
            .help("the last of one more is that of elements without a condition"));
        }
        let zero = || Array::literal(Scalar::Int(0), x.dtype(), false).broadcast_to(x.shape());
        let start = functions.get(n).map_or_else(zero, |f| f(&x).astype(x.dtype()));
        let pieces = conditions.iter().zip(functions);
        Ok(pieces.fold(start, |y, (condition, f)| where_(condition, f(&x), y).astype(x.dtype())))
    })
}

/// The order of bits in [`packbits`] and [`unpackbits`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BitOrder {
    /// The first is the highest.
    #[default]
    Big,
    /// The first is the lowest.
    Little,
}

fn shifts(order: BitOrder) -> Array {
    let count = lax::iota(DType::U8, &[8], 0);
    if order == BitOrder::Big { 7 - count } else { count }
}

/// Booleans, or integers that are 0 or not, along the last axis as bits of bytes, filled up with zeros: uint8.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::numpy::{BitOrder, packbits, unpackbits};
/// let bytes = packbits(array([1, 0, 0, 0, 0, 0, 1, 1, 1]), BitOrder::Big);
/// assert_eq!(bytes.to_vec::<u8>()?, [0b1000_0011, 0b1000_0000]);
/// assert_eq!(unpackbits(bytes, BitOrder::Big).shape(), [16]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// Fails for other dtypes, and for a scalar.
#[track_caller]
pub fn packbits(x: impl ArrayLike, bitorder: BitOrder) -> Array {
    let x = x.into_array();
    made(&x, || {
        x.check()?;
        if x.dtype().is_inexact() || x.ndim() == 0 {
            return Err(err!(Type, "packbits needs an array of integers or booleans, got {}", x.type_name())
                .help("compare the array with 0 first: `x.not_equal(0)`"));
        }
        let bits = convert(&x.not_equal(0), DType::U8, false);
        let n = x.shape()[x.ndim() - 1];
        let mut widths = vec![(0, 0, 0); x.ndim()];
        widths[x.ndim() - 1] = (0, (n.next_multiple_of(8) - n) as i64, 0);
        let padded = lax::pad(&bits, &Array::literal(Scalar::Int(0), DType::U8, false), &widths);
        let lead = &x.shape()[..x.ndim() - 1];
        let bytes = lax::reshape(&padded, &[lead, &[n.div_ceil(8), 8]].concat());
        Ok(super::left_shift(bytes, shifts(bitorder)).sum(-1).astype(DType::U8))
    })
}

/// The bits of bytes along the last axis, uint8 of 0 and 1. See [`packbits`].
///
/// Fails for other dtypes than uint8, and for a scalar.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(unpackbits(array([5u8]), BitOrder::Little).to_vec::<u8>()?, [1, 0, 1, 0, 0, 0, 0, 0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn unpackbits(x: impl ArrayLike, bitorder: BitOrder) -> Array {
    let x = x.into_array();
    made(&x, || {
        x.check()?;
        if x.dtype() != DType::U8 || x.ndim() == 0 {
            return Err(err!(Type, "unpackbits needs an array of uint8, got {}", x.type_name())
                .help("convert it with `astype(DType::U8)`"));
        }
        let bits = super::right_shift(x.expand_dims(-1), shifts(bitorder)) & 1;
        let n = x.shape()[x.ndim() - 1];
        Ok(lax::reshape(&bits, &[&x.shape()[..x.ndim() - 1], &[8 * n]].concat()))
    })
}
