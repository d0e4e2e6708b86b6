//! The product of two matrices by the crates `gemm-f32` and `gemm-f64`, which have kernels for AVX2, AVX-512 and NEON and choose at run time.
#![expect(unsafe_code, reason = "`gemm` reads and writes through pointers")]

use std::ops::Range;

use gemm_common::Parallelism;
use ndarray::{ArrayView2, ArrayViewMut2, Axis, Slice};
use pulp::Simd;

use crate::Float;

/// The number of elements of the contracted dimension that are summed in registers. `gemm` never divides a sum of at most
/// this many elements, whatever the processor's caches, so bits depend only on the instruction set.
const DEPTH: usize = 512;

/// The number of rows that are multiplied together. It bounds the memory of packed operands.
const ROWS_PER_BLOCK: usize = 1024;

/// The treatment of the previous contents of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Before {
    /// They are overwritten.
    Ignored,
    /// The product is added to them.
    Added,
    /// The product is subtracted from them.
    Reduced,
}

/// Computes `c = a b`, `c += a b` or `c -= a b`. Each element's sum depends only on the contracted dimension, and not on the number of
/// rows or columns. Allocates at most 1,024 × 512 elements, and 512 × 768 of the right operand.
///
/// # Panics
/// Panics if the shapes do not agree with this description; the caller must check them.
pub(crate) fn product<T: Float>(
    a: &ArrayView2<'_, T>,
    b: &ArrayView2<'_, T>,
    before: Before,
    c: &mut ArrayViewMut2<'_, T>,
) {
    let ((rows, depth), columns) = (a.dim(), b.ncols());
    assert_eq!((b.nrows(), c.dim()), (depth, (rows, columns)), "the shapes of a product");
    if depth == 0 && before == Before::Ignored {
        c.fill(T::zero());
    }
    // Equal parts: a short last one would load and store the result for little.
    let block = depth.div_ceil(depth.div_ceil(DEPTH).max(1)).max(1);
    for row in (0..rows).step_by(ROWS_PER_BLOCK) {
        let of_rows = slice(row..(row + ROWS_PER_BLOCK).min(rows));
        let mut c = c.slice_axis_mut(Axis(0), of_rows);
        for start in (0..depth).step_by(block) {
            let of_depth = slice(start..(start + block).min(depth));
            let a = a.slice_axis(Axis(0), of_rows).slice_axis_move(Axis(1), of_depth);
            let b = b.slice_axis(Axis(0), of_depth);
            let is_added = before != Before::Ignored || start > 0;
            let factor = if before == Before::Reduced { T::zero() - T::one() } else { T::one() };
            multiply(&a, &b, factor, is_added, &mut c);
        }
    }
}

fn slice(range: Range<usize>) -> Slice {
    Slice::from(range)
}

/// A function of `gemm`: columns, rows and depth; the result, its strides along rows and columns, and whether it is added
/// to; each operand with its strides; two factors; which of the three are conjugated; threads.
type Gemm<T> = unsafe fn(
    usize,
    usize,
    usize,
    *mut T,
    isize,
    isize,
    bool,
    *const T,
    isize,
    isize,
    *const T,
    isize,
    isize,
    T,
    T,
    bool,
    bool,
    bool,
    Parallelism,
);

/// Elements that `gemm` multiplies.
pub trait Multiply: Sized {
    /// The fastest function of this processor.
    fn gemm() -> Gemm<Self>;

    /// Returns `a * b + c`, with one rounding if the vectors of `S` have an instruction for it. Without one, `mul_add` would call a function
    /// for each element.
    fn multiply_add<S: Simd>(simd: S, a: Self, b: Self, c: Self) -> Self;
}

impl Multiply for f32 {
    fn gemm() -> Gemm<f32> {
        gemm_f32::gemm::f32::get_gemm_fn()
    }

    #[inline(always)]
    fn multiply_add<S: Simd>(_: S, a: f32, b: f32, c: f32) -> f32 {
        if size_of::<S::f32s>() == size_of::<f32>() { a * b + c } else { a.mul_add(b, c) }
    }
}

impl Multiply for f64 {
    fn gemm() -> Gemm<f64> {
        gemm_f64::gemm::f64::get_gemm_fn()
    }

    #[inline(always)]
    fn multiply_add<S: Simd>(_: S, a: f64, b: f64, c: f64) -> f64 {
        if size_of::<S::f64s>() == size_of::<f64>() { a * b + c } else { a.mul_add(b, c) }
    }
}

/// Computes `c = factor a b`, or adds it to `c`.
fn multiply<T: Float>(
    a: &ArrayView2<'_, T>,
    b: &ArrayView2<'_, T>,
    factor: T,
    is_added: bool,
    c: &mut ArrayViewMut2<'_, T>,
) {
    let ((rows, depth), columns) = (a.dim(), b.ncols());
    debug_assert_eq!((b.nrows(), c.dim()), (depth, (rows, columns)));
    // Real numbers are their own conjugates. Of a conjugated result `gemm` skips the kernels for few rows or columns, which
    // add up in another order: an element would have other bits where threads divide the rows.
    let is_conjugated = true;
    let ([a_row, a_column], [b_row, b_column]) = (strides(a.strides()), strides(b.strides()));
    let [c_row, c_column] = strides(c.strides());
    // SAFETY: pointers and strides belong to views whose shapes, asserted by `product`, are `[rows, depth]`,
    // `[depth, columns]` and `[rows, columns]`: all elements of `a` and `b` may be read, and those of `c`, which is borrowed
    // exclusively, written. `gemm` prefers results in column order, so that it gets all three transposed.
    unsafe {
        T::gemm()(
            columns,
            rows,
            depth,
            c.as_mut_ptr(),
            c_row,
            c_column,
            is_added,
            b.as_ptr(),
            b_row,
            b_column,
            a.as_ptr(),
            a_row,
            a_column,
            T::one(),
            factor,
            is_conjugated,
            false,
            false,
            Parallelism::None,
        );
    }
}

fn strides(of: &[isize]) -> [isize; 2] {
    [of[0], of[1]]
}
