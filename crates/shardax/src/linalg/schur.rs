//! Hessenberg and Schur forms, by Householder reflections and the shifted QR algorithm
//! ([Golub and Van Loan, Matrix Computations, 7.4 and 7.5](https://math.ecnu.edu.cn/~jypan/Teaching/books/2013%20Matrix%20Computations%204th.pdf)).
//!
//! They are loops of a program, so they run on every platform, also on those for which LAPACK does not exist.

use crate::core::array::Array;
use crate::core::function::Function;
use crate::dtype::{DType, Scalar};
use crate::error::Result;
use crate::ops::control_flow::{fori_loop, while_loop};
use crate::ops::lax;
use crate::ops::numpy::{complex, conj, convert, finfo, hypot, stack, where_};
use crate::ops::primitive::matrix::{adjoint, eye_like, product};
use crate::transform::vmap::vmap;

/// Applies `f` to each matrix of operands `[..., m, n]` of the same leading dimensions.
pub(crate) fn each_matrix(args: &[Array], f: impl Fn(&[Array]) -> Result<Vec<Array>>) -> Result<Vec<Array>> {
    let own = |x: &Array| x.shape()[x.ndim().saturating_sub(2)..].to_vec();
    let Some(first) = args.first().filter(|x| x.ndim() > 2) else { return f(args) };
    let lead = first.shape()[..first.ndim() - 2].to_vec();
    let count: usize = lead.iter().product();
    let flat: Vec<Array> = args.iter().map(|x| lax::reshape(x, &[vec![count], own(x)].concat())).collect();
    let outs = vmap(|args: Vec<Array>| f(&args)).call(flat)?;
    Ok(outs.iter().map(|y| lax::reshape(y, &[&lead, &y.shape()[1..]].concat())).collect())
}

/// The absolute value, real, and the number of modulus 1 with the direction of `x`, 1 for 0.
fn polar(x: &Array) -> (Array, Array) {
    let size = x.abs();
    let is_zero = size.equal(0);
    let phase = where_(&is_zero, 1, x / where_(&is_zero, 1, &size).astype(x.dtype()));
    (size, phase.astype(x.dtype()))
}

/// The reflection `1 - β v vᴴ` that takes a column `[r, 1]` to a multiple of the unit vector at `first`, a mask of its
/// shape: `v` and `β`.
fn reflection(x: &Array, first: &Array) -> (Array, Array) {
    let square = |x: &Array| x.abs().square().sum(..);
    let head = where_(first, x, 0).sum(..);
    let tail = square(&where_(first, 0, x));
    let (size, phase) = polar(&head);
    let norm = (size.square() + &tail).sqrt().astype(x.dtype());
    let v = x + where_(first, &phase * norm, 0);
    let length = square(&v);
    let is_trivial = tail.equal(0) | length.equal(0);
    let beta = where_(&is_trivial, 0, 2 / where_(&is_trivial, 1, &length));
    (v.astype(x.dtype()), beta.astype(x.dtype()))
}

/// `(1 - β v vᴴ) x`.
fn from_left(x: &Array, v: &Array, beta: &Array) -> Array {
    x - product(&(v * beta), &product(&adjoint(v), x))
}

/// `x (1 - β v vᴴ)`.
fn from_right(x: &Array, v: &Array, beta: &Array) -> Array {
    x - product(&product(x, v), &adjoint(&(v * beta)))
}

fn places(n: usize, dimension: usize) -> Array {
    let shape = if dimension == 0 { [n, 1] } else { [1, n] };
    lax::iota(DType::I32, &shape, dimension)
}

/// `x` with zeros below the diagonal of this offset.
fn upper(x: &Array, offset: i32) -> Array {
    let n = x.shape()[x.ndim() - 1];
    where_(places(n, 0).less_equal(places(n, 1) - offset), x, 0).astype(x.dtype())
}

/// The Hessenberg form of a matrix `[n, n]`, and the unitary matrix that it is turned by: `a = q h qᴴ`.
pub(crate) fn hessenberg(a: &Array) -> Result<(Array, Array)> {
    let n = a.shape()[0];
    if n < 3 {
        return Ok((a.clone(), eye_like(a, n)));
    }
    let rows = places(n, 0);
    let step = |j: Array, (h, q): (Array, Array)| {
        let below = rows.greater(&j);
        let x = where_(&below, lax::dynamic_slice_in_dim(&h, &j, 1, 1), 0).astype(h.dtype());
        let (v, beta) = reflection(&x, &rows.equal(&j + 1));
        let h = from_right(&from_left(&h, &v, &beta), &v, &beta);
        (h, from_right(&q, &v, &beta))
    };
    let (h, q) = fori_loop(0, n as i32 - 2, step, (a.clone(), eye_like(a, n)))?;
    Ok((upper(&h, -1), q))
}

