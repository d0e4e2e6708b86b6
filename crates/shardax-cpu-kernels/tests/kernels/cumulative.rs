//! Cumulative operations compared with loops in f64.

use super::{assert_error, noise, size, view};
use shardax_cpu_kernels::{Cumulative, cumulative, cumulative_logsumexp};

/// The operation on elements one by one.
fn combined(x: &[f64], [batch, rows, columns]: [usize; 3], is_reversed: bool, f: fn(f64, f64) -> f64) -> Vec<f64> {
    let mut out = x.to_vec();
    for (b, c) in (0..batch).flat_map(|b| (0..columns).map(move |c| (b, c))) {
        let mut column: Vec<usize> = (0..rows).map(|r| (b * rows + r) * columns + c).collect();
        if is_reversed {
            column.reverse();
        }
        column.windows(2).for_each(|pair| out[pair[1]] = f(out[pair[0]], x[pair[1]]));
    }
    out
}

#[test]
fn cumulative_operations_of_floats() {
    let operations: [(Cumulative, fn(f64, f64) -> f64); 4] = [
        (Cumulative::Sum, |a, b| a + b),
        (Cumulative::Product, |a, b| a * b),
        (Cumulative::Max, f64::max),
        (Cumulative::Min, f64::min),
    ];
    // One column and rows that are no multiple of four, several blocks of columns, and enough for several threads.
    for shape in [[7, 9, 1], [4, 1, 1], [1, 5000, 1], [2, 17, 5], [1, 3, 2049], [3, 70, 2500]] {
        let x = noise(size(&shape), 3);
        let wide: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        for ((operation, f), is_reversed) in operations.iter().flat_map(|o| [false, true].map(|r| (*o, r))) {
            let want = combined(&wide, shape, is_reversed, f);
            let mut sums = vec![f64::NAN; want.len()];
            cumulative(view(&shape, &wide), operation, is_reversed, &mut sums, 2).unwrap();
            assert_eq!(sums, want, "{operation:?} {shape:?}");
            let rounded: Vec<f32> = want.iter().map(|x| *x as f32).collect();
            for threads in [1, 3] {
                let mut sums = vec![f32::NAN; want.len()];
                cumulative(view(&shape, &x), operation, is_reversed, &mut sums, threads).unwrap();
                assert_eq!(sums, rounded, "{operation:?} {shape:?}");
            }
        }
    }
}

#[test]
fn cumulative_operations_of_integers_wrap_around() {
    let x = [i32::MAX, 1, -3, 2];
    let mut out = [0; 4];
    cumulative(view(&[1, 4, 1], &x), Cumulative::Sum, false, &mut out, 1).unwrap();
    assert_eq!(out, [i32::MAX, i32::MIN, i32::MAX - 2, i32::MAX]);
    cumulative(view(&[1, 2, 2], &x), Cumulative::Max, true, &mut out, 1).unwrap();
    assert_eq!(out, [i32::MAX, 2, -3, 2]);
    let mut out = [0; 3];
    cumulative(view(&[1, 3, 1], &[u64::MAX, 2, 5]), Cumulative::Product, false, &mut out, 1).unwrap();
    assert_eq!(out, [u64::MAX, u64::MAX - 1, u64::MAX - 9]);
}

#[test]
fn cumulative_operations_of_nan_infinities_and_zeros() {
    let x = [1.0f32, f32::NAN, 2.0];
    for operation in [Cumulative::Sum, Cumulative::Product, Cumulative::Max, Cumulative::Min] {
        for shape in [[1, 3, 1], [3, 1, 1]] {
            let mut out = [0.0; 3];
            cumulative(view(&shape, &x), operation, false, &mut out, 1).unwrap();
            assert_eq!(out.map(f32::is_nan), [false, true, shape[1] == 3], "{operation:?}");
        }
    }
    let x = [f32::INFINITY, -1.0, f32::NEG_INFINITY];
    let mut out = [0.0; 3];
    cumulative(view(&[1, 3, 1], &x), Cumulative::Sum, false, &mut out, 1).unwrap();
    assert!(out[1] == f32::INFINITY && out[2].is_nan());
    // What is too large for f32 is infinite from there on.
    let mut out = [0.0; 3];
    cumulative(view(&[1, 3, 1], &[1e30f32, 1e30, 0.0]), Cumulative::Product, false, &mut out, 1).unwrap();
    assert!(out[1] == f32::INFINITY && out[2].is_nan());
    cumulative(view(&[1, 3, 1], &[3e38f32, 3e38, -3e38]), Cumulative::Sum, false, &mut out, 1).unwrap();
    assert_eq!(out, [3e38, f32::INFINITY, f32::INFINITY]);
    // 0 is larger than -0, whichever comes first.
    for zeros in [[0.0f32, -0.0], [-0.0, 0.0]] {
        let mut out = [1.0; 2];
        cumulative(view(&[1, 2, 1], &zeros), Cumulative::Max, false, &mut out, 1).unwrap();
        assert!(out[1].is_sign_positive());
        cumulative(view(&[1, 2, 1], &zeros), Cumulative::Min, false, &mut out, 1).unwrap();
        assert!(out[1].is_sign_negative());
    }
}

