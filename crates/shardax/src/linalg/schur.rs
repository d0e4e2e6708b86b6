//! Hessenberg and Schur forms, by Householder reflections and the shifted QR algorithm
//! ([Golub and Van Loan, Matrix Computations, 7.4 and 7.5](https://math.ecnu.edu.cn/~jypan/Teaching/books/2013%20Matrix%20Computations%204th.pdf)).
//!
//! The algorithms are loops of a program, so that they also run on platforms without LAPACK.

use crate::core::array::Array;
use crate::core::function::Function;
use crate::dtype::{DType, Scalar};
use crate::error::Result;
use crate::ops::control_flow::{fori_loop, while_loop};
use crate::ops::lax;
use crate::ops::numpy::{complex, conj, convert, finfo, hypot, stack, where_};
use crate::ops::primitive::matrix::{adjoint, eye_like, product};
use crate::transform::vmap::vmap;

/// Applies `f` to each matrix of operands `[..., m, n]` that have the same leading dimensions.
pub(crate) fn each_matrix(args: &[Array], f: impl Fn(&[Array]) -> Result<Vec<Array>>) -> Result<Vec<Array>> {
    let Some(batched) = args.first().filter(|x| x.ndim() > 2) else { return f(args) };
    let batch = batched.shape()[..batched.ndim() - 2].to_vec();
    let count: usize = batch.iter().product();
    let flat = args.iter().map(|x| {
        let matrix = &x.shape()[x.ndim().saturating_sub(2)..];
        lax::reshape(x, &[&[count], matrix].concat())
    });
    let outs = vmap(|args: Vec<Array>| f(&args)).call(flat.collect::<Vec<_>>())?;
    Ok(outs.iter().map(|y| lax::reshape(y, &[&batch, &y.shape()[1..]].concat())).collect())
}

/// Returns the absolute value, and the number of modulus 1 with the direction of `x`, or 1 if `x` is 0.
fn polar(x: &Array) -> (Array, Array) {
    let size = x.abs();
    let is_zero = size.equal(0);
    let phase = where_(&is_zero, 1, x / where_(&is_zero, 1, &size).astype(x.dtype()));
    (size, phase.astype(x.dtype()))
}

/// Returns `v` and `β` of the reflection `1 - β v vᴴ` that maps a column `[r, 1]` to a multiple of a unit vector. `pivot` is
/// a mask of the column's shape that marks the element to keep.
fn reflection(x: &Array, pivot: &Array) -> (Array, Array) {
    let head = where_(pivot, x, 0).sum(..);
    let tail = squared_length(&where_(pivot, 0, x));
    let (size, phase) = polar(&head);
    let norm = (size.square() + &tail).sqrt().astype(x.dtype());
    let v = x + where_(pivot, &phase * norm, 0);
    let length = squared_length(&v);
    let is_trivial = tail.equal(0) | length.equal(0);
    let beta = where_(&is_trivial, 0, 2 / where_(&is_trivial, 1, &length));
    (v.astype(x.dtype()), beta.astype(x.dtype()))
}

/// Returns the sum of the squared absolute values.
pub(super) fn squared_length(x: &Array) -> Array {
    x.abs().square().sum(..)
}

/// Applies a reflection from the left: `(1 - β v vᴴ) x`.
fn reflect_rows(x: &Array, v: &Array, beta: &Array) -> Array {
    x - product(&(v * beta), &product(&adjoint(v), x))
}

/// Applies a reflection from the right: `x (1 - β v vᴴ)`.
fn reflect_columns(x: &Array, v: &Array, beta: &Array) -> Array {
    x - product(&product(x, v), &adjoint(&(v * beta)))
}

/// Returns the numbers `0..n` as a column (`dimension` 0) or as a row (`dimension` 1).
pub(super) fn indices(n: usize, dimension: usize) -> Array {
    let shape = if dimension == 0 { [n, 1] } else { [1, n] };
    lax::iota(DType::I32, &shape, dimension)
}

/// Sets the elements below the diagonal of this offset to zero.
fn upper(x: &Array, offset: i32) -> Array {
    let n = x.shape()[x.ndim() - 1];
    where_(indices(n, 0).less_equal(indices(n, 1) - offset), x, 0).astype(x.dtype())
}

