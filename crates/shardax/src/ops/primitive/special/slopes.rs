//! Derivatives of elementary functions. A derivative that is computed from the function's value loses digits if the
//! value is close to a limit, and the second derivative loses them close to 0. Therefore each derivative is a function
//! with a separate derivative.

use super::super::expanded::expanded;
use super::{constant, widened};
use crate::core::array::Array;
use crate::ops::lax::complex;
use crate::ops::primitive::unary::{ABS, EXP, IMAG, LOGISTIC, REAL, RSQRT, SQRT, TANH};
use crate::ops::select::where_;

expanded! {
    // 1 / cosh²(x)
    TANH_SLOPE "tanh_slope" Inexact, |x| {
        if x[0].dtype().is_complex() {
            let y = TANH.apply(&x[0]);
            return (1 + &y) * (1 - y);
        }
        widened(x, |x| {
            let small = EXP.apply(&(ABS.apply(&x[0]) * -2));
            let rise = 1 + &small;
            Ok(small / (&rise * &rise) * 4)
        })
    }, |x, y, _, t| t * (TANH.apply(&x[0]) * y * -2);
    // 1 / (4 cosh²(x / 2))
    LOGISTIC_SLOPE "logistic_slope" Inexact, |x| {
        if x[0].dtype().is_complex() {
            return LOGISTIC.apply(&x[0]) * LOGISTIC.apply(&-&x[0]);
        }
        widened(x, |x| {
            let small = EXP.apply(&-ABS.apply(&x[0]));
            let rise = 1 + &small;
            Ok(small / (&rise * &rise))
        })
    },
        |x, y, _, t| t * (TANH.apply(&(&x[0] * -0.5)) * y);
    // 1 / √(1 - x²)
    ASIN_SLOPE "asin_slope" Inexact, |x| RSQRT.apply(&((1 - &x[0]) * (1 + &x[0]))),
        |x, y, _, t| t * (&x[0] * y * y * y);
    // 1 / (1 - x²)
    ATANH_SLOPE "atanh_slope" Float, |x| 1 / ((1 - &x[0]) * (1 + &x[0])), |x, y, _, t| t * (&x[0] * y * y * 2);
    // 1 / (1 + x²)
    ATAN_SLOPE "atan_slope" Float, |x| {
        let is_large = ABS.apply(&x[0]).greater(1);
        let near = where_(&is_large, 0, &x[0]);
        let inverse = 1 / where_(&is_large, &x[0], 1);
        let square = &inverse * &inverse;
        where_(is_large, &square / (1 + &square), 1 / (&near * &near + 1))
    }, |x, y, _, t| t * (&x[0] * y * y * -2);
    // 1 / √(1 + x²)
    ASINH_SLOPE "asinh_slope" Inexact, |x| asinh_slope(&x[0]), |x, y, _, t| t * (&x[0] * y * y * y * -1);
    // x / (x² + y²)
    INVERSE_PART "inverse_part" Inexact, |a| {
        let (x, y) = (&a[0], &a[1]);
        if x.dtype().is_complex() {
            return x / (x * x + y * y);
        }
        let is_larger = ABS.apply(x).greater_equal(ABS.apply(y));
        let (large, small) = (where_(&is_larger, x, y), where_(&is_larger, y, x));
        let ratio = small / &large;
        let inverse = 1 / (1 + &ratio * &ratio) / large;
        where_(is_larger, &inverse, &inverse * ratio)
    }, |a, p, i, t| {
        let q = INVERSE_PART.apply(&[a[1].clone(), a[0].clone()]);
        t * if i == 0 { (&q - p) * (&q + p) } else { q * p * -2 }
    };
    // √(x² + y²)
    HYPOT "hypot" Float, |a| hypotenuse(&a[0], &a[1]),
        |a, _, i, t| t * DIRECTION.apply(&[a[i].clone(), a[1 - i].clone()]);
    // x / √(x² + y²)
    DIRECTION "direction" Float, |a| {
        let length = HYPOT.apply(a);
        let is_zero = length.equal(0);
        where_(&is_zero, 0, &a[0] / where_(&is_zero, 1, &length))
    }, |a, x, i, t| {
        let y = DIRECTION.apply(&[a[1].clone(), a[0].clone()]);
        let length = HYPOT.apply(a);
        // Squares of small numbers would be 0.
        t * if i == 0 { &y * (&y / length) } else { -(x * (y / length)) }
    };
    // √(x² + b)
    ROOT_OF_SUM "root_of_sum" Float, |a| HYPOT.apply(&[a[0].clone(), SQRT.apply(&a[1])]), |a, y, i, t| match i {
        0 => t * DIRECTION.apply(&[a[0].clone(), SQRT.apply(&a[1])]),
        _ => t / y * 0.5,
    };
    SOFT_SIGN "soft_sign" Inexact, |x| &x[0] / (ABS.apply(&x[0]) + 1), |x, _, _, t| {
        let inverse = 1 / (ABS.apply(&x[0]) + 1);
        t * (&inverse * &inverse)
    };
}

/// `√(x² + y²)`, computed so that squares do not overflow.
fn hypotenuse(x: &Array, y: &Array) -> Array {
    let (x, y) = (ABS.apply(x), ABS.apply(y));
    let (large, small) = (x.maximum(&y), x.minimum(&y));
    let none = large.equal(0);
    let part = &small / where_(&none, 1, &large);
    let length = where_(none, &large, &large * SQRT.apply(&(&part * &part + 1)));
    let is_infinite = x.equal(f64::INFINITY) | y.equal(f64::INFINITY);
    where_(is_infinite, constant(f64::INFINITY, &length), length)
}

/// `1 / √(x² + 1)`, computed so that the square does not overflow. The sign of a zero selects the side of a branch cut.
fn asinh_slope(x: &Array) -> Array {
    if x.dtype().is_complex() {
        // The product of the roots of 1 + ix and 1 - ix, whose parts keep the signs of zeros.
        let (re, im) = (REAL.apply(x), IMAG.apply(x));
        return RSQRT.apply(&complex(&(1 - &im), &re)) * RSQRT.apply(&complex(&(1 + im), &-&re));
    }
    // From this size on, rounding loses the 1.
    let large = match x.dtype().bits() {
        64 => 1e9,
        32 => 1e4,
        _ => 100.0,
    };
    let size = ABS.apply(x);
    let is_large = size.greater(large);
    let small = where_(&is_large, 0, x);
    where_(is_large, 1 / size, RSQRT.apply(&(&small * &small + 1)))
}
