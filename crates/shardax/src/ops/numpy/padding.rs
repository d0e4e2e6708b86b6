//! Padding: constants, the array's own elements, statistics and ramps.

use super::options::options;
use super::sequences::line;
use super::{convert, over};
use crate::core::array::Array;
use crate::core::program::trace::at_caller;
use crate::dtype::{DType, Scalar};
use crate::error::{Result, err};
use crate::ops::lax::{self, GatherScatterMode};
use crate::ops::operators::ArrayLike;

/// The padding mode of [`pad`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum PadMode {
    /// A constant, converted to the array's dtype; [`PadOptions::constant_values`] has arrays of them.
    Constant(f64),
    /// The element at the edge.
    Edge,
    /// The elements mirrored at the edge, without repeating the edge.
    Reflect,
    /// The elements mirrored at the edge, which is repeated.
    Symmetric,
    /// The elements from the other end.
    Wrap,
    /// A linear ramp from the edge to [`PadOptions::end_values`].
    LinearRamp,
    /// The largest element of the line, or of [`PadOptions::stat_length`] elements at its end.
    Maximum,
    /// The smallest element of the line.
    Minimum,
    /// The mean of the line; for integers rounded to the nearest, halves to even.
    Mean,
    /// The median of the line.
    Median,
    /// Values that do not matter: zeros, as in JAX.
    Empty,
}

/// The sign of mirrored elements, for [`PadMode::Reflect`] and [`PadMode::Symmetric`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReflectType {
    /// The elements themselves.
    #[default]
    Even,
    /// Mirrored in value too: `2 * edge - x`.
    Odd,
}

/// Widths of padding: a number for all ends, a pair (before, after) for all dimensions, or a pair for each dimension.
pub trait IntoPadWidth {
    /// The pairs; one stands for all dimensions.
    fn into_pad_width(self) -> Vec<(usize, usize)>;
}

impl IntoPadWidth for usize {
    fn into_pad_width(self) -> Vec<(usize, usize)> {
        vec![(self, self)]
    }
}

impl IntoPadWidth for (usize, usize) {
    fn into_pad_width(self) -> Vec<(usize, usize)> {
        vec![self]
    }
}

impl IntoPadWidth for Vec<(usize, usize)> {
    fn into_pad_width(self) -> Vec<(usize, usize)> {
        self
    }
}

impl IntoPadWidth for &Vec<(usize, usize)> {
    fn into_pad_width(self) -> Vec<(usize, usize)> {
        self.clone()
    }
}

impl IntoPadWidth for &[(usize, usize)] {
    fn into_pad_width(self) -> Vec<(usize, usize)> {
        self.to_vec()
    }
}

impl<const N: usize> IntoPadWidth for [(usize, usize); N] {
    fn into_pad_width(self) -> Vec<(usize, usize)> {
        self.to_vec()
    }
}

impl<const N: usize> IntoPadWidth for &[(usize, usize); N] {
    fn into_pad_width(self) -> Vec<(usize, usize)> {
        self.to_vec()
    }
}

options! {
    /// Options of [`pad`](pad()).
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// # use shardax::numpy::PadOptions;
    /// let ramp = PadOptions::new().end_values(10).pad(&array([1, 2]), 2, PadMode::LinearRamp);
    /// assert_eq!(ramp.to_vec::<i32>()?, [10, 5, 1, 2, 6, 10]);
    /// let ends = PadOptions::new().constant_values(array([7, 8]));
    /// assert_eq!(ends.pad(&array([1]), 1, PadMode::Constant(0.0)).to_vec::<i32>()?, [7, 1, 8]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    PadOptions {
        /// The values of [`PadMode::Constant`] in place of its number: an array that broadcasts to a pair (before, after)
        /// for each dimension. It may be traced.
        constant_values: Option<Array> = None, |values: impl ArrayLike| Some(values.into_array());
        /// The values at the ends of [`PadMode::LinearRamp`], like `constant_values`. Default 0.
        end_values: Option<Array> = None, |values: impl ArrayLike| Some(values.into_array());
        /// The numbers of elements at both ends that statistics are of, like widths. Default: the whole line.
        stat_length: Option<Vec<(usize, usize)>> = None, |lengths: impl IntoPadWidth| Some(lengths.into_pad_width());
        /// The sign of mirrored elements. Default [`ReflectType::Even`].
        reflect_type: ReflectType = ReflectType::Even, |reflect_type: ReflectType| reflect_type;
    }
}

