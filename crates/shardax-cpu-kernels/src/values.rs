//! Eigenvalues and singular values without vectors.
//!
//! They are computed in f64, so that results in f32 are exact up to rounding. For singular values of f64 `faer` computes vectors too, which
//! correct the errors of its rotations.

use faer::MatRef;

use crate::decompositions::{eigh_of, is_finite, svd_of};
use crate::gram;
use crate::lanes::MIN_BATCH;
use crate::real::Real;
use crate::tasks::run_tasks;
use crate::tridiagonal::eigenvalues;
use crate::view::check;
use crate::{Result, View};

/// The largest side of matrices of a batch whose vectors are computed in lanes.
const MAX_LANES_SIDE: usize = 8;

/// The largest condition of a matrix whose singular values are computed from its Gram matrix. The errors of the smallest value, as part of the
/// largest one, are the errors of f64 times this number.
const MAX_CONDITION: f64 = 1e6;

/// Computes the eigenvalues, in ascending order, of a batch of symmetric matrices `[batch, n, n]`. Reads only their lower triangles.
/// `values` is `[batch, n]`. The results are NaN for a matrix that is not finite. Allocates up to six matrices for each thread, and
/// vectors for all matrices if they are small or of f64.
///
/// # Errors
/// Returns an error unless the matrices are square and the result has this size.
pub fn eigvalsh<T: Real>(a: View<'_, T>, values: &mut [T], threads: usize) -> Result<()> {
    T::eigvalsh(a, values, threads)
}

pub(crate) fn eigvalsh_of<T: Real>(a: View<'_, T>, values: &mut [T], threads: usize) -> Result<()> {
    let [batch, m, n] = a.dims("the operand")?;
    check("the columns of a square matrix", n, m)?;
    if n == 0 || is_small_batch::<T>(batch, n) {
        let mut vectors = vec![T::ZERO; batch * n * n];
        return eigh_of(a, &mut vectors, values, threads);
    }
    each(a, values, n, threads, |a, values| {
        // Scaled, so that squares of elements neither overflow nor vanish.
        let scale = (0..n).fold(T::ZERO, |scale, i| largest(scale, &a[i * n..][..=i])).power_of_two();
        let mut wide: Vec<f64> = a.iter().map(|x| (*x / scale).widen()).collect();
        let mut found = vec![0.0; n];
        let is_finite = wide.chunks_exact(n).enumerate().all(|(i, row)| is_finite(&row[..=i]));
        let is_found = is_finite && eigenvalues(&mut wide, &mut found);
        values.iter_mut().zip(found).for_each(|(value, found)| *value = T::narrow(found) * scale);
        is_found
    })
}

fn largest<T: Real>(start: T, a: &[T]) -> T {
    a.iter().fold(start, |largest, x| if x.magnitude() > largest { x.magnitude() } else { largest })
}

/// Computes the singular values, in descending order, of a batch of matrices `[batch, m, n]`. `values` is `[batch, k]`, with `k` the smaller
/// of `m` and `n`. The results are NaN for a matrix that is not finite. Allocates up to eight matrices for each thread, and vectors for all
/// matrices if they are small or of f64.
///
/// # Errors
/// Returns an error if the result does not have this size.
pub fn svdvals<T: Real>(a: View<'_, T>, values: &mut [T], threads: usize) -> Result<()> {
    T::svdvals(a, values, threads)
}

pub(crate) fn svdvals_of<T: Real>(a: View<'_, T>, values: &mut [T], threads: usize) -> Result<()> {
    let [batch, m, n] = a.dims("the operand")?;
    let k = m.min(n);
    if k == 0 || size_of::<T>() != size_of::<f32>() || is_small_batch::<T>(batch, m.max(n)) {
        let (mut u, mut vt) = (vec![T::ZERO; batch * m * k], vec![T::ZERO; batch * k * n]);
        return svd_of(a, false, &mut u, values, &mut vt, threads);
    }
    each(a, values, k, threads, |a, values| {
        let wide: Vec<f64> = a.iter().map(|x| x.widen()).collect();
        is_finite(&wide) && (roots_of_gram(&wide, [m, n], values) || write_singular_values(&wide, [m, n], values))
    })
}

/// Computes the singular values as roots of the eigenvalues of the Gram matrix, in f64. Returns `false` if the errors of small values
/// would be larger than rounding errors of the largest one in f32.
fn roots_of_gram<T: Real>(wide: &[f64], sizes: [usize; 2], values: &mut [T]) -> bool {
    let mut gram = gram::gram(wide, sizes);
    let mut squares = vec![0.0; values.len()];
    if !eigenvalues(&mut gram, &mut squares) {
        return false;
    }
    let (smallest, largest) = (squares[0], squares[squares.len() - 1]);
    // NaN is not regular either.
    let is_regular = smallest * MAX_CONDITION * MAX_CONDITION > largest && smallest > f64::MIN_POSITIVE;
    if is_regular {
        values.iter_mut().zip(squares.iter().rev()).for_each(|(value, square)| *value = T::narrow(square.sqrt()));
    }
    is_regular
}

/// Returns `true` for matrices whose vectors are computed in lanes, which takes less time than the values of one after the other.
fn is_small_batch<T: Real>(batch: usize, n: usize) -> bool {
    batch >= MIN_BATCH && n <= MAX_LANES_SIDE && size_of::<T>() == size_of::<f32>()
}

fn write_singular_values<T: Real>(wide: &[f64], [m, n]: [usize; 2], values: &mut [T]) -> bool {
    let Ok(found) = MatRef::from_row_major_slice(wide, m, n).singular_values() else { return false };
    values.iter_mut().zip(found).for_each(|(value, found)| *value = T::narrow(found));
    true
}

/// Calls `f` with each matrix and its `count` values, which become NaN if it returns `false`.
fn each<T: Real>(
    a: View<'_, T>,
    values: &mut [T],
    count: usize,
    threads: usize,
    f: impl Fn(&[T], &mut [T]) -> bool + Sync,
) -> Result<()> {
    let [batch, m, n] = a.dims("the operand")?;
    check("the elements of a result", values.len(), batch * count)?;
    let tasks = a.data().chunks_exact(m * n).zip(values.chunks_exact_mut(count)).collect();
    run_tasks(
        tasks,
        threads,
        || (),
        |(), (a, values)| {
            if !f(a, values) {
                values.fill(T::NAN);
            }
        },
    );
    Ok(())
}
