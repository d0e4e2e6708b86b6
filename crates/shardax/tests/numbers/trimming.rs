//! Functions whose results have a size that depends on values, or on a mask.

use shardax::numpy::{Trim, apply_over_axes, mask_indices, trim_zeros};
use shardax::prelude::*;

use super::common::quick::setup;

#[test]
fn trim_zeros_equals_jax() -> Result<()> {
    setup();
    let x = array([[0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 2, 0], [0, 0, 0, 0]]);
    assert_eq!(trim_zeros(&x, Trim::Both, ..).to_vec::<i32>()?, [1, 0, 0, 2]);
    assert_eq!(trim_zeros(&x, Trim::Front, 0).to_vec::<i32>()?, [0, 1, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0]);
    assert_eq!(trim_zeros(&x, Trim::Back, -1).shape(), [4, 3]);
    for trim in [Trim::Front, Trim::Back, Trim::Both] {
        assert_eq!(trim_zeros(zeros(4), trim, ..).shape(), [0]);
        assert_eq!(trim_zeros(zeros([3, 4]), trim, 0).shape(), [0, 4]);
        assert_eq!(trim_zeros(zeros(0), trim, ..).shape(), [0]);
    }
    assert!(trim_zeros(ones(2) * f32::NAN, Trim::Both, ..).isnan().all(..).item::<bool>()?);
    assert_eq!(trim_zeros(3.0, Trim::Both, ..).item::<f32>()?, 3.0);
    let traced = jit(|x: Array| trim_zeros(x, Trim::Both, ..)).call(&x).expect_err("a size that is not known");
    assert!(traced.to_string().contains("not known in a traced function"), "{traced}");
    Ok(())
}

#[test]
fn mask_indices_are_the_entries_that_a_mask_marks() -> Result<()> {
    setup();
    let (rows, columns) = mask_indices(3, |ones, k| ones.tril(k), -1);
    assert_eq!((rows.to_vec::<i32>()?, columns.to_vec::<i32>()?), (vec![1, 2, 2], vec![0, 0, 1]));
    let (rows, _) = mask_indices(3, |ones, _| ones.get(0), 0);
    let error = rows.to_vec::<i32>().expect_err("a mask of one dimension").to_string();
    assert!(error.contains("mask_indices needs a mask [n, n], got float32[3]"), "{error}");
    let (rows, _) = mask_indices(3, |ones, _| ones.get(5), 0);
    assert!(rows.to_vec::<i32>().is_err());
    Ok(())
}

#[test]
fn apply_over_axes_keeps_dimensions() -> Result<()> {
    setup();
    let x = arange(0..24).reshape([2, 3, 4]);
    let sums = apply_over_axes(|x: Array, axis| x.sum(axis), &x, [0, -1])?;
    assert_eq!((sums.shape(), sums.to_vec::<i32>()?), (&[1, 3, 1][..], vec![60, 92, 124]));
    let sorted = apply_over_axes(|x: Array, axis| x.cumsum(axis), &x, 2)?;
    assert_eq!(sorted.shape(), [2, 3, 4]);
    let error = apply_over_axes(|x: Array, _| x.sum(..), &x, 0).expect_err("no dimensions").to_string();
    assert!(error.contains("f maps int32[2,3,4] to int32[]"), "{error}");
    Ok(())
}
