//! The singular value decomposition, by column rotations.
//!
//! XLA lacks this operation on some platforms, so it is a program of other operations. A QR decomposition makes the
//! matrix square, then pairs of columns are rotated until all columns are orthogonal (one-sided Jacobi), half of all
//! pairs at once. Small singular values are as accurate as large ones ([Demmel and Veselić, Jacobi's method is more
//! accurate than QR](https://doi.org/10.1137/0613074)).

use smallvec::{SmallVec, smallvec};

use super::gather::{GatherScatterMode, take_along};
use super::matrix::{adjoint, batch_first, eye_like, matrices, matrix, part, product, widened, with_last};
use super::qr::Qr;
use super::unary::{ABS, CONJ, SQRT, conj, real};
use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::{BatchAxis, Dims, Outputs, Primitive, ShardingRule, Tangents, TypedOuts};
use crate::core::program::trace::bind;
use crate::core::program::{Aval, Flops};
use crate::dtype::{DType, Scalar};
use crate::error::{Result, err};
use crate::ops::control_flow::{fori_loop, while_loop};
use crate::ops::lax;
use crate::ops::select::where_;

/// The decomposition `a = u diag(s) vᴴ`, with the singular values `s` in descending order. With `full`, `u` and `v`
/// have all columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Svd {
    pub full: bool,
}

/// Each sweep squares the deviation from orthogonality, so a few are enough for any matrix.
const MAX_SWEEPS: i32 = 30;

impl Svd {
    /// Returns `u`, `s` and `vᴴ`.
    #[track_caller]
    pub fn apply(self, a: &Array) -> Outputs {
        bind(std::sync::Arc::new(self), std::slice::from_ref(a))
    }
}

/// Computes the dot products of corresponding columns.
fn columns_dot(x: &Array, y: &Array) -> Array {
    (conj(x) * y).sum_keepdims(-2)
}

/// Returns the columns `from..to`.
fn columns(x: &Array, from: usize, to: usize) -> Array {
    part(x, 0..x.shape()[x.ndim() - 2], from..to)
}

/// Rotates column `i` and column `n - 1 - i` of `w` so that they are orthogonal, and applies the same rotation to `v`.
/// Also returns the deviation of the worst pair from orthogonality.
fn rotated(w: &Array, v: &Array) -> (Array, Array, Array) {
    let (wp, wq) = halves(w);
    let (a, b, c) = (real(&columns_dot(&wp, &wp)), real(&columns_dot(&wq, &wq)), columns_dot(&wp, &wq));
    let size = ABS.apply(&c);
    let lengths = SQRT.apply(&a) * SQRT.apply(&b);
    let off = where_(lengths.greater(0), &size / where_(lengths.greater(0), &lengths, 1), 0);
    let off = off.astype(a.dtype());
    let needed = size.greater(0);
    // The angle whose tangent is the smaller root.
    let safe = where_(&needed, &size, 1).astype(a.dtype());
    let zeta = (b - a) / (safe * 2);
    let tangent = where_(zeta.less(0), -1, 1) / (ABS.apply(&zeta) + SQRT.apply(&(&zeta * &zeta + 1)));
    let tangent = where_(&needed, tangent, 0).astype(off.dtype());
    let cos = 1 / SQRT.apply(&(&tangent * &tangent + 1));
    let sin = (&cos * tangent).astype(w.dtype());
    let cos = cos.astype(w.dtype());
    // The phases of complex columns are changed first, so that their product is real.
    let phase = where_(&needed, &c / where_(&needed, &size, 1).astype(w.dtype()), 1).astype(w.dtype());
    let phase = if w.dtype().is_complex() { CONJ.apply(&phase) } else { phase };
    let off = if off.size() == 0 { real(&columns_dot(w, w)).sum(..) * 0 } else { off.max(..) };
    let [w, v] = [w, v].map(|x| {
        let (p, q) = halves(x);
        let q = q * &phase;
        next_round(&(&p * &cos - &q * &sin), &(p * &sin + q * &cos))
    });
    (w, v, off)
}

/// The first half of the columns, and the second half in reverse, so that pairs have the same position.
fn halves(x: &Array) -> (Array, Array) {
    let n = x.shape()[x.ndim() - 1];
    (columns(x, 0, n / 2), columns(x, n / 2, n).flip(-1))
}