/// Returns the Hessenberg form `h` of a matrix `[n, n]`, and the unitary matrix `q` with `a = q h qᴴ`.
pub(crate) fn hessenberg(a: &Array) -> Result<(Array, Array)> {
    let n = a.shape()[0];
    if n < 3 {
        return Ok((a.clone(), eye_like(a, n)));
    }
    let rows = indices(n, 0);
    let (h, q) = fori_loop(
        0,
        n as i32 - 2,
        |j: Array, (h, q): (Array, Array)| {
            let below = rows.greater(&j);
            let x = where_(&below, lax::dynamic_slice_in_dim(&h, &j, 1, 1), 0).astype(h.dtype());
            let (v, beta) = reflection(&x, &rows.equal(&j + 1));
            let h = reflect_columns(&reflect_rows(&h, &v, &beta), &v, &beta);
            (h, reflect_columns(&q, &v, &beta))
        },
        (a.clone(), eye_like(a, n)),
    )?;
    Ok((upper(&h, -1), q))
}

/// Returns the element of a matrix at traced indices.
fn element(h: &Array, i: &Array, j: &Array) -> Array {
    lax::dynamic_slice(h, &[i.clone(), j.clone()], &[1, 1]).squeeze([0, 1])
}

/// Returns the Schur form `t` of a matrix `[n, n]`, and the unitary matrix `z` with `a = z t zᴴ`. The form of a complex matrix
/// is triangular. The form of a real matrix has a block of 2 × 2 for each pair of conjugate eigenvalues, whose diagonal
/// elements are equal. If the iteration does not converge, the form is NaN.
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

    /// The matrices `h` and `z`, the last row of the current block, the steps spent on this block, and all steps.
    type State = (Array, Array, Array, Array, Array);
    // Blocks are finished from the bottom. When the last unfinished block ends at row 0, the form is complete.
    let is_unfinished = |(.., k, _, total): State| k.greater(0) & total.less(limit);
    let step = |(h, z, k, tries, total): State| -> Result<State> {
        let coupled = coupled_rows(&h, eps);
        let start = where_(index.less(&k) & coupled.logical_not(), &index, 0).max(..);
        let shifted_column = first_column(&h, &start, &k, &tries, is_complex);
        // The first reflection makes a bulge below the subdiagonal; the others chase it down and out of the block.
        let chase = |m: Array, (h, z): (Array, Array)| {
            // A row and a column of zeros are added at the end, so that every reflection has the same width.
            let previous = (&m - 1).maximum(0);
            let column = lax::dynamic_slice(&padded(&h, 0), &[m.clone(), previous], &[width, 1]);
            let x = where_(m.equal(&start), &shifted_column, column);
            let is_in_block = (indices(width, 0) + &m).less_equal(&k);
            let x = where_(is_in_block, x, 0).astype(h.dtype());
            let (v, beta) = reflection(&x, &indices(width, 0).equal(0));
            let rows = lax::dynamic_slice_in_dim(&padded(&h, 0), &m, width, 0);
            let h = lax::dynamic_update_slice_in_dim(&padded(&h, 0), &reflect_rows(&rows, &v, &beta), &m, 0);
            let h = padded(&lax::slice_in_dim(&h, 0, n, 0), 1);
            let [h, z] = [h, padded(&z, 1)].map(|x| {
                let columns = lax::dynamic_slice_in_dim(&x, &m, width, 1);
                let x = lax::dynamic_update_slice_in_dim(&x, &reflect_columns(&columns, &v, &beta), &m, 1);
                lax::slice_in_dim(&x, 0, n, 1)
            });
            (h, z)
        };
        let (h, z) = fori_loop(&start, &k, chase, (h, z))?;
        let h = upper(&h, -1);
        let coupled = coupled_rows(&h, eps);
        let (h, end) = (decouple(&h, &coupled), last_unfinished_row(&coupled, &index, is_complex));
        let tries = where_(end.equal(&k), tries + 1, 0);
        Ok((h, z, end, tries, total + 1))
    };
    let coupled = coupled_rows(&h, eps);
    let (h, end) = (decouple(&h, &coupled), last_unfinished_row(&coupled, &index, is_complex));
    let (t, z, k, ..) = while_loop(is_unfinished, step, (h, z, end, Array::from(0i32), Array::from(0i32)))?;
    let failed = k.greater(0);
    let t = where_(&failed, f64::NAN, t).astype(a.dtype());
    if is_complex { Ok((upper(&t, 0), z)) } else { standard_blocks(t, z) }
}

