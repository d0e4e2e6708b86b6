//! Decompositions of real matrices. Batches of small matrices are decomposed with one matrix in each lane of the
//! processor's vectors, other matrices in blocks of rows (Cholesky,
//! LU, triangular systems) or by the crate `faer`. XLA (xla-cpu-pjrt 0.0.1) iterates over pairs of columns, or
//! computes one column at a time: the eigenvectors of f32[512,512] take 2.7 s instead of 0.03, its singular values 5.3
//! s instead of 0.06, and its Cholesky decomposition 75 ms instead of 1 (`docs/plugin.md`).

use shardax_cpu_kernels::{self as kernels, Real, Triangle};
use shardax_pjrt::ElementType;
use shardax_pjrt::ffi::CallFrame;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{call, is_always_used, is_enabled, limits, number, numbers_mut, reshape, sizes, view};
use crate::core::lower::{Lowering, Value};
use crate::core::program::Aval;
use crate::dtype::{DType, Scalar};
use crate::error::Result;
use crate::ops::primitive::matrix::{is_half, widened};
use crate::ops::primitive::triangular_solve::{Op, TriangularSolve};
use crate::shape::{Shape, size};

pub(crate) const CHOLESKY: &str = "shardax_cholesky";
pub(crate) const QR: &str = "shardax_qr";
pub(crate) const EIGH: &str = "shardax_eigh";
pub(crate) const SVD: &str = "shardax_svd";
pub(crate) const EIGVALSH: &str = "shardax_eigvalsh";
pub(crate) const SVDVALS: &str = "shardax_svdvals";
pub(crate) const LU: &str = "shardax_lu";
pub(super) const TRIANGULAR_SOLVE: &str = "shardax_triangular_solve";

/// Lowers a decomposition to a kernel, if it is worthwhile. `full` is the parameter of
/// [`Qr`](crate::ops::primitive::qr::Qr) and [`Svd`](crate::ops::primitive::svd::Svd).
pub(crate) fn lower(
    target: &str,
    full: bool,
    cx: &mut Lowering,
    args: &[Value],
    outs: &[Aval],
) -> Result<Option<Vec<Value>>> {
    // `faer` prepares each matrix, which takes longer than XLA's loops over few columns. Batches of matrices are computed in lanes.
    let shape = cx.shape(args[0]);
    let (batch, sides) = shape.split_at(shape.len().saturating_sub(2));
    let is_batch = size(batch) >= limits::QR_BATCH && sides.iter().all(|side| *side <= limits::QR_LANES_SIDE);
    let is_small = sides.iter().any(|side| *side < limits::QR_SIDE) && !is_batch;
    let is_small = target == QR && is_small && !is_always_used();
    if is_small || !applies(cx, args[0]) {
        return Ok(None);
    }
    let numbers = [("full", i64::from(full))];
    let numbers = if target == LU { &numbers[..0] } else { &numbers };
    widened(cx, args, outs, |cx, args, outs| Ok(call_of_matrices(cx, target, args, numbers, outs))).map(Some)
}

/// Lowers a decomposition to a kernel without vectors, which nothing reads: their place is taken by zeros. The values are result 1.
pub(crate) fn lower_values(
    target: &str,
    cx: &mut Lowering,
    args: &[Value],
    outs: &[Aval],
) -> Result<Option<Vec<Value>>> {
    if !applies(cx, args[0]) {
        return Ok(None);
    }
    let values = widened(cx, args, &outs[1..2], |cx, args, outs| Ok(call_of_matrices(cx, target, args, &[], outs)))?;
    let results = outs.iter().enumerate().map(|(index, out)| match index {
        1 => values[0],
        _ => cx.constant(Scalar::Int(0), out),
    });
    Ok(Some(results.collect()))
}

/// Lowers the solution of triangular systems to a kernel, if a program can call it.
pub(crate) fn lower_triangular_solve(
    solve: TriangularSolve,
    cx: &mut Lowering,
    args: &[Value],
    outs: &[Aval],
) -> Option<Vec<Value>> {
    let flags = [
        ("left", i64::from(solve.left_side)),
        ("lower", i64::from(solve.lower)),
        ("transposed", i64::from(solve.op != Op::Plain)),
        ("unit", i64::from(solve.unit_diagonal)),
    ];
    applies(cx, args[0]).then(|| call_of_matrices(cx, TRIANGULAR_SOLVE, args, &flags, outs))
}

/// Returns `true` for real matrices, if the program can call functions of this process.
fn applies(cx: &Lowering, v: Value) -> bool {
    let aval = cx.aval(v);
    let is_known = matches!(aval.dtype, DType::F32 | DType::F64) || is_half(aval.dtype);
    is_known && aval.size() > 0 && is_enabled(cx)
}

