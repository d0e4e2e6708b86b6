//! Binomial coefficients, Pochhammer symbols, Bernoulli numbers and power transforms.

use super::{gammaln, gammasgn, real_elementwise};
use crate::core::array::Array;
use crate::ops::numpy::{isnan, where_};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::special::products::{BOXCOX, BOXCOX1P, LOG_RISE};
use crate::ops::primitive::unary::{EXP, LGAMMA};

/// Returns the number of ways to choose `k` of `n` things; 0 unless `0 ≤ k ≤ n`. With `repetition`, a thing can be
/// chosen several times.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::scipy::special::comb;
/// assert!((comb(5, 2, false).item::<f32>()? - 10.0).abs() < 1e-4);
/// assert!((comb(5, 2, true).item::<f32>()? - 15.0).abs() < 1e-4);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn comb(n: impl ArrayLike, k: impl ArrayLike, repetition: bool) -> Array {
    real_elementwise("comb", &[n.into_array(), k.into_array()], |a| {
        let (n, k) = (&a[0], &a[1]);
        if repetition {
            return where_(k.equal(0) & n.greater_equal(0), 1, choices(&(n + k - 1), k));
        }
        choices(n, k)
    })
}

fn choices(n: &Array, k: &Array) -> Array {
    let inside = k.less_equal(n) & n.greater_equal(0) & k.greater_equal(0);
    let outside = where_(isnan(n) | isnan(k), f64::NAN, 0.0);
    let (n, k) = (where_(&inside, n, 0), where_(&inside, k, 0));
    let log = LGAMMA.apply(&(&n + 1)) - LGAMMA.apply(&(&k + 1)) - LGAMMA.apply(&(&n - &k + 1));
    where_(inside, EXP.apply(&log), outside)
}

/// Returns the Pochhammer symbol, `Γ(z + m) / Γ(z)`.
///
/// ```
/// # use shardax::prelude::*;
/// assert!((shardax::scipy::special::poch(4.0, 2.0).item::<f32>()? - 20.0).abs() < 1e-3);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn poch(z: impl ArrayLike, m: impl ArrayLike) -> Array {
    real_elementwise("poch", &[z.into_array(), m.into_array()], |a| {
        let (z, m) = (&a[0], &a[1]);
        where_(m.equal(0), 1, gammasgn(z + m) * gammasgn(z) * EXP.apply(&LOG_RISE.apply(a)))
    })
}

/// Returns the logarithm of the gamma function of positive numbers; NaN for others.
///
/// ```
/// # use shardax::prelude::*;
/// assert!((shardax::scipy::special::loggamma(5.0).item::<f32>()? - 24f32.ln()).abs() < 1e-5);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn loggamma(x: impl ArrayLike) -> Array {
    real_elementwise("loggamma", &[x.into_array()], |x| where_(x[0].greater(0), gammaln(&x[0]), f64::NAN))
}

/// Returns the Box-Cox transform, `(x^λ - 1) / λ`, and `log(x)` where `λ` is 0.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(shardax::scipy::special::boxcox(array([1.0f32, 4.0]), 0.5).to_vec::<f32>()?, [0.0, 2.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn boxcox(x: impl ArrayLike, lmbda: impl ArrayLike) -> Array {
    real_elementwise("boxcox", &[x.into_array(), lmbda.into_array()], |a| BOXCOX.apply(a))
}

/// Computes [`boxcox`] of `1 + x`.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(shardax::scipy::special::boxcox1p(array([0.0f32, 3.0]), 0.5).to_vec::<f32>()?, [0.0, 2.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn boxcox1p(x: impl ArrayLike, lmbda: impl ArrayLike) -> Array {
    real_elementwise("boxcox1p", &[x.into_array(), lmbda.into_array()], |a| BOXCOX1P.apply(a))
}

/// Returns the Bernoulli numbers `B₀` to `Bₙ`, with `B₁ = -1/2`, in float32.
///
/// ```
/// # use shardax::prelude::*;
/// let b = shardax::scipy::special::bernoulli(4);
/// assert!(allclose(b, array([1.0f32, -0.5, 1.0 / 6.0, 0.0, -1.0 / 30.0]), 1e-6, 1e-6)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn bernoulli(n: usize) -> Array {
    // Even ones from the zeta function (DLMF 25.6.2); larger ones overflow float32.
    let mut factor = 2.0f64;
    let values: Vec<f32> = (0..=n)
        .map(|k| {
            if k > 0 {
                factor *= k as f64 / (2.0 * std::f64::consts::PI);
            }
            match k {
                0 => 1.0,
                1 => -0.5,
                _ if k % 2 == 1 => 0.0,
                _ => {
                    let zeta: f64 = (1..1000).rev().map(|j| f64::from(j).powf(-(k as f64))).sum();
                    let zeta = if k == 2 { std::f64::consts::PI.powi(2) / 6.0 } else { zeta };
                    (if k % 4 == 0 { -factor * zeta } else { factor * zeta }) as f32
                }
            }
        })
        .collect();
    Array::from_result(Array::from_vec(values, &[n + 1]), &Array::from(0.0f32))
}
