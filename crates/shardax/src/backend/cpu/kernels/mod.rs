//! Calls of CPU kernels: matmuls, convolutions and gradients of their filters, attention and decompositions of matrices
//! that the crate `shardax-cpu-kernels` computes instead of XLA's compiled code. They are as accurate as XLA's code,
//! and deterministic, because the shapes determine how sums are divided, never the number of threads or devices. Each
//! family has one file with its lowering and its handler. This file decides whether programs can call the kernels, and
//! contains the code that they share. `limits` contains the minimum sizes for which kernels are used.
//!
//! A build without optimization leaves everything to XLA, because the crate would be compiled without optimization too.
//! You can override this with the environment variable `SHARDAX_CPU_KERNELS` (`xla` or `auto`). With `all`, the kernels
//! compute everything that they can, even if XLA is faster, so that tests can use small reference values.

pub(super) mod attention;
pub(super) mod conv;
pub(super) mod cumulative;
#[cfg(feature = "decompositions")]
pub(super) mod decompositions;
pub(super) mod elementwise;
pub(super) mod few_rows;
mod filter_window;
pub(in crate::backend) mod grouped;
mod limits;
pub(super) mod low_precision;
pub(in crate::backend) mod matmul;
pub(super) mod random_gamma;
pub(super) mod remainder;
pub(super) mod scatter_add;
pub(super) mod search_sorted;
pub(super) mod select_and_scatter;
pub(super) mod softmax;
pub(super) mod sort;
pub(super) mod tall_matrix;
#[cfg(test)]
mod tests;
pub(super) mod top_k;
pub(super) mod transpose;
pub(super) mod weighted_sums;

use std::sync::OnceLock;

use shardax_cpu_kernels::View;
use shardax_pjrt::ffi::{self, Arg, CallFrame, Ret};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::core::lower::{Lowering, Value, ints};
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::error::Result;
use crate::settings::{CPU_KERNELS, CpuKernels};
use crate::shape::Shape;
use crate::sharding::device::client;

/// Returns `true` if a program can call the kernels.
fn is_enabled(cx: &Lowering) -> bool {
    // A plugin without FFI cannot call them.
    cx.is_local() && !cx.portable && requested() != CpuKernels::Xla && register().is_ok()
}

fn requested() -> CpuKernels {
    static REQUESTED: OnceLock<CpuKernels> = OnceLock::new();
    let default = if cfg!(debug_assertions) { CpuKernels::Xla } else { CpuKernels::Auto };
    *REQUESTED.get_or_init(|| CPU_KERNELS.get().unwrap_or(default))
}

/// Returns `true` if the kernels are used even where XLA is faster (tests only).
fn is_always_used() -> bool {
    requested() == CpuKernels::All
}

/// Returns `true` if this many multiply-adds are worth a call.
fn is_worth(work: usize, limit: usize) -> bool {
    work > 0 && (work >= limit || is_always_used())
}

