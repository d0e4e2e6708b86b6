//! Resizing of images, as in [`jax.image`](https://docs.jax.dev/en/latest/jax.image.html).
//!
//! ```
//! # use shardax::prelude::*;
//! use shardax::image::{self, ResizeMethod};
//! let images = ones([8, 28, 28, 3]);
//! assert_eq!(image::resize(&images, [8, 32, 32, 3], ResizeMethod::Linear).shape(), [8, 32, 32, 3]);
//! # Ok::<(), shardax::Error>(())
//! ```

mod kernel;

pub use kernel::ResizeMethod;

use crate::choice::{Choice, IntoChoice};
use crate::core::array::Array;
use crate::core::program::trace::or_failed;
use crate::dtype::{DType, Scalar};
use crate::error::{Result, err};
use crate::ops::lax::{self, DotOptions, Precision};
use crate::ops::numpy::{IntoShape, convert, promote_dtypes, shape_of, to_inexact, where_};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::composite::composite1;
use crate::shape::normalize_axis;

/// The options of resizing.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::image::{ResizeMethod, ResizeOptions};
/// let image = array([[0.0f32, 4.0, 0.0, 4.0]]);
/// // Without a filter, every second pixel of four is lost.
/// let thinned = ResizeOptions::new(ResizeMethod::Linear).antialias(false).resize(&image, [1, 2]);
/// assert_eq!(thinned.to_vec::<f32>()?, [2.0, 2.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ResizeOptions {
    method: ResizeMethod,
    antialias: bool,
    precision: Choice<Precision>,
}

impl From<ResizeMethod> for ResizeOptions {
    fn from(method: ResizeMethod) -> Self {
        ResizeOptions::new(method)
    }
}

impl From<&'static str> for ResizeOptions {
    fn from(method: &'static str) -> Self {
        ResizeOptions::new(method)
    }
}

impl ResizeOptions {
    /// Creates options with this method.
    pub fn new(method: impl Into<ResizeMethod>) -> Self {
        ResizeOptions { method: method.into(), antialias: true, precision: Choice::Value(Precision::Highest) }
    }

    /// Sets whether the kernel becomes wider where the image becomes smaller, so that every pixel contributes. Default
    /// `true`.
    pub fn antialias(mut self, antialias: bool) -> Self {
        self.antialias = antialias;
        self
    }

    /// Sets the precision of matrix multiplications on accelerators. Default [`Precision::Highest`].
    pub fn precision(mut self, precision: impl IntoChoice<Precision>) -> Self {
        self.precision = precision.into_choice();
        self
    }

    /// Calls [`resize`] with these options.
    #[track_caller]
    pub fn resize(&self, image: impl ArrayLike, shape: impl IntoShape) -> Array {
        let image = image.into_array();
        or_failed(&image, || {
            image.check()?;
            let shape = shape_of(shape)?.to_vec();
            self.method.check("resize")?;
            same_rank("resize", &image, &shape)?;
            let dims: Vec<usize> = (0..image.ndim()).filter(|&d| image.shape()[d] != shape[d]).collect();
            if self.method == ResizeMethod::Nearest {
                let args = std::slice::from_ref(&image);
                return composite1("resize_nearest", (shape, dims), args, |(shape, dims), args| {
                    Ok(vec![dims.iter().fold(args[0].clone(), |x, &d| resample_nearest(&x, d, shape[d]))])
                });
            }
            let image = promote_dtypes(&[&image], to_inexact)?.swap_remove(0);
            composite1("resize", (*self, shape, dims), &[image], |(options, shape, dims), args| {
                let zero = Array::literal(Scalar::float(0.0), DType::F32, true);
                Ok(vec![dims.iter().fold(args[0].clone(), |x, &d| {
                    let inverse = if shape[d] == 0 { 1.0 } else { x.shape()[d] as f64 / shape[d] as f64 };
                    // A weak type lets `resample` compute the weights of float64 images in float64.
                    let inverse = Array::literal(Scalar::float(inverse), DType::F32, true);
                    options.resample(&x, d, shape[d], &inverse, &zero)
                })])
            })
        })
    }

    /// Calls [`scale_and_translate`] with these options.
    #[track_caller]
    pub fn scale_and_translate(
        &self,
        image: impl ArrayLike,
        shape: impl IntoShape,
        spatial_dims: &[i32],
        scale: impl ArrayLike,
        translation: impl ArrayLike,
    ) -> Array {
        let (image, scale, translation) = (image.into_array(), scale.into_array(), translation.into_array());
        or_failed(&image, || {
            image.check()?;
            let shape = shape_of(shape)?.to_vec();
            self.method.check("scale_and_translate")?;
            same_rank("scale_and_translate", &image, &shape)?;
            if self.method == ResizeMethod::Nearest {
                return Err(err!(NotImplemented, "scale_and_translate does not support nearest neighbours")
                    .help("choose another method, for example `ResizeMethod::Linear`"));
            }
            let dims: Vec<usize> =
                spatial_dims.iter().map(|&d| normalize_axis(d as isize, image.ndim())).collect::<Result<_>>()?;
            for (what, x) in [("scale", &scale), ("translation", &translation)] {
                if x.shape() != [dims.len()] {
                    return Err(err!(
                        Value,
                        "scale_and_translate needs a {what} for each of the dimensions {spatial_dims:?}, got {}",
                        x.type_name()
                    )
                    .help("pass vectors that have one element for each spatial dimension"));
                }
            }
            // Only the spatial dimensions can change.
            let fixed = (0..image.ndim()).find(|d| !dims.contains(d) && image.shape()[*d] != shape[*d]);
            if let Some(d) = fixed {
                return Err(err!(
                    Value,
                    "scale_and_translate of {} to {shape:?} along {spatial_dims:?} cannot change the size of dimension {d}",
                    image.type_name()
                )
                .help(format!("add {d} to the spatial dimensions, or keep its size")));
            }
            let image = promote_dtypes(&[&image], to_inexact)?.swap_remove(0);
            let coefficients = promote_dtypes(&[&scale, &translation], to_inexact)?;
            let args = [image, coefficients[0].clone(), coefficients[1].clone()];
            composite1("scale_and_translate", (*self, shape, dims), &args, |(options, shape, dims), args| {
                let inverse = 1.0 / &args[1];
                Ok(vec![dims.iter().enumerate().fold(args[0].clone(), |x, (i, &d)| {
                    options.resample(&x, d, shape[d], &scalar_at(&inverse, i), &scalar_at(&args[2], i))
                })])
            })
        })
    }