/// An element of a matrix at traced places.
fn element(h: &Array, i: &Array, j: &Array) -> Array {
    lax::dynamic_slice(h, &[i.clone(), j.clone()], &[1, 1]).squeeze([0, 1])
}

/// The Schur form of a matrix `[n, n]`, and its unitary matrix: `a = z t zᴴ`. That of a real matrix has blocks of 2 × 2 on
/// its diagonal for conjugate eigenvalues, with equal elements on their diagonals; that of a complex one is triangular.
pub(crate) fn schur(a: &Array) -> Result<(Array, Array)> {
    let n = a.shape()[0];
    let (h, z) = hessenberg(a)?;
    if n < 2 {
        return Ok((h, z));
    }
    let is_complex = a.dtype().is_complex();
    let width = if is_complex { 2 } else { 3 };
    let eps = finfo(a.dtype().real())?.eps;
    let index = lax::iota(DType::I32, &[n], 0);
    let limit = 30 * n.max(10) as i32;

    // Whether the element left of each diagonal element counts; 0 replaces those that do not.
    let counts = |h: &Array| {
        let d = h.diagonal(0, 0, 1).abs();
        let sub = lax::slice_in_dim(h, 1, n, 0).diagonal(0, 0, 1).abs();
        let near = lax::slice_in_dim(&d, 0, n - 1, 0) + lax::slice_in_dim(&d, 1, n, 0);
        let near = where_(near.equal(0), d.max(..), near);
        let zero = Array::literal(Scalar::Int(0), DType::I32, false);
        lax::pad(&convert(&sub.greater(near * eps), DType::I32, false), &zero, &[(1, 0, 0)]).greater(0)
    };
    let clean = |h: &Array, counts: &Array| {
        let below = places(n, 0).equal(places(n, 1) + 1) & counts.logical_not().expand_dims(1);
        where_(below, 0, h).astype(h.dtype())
    };
    // The last row of a block that is not done yet, or 0.
    let end = |counts: &Array| {
        let before = |x: &Array| {
            let zero = Array::literal(Scalar::Int(0), DType::I32, false);
            lax::slice_in_dim(&lax::pad(&convert(x, DType::I32, false), &zero, &[(1, 0, 0)]), 0, n, 0).greater(0)
        };
        let undone = if is_complex { counts.clone() } else { counts & before(counts) };
        where_(undone, &index, 0).max(..)
    };

    type State = (Array, Array, Array, Array, Array);
    let going = |(.., k, _, total): State| k.greater(0) & total.less(limit);
    let step = |(h, z, k, tries, total): State| -> Result<State> {
        let active = counts(&h);
        let start = where_(index.less(&k) & active.logical_not(), &index, 0).max(..);
        let first = first_column(&h, &start, &k, &tries, is_complex);
        let chase = |m: Array, (h, z): (Array, Array)| {
            // The rows after the last are zeros, so that every reflection has the same width.
            let padded = |x: &Array, dim: usize| {
                let zero = Array::literal(Scalar::Int(0), x.dtype(), false);
                let mut widths = [(0, 0, 0); 2];
                widths[dim] = (0, 1, 0);
                lax::pad(x, &zero, &widths)
            };
            let before = (&m - 1).maximum(0);
            let column = lax::dynamic_slice(&padded(&h, 0), &[m.clone(), before], &[width, 1]);
            let x = where_(m.equal(&start), &first, column);
            let inside = (places(width, 0) + &m).less_equal(&k);
            let x = where_(inside, x, 0).astype(h.dtype());
            let (v, beta) = reflection(&x, &places(width, 0).equal(0));
            let rows = lax::dynamic_slice_in_dim(&padded(&h, 0), &m, width, 0);
            let h = lax::dynamic_update_slice_in_dim(&padded(&h, 0), &from_left(&rows, &v, &beta), &m, 0);
            let h = padded(&lax::slice_in_dim(&h, 0, n, 0), 1);
            let right = |x: &Array| {
                let columns = lax::dynamic_slice_in_dim(x, &m, width, 1);
                let x = lax::dynamic_update_slice_in_dim(x, &from_right(&columns, &v, &beta), &m, 1);
                lax::slice_in_dim(&x, 0, n, 1)
            };
            (right(&h), right(&padded(&z, 1)))
        };
        let (h, z) = fori_loop(&start, &k, chase, (h, z))?;
        let h = upper(&h, -1);
        let active = counts(&h);
        let (h, next) = (clean(&h, &active), end(&active));
        let tries = where_(next.equal(&k), tries + 1, 0);
        Ok((h, z, next, tries, total + 1))
    };
    let active = counts(&h);
    let state = (clean(&h, &active), z, end(&active), Array::from(0i32), Array::from(0i32));
    let (t, z, k, ..) = while_loop(going, step, state)?;
    let failed = k.greater(0);
    let t = where_(&failed, f64::NAN, t).astype(a.dtype());
    match is_complex {
        true => Ok((upper(&t, 0), z)),
        false => standard_blocks(t, z),
    }
}

