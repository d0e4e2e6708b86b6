//! Padding that is many times wider than the array: the positions of its elements are computed by the program, because a program cannot
//! list them.

use super::padding::PadMode;
use crate::core::array::Array;
use crate::dtype::DType;
use crate::ops::constants::integer;
use crate::ops::elementwise::{floor_divide, remainder};
use crate::ops::lax::{self, GatherScatterMode};
use crate::ops::select::where_;

/// The positions of a padded dimension, relative to the first element, from `first` on. A padded dimension has less than 2³¹ positions.
fn positions(first: i64, count: usize) -> Array {
    lax::iota(DType::I32, &[count], 0) + integer(first.into(), DType::I32)
}

/// The number of positions after which the elements of a dimension of `n` elements repeat.
fn period(n: usize, mode: PadMode) -> usize {
    match mode {
        PadMode::Wrap => n,
        PadMode::Symmetric => 2 * n,
        _ => 2 * (n - 1),
    }
}

/// Returns the elements at `count` positions from `first` on of dimension `dim`, which wraps or is mirrored.
pub(super) fn repeated_elements(x: &Array, dim: usize, first: i64, count: usize, mode: PadMode) -> Array {
    let places = mirrored(&positions(first, count), x.shape()[dim], mode);
    x.take_mode(places, dim as i32, GatherScatterMode::PromiseInBounds)
}

/// Returns the elements that positions are mirrored to.
fn mirrored(positions: &Array, n: usize, mode: PadMode) -> Array {
    let place = remainder(positions, integer(period(n, mode) as i128, DType::I32));
    match mode {
        PadMode::Wrap => place,
        PadMode::Symmetric => place.minimum(2 * n as i32 - 1 - &place),
        _ => place.minimum(2 * (n as i32 - 1) - &place),
    }
}

/// Returns the values at `count` positions from `first` on of dimension `dim`, which is mirrored with its values: each reflection continues
/// the values at the edge, so that they change by the same amount in every period.
pub(super) fn odd_reflections(x: &Array, dim: usize, first: i64, count: usize, mode: PadMode) -> Array {
    let n = x.shape()[dim];
    let edge = |place: usize| lax::slice_in_dim(x, place, place + 1, dim);
    let (first_edge, last_edge) = (edge(0), edge(n - 1));
    let positions = positions(first, count);
    let period = integer(period(n, mode) as i128, DType::I32);
    let mut shape = vec![1; x.ndim()];
    shape[dim] = count;
    let turns = floor_divide(&positions, &period).reshape(&shape);
    let is_mirrored = remainder(&positions, &period).greater_equal(n as i32).reshape(&shape);
    let elements = x.take_mode(mirrored(&positions, n, mode), dim as i32, GatherScatterMode::PromiseInBounds);
    let values = where_(is_mirrored, &last_edge * 2 - &elements, &elements);
    // The number of turns may exceed the range of half precision, in which 0 times infinity is NaN.
    let wide = if x.dtype().is_float() && x.dtype().bits() < 32 { DType::F32 } else { x.dtype() };
    let change = ((last_edge - first_edge) * 2).astype(wide);
    (values.astype(wide) + turns.astype(wide) * change).astype(x.dtype())
}
