//! Arrays without elements.

use shardax::lax::{self, Padding, Window};
use shardax::nn::{self, Pool};
use shardax::prelude::*;
use shardax::{linalg, numpy as np};

use super::common::quick::setup;
use super::edges::same;

#[test]
fn same_padding_of_empty_arrays() {
    setup();
    let x = zeros([2, 0, 1]);
    assert_eq!(Pool::new([3]).strides([2]).padding(Padding::Same).max(&x).shape(), [2, 0, 1]);
    assert_eq!(nn::conv(&x, ones([3, 1, 5]), [2], Padding::SameLower).shape(), [2, 0, 5]);
    assert_eq!(lax::reduce_window_sum(&x, Window::new([1, 4, 1]).padding(Padding::Same)).shape(), [2, 0, 1]);
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

/// The value is 0 / 0, but depends on nothing.
#[test]
fn statistics_without_nan_of_no_elements_have_slopes_of_zero() -> Result<()> {
    setup();
    let x = zeros([3, 0]);
    let statistics: [fn(Array) -> Array; 4] =
        [|x| np::nanmean(&x, 1), |x| np::nanvar(&x, 1), |x| np::nanstd(&x, 1), |x| np::nansum(&x, 1)];
    for statistic in statistics {
        let (_, slope) = jvp(statistic, x.clone(), x.clone())?;
        same(&slope, &[0.0; 3]);
        assert_eq!(grad(move |x: Array| statistic(x).sum(..)).call(&x)?.shape(), [3, 0]);
    }
    let (value, _) = jvp(|x: Array| np::nanmean(&x, ..), x.clone(), x.clone())?;
    same(&value, &[f64::NAN]);
    Ok(())
}

#[test]
fn polynomials_without_coefficients_are_zero() -> Result<()> {
    setup();
    assert_eq!(np::polymul(zeros(0), array([1.0f32, 2.0])).to_vec::<f32>()?, [0.0, 0.0]);
    assert_eq!(np::polymul(array([3.0f32]), zeros(0)).to_vec::<f32>()?, [0.0]);
    Ok(())
}

#[test]
fn empty_vectors_are_indices() -> Result<()> {
    setup();
    assert_eq!(np::ix_([zeros(0)])[0].dtype(), DType::I32);
    Ok(())
}

#[test]
fn least_squares_without_rows_or_columns() -> Result<()> {
    setup();
    for (a, b, x, residuals) in [
        (vec![0, 2], vec![0], vec![2], vec![0.0]),
        (vec![0, 2], vec![0, 3], vec![2, 3], vec![0.0; 3]),
        (vec![2, 0], vec![2], vec![0], vec![8.0]),
        (vec![2, 0], vec![2, 3], vec![0, 3], vec![8.0; 3]),
        (vec![0, 0], vec![0], vec![0], vec![0.0]),
    ] {
        let (solution, rest, rank, values) = linalg::lstsq(ones(a), full(b, 2.0f32));
        assert_eq!((solution.shape(), values.shape()), (x.as_slice(), [0].as_slice()));
        same(&solution, &vec![0.0; x.iter().product()]);
        same(&rest, &residuals);
        assert_eq!(rank.item::<i32>()?, 0);
    }
    Ok(())
}

#[test]
fn empty_lines_are_equal() -> Result<()> {
    setup();
    let unique = np::UniqueOptions::new().axis(0).unique_all(zeros([4, 0]), None);
    assert_eq!(unique.values.shape(), [1, 0]);
    assert_eq!(unique.indices.to_vec::<i32>()?, [0]);
    assert_eq!(unique.inverse_indices.to_vec::<i32>()?, [0; 4]);
    assert_eq!(unique.counts.to_vec::<i32>()?, [4]);
    let padded = np::UniqueOptions::new().axis(1).unique_all(zeros([0, 3]), 2);
    assert_eq!((padded.values.shape(), padded.counts.to_vec::<i32>()?), ([0, 2].as_slice(), vec![3, 0]));
    assert_eq!(np::UniqueOptions::new().axis(0).unique_all(zeros([0, 3]), None).values.shape(), [0, 3]);
    Ok(())
}