/// Rows of several vectors, in which an element is not finite or a sum overflows.
#[test]
fn cumulative_sums_of_rows_that_are_not_finite() {
    let n = 200;
    for place in [0, 5, 63, 64, 130, 199] {
        for (x, then) in [(f32::NAN, f32::NAN), (f32::INFINITY, f32::INFINITY), (f32::MAX, f32::INFINITY)] {
            // A sum that overflows stays infinite, even if the following elements are negative.
            let mut row: Vec<f32> =
                (0..n).map(|i| if i < place { 1e38 * ((i % 2) as f32 - 0.5) } else { -1.0 }).collect();
            row[place] = x;
            if x == f32::MAX && place > 0 {
                row[place - 1] = f32::MAX;
            }
            let reversed: Vec<f32> = row.iter().rev().copied().collect();
            let (mut sums, mut from_end) = (vec![0.0; n], vec![0.0; n]);
            cumulative(view(&[1, n, 1], &row), Cumulative::Sum, false, &mut sums, 1).unwrap();
            cumulative(view(&[1, n, 1], &reversed), Cumulative::Sum, true, &mut from_end, 1).unwrap();
            from_end.reverse();
            let is_infinite_then = x != f32::MAX || place > 0;
            for (i, (sum, other)) in sums.iter().zip(&from_end).enumerate() {
                assert!(sum.to_bits() == other.to_bits() || sum.is_nan() && other.is_nan(), "{i}: {sum} and {other}");
                let is_right = if i < place {
                    sum.is_finite()
                } else {
                    sum.to_bits() == then.to_bits() || sum.is_nan() == then.is_nan() && then.is_nan()
                };
                assert!(is_right || !is_infinite_then, "{x} at {place}: {sum} at {i}");
            }
        }
    }
    let zeros = [-0.0f32; 70];
    let mut sums = [1.0f32; 70];
    cumulative(view(&[1, 70, 1], &zeros), Cumulative::Sum, false, &mut sums, 1).unwrap();
    assert!(sums.iter().all(|sum| *sum == 0.0 && sum.is_sign_negative()));
}

#[test]
fn cumulative_operations_without_elements() {
    cumulative::<f32>(view(&[2, 0, 3], &[]), Cumulative::Sum, false, &mut [], 1).unwrap();
    let result = cumulative(view(&[1, 1, 2], &[1, 2]), Cumulative::Sum, false, &mut [0], 1);
    assert_error(result, "the elements of the result: 1, expected 2");
}

#[test]
fn cumulative_logarithms_of_sums_of_exponentials() {
    for shape in [[7, 9, 1], [1, 5000, 1], [2, 17, 5], [1, 3, 2049]] {
        for scale in [1.0, 300.0] {
            let x: Vec<f32> = noise(size(&shape), 5).iter().map(|x| x * scale).collect();
            let wide: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
            for is_reversed in [false, true] {
                let want = combined(&wide, shape, is_reversed, |a, b| a.max(b) + (-(a - b).abs()).exp().ln_1p());
                let mut out = vec![f64::NAN; want.len()];
                cumulative_logsumexp(view(&shape, &wide), is_reversed, &mut out, 2).unwrap();
                let mut narrow = vec![f32::NAN; want.len()];
                cumulative_logsumexp(view(&shape, &x), is_reversed, &mut narrow, 1).unwrap();
                for ((want, out), narrow) in want.iter().zip(&out).zip(&narrow) {
                    assert!((want - out).abs() <= 1e-12 * want.abs().max(1.0), "{shape:?}: {out} instead of {want}");
                    assert!(*narrow == *out as f32, "{shape:?}: {narrow} instead of {out}");
                }
            }
        }
    }
}

#[test]
fn cumulative_logarithms_of_infinities_and_nan() {
    let infinity = f32::INFINITY;
    let x = [-infinity, -infinity, 1.0, -infinity, infinity, infinity, 0.0, f32::NAN, 1.0];
    let mut out = [0.0; 9];
    cumulative_logsumexp(view(&[1, 9, 1], &x), false, &mut out, 1).unwrap();
    assert_eq!(out[..7], [-infinity, -infinity, 1.0, 1.0, infinity, infinity, infinity]);
    assert!(out[7..].iter().all(|x| x.is_nan()));
}
