//! Padding: constants, the array's own elements, statistics and ramps.

use super::options::options;
use super::sequences::line;
use super::{convert, over, wide_padding};
use crate::choice::{Choice, IntoChoice, NamedOption};
use crate::core::array::Array;
use crate::core::program::trace::at_caller;
use crate::dtype::DType;
use crate::error::{Result, err};
use crate::ops::constants::{float, integer};
use crate::ops::lax;
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
    /// The largest element of the line, or of the [`PadOptions::stat_length`] elements next to the padding.
    Maximum,
    /// The smallest element of the line.
    Minimum,
    /// The mean of the line. Integers are rounded to the nearest, halves to even.
    Mean,
    /// The median of the line.
    Median,
    /// Arbitrary values. As in JAX, they are zeros.
    Empty,
    /// A text that names no mode. [`pad`] returns an error.
    #[doc(hidden)]
    Unknown(&'static str),
}

/// JAX's names, such as `"edge"` or `"reflect"`. The constant of `"constant"` is 0.
impl From<&'static str> for PadMode {
    fn from(name: &'static str) -> Self {
        match name {
            "constant" => PadMode::Constant(0.0),
            "edge" => PadMode::Edge,
            "reflect" => PadMode::Reflect,
            "symmetric" => PadMode::Symmetric,
            "wrap" => PadMode::Wrap,
            "linear_ramp" => PadMode::LinearRamp,
            "maximum" => PadMode::Maximum,
            "minimum" => PadMode::Minimum,
            "mean" => PadMode::Mean,
            "median" => PadMode::Median,
            "empty" => PadMode::Empty,
            _ => PadMode::Unknown(name),
        }
    }
}

/// A number is the constant.
impl From<f64> for PadMode {
    fn from(value: f64) -> Self {
        PadMode::Constant(value)
    }
}

/// A number is the constant.
impl From<i32> for PadMode {
    fn from(value: i32) -> Self {
        PadMode::Constant(value.into())
    }
}

/// The sign of mirrored elements, for [`PadMode::Reflect`] and [`PadMode::Symmetric`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReflectType {
    /// Mirrored elements keep their values.
    #[default]
    Even,
    /// The values are mirrored at the edge too: `2 * edge - x`.
    Odd,
}

/// JAX's names.
impl NamedOption for ReflectType {
    const KIND: &'static str = "reflect_type";
    const NAMES: &'static [(&'static str, Self)] = &[("even", ReflectType::Even), ("odd", ReflectType::Odd)];
}

/// Widths of padding: a number for all ends, a pair (before, after) for all dimensions, or a pair for each dimension.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a width of padding",
    label = "not a width of padding",
    note = "a number for all ends, a pair (before, after) for all dimensions, or a pair for each dimension, all of `usize`: `1`, `(1, 2)`, `((0, 0), (1, 2))`"
)]
pub trait IntoPadWidth {
    /// The pairs. A single pair applies to all dimensions.
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

macro_rules! pair {
    ($dimension:tt) => {
        (usize, usize)
    };
}

macro_rules! tuples_of_pairs {
    ($(($($t:ident $i:tt),+))*) => {$(
        impl IntoPadWidth for ($(pair!($i),)+) {
            fn into_pad_width(self) -> Vec<(usize, usize)> {
                vec![$(self.$i),+]
            }
        }
    )*};
}

crate::tuples::each!(tuples_of_pairs);

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
        /// The values of [`PadMode::Constant`], instead of the number: an array that broadcasts to a pair (before, after) for each
        /// dimension. It can be traced.
        constant_values: Option<Array> = None, |values: impl ArrayLike| Some(values.into_array());
        /// The values at the ends of [`PadMode::LinearRamp`], like `constant_values`. Default 0.
        end_values: Option<Array> = None, |values: impl ArrayLike| Some(values.into_array());
        /// The numbers of elements at both ends from which statistics are computed, in the form of widths. Default: the entire line.
        stat_length: Option<Vec<(usize, usize)>> = None, |lengths: impl IntoPadWidth| Some(lengths.into_pad_width());
        /// The sign of mirrored elements. Default [`ReflectType::Even`].
        reflect_type: Choice<ReflectType> = Choice::default(), |kind: impl IntoChoice<ReflectType>| kind.into_choice();
    }
}

