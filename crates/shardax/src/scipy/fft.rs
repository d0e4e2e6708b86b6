//! Discrete cosine transforms of type 2, as in
//! [`jax.scipy.fft`](https://docs.jax.dev/en/latest/jax.scipy.html#module-jax.scipy.fft).
//!
//! The options are [`shardax::fft`](crate::fft)'s, except that only the normalizations `Backward` and `Ortho` exist. The real and
//! imaginary parts of complex numbers are transformed separately; half precision is computed in float32.
//!
//! ```
//! # use shardax::prelude::*;
//! use shardax::fft::{FftNorm, FftOptions};
//! use shardax::scipy::fft::{dct, idct};
//! let x = array([1.0f32, 2.0, 4.0]);
//! assert!(allclose(idct(dct(&x)), &x, 1e-5, 1e-5)?);
//! // An orthonormal transform keeps the norm.
//! let y = FftOptions::new().norm(FftNorm::Ortho).dct(&x);
//! assert!((y.square().sum(..).item::<f32>()? - 21.0).abs() < 1e-4);
//! # Ok::<(), shardax::Error>(())
//! ```

use std::f64::consts::PI;

use crate::core::array::Array;
use crate::core::program::trace::or_failed;
use crate::dtype::DType;
use crate::error::{Result, err};
use crate::fft::{FftNorm, FftOptions, check_positive};
use crate::ops::constants::{float, integer};
use crate::ops::lax;
use crate::ops::numpy::{complex, imag, promote_dtypes, real, to_inexact};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::composite::composite1;
use crate::ops::primitive::fft::FftKind;

