//! Discrete Fourier transforms, as in [`jax.numpy.fft`](https://docs.jax.dev/en/latest/jax.numpy.fft.html).
//!
//! Integers are converted to floating point, and half precision to float32. Results are complex, except the results of
//! inverse transforms to real numbers. Use [`FftOptions`] to choose sizes, axes and the normalization.
//!
//! ```
//! # use shardax::prelude::*;
//! use shardax::fft;
//! let x = array([1.0f32, 2.0, 3.0, 4.0]);
//! let y = fft::rfft(&x);
//! assert_eq!(y.shape(), [3]);
//! assert!(allclose(fft::irfft(&y), &x, 1e-6, 1e-6)?);
//! # Ok::<(), shardax::Error>(())
//! ```

pub(crate) mod helpers;

pub use helpers::{fftfreq, fftshift, ifftshift, rfftfreq};

use smallvec::SmallVec;

use crate::choice::{Choice, IntoChoice, NamedOption};
use crate::core::array::Array;
use crate::core::program::trace::or_failed;
use crate::dtype::{DType, Scalar};
use crate::error::{Result, err};
use crate::ops::lax;
use crate::ops::numpy::{conj, convert, to_inexact};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::composite::composite1;
use crate::ops::primitive::fft::{Fft, FftKind};
use crate::shape::{AxisNumber, IntoAxes, IntoSizes, normalize_axis};

/// The normalization of a transform and its inverse. In each mode, the two invert each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FftNorm {
    /// Divides the inverse by the number of elements.
    #[default]
    Backward,
    /// Divides both by the square root of the number of elements, so that they preserve the length of vectors.
    Ortho,
    /// Divides the transform by the number of elements.
    Forward,
}

/// JAX's names.
impl NamedOption for FftNorm {
    const KIND: &'static str = "norm";
    const NAMES: &'static [(&'static str, Self)] =
        &[("backward", FftNorm::Backward), ("ortho", FftNorm::Ortho), ("forward", FftNorm::Forward)];
}

impl FftNorm {
    /// Returns the factor of the result. XLA's inverse transform already divides by the number of elements.
    fn factor(self, inverse: bool, elements: f64) -> f64 {
        match (self, inverse) {
            (FftNorm::Backward, _) => 1.0,
            (FftNorm::Ortho, false) => 1.0 / elements.sqrt(),
            (FftNorm::Ortho, true) => elements.sqrt(),
            (FftNorm::Forward, false) => 1.0 / elements,
            (FftNorm::Forward, true) => elements,
        }
    }

    /// Exchanges the factors of the transform and its inverse.
    fn swapped(self) -> Self {
        match self {
            FftNorm::Backward => FftNorm::Forward,
            FftNorm::Ortho => FftNorm::Ortho,
            FftNorm::Forward => FftNorm::Backward,
        }
    }
}

/// The options of a transform; each transform is a method.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::fft::{FftNorm, FftOptions};
/// let x = ones([4, 6]);
/// assert_eq!(FftOptions::new().axis(0).n(8).fft(&x).shape(), [8, 6]);
/// let y = FftOptions::new().norm(FftNorm::Ortho).rfftn(&x);
/// assert!((y.get((0, 0)).real().item::<f32>()? - 24f32.sqrt()).abs() < 1e-5);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct FftOptions {
    lengths: Option<Vec<usize>>,
    axes: Option<Vec<i32>>,
    norm: Choice<FftNorm>,
}

/// The parameters that identify a transform's composite.
type Params = (FftKind, Vec<usize>, Vec<usize>, FftNorm);

impl FftOptions {
    /// Makes options that transform the last axis, the last two, or all axes, without changing their sizes.
    pub fn new() -> Self {
        FftOptions::default()
    }

    /// Sets the size of the transformed axis; the array is padded with zeros or cut to it. For transforms from half spectra
    /// it is the size of the result. By default it is the size of the array, or `2 (m - 1)` for half spectra of `m`
    /// elements.
    pub fn n(self, n: usize) -> Self {
        self.s([n])
    }

    /// Sets the axis of a one-dimensional transform. Default: the last axis.
    pub fn axis(self, axis: impl AxisNumber) -> Self {
        self.axes([axis.axis_number()])
    }

    /// Sets the sizes of the transformed axes; see [`n`](Self::n). If you set no axes, the last axes get these sizes.
    pub fn s(mut self, s: impl IntoSizes) -> Self {
        self.lengths = Some(s.into_sizes());
        self
    }

