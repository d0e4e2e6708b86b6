//! Schur and Hessenberg forms, and the functions of matrices that are computed with them.

use super::solve::solve_triangular_left;
use crate::choice::{IntoChoice, NamedOption};
use crate::core::array::Array;
use crate::core::program::trace::{at_caller, or_failed};
use crate::dtype::DType;
use crate::error::{AtCaller, Result, err};
use crate::linalg::eig::checked;
use crate::linalg::pair;
use crate::linalg::schur as forms;
use crate::linalg::schur::each_matrix;
use crate::ops::control_flow::fori_loop;
use crate::ops::lax;
use crate::ops::numpy::{promote_dtypes, to_inexact, where_};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::composite::composite;
use crate::ops::primitive::matrix::{adjoint, eye_like, product};

/// The form of [`schur`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SchurOutput {
    /// Real for a real matrix. Pairs of conjugate eigenvalues are 2 × 2 blocks on the diagonal.
    #[default]
    Real,
    /// Triangular, complex.
    Complex,
}

/// JAX's names.
impl NamedOption for SchurOutput {
    const KIND: &'static str = "output";
    const NAMES: &'static [(&'static str, Self)] = &[("real", SchurOutput::Real), ("complex", SchurOutput::Complex)];
}

/// Returns the Schur forms `t` of square matrices `[..., n, n]` and the unitary matrices `z`, such that `a = z t zᴴ`.
///
/// The result is NaN for a matrix whose eigenvalues do not converge. You cannot differentiate it in reverse mode.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::scipy::linalg::{SchurOutput, schur};
/// let a = array([[1.0f32, 2.0, 0.0], [-1.0, 3.0, 1.0], [0.5, 0.0, 2.0]]);
/// let (t, z) = schur(&a, SchurOutput::Real)?;
/// assert!(allclose(z.matmul(t).matmul(z.t()), &a, 1e-4, 1e-4)?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error for less than two dimensions, and matrices that are not square.
#[track_caller]
pub fn schur(a: impl ArrayLike, output: impl IntoChoice<SchurOutput>) -> Result<(Array, Array)> {
    let output = output.into_choice();
    at_caller(|| {
        let output = output.value("schur")?;
        let a = checked("schur", &a.into_array())?;
        let forms = composite("schur", output, 2, std::slice::from_ref(&a), |output, args| {
            each_matrix(args, |args| {
                let (t, z) = match output {
                    SchurOutput::Real => forms::schur(&args[0])?,
                    SchurOutput::Complex => triangular_schur(&args[0])?,
                };
                Ok(vec![t, z])
            })
        });
        checked_pair(forms, &a)
    })
    .at_caller()
}

fn checked_pair(result: Result<Vec<Array>>, like: &Array) -> Result<(Array, Array)> {
    let (x, y) = pair(result, like);
    x.check().map(|()| (x, y))
}

/// The complex Schur form of a matrix, which is triangular, and the unitary factor.
fn triangular_schur(a: &Array) -> Result<(Array, Array)> {
    let (t, z) = forms::schur(a)?;
    if t.dtype().is_complex() { Ok((t, z)) } else { forms::triangular_of_real(&t, &z) }
}

/// Returns the Hessenberg forms `h` of square matrices `[..., n, n]`, which are zero below the first subdiagonal, and
/// the unitary matrices `q`, such that `a = q h qᴴ`.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::scipy::linalg::hessenberg;
/// let a = array([[1.0f32, 2.0, 0.0], [-1.0, 3.0, 1.0], [0.5, 0.0, 2.0]]);
/// let (h, q) = hessenberg(&a)?;
/// assert!(allclose(q.matmul(h).matmul(q.t()), &a, 1e-4, 1e-4)?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error for less than two dimensions, and matrices that are not square.
#[track_caller]
pub fn hessenberg(a: impl ArrayLike) -> Result<(Array, Array)> {
    at_caller(|| {
        let a = checked("hessenberg", &a.into_array())?;
        let forms = composite("hessenberg", (), 2, std::slice::from_ref(&a), |(), args| {
            each_matrix(args, |args| forms::hessenberg(&args[0]).map(|(h, q)| vec![h, q]))
        });
        checked_pair(forms, &a)
    })
    .at_caller()
}

/// Converts a real Schur form to the complex Schur form; see [`schur`].
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::scipy::linalg::{SchurOutput, rsf2csf, schur};
/// let (t, z) = schur(array([[0.0f32, -1.0], [1.0, 0.0]]), SchurOutput::Real)?;
/// let (t, _) = rsf2csf(t, z)?;
/// assert!(t.get((1, 0)).abs().item::<f32>()? < 1e-6);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error for less than two dimensions, and matrices that are not square.
#[track_caller]
pub fn rsf2csf(t: impl ArrayLike, z: impl ArrayLike) -> Result<(Array, Array)> {
    at_caller(|| {
        let (t, z) = (checked("rsf2csf", &t.into_array())?, checked("rsf2csf", &z.into_array())?);
        if t.dtype().is_complex() {
            return Ok((t, z));
        }
        let forms = composite("rsf2csf", (), 2, &[t.clone(), z], |(), args| {
            each_matrix(args, |args| forms::triangular_of_real(&args[0], &args[1]).map(|(t, z)| vec![t, z]))
        });
        checked_pair(forms, &t)
    })
    .at_caller()
}

