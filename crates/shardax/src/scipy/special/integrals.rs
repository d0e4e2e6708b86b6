//! Functions defined by integrals of exponentials and logarithms.

use super::real_elementwise;
use crate::core::array::Array;
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::special::{DAWSON, ERFCX, EXPI, EXPN, SPENCE};

/// The exponential integral `Ei(x)`, the principal value of `∫ exp(t) / t` over t up to `x`.
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

/// The exponential integral `E₁(x)`, [`expn`] of order 1.
#[track_caller]
pub fn exp1(x: impl ArrayLike) -> Array {
    expn(1, x)
}

/// The generalized exponential integral `Eₙ(x)`, `∫ exp(-x t) / tⁿ` over t from 1. NaN for negative `n` and `x`; only
/// differentiable with respect to `x`.
#[track_caller]
pub fn expn(n: impl ArrayLike, x: impl ArrayLike) -> Array {
    real_elementwise("expn", &[n.into_array(), x.into_array()], |a| EXPN.apply(a))
}

/// Spence's function, `∫ log(t) / (1 - t)` over t from 1 to `x`: the dilogarithm of `1 - x`. NaN for negative `x`.
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

/// The scaled complementary error function, `exp(x²) erfc(x)`.
#[track_caller]
pub fn erfcx(x: impl ArrayLike) -> Array {
    real_elementwise("erfcx", &[x.into_array()], |x| ERFCX.apply(x))
}

/// Dawson's integral, `exp(-x²) ∫ exp(t²)` over t from 0 to `x`.
#[track_caller]
pub fn dawsn(x: impl ArrayLike) -> Array {
    real_elementwise("dawsn", &[x.into_array()], |x| DAWSON.apply(x))
}