    /// Sets the axes of a multi-dimensional transform, in order; the last one becomes the half spectrum. Default: the last
    /// two axes, or all.
    pub fn axes(mut self, axes: impl IntoAxes) -> Self {
        self.axes = axes.into_axes().map(|axes| axes.into_vec());
        self
    }

    /// Sets the normalization: an [`FftNorm`], or its name, such as `"ortho"`. Default [`FftNorm::Backward`].
    pub fn norm(mut self, norm: impl IntoChoice<FftNorm>) -> Self {
        self.norm = norm.into_choice();
        self
    }

    pub(crate) fn normalization(&self, name: &str) -> Result<FftNorm> {
        self.norm.value(name)
    }

    /// Returns the axes and the sizes of the transform for an array of `shape`, after checking them. An axis without elements keeps the
    /// size 0, but half of its spectrum would have one element, and is an error. `count` is the number of
    /// axes that the transform must have, if there is one.
    pub(crate) fn resolve(
        &self,
        name: &str,
        kind: FftKind,
        count: Option<usize>,
        shape: &[usize],
    ) -> Result<[Vec<usize>; 2]> {
        let rank = shape.len();
        let axes = match (&self.axes, count, &self.lengths) {
            (Some(axes), ..) => axes.clone(),
            (None, Some(count), _) => (-(count as i32)..0).collect(),
            (None, None, Some(lengths)) => (-(lengths.len() as i32)..0).collect(),
            (None, None, None) => (0..rank as i32).collect(),
        };
        if let Some(count) = count.filter(|count| *count != axes.len()) {
            return Err(err!(Value, "{name} transforms {count} axes, got {axes:?}")
                .help("use `fftn`, which transforms any number of axes"));
        }
        let dims: Vec<usize> = axes.iter().map(|&a| normalize_axis(a as isize, rank)).collect::<Result<_>>()?;
        if (1..dims.len()).any(|i| dims[..i].contains(&dims[i])) {
            return Err(err!(Value, "{name} does not support repeated axes. Got axes {axes:?}.")
                .help("name each axis only once"));
        }
        let mut sizes: Vec<usize> = dims.iter().map(|&d| shape[d]).collect();
        if let (FftKind::Irfft, Some(last)) = (kind, sizes.last_mut()) {
            *last = 2 * last.saturating_sub(1);
        }
        if let Some(lengths) = &self.lengths {
            if lengths.len() != sizes.len() {
                return Err(err!(Value, "{name}: Shape and axes have different lengths: {lengths:?} and {axes:?}.")
                    .help("pass one size for each axis"));
            }
            sizes.clone_from(lengths);
        }
        // Sizes that are too large are not checked here, because padding the array rejects them.
        if self.lengths.is_some() || kind == FftKind::Rfft && sizes.last() == Some(&0) {
            check_positive(name, &sizes, shape)?;
        }
        Ok([dims, sizes])
    }

    #[track_caller]
    fn run(&self, name: &'static str, kind: FftKind, count: Option<usize>, x: Array, is_conjugated: bool) -> Array {
        or_failed(&x, || {
            x.check()?;
            let norm = self.norm.value(name)?;
            // The Hermitian transforms are inverse transforms of the conjugate, whose normalization is that of the other direction.
            let norm = if is_conjugated { norm.swapped() } else { norm };
            if kind == FftKind::Rfft && x.dtype().is_complex() {
                return Err(err!(Type, "only real valued inputs supported for {name}, got {}", x.type_name())
                    .help("use `fft`, `fft2` or `fftn` to transform complex numbers"));
            }
            let dtype = transform_dtype(x.dtype());
            let dtype = match kind {
                FftKind::Rfft => dtype,
                _ if dtype == DType::F64 || dtype == DType::Complex128 => DType::Complex128,
                _ => DType::Complex64,
            };
            let [axes, sizes] = self.resolve(name, kind, count, x.shape())?;
            let x = convert(&x, dtype, false);
            if axes.is_empty() {
                return Ok(x);
            }
            if sizes.contains(&0) {
                return Ok(transform_empty(kind, &axes, &sizes, &x));
            }
            composite1("fft", (kind, axes, sizes, norm), &[x], |params, x| Ok(vec![transform(params, &x[0])?]))
        })
    }
}

/// Returns an error if an axis has no elements.
pub(crate) fn check_positive(name: &str, sizes: &[usize], shape: &[usize]) -> Result<()> {
    if !sizes.contains(&0) {
        return Ok(());
    }
    Err(err!(Value, "{name}: Shape should be positive, got {sizes:?} for an array of {shape:?}")
        .help("transform only axes that have at least one element, or two for half spectra"))
}

