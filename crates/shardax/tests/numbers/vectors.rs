//! Products with one row, which the CPU's program has in other forms: the same numbers as in a product of several rows.

use super::common::quick::one_of;
use super::*;

/// The numbers of `spec` with one query, and the numbers with two queries, without the second one.
fn compared(spec: &str, vector: &[usize], matrix: &[usize], rows: usize, out_rows: i32, dtype: DType) {
    let x = (random::normal(random::key(1), vector)).astype(dtype);
    let w = (random::normal(random::key(2), matrix)).astype(dtype);
    let spec = spec.to_owned();
    let (one, wide) = (spec.clone(), spec);
    let single = jit(move |x: Array, w: Array| einsum(&one, &[&x, &w]));
    let text = single.lower((&x, &w)).unwrap().as_text().to_string();
    assert!(text.contains("inlineable"), "{wide}: the plain product\n{text}");
    let result = floats(&single.call((&x, &w)).unwrap());
    let among = jit(move |x: Array, w: Array| {
        let x = x.astype(DType::F64);
        let two = concatenate(&[x.clone(), &x * 2.0], rows as i32);
        lax::slice_in_dim(&einsum(&wide, &[&two, &w.astype(DType::F64)]), 0, 1, out_rows)
    });
    let expected = floats(&among.call((&x, &w)).unwrap());
    assert_eq!(result.len(), expected.len());
    // Sums of some hundred numbers of size one, rounded at the end.
    let tolerance = match dtype {
        DType::F64 => 1e-12,
        DType::F32 => 1e-4,
        DType::F16 => 3e-2,
        _ => 3e-1,
    };
    for (result, expected) in result.iter().zip(&expected) {
        assert!((result - expected).abs() <= tolerance, "{dtype}: {result} instead of {expected}");
    }
}

#[test]
fn dot_of_one_row_equals_several_rows() {
    common::quick::setup();
    for dtype in [DType::F32, DType::F64, DType::Bf16, DType::F16].into_iter().step_by(one_of(3)) {
        compared("abc,cde->abde", &[1, 1, 64], &[64, 4, 32], 1, 1, dtype);
        compared("abcd,cde->abe", &[1, 1, 4, 32], &[4, 32, 64], 1, 1, dtype);
        compared("ac,dec->ade", &[1, 128], &[4, 16, 128], 0, 0, dtype);
        compared("ac,dec->dea", &[1, 128], &[4, 16, 128], 0, 2, dtype);
    }
    // Queries and keys of attention, with one query, in several orders; sizes of one among them.
    for dtype in [DType::F32, DType::F64].into_iter().step_by(one_of(2)) {
        compared("bqhd,bkhd->bhqk", &[1, 1, 8, 16], &[1, 64, 8, 16], 1, 2, dtype);
        compared("bqhd,bkhd->bhqk", &[3, 1, 8, 16], &[3, 64, 8, 16], 1, 2, dtype);
        compared("bqhd,kbhd->bhqk", &[3, 1, 8, 16], &[64, 3, 8, 16], 1, 2, dtype);
        compared("bhqd,bkhd->bhqk", &[2, 8, 1, 16], &[2, 64, 8, 16], 2, 2, dtype);
        compared("bqhd,bkhd->bhqk", &[2, 1, 1, 16], &[2, 256, 1, 16], 1, 2, dtype);
    }
}

#[test]
fn non_finite_elements_stay_in_their_row() {
    common::quick::setup();
    let (x, w) = (ones([1, 1, 8, 16]), random::normal(random::key(2), [1, 64, 8, 16]));
    let w = w.at((0, 3, 5, 2)).set(f32::NAN).at((0, 7, 1, 0)).set(f32::INFINITY);
    let scores = jit(|x: Array, w: Array| einsum("bqhd,bkhd->bhqk", &[&x, &w]));
    let result = floats(&scores.call((&x, &w)).unwrap());
    let odd: Vec<usize> = (0..result.len()).filter(|&i| !result[i].is_finite()).collect();
    assert_eq!(odd, [64 + 7, 5 * 64 + 3]);
    assert_eq!(result[64 + 7], f64::INFINITY);
}

#[test]
fn gradients_through_one_row_equal_gradients_of_sums() {
    common::quick::setup();
    let (x, w) = (random::normal(random::key(1), [1, 1, 8, 16]), random::normal(random::key(2), [1, 64, 8, 16]));
    fn product(x: &Array, w: &Array) -> Array {
        einsum("bqhd,bkhd->bhqk", &[x, w])
    }
    fn sums(x: &Array, w: &Array) -> Array {
        (x * w).sum(-1).transpose([0, 2, 1]).reshape([1, 8, 1, 64])
    }
    fn gradients(f: fn(&Array, &Array) -> Array, x: &Array, w: &Array) -> Vec<f64> {
        let loss = move |x: Array, w: Array| f(&x, &w).tanh().sum(..);
        let (dx, dw) = jit(grad(loss).argnums((Arg::<0>, Arg::<1>))).call((x, w)).unwrap();
        [floats(&dx), floats(&dw)].concat()
    }
    let (found, wanted) = (gradients(product, &x, &w), gradients(sums, &x, &w));
    assert!(found.iter().zip(&wanted).all(|(a, b)| (a - b).abs() < 1e-4));
}

#[test]
fn a_matrix_that_is_computed_is_kept_for_a_vector() {
    common::quick::setup();
    let (x, w) = (ones([1, 128]), ones([64, 128]));
    fn text(f: fn(Array, Array) -> Array, x: &Array, w: &Array) -> String {
        jit(f).lower((x, w)).unwrap().as_text().to_string()
    }
    assert!(text(|x, w| x.matmul((w * 0.5).t()), &x, &w).contains("inlineable"));
    // The product reads the matrix in any order.
    assert!(!text(|x, w| x.matmul(w.t()), &x, &w).contains("inlineable"));
}
