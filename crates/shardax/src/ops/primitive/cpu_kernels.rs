//! CPU kernels: matmuls and attention computed with the crate `matrixmultiply` (the feature `ndarray`) instead of by
//! XLA's compiled code. They are as accurate as XLA's, and deterministic.
//!
//! A build without optimization leaves everything to XLA, because the crate would be compiled without optimization too.
//! The environment variable `SHARDAX_CPU_KERNELS` (`xla` or `auto`) overrides this; with `all` the kernels compute
//! everything they can, even where XLA is faster, to test them with the small reference values.

use std::sync::{Mutex, OnceLock, PoisonError};

use shardax_pjrt::ffi::{self, Arg, CallFrame, Ret};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{attention_cpu, dot_cpu};
use crate::core::lower::{Lowering, Value};
use crate::core::program::Aval;
use crate::error::Result;
use crate::settings::{CPU_KERNELS, CpuKernels};
use crate::sharding::device::client;

/// The number of multiply-adds below which a call costs more than it saves.
pub(super) const MIN_WORK: usize = 1 << 20;

/// Returns `true` if a program may call the kernels.
pub(super) fn is_enabled(cx: &Lowering) -> bool {
    // A plugin without FFI cannot call them.
    cx.on_cpu() && cx.is_local() && !cx.portable && requested() != CpuKernels::Xla && register().is_ok()
}

fn requested() -> CpuKernels {
    static REQUESTED: OnceLock<CpuKernels> = OnceLock::new();
    let default = if cfg!(debug_assertions) { CpuKernels::Xla } else { CpuKernels::Auto };
    *REQUESTED.get_or_init(|| CPU_KERNELS.get().unwrap_or(default))
}

/// Returns `true` if the kernels are used even where XLA is faster (tests only).
pub(super) fn is_always_used() -> bool {
    requested() == CpuKernels::All
}

/// Registers the handlers with XLA, once: before a program that calls one is compiled or loaded.
pub(crate) fn register() -> Result<()> {
    static REGISTERED: OnceLock<Result<()>> = OnceLock::new();
    let registered = REGISTERED.get_or_init(|| {
        let client = client()?;
        let plugin = client.pjrt.plugin();
        ffi::register(plugin, dot_cpu::TARGET, dot_cpu::handle)?;
        ffi::register(plugin, attention_cpu::TARGET, attention_cpu::handle)?;
        Ok(ffi::register(plugin, attention_cpu::GRADIENT, attention_cpu::handle_gradient)?)
    });
    registered.clone()
}

/// The number of threads of a call: devices that compute concurrently share the cores.
pub(super) fn threads(cx: &Lowering) -> usize {
    if cx.many_devices { 1 } else { std::thread::available_parallelism().map_or(1, |n| n.get()) }
}

/// Writes a call of a handler on row-major arrays, with these numbers as attributes beside the number of threads.
pub(super) fn call(
    cx: &mut Lowering,
    target: &str,
    args: &[Value],
    numbers: &[(&str, i64)],
    outs: &[Aval],
) -> Vec<Value> {
    let threads = threads(cx);
    let numbers: String = numbers.iter().map(|(name, n)| format!("{name} = {n} : i64, ")).collect();
    let layout = |rank: usize| {
        let dims: Vec<String> = (0..rank).rev().map(|d| d.to_string()).collect();
        format!("dense<[{}]> : tensor<{rank}xindex>", dims.join(", "))
    };
    let layouts = |ranks: Vec<usize>| ranks.into_iter().map(layout).collect::<Vec<_>>().join(", ");
    let operands = layouts(args.iter().map(|&v| cx.shape(v).len()).collect());
    let results = layouts(outs.iter().map(Aval::rank).collect());
    let attrs = format!(
        "call_target_name = \"{target}\", api_version = 4 : i32, backend_config = {{{numbers}threads = {threads} : i64}}, \
         operand_layouts = [{operands}], result_layouts = [{results}]"
    );
    cx.op_with("stablehlo.custom_call", args, &attrs, Vec::new(), outs)
}

/// A number among the attributes of a call.
pub(super) fn number(frame: &CallFrame<'_>, name: &str) -> std::result::Result<usize, String> {
    let number = frame.attr(name).and_then(|a| a.as_i64()).ok_or_else(|| format!("the call has no {name}"))?;
    usize::try_from(number).map_err(|e| format!("{name} is {number}: {e}"))
}

/// The elements of an argument.
pub(super) fn numbers<'a, T: FromBytes + Immutable>(arg: &Arg<'a>) -> std::result::Result<&'a [T], String> {
    <[T]>::ref_from_bytes(arg.data).map_err(|e| e.to_string())
}

/// The elements of a result, all of which must be written.
pub(super) fn numbers_mut<'a, T: FromBytes + IntoBytes>(
    ret: &'a mut Ret<'_>,
) -> std::result::Result<&'a mut [T], String> {
    <[T]>::mut_from_bytes(ret.overwritten()).map_err(|e| e.to_string())
}

/// The sizes of an array.
pub(super) fn sizes(dims: &[i64]) -> Vec<usize> {
    dims.iter().map(|&d| d as usize).collect()
}

/// Runs the tasks, the last one first, on this many threads, each with its own state. A thread that starts late
/// runs fewer.
pub(super) fn run_tasks<T: Send, Own>(
    tasks: Vec<T>,
    threads: usize,
    own: impl Fn() -> Own + Sync,
    work: impl Fn(&mut Own, T) + Sync,
) {
    let helpers = threads.min(tasks.len()).saturating_sub(1);
    let tasks = Mutex::new(tasks);
    let next = || tasks.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let run = || {
        let mut own = own();
        while let Some(task) = next() {
            work(&mut own, task);
        }
    };
    std::thread::scope(|scope| {
        (0..helpers).for_each(|_| {
            scope.spawn(run);
        });
        run();
    });
}
