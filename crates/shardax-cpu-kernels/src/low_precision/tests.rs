//! Products of bf16 and int8 by all instructions that this processor has, next to sums in f64 and i64.

use half::bf16;

use super::*;
use crate::{matmul_bf16, matmul_i8};

/// Batch, rows, columns and contracted elements: none, one, parts of tiles and words, several blocks and parts of sums.
const SIZES: &[[usize; 4]] = &[
    [1, 1, 1, 1],
    [0, 2, 3, 4],
    [2, 0, 3, 4],
    [2, 3, 0, 4],
    [2, 3, 5, 0],
    [3, 13, 33, 7],
    [2, 25, 31, 130],
    [1, 4, 65, 1030],
    [1, 5, 64, 64],
    [5, 12, 32, 4],
    [1, 130, 3, 70],
    [1, 8, 130, 300],
    [1, 1, 130, 300],
    [2, 2, 70, 515],
    [1, 12, 64, 256],
    [1, 110, 70, 515],
    [1, 70, 110, 520],
    [1, 33, 65, 1100],
];

const CONTRACTED: [[usize; 2]; 4] = [[2, 1], [1, 1], [2, 2], [1, 2]];

/// All sizes with all contracted dimensions. The largest products take seconds without optimization, so each has one pair of dimensions.
fn cases() -> impl Iterator<Item = ([usize; 4], [usize; 2])> {
    let is_large = |[batch, rows, columns, depth]: [usize; 4]| batch * rows * columns * depth > 1 << 20;
    let pairs = SIZES.iter().enumerate().flat_map(|(i, sizes)| (0..4).map(move |pair| (i, *sizes, pair)));
    pairs
        .filter(move |(i, sizes, pair)| !is_large(*sizes) || i % 4 == *pair)
        .map(|(_, sizes, pair)| (sizes, CONTRACTED[pair]))
}

/// One result of these is compared: no divisor of a tile's sides.
const STEP: usize = 5;

/// Numbers of 32 bits from a linear congruential generator.
fn noise(len: usize, seed: u64) -> impl Iterator<Item = u32> {
    let states = std::iter::successors(Some(seed), |state| {
        Some(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407))
    });
    states.skip(1).take(len).map(|state| (state >> 32) as u32)
}

/// Operands of a product with their shapes.
struct Operands<T> {
    shapes: [[usize; 3]; 2],
    elements: [Vec<T>; 2],
    contracted: [usize; 2],
}

impl<T: Copy> Operands<T> {
    fn new([batch, rows, columns, depth]: [usize; 4], contracted: [usize; 2], element: impl Fn(u32) -> T) -> Self {
        let shapes = [(rows, contracted[0]), (columns, contracted[1])]
            .map(|(side, contracted)| if contracted == 2 { [batch, side, depth] } else { [batch, depth, side] });
        let elements = [1, 2].map(|seed| {
            let size = shapes[seed as usize - 1].iter().product();
            noise(size, seed).map(&element).collect()
        });
        Operands { shapes, elements, contracted }
    }

    fn view(&self, operand: usize) -> View<'_, T> {
        View::new(&self.shapes[operand], &self.elements[operand]).unwrap()
    }

    /// The elements that are multiplied for a result.
    fn pairs(&self, batch: usize, row: usize, column: usize) -> impl Iterator<Item = (T, T)> {
        let depth = self.shapes[0][self.contracted[0]];
        (0..depth).map(move |k| (self.element(0, batch, [row, k]), self.element(1, batch, [column, k])))
    }

    /// The element of an operand in this row or column, at position `k` of the contracted dimension.
    fn element(&self, operand: usize, batch: usize, [side, k]: [usize; 2]) -> T {
        let [_, height, width] = self.shapes[operand];
        let (i, j) = if self.contracted[operand] == 2 { (side, k) } else { (k, side) };
        self.elements[operand][(batch * height + i) * width + j]
    }
}

