//! Transposes: arrays whose dimensions are reordered.
//!
//! XLA (xla-cpu-pjrt 0.0.1) loops over the elements of the result, and reads each of them at its place in the operand. Here elements that
//! are neighbours in both arrays are copied together. If there are none, squares of elements are transposed in the processor's registers, so
//! that both arrays are accessed by neighbours.

mod tile;

use crate::Result;
use crate::per_type::per_type;
use crate::tasks::run_tasks;
use crate::view::{ShapeError, View, check};
use tile::{Matrix, Tile};

/// The minimum number of bytes of a task.
const BYTES_PER_TASK: usize = 1 << 18;

/// The bytes of a line of the cache.
const LINE: usize = 64;

per_type!(Transpose for [u8, u16, u32, u64, u128] {
    fn transpose(x: View<'_, Self>, permutation: &[usize], y: &mut [Self], threads: usize) = transpose_of;
});

/// An element of [`transpose`] by its size: u8, u16, u32, u64 or u128.
pub trait Movable: Transpose + Tile {}
impl Movable for u8 {}
impl Movable for u16 {}
impl Movable for u32 {}
impl Movable for u64 {}
impl Movable for u128 {}

/// Reorders dimensions: dimension `i` of the result is dimension `permutation[i]` of the operand. Elements are bits: you can transpose an
/// array of any type as the unsigned integers of its size.
///
/// ```
/// use shardax_cpu_kernels::{View, transpose};
///
/// let mut y = [0; 6];
/// transpose(View::new(&[2, 3], &[1u32, 2, 3, 4, 5, 6])?, &[1, 0], &mut y, 1)?;
/// assert_eq!(y, [1, 4, 2, 5, 3, 6]);
/// # Ok::<(), shardax_cpu_kernels::ShapeError>(())
/// ```
///
/// # Errors
/// Returns an error if `permutation` does not name each dimension once, or if `y` does not have as many elements as `x`.
pub fn transpose<T: Movable>(x: View<'_, T>, permutation: &[usize], y: &mut [T], threads: usize) -> Result<()> {
    T::transpose(x, permutation, y, threads)
}

/// The elements that a transpose moves together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Movement {
    /// Rows of `size` elements, which are neighbours in the operand and in the result. In the result, `count` rows follow each other whose
    /// distance in the operand is `stride` elements.
    Rows {
        /// The elements of a row.
        size: usize,
        /// The number of rows.
        count: usize,
        /// The distance of the rows in the operand.
        stride: usize,
    },
    /// Matrices of `rows` elements that are neighbours in the result, at a distance of `stride` elements in the operand, and `columns`
    /// elements that are neighbours in the operand.
    Matrices {
        /// The number of rows.
        rows: usize,
        /// The number of columns.
        columns: usize,
        /// The distance of the rows in the operand.
        stride: usize,
    },
}

/// Returns what [`transpose`] moves together, for example to decide whether it is worth a call.
///
/// ```
/// use shardax_cpu_kernels::{Movement, movement};
///
/// assert_eq!(movement(&[2, 5, 4, 8], &[0, 2, 1, 3])?, Movement::Rows { size: 8, count: 5, stride: 32 });
/// assert_eq!(movement(&[2, 5, 4, 8], &[0, 3, 1, 2])?, Movement::Matrices { rows: 20, columns: 8, stride: 8 });
/// # Ok::<(), shardax_cpu_kernels::ShapeError>(())
/// ```
///
/// # Errors
/// Returns an error if `permutation` does not name each dimension once.
pub fn movement(shape: &[usize], permutation: &[usize]) -> Result<Movement> {
    let dims = merged_dims(shape, permutation)?;
    let columns = dims.iter().find(|dim| dim.stride == 1).map_or(1, |dim| dim.size);
    Ok(match *dims {
        [.., Dim { size: count, stride }, Dim { size, stride: 1 }] => Movement::Rows { size, count, stride },
        [.., Dim { size: rows, stride }] if stride != 1 => Movement::Matrices { rows, columns, stride },
        _ => Movement::Rows { size: columns, count: 1, stride: columns },
    })
}