/// Returns the floating point or complex dtype of the transform, which is at least float32.
fn transform_dtype(dtype: DType) -> DType {
    match to_inexact(dtype) {
        DType::F16 | DType::Bf16 => DType::F32,
        other => other,
    }
}

/// Returns the transform of an array without elements.
fn transform_empty(kind: FftKind, axes: &[usize], sizes: &[usize], x: &Array) -> Array {
    let (axis, size) = (axes[axes.len() - 1], sizes[sizes.len() - 1]);
    let (x, size) = match kind {
        FftKind::Rfft => {
            let dtype = if x.dtype() == DType::F64 { DType::Complex128 } else { DType::Complex64 };
            (convert(x, dtype, false), size / 2 + 1)
        }
        FftKind::Irfft => (x.real(), size),
        FftKind::Fft | FftKind::Ifft => return x.clone(),
    };
    let mut config = vec![(0, 0, 0); x.ndim()];
    config[axis].1 = i64::try_from(size).unwrap_or(i64::MAX).saturating_sub_unsigned(x.shape()[axis] as u64);
    lax::pad(&x, Array::literal(Scalar::Int(0), x.dtype(), false), &config)
}

/// Transforms the axes: moves them to the end, pads or cuts them to their sizes, transforms, normalizes, and moves them back.
fn transform((kind, axes, sizes, norm): &Params, x: &Array) -> Result<Array> {
    let (rank, count) = (x.ndim(), axes.len());
    let axes: Vec<i32> = axes.iter().map(|&d| d as i32).collect();
    let last_dims: Vec<i32> = (rank - count..rank).map(|d| d as i32).collect();
    let mut x = move_dims(x, &axes, &last_dims);

    // Sizes are the sizes of the result, but the operand of `Irfft` is a half spectrum.
    let mut input_sizes = sizes.clone();
    if let (FftKind::Irfft, Some(last)) = (kind, input_sizes.last_mut()) {
        *last = *last / 2 + 1;
    }
    let mut config = vec![(0, 0, 0); rank];
    for (i, &n) in input_sizes.iter().enumerate() {
        let size = x.shape()[rank - count + i];
        config[rank - count + i].1 = i64::try_from(n).unwrap_or(i64::MAX).saturating_sub(size as i64);
    }
    if config.iter().any(|c| c.1 != 0) {
        x = lax::pad(&x, &Array::literal(Scalar::Int(0), x.dtype(), false), &config);
    }
    x.check()?;

    // StableHLO's operation transforms at most three dimensions. The half spectrum is always the last dimension: it is made
    // first, and turned back into real numbers last.
    let inverse = matches!(kind, FftKind::Ifft | FftKind::Irfft);
    let (outer, inner) = match kind {
        FftKind::Irfft => sizes.split_at(count - 1),
        _ => sizes.split_at(count - count.min(3)),
    };
    let innermost = Fft { kind: *kind, lengths: inner.into() };
    let y = if inverse {
        innermost.apply(&transform_outer(&x, FftKind::Ifft, outer, inner.len()))
    } else {
        transform_outer(&innermost.apply(&x), FftKind::Fft, outer, inner.len())
    };
    let factor = norm.factor(inverse, sizes.iter().map(|&n| n as f64).product());
    let y = if factor == 1.0 { y } else { y * factor };
    Ok(move_dims(&y, &last_dims, &axes))
}

/// Transforms the dimensions of sizes `outer`, which precede the last `inner` dimensions.
fn transform_outer(x: &Array, kind: FftKind, outer: &[usize], inner: usize) -> Array {
    let rank = x.ndim();
    let first_outer = rank - inner - outer.len();
    outer.chunks(3).enumerate().fold(x.clone(), |x, (i, lengths)| {
        let start = first_outer + 3 * i;
        let dims: Vec<i32> = (start..start + lengths.len()).map(|d| d as i32).collect();
        let last_dims: Vec<i32> = (rank - lengths.len()..rank).map(|d| d as i32).collect();
        let y = Fft { kind, lengths: lengths.into() }.apply(&move_dims(&x, &dims, &last_dims));
        move_dims(&y, &last_dims, &dims)
    })
}