/// A product by these instructions on one thread and on three, which have equal bits.
fn product<U: Unit, R: Rounded<U::Sum> + PartialEq + std::fmt::Debug>(
    unit: U,
    operands: &Operands<U::Element>,
    size: usize,
    initial: R,
) -> Vec<R> {
    let [one, three] = [1, 3].map(|threads| {
        let mut out = vec![initial; size];
        multiply(unit, operands.view(0), operands.view(1), operands.contracted, &mut out, threads).unwrap();
        out
    });
    assert_eq!(one, three);
    one
}

fn check_int8<U: Unit<Element = i8, Sum = i32>>(unit: U) {
    for (sizes, contracted) in cases() {
        let [batch, rows, columns, _] = sizes;
        let operands = Operands::new(sizes, contracted, |bits| bits as i8);
        let products = product(unit, &operands, batch * rows * columns, 77);
        for (index, products) in products.into_iter().enumerate().step_by(STEP) {
            let (batch, row, column) = (index / (rows * columns), index / columns % rows, index % columns);
            let expected: i64 = operands.pairs(batch, row, column).map(|(x, y)| i64::from(x) * i64::from(y)).sum();
            assert_eq!(i64::from(products), expected, "{sizes:?} over {contracted:?} at {index}");
        }
    }
    // Sums of two or four of these products fit no 16 bits, and the last one fits no 32 bits.
    let extremes = [(-128, -128, 1000), (127, -128, 1003), (127, 127, 17), (-128, 127, 9), (-128, -128, 1 << 17)];
    for (x, y, depth) in extremes {
        let (left, right) = (vec![x; 3 * depth], vec![y; depth * 5]);
        let [left_shape, right_shape] = [[1, 3, depth], [1, depth, 5]];
        let views = [View::new(&left_shape, &left).unwrap(), View::new(&right_shape, &right).unwrap()];
        let mut out = [0; 15];
        multiply(unit, views[0], views[1], [2, 1], &mut out, 1).unwrap();
        let expected = i32::from(x).wrapping_mul(i32::from(y)).wrapping_mul(depth as i32);
        assert_eq!(out, [expected; 15], "{depth} products of {x} and {y}");
    }
}

fn check_bf16<U: Unit<Element = bf16, Sum = f32>>(unit: U) {
    for (sizes, contracted) in cases() {
        let [batch, rows, columns, _] = sizes;
        // From -1 to 1.
        let operands = Operands::new(sizes, contracted, |bits| bf16::from_f32(bits as f32 / (1u64 << 31) as f32 - 1.0));
        let sums = product(unit, &operands, batch * rows * columns, f32::NAN);
        let rounded = product(unit, &operands, sums.len(), bf16::ZERO);
        for (index, (sum, rounded)) in sums.into_iter().zip(rounded).enumerate().step_by(STEP) {
            let (batch, row, column) = (index / (rows * columns), index / columns % rows, index % columns);
            let (mut expected, mut bound) = (0.0, 0.0);
            for (x, y) in operands.pairs(batch, row, column) {
                let product = f64::from(x) * f64::from(y);
                expected += product;
                bound += 2e-7 * product.abs();
            }
            let error = (f64::from(sum) - expected).abs();
            assert!(error <= bound, "{sizes:?} over {contracted:?} at {index}: {sum}, not {expected}");
            assert_eq!(rounded, bf16::from_f32(sum));
        }
    }
    // A number that is not finite must change only its row and column, also next to padding.
    let (rows, columns, depth) = (13, 33, 35);
    let (mut left, mut right) = (vec![bf16::ONE; rows * depth], vec![bf16::ONE; depth * columns]);
    (left[depth - 1], left[12 * depth]) = (bf16::NAN, bf16::INFINITY);
    (right[32], right[34 * columns + 31]) = (bf16::NEG_INFINITY, bf16::NAN);
    let shapes = [[1, rows, depth], [1, depth, columns]];
    let views = [View::new(&shapes[0], &left).unwrap(), View::new(&shapes[1], &right).unwrap()];
    let mut out = vec![0.0f32; rows * columns];
    multiply(unit, views[0], views[1], [2, 1], &mut out, 1).unwrap();
    for (index, found) in out.into_iter().enumerate() {
        let expected = match (index / columns, index % columns) {
            (0, _) | (_, 31) => f32::NAN,
            (12, 32) | (_, 32) => f32::NEG_INFINITY,
            (12, _) => f32::INFINITY,
            _ => 35.0,
        };
        assert!(found == expected || found.is_nan() && expected.is_nan(), "{index}: {found}, not {expected}");
    }
}

