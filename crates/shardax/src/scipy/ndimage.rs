//! Interpolation of images, as in
//! [`jax.scipy.ndimage`](https://docs.jax.dev/en/latest/jax.scipy.html#module-jax.scipy.ndimage).

use crate::choice::{IntoChoice, NamedOption};
use crate::core::array::Array;
use crate::core::program::trace::or_failed;
use crate::dtype::DType;
use crate::error::{Result, err};
use crate::ops::lax;
use crate::ops::numpy::{floor_divide, promote_dtypes, remainder, to_inexact, where_, zeros_dtype};
use crate::ops::operators::{ArrayLike, IntoArrays};

/// The values outside of an image in [`map_coordinates`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Boundary {
    /// This number: SciPy's `mode="constant"` with `cval`.
    Constant(f64),
    /// The nearest pixel.
    Nearest,
    /// Reflections about the centers of the last pixels.
    Mirror,
    /// Reflections about the edges.
    Reflect,
    /// Repetitions.
    Wrap,
}

/// JAX's names.
impl NamedOption for Boundary {
    const KIND: &'static str = "mode";
    const NAMES: &'static [(&'static str, Self)] = &[
        ("constant", Boundary::Constant(0.0)),
        ("nearest", Boundary::Nearest),
        ("mirror", Boundary::Mirror),
        ("reflect", Boundary::Reflect),
        ("wrap", Boundary::Wrap),
    ];
}

impl Default for Boundary {
    fn default() -> Self {
        Boundary::Constant(0.0)
    }
}

/// Maps indices outside of a dimension of `n` elements to the elements that `mode` continues the image with.
fn inside(index: &Array, n: i64, mode: Boundary) -> Array {
    match mode {
        Boundary::Constant(_) | Boundary::Nearest => index.maximum(0).minimum((n - 1).max(0)),
        Boundary::Wrap => remainder(index, n.max(1)),
        Boundary::Mirror => mirror(index.clone(), n),
        Boundary::Reflect => floor_divide(mirror(index * 2 + 1, 2 * n + 1) - 1, 2),
    }
}

/// Reflects indices about the first and the last of `n` elements.
fn mirror(index: Array, n: i64) -> Array {
    match n {
        0 | 1 => index * 0,
        _ => (remainder(index + (n - 1), 2 * (n - 1)) - (n - 1)).abs(),
    }
}

/// Samples an image at coordinates: the nearest pixel (`order` 0) or linear interpolation (`order` 1). `coordinates`
/// has one array for each dimension of the image; all have the same shape.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::scipy::ndimage::{Boundary, map_coordinates};
/// let image = array([[0.0f32, 1.0], [2.0, 3.0]]);
/// let y = map_coordinates(&image, [array([0.5f32]), array([0.5f32])], 1, Boundary::default());
/// assert_eq!(y.to_vec::<f32>()?, [1.5]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for other orders, for more or fewer arrays of coordinates than dimensions, and for empty
/// images.
#[track_caller]
pub fn map_coordinates<Form>(
    input: impl ArrayLike,
    coordinates: impl IntoArrays<Form>,
    order: usize,
    mode: impl IntoChoice<Boundary>,
) -> Array {
    let (input, coordinates, mode) = (input.into_array(), coordinates.into_arrays(), mode.into_choice());
    or_failed(&input, || interpolate(&input, &coordinates, order, mode.value("map_coordinates")?))
}

/// Rounds halves away from zero, like SciPy.
fn round_away(x: &Array) -> Array {
    if x.dtype().is_complex() || !x.dtype().is_float() { x.clone() } else { x.sign() * (x.abs() + 0.5).floor() }
}

/// Combines two optional arrays; a missing array leaves the other unchanged.
fn join(total: Option<Array>, x: &Option<Array>, f: fn(Array, &Array) -> Array) -> Option<Array> {
    match (total, x) {
        (Some(total), Some(x)) => Some(f(total, x)),
        (total, x) => total.or_else(|| x.clone()),
    }
}

/// A pixel next to a coordinate: its index, whether it exists, and its weight.
type Neighbour = (Array, Option<Array>, Option<Array>);

/// Returns the pixels next to the coordinates along one dimension of `n` pixels.
fn neighbours(x: &Array, n: i64, order: usize, mode: Boundary, dtype: DType) -> Vec<Neighbour> {
    let indices = match order {
        0 => vec![(round_away(x).astype(dtype), None)],
        _ => {
            let below = x.floor();
            let weight = x - &below;
            let index = below.astype(dtype);
            vec![(index.clone(), Some(1 - &weight)), (index + 1, Some(weight))]
        }
    };
    let neighbours = indices.into_iter().map(|(index, weight)| {
        let exists = matches!(mode, Boundary::Constant(_)).then(|| index.greater_equal(0) & index.less(n));
        (inside(&index, n, mode), exists, weight)
    });
    neighbours.collect()
}

fn interpolate(input: &Array, coordinates: &[Array], order: usize, mode: Boundary) -> Result<Array> {
    input.check()?;
    if coordinates.len() != input.ndim() {
        return Err(err!(
            Value,
            "coordinates must be a sequence of length input.ndim, but {} != {}",
            coordinates.len(),
            input.ndim()
        )
        .help("pass one array of coordinates for each dimension of the image"));
    }
    if order > 1 {
        return Err(err!(NotImplemented, "map_coordinates currently requires order<=1, got {order}")
            .help("use order 0 for the nearest pixel or 1 for linear interpolation"));
    }
    if input.size() == 0 {
        return Err(err!(Value, "map_coordinates of an empty image, {}", input.type_name())
            .help("pass an image with at least one pixel"));
    }
    let coordinates = promote_dtypes(&coordinates.iter().collect::<Vec<_>>(), to_inexact)?;
    // The positions of pixels in the flattened image can exceed int32, even if no index of a dimension does.
    let dtype = DType::for_indices(&[input.size()]);
    let sides = coordinates.iter().zip(input.shape()).map(|(x, &n)| neighbours(x, n as i64, order, mode, dtype));
    let sides: Vec<Vec<Neighbour>> = sides.collect();
    let pixels = input.ravel();
    let mut sum: Option<Array> = None;
    for corner in 0..sides.iter().map(Vec::len).product::<usize>() {
        // The digits of `corner`, in the base of each dimension's number of sides, select the side of each dimension.
        let (mut digits, mut place, mut valid, mut weight) =
            (corner, zeros_dtype((), dtype), None::<Array>, None::<Array>);
        for (side, &n) in sides.iter().zip(input.shape()) {
            let (index, exists, share) = &side[digits % side.len()];
            digits /= side.len();
            place = place * n as i64 + index;
            valid = join(valid, exists, |a, b| a & b);
            weight = join(weight, share, |a, b| a * b);
        }
        let values = pixels.take(place.astype(dtype), 0);
        let values = match (mode, valid) {
            (Boundary::Constant(outside), Some(valid)) => {
                where_(valid, values, Array::from(outside).astype(input.dtype()))
            }
            _ => values,
        };
        let part = match weight {
            Some(weight) => values * weight,
            None => values,
        };
        sum = Some(sum.map_or(part.clone(), |sum| sum + part));
    }
    let sum = sum.unwrap_or_else(|| input.clone());
    let is_integer = !input.dtype().is_float() && !input.dtype().is_complex();
    let sum = if is_integer { round_away(&sum) } else { sum };
    Ok(lax::convert_element_type(sum, input.dtype()))
}
