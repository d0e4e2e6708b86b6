//! Spence's function, the dilogarithm of `1 - x`.

use std::f64::consts::PI;

use super::constant;
use crate::core::array::Array;
use crate::dtype::DType;
use crate::ops::primitive::unary::{ABS, LOG};
use crate::ops::select::where_;

/// The series of powers of `1 - x` ([DLMF 25.12.1](https://dlmf.nist.gov/25.12.E1)) close to 1, where the reflections
/// [25.12.4 and 25.12.6](https://dlmf.nist.gov/25.12.E4) bring all other numbers.
pub(super) fn spence(x: &Array) -> Array {
    let large = x.greater(1.5);
    let y = where_(&large, 1 / x, x);
    let small = y.less(0.5);
    let z = where_(&small, &y, 1 - &y);
    let terms = if x.dtype() == DType::F64 { 50 } else { 24 };
    let sum = (1..=terms).rev().fold(constant(0.0, x), |sum, k| sum * &z + 1.0 / f64::from(k * k)) * &z;
    let safe = where_(y.greater(0), &y, 1);
    let reflected = PI * PI / 6.0 - LOG.apply(&safe) * LOG.apply(&(1 - where_(&small, &y, 0))) - &sum;
    let near = where_(small, reflected, sum);
    let log = LOG.apply(&where_(&large, x, 1));
    let value = where_(large, &log * &log * -0.5 - &near, &near);
    where_(x.greater_equal(0), value, constant(f64::NAN, x))
}

/// The derivative, `log(x) / (1 - x)`: close to 1 by its series, because the terms of the quotient's derivative cancel.
pub(super) fn slope(x: &Array) -> Array {
    let offset = x - 1;
    let is_near = ABS.apply(&offset).less(0.125);
    let near = where_(&is_near, &offset, 0);
    let terms = if x.dtype() == DType::F64 { 18 } else { 9 };
    let series = (0..terms).rev().fold(constant(0.0, x), |sum, k| sum * -&near + 1.0 / f64::from(k + 1));
    let far = where_(&is_near, 2, x);
    where_(is_near, -series, LOG.apply(&far) / (1 - &far))
}
