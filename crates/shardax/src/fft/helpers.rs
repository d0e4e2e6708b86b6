//! Sample frequencies of Fourier transforms, and shifts of the zero frequency.

use crate::core::array::Array;
use crate::core::program::trace::at_caller;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::lax;
use crate::ops::numpy::{IntoAxes, normalize_axes, where_};
use crate::ops::operators::ArrayLike;

/// Returns the sample frequencies of [`fft`](super::fft()) for `n` elements and the sample spacing `d`:
/// `[0, 1, …, -2, -1] / (n d)`, in float32.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(shardax::fft::fftfreq(4, 0.5).to_vec::<f32>()?, [0.0, 0.5, -1.0, -0.5]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn fftfreq(n: usize, d: f64) -> Array {
    fftfreq_dtype(n, d, crate::default_dtype::float())
}

/// Like [`fftfreq`], of this dtype.
#[track_caller]
pub(crate) fn fftfreq_dtype(n: usize, d: f64, dtype: DType) -> Array {
    let positive = n.div_ceil(2);
    let index = lax::iota(DType::for_indices(&[n]), &[n], 0);
    // The second half are the negative frequencies.
    let index = where_(index.less(positive), &index, &index - n);
    index.astype(dtype) / (d * n as f64)
}

/// Returns the sample frequencies of [`rfft`](super::rfft()) for the sample spacing `d`: `n / 2 + 1` elements in float32.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(shardax::fft::rfftfreq(4, 0.5).to_vec::<f32>()?, [0.0, 0.5, 1.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn rfftfreq(n: usize, d: f64) -> Array {
    rfftfreq_dtype(n, d, crate::default_dtype::float())
}

/// Like [`rfftfreq`], of this dtype.
#[track_caller]
pub(crate) fn rfftfreq_dtype(n: usize, d: f64, dtype: DType) -> Array {
    let half = n / 2 + 1;
    lax::iota(DType::for_indices(&[half]), &[half], 0).astype(dtype) / (d * n as f64)
}

/// Shifts the zero frequency of a transform to the middle along `axes` (`..` for all).
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::fft;
/// let x = fft::fftshift(fft::fftfreq(5, 0.2), ..);
/// assert_eq!(x.to_vec::<f32>()?, [-2.0, -1.0, 0.0, 1.0, 2.0]);
/// assert_eq!(fft::ifftshift(&x, 0).to_vec::<f32>()?, fft::fftfreq(5, 0.2).to_vec::<f32>()?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn fftshift(x: impl ArrayLike, axes: impl IntoAxes) -> Array {
    roll_axes(x.into_array(), axes, |n| n / 2)
}

/// Inverts [`fftshift`].
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::fft::{fftshift, ifftshift};
/// let x = arange(0..5);
/// assert_eq!(ifftshift(fftshift(&x, 0), 0).to_vec::<i32>()?, [0, 1, 2, 3, 4]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn ifftshift(x: impl ArrayLike, axes: impl IntoAxes) -> Array {
    roll_axes(x.into_array(), axes, |n| -(n / 2))
}

/// Rolls the array along each axis by `shift(size of the axis)`.
#[track_caller]
fn roll_axes(x: Array, axes: impl IntoAxes, shift: fn(i64) -> i64) -> Array {
    let rolled: Result<Array> = at_caller(|| {
        x.check()?;
        let axes = normalize_axes(axes, x.ndim())?;
        Ok(axes.iter().fold(x.clone(), |x, &d| {
            let n = i64::try_from(x.shape()[d]).unwrap_or(i64::MAX);
            x.roll(shift(n), d as i32)
        }))
    });
    Array::from_result(rolled, &x)
}