/// Pads `x` with `widths[i]` elements before and after it in dimension `i`. A single pair or number applies to all
/// dimensions. A number as the mode is the constant to pad with, so `pad(&x, 1, 0)` is NumPy's `pad(x, 1)`. [`PadOptions`] has arrays of constants and more.
///
/// ```
/// # use shardax::prelude::*;
/// let x = array([1, 2, 3]);
/// assert_eq!(pad(&x, (1, 2), 0).to_vec::<i32>()?, [0, 1, 2, 3, 0, 0]);
/// assert_eq!(pad(&x, [(2, 1)], PadMode::Reflect).to_vec::<i32>()?, [3, 2, 1, 2, 3, 2]);
/// assert_eq!(pad(&x, 1, PadMode::Mean).to_vec::<i32>()?, [2, 1, 2, 3, 2]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error unless there is one pair of widths, or one per dimension. It also carries an error for
/// an empty dimension that should be extended by its own elements.
#[track_caller]
pub fn pad(x: impl ArrayLike, widths: impl IntoPadWidth, mode: impl Into<PadMode>) -> Array {
    PadOptions::new().pad(x, widths, mode)
}

impl PadOptions {
    /// See [`pad`](pad()).
    #[track_caller]
    pub fn pad(&self, x: impl ArrayLike, widths: impl IntoPadWidth, mode: impl Into<PadMode>) -> Array {
        let (x, mode) = (&x.into_array(), mode.into());
        at_caller(|| {
            // Dimensions are padded one after the other, so that corners get values from both.
            let result = x.check().and_then(|()| {
                if x.ndim() == 0 {
                    return Ok(x.clone());
                }
                let reflect_type = self.reflect_type.value("pad")?;
                let widths = pairs("widths", widths.into_pad_width(), x)?;
                let lengths = match &self.stat_length {
                    Some(lengths) => Some(pairs("lengths", lengths.clone(), x)?),
                    None => None,
                };
                match mode {
                    PadMode::Constant(value) => self.constant(x, &widths, value),
                    PadMode::Empty => self.constant(x, &widths, 0.0),
                    PadMode::Unknown(text) => Err(err!(Value, "pad got the unknown mode {text:?}").help(
                        "the modes are \"constant\", \"edge\", \"reflect\", \"symmetric\", \"wrap\", \"linear_ramp\", \"maximum\", \"minimum\", \
                         \"mean\", \"median\" and \"empty\"",
                    )),
                    _ => (0..x.ndim()).try_fold(x.clone(), |x, d| {
                        if widths[d] == (0, 0) {
                            return Ok(x);
                        }
                        let (low, high) = checked(&x, d, widths[d], mode)?;
                        match mode {
                            PadMode::Edge | PadMode::Wrap => extend_from_elements(&x, d, (low, high), mode),
                            PadMode::Reflect | PadMode::Symmetric if reflect_type == ReflectType::Even => {
                                extend_from_elements(&x, d, (low, high), mode)
                            }
                            PadMode::Reflect | PadMode::Symmetric => Ok(reflect_odd(&x, d, widths[d], mode)),
                            PadMode::LinearRamp => self.ramp(&x, d, widths[d]),
                            _ => statistic(&x, d, widths[d], lengths.as_ref().map(|l| l[d]), mode),
                        }
                    }),
                }
            });
            Array::from_result(result, x)
        })
    }