/// Computes a function of square matrices with their Schur forms: applies `f` to the triangular factor and transforms the result back.
/// The result is complex.
fn by_triangle(
    name: &'static str,
    a: impl ArrayLike,
    f: impl Fn(&Array) -> Result<Array> + Copy + Send + Sync + 'static,
) -> Array {
    let a = a.into_array();
    or_failed(&a, || {
        let inexact = promote_dtypes(&[&a], to_inexact)?.swap_remove(0);
        let wide = if inexact.dtype().bits() < 32 { inexact.astype(DType::F32) } else { inexact };
        let outs = composite(name, (), 1, &[checked(name, &wide)?], move |(), args| {
            each_matrix(args, |args| {
                let (t, z) = triangular_schur(&args[0])?;
                Ok(vec![product(&product(&z, &f(&t)?), &adjoint(&z))])
            })
        })?;
        outs.into_iter().next().ok_or_else(|| err!(Runtime, "internal error: {name} has no result; please report this"))
    })
}

/// Builds an upper triangular matrix with this diagonal, one superdiagonal at a time. `next` computes a candidate from the
/// matrix so far; only its next superdiagonal is kept.
fn by_superdiagonals(t: &Array, diagonal: &Array, next: impl Fn(&Array) -> Array) -> Result<Array> {
    let n = t.shape()[0];
    let offset = lax::iota(DType::I32, &[n, n], 1) - lax::iota(DType::I32, &[n, n], 0);
    let start = (eye_like(t, n) * diagonal.expand_dims(0)).astype(t.dtype());
    fori_loop(1, n.max(1) as i32, |p: Array, f: Array| where_(offset.equal(&p), next(&f), &f).astype(t.dtype()), start)
}

/// Returns the principal square roots of square matrices `[..., n, n]`, computed with their Schur forms ([Björck and
/// Hammarling 1983](https://doi.org/10.1016/0024-3795(83)80010-X)). The result is complex. A singular matrix may not
/// have a square root.
///
/// ```
/// # use shardax::prelude::*;
/// let a = array([[1.0f32, 2.0], [0.0, 9.0]]);
/// let root = shardax::scipy::linalg::sqrtm(&a);
/// assert!(allclose(root.real(), array([[1.0f32, 0.5], [0.0, 3.0]]), 1e-5, 1e-5)?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for less than two dimensions, and matrices that are not square.
#[track_caller]
pub fn sqrtm(a: impl ArrayLike) -> Array {
    by_triangle("sqrtm", a, |t| {
        let d = t.diagonal(0, 0, 1).sqrt();
        let sum = d.expand_dims(1) + d.expand_dims(0);
        let sum = where_(sum.equal(0), 1, sum).astype(t.dtype());
        by_superdiagonals(t, &d, |root| (t - product(root, root)) / &sum)
    })
}

/// Extends `func`, an elementwise function of complex numbers, to square matrices `[..., n, n]` ([Golub and Van Loan,
/// 9.1.4](https://math.ecnu.edu.cn/~jypan/Teaching/books/2013%20Matrix%20Computations%204th.pdf)). The result is
/// complex, and only accurate if the eigenvalues are distinct.
///
/// ```
/// # use shardax::prelude::*;
/// let a = array([[1.0f32, 2.0], [0.0, 3.0]]);
/// let y = shardax::scipy::linalg::funm(&a, |x| x.exp());
/// assert!(allclose(y.real(), shardax::scipy::linalg::expm(&a), 1e-4, 1e-4)?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for less than two dimensions, and matrices that are not square.
#[track_caller]
pub fn funm(a: impl ArrayLike, func: fn(Array) -> Array) -> Array {
    let a = a.into_array();
    or_failed(&a, || {
        let wide = checked("funm", &a)?;
        let outs = each_matrix(&[wide], |args| {
            let (t, z) = triangular_schur(&args[0])?;
            let d = t.diagonal(0, 0, 1);
            let gap = d.expand_dims(1) - d.expand_dims(0);
            let gap = where_(gap.equal(0), 1, gap).astype(t.dtype());
            let f = by_superdiagonals(&t, &func(d), |f| (product(f, &t) - product(&t, f)) / &gap)?;
            Ok(vec![product(&product(&z, &f), &adjoint(&z))])
        })?;
        outs.into_iter().next().ok_or_else(|| err!(Runtime, "internal error: funm has no result; please report this"))
    })
}

