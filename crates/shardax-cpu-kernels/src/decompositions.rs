//! Decompositions of real matrices with the crate `faer`. Batches of small matrices are decomposed in lanes instead.

use faer::dyn_stack::{MemBuffer, MemStack};
use faer::linalg::householder::{
    apply_block_householder_on_the_left_in_place_scratch, apply_block_householder_on_the_left_in_place_with_conj,
};
use faer::linalg::solvers::{Qr, SelfAdjointEigen, Svd};
use faer::{Conj, Mat, MatRef, Par, Side};

use crate::cholesky::factorize;
use crate::gram;
use crate::lanes::{self, LANES, Lanes, MAX_SIDE, MIN_BATCH, deinterleave, interleave};
use crate::matmul::matmul;
use crate::real::Real;
use crate::tasks::run_tasks;
use crate::view::check;
use crate::{Result, View};

/// The maximum size in bytes of a row or a column of matrices whose eigenvalues and singular values are computed in
/// lanes. Larger matrices are left to `faer`, because Jacobi's method needs more sweeps for them, and in f64 they do
/// not fit in the cache.
const MAX_JACOBI_BYTES: usize = 64;

/// The maximum number of rows and columns of matrices whose QR decomposition is computed in lanes. Larger matrices in lanes do not fit in the
/// first cache.
const MAX_QR_SIDE: usize = 24;

/// Computes the lower triangular `l` of `a = l lᵀ` for a batch of symmetric matrices `[batch, n, n]`. Only the lower
/// triangles are read, so the upper ones can have any values. The result is NaN for a matrix that is not finite or not
/// positive definite, because one such matrix must not stop the others.
///
/// Allocates a matrix for each thread.
///
/// # Errors
/// Returns an error unless the matrices are square and `l` has their size.
pub fn cholesky<T: Real>(a: View<'_, T>, l: &mut [T], threads: usize) -> Result<()> {
    T::cholesky(a, l, threads)
}

pub(crate) fn cholesky_of<T: Real>(a: View<'_, T>, l: &mut [T], threads: usize) -> Result<()> {
    let [batch, n] = square(a)?;
    if is_for_lanes(batch, [n, n], MAX_SIDE) {
        check("the elements of a result", l.len(), batch * n * n)?;
        let tasks = a.data().chunks(LANES * n * n).zip(l.chunks_mut(LANES * n * n)).collect();
        run_tasks(
            tasks,
            threads.min(batch * n * n * n / lanes::MIN_MULTIPLY_ADDS_PER_THREAD),
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
        if !(is_lower_finite(a, n) && factorize(a, n, l)) {
            (0..n * n).for_each(|i| l[i] = if i % n <= i / n { T::NAN } else { T::ZERO });
        }
    })
}

/// Computes the orthonormal columns `q` and the upper triangular `r` of `a = q r` for a batch of matrices `[batch, m, n]`.
///
/// `q` is `[batch, m, k]` and `r` is `[batch, k, n]`, where `k` is `m` if `is_full`, otherwise the smaller of `m` and `n`.
/// The signs are LAPACK's. The results are NaN for a matrix that is not finite. Allocates three matrices for each thread.
///
/// # Errors
/// Returns an error if the results do not have these sizes.
pub fn qr<T: Real>(a: View<'_, T>, is_full: bool, q: &mut [T], r: &mut [T], threads: usize) -> Result<()> {
    T::qr(a, is_full, q, r, threads)
}

pub(crate) fn qr_of<T: Real>(a: View<'_, T>, is_full: bool, q: &mut [T], r: &mut [T], threads: usize) -> Result<()> {
    let [batch, m, n] = a.dims("the operand")?;
    let k = if is_full { m } else { m.min(n) };
    if is_for_lanes(batch, [m, n], MAX_QR_SIDE) {
        check("the elements of a result", q.len(), batch * m * k)?;
        check("the elements of a result", r.len(), batch * k * n)?;
        qr_in_lanes(a.data(), [m, n, k], [q, r], threads.min(batch * m * n * k / lanes::MIN_MULTIPLY_ADDS_PER_THREAD));
        return Ok(());
    }
    each(a, [q, r], [m * k, k * n], batch, threads, |a, [q, r]| {
        if !is_finite(a) {
            q.fill(T::NAN);
            return r.fill(T::NAN);
        }
        let factors = Qr::new(matrix(a, m, n));
        write(orthogonal(&factors, k).as_ref(), q);
        r.fill(T::ZERO);
        write(factors.thin_R(), &mut r[..m.min(n) * n]);
    })
}

