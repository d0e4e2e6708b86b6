//! Decompositions of large real matrices by the crate `faer`. XLA's (xla-cpu-pjrt 0.0.1) iterate over pairs of columns, or
//! compute one column at a time: the eigenvectors of f32[512,512] take 2.7 s instead of 0.03, its singular values 5.3 s
//! instead of 0.06, and its Cholesky decomposition 75 ms instead of 1 (`docs/plugin.md`).

use shardax_cpu_kernels::{self as kernels, Real};
use shardax_pjrt::ElementType;
use shardax_pjrt::ffi::CallFrame;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{call, is_always_used, is_enabled, limits, number, numbers_mut, reshape, sizes, view};
use crate::core::lower::{Lowering, Value};
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::ops::primitive::matrix::Decomposition;
use crate::shape::Shape;

pub(super) const CHOLESKY: &str = "shardax_cholesky";
pub(super) const QR: &str = "shardax_qr";
pub(super) const EIGH: &str = "shardax_eigh";
pub(super) const SVD: &str = "shardax_svd";

/// Lowers a decomposition to a kernel, if that is worthwhile.
pub(in super::super) fn lower(
    of: Decomposition,
    full: bool,
    cx: &mut Lowering,
    arg: Value,
    outs: &[Aval],
) -> Option<Vec<Value>> {
    let aval = cx.aval(arg);
    let (batch, sides) = aval.shape.split_at(aval.rank() - 2);
    let is_large = is_always_used() || sides.iter().all(|side| *side >= limits::DECOMPOSITION_SIDE);
    if !matches!(aval.dtype, DType::F32 | DType::F64) || aval.size() == 0 || !is_large || !is_enabled(cx) {
        return None;
    }
    let one_batch = |shape: &[usize]| -> Shape {
        [&[batch.iter().product()], &shape[batch.len()..]].concat().into_iter().collect()
    };
    let a = reshape(cx, arg, &one_batch(&aval.shape));
    let made: Vec<Aval> = outs.iter().map(|out| Aval::new(out.dtype, one_batch(&out.shape))).collect();
    let target = match of {
        Decomposition::Cholesky => CHOLESKY,
        Decomposition::Qr => QR,
        Decomposition::Eigh => EIGH,
        Decomposition::Svd => SVD,
    };
    let made = call(cx, target, &[a], &[("full", i64::from(full))], &made);
    Some(made.into_iter().zip(outs).map(|(v, out)| reshape(cx, v, &out.shape)).collect())
}

trait Element: Real + FromBytes + IntoBytes + Immutable {}
impl Element for f32 {}
impl Element for f64 {}

/// The handlers, each of one operand.
macro_rules! handlers {
    ($($handle:ident $compute:ident),*) => { $(
        pub(super) fn $handle(frame: &mut CallFrame<'_>) -> Result<(), String> {
            match frame.split().0.first().map(|a| a.ty) {
                Some(ElementType::F64) => $compute::<f64>(frame),
                _ => $compute::<f32>(frame),
            }
        }
    )* };
}
handlers!(handle_cholesky cholesky, handle_qr qr, handle_eigh eigh, handle_svd svd);

fn cholesky<T: Element>(frame: &mut CallFrame<'_>) -> Result<(), String> {
    let threads = number(frame, "threads")?;
    let ([a], [l]) = frame.split() else { return Err("not one operand and one result".into()) };
    Ok(kernels::cholesky(view::<T>(a, &sizes(a.dims))?, numbers_mut(l)?, threads)?)
}

fn qr<T: Element>(frame: &mut CallFrame<'_>) -> Result<(), String> {
    let (threads, is_full) = (number(frame, "threads")?, number(frame, "full")? != 0);
    let ([a], [q, r]) = frame.split() else { return Err("not one operand and two results".into()) };
    Ok(kernels::qr(view::<T>(a, &sizes(a.dims))?, is_full, numbers_mut(q)?, numbers_mut(r)?, threads)?)
}

fn eigh<T: Element>(frame: &mut CallFrame<'_>) -> Result<(), String> {
    let threads = number(frame, "threads")?;
    let ([a], [v, w]) = frame.split() else { return Err("not one operand and two results".into()) };
    Ok(kernels::eigh(view::<T>(a, &sizes(a.dims))?, numbers_mut(v)?, numbers_mut(w)?, threads)?)
}

fn svd<T: Element>(frame: &mut CallFrame<'_>) -> Result<(), String> {
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