macro_rules! transforms {
    ($($(#[$doc:meta])* $name:ident $inverse:literal $count:expr;)*) => {
        $(
            $(#[$doc])*
            #[track_caller]
            pub fn $name(x: impl ArrayLike) -> Array {
                FftOptions::new().$name(x)
            }
        )*

        impl FftOptions {
            $(
                $(#[$doc])*
                #[track_caller]
                pub fn $name(&self, x: impl ArrayLike) -> Array {
                    cosines(stringify!($name), self, x.into_array(), $inverse, $count)
                }
            )*
        }
    };
}

transforms! {
    /// The discrete cosine transform along the last axis: `2 Σ xₙ cos(π k (2n + 1) / 2N)`.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let y = shardax::scipy::fft::dct(ones([2]));
    /// assert!(allclose(y, array([4.0f32, 0.0]), 1e-6, 1e-6)?);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    dct false Some(1);
    /// The inverse of [`dct`].
    idct true Some(1);
    /// The discrete cosine transform along all axes.
    dctn false None;
    /// The inverse of [`dctn`].
    idctn true None;
}

#[track_caller]
fn cosines(name: &'static str, options: &FftOptions, x: Array, inverse: bool, count: Option<usize>) -> Array {
    or_failed(&x, || {
        let y = promote_dtypes(&[&x], to_inexact)?.swap_remove(0);
        let [axes, sizes] = options.resolve(name, FftKind::Fft, count, y.shape())?;
        check_positive(name, &sizes, y.shape())?;
        let norm = options.normalization(name)?;
        if norm == FftNorm::Forward {
            return Err(err!(NotImplemented, "{name}: `FftNorm::Forward` is not implemented")
                .help("scale the result, or use `FftNorm::Backward` or `FftNorm::Ortho`"));
        }
        let ortho = norm == FftNorm::Ortho;
        let params = (axes, sizes, inverse, ortho);
        composite1(name, params, &[y], |params, args| {
            let x = &args[0];
            let out = if x.dtype().is_complex() {
                complex(transform_axes(real(x), params)?, transform_axes(imag(x), params)?)
            } else {
                let wide = if x.dtype().bits() < 32 { DType::F32 } else { x.dtype() };
                transform_axes(x.astype(wide), params)?.astype(x.dtype())
            };
            Ok(vec![out])
        })
    })
}

/// Transforms one axis by a single Fourier transform of the even elements followed by the reversed odd elements
/// ([Makhoul 1980](https://doi.org/10.1109/TASSP.1980.1163351)).
fn transform_axis(x: &Array, axis: usize, n: usize, inverse: bool, ortho: bool) -> Result<Array> {
    let zero = integer(0, x.dtype());
    let mut config = vec![(0, 0, 0); x.ndim()];
    config[axis].1 = n as i64 - x.shape()[axis] as i64;
    let x = lax::pad(x, &zero, &config).moveaxis(axis as i32, -1);
    let k = lax::iota(x.dtype(), &[n], 0);
    let angle = k * (PI / (2.0 * n as f64));
    let last_axis = x.ndim() - 1;
    let y = if inverse {
        // Scales the coefficients to the orthonormal ones. Backward coefficients are larger by √(2N), the first by another √2.
        let scale = scales(&x, n, if ortho { 0.5 } else { 1.0 });
        let turn = complex(angle.cos(), angle.sin());
        let spectrum = (&x / scale * (2.0 * n as f64)).astype(turn.dtype()) * turn;
        let v = real(&crate::fft::ifft(spectrum));
        let half = n.div_ceil(2);
        let even = lax::slice_in_dim(&v, 0, half, last_axis);
        let odd = lax::slice_in_dim(&v, half, n, last_axis).flip(-1);
        interleaved(&even, &odd, n)
    } else {
        let v = lax::concatenate(&[stride_two(&x, 0), stride_two(&x, 1).flip(-1)], last_axis);
        let turn = complex(angle.cos(), -angle.sin());
        let y = real(&(crate::fft::fft(v) * turn)) * 2;
        if ortho { &y / scales(&y, n, 0.5) } else { y }
    };
    Ok(y.moveaxis(-1, axis as i32))
}

/// Every other element along the last axis, beginning at `start`.
fn stride_two(x: &Array, start: usize) -> Array {
    let last_axis = x.ndim() - 1;
    let (mut starts, mut steps) = (vec![0; x.ndim()], vec![1; x.ndim()]);
    starts[last_axis] = start.min(x.shape()[last_axis]);
    steps[last_axis] = 2;
    lax::slice(x, &starts, x.shape(), Some(&steps))
}

/// The norms of the transform's rows (`√(4N)` for the first, `√(2N)` for the others) to the power `2 * half`.
fn scales(like: &Array, n: usize, half: f64) -> Array {
    let n = n as f64;
    let is_first = lax::iota(DType::for_indices(&[n as usize]), &[n as usize], 0).equal(0);
    // Numbers without a dtype would be float32, also for float64 arrays.
    crate::ops::numpy::where_(
        is_first,
        float((4.0 * n).powf(half), like.dtype()),
        float((2.0 * n).powf(half), like.dtype()),
    )
}

/// Interleaves the elements of `even` and `odd` along the last axis, which has `n` elements in the result.
fn interleaved(even: &Array, odd: &Array, n: usize) -> Array {
    spread_every_other(even, 0, n) + spread_every_other(odd, 1, n)
}

/// Moves the elements along the last axis to every other of `n` places, beginning at `start`, with zeros between them.
fn spread_every_other(x: &Array, start: i64, n: usize) -> Array {
    let last_axis = x.ndim() - 1;
    let size = x.shape()[last_axis] as i64;
    let spread_size = if size == 0 { 0 } else { 2 * size - 1 };
    let mut config = vec![(0, 0, 0); x.ndim()];
    config[last_axis] = (start, n as i64 - spread_size - start, 1);
    lax::pad(x, &integer(0, x.dtype()), &config)
}

/// Transforms the axes one after the other. The parameters are the axes, their sizes, and whether the transform is inverse
/// and orthonormal.
fn transform_axes(x: Array, (axes, sizes, inverse, ortho): &(Vec<usize>, Vec<usize>, bool, bool)) -> Result<Array> {
    axes.iter().zip(sizes).try_fold(x, |x, (&axis, &n)| transform_axis(&x, axis, n, *inverse, *ortho))
}