/// Decomposes matrices, with `k` columns of `q` and rows of `r`.
fn qr_in_lanes<T: Real>(a: &[T], [m, n, k]: [usize; 3], [q, r]: [&mut [T]; 2], threads: usize) {
    let results = q.chunks_mut(LANES * m * k).zip(r.chunks_mut(LANES * k * n));
    let tasks = a.chunks(LANES * m * n).zip(results).collect();
    run_tasks(
        tasks,
        threads,
        || (lanes::zeros(m * n), lanes::zeros(m * k), lanes::zeros(n.max(k))),
        |(matrix, vectors, sums), (a, (q, r))| {
            interleave(a, m * n, matrix);
            lanes::qr(matrix, [m, n], vectors, k, sums);
            deinterleave(vectors, m * k, q);
            deinterleave(&matrix[..k * n], k * n, r);
        },
    );
}

/// Computes the first columns of `q`. `faer` applies every block of reflectors to all columns, although the leading ones are
/// still identity columns, so that a third of its work multiplies zeros. Here a block is applied only to the other columns.
fn orthogonal<T: Real>(qr: &Qr<T>, columns: usize) -> Mat<T> {
    let (basis, factors) = (qr.Q_basis(), qr.Q_coeff());
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

/// Computes the eigenvectors, as columns, and the eigenvalues, in ascending order, of a batch of symmetric matrices
/// `[batch, n, n]`. Only the lower triangles are read.
///
/// `vectors` is `[batch, n, n]` and `values` is `[batch, n]`. The results are NaN for a matrix that is not finite. Allocates
/// six matrices for each thread.
///
/// # Errors
/// Returns an error unless the matrices are square and the results have these sizes.
pub fn eigh<T: Real>(a: View<'_, T>, vectors: &mut [T], values: &mut [T], threads: usize) -> Result<()> {
    T::eigh(a, vectors, values, threads)
}

pub(crate) fn eigh_of<T: Real>(a: View<'_, T>, vectors: &mut [T], values: &mut [T], threads: usize) -> Result<()> {
    let [batch, n] = square(a)?;
    if is_for_lanes(batch, [n, n], MAX_JACOBI_BYTES / size_of::<T>()) {
        check("the elements of a result", vectors.len(), batch * n * n)?;
        check("the elements of a result", values.len(), batch * n)?;
        let results = vectors.chunks_mut(LANES * n * n).zip(values.chunks_mut(LANES * n));
        let tasks = a.data().chunks(LANES * n * n).zip(results).collect();
        let threads = threads.min(batch * n * n * n / lanes::MIN_MULTIPLY_ADDS_PER_THREAD);
        // A thread with too few operations would cost more than it saves.
        run_tasks(
            tasks,
            threads,
            || scratch(n, n),
            |(matrix, columns, diagonal, scaled), (a, (vectors, values))| {
                interleave(a, n * n, matrix);
                lanes::eigh(matrix, n, columns, diagonal, scaled);
                deinterleave(columns, n * n, vectors);
                deinterleave(diagonal, n, values);
            },
        );
        return Ok(());
    }
    each(a, [vectors, values], [n * n, n], batch, threads, |a, [vectors, values]| {
        let (scaled, scale) = symmetric(a, n);
        let eigen =
            if is_finite(&scaled) { SelfAdjointEigen::new(matrix(&scaled, n, n), Side::Lower).ok() } else { None };
        let Some(eigen) = eigen else {
            vectors.fill(T::NAN);
            return values.fill(T::NAN);
        };
        write(eigen.U(), vectors);
        normalize_columns(vectors, n);
        let products = products(&scaled, [n, n], vectors, [n, n, 1]);
        rayleigh_quotients(vectors, n, &products, values);
        (1..n).for_each(|i| values[i] = if values[i] < values[i - 1] { values[i - 1] } else { values[i] });
        values.iter_mut().for_each(|value| *value = *value * scale);
    })
}

/// Computes `u`, the singular values `s` in descending order, and the transposed `v` of `a = u diag(s) vᵀ` for a batch of
/// matrices `[batch, m, n]`.
///
/// With `k` the smaller of `m` and `n`, `s` is `[batch, k]`. `u` is `[batch, m, m]` and `vt` is `[batch, n, n]` if `is_full`,
/// otherwise `[batch, m, k]` and `[batch, k, n]`. The results are NaN for a matrix that is not finite. Allocates eight matrices
/// for each thread.
///
/// # Errors
/// Returns an error if the results do not have these sizes.
pub fn svd<T: Real>(
    a: View<'_, T>,
    is_full: bool,
    u: &mut [T],
    s: &mut [T],
    vt: &mut [T],
    threads: usize,
) -> Result<()> {
    T::svd(a, is_full, u, s, vt, threads)
}

pub(crate) fn svd_of<T: Real>(
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
    // The lanes compute only as many columns of `u` as the matrix has, so wide matrices and full results are left to `faer`.
    if m >= n && (m == n || !is_full) && is_for_lanes(batch, [m, n], MAX_JACOBI_BYTES / size_of::<T>()) {
        check("the elements of a result", u.len(), batch * m * n)?;
        check("the elements of a result", s.len(), batch * n)?;
        check("the elements of a result", vt.len(), batch * n * n)?;
        svd_in_lanes(
            a.data(),
            [m, n],
            [u, s, vt],
            threads.min(batch * m * n * n / lanes::MIN_MULTIPLY_ADDS_PER_THREAD),
        );
        return Ok(());
    }
    each(a, [u, s, vt], [m * columns, k, rows * n], batch, threads, |a, results| {
        svd_of_one(a, [m, n], is_full, results)
    })
}

fn svd_of_one<T: Real>(a: &[T], [m, n]: [usize; 2], is_full: bool, [u, s, vt]: [&mut [T]; 3]) {
    if !is_full && gram::applies::<T>([m.max(n), m.min(n)]) && gram::svd(a, [m, n], [u, s, vt]) {
        return;
    }
    let scale = scale(a);
    let scaled: Vec<T> = a.iter().map(|x| *x / scale).collect();
    let decomposition = match is_full {
        _ if !is_finite(&scaled) => None,
        true => Svd::new(matrix(&scaled, m, n)).ok(),
        false => Svd::new_thin(matrix(&scaled, m, n)).ok(),
    };
    let Some(decomposition) = decomposition else {
        u.fill(T::NAN);
        s.fill(T::NAN);
        return vt.fill(T::NAN);
    };
    let (left, right) = (decomposition.U(), decomposition.V());
    write(left, u);
    normalize_columns(u, left.ncols());
    write(right.transpose(), vt);
    vt.chunks_exact_mut(n).for_each(|row| normalize_columns(row, 1));
    // The first columns of `u` and rows of `vt` belong to the singular values.
    let products = products(&scaled, [m, n], &vt[..s.len() * n], [s.len(), n, 2]);
    rayleigh_quotients(u, left.ncols(), &products, s);
    for i in 0..s.len() {
        let largest = if i == 0 { s[i] } else { s[i - 1] };
        s[i] = if s[i] < T::ZERO {
            T::ZERO
        } else if s[i] > largest {
            largest
        } else {
            s[i]
        };
    }
    s.iter_mut().for_each(|value| *value = *value * scale);
}

/// The power of two of the largest magnitude. Divided by it, squares of elements neither overflow nor vanish together.
fn scale<T: Real>(a: &[T]) -> T {
    a.iter().fold(T::ZERO, |largest, x| if x.magnitude() > largest { x.magnitude() } else { largest }).power_of_two()
}

/// Copies the lower triangle of a matrix to both triangles, divided by the scale, which is returned too.
fn symmetric<T: Real>(a: &[T], n: usize) -> (Vec<T>, T) {
    let scale = a
        .chunks_exact(n)
        .enumerate()
        .map(|(i, row)| scale(&row[..=i]))
        .fold(T::ZERO, |largest, scale| if scale > largest { scale } else { largest });
    let elements = (0..n * n).map(|index| {
        let (row, column) = (index / n, index % n);
        a[row.max(column) * n + row.min(column)] / scale
    });
    (elements.collect(), scale)
}

/// Scales each column of a matrix in row order to length 1. The rotations of `faer` are not exactly orthogonal: they change lengths by
/// up to a hundred units in the last place, and eigenvalues and singular values alike.
fn normalize_columns<T: Real>(matrix: &mut [T], columns: usize) {
    let mut squares = vec![0.0f64; columns];
    for row in matrix.chunks_exact(columns) {
        squares.iter_mut().zip(row).for_each(|(square, x)| *square += x.widen() * x.widen());
    }
    let lengths: Vec<f64> = squares.iter().map(|square| square.sqrt()).collect();
    for row in matrix.chunks_exact_mut(columns) {
        row.iter_mut().zip(&lengths).for_each(|(x, length)| *x = T::narrow(x.widen() / length));
    }
}

/// Returns `a b`, or `a bᵀ` if dimension 2 of `b` is summed over.
fn products<T: Real>(a: &[T], [m, n]: [usize; 2], b: &[T], [rows, columns, summed]: [usize; 3]) -> Vec<T> {
    let mut products = vec![T::ZERO; m * if summed == 1 { columns } else { rows }];
    let (a_shape, b_shape) = ([1, m, n], [1, rows, columns]);
    if let (Ok(a), Ok(b)) = (View::new(&a_shape, a), View::new(&b_shape, b)) {
        let result = matmul(a, b, [2, summed], &mut products, 1);
        debug_assert!(result.is_ok());
    }
    products
}

/// Computes the values `uᵢᵀ a vᵢ` from the columns of `u` and of the products `a v`. Their errors are squares of the errors of the
/// vectors.
fn rayleigh_quotients<T: Real>(u: &[T], columns: usize, products: &[T], values: &mut [T]) {
    let mut sums = vec![0.0f64; values.len()];
    for (u, products) in u.chunks_exact(columns).zip(products.chunks_exact(values.len())) {
        sums.iter_mut().zip(u.iter().zip(products)).for_each(|(sum, (u, product))| *sum += u.widen() * product.widen());
    }
    values.iter_mut().zip(sums).for_each(|(value, sum)| *value = T::narrow(sum));
}

/// Allocates the memory of a thread for matrices in lanes: `[m, n]`, `[n, n]`, `[n]` and `[m, n]`.
fn scratch<T: Real>(m: usize, n: usize) -> (Vec<Lanes<T>>, Vec<Lanes<T>>, Vec<Lanes<T>>, Vec<Lanes<T>>) {
    (lanes::zeros(m * n), lanes::zeros(n * n), lanes::zeros(n), lanes::zeros(m * n))
}

/// Decomposes matrices with no more columns than rows.
fn svd_in_lanes<T: Real>(a: &[T], [m, n]: [usize; 2], [u, s, vt]: [&mut [T]; 3], threads: usize) {
    let results = u.chunks_mut(LANES * m * n).zip(s.chunks_mut(LANES * n)).zip(vt.chunks_mut(LANES * n * n));
    let tasks = a.chunks(LANES * m * n).zip(results).collect();
    run_tasks(
        tasks,
        threads,
        || scratch(m, n),
        |(left, right, values, scaled), (a, ((u, s), vt))| {
            interleave(a, m * n, left);
            let is_inaccurate = lanes::svd(left, n, right, values, scaled);
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
        },
    );
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

/// Calls `f` with each matrix and its part of each result. A part has the size in `sizes`.
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
        let results: Vec<&mut [T]> = parts.iter_mut().filter_map(Iterator::next).collect();
        tasks.extend(<[&mut [T]; N]>::try_from(results).ok().map(|results| (a, results)));
    }
    run_tasks(tasks, threads.max(1), || (), |(), (a, results)| f(a, results));
    Ok(())
}

