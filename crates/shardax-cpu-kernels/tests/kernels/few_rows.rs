//! Products of few rows and numbers of fewer bits.

use half::{bf16, f16};

use super::{assert_error, noise, view};
use shardax_cpu_kernels::{MAX_ROWS, Weight, few_rows};

/// Products of few rows, whose elements are these numbers in fewer bits.
fn few_rows_of<W: Weight>(narrow: impl Fn(f32) -> W) {
    // No multiple of four or of a lane's width; several blocks of contracted elements and of columns.
    for [rows, depth, columns] in [[1, 5, 3], [MAX_ROWS, 70, 67], [3, 1029, 130], [1, 4096, 300], [2, 33, 9000]] {
        let x = noise(rows * depth, 1);
        let w: Vec<W> = noise(depth * columns, 2).into_iter().map(&narrow).collect();
        for contracted in [0, 1] {
            let shape = if contracted == 0 { [depth, columns] } else { [columns, depth] };
            let mut products = vec![];
            for threads in [1, 3] {
                let mut product = vec![f32::NAN; rows * columns];
                few_rows(view(&[rows, depth], &x), view(&shape, &w), contracted, &mut product, threads).unwrap();
                products.push(product);
            }
            assert_eq!(products[0], products[1]);
            for (i, found) in products[0].iter().enumerate().step_by(7) {
                let (row, column) = (i / columns, i % columns);
                let (mut want, mut bound) = (0.0, 0.0);
                for k in 0..depth {
                    let position = if contracted == 0 { k * columns + column } else { column * depth + k };
                    let weight = f64::from(w[position].widened());
                    want += f64::from(x[row * depth + k]) * weight;
                    bound += 1e-6 * weight.abs();
                }
                assert!((f64::from(*found) - want).abs() <= bound, "{rows} {depth} {columns}: {found}, not {want}");
            }
        }
    }
}

#[test]
fn products_of_few_rows_and_narrow_numbers() {
    few_rows_of(|x| (x * 127.0) as i8);
    few_rows_of(|x| (x * 127.0 + 128.0) as u8);
    few_rows_of(bf16::from_f32);
    few_rows_of(f16::from_f32);

    // An element that is not finite must change only its column.
    let mut w = vec![bf16::ONE; 40 * 3];
    (w[3 * 30 + 1], w[3 * 39]) = (bf16::NAN, bf16::INFINITY);
    let mut product = [0.0; 3];
    few_rows(view(&[1, 40], &[1.0; 40]), view(&[40, 3], &w), 0, &mut product, 1).unwrap();
    assert!(product[0] == f32::INFINITY && product[1].is_nan() && product[2] == 40.0, "{product:?}");
    few_rows(view(&[1, 0], &[]), view::<i8>(&[3, 0], &[]), 1, &mut product, 1).unwrap();
    assert_eq!(product, [0.0; 3]);
    few_rows(view(&[0, 2], &[]), view(&[2, 3], &[1u8; 6]), 0, &mut [], 1).unwrap();
    let rows = [1.0; 18];
    let error = few_rows(view(&[9, 2], &rows), view(&[2, 3], &[1u8; 6]), 0, &mut [0.0; 27], 1);
    assert_error(error, "9 rows, and dimension 0 of a matrix: dimension 0 or 1, and at most 8 rows expected");
    let error = few_rows(view(&[1, 3], &rows[..3]), view(&[2, 3], &[1u8; 6]), 0, &mut product, 1);
    assert_error(error, "the contracted dimension of the matrix: 2, expected 3");
}

#[test]
fn all_numbers_of_16_bits_are_widened() {
    for bits in 0..=u16::MAX {
        let (half, brain) = (f16::from_bits(bits), bf16::from_bits(bits));
        for (found, want) in [(half.widened(), half.to_f32()), (brain.widened(), brain.to_f32())] {
            let is_same = found.to_bits() == want.to_bits() || found.is_nan() && want.is_nan();
            assert!(is_same, "{bits:#x}: {found}, not {want}");
        }
    }
}