    /// Resamples dimension `d` to `n` elements. Each is a weighted sum of the elements under the kernel; the center of
    /// element `i` is at `(i + ½ - translation) inverse - ½`.
    fn resample(&self, x: &Array, d: usize, n: usize, inverse: &Array, translation: &Array) -> Array {
        let m = x.shape()[d];
        let dtype = if inverse.weak_type() && x.dtype() == DType::F64 { DType::F64 } else { inverse.dtype() };
        let centers = (indices(n, dtype) + 0.5) * inverse - translation * inverse - 0.5;
        let distance = (centers.expand_dims(0) - indices(m, dtype).expand_dims(1)).abs();
        let kernel_scale = inverse.maximum(1.0);
        let weights = self.method.weight(&if self.antialias { distance / kernel_scale } else { distance });
        // Weights add up to 1, also at the border, where a part of the kernel is outside of the image.
        let total = weights.sum_keepdims(0);
        let has_weight = total.abs().greater(1000.0 * f64::from(f32::EPSILON));
        let weights = where_(has_weight, &weights / where_(total.not_equal(0), &total, 1.0), 0.0);
        let is_inside = centers.greater_equal(-0.5) & centers.less_equal(m as f64 - 0.5);
        let weights = where_(is_inside.expand_dims(0), weights, 0.0).astype(x.dtype());
        let dot = DotOptions::new().precision(self.precision).sparse_rhs();
        dot.dot_general(x, &weights, (&[d], &[0]), (&[], &[])).moveaxis(-1, d as i32)
    }
}

/// Returns the indices of `n` pixels in a floating point dtype.
fn indices(n: usize, dtype: DType) -> Array {
    convert(&lax::iota(DType::for_indices(&[n]), &[n], 0), dtype, false)
}

/// Returns element `i` of a vector as a scalar.
fn scalar_at(x: &Array, i: usize) -> Array {
    lax::reshape(&lax::slice_in_dim(x, i, i + 1, 0), &[])
}

/// Resamples dimension `d` to `n` elements. Each of them is the nearest element of `x`.
fn resample_nearest(x: &Array, d: usize, n: usize) -> Array {
    let m = x.shape()[d];
    // Half-integers from 2^24 on are not float32 numbers.
    let dtype = if n.max(m) > 1 << 23 { DType::F64 } else { DType::F32 };
    let source = (indices(n, dtype) + 0.5) * m as f64 / n as f64;
    x.take(source.floor().astype(DType::for_indices(&[m])), d as i32)
}

fn same_rank(name: &str, image: &Array, shape: &[usize]) -> Result<()> {
    if shape.len() == image.ndim() {
        return Ok(());
    }
    Err(err!(
        Value,
        "{name}: shape must have length equal to the number of dimensions of x; {shape:?} vs {:?}",
        image.shape()
    )
    .help("pass a size for every dimension, including batches and channels"))
}

/// Resizes an image to another shape, in any of its dimensions. It is resampled with a kernel, which is wider where the image
/// becomes smaller.
///
/// Integers become floating point, except with [`ResizeMethod::Nearest`]. The shape must have the rank of the image.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::image::{self, ResizeMethod};
/// let x = array([[1.0f32, 3.0]]);
/// assert_eq!(image::resize(&x, [1, 4], ResizeMethod::Linear).to_vec::<f32>()?, [1.0, 1.5, 2.5, 3.0]);
/// assert_eq!(image::resize(&x, [1, 4], ResizeMethod::Nearest).to_vec::<f32>()?, [1.0, 1.0, 3.0, 3.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn resize(image: impl ArrayLike, shape: impl IntoShape, method: impl Into<ResizeOptions>) -> Array {
    method.into().resize(image, shape)
}

/// Scales and translates an image along the dimensions `spatial_dims`: the value at `p` moves to `p * scale +
/// translation`, where the centers of pixels are half-integers. Pixels that come from outside of the image are zero.
///
/// `scale` and `translation` must have one element for each of these dimensions; you can differentiate with respect to
/// them.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::image::{self, ResizeMethod};
/// let x = array([[1.0f32, 2.0, 3.0]]);
/// let moved = image::scale_and_translate(&x, [1, 3], &[1], array([1.0f32]), array([1.0f32]), ResizeMethod::Linear);
/// assert_eq!(moved.to_vec::<f32>()?, [0.0, 1.0, 2.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for [`ResizeMethod::Nearest`], and for shapes that do not fit.
#[track_caller]
pub fn scale_and_translate(
    image: impl ArrayLike,
    shape: impl IntoShape,
    spatial_dims: &[i32],
    scale: impl ArrayLike,
    translation: impl ArrayLike,
    method: impl Into<ResizeOptions>,
) -> Array {
    method.into().scale_and_translate(image, shape, spatial_dims, scale, translation)
}
