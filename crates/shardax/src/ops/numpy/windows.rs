//! Window functions of signal processing: `m` numbers, float32.

use std::f64::consts::PI;

use super::checked_or_failed;
use crate::core::array::Array;
use crate::dtype::{DType, Scalar};
use crate::error::Result;
use crate::ops::lax;
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::composite::composite1;
use crate::ops::primitive::special::BESSEL_I0E;

/// The numbers 0 to `m - 1`, for a window of more than one element.
fn places(m: usize) -> Array {
    lax::iota(DType::F32, &[m], 0)
}

macro_rules! windows {
    ($($(#[$doc:meta])* $name:ident => |$n:ident, $last:ident| $body:expr;)*) => {$(
        $(#[$doc])*
        #[track_caller]
        pub fn $name(m: usize) -> Array {
            checked_or_failed(&Array::literal(Scalar::Int(1), DType::F32, false), || {
                if m <= 1 {
                    return Ok(super::filled(&[m], Scalar::Int(1), DType::F32));
                }
                composite1(stringify!($name), m, &[], |&m, _| {
                    let ($n, $last) = (&places(m), m as f64 - 1.0);
                    Ok(vec![$body])
                })
            })
        }
    )*};
}

windows! {
    /// The Hann window, `0.5 - 0.5 cos(2πn / (m - 1))`.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// # use shardax::numpy::hanning;
    /// assert!(allclose(hanning(3), array([0.0f32, 1.0, 0.0]), 1e-6, 1e-6)?);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    hanning => |n, last| 0.5 * (1 - (n * (2.0 * PI) / last).cos());
    /// The Hamming window, `0.54 - 0.46 cos(2πn / (m - 1))`.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert!(allclose(hamming(3), array([0.08f32, 1.0, 0.08]), 1e-5, 0.0)?);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    hamming => |n, last| 0.54 - 0.46 * (n * (2.0 * PI) / last).cos();
    /// The Blackman window, `0.42 - 0.5 cos(2πn / (m - 1)) + 0.08 cos(4πn / (m - 1))`.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert!(allclose(blackman(3), array([0.0f32, 1.0, 0.0]), 0.0, 1e-6)?);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    blackman => |n, last| 0.42 - 0.5 * (n * (2.0 * PI) / last).cos() + 0.08 * (n * (4.0 * PI) / last).cos();
    /// The Bartlett window, a triangle with zeros at its ends.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(bartlett(3).to_vec::<f32>()?, [0.0, 1.0, 0.0]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    bartlett => |n, last| 1 - (n * 2 - last).abs() / last;
}

/// Returns the Kaiser window of this shape parameter, a number: `i0(β sqrt(1 - (2n / (m - 1) - 1)²)) / i0(β)`.
///
/// ```
/// # use shardax::prelude::*;
/// assert!(allclose(kaiser(3, 0.0), ones([3]), 1e-6, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn kaiser(m: usize, beta: impl ArrayLike) -> Array {
    let beta = beta.into_array();
    checked_or_failed(&beta, || {
        if m <= 1 {
            return Ok(super::filled(&[m], Scalar::Int(1), DType::F32));
        }
        composite1("kaiser", m, std::slice::from_ref(&beta), |&m, args| -> Result<Vec<Array>> {
            let half = (m as f64 - 1.0) / 2.0;
            let from_center = (places(m) - half) / half;
            let beta = super::convert(&args[0], super::to_inexact(args[0].dtype()), args[0].weak_type());
            let inner = &beta * (1 - &from_center * &from_center).sqrt();
            Ok(vec![i0(&inner) / i0(&super::convert(&beta, inner.dtype(), false))])
        })
    })
}

/// The modified Bessel function of order 0.
fn i0(x: &Array) -> Array {
    x.abs().exp() * BESSEL_I0E.apply(std::slice::from_ref(x))
}
