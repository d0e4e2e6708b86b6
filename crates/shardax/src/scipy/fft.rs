//! Discrete cosine transforms of type 2, as in
//! [`jax.scipy.fft`](https://docs.jax.dev/en/latest/jax.scipy.html#module-jax.scipy.fft).
//!
//! The options are those of [`shardax::fft`](crate::fft), whose normalizations `Backward` and `Ortho` there are. Complex
//! numbers are transformed by their parts; half precision is computed in float32.
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
use crate::core::program::trace::at_caller;
use crate::dtype::DType;
use crate::error::{Result, err};
use crate::fft::{FftNorm, FftOptions};
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
    let made = at_caller(|| {
        let y = promote_dtypes(&[&x], to_inexact)?.swap_remove(0);
        let [axes, sizes] = options.resolve(name, FftKind::Fft, count, y.shape())?;
        if options.normalization() == FftNorm::Forward {
            return Err(err!(NotImplemented, "{name}: norm=\"forward\" is not implemented")
                .help("scale the result, or use `FftNorm::Backward` or `FftNorm::Ortho`"));
        }
        let ortho = options.normalization() == FftNorm::Ortho;
        let params = (axes, sizes, inverse, ortho);
        composite1(name, params, &[y], |(axes, sizes, inverse, ortho), args| {
            let transform =
                |x: Array| axes.iter().zip(sizes).try_fold(x, |x, (&axis, &n)| along(&x, axis, n, *inverse, *ortho));
            let x = &args[0];
            let out = match x.dtype().is_complex() {
                true => complex(transform(real(x))?, transform(imag(x))?),
                false => {
                    let wide = if x.dtype().bits() < 32 { DType::F32 } else { x.dtype() };
                    transform(x.astype(wide))?.astype(x.dtype())
                }
            };
            Ok(vec![out])
        })
    });
    Array::from_result(made, &x)
}

/// One axis, by the Fourier transform of the even elements and the odd ones in reverse
/// ([Makhoul 1980](https://doi.org/10.1109/TASSP.1980.1163351)).
fn along(x: &Array, axis: usize, n: usize, inverse: bool, ortho: bool) -> Result<Array> {
    let zero = Array::literal(crate::dtype::Scalar::Int(0), x.dtype(), false);
    let mut config = vec![(0, 0, 0); x.ndim()];
    config[axis].1 = n as i64 - x.shape()[axis] as i64;
    let x = lax::pad(x, &zero, &config).moveaxis(axis as i32, -1);
    let k = lax::iota(x.dtype(), &[n], 0);
    let angle = k * (PI / (2.0 * n as f64));
    let last = x.ndim() - 1;
    let y = if inverse {
        // The orthonormal coefficients, which the backward normalization has times √(2N), and the first times √2 more.
        let scale = scales(&x, n, if ortho { 0.5 } else { 1.0 });
        let turn = complex(angle.cos(), angle.sin());
        let spectrum = (&x / scale * (2.0 * n as f64)).astype(turn.dtype()) * turn;
        let v = real(&crate::fft::ifft(spectrum));
        let half = n.div_ceil(2);
        let even = lax::slice_in_dim(&v, 0, half, last);
        let odd = lax::slice_in_dim(&v, half, n, last).flip(-1);
        interleaved(&even, &odd, n)
    } else {
        let mut steps = vec![1; x.ndim()];
        steps[last] = 2;
        let every_other = |from: usize| {
            let mut start = vec![0; x.ndim()];
            start[last] = from.min(n);
            lax::slice(&x, &start, x.shape(), Some(&steps))
        };
        let v = lax::concatenate(&[every_other(0), every_other(1).flip(-1)], last);
        let turn = complex(angle.cos(), -angle.sin());
        let y = real(&(crate::fft::fft(v) * turn)) * 2;
        if ortho { &y / scales(&y, n, 0.5) } else { y }
    };
    Ok(y.moveaxis(-1, axis as i32))
}

/// The norms of the transform's rows, `√(4N)` for the first and `√(2N)` for the others, to a power of twice `half`.
fn scales(like: &Array, n: usize, half: f64) -> Array {
    let n = n as f64;
    let first = lax::iota(DType::I32, &[n as usize], 0).equal(0);
    crate::ops::numpy::where_(first, (4.0 * n).powf(half), (2.0 * n).powf(half)).astype(like.dtype())
}

/// Elements of both in turn along the last axis.
fn interleaved(even: &Array, odd: &Array, n: usize) -> Array {
    let last = even.ndim() - 1;
    let zero = Array::literal(crate::dtype::Scalar::Int(0), even.dtype(), false);
    let spread = |x: &Array, from: i64| {
        let mut config = vec![(0, 0, 0); x.ndim()];
        let size = x.shape()[last] as i64;
        let own = if size == 0 { 0 } else { 2 * size - 1 };
        config[last] = (from, n as i64 - own - from, 1);
        lax::pad(x, &zero, &config)
    };
    spread(even, 0) + spread(odd, 1)
}