/// Returns `true` for each row of a Hessenberg matrix that is coupled to the row before it: the element left of the diagonal
/// is not negligible compared with the diagonal elements next to it.
fn coupled_rows(h: &Array, eps: f64) -> Array {
    let n = h.shape()[0];
    let d = h.diagonal(0, 0, 1).abs();
    let sub = lax::slice_in_dim(h, 1, n, 0).diagonal(0, 0, 1).abs();
    let scale = lax::slice_in_dim(&d, 0, n - 1, 0) + lax::slice_in_dim(&d, 1, n, 0);
    let scale = where_(scale.equal(0), d.max(..), scale);
    let zero = Array::literal(Scalar::Int(0), DType::I32, false);
    lax::pad(&convert(&sub.greater(scale * eps), DType::I32, false), &zero, &[(1, 0, 0)]).greater(0)
}

/// Replaces the negligible elements left of the diagonal by 0.
fn decouple(h: &Array, coupled: &Array) -> Array {
    let n = h.shape()[0];
    let negligible = indices(n, 0).equal(indices(n, 1) + 1) & coupled.logical_not().expand_dims(1);
    where_(negligible, 0, h).astype(h.dtype())
}

/// Returns the last row of the last block that is not finished, or 0. A finished block of a complex matrix has one row; a
/// finished block of a real matrix has one or two.
fn last_unfinished_row(coupled: &Array, index: &Array, is_complex: bool) -> Array {
    let unfinished = if is_complex {
        coupled.clone()
    } else {
        let zero = Array::literal(Scalar::Int(0), DType::I32, false);
        let previous = lax::pad(&convert(coupled, DType::I32, false), &zero, &[(1, 0, 0)]);
        coupled & lax::slice_in_dim(&previous, 0, coupled.shape()[0], 0).greater(0)
    };
    where_(unfinished, index, 0).max(..)
}

/// Adds a row (`dim` 0) or a column (`dim` 1) of zeros at the end.
fn padded(x: &Array, dim: usize) -> Array {
    let zero = Array::literal(Scalar::Int(0), x.dtype(), false);
    let mut widths = [(0, 0, 0); 2];
    widths[dim] = (0, 1, 0);
    lax::pad(x, &zero, &widths)
}

/// Returns the first column, `[r, 1]`, of the shifted matrix that the step factorizes. With one shift this is `h - μ`. With
/// two it is `h² - s h + t`, where `s` and `t` are the sum and the product of the shifts. The shifts come from the last rows
/// of the block.
fn first_column(h: &Array, l: &Array, k: &Array, tries: &Array, is_complex: bool) -> Array {
    let [above, next] = [k - 1, l + 1];
    let (a, b, c, d) = (element(h, &above, &above), element(h, &above, k), element(h, k, &above), element(h, k, k));
    // The usual shifts can repeat forever, so every tenth step of a block uses exceptional shifts.
    let is_exceptional = (tries % 10).equal(9);
    let (h00, h10) = (element(h, l, l), element(h, &next, l));
    let column = if is_complex {
        let p = (&a - &d) / 2;
        let root = (p.square() + &b * &c).sqrt();
        let sum = where_(((conj(&p) * &root).real()).less(0), &p - &root, &p + &root);
        let is_zero = sum.equal(0);
        let mu = &d - where_(&is_zero, 0, &b * &c / where_(&is_zero, 1, sum));
        let mu = where_(is_exceptional, &d + c.abs().astype(h.dtype()), mu);
        vec![h00 - mu, h10]
    } else {
        let previous_sub = element(h, &above, &(k - 2).maximum(0));
        let size = c.abs() + previous_sub.abs();
        let s = where_(&is_exceptional, &size * 1.5, &a + &d);
        let t = where_(&is_exceptional, size.square(), &a * &d - &b * &c);
        let (h01, h11, h21) = (element(h, l, &next), element(h, &next, &next), element(h, &(l + 2), &next));
        let x = &h00 * (&h00 - &s) + &h01 * &h10 + t;
        vec![x, &h10 * (h00 + h11 - s), h10 * h21]
    };
    stack(&column, 0).expand_dims(1)
}

