//! Evenly spaced numbers: linear and geometric.

use super::options::options;
use super::{checked_or_failed, convert, to_inexact};
use crate::core::array::{Array, Repr};
use crate::core::program::trace::at_caller;
use crate::dtype::{DType, Scalar, promote};
use crate::error::{Result, err};
use crate::ops::lax;
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::composite::composite1;
use crate::rank_promotion;
use crate::shape::{broadcast_shapes, normalize_axis};

options! {
    /// Options of [`linspace`](linspace()), [`logspace`](logspace()) and [`geomspace`](geomspace()).
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// # use shardax::numpy::LinspaceOptions;
    /// let x = LinspaceOptions::new().endpoint(false).dtype(DType::I32).linspace(0, 10, 4);
    /// assert_eq!(x.to_vec::<i32>()?, [0, 2, 5, 7]);
    /// let columns = LinspaceOptions::new().axis(1).linspace(array([0.0f32, 1.0]), 2.0, 3);
    /// assert_eq!(columns.to_vec::<f32>()?, [0.0, 1.0, 2.0, 1.0, 1.5, 2.0]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    LinspaceOptions {
        /// If true, the end is the last number. Default `true`.
        endpoint: bool = true, |endpoint: bool| endpoint;
        /// The dtype of the result; numbers are rounded down to integers. Default: the common floating point dtype of both ends.
        dtype: Option<DType> = None, |dtype: impl Into<Option<DType>>| dtype.into();
        /// The dimension of the numbers in the result, if the ends are arrays. Default 0.
        axis: i32 = 0, |axis: i32| axis;
        /// The base of [`logspace`](logspace()). Default 10.
        base: Array = Array::literal(Scalar::Int(10), DType::F32, true), |base: impl ArrayLike| base.into_array();
    }
}

impl LinspaceOptions {
    /// See [`linspace`](linspace()).
    #[track_caller]
    pub fn linspace(&self, start: impl ArrayLike, stop: impl ArrayLike, num: usize) -> Array {
        let (start, stop) = (start.into_array(), stop.into_array());
        if let (Some(start), Some(stop), true, None) = (number(&start), number(&stop), self.endpoint, self.dtype)
            && matches!(self.axis, 0 | -1)
        {
            return super::creation::linspace_of_numbers(start, stop, num);
        }
        checked_or_failed(&start, || line(&start, &stop, num, self.endpoint, self.dtype, self.axis))
    }

    /// See [`logspace`](logspace()).
    #[track_caller]
    pub fn logspace(&self, start: impl ArrayLike, stop: impl ArrayLike, num: usize) -> Array {
        let (start, stop) = (start.into_array(), stop.into_array());
        checked_or_failed(&start, || {
            let dtype = self.result_dtype(&start, &stop)?;
            let line = line(&start, &stop, num, self.endpoint, Some(to_inexact(dtype)), self.axis)?;
            Ok(super::power(&self.base, line).astype(dtype))
        })
    }

    /// See [`geomspace`](geomspace()).
    #[track_caller]
    pub fn geomspace(&self, start: impl ArrayLike, stop: impl ArrayLike, num: usize) -> Array {
        let (start, stop) = (start.into_array(), stop.into_array());
        checked_or_failed(&start, || {
            if let (Some(a), Some(b)) = (number(&start), number(&stop))
                && (a * b <= 0.0 || !(a * b).is_finite())
            {
                return Err(err!(Value, "geomspace has no geometric progression from {a} to {b}")
                    .help("pass ends that are finite, nonzero and of equal sign"));
            }
            let dtype = self.result_dtype(&start, &stop)?;
            let wide = to_inexact(dtype);
            let (start, stop) = (start.astype(wide), stop.astype(wide));
            let _ranks = rank_promotion::allow();
            let sign = super::sign(&start);
            let [log_start, log_stop] = [&start, &stop].map(|x| super::log10(x / &sign));
            let line = line(&log_start, &log_stop, num, self.endpoint, Some(wide), 0)?;
            let power = &sign * super::power(10, line);
            let axis = normalize_axis(self.axis as isize, power.ndim())?;
            Ok(power.moveaxis(0, axis as i32).astype(dtype))
        })
    }

