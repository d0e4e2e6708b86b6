//! Decompositions of real matrices by the crate `faer`, and of batches of small ones in lanes.

use faer::dyn_stack::{MemBuffer, MemStack};
use faer::linalg::householder::{
    apply_block_householder_on_the_left_in_place_scratch, apply_block_householder_on_the_left_in_place_with_conj,
};
use faer::linalg::solvers::{Llt, Qr, SelfAdjointEigen, Svd};
use faer::{Conj, Mat, MatRef, Par, Side};

use crate::lanes::{self, LANES, MAX_SIDE, MIN_BATCH, deinterleave, interleave};
use crate::real::Real;
use crate::tasks::run_tasks;
use crate::view::check;
use crate::{Result, View};

/// The largest number of rows and of columns of matrices whose eigenvalues and singular values are computed in lanes, by their bytes: Jacobi's
/// method takes more sweeps for larger matrices, and those of f64 fit no cache.
const MAX_JACOBI_BYTES: usize = 64;

/// The lower triangular `l` of `a = l lᵀ`, for a batch of symmetric matrices `[batch, n, n]`, of which the lower triangles are
/// read. A matrix that is not finite or not positive definite gives NaN.
///
/// Allocates two matrices for each thread.
///
/// # Errors
/// The matrices are not square, or `l` has another size.
pub fn cholesky<T: Real>(a: View<'_, T>, l: &mut [T], threads: usize) -> Result<()> {
    let [batch, n] = square(a)?;
    if is_for_lanes(batch, [n, n], MAX_SIDE) {
        check("the elements of a result", l.len(), batch * n * n)?;
        let tasks = a.data().chunks(LANES * n * n).zip(l.chunks_mut(LANES * n * n)).collect();
        run_tasks(
            tasks,
            threads.min(batch * n * n * n / lanes::THREAD),
            || lanes::zeros(n * n),
            |matrix, (a, l)| {
                interleave(a, n * n, matrix);
                lanes::cholesky(matrix, n);
                deinterleave(matrix, n * n, l);
            },
        );
        return Ok(());
    }
    each(a, [l], [n * n], batch, threads, |a, [l]| {
        let made = if is_lower_finite(a, n) { Llt::new(matrix(a, n, n), Side::Lower).ok() } else { None };
        match made {
            Some(made) => write(made.L(), l),
            None => (0..n * n).for_each(|at| l[at] = if at % n <= at / n { T::NAN } else { T::ZERO }),
        }
    })
}

/// The orthonormal columns `q` and the upper triangular `r` of `a = q r`, for a batch of matrices `[batch, m, n]`.
///
/// `q` is `[batch, m, k]` and `r` is `[batch, k, n]`, where `k` is `m` if `is_full`, and else the smaller of `m` and `n`.
/// The signs are LAPACK's. A matrix that is not finite gives NaN. Allocates three matrices for each thread.
///
/// # Errors
/// A result has another size.
pub fn qr<T: Real>(a: View<'_, T>, is_full: bool, q: &mut [T], r: &mut [T], threads: usize) -> Result<()> {
    let [batch, m, n] = a.dims("the operand")?;
    let k = if is_full { m } else { m.min(n) };
    each(a, [q, r], [m * k, k * n], batch, threads, |a, [q, r]| {
        if !is_finite(a) {
            q.fill(T::NAN);
            return r.fill(T::NAN);
        }
        let made = Qr::new(matrix(a, m, n));
        write(orthogonal(&made, k).as_ref(), q);
        r.fill(T::ZERO);
        write(made.thin_R(), &mut r[..m.min(n) * n]);
    })
}

/// The first columns of `q`. `faer` applies each block of reflections to all of them, of which the first are still those of the identity: a
/// third of the work is with zeros.
fn orthogonal<T: Real>(made: &Qr<T>, columns: usize) -> Mat<T> {
    let (basis, factors) = (made.Q_basis(), made.Q_coeff());
    let (rows, width) = (basis.nrows(), factors.nrows());
    let mut q = Mat::identity(rows, columns);
    let scratch = apply_block_householder_on_the_left_in_place_scratch::<T>(rows, width, columns);
    let mut memory = MemBuffer::new(scratch);
    for start in (0..factors.ncols()).step_by(width.max(1)).rev() {
        let width = width.min(factors.ncols() - start);
        apply_block_householder_on_the_left_in_place_with_conj(
            basis.submatrix(start, start, rows - start, width),
            factors.submatrix(0, start, width, width),
            Conj::No,
            q.as_mut().submatrix_mut(start, start, rows - start, columns - start),
            Par::Seq,
            MemStack::new(&mut memory),
        );
    }
    q
}

