//! Cumulative sums and products of the array API, and variants that ignore NaN.

use super::indexing::{IntoAxis, with_axis};
use super::options::options;
use super::{checked_or_failed, isnan, where_};
use crate::core::array::Array;
use crate::dtype::{DType, Scalar};
use crate::error::{Result, err};
use crate::ops::lax;
use crate::ops::operators::ArrayLike;
use crate::shape::AxisNumber;

options! {
    /// Options of [`cumulative_sum`](cumulative_sum()) and [`cumulative_prod`](cumulative_prod()).
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// # use shardax::numpy::CumulativeSumOptions;
    /// let ends = CumulativeSumOptions::new().include_initial(true).cumulative_sum(array([2, 3]), 0);
    /// assert_eq!(ends.to_vec::<i32>()?, [0, 2, 5]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    CumulativeSumOptions {
        /// The dtype to which the elements are converted first. Default: the dtype of the elements, but 32 bits for sums of smaller
        /// integers.
        dtype: Option<DType> = None, |dtype: impl Into<Option<DType>>| dtype.into();
        /// If true, the result starts with the sum or product of no elements. Default `false`.
        include_initial: bool = false, |include: bool| include;
    }
}

impl CumulativeSumOptions {
    /// See [`cumulative_sum`](cumulative_sum()).
    #[track_caller]
    pub fn cumulative_sum(&self, x: impl ArrayLike, axis: impl AxisNumber) -> Array {
        let axis = axis.axis_number();
        self.accumulate("cumulative_sum", x.into_array(), axis, 0, |x, axis| match self.dtype {
            None => super::reductions::widen(x, 1).cumsum(axis),
            Some(_) => x.cumsum(axis),
        })
    }

    /// See [`cumulative_prod`](cumulative_prod()).
    #[track_caller]
    pub fn cumulative_prod(&self, x: impl ArrayLike, axis: impl AxisNumber) -> Array {
        let axis = axis.axis_number();
        self.accumulate("cumulative_prod", x.into_array(), axis, 1, |x, axis| x.cumprod(axis))
    }

    #[track_caller]
    fn accumulate(
        &self,
        name: &str,
        x: Array,
        axis: i32,
        initial: i128,
        f: impl FnOnce(&Array, i32) -> Array,
    ) -> Array {
        checked_or_failed(&x, || {
            x.check()?;
            if x.ndim() == 0 {
                return Err(err!(
                    Value,
                    "The input must be non-scalar to take a cumulative sum: {name} of {}",
                    x.type_name()
                )
                .help("add a dimension first, with `atleast_1d(&x)`"));
            }
            let (x, axis) = with_axis(&x, axis)?;
            let x = self.dtype.map_or(x.clone(), |dtype| x.astype(dtype));
            let totals = f(&x, axis as i32);
            if !self.include_initial {
                return Ok(totals);
            }
            // The initial value is one more element at the start.
            let mut shape = x.shape_owned();
            shape[axis] = 1;
            let identity = super::filled(&shape, Scalar::Int(initial), totals.dtype());
            Ok(lax::concatenate(&[identity, super::to_strong_type(&totals, totals.dtype())], axis))
        })
    }
}

/// Returns the cumulative sum along `axis`. Booleans are counted, small integers become 32 bits wide.
/// [`CumulativeSumOptions`] has a leading 0 and a dtype.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(cumulative_sum(array([1, 2, 3]), 0).to_vec::<i32>()?, [1, 3, 6]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn cumulative_sum(x: impl ArrayLike, axis: impl AxisNumber) -> Array {
    let axis = axis.axis_number();
    CumulativeSumOptions::new().cumulative_sum(x, axis)
}

/// Returns the cumulative product along `axis`. [`CumulativeSumOptions`] has a leading 1 and a dtype.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(cumulative_prod(array([1, 2, 3]), 0).to_vec::<i32>()?, [1, 2, 6]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn cumulative_prod(x: impl ArrayLike, axis: impl AxisNumber) -> Array {
    let axis = axis.axis_number();
    CumulativeSumOptions::new().cumulative_prod(x, axis)
}

/// Returns the cumulative sum along `axis` (`..`: of the flat array) of the elements that are not NaN.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(nancumsum(array([1.0f32, f32::NAN, 2.0]), ..).to_vec::<f32>()?, [1.0, 1.0, 3.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn nancumsum(x: impl ArrayLike, axis: impl IntoAxis) -> Array {
    let x = x.into_array();
    checked_or_failed(&x, || Ok(without_nan(&x, 0)?.cumsum(axis)))
}

/// Returns the cumulative product along `axis` (`..`: of the flat array) of the elements that are not NaN.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(nancumprod(array([3.0f32, f32::NAN, 2.0]), ..).to_vec::<f32>()?, [3.0, 3.0, 6.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn nancumprod(x: impl ArrayLike, axis: impl IntoAxis) -> Array {
    let x = x.into_array();
    checked_or_failed(&x, || Ok(without_nan(&x, 1)?.cumprod(axis)))
}

fn without_nan(x: &Array, fill: i32) -> Result<Array> {
    x.check()?;
    Ok(if x.dtype().is_inexact() { where_(isnan(x), fill, x) } else { x.clone() })
}

/// Returns the index, int32, of the first maximum along `axis` (`..`: of the flat array) of the elements that are not
/// NaN; -1 where all elements are NaN.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::nanargmax;
/// assert_eq!(nanargmax(array([1.0f32, f32::NAN, 3.0]), 0).item::<i32>()?, 2);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn nanargmax(x: impl ArrayLike, axis: impl IntoAxis) -> Array {
    let x = x.into_array();
    checked_or_failed(&x, || arg_extreme(&x, axis, f64::NEG_INFINITY, Array::argmax))
}

/// Returns the index, int32, of the first minimum along `axis` (`..`: of the flat array) of the elements that are not
/// NaN; -1 where all elements are NaN.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(nanargmin(array([f32::NAN, 3.0, 2.0]), ..).item::<i32>()?, 2);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn nanargmin(x: impl ArrayLike, axis: impl IntoAxis) -> Array {
    let x = x.into_array();
    checked_or_failed(&x, || arg_extreme(&x, axis, f64::INFINITY, Array::argmin))
}

fn arg_extreme(x: &Array, axis: impl IntoAxis, least: f64, f: fn(&Array, i32) -> Array) -> Result<Array> {
    let (x, axis) = with_axis(x, axis)?;
    let axis = axis as i32;
    if !x.dtype().is_inexact() {
        return Ok(f(&x, axis));
    }
    let nan = isnan(&x);
    Ok(where_(nan.all(axis), -1, f(&where_(&nan, least, &x), axis)))
}
