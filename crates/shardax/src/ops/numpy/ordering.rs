//! Partitions, the largest elements, piecewise functions, and bits packed in bytes.

use super::indexing::{IntoAxis, with_axis};
use super::{checked_or_failed, complex, convert, where_};
use crate::choice::{IntoChoice, NamedOption};
use crate::core::array::Array;
use crate::core::program::trace::at_caller;
use crate::dtype::{DType, Scalar};
use crate::error::{Result, err};
use crate::ops::lax;
use crate::ops::operators::{ArrayLike, IntoArrays};
use crate::ops::primitive::elementwise_rules::Accepts;
use crate::rank_promotion;

/// Checks that the axis has an element `kth`.
fn has_element(name: &str, x: &Array, kth: i32, axis: usize) -> Result<()> {
    let n = x.shape().get(axis).copied().unwrap_or(0) as i64;
    if (-n..n).contains(&i64::from(kth)) {
        Ok(())
    } else {
        Err(err!(Index, "{name}: kth {kth} is out of bounds of axis {axis} of {}", x.type_name())
            .help("elements count from 0, and negative numbers from the end"))
    }
}

/// Partitions the elements around element `kth` of the ascending order: no larger element precedes it, and no smaller
/// element follows. This implementation sorts all elements.
///
/// ```
/// # use shardax::prelude::*;
/// let x = shardax::numpy::partition(array([3, 1, 2]), 1, 0);
/// assert_eq!(x.get(1).item::<i32>()?, 2);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for an element out of bounds.
#[track_caller]
pub fn partition(x: impl ArrayLike, kth: i32, axis: impl IntoAxis) -> Array {
    let x = x.into_array();
    checked_or_failed(&x, || {
        let (x, axis) = with_axis(&x, axis)?;
        has_element("partition", &x, kth, axis)?;
        Ok(x.sort(axis as i32))
    })
}

/// Returns the indices, int32, of [`partition`].
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
    checked_or_failed(&x, || {
        let (x, axis) = with_axis(&x, axis)?;
        has_element("argpartition", &x, kth, axis)?;
        Ok(x.argsort(axis as i32))
    })
}

/// The elements that [`top_k`] returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TopKMode {
    /// The largest elements, in descending order.
    #[default]
    Largest,
    /// The smallest elements, in ascending order.
    Smallest,
}

/// Returns the `k` largest or smallest elements along an axis, in order, and their indices (int32). Equal elements keep
/// their order. NaN is larger than all numbers.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::numpy::{TopKMode, top_k};
/// let (values, indices) = top_k(array([3, 1, 2]), 2, -1, TopKMode::Smallest);
/// assert_eq!((values.to_vec::<i32>()?, indices.to_vec::<i32>()?), (vec![1, 2], vec![1, 2]));
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error if `k` is larger than the axis, and for complex numbers.
#[track_caller]
pub fn top_k(x: impl ArrayLike, k: usize, axis: impl IntoAxis, mode: TopKMode) -> (Array, Array) {
    let x = x.into_array();
    let values_and_indices = at_caller(|| {
        let (x, axis) = with_axis(&x, axis)?;
        if mode == TopKMode::Largest {
            let (values, indices) = lax::TopKOptions::new().axis(axis as i32).top_k(&x, k);
            return values.check().map(|()| (values, indices));
        }
        let n = x.shape()[axis];
        Accepts::Real.check("top_k", x.dtype())?;
        if k > n {
            return Err(err!(Value, "top_k of {k} elements of axis {axis} of {}, which has {n}", x.type_name())
                .help("pass a `k` of at most the size of the axis"));
        }
        let places = lax::iota(DType::I32, x.shape(), axis);
        let sorted = lax::sort(&[x, places], axis as i32, 1)?;
        Ok((lax::slice_in_dim(&sorted[0], 0, k, axis), lax::slice_in_dim(&sorted[1], 0, k, axis)))
    });
    values_and_indices.unwrap_or_else(|e| {
        let failed = Array::from_result(Err(e), &x);
        (failed.clone(), failed)
    })
}

/// Returns the elements sorted along the last axis, as complex numbers.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(sort_complex(array([2.0f32, 1.0])).type_name(), "complex64[2]");
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn sort_complex(x: impl ArrayLike) -> Array {
    let x = x.into_array();
    checked_or_failed(&x, || {
        x.check()?;
        let sorted = x.sort(-1);
        Ok(if sorted.dtype().is_complex() { sorted } else { complex(&sorted, 0) })
    })
}

