//! Products of rows and integers in groups.

use half::f16;

use super::{assert_error, noise, view};
use shardax_cpu_kernels::{GroupNumbers, GroupedIntegers, GroupedMatrix, grouped_rows};

/// Bytes from a linear congruential generator.
fn bytes(count: usize) -> Vec<u8> {
    noise(count, 3).into_iter().map(|x| ((x + 1.0) * 128.0) as u8).collect()
}

/// The integers as numbers.
fn widened(integers: GroupedIntegers<'_>) -> Vec<f64> {
    match integers {
        GroupedIntegers::Unsigned4(bytes) => halves(bytes).map(f64::from).collect(),
        GroupedIntegers::Signed4(bytes) => {
            halves(bytes).map(|half| f64::from(half) - if half > 7 { 16.0 } else { 0.0 }).collect()
        }
        GroupedIntegers::Signed8(values) => values.iter().map(|value| f64::from(*value)).collect(),
    }
}

/// The two integers of each byte, the lower half first.
fn halves(bytes: &[u8]) -> impl Iterator<Item = u8> {
    bytes.iter().flat_map(|byte| [byte & 15, byte >> 4])
}

fn number(numbers: GroupNumbers<'_>, index: usize) -> f64 {
    match numbers {
        GroupNumbers::F16(numbers) => f64::from(numbers[index]),
        GroupNumbers::F32(numbers) => f64::from(numbers[index]),
    }
}

fn check_products(rows: usize, matrix: GroupedMatrix<'_>) {
    let [columns, groups, size] = matrix.shape;
    let depth = groups * size;
    let x = noise(rows * depth, 1);
    let mut products = vec![];
    for threads in [1, 3] {
        let mut product = vec![f32::NAN; rows * columns];
        grouped_rows(view(&[rows, depth], &x), matrix, &mut product, threads).unwrap();
        products.push(product);
    }
    assert_eq!(products[0], products[1]);
    let integers = widened(matrix.integers);
    for (position, found) in products[0].iter().enumerate() {
        let (row, column) = (position / columns, position % columns);
        let (mut expected, mut bound) = (0.0, 0.0);
        for k in 0..depth {
            let group = column * groups + k / size;
            let (scaled, minimum) = (
                integers[column * depth + k] * number(matrix.scales, group),
                matrix.minima.map_or(0.0, |minima| number(minima, group)),
            );
            let x = f64::from(x[row * depth + k]);
            expected += x * (scaled - minimum);
            // Both products are rounded, even where they cancel.
            bound += 1e-6 * (x * scaled).abs().max((x * minimum).abs());
        }
        assert!((f64::from(*found) - expected).abs() <= bound, "{rows} {:?}: {found}, not {expected}", matrix.shape);
    }
}

#[test]
fn grouped_rows_multiply_scaled_integers() {
    // Every number of rows that is computed differently, several tasks, pairs of columns and a single one, rows that end within a
    // block of words, groups of a few words and of several blocks, several panels, and more rows than are multiplied together.
    for (rows, shape) in [
        (1, [70, 3, 32]),
        (1, [131, 4, 32]),
        (2, [3, 1, 256]),
        (3, [5, 2, 64]),
        (4, [1, 7, 32]),
        (5, [9, 1, 32]),
        (8, [66, 5, 32]),
        (9, [33, 21, 32]),
        (13, [3, 1, 128]),
        (32, [2, 4, 96]),
        (40, [70, 2, 288]),
        (1027, [2, 1, 32]),
    ] {
        let (count, size) = (shape[0] * shape[1], shape.iter().product::<usize>());
        let (scales, packed) = (noise(count, 4), bytes(size / 2));
        let halves: Vec<f16> = noise(count, 5).into_iter().map(f16::from_f32).collect();
        let signed: Vec<i8> = bytes(size).into_iter().map(|byte| byte as i8).collect();
        for integers in
            [GroupedIntegers::Signed4(&packed), GroupedIntegers::Unsigned4(&packed), GroupedIntegers::Signed8(&signed)]
        {
            let matrix = GroupedMatrix { shape, integers, scales: GroupNumbers::F32(&scales), minima: None };
            check_products(rows, matrix);
            let scales = GroupNumbers::F16(&halves);
            check_products(
                rows,
                GroupedMatrix { scales, minima: Some(GroupNumbers::F32(&[0.5].repeat(count))), ..matrix },
            );
        }
    }
    // Groups of 16 and 48 have integers of 8 bits only.
    for shape in [[1, 3, 16], [35, 19, 16], [17, 7, 48]] {
        let values: Vec<i8> = bytes(shape.iter().product()).into_iter().map(|byte| byte as i8).collect();
        let integers = GroupedIntegers::Signed8(&values);
        let (scales, minima) = (noise(shape[0] * shape[1], 4), noise(shape[0] * shape[1], 5));
        for rows in [1, 4, 20] {
            for minima in [None, Some(GroupNumbers::F32(&minima))] {
                check_products(rows, GroupedMatrix { shape, integers, scales: GroupNumbers::F32(&scales), minima });
            }
        }
    }
}

