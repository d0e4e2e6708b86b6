//! Calls of the CPU attention kernel (`docs/plugin.md`).

use std::result::Result;

use shardax_cpu_kernels as kernels;
use shardax_pjrt::ffi::{Arg, CallFrame};

use super::{limits, numbers, numbers_mut, sizes, view};
use crate::core::lower::{Lowering, Value};
use crate::core::program::Aval;
use crate::ops::primitive::attention::{HIDDEN, Window};
use crate::shape::Shape;

pub(super) const TARGET: &str = "shardax_attention";
pub(super) const GRADIENT: &str = "shardax_attention_gradient";

// A masked key must have the same score in the kernel and in the portable form.
const _: () = assert!(HIDDEN as f32 == kernels::MASKED_SCORE);

/// From this number of queries on, the kernel's matmuls are faster than XLA's. For at most `FEW_QUERIES` queries the
/// kernel reads keys and values only once, so it is faster too.
const MIN_QUERIES: usize = 8;

/// Returns `true` if the kernel can be called, and is worthwhile, for these queries, keys and values.
pub(crate) fn is_worthwhile(cx: &Lowering, args: &[Value]) -> bool {
    let queries = queries(cx, args);
    (queries >= MIN_QUERIES || queries <= kernels::FEW_QUERIES || super::is_always_used()) && is_large(cx, args)
}

/// Returns `true` if the kernel of the gradient can be called, and is worthwhile.
pub(crate) fn is_worthwhile_gradient(cx: &Lowering, args: &[Value]) -> bool {
    (queries(cx, args) >= MIN_QUERIES || super::is_always_used()) && is_large(cx, args)
}

fn queries(cx: &Lowering, args: &[Value]) -> usize {
    let q = cx.shape(args[0]);
    q[q.len() - 3]
}

fn is_large(cx: &Lowering, args: &[Value]) -> bool {
    let (q, k) = (cx.aval(args[0]), cx.aval(args[1]));
    let work = k.shape[k.rank() - 3].saturating_mul(q.size());
    // Each thread computes entire key heads.
    let heads = k.size() / (k.shape[k.rank() - 3] * k.shape[k.rank() - 1]).max(1);
    let limit = if queries(cx, args) <= kernels::FEW_QUERIES { limits::ATTENTION_OF_FEW } else { limits::ATTENTION };
    let is_large = work >= limit && heads >= super::threads(cx);
    let is_empty = work == 0 || cx.aval(args[2]).size() == 0;
    !is_empty && (is_large || super::is_always_used()) && super::is_enabled(cx)
}

/// Lowers attention to the kernel.
pub(crate) fn lower(of: Window, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Vec<Value> {
    call(TARGET, of, cx, args, outs)
}

/// Lowers the gradient of attention to the kernel.
pub(crate) fn lower_gradient(of: Window, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Vec<Value> {
    call(GRADIENT, of, cx, args, outs)
}

fn call(target: &str, of: Window, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Vec<Value> {
    let [before, after] = [of.before, of.after].map(|n| i64::try_from(n).unwrap_or(i64::MAX));
    super::call(cx, target, args, &[("before", before), ("after", after)], outs)
}

fn read(frame: &CallFrame<'_>) -> Result<(kernels::Window, usize), String> {
    let [before, after] = [super::number(frame, "before")?, super::number(frame, "after")?];
    Ok((kernels::Window { before, after }, super::number(frame, "threads")?))
}

/// The shapes of queries, keys and values, and of a mask.
type Shapes = ([Shape; 3], Option<Shape>);

fn shapes(q: &Arg<'_>, k: &Arg<'_>, v: &Arg<'_>, mask: Option<&Arg<'_>>) -> Shapes {
    ([q, k, v].map(|x| sizes(x.dims)), mask.map(|mask| sizes(mask.dims)))
}

/// The operands that both calls have.
fn operands<'a>(
    [q, k, v]: [&Arg<'a>; 3],
    mask: Option<&Arg<'a>>,
    shapes: &'a Shapes,
    window: kernels::Window,
) -> Result<kernels::Attention<'a>, String> {
    let ([q_shape, k_shape, v_shape], mask_shape) = shapes;
    let mask = mask.zip(mask_shape.as_ref()).map(|(mask, shape)| view(mask, shape)).transpose()?;
    Ok(kernels::Attention { q: view(q, q_shape)?, k: view(k, k_shape)?, v: view(v, v_shape)?, mask, window })
}

/// Handles a call of the forward pass.
pub(super) fn handle(frame: &mut CallFrame<'_>) -> Result<(), String> {
    let (window, threads) = read(frame)?;
    let (args, results) = frame.split();
    let ([q, k, v, mask @ ..], [y, max, sum]) = (args, results) else { return Err("other operands".into()) };
    let shapes = shapes(q, k, v, mask.first());
    let of = operands([q, k, v], mask.first(), &shapes, window)?;
    Ok(of.forward(numbers_mut(y)?, numbers_mut(max)?, numbers_mut(sum)?, threads)?)
}

/// Handles a call of the gradient.
pub(super) fn handle_gradient(frame: &mut CallFrame<'_>) -> Result<(), String> {
    let (window, threads) = read(frame)?;
    let (args, results) = frame.split();
    let [q, k, v, max, sum, ct, mean, mask @ ..] = args else { return Err("other operands".into()) };
    let [dq, dk, dv] = results else { return Err("not three results".into()) };
    let shapes = shapes(q, k, v, mask.first());
    let of = operands([q, k, v], mask.first(), &shapes, window)?;
    let [max, sum, ct, mean] = [numbers(max)?, numbers(sum)?, numbers(ct)?, numbers(mean)?];
    let gradients = [numbers_mut(dq)?, numbers_mut(dk)?, numbers_mut(dv)?];
    Ok(of.gradient(&kernels::Backward { max, sum, ct, mean }, gradients, threads)?)
}
