//! Patches: the elements under a moving window.

use super::conv::{ConvOptions, Padding, conv_general_dilated};
use crate::core::array::Array;
use crate::core::program::trace::or_failed;
use crate::dtype::DType;
use crate::error::err;
use crate::ops::constants::eye_offset_dtype;
use crate::ops::lax::{self, Precision};
use crate::ops::operators::ArrayLike;
use crate::ops::promotion::convert;
use crate::shape::IntoSizes;

/// Extracts the elements under a window of this shape at each position, as features. `NCHW` inputs with `C` features
/// result in `C · product of filter_shape` features, grouped by input feature. The options are
/// [`conv_general_dilated`](super::conv_general_dilated())'s, except groups.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::lax::{self, ConvOptions, Padding};
/// let x = arange(0.0f32..9.0).reshape([1, 1, 3, 3]);
/// let y = lax::conv_general_dilated_patches(&x, [2, 2], [1, 1], Padding::Valid, ConvOptions::new());
/// assert_eq!(y.shape(), [1, 4, 2, 2]);
/// assert_eq!(y.get((0, .., 0, 0)).to_vec::<f32>()?, [0.0, 1.0, 3.0, 4.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error unless the window has one size for each spatial dimension.
#[track_caller]
pub fn conv_general_dilated_patches(
    lhs: impl ArrayLike,
    filter_shape: impl IntoSizes,
    window_strides: impl IntoSizes,
    padding: impl Into<Padding>,
    options: ConvOptions,
) -> Array {
    let (lhs, filter) = (lhs.into_array(), &filter_shape.into_sizes());
    or_failed(&lhs, || {
        lhs.check()?;
        if lhs.ndim() != filter.len() + 2 {
            return Err(err!(
                Value,
                "conv_general_dilated_patches got a window {filter:?} that does not fit the rank of {}",
                lhs.type_name()
            )
            .help("the input must have a batch and a feature dimension in addition to the dimensions of the window"));
        }
        let [lhs_spec, rhs_spec, _] = options.specs(lhs.ndim())?;
        let channels = lhs.shape()[lhs_spec[1]];
        let elements = filter.iter().try_fold(1usize, |n, &k| n.checked_mul(k)).filter(|&n| n <= MAX_ELEMENTS);
        let Some(elements) = elements else {
            return Err(err!(Value, "conv_general_dilated_patches: a window {filter:?} has too many elements")
                .help(format!("a window may have up to {MAX_ELEMENTS} elements")));
        };
        // A convolution with one kernel per window element, which selects this element. Every input feature uses the same kernels.
        let selectors = convert(&eye_offset_dtype(elements, elements, 0, DType::F32), lhs.dtype(), false);
        let selectors = selectors.expand_dims(0).broadcast_to([channels, elements, elements]);
        let kernel = lax::reshape(&selectors, &[&[channels * elements, 1], filter.as_slice()].concat());
        let places: Vec<i32> = rhs_spec.iter().map(|&d| d as i32).collect();
        let mut order = vec![0; places.len()];
        places.iter().enumerate().for_each(|(i, &d)| order[d as usize] = i);
        let kernel = lax::transpose(&kernel, &order);
        let options = options.clone().feature_group_count(channels).precise(Precision::Highest);
        Ok(conv_general_dilated(&lhs, kernel, &window_strides.into_sizes(), padding, options))
    })
}

/// Convolves with a different kernel at each position, which is called a locally connected layer. The options are
/// [`conv_general_dilated`](super::conv_general_dilated())'s, except groups.
///
/// The spatial dimensions of `rhs` are the positions of the result, and its input features are the elements under the
/// window: for `NCHW` inputs with `C` features, `rhs` is `[O, C · product of filter_shape, H of the result, W of the result]`.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::lax::{self, ConvOptions, Padding};
/// let x = array([1.0f32, 2.0, 3.0]).reshape([1, 1, 3]);
/// let kernels = array([[1.0f32, 10.0], [1.0, 100.0]]).reshape([1, 2, 2]); // one column for each of the two positions
/// let y = lax::conv_general_dilated_local(&x, &kernels, [1], Padding::Valid, [2], ConvOptions::new());
/// assert_eq!(y.to_vec::<f32>()?, [3.0, 320.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for shapes that do not fit.
#[track_caller]
pub fn conv_general_dilated_local(
    lhs: impl ArrayLike,
    rhs: impl ArrayLike,
    window_strides: impl IntoSizes,
    padding: impl Into<Padding>,
    filter_shape: impl IntoSizes,
    options: ConvOptions,
) -> Array {
    let (lhs, rhs) = (lhs.into_array(), rhs.into_array());
    or_failed(&lhs, || {
        let patches = conv_general_dilated_patches(&lhs, filter_shape, window_strides, padding, options.clone());
        patches.check()?;
        rhs.check()?;
        let [_, rhs_spec, out_spec] = options.specs(patches.ndim())?;
        let fits = rhs.ndim() == patches.ndim()
            && (1..patches.ndim()).all(|d| rhs.shape()[rhs_spec[d]] == patches.shape()[out_spec[d]]);
        if !fits {
            return Err(err!(
                Value,
                "conv_general_dilated_local got kernels {} for windows {}",
                rhs.type_name(),
                patches.type_name()
            )
            .help(
                "the kernels need as many input features as a window has elements, and the positions of the result",
            ));
        }
        let [positions, positions_of_rhs] = [&out_spec[2..], &rhs_spec[2..]];
        let product = options.dot_options().dot_general(
            &patches,
            &rhs,
            (&[out_spec[1]], &[rhs_spec[1]]),
            (positions, positions_of_rhs),
        );
        // The product has the positions first, then batch and features.
        let mut order = vec![0; patches.ndim()];
        positions.iter().enumerate().for_each(|(i, &d)| order[d] = i);
        order[out_spec[0]] = patches.ndim() - 2;
        order[out_spec[1]] = patches.ndim() - 1;
        Ok(lax::transpose(&product, &order))
    })
}

/// The largest number of window elements. It is limited because each element is a kernel of that many elements.
const MAX_ELEMENTS: usize = 1 << 15;
