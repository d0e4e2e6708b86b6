//! Functions of the factors of decompositions: products of Householder reflections, the update of a Cholesky factor, and the
//! permutation of a row exchange.

use super::schur::{each_matrix, indices};
use crate::core::array::Array;
use crate::core::program::trace::or_failed;
use crate::dtype::DType;
use crate::error::{Result, err};
use crate::ops::constants::zeros_like;
use crate::ops::control_flow::fori_loop;
use crate::ops::lax;
use crate::ops::numpy::{conj, hypot, where_};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::composite::composite1;
use crate::ops::primitive::matrix::{adjoint, eye_like, product, square};

/// Returns the first `n` columns of the product `q` of Householder reflections, `[..., m, n]`, for reflections in the columns of
/// `a`, `[..., m, n]`, and their factors `taus`, `[..., k]`, in the format of LAPACK's `geqrf` (this is LAPACK's `orgqr` and `ungqr`).
///
/// `q` is the product of `k` reflections `1 - taus[i] v vᴴ`, where `v[..i]` is zero, `v[i]` is 1, and `v[i + 1..]` is in the column
/// `i` of `a`, below the diagonal. The rest of `a` is not read.
///
/// ```
/// # use shardax::prelude::*;
/// // The reflection that maps [3, 4] to [-5, 0].
/// let q = lax::linalg::householder_product(array([[-5.0f32, 0.0], [0.5, 0.0]]), array([1.6f32]));
/// assert!(allclose(&q, array([[-0.6f32, -0.8], [-0.8, 0.6]]), 1e-6, 1e-6)?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for integers and half precision, for different dtypes, for leading dimensions that are not the same,
/// and if there are more columns than rows, or more factors than columns.
#[track_caller]
pub fn householder_product(a: impl ArrayLike, taus: impl ArrayLike) -> Array {
    let (a, taus) = (a.into_array(), taus.into_array());
    let (a, taus) = (&a, &taus);
    or_failed(a, || {
        let [m, n] = check_reflections("householder_product", a, taus)?;
        if n > m {
            return Err(err!(Value, "householder_product of {} has more columns than rows", a.type_name())
                .help("a matrix with orthonormal columns has at most as many columns as rows"));
        }
        composite1("householder_product", [m, n], &[a.clone(), taus.expand_dims(-2)], |&[m, n], args| {
            each_matrix(args, |args| {
                let columns = lax::slice(&eye_like(&args[0], m), &[0, 0], &[m, n], None);
                Ok(vec![reflect(&args[0], &args[1], &columns, false)?])
            })
        })
    })
}

/// The side and the form of the factor that [`ormqr`] multiplies by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OrmqrOptions {
    /// Multiplies from the left, `q c`, instead of from the right, `c q`. Default `true`.
    pub left: bool,
    /// Multiplies by the conjugate transpose of `q`. Default `false`.
    pub transpose: bool,
}

impl Default for OrmqrOptions {
    fn default() -> Self {
        OrmqrOptions { left: true, transpose: false }
    }
}

