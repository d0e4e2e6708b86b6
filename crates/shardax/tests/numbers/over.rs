//! Reductions with options. (`jax.numpy` 0.10.2 returns the same values for the same calls.)

use shardax::numpy as np;
use shardax::prelude::*;

use super::{common, floats};

fn mask() -> Array {
    array([true, false, true])
}

#[test]
fn sums_and_products() -> Result<()> {
    common::quick::setup();
    let x = ones(3);
    let sum = x.sum(over(..).mask(mask()).initial(10).dtype(DType::F16));
    assert_eq!((sum.dtype(), floats(&sum)), (DType::F16, vec![12.0]));
    assert_eq!(arange(0..3).sum(over(..).initial(0.5)).type_name(), "int32[]");
    assert_eq!(array([true, true]).sum(over(..).dtype(DType::I8)).to_vec::<i8>()?, [2]);
    assert_eq!(arange(1..4).prod(over(..).initial(2)).item::<i32>()?, 12);
    assert_eq!(arange(1..4).prod(over(..).mask(mask())).item::<i32>()?, 3);
    let x = arange(0..6).reshape([2, 3]);
    let with_dims = x.sum(over(-1).keepdims(true).mask(mask()));
    assert_eq!((with_dims.shape(), with_dims.to_vec::<i32>()?), (&[2, 1][..], vec![2, 8]));
    assert_eq!(numpy_sum(&x), 15);
    Ok(())
}

/// The function takes the same options as the method.
fn numpy_sum(x: &Array) -> i32 {
    shardax::numpy::sum(x, over([0, 1]).keepdims(false)).item().expect("a sum")
}

#[test]
fn means_and_variances() -> Result<()> {
    common::quick::setup();
    let x = arange(0..3).astype(DType::F32);
    let mean = x.mean(over(..).mask(mask()).keepdims(true));
    assert_eq!((mean.shape(), floats(&mean)), (&[1][..], vec![1.0]));
    assert!(floats(&x.mean(over(..).mask(false)))[0].is_nan());
    assert_eq!(arange(0..3).mean(over(..).dtype(DType::F16)).dtype(), DType::F16);
    assert_eq!(arange(0..3).var(over(..).dtype(DType::F16)).dtype(), DType::F16);
    let x = arange(0..4).astype(DType::F32);
    let some = array([true, false, true, true]);
    assert_eq!(x.var_ddof(over(..).mask(&some), 1).item::<f32>()?, 2.3333335);
    assert!(floats(&x.var_ddof(over(..).mask(&some), 3))[0].is_nan());
    assert_eq!(x.std_ddof(over(..).mask(&some), 1).item::<f32>()?, 2.3333335f32.sqrt());
    Ok(())
}

#[test]
fn extremes_need_a_value_for_nothing() -> Result<()> {
    common::quick::setup();
    assert_eq!(zeros(0).max(over(..).initial(-5.0)).item::<f32>()?, -5.0);
    assert_eq!(arange(0..3).max(over(..).initial(7.5)).item::<i32>()?, 7);
    let some = array([false, true, true]);
    assert_eq!(arange(0..3).min(over(..).mask(&some).initial(9)).item::<i32>()?, 1);
    let error = ones(3).max(over(..).mask(mask())).check().unwrap_err().to_string();
    assert!(
        error.contains("max does not have an identity, so to use a where mask one has to specify 'initial'"),
        "{error}"
    );
    Ok(())
}

#[test]
fn booleans_and_exponentials() -> Result<()> {
    common::quick::setup();
    let x = array([true, false]);
    assert!(!x.any(over(..).mask(array([false, true]))).item::<bool>()?);
    assert!(x.all(over(..).mask(array([true, false]))).item::<bool>()?);
    let x = arange(0..3).astype(DType::F32);
    let lse = x.logsumexp(over(..).mask(mask()).keepdims(true));
    assert_eq!((lse.shape(), lse.to_vec::<f32>()?), (&[1][..], vec![2.126928]));
    // What does not count has no gradient.
    let slope = grad(|x: Array| x.logsumexp(over(..).mask(mask()))).call(&x)?;
    assert_eq!(floats(&slope)[1], 0.0);
    Ok(())
}

