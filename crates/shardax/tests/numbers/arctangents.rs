//! Arctangents, which are polynomials on CPU, compared with the standard library.

use shardax::prelude::*;

use super::common::quick::setup;
use super::floats;

const DTYPES: [DType; 4] = [DType::F32, DType::F64, DType::Bf16, DType::F16];

#[test]
fn arctangents_of_special_numbers() -> Result<()> {
    setup();
    for dtype in DTYPES {
        let numbers = [0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 1.0, 1e-4];
        let x = Array::from_vec(numbers.repeat(200), &[numbers.len() * 200])?.astype(dtype);
        let y = floats(&jit(|x: Array| shardax::numpy::arctan(x)).call(&x)?);
        let half_pi = std::f64::consts::FRAC_PI_2;
        assert!(y[0].is_sign_positive() && y[1].is_sign_negative() && y[..2] == [0.0, 0.0], "{y:?}");
        for (value, expected) in [(y[2], half_pi), (y[3], -half_pi), (y[5], half_pi / 2.0)] {
            assert!((value - expected).abs() < 0.01, "{y:?}");
        }
        assert!(y[4].is_nan() && (y[6] - floats(&x)[6]).abs() < 1e-9, "{y:?}");
    }
    Ok(())
}

#[test]
fn arctangents_of_all_magnitudes() -> Result<()> {
    setup();
    let magnitudes = (0..4000).map(|i| 10f64.powf(f64::from(i) / 100.0 - 20.0));
    let numbers: Vec<f64> = magnitudes.chain((0..4000).map(|i| f64::from(i) / 1000.0)).collect();
    for (dtype, bound) in [(DType::F64, 2.0 * f64::EPSILON), (DType::F32, 2.0 * f64::from(f32::EPSILON))] {
        let x = Array::from_vec(numbers.clone(), &[numbers.len()])?.astype(dtype);
        let results = floats(&jit(|x: Array| shardax::numpy::arctan(x)).call(&x)?);
        for (x, result) in floats(&x).into_iter().zip(results) {
            let error = (result - x.atan()).abs() / x.atan();
            assert!(error <= bound || x == 0.0, "{dtype}: arctan({x}) is {result}, off by {error:e}");
        }
    }
    Ok(())
}
