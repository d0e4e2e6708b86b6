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

use crate::core::array::Array;
use crate::core::program::trace::at_caller;
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
    precision: Precision,
}

impl From<ResizeMethod> for ResizeOptions {
    fn from(method: ResizeMethod) -> Self {
        ResizeOptions::new(method)
    }
}

impl ResizeOptions {
    /// Creates options with this method.
    pub fn new(method: ResizeMethod) -> Self {
        ResizeOptions { method, antialias: true, precision: Precision::Highest }
    }

    /// Sets whether a smaller image uses all pixels, with a wider kernel. Default true.
    pub fn antialias(mut self, antialias: bool) -> Self {
        self.antialias = antialias;
        self
    }

    /// The precision of matrix multiplications on accelerators. Default [`Precision::Highest`].
    pub fn precision(mut self, precision: Precision) -> Self {
        self.precision = precision;
        self
    }

    /// See [`resize`].
    #[track_caller]
    pub fn resize(&self, image: impl ArrayLike, shape: impl IntoShape) -> Array {
        let image = image.into_array();
        let made = at_caller(|| {
            image.check()?;
            let shape = shape_of(shape)?.to_vec();
            same_rank("resize", &image, &shape)?;
            let spread: Vec<usize> = (0..image.ndim()).filter(|&d| image.shape()[d] != shape[d]).collect();
            if self.method == ResizeMethod::Nearest {
                let args = std::slice::from_ref(&image);
                return composite1("resize_nearest", (shape, spread), args, |(shape, spread), args| {
                    Ok(vec![spread.iter().fold(args[0].clone(), |x, &d| nearest(&x, d, shape[d]))])
                });
            }
            let image = promote_dtypes(&[&image], to_inexact)?.swap_remove(0);
            composite1("resize", (*self, shape, spread), &[image], |(options, shape, spread), args| {
                let zero = Array::literal(Scalar::float(0.0), DType::F32, true);
                Ok(vec![spread.iter().fold(args[0].clone(), |x, &d| {
                    let inverse = if shape[d] == 0 { 1.0 } else { x.shape()[d] as f64 / shape[d] as f64 };
                    let inverse = Array::literal(Scalar::float(inverse), DType::F32, true);
                    options.resampled(&x, d, shape[d], &inverse, &zero)
                })])
            })
        });
        Array::from_result(made, &image)
    }

    /// See [`scale_and_translate`].
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
        let made = at_caller(|| {
            image.check()?;
            let shape = shape_of(shape)?.to_vec();
            same_rank("scale_and_translate", &image, &shape)?;
            if self.method == ResizeMethod::Nearest {
                return Err(err!(NotImplemented, "scale_and_translate does not support nearest neighbours")
                    .help("choose another method, such as `ResizeMethod::Linear`"));
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
                    .help("give arrays of one dimension, with an element for each spatial dimension"));
                }
            }
            let fixed = (0..image.ndim()).find(|d| !dims.contains(d) && image.shape()[*d] != shape[*d]);
            if let Some(d) = fixed {
                return Err(err!(
                    Value,
                    "scale_and_translate of {} to {shape:?} along {spatial_dims:?}: dimension {d} stays as it is",
                    image.type_name()
                )
                .help("name each dimension that changes among the spatial ones"));
            }
            let image = promote_dtypes(&[&image], to_inexact)?.swap_remove(0);
            let moves = promote_dtypes(&[&scale, &translation], to_inexact)?;
            let args = [image, moves[0].clone(), moves[1].clone()];
            composite1("scale_and_translate", (*self, shape, dims), &args, |(options, shape, dims), args| {
                let inverse = 1.0 / &args[1];
                let of = |x: &Array, i: usize| lax::reshape(&lax::slice_in_dim(x, i, i + 1, 0), &[]);
                let places = dims.iter().enumerate();
                Ok(vec![places.fold(args[0].clone(), |x, (i, &d)| {
                    options.resampled(&x, d, shape[d], &of(&inverse, i), &of(&args[2], i))
                })])
            })
        });
        Array::from_result(made, &image)
    }

    /// Resamples dimension `d` to `n` elements, each a weighted sum of those under the kernel: element `i` is at
    /// `(i + ½ - translation) inverse - ½`.
    fn resampled(&self, x: &Array, d: usize, n: usize, inverse: &Array, translation: &Array) -> Array {
        let m = x.shape()[d];
        let dtype = if inverse.weak_type() && x.dtype() == DType::F64 { DType::F64 } else { inverse.dtype() };
        let count = |n: usize| convert(&lax::iota(DType::I32, &[n], 0), dtype, false);
        let places = (count(n) + 0.5) * inverse - translation * inverse - 0.5;
        let distance = (places.expand_dims(0) - count(m).expand_dims(1)).abs();
        let wider = inverse.maximum(1.0);
        let weights = self.method.weight(&if self.antialias { distance / wider } else { distance });
        let total = weights.sum_keepdims(0);
        let seen = total.abs().greater(1000.0 * f64::from(f32::EPSILON));
        let weights = where_(seen, &weights / where_(total.not_equal(0), &total, 1.0), 0.0);
        let inside = places.greater_equal(-0.5) & places.less_equal(m as f64 - 0.5);
        let weights = where_(inside.expand_dims(0), weights, 0.0).astype(x.dtype());
        let dot = DotOptions::new().precision(self.precision);
        dot.dot_general(x, &weights, (&[d], &[0]), (&[], &[])).moveaxis(-1, d as i32)
    }
}

/// Resamples dimension `d` to `n` elements, each the nearest of `x`.
fn nearest(x: &Array, d: usize, n: usize) -> Array {
    let place = convert(&lax::iota(DType::I32, &[n], 0), DType::F32, false);
    let place = ((place + 0.5) * x.shape()[d] as f64 / n as f64).floor().astype(DType::I32);
    x.take(place, d as i32)
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
    .help("give the sizes of batches and channels too"))
}

/// Resizes an image to another shape, in any of its dimensions: resampled with a kernel, which is widened where
/// the image becomes smaller.
///
/// Integers become floating point, except with [`ResizeMethod::Nearest`]. Fails for a shape of another rank.
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

/// Scales and translates an image: the value at `p` moves to `p * scale + translation`, along the dimensions
/// `spatial_dims`; pixels are centred at half-integers. Pixels from outside the image are zero.
///
/// `scale` and `translation` have an element for each of the dimensions, and may be differentiated. Fails for
/// [`ResizeMethod::Nearest`], and shapes that do not fit.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::image::{self, ResizeMethod};
/// let x = array([[1.0f32, 2.0, 3.0]]);
/// let moved = image::scale_and_translate(&x, [1, 3], &[1], array([1.0f32]), array([1.0f32]), ResizeMethod::Linear);
/// assert_eq!(moved.to_vec::<f32>()?, [0.0, 1.0, 2.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
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
