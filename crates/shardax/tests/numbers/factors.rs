//! Functions of the factors of decompositions. The numbers are JAX 0.12's.

use shardax::lax::linalg::{
    OrmqrOptions, SymmetricProductOptions, cholesky_update, householder_product, lu_pivots_to_permutation, ormqr,
    symmetric_product,
};
use shardax::prelude::*;

use super::common::quick::setup;

fn reflections() -> (Array, Array) {
    let a = array([[0.5f32, -1.0, 2.0], [0.25, 3.0, 1.0], [-0.5, 0.75, 2.0], [1.0, 0.5, -0.25]]);
    (a, array([1.2f32, 0.7, 1.5]))
}

#[test]
fn householder_product_equals_jax() -> Result<()> {
    setup();
    let (a, taus) = reflections();
    let q = array([
        [-0.2f32, 0.015, -0.80906254],
        [-0.3, 0.30375, -0.07101564],
        [0.6, -0.5325, 0.00296876],
        [-1.2, -0.335, -0.36843753],
    ]);
    assert!(allclose(householder_product(&a, &taus), &q, 1e-6, 1e-6)?);
    let fewer = householder_product(&a, taus.get(..2));
    assert!(allclose(fewer.get((.., 2)), array([0.83625f32, -0.31593746, 0.18812504, 0.57375]), 1e-6, 1e-6)?);
    let batch = jit(|a: Array, taus: Array| householder_product(a, taus))
        .call((stack([&a, &(&a * 0.5)], 0), stack([&taus, &taus], 0)))?;
    assert!(allclose(batch.get(0), &q, 1e-6, 1e-6)?);
    assert!(allclose(batch.get(1), householder_product(&a * 0.5, &taus), 1e-6, 1e-6)?);
    // JAX has no derivative of it.
    shardax::test_util::check_grads(|a: Array, taus: Array| householder_product(a, taus), (&a, &taus))?;
    Ok(())
}

#[test]
fn ormqr_multiplies_by_the_complete_product() -> Result<()> {
    setup();
    let (a, taus) = reflections();
    let complex = |x: &Array, y: &Array| shardax::numpy::complex(x, y);
    let complex_pair = (complex(&a, &a.flip(0)), complex(&taus, &(taus.flip(0) * 0.3)));
    for (a, taus) in [(a, taus), complex_pair] {
        let square = concatenate([&a, &zeros_like(a.get((.., ..1)))], 1);
        let q = householder_product(&square, &taus);
        let adjoint = q.t().conj();
        let c = (arange(0..8).reshape([4, 2]) - 3).astype(a.dtype());
        for (transpose, q) in [(false, &q), (true, &adjoint)] {
            let left = ormqr(&a, &taus, &c, OrmqrOptions { transpose, ..Default::default() });
            assert!(allclose(left, q.matmul(&c), 1e-5, 1e-5)?);
            let right = ormqr(&a, &taus, c.t(), OrmqrOptions { left: false, transpose });
            assert!(allclose(right, c.t().matmul(q), 1e-5, 1e-5)?);
        }
    }
    Ok(())
}

#[test]
fn cholesky_update_equals_jax() -> Result<()> {
    setup();
    let r = array([[3.0f32, 1.0, -2.0], [7.0, 2.0, 0.5], [0.0, 0.0, 1.5]]);
    let w = array([1.0f32, -2.0, 0.5]);
    let want = array([[3.1622775f32, 0.31622773, -1.7392527], [0.0, 2.9832866, -0.4860411], [0.0, 0.0, 1.8678234]]);
    let updated = cholesky_update(&r, &w);
    assert!(allclose(&updated, &want, 1e-6, 1e-6)?);
    let upper = r.triu(0);
    let sum = upper.t().matmul(&upper) + w.expand_dims(1) * &w;
    assert!(allclose(updated.t().matmul(&updated), sum, 1e-5, 1e-5)?);
    assert_eq!(cholesky_update(&r, zeros(3)).to_vec::<f32>()?, upper.to_vec::<f32>()?);
    let large = cholesky_update(&upper * 1e30, &w * 1e30);
    assert!(allclose(large / 1e30, &want, 1e-6, 1e-6)?);
    let batch = vmap(|w: Array| cholesky_update(&r, w)).call(stack([&w, &zeros(3)], 0))?;
    assert!(allclose(batch.get(0), want, 1e-6, 1e-6)? && allclose(batch.get(1), upper, 1e-6, 1e-6)?);
    Ok(())
}

