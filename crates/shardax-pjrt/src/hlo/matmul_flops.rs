//! Floating-point operations of the matmuls and convolutions of an optimized program, including library calls.

use std::collections::HashMap;

use prost::Message;

use super::InstructionProto;
use crate::element::ElementType;

#[derive(Clone, PartialEq, Message)]
pub(super) struct DotDimensionsProto {
    #[prost(int64, repeated, tag = "1")]
    lhs_contracting: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ConvolutionDimensionsProto {
    #[prost(int64, tag = "4")]
    kernel_output_feature: i64,
    #[prost(int64, repeated, tag = "11")]
    input_spatial: Vec<i64>,
    #[prost(int64, repeated, tag = "12")]
    output_spatial: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WindowProto {
    #[prost(message, repeated, tag = "1")]
    dimensions: Vec<WindowDimensionProto>,
}

#[derive(Clone, PartialEq, Message)]
struct WindowDimensionProto {
    #[prost(int64, tag = "1")]
    size: i64,
    #[prost(int64, tag = "2")]
    stride: i64,
    #[prost(int64, tag = "3")]
    padding_low: i64,
    #[prost(int64, tag = "5")]
    window_dilation: i64,
    #[prost(int64, tag = "6")]
    base_dilation: i64,
}

/// The element type and dimensions of an array.
type Array = (ElementType, Vec<i64>);

/// The frontend attribute of a custom call with the operations of its kernel.
const KERNEL_FLOPS_ATTRIBUTE: &str = "matmul_flops";

/// The operations of an instruction: a multiplication and an addition for each element of the result and each
/// contracted element. Every element of a convolution counts as if it were far from the padding; multiplications with
/// the gaps of a dilated operand do not count. 0 for other instructions.
pub(super) fn matmul_flops(instruction: &InstructionProto, all: &HashMap<i64, &InstructionProto>) -> f64 {
    // Other instructions, such as the ones that unpack a kernel's results, inherit the attribute.
    let is_call = instruction.opcode == "custom-call";
    let attributes = instruction.frontend_attributes.as_ref().filter(|_| is_call);
    if let Some(flops) = attributes.and_then(|all| all.attributes.get(KERNEL_FLOPS_ATTRIBUTE)) {
        return flops.parse().unwrap_or(0.0);
    }
    let mut operands = instruction.operand_ids.iter().map(|id| array(all.get(id)?));
    let (Some(Some(left)), Some(Some(right)), Some(result)) = (operands.next(), operands.next(), array(instruction))
    else {
        return 0.0;
    };
    // For gradients, the library call has their operands and the window of the original convolution.
    let sums = match (instruction.opcode.as_str(), instruction.custom_call_target.as_str()) {
        ("dot", _) => contracted(instruction, &left) * size(&result),
        ("convolution", _) => {
            elements_per_result(instruction, &right) * used_fraction(instruction, &left, &result) * size(&result)
        }
        ("custom-call", "__cudnn$convBackwardInput") => elements_per_result(instruction, &right) * size(&left),
        ("custom-call", "__cudnn$convBackwardFilter") => elements_per_result(instruction, &result) * size(&right),
        ("custom-call", name) if name.starts_with("__cudnn$conv") => {
            elements_per_result(instruction, &right) * size(&result)
        }
        ("custom-call", name) if name.starts_with("__cudnn$fmha") => attention_products(name, &left, &right),
        ("custom-call", name) if name.starts_with("__cublas$") => library_products(&left, &right, &result),
        _ => 0.0,
    };
    // A complex multiplication is four multiplications and two additions.
    let parts = if matches!(left.0, ElementType::C64 | ElementType::C128) { 4.0 } else { 1.0 };
    2.0 * parts * sums
}

/// The shape of the result, or of the first of several.
fn array(instruction: &InstructionProto) -> Option<Array> {
    let mut leaves = Vec::new();
    instruction.shape.as_ref()?.leaves(&mut leaves);
    leaves.into_iter().next()
}

fn size(array: &Array) -> f64 {
    array.1.iter().map(|&n| n as f64).product()
}

fn contracted(dot: &InstructionProto, left: &Array) -> f64 {
    let dims = dot.dot_dimensions.iter().flat_map(|d| &d.lhs_contracting);
    dims.filter_map(|&d| left.1.get(usize::try_from(d).ok()?)).map(|&n| n as f64).product()
}

/// The number of kernel elements that contribute to an element of the result.
fn elements_per_result(convolution: &InstructionProto, kernel: &Array) -> f64 {
    let features = convolution.convolution_dimensions.as_ref().map_or(0, |d| d.kernel_output_feature);
    let features = usize::try_from(features).ok().and_then(|d| kernel.1.get(d)).map_or(1.0, |&n| n as f64);
    size(kernel) / features.max(1.0)
}

/// The fraction of the kernel that multiplies elements of the operand. TPUs compute batched matmuls and outer products
/// as convolutions whose windows are mostly in padding or gaps.
fn used_fraction(convolution: &InstructionProto, left: &Array, result: &Array) -> f64 {
    let (Some(window), Some(dims)) = (&convolution.window, &convolution.convolution_dimensions) else { return 1.0 };
    let fractions = window.dimensions.iter().enumerate().map(|(k, dimension)| {
        let elements = spatial_size(left, &dims.input_spatial, k);
        let positions = spatial_size(result, &dims.output_spatial, k);
        used_along(dimension, elements, positions)
    });
    fractions.product()
}

/// The size of an array along spatial dimension `k`.
fn spatial_size(array: &Array, dims: &[i64], k: usize) -> i64 {
    dims.get(k).and_then(|&d| array.1.get(usize::try_from(d).ok()?)).copied().unwrap_or(1)
}

fn count_steps(length: i64, step: i64) -> i64 {
    (length.max(0) + step - 1) / step
}

/// The fraction of the window that multiplies elements along one dimension, at the position where it is largest.
fn used_along(dimension: &WindowDimensionProto, elements: i64, positions: i64) -> f64 {
    let gaps = if elements > 1 { dimension.base_dilation.max(1) } else { 1 };
    let (length, step) = ((elements - 1) * gaps + 1, dimension.window_dilation.max(1));
    (0..positions)
        .map(|position| {
            let start = position * dimension.stride - dimension.padding_low;
            // Elements beyond the ends do not count, and the window is no larger than the kernel.
            (count_steps(length - start, step).min(dimension.size) - count_steps(-start, step)).max(0)
        })
        .max()
        .unwrap_or(0) as f64
        / (dimension.size * gaps).max(1) as f64
}

/// The multiplications of a matmul `[…, m, k]` by `[…, k, n]`, with the last two dimensions in any order. The
/// contracted size follows from the three shapes, although only the call's configuration names the contracted
/// dimensions.
fn library_products(left: &Array, right: &Array, result: &Array) -> f64 {
    let batch: f64 = result.1.iter().rev().skip(2).map(|&n| n as f64).product();
    let contracted = (size(left) * size(right) / (size(result) * batch).max(1.0)).sqrt();
    contracted * size(result)
}

/// The multiplications of attention with queries `[batch, queries, heads, depth]` and keys `[batch, keys, …]`. The
/// forward pass computes scores and output. The gradient computes the scores again, and two matmuls for each of both.
fn attention_products(name: &str, queries: &Array, keys: &Array) -> f64 {
    let matmuls = if name.ends_with("Backward") { 5.0 } else { 2.0 };
    matmuls * size(queries) * keys.1.get(1).map_or(0.0, |&n| n as f64)
}

#[cfg(test)]
mod tests {
    use super::super::ShapeProto;
    use super::*;

    fn instruction(id: i64, opcode: &str, sizes: &[i64], operands: &[i64]) -> InstructionProto {
        let shape = ShapeProto { element_type: 11, dimensions: sizes.to_vec(), ..ShapeProto::default() };
        let (opcode, operand_ids) = (opcode.to_owned(), operands.to_vec());
        InstructionProto { id, opcode, shape: Some(shape), operand_ids, ..InstructionProto::default() }
    }

    fn counted(left: &[i64], right: &[i64], product: &InstructionProto) -> f64 {
        let operands = [instruction(1, "parameter", left, &[]), instruction(2, "parameter", right, &[])];
        matmul_flops(product, &operands.iter().map(|i| (i.id, i)).collect())
    }

    fn spatial(kernel_output_feature: i64, dims: &[i64]) -> ConvolutionDimensionsProto {
        let (input_spatial, output_spatial) = (dims.to_vec(), dims.to_vec());
        ConvolutionDimensionsProto { kernel_output_feature, input_spatial, output_spatial }
    }

    #[test]
    fn two_for_each_multiply_add() {
        let dot = InstructionProto {
            dot_dimensions: Some(DotDimensionsProto { lhs_contracting: vec![1] }),
            ..instruction(3, "dot", &[4, 5, 7], &[1, 2])
        };
        assert_eq!(counted(&[4, 6, 5], &[4, 6, 7], &dot), 2.0 * 4.0 * 5.0 * 6.0 * 7.0);
        assert_eq!(counted(&[8], &[8], &instruction(3, "add", &[8], &[1, 2])), 0.0);
    }

    /// A convolution with windows of 3 × 3, by XLA or by a library call.
    fn convolution_2d(opcode: &str, target: &str, result: &[i64], base_dilation: i64) -> InstructionProto {
        let dim = WindowDimensionProto { size: 3, stride: 1, padding_low: 1, window_dilation: 1, base_dilation };
        InstructionProto {
            custom_call_target: target.to_owned(),
            convolution_dimensions: Some(spatial(3, &[1, 2])),
            window: Some(WindowProto { dimensions: vec![dim; 2] }),
            ..instruction(3, opcode, result, &[1, 2])
        }
    }

    fn convolution_1d(result: &[i64], dim: WindowDimensionProto) -> InstructionProto {
        InstructionProto {
            convolution_dimensions: Some(spatial(1, &[2])),
            window: Some(WindowProto { dimensions: vec![dim] }),
            ..instruction(3, "convolution", result, &[1, 2])
        }
    }

    fn custom_call(target: &str) -> InstructionProto {
        InstructionProto {
            custom_call_target: target.to_owned(),
            ..instruction(3, "custom-call", &[2, 4, 6, 8], &[1, 2])
        }
    }

    #[test]
    fn convolutions_and_their_gradients_by_a_library() {
        // 2 images of 8 × 8 and 3 features, kernels of 3 × 3 to 5 features.
        let [image, kernel, out] = [[2, 8, 8, 3], [3, 3, 3, 5], [2, 8, 8, 5]];
        let expected = 2.0 * f64::from(2 * 8 * 8 * 5 * 3 * 3 * 3);
        assert_eq!(counted(&image, &kernel, &convolution_2d("convolution", "", &out, 1)), expected);
        assert_eq!(counted(&[2, 4, 4, 3], &kernel, &convolution_2d("convolution", "", &out, 2)), expected / 4.0);
        assert_eq!(counted(&image, &kernel, &convolution_2d("custom-call", "__cudnn$convForward", &out, 1)), expected);
        assert_eq!(
            counted(&out, &kernel, &convolution_2d("custom-call", "__cudnn$convBackwardInput", &image, 1)),
            expected
        );
        assert_eq!(
            counted(&image, &out, &convolution_2d("custom-call", "__cudnn$convBackwardFilter", &kernel, 1)),
            expected
        );
    }

    // The form in which TPUs write matmuls with a dimension that only one operand has: 7 columns, and a batch of 8.
    #[test]
    fn matmuls_as_convolutions() {
        let outer = WindowDimensionProto { size: 7, stride: 1, padding_low: 6, window_dilation: 1, base_dilation: 1 };
        assert_eq!(counted(&[4, 5, 1], &[5, 6, 7], &convolution_1d(&[4, 6, 7], outer)), 2.0 * f64::from(4 * 5 * 6 * 7));
        let batch = WindowDimensionProto { size: 8, stride: 7, padding_low: 0, window_dilation: 1, base_dilation: 8 };
        assert_eq!(counted(&[4, 5, 8], &[5, 6, 8], &convolution_1d(&[4, 6, 8], batch)), 2.0 * f64::from(8 * 4 * 5 * 6));
    }

    #[test]
    fn attention_by_a_library_and_kernels() {
        // 4 heads of 8 features, 6 queries and 10 keys.
        let matmul = 2.0 * f64::from(2 * 4 * 6 * 10 * 8);
        let [queries, keys] = [[2, 6, 4, 8], [2, 10, 2, 8]];
        assert_eq!(counted(&queries, &keys, &custom_call("__cudnn$fmhaSoftmax")), 2.0 * matmul);
        assert_eq!(counted(&queries, &keys, &custom_call("__cudnn$fmhaScaleBiasSoftmaxBackward")), 5.0 * matmul);
        let attributes = HashMap::from([(KERNEL_FLOPS_ATTRIBUTE.to_owned(), "123".to_owned())]);
        let kernel = InstructionProto {
            frontend_attributes: Some(super::super::FrontendAttributesProto { attributes }),
            ..custom_call("tpu_custom_call")
        };
        assert_eq!(counted(&queries, &keys, &kernel), 123.0);
        let part = InstructionProto { opcode: "get-tuple-element".to_owned(), ..kernel };
        assert_eq!(counted(&queries, &keys, &part), 0.0);
    }

    #[test]
    fn matmuls_by_a_library() {
        let call = InstructionProto {
            custom_call_target: "__cublas$gemm".to_owned(),
            ..instruction(3, "custom-call", &[3, 4, 5], &[1, 2])
        };
        assert_eq!(counted(&[3, 4, 6], &[3, 6, 5], &call), 2.0 * 3.0 * 4.0 * 5.0 * 6.0);
        assert_eq!(counted(&[3, 4, 6], &[3, 5, 6], &call), 2.0 * 3.0 * 4.0 * 5.0 * 6.0);
    }
}
