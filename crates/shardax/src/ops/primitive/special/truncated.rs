//! The standard normal distribution between two bounds.

use std::f64::consts::PI;

use super::super::expanded::expanded;
use super::{LOG_NDTR, cumulative, log_density, widened};
use crate::core::array::Array;
use crate::dtype::DType;
use crate::ops::primitive::stop_gradient::stop_gradient;
use crate::ops::select::where_;

expanded! {
    // The probability below x, between a and b, of operands x, a and b
    TRUNCATED_BELOW "truncated_below" Float, |a| widened(a, |a| Ok(log_below(&a[0], &a[1], &a[2]).exp())), |a, y, i, t| {
        t * match i {
            0 => TRUNCATED_DENSITY.apply(a),
            // The probability above x, which has digits where the one below is next to 1.
            1 => -density_at(&a[1], a) * TRUNCATED_BELOW.apply(&[-&a[0], -&a[2], -&a[1]]),
            _ => -density_at(&a[2], a) * y,
        }
    };
    // The density at x, of the same operands
    TRUNCATED_DENSITY "truncated_density" Float, |a| widened(a, |a| Ok((log_density(&a[0]) - log_mass(&a[1], &a[2])).exp())),
        |a, y, i, t| t * y * match i {
            0 => -&a[0],
            1 => density_at(&a[1], a),
            _ => -density_at(&a[2], a),
        };
}

/// The density at a bound; 0 at infinity.
fn density_at(bound: &Array, operands: &[Array]) -> Array {
    TRUNCATED_DENSITY.apply(&[bound.clone(), operands[1].clone(), operands[2].clone()])
}

/// The logarithm of the probability that the variable is below `x`.
pub(crate) fn log_below(x: &Array, a: &Array, b: &Array) -> Array {
    let total = log_mass(a, b);
    let below = log_mass(a, x) - &total;
    let above = log_mass(x, b) - total;
    // A logarithm close to 0 has more digits if it is computed from the other side.
    let is_close = below.greater(-0.1);
    // The derivative of the branch that is not selected must be finite, because it multiplies a cotangent of 0.
    let above = where_(&is_close, above, -1);
    where_(is_close, (-above.exp()).log1p(), &below)
}

/// The logarithm of the probability that a standard normal variable is between `a` and `b`. In a tail, it is computed from that tail,
/// because the difference has more digits there; in the center, it is 1 minus both tails.
pub(crate) fn log_mass(a: &Array, b: &Array) -> Array {
    let (width, middle) = (b - a, (a + b) * 0.5);
    let narrow_width = if a.dtype() == DType::F64 { 0.01 } else { 0.1 };
    let is_narrow = width.greater(0) & (&width * (middle.abs() + 1)).less(narrow_width);
    let narrow = log_narrow_mass(&where_(&is_narrow, middle, 0), &where_(&is_narrow, width, 1));
    // The branches that are not selected must have finite derivatives too.
    let (a, b) = (&where_(&is_narrow, -1, a), &where_(&is_narrow, 1, b));
    let (left, right) = (b.less_equal(0), a.greater(0));
    let low = where_(&right, -b, a);
    let high = where_(&right, -a, b);
    let tail = log_difference(&LOG_NDTR.apply(&[high]), &LOG_NDTR.apply(&[low]));
    let is_tail = left | right;
    // In a tail, both probabilities may add up to 1, where the derivative of the logarithm is infinite. Any number that is not used
    // avoids that.
    let [below, above] = [cumulative(a), cumulative(&-b)].map(|probability| where_(&is_tail, 0.25, probability));
    let center = (-below - above).log1p();
    where_(is_narrow, narrow, where_(&is_tail, tail, center))
}

/// The logarithm of the mass of a narrow interval, computed with the Taylor series of the density around the middle.
fn log_narrow_mass(middle: &Array, width: &Array) -> Array {
    let (m, w) = (middle.square(), width.square());
    let correction = &w * (&m - 1) / 24 + w.square() * (m.square() - &m * 6 + 3) / 1920;
    width.log() - m / 2 - (2.0 * PI).ln() / 2.0 + correction.log1p()
}

/// `log(exp(x) - exp(y))`.
fn log_difference(x: &Array, y: &Array) -> Array {
    let most = stop_gradient(x.maximum(y));
    let most = where_(most.isfinite(), &most, 0);
    ((x - &most).exp() - (y - &most).exp()).log() + most
}
