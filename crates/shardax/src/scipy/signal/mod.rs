//! Convolution, correlation, trends and spectra of signals, as in
//! [`jax.scipy.signal`](https://docs.jax.dev/en/latest/jax.scipy.html#module-jax.scipy.signal).
//!
//! ```
//! # use shardax::prelude::*;
//! use shardax::scipy::signal::{ConvolveMode, convolve};
//! let y = convolve(array([1.0f32, 2.0, 3.0]), array([1.0f32, 1.0]), ConvolveMode::Full);
//! assert_eq!(y.to_vec::<f32>()?, [1.0, 3.0, 5.0, 3.0]);
//! # Ok::<(), shardax::Error>(())
//! ```

mod spectral;

pub use spectral::*;

use crate::choice::{Choice, IntoChoice, NamedOption};
use crate::core::array::Array;
use crate::core::program::trace::or_failed;
use crate::error::{Result, err};
use crate::fft::FftOptions;
use crate::ops::lax::{self, ConvOptions, Padding};
use crate::ops::numpy::{IntoAxes, conj, normalize_axes, over, promote_dtypes, to_inexact};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::composite::composite1;
use crate::precision::Precision;
use crate::shape::{AxisNumber, normalize_axis};

/// The part of a convolution that is returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ConvolveMode {
    /// The full convolution: `n + m - 1` elements along each axis.
    #[default]
    Full,
    /// As many elements as the first operand has, from the center.
    Same,
    /// The elements that do not depend on padding.
    Valid,
}

/// JAX's names.
impl NamedOption for ConvolveMode {
    const KIND: &'static str = "mode";
    const NAMES: &'static [(&'static str, Self)] =
        &[("full", ConvolveMode::Full), ("same", ConvolveMode::Same), ("valid", ConvolveMode::Valid)];
}

macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident $two:literal $correlates:literal;)*) => {$(
        $(#[$doc])*
        #[track_caller]
        pub fn $name(in1: impl ArrayLike, in2: impl ArrayLike, mode: impl IntoChoice<ConvolveMode>) -> Array {
            convolution(stringify!($name), in1.into_array(), in2.into_array(), mode.into_choice(), $two, $correlates)
        }
    )*};
}

operations! {
    /// Convolves two arrays with the same number of dimensions. One of the arrays must be the smaller one along every axis.
    ///
    /// Fails for other shapes, and for empty arrays.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// use shardax::scipy::signal::{ConvolveMode, convolve};
    /// let y = convolve(array([1.0f32, 2.0, 3.0]), array([1.0f32, 1.0]), ConvolveMode::Full);
    /// assert_eq!(y.to_vec::<f32>()?, [1.0, 3.0, 5.0, 3.0]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    convolve false false;
    /// The cross-correlation: the convolution with the reversed and conjugated second operand.
    ///
    /// Fails as [`convolve`] does.
    correlate false true;
    /// [`convolve`] of matrices, padded with zeros.
    ///
    /// Fails for other numbers of dimensions.
    convolve2d true false;
    /// [`correlate`] of matrices, padded with zeros.
    ///
    /// Fails for other numbers of dimensions.
    correlate2d true true;
}

#[track_caller]
fn convolution(
    name: &'static str,
    x: Array,
    y: Array,
    mode: Choice<ConvolveMode>,
    two: bool,
    correlates: bool,
) -> Array {
    or_failed(&x, || {
        let mode = mode.value(name)?;
        let args = promote_dtypes(&[&x, &y], to_inexact)?;
        check(name, &args, two)?;
        composite1(name, (mode, two, correlates), &args, |&(mode, two, correlates), args| {
            let (x, y) = (&args[0], &args[1]);
            let exchanged = mode == ConvolveMode::Valid && smaller(x, y) && x.shape() != y.shape();
            let out = match correlates {
                false => direct(x, y, mode),
                // SciPy reverses the first operand and the result, which centers the result differently for even sizes.
                true if two && mode == ConvolveMode::Same => direct(&x.flip(..), &conj(y), mode).flip(..),
                // SciPy exchanges the operands here without reversing the result.
                true if two && exchanged => direct(&y.flip(..), &conj(x), mode),
                true => direct(x, &conj(y).flip(..), mode),
            };
            Ok(vec![out])
        })
    })
}

fn smaller(x: &Array, y: &Array) -> bool {
    x.shape().iter().zip(y.shape()).all(|(a, b)| a <= b)
}