/// The first column, `[r, 1]`, of the shifted matrix whose factorization is a step: `h - μ`, or `h² - s h + t` with the
/// sum and the product of two shifts, which are those of the last rows.
fn first_column(h: &Array, l: &Array, k: &Array, tries: &Array, is_complex: bool) -> Array {
    let at = |i: &Array, di: i32, j: &Array, dj: i32| element(h, &(i + di), &(j + dj));
    let (a, b, c, d) = (at(k, -1, k, -1), at(k, -1, k, 0), at(k, 0, k, -1), at(k, 0, k, 0));
    // Where the usual shifts go round in circles, others break out.
    let odd = (tries % 10).equal(9);
    let (h00, h10) = (at(l, 0, l, 0), at(l, 1, l, 0));
    let column = if is_complex {
        let p = (&a - &d) / 2;
        let root = (p.square() + &b * &c).sqrt();
        let sum = where_(((conj(&p) * &root).real()).less(0), &p - &root, &p + &root);
        let is_zero = sum.equal(0);
        let mu = &d - where_(&is_zero, 0, &b * &c / where_(&is_zero, 1, sum));
        let mu = where_(odd, &d + c.abs().astype(h.dtype()), mu);
        vec![h00 - mu, h10]
    } else {
        let before = at(k, -1, &(k - 2).maximum(0), 0);
        let size = c.abs() + before.abs();
        let s = where_(&odd, &size * 1.5, &a + &d);
        let t = where_(&odd, size.square(), &a * &d - &b * &c);
        let (h01, h11, h21) = (at(l, 0, l, 1), at(l, 1, l, 1), at(&(l + 2), 0, l, 1));
        let x = &h00 * (&h00 - &s) + &h01 * &h10 + t;
        vec![x, &h10 * (h00 + h11 - s), h10 * h21]
    };
    stack(&column, 0).expand_dims(1)
}

/// Turns each block of 2 × 2 so that its diagonal elements are equal, or its eigenvalues, if they are real, are on it.
fn standard_blocks(t: Array, z: Array) -> Result<(Array, Array)> {
    let n = t.shape()[0];
    let turn = |i: Array, (t, z): (Array, Array)| {
        let block = lax::dynamic_slice(&t, &[i.clone(), i.clone()], &[2, 2]);
        let part = |r: i32, c: i32| block.get((r, c));
        let (a, b, c, d) = (part(0, 0), part(0, 1), part(1, 0), part(1, 1));
        let p = (&a - &d) / 2;
        let square = p.square() + &b * &c;
        let root = square.maximum(0).sqrt();
        let z_real = &p + where_(p.less(0), -&root, root);
        let length = hypot(&z_real, &c);
        let sum = &b + &c;
        let wide = hypot(&sum, &p * 2);
        let divided = |x: &Array, by: &Array| x / where_(by.equal(0), 1, by);
        let cosine = ((divided(&sum.abs(), &wide) + 1) / 2).sqrt();
        let sine = -divided(&p, &(&wide * &cosine)) * where_(sum.less(0), -1, 1);
        let is_real = square.greater_equal(0);
        let is_equal = a.equal(&d);
        let cos = where_(&is_real, divided(&z_real, &length), where_(&is_equal, 1, cosine));
        let sin = where_(&is_real, divided(&c, &length), where_(&is_equal, 0, sine));
        // A block of zeros and one that is triangular stay.
        let stays = c.equal(0);
        let cos = where_(&stays, 1, cos).astype(t.dtype());
        let sin = where_(&stays, 0, sin).astype(t.dtype());
        let g = stack(&[cos.clone(), -&sin, sin, cos], 0).reshape([2, 2]);
        let rows = product(&g.t(), &lax::dynamic_slice_in_dim(&t, &i, 2, 0));
        let t = lax::dynamic_update_slice_in_dim(&t, &rows, &i, 0);
        let right = |x: &Array| {
            let columns = product(&lax::dynamic_slice_in_dim(x, &i, 2, 1), &g);
            lax::dynamic_update_slice_in_dim(x, &columns, &i, 1)
        };
        let t = right(&t);
        let lower = places(n, 0).equal(&i + 1) & places(n, 1).equal(&i);
        let t = where_(lower & (&stays | &is_real), 0, &t).astype(t.dtype());
        // Equal to the last bit, so that the eigenvalues are conjugate.
        let mean = (element(&t, &i, &i) + element(&t, &(&i + 1), &(&i + 1))) / 2;
        let pair = places(n, 0).equal(places(n, 1)) & (places(n, 0).equal(&i) | places(n, 0).equal(&i + 1));
        let t = where_(pair & !(stays | is_real), mean, &t).astype(t.dtype());
        (t, right(&z))
    };
    fori_loop(0, n as i32 - 1, turn, (t, z))
}

