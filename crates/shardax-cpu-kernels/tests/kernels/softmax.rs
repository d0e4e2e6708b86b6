//! Softmax compared with float64.

use super::{assert_error, noise, view};
use half::{bf16, f16};
use shardax_cpu_kernels::{HalfLogit, softmax, softmax_columns, softmax_half};

#[test]
fn softmax_of_rows_of_all_sizes() {
    for (n, rows) in [(1, 3), (2, 1), (7, 5), (17, 4), (5, 9000), (1000, 40), (70_001, 2)] {
        let x: Vec<f32> = noise(n * rows, 3).iter().map(|x| x * 20.0).collect();
        for threads in [1, 3] {
            let mut y = vec![0.0; n * rows];
            softmax(n, &x, &mut y, threads).unwrap();
            for (x, y) in x.chunks_exact(n).zip(y.chunks_exact(n)) {
                let max = f64::from(x.iter().copied().fold(f32::MIN, f32::max));
                let exponentials: Vec<f64> = x.iter().map(|x| (f64::from(*x) - max).exp()).collect();
                let sum: f64 = exponentials.iter().sum();
                for (y, exponential) in y.iter().zip(exponentials) {
                    let expected = exponential / sum;
                    let error = (f64::from(*y) - expected).abs();
                    // The difference to the maximum is rounded, which its exponential magnifies up to forty times.
                    assert!(error <= 4e-6 * expected + 1e-37, "{y} instead of {expected}, {n} elements");
                }
            }
        }
    }
}

/// Differences to the maximum are integers, so that they are exact, and the library's exponentials of them have all digits.
#[test]
fn softmax_of_rows_of_f64() {
    for (n, rows) in [(1, 3), (2, 1), (7, 5), (17, 4), (5, 9000), (1000, 40), (70_001, 2)] {
        let x: Vec<f64> = noise(n * rows, 3).iter().map(|x| (f64::from(*x) * 360.0).round()).collect();
        for threads in [1, 3] {
            let mut y = vec![0.0; n * rows];
            softmax(n, &x, &mut y, threads).unwrap();
            for (x, y) in x.chunks_exact(n).zip(y.chunks_exact(n)) {
                let max = x.iter().copied().fold(f64::MIN, f64::max);
                let exponentials: Vec<f64> = x.iter().map(|x| (x - max).exp()).collect();
                // A single chain of additions would have larger errors than the softmax.
                let sum: f64 = exponentials.chunks(256).map(|part| part.iter().sum::<f64>()).sum();
                for (y, exponential) in y.iter().zip(exponentials) {
                    let expected = exponential / sum;
                    let error = (y - expected).abs();
                    assert!(error <= 6.0 * f64::EPSILON * expected + 1e-307, "{y} instead of {expected}, {n} elements");
                }
            }
        }
    }
}

#[test]
fn softmax_of_f64_that_are_not_finite() {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    let x = [1.0, nan, 2.0, inf, 0.0, 1.0, -inf, -inf, -inf, -inf, 5.0, -inf, 0.0, -1e300, -708.0];
    let mut y = [0.0; 15];
    softmax(3, &x, &mut y, 1).unwrap();
    assert!(y[..9].iter().all(|y| y.is_nan()), "{y:?}");
    assert_eq!(y[9..14], [0.0, 1.0, 0.0, 1.0, 0.0]);
    assert!((y[14] / (-708f64).exp() - 1.0).abs() < 3.0 * f64::EPSILON, "{}", y[14]);
}

#[test]
fn softmax_of_a_large_row_sums_to_one() {
    // In sixteen sums of f32, each with 2¹⁸ terms, digits would be lost.
    let n = (1 << 22) + 3;
    let x: Vec<f32> = noise(n, 5);
    let mut y = vec![0.0; n];
    softmax(n, &x, &mut y, 2).unwrap();
    let sum: f64 = y.iter().map(|y| f64::from(*y)).sum();
    assert!((sum - 1.0).abs() < 2e-7, "{sum}");
}

#[test]
fn softmax_of_numbers_that_are_not_finite() {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    let x = [1.0, nan, 2.0, inf, 0.0, 1.0, -inf, -inf, -inf, -inf, 5.0, -inf];
    let mut y = [0.0; 12];
    softmax(3, &x, &mut y, 1).unwrap();
    assert!(y[..9].iter().all(|y| y.is_nan()), "{y:?}");
    assert_eq!(y[9..], [0.0, 1.0, 0.0]);
}

#[test]
fn softmax_of_nothing_and_of_sizes_that_do_not_fit() {
    softmax::<f32>(0, &[], &mut [], 1).unwrap();
    softmax::<f64>(3, &[], &mut [], 1).unwrap();
    assert_error(softmax(2, &[1.0; 3], &mut [0.0f32; 3], 1), "the elements of rows: 3, expected 2");
    assert_error(softmax(2, &[1.0; 4], &mut [0.0f32; 2], 1), "the elements of the result: 2, expected 4");
}

