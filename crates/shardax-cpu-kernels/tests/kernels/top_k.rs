//! The largest elements compared with a sort of entire rows.

use super::{assert_error, noise};
use shardax_cpu_kernels::top_k;

/// Compares with a stable sort in total order.
fn assert_largest(n: usize, k: usize, x: &[f32]) {
    for threads in [1, 3] {
        let rows = x.len() / n;
        let (mut values, mut indices) = (vec![0.0; rows * k], vec![-1; rows * k]);
        top_k(n, k, x, &mut values, &mut indices, threads).unwrap();
        for (row, x) in x.chunks_exact(n).enumerate() {
            let mut expected: Vec<usize> = (0..n).collect();
            expected.sort_by(|a, b| x[*b].total_cmp(&x[*a]));
            for (i, index) in expected[..k].iter().enumerate() {
                assert_eq!(indices[row * k + i], *index as i32, "row {row}, {k} of {n}");
                assert_eq!(values[row * k + i].to_bits(), x[*index].to_bits());
            }
        }
    }
}

#[test]
fn largest_elements_of_all_sizes() {
    let special = [0.0, -0.0, f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e-40, -1e-40];
    for (n, rows) in [(1, 3), (2, 1), (7, 5), (33, 4), (300, 3), (5000, 2), (70_000, 1)] {
        let mut x = noise(n * rows, 3);
        x.iter_mut().step_by(11).zip(special.iter().cycle()).for_each(|(x, special)| *x = *special);
        for k in [1, 2, 10, 100, n / 2, n] {
            assert_largest(n, k.clamp(1, n), &x);
        }
        // Many equal elements, and elements in ascending and descending order.
        assert_largest(n, n.min(9), &x.iter().map(|x| (x * 2.0).round()).collect::<Vec<_>>());
        x.sort_by(f32::total_cmp);
        assert_largest(n, n.min(20), &x);
        x.reverse();
        assert_largest(n, n.min(20), &x);
    }
}

#[test]
fn largest_elements_of_nothing() {
    for (n, k, rows) in [(0, 0, 0), (3, 0, 2), (4, 2, 0)] {
        let (mut values, mut indices) = (vec![0.0; rows * k], vec![0; rows * k]);
        top_k(n, k, &vec![1.0; n * rows], &mut values, &mut indices, 1).unwrap();
    }
}

#[test]
fn largest_elements_that_do_not_fit_are_errors() {
    assert_error(top_k(2, 3, &[1.0, 2.0], &mut [0.0; 3], &mut [0; 3], 1), "the 3 largest of 2 elements");
    assert_error(top_k(2, 1, &[1.0; 3], &mut [0.0], &mut [0], 1), "the elements of rows: 3, expected 2");
}