/// Multiplies matrices `c` by the square matrix `q` of a QR decomposition in the format of LAPACK's `geqrf`, without computing `q`
/// (this is LAPACK's `ormqr` and `unmqr`).
///
/// [`householder_product`] describes `a`, `[..., m, n]`, and `taus`, `[..., k]`. `c` and the result are `[..., m, r]`, or `[..., r, m]`
/// on the left of `q`.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::lax::linalg::{OrmqrOptions, ormqr};
/// let (a, taus) = (array([[-5.0f32], [0.5]]), array([1.6f32]));
/// let r = ormqr(&a, &taus, array([[3.0f32], [4.0]]), OrmqrOptions { transpose: true, ..Default::default() });
/// assert!(allclose(&r, array([[-5.0f32], [0.0]]), 1e-6, 1e-6)?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for integers and half precision, for different dtypes, and for shapes that do not fit.
#[track_caller]
pub fn ormqr(a: impl ArrayLike, taus: impl ArrayLike, c: impl ArrayLike, options: OrmqrOptions) -> Array {
    let (a, taus, c) = (a.into_array(), taus.into_array(), c.into_array());
    let (a, taus, c) = (&a, &taus, &c);
    or_failed(c, || {
        let [m, _] = check_reflections("ormqr", a, taus)?;
        c.check()?;
        let rows_dim = if options.left { 2 } else { 1 };
        let fits = c.dtype() == a.dtype()
            && c.ndim() == a.ndim()
            && c.shape()[..c.ndim() - 2] == a.shape()[..a.ndim() - 2]
            && c.shape()[c.ndim() - rows_dim] == m;
        if !fits {
            let (rows, columns) = if options.left { ("m", "r") } else { ("r", "m") };
            return Err(err!(Value, "ormqr of reflections {} got c as {}", a.type_name(), c.type_name()).help(
                format!("with reflections [..., m, n], c must be [..., {rows}, {columns}] and have their dtype"),
            ));
        }
        composite1("ormqr", options, &[a.clone(), taus.expand_dims(-2), c.clone()], |&options, args| {
            each_matrix(args, |args| {
                let OrmqrOptions { left, transpose } = options;
                Ok(vec![if left {
                    reflect(&args[0], &args[1], &args[2], transpose)?
                } else {
                    // `c q` is the adjoint of `qᴴ cᴴ`.
                    adjoint(&reflect(&args[0], &args[1], &adjoint(&args[2]), !transpose)?)
                }])
            })
        })
    })
}

/// Returns the sizes `m` and `n` of reflections, or an error if the arrays are not reflections.
fn check_reflections(name: &str, a: &Array, taus: &Array) -> Result<[usize; 2]> {
    a.check()?;
    taus.check()?;
    check_dtype(name, a)?;
    let fits = a.ndim() >= 2
        && taus.ndim() + 1 == a.ndim()
        && taus.dtype() == a.dtype()
        && taus.shape()[..taus.ndim() - 1] == a.shape()[..a.ndim() - 2];
    let sizes = a.shape().last_chunk().copied().filter(|_| fits);
    match (sizes, taus.shape().last()) {
        (Some([m, n]), Some(&k)) if k <= m.min(n) => Ok([m, n]),
        _ => Err(err!(Value, "{name} got reflections {} and their factors {}", a.type_name(), taus.type_name()).help(
            "reflections must be [..., m, n], and factors [..., k] of the same dtype, where k is at most m and n",
        )),
    }
}

fn check_dtype(name: &str, x: &Array) -> Result<()> {
    match x.dtype() {
        DType::F32 | DType::F64 | DType::Complex64 | DType::Complex128 => Ok(()),
        _ => Err(err!(Type, "{name} of {} is not supported", x.type_name())
            .help("pass float32, float64 or complex numbers; convert with `x.astype(DType::F32)`")),
    }
}

/// Returns `q c` or, if `is_adjoint`, `qᴴ c`, for reflections `[m, n]` and their factors `[1, k]`.
fn reflect(a: &Array, taus: &Array, c: &Array, is_adjoint: bool) -> Result<Array> {
    let (m, k, dtype) = (a.shape()[0], taus.shape()[1], a.dtype());
    if k == 0 {
        // A loop is traced even if it has no iterations, and there is no column to read.
        return Ok(c.clone());
    }
    let rows = indices(m, 0);
    let step = |i: Array, c: Array| {
        // `q c` begins with the last reflection, and `qᴴ c` with the first one.
        let j = if is_adjoint { i } else { k as i32 - 1 - i };
        let below = where_(rows.greater(&j), lax::dynamic_slice_in_dim(a, &j, 1, 1), 0);
        let v = where_(rows.equal(&j), 1, below).astype(dtype);
        let tau = lax::dynamic_slice_in_dim(taus, &j, 1, 1);
        let tau = if is_adjoint { conj(tau) } else { tau };
        &c - product(&(&v * tau), &product(&adjoint(&v), &c))
    };
    fori_loop(0, k as i32, step, c.clone())
}

