//! The gamma function and its family.

use super::{elementwise, real_elementwise};
use crate::core::array::Array;
use crate::error::err;
use crate::ops::numpy::{isnan, where_};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::binary::POLYGAMMA;
use crate::ops::primitive::special::products::LOG_BETA;
use crate::ops::primitive::special::{BETAINC, IGAMMA, IGAMMAC, zeta as hurwitz};
use crate::ops::primitive::unary::{DIGAMMA, EXP, LGAMMA};

/// Returns the logarithm of the absolute value of the gamma function.
///
/// ```
/// # use shardax::prelude::*;
/// let x = shardax::scipy::special::gammaln(array([1.0f32, 5.0]));
/// assert!(allclose(x, array([0.0f32, 24f32.ln()]), 1e-6, 1e-6)?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn gammaln(x: impl ArrayLike) -> Array {
    real_elementwise("gammaln", &[x.into_array()], |x| LGAMMA.apply(&x[0]))
}

/// Returns the sign of the gamma function: NaN at the negative integers.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(shardax::scipy::special::gammasgn(array([0.5f32, -0.5])).to_vec::<f32>()?, [1.0, -1.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn gammasgn(x: impl ArrayLike) -> Array {
    real_elementwise("gammasgn", &[x.into_array()], |x| sign(&x[0]))
}

fn sign(x: &Array) -> Array {
    let floor = x.floor();
    let negative = x.less(0);
    let pole = (&negative & x.equal(&floor)) | x.not_equal(x);
    let odd = &negative & (&floor - (&floor * 0.5).floor() * 2).not_equal(0);
    // The reciprocal distinguishes -0 from 0.
    let below = x.equal(0) & x.reciprocal().less(0);
    where_(pole, f64::NAN, where_(odd | below, -1.0, 1.0)).astype(x.dtype())
}

/// Returns the gamma function.
///
/// ```
/// # use shardax::prelude::*;
/// assert!((shardax::scipy::special::gamma(5.0).item::<f32>()? - 24.0).abs() < 1e-3);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn gamma(x: impl ArrayLike) -> Array {
    real_elementwise("gamma", &[x.into_array()], |x| sign(&x[0]) * EXP.apply(&LGAMMA.apply(&x[0])))
}

/// Computes `n!`; 0 for negative numbers.
///
/// ```
/// # use shardax::prelude::*;
/// assert!((shardax::scipy::special::factorial(5).item::<f32>()? - 120.0).abs() < 1e-2);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn factorial(n: impl ArrayLike) -> Array {
    real_elementwise("factorial", &[n.into_array()], |n| {
        where_(n[0].less(0), 0.0, EXP.apply(&LGAMMA.apply(&(&n[0] + 1)))).astype(n[0].dtype())
    })
}

/// Returns the derivative of [`gammaln`].
///
/// ```
/// # use shardax::prelude::*;
/// // Minus Euler's constant.
/// assert!((shardax::scipy::special::digamma(1.0).item::<f32>()? + 0.577216).abs() < 1e-5);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn digamma(x: impl ArrayLike) -> Array {
    real_elementwise("digamma", &[x.into_array()], |x| DIGAMMA.apply(&x[0]))
}

/// Returns the `n`-th derivative of [`digamma`]. `n` is an integer; only differentiable with respect to `x`.
///
/// ```
/// # use shardax::prelude::*;
/// let x = shardax::scipy::special::polygamma(1, 1.0).item::<f32>()?;
/// assert!((x - std::f32::consts::PI.powi(2) / 6.0).abs() < 1e-5);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn polygamma(n: impl ArrayLike, x: impl ArrayLike) -> Array {
    let (n, x) = (n.into_array(), x.into_array());
    if n.error().is_none() && n.dtype().is_inexact() {
        let e = err!(Type, "Argument `n` to polygamma must be of integer type, got {}", n.type_name())
            .help("convert it with `astype(DType::I32)`");
        return Array::from_result(Err(e), &x);
    }
    real_elementwise("polygamma", &[n, x], |a| POLYGAMMA.apply(&a[0], &a[1]))
}

