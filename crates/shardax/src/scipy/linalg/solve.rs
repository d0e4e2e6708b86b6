//! Linear equations with known structure or known factors.

use super::cho_solve;
use crate::choice::{Choice, IntoChoice, NamedOption};
use crate::core::array::Array;
use crate::core::program::trace::{at_caller, or_failed};
use crate::dtype::DType;
use crate::error::{Result, err};
use crate::linalg::solve as solve_general;
use crate::ops::control_flow::{TransposeSolve, custom_linear_solve, fori_loop};
use crate::ops::lax::{self, Triangular};
use crate::ops::numpy::{promote_dtypes, to_inexact, where_};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::composite::composite1;
use crate::ops::primitive::matrix::{square, square_of_inexact};
use crate::ops::primitive::stop_gradient::stop_gradient;

/// The structure that [`solve`] assumes for a matrix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AssumeA {
    /// None.
    #[default]
    Gen,
    /// Symmetric; solved like a general matrix.
    Sym,
    /// Hermitian; solved like a general matrix.
    Her,
    /// Hermitian and positive definite: solved with a Cholesky factor, in half the time.
    Pos,
}

/// JAX's names.
impl NamedOption for AssumeA {
    const KIND: &'static str = "assumption";
    const NAMES: &'static [(&'static str, Self)] =
        &[("gen", AssumeA::Gen), ("sym", AssumeA::Sym), ("her", AssumeA::Her), ("pos", AssumeA::Pos)];
}

/// Returns the solution `x` of `a x = b`, as [`linalg::solve`](crate::linalg::solve()), for matrices of this structure.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::scipy::linalg::{AssumeA, solve};
/// let x = solve(array([[4.0f32, 2.0], [2.0, 5.0]]), array([6.0f32, 7.0]), AssumeA::Pos);
/// assert!(allclose(x, ones(2), 1e-5, 1e-5)?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for shapes that do not fit.
#[track_caller]
pub fn solve(a: impl ArrayLike, b: impl ArrayLike, assume_a: impl IntoChoice<AssumeA>) -> Array {
    let (a, b, assume_a) = (a.into_array(), b.into_array(), assume_a.into_choice());
    or_failed(&b, || {
        Ok(match assume_a.value("solve")? {
            AssumeA::Pos => solve_positive_definite(&a, &b),
            AssumeA::Gen | AssumeA::Sym | AssumeA::Her => solve_general(&a, &b),
        })
    })
}

/// Solves the equations with a Cholesky factor. Real solutions are differentiated implicitly, as in JAX: the gradient by the matrix is then
/// `-v xᵀ`, with the solution `v` for the cotangent, whereas the derivative of the factor would be symmetric.
fn solve_positive_definite(a: &Array, b: &Array) -> Array {
    or_failed(b, || {
        let args = promote_dtypes(&[a, b], to_inexact)?;
        let (a, b) = (&args[0], &args[1]);
        let has_same_batch = a.ndim() == b.ndim() && a.shape()[..a.ndim() - 1] == b.shape()[..b.ndim() - 1];
        let is_implicit = !a.dtype().is_complex() && (has_same_batch || (a.ndim(), b.ndim()) == (2, 1));
        if !is_implicit {
            return Ok(cho_solve(crate::linalg::cholesky(a), b));
        }
        let factor = crate::linalg::cholesky(stop_gradient(a.clone()));
        factor.check()?;
        let solution = |b: &Array| -> Result<Array> {
            custom_linear_solve(
                |x: Array| a.matmul(&x),
                b.clone(),
                |_, b: Array| Ok(cho_solve(&factor, &b)),
                TransposeSolve::Symmetric,
            )
        };
        match b.ndim() {
            1 => Ok(solution(&b.expand_dims(-1))?.squeeze(-1)),
            _ => solution(b),
        }
    })
}

/// Selects whether the equations have the matrix, its transpose or its conjugate transpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Trans {
    /// The matrix itself.
    #[default]
    No,
    /// Its transpose.
    Transpose,
    /// Its conjugate transpose.
    Adjoint,
}

