//! Complex numbers: zero, infinity, and derivatives on every branch.

use shardax::numpy as np;
use shardax::prelude::*;

use super::common::quick::setup;
use super::edges::{same, slopes};
use super::floats;

/// Returns the real and the imaginary part of each number, one number after another.
fn parts(z: &Array) -> Array {
    np::stack(&[np::real(z), np::imag(z)], -1).ravel()
}

#[test]
fn complex_zero_and_infinity() -> Result<()> {
    setup();
    let z = np::complex(array([1.0f32, f32::INFINITY, 0.0]), array([f32::INFINITY, 0.0, 0.0]));
    assert_eq!(np::isinf(&z).to_vec::<bool>()?, [true, true, false]);
    let zero = np::complex(array([0.0f32]), array([0.0f32]));
    for log in [np::log(&zero), np::log2(&zero), np::log10(&zero)] {
        same(&np::real(&log), &[f64::NEG_INFINITY]);
        same(&np::imag(&log), &[0.0]);
    }
    Ok(())
}

/// Powers multiply in the same order as JAX, so that an infinite part makes the other part NaN in the same cases.
#[test]
fn powers_of_complex_infinity() {
    setup();
    let z = np::complex(
        array([f32::INFINITY, f32::INFINITY, -f32::INFINITY, 1.0, 0.0]),
        array([0.0, 1.0, f32::INFINITY, f32::INFINITY, f32::INFINITY]),
    );
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    let cases: [(i32, [f64; 10]); 3] = [
        (2, [inf, nan, inf, inf, nan, -inf, -inf, inf, -inf, nan]),
        (3, [nan, nan, nan, inf, nan, nan, -inf, nan, nan, nan]),
        (4, [nan, nan, nan, inf, nan, nan, nan, -inf, nan, nan]),
    ];
    for (n, want) in cases {
        same(&parts(&np::integer_pow(&z, n)), &want);
        same(&parts(&jit(move |z: Array| np::integer_pow(&z, n)).call(&z).expect("powers")), &want);
    }
}

#[test]
fn logaddexp_of_complex_numbers() -> Result<()> {
    setup();
    let z =
        np::complex(array([1.0f32, 0.0, -1.0, 3.0, 100.0, f32::INFINITY]), array([2.0f32, 0.0, -1.0, -0.5, 3.0, 0.0]));
    let w =
        np::complex(array([0.0f32, 0.0, -1.0, -3.0, 100.0, f32::INFINITY]), array([2.0f32, 0.0, -1.0, 4.0, -3.0, 0.0]));
    let nan = f64::NAN;
    let first_pairs = [1.313_261_7, 2.0, std::f64::consts::LN_2, 0.0, -0.306_852_8, -1.0];
    let last_pairs = [2.999_480_2, -0.502_424_24, 100.683_09, -std::f64::consts::PI, nan, nan];
    same(&parts(&np::logaddexp(&z, &w)), &[first_pairs, last_pairs].concat());
    fn loss(z: Array, w: Array) -> Array {
        np::real(&np::logaddexp(z, w)).sum(..)
    }
    let (dz, dw) = grad(loss).argnums((Arg::<0>, Arg::<1>)).call((z.get(2..5), w.get(2..5)))?;
    same(&np::around(&parts(&dz), 4), &[0.5, 0.0, 1.0005, 0.0024, 0.5, -0.0713]);
    same(&np::around(&parts(&dw), 4), &[0.5, 0.0, -0.0005, -0.0024, 0.5, 0.0713]);
    Ok(())
}

/// Returns the derivative of a complex function along a direction: its real and its imaginary part.
fn complex_slope(f: fn(Array) -> Array, x: (f32, f32), along: (f32, f32)) -> Vec<f64> {
    fn number((re, im): (f32, f32)) -> Array {
        np::complex(array(re), array(im))
    }
    let (_, slope) = jvp(f, number(x), number(along)).expect("a slope");
    floats(&np::stack(&[np::real(&slope), np::imag(&slope)], 0))
}

/// The expected values are finite differences in float64. JAX 0.12 returns the same.
#[test]
fn complex_acosh_and_sign_have_slopes_on_every_branch() -> Result<()> {
    setup();
    same(&array(complex_slope(|x| np::arccosh(x), (-0.7, 0.4), (1.0, 0.0))), &[-0.365_039_82, -1.005_953_6]);
    same(&array(complex_slope(|x| np::arccosh(x), (0.7, 0.4), (1.0, 0.0))), &[0.365_039_82, -1.005_953_6]);
    same(&array(complex_slope(|x| x.sign(), (-0.7, 0.4), (1.0, 0.0))), &[0.305_316_27, 0.534_303_47]);
    same(&array(complex_slope(|x| x.sign(), (-0.7, 0.4), (0.0, 1.0))), &[0.534_303_47, 0.935_031_08]);
    // The sign does not change along the ray from 0, and the slope at 0 is 0.
    let outward = complex_slope(|x| x.sign(), (-0.6, 0.8), (-0.6, 0.8));
    assert!(outward.iter().all(|part| part.abs() < 1e-7), "{outward:?}");
    same(&array(complex_slope(|x| x.sign(), (0.0, 0.0), (1.0, 0.0))), &[0.0, 0.0]);
    // Reverse mode has the same slopes. The slopes for real numbers are 0.
    let z = np::complex(array([-0.7f32]), array([0.4f32]));
    let slope = grad(|z: Array| np::real(z.sign()).sum(..)).call(&z)?;
    same(&np::real(&slope), &[0.305_316_27]);
    same(&np::imag(&slope), &[-0.534_303_47]);
    same(&slopes(|x| x.sign(), &array([-2.0f32, 0.0, 3.0])), &[0.0, 0.0, 0.0]);
    Ok(())
}