fn check(name: &str, args: &[Array], two: bool) -> Result<()> {
    let (x, y) = (&args[0], &args[1]);
    let operand_types = format!("got {} and {}", x.type_name(), y.type_name());
    if two && (x.ndim() != 2 || y.ndim() != 2) {
        return Err(err!(Value, "{name}() only supports 2-dimensional inputs, {operand_types}")
            .help("use `convolve` or `correlate` for other dimensions"));
    }
    if x.ndim() != y.ndim() || x.ndim() == 0 {
        return Err(err!(
            Value,
            "in1 and in2 must have the same number of dimensions, at least one: {name} {operand_types}"
        )
        .help("add dimensions of size 1 with `expand_dims`"));
    }
    if x.size() == 0 || y.size() == 0 {
        return Err(err!(Value, "zero-size arrays not supported in convolutions, {operand_types}")
            .help("pass arrays with at least one element"));
    }
    if !smaller(x, y) && !smaller(y, x) {
        return Err(err!(Value, "One input must be smaller than the other in every dimension: {name} {operand_types}")
            .help("pad the smaller array, so that one contains the other in every dimension"));
    }
    Ok(())
}

fn direct(x: &Array, y: &Array, mode: ConvolveMode) -> Array {
    let second = y.shape().to_vec();
    let (x, y) = if smaller(x, y) { (y, x) } else { (x, y) };
    let pads = y.shape().iter().zip(second).map(|(&n, second)| match mode {
        ConvolveMode::Valid => (0, 0),
        ConvolveMode::Full => (n as i64 - 1, n as i64 - 1),
        ConvolveMode::Same => {
            let (n, before) = (n as i64, (second as i64 - 1) / 2);
            (n - 1 - before, n - second as i64 + before)
        }
    });
    let padding = Padding::Explicit(pads.collect());
    let out = lax::conv_general_dilated(
        &x.expand_dims([0, 1]),
        &y.flip(..).expand_dims([0, 1]),
        &vec![1; y.ndim()],
        padding,
        ConvOptions::new().precision(Precision::Highest),
    );
    out.squeeze([0, 1])
}

/// Returns the convolution along `axes` (`..`: all), computed with Fourier transforms, which is faster than
/// [`convolve`] for long operands. The other axes are a batch and must have equal sizes.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::scipy::signal::{ConvolveMode, fftconvolve};
/// let y = fftconvolve(array([1.0f32, 2.0, 3.0]), array([1.0f32, 1.0]), ConvolveMode::Same, ..);
/// assert!(allclose(y, array([1.0f32, 3.0, 5.0]), 1e-5, 1e-5)?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for shapes that do not fit.
#[track_caller]
pub fn fftconvolve(
    in1: impl ArrayLike,
    in2: impl ArrayLike,
    mode: impl IntoChoice<ConvolveMode>,
    axes: impl IntoAxes,
) -> Array {
    let (x, y, mode) = (in1.into_array(), in2.into_array(), mode.into_choice());
    or_failed(&x, || {
        let mode = mode.value("fftconvolve")?;
        let args = promote_dtypes(&[&x, &y], to_inexact)?;
        let (x, y) = (&args[0], &args[1]);
        if x.ndim() != y.ndim() {
            return Err(err!(
                Value,
                "in1 and in2 should have the same dimensionality: {} and {}",
                x.type_name(),
                y.type_name()
            )
            .help("add dimensions of size 1 with `expand_dims`"));
        }
        let axes = normalize_axes(axes, x.ndim())?.to_vec();
        // The mode `Valid` is defined only if one input contains the other along all axes.
        let x_contains_y = axes.iter().all(|&a| x.shape()[a] >= y.shape()[a]);
        let y_contains_x = axes.iter().all(|&a| x.shape()[a] <= y.shape()[a]);
        let fits = mode != ConvolveMode::Valid || x_contains_y || y_contains_x;
        let mapped = (0..x.ndim()).filter(|a| !axes.contains(a)).all(|a| x.shape()[a] == y.shape()[a]);
        if !fits || !mapped || x.size() == 0 || y.size() == 0 {
            return Err(err!(
                Value,
                "fftconvolve over axes {axes:?} got incompatible shapes: {} and {}",
                x.type_name(),
                y.type_name()
            )
            .help(
                "the other axes must have equal sizes; with `ConvolveMode::Valid`, one input must be at least as large as the other \
                 along every axis",
            ));
        }
        composite1("fftconvolve", (mode, axes), &args, |(mode, axes), args| {
            by_transforms(&args[0], &args[1], *mode, axes).map(|y| vec![y])
        })
    })
}

