//! Derivatives of the digamma function. StableHLO's `chlo.polygamma` loses them below 0.

use super::{constant, widened, zeta::BERNOULLI};
use crate::core::array::Array;
use crate::dtype::DType;
use crate::ops::primitive::binary::POW;
use crate::ops::primitive::unary::{ABS, DIGAMMA, EXP, FLOOR, LGAMMA, ROUND};
use crate::ops::select::where_;

/// The `n`-th derivative of digamma at `x`; NaN unless `n` is a natural number.
pub(in crate::ops::primitive) fn polygamma(n: &Array, x: &Array) -> Array {
    widened(&[n.clone(), x.clone()], |args| {
        let (n, x) = (&args[0], &args[1]);
        let is_digamma = n.equal(0);
        let is_order = n.greater_equal(0) & FLOOR.apply(n).equal(n);
        let order = where_(n.greater_equal(1), n, 1);
        let odd = where_((FLOOR.apply(&(&order * 0.5)) * 2).equal(&order), -1.0, 1.0).astype(x.dtype());
        let value = derivative(&order, &odd, x);
        let value = where_(is_digamma, DIGAMMA.apply(x), value);
        Ok(where_(is_order, value, constant(f64::NAN, x)))
    })
}

/// `ψₙ(x)` is `odd · n! Σ (x + k)⁻ⁿ⁻¹` over k from 0, where `odd` is 1 for odd orders and -1 for even ones. Below 0,
/// the sum is computed as the sum over all integers, which is periodic, without the terms of negative k. These terms
/// are again a sum of positive numbers.
fn derivative(n: &Array, odd: &Array, x: &Array) -> Array {
    let is_negative = x.less_equal(0);
    // All numbers of such a size are integers.
    let bounded = x.maximum(-1e30);
    let offset = &bounded - ROUND.apply(&bounded);
    let near = ABS.apply(&offset);
    let argument = where_(&is_negative, &near, x);
    let direct = positive(n, &argument);
    // The two sides of the nearest integer: the sum upwards from `x` has the sign 1, the other sum the sign `odd`.
    let mirrored = positive(n, &(1 - &near));
    let above = offset.greater_equal(0);
    let (upwards, downwards) = (where_(&above, &direct, &mirrored), where_(above, &mirrored, &direct));
    // At halves, the two sides of an even order cancel exactly.
    let reflected = (upwards + odd * downwards) - odd * positive(n, &(1 - where_(&is_negative, &bounded, 0)));
    // For odd orders, a pole has the same sign on both sides. For even orders, only a pole at 0 has a side, which is
    // the sign of the zero.
    let pole = where_(odd.greater(0), f64::INFINITY, where_(x.equal(0), 1 / x, f64::NAN));
    let reflected = where_(near.equal(0), pole, reflected);
    odd * where_(is_negative, reflected, direct)
}

/// `n! Σ (x + k)⁻ⁿ⁻¹`, by the Euler-Maclaurin formula ([DLMF 25.11.5](https://dlmf.nist.gov/25.11.E5)). The factor `n!
/// x⁻ⁿ` is applied in two halves, because `x⁻ⁿ` alone can be too small for the dtype.
fn positive(n: &Array, x: &Array) -> Array {
    let (count, terms) = if x.dtype() == DType::F64 { (16, BERNOULLI.len()) } else { (8, 5) };
    let sum = (1..count).fold(1 / x, |sum, k| {
        let base = x + f64::from(k);
        sum + POW.apply(&(x / &base), n) / base
    });
    let end = x + f64::from(count);
    let inverse = 1 / &end;
    let square = &inverse * &inverse;
    // (n + 1) … (n + 2j - 1) / end²ʲ
    let mut product = (n + 1) * &square;
    let mut tail = 1 / n + &inverse * 0.5;
    for (j, bernoulli) in BERNOULLI.iter().take(terms).enumerate() {
        tail = tail + &product * *bernoulli;
        product = product * (n + (2 * j + 2) as f64) * (n + (2 * j + 3) as f64) * &square;
    }
    let half = POW.apply(x, &(n * -0.5));
    (sum + POW.apply(&(x / &end), n) * tail) * &half * EXP.apply(&LGAMMA.apply(&(n + 1))) * half
}
