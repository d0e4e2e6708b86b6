//! Handlers get operands without elements.

use shardax_pjrt::{CompileOptions, Signature};

use super::*;

/// The attributes of a window of one element.
const WINDOW: &str = "stride_0=1 stride_1=1 stride_2=1 dilation_0=1 dilation_1=1 dilation_2=1 low_0=0 low_1=0 low_2=0 \
                      base_0=1 base_1=1 base_2=1 groups=2 channels_first=0 window_0=1 window_1=1 window_2=1 min=0";

/// A call of each target: the operands, the attributes and the results.
const CALLS: &[(&str, &str, &str, &str)] = &[
    (matmul::TARGET, "2x3x0xf32 2x0x4xf32", "lhs=2 rhs=1", "2x3x4xf32"),
    (few_rows::TARGET, "2x0xf32 0x3xbf16", "contracted=0", "2x3xf32"),
    (grouped::TARGET, "2x64xf32 0x2x32xi8 0x2xf32", "", "2x0xf32"),
    (low_precision::TARGET, "1x2x0xbf16 1x0x3xbf16", "lhs=2 rhs=1", "1x2x3xf32"),
    (cumulative::TARGET, "2x0x3xf64", "operation=0 reversed=0", "2x0x3xf64"),
    (random_gamma::TARGET, "0xui32 0xui32 0xf32", "", "0xf32"),
    (remainder::TARGET, "0xf64 0xf64", "", "0xf64"),
    (elementwise::SIN, "0xf32", "", "0xf32"),
    (elementwise::COS, "0xf64", "", "0xf64"),
    (elementwise::TAN, "0xf32", "", "0xf32"),
    (elementwise::LOG, "0xf64", "", "0xf64"),
    (elementwise::EXPM1, "0xf64", "", "0xf64"),
    (elementwise::SINH, "0xf64", "", "0xf64"),
    (elementwise::COSH, "0xf64", "", "0xf64"),
    (elementwise::ERF, "0xf64", "", "0xf64"),
    (elementwise::CBRT, "0xf64", "", "0xf64"),
    (elementwise::ERF_INV, "0xf32", "", "0xf32"),
    (elementwise::POW, "0xf32 0xf32", "", "0xf32"),
    (scatter_add::TARGET, "0xf32 0xi32 0xf32", "", "0xf32"),
    (search_sorted::TARGET, "0xf32 3xf32", "counts_equal=0", "3xi32"),
    (select_and_scatter::TARGET, "0x1x4x4x4xf32 0x1x4x4x4xf32", WINDOW, "0x1x4x4x4xf32"),
    (sort::TARGET, "2x0xf32 2x0xi32", "keys=1", "2x0xf32 2x0xi32"),
    (softmax::TARGET, "0x4x1xf32", "", "0x4x1xf32"),
    (tall_matrix::TARGET, "0xf32 0x3xf32", "", "3xf32"),
    (top_k::TARGET, "0x4xf32", "", "0x2xf32 0x2xi32"),
    (transpose::TARGET, "0x4xf32", "permutation=array<i64:1,0>", "4x0xf32"),
    (weighted_sums::TARGET, "2x0x3xf32 0x4xf32", "", "2x4x3xf32"),
    (sort::INTEGERS, "2x0xi64", "keys=1", "2x0xi64"),
    (filter_window::TARGET, "1x1x4x0x8xf32 1x1x4x0x4xf32", WINDOW, "1x1x1x8x4xf32"),
    (filter_window::CONVOLUTION, "0x1x4x4x8xf32 1x1x1x8x4xf32", WINDOW, "0x1x4x4x4xf32"),
    (filter_window::WINOGRAD, "0x1x6x6x32xf32 1x3x3x32x64xf32", WINDOW, "0x1x4x4x64xf32"),
    (filter_window::WINOGRAD_GRADIENT, "0x1x6x6x32xf32 0x1x4x4x64xf32", WINDOW, "1x3x3x32x64xf32"),
    (filter_window::GROUPS, "0x1x4x4x4xf32 1x1x1x2x4xf32", WINDOW, "0x1x4x4x4xf32"),
    (filter_window::GROUPS_GRADIENT, "0x1x4x4x4xf32 0x1x4x4x4xf32", WINDOW, "1x1x1x2x4xf32"),
    (filter_window::DEPTHWISE, "0x1x4x4x4xf32 0x1x4x4x4xf32", WINDOW, "1x1x1x1x4xf32"),
    #[cfg(feature = "decompositions")]
    (decompositions::CHOLESKY, "0x3x3xf64", "", "0x3x3xf64"),
    #[cfg(feature = "decompositions")]
    (decompositions::QR, "0x3x2xf64", "full=0", "0x3x2xf64 0x2x2xf64"),
    #[cfg(feature = "decompositions")]
    (decompositions::EIGH, "0x3x3xf64", "", "0x3x3xf64 0x3xf64"),
    #[cfg(feature = "decompositions")]
    (decompositions::SVD, "0x3x2xf64", "full=0", "0x3x2xf64 0x2xf64 0x2x2xf64"),
    #[cfg(feature = "decompositions")]
    (decompositions::EIGVALSH, "0x3x3xf64", "", "0x3xf64"),
    #[cfg(feature = "decompositions")]
    (decompositions::SVDVALS, "0x3x2xf64", "", "0x2xf64"),
    #[cfg(feature = "decompositions")]
    (decompositions::LU, "0x3x3xf64", "", "0x3x3xf64 0x3xi32 0x3xi32"),
    #[cfg(feature = "decompositions")]
    (decompositions::TRIANGULAR_SOLVE, "0x3x3xf64 0x3x2xf64", "left=1 lower=1 transposed=0 unit=0", "0x3x2xf64"),
    (attention::TARGET, "0x2x1x4xf32 0x3x1x4xf32 0x3x1x4xf32", "before=9 after=9", "0x2x1x4xf32 0x2x1xf32 0x2x1xf32"),
    (
        attention::GRADIENT,
        "0x2x1x4xf32 0x3x1x4xf32 0x3x1x4xf32 0x2x1xf32 0x2x1xf32 0x2x1x4xf32 0x2x1xf32",
        "before=9 after=9",
        "0x2x1x4xf32 0x3x1x4xf32 0x3x1x4xf32",
    ),
];

