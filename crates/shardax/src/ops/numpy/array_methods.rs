//! Functions of this module that JAX also has as methods of arrays.

use super::axes::IntoReduction;
use super::{IndexMode, IntoAxis};
use crate::choice::IntoChoice;
use crate::core::array::Array;
use crate::ops::operators::{ArrayLike, IntoArrays};

impl Array {
    /// Returns the positions that would partition the array around element `kth`; see [`argpartition`](super::argpartition).
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(array([5, 1, 4]).argpartition(0, 0).get(0).item::<i32>()?, 1);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn argpartition(&self, kth: i32, axis: impl IntoAxis) -> Array {
        super::argpartition(self, kth, axis)
    }

    /// Selects the element of `choices[i]` where this array is `i`; see [`choose`](super::choose).
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// # use shardax::numpy::IndexMode;
    /// let chosen = array([1, 0]).choose([array([10, 20]), array([30, 40])], IndexMode::Clip);
    /// assert_eq!(chosen.to_vec::<i32>()?, [30, 20]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn choose<Form>(&self, choices: impl IntoArrays<Form>, mode: impl IntoChoice<IndexMode>) -> Array {
        super::choose(self, choices, mode)
    }

    /// Selects the entries along `axis` for which a vector of conditions is true; see [`compress`](super::compress).
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(array([7, 8, 9]).compress(array([true, false, true]), 0).to_vec::<i32>()?, [7, 9]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn compress(&self, condition: impl ArrayLike, axis: impl IntoAxis) -> Array {
        super::compress(condition, self, axis)
    }

    /// Returns the indices of the nonzero elements, one array for each dimension; see [`nonzero`](super::nonzero).
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(array([0, 3, 4]).nonzero(None)[0].to_vec::<i32>()?, [1, 2]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn nonzero(&self, size: impl Into<Option<usize>>) -> Vec<Array> {
        super::nonzero(self, size)
    }

    /// Returns the maximum minus the minimum over `axes`; see [`ptp`](super::ptp).
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(array([[1, 4], [2, 9]]).ptp(1).to_vec::<i32>()?, [3, 7]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn ptp(&self, axes: impl IntoReduction) -> Array {
        super::ptp(self, axes)
    }

    /// Repeats each element along `axis`, or of the flat array for `..`; see [`repeat`](super::repeat()).
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(array([1, 2]).repeat(2, 0).to_vec::<i32>()?, [1, 1, 2, 2]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn repeat(&self, repeats: impl ArrayLike, axis: impl IntoAxis) -> Array {
        super::repeat(self, repeats, axis)
    }
}
