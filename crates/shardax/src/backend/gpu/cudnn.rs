//! cuDNN's fused attention on NVIDIA GPUs: XLA's custom calls, as JAX writes them for
//! `dot_product_attention(implementation="cudnn")`.

use crate::backend::fused_attention::{Fused, is_of_one_query};
use crate::backend::rules::Lowered;
use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::ops::constants::{full_dtype, zeros_dtype};
use crate::ops::lax::iota;
use crate::ops::primitive::attention::derivative::AttentionGradient;
use crate::ops::primitive::attention::unfused::reduced;
use crate::ops::primitive::attention::{Attention, HIDDEN, Implementation, Operands};
use crate::ops::select::where_;

const CUDNN: Fused = Fused { name: "cuDNN", implementation: Implementation::Cudnn };

/// The largest depth of a head that cuDNN supports on all GPUs with fused attention. From Hopper on it is 256.
const MAX_DEPTH: usize = 128;

/// A memory layout as an attribute: the dimensions from minor to major.
fn layout(order: &[usize]) -> String {
    match order {
        [only] => format!("dense<{only}> : tensor<1xindex>"),
        order => format!("dense<{order:?}> : tensor<{}xindex>", order.len()),
    }
}

fn row_major(rank: usize) -> String {
    layout(&(0..rank).rev().collect::<Vec<_>>())
}

/// Numbers in JSON for 64-bit fields of protocol buffers, which are strings.
fn quoted_numbers(numbers: &[usize]) -> String {
    numbers.iter().map(|n| format!("\"{n}\"")).collect::<Vec<_>>().join(",")
}

/// The dimension numbers of a matrix product in JSON.
fn dot_numbers(name: &str, [lhs, rhs]: [usize; 2], batch: [[usize; 2]; 2]) -> String {
    format!(
        "\"{name}_dot_dimension_numbers\":{{\"lhs_contracting_dimensions\":[{}],\"rhs_contracting_dimensions\":[{}],\
         \"lhs_batch_dimensions\":[{}],\"rhs_batch_dimensions\":[{}]}}",
        quoted_numbers(&[lhs]),
        quoted_numbers(&[rhs]),
        quoted_numbers(&batch[0]),
        quoted_numbers(&batch[1])
    )
}