/// The eigenvalues of a standard real Schur form, complex: conjugate pairs, the one with positive imaginary part first.
pub(crate) fn block_eigenvalues(t: &Array) -> Array {
    let n = t.shape()[0];
    let d = t.diagonal(0, 0, 1);
    let zero = Array::literal(Scalar::Int(0), t.dtype(), false);
    let product = match n {
        0 | 1 => d.clone() * 0,
        _ => {
            let sub = lax::slice_in_dim(t, 1, n, 0).diagonal(0, 0, 1);
            let sup = lax::slice_in_dim(t, 0, n - 1, 0).diagonal(1, 0, 1);
            let size = where_(sub.equal(0), 0, (sub.abs().sqrt() * sup.abs().sqrt()).astype(t.dtype()));
            lax::pad(&size, &zero, &[(0, 1, 0)]) - lax::pad(&size, &zero, &[(1, 0, 0)])
        }
    };
    complex(d, product)
}

/// The complex Schur form of a real one, by a rotation for each block
/// ([Golub and Van Loan, 7.4.2](https://math.ecnu.edu.cn/~jypan/Teaching/books/2013%20Matrix%20Computations%204th.pdf)).
pub(crate) fn triangular_of_real(t: &Array, z: &Array) -> Result<(Array, Array)> {
    let n = t.shape()[0];
    let values = block_eigenvalues(t);
    let dtype = values.dtype();
    if n < 2 {
        return Ok((t.astype(dtype), z.astype(dtype)));
    }
    let turn = |step: Array, (t, z): (Array, Array)| {
        let i = (n as i32 - 2) - step;
        let c = element(&t, &(&i + 1), &i);
        let mu = values.take(&i, 0) - element(&t, &(&i + 1), &(&i + 1));
        let length = (mu.abs().square() + c.abs().square()).sqrt();
        let is_zero = c.equal(0);
        let by = where_(&is_zero, 1, length).astype(dtype);
        let cos = where_(&is_zero, 1, mu / &by).astype(dtype);
        let sin = where_(&is_zero, 0, c / by).astype(dtype);
        let g = stack(&[conj(&cos), sin.clone(), -sin, cos], 0).reshape([2, 2]);
        let rows = product(&g, &lax::dynamic_slice_in_dim(&t, &i, 2, 0));
        let t = lax::dynamic_update_slice_in_dim(&t, &rows, &i, 0);
        let right = |x: &Array| {
            let columns = product(&lax::dynamic_slice_in_dim(x, &i, 2, 1), &adjoint(&g));
            lax::dynamic_update_slice_in_dim(x, &columns, &i, 1)
        };
        (right(&t), right(&z))
    };
    let start = (t.astype(dtype), z.astype(dtype));
    let (t, z) = fori_loop(0, n as i32 - 1, turn, start)?;
    Ok((upper(&t, 0), z))
}

/// The eigenvectors of a triangular matrix with these eigenvalues, by substitution from below: columns, not scaled.
pub(crate) fn triangular_eigenvectors(t: &Array, values: &Array) -> Result<Array> {
    let n = t.shape()[0];
    if n == 0 {
        return Ok(t.clone());
    }
    let smallest = t.abs().max(..) * finfo(t.dtype().real())?.eps;
    let columns = places(n, 1);
    let step = |s: Array, x: Array| {
        let i = (n as i32 - 1) - s;
        let row = lax::dynamic_slice_in_dim(t, &i, 1, 0);
        let after = where_(columns.greater(&i), &row, 0).astype(t.dtype());
        let gap = element(t, &i, &i) - values.expand_dims(0);
        let gap = where_(gap.abs().less(&smallest), &smallest, gap).astype(t.dtype());
        let gap = where_(gap.equal(0), 1, gap).astype(t.dtype());
        let own = where_(columns.equal(&i), 1, 0).astype(t.dtype());
        let new = where_(columns.greater(&i), -product(&after, &x) / gap, own).astype(t.dtype());
        lax::dynamic_update_slice_in_dim(&x, &new, &i, 0)
    };
    fori_loop(0, n as i32, step, eye_like(t, n))
}
