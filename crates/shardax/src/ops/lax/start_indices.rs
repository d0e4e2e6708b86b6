//! The start indices of dynamic slices, as callers write them.

use crate::core::array::Array;
use crate::ops::operators::{ArrayLike, IntoArrays};

/// Start indices of a block: one integer scalar per dimension, as a tuple `(&i, 0)`, an array, a slice or a `Vec` of
/// arrays or numbers, or bare for one dimension.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a list of start indices",
    label = "not start indices",
    note = "write one index for each dimension: `(&i, 0)`, or `[0, 1]`, or `i` for one dimension"
)]
pub trait IntoStartIndices {
    /// Returns one scalar for each dimension.
    fn into_start_indices(self) -> Vec<Array>;
}

impl<T: ArrayLike> IntoStartIndices for T {
    fn into_start_indices(self) -> Vec<Array> {
        vec![self.into_array()]
    }
}

impl<T: ArrayLike, const N: usize> IntoStartIndices for [T; N] {
    fn into_start_indices(self) -> Vec<Array> {
        self.into_arrays()
    }
}

impl<T: ArrayLike> IntoStartIndices for Vec<T> {
    fn into_start_indices(self) -> Vec<Array> {
        self.into_arrays()
    }
}

impl IntoStartIndices for &[Array] {
    fn into_start_indices(self) -> Vec<Array> {
        self.to_vec()
    }
}

impl<const N: usize> IntoStartIndices for &[Array; N] {
    fn into_start_indices(self) -> Vec<Array> {
        self.to_vec()
    }
}

impl IntoStartIndices for &Vec<Array> {
    fn into_start_indices(self) -> Vec<Array> {
        self.clone()
    }
}

macro_rules! tuples_into_start_indices {
    ($(($($t:ident $i:tt),+))*) => {$(
        impl<$($t: ArrayLike),+> IntoStartIndices for ($($t,)+) {
            fn into_start_indices(self) -> Vec<Array> {
                vec![$(self.$i.into_array()),+]
            }
        }
    )*};
}

crate::tuples::each!(tuples_into_start_indices);
