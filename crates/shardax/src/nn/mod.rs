//! Neural network functions: activations, pooling, initializers. Layers, losses and optimizers are in the crate
//! `shardax-nn`.

mod activation;
#[doc(hidden)]
pub mod attention;
pub mod initializers;
mod pool;
mod scaled;

pub use activation::*;
// JAX also has them in `jax.nn`.
pub use crate::ops::numpy::{LogsumexpOptions, logsumexp, tanh};
pub use pool::{Pool, avg_pool, max_pool, min_pool};
pub use scaled::{BlockScaleConfig, scaled_dot_general, scaled_matmul};

use crate::core::array::Array;
use crate::ops::lax::{ConvOptions, Padding, conv_general_dilated};
use crate::ops::operators::ArrayLike;
use crate::shape::IntoSizes;

/// Computes a convolution of channels-last inputs (`NHWC`, in any rank) with `HWIO` kernels; the result is
/// channels-last too.
///
/// `strides` must have one entry for each spatial dimension. For other layouts, groups and dilations use
/// [`lax::conv_general_dilated`](conv_general_dilated) instead.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::{lax::Padding, nn::conv};
/// let images = ones([8, 32, 32, 3]);
/// let y = conv(&images, ones([3, 3, 3, 16]), [2, 2], Padding::Same);
/// assert_eq!(y.shape(), [8, 16, 16, 16]);
/// y.block_until_ready()?;
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn conv(x: impl ArrayLike, kernel: impl ArrayLike, strides: impl IntoSizes, padding: impl Into<Padding>) -> Array {
    let (x, kernel) = (x.into_array(), kernel.into_array());
    let options = ConvOptions::new().channels_last(kernel.ndim().saturating_sub(2));
    conv_general_dilated(x, kernel, strides, padding, options)
}
