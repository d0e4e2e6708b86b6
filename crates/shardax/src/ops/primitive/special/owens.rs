//! Owen's T function.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

use super::constant;
use crate::core::array::Array;
use crate::ops::primitive::unary::{ABS, ERF, ERFC, EXP, SIGN};
use crate::ops::select::where_;

/// The number of points of the quadrature.
const POINTS: usize = 32;

/// The points and weights of Gauss-Legendre quadrature on -1 to 1. The points are the zeros of the Legendre polynomial,
/// computed by Newton's method.
fn gauss_legendre() -> impl Iterator<Item = (f64, f64)> {
    (0..POINTS).map(|i| {
        let n = POINTS as f64;
        let mut x = (PI * (i as f64 + 0.75) / (n + 0.5)).cos();
        let mut slope = 1.0;
        for _ in 0..8 {
            let (mut before, mut value) = (1.0, x);
            for k in 2..=POINTS {
                let k = k as f64;
                (before, value) = (value, ((2.0 * k - 1.0) * x * value - (k - 1.0) * before) / k);
            }
            slope = n * (x * value - before) / (x * x - 1.0);
            x -= value / slope;
        }
        (x, 2.0 / ((1.0 - x * x) * slope * slope))
    })
}

/// The upper tail of the normal distribution.
fn tail(x: &Array) -> Array {
    ERFC.apply(&(x * FRAC_1_SQRT_2)) * 0.5
}

/// `∫ exp(-h² (1 + t²) / 2) / (2π (1 + t²))` over t from 0 to `a`. For `a` above 1, it uses [Owen's
/// reflection](https://en.wikipedia.org/wiki/Owen%27s_T_function).
pub(super) fn owens_t(h: &Array, a: &Array) -> Array {
    let (size, slope) = (ABS.apply(h), ABS.apply(a));
    let reflected = slope.greater(1);
    // The product of 0 and infinity counts as 0, because all of it is below the diagonal.
    let product = where_(size.equal(0), 0, &size * &slope);
    let from = where_(&reflected, &product, &size);
    let to = where_(&reflected, 1 / &slope, &slope);
    // Beyond this size, the integrand is 0.
    let from = where_(from.greater(1e3), 1e3, from);
    let half = &from * &from * -0.5;
    let sum = gauss_legendre().map(|(x, weight)| {
        let t = &to * ((x + 1.0) / 2.0);
        let rise = 1 + &t * &t;
        EXP.apply(&(&half * &rise)) * weight / rise
    });
    let sum = sum.reduce(|a, b| a + b).unwrap_or_else(|| constant(0.0, h));
    let inside = sum * &to / (4.0 * PI);
    let (p, q) = (tail(&size), tail(&product));
    let outside = (&p + &q) * 0.5 - p * q - &inside;
    SIGN.apply(a) * where_(reflected, outside, inside)
}

/// The derivative with respect to `h` or `a`.
pub(super) fn slope(h: &Array, a: &Array, operand: usize) -> Array {
    let square = h * h;
    // The product of 0 and infinity counts as 0: halfway between the slopes of both sides by `h`, and the limit by `a`.
    let is_corner = h.equal(0) & ABS.apply(a).equal(f64::INFINITY);
    match operand {
        0 => {
            let product = where_(is_corner, 0, a * h);
            EXP.apply(&(square * -0.5)) * ERF.apply(&(product * FRAC_1_SQRT_2)) * (-0.5 / (2.0 * PI).sqrt())
        }
        _ => {
            let rise = 1 + a * a;
            EXP.apply(&where_(is_corner, 0, square * &rise * -0.5)) / (rise * (2.0 * PI))
        }
    }
}