/// Solves Sylvester's equation `a x + x b = q` for `x` with Schur forms ([Bartels and Stewart
/// 1972](https://doi.org/10.1145/361573.361582)). `a` is `[m, m]`, `b` is `[n, n]`, `q` and `x` are `[m, n]`.
///
/// ```
/// # use shardax::prelude::*;
/// let (a, b, q) = (array([[3.0f32, 1.0], [0.0, 2.0]]), array([[1.0f32]]), array([[5.0f32], [3.0]]));
/// let x = shardax::scipy::linalg::solve_sylvester(a, b, q);
/// assert!(allclose(x, array([[1.0f32], [1.0]]), 1e-5, 1e-5)?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for shapes that do not fit.
#[track_caller]
pub fn solve_sylvester(a: impl ArrayLike, b: impl ArrayLike, q: impl ArrayLike) -> Array {
    let args = [a.into_array(), b.into_array(), q.into_array()];
    or_failed(&args[2], || {
        let args = promote_dtypes(&args.each_ref(), to_inexact)?;
        let (a, b) = (checked("solve_sylvester", &args[0])?, checked("solve_sylvester", &args[1])?);
        let q = args[2].astype(a.dtype());
        let sizes = [a.shape()[a.ndim() - 1], b.shape()[b.ndim() - 1]];
        if a.ndim() != 2 || b.ndim() != 2 || q.shape() != sizes {
            let [a, b, q] = [a, b, q].map(|x| x.type_name());
            return Err(err!(Value, "solve_sylvester got incompatible matrices: a is {a}, b is {b} and q is {q}")
                .help("pass a of [m, m], b of [n, n] and q of [m, n]; use `vmap` for several equations"));
        }
        let outs = composite("solve_sylvester", (), 1, &[a, b, q], |(), args| Ok(vec![sylvester(args)?]))?;
        outs.into_iter()
            .next()
            .ok_or_else(|| err!(Runtime, "internal error: solve_sylvester has no result; please report this"))
    })
}

fn sylvester(args: &[Array]) -> Result<Array> {
    if args[2].size() == 0 {
        return Ok(args[2].clone());
    }
    let ((r, u), (s, v)) = (triangular_schur(&args[0])?, triangular_schur(&args[1])?);
    let f = product(&product(&adjoint(&u), &args[2].astype(r.dtype())), &v);
    let [m, n] = [r.shape()[0], s.shape()[0]];
    // Solves for one column at a time, because the right side of a column contains the columns before it.
    let y = fori_loop(
        0,
        n as i32,
        |k: Array, y: Array| {
            let column = lax::dynamic_slice_in_dim(&s, &k, 1, 1);
            let shift = lax::dynamic_slice_in_dim(&column, &k, 1, 0);
            let right = lax::dynamic_slice_in_dim(&f, &k, 1, 1) - product(&y, &column);
            let x = solve_triangular_left(&(&r + eye_like(&r, m) * shift), &right);
            lax::dynamic_update_slice_in_dim(&y, &x, &k, 1)
        },
        (&f * 0).astype(f.dtype()),
    )?;
    let x = product(&product(&u, &y), &adjoint(&v));
    Ok(if args[0].dtype().is_complex() { x } else { x.real() })
}

/// Returns the exponential of a matrix `[n, n]`, and its derivative in the direction `e`: `(expm(a), d expm(a) · e)`.
///
/// ```
/// # use shardax::prelude::*;
/// let (y, dy) = shardax::scipy::linalg::expm_frechet(array([[0.0f32]]), array([[2.0f32]]))?;
/// assert_eq!((y.to_vec::<f32>()?, dy.to_vec::<f32>()?), (vec![1.0], vec![2.0]));
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error for matrices that are not square, or whose shapes differ.
#[track_caller]
pub fn expm_frechet(a: impl ArrayLike, e: impl ArrayLike) -> Result<(Array, Array)> {
    let args = [a.into_array(), e.into_array()];
    at_caller(|| {
        let args = promote_dtypes(&args.each_ref(), to_inexact)?;
        crate::transform::jvp(|a: Array| super::expm(a), args[0].clone(), args[1].clone())
    })
}

/// Multiplies `c` from the right by the orthonormal factor of `a`. Returns `(c q, r)` with the triangular factor `r`,
/// like SciPy's `qr_multiply(a, c, mode="right")`. The product is `[k]` for a vector `c`.
///
/// ```
/// # use shardax::prelude::*;
/// let (cq, r) = shardax::scipy::linalg::qr_multiply(array([[3.0f32], [4.0]]), array([3.0f32, 4.0]));
/// assert!(allclose(cq.get(0) / r.get((0, 0)), 1.0f32, 1e-5, 1e-5)?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for shapes that do not fit.
#[track_caller]
pub fn qr_multiply(a: impl ArrayLike, c: impl ArrayLike) -> (Array, Array) {
    let (q, r) = crate::linalg::qr(a);
    (crate::ops::numpy::matmul(c, q), r)
}