fn transpose_of<T: Movable>(x: View<'_, T>, permutation: &[usize], y: &mut [T], threads: usize) -> Result<()> {
    let dims = merged_dims(x.shape(), permutation)?;
    check("the elements of the result", y.len(), x.data().len())?;
    let (Some(first), false) = (dims.first(), y.is_empty()) else {
        y.copy_from_slice(x.data());
        return Ok(());
    };
    let inner = y.len() / first.size;
    let positions = BYTES_PER_TASK.div_ceil(inner * size_of::<T>());
    // Columns of the operand are divided between lines of the cache, so that each task reads entire lines.
    let positions =
        if first.stride == 1 { positions.next_multiple_of(LINE.div_ceil(size_of::<T>())) } else { positions };
    let parts = y.chunks_mut(positions * inner).enumerate();
    let tasks = parts.map(|(i, y)| {
        let x = &x.data()[i * positions * first.stride..];
        let first = Dim { size: y.len() / inner, ..*first };
        (x, [&[first], &dims[1..]].concat(), y)
    });
    run_tasks(tasks.collect(), threads.max(1), || (), |(), (x, dims, y)| transpose_part(x, &dims, y));
    Ok(())
}

/// A dimension of the result: its size, and the distance in the operand between elements whose indices differ by 1.
#[derive(Clone, Copy)]
struct Dim {
    size: usize,
    stride: usize,
}

/// The dimensions of the result. Dimensions of size 1 are left out, and neighbours that are neighbours in the operand too are merged.
fn merged_dims(shape: &[usize], permutation: &[usize]) -> Result<Vec<Dim>> {
    let mut sorted = permutation.to_vec();
    sorted.sort_unstable();
    if !sorted.iter().copied().eq(0..shape.len()) {
        return Err(ShapeError(format!("the permutation {permutation:?} of the dimensions {shape:?}")));
    }
    let mut dims: Vec<Dim> = Vec::with_capacity(shape.len());
    for &d in permutation.iter().filter(|&&d| shape[d] != 1) {
        let dim = Dim { size: shape[d], stride: shape[d + 1..].iter().product() };
        match dims.last_mut() {
            Some(last) if last.stride == dim.size * dim.stride => {
                *last = Dim { size: last.size * dim.size, stride: dim.stride };
            }
            _ => dims.push(dim),
        }
    }
    Ok(dims)
}

/// Writes all elements of a result of these dimensions.
fn transpose_part<T: Movable>(x: &[T], dims: &[Dim], y: &mut [T]) {
    match dims {
        [rows, Dim { size, stride: 1 }] => tile::copy_rows(x, rows.stride, *size, y),
        [Dim { stride: 1, .. }] => y.copy_from_slice(&x[..y.len()]),
        [Dim { size, stride: 1 }, rest @ ..] => {
            let stride = y.len() / size;
            transpose_columns(x, *size, rest, y, stride);
        }
        [first, rest @ ..] => {
            for (i, y) in y.chunks_exact_mut(y.len() / first.size).enumerate() {
                transpose_part(&x[i * first.stride..], rest, y);
            }
        }
        [] => {}
    }
}

/// Transposes matrices whose columns are contiguous in the result, at a distance of `y_stride`, and whose rows of `columns` elements are
/// contiguous in the operand. `dims` are the dimensions inside of `y_stride`; the last one is the columns'.
fn transpose_columns<T: Movable>(x: &[T], columns: usize, dims: &[Dim], y: &mut [T], y_stride: usize) {
    match dims {
        [rows] => tile::transpose_matrix(Matrix { x, x_stride: rows.stride, rows: rows.size, columns, y, y_stride }),
        [first, rest @ ..] => {
            let inner: usize = rest.iter().map(|dim| dim.size).product();
            for i in 0..first.size {
                transpose_columns(&x[i * first.stride..], columns, rest, &mut y[i * inner..], y_stride);
            }
        }
        [] => {}
    }
}
