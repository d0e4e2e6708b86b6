//! Discrete Fourier transforms, as in [`jax.numpy.fft`](https://docs.jax.dev/en/latest/jax.numpy.fft.html).
//!
//! Integers are converted to floating point, half precision to float32; results are complex, except those of the
//! inverse transforms to real numbers. [`FftOptions`] has sizes, axes and the normalization.
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

mod helpers;

pub use helpers::{fftfreq, fftshift, ifftshift, rfftfreq};

use smallvec::SmallVec;

use crate::core::array::Array;
use crate::core::program::trace::at_caller;
use crate::dtype::{DType, Scalar};
use crate::error::{Result, err};
use crate::ops::lax;
use crate::ops::numpy::{conj, convert, to_inexact};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::composite::composite1;
use crate::ops::primitive::fft::{Fft, FftKind};
use crate::shape::{AxisNumber, IntoAxes, normalize_axis};

/// The normalization of a transform and its inverse, which invert each other in each mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FftNorm {
    /// Divides the inverse by the number of elements.
    #[default]
    Backward,
    /// Divides both by the square root of the number of elements: they preserve the length of vectors.
    Ortho,
    /// Divides the transform by the number of elements.
    Forward,
}

impl FftNorm {
    /// The factor for a result whose inverse transform is already divided by the number of elements.
    fn factor(self, inverse: bool, elements: f64) -> f64 {
        match (self, inverse) {
            (FftNorm::Backward, _) => 1.0,
            (FftNorm::Ortho, false) => 1.0 / elements.sqrt(),
            (FftNorm::Ortho, true) => elements.sqrt(),
            (FftNorm::Forward, false) => 1.0 / elements,
            (FftNorm::Forward, true) => elements,
        }
    }

    /// The mode with the transform and its inverse exchanged.
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
    norm: FftNorm,
}

/// The parameters that identify a transform's composite.
type Params = (FftKind, Vec<usize>, Vec<usize>, FftNorm);

impl FftOptions {
    /// Transforms the last axis, the last two, or all, in their own size.
    pub fn new() -> Self {
        FftOptions::default()
    }

    /// The size of the transformed axis: the array is padded with zeros, or cut. For transforms from half spectra it is
    /// the size of the result. Default: the array's own; for half spectra of `m` elements `2 (m - 1)`.
    pub fn n(self, n: usize) -> Self {
        self.s([n])
    }

    /// The axis of a one-dimensional transform. Default the last.
    pub fn axis(self, axis: impl AxisNumber) -> Self {
        self.axes([axis.axis_number()])
    }

    /// The sizes of the transformed axes; see [`n`](Self::n). Without axes they are those of the last ones.
    pub fn s(mut self, s: impl AsRef<[usize]>) -> Self {
        self.lengths = Some(s.as_ref().into());
        self
    }

    /// The axes of a multi-dimensional transform, in order: the last is the half spectrum. Default the last two, or
    /// all.
    pub fn axes(mut self, axes: impl IntoAxes) -> Self {
        self.axes = axes.into_axes().map(|axes| axes.into_vec());
        self
    }

    /// The normalization. Default [`FftNorm::Backward`].
    pub fn norm(mut self, norm: FftNorm) -> Self {
        self.norm = norm;
        self
    }

    pub(crate) fn normalization(&self) -> FftNorm {
        self.norm
    }

    /// The axes and the sizes of the transform, for an array of `shape`.
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
            return Err(
                err!(Value, "{name} transforms {count} axes, got {axes:?}").help("`fftn` transforms any number")
            );
        }
        let places: Vec<usize> = axes.iter().map(|&a| normalize_axis(a as isize, rank)).collect::<Result<_>>()?;
        if (1..places.len()).any(|i| places[..i].contains(&places[i])) {
            return Err(err!(Value, "{name} does not support repeated axes. Got axes {axes:?}.").help("name each once"));
        }
        let mut sizes: Vec<usize> = places.iter().map(|&d| shape[d]).collect();
        if let (FftKind::Irfft, Some(last)) = (kind, sizes.last_mut()) {
            *last = 2 * last.saturating_sub(1);
        }
        if let Some(lengths) = &self.lengths {
            if lengths.len() != sizes.len() {
                return Err(err!(Value, "{name}: Shape and axes have different lengths: {lengths:?} and {axes:?}.")
                    .help("give a size for each axis"));
            }
            sizes.clone_from(lengths);
        }
        // Padding the array rejects a size that cannot be addressed.
        if sizes.contains(&0) {
            return Err(err!(Value, "{name}: Shape should be positive, got {sizes:?} for an array of {shape:?}")
                .help("transform axes of at least one element (two of a half)"));
        }
        Ok([places, sizes])
    }

    #[track_caller]
    fn run(&self, name: &'static str, kind: FftKind, count: Option<usize>, x: Array, norm: FftNorm) -> Array {
        let made = at_caller(|| {
            x.check()?;
            if kind == FftKind::Rfft && x.dtype().is_complex() {
                return Err(err!(Type, "only real valued inputs supported for {name}, got {}", x.type_name())
                    .help("`fft` transforms complex numbers"));
            }
            let dtype = wide(x.dtype());
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
            composite1("fft", (kind, axes, sizes, norm), &[x], |params, x| Ok(vec![transformed(params, &x[0])?]))
        });
        Array::from_result(made, &x)
    }
}

/// The floating point or complex dtype of the transform, at least float32.
fn wide(dtype: DType) -> DType {
    match to_inexact(dtype) {
        DType::F16 | DType::Bf16 => DType::F32,
        other => other,
    }
}

