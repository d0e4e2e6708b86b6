//! What the CPU computes by a library rather than by XLA's compiled code: products and attention, by the crate
//! `matrixmultiply`, which comes with the feature `ndarray`. The numbers are as exact as XLA's, and the same from run to
//! run.
//!
//! A build without optimization leaves all to XLA: the crate is then part of it, and slower still. The environment
//! variable `SHARDAX_CPU_KERNELS` (`xla` or `auto`) decides otherwise; with `all` the library has whatever it can
//! compute, so that the reference values, which are small, come by it.

use std::sync::{Mutex, OnceLock, PoisonError};

use shardax_pjrt::ffi::{self, Arg, CallFrame, Ret};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{attention_cpu, dot_cpu};
use crate::core::lower::{Lowering, Value};
use crate::core::program::Aval;
use crate::error::Result;
use crate::settings::{CPU_KERNELS, CpuKernels};
use crate::sharding::device::client;

/// Products and additions below which a call costs more than it saves.
pub(super) const MIN_WORK: usize = 1 << 20;

/// Whether a program may call the library here.
pub(super) fn is_of_use(cx: &Lowering) -> bool {
    // A plugin without FFI computes all by itself.
    cx.on_cpu() && cx.is_local() && !cx.portable && asked() != CpuKernels::Xla && register().is_ok()
}

fn asked() -> CpuKernels {
    static ASKED: OnceLock<CpuKernels> = OnceLock::new();
    let default = if cfg!(debug_assertions) { CpuKernels::Xla } else { CpuKernels::Auto };
    *ASKED.get_or_init(|| CPU_KERNELS.get().unwrap_or(default))
}

/// Whether it computes also what is quicker otherwise.
pub(super) fn has_all() -> bool {
    asked() == CpuKernels::All
}

/// Tells XLA of the handlers, once: before a program that calls one is compiled or loaded.
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

/// How many threads a call has: devices that compute at once share the cores among them.
pub(super) fn threads(cx: &Lowering) -> usize {
    if cx.many_devices { 1 } else { std::thread::available_parallelism().map_or(1, |n| n.get()) }
}

/// Writes a call of a handler on arrays in the order of their dimensions, with these numbers beside how many threads it has.
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

/// A number of a call.
pub(super) fn number(frame: &CallFrame<'_>, name: &str) -> std::result::Result<usize, String> {
    let number = frame.attr(name).and_then(|a| a.as_i64()).ok_or_else(|| format!("the call has no {name}"))?;
    usize::try_from(number).map_err(|e| format!("{name} is {number}: {e}"))
}

/// The elements of an argument.
pub(super) fn numbers<'a, T: FromBytes + Immutable>(arg: &Arg<'a>) -> std::result::Result<&'a [T], String> {
    <[T]>::ref_from_bytes(arg.data).map_err(|e| e.to_string())
}

/// Where the elements of a result go, all of which are to be written.
pub(super) fn numbers_mut<'a, T: FromBytes + IntoBytes>(
    ret: &'a mut Ret<'_>,
) -> std::result::Result<&'a mut [T], String> {
    <[T]>::mut_from_bytes(ret.overwritten()).map_err(|e| e.to_string())
}

/// The sizes of an array.
pub(super) fn sizes(dims: &[i64]) -> Vec<usize> {
    dims.iter().map(|&d| d as usize).collect()
}

/// Does the tasks, the last one first, on so many threads, each of which has something of its own. One that starts late
/// does fewer.
pub(super) fn share_out<T: Send, Own>(
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