/// Evaluates `functions[i]` where `conditions[i]` is true; if several conditions are, the last one counts. Where no
/// condition is true, the result is 0, or the last function if there is one function more than conditions. Every
/// function is evaluated for all elements.
///
/// ```
/// # use shardax::prelude::*;
/// let x = array([-2.0f32, 0.5, 3.0]);
/// let y = shardax::numpy::piecewise(&x, [x.less(0), x.greater(1)], &[&|x| -x, &|x| x * 10, &|x| x.clone()]);
/// assert_eq!(y.to_vec::<f32>()?, [2.0, 0.5, 30.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// The result has the dtype of `x`.
///
/// # Errors
/// The result carries an error for another number of functions.
#[track_caller]
pub fn piecewise<Form>(
    x: impl ArrayLike,
    conditions: impl IntoArrays<Form>,
    functions: &[&dyn Fn(&Array) -> Array],
) -> Array {
    let (x, conditions) = (x.into_array(), conditions.into_arrays());
    checked_or_failed(&x, || {
        x.check()?;
        let n = conditions.len();
        if functions.len() != n && functions.len() != n + 1 {
            return Err(err!(
                Value,
                "with {n} condition(s), either {n} or {} functions are expected; got {}",
                n + 1,
                functions.len()
            )
            .help(
                "pass one function for each condition, and optionally a last function for elements without a condition",
            ));
        }
        let start = functions.get(n).map_or_else(
            || Array::literal(Scalar::Int(0), x.dtype(), false).broadcast_to(x.shape()),
            |f| f(&x).astype(x.dtype()),
        );
        // Later conditions take precedence, as in NumPy.
        let pieces = conditions.iter().zip(functions);
        Ok(pieces.fold(start, |y, (condition, f)| where_(condition, f(&x), y).astype(x.dtype())))
    })
}

/// The order of bits in [`packbits`] and [`unpackbits`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BitOrder {
    /// The first bit is the most significant.
    #[default]
    Big,
    /// The first bit is the least significant.
    Little,
}

/// JAX's names.
impl NamedOption for BitOrder {
    const KIND: &'static str = "order of bits";
    const NAMES: &'static [(&'static str, Self)] = &[("big", BitOrder::Big), ("little", BitOrder::Little)];
}

fn shifts(order: BitOrder) -> Array {
    let count = lax::iota(DType::U8, &[8], 0);
    if order == BitOrder::Big { 7 - count } else { count }
}

/// Packs booleans, or integers that count as true unless they are 0, along the last axis into the bits of bytes
/// (uint8). The last byte is padded with zeros. A scalar is packed into one byte.
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
/// # Errors
/// The result carries an error for other dtypes.
#[track_caller]
pub fn packbits(x: impl ArrayLike, bitorder: impl IntoChoice<BitOrder>) -> Array {
    let (x, bitorder) = (x.into_array(), bitorder.into_choice());
    checked_or_failed(&x, || {
        let bitorder = bitorder.value("packbits")?;
        x.check()?;
        if x.dtype().is_inexact() {
            return Err(err!(Type, "packbits needs an array of integers or booleans, got {}", x.type_name())
                .help("compare the array with 0 first: `x.not_equal(0)`"));
        }
        let bits = super::atleast_1d(convert(&x.not_equal(0), DType::U8, false));
        let x = &bits;
        let n = x.shape()[x.ndim() - 1];
        let mut widths = vec![(0, 0, 0); x.ndim()];
        widths[x.ndim() - 1] = (0, (n.next_multiple_of(8) - n) as i64, 0);
        let padded = lax::pad(&bits, &Array::literal(Scalar::Int(0), DType::U8, false), &widths);
        let lead = &x.shape()[..x.ndim() - 1];
        let bytes = lax::reshape(&padded, &[lead, &[n.div_ceil(8), 8]].concat());
        let _ranks = rank_promotion::allow();
        Ok(super::left_shift(bytes, shifts(bitorder)).sum(-1).astype(DType::U8))
    })
}

/// Unpacks the bits of bytes along the last axis, as uint8 of 0 and 1. See [`packbits`].
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(unpackbits(array([5u8]), BitOrder::Little).to_vec::<u8>()?, [1, 0, 1, 0, 0, 0, 0, 0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for other dtypes than uint8, and for a scalar.
#[track_caller]
pub fn unpackbits(x: impl ArrayLike, bitorder: impl IntoChoice<BitOrder>) -> Array {
    let (x, bitorder) = (x.into_array(), bitorder.into_choice());
    checked_or_failed(&x, || {
        let bitorder = bitorder.value("unpackbits")?;
        x.check()?;
        if x.dtype() != DType::U8 || x.ndim() == 0 {
            return Err(err!(Type, "unpackbits needs an array of uint8, got {}", x.type_name())
                .help("convert it with `astype(DType::U8)`"));
        }
        let _ranks = rank_promotion::allow();
        let bits = super::right_shift(x.expand_dims(-1), shifts(bitorder)) & 1;
        let n = x.shape()[x.ndim() - 1];
        Ok(lax::reshape(&bits, &[&x.shape()[..x.ndim() - 1], &[8 * n]].concat()))
    })
}