#[test]
fn int8_products_are_exact() {
    check_int8(Int8Pairs);
    if let Some(unit) = tile::int8_instructions() {
        check_int8(unit);
        check_int8(unit.without_tiles());
    }
    if let Some(unit) = tile::int8_pair_instructions() {
        check_int8(unit);
    }
}

fn check_int32<U: Unit<Element = i32, Sum = i32>>(unit: U) {
    for (sizes, contracted) in cases() {
        let [batch, rows, columns, _] = sizes;
        let operands = Operands::new(sizes, contracted, |bits| bits as i32);
        let products = product(unit, &operands, batch * rows * columns, 77);
        for (index, products) in products.into_iter().enumerate().step_by(STEP) {
            let (batch, row, column) = (index / (rows * columns), index / columns % rows, index % columns);
            let expected =
                operands.pairs(batch, row, column).fold(0i32, |sum, (x, y)| sum.wrapping_add(x.wrapping_mul(y)));
            assert_eq!(products, expected, "{sizes:?} over {contracted:?} at {index}");
        }
    }
}

#[test]
fn int32_products_wrap_around() {
    check_int32(Int32);
    #[cfg(target_arch = "x86_64")]
    if let Some(unit) = int32::Int32Vectors::detect() {
        check_int32(unit);
    }
}

#[test]
fn bf16_products_are_summed_in_f32() {
    check_bf16(Bf16Pairs);
    if let Some(unit) = tile::bf16_instructions() {
        check_bf16(unit);
        check_bf16(unit.without_tiles());
    }
}

#[test]
fn sums_are_rounded_to_the_nearest_bf16() {
    let extremes = [f32::NAN, -f32::NAN, f32::from_bits(0x7f80_0001), f32::from_bits(0xffff_ffff)];
    for sum in noise(1_000_000, 3).map(f32::from_bits).chain(extremes).chain([f32::MAX, f32::INFINITY, -0.0]) {
        let (found, expected) = (<bf16 as Rounded<f32>>::rounded(sum), bf16::from_f32(sum));
        assert!(found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan(), "{sum}: {found}");
    }
}

#[test]
fn products_of_shapes_that_do_not_fit() {
    let (x, y) = ([bf16::ONE; 12], [1i8; 12]);
    let floats = View::new(&[1, 3, 4], &x).unwrap();
    let error = matmul_bf16(floats, floats, [2, 1], &mut [0.0f32; 12], 1).unwrap_err();
    assert_eq!(error.to_string(), "the contracted dimension of the right operand: 3, expected 4");
    let integers = View::new(&[1, 3, 4], &y).unwrap();
    let error = matmul_i8(integers, integers, [2, 2], &mut [0; 8], 1).unwrap_err();
    assert_eq!(error.to_string(), "the elements of the result: 8, expected 9");
    let error = matmul_i8(integers, integers, [0, 2], &mut [0; 9], 1).unwrap_err();
    assert_eq!(error.to_string(), "the left operand is contracted over dimension 0: 1 or 2 expected");
    let batches = View::new(&[3, 1, 4], &y).unwrap();
    let error = matmul_i8(integers, batches, [2, 2], &mut [0; 3], 1).unwrap_err();
    assert_eq!(error.to_string(), "the batch of the right operand: 3, expected 1");
}