/// The eigenvectors, as columns, and the eigenvalues, in ascending order, of a batch of symmetric matrices `[batch, n, n]`,
/// of which the lower triangles are read.
///
/// `vectors` is `[batch, n, n]` and `values` is `[batch, n]`. A matrix that is not finite gives NaN. Allocates four matrices
/// for each thread.
///
/// # Errors
/// The matrices are not square, or a result has another size.
pub fn eigh<T: Real>(a: View<'_, T>, vectors: &mut [T], values: &mut [T], threads: usize) -> Result<()> {
    let [batch, n] = square(a)?;
    if is_for_lanes(batch, [n, n], MAX_JACOBI_BYTES / size_of::<T>()) {
        check("the elements of a result", vectors.len(), batch * n * n)?;
        check("the elements of a result", values.len(), batch * n)?;
        let results = vectors.chunks_mut(LANES * n * n).zip(values.chunks_mut(LANES * n));
        let tasks = a.data().chunks(LANES * n * n).zip(results).collect();
        let scratch = || (lanes::zeros(n * n), lanes::zeros(n * n), lanes::zeros(n));
        let threads = threads.min(batch * n * n * n / lanes::THREAD);
        run_tasks(tasks, threads, scratch, |(matrix, columns, diagonal), (a, (vectors, values))| {
            interleave(a, n * n, matrix);
            lanes::eigh(matrix, n, columns, diagonal);
            deinterleave(columns, n * n, vectors);
            deinterleave(diagonal, n, values);
        });
        return Ok(());
    }
    each(a, [vectors, values], [n * n, n], batch, threads, |a, [vectors, values]| {
        let made = match is_lower_finite(a, n) {
            true => SelfAdjointEigen::new(matrix(a, n, n), Side::Lower).ok(),
            false => None,
        };
        let Some(made) = made else {
            vectors.fill(T::NAN);
            return values.fill(T::NAN);
        };
        write(made.U(), vectors);
        values.iter_mut().zip(made.S().column_vector().iter()).for_each(|(to, from)| *to = *from);
    })
}

/// `u`, the singular values `s` in descending order, and the transposed `v` of `a = u diag(s) vᵀ`, for a batch of matrices
/// `[batch, m, n]`.
///
/// With `k` the smaller of `m` and `n`, `s` is `[batch, k]`. `u` is `[batch, m, m]` and `vt` is `[batch, n, n]` if `is_full`,
/// and else `[batch, m, k]` and `[batch, k, n]`. A matrix that is not finite gives NaN. Allocates six matrices for each
/// thread.
///
/// # Errors
/// A result has another size.
pub fn svd<T: Real>(
    a: View<'_, T>,
    is_full: bool,
    u: &mut [T],
    s: &mut [T],
    vt: &mut [T],
    threads: usize,
) -> Result<()> {
    let [batch, m, n] = a.dims("the operand")?;
    let k = m.min(n);
    let [columns, rows] = if is_full { [m, n] } else { [k, k] };
    if m >= n && (m == n || !is_full) && is_for_lanes(batch, [m, n], MAX_JACOBI_BYTES / size_of::<T>()) {
        check("the elements of a result", u.len(), batch * m * n)?;
        check("the elements of a result", s.len(), batch * n)?;
        check("the elements of a result", vt.len(), batch * n * n)?;
        svd_in_lanes(a.data(), [m, n], [u, s, vt], threads.min(batch * m * n * n / lanes::THREAD));
        return Ok(());
    }
    each(a, [u, s, vt], [m * columns, k, rows * n], batch, threads, |a, results| {
        svd_of_one(a, [m, n], is_full, results)
    })
}

fn svd_of_one<T: Real>(a: &[T], [m, n]: [usize; 2], is_full: bool, [u, s, vt]: [&mut [T]; 3]) {
    let found = match is_full {
        _ if !is_finite(a) => None,
        true => Svd::new(matrix(a, m, n)).ok(),
        false => Svd::new_thin(matrix(a, m, n)).ok(),
    };
    let Some(found) = found else {
        u.fill(T::NAN);
        s.fill(T::NAN);
        return vt.fill(T::NAN);
    };
    write(found.U(), u);
    write(found.V().transpose(), vt);
    s.iter_mut().zip(found.S().column_vector().iter()).for_each(|(to, from)| *to = *from);
}