/// A function that handles the calls of a target.
type Handler = fn(&mut CallFrame<'_>) -> std::result::Result<(), String>;

/// The targets of calls, with their handlers.
const HANDLERS: &[(&str, Handler)] = &[
    (matmul::TARGET, matmul::handle),
    (few_rows::TARGET, few_rows::handle),
    (grouped::TARGET, grouped::handle),
    (low_precision::TARGET, low_precision::handle),
    (cumulative::TARGET, cumulative::handle),
    (random_gamma::TARGET, random_gamma::handle),
    (remainder::TARGET, remainder::handle),
    (elementwise::SIN, elementwise::handle_sin),
    (elementwise::COS, elementwise::handle_cos),
    (elementwise::TAN, elementwise::handle_tan),
    (elementwise::LOG, elementwise::handle_log),
    (elementwise::EXPM1, elementwise::handle_expm1),
    (elementwise::SINH, elementwise::handle_sinh),
    (elementwise::COSH, elementwise::handle_cosh),
    (elementwise::ERF, elementwise::handle_erf),
    (elementwise::CBRT, elementwise::handle_cbrt),
    (elementwise::ERF_INV, elementwise::handle_erf_inv),
    (elementwise::POW, elementwise::handle_pow),
    (scatter_add::TARGET, scatter_add::handle),
    (search_sorted::TARGET, search_sorted::handle),
    (select_and_scatter::TARGET, select_and_scatter::handle),
    (sort::TARGET, sort::handle),
    (sort::INTEGERS, sort::handle_integers),
    (filter_window::TARGET, filter_window::handle),
    (filter_window::CONVOLUTION, filter_window::handle_convolution),
    (filter_window::WINOGRAD, filter_window::handle_winograd),
    (filter_window::WINOGRAD_GRADIENT, filter_window::handle_winograd_gradient),
    (filter_window::GROUPS, filter_window::handle_groups),
    (filter_window::GROUPS_GRADIENT, filter_window::handle_groups_gradient),
    (filter_window::DEPTHWISE, filter_window::handle_depthwise),
    (softmax::TARGET, softmax::handle),
    (tall_matrix::TARGET, tall_matrix::handle),
    (top_k::TARGET, top_k::handle),
    (transpose::TARGET, transpose::handle),
    (weighted_sums::TARGET, weighted_sums::handle),
    (attention::TARGET, attention::handle),
    (attention::GRADIENT, attention::handle_gradient),
    #[cfg(feature = "decompositions")]
    (decompositions::CHOLESKY, decompositions::handle_cholesky),
    #[cfg(feature = "decompositions")]
    (decompositions::QR, decompositions::handle_qr),
    #[cfg(feature = "decompositions")]
    (decompositions::EIGH, decompositions::handle_eigh),
    #[cfg(feature = "decompositions")]
    (decompositions::SVD, decompositions::handle_svd),
    #[cfg(feature = "decompositions")]
    (decompositions::EIGVALSH, decompositions::handle_eigvalsh),
    #[cfg(feature = "decompositions")]
    (decompositions::SVDVALS, decompositions::handle_svdvals),
    #[cfg(feature = "decompositions")]
    (decompositions::LU, decompositions::handle_lu),
    #[cfg(feature = "decompositions")]
    (decompositions::TRIANGULAR_SOLVE, decompositions::handle_triangular_solve),
];

/// Registers the handlers with XLA, once. This must happen before a program that calls one is compiled or loaded.
pub(crate) fn register() -> Result<()> {
    static REGISTERED: OnceLock<Result<()>> = OnceLock::new();
    // XLA keeps handlers for the lifetime of the process, and a failure is the same for every caller.
    let registered = REGISTERED.get_or_init(|| {
        let client = client()?;
        let plugin = client.pjrt.plugin();
        for &(target, handle) in HANDLERS {
            ffi::register(plugin, target, handle)?;
        }
        Ok(())
    });
    registered.clone()
}

/// The number of threads of a call. Devices that compute concurrently share the cores.
fn threads(cx: &Lowering) -> usize {
    if cx.many_devices { 1 } else { std::thread::available_parallelism().map_or(1, |n| n.get()) }
}

/// Writes a call of a handler on row-major arrays, with these numbers and the number of threads as attributes.
fn call(cx: &mut Lowering, target: &str, args: &[Value], numbers: &[(&str, i64)], outs: &[Aval]) -> Vec<Value> {
    let numbers: String = numbers.iter().map(|(name, n)| format!("{name} = {n} : i64, ")).collect();
    call_with(cx, target, args, &numbers, outs)
}

/// Like [`call`], with attributes as text. Each attribute ends with a comma.
fn call_with(cx: &mut Lowering, target: &str, args: &[Value], attributes: &str, outs: &[Aval]) -> Vec<Value> {
    let threads = threads(cx);
    let operands = row_major_layouts(args.iter().map(|&v| cx.shape(v).len()));
    let results = row_major_layouts(outs.iter().map(Aval::rank));
    let attrs = format!(
        "call_target_name = \"{target}\", api_version = 4 : i32, backend_config = {{{attributes}threads = {threads} : i64}}, \
         operand_layouts = [{operands}], result_layouts = [{results}]"
    );
    cx.op_with("stablehlo.custom_call", args, &attrs, Vec::new(), outs)
}

/// The dtype that a kernel computes in: f32 for half precision, whose sums are rounded once.
fn widened(dtype: DType) -> DType {
    if matches!(dtype, DType::Bf16 | DType::F16) { DType::F32 } else { dtype }
}

/// Converts `v`, unless it is of this dtype already.
fn convert(cx: &mut Lowering, v: Value, dtype: DType) -> Value {
    if cx.dtype(v) == dtype {
        return v;
    }
    let converted = cx.aval(v).with_dtype(dtype);
    cx.op("stablehlo.convert", &[v], "", &converted)
}

/// Transposes `v`, unless its dimensions are in this order already.
fn transpose(cx: &mut Lowering, v: Value, order: &[usize]) -> Value {
    if order.iter().copied().eq(0..order.len()) {
        return v;
    }
    let aval = cx.aval(v);
    let moved = Aval::new(aval.dtype, order.iter().map(|&d| aval.shape[d]).collect::<Shape>());
    cx.op("stablehlo.transpose", &[v], &format!("permutation = {}", ints(order)), &moved)
}

/// Reshapes `v`.
fn reshape(cx: &mut Lowering, v: Value, shape: &[usize]) -> Value {
    let aval = Aval::new(cx.dtype(v), Shape::from_slice(shape));
    cx.op("stablehlo.reshape", &[v], "", &aval)
}

/// Returns a number from the attributes of a call.
fn number(frame: &CallFrame<'_>, name: &str) -> std::result::Result<usize, String> {
    let number = frame.attr(name).and_then(|a| a.as_i64()).ok_or_else(|| format!("the call has no {name}"))?;
    usize::try_from(number).map_err(|e| format!("{name} is {number}: {e}"))
}

/// Views an argument of these dimensions.
fn view<'a, T: FromBytes + Immutable>(arg: &Arg<'a>, shape: &'a [usize]) -> std::result::Result<View<'a, T>, String> {
    Ok(View::new(shape, numbers(arg)?)?)
}

/// The elements of an argument.
fn numbers<'a, T: FromBytes + Immutable>(arg: &Arg<'a>) -> std::result::Result<&'a [T], String> {
    <[T]>::ref_from_bytes(arg.data).map_err(|e| e.to_string())
}

/// The elements of a result. A kernel must write all of them.
fn numbers_mut<'a, T: FromBytes + IntoBytes>(ret: &'a mut Ret<'_>) -> std::result::Result<&'a mut [T], String> {
    <[T]>::mut_from_bytes(ret.data_to_overwrite()).map_err(|e| e.to_string())
}

/// The dimensions of an argument or a result.
fn sizes(dims: &[i64]) -> Shape {
    dims.iter().map(|&d| d as usize).collect()
}

/// Returns the number of elements along these dimensions.
fn size_of_dims(shape: &[usize], dims: &[usize]) -> usize {
    dims.iter().map(|&d| shape[d]).product()
}

/// Returns row-major layouts of arrays with these ranks, as attributes.
fn row_major_layouts(ranks: impl Iterator<Item = usize>) -> String {
    let layouts = ranks.map(|rank| {
        let dims: Vec<String> = (0..rank).rev().map(|d| d.to_string()).collect();
        format!("dense<[{}]> : tensor<{rank}xindex>", dims.join(", "))
    });
    layouts.collect::<Vec<_>>().join(", ")
}