    fn constant(&self, x: &Array, widths: &[(usize, usize)], value: f64) -> Result<Array> {
        let aval = x.aval().strip_weak_type();
        let signed = widths.iter().map(|&(low, high)| [low, high].map(|n| i64::try_from(n).unwrap_or(i64::MAX)));
        let config: Vec<_> = signed.map(|[low, high]| (low, high, 0)).collect();
        let Some(values) = &self.constant_values else {
            let value = convert(&float(value, DType::F64), aval.dtype, aval.weak);
            return Ok(lax::pad(x, &value, &config));
        };
        let values = convert(values, aval.dtype, aval.weak);
        if values.size() == 1 {
            return Ok(lax::pad(x, &lax::reshape(&values, &[]), &config));
        }
        let ends = end_pairs("constant_values", &values, x)?;
        Ok((0..x.ndim()).fold(x.clone(), |x, d| {
            [(config[d].0, 0, 0), (0, config[d].1, 0)].into_iter().zip(0..).fold(x, |x, (width, end)| {
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
        let zero = integer(0, x.dtype());
        let ends = end_pairs("end_values", self.end_values.as_ref().unwrap_or(&zero), x)?;
        let n = x.shape()[dim];
        // A ramp runs from the end value to the edge, so the second one is reversed.
        let [before, after] = [(0, 0, low), (1, n - 1, high)].map(|(end, edge, width)| {
            let edge = lax::slice_in_dim(x, edge, edge + 1, dim).squeeze(dim as i32);
            line(&ends.get((dim as i32, end)), &edge, width, false, Some(x.dtype()), dim as i32)
        });
        let after = lax::rev(&after?, &[dim]);
        Ok(lax::concatenate(&[before?, super::to_strong_type(x, x.dtype()), after], dim))
    }
}

/// Returns one pair for each dimension. A single pair is repeated.
fn pairs(name: &str, pairs: Vec<(usize, usize)>, x: &Array) -> Result<Vec<(usize, usize)>> {
    match pairs.as_slice() {
        [pair] => Ok(vec![*pair; x.ndim()]),
        _ if pairs.len() == x.ndim() => Ok(pairs),
        _ => Err(err!(Value, "pad of {} needs {} pairs of {name}, got {}", x.type_name(), x.ndim(), pairs.len())
            .help("pass (before, after) for each dimension, or one pair for all dimensions")),
    }
}

/// Broadcasts values to a pair for each dimension.
fn end_pairs(name: &str, values: &Array, x: &Array) -> Result<Array> {
    values.check()?;
    let ends = values.broadcast_to([x.ndim(), 2]);
    match ends.error() {
        None => Ok(ends),
        Some(_) => Err(err!(Value, "pad of {} got {name} of shape {:?}", x.type_name(), values.shape())
            .help("pass one value, a pair (before, after), or a pair for each dimension")),
    }
}

/// Checks the widths: the dimension must not be empty, and its padded size must fit into 32 bits.
fn checked(x: &Array, dim: usize, (low, high): (usize, usize), mode: PadMode) -> Result<(i64, i64)> {
    let n = x.shape()[dim] as i64;
    if n == 0 {
        return Err(err!(Value, "pad cannot extend the empty dimension {dim} of {} with {mode:?}", x.type_name())
            .help("pad an empty array with `PadMode::Constant`"));
    }
    let [wide_low, wide_high] = [low, high].map(|width| i64::from(i32::try_from(width).unwrap_or(i32::MAX)));
    if wide_low + n + wide_high > i64::from(i32::MAX) {
        return Err(err!(Value, "pad of dimension {dim} of {} by {low} and {high} is too large", x.type_name())
            .help("a dimension may have up to 2147483647 elements"));
    }
    Ok((wide_low, wide_high))
}

/// Extends one dimension by its elements. The indices of the padded dimension are divided into runs, which are slices,
/// because slices are faster than a gather.
fn extend_from_elements(x: &Array, dim: usize, (low, high): (i64, i64), mode: PadMode) -> Result<Array> {
    let n = x.shape()[dim] as i64;
    if n == 1 {
        return Ok(lax::concatenate(&[repeated(x, dim, (low + n + high) as usize)], dim));
    }
    let place = |i: i64| match mode {
        PadMode::Edge => i.clamp(0, n - 1),
        PadMode::Wrap => i.rem_euclid(n),
        PadMode::Symmetric => {
            let i = i.rem_euclid(2 * n);
            i.min(2 * n - 1 - i)
        }
        // Reflection alternates the direction.
        _ => {
            let i = i.rem_euclid(2 * (n - 1));
            i.min(2 * (n - 1) - i)
        }
    };
    // Wide padding repeats the array more often than a program can list.
    let Some(parts) = runs((-low..n + high).map(place)) else {
        return Ok(wide_padding::repeated_elements(x, dim, -low, (low + n + high) as usize, mode));
    };
    let parts = parts.into_iter().map(|(start, step, count)| match step {
        1 => lax::slice_in_dim(x, start, start + count, dim),
        -1 => lax::rev(&lax::slice_in_dim(x, start + 1 - count, start + 1, dim), &[dim]),
        _ => repeated(&lax::slice_in_dim(x, start, start + 1, dim), dim, count),
    });
    Ok(lax::concatenate(&parts.collect::<Vec<_>>(), dim))
}

/// A dimension that consists of more runs than this is gathered element by element, so that the program stays short.
const MAX_PARTS: usize = 16;

/// Divides indices into runs that rise by one, fall by one or repeat. Each run is its first index, its step and its length. Returns
/// `None` if there are more runs than [`MAX_PARTS`].
fn runs(mut places: impl Iterator<Item = i64>) -> Option<Vec<(usize, i64, usize)>> {
    let mut runs: Vec<(usize, i64, usize)> = Vec::new();
    let Some(mut previous) = places.next() else { return Some(runs) };
    runs.push((previous as usize, 1, 1));
    for place in places {
        let step = place - previous;
        previous = place;
        if let Some((_, run_step, count)) = runs.last_mut()
            && (*count == 1 && step.abs() <= 1 || *count > 1 && *run_step == step)
        {
            (*run_step, *count) = (step, *count + 1);
            continue;
        }
        if runs.len() == MAX_PARTS {
            return None;
        }
        runs.push((place as usize, 1, 1));
    }
    Some(runs)
}

/// Extends one dimension by its odd reflection, which mirrors positions and values. A piece can't be longer than the array, so wide
/// padding is added piece by piece; each piece is mirrored at the current end.
fn reflect_odd(x: &Array, dim: usize, (low, high): (usize, usize), mode: PadMode) -> Array {
    let n = x.shape()[dim];
    // A reflection does not repeat the edge.
    let skipped = usize::from(mode == PadMode::Reflect && n > 1);
    if [low, high].iter().any(|width| width.div_ceil(n - skipped) > MAX_PARTS) {
        return reflect_odd_wide(x, dim, (low, high), mode);
    }
    let mut x = x.clone();
    for (width, before) in [(low, true), (high, false)] {
        let mut remaining = width;
        let mut edge = edge_of(&x, dim, before);
        while remaining > 0 {
            let size = x.shape()[dim];
            let width = remaining.min(n - skipped);
            remaining -= width;
            let start = if before { skipped } else { size - skipped - width };
            let mirrored = lax::rev(&lax::slice_in_dim(&x, start, start + width, dim), &[dim]);
            let part = &edge * 2 - mirrored;
            if n > 1 {
                edge = edge_of(&part, dim, before);
            }
            x = lax::concatenate(&if before { [part, x] } else { [x, part] }, dim);
        }
    }
    x
}

/// Like [`reflect_odd`], for padding of so many pieces that a program should not list them.
fn reflect_odd_wide(x: &Array, dim: usize, (low, high): (usize, usize), mode: PadMode) -> Array {
    let n = x.shape()[dim];
    let [before, after] = [(-(low as i64), low), (n as i64, high)].map(|(first, width)| match n {
        1 => repeated(&(x * 2 - x), dim, width),
        _ => wide_padding::odd_reflections(x, dim, first, width, mode),
    });
    lax::concatenate(&[before, x.clone(), after], dim)
}

/// Returns an array of one element along `dim`, repeated `count` times along it.
fn repeated(x: &Array, dim: usize, count: usize) -> Array {
    let mut shape = x.shape_owned();
    shape[dim] = count;
    x.broadcast_to(&shape)
}

/// The first or the last element of each line.
fn edge_of(x: &Array, dim: usize, is_first: bool) -> Array {
    let index = if is_first { 0 } else { x.shape()[dim] - 1 };
    lax::slice_in_dim(x, index, index + 1, dim)
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
    let (before_length, after_length) = lengths.unwrap_or((n, n));
    if before_length == 0 || after_length == 0 {
        return Err(
            err!(Value, "stat_length of 0 yields no value for padding").help("pass a `stat_length` of at least 1")
        );
    }
    let before = repeated_statistic(&lax::slice_in_dim(x, 0, before_length.min(n), dim), dim, low, mode)?;
    let after = repeated_statistic(&lax::slice_in_dim(x, n - after_length.min(n), n, dim), dim, high, mode)?;
    Ok(lax::concatenate(&[before, super::to_strong_type(x, x.dtype()), after], dim))
}

/// Returns the statistic of `part` along `dim`, repeated `width` times.
fn repeated_statistic(part: &Array, dim: usize, width: usize, mode: PadMode) -> Result<Array> {
    let axis = dim as i32;
    let value = match mode {
        PadMode::Maximum => part.max(over(axis).keepdims(true)),
        PadMode::Minimum => part.min(over(axis).keepdims(true)),
        PadMode::Mean => part.mean(over(axis).keepdims(true)),
        _ => super::median(part, axis).expand_dims(axis),
    };
    // A median or mean of integers is rounded, as in NumPy.
    let value = if part.dtype().is_integer() { super::round(&value) } else { value };
    value.check()?;
    let mut shape = part.shape_owned();
    shape[dim] = width;
    Ok(value.astype(part.dtype()).broadcast_to(&shape))
}