fn matrix<T>(a: &[T], m: usize, n: usize) -> MatRef<'_, T> {
    MatRef::from_row_major_slice(a, m, n)
}

pub(crate) fn is_finite<T: Real>(a: &[T]) -> bool {
    a.iter().all(|x| x.is_finite())
}

fn is_lower_finite<T: Real>(a: &[T], n: usize) -> bool {
    a.chunks_exact(n).enumerate().all(|(i, row)| is_finite(&row[..=i]))
}

/// The number of rows and columns that are copied together, so that both sides of a block stay in the first cache.
const BLOCK: usize = 16;

/// Copies a matrix in column order, or the transpose of one, to memory in row order.
fn write<T: Real>(from: MatRef<'_, T>, to: &mut [T]) {
    let width = from.ncols().max(1);
    let columns = from.col_iter().map(|column| column.try_as_col_major().map(|column| column.as_slice()));
    let Some(columns) = columns.collect::<Option<Vec<&[T]>>>() else {
        for (to, from) in to.chunks_exact_mut(width).zip(from.row_iter()) {
            match from.try_as_row_major() {
                Some(from) => to.copy_from_slice(from.as_slice()),
                None => to.iter_mut().zip(from.iter()).for_each(|(to, from)| *to = *from),
            }
        }
        return;
    };
    for (block, rows) in to.chunks_mut(BLOCK * width).enumerate() {
        for (index, columns) in columns.chunks(BLOCK).enumerate() {
            for (i, row) in rows.chunks_exact_mut(width).enumerate() {
                let row = row[index * BLOCK..].iter_mut();
                row.zip(columns).for_each(|(to, column)| *to = column[block * BLOCK + i]);
            }
        }
    }
}