/// The columns are the rows of the transposed matrices, for which the softmax of rows is compared with float64.
#[test]
fn softmax_of_columns_is_that_of_transposed_rows() {
    for [batch, rows, columns] in
        [[1, 1, 1], [3, 1, 5], [2, 7, 1], [1, 3, 64], [2, 700, 65], [1, 1000, 131], [1, 70_001, 3], [1, 30, 2500]]
    {
        let x: Vec<f32> = noise(batch * rows * columns, 4).iter().map(|x| x * 20.0).collect();
        let transposed: Vec<f32> = (0..x.len())
            .map(|i| x[i / (rows * columns) * rows * columns + i % rows * columns + i / rows % columns])
            .collect();
        let mut of_rows = vec![0.0; x.len()];
        softmax(rows, &transposed, &mut of_rows, 1).unwrap();
        for threads in [1, 3] {
            let mut y = vec![f32::NAN; x.len()];
            softmax_columns(view(&[batch, rows, columns], &x), &mut y, threads).unwrap();
            for (i, row) in of_rows.iter().enumerate() {
                let y = y[i / (rows * columns) * rows * columns + i % rows * columns + i / rows % columns];
                assert!((y - row).abs() <= 1e-6 * row, "{y} instead of {row}, {rows} rows");
            }
        }
        let wide: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        let mut y = vec![f64::NAN; x.len()];
        softmax_columns(view(&[batch, rows, columns], &wide), &mut y, 1).unwrap();
        let sums: Vec<f64> = (0..columns).map(|c| (0..rows).map(|r| y[r * columns + c]).sum()).collect();
        assert!(sums.iter().all(|sum| (sum - 1.0).abs() < 1e-12), "{sums:?}");
    }
}

#[test]
fn softmax_of_columns_that_are_not_finite_or_missing() {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    let x = [1.0, inf, -inf, -inf, nan, 0.0, -inf, 5.0];
    let mut y = [0.0; 8];
    softmax_columns(view(&[1, 2, 4], &x), &mut y, 1).unwrap();
    assert!([0, 1, 2, 4, 5, 6].iter().all(|i| y[*i].is_nan()), "{y:?}");
    assert_eq!([y[3], y[7]], [0.0, 1.0]);
    for shape in [[0, 2, 3], [2, 0, 3], [2, 3, 0]] {
        softmax_columns::<f64>(view(&shape, &[]), &mut [], 1).unwrap();
    }
    let error = softmax_columns(view(&[1, 2, 2], &[1.0; 4]), &mut [0.0f32; 3], 1);
    assert_error(error, "the elements of the result: 3, expected 4");
}

/// Half precision has the bits of a softmax in f32 that is rounded, also for subnormal results, NaN and infinities.
#[test]
fn softmax_of_rows_of_half_precision() {
    for (n, rows) in [(1, 3), (2, 1), (7, 5), (17, 4), (5, 9000), (1000, 40), (70_001, 2)] {
        let mut x: Vec<f32> = noise(n * rows, 3).iter().map(|x| x * 20.0).collect();
        let special = [f32::NEG_INFINITY, 1e-6, f32::NAN, f32::INFINITY];
        x.iter_mut().step_by(1237).skip(1).zip(special.iter().cycle()).for_each(|(x, special)| *x = *special);
        for threads in [1, 3] {
            compare_half(n, &x, threads, bf16::from_f32, f32::from);
            compare_half(n, &x, threads, f16::from_f32, f32::from);
        }
    }
    assert_error(softmax_half(3, &[f16::ONE; 4], &mut [f16::ONE; 4], 1), "the elements of rows: 4, expected 3");
    let none: [f16; 0] = [];
    softmax_half(3, &none, &mut [], 1).unwrap();
    softmax_half(0, &none, &mut [], 1).unwrap();
}

fn compare_half<T: HalfLogit>(n: usize, x: &[f32], threads: usize, narrow: fn(f32) -> T, widen: fn(T) -> f32) {
    let x: Vec<T> = x.iter().map(|x| narrow(*x)).collect();
    let wide: Vec<f32> = x.iter().map(|x| widen(*x)).collect();
    let (mut y, mut expected) = (x.clone(), wide.clone());
    softmax_half(n, &x, &mut y, threads).unwrap();
    softmax(n, &wide, &mut expected, threads).unwrap();
    for (i, (y, expected)) in y.iter().zip(expected).enumerate() {
        let (y, expected) = (widen(*y), widen(narrow(expected)));
        assert!(y == expected || y.is_nan() && expected.is_nan(), "{y} instead of {expected} at {i}, {n} elements");
    }
}
