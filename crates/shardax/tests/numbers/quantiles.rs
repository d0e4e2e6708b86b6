//! Quantiles of nothing, of infinities, and of every dtype.

use shardax::numpy as np;
use shardax::prelude::*;

use super::common::quick::setup;
use super::edges::same;

/// JAX 0.12 has these NaNs.
#[test]
fn quantiles_without_nan_of_no_elements_are_nan() -> Result<()> {
    setup();
    let x = zeros([3, 0]);
    same(&np::nanmedian(&x, ..), &[f64::NAN]);
    same(&np::nanmedian(&x, 1), &[f64::NAN; 3]);
    let quantiles = np::nanquantile(&x, array([0.1f32, 0.9]), 1);
    assert_eq!((quantiles.shape(), quantiles.dtype()), ([2, 3].as_slice(), DType::F32));
    same(&quantiles, &[f64::NAN; 6]);
    same(&jit(|x: Array| np::nanmedian(&x, 1)).call(&x)?, &[f64::NAN; 3]);
    assert_eq!(np::nanmedian(&x, 0).shape(), [0]);
    same(&np::nanmedian(zeros_dtype([0], DType::I32), ..), &[f64::NAN]);
    assert_eq!(grad(|x: Array| np::nanmedian(&x, 1).sum(..)).call(&x)?.shape(), [3, 0]);
    Ok(())
}

#[test]
fn quantiles_have_the_dtype_of_the_array() {
    setup();
    for quantile in [|x: &Array, q: &Array| np::quantile(x, q, ..), |x: &Array, q: &Array| np::nanquantile(x, q, ..)] {
        for (dtype, expected) in [(DType::F16, DType::F16), (DType::Bf16, DType::Bf16), (DType::I32, DType::F32)] {
            let median = quantile(&array([1.0f32, 2.0, 4.0]).astype(dtype), &array(0.5f32));
            assert_eq!(median.dtype(), expected);
            same(&median.astype(DType::F32), &[2.0]);
        }
        assert_eq!(quantile(&array([1.0f32, 2.0]), &array_of(0.5, DType::F64)).dtype(), DType::F32);
    }
}

/// NaN of either sign is sorted after every other element.
#[test]
fn quantiles_of_lines_with_nan_are_nan() {
    setup();
    let x = array([[1.0f32, 5.0], [-f32::NAN, f32::INFINITY], [3.0, f32::NEG_INFINITY]]);
    for dtype in [DType::F16, DType::Bf16, DType::F32, DType::F64] {
        let x = x.astype(dtype);
        let quantiles = np::quantile(&x, array([0.0f32, 0.5]), 0).astype(DType::F32);
        same(&quantiles, &[f64::NAN, f64::NEG_INFINITY, f64::NAN, 5.0]);
        same(&np::median(&x, 1).astype(DType::F32), &[3.0, f64::NAN, f64::NEG_INFINITY]);
    }
}

/// Infinity times 0 is NaN, so a quantile at the position of an element must not interpolate. `quantile` of JAX 0.12
/// returns NaN.
#[test]
fn quantiles_at_an_infinite_element_are_infinite() {
    setup();
    let x = array([f32::INFINITY, 1.0, f32::INFINITY, f32::NEG_INFINITY, f32::INFINITY]);
    same(
        &np::quantile(&x, array([0.0f32, 0.25, 0.5, 1.0]), ..),
        &[f64::NEG_INFINITY, 1.0, f64::INFINITY, f64::INFINITY],
    );
    same(&np::median(&x, ..), &[f64::INFINITY]);
    same(&np::nanmedian(array([f32::NAN, f32::INFINITY, f32::INFINITY, 2.0]), ..), &[f64::INFINITY]);
}

#[test]
fn quantiles_keep_axes_in_their_places() -> Result<()> {
    setup();
    let x = arange(0..24).astype(DType::F32).reshape([2, 3, 4]);
    let q = array([0.25f32, 0.75]);
    for (axes, shape) in [(vec![1], [2, 1, 4]), (vec![0, 2], [1, 3, 1]), (vec![0, 1, 2], [1, 1, 1])] {
        let kept_axes = over(axes.as_slice()).keepdims(true);
        let with_positions = [&[2], shape.as_slice()].concat();
        for (kept_shape, result, plain) in [
            (shape.to_vec(), np::median(&x, kept_axes.clone()), np::median(&x, axes.as_slice())),
            (shape.to_vec(), np::nanmedian(&x, kept_axes.clone()), np::nanmedian(&x, axes.as_slice())),
            (with_positions.clone(), np::quantile(&x, &q, kept_axes.clone()), np::quantile(&x, &q, axes.as_slice())),
            (
                with_positions.clone(),
                np::nanquantile(&x, &q, kept_axes.clone()),
                np::nanquantile(&x, &q, axes.as_slice()),
            ),
            (shape.to_vec(), np::percentile(&x, 30, kept_axes.clone()), np::percentile(&x, 30, axes.as_slice())),
            (shape.to_vec(), np::nanpercentile(&x, 30, kept_axes), np::nanpercentile(&x, 30, axes.as_slice())),
        ] {
            assert_eq!(result.shape(), kept_shape);
            assert_eq!(result.to_vec::<f32>()?, plain.to_vec::<f32>()?);
        }
    }
    // Rows and columns of a matrix norm keep the order in which they are named.
    let matrices = x.at((0, 0, 0)).set(-9);
    for axes in [[0, 2], [2, 0]] {
        let norms = linalg::norm(&matrices, 1, over(axes).keepdims(true));
        assert_eq!(norms.shape(), [1, 3, 1]);
        assert_eq!(norms.to_vec::<f32>()?, linalg::norm(&matrices, 1, axes).to_vec::<f32>()?);
    }
    assert_eq!(linalg::norm(&x, linalg::NormOrder::Default, over(..).keepdims(true)).shape(), [1, 1, 1]);
    Ok(())
}

#[test]
fn quantiles_reject_options_that_they_do_not_have() {
    setup();
    let x = ones([2, 3]);
    for result in [
        np::median(&x, over(1).mask(x.greater(0))),
        np::nanmedian(&x, over(1).dtype(DType::F64)),
        linalg::norm(&x, 2, over(1).initial(1)),
    ] {
        let text = result.to_vec::<f32>().expect_err("an unknown option").to_string();
        assert!(text.contains("does not have the option") && text.contains("help:"), "{text}");
    }
}