/// Updates Cholesky factors by vectors: returns the upper triangular `s` with `sᵀ s = rᵀ r + w wᵀ`, for `r` upper triangular,
/// `[..., n, n]`, and `w`, `[..., n]`. This takes `n²` operations.
///
/// The diagonal is positive in the rows that change. Only the upper triangle of `r` is read.
///
/// ```
/// # use shardax::prelude::*;
/// let s = lax::linalg::cholesky_update(array([[3.0f32, 1.0], [0.0, 2.0]]), array([4.0f32, 0.0]));
/// assert!(allclose(&s, array([[5.0f32, 0.6], [0.0, 2.1540659]]), 1e-6, 1e-6)?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for integers, half precision and complex numbers, and for shapes that do not fit.
#[track_caller]
pub fn cholesky_update(r_matrix: impl ArrayLike, w_vector: impl ArrayLike) -> Array {
    let (r, w) = (r_matrix.into_array(), w_vector.into_array());
    let (r, w) = (&r, &w);
    or_failed(r, || {
        r.check()?;
        w.check()?;
        let n = square("cholesky_update", &r.aval())?;
        let is_real = r.dtype() == DType::F32 || r.dtype() == DType::F64;
        if !is_real || w.dtype() != r.dtype() || w.shape() != &r.shape()[..r.ndim() - 1] {
            return Err(err!(Value, "cholesky_update of {} got the vector {}", r.type_name(), w.type_name())
                .help("pass r as [..., n, n] and w as [..., n], both float32 or both float64"));
        }
        if r.size() == 0 {
            return Ok(r.clone());
        }
        composite1("cholesky_update", n, &[r.clone(), w.expand_dims(-2)], |&n, args| {
            each_matrix(args, |args| {
                let (rows, columns) = (indices(n, 0), indices(n, 1));
                let upper = where_(rows.less_equal(&columns), &args[0], 0).astype(args[0].dtype());
                // Each rotation mixes a row of the factor with the vector, such that an element of the vector becomes zero.
                let rotate = |i: Array, (r, w): (Array, Array)| {
                    let row = lax::dynamic_slice_in_dim(&r, &i, 1, 0);
                    let (x, y) = (lax::dynamic_slice_in_dim(&row, &i, 1, 1), lax::dynamic_slice_in_dim(&w, &i, 1, 1));
                    let is_unchanged = y.equal(0);
                    let length = hypot(&x, where_(&is_unchanged, 1, &y).astype(x.dtype()));
                    let cosine = where_(&is_unchanged, 1, &x / &length).astype(x.dtype());
                    let sine = where_(&is_unchanged, 0, &y / &length).astype(x.dtype());
                    let rotated = &cosine * &row + &sine * &w;
                    let w = where_(columns.greater(&i), cosine * &w - sine * row, zeros_like(&w));
                    (lax::dynamic_update_slice_in_dim(&r, rotated, &i, 0), w)
                };
                Ok(vec![fori_loop(0, n as i32, rotate, (upper, args[1].clone()))?.0])
            })
        })
    })
}

/// The factors of [`symmetric_product`], and the triangle that it computes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SymmetricProductOptions {
    /// The factor of `a aᵀ`. Default 1.
    pub alpha: f64,
    /// The factor of `c`. Default 0.
    pub beta: f64,
    /// Replaces the upper triangle by the transpose of the lower triangle. Default `false`.
    pub symmetrize_output: bool,
}

impl Default for SymmetricProductOptions {
    fn default() -> Self {
        SymmetricProductOptions { alpha: 1.0, beta: 0.0, symmetrize_output: false }
    }
}

