//! `sin(π x)` and `cos(π x)`, which are exact at large integers and halves, because only the distance of `x` from an
//! integer is multiplied by π.

use std::f64::consts::PI;

use super::super::expanded::expanded;
use super::widened;
use crate::core::array::Array;
use crate::dtype::DType;
use crate::ops::primitive::unary::{ABS, FLOOR, ROUND};
use crate::ops::select::where_;

expanded! {
    SIN_PI "sin_pi" Float, |x| apply_to_half_turns(x, sine), |x, _, _, t| t * (COS_PI.apply(x) * PI);
    COS_PI "cos_pi" Float, |x| apply_to_half_turns(x, cosine), |x, _, _, t| t * (SIN_PI.apply(x) * -PI);
}

/// Applies `f` to the distance from the nearest integer, with the sign of the function at that integer.
fn apply_to_half_turns(x: &[Array], f: fn(&Array) -> Array) -> Array {
    widened(x, |x| {
        let nearest = ROUND.apply(&x[0]);
        let is_even = (FLOOR.apply(&(&nearest * 0.5)) * 2).equal(&nearest);
        let y = f(&(&x[0] - nearest));
        Ok(where_(is_even, &y, -&y))
    })
}

/// `sin(π offset)` of an offset within 1/2, by the Taylor series: the sine of any number takes several times as long. The rounding
/// error of π is added to the smaller terms.
fn sine(offset: &Array) -> Array {
    let (terms, error_of_pi) = match offset.dtype() {
        DType::F64 => (12, 1.224_646_799_147_353_2e-16),
        _ => (8, PI - f64::from(PI as f32)),
    };
    let square = offset * offset;
    let coefficients = (1..terms).scan(PI, |coefficient, k| {
        *coefficient *= -PI * PI / f64::from(2 * k * (2 * k + 1));
        Some(*coefficient)
    });
    let coefficients: Vec<f64> = coefficients.collect();
    let series = coefficients.iter().rev().fold(&square * 0, |sum, coefficient| (sum + *coefficient) * &square);
    offset * PI + offset * (series + error_of_pi)
}

/// `cos(π offset)`, computed as a sine because its zeros are at halves.
fn cosine(offset: &Array) -> Array {
    sine(&(0.5 - ABS.apply(offset)))
}
