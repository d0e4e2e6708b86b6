//! Shared helpers of linear algebra primitives, which work on the matrices in the last two dimensions, batched over
//! the leading ones.

use std::ops::Range;

use super::elementwise_rules::Accepts;
use super::unary::conj;
use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::BatchAxis;
use crate::core::program::{Aval, Flops};
use crate::dtype::DType;
use crate::error::{Result, err};
use crate::ops::constants::eye_offset_dtype;
use crate::ops::lax;
use crate::ops::promotion::convert;
use crate::precision::Precision;
use crate::shape::Shape;

/// The rows and columns of matrices in a dtype that has decompositions.
pub(crate) fn matrix(name: &str, aval: &Aval) -> Result<(usize, usize)> {
    Accepts::Decomposable.check(name, aval.dtype)?;
    dims(name, aval)
}

fn dims(name: &str, aval: &Aval) -> Result<(usize, usize)> {
    match aval.shape[..] {
        [.., m, n] => Ok((m, n)),
        _ => Err(err!(Value, "{name} needs an array of at least two dimensions, got {aval}")
            .help("the matrices are in the last two dimensions; make them with `reshape` or `expand_dims`")),
    }
}

/// Counts the operations on all matrices of an operand. `one` returns the count for one matrix of this many rows and columns.
pub(super) fn matrices(aval: &Aval, one: fn(f64, f64) -> f64) -> Flops {
    let [.., m, n] = aval.shape[..] else { return Flops::default() };
    let count = aval.size() as f64 / (m * n).max(1) as f64;
    Flops::from_matmuls(count * one(m as f64, n as f64) * super::dot::parts(aval.dtype))
}

/// The size of square matrices in a dtype that has decompositions.
pub(crate) fn square(name: &str, aval: &Aval) -> Result<usize> {
    Accepts::Decomposable.check(name, aval.dtype)?;
    square_of_any(name, aval)
}

/// The size of square matrices of floating point or complex numbers, half precision included.
pub(crate) fn square_of_inexact(name: &str, aval: &Aval) -> Result<usize> {
    Accepts::Inexact.check(name, aval.dtype)?;
    square_of_any(name, aval)
}

/// The size of square matrices of any dtype.
pub(crate) fn square_of_any(name: &str, aval: &Aval) -> Result<usize> {
    let (m, n) = dims(name, aval)?;
    if m == n {
        return Ok(n);
    }
    Err(err!(Value, "{name} needs square matrices in the last two dimensions, got {aval}, where {m} is not {n}")
        .help("the matrices are in the last two dimensions; for others than square ones use `qr`"))
}

/// The type of results with these dimensions in place of the matrix.
pub(crate) fn with_last(aval: &Aval, dims: &[usize]) -> Aval {
    let mut shape: Shape = aval.shape[..aval.rank() - 2].into();
    shape.extend_from_slice(dims);
    aval.with_shape(shape)
}

/// Moves the batch of the operands to the first dimension.
pub(crate) fn batch_first(axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Vec<Array> {
    args.iter().zip(dims).map(|(x, d)| axis.moved(x, *d, 0)).collect()
}

/// Returns `true` for floating-point numbers of fewer than 32 bits, which matrices are not decomposed in.
pub(crate) fn is_half(dtype: DType) -> bool {
    dtype.is_float() && dtype.bits() < 32
}

/// Lowers with half precision widened to float32, and rounded once.
pub(crate) fn widened(
    cx: &mut Lowering,
    args: &[Value],
    outs: &[Aval],
    lower: impl FnOnce(&mut Lowering, &[Value], &[Aval]) -> Result<Vec<Value>>,
) -> Result<Vec<Value>> {
    let args: Vec<Value> =
        args.iter().map(|&v| if is_half(cx.dtype(v)) { converted(cx, v, DType::F32) } else { v }).collect();
    let wide: Vec<Aval> =
        outs.iter().map(|out| if is_half(out.dtype) { out.with_dtype(DType::F32) } else { out.clone() }).collect();
    let results = lower(cx, &args, &wide)?;
    Ok(results
        .into_iter()
        .zip(outs)
        .map(|(v, out)| if is_half(out.dtype) { converted(cx, v, out.dtype) } else { v })
        .collect())
}

fn converted(cx: &mut Lowering, v: Value, dtype: DType) -> Value {
    let aval = cx.aval(v).with_dtype(dtype);
    cx.op("stablehlo.convert", &[v], "", &aval)
}

/// The conjugate transpose.
pub(crate) fn adjoint(x: &Array) -> Array {
    conj(&x.mt())
}

/// The rows `r` and columns `c` of matrices.
pub(crate) fn part(x: &Array, r: Range<usize>, c: Range<usize>) -> Array {
    lax::slice_in_dim(&lax::slice_in_dim(x, r.start, r.end, -2), c.start, c.end, -1)
}

/// Batched matrix products, in full precision, which decompositions need.
pub(crate) fn product(x: &Array, y: &Array) -> Array {
    lax::DotOptions::new().precision(Precision::Highest).matmul(x, y)
}

/// Identity matrices of size `n`, batched like `x`.
pub(crate) fn eye_like(x: &Array, n: usize) -> Array {
    let mut shape = x.shape_owned();
    let rank = shape.len();
    shape.truncate(rank.saturating_sub(2));
    shape.extend_from_slice(&[n, n]);
    let aval = x.aval().strip_weak_type();
    convert(&eye_offset_dtype(n, n, 0, DType::F32), aval.dtype, aval.weak).broadcast_to(shape.as_slice())
}