/// Lowers attention to cuDNN's kernel, if it is applicable.
pub(super) fn forward(of: &Attention, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Lowered {
    if !is_wanted(of, cx, args) {
        return Ok(None);
    }
    if let Some(reason) = Call::reason_against(of, cx, args) {
        return CUDNN.lacks(of, cx, args, &reason);
    }
    if !cx.is_local() {
        return CUDNN.forward_of_parts(of, cx, args, outs);
    }
    let call = Call::new(of, cx, args);
    let operands = cx.expand(args, |args| Ok(call.operands(&Operands::of(of.present, args), None)))?;
    let mut results = vec![call.output(), call.per_query()];
    results.truncate(if of.residual { 2 } else { 1 });
    let call_results = call.write(cx, &operands, &results, "");
    let (shape, rows) = (outs[0].shape.clone(), call.rows.clone());
    let lengths = Operands::of(of.present, args).query_lengths;
    let results: Vec<Value> = call_results.into_iter().take(results.len()).chain(lengths).collect();
    let results = cx.expand(&results, |call_results| {
        let y = call_results[0].transpose([0, 2, 1, 3]).reshape(&shape[..]);
        if !of.residual {
            return Ok(vec![y]);
        }
        let mut lse = call_results[1].reshape(rows.as_slice());
        if let Some(lengths) = call_results.get(2) {
            // cuDNN does not write the logsumexp of padding, but a tangent must be finite there.
            let queries = rows[rows.len() - 1];
            let valid = iota(DType::I32, &[queries], 0).less(lengths.expand_dims(-1)).expand_dims(-2);
            lse = where_(valid, lse, HIDDEN);
        }
        let ones = full_dtype(rows.as_slice(), 1.0, DType::F32);
        Ok(vec![y, lse, ones])
    });
    results.map(Some)
}

/// Lowers the gradient of attention to cuDNN's kernel, if it is applicable.
pub(super) fn backward(gradient: &AttentionGradient, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Lowered {
    let of = &gradient.of;
    if !is_wanted(of, cx, args) {
        return Ok(None);
    }
    let (operands_present, n) = (of.present, of.present.count());
    let reason = Call::reason_against(of, cx, args).or_else(|| {
        let (queries, keys) = (cx.shape(args[0]), cx.shape(args[1]));
        let [queries, keys] = [queries, keys].map(|shape| shape[shape.len() - 3]);
        let is_odd = queries % 2 + keys % 2 > 0;
        let added = operands_present.bias || operands_present.mask || operands_present.segments;
        let sums = gradient.of_sum.then(|| "the logsumexp has a cotangent".to_owned());
        sums.or_else(|| (added && is_odd).then(|| format!("with a bias or mask {queries} x {keys} must be even")))
    });
    if let Some(reason) = reason {
        return CUDNN.lacks(of, cx, args, &reason);
    }
    if !cx.is_local() {
        return CUDNN.backward_of_parts(gradient, cx, args, outs);
    }
    let call = Call::new(of, cx, args);
    let operands = cx.expand(args, |args| {
        let lse = &args[n + 1] + args[n + 2].log();
        Ok(call.operands(&Operands::of(operands_present, args), Some([&lse, &args[n + 3], &args[n]])))
    })?;
    let mut results = vec![call.output(), call.keys_output(), call.keys_output()];
    results.extend(call.bias.map(|shape| Aval::new(call.dtype, shape)));
    let call_results = call.write(cx, &operands, &results, "Backward");
    let outs = outs.to_vec();
    cx.expand(&call_results[..results.len()], |call_results| {
        let first =
            call_results[..3].iter().zip(&outs).map(|(x, out)| x.transpose([0, 2, 1, 3]).reshape(&out.shape[..]));
        let dbias = call_results.get(3).zip(outs.get(3)).map(|(dbias, out)| {
            let rank = out.rank();
            // Reshapes from the dimensions of the call, which has the batch in one dimension, to the dimensions of the
            // bias.
            let mut shape = vec![out.shape[..rank - 3].iter().product::<usize>()];
            shape.extend(&out.shape[rank - 3..]);
            reduced(&dbias.astype(DType::F32), &shape).astype(out.dtype).reshape(&out.shape[..])
        });
        Ok(first.chain(dbias).collect())
    })
    .map(Some)
}

/// Returns `true` if the program can call cuDNN.
fn is_wanted(of: &Attention, cx: &Lowering, args: &[Value]) -> bool {
    let is_chosen = match of.implementation {
        Some(Implementation::Cudnn) => true,
        // A portable text may run without cuDNN.
        None | Some(Implementation::Flash) => !cx.portable,
        Some(Implementation::Xla | Implementation::Blockwise) => false,
    };
    is_chosen && !is_of_one_query(cx, args)
}

/// A call of cuDNN: the sizes, with the batch in one dimension.
struct Call {
    batch: usize,
    queries: usize,
    keys: usize,
    heads: usize,
    key_heads: usize,
    depth: usize,
    dtype: DType,
    scale: f64,
    is_causal: bool,
    is_padded: bool,
    /// The number of keys up to a query's position that the query attends to, if it does not attend to all.
    window: usize,
    /// The dimensions of the bias, which contains the mask.
    bias: Option<[usize; 4]>,
    /// The shape of a per-query value.
    rows: Vec<usize>,
}

impl Call {
    /// The reason why cuDNN cannot compute this, for people.
    fn reason_against(of: &Attention, cx: &Lowering, args: &[Value]) -> Option<String> {
        let [q, k, v] = [0, 1, 2].map(|i| cx.aval(args[i]));
        let rank = q.rank();
        let depth = q.shape[rank - 1];
        let (queries, keys) = (q.shape[rank - 3], k.shape[rank - 3]);
        let [before, after] = of.window.limits();
        let checks = [
            (!matches!(q.dtype, DType::Bf16 | DType::F16), "it takes bfloat16 and float16".to_owned()),
            (
                depth > MAX_DEPTH || depth == 0 || !depth.is_multiple_of(8) || v.shape[rank - 1] != depth,
                format!("the depth of all heads must be one multiple of 8 of at most {MAX_DEPTH}, not {depth}"),
            ),
            (of.cap().is_some(), "it has no soft cap".to_owned()),
            (q.size() == 0, "there are no queries".to_owned()),
            (after.is_some_and(|n| n > 0), "its windows end at a query's own position".to_owned()),
            (before.is_some() && after.is_none(), "its windows end at a query's own position".to_owned()),
            (before.is_some() && queries > keys, "a window leaves some queries without keys".to_owned()),
        ];
        checks.into_iter().find(|(fails, _)| *fails).map(|(_, reason)| reason)
    }

    fn new(of: &Attention, cx: &Lowering, args: &[Value]) -> Self {
        let (q, k) = (cx.shape(args[0]), cx.shape(args[1]));
        let rank = q.len();
        let (batch, queries, keys, heads) = (&q[..rank - 3], q[rank - 3], k[rank - 3], q[rank - 2]);
        let x = Operands::of(of.present, args);
        let [before, after] = of.window.limits();
        let size: usize = batch.iter().product();
        let added: Vec<Value> = x.bias.into_iter().chain(x.mask).collect();
        // cuDNN broadcasts a bias over the batch and over the heads.
        let bias = (!added.is_empty() || x.segments.is_some()).then(|| {
            // The dimensions of the batch, and then the heads, that some operand depends on.
            let mut depends_on: Vec<bool> = (0..rank - 2).map(|d| added.iter().any(|&x| cx.shape(x)[d] != 1)).collect();
            let depends_on_heads = depends_on.pop() == Some(true);
            let depends_on_batch = x.segments.is_some() || depends_on.contains(&true);
            [if depends_on_batch { size } else { 1 }, if depends_on_heads { heads } else { 1 }, queries, keys]
        });
        Call {
            batch: size,
            queries,
            keys,
            heads,
            key_heads: k[rank - 2],
            depth: q[rank - 1],
            dtype: cx.dtype(args[0]),
            scale: of.factor(),
            is_causal: after == Some(0),
            is_padded: x.query_lengths.or(x.key_lengths).is_some(),
            window: before.map_or(0, |n| n as usize + 1),
            bias,
            rows: batch.iter().copied().chain([heads, queries]).collect(),
        }
    }

    /// The operands in cuDNN's order. A gradient also has the logsumexp, the output's cotangent and the output.
    fn operands(&self, x: &Operands, gradient: Option<[&Array; 3]>) -> Vec<Array> {
        let mut operands: Vec<Array> = [&x.q, &x.k, &x.v].map(|x| self.one_batch(x)).into();
        let output = gradient.map(|[lse, ct, y]| {
            operands.push(lse.reshape([self.batch, self.heads, self.queries]));
            operands.push(self.one_batch(ct));
            self.one_batch(y)
        });
        operands.extend(self.bias(x));
        operands.extend(output);
        if self.is_padded {
            operands.push(self.lengths(&x.query_lengths, self.queries));
            operands.push(self.lengths(&x.key_lengths, self.keys));
        }
        operands
    }

    /// Reshapes an array of positions to one batch dimension.
    fn one_batch(&self, x: &Array) -> Array {
        x.reshape([&[self.batch], &x.shape()[x.ndim() - 3..]].concat())
    }

    /// The lengths of sequences; without an operand all are complete.
    fn lengths(&self, lengths: &Option<Array>, complete: usize) -> Array {
        match lengths {
            Some(lengths) => lengths.astype(DType::I32).reshape([self.batch]),
            None => full_dtype([self.batch], complete as i32, DType::I32),
        }
    }

    /// The bias and the mask, combined to one bias.
    fn bias(&self, x: &Operands) -> Option<Array> {
        let shape = self.bias?;
        // The number must be large enough to hide a key, and small enough for a difference of two of them. These are
        // JAX's numbers.
        let masked = if self.dtype == DType::Bf16 { -(2f64.powi(41)) } else { -(2f64.powi(15)) };
        let mask =
            x.combined_mask().map(|mask| where_(mask, zeros_dtype((), self.dtype), full_dtype((), masked, self.dtype)));
        let bias = x.bias.as_ref().map(|bias| bias.astype(self.dtype));
        let bias = bias.into_iter().chain(mask).reduce(|a, b| a + b)?;
        let rank = bias.ndim();
        let batch = &x.q.shape()[..rank - 3];
        let batch: Vec<usize> = if shape[0] == 1 { vec![1; rank - 3] } else { batch.to_vec() };
        Some(bias.broadcast_to([batch.as_slice(), &shape[1..]].concat()).reshape(shape))
    }

    /// The output, or the gradient of the queries; cuDNN has the heads first.
    fn output(&self) -> Aval {
        Aval::new(self.dtype, [self.batch, self.heads, self.queries, self.depth])
    }

    /// The gradient of the keys or of the values.
    fn keys_output(&self) -> Aval {
        Aval::new(self.dtype, [self.batch, self.key_heads, self.keys, self.depth])
    }

    fn per_query(&self) -> Aval {
        Aval::new(DType::F32, &[self.batch, self.heads, self.queries][..])
    }

    /// Writes the call.
    fn write(&self, cx: &mut Lowering, operands: &[Value], results: &[Aval], suffix: &str) -> Vec<Value> {
        let name = if self.bias.is_some() { "fmhaScaleBiasSoftmax" } else { "fmhaSoftmax" };
        let workspace = Aval::new(DType::U8, &[0][..]);
        let outs: Vec<Aval> = results.iter().cloned().chain([workspace]).collect();
        let of_operands: Vec<String> = operands.iter().map(|&x| row_major(cx.shape(x).len())).collect();
        // Outputs and gradients have the memory layout of the queries; a bias does not.
        let of_results: Vec<String> = outs
            .iter()
            .enumerate()
            .map(|(i, out)| match out.rank() {
                4 if i < 3 => layout(&[3, 1, 2, 0]),
                rank => row_major(rank),
            })
            .collect();
        let attrs = format!(
            "call_target_name = \"__cudnn${name}{suffix}\", api_version = 2 : i32, backend_config = {:?}, \
             operand_layouts = [{}], result_layouts = [{}]",
            self.config(!suffix.is_empty()),
            of_operands.join(", "),
            of_results.join(", ")
        );
        cx.op_with("stablehlo.custom_call", operands, &attrs, Vec::new(), &outs)
    }

    /// The configuration: XLA's `GpuBackendConfig` in JSON.
    fn config(&self, is_gradient: bool) -> String {
        // XLA checks the dimension numbers of the products that the call replaces.
        const SCORES: [[usize; 2]; 2] = [[0, 1], [0, 2]];
        const POSITIONS: [[usize; 2]; 2] = [[0, 2], [0, 2]];
        let dots = if !is_gradient {
            vec![dot_numbers("bmm1", [3, 3], POSITIONS), dot_numbers("bmm2", [3, 1], SCORES)]
        } else {
            vec![
                dot_numbers("bmm1_grad_gemm1", [2, 1], SCORES),
                dot_numbers("bmm1_grad_gemm2", [3, 1], SCORES),
                dot_numbers("bmm2_grad_gemm1", [2, 1], SCORES),
                dot_numbers("bmm2_grad_gemm2", [3, 3], POSITIONS),
            ]
        };
        let element_type = if self.dtype == DType::Bf16 { "BF16" } else { "F16" };
        let mask_type = match (self.is_padded, self.is_causal) {
            (true, true) => "PADDING_CAUSAL",
            (true, false) => "PADDING",
            (false, true) => "CAUSAL",
            (false, false) => "NO_MASK",
        };
        let layout = "{\"dim_level_types\":[],\"dim_unique\":[],\"dim_ordered\":[],\"minor_to_major\":[\"3\",\"2\",\"1\",\"0\"],\
             \"tiles\":[],\"element_size_in_bits\":\"0\",\"memory_space\":\"0\",\
             \"index_primitive_type\":\"PRIMITIVE_TYPE_INVALID\",\"pointer_primitive_type\":\"PRIMITIVE_TYPE_INVALID\",\
             \"dynamic_shape_metadata_prefix_bytes\":\"0\"}";
        format!(
            "{{\"operation_queue_id\":\"0\",\"cudnn_fmha_backend_config\":{{\"algorithm\":{{\"algo_id\":\"0\",\
             \"math_type\":\"TENSOR_OP_MATH\",\"tuning_knobs\":{{\"17\":\"1\",\"24\":\"0\"}},\
             \"is_cudnn_frontend\":true,\"workspace_size\":\"0\"}},\"fmha_scale\":{:?},\
             \"intermediate_tensor_shape\":{{\"element_type\":\"{element_type}\",\"dimensions\":[{}],\
             \"tuple_shapes\":[],\"layout\":{layout},\"is_dynamic_dimension\":[false,false,false,false]}},\
             \"is_flash_attention\":true,\"mask_type\":\"{mask_type}\",{},\"dropout_rate\":0.0,\"seed\":42,\
             \"sliding_window_length\":{},\"max_seg_per_batch\":1,\"is_paged_attention\":false}}}}",
            self.scale,
            quoted_numbers(&[self.batch, self.heads, self.queries, self.keys]),
            dots.join(","),
            self.window
        )
    }
}