/// Rotates each block of 2 × 2. Real eigenvalues then are on the diagonal, and for conjugate eigenvalues the diagonal elements
/// are equal.
fn standard_blocks(t: Array, z: Array) -> Result<(Array, Array)> {
    let n = t.shape()[0];
    let rotate = |i: Array, (t, z): (Array, Array)| {
        let block = lax::dynamic_slice(&t, &[i.clone(), i.clone()], &[2, 2]);
        let (a, b, c, d) = (block.get((0, 0)), block.get((0, 1)), block.get((1, 0)), block.get((1, 1)));
        let p = (&a - &d) / 2;
        let square = p.square() + &b * &c;
        let root = square.maximum(0).sqrt();
        let z_real = &p + where_(p.less(0), -&root, root);
        let length = hypot(&z_real, &c);
        let sum = &b + &c;
        let hypotenuse = hypot(&sum, &p * 2);
        let cosine = ((safe_div(&sum.abs(), &hypotenuse) + 1) / 2).sqrt();
        let sine = -safe_div(&p, &(&hypotenuse * &cosine)) * where_(sum.less(0), -1, 1);
        let is_real = square.greater_equal(0);
        let is_equal = a.equal(&d);
        let cos = where_(&is_real, safe_div(&z_real, &length), where_(&is_equal, 1, cosine));
        let sin = where_(&is_real, safe_div(&c, &length), where_(&is_equal, 0, sine));
        // A triangular block needs no rotation.
        let is_triangular = c.equal(0);
        let cos = where_(&is_triangular, 1, cos).astype(t.dtype());
        let sin = where_(&is_triangular, 0, sin).astype(t.dtype());
        let g = stack(&[cos.clone(), -&sin, sin, cos], 0).reshape([2, 2]);
        let rows = product(&g.t(), &lax::dynamic_slice_in_dim(&t, &i, 2, 0));
        let t = lax::dynamic_update_slice_in_dim(&t, &rows, &i, 0);
        let t = rotate_columns(&t, &i, &g);
        let below_diagonal = indices(n, 0).equal(&i + 1) & indices(n, 1).equal(&i);
        let t = where_(below_diagonal & (&is_triangular | &is_real), 0, &t).astype(t.dtype());
        // The diagonal elements must be equal to the last bit, so that the eigenvalues are conjugate.
        let mean = (element(&t, &i, &i) + element(&t, &(&i + 1), &(&i + 1))) / 2;
        let on_diagonal = indices(n, 0).equal(indices(n, 1)) & (indices(n, 0).equal(&i) | indices(n, 0).equal(&i + 1));
        let t = where_(on_diagonal & !(is_triangular | is_real), mean, &t).astype(t.dtype());
        (t, rotate_columns(&z, &i, &g))
    };
    fori_loop(0, n as i32 - 1, rotate, (t, z))
}

/// Divides by `y`, or by 1 where `y` is 0.
fn safe_div(x: &Array, y: &Array) -> Array {
    x / where_(y.equal(0), 1, y)
}

/// Multiplies the columns `i` and `i + 1` by a matrix of 2 × 2 from the right.
fn rotate_columns(x: &Array, i: &Array, g: &Array) -> Array {
    let columns = product(&lax::dynamic_slice_in_dim(x, i, 2, 1), g);
    lax::dynamic_update_slice_in_dim(x, &columns, i, 1)
}

