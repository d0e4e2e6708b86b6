//! Eigenvalues and singular values without vectors.
//!
//! `faer` computes them in f64, so that results in f32 are exact up to rounding. In f64 the errors of its rotations would remain, so that the
//! vectors are computed too, which correct the values.

use faer::{MatRef, Side};

use crate::decompositions::{eigh_of, is_finite, svd_of};
use crate::real::Real;
use crate::tasks::run_tasks;
use crate::view::check;
use crate::{Result, View};

/// The smallest side of matrices whose vectors take longer to compute than the conversion to f64.
const MIN_SIDE: usize = 24;

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
    if !applies::<T>([m, n]) {
        let mut vectors = vec![T::ZERO; batch * n * n];
        return eigh_of(a, &mut vectors, values, threads);
    }
    each(a, values, n, threads, |a, values| {
        let wide: Vec<f64> = (0..n * n).map(|at| a[(at / n).max(at % n) * n + (at / n).min(at % n)].widen()).collect();
        let found = MatRef::from_row_major_slice(&wide, n, n).self_adjoint_eigenvalues(Side::Lower);
        is_finite(&wide) && found.is_ok_and(|found| write(&found, values))
    })
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
    if !applies::<T>([m, n]) {
        let (mut u, mut vt) = (vec![T::ZERO; batch * m * k], vec![T::ZERO; batch * k * n]);
        return svd_of(a, false, &mut u, values, &mut vt, threads);
    }
    each(a, values, k, threads, |a, values| {
        let wide: Vec<f64> = a.iter().map(|x| x.widen()).collect();
        is_finite(&wide)
            && MatRef::from_row_major_slice(&wide, m, n).singular_values().is_ok_and(|found| write(&found, values))
    })
}

fn applies<T: Real>(sides: [usize; 2]) -> bool {
    size_of::<T>() == size_of::<f32>() && sides.into_iter().all(|side| side >= MIN_SIDE)
}

fn write<T: Real>(found: &[f64], values: &mut [T]) -> bool {
    values.iter_mut().zip(found).for_each(|(value, found)| *value = T::narrow(*found));
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
