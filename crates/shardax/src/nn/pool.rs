//! Pooling of channels-last arrays.

use crate::core::array::Array;
use crate::core::program::trace::or_failed;
use crate::error::{Result, err};
use crate::ops::lax::reduce_window::pooled;
use crate::ops::lax::{Padding, Window};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::reduce::Reducer;
use crate::shape::IntoSizes;

/// A pooling window over the spatial dimensions of channels-last arrays.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::{lax::Padding, nn::Pool};
/// let x = arange(0.0f32..16.0).reshape([1, 4, 4, 1]);
/// let y = Pool::new([3, 3]).strides([2, 2]).padding(Padding::Same).max(&x);
/// assert_eq!(y.shape(), [1, 2, 2, 1]);
/// assert_eq!(y.to_vec::<f32>()?, [10.0, 11.0, 14.0, 15.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pool {
    window: Vec<usize>,
    /// `true` if the window is a number, which is its size in all spatial dimensions.
    is_number: bool,
    strides: Vec<usize>,
    padding: Padding,
    count_include_pad: bool,
}

impl Pool {
    /// Creates a window of these sizes, one for each spatial dimension, with stride 1 and no padding. A number is the size in
    /// all dimensions but the first and the last.
    pub fn new(window: impl IntoSizes) -> Self {
        let is_number = window.is_number();
        let window = window.into_sizes();
        let strides = vec![1; window.len()];
        Pool { window, is_number, strides, padding: Padding::Valid, count_include_pad: true }
    }

    /// Sets the stride in each spatial dimension; a number is the stride in all of them. Default 1.
    pub fn strides(mut self, strides: impl IntoSizes) -> Self {
        self.strides = strides.into_sizes_of(self.window.len());
        self
    }

    /// Sets the padding of the spatial dimensions. Default [`Padding::Valid`].
    pub fn padding(mut self, padding: impl Into<Padding>) -> Self {
        self.padding = padding.into();
        self
    }

    /// Sets whether [`avg`](Pool::avg) counts the zeros of the padding as elements. Default `true`.
    pub fn count_include_pad(mut self, count: bool) -> Self {
        self.count_include_pad = count;
        self
    }

    /// Computes the maximum at each position of the window. If elements are equal, the first one gets the gradient.
    ///
    /// `x` is `[..., spatial dimensions, features]`.
    #[track_caller]
    pub fn max(&self, x: impl ArrayLike) -> Array {
        let x = x.into_array();
        or_failed(&x, || self.reduce("max_pool", &x, Reducer::Max))
    }

    /// Computes the minimum at each position of the window. If elements are equal, the first one gets the gradient.
    #[track_caller]
    pub fn min(&self, x: impl ArrayLike) -> Array {
        let x = x.into_array();
        or_failed(&x, || self.reduce("min_pool", &x, Reducer::Min))
    }

    /// Computes the mean at each position of the window.
    #[track_caller]
    pub fn avg(&self, x: impl ArrayLike) -> Array {
        let x = x.into_array();
        or_failed(&x, || {
            let sum = self.reduce("avg_pool", &x, Reducer::Sum)?;
            if self.count_include_pad {
                let size = self.sizes(&self.window, x.ndim()).iter().fold(1, |n: usize, &w| n.saturating_mul(w));
                return Ok(sum / size as f64);
            }
            let ones = Array::zeros_of(&x.aval().strip_weak_type()) + 1;
            Ok(sum / self.reduce("avg_pool", &ones, Reducer::Sum)?)
        })
    }

    #[track_caller]
    fn reduce(&self, name: &str, x: &Array, reducer: Reducer) -> Result<Array> {
        x.check()?;
        Ok(pooled(name, x, &self.full_window(name, x)?, reducer))
    }

    /// Returns the sizes or strides of the spatial dimensions of an array of `ndim` dimensions.
    fn sizes(&self, sizes: &[usize], ndim: usize) -> Vec<usize> {
        match sizes {
            &[size] if self.is_number => vec![size; ndim.saturating_sub(2).max(1)],
            sizes => sizes.to_vec(),
        }
    }

    /// Extends the window to all dimensions of `x`: it has size 1 along batch dimensions and features.
    fn full_window(&self, name: &str, x: &Array) -> Result<Window> {
        let (window, strides) = (self.sizes(&self.window, x.ndim()), self.sizes(&self.strides, x.ndim()));
        let spatial = window.len();
        let Some(batch) = x.ndim().checked_sub(spatial + 1) else {
            return Err(err!(
                Value,
                "{name}: the window {window:?} needs an array of at least {} dimensions, got {}",
                spatial + 1,
                x.type_name()
            )
            .help("arrays are `[batch, spatial dimensions, features]`: add the dimension of one feature with `x.expand_dims(-1)`"));
        };
        let padding = match &self.padding {
            Padding::Explicit(pairs) => Padding::Explicit(extended(pairs, batch, (0, 0))),
            // A number is for the spatial dimensions, like pairs.
            &Padding::Around(count) => Padding::Explicit(extended(&vec![(count, count); spatial], batch, (0, 0))),
            other => other.clone(),
        };
        Ok(Window::new(extended(&window, batch, 1)).strides(extended(&strides, batch, 1)).padding(padding))
    }
}

/// Extends a list of the spatial dimensions by `value` for the batch dimensions and for the features.
fn extended<T: Clone>(spatial: &[T], batch: usize, value: T) -> Vec<T> {
    [vec![value.clone(); batch], spatial.to_vec(), vec![value]].concat()
}

/// Pools a channels-last array: computes the maximum of each window, without padding.
///
/// `x` is `[..., spatial dimensions, features]`. The window moves by `strides`; `window` and `strides` have one entry for each
/// spatial dimension. A number is the size in all dimensions but the first and the last. If elements are equal, the first one
/// gets the gradient, as in JAX. [`Pool`] has more options.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::nn::max_pool;
/// let x = array([[1.0f32, 2.0], [4.0, 3.0]]).reshape([1, 2, 2, 1]);
/// assert_eq!(max_pool(&x, [2, 2], [2, 2]).item::<f32>()?, 4.0);
/// assert_eq!(max_pool(&x, 2, 2).item::<f32>()?, 4.0);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn max_pool(x: impl ArrayLike, window: impl IntoSizes, strides: impl IntoSizes) -> Array {
    Pool::new(window).strides(strides).max(x)
}

/// Pools a channels-last array by minima; see [`max_pool`].
///
/// ```
/// # use shardax::prelude::*;
/// let x = array([[[1], [5], [2], [4]]]); // one line of four pixels with one feature
/// assert_eq!(shardax::nn::min_pool(x, [2], [2]).to_vec::<i32>()?, [1, 2]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn min_pool(x: impl ArrayLike, window: impl IntoSizes, strides: impl IntoSizes) -> Array {
    Pool::new(window).strides(strides).min(x)
}

/// Pools a channels-last array by means; see [`max_pool`].
///
/// ```
/// # use shardax::prelude::*;
/// let x = array([[[1.0f32], [5.0], [2.0], [4.0]]]);
/// assert_eq!(shardax::nn::avg_pool(x, [2], [2]).to_vec::<f32>()?, [3.0, 3.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn avg_pool(x: impl ArrayLike, window: impl IntoSizes, strides: impl IntoSizes) -> Array {
    Pool::new(window).strides(strides).avg(x)
}
