//! Kernels as functions of the dialects that XLA compiles for GPUs (Triton's) and TPUs (Mosaic's). A program contains
//! them as custom calls with text.

mod carried;
mod equations;
mod mosaic;
mod text;
mod triton;

use text::Val;

use crate::backend::rules::Lowered;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::Primitive;
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::error::{Error, Result, err};
use crate::ops::pallas::primitive::{Block, Kernel};
use crate::ops::pallas::spec::BlockDim;

/// Writes the call of a kernel on a GPU.
pub(super) fn on_gpu(kernel: &Kernel, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Lowered {
    call(kernel, triton::call, cx, args, outs)
}

/// Writes the call of a kernel on a TPU.
pub(super) fn on_tpu(kernel: &Kernel, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Lowered {
    call(kernel, mosaic::call, cx, args, outs)
}

fn call(
    kernel: &Kernel,
    write: fn(&Kernel) -> Result<String>,
    cx: &mut Lowering,
    args: &[Value],
    outs: &[Aval],
) -> Lowered {
    if kernel.interpret {
        return Ok(None);
    }
    if !cx.is_local() {
        return Err(err!(
            NotImplemented,
            "pallas_call {} cannot be automatically partitioned over devices: each would gather its operands",
            kernel.name
        )
        .help("call it inside of `shard_map`, on the part of each device"));
    }
    let called = write(kernel).map_err(|e: Error| {
        let helped = e.help_text().is_some();
        let e = e.context(format!("pallas_call {} on {}", kernel.name, cx.platform.text()));
        if helped { e } else { e.help(HELP) }
    })?;
    let operands: Vec<String> = args.iter().map(|&arg| row_major(cx.shape(arg).len())).collect();
    let results: Vec<String> = outs.iter().map(|out| row_major(out.rank())).collect();
    let aliases: Vec<String> = kernel
        .aliases
        .iter()
        .map(|(input, output)| {
            let tuple = if outs.len() == 1 { String::new() } else { output.to_string() };
            format!(
                "#stablehlo.output_operand_alias<output_tuple_indices = [{tuple}], operand_index = {input}, \
             operand_tuple_indices = []>"
            )
        })
        .collect();
    let attrs = format!(
        "{called}, mhlo.frontend_attributes = {{matmul_flops = \"{:.0}\"}}, operand_layouts = [{}], result_layouts = [{}], output_operand_aliases = [{}]",
        // For `matmul_flops` of the compiled program.
        kernel.flops(&[], &[]).matmuls,
        operands.join(", "),
        results.join(", "),
        aliases.join(", ")
    );
    Ok(Some(cx.op_with("stablehlo.custom_call", args, &attrs, Vec::new(), outs)))
}

const HELP: &str = "use another function on this platform with `platform_dependent`, or run the kernel as a loop with `.interpret(true)`";

fn row_major(rank: usize) -> String {
    match rank {
        1 => "dense<0> : tensor<1xindex>".to_owned(),
        0 => "dense<> : tensor<0xindex>".to_owned(),
        rank => format!("dense<{:?}> : tensor<{rank}xindex>", (0..rank).rev().collect::<Vec<_>>()),
    }
}

/// Escapes a text for a string of MLIR.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\5C").replace('"', "\\22").replace('\n', "\\0A")
}

/// The name of the kernel as a symbol.
fn symbol(kernel: &Kernel) -> String {
    let plain = kernel.name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' });
    "kernel_".chars().chain(plain).collect()
}

/// Fails for blocks that these platforms do not support.
fn check_block(block: &Block) -> Result<()> {
    if block.dims.iter().any(|dim| matches!(dim, BlockDim::Element { .. })) {
        return Err(err!(NotImplemented, "Element blocks are not supported: {:?}", block.dims));
    }
    if block.array.dtype == DType::Bool {
        return Err(err!(NotImplemented, "arrays of booleans are not supported: {}", block.array)
            .help("pass them as int32, and compare in the kernel"));
    }
    Ok(())
}

fn next_position<'a>(positions: &mut std::slice::Iter<'a, Val>) -> Result<&'a Val> {
    positions.next().ok_or_else(|| err!(Runtime, "internal error: a position of a ref is missing; please report this"))
}
