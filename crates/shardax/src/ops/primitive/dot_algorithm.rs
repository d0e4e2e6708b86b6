//! Matrix multiplications by a named algorithm.

use super::dot::DotGeneral;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::Primitive;
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::error::{Result, err};
use crate::precision::DotAlgorithmPreset::{self, *};

/// The types of the operands, the first of which others are converted to, the type of parts of operands in StableHLO, the
/// type of sums, and the number of products.
fn parameters(preset: DotAlgorithmPreset) -> (&'static [DType], &'static str, DType, usize) {
    let halves: &[DType] = &[DType::F32, DType::Bf16];
    match preset {
        F16F16F16 => (&[DType::F16], "f16", DType::F16, 1),
        F16F16F32 => (&[DType::F16], "f16", DType::F32, 1),
        Bf16Bf16Bf16 => (&[DType::Bf16], "bf16", DType::Bf16, 1),
        Bf16Bf16F32 => (halves, "bf16", DType::F32, 1),
        Bf16Bf16F32X3 => (halves, "bf16", DType::F32, 3),
        Bf16Bf16F32X6 => (halves, "bf16", DType::F32, 6),
        Bf16Bf16F32X9 => (halves, "bf16", DType::F32, 9),
        Tf32Tf32F32 => (&[DType::F32], "tf32", DType::F32, 1),
        Tf32Tf32F32X3 => (&[DType::F32], "tf32", DType::F32, 3),
        F32F32F32 => (&[DType::F32], "f32", DType::F32, 1),
        F64F64F64 => (&[DType::F64], "f64", DType::F64, 1),
    }
}

/// The attribute of StableHLO's `dot_general`.
fn attribute(preset: DotAlgorithmPreset) -> String {
    let (_, parts, sums, count) = parameters(preset);
    format!(
        "algorithm = #stablehlo.dot_algorithm<lhs_precision_type = {parts}, rhs_precision_type = {parts}, accumulation_type = {}, lhs_component_count = 1, rhs_component_count = 1, num_primitive_operations = {count}, allow_imprecise_accumulation = false>",
        sums.mlir()
    )
}

/// Writes a product by this algorithm. Fails for one that CPUs do not have, on CPU, and for operands that are not real
/// floating-point numbers.
pub(super) fn lower(
    dot: &DotGeneral,
    preset: DotAlgorithmPreset,
    cx: &mut Lowering,
    args: &[Value],
    out: &Aval,
) -> Result<Value> {
    let name = preset.name();
    if let Some(&odd) = args.iter().find(|&&v| !cx.dtype(v).is_float()) {
        return Err(err!(Type, "the precision '{name}' is for floating-point operands, got {}", cx.aval(odd))
            .help("leave the precision out, or convert the operands with `astype`"));
    }
    let (types, _, sums, _) = parameters(preset);
    let known = matches!(preset, F16F16F16 | Bf16Bf16F32 | Bf16Bf16F32X3 | Bf16Bf16F32X6 | F32F32F32 | F64F64F64);
    if cx.on_cpu() && !known {
        return Err(err!(NotImplemented, "The precision '{name}' is not supported by dot_general on CPU").help(
            "on CPU there are F16_F16_F16, BF16_BF16_F32 (also _X3 and _X6), F32_F32_F32 and F64_F64_F64; or leave the precision out",
        ));
    }
    let mut converted = |v: Value| match types.contains(&cx.dtype(v)) {
        true => v,
        false => cx.op("stablehlo.convert", &[v], "", &cx.aval(v).with_dtype(types[0])),
    };
    let args = [converted(args[0]), converted(args[1])];
    // CPUs compute with operands of these types as they do without an algorithm.
    let plain = DotGeneral { precision: None, preferred: None, ..dot.clone() };
    let from = cx.dtype(args[0]);
    let natural = if cx.on_cpu() { from } else { sums };
    let made = match cx.on_cpu() {
        true if from == cx.dtype(args[1]) => plain.lower(cx, &args, &[out.with_dtype(natural)])?[0],
        true => {
            let wide = args.map(|v| cx.op("stablehlo.convert", &[v], "", &cx.aval(v).with_dtype(DType::F32)));
            plain.lower(cx, &wide, &[out.with_dtype(DType::F32)])?[0]
        }
        false => {
            let attrs = format!("{}, {}", plain.attributes(), attribute(preset));
            cx.op("stablehlo.dot_general", &args, &attrs, &out.with_dtype(natural))
        }
    };
    Ok(match cx.dtype(made) == out.dtype {
        true => made,
        false => cx.op("stablehlo.convert", &[made], "", out),
    })
}