/// Every number of rows that is computed differently. Elements that are not finite or very large stay in their row.
#[test]
fn grouped_rows_of_infinities_and_nan() {
    let values = [3i8, -2].repeat(32);
    let matrix = GroupedMatrix {
        shape: [1, 2, 32],
        integers: GroupedIntegers::Signed8(&values),
        scales: GroupNumbers::F32(&[0.5, 1.0]),
        minima: None,
    };
    for rows in [3, 6, 40] {
        let mut x = vec![1.0; rows * 64];
        (x[0], x[64], x[2 * 64 + 1]) = (f32::NAN, f32::INFINITY, 1e36);
        let mut product = vec![0.0; rows];
        grouped_rows(view(&[rows, 64], &x), matrix, &mut product, 1).unwrap();
        assert!(product[0].is_nan(), "{rows}: {product:?}");
        assert_eq!(product[1], f32::INFINITY, "{rows}");
        assert_eq!(product[2], -1e36, "{rows}");
        assert!(product[3..].iter().all(|sum| *sum == 24.0), "{rows}: {product:?}");
    }
}

/// Each number has as many digits as the processor's products of f32 have.
#[test]
fn grouped_rows_keep_all_digits() {
    let matrix = GroupedMatrix {
        shape: [1, 1, 32],
        integers: GroupedIntegers::Signed8(&[1; 32]),
        scales: GroupNumbers::F32(&[1.0]),
        minima: None,
    };
    let numbers = [1.0 + f32::EPSILON, -1.0 / 3.0, f32::MAX, 16_777_215.0, 1e-30, -0.1, 1.1e30];
    let mut x = vec![0.0; numbers.len() * 32];
    (0..numbers.len()).for_each(|row| x[row * 32 + 3 * row] = numbers[row]);
    let mut product = [0.0; 7];
    grouped_rows(view(&[7, 32], &x), matrix, &mut product, 1).unwrap();
    assert_eq!(product, numbers);
}

/// Integers at every position of a word, with all values, times one element that is not zero.
#[test]
fn grouped_rows_widen_integers_exactly() {
    let packed: Vec<u8> = (0..=255).collect();
    let signed: Vec<i8> = (-128..=127).collect();
    for integers in
        [GroupedIntegers::Signed4(&packed), GroupedIntegers::Unsigned4(&packed), GroupedIntegers::Signed8(&signed)]
    {
        let expected = widened(integers);
        let depth = expected.len();
        let matrix = GroupedMatrix {
            shape: [1, depth / 32, 32],
            integers,
            scales: GroupNumbers::F32(&[1.0].repeat(depth / 32)),
            minima: None,
        };
        for rows in [1, 2, 16] {
            for first in (0..depth).step_by(rows) {
                let mut x = vec![0.0; rows * depth];
                (0..rows).for_each(|row| x[row * depth + first + row] = 1.0);
                let mut product = vec![f32::NAN; rows];
                grouped_rows(view(&[rows, depth], &x), matrix, &mut product, 1).unwrap();
                let product: Vec<f64> = product.into_iter().map(f64::from).collect();
                assert_eq!(product, expected[first..first + rows], "{integers:?}");
            }
        }
    }
}

#[test]
fn grouped_rows_that_do_not_fit() {
    let matrix = GroupedMatrix {
        shape: [1, 1, 32],
        integers: GroupedIntegers::Signed4(&[0; 16]),
        scales: GroupNumbers::F32(&[1.0]),
        minima: None,
    };
    let many = [1.0; 32];
    let mut out = [0.0; 1];
    let odd = GroupedMatrix { shape: [1, 2, 16], ..matrix };
    let error = grouped_rows(view(&[1, 32], &many), odd, &mut out, 1);
    assert_error(error, "groups of 16: a multiple of 32 expected");
    let error = grouped_rows(view(&[1, 16], &many[..16]), matrix, &mut out[..1], 1);
    assert_error(error, "the contracted dimension of the rows: 16, expected 32");
    let few = GroupedMatrix { scales: GroupNumbers::F16(&[]), ..matrix };
    let error = grouped_rows(view(&[1, 32], &many[..32]), few, &mut out[..1], 1);
    assert_error(error, "the scales of the matrix: 0, expected 1");
    grouped_rows(view(&[0, 32], &[]), matrix, &mut [], 1).unwrap();
}
