//! Arcsines, arccosines and angles, which are polynomials on CPU, compared with the standard library.

use shardax::numpy::{arccos, arcsin, arctan2};
use shardax::prelude::*;

use super::common::quick::setup;
use super::floats;

/// A dtype with its unit in the last place.
const DTYPES: [(DType, f64); 2] = [(DType::F64, f64::EPSILON), (DType::F32, f32::EPSILON as f64)];

/// Numbers from -1 to 1: a grid, powers of ten, and numbers close to 0, 1/2 and 1.
fn numbers() -> Vec<f64> {
    let grid = (-2000..=2000).map(|i| f64::from(i) / 2000.0);
    let powers = (0..500).map(|i| 10f64.powf(-f64::from(i) / 20.0));
    let near =
        [0.5, 1.0].into_iter().flat_map(|x| (1..200).map(move |i| x - f64::from(i) * f64::from(f32::EPSILON) / 2.0));
    let mut numbers: Vec<f64> = grid.chain(powers).chain(near).collect();
    numbers.extend(numbers.clone().iter().map(|x| -x));
    numbers
}

fn assert_close(result: f64, expected: f64, bound: f64, what: &str) {
    assert!((result - expected).abs() <= bound * expected.abs(), "{what} is {result:e}, not {expected:e}");
}

#[test]
fn arcsines_of_all_magnitudes() -> Result<()> {
    setup();
    for (dtype, unit) in DTYPES {
        let x = Array::from_vec(numbers(), &[numbers().len()])?.astype(dtype);
        let (sines, cosines) = jit(|x: Array| (arcsin(&x), arccos(&x))).call(&x)?;
        for ((x, sine), cosine) in floats(&x).into_iter().zip(floats(&sines)).zip(floats(&cosines)) {
            assert_close(sine, x.asin(), 1.5 * unit, &format!("{dtype}: arcsin({x:e})"));
            assert_close(cosine, x.acos(), 1.5 * unit, &format!("{dtype}: arccos({x:e})"));
        }
    }
    Ok(())
}

#[test]
fn arcsines_of_special_numbers() -> Result<()> {
    setup();
    for dtype in [DType::F32, DType::F64, DType::Bf16, DType::F16] {
        let numbers = [0.0, -0.0, 1.0, -1.0, 1.5, f64::NEG_INFINITY, f64::NAN, 0.5];
        let x = Array::from_vec(numbers.repeat(200), &[numbers.len() * 200])?.astype(dtype);
        let (sines, cosines) = jit(|x: Array| (arcsin(&x), arccos(&x))).call(&x)?;
        let (sines, cosines) = (floats(&sines), floats(&cosines));
        assert!(sines[0].is_sign_positive() && sines[1].is_sign_negative() && sines[..2] == [0.0, 0.0], "{sines:?}");
        assert!(sines[4..7].iter().chain(&cosines[4..7]).all(|x| x.is_nan()), "{sines:?} {cosines:?}");
        assert_eq!(cosines[2], 0.0);
        for (result, expected) in [
            (sines[2], 1f64.asin()),
            (sines[3], -1f64.asin()),
            (sines[7], 0.5f64.asin()),
            (cosines[0], 0f64.acos()),
            (cosines[3], (-1f64).acos()),
            (cosines[7], 0.5f64.acos()),
        ] {
            assert!((result - expected).abs() < 0.01, "{dtype}: {result} instead of {expected}");
        }
    }
    Ok(())
}

#[test]
fn angles_of_all_magnitudes() -> Result<()> {
    setup();
    let mut points = Vec::new();
    for i in 0..3000 {
        let (size, angle) = (10f64.powi(i % 61 - 30), f64::from(i) / 3000.0 * 2.0 * std::f64::consts::PI);
        points.push((size * angle.sin(), size * angle.cos()));
        points.push((angle.sin(), size * angle.cos()));
    }
    let (y, x): (Vec<f64>, Vec<f64>) = points.into_iter().unzip();
    for (dtype, unit) in DTYPES {
        let y = Array::from_vec(y.clone(), &[y.len()])?.astype(dtype);
        let x = Array::from_vec(x.clone(), &[x.len()])?.astype(dtype);
        let results = floats(&jit(|y: Array, x: Array| arctan2(y, x)).call((&y, &x))?);
        for ((y, x), result) in floats(&y).into_iter().zip(floats(&x)).zip(results) {
            assert_close(result, y.atan2(x), 1.75 * unit, &format!("{dtype}: arctan2({y:e}, {x:e})"));
        }
    }
    Ok(())
}

#[test]
fn angles_of_special_numbers() -> Result<()> {
    setup();
    let special = [0.0, -0.0, 1.0, -1.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 1e-30, -1e30];
    let pairs: Vec<(f64, f64)> = special.iter().flat_map(|y| special.map(|x| (*y, x))).collect();
    let (y, x): (Vec<f64>, Vec<f64>) = pairs.repeat(20).into_iter().unzip();
    for dtype in [DType::F32, DType::F64, DType::Bf16] {
        let y = Array::from_vec(y.clone(), &[y.len()])?.astype(dtype);
        let x = Array::from_vec(x.clone(), &[x.len()])?.astype(dtype);
        let results = floats(&jit(|y: Array, x: Array| arctan2(y, x)).call((&y, &x))?);
        for ((y, x), result) in floats(&y).into_iter().zip(floats(&x)).zip(results) {
            let expected = y.atan2(x);
            let is_equal = result.is_sign_negative() == expected.is_sign_negative() && (result - expected).abs() < 0.01;
            // Numbers below the smallest normal number are 0 on CPU.
            let is_equal = is_equal || (result.is_nan() && expected.is_nan()) || expected.abs() < 1e-38;
            assert!(is_equal, "{dtype}: arctan2({y:e}, {x:e}) is {result}, not {expected}");
        }
    }
    Ok(())
}
