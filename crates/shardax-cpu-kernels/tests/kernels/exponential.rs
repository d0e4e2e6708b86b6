//! Exponentials minus 1 and hyperbolic functions of f64 compared with the library, and the error function with numbers of mpmath.

use super::assert_error;
use shardax_cpu_kernels::{cosh, erf, expm1, sinh};

/// Numbers with the error function of each, rounded from 40 digits.
const ERF: &[(f64, f64)] = &[
    (2.2250738585072014e-308, 2.5107269871883543e-308),
    (1e-300, 1.1283791670955126e-300),
    (1e-20, 1.1283791670955125e-20),
    (1e-08, 1.1283791670955126e-08),
    (0.001, 0.0011283787909692365),
    (0.0123, 0.013878363865855805),
    (0.1, 0.1124629160182849),
    (0.3, 0.3286267594591274),
    (0.5, 0.5204998778130465),
    (0.6, 0.6038560908479259),
    (0.7, 0.6778011938374184),
    (0.7499999999999999, 0.7111556336535151),
    (0.75, 0.7111556336535151),
    (0.7500000000000001, 0.7111556336535152),
    (0.8, 0.7421009647076605),
    (0.9, 0.7969082124228322),
    (1.0, 0.8427007929497149),
    (1.1, 0.8802050695740817),
    (1.25, 0.9229001282564583),
    (1.5, 0.9661051464753108),
    (1.75, 0.9866716712191824),
    (2.0, 0.9953222650189527),
    (2.3, 0.9988568234026434),
    (2.7, 0.9998656672600594),
    (3.0, 0.9999779095030014),
    (3.3, 0.9999969422902035),
    (3.9, 0.9999999652077514),
    (4.4, 0.999999999510829),
    (5.0, 0.9999999999984626),
    (5.5, 0.9999999999999927),
    (5.9, 0.9999999999999999),
    (5.999999, 1.0),
    (6.0, 1.0),
    (6.1, 1.0),
    (27.0, 1.0),
    (1e+300, 1.0),
];

#[track_caller]
fn assert_near(value: f64, want: f64, units: f64, what: &str) {
    let is_near = (value - want).abs() <= units * f64::EPSILON * want.abs();
    let is_same = value.to_bits() == want.to_bits() || value.is_nan() && want.is_nan();
    assert!(is_near || is_same, "{what}: {value}, not {want}");
}

#[test]
fn exponentials_and_hyperbolic_functions_of_f64() {
    let odd =
        [0.0, -0.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.5, -0.5, 699.9, 700.0, -705.0, 710.3, 720.0, 1e-300];
    let steps = (-30_000..30_000).map(|i| f64::from(i) * 0.0237);
    let small = (-5_000..5_000).map(|i| f64::from(i) * 0.000_213);
    let x: Vec<f64> = odd.into_iter().chain(steps).chain(small).collect();
    for threads in [1, 3] {
        let [mut sines, mut cosines, mut exponentials] = [0, 1, 2].map(|_| vec![0.0; x.len()]);
        expm1(&x, &mut exponentials, threads).unwrap();
        sinh(&x, &mut sines, threads).unwrap();
        cosh(&x, &mut cosines, threads).unwrap();
        for (i, x) in x.iter().enumerate() {
            assert_near(sines[i], x.sinh(), 3.0, &format!("sinh {x}"));
            assert_near(cosines[i], x.cosh(), 3.0, &format!("cosh {x}"));
            assert_near(exponentials[i], x.exp_m1(), 2.0, &format!("expm1 {x}"));
        }
    }
    expm1(&[], &mut [], 1).unwrap();
    assert_error(expm1(&[1.0], &mut [1.0; 2], 1), "the elements of the result: 2, expected 1");
    assert_error(sinh(&[1.0], &mut [1.0; 2], 1), "the elements of the result: 2, expected 1");
    assert_error(cosh(&[1.0], &mut [1.0; 2], 1), "the elements of the result: 2, expected 1");
}

#[test]
fn error_function_of_f64() {
    let special = [(0.0, 0.0), (f64::INFINITY, 1.0), (f64::NAN, f64::NAN)];
    for &(x, want) in ERF.iter().chain(&special) {
        let mut values = [0.0; 2];
        erf(&[x, -x], &mut values, 1).unwrap();
        assert_near(values[0], want, 1.0, &format!("erf {x}"));
        assert_near(values[1], -want, 1.0, &format!("erf {}", -x));
    }
    assert_error(erf(&[1.0], &mut [1.0; 2], 1), "the elements of the result: 2, expected 1");
}
