//! Functions defined by integrals of exponentials and logarithms.

use super::real_elementwise;
use crate::core::array::Array;
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::special::{CI, DAWSON, ERFCX, EXPI, EXPN, FRESNEL_C, FRESNEL_S, OWENS_T, SI, SPENCE};

/// Returns the exponential integral `Ei(x)`, the principal value of `∫ exp(t) / t` over t up to `x`.
///
/// ```
/// # use shardax::prelude::*;
/// assert!((shardax::scipy::special::expi(1.0).item::<f32>()? - 1.895118).abs() < 1e-5);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn expi(x: impl ArrayLike) -> Array {
    real_elementwise("expi", &[x.into_array()], |x| EXPI.apply(x))
}

/// Returns the exponential integral `E₁(x)`, [`expn`] of order 1.
///
/// ```
/// # use shardax::prelude::*;
/// assert!((shardax::scipy::special::exp1(1.0).item::<f32>()? - 0.219384).abs() < 1e-5);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn exp1(x: impl ArrayLike) -> Array {
    expn(1, x)
}

/// Returns the generalized exponential integral `Eₙ(x)`, `∫ exp(-x t) / tⁿ` over t from 1. NaN for negative `n` and
/// `x`; only differentiable with respect to `x`.
///
/// ```
/// # use shardax::prelude::*;
/// assert!((shardax::scipy::special::expn(2, 1.0).item::<f32>()? - 0.148496).abs() < 1e-5);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn expn(n: impl ArrayLike, x: impl ArrayLike) -> Array {
    real_elementwise("expn", &[n.into_array(), x.into_array()], |a| EXPN.apply(a))
}

/// Computes Spence's function, `∫ log(t) / (1 - t)` over t from 1 to `x`: the dilogarithm of `1 - x`. NaN for negative
/// `x`.
///
/// ```
/// # use shardax::prelude::*;
/// let x = shardax::scipy::special::spence(0.0).item::<f32>()?;
/// assert!((x - std::f32::consts::PI.powi(2) / 6.0).abs() < 1e-5);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn spence(x: impl ArrayLike) -> Array {
    real_elementwise("spence", &[x.into_array()], |x| SPENCE.apply(x))
}

/// Returns the scaled complementary error function, `exp(x²) erfc(x)`.
///
/// ```
/// # use shardax::prelude::*;
/// assert!((shardax::scipy::special::erfcx(1.0).item::<f32>()? - 0.427584).abs() < 1e-5);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn erfcx(x: impl ArrayLike) -> Array {
    real_elementwise("erfcx", &[x.into_array()], |x| ERFCX.apply(x))
}

/// Computes Dawson's integral, `exp(-x²) ∫ exp(t²)` over t from 0 to `x`.
///
/// ```
/// # use shardax::prelude::*;
/// assert!((shardax::scipy::special::dawsn(1.0).item::<f32>()? - 0.538080).abs() < 1e-5);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn dawsn(x: impl ArrayLike) -> Array {
    real_elementwise("dawsn", &[x.into_array()], |x| DAWSON.apply(x))
}

/// Returns the sine and cosine integrals, `Si(x) = ∫ sin(t) / t` over t from 0 to `x`, and `Ci(x) = γ + log|x| + ∫
/// (cos(t) - 1) / t`.
///
/// ```
/// # use shardax::prelude::*;
/// let (si, ci) = shardax::scipy::special::sici(array([1.0f32]));
/// assert!(allclose(si, array([0.9460831f32]), 1e-5, 1e-6)? && allclose(ci, array([0.3374039f32]), 1e-5, 1e-6)?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn sici(x: impl ArrayLike) -> (Array, Array) {
    let x = &[x.into_array()];
    (real_elementwise("sici", x, |x| SI.apply(x)), real_elementwise("sici", x, |x| CI.apply(x)))
}

/// Returns the Fresnel integrals, `S(x) = ∫ sin(π t² / 2)` over t from 0 to `x`, and `C(x) = ∫ cos(π t² / 2)`.
///
/// ```
/// # use shardax::prelude::*;
/// let (s, c) = shardax::scipy::special::fresnel(array([1.0f32]));
/// assert!(allclose(s, array([0.4382591f32]), 1e-5, 1e-6)? && allclose(c, array([0.7798934f32]), 1e-5, 1e-6)?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn fresnel(x: impl ArrayLike) -> (Array, Array) {
    let x = &[x.into_array()];
    (real_elementwise("fresnel", x, |x| FRESNEL_S.apply(x)), real_elementwise("fresnel", x, |x| FRESNEL_C.apply(x)))
}

/// Computes Owen's T function: the probability that `X > h` and `0 < Y < a X` for independent standard normal numbers.
///
/// ```
/// # use shardax::prelude::*;
/// let t = shardax::scipy::special::owens_t(0.0, 1.0).item::<f32>()?;
/// assert!((t - 0.125).abs() < 1e-6);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn owens_t(h: impl ArrayLike, a: impl ArrayLike) -> Array {
    real_elementwise("owens_t", &[h.into_array(), a.into_array()], |a| OWENS_T.apply(a))
}