/// Calls a function of batches of real matrices.
fn call_of_matrices(
    cx: &mut Lowering,
    target: &str,
    args: &[Value],
    numbers: &[(&str, i64)],
    outs: &[Aval],
) -> Vec<Value> {
    let aval = cx.aval(args[0]);
    let rank = aval.rank() - 2;
    let batch: usize = aval.shape[..rank].iter().product();
    let one_batch =
        |shape: &[usize]| -> Shape { std::iter::once(batch).chain(shape[rank..].iter().copied()).collect() };
    let operands: Vec<Value> = args
        .iter()
        .map(|&v| {
            let shape = one_batch(cx.shape(v));
            reshape(cx, v, &shape)
        })
        .collect();
    let results: Vec<Aval> = outs.iter().map(|out| Aval::new(out.dtype, one_batch(&out.shape))).collect();
    let results = call(cx, target, &operands, numbers, &results);
    results.into_iter().zip(outs).map(|(v, out)| reshape(cx, v, &out.shape)).collect()
}

trait Element: Real + FromBytes + IntoBytes + Immutable {}
impl Element for f32 {}
impl Element for f64 {}

/// The handlers, by the type of the first operand.
macro_rules! handlers {
    ($($handle:ident $compute:ident),*) => { $(
        pub(super) fn $handle(frame: &mut CallFrame<'_>) -> std::result::Result<(), String> {
            match frame.split().0.first().map(|a| a.ty) {
                Some(ElementType::F64) => $compute::<f64>(frame),
                _ => $compute::<f32>(frame),
            }
        }
    )* };
}
handlers!(
    handle_cholesky cholesky,
    handle_qr qr,
    handle_eigh eigh,
    handle_svd svd,
    handle_eigvalsh eigvalsh,
    handle_svdvals svdvals,
    handle_lu lu,
    handle_triangular_solve triangular_solve
);

fn cholesky<T: Element>(frame: &mut CallFrame<'_>) -> std::result::Result<(), String> {
    let threads = number(frame, "threads")?;
    let ([a], [l]) = frame.split() else { return Err("not one operand and one result".into()) };
    Ok(kernels::cholesky(view::<T>(a, &sizes(a.dims))?, numbers_mut(l)?, threads)?)
}

fn qr<T: Element>(frame: &mut CallFrame<'_>) -> std::result::Result<(), String> {
    let (threads, is_full) = (number(frame, "threads")?, number(frame, "full")? != 0);
    let ([a], [q, r]) = frame.split() else { return Err("not one operand and two results".into()) };
    Ok(kernels::qr(view::<T>(a, &sizes(a.dims))?, is_full, numbers_mut(q)?, numbers_mut(r)?, threads)?)
}

fn eigh<T: Element>(frame: &mut CallFrame<'_>) -> std::result::Result<(), String> {
    let threads = number(frame, "threads")?;
    let ([a], [v, w]) = frame.split() else { return Err("not one operand and two results".into()) };
    Ok(kernels::eigh(view::<T>(a, &sizes(a.dims))?, numbers_mut(v)?, numbers_mut(w)?, threads)?)
}

fn svd<T: Element>(frame: &mut CallFrame<'_>) -> std::result::Result<(), String> {
    let (threads, is_full) = (number(frame, "threads")?, number(frame, "full")? != 0);
    let ([a], [u, s, vt]) = frame.split() else { return Err("not one operand and three results".into()) };
    Ok(kernels::svd(
        view::<T>(a, &sizes(a.dims))?,
        is_full,
        numbers_mut(u)?,
        numbers_mut(s)?,
        numbers_mut(vt)?,
        threads,
    )?)
}

fn eigvalsh<T: Element>(frame: &mut CallFrame<'_>) -> std::result::Result<(), String> {
    let threads = number(frame, "threads")?;
    let ([a], [w]) = frame.split() else { return Err("not one operand and one result".into()) };
    Ok(kernels::eigvalsh(view::<T>(a, &sizes(a.dims))?, numbers_mut(w)?, threads)?)
}

fn svdvals<T: Element>(frame: &mut CallFrame<'_>) -> std::result::Result<(), String> {
    let threads = number(frame, "threads")?;
    let ([a], [s]) = frame.split() else { return Err("not one operand and one result".into()) };
    Ok(kernels::svdvals(view::<T>(a, &sizes(a.dims))?, numbers_mut(s)?, threads)?)
}

fn lu<T: Element>(frame: &mut CallFrame<'_>) -> std::result::Result<(), String> {
    let threads = number(frame, "threads")?;
    let ([a], [factors, pivots, permutation]) = frame.split() else {
        return Err("not one operand and three results".into());
    };
    Ok(kernels::lu(
        view::<T>(a, &sizes(a.dims))?,
        numbers_mut(factors)?,
        numbers_mut(pivots)?,
        numbers_mut(permutation)?,
        threads,
    )?)
}

fn triangular_solve<T: Element>(frame: &mut CallFrame<'_>) -> std::result::Result<(), String> {
    let threads = number(frame, "threads")?;
    let triangle = Triangle {
        is_left: number(frame, "left")? != 0,
        is_lower: number(frame, "lower")? != 0,
        transposes: number(frame, "transposed")? != 0,
        has_unit_diagonal: number(frame, "unit")? != 0,
    };
    let ([a, b], [x]) = frame.split() else { return Err("not two operands and one result".into()) };
    let (matrix, right) = (sizes(a.dims), sizes(b.dims));
    Ok(kernels::triangular_solve(view::<T>(a, &matrix)?, view::<T>(b, &right)?, triangle, numbers_mut(x)?, threads)?)
}