/// JAX's names.
impl NamedOption for Trans {
    const KIND: &'static str = "trans";
    const NAMES: &'static [(&'static str, Self)] = &[("N", Trans::No), ("T", Trans::Transpose), ("C", Trans::Adjoint)];
}

/// JAX's numbers: 0, 1 and 2.
impl IntoChoice<Trans> for i32 {
    fn into_choice(self) -> Choice<Trans> {
        match self {
            0 => Choice::Value(Trans::No),
            1 => Choice::Value(Trans::Transpose),
            2 => Choice::Value(Trans::Adjoint),
            number => number.to_string().into_choice(),
        }
    }
}

/// Solves `a x = b` for triangular matrices `a`. The other triangle of `a` is not read. With `unit_diagonal`, the
/// diagonal is not read either and counts as ones.
///
/// `b` is one vector `[n]`, or matrices `[..., n, k]` with the leading dimensions of `a`.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::scipy::linalg::{Trans, solve_triangular};
/// let x = solve_triangular(array([[2.0f32, 0.0], [1.0, 4.0]]), array([4.0f32, 10.0]), Trans::No, true, false);
/// assert_eq!(x.to_vec::<f32>()?, [2.0, 2.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for shapes that do not fit.
#[track_caller]
pub fn solve_triangular(
    a: impl ArrayLike,
    b: impl ArrayLike,
    trans: impl IntoChoice<Trans>,
    lower: bool,
    unit_diagonal: bool,
) -> Array {
    let (a, b, trans) = (a.into_array(), b.into_array(), trans.into_choice());
    or_failed(&b, || {
        let trans = trans.value("solve_triangular")?;
        let args = promote_dtypes(&[&a, &b], to_inexact)?;
        let options = Triangular {
            left_side: true,
            lower,
            transpose_a: trans != Trans::No,
            conjugate_a: trans == Trans::Adjoint,
            unit_diagonal,
        };
        Ok(on_columns(&args[1], |b| lax::triangular_solve(&args[0], b, options)))
    })
}

/// Applies `f` to `b` as columns. A vector is a single column.
fn on_columns(b: &Array, f: impl FnOnce(&Array) -> Array) -> Array {
    match b.ndim() {
        1 => f(&b.expand_dims(-1)).squeeze(-1),
        _ => f(b),
    }
}

/// Returns the packed LU factors and the pivots of square matrices, for [`lu_solve`]; see
/// [`lax::linalg::lu`](crate::lax::linalg::lu).
///
/// ```
/// # use shardax::prelude::*;
/// let (lu, pivots) = shardax::scipy::linalg::lu_factor(array([[1.0f32, 2.0], [4.0, 4.0]]));
/// // Row 1 is the pivot: `l` is [[1, 0], [0.25, 1]] and `u` is [[4, 4], [0, 1]].
/// assert_eq!(lu.to_vec::<f32>()?, [4.0, 4.0, 0.25, 1.0]);
/// assert_eq!(pivots.to_vec::<i32>()?, [1, 1]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for less than two dimensions, and matrices that are not square.
#[track_caller]
pub fn lu_factor(a: impl ArrayLike) -> (Array, Array) {
    let a = a.into_array();
    let factors = at_caller(|| {
        let x = promote_dtypes(&[&a], to_inexact)?.swap_remove(0);
        square("lu_factor", &x.aval())?;
        let (lu, pivots, _) = lax::linalg::lu(&x);
        Ok((lu, pivots))
    });
    match factors {
        Ok(pair) => pair,
        Err(e) => {
            let failed = Array::from_result(Err(e), &a);
            (failed.clone(), failed)
        }
    }
}