/// Returns the Hurwitz zeta function, `Σ (q + k)⁻ˢ` over k from 0.
///
/// ```
/// # use shardax::prelude::*;
/// let x = shardax::scipy::special::zeta(2.0, 1.0).item::<f32>()?;
/// assert!((x - std::f32::consts::PI.powi(2) / 6.0).abs() < 1e-5);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn zeta(s: impl ArrayLike, q: impl ArrayLike) -> Array {
    real_elementwise("zeta", &[s.into_array(), q.into_array()], |a| hurwitz(&a[0], &a[1]))
}

/// Returns the logarithm of the multivariate gamma function of dimension `d`.
///
/// ```
/// # use shardax::prelude::*;
/// assert!((shardax::scipy::special::multigammaln(2.0, 2).item::<f32>()? - 0.451583).abs() < 1e-5);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn multigammaln(a: impl ArrayLike, d: u32) -> Array {
    real_elementwise("multigammaln", &[a.into_array()], |a| {
        let n = f64::from(d);
        let constant = 0.25 * n * (n - 1.0) * std::f64::consts::PI.ln();
        let terms = (0..d.min(MAX_DIMENSION)).map(|j| LGAMMA.apply(&(&a[0] - 0.5 * f64::from(j))));
        // Without terms the result is 0, or NaN where `a` is; infinity times 0 would be NaN.
        terms.reduce(|sum, term| sum + term).unwrap_or_else(|| where_(isnan(&a[0]), &a[0], 0)) + constant
    })
}

/// The largest dimension. It is limited because each term of the sum is an operation of the program.
const MAX_DIMENSION: u32 = 4096;

/// Returns the regularized lower incomplete gamma function: the integral of `tᵃ⁻¹ exp(-t) / Γ(a)` up to `x`.
///
/// You can differentiate it with respect to both arguments, but only once with respect to `a`.
///
/// ```
/// # use shardax::prelude::*;
/// let p = shardax::scipy::special::gammainc(1.0, 1.0).item::<f32>()?;
/// assert!((p - (1.0 - (-1f32).exp())).abs() < 1e-5);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn gammainc(a: impl ArrayLike, x: impl ArrayLike) -> Array {
    real_elementwise("gammainc", &[a.into_array(), x.into_array()], |a| IGAMMA.apply(a))
}

/// Computes `1 - gammainc(a, x)`, accurate where the result is small.
///
/// ```
/// # use shardax::prelude::*;
/// let q = shardax::scipy::special::gammaincc(1.0, 1.0).item::<f32>()?;
/// assert!((q - (-1f32).exp()).abs() < 1e-5);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn gammaincc(a: impl ArrayLike, x: impl ArrayLike) -> Array {
    real_elementwise("gammaincc", &[a.into_array(), x.into_array()], |a| IGAMMAC.apply(a))
}

/// Returns the beta function, `Γ(a) Γ(b) / Γ(a + b)`.
///
/// ```
/// # use shardax::prelude::*;
/// assert!((shardax::scipy::special::beta(2.0, 3.0).item::<f32>()? - 1.0 / 12.0).abs() < 1e-6);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn beta(a: impl ArrayLike, b: impl ArrayLike) -> Array {
    real_elementwise("beta", &[a.into_array(), b.into_array()], |x| {
        let (a, b) = (&x[0], &x[1]);
        sign(a) * sign(b) * sign(&(a + b)) * EXP.apply(&LOG_BETA.apply(x))
    })
}

/// Returns the logarithm of the absolute value of [`beta`].
///
/// ```
/// # use shardax::prelude::*;
/// assert!((shardax::scipy::special::betaln(2.0, 3.0).item::<f32>()? + 12f32.ln()).abs() < 1e-5);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn betaln(a: impl ArrayLike, b: impl ArrayLike) -> Array {
    elementwise("betaln", &[a.into_array(), b.into_array()], |x| LOG_BETA.apply(x))
}

/// Returns the regularized incomplete beta function: the integral of `tᵃ⁻¹ (1 - t)ᵇ⁻¹` up to `x`, divided by [`beta`].
///
/// Only differentiable with respect to `x`, as in JAX.
///
/// ```
/// # use shardax::prelude::*;
/// assert!((shardax::scipy::special::betainc(1.0, 1.0, 0.25).item::<f32>()? - 0.25).abs() < 1e-5);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn betainc(a: impl ArrayLike, b: impl ArrayLike, x: impl ArrayLike) -> Array {
    real_elementwise("betainc", &[a.into_array(), b.into_array(), x.into_array()], |a| BETAINC.apply(a))
}
