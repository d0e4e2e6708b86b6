//! The derivatives of the Hurwitz zeta function.

use crate::core::array::Array;
use crate::dtype::DType;
use crate::ops::primitive::binary::ZETA;
use crate::ops::primitive::unary::{EXP, LOG};
use crate::ops::select::where_;

/// `B₂ⱼ / (2j)!` for j from 1: the Bernoulli numbers of the Euler-Maclaurin sum.
pub(super) const BERNOULLI: [f64; 8] = [
    1.0 / 12.0,
    -1.0 / 720.0,
    1.0 / 30240.0,
    -1.0 / 1_209_600.0,
    1.0 / 47_900_160.0,
    -691.0 / 1_307_674_368_000.0,
    1.0 / 74_724_249_600.0,
    -3617.0 / 10_670_622_842_880_000.0,
];

/// The derivative of `Σ (q + k)⁻ˢ` with respect to `s`. It differentiates the Euler-Maclaurin sum term by term
/// ([Johansson, Rigorous high-precision computation of the Hurwitz zeta function](https://arxiv.org/abs/1309.2877),
/// formula 5).
pub(crate) fn zeta_slope(s: &Array, q: &Array) -> Array {
    let wide = if s.dtype().bits() < 32 { DType::F32 } else { s.dtype() };
    let (dtype, s, q) = (s.dtype(), s.astype(wide), q.astype(wide));
    let count = if wide == DType::F64 { 16 } else { 8 };
    let first_terms = (0..count).map(|k| {
        let base = &q + k;
        -(LOG.apply(&base) * power(&base, &-&s))
    });
    let end = &q + count;
    let (log, rest) = (LOG.apply(&end), &s - 1);
    let tail = power(&end, &-&s);
    let integral = -(&tail * &end / &rest) * (&log + 1 / &rest);
    let half = -(&log * &tail) * 0.5;
    // s (s + 1) … (s + 2j - 2) / end²ʲ⁻¹, and the derivative of its logarithm.
    let (mut product, mut slope) = (&s / &end, 1 / &s - &log);
    let mut corrections = Vec::new();
    for (j, bernoulli) in BERNOULLI.iter().enumerate() {
        corrections.push(&tail * &product * &slope * *bernoulli);
        for i in [2 * j + 1, 2 * j + 2] {
            let factor = &s + i as f64;
            product = product * &factor / &end;
            slope = slope + 1 / factor;
        }
    }
    let sum = first_terms.chain(corrections).fold(integral + half, |sum, term| sum + term);
    sum.astype(dtype)
}

/// Raises a positive base to a power.
fn power(base: &Array, exponent: &Array) -> Array {
    EXP.apply(&(exponent * LOG.apply(base)))
}

/// The derivative of the function with respect to `q`, `-s ζ(s + 1, q)`. XLA multiplies powers that underflow long before
/// the derivative does, so for large `q` it is the Euler-Maclaurin sum of `q⁻ˢ`, without the first terms.
pub(crate) fn zeta_decay(s: &Array, q: &Array) -> Array {
    let wide = if s.dtype().bits() < 32 { DType::F32 } else { s.dtype() };
    let (dtype, s, q) = (s.dtype(), s.astype(wide), q.astype(wide));
    let is_far = q.greater(&s * 4 + 20) & q.less(f64::INFINITY) & s.greater(1);
    let (far_s, far_q) = (where_(&is_far, &s, 2), where_(&is_far, &q, 100));
    let mut sum = 1 + &far_s / (&far_q * 2);
    let mut product = &far_s * (&far_s + 1) / (&far_q * &far_q);
    for (j, bernoulli) in BERNOULLI.iter().enumerate() {
        sum = sum + &product * *bernoulli;
        for i in [2 * j + 2, 2 * j + 3] {
            product = product * (&far_s + i as f64) / &far_q;
        }
    }
    let far = power(&far_q, &-&far_s) * sum;
    // The other formula must not add to derivatives where it underflows.
    let near = &s * ZETA.apply(&(&s + 1), &where_(&is_far, 1, &q));
    (-where_(is_far, far, near)).astype(dtype)
}