fn transformed((kind, axes, sizes, norm): &Params, x: &Array) -> Result<Array> {
    let (rank, count) = (x.ndim(), axes.len());
    let from: Vec<i32> = axes.iter().map(|&d| d as i32).collect();
    let to: Vec<i32> = (rank - count..rank).map(|d| d as i32).collect();
    let mut x = moved(x, &from, &to);

    // The array cut, and padded with zeros.
    let mut given = sizes.clone();
    if let (FftKind::Irfft, Some(last)) = (kind, given.last_mut()) {
        *last = *last / 2 + 1;
    }
    let mut config = vec![(0, 0, 0); rank];
    for (i, &n) in given.iter().enumerate() {
        let have = x.shape()[rank - count + i];
        config[rank - count + i].1 = i64::try_from(n).unwrap_or(i64::MAX).saturating_sub(have as i64);
    }
    if config.iter().any(|c| c.1 != 0) {
        x = lax::pad(&x, &Array::literal(Scalar::Int(0), x.dtype(), false), &config);
    }
    x.check()?;

    // XLA transforms at most three dimensions in one operation.
    let inverse = matches!(kind, FftKind::Ifft | FftKind::Irfft);
    let (outer, inner) = match kind {
        FftKind::Irfft => sizes.split_at(count - 1),
        _ => sizes.split_at(count - count.min(3)),
    };
    let innermost = |x: &Array| Fft { kind: *kind, lengths: inner.into() }.apply(x);
    let around = |x: &Array| over_outer(x, if inverse { FftKind::Ifft } else { FftKind::Fft }, outer, inner.len());
    let y = if inverse { innermost(&around(&x)) } else { around(&innermost(&x)) };
    let factor = norm.factor(inverse, sizes.iter().map(|&n| n as f64).product());
    let y = if factor == 1.0 { y } else { y * factor };
    Ok(moved(&y, &to, &from))
}

/// Transforms the dimensions of sizes `outer`, which precede the `inner` last ones.
fn over_outer(x: &Array, kind: FftKind, outer: &[usize], inner: usize) -> Array {
    let rank = x.ndim();
    let first = rank - inner - outer.len();
    outer.chunks(3).enumerate().fold(x.clone(), |x, (i, lengths)| {
        let start = first + 3 * i;
        let own: Vec<i32> = (start..start + lengths.len()).map(|d| d as i32).collect();
        let last: Vec<i32> = (rank - lengths.len()..rank).map(|d| d as i32).collect();
        let y = Fft { kind, lengths: lengths.into() }.apply(&moved(&x, &own, &last));
        moved(&y, &last, &own)
    })
}

/// Moves dimensions `from` to the positions `to`; the others stay in order.
fn moved(x: &Array, from: &[i32], to: &[i32]) -> Array {
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
                self.run(stringify!($name), FftKind::$kind, $count, x.into_array(), self.norm)
            }
        )*}
    };
}

transforms! {
    /// The Fourier transform of the last axis: `y[k] = Σ x[j] exp(-2πi j k / n)`.
    fft => Fft, Some(1);
    /// The inverse of [`fft`](fn@fft): `x[j] = Σ y[k] exp(2πi j k / n) / n`.
    ifft => Ifft, Some(1);
    /// The first `n / 2 + 1` elements of the transform of real numbers; the rest are their conjugates.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let y = shardax::fft::rfft(array([1.0f32, 2.0, 3.0, 4.0]));
    /// assert_eq!(y.type_name(), "complex64[3]");
    /// assert_eq!(real(&y).to_vec::<f32>()?, [10.0, -2.0, -2.0]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    rfft => Rfft, Some(1);
    /// The inverse of [`rfft`]: `2 (m - 1)` real numbers for `m` elements, unless a size is given.
    irfft => Irfft, Some(1);
    /// The transform of the last two axes.
    fft2 => Fft, Some(2);
    /// The inverse of [`fft2`].
    ifft2 => Ifft, Some(2);
    /// The transform of real numbers over the last two axes; the last one is a half spectrum.
    rfft2 => Rfft, Some(2);
    /// The inverse of [`rfft2`], real numbers.
    irfft2 => Irfft, Some(2);
    /// The transform of all axes.
    fftn => Fft, None;
    /// The inverse of [`fftn`].
    ifftn => Ifft, None;
    /// The transform of real numbers over all axes; the last one is a half spectrum.
    rfftn => Rfft, None;
    /// The inverse of [`rfftn`], real numbers.
    irfftn => Irfft, None;
}

/// The transform of a Hermitian signal, given by its first half: real numbers,
/// `2 (m - 1)` of them unless a size is given.
///
/// Fails for an axis that is out of bounds or has no elements. [`FftOptions`] has options.
///
/// ```
/// # use shardax::prelude::*;
/// let y = shardax::fft::hfft(array([1.0f32, 2.0, 3.0]));
/// assert_eq!(y.to_vec::<f32>()?, [8.0, -2.0, 0.0, -2.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn hfft(x: impl ArrayLike) -> Array {
    FftOptions::new().hfft(x)
}

/// The inverse of [`hfft`].
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

impl FftOptions {
    /// See [`hfft`](fn@hfft).
    #[track_caller]
    pub fn hfft(&self, x: impl ArrayLike) -> Array {
        self.run("hfft", FftKind::Irfft, Some(1), conj(&x.into_array()), self.norm.swapped())
    }

    /// See [`ihfft`](fn@ihfft).
    #[track_caller]
    pub fn ihfft(&self, x: impl ArrayLike) -> Array {
        conj(&self.run("ihfft", FftKind::Rfft, Some(1), x.into_array(), self.norm.swapped()))
    }
}
