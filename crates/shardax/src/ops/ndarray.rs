//! Conversions from and to `ndarray` (the feature `ndarray`).

use ndarray::{ArrayBase, ArrayD, Data, Dimension, IxDyn};

use crate::core::array::Array;
use crate::dtype::Element;
use crate::error::{Result, err};

impl Array {
    /// Creates an array with the shape, the elements and the dtype of an `ndarray` array or view, whatever its memory
    /// order.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let x = Array::from_ndarray(&ndarray::arr2(&[[1.0f32, 2.0], [3.0, 4.0]]).t())?;
    /// assert_eq!(x.to_vec::<f32>()?, [1.0, 3.0, 2.0, 4.0]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the default device cannot be used.
    pub fn from_ndarray<S, D>(values: &ArrayBase<S, D>) -> Result<Array>
    where
        S: Data,
        S::Elem: Element,
        D: Dimension,
    {
        let mut bytes = Vec::with_capacity(values.len() * size_of::<S::Elem>());
        // `iter` is in row-major order.
        values.iter().for_each(|element| element.write(&mut bytes));
        Array::from_bytes(&bytes, S::Elem::DTYPE, values.shape())
    }

    /// Returns the elements as an `ndarray` array. Waits for the values.
    ///
    /// # Errors
    /// Returns an error if `T` is not the array's dtype.
    pub fn to_ndarray<T: Element>(&self) -> Result<ArrayD<T>> {
        let elements = self.to_vec::<T>()?;
        ArrayD::from_shape_vec(IxDyn(self.shape()), elements).map_err(|e| err!(Runtime, "{e}"))
    }
}
