//! Products of a vector and a matrix of many rows, as in the gradient of a linear regression. XLA (xla-cpu-pjrt 0.0.1) takes three times as
//! long, and its sums are inaccurate (`dot_long`).

use shardax_cpu_kernels::{self as kernels, Multiplicand};
use shardax_pjrt::ElementType;
use shardax_pjrt::ffi::{Arg, CallFrame, Ret};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::few_rows::stored;
use super::matmul::without_transposes;
use super::{call, grouped, is_enabled, is_worth, limits, number, numbers, numbers_mut, reshape, sizes, view};
use crate::core::lower::{Lowering, Value};
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::ops::primitive::dot::DotGeneral;
use crate::shape::Shape;

pub(super) const TARGET: &str = "shardax_tall_matrix";

/// Lowers a product of a vector and a matrix of many rows to a kernel, if it is worthwhile. The matrix can be transposed or be the left operand.
pub(crate) fn lower(dot: &DotGeneral, cx: &mut Lowering, args: &[Value], out: &Aval) -> Option<Value> {
    if !matches!(out.dtype, DType::F32 | DType::F64) || args.iter().any(|v| cx.dtype(*v) != out.dtype) {
        return None;
    }
    // The kernel of matrices in groups reads fewer bits.
    if args.iter().any(|v| grouped::is_matrix(cx, *v)) {
        return None;
    }
    let elements = args.iter().map(|v| cx.aval(*v).size()).max()?;
    if !dot.lhs_batch.is_empty() || !is_worth(elements, limits::TALL_MATRIX) || !is_enabled(cx) {
        return None;
    }
    let untransposed = without_transposes(dot, cx, args);
    let (dot, args) = untransposed.as_ref().map_or((dot, args), |(dot, args)| (dot, args.as_slice()));
    // Other kernels read matrices of fewer bits.
    if args.iter().any(|v| stored(cx, *v) != *v) {
        return None;
    }
    let rows = dot.lhs_contract.iter().map(|d| cx.shape(args[0])[*d]).product();
    let sides = [(args[0], &*dot.lhs_contract), (args[1], &*dot.rhs_contract)];
    let [(vector, vector_rows), (matrix, matrix_rows)] = match sides.map(|(v, _)| cx.aval(v).size() == rows) {
        [true, false] => sides,
        [false, true] => [sides[1], sides[0]],
        _ => return None,
    };
    let columns = cx.aval(matrix).size() / rows;
    let has_rows_first = vector_rows.is_sorted() && matrix_rows.iter().copied().eq(0..matrix_rows.len());
    let is_tall = rows >= limits::TALL_MATRIX_ROWS && limits::TALL_MATRIX_COLUMNS.contains(&columns);
    if !has_rows_first || !is_tall {
        return None;
    }
    let vector = reshape(cx, vector, &[rows]);
    let matrix = reshape(cx, matrix, &[rows, columns]);
    let sums = Aval::new(out.dtype, Shape::from_slice(&[columns]));
    let sums = call(cx, TARGET, &[vector, matrix], &[], &[sums])[0];
    Some(reshape(cx, sums, &out.shape))
}

/// Handles a call.
pub(super) fn handle(frame: &mut CallFrame<'_>) -> Result<(), String> {
    let threads = number(frame, "threads")?;
    let (args, results) = frame.split();
    let ([v, x], [y]) = (args, results) else { return Err("not two operands and a result".into()) };
    match y.ty {
        ElementType::F32 => multiply::<f32>(v, x, y, threads),
        ElementType::F64 => multiply::<f64>(v, x, y, threads),
        other => Err(format!("elements of {other:?}")),
    }
}

fn multiply<T: Multiplicand + FromBytes + IntoBytes + Immutable>(
    v: &Arg<'_>,
    x: &Arg<'_>,
    y: &mut Ret<'_>,
    threads: usize,
) -> Result<(), String> {
    Ok(kernels::vector_by_tall_matrix::<T>(numbers(v)?, view(x, &sizes(x.dims))?, numbers_mut(y)?, threads)?)
}