/// Pads `x` with `widths[i]` elements before and after it in dimension `i`; one pair, or one number, is for all
/// dimensions. [`PadOptions`] has arrays of constants and more.
///
/// Fails unless there is one pair of widths, or one per dimension, and if an empty dimension is to be extended by its
/// own elements.
///
/// ```
/// # use shardax::prelude::*;
/// let x = array([1, 2, 3]);
/// assert_eq!(pad(&x, (1, 2), PadMode::Constant(0.0)).to_vec::<i32>()?, [0, 1, 2, 3, 0, 0]);
/// assert_eq!(pad(&x, [(2, 1)], PadMode::Reflect).to_vec::<i32>()?, [3, 2, 1, 2, 3, 2]);
/// assert_eq!(pad(&x, 1, PadMode::Mean).to_vec::<i32>()?, [2, 1, 2, 3, 2]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn pad(x: impl ArrayLike, widths: impl IntoPadWidth, mode: PadMode) -> Array {
    PadOptions::new().pad(x, widths, mode)
}

impl PadOptions {
    /// See [`pad`](pad()).
    #[track_caller]
    pub fn pad(&self, x: impl ArrayLike, widths: impl IntoPadWidth, mode: PadMode) -> Array {
        let x = &x.into_array();
        at_caller(|| {
            let made = x.check().and_then(|()| {
                if x.ndim() == 0 {
                    return Ok(x.clone());
                }
                let widths = pairs("widths", widths.into_pad_width(), x)?;
                let lengths = match &self.stat_length {
                    Some(lengths) => Some(pairs("lengths", lengths.clone(), x)?),
                    None => None,
                };
                match mode {
                    PadMode::Constant(value) => self.constant(x, &widths, value),
                    PadMode::Empty => self.constant(x, &widths, 0.0),
                    _ => (0..x.ndim()).try_fold(x.clone(), |x, d| {
                        if widths[d] == (0, 0) {
                            return Ok(x);
                        }
                        let (low, high) = checked(&x, d, widths[d], mode)?;
                        match mode {
                            PadMode::Edge | PadMode::Wrap => taken(&x, d, (low, high), mode),
                            PadMode::Reflect | PadMode::Symmetric if self.reflect_type == ReflectType::Even => {
                                taken(&x, d, (low, high), mode)
                            }
                            PadMode::Reflect | PadMode::Symmetric => Ok(odd(&x, d, widths[d], mode)),
                            PadMode::LinearRamp => self.ramp(&x, d, widths[d]),
                            _ => statistic(&x, d, widths[d], lengths.as_ref().map(|l| l[d]), mode),
                        }
                    }),
                }
            });
            Array::from_result(made, x)
        })
    }

    fn constant(&self, x: &Array, widths: &[(usize, usize)], value: f64) -> Result<Array> {
        let of = x.aval().strip_weak_type();
        let signed = |width: usize| i64::try_from(width).unwrap_or(i64::MAX);
        let all: Vec<_> = widths.iter().map(|&(low, high)| (signed(low), signed(high), 0)).collect();
        let Some(values) = &self.constant_values else {
            let value = convert(&Array::literal(Scalar::float(value), DType::F64, false), of.dtype, of.weak);
            return Ok(lax::pad(x, &value, &all));
        };
        let values = convert(values, of.dtype, of.weak);
        if values.size() == 1 {
            return Ok(lax::pad(x, &lax::reshape(&values, &[]), &all));
        }
        let ends = end_pairs("constant_values", &values, x)?;
        Ok((0..x.ndim()).fold(x.clone(), |x, d| {
            [(all[d].0, 0, 0), (0, all[d].1, 0)].into_iter().zip(0..).fold(x, |x, (width, end)| {
                let mut config = vec![(0, 0, 0); x.ndim()];
                config[d] = width;
                match width {
                    (0, 0, 0) => x,
                    _ => lax::pad(&x, &ends.get((d as i32, end)), &config),
                }
            })
        }))
    }

