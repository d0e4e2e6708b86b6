//! Products of a vector and a matrix of many rows, compared with sums in f64.

use super::{assert_error, for_any_threads, noise, view};
use shardax_cpu_kernels::vector_by_tall_matrix;

#[test]
fn vectors_by_tall_matrices() {
    for [rows, columns] in
        [[0, 3], [1, 1], [3, 0], [1, 7], [5, 4], [257, 32], [1027, 3], [3000, 100], [70_001, 2], [9000, 33]]
    {
        let (v, x) = (noise(rows, 1), noise(rows * columns, 2));
        let expected: Vec<f64> = (0..columns)
            .map(|column| (0..rows).map(|row| f64::from(v[row]) * f64::from(x[row * columns + column])).sum())
            .collect();
        let y = for_any_threads(3, |threads| {
            let mut y = vec![f32::NAN; columns];
            vector_by_tall_matrix(&v, view(&[rows, columns], &x), &mut y, threads).unwrap();
            y
        });
        assert!(rows > 0 || y.iter().all(|y| y.to_bits() == 0), "the sum of nothing is 0");
        // The largest sums of 256 products are about 15.
        let error = y.iter().zip(&expected).map(|(y, expected)| (f64::from(*y) - expected).abs()).fold(0.0, f64::max);
        assert!(error <= 2e-6 * (rows as f64).sqrt(), "{rows} × {columns}: {error}");
        let [v, x] = [v, x].map(|x| x.into_iter().map(f64::from).collect::<Vec<_>>());
        let mut wide = vec![f64::NAN; columns];
        vector_by_tall_matrix(&v, view(&[rows, columns], &x), &mut wide, 2).unwrap();
        assert!(wide.iter().zip(&expected).all(|(y, expected)| (y - expected).abs() < 1e-11), "{rows} × {columns}");
    }
}

/// Sums of f32 would stay at 2²⁴.
#[test]
fn long_sums_of_tall_matrices() {
    let rows = (1 << 24) / 64 + 5;
    let mut y = [0.0f32; 2];
    vector_by_tall_matrix(&vec![64.0; rows], view(&[rows, 2], &vec![1.0; 2 * rows]), &mut y, 1).unwrap();
    assert_eq!(y, [(rows * 64) as f32; 2]);
}

#[test]
fn tall_matrices_of_infinities_and_nan() {
    let mut x = vec![1.0f32; 300 * 3];
    (x[3 * 290], x[3 * 17 + 1]) = (f32::INFINITY, f32::NAN);
    let mut y = [0.0; 3];
    vector_by_tall_matrix(&[2.0; 300], view(&[300, 3], &x), &mut y, 1).unwrap();
    assert!(y[0] == f32::INFINITY && y[1].is_nan() && y[2] == 600.0);
}

#[test]
fn tall_matrices_that_do_not_fit_are_errors() {
    let x = view(&[2, 2], &[0.0f32; 4]);
    assert_error(vector_by_tall_matrix(&[0.0], x, &mut [0.0; 2], 1), "the elements of the vector: 1, expected 2");
    assert_error(vector_by_tall_matrix(&[0.0; 2], x, &mut [0.0; 3], 1), "the elements of the result: 3, expected 2");
    let one = view(&[4], &[0.0f32; 4]);
    assert_error(vector_by_tall_matrix(&[0.0; 2], one, &mut [0.0; 2], 1), "the matrix has 1 dimensions, not 2: [4]");
}
