//! Sums along an axis with weights of which most are zero, as in resized images. XLA multiplies with the zeros too.

use shardax_cpu_kernels::{self as kernels, Weighted};
use shardax_pjrt::ElementType;
use shardax_pjrt::ffi::CallFrame;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::matmul::before_move;
use super::{
    call, convert, is_enabled, is_worth, limits, number, numbers_mut, reshape, sizes, transpose, view, widened,
};
use crate::core::lower::{Lowering, Value};
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::ops::primitive::dot::DotGeneral;
use crate::shape::Shape;

pub(super) const TARGET: &str = "shardax_weighted_sums";

/// Lowers a product with a sparse matrix to a kernel, if it is worthwhile.
pub(crate) fn lower(dot: &DotGeneral, cx: &mut Lowering, args: &[Value], out: &Aval) -> Option<Value> {
    let is_supported =
        dot.is_rhs_sparse && dot.lhs_contract.len() == 1 && dot.lhs_batch.is_empty() && cx.shape(args[1]).len() == 2;
    let dtype = widened(out.dtype);
    let are_floats = matches!(dtype, DType::F32 | DType::F64) && args.iter().all(|v| cx.dtype(*v) == out.dtype);
    if !is_supported || !are_floats || !is_worth(out.size(), limits::WEIGHTED_SUMS) || !is_enabled(cx) {
        return None;
    }
    // The axis of a cotangent is in the middle before a transposition, where the kernel reads whole rows.
    let axis = *dot.lhs_contract.first()?;
    let (x, axis) = before_move(cx, args[0], axis).unwrap_or((args[0], axis));
    let shape = cx.shape(x).clone();
    let [x, weights] = [x, args[1]].map(|v| convert(cx, v, dtype));
    let weights = if *dot.rhs_contract.first()? == 0 { weights } else { transpose(cx, weights, &[1, 0]) };
    let [batch, columns] = [&shape[..axis], &shape[axis + 1..]].map(|sizes| sizes.iter().product::<usize>());
    let n = cx.shape(weights)[1];
    let x = reshape(cx, x, &[batch, shape[axis], columns]);
    let sums = Aval::new(dtype, Shape::from_slice(&[batch, n, columns]));
    let sums = call(cx, TARGET, &[x, weights], &[], &[sums])[0];
    let sums = convert(cx, sums, out.dtype);
    let mut result = shape;
    result[axis] = n;
    let sums = reshape(cx, sums, &result);
    let order: Vec<usize> = (0..result.len()).filter(|d| *d != axis).chain([axis]).collect();
    Some(transpose(cx, sums, &order))
}

trait Element: Weighted + FromBytes + IntoBytes + Immutable {}
impl Element for f32 {}
impl Element for f64 {}

/// Handles a call.
pub(super) fn handle(frame: &mut CallFrame<'_>) -> Result<(), String> {
    match frame.split().0.first().map(|x| x.ty) {
        Some(ElementType::F64) => handle_of::<f64>(frame),
        _ => handle_of::<f32>(frame),
    }
}

fn handle_of<T: Element>(frame: &mut CallFrame<'_>) -> Result<(), String> {
    let threads = number(frame, "threads")?;
    let (args, results) = frame.split();
    let ([x, weights], [sums]) = (args, results) else { return Err("not two operands and a result".into()) };
    let [x_sizes, weights_sizes] = [x, weights].map(|arg| sizes(arg.dims));
    Ok(kernels::weighted_sums::<T>(view(x, &x_sizes)?, view(weights, &weights_sizes)?, numbers_mut(sums)?, threads)?)
}