/// Solves `a x = b`, or the equation with `a` transposed, with the factors that [`lu_factor`] returns.
///
/// `b` is one vector `[n]`, or matrices `[..., n, k]` with the leading dimensions of `a`.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::scipy::linalg::{Trans, lu_factor, lu_solve};
/// let a = array([[1.0f32, 2.0], [3.0, 4.0]]);
/// let x = lu_solve(lu_factor(&a), array([5.0f32, 11.0]), Trans::No);
/// assert!(allclose(x, array([1.0f32, 2.0]), 1e-5, 1e-5)?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for shapes that do not fit.
#[track_caller]
pub fn lu_solve(
    (lu, pivots): (impl ArrayLike, impl ArrayLike),
    b: impl ArrayLike,
    trans: impl IntoChoice<Trans>,
) -> Array {
    let (lu, pivots, b, trans) = (lu.into_array(), pivots.into_array(), b.into_array(), trans.into_choice());
    or_failed(&b, || {
        let trans = trans.value("lu_solve")?;
        pivots.check()?;
        let args = promote_dtypes(&[&lu, &b], to_inexact)?;
        let n = square_of_inexact("lu_solve", &args[0].aval())?;
        // A vector on the right side is one column.
        let rows = if b.ndim() == 1 { 0 } else { b.ndim().wrapping_sub(2) };
        let batch = &lu.shape()[..lu.ndim() - 2];
        let fits = b.ndim() > 0 && b.shape()[rows] == n && (batch.is_empty() || batch == &b.shape()[..rows]);
        if !fits || pivots.shape() != [batch, &[n]].concat().as_slice() || !pivots.dtype().is_integer() {
            return Err(err!(
                Value,
                "lu_solve got factors {}, pivots {} and incompatible right-hand sides {}",
                lu.type_name(),
                pivots.type_name(),
                b.type_name()
            )
            .help(format!(
                "pass the factors and pivots of `lu_factor`, and right-hand sides of [{n}] or [..., {n}, k]"
            )));
        }
        composite1("lu_solve", trans, &[args[0].clone(), pivots.clone(), args[1].clone()], |&trans, args| {
            let b = if args[2].ndim() == 1 { args[2].expand_dims(-1) } else { args[2].clone() };
            let x = with_factors(&args[0], &permutation(&args[1])?, &b, trans);
            Ok(vec![if args[2].ndim() == 1 { x.squeeze(-1) } else { x }])
        })
    })
}

fn with_factors(lu: &Array, permutation: &Array, b: &Array, trans: Trans) -> Array {
    let lead = &b.shape()[..b.ndim() - 2];
    let lu = lu.broadcast_to([lead, &lu.shape()[lu.ndim() - 2..]].concat().as_slice());
    let [lower, upper] = [true, false].map(|lower| Triangular {
        left_side: true,
        lower,
        unit_diagonal: lower,
        transpose_a: trans != Trans::No,
        conjugate_a: trans == Trans::Adjoint,
    });
    match trans {
        Trans::No => {
            let y = lax::triangular_solve(&lu, &permute_rows(b, permutation), lower);
            lax::triangular_solve(&lu, &y, upper)
        }
        _ => {
            let y = lax::triangular_solve(&lu, b, upper);
            permute_rows(&lax::triangular_solve(&lu, &y, lower), &permutation.argsort(-1))
        }
    }
}

fn permute_rows(x: &Array, order: &Array) -> Array {
    x.take_along_axis(order.expand_dims(-1), -2)
}

/// The order of the rows after the exchanges that the pivots describe: row `k` is exchanged with row `pivots[k]`, in ascending order.
fn permutation(pivots: &Array) -> Result<Array> {
    let n = pivots.shape()[pivots.ndim() - 1];
    let pivots = pivots.astype(DType::I32);
    let places = lax::iota(DType::I32, pivots.shape(), pivots.ndim() - 1);
    let start = places.clone();
    fori_loop(
        0,
        n as i32,
        |k, order: Array| {
            let pivot = pivots.take(&k, -1).expand_dims(-1);
            let row = order.take(&k, -1).expand_dims(-1);
            let pivot_row = order.take_along_axis(&pivot, -1);
            let order = where_(places.equal(&pivot), row, order);
            where_(places.equal(&k), pivot_row, order)
        },
        start,
    )
}

/// The solution of `t x = b` for an upper triangular matrix.
pub(super) fn solve_triangular_left(t: &Array, b: &Array) -> Array {
    lax::triangular_solve(t, b, Triangular { left_side: true, lower: false, ..Triangular::default() })
}
