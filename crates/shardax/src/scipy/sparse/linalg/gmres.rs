//! Generalized minimal residuals ([Saad, Iterative methods, 6.5](https://www-users.cse.umn.edu/~saad/IterMethBook_2ndEd.pdf)).

use super::Problem;
use crate::core::array::Array;
use crate::dtype::DType;
use crate::error::Result;
use crate::linalg::{norm, solve};
use crate::ops::constants::eye_offset_dtype;
use crate::ops::control_flow::{fori_loop, while_loop};
use crate::ops::lax;
use crate::ops::numpy::{concatenate, conj, finfo, promote_dtypes, where_, zeros_dtype};
use crate::ops::primitive::matrix::{adjoint, product};

/// One vector of all leaves.
struct Layout<'a> {
    leaves: &'a [Array],
    dtype: DType,
}

impl Layout<'_> {
    fn flat(&self, leaves: &[Array]) -> Array {
        concatenate(leaves.iter().map(|x| x.ravel().astype(self.dtype)), 0)
    }

    fn leaves(&self, flat: &Array) -> Vec<Array> {
        let mut start = 0;
        let split = self.leaves.iter().map(|like| {
            let end = start + like.size();
            let part = lax::reshape(&lax::slice_in_dim(flat, start, end, 0), like.shape());
            start = end;
            // The flat vector is complex if any leaf is, although this leaf may be real.
            let part = if like.dtype().is_complex() { part } else { crate::ops::numpy::real(&part) };
            part.astype(like.dtype())
        });
        split.collect()
    }
}

pub(super) fn minimal_residuals(problem: &Problem<'_>) -> Result<Vec<Array>> {
    let leaves: Vec<&Array> = problem.b.iter().collect();
    let Some(promoted) = promote_dtypes(&leaves, |d| d)?.first().cloned() else { return Ok(Vec::new()) };
    let layout = Layout { leaves: problem.b, dtype: promoted.dtype() };
    let a = |x: &Array| -> Result<Array> { Ok(layout.flat(&(problem.m)(&(problem.a)(&layout.leaves(x))?)?)) };
    let b = layout.flat(&(problem.m)(problem.b)?);

    let b_norm = norm(layout.flat(problem.b), 2, ..);
    let (preconditioned_norm, limit) = (norm(&b, 2, ..), (&b_norm * problem.tol).maximum(problem.atol));
    // The loop computes the residual of the preconditioned equations, so the tolerance is scaled to them.
    let tolerance = preconditioned_norm * (limit / &b_norm).minimum(1);
    let residual = |x: &Array| -> Result<(Array, Array)> {
        let r = &b - a(x)?;
        let size = norm(&r, 2, ..);
        Ok((r, size))
    };
    type State = (Array, Array, Array, Array);
    let x0 = layout.flat(&problem.x0);
    let (r, size) = residual(&x0)?;
    let (x, ..) = while_loop(
        |(_, _, size, k): State| size.greater(&tolerance) & k.less(problem.restarts),
        |(x, r, size, k): State| -> Result<State> {
            let x = &x + correction(&a, &r, &size, problem.restart)?;
            let (r, size) = residual(&x)?;
            Ok((x, r, size, k + 1))
        },
        (x0, r, size, Array::from(0)),
    )?;
    Ok(layout.leaves(&x))
}

/// Divides a vector by its norm `size`. Vectors whose norm is at most `least` become zero, with norm zero.
fn unit(v: &Array, size: &Array, least: Array) -> (Array, Array) {
    let usable = size.greater(least);
    (where_(&usable, v / where_(&usable, size, 1).astype(v.dtype()), 0).astype(v.dtype()), where_(usable, size, 0))
}

/// Subtracts the projection of `w` on the rows of `basis`. Returns the coefficients and the remainder.
fn remove_projection(w: &Array, basis: &Array) -> (Array, Array) {
    let h = product(&conj(basis), &w.expand_dims(-1)).squeeze(-1);
    let remainder = w - product(&h.expand_dims(0), basis).squeeze(0);
    (h, remainder)
}

/// The element of the Krylov space of `restart` dimensions that is closest to solving `a(x) = r`.
fn correction(a: &dyn Fn(&Array) -> Result<Array>, r: &Array, size: &Array, restart: usize) -> Result<Array> {
    let (n, dtype) = (r.size(), r.dtype());
    let tiny = finfo(dtype.real())?.eps;
    let basis = zeros_dtype([restart + 1, n], dtype).at(0).set(unit(r, size, Array::from(0.0)).0);
    // Starts as the identity. A row keeps these values if the Krylov space is exhausted before its step, so that the rows stay
    // independent.
    let hessenberg = eye_offset_dtype(restart, restart + 1, 0, DType::F32).astype(dtype);
    let (basis, rows) = fori_loop(
        0,
        restart as i32,
        |k, (basis, rows): (Array, Array)| -> Result<(Array, Array)> {
            let vector = basis.get(&k);
            let w = a(&vector)?;
            let before = norm(&w, 2, ..);
            // Projects twice, because the second projection removes the rounding errors of the first.
            let (first_h, w) = remove_projection(&w, &basis);
            let (second_h, w) = remove_projection(&w, &basis);
            let (v, size) = unit(&w, &norm(&w, 2, ..), before * tiny);
            let next_k = &k + 1;
            let h = (first_h + second_h).at(&next_k).set(size.astype(dtype));
            let row = where_(vector.not_equal(0).any(..), h, rows.get(&k));
            Ok((basis.at(&next_k).set(v), rows.at(&k).set(row)))
        },
        (basis, hessenberg),
    )?;
    let target = zeros_dtype([restart + 1, 1], dtype).at(0).set(size.astype(dtype));
    let h = rows.t();
    let coordinates = solve(product(&adjoint(&h), &h), product(&adjoint(&h), &target)).squeeze(-1);
    let vectors = lax::slice_in_dim(&basis, 0, restart, 0);
    Ok(product(&coordinates.expand_dims(0), &vectors).squeeze(0))
}