    fn result_dtype(&self, start: &Array, stop: &Array) -> Result<DType> {
        start.check()?;
        stop.check()?;
        let common = promote((start.dtype(), start.weak_type()), (stop.dtype(), stop.weak_type()))?.0;
        Ok(self.dtype.unwrap_or(to_inexact(common)))
    }
}

/// The value of a real Rust number; `None` for other arrays.
fn number(x: &Array) -> Option<f64> {
    match &x.0 {
        Repr::Literal(l) if l.weak && !l.dtype.is_complex() => Some(l.value.to_f64()),
        _ => None,
    }
}

/// Numbers from `start` to `stop` in a new dimension `axis`.
pub(super) fn line(
    start: &Array,
    stop: &Array,
    num: usize,
    endpoint: bool,
    dtype: Option<DType>,
    axis: i32,
) -> Result<Array> {
    start.check()?;
    stop.check()?;
    let shape = broadcast_shapes(&[start.shape(), stop.shape()]).ok_or_else(|| {
        err!(Value, "linspace got incompatible shapes for broadcasting: {} and {}", start.type_name(), stop.type_name())
            .help("from the last dimension backwards, sizes must be equal or 1")
    })?;
    let axis = normalize_axis(axis as isize, shape.len() + 1)?;
    let kind = promote((start.dtype(), start.weak_type()), (stop.dtype(), stop.weak_type()))?.0;
    let dtype = dtype.unwrap_or(to_inexact(kind));
    let params = (num, endpoint, dtype, axis, shape);
    composite1("linspace", params, &[start.clone(), stop.clone()], |(num, endpoint, dtype, axis, shape), args| {
        let (num, axis, wide) = (*num, *axis, to_inexact(*dtype));
        let [start, stop] =
            [&args[0], &args[1]].map(|end| convert(end, wide, false).broadcast_to(shape).expand_dims(axis as i32));
        let line = match num {
            0 => lax::slice_in_dim(&start, 0, 0, axis),
            1 => start,
            _ => {
                let count = if *endpoint { num - 1 } else { num };
                let mut line_shape = vec![1; shape.len() + 1];
                line_shape[axis] = count;
                // The last point is the end itself, because the sum of both products may round.
                let fraction = lax::iota(wide.real(), &[count], 0) / count as f64;
                let fraction = lax::reshape(&fraction, &line_shape).astype(wide);
                let inner = &start * (1.0 - &fraction) + &stop * fraction;
                if *endpoint { lax::concatenate(&[inner, stop], axis) } else { inner }
            }
        };
        let line = if dtype.is_integer() { line.floor() } else { line };
        Ok(vec![line.astype(*dtype)])
    })
}

/// Returns `num` numbers from `start` to `stop`, both included, floating point. The ends are numbers, or arrays, which
/// broadcast; the numbers are along the first dimension. [`LinspaceOptions`] can exclude the end, and has a dtype and
/// another dimension.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(linspace(0.0, 1.0, 3).to_vec::<f32>()?, [0.0, 0.5, 1.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn linspace(start: impl ArrayLike, stop: impl ArrayLike, num: usize) -> Array {
    LinspaceOptions::new().linspace(start, stop, num)
}

/// Returns `num` numbers from `10^start` to `10^stop`, both included, in geometric progression. The ends are numbers or
/// arrays. [`LinspaceOptions`] can exclude the end, and has another base, a dtype and another dimension.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::logspace;
/// assert!(allclose(logspace(0.0, 2.0, 3), array([1.0f32, 10.0, 100.0]), 1e-5, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn logspace(start: impl ArrayLike, stop: impl ArrayLike, num: usize) -> Array {
    at_caller(|| LinspaceOptions::new().logspace(start, stop, num))
}

/// Returns `num` numbers from `start` to `stop`, both included, in geometric progression. The ends are numbers or
/// arrays and must have equal signs. [`LinspaceOptions`] can exclude the end, and has a dtype and another dimension.
///
/// ```
/// # use shardax::prelude::*;
/// assert!(allclose(geomspace(1.0, 100.0, 3), array([1.0f32, 10.0, 100.0]), 1e-5, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error if one of two numbers is 0, or if their signs differ.
#[track_caller]
pub fn geomspace(start: impl ArrayLike, stop: impl ArrayLike, num: usize) -> Array {
    at_caller(|| LinspaceOptions::new().geomspace(start, stop, num))
}
