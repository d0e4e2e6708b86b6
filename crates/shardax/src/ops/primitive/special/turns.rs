//! `sin(π x)` and `cos(π x)`, which are exact at large integers and halves, because only the distance of `x` from an
//! integer is multiplied by π.

use std::f64::consts::PI;

use super::super::expanded::expanded;
use super::widened;
use crate::core::array::Array;
use crate::ops::primitive::unary::{ABS, FLOOR, ROUND, SIN};
use crate::ops::select::where_;

expanded! {
    SIN_PI "sin_pi" Float, |x| of_half_turns(x, sine), |x, _, _, t| t * (COS_PI.apply(x) * PI);
    COS_PI "cos_pi" Float, |x| of_half_turns(x, cosine), |x, _, _, t| t * (SIN_PI.apply(x) * -PI);
}

/// Applies `f` to the distance from the nearest integer, with the sign of the function at that integer.
fn of_half_turns(x: &[Array], f: fn(&Array) -> Array) -> Array {
    widened(x, |x| {
        let nearest = ROUND.apply(&x[0]);
        let is_even = (FLOOR.apply(&(&nearest * 0.5)) * 2).equal(&nearest);
        let y = f(&(&x[0] - nearest));
        Ok(where_(is_even, &y, -&y))
    })
}

fn sine(offset: &Array) -> Array {
    SIN.apply(&(offset * PI))
}

/// `cos(π offset)`, computed as a sine because its zeros are at halves.
fn cosine(offset: &Array) -> Array {
    SIN.apply(&((0.5 - ABS.apply(offset)) * PI))
}