/// Decomposes matrices with no more columns than rows.
fn svd_in_lanes<T: Real>(a: &[T], [m, n]: [usize; 2], [u, s, vt]: [&mut [T]; 3], threads: usize) {
    let results = u.chunks_mut(LANES * m * n).zip(s.chunks_mut(LANES * n)).zip(vt.chunks_mut(LANES * n * n));
    let tasks = a.chunks(LANES * m * n).zip(results).collect();
    let scratch = || (lanes::zeros(m * n), lanes::zeros(n * n), lanes::zeros(n));
    run_tasks(tasks, threads, scratch, |(left, right, values), (a, ((u, s), vt))| {
        interleave(a, m * n, left);
        let is_inaccurate = lanes::svd(left, n, right, values);
        for i in 0..n {
            (0..i).for_each(|j| right.swap(i * n + j, j * n + i));
        }
        deinterleave(left, m * n, u);
        deinterleave(values, n, s);
        deinterleave(right, n * n, vt);
        let matrices = a.chunks_exact(m * n).zip(u.chunks_exact_mut(m * n)).zip(s.chunks_exact_mut(n));
        for (((a, u), s), (vt, is_inaccurate)) in matrices.zip(vt.chunks_exact_mut(n * n).zip(is_inaccurate)) {
            if is_inaccurate {
                svd_of_one(a, [m, n], false, [u, s, vt]);
            }
        }
    });
}

/// Returns `true` if a batch of matrices is computed in lanes.
fn is_for_lanes(batch: usize, [m, n]: [usize; 2], max_side: usize) -> bool {
    batch >= MIN_BATCH && m.min(n) > 0 && m.max(n) <= max_side
}

/// The batch and the number of rows of square matrices.
fn square<T>(a: View<'_, T>) -> Result<[usize; 2]> {
    let [batch, m, n] = a.dims("the operand")?;
    check("the columns of a square matrix", n, m)?;
    Ok([batch, n])
}

/// Calls a function of each matrix and its part of each result, whose sizes these are.
fn each<T: Real, const N: usize>(
    a: View<'_, T>,
    results: [&mut [T]; N],
    sizes: [usize; N],
    batch: usize,
    threads: usize,
    f: impl Fn(&[T], [&mut [T]; N]) + Sync,
) -> Result<()> {
    for (result, size) in results.iter().zip(sizes) {
        check("the elements of a result", result.len(), batch * size)?;
    }
    let [_, m, n] = a.dims("the operand")?;
    if batch * m * n == 0 {
        results.into_iter().for_each(|result| result.fill(T::ZERO));
        return Ok(());
    }
    let mut parts =
        results.into_iter().zip(sizes).map(|(result, size)| result.chunks_exact_mut(size)).collect::<Vec<_>>();
    let mut tasks = Vec::with_capacity(batch);
    for a in a.data().chunks_exact(m * n) {
        let own: Vec<&mut [T]> = parts.iter_mut().filter_map(Iterator::next).collect();
        tasks.extend(<[&mut [T]; N]>::try_from(own).ok().map(|own| (a, own)));
    }
    run_tasks(tasks, threads.max(1), || (), |(), (a, own)| f(a, own));
    Ok(())
}

fn matrix<T>(a: &[T], m: usize, n: usize) -> MatRef<'_, T> {
    MatRef::from_row_major_slice(a, m, n)
}

fn is_finite<T: Real>(a: &[T]) -> bool {
    a.iter().all(|x| x.is_finite())
}

fn is_lower_finite<T: Real>(a: &[T], n: usize) -> bool {
    a.chunks_exact(n).enumerate().all(|(i, row)| is_finite(&row[..=i]))
}

/// The rows and columns that are copied together: both sides of a block stay in the first cache.
const BLOCK: usize = 16;

/// Copies a matrix in column order to memory in row order.
fn write<T: Real>(from: MatRef<'_, T>, to: &mut [T]) {
    let columns = from.ncols().max(1);
    for (block, rows) in to.chunks_mut(BLOCK * columns).enumerate() {
        for start in (0..from.ncols()).step_by(BLOCK) {
            let width = BLOCK.min(from.ncols() - start);
            for (i, row) in rows.chunks_exact_mut(columns).enumerate() {
                let at = block * BLOCK + i;
                row[start..start + width].iter_mut().enumerate().for_each(|(j, x)| *x = from[(at, start + j)]);
            }
        }
    }
}