/// Returns the complex eigenvalues of a standard real Schur form. In a conjugate pair, the eigenvalue with positive imaginary
/// part comes first.
pub(crate) fn block_eigenvalues(t: &Array) -> Array {
    let n = t.shape()[0];
    let d = t.diagonal(0, 0, 1);
    let zero = Array::literal(Scalar::Int(0), t.dtype(), false);
    let imaginary = match n {
        0 | 1 => d.clone() * 0,
        _ => {
            let sub = lax::slice_in_dim(t, 1, n, 0).diagonal(0, 0, 1);
            let sup = lax::slice_in_dim(t, 0, n - 1, 0).diagonal(1, 0, 1);
            let size = where_(sub.equal(0), 0, (sub.abs().sqrt() * sup.abs().sqrt()).astype(t.dtype()));
            lax::pad(&size, &zero, &[(0, 1, 0)]) - lax::pad(&size, &zero, &[(1, 0, 0)])
        }
    };
    complex(d, imaginary)
}

/// Converts a real Schur form to a complex one, by a rotation of each block
/// ([Golub and Van Loan, 7.4.2](https://math.ecnu.edu.cn/~jypan/Teaching/books/2013%20Matrix%20Computations%204th.pdf)).
pub(crate) fn triangular_of_real(t: &Array, z: &Array) -> Result<(Array, Array)> {
    let n = t.shape()[0];
    let values = block_eigenvalues(t);
    let dtype = values.dtype();
    if n < 2 {
        return Ok((t.astype(dtype), z.astype(dtype)));
    }
    let rotate = |step: Array, (t, z): (Array, Array)| {
        let i = (n as i32 - 2) - step;
        // The rotation that makes the block triangular, from an eigenvector of it.
        let c = element(&t, &(&i + 1), &i);
        let mu = values.take(&i, 0) - element(&t, &(&i + 1), &(&i + 1));
        let length = (mu.abs().square() + c.abs().square()).sqrt();
        let is_zero = c.equal(0);
        let divisor = where_(&is_zero, 1, length).astype(dtype);
        let cos = where_(&is_zero, 1, mu / &divisor).astype(dtype);
        let sin = where_(&is_zero, 0, c / divisor).astype(dtype);
        let g = stack(&[conj(&cos), sin.clone(), -sin, cos], 0).reshape([2, 2]);
        let rows = product(&g, &lax::dynamic_slice_in_dim(&t, &i, 2, 0));
        let t = lax::dynamic_update_slice_in_dim(&t, &rows, &i, 0);
        let [t, z] = [t, z].map(|x| {
            let columns = product(&lax::dynamic_slice_in_dim(&x, &i, 2, 1), &adjoint(&g));
            lax::dynamic_update_slice_in_dim(&x, &columns, &i, 1)
        });
        (t, z)
    };
    let start = (t.astype(dtype), z.astype(dtype));
    let (t, z) = fori_loop(0, n as i32 - 1, rotate, start)?;
    Ok((upper(&t, 0), z))
}

/// Returns the eigenvectors of a triangular matrix with these eigenvalues as columns that are not normalized. They are
/// computed by substitution, from the last row up.
pub(crate) fn triangular_eigenvectors(t: &Array, values: &Array) -> Result<Array> {
    let n = t.shape()[0];
    if n == 0 {
        return Ok(t.clone());
    }
    let smallest = t.abs().max(..) * finfo(t.dtype().real())?.eps;
    let columns = indices(n, 1);
    fori_loop(
        0,
        n as i32,
        |s: Array, x: Array| {
            let i = (n as i32 - 1) - s;
            let row = lax::dynamic_slice_in_dim(t, &i, 1, 0);
            let right_of_diagonal = where_(columns.greater(&i), &row, 0).astype(t.dtype());
            // Equal eigenvalues would divide by 0.
            let gap = element(t, &i, &i) - values.expand_dims(0);
            let gap = where_(gap.abs().less(&smallest), &smallest, gap).astype(t.dtype());
            let gap = where_(gap.equal(0), 1, gap).astype(t.dtype());
            let diagonal = where_(columns.equal(&i), 1, 0).astype(t.dtype());
            let solved = -product(&right_of_diagonal, &x) / gap;
            let row = where_(columns.greater(&i), solved, diagonal).astype(t.dtype());
            lax::dynamic_update_slice_in_dim(&x, &row, &i, 0)
        },
        eye_like(t, n),
    )
}
