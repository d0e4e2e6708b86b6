//! The inverse error function, compared with the error function's series.

use super::{assert_error, noise};
use shardax_cpu_kernels::erf_inv;

/// 2 / √π times the integral of the exponentials, by Taylor's series. It loses no digits below 3.
fn erf(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * std::f64::consts::FRAC_2_SQRT_PI
}

#[test]
fn erf_inv_of_numbers_in_both_ranges() {
    for n in [1, 7, 64, 70_001] {
        let x: Vec<f32> = noise(n, 3).iter().map(|x| x * 0.999_9).collect();
        for threads in [1, 3] {
            let mut y = vec![f32::NAN; n];
            erf_inv(&x, &mut y, threads).unwrap();
            for (x, y) in x.iter().zip(&y).filter(|(x, _)| x.abs() > 1e-6) {
                // The slope of the error function relates the error of its value to the error of `y`.
                let wide = f64::from(*y);
                let slope = (-wide * wide).exp() * std::f64::consts::FRAC_2_SQRT_PI;
                let error = ((erf(wide) - f64::from(*x)) / slope).abs();
                let bound = if x.abs() < 0.9 { 5e-7 } else { 2e-5 };
                assert!(error <= bound * wide.abs(), "{x}: {y}, off by {error}");
            }
        }
    }
}

#[test]
fn erf_inv_of_special_numbers() {
    let x = [0.0, -0.0, 1.0, -1.0, 1.5, f32::INFINITY, f32::NAN, 0.999_999_94, -0.999_999_94];
    let mut y = [1.0; 9];
    erf_inv(&x, &mut y, 1).unwrap();
    assert_eq!(y[..4], [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY]);
    assert!(y[1].is_sign_negative() && y[4..7].iter().all(|y| y.is_nan()), "{y:?}");
    assert!((y[7] - 3.832_507).abs() < 1e-4 && y[7] == -y[8], "{y:?}");
    erf_inv(&[], &mut [], 1).unwrap();
    assert_error(erf_inv(&[0.5], &mut [], 1), "the elements of the result: 0, expected 1");
}