/// Moves dimensions `from` to the positions `to`; all other dimensions keep their order.
fn move_dims(x: &Array, from: &[i32], to: &[i32]) -> Array {
    let rank = x.ndim();
    let mut order: SmallVec<[usize; 4]> = (0..rank).filter(|&d| !from.contains(&(d as i32))).collect();
    let mut pairs: Vec<(i32, i32)> = to.iter().copied().zip(from.iter().copied()).collect();
    pairs.sort_unstable();
    pairs.iter().for_each(|&(to, from)| order.insert(to as usize, from as usize));
    lax::transpose(x, &order)
}

macro_rules! transforms {
    ($($(#[$doc:meta])* $name:ident => $kind:ident, $count:expr;)*) => {
        $(
            $(#[$doc])*
            ///
            /// Fails for an axis that is out of bounds or has no elements. [`FftOptions`] has options.
            #[track_caller]
            pub fn $name(x: impl ArrayLike) -> Array {
                FftOptions::new().$name(x)
            }
        )*

        impl FftOptions {$(
            #[doc = concat!("See [`", stringify!($name), "`](fn@", stringify!($name), ").")]
            #[track_caller]
            pub fn $name(&self, x: impl ArrayLike) -> Array {
                self.run(stringify!($name), FftKind::$kind, $count, x.into_array(), false)
            }
        )*}
    };
}

transforms! {
    /// Fourier transform of the last axis: `y[k] = Σ x[j] exp(-2πi j k / n)`.
    fft => Fft, Some(1);
    /// Inverts [`fft`](fn@fft): `x[j] = Σ y[k] exp(2πi j k / n) / n`.
    ifft => Ifft, Some(1);
    /// Fourier transform of real numbers along the last axis. It returns the first `n / 2 + 1` elements, because the others
    /// are their conjugates.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let y = shardax::fft::rfft(array([1.0f32, 2.0, 3.0, 4.0]));
    /// assert_eq!(y.type_name(), "complex64[3]");
    /// assert_eq!(real(&y).to_vec::<f32>()?, [10.0, -2.0, -2.0]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    rfft => Rfft, Some(1);
    /// Inverts [`rfft`]. The result has `2 (m - 1)` real numbers for `m` elements, unless you set a size.
    irfft => Irfft, Some(1);
    /// Fourier transform of the last two axes.
    fft2 => Fft, Some(2);
    /// Inverts [`fft2`].
    ifft2 => Ifft, Some(2);
    /// Fourier transform of real numbers over the last two axes; the last one becomes a half spectrum.
    rfft2 => Rfft, Some(2);
    /// Inverts [`rfft2`]; the result is real.
    irfft2 => Irfft, Some(2);
    /// Fourier transform of all axes.
    fftn => Fft, None;
    /// Inverts [`fftn`].
    ifftn => Ifft, None;
    /// Fourier transform of real numbers over all axes; the last one becomes a half spectrum.
    rfftn => Rfft, None;
    /// Inverts [`rfftn`]; the result is real.
    irfftn => Irfft, None;
}

/// Computes the Fourier transform of a Hermitian signal. You pass only the first half of the signal. The result has `2
/// (m - 1)` real numbers for `m` elements, unless you set a size.
///
/// [`FftOptions`] has options.
///
/// ```
/// # use shardax::prelude::*;
/// let y = shardax::fft::hfft(array([1.0f32, 2.0, 3.0]));
/// assert_eq!(y.to_vec::<f32>()?, [8.0, -2.0, 0.0, -2.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for an axis that is out of bounds or has no elements.
#[track_caller]
pub fn hfft(x: impl ArrayLike) -> Array {
    FftOptions::new().hfft(x)
}

/// Inverts [`hfft`].
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::fft::{hfft, ihfft};
/// let x = array([1.0f32, 2.0, 3.0]);
/// assert!(allclose(real(ihfft(hfft(&x))), &x, 1e-5, 1e-5)?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn ihfft(x: impl ArrayLike) -> Array {
    FftOptions::new().ihfft(x)
}

// A Hermitian transform is the real transform in the other direction, of conjugates and with exchanged factors.
impl FftOptions {
    /// Calls [`hfft`](fn@hfft) with these options.
    #[track_caller]
    pub fn hfft(&self, x: impl ArrayLike) -> Array {
        self.run("hfft", FftKind::Irfft, Some(1), conj(&x.into_array()), true)
    }

    /// Calls [`ihfft`](fn@ihfft) with these options.
    #[track_caller]
    pub fn ihfft(&self, x: impl ArrayLike) -> Array {
        conj(&self.run("ihfft", FftKind::Rfft, Some(1), x.into_array(), true))
    }
}
