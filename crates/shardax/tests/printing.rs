//! Arrays print as NumPy prints them: the expected texts are NumPy 2's.

mod common;

use common::setup;
use shardax::prelude::*;

#[test]
fn floats() {
    setup();
    fn show(x: Array) -> String {
        x.to_string()
    }
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
    fn show(x: Array) -> String {
        x.to_string()
    }
    assert_eq!(show(array(100.0f32)), "100.0");
    assert_eq!(show(array(1.2800865f32)), "1.2800865");
    assert_eq!(show(array(1e-5f32)), "1e-05");
    assert_eq!(show(array(1.5e20)), "1.5e+20");
    assert_eq!(show(array(1.0f64 / 3.0)), "0.3333333333333333");
    assert_eq!(show(array(-0.0f32)), "-0.0");
    assert_eq!(show(array(f32::NAN)), "nan");
    assert_eq!(show(array(7)), "7");
}

/// A format string's precision, width and exponent, as Rust formats a number. The digits are Rust's of float64.
#[test]
fn format_strings() {
    setup();
    let x = array([0.5f32, 100.0 / 3.0]);
    assert_eq!(format!("{x:.2}"), "[ 0.50 33.33]");
    assert_eq!(format!("{x:.1e}"), "[5.0e-1  3.3e1]");
    assert_eq!(format!("{x:.1E}"), "[5.0E-1  3.3E1]");
    assert_eq!(format!("{:.4}", x.get(1)), "33.3333");
    assert_eq!(format!("{:e}", x.get(0)), "5e-1");
    assert_eq!(
        format!("{:10.3}|{:<10.3}|{:^10.3}|{:*>10}", x.get(1), x.get(1), x.get(1), x.get(0)),
        "    33.333|33.333    |  33.333  |*******0.5"
    );
    assert_eq!(format!("{:.2?}", x), "Array([ 0.50 33.33], dtype=float32)");
    // Integers have no digits after the point; a width without a precision keeps all digits.
    assert_eq!(format!("{:.2} {:5} {:e}", array(7), array(7), array(1500)), "7     7 1.5e3");
    assert_eq!(format!("{:.1}", array([true, false])), "[ True False]");
    assert_eq!(format!("{:.1}", array([f32::NAN, 1.0])), "[nan 1.0]");
    assert_eq!(format!("{:.2}", complex(array(1.0f32), array(-0.5f32))), "1.00-0.50j");
    // Of float64 all digits that are asked for.
    assert_eq!(format!("{:.12}", array(1.0f64 / 3.0)), "0.333333333333");
}
