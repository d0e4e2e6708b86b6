//! Matmuls of f32 and f64.

use ndarray::{ArrayView2, ArrayView3, ArrayViewMut2, ArrayViewMut3, Axis};

use crate::per_type::per_type;
use crate::product::{Before, product};
use crate::small_products::{MAX_SMALL_SIDE, SmallMatrices, multiply_small};
use crate::tasks::run_tasks;
use crate::view::check;
use crate::{ShapeError, View};

/// The minimum number of rows in a task.
const MIN_ROWS: usize = 32;

/// The approximate number of tasks per thread.
const TASKS_PER_THREAD: usize = 2;

/// The minimum number of multiply-adds of a thread. With fewer, starting the thread takes longer than the work that it
/// saves.
const MIN_MULTIPLY_ADDS_PER_THREAD: usize = 1 << 23;

/// A part of one matmul: of the left operand, the right one, and the result.
type Task<'a, T> = (ArrayView2<'a, T>, ArrayView2<'a, T>, ArrayViewMut2<'a, T>);

per_type!(Products for [f32, f64] {
    fn matmul(
        lhs: View<'_, Self>,
        rhs: View<'_, Self>,
        contracted: [usize; 2],
        out: &mut [Self],
        threads: usize
    ) = matmul_of;
});

mod sealed {
    pub trait Sealed: super::Products + ndarray::LinalgScalar + Send + Sync + crate::product::Multiply {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
}

/// An element of the matrices of [`matmul`]: f32 or f64.
pub trait Float: sealed::Sealed {}
impl Float for f32 {}
impl Float for f64 {}

/// Multiplies batches of matrices.
///
/// `lhs` and `rhs` must have three dimensions, and the first one is the batch. `contracted` are the dimensions (1 or 2) of
/// `lhs` and `rhs` that are summed over, so that you can multiply transposed matrices without copying them. The other
/// dimensions are the rows and the columns of the result, `[batch, rows, columns]`. Sums over no elements are 0.
///
/// Allocates a few words for each task, and for each thread packed blocks of the operands, of less than 2²⁰ elements.
///
/// # Errors
/// Returns an error if the batches, the contracted dimensions and the size of the result do not agree.
pub fn matmul<T: Float>(
    lhs: View<'_, T>,
    rhs: View<'_, T>,
    contracted: [usize; 2],
    out: &mut [T],
    threads: usize,
) -> Result<(), ShapeError> {
    T::matmul(lhs, rhs, contracted, out, threads)
}

fn matmul_of<T: Float>(
    lhs: View<'_, T>,
    rhs: View<'_, T>,
    contracted: [usize; 2],
    out: &mut [T],
    threads: usize,
) -> Result<(), ShapeError> {
    let a = matrices(lhs, "the left operand", contracted[0], 2)?;
    let b = matrices(rhs, "the right operand", contracted[1], 1)?;
    let ((batch, rows, depth), (rhs_batch, rhs_depth, columns)) = (a.dim(), b.dim());
    check("the batch of the right operand", rhs_batch, batch)?;
    check("the contracted dimension of the right operand", rhs_depth, depth)?;
    let size = [batch, rows, columns].into_iter().fold(1, usize::saturating_mul);
    check("the elements of the result", out.len(), size)?;
    if out.is_empty() {
        return Ok(());
    }
    // Blocks of packed operands cost more than they save for matrices that fit into registers.
    if depth > 0 && [rows, columns, depth].iter().all(|side| *side <= MAX_SMALL_SIDE) {
        let threads = threads.min(size.saturating_mul(depth) / MIN_MULTIPLY_ADDS_PER_THREAD).max(1);
        multiply_small(
            SmallMatrices { data: lhs.data(), sizes: [rows, depth], is_transposed: contracted[0] == 1 },
            SmallMatrices { data: rhs.data(), sizes: [depth, columns], is_transposed: contracted[1] == 2 },
            out,
            threads,
        );
        return Ok(());
    }
    multiply(a, b, ArrayViewMut3::from_shape((batch, rows, columns), out)?, threads.max(1));
    Ok(())
}

/// Views matrices with the contracted dimension at this place.
fn matrices<'a, T>(
    view: View<'a, T>,
    name: &str,
    contracted: usize,
    place: usize,
) -> Result<ArrayView3<'a, T>, ShapeError> {
    if !(1..=2).contains(&contracted) {
        return Err(ShapeError(format!("{name} is contracted over dimension {contracted}: 1 or 2 expected")));
    }
    let [batch, rows, columns] = view.dims(name)?;
    let mut matrices = ArrayView3::from_shape((batch, rows, columns), view.data())?;
    if contracted != place {
        matrices.swap_axes(1, 2);
    }
    Ok(matrices)
}

/// Computes `c = a b`. A task is a few rows or a few columns, so that a thread which starts late computes fewer of them. Each task packs
/// the entire other operand, so the longer side is divided. Packing a transposed right operand takes longer.
fn multiply<T: Float>(a: ArrayView3<'_, T>, b: ArrayView3<'_, T>, mut c: ArrayViewMut3<'_, T>, threads: usize) {
    let (batch, rows, columns) = c.dim();
    let work = c.len().saturating_mul(a.dim().2);
    let threads = threads.min(work / MIN_MULTIPLY_ADDS_PER_THREAD).max(1);
    let by_rows = if b.strides()[2] == 1 { columns <= rows } else { columns < rows / 2 };
    let (along, axis) = if by_rows { (rows, Axis(0)) } else { (columns, Axis(1)) };
    let blocks =
        if threads == 1 { 1 } else { (TASKS_PER_THREAD * threads).div_ceil(batch).min(along / MIN_ROWS).max(1) };
    let block = along.div_ceil(blocks).max(1);
    // Views are split instead of indexed, so that each task borrows its own part of the result.
    let mut tasks: Vec<Task<'_, T>> = Vec::with_capacity(batch * blocks);
    for ((mut a, mut b), mut c) in a.outer_iter().zip(b.outer_iter()).zip(c.outer_iter_mut()) {
        while c.len_of(axis) > block {
            let (first_c, rest_c) = c.split_at(axis, block);
            let (first_a, first_b) = if by_rows {
                let (first, rest) = a.split_at(axis, block);
                a = rest;
                (first, b)
            } else {
                let (first, rest) = b.split_at(axis, block);
                b = rest;
                (a, first)
            };
            tasks.push((first_a, first_b, first_c));
            c = rest_c;
        }
        tasks.push((a, b, c));
    }
    run_tasks(tasks, threads, || (), |(), (a, b, mut c)| product(&a, &b, Before::Ignored, &mut c));
}