/// Joins [`halves`] in the order of the next step. In this round-robin the first column stays and the others rotate, so
/// that every two columns meet.
fn next_round(first: &Array, second: &Array) -> Array {
    let last_dim = first.ndim() - 1;
    let joined = lax::concatenate(&[first.clone(), second.flip(-1)], last_dim);
    let n = joined.shape()[last_dim];
    lax::concatenate(&[columns(&joined, 0, 1), columns(&joined, n - 1, n), columns(&joined, 1, n - 1)], last_dim)
}

/// The singular vectors of an empty matrix: the identity, unless the result is not square.
fn identity_or_zeros(aval: &Aval) -> Array {
    let zeros = Array::zeros_of(&aval.clone().strip_weak_type());
    let (rows, columns) = (aval.shape[aval.rank() - 2], aval.shape[aval.rank() - 1]);
    if rows == columns { eye_like(&zeros, rows) } else { zeros }
}

/// Decomposes square matrices: returns `[u, s, v]` with unsorted singular values.
fn by_rotations(a: &Array) -> Result<[Array; 3]> {
    let n = a.shape()[a.ndim() - 1];
    // The number of columns must be even. An additional column of zeros is orthogonal to all others.
    let even = n + n % 2;
    let zero = Array::literal(Scalar::Int(0), a.dtype(), false);
    let mut config = vec![(0, 0, 0); a.ndim()];
    for d in [a.ndim() - 2, a.ndim() - 1] {
        config[d].1 = (even - n) as i64;
    }
    let padded = lax::pad(a, &zero, &config);
    let eye = eye_like(&padded, even);
    let tolerance = if a.dtype().real() == DType::F64 { f64::EPSILON } else { f64::from(f32::EPSILON) };
    let nothing = real(&padded).sum(..) * 0;
    let open = &nothing + 1;
    let sweep = |(count, _, w, v): (Array, Array, Array, Array)| -> Result<(Array, Array, Array, Array)> {
        let (off, w, v) = fori_loop(
            0,
            even as i32 - 1,
            |_: Array, (off, w, v): (Array, Array, Array)| {
                let (w, v, found) = rotated(&w, &v);
                (off.maximum(found), w, v)
            },
            (nothing.clone(), w, v),
        )?;
        Ok((count + 1, off, w, v))
    };
    let (_, _, w, v) = while_loop(
        |(count, off, ..): (Array, Array, Array, Array)| off.greater(tolerance) & count.less(MAX_SWEEPS),
        sweep,
        (Array::from(0), open, padded, eye),
    )?;
    let s = SQRT.apply(&real(&columns_dot(&w, &w)));
    // After a sweep, the columns are at their original positions, and the column of zeros is the last.
    Ok([part(&w, 0..n, 0..n), columns(&s, 0, n), part(&v, 0..n, 0..n)])
}

/// Decomposes matrices with no more columns than rows.
fn decompose_tall(a: &Array, full: bool) -> Result<[Array; 3]> {
    let (rank, n) = (a.ndim(), a.shape()[a.ndim() - 1]);
    let finite = a.isfinite().all([-2, -1]);
    let a = where_(finite.expand_dims([-2, -1]), a, 0).astype(a.dtype());
    // Scales very large or very small numbers, because their squares would overflow or underflow.
    let largest = ABS.apply(&a).max_keepdims([-2, -1]);
    let scale = where_(largest.greater(0), &largest, 1).astype(largest.dtype());
    let a = &(&a / scale.astype(a.dtype()));
    let qr = Qr { full }.apply(a);
    let r = part(&qr[1], 0..n, 0..n);
    let [w, s, v] = by_rotations(&r)?;
    let order = (-&s).argsort(-1);
    let [w, s, v] = [w, s, v].map(|x| {
        let places = order.broadcast_to(x.shape());
        take_along(&x, &places, rank - 1, GatherScatterMode::PromiseInBounds, true)
    });
    let s = s * scale;
    // Columns of length 0 have no direction, so a QR decomposition chooses one.
    let factors = Qr { full: false }.apply(&w);
    let diagonal = factors[1].last_diagonal(0).expand_dims(-2);
    let length = ABS.apply(&diagonal);
    let sign = where_(length.greater(0), &diagonal / where_(length.greater(0), &length, 1).astype(a.dtype()), 1);
    let inner = &factors[0] * sign.astype(a.dtype());
    let m = qr[0].shape()[rank - 1];
    let u = if full && m > n {
        lax::concatenate(&[product(&columns(&qr[0], 0, n), &inner), columns(&qr[0], n, m)], rank - 1)
    } else {
        product(&qr[0], &inner)
    };
    let [u, s, vh] = [u, s, adjoint(&v)].map(|x| where_(finite.expand_dims([-2, -1]), &x, f64::NAN).astype(x.dtype()));
    Ok([u, s.squeeze(-2), vh])
}