#[test]
fn options_of_statistics_without_nan() -> Result<()> {
    common::quick::setup();
    let x = array([[1.0f32, f32::NAN, 4.0], [2.0, 6.0, 9.0]]);
    let first_two = array([true, true, false]);
    assert_eq!(floats(&np::nanmean(&x, over(1).mask(&first_two))), [1.0, 4.0]);
    assert_eq!(floats(&np::nanvar(&x, over(1).mask(&first_two))), [0.0, 4.0]);
    assert_eq!(floats(&np::nanstd(&x, over(1).mask(&first_two))), [0.0, 2.0]);
    assert_eq!(floats(&np::nansum(&x, over(1).mask(&first_two).initial(10))), [11.0, 18.0]);
    let mean = np::nanmean(&x, over(1).dtype(DType::F16));
    assert_eq!((mean.dtype(), floats(&mean)), (DType::F16, vec![2.5, 5.66796875]));
    assert_eq!(floats(&np::nanmin(&x, over(1).initial(1.5))), [1.0, 1.5]);
    assert_eq!(np::nanmax(&array([f32::NAN; 2]), over(..).initial(0.5)).item::<f32>()?, 0.5);
    Ok(())
}

#[test]
fn averages_with_weights_of_an_axis() -> Result<()> {
    common::quick::setup();
    let (x, weights) = (array([[1.0f32, 2.0], [3.0, 4.0]]), array([1.0f32, 3.0]));
    assert_eq!(floats(&np::average(&x, &weights, 0)), [2.5, 3.5]);
    assert_eq!(floats(&np::average(&x, &weights, -2)), [2.5, 3.5]);
    assert_eq!(floats(&np::average(&x, &weights, 1)), [1.75, 3.75]);
    assert_eq!(floats(&np::average(&x, &weights, over(..).mask(array([true, false])))), [2.0]);
    let error = np::average(ones([2, 3]), &weights, 1).check().unwrap_err().to_string();
    assert!(error.contains("average got 2 weights for axis 1 of float32[2,3], which has size 3"), "{error}");
    Ok(())
}

#[test]
fn covariances_of_too_few_observations_are_nan() -> Result<()> {
    common::quick::setup();
    assert!(np::cov(zeros(0)).item::<f32>()?.is_nan());
    assert!(np::cov(array([1.0f32])).item::<f32>()?.is_nan());
    assert!(np::CovOptions::new().ddof(3).cov(array([1.0f32, 1.0])).item::<f32>()?.is_nan());
    Ok(())
}

#[test]
fn options_that_a_reduction_does_not_have() {
    common::quick::setup();
    fn text(x: Array) -> String {
        x.check().unwrap_err().to_string()
    }
    let x = ones(3);
    assert!(text(x.mean(over(..).initial(1))).contains("`mean` does not have the option `initial`"));
    assert!(text(x.max(over(..).dtype(DType::F64))).contains("`max` does not have the option `dtype`"));
    assert!(text(np::nanmean(&x, over(..).initial(1))).contains("`nanmean` does not have the option `initial`"));
    assert!(text(np::nanmin(&x, over(..).dtype(DType::F64))).contains("`nanmin` does not have the option `dtype`"));
    assert!(text(np::average(&x, &x, over(..).initial(1))).contains("`average` does not have the option `initial`"));
    assert!(text(np::ptp(&x, over(..).dtype(DType::F64))).contains("`ptp` does not have the option `dtype`"));
    assert!(text(x.sum(over(..).mask(ones(3)))).contains("needs a boolean mask, got float32[3]"));
    assert!(text(x.sum(over(..).mask(array([true, false])))).contains("broadcast"));
    assert!(text(x.sum(over(..).initial(ones(2)))).contains("needs an initial value that is a scalar"));
}

/// A float32 counts to 2^24 exactly.
#[test]
fn many_elements_of_float64_are_counted_exactly() -> Result<()> {
    common::quick::setup();
    let x = ones_dtype([(1 << 24) + 3], DType::F64);
    let mask = ones_dtype(x.shape(), DType::Bool);
    assert_eq!(x.mean(over(..).mask(&mask)).item::<f64>()?, 1.0);
    assert_eq!(x.mean(..).item::<f64>()?, 1.0);
    Ok(())
}
