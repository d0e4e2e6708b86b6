//! Singular value decompositions of matrices with many more rows than columns, and values without vectors, compared with decompositions in f64.

use super::small_matrices::{distance, product, transposed, wide};
use super::{assert_error, for_any_threads, noise, view};
use shardax_cpu_kernels::{eigh, eigvalsh, svd, svdvals};

/// Rows and columns of matrices that are decomposed by their Gram matrices, and of some that are too small or too wide for it.
const SIZES: [[usize; 2]; 8] = [[16, 8], [100, 30], [30, 100], [257, 9], [15, 8], [40, 7], [7, 40], [20, 12]];

/// The identity of this size.
fn identity(n: usize) -> Vec<f64> {
    (0..n * n).map(|i| f64::from(u8::from(i % n == i / n))).collect()
}

/// The thin singular value decomposition.
fn thin_svd(a: &[f32], [m, n]: [usize; 2]) -> [Vec<f32>; 3] {
    let k = m.min(n);
    for_any_threads(3, |threads| {
        let (mut u, mut s, mut vt) = (vec![9.0; m * k], vec![9.0; k], vec![9.0; k * n]);
        svd(view(&[1, m, n], a), false, &mut u, &mut s, &mut vt, threads).unwrap();
        [u, s, vt]
    })
}

/// Matrices whose last two columns differ in one element by this amount.
fn with_close_columns([m, n]: [usize; 2], difference: f32) -> Vec<f32> {
    let mut a = noise(m * n, 4);
    a.chunks_exact_mut(n).for_each(|row| row[n - 1] = row[n - 2]);
    a[n - 1] += difference;
    a
}

#[test]
fn singular_vectors_of_tall_and_wide_matrices() {
    for [m, n] in SIZES {
        let k = m.min(n);
        let regular = noise(m * n, 3);
        let large: Vec<f32> = regular.iter().map(|x| x * 1e30).collect();
        let small: Vec<f32> = regular.iter().map(|x| x * 1e-30).collect();
        let difference = if m > n { 1e-5 } else { 0.0 };
        for a in [regular, large, small, with_close_columns([m, n], difference), vec![0.0; m * n]] {
            let [u, s, vt] = thin_svd(&a, [m, n]).map(|x| wide(&x));
            let scale = a.iter().fold(f64::MIN_POSITIVE, |most, x| most.max(f64::from(x.abs())));
            let (exact, mut exact_s) = (wide(&a), vec![0.0; k]);
            svdvals(view(&[1, m, n], &exact), &mut exact_s, 1).unwrap();
            assert!(distance(&s, &exact_s) <= 4e-6 * scale * exact_s.len() as f64, "{m} x {n}");
            assert!(distance(&product(&transposed(&u, k), &u, [k, m, k]), &identity(k)) < 3e-6, "{m} x {n}");
            assert!(distance(&product(&vt, &transposed(&vt, n), [k, n, k]), &identity(k)) < 3e-6, "{m} x {n}");
            let scaled: Vec<f64> = u.iter().enumerate().map(|(i, x)| x * s[i % k]).collect();
            // The factors of `faer` have larger errors.
            let is_regular = exact_s[k - 1] > 1e-3 * exact_s[0];
            let tolerance = if is_regular { 1e-5 * scale } else { 1e-5 * exact_s[0].max(scale) };
            assert!(distance(&product(&scaled, &vt, [m, k, n]), &exact) <= tolerance, "{m} x {n}");
        }
    }
}

#[test]
fn tall_matrices_that_are_not_finite() {
    for x in [f32::NAN, f32::INFINITY] {
        let mut a = noise(40 * 10, 2);
        a[33] = x;
        let (mut u, mut s, mut vt) = ([0.0; 400], [0.0; 10], [0.0; 100]);
        svd(view(&[1, 40, 10], &a), false, &mut u, &mut s, &mut vt, 1).unwrap();
        assert!(u.iter().chain(&s).chain(&vt).all(|x| x.is_nan()));
    }
}

#[test]
fn values_without_vectors() {
    for n in [1, 2, 3, 23, 24, 40] {
        for batch in [0, 1, 5] {
            let a = noise(batch * n * n, 6);
            let eigenvalues = for_any_threads(3, |threads| {
                let mut values = vec![9.0; batch * n];
                eigvalsh(view(&[batch, n, n], &a), &mut values, threads).unwrap();
                values
            });
            let exact = wide(&a);
            let (mut vectors, mut values) = (vec![0.0; batch * n * n], vec![0.0; batch * n]);
            eigh(view(&[batch, n, n], &exact), &mut vectors, &mut values, 1).unwrap();
            assert!(distance(&wide(&eigenvalues), &values) < 4e-6, "{batch} of {n}");
            values.fill(0.0);
            eigvalsh(view(&[batch, n, n], &exact), &mut values, 1).unwrap();
            assert!(distance(&wide(&eigenvalues), &values) < 4e-6, "{batch} of {n}");
        }
    }
    for [m, n] in [[1, 1], [3, 2], [24, 24], [30, 25], [25, 30], [24, 23], [0, 3]] {
        for batch in [0, 1, 5] {
            let (a, k) = (noise(batch * m * n, 8), m.min(n));
            let found = for_any_threads(3, |threads| {
                let mut values = vec![9.0; batch * k];
                svdvals(view(&[batch, m, n], &a), &mut values, threads).unwrap();
                values
            });
            let (mut u, mut vt) = (vec![0.0; batch * m * k], vec![0.0; batch * k * n]);
            let mut values = vec![0.0; batch * k];
            svd(view(&[batch, m, n], &wide(&a)), false, &mut u, &mut values, &mut vt, 1).unwrap();
            assert!(distance(&wide(&found), &values) < 4e-6, "{batch} of {m} x {n}");
        }
    }
    // Only the lower triangle is read, and another matrix of the batch stays as it is.
    let mut a = noise(2 * 900, 9);
    (a[1], a[2 * 900 - 1]) = (f32::NAN, f32::INFINITY);
    let mut values = [0.0; 60];
    eigvalsh(view(&[2, 30, 30], &a), &mut values, 1).unwrap();
    assert!(values[..30].iter().all(|x| x.is_finite()) && values[30..].iter().all(|x| x.is_nan()));
    svdvals(view(&[2, 30, 30], &a), &mut values, 1).unwrap();
    assert!(values.iter().all(|x| x.is_nan()));
    let zeros = [0.0f32; 12];
    assert_error(eigvalsh(view(&[1, 3, 4], &zeros), &mut [0.0; 3], 1), "the columns of a square matrix: 4, expected 3");
    assert_error(svdvals(view(&[1, 3, 4], &zeros), &mut [0.0; 4], 1), "the elements of a result: 4, expected 3");
}