impl Primitive for Svd {
    fn name(&self) -> &'static str {
        "svd"
    }

    fn output_count(&self) -> usize {
        3
    }

    fn print_params(&self) -> String {
        format!("full_matrices={}", self.full)
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        let a = &args[0];
        let (m, n) = matrix("svd", a)?;
        let k = m.min(n);
        let (rows, columns) = if self.full { (m, n) } else { (k, k) };
        let values = with_last(&a.with_dtype(a.dtype.real()), &[k]);
        Ok(smallvec![with_last(a, &[m, rows]), values, with_last(a, &[columns, n])])
    }

    /// Approximates the reduction of each matrix to a bidiagonal matrix, with its vectors.
    fn flops(&self, args: &[Aval], _outs: &[Aval]) -> Flops {
        matrices(&args[0], |m, n| {
            let k = m.min(n);
            14.0 * m.max(n) * k * k + 8.0 * k * k * k
        })
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.batch_only(2)
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        let full = self.full;
        if outs[1].size() == 0 {
            return cx.expand(args, |_| {
                let s = Array::zeros_of(&outs[1].clone().strip_weak_type());
                Ok(vec![identity_or_zeros(&outs[0]), s, identity_or_zeros(&outs[2])])
            });
        }
        widened(cx, args, outs, |cx, args, _| {
            cx.expand(args, |a| {
                let a = &a[0];
                let (m, n) = (a.shape()[a.ndim() - 2], a.shape()[a.ndim() - 1]);
                Ok(if m >= n {
                    decompose_tall(a, full)?.into()
                } else {
                    let [u, s, vh] = decompose_tall(&adjoint(a), full)?;
                    vec![adjoint(&vh), s, adjoint(&u)]
                })
            })
        })
    }

    /// Differentiates by [Giles, An extended collection of matrix derivative
    /// results](https://people.maths.ox.ac.uk/gilesm/files/NA-08-01.pdf), 3.2, with the terms outside of the column
    /// spaces of `u` and `v` for matrices that are not square.
    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        let outs = self.apply(&args[0]);
        let Some(da) = &tangents[0] else { return Ok((outs, vec![None; 3])) };
        let (u, s, vh) = (&outs[0], &outs[1], &outs[2]);
        let (m, n) = (da.shape()[da.ndim() - 2], da.shape()[da.ndim() - 1]);
        if self.full && m != n {
            return Err(err!(
                NotImplemented,
                "Singular value decomposition JVP not implemented for full matrices that are not square"
            )
            .help("differentiate `svd`, which returns as many columns as there are singular values"));
        }
        let k = m.min(n);
        let (uh, v) = (adjoint(u), adjoint(vh));
        let inner = product(&product(&uh, da), &v);
        let ds = real(&inner.last_diagonal(0));
        let row = s.expand_dims(-2).astype(u.dtype());
        let column = s.expand_dims(-1).astype(u.dtype());
        let eye = eye_like(u, k);
        let is_diagonal = eye.broadcast_to(inner.shape()).equal(1);
        let gaps = where_(&is_diagonal, 1, (&row - &column) * (&row + &column)).astype(u.dtype());
        let f = where_(&is_diagonal, 0, 1 / gaps).astype(u.dtype());
        let (left, right) = (&inner * &row, &column * &inner);
        let zero = row.equal(0);
        let inverse = where_(&zero, 0, 1 / where_(&zero, 1, &row)).astype(u.dtype());
        // The phases of complex columns may change; `u` receives this part.
        let turn = where_(&is_diagonal, (&inner - adjoint(&inner)) * &inverse * 0.5, 0).astype(u.dtype());
        let mut du = product(u, &(&f * (&left + adjoint(&left)) + turn));
        let mut dv = product(&v, &(f * (&right + adjoint(&right))));
        if m > n {
            let dav = product(da, &v);
            du = du + (&dav - product(u, &product(&uh, &dav))) * &inverse;
        }
        if n > m {
            let dau = product(&adjoint(da), u);
            dv = dv + (&dau - product(&v, &product(vh, &dau))) * inverse;
        }
        Ok((outs, vec![Some(du), Some(ds), Some(adjoint(&dv))]))
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        Ok((self.apply(&batch_first(axis, args, dims)[0]), vec![Some(0); 3]))
    }
}