    fn ramp(&self, x: &Array, dim: usize, (low, high): (usize, usize)) -> Result<Array> {
        let zero = Array::literal(Scalar::Int(0), x.dtype(), false);
        let ends = end_pairs("end_values", self.end_values.as_ref().unwrap_or(&zero), x)?;
        let n = x.shape()[dim];
        let of = |end: i32, edge: usize, width: usize| -> Result<Array> {
            let edge = lax::slice_in_dim(x, edge, edge + 1, dim).squeeze(dim as i32);
            line(&ends.get((dim as i32, end)), &edge, width, false, Some(x.dtype()), dim as i32)
        };
        let (before, after) = (of(0, 0, low)?, lax::rev(&of(1, n - 1, high)?, &[dim]));
        Ok(lax::concatenate(&[before, super::to_strong_type(x, x.dtype()), after], dim))
    }
}

/// A pair for each dimension.
fn pairs(name: &str, given: Vec<(usize, usize)>, x: &Array) -> Result<Vec<(usize, usize)>> {
    match given.as_slice() {
        [one] => Ok(vec![*one; x.ndim()]),
        all if all.len() == x.ndim() => Ok(given),
        all => Err(err!(Value, "pad of {} needs {} pairs of {name}, got {}", x.type_name(), x.ndim(), all.len())
            .help("give (before, after) for each dimension, or one pair for all")),
    }
}

/// Values broadcast to a pair for each dimension.
fn end_pairs(name: &str, values: &Array, x: &Array) -> Result<Array> {
    values.check()?;
    let ends = values.broadcast_to([x.ndim(), 2]);
    match ends.error() {
        None => Ok(ends),
        Some(_) => Err(err!(Value, "pad of {} got {name} of shape {:?}", x.type_name(), values.shape())
            .help("give one value, a pair (before, after), or a pair for each dimension")),
    }
}

/// The widths, of a dimension that has elements and stays within 32 bits.
fn checked(x: &Array, dim: usize, (low, high): (usize, usize), mode: PadMode) -> Result<(i64, i64)> {
    let n = x.shape()[dim] as i64;
    if n == 0 {
        return Err(err!(Value, "pad cannot extend the empty dimension {dim} of {} with {mode:?}", x.type_name())
            .help("pad an empty array with `PadMode::Constant`"));
    }
    let wide = |width: usize| i64::from(i32::try_from(width).unwrap_or(i32::MAX));
    if wide(low) + n + wide(high) > i64::from(i32::MAX) {
        return Err(err!(Value, "pad of dimension {dim} of {} by {low} and {high} is too large", x.type_name())
            .help("a dimension may have up to 2147483647 elements"));
    }
    Ok((wide(low), wide(high)))
}

/// Extends one dimension by its own elements.
fn taken(x: &Array, dim: usize, (low, high): (i64, i64), mode: PadMode) -> Result<Array> {
    let n = x.shape()[dim] as i64;
    let places: Vec<i64> = (-low..n + high)
        .map(|i| match mode {
            PadMode::Edge => i.clamp(0, n - 1),
            PadMode::Wrap => i.rem_euclid(n),
            PadMode::Symmetric => {
                let i = i.rem_euclid(2 * n);
                i.min(2 * n - 1 - i)
            }
            _ if n == 1 => 0,
            // Reflection alternates the direction.
            _ => {
                let i = i.rem_euclid(2 * (n - 1));
                i.min(2 * (n - 1) - i)
            }
        })
        .collect();
    let parts = runs(&places);
    if parts.len() > MAX_PARTS {
        let places: Vec<i32> = places.iter().map(|&i| i as i32).collect();
        let places = Array::from_slice(&places, &[places.len()])?;
        return Ok(x.take_mode(places, dim as i32, GatherScatterMode::PromiseInBounds));
    }
    let part = |(start, step, count): (usize, i64, usize)| match step {
        1 => lax::slice_in_dim(x, start, start + count, dim),
        -1 => lax::rev(&lax::slice_in_dim(x, start + 1 - count, start + 1, dim), &[dim]),
        _ => {
            let mut shape = x.shape_owned();
            shape[dim] = count;
            lax::slice_in_dim(x, start, start + 1, dim).broadcast_to(&shape)
        }
    };
    Ok(lax::concatenate(&parts.into_iter().map(part).collect::<Vec<_>>(), dim))
}

