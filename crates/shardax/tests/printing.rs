//! Arrays print as NumPy prints them: the expected texts are NumPy 2's.

mod common;

use common::setup;
use shardax::prelude::*;

#[test]
fn floats() {
    setup();
    let show = |x: Array| x.to_string();
    assert_eq!(show(array([-2.445327f32, -2.0252247, 0.19909358])), "[-2.445327   -2.0252247   0.19909358]");
    assert_eq!(show(array([1.0f32, 2.0, 100.0])), "[  1.   2. 100.]");
    assert_eq!(show(array([1.5f32, 2.25, 100.0])), "[  1.5    2.25 100.  ]");
    assert_eq!(show(array([0.1f32, 0.2, 1.0 / 3.0])), "[0.1        0.2        0.33333334]");
    assert_eq!(show(array([1e-5f32, 1.0])), "[1.e-05 1.e+00]");
    assert_eq!(show(array([1.25e-5f32, 1.0])), "[1.25e-05 1.00e+00]");
    assert_eq!(show(array([1e-10f64 / 3.0, 2.0])), "[3.33333333e-11 2.00000000e+00]");
    assert_eq!(show(array([1.0 / 3.0, 2.0])), "[0.33333333 2.        ]");
    assert_eq!(show(array([f32::NAN, 1.0, -f32::INFINITY])), "[ nan   1. -inf]");
    assert_eq!(show(array([0.0f32, -0.0])), "[ 0. -0.]");
    assert_eq!(show(array([0.01f32, 100.0])), "[1.e-02 1.e+02]");
}

#[test]
fn scalars() {
    setup();
    let show = |x: Array| x.to_string();
    assert_eq!(show(array(100.0f32)), "100.0");
    assert_eq!(show(array(1.2800865f32)), "1.2800865");
    assert_eq!(show(array(1e-5f32)), "1e-05");
    assert_eq!(show(array(1.5e20)), "1.5e+20");
    assert_eq!(show(array(1.0f64 / 3.0)), "0.3333333333333333");
    assert_eq!(show(array(-0.0f32)), "-0.0");
    assert_eq!(show(array(f32::NAN)), "nan");
    assert_eq!(show(array(7)), "7");
}
