//! `log1p`, the inverse hyperbolic functions and the inverse error function, which are programs on CPU, at special
//! numbers and
//! next to their edges.

use shardax::numpy::{arcsinh, arctanh, erf, erf_inv, log1p};
use shardax::prelude::*;

use super::common::quick::setup;
use super::floats;

/// A function and its value in the standard library.
type Case = (fn(&Array) -> Array, fn(f64) -> f64);

/// The functions are programs in arrays of at least this many elements.
const COUNT: usize = 4096;

/// The standard library's result overflows for numbers whose square does.
fn asinh(x: f64) -> f64 {
    if x.abs() > 1e150 { x.signum() * (x.abs().ln() + std::f64::consts::LN_2) } else { x.asinh() }
}

/// The standard library's result is off by several units for some numbers.
fn atanh(x: f64) -> f64 {
    (x.ln_1p() - (-x).ln_1p()) / 2.0
}

/// Applies a function to numbers, among so many others that it is a program.
fn values(function: fn(&Array) -> Array, numbers: &[f64], dtype: DType) -> Result<Vec<f64>> {
    let padded: Vec<f64> =
        numbers.iter().copied().chain(std::iter::repeat(0.5)).take(COUNT.max(numbers.len())).collect();
    let x = Array::from_vec(padded.clone(), &[padded.len()])?.astype(dtype);
    let results = floats(&jit(move |x: Array| function(&x)).call(&x)?);
    Ok(results[..numbers.len()].to_vec())
}

#[test]
fn logarithms_of_special_numbers() -> Result<()> {
    setup();
    let numbers = [0.0, -0.0, -1.0, -2.0, 1.0, -0.25, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
    let cases: [Case; 4] = [
        (|x| log1p(x), f64::ln_1p),
        (|x| arcsinh(x), f64::asinh),
        (|x| arctanh(x), atanh),
        (|x| erf(erf_inv(x)), |x| if x.abs() <= 1.0 { x } else { f64::NAN }),
    ];
    for dtype in [DType::F32, DType::F64, DType::Bf16, DType::F16] {
        for (function, expected) in cases {
            let results = values(function, &numbers, dtype)?;
            for (x, y) in numbers.into_iter().zip(&results) {
                let expected = expected(x);
                let is_close = (y - expected).abs() < 0.01 || *y == expected || y.is_nan() && expected.is_nan();
                let has_sign = expected != 0.0 || y.is_sign_negative() == expected.is_sign_negative();
                assert!(is_close && has_sign, "{dtype}, {x}: {y}, expected {expected}");
            }
        }
    }
    Ok(())
}

#[test]
fn logarithms_of_all_magnitudes() -> Result<()> {
    setup();
    let cases: [Case; 3] = [(|x| log1p(x), f64::ln_1p), (|x| arcsinh(x), asinh), (|x| arctanh(x), atanh)];
    // The standard library has errors in float64, too.
    for (dtype, smallest, largest, bound) in
        [(DType::F32, -37.0, 38.4, 1.2 * f64::from(f32::EPSILON)), (DType::F64, -307.0, 308.2, 4.0 * f64::EPSILON)]
    {
        let magnitudes: Vec<f64> =
            (0..5000).map(|i| 10f64.powf(smallest + (largest - smallest) * f64::from(i) / 5000.0)).collect();
        let near_minus_one = (1..2000).map(|i| f64::from(i) / 2000.0 - 1.0);
        let numbers: Vec<f64> =
            magnitudes.iter().copied().chain(magnitudes.iter().map(|x| -x)).chain(near_minus_one).collect();
        let numbers = floats(&Array::from_vec(numbers.clone(), &[numbers.len()])?.astype(dtype));
        for (function, exact) in cases {
            for (&x, y) in numbers.iter().zip(values(function, &numbers, dtype)?) {
                let expected = exact(x);
                let error = (y - expected).abs() / expected.abs();
                assert!(
                    error <= bound || expected.is_nan() && y.is_nan() || y == expected,
                    "{dtype}, {x}: {y}, expected {expected}"
                );
            }
        }
    }
    Ok(())
}

/// The error function in float64 inverts the result, except where its slope magnifies the rounding.
#[test]
fn inverse_error_function_of_all_magnitudes() -> Result<()> {
    setup();
    let numbers: Vec<f64> = (0..4000)
        .map(|i| 10f64.powf(f64::from(i) / 109.0 - 37.0))
        .chain((1..4096).map(|i| f64::from(i) / 4096.0))
        .collect();
    let numbers = floats(&Array::from_vec(numbers.clone(), &[numbers.len()])?.astype(DType::F32));
    let results = values(|x| erf_inv(x), &numbers, DType::F32)?;
    let again = floats(&erf(Array::from_vec(results.clone(), &[results.len()])?));
    for ((x, y), again) in numbers.iter().zip(results).zip(again) {
        let slope = 2.0 / std::f64::consts::PI.sqrt() * (-y * y).exp();
        let error = (again - x).abs() / (slope * y);
        assert!(error <= 2.0 * f64::from(f32::EPSILON) || *x == 0.0, "erf_inv({x}) is {y}, off by {error:e}");
    }
    Ok(())
}
