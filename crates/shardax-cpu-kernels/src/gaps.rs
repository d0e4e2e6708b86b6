//! Images with zeros between their elements.
//!
//! Convolutions leave these zeros out of sums ([`phases`](crate::phases)). A filter with infinities or NaN needs them, because their
//! products with 0 are NaN, as in XLA.

use crate::{Result, SPATIAL, ShapeError, View};

/// Returns `true` if products with the zeros between the elements of an image change a convolution with this filter.
pub(crate) fn are_needed(base: [usize; SPATIAL], filter: &[f32]) -> bool {
    base != [1; SPATIAL] && !filter.iter().all(|element| element.is_finite())
}

/// Returns an image with `base - 1` zeros between neighbouring elements, and its shape. Its spatial dimensions begin at dimension
/// `first_spatial`.
///
/// # Errors
/// Returns an error if `x` has fewer dimensions, if a base dilation is 0, or if memory does not hold the image.
pub(crate) fn with_gaps(
    x: View<'_, f32>,
    first_spatial: usize,
    base: [usize; SPATIAL],
) -> Result<(Vec<usize>, Vec<f32>)> {
    let mut shape = x.shape().to_vec();
    let fits = first_spatial.checked_add(SPATIAL).is_some_and(|end| end <= shape.len());
    if !fits || base.contains(&0) {
        return Err(ShapeError(format!("the base dilation {base:?} of an image of the dimensions {shape:?}")));
    }
    for (size, base) in shape[first_spatial..].iter_mut().zip(base) {
        *size = size.saturating_sub(1).saturating_mul(base).saturating_add((*size).min(1));
    }
    let count = shape.iter().fold(1usize, |count, size| count.saturating_mul(*size));
    let mut spread = Vec::new();
    if count > isize::MAX as usize / size_of::<f32>() || spread.try_reserve_exact(count).is_err() {
        return Err(ShapeError(format!("memory does not hold an image of the dimensions {shape:?}")));
    }
    spread.resize(count, 0.0);
    let mut steps = vec![1; shape.len()];
    steps[first_spatial..first_spatial + SPATIAL].copy_from_slice(&base);
    scatter(x.shape(), x.data(), &steps, &shape, &mut spread);
    Ok((shape, spread))
}

/// Writes the elements of `x` into `spread`, at a distance of `steps` along each dimension.
fn scatter(x_shape: &[usize], x: &[f32], steps: &[usize], shape: &[usize], spread: &mut [f32]) {
    let (Some((&size, x_shape)), Some((&step, steps)), Some((_, shape))) =
        (x_shape.split_first(), steps.split_first(), shape.split_first())
    else {
        return spread.copy_from_slice(x);
    };
    let (x_stride, stride) = (x_shape.iter().product::<usize>(), shape.iter().product::<usize>());
    if x.is_empty() {
        return;
    }
    for i in 0..size {
        scatter(x_shape, &x[i * x_stride..][..x_stride], steps, shape, &mut spread[i * step * stride..][..stride]);
    }
}
