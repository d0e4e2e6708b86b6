//! Ties, emptiness, infinities and NaN, one promise a test. The golden family `edges` has every function there.

use shardax::lax::{self, GatherScatterMode, Padding, Window};
use shardax::nn::{self, Pool};
use shardax::prelude::*;
use shardax::{linalg, numpy as np};

use super::common::setup;
use super::floats;

const NAN: f32 = f32::NAN;
const INF: f32 = f32::INFINITY;

/// Compares with NaN equal to NaN.
fn same(got: &Array, want: &[f64]) {
    let got = floats(got);
    let equal = |(g, w): (&f64, &f64)| (g.is_nan() && w.is_nan()) || g == w || (g - w).abs() <= 1e-5 * w.abs();
    assert!(got.len() == want.len() && got.iter().zip(want).all(equal), "{got:?}, want {want:?}");
}

/// The slopes of an elementwise function: in reverse mode, which must be those of forward mode.
fn slopes(f: fn(Array) -> Array, x: &Array) -> Array {
    let reverse = grad(move |x: Array| f(x).sum(..)).call(x).expect("a gradient");
    let (_, forward) = jvp(f, x.clone(), np::ones_like(x)).expect("a tangent");
    same(&forward, &floats(&reverse));
    reverse
}

#[test]
fn ties_share_the_gradient_of_cumlogsumexp() -> Result<()> {
    setup();
    let slope = grad(|x: Array| lax::cumlogsumexp(&x, 0, false).sum(..)).call(ones([4]))?;
    same(&slope, &[25.0 / 12.0, 13.0 / 12.0, 7.0 / 12.0, 0.25]);
    Ok(())
}

#[test]
fn same_padding_of_nothing_is_nothing() {
    setup();
    let x = zeros([2, 0, 1]);
    assert_eq!(Pool::new([3]).strides([2]).padding(Padding::Same).max(&x).shape(), [2, 0, 1]);
    assert_eq!(nn::conv(&x, ones([3, 1, 5]), [2], Padding::SameLower).shape(), [2, 0, 5]);
    assert_eq!(lax::reduce_window_sum(&x, Window::new([1, 4, 1]).padding(Padding::Same)).shape(), [2, 0, 1]);
}

#[test]
fn gelu_exact_keeps_the_digits_of_its_tail() {
    setup();
    // By 1 + erf, both would be 0 or of the wrong sign.
    let x = array([-6.0f32, 6.0]);
    same(&nn::gelu_exact(&x), &[-5.919_538e-9, 6.0]);
    same(&slopes(|x| nn::gelu_exact(x), &x), &[-3.546_878e-8, 1.0]);
}

#[test]
fn complex_zero_and_infinity() -> Result<()> {
    setup();
    let z = np::complex(array([1.0f32, INF, 0.0]), array([INF, 0.0, 0.0]));
    assert_eq!(np::isinf(&z).to_vec::<bool>()?, [true, true, false]);
    let zero = np::complex(array([0.0f32]), array([0.0f32]));
    for log in [np::log(&zero), np::log2(&zero), np::log10(&zero)] {
        same(&np::real(&log), &[f64::NEG_INFINITY]);
        same(&np::imag(&log), &[0.0]);
    }
    Ok(())
}

#[test]
fn integers_have_no_remainder_by_zero() -> Result<()> {
    setup();
    assert_eq!(np::fmod(array([5, -5, 0]), 0).to_vec::<i32>()?, [0, 0, 0]);
    assert_eq!(np::fmod(array([5u8, 7]), array([0u8, 4])).to_vec::<u8>()?, [0, 3]);
    Ok(())
}

#[test]
fn entries_out_of_bounds_get_no_gradient() -> Result<()> {
    setup();
    let slope = grad(|x: Array| (x.get([-5, 3]) * array([1.0f32, 10.0])).sum(..)).call(ones([3]))?;
    same(&slope, &[0.0; 3]);
    let slope = grad(|x: Array| (x.get([-1, 3]) * array([1.0f32, 10.0])).sum(..)).call(ones([3]))?;
    same(&slope, &[0.0, 0.0, 1.0]);
    Ok(())
}

#[test]
fn clipped_indices_do_not_count_from_the_end() {
    setup();
    let x = array([10.0f32, 20.0, 30.0]);
    same(&x.take_mode([-1, 5, 1], 0, GatherScatterMode::Clip), &[10.0, 30.0, 20.0]);
    same(&x.take_mode(-1, 0, GatherScatterMode::Clip), &[10.0]);
}

#[test]
fn softmax_over_an_empty_axis_is_empty() -> Result<()> {
    setup();
    let x = zeros([2, 0]);
    assert_eq!(nn::softmax(&x, 1).shape(), [2, 0]);
    assert_eq!(nn::log_softmax(&x, ..).shape(), [2, 0]);
    assert_eq!(grad(|x: Array| nn::softmax(x, 1).sum(..)).call(&x)?.shape(), [2, 0]);
    assert!(nn::softmax(&x, 2).error().is_some());
    Ok(())
}

#[test]
fn forward_and_reverse_mode_agree_at_nan_and_infinity() {
    setup();
    let x = array([NAN, INF, -INF, 0.0]);
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    same(&slopes(|x| nn::softplus(x), &x), &[nan, 1.0, 0.0, 0.5]);
    same(&slopes(|x| nn::log_sigmoid(x), &x), &[nan, 0.0, 1.0, 0.5]);
    same(&slopes(|x| nn::relu(x), &x), &[0.0, 1.0, 0.0, 0.0]);
    same(&nn::relu(&x), &[nan, inf, 0.0, 0.0]);
    // Of two equal infinities each has its whole share, as in JAX.
    same(&slopes(|x| np::logaddexp(&x, &x), &x), &[nan, 2.0, nan, 1.0]);
}

#[test]
fn nan_that_nothing_is_written_to_keeps_its_gradient() -> Result<()> {
    setup();
    let x = array([NAN, 1.0, 4.0]);
    let slope = grad(|x: Array| x.at([1, 1]).max(array([2.0f32, 2.0])).sum(..)).call(&x)?;
    same(&slope, &[1.0, 0.0, 1.0]);
    let (_, tangent) = jvp(|x: Array| x.at([1]).min(2.0), x, ones([3]))?;
    same(&tangent, &[1.0, 1.0, 1.0]);
    Ok(())
}

#[test]
fn more_degrees_of_freedom_than_elements_give_no_variance() {
    setup();
    let x = array([1.0f32, 2.0, 4.0]);
    for ddof in [3, 4, 100] {
        same(&x.var_ddof(.., ddof), &[f64::NAN]);
        same(&x.std_ddof(.., ddof), &[f64::NAN]);
    }
    same(&x.var_ddof(.., 1), &[7.0 / 3.0]);
}

#[test]
fn eigenvalues_of_what_is_not_finite_are_nan() {
    setup();
    for bad in [NAN, INF, -INF] {
        let (w, v) = linalg::eigh(array([[bad, 0.0], [0.0, 1.0]]));
        same(&w, &[f64::NAN; 2]);
        same(&v, &[f64::NAN; 4]);
    }
    // One bad matrix of a batch leaves the others alone.
    let two = np::stack(&[np::eye(2) * 3, np::full_like(&np::eye(2), NAN)], 0);
    same(&linalg::eigvalsh(two), &[3.0, 3.0, f64::NAN, f64::NAN]);
}
