//! Matrix multiplications by a named algorithm.

use super::dot::DotGeneral;
use crate::core::lower::{Lowering, Value};
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

/// Fails for operands that are not real floating-point numbers.
pub(crate) fn check(preset: DotAlgorithmPreset, cx: &Lowering, args: &[Value]) -> Result<()> {
    match args.iter().find(|&&v| !cx.dtype(v).is_float()) {
        Some(&odd) => {
            let name = preset.name();
            Err(err!(Type, "the precision '{name}' is for floating-point operands, got {}", cx.aval(odd))
                .help("leave the precision out, or convert the operands with `astype`"))
        }
        None => Ok(()),
    }
}

/// The operands in types of the algorithm.
pub(crate) fn operands(preset: DotAlgorithmPreset, cx: &mut Lowering, args: &[Value]) -> [Value; 2] {
    let (types, ..) = parameters(preset);
    [args[0], args[1]].map(|v| {
        if types.contains(&cx.dtype(v)) {
            v
        } else {
            cx.op("stablehlo.convert", &[v], "", &cx.aval(v).with_dtype(types[0]))
        }
    })
}

/// The product in the type of the result.
pub(crate) fn result(cx: &mut Lowering, product: Value, out: &Aval) -> Value {
    if cx.dtype(product) == out.dtype { product } else { cx.op("stablehlo.convert", &[product], "", out) }
}

/// Writes a product by this algorithm.
pub(super) fn lower(
    dot: &DotGeneral,
    preset: DotAlgorithmPreset,
    cx: &mut Lowering,
    args: &[Value],
    out: &Aval,
) -> Result<Value> {
    check(preset, cx, args)?;
    let args = operands(preset, cx, args);
    let (_, _, sums, _) = parameters(preset);
    let attrs = format!("{}, {}", dot.plain().attributes(), attribute(preset));
    let product = cx.op("stablehlo.dot_general", &args, &attrs, &out.with_dtype(sums));
    Ok(result(cx, product, out))
}

impl DotGeneral {
    /// The product without an algorithm, and of the operands' type.
    pub(crate) fn plain(&self) -> DotGeneral {
        DotGeneral { precision: None, preferred: None, ..self.clone() }
    }
}