/// Returns `alpha a aᵀ + beta c`, for matrices `a`, `[..., m, n]`, and symmetric matrices `c`, `[..., m, m]`. Complex numbers are
/// not conjugated.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::lax::linalg::{SymmetricProductOptions, symmetric_product};
/// let options = SymmetricProductOptions { alpha: 2.0, beta: 1.0, ..Default::default() };
/// let product = symmetric_product(array([[1.0f32, 2.0], [0.0, 3.0]]), eye(2), options);
/// assert_eq!(product.to_vec::<f32>()?, [11.0, 12.0, 12.0, 19.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for integers, for different dtypes, and for shapes that do not fit.
#[track_caller]
pub fn symmetric_product(
    a_matrix: impl ArrayLike,
    c_matrix: impl ArrayLike,
    options: SymmetricProductOptions,
) -> Array {
    let (a, c) = (a_matrix.into_array(), c_matrix.into_array());
    let (a, c) = (&a, &c);
    or_failed(c, || {
        a.check()?;
        c.check()?;
        let fits = a.ndim() >= 2
            && c.ndim() == a.ndim()
            && c.dtype() == a.dtype()
            && c.shape()[..c.ndim() - 1] == a.shape()[..a.ndim() - 1]
            && c.shape()[c.ndim() - 1] == c.shape()[c.ndim() - 2];
        if !fits || !(a.dtype().is_float() || a.dtype().is_complex()) {
            return Err(err!(Value, "symmetric_product of {} got c as {}", a.type_name(), c.type_name())
                .help("pass a as [..., m, n] and c as [..., m, m], both of one floating point or complex dtype"));
        }
        let SymmetricProductOptions { alpha, beta, symmetrize_output } = options;
        let parameters = (alpha.to_bits(), beta.to_bits(), symmetrize_output);
        composite1(
            "symmetric_product",
            parameters,
            &[a.clone(), c.clone()],
            |&(alpha, beta, symmetrize_output), args| {
                let transposed = args[0].swapaxes(-1, -2);
                let sum = product(&args[0], &transposed) * f64::from_bits(alpha) + &args[1] * f64::from_bits(beta);
                if !symmetrize_output {
                    return Ok(vec![sum]);
                }
                let m = sum.shape()[sum.ndim() - 1];
                let is_lower = indices(m, 0).greater_equal(indices(m, 1));
                Ok(vec![where_(is_lower, &sum, sum.swapaxes(-1, -2))])
            },
        )
    })
}

/// Converts the row exchanges of an LU decomposition to the permutation of rows, int32 `[..., permutation_size]`. The `pivots`, int32
/// `[..., k]`, are the rows that row 0, 1, … `k - 1` were exchanged with, in this order.
///
/// ```
/// # use shardax::prelude::*;
/// let permutation = lax::linalg::lu_pivots_to_permutation(array([2, 2]), 3);
/// assert_eq!(permutation.to_vec::<i32>()?, [2, 0, 1]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error if the pivots are not int32, if they have no dimension, or if there are more than `permutation_size`.
#[track_caller]
pub fn lu_pivots_to_permutation(pivots: impl ArrayLike, permutation_size: usize) -> Array {
    let pivots = pivots.into_array();
    let pivots = &pivots;
    or_failed(pivots, || {
        pivots.check()?;
        let count = pivots.shape().last().copied().filter(|count| *count <= permutation_size);
        let Some(count) = count.filter(|_| pivots.dtype() == DType::I32 && permutation_size <= i32::MAX as usize)
        else {
            let name = pivots.type_name();
            return Err(err!(Value, "lu_pivots_to_permutation of {name} with a permutation of {permutation_size}")
                .help("pass pivots as int32[..., k], and a permutation of at least k rows"));
        };
        let sizes = [count, permutation_size];
        composite1("lu_pivots_to_permutation", sizes, &[pivots.expand_dims(-2)], |&[count, size], args| {
            each_matrix(args, |args| {
                let rows = lax::iota(DType::I32, &[size], 0);
                if count == 0 {
                    return Ok(vec![rows]);
                }
                let exchange = |i: Array, rows: Array| {
                    let j = args[0].get((0, &i));
                    let (x, y) = (rows.get(&i), rows.get(&j));
                    rows.at(&i).set(y).at(&j).set(x)
                };
                Ok(vec![fori_loop(0, count as i32, exchange, rows)?])
            })
        })
    })
}