fn by_transforms(x: &Array, y: &Array, mode: ConvolveMode, axes: &[usize]) -> Result<Array> {
    let full: Vec<usize> = axes.iter().map(|&a| x.shape()[a] + y.shape()[a] - 1).collect();
    let options = FftOptions::new().s(&full).axes(axes.iter().map(|&a| a as i32).collect::<Vec<_>>());
    let dtype = x.dtype();
    let mut out = if dtype.is_complex() {
        options.ifftn(options.fftn(x) * options.fftn(y))
    } else {
        options.irfftn(options.rfftn(widened(x)) * options.rfftn(widened(y))).astype(dtype)
    };
    for (&axis, &full) in axes.iter().zip(&full) {
        let (a, b) = (x.shape()[axis], y.shape()[axis]);
        let size = match mode {
            ConvolveMode::Full => full,
            ConvolveMode::Same => a,
            ConvolveMode::Valid => a.abs_diff(b) + 1,
        };
        let start = (full - size) / 2;
        out = lax::slice_in_dim(&out, start, start + size, axis);
    }
    Ok(out)
}

/// Converts half precision to float32.
fn widened(x: &Array) -> Array {
    if x.dtype().bits() < 32 { x.astype(crate::dtype::DType::F32) } else { x.clone() }
}

/// The trend that [`detrend`] removes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Trend {
    /// The mean.
    Constant,
    /// A line by least squares.
    #[default]
    Linear,
    /// A line for each part between these breakpoints.
    Broken(Vec<usize>),
}

/// JAX's names.
impl NamedOption for Trend {
    const KIND: &'static str = "trend";
    const NAMES: &'static [(&'static str, Self)] = &[("linear", Trend::Linear), ("constant", Trend::Constant)];
}

/// Removes a trend along `axis`.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::scipy::signal::{Trend, detrend};
/// let x = detrend(array([1.0f32, 3.0, 5.0, 7.0]), -1, Trend::Linear);
/// assert!(allclose(x, zeros(4), 1e-5, 1e-5)?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for breakpoints beyond the end.
#[track_caller]
pub fn detrend(data: impl ArrayLike, axis: impl AxisNumber, trend: impl IntoChoice<Trend>) -> Array {
    let axis = axis.axis_number();
    let (data, trend) = (data.into_array(), trend.into_choice());
    or_failed(&data, || {
        let trend = trend.value("detrend")?;
        let x = promote_dtypes(&[&data], to_inexact)?.swap_remove(0);
        let axis = normalize_axis(axis as isize, x.ndim())?;
        let n = x.shape()[axis];
        // The ends of the parts, each of which has a line of its own.
        let mut ends = match &trend {
            Trend::Constant => return Ok(&x - x.mean(over(axis as i32).keepdims(true))),
            Trend::Linear => Vec::new(),
            Trend::Broken(places) => places.clone(),
        };
        if ends.iter().any(|&place| place > n) {
            return Err(err!(Value, "Breakpoints must be less than length of data along given axis: {ends:?} for {n}")
                .help("pass the indices at which the parts start"));
        }
        ends.extend([0, n]);
        ends.sort_unstable();
        ends.dedup();
        composite1("detrend", (axis, ends), &[x], |(axis, ends), args| {
            let parts: Vec<Array> =
                ends.windows(2).map(|w| residual(&lax::slice_in_dim(&args[0], w[0], w[1], *axis), *axis)).collect();
            Ok(vec![if parts.is_empty() { args[0].clone() } else { lax::concatenate(&parts, *axis) }])
        })
    })
}

/// Subtracts the fitted line from `x`. The positions are centered, so that mean and slope can be fitted independently.
fn residual(x: &Array, axis: usize) -> Array {
    let n = x.shape()[axis];
    let centered = x - x.mean(over(axis as i32).keepdims(true));
    let place = lax::iota(x.dtype().real(), x.shape(), axis) - (n as f64 - 1.0) / 2.0;
    // The sum of the squared positions: 0 for one element, 0.5 for two.
    let squares = (n as f64 * ((n * n) as f64 - 1.0) / 12.0).max(0.5);
    let slope = (&centered * &place).sum(over(axis as i32).keepdims(true)) / squares;
    centered - slope * place
}