/// The functions that lower operations leave empty operands to XLA, but the handlers must not depend on it.
#[test]
fn operands_without_elements() -> Result<()> {
    register()?;
    let client = &client()?.pjrt;
    for (target, _) in HANDLERS {
        let call = CALLS.iter().find(|call| call.0 == *target);
        let (_, operands, attributes, results) = call.unwrap_or_else(|| panic!("no call of {target}"));
        let text = program(target, operands, attributes, results);
        let executable =
            client.compile(&text, &CompileOptions::default(), Signature { parameters: Default::default() });
        let executable = executable.unwrap_or_else(|error| panic!("{target}: {error}"));
        let result = executable.execute(&[]);
        let buffers = result.unwrap_or_else(|error| panic!("{target}: {error}"));
        for buffer in &buffers[0] {
            // The sum of no products is 0, and nothing is less than a value.
            let bytes = buffer.with_bytes(<[u8]>::to_vec).unwrap_or_else(|error| panic!("{target}: {error}"));
            assert!(bytes.iter().all(|byte| *byte == 0), "{target}: {bytes:?}");
        }
    }
    Ok(())
}

/// The types of arrays of these shapes.
fn tensor_types(shapes: &str) -> String {
    shapes.split(' ').map(|shape| format!("tensor<{shape}>")).collect::<Vec<_>>().join(", ")
}

/// An attribute, followed by a comma.
fn attribute(attribute: &str) -> String {
    let is_array = attribute.contains("array");
    attribute.replace('=', " = ") + if is_array { ", " } else { " : i64, " }
}

/// A program that calls a target with constants.
fn program(target: &str, operands: &str, attributes: &str, results: &str) -> String {
    let mut constants = String::new();
    for (i, shape) in operands.split(' ').enumerate() {
        let elements = match (shape.contains("x0x") || shape.starts_with("0x"), shape.contains("xi")) {
            (true, _) => "",
            (false, true) => "1",
            (false, false) => "1.0",
        };
        constants += &format!("%{i} = stablehlo.constant dense<{elements}> : tensor<{shape}>\n");
    }
    let names: Vec<String> = (0..operands.split(' ').count()).map(|i| format!("%{i}")).collect();
    let numbers: String = attributes.split_whitespace().map(attribute).collect();
    let count = results.split(' ').count();
    let outputs: Vec<String> = match count {
        1 => vec!["%r".into()],
        _ => (0..count).map(|i| format!("%r#{i}")).collect(),
    };
    let (operand_types, result_types, names) = (tensor_types(operands), tensor_types(results), names.join(", "));
    // With an effect, the compiler keeps calls whose results have no elements.
    format!(
        "func.func @main() -> ({result_types}) {{
          {constants}
          %r:{count} = stablehlo.custom_call @{target}({names}) {{api_version = 4 : i32, has_side_effect = true,
              backend_config = {{{numbers}threads = 1 : i64}}}} : ({operand_types}) -> ({result_types})
          return {} : {result_types}
        }}",
        outputs.join(", ")
    )
}
