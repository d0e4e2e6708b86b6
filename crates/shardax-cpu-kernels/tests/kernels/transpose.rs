//! Transposes, compared with a loop over the elements.

use super::{assert_error, for_any_threads, size, view};
use shardax_cpu_kernels::{Movable, Movement, movement, transpose};

/// The transpose, one element after the other.
fn by_elements<T: Movable>(shape: &[usize], x: &[T], permutation: &[usize]) -> Vec<T> {
    let strides: Vec<usize> = (0..shape.len()).map(|d| size(&shape[d + 1..])).collect();
    (0..x.len())
        .map(|mut index| {
            let mut source = 0;
            for &d in permutation.iter().rev() {
                source += index % shape[d] * strides[d];
                index /= shape[d];
            }
            x[source]
        })
        .collect()
}

#[track_caller]
fn check<T: Movable + PartialEq>(shape: &[usize], permutation: &[usize], element: impl Fn(usize) -> T) {
    let x: Vec<T> = (0..size(shape)).map(&element).collect();
    let result = for_any_threads(3, |threads| {
        let mut y: Vec<T> = (0..x.len()).map(|_| element(12_345)).collect();
        transpose(view(shape, &x), permutation, &mut y, threads).unwrap();
        y
    });
    assert!(result == by_elements(shape, &x, permutation), "{permutation:?} of {shape:?}");
}

fn check_every_size(shape: &[usize], permutation: &[usize]) {
    check(shape, permutation, |i| (i * 7 % 251) as u8);
    check(shape, permutation, |i| i as u16);
    check(shape, permutation, |i| i as u32);
    check(shape, permutation, |i| !(i as u64));
    check(shape, permutation, |i| !(i as u128));
}

#[test]
fn transposes_of_matrices() {
    for columns in [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 64, 65, 100] {
        for rows in [1, 2, 3, 4, 5, 8, 13, 16, 31, 64, 67, 130] {
            check_every_size(&[rows, columns], &[1, 0]);
        }
    }
    // Rows whose lines evict each other, and several tasks.
    check_every_size(&[70, 1024], &[1, 0]);
    check_every_size(&[1024, 70], &[1, 0]);
    check_every_size(&[600, 523], &[1, 0]);
}

#[test]
fn transposes_of_images_heads_and_windows() {
    for (shape, permutation) in [
        (vec![3, 9, 11, 20], vec![0, 3, 1, 2]),
        (vec![3, 20, 9, 11], vec![0, 2, 3, 1]),
        (vec![2, 33, 31, 3], vec![0, 3, 1, 2]),
        (vec![2, 3, 33, 31], vec![0, 2, 3, 1]),
        (vec![3, 17, 4, 16], vec![0, 2, 1, 3]),
        (vec![3, 17, 4, 24], vec![0, 2, 3, 1]),
        (vec![2, 4, 5, 7, 6], vec![0, 2, 1, 3, 4]),
        (vec![2, 3, 7, 4, 7, 5], vec![0, 1, 3, 2, 4, 5]),
        (vec![2, 5, 2, 2, 6, 7], vec![0, 1, 4, 2, 5, 3]),
        (vec![9, 1, 8, 1, 17], vec![4, 1, 2, 3, 0]),
        (vec![64, 65, 66], vec![1, 0, 2]),
        (vec![2, 3, 4, 5, 6], vec![4, 3, 2, 1, 0]),
        (vec![2, 3, 4, 5, 6], vec![3, 1, 4, 0, 2]),
    ] {
        check_every_size(&shape, &permutation);
    }
    for size in [2, 3, 4, 5, 8, 16, 32, 64, 100] {
        check_every_size(&[7, 5, size], &[1, 0, 2]);
    }
}

#[test]
fn transposes_without_effect_and_without_elements() {
    check_every_size(&[], &[]);
    check_every_size(&[1], &[0]);
    check_every_size(&[1, 1, 1], &[2, 0, 1]);
    check_every_size(&[7, 30], &[0, 1]);
    check_every_size(&[1, 77, 1], &[2, 1, 0]);
    for shape in [[0, 3, 4], [3, 0, 4], [3, 4, 0]] {
        check_every_size(&shape, &[2, 1, 0]);
    }
}

#[test]
fn permutations_that_do_not_fit_are_errors() {
    let x = [0u32; 6];
    for permutation in [&[0][..], &[0, 0], &[1, 2], &[0, 1, 2]] {
        let text = format!("the permutation {permutation:?} of the dimensions [2, 3]");
        assert_error(transpose(view(&[2, 3], &x), permutation, &mut [0; 6], 1), &text);
        assert_error(movement(&[2, 3], permutation), &text);
    }
    assert_error(transpose(view(&[2, 3], &x), &[1, 0], &mut [0; 5], 1), "the elements of the result: 5, expected 6");
}

#[test]
fn movements_of_rows_and_matrices() {
    fn rows(size: usize, count: usize, stride: usize) -> Movement {
        Movement::Rows { size, count, stride }
    }
    for (shape, permutation, expected) in [
        (vec![], vec![], rows(1, 1, 1)),
        (vec![1, 1], vec![1, 0], rows(1, 1, 1)),
        (vec![3, 4], vec![0, 1], rows(12, 1, 12)),
        (vec![3, 4, 1], vec![1, 2, 0], Movement::Matrices { rows: 3, columns: 4, stride: 4 }),
        (vec![8, 5, 6, 7], vec![0, 3, 1, 2], Movement::Matrices { rows: 30, columns: 7, stride: 7 }),
        (vec![8, 4, 16, 3, 2], vec![0, 2, 1, 3, 4], rows(6, 4, 96)),
    ] {
        assert_eq!(movement(&shape, &permutation).unwrap(), expected, "{permutation:?} of {shape:?}");
    }
}
