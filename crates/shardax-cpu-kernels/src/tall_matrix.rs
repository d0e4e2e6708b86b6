//! Products of a vector and a matrix of many rows and few columns, as in the gradient of a linear regression.
//!
//! XLA (xla-cpu-pjrt 0.0.1) adds each column as one chain, whose rounding errors add up, or multiplies first and adds up columns then.

use pulp::{Arch, Simd, WithSimd};

use crate::Result;
use crate::per_type::per_type;
use crate::tasks::run_tasks;
use crate::view::{View, check};

/// The number of rows that are added up in the type of the elements. The sums of such parts are added up in f64.
const PART_ROWS: usize = 256;

/// The number of rows that are added to a sum together.
const ROWS: usize = 4;

/// The minimum number of elements of a task.
const ELEMENTS_PER_TASK: usize = 1 << 16;

per_type!(TallMatrix for [f32, f64] {
    fn vector_by_tall_matrix(v: &[Self], x: View<'_, Self>, y: &mut [Self], threads: usize) = vector_by_tall_matrix_of;
});

mod sealed {
    pub trait Sealed:
        super::TallMatrix
        + Copy
        + Default
        + Send
        + Sync
        + Into<f64>
        + std::ops::Mul<Output = Self>
        + std::ops::Add<Output = Self>
        + std::ops::AddAssign
    {
        fn narrow(sum: f64) -> Self;
    }
}

use sealed::Sealed;

/// An element of [`vector_by_tall_matrix`]: f32 or f64.
pub trait Multiplicand: Sealed {}
impl Multiplicand for f32 {}
impl Multiplicand for f64 {}

impl Sealed for f32 {
    #[inline(always)]
    fn narrow(sum: f64) -> f32 {
        sum as f32
    }
}

impl Sealed for f64 {
    #[inline(always)]
    fn narrow(sum: f64) -> f64 {
        sum
    }
}

/// Computes `vᵀ x`: the sum of the rows of `x`, `[rows, columns]`, each multiplied by its element of `v`. Sums of more than 256 rows are
/// computed in f64.
///
/// Allocates one number for each column, and 8 bytes for each column and 65,536 elements.
///
/// ```
/// use shardax_cpu_kernels::{View, vector_by_tall_matrix};
///
/// let mut y = [0.0; 2];
/// vector_by_tall_matrix(&[1.0f32, 10.0], View::new(&[2, 2], &[1.0, 2.0, 3.0, 4.0])?, &mut y, 1)?;
/// assert_eq!(y, [31.0, 42.0]);
/// # Ok::<(), shardax_cpu_kernels::ShapeError>(())
/// ```
///
/// # Errors
/// Returns an error if the shapes do not fit.
pub fn vector_by_tall_matrix<T: Multiplicand>(v: &[T], x: View<'_, T>, y: &mut [T], threads: usize) -> Result<()> {
    T::vector_by_tall_matrix(v, x, y, threads)
}

fn vector_by_tall_matrix_of<T: Multiplicand>(v: &[T], x: View<'_, T>, y: &mut [T], threads: usize) -> Result<()> {
    let [rows, columns] = x.dims("the matrix")?;
    check("the elements of the vector", v.len(), rows)?;
    check("the elements of the result", y.len(), columns)?;
    if columns == 0 {
        return Ok(());
    }
    // Only the shape determines how the sum is divided, so that the number of threads changes no bits.
    let rows_per_task = ELEMENTS_PER_TASK.div_ceil(columns).next_multiple_of(PART_ROWS);
    let mut totals = vec![0.0; rows.div_ceil(rows_per_task) * columns];
    let parts = v.chunks(rows_per_task).zip(x.data().chunks(rows_per_task * columns));
    let tasks = parts.zip(totals.chunks_exact_mut(columns)).map(|((v, x), totals)| (v, x, totals)).collect();
    run_tasks(
        tasks,
        threads.max(1),
        || vec![T::default(); columns],
        |sums, (v, x, totals)| Arch::new().dispatch(Rows { v, x, sums, totals }),
    );
    for (column, y) in y.iter_mut().enumerate() {
        // The sum of an empty iterator is -0.
        *y = T::narrow(totals.iter().skip(column).step_by(columns).fold(0.0, |sum, total| sum + total));
    }
    Ok(())
}

/// Rows, with memory for the sums of a part of them, and their total.
struct Rows<'a, T> {
    v: &'a [T],
    x: &'a [T],
    sums: &'a mut [T],
    totals: &'a mut [f64],
}

impl<T: Multiplicand> WithSimd for Rows<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Rows { v, x, sums, totals } = self;
        let columns = sums.len();
        for (v, x) in v.chunks(PART_ROWS).zip(x.chunks(PART_ROWS * columns)) {
            sums.fill(T::default());
            let (groups, rest) = v.as_chunks::<ROWS>();
            for (v, x) in groups.iter().zip(x.chunks_exact(ROWS * columns)) {
                add_rows(v, x, sums);
            }
            for (v, x) in rest.iter().zip(x[groups.len() * ROWS * columns..].chunks_exact(columns)) {
                for (sum, x) in sums.iter_mut().zip(x) {
                    *sum += *v * *x;
                }
            }
            for (total, sum) in totals.iter_mut().zip(&*sums) {
                *total += (*sum).into();
            }
        }
    }
}

/// Adds four rows, each multiplied by its number.
#[inline(always)]
fn add_rows<T: Multiplicand>(v: &[T; ROWS], x: &[T], sums: &mut [T]) {
    let (first, second) = x.split_at(2 * sums.len());
    let ((a, b), (c, d)) = (first.split_at(sums.len()), second.split_at(sums.len()));
    for ((((sum, a), b), c), d) in sums.iter_mut().zip(a).zip(b).zip(c).zip(d) {
        *sum += (v[0] * *a + v[1] * *b) + (v[2] * *c + v[3] * *d);
    }
}
