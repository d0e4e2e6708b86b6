//! Products of few rows and a matrix of 16 or 8 bits, such as a few tokens and a decoder's weights: in bfloat16 or
//! float16, or in int8 and converted. XLA (xla-cpu-pjrt 0.0.1) writes the matrix in f32 first.

use half::{bf16, f16};
use shardax_cpu_kernels::{self as kernels, MAX_ROWS, Weight};
use shardax_pjrt::ElementType;
use shardax_pjrt::ffi::{Arg, CallFrame, Ret};
use zerocopy::{FromBytes, Immutable};

use super::matmul::{contracted_dim, matrices};
use super::{
    call, convert, is_enabled, is_worth, limits, low_precision, number, numbers_mut, reshape, size_of_dims, sizes, view,
};
use crate::core::lower::{Lowering, Value};
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::ops::primitive::dot::{DotGeneral, free};
use crate::shape::Shape;

pub(super) const TARGET: &str = "shardax_few_rows";

/// Lowers the product to a kernel, if it is worthwhile.
pub(crate) fn lower(dot: &DotGeneral, cx: &mut Lowering, args: &[Value], out: &Aval) -> Option<Value> {
    if !dot.lhs_batch.is_empty() || ![&args[0], &args[1]].into_iter().all(|&v| cx.dtype(v).is_float()) {
        return None;
    }
    if low_precision::is_read_in_place(dot, cx, args) {
        return None;
    }
    let sides = [(args[0], &*dot.lhs_contract), (args[1], &*dot.rhs_contract)];
    let with_few_rows = product(cx, sides, MAX_ROWS, out);
    // With exchanged operands the result is transposed. A single row can be transposed without moving elements.
    with_few_rows.or_else(|| product(cx, [sides[1], sides[0]], 1, out))
}

/// Multiplies the rows of an operand with a matrix of fewer bits. Each side is an operand and its contracted
/// dimensions.
fn product(cx: &mut Lowering, sides: [(Value, &[usize]); 2], max_rows: usize, out: &Aval) -> Option<Value> {
    let [(x, x_contract), (w, w_contract)] = sides;
    let w = stored(cx, w);
    let (x_free, w_free) = (free(cx.shape(x).len(), x_contract, &[]), free(cx.shape(w).len(), w_contract, &[]));
    let [rows, columns, depth] =
        [size_of_dims(cx.shape(x), &x_free), size_of_dims(cx.shape(w), &w_free), size_of_dims(cx.shape(w), w_contract)];
    let is_narrow = matches!(cx.dtype(w), DType::I8 | DType::U8 | DType::Bf16 | DType::F16);
    let is_float = matches!(out.dtype, DType::F32 | DType::Bf16 | DType::F16);
    let is_matrix = contracted_dim([&[], &w_free, w_contract]).is_some();
    let is_known = is_narrow && is_float && is_matrix && (1..=max_rows).contains(&rows);
    if !is_known || !is_worth(columns.saturating_mul(depth), limits::NARROW_FEW_ROWS) || !is_enabled(cx) {
        return None;
    }
    let x = rows_operand(cx, x, [&x_free, x_contract], [rows, depth]);
    let (w, w_dim) = matrices(cx, w, [&[], &w_free, w_contract], [1, columns, depth]);
    let w = reshape(cx, w, &if w_dim == 1 { [depth, columns] } else { [columns, depth] });
    let product = Aval::new(DType::F32, Shape::from_slice(&[rows, columns]));
    let product = call(cx, TARGET, &[x, w], &[("contracted", w_dim as i64 - 1)], &[product])[0];
    let product = convert(cx, product, out.dtype);
    Some(reshape(cx, product, &out.shape))
}

/// The operand with few rows, as `[rows, depth]` in float32.
pub(super) fn rows_operand(
    cx: &mut Lowering,
    x: Value,
    [free, contract]: [&[usize]; 2],
    [rows, depth]: [usize; 2],
) -> Value {
    let x = convert(cx, x, DType::F32);
    let (x, contracted) = matrices(cx, x, [&[], free, contract], [1, rows, depth]);
    // A single row is the same in either order.
    let x = if contracted == 2 || rows == 1 { x } else { super::transpose(cx, x, &[0, 2, 1]) };
    reshape(cx, x, &[rows, depth])
}

/// Returns the value that `v` was converted from, if the conversion changed no number.
pub(super) fn stored(cx: &Lowering, v: Value) -> Value {
    let Some(from) = cx.converted_from(v) else { return v };
    let is_exact = match cx.dtype(from) {
        DType::I8 | DType::U8 => true,
        DType::Bf16 | DType::F16 => cx.dtype(v) == DType::F32,
        _ => false,
    };
    if is_exact { from } else { v }
}

/// Handles a call.
pub(super) fn handle(frame: &mut CallFrame<'_>) -> Result<(), String> {
    let numbers = [number(frame, "contracted")?, number(frame, "threads")?];
    let (args, results) = frame.split();
    let ([x, w], [out]) = (args, results) else { return Err("not two operands and a result".into()) };
    match w.ty {
        ElementType::S8 => multiply::<i8>([x, w], numbers, out),
        ElementType::U8 => multiply::<u8>([x, w], numbers, out),
        ElementType::F16 => multiply::<f16>([x, w], numbers, out),
        ElementType::Bf16 => multiply::<bf16>([x, w], numbers, out),
        other => Err(format!("a matrix of {other:?}")),
    }
}

fn multiply<W: Weight + FromBytes + Immutable>(
    [x, w]: [&Arg<'_>; 2],
    [contracted, threads]: [usize; 2],
    out: &mut Ret<'_>,
) -> Result<(), String> {
    let (rows, matrix) = (sizes(x.dims), sizes(w.dims));
    Ok(kernels::few_rows::<W>(view(x, &rows)?, view(w, &matrix)?, contracted, numbers_mut(out)?, threads)?)
}
