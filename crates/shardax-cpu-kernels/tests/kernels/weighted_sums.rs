//! Sums with weights compared with products of matrices.

use super::{assert_close, assert_error, for_any_threads, noise, view};
use shardax_cpu_kernels::weighted_sums;

/// Weights of which the elements near the diagonal are not zero.
fn band(m: usize, n: usize, width: usize) -> Vec<f32> {
    let near = |k: usize, j: usize| (k * n).abs_diff(j * m) <= width * n.max(m);
    let weights = noise(m * n, 5);
    (0..m * n).map(|i| if near(i / n, i % n) { weights[i] } else { 0.0 }).collect()
}

fn product(batch: usize, [m, n]: [usize; 2], columns: usize, x: &[f32], weights: &[f32]) -> Vec<f64> {
    let mut sums = vec![0.0; batch * n * columns];
    for (i, sum) in sums.iter_mut().enumerate() {
        let (b, j, c) = (i / columns / n, i / columns % n, i % columns);
        *sum = (0..m).map(|k| f64::from(x[(b * m + k) * columns + c]) * f64::from(weights[k * n + j])).sum();
    }
    sums
}

#[test]
fn weighted_sums_of_all_sizes() {
    for (batch, m, n, columns, width) in [
        (1, 2, 4, 1, 1),
        (3, 5, 3, 8, 1),
        (37, 40, 64, 3, 2),
        (70, 9, 31, 1, 7),
        (2, 64, 40, 100, 5),
        (5, 6, 6, 7, 0),
        (600, 30, 20, 2, 1),
    ] {
        let (x, weights) = (noise(batch * m * columns, 1), band(m, n, width));
        let sums = for_any_threads(3, |threads| {
            let mut sums = vec![f32::NAN; batch * n * columns];
            weighted_sums(view(&[batch, m, columns], &x), view(&[m, n], &weights), &mut sums, threads).unwrap();
            sums
        });
        assert_close(&sums, &product(batch, [m, n], columns, &x, &weights));
        let wide: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        let wide_weights: Vec<f64> = weights.iter().map(|w| f64::from(*w)).collect();
        let mut wide_sums = vec![f64::NAN; batch * n * columns];
        weighted_sums(view(&[batch, m, columns], &wide), view(&[m, n], &wide_weights), &mut wide_sums, 1).unwrap();
        let expected = product(batch, [m, n], columns, &x, &weights);
        assert!(wide_sums.iter().zip(&expected).all(|(found, want)| (found - want).abs() < 1e-12));
    }
}

#[test]
fn weighted_sums_of_infinities() {
    for columns in [1, 20] {
        let (batch, m, n) = (40, 6, 5);
        let mut x = noise(batch * m * columns, 2);
        x[0] = f32::INFINITY;
        x[33 * m * columns] = f32::NAN;
        let weights = band(m, n, 1);
        let mut sums = vec![0.0; batch * n * columns];
        weighted_sums(view(&[batch, m, columns], &x), view(&[m, n], &weights), &mut sums, 1).unwrap();
        let expected = product(batch, [m, n], columns, &x, &weights);
        for (i, (found, want)) in sums.iter().zip(&expected).enumerate() {
            assert_eq!((found.is_nan(), found.is_infinite()), (want.is_nan(), want.is_infinite()), "{i} of {columns}");
        }
        assert!(expected.iter().any(|sum| sum.is_nan()) && expected.iter().any(|sum| sum.is_infinite()));
    }
}

#[test]
fn weighted_sums_of_nothing() {
    let mut sums = [1.0f32; 6];
    weighted_sums(view(&[1, 0, 2], &[]), view(&[0, 3], &[]), &mut sums, 2).unwrap();
    assert_eq!(sums, [0.0; 6]);
    weighted_sums(view(&[0, 2, 3], &[0.0f32; 0]), view(&[2, 1], &[1.0, 1.0]), &mut [], 2).unwrap();
    weighted_sums(view(&[2, 2, 0], &[0.0f32; 0]), view(&[2, 1], &[1.0, 1.0]), &mut [], 2).unwrap();
}

#[test]
fn weighted_sums_that_do_not_fit_are_errors() {
    let (x, w) = ([1.0f32; 6], [1.0f32; 6]);
    let mut sums = [0.0; 4];
    assert_error(
        weighted_sums(view(&[1, 3, 2], &x), view(&[2, 3], &w), &mut sums, 1),
        "the rows of the weights: 2, expected 3",
    );
    assert_error(
        weighted_sums(view(&[1, 3, 2], &x), view(&[3, 2], &w), &mut sums[..3], 1),
        "the elements of the result: 3, expected 4",
    );
    assert_error(
        weighted_sums(view(&[3, 2], &x), view(&[3, 2], &w), &mut sums, 1),
        "the operand has 2 dimensions, not 3: [3, 2]",
    );
}