/// Dimensions extended by more parts than this are gathered element by element.
const MAX_PARTS: usize = 16;

/// The runs of places that rise by one, fall by one or repeat: the first place, the step and the length of each.
fn runs(places: &[i64]) -> Vec<(usize, i64, usize)> {
    let mut runs: Vec<(usize, i64, usize)> = Vec::new();
    let mut rest = places;
    while let [first, ..] = rest {
        let step = rest.get(1).map(|next| next - first).filter(|step| step.abs() <= 1).unwrap_or(1);
        let count = 1 + rest.windows(2).take_while(|pair| pair[1] - pair[0] == step).count();
        runs.push((*first as usize, step, count));
        rest = &rest[count..];
    }
    runs
}

/// Extends one dimension by its mirror image in value and place, piece by piece: each is mirrored at the end reached.
fn odd(x: &Array, dim: usize, (low, high): (usize, usize), mode: PadMode) -> Array {
    let n = x.shape()[dim];
    let skipped = usize::from(mode == PadMode::Reflect && n > 1);
    let extend = |x: Array, width: usize, before: bool| {
        let (mut x, mut left) = (x, width);
        let end = |x: &Array| {
            let at = if before { 0 } else { x.shape()[dim] - 1 };
            lax::slice_in_dim(x, at, at + 1, dim)
        };
        let mut edge = end(&x);
        while left > 0 {
            let size = x.shape()[dim];
            let width = left.min(n - skipped);
            left -= width;
            let start = if before { skipped } else { size - skipped - width };
            let mirrored = lax::rev(&lax::slice_in_dim(&x, start, start + width, dim), &[dim]);
            let part = &edge * 2 - mirrored;
            if n > 1 {
                edge = end(&part);
            }
            x = lax::concatenate(&if before { [part, x] } else { [x, part] }, dim);
        }
        x
    };
    extend(extend(x.clone(), low, true), high, false)
}

/// Extends one dimension by a statistic of each line.
fn statistic(
    x: &Array,
    dim: usize,
    (low, high): (usize, usize),
    lengths: Option<(usize, usize)>,
    mode: PadMode,
) -> Result<Array> {
    let n = x.shape()[dim];
    let (first, last) = lengths.unwrap_or((n, n));
    if first == 0 || last == 0 {
        return Err(
            err!(Value, "stat_length of 0 yields no value for padding").help("pass a `stat_length` of at least 1")
        );
    }
    let of = |part: Array, width: usize| -> Result<Array> {
        let axis = dim as i32;
        let value = match mode {
            PadMode::Maximum => part.max(over(axis).keepdims(true)),
            PadMode::Minimum => part.min(over(axis).keepdims(true)),
            PadMode::Mean => part.mean(over(axis).keepdims(true)),
            _ => super::median(&part, axis).expand_dims(axis),
        };
        let value = if x.dtype().is_integer() { super::round(&value) } else { value };
        value.check()?;
        let mut shape = x.shape_owned();
        shape[dim] = width;
        Ok(value.astype(x.dtype()).broadcast_to(&shape))
    };
    let before = of(lax::slice_in_dim(x, 0, first.min(n), dim), low)?;
    let after = of(lax::slice_in_dim(x, n - last.min(n), n, dim), high)?;
    Ok(lax::concatenate(&[before, super::to_strong_type(x, x.dtype()), after], dim))
}
