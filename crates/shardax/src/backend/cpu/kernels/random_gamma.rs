//! Accepted candidates of random gamma numbers. XLA (xla-cpu-pjrt 0.0.1) draws candidates for all elements until each has accepted one.

use shardax_cpu_kernels as kernels;
use shardax_pjrt::ElementType;
use shardax_pjrt::ffi::CallFrame;

use super::{call, is_enabled, is_worth, limits, number, numbers, numbers_mut};
use crate::core::lower::{Lowering, Value};
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::ops::primitive::elementwise_rules::spread;

pub(super) const TARGET: &str = "shardax_random_gamma";

/// Lowers the draws to a kernel, if it is worthwhile.
pub(crate) fn lower(cx: &mut Lowering, args: &[Value], out: &Aval) -> Option<Value> {
    if out.dtype != DType::F32 || !is_worth(out.size(), limits::RANDOM_GAMMA) || !is_enabled(cx) {
        return None;
    }
    let args = spread(cx, args, &out.shape);
    Some(call(cx, TARGET, &args, &[], std::slice::from_ref(out))[0])
}

/// Handles a call.
pub(super) fn handle(frame: &mut CallFrame<'_>) -> Result<(), String> {
    let threads = number(frame, "threads")?;
    let (args, results) = frame.split();
    match (args, results) {
        ([first_words, second_words, d], [factors]) if factors.ty == ElementType::F32 => {
            let keys = [numbers(first_words)?, numbers(second_words)?];
            Ok(kernels::random_gamma_factors(keys, numbers(d)?, numbers_mut(factors)?, threads)?)
        }
        _ => Err("not two words of keys, a parameter and a result of f32".into()),
    }
}