#[test]
fn symmetric_product_equals_jax() -> Result<()> {
    setup();
    let (a, _) = reflections();
    let c = arange(0..16).astype(DType::F32).reshape([4, 4]);
    let options = SymmetricProductOptions { alpha: 2.0, beta: 3.0, symmetrize_output: false };
    let product = symmetric_product(&a, &c, options);
    assert_eq!(product.get(0).to_vec::<f32>()?, [10.5, 1.25, 12.0, 8.0]);
    let symmetric = symmetric_product(&a, &c, SymmetricProductOptions { symmetrize_output: true, ..options });
    assert_eq!(symmetric.get(0).to_vec::<f32>()?, [10.5, 10.25, 30.0, 35.0]);
    assert_eq!(symmetric.get(3).to_vec::<f32>()?, product.get(3).to_vec::<f32>()?);
    Ok(())
}

#[test]
fn row_exchanges_are_a_permutation() -> Result<()> {
    setup();
    let permutation = lu_pivots_to_permutation(array([[2, 2], [0, 3]]), 4);
    assert_eq!(permutation.to_vec::<i32>()?, [2, 0, 1, 3, 0, 3, 2, 1]);
    let (_, pivots, permutation) = lax::linalg::lu(shardax::random::normal(shardax::random::key(0), [3, 6, 6]));
    assert_eq!(lu_pivots_to_permutation(pivots, 6).to_vec::<i32>()?, permutation.to_vec::<i32>()?);
    Ok(())
}

#[test]
fn factors_without_elements() -> Result<()> {
    setup();
    assert_eq!(householder_product(zeros([3, 0]), zeros(0)).shape(), [3, 0]);
    assert_eq!(householder_product(ones([2, 2]), zeros(0)).to_vec::<f32>()?, [1.0, 0.0, 0.0, 1.0]);
    assert_eq!(householder_product(zeros([0, 3, 2]), zeros([0, 1])).shape(), [0, 3, 2]);
    let c = ones([2, 3]);
    assert_eq!(ormqr(ones([2, 2]), zeros(0), &c, OrmqrOptions::default()).to_vec::<f32>()?, [1.0; 6]);
    assert_eq!(cholesky_update(zeros([0, 0]), zeros(0)).shape(), [0, 0]);
    assert_eq!(cholesky_update(zeros([0, 2, 2]), zeros([0, 2])).shape(), [0, 2, 2]);
    assert_eq!(symmetric_product(zeros([2, 0]), eye(2), SymmetricProductOptions::default()).to_vec::<f32>()?, [0.0; 4]);
    assert_eq!(lu_pivots_to_permutation(zeros_dtype(0, DType::I32), 2).to_vec::<i32>()?, [0, 1]);
    assert_eq!(lu_pivots_to_permutation(zeros_dtype([0, 2], DType::I32), 2).shape(), [0, 2]);
    Ok(())
}

#[test]
fn factors_that_do_not_fit_are_rejected() {
    setup();
    let (a, taus) = reflections();
    let cases = [
        (householder_product(a.t(), &taus), "more columns than rows"),
        (householder_product(&a, zeros(4)), "where k is at most m and n"),
        (householder_product(a.astype(DType::I32), &taus), "is not supported"),
        (ormqr(&a, &taus, ones([3, 2]), OrmqrOptions::default()), "c must be [..., m, r]"),
        (ormqr(&a, &taus, 1.0, OrmqrOptions::default()), "c must be [..., m, r]"),
        (cholesky_update(eye(3), ones(2)), "w as [..., n]"),
        (symmetric_product(&a, ones([3, 3]), SymmetricProductOptions::default()), "c as [..., m, m]"),
        (lu_pivots_to_permutation(array([1, 2]), 1), "at least k rows"),
        (lu_pivots_to_permutation(array([1.0, 2.0]), 3), "int32[..., k]"),
    ];
    for (result, text) in cases {
        let error = result.to_vec::<f32>().expect_err("arrays that do not fit").to_string();
        assert!(error.contains(text), "{error}");
    }
}
