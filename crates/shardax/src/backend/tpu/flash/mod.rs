//! Flash attention on TPUs ([Dao et al. 2022](https://arxiv.org/abs/2205.14135)): scores and weights stay on the chip.
//! If JAX exported a kernel for the shapes, this kernel computes it; otherwise kernels in Rust do.

mod files;
mod kernels;

pub(crate) use self::files::{CallFile, ExportedFile};

use self::kernels::Call;
use crate::backend::fused_attention::{Fused, is_of_one_query};
use crate::backend::rules::Lowered;
use crate::config;
use crate::core::array::Array;
use crate::core::lower::{Lowering, Platform, Value};
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::constants::full_dtype;
use crate::ops::lax;
use crate::ops::primitive::attention::blockwise::{blind, padded, repeated, to_output_layout};
use crate::ops::primitive::attention::derivative::AttentionGradient;
use crate::ops::primitive::attention::unfused::Block;
use crate::ops::primitive::attention::{Attention, HIDDEN, Implementation, Operands};
use crate::ops::select::where_;

const FLASH: Fused = Fused { name: "flash attention", implementation: Implementation::Flash };

/// The possible numbers of queries and of keys in a block. The first that adds little padding is used.
const BLOCKS: [usize; 3] = [512, 256, 128];

/// The largest depth of a head.
const MAX_DEPTH: usize = 256;

/// The number of queries and of keys from which on the kernels are the default, because the scores are then many times
/// larger than the operands and results.
const MIN_POSITIONS_FOR_KERNEL: usize = 1024;

/// Lowers attention to the kernel, if it is applicable.
pub(in crate::backend) fn forward(of: &Attention, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Lowered {
    if !is_wanted(of, cx, args) {
        return Ok(None);
    }
    if let Some(reason) = reason_against(of, cx, args) {
        return FLASH.lacks(of, cx, args, &reason);
    }
    if !cx.is_local() {
        return FLASH.forward_of_parts(of, cx, args, outs);
    }
    if let Some(results) = files::forward(of, cx, args, outs)? {
        return Ok(Some(results));
    }
    let results = cx.expand(args, |args| {
        let sized = Sized::new(of, Operands::of(of.present, args));
        let mut results = sized.forward()?;
        results.truncate(outs.len());
        Ok(results)
    });
    results.map(Some)
}

/// Lowers the gradient of attention to the kernels, if they are applicable.
pub(in crate::backend) fn backward(
    gradient: &AttentionGradient,
    cx: &mut Lowering,
    args: &[Value],
    outs: &[Aval],
) -> Lowered {
    let attention = &gradient.of;
    if !is_wanted(attention, cx, args) {
        return Ok(None);
    }
    if let Some(reason) = reason_against(attention, cx, args) {
        return FLASH.lacks(attention, cx, args, &reason);
    }
    if !cx.is_local() {
        return FLASH.backward_of_parts(gradient, cx, args, outs);
    }
    if !gradient.of_sum
        && let Some(results) = files::backward(attention, attention.present.count(), cx, args, outs)?
    {
        return Ok(Some(results));
    }
    cx.expand(args, |args| Sized::new(attention, Operands::of(attention.present, args)).backward(gradient, args))
        .map(Some)
}

/// Returns `true` if the program can use the kernels.
fn is_wanted(of: &Attention, cx: &Lowering, args: &[Value]) -> bool {
    if is_of_one_query(cx, args) {
        return false;
    }
    match of.implementation {
        Some(Implementation::Flash) => true,
        None => {
            let mut lengths = args[..2].iter().map(|&x| cx.shape(x).iter().nth_back(2));
            let are_long = lengths.all(|n| n.is_some_and(|&n| n >= MIN_POSITIONS_FOR_KERNEL));
            let is_worthwhile = are_long || config::attention_kernels().is_some();
            cx.platform == Platform::Tpu && !cx.portable && is_worthwhile
        }
        Some(_) => false,
    }
}

/// The reason why the kernels cannot compute this, for people.
fn reason_against(of: &Attention, cx: &Lowering, args: &[Value]) -> Option<String> {
    let [q, v] = [0, 2].map(|i| cx.aval(args[i]));
    let depths = [&q, &v].map(|x| x.shape[x.rank() - 1]);
    let checks = [
        (!matches!(q.dtype, DType::Bf16 | DType::F32), "it takes bfloat16 and float32".to_owned()),
        (
            depths.iter().any(|&depth| depth == 0 || depth > MAX_DEPTH || !depth.is_multiple_of(8)),
            format!("the depth of a head must be a multiple of 8 of at most {MAX_DEPTH}, not {depths:?}"),
        ),
        (of.present.bias, "it has no bias".to_owned()),
        (of.present.mask, "it has no mask, but lengths, segments and windows".to_owned()),
        (q.size() == 0, "there are no queries".to_owned()),
    ];
    checks.into_iter().find(|(fails, _)| *fails).map(|(_, reason)| reason)
}

/// Attention of operands of certain sizes.
struct Sized<'a> {
    of: &'a Attention,
    x: Operands,
    call: Call,
    /// The numbers of queries and keys without padding.
    sizes: [usize; 2],
}

impl<'a> Sized<'a> {
    fn new(of: &'a Attention, x: Operands) -> Self {
        let (q, k, v) = (x.q.shape(), x.k.shape(), x.v.shape());
        let rank = q.len();
        let sizes = [q[rank - 3], k[rank - 3]];
        // Larger blocks are faster, unless padding grows by more than an eighth.
        let blocks = sizes.map(|n| {
            let smallest = n.next_multiple_of(BLOCKS[2]);
            let fits = BLOCKS.iter().find(|block| n.next_multiple_of(**block) <= smallest + smallest / 8);
            *fits.unwrap_or(&BLOCKS[2])
        });
        let padded = [0, 1].map(|i| sizes[i].next_multiple_of(blocks[i]));
        let call = Call {
            batch: q[..rank - 3].iter().product(),
            heads: q[rank - 2],
            key_heads: k[rank - 2],
            depths: [q[rank - 1], v[rank - 1]],
            sizes: padded,
            blocks,
            end: (padded[1] != sizes[1]).then_some(sizes[1]),
            window: of.window.limits(),
            scale: of.factor(),
            cap: of.cap(),
            precision: of.precision,
            dtype: x.q.dtype(),
            lengths: [x.query_lengths.is_some(), x.key_lengths.is_some()],
            segments: x.segments.is_some(),
        };
        Sized { of, x, call, sizes }
    }

    /// Returns `true` if there can be a query that sees no key.
    fn may_be_blind(&self) -> bool {
        let [before, _] = self.call.window;
        let reach = before.map_or(usize::MAX, |n| self.sizes[1].saturating_add(n as usize));
        self.call.segments || self.call.lengths != [false; 2] || self.sizes[0] > reach
    }

    /// Reshapes `[..., positions, heads, depth]` for the kernels; `side` is 0 for queries, and 1 for keys.
    fn positions(&self, x: &Array, side: usize) -> Array {
        let trailing = &x.shape()[x.ndim() - 3..];
        let x = x.reshape([&[self.call.batch], trailing].concat());
        let x = padded(&x, -3, 0.0, [self.sizes[side], self.call.sizes[side]]);
        if Call::is_packed(trailing[2]) {
            x.reshape([self.call.batch, self.call.sizes[side], trailing[1] * trailing[2]])
        } else {
            x.transpose([0, 2, 1, 3])
        }
    }

    /// A result of the kernels as `[..., positions, heads, depth]`, like `like`.
    fn to_positions(&self, x: &Array, side: usize, like: &[usize]) -> Array {
        let [heads, depth] = [like[like.len() - 2], like[like.len() - 1]];
        let x = if Call::is_packed(depth) {
            x.reshape([self.call.batch, self.call.sizes[side], heads, depth])
        } else {
            x.transpose([0, 2, 1, 3])
        };
        lax::slice_in_dim(&x, 0, self.sizes[side], 1).reshape(like)
    }

    /// Reshapes a per-query array, `[..., heads, queries]`, for the kernels.
    fn per_query(&self, x: &Array) -> Array {
        let x = x.astype(DType::F32).reshape([self.call.batch, self.call.heads, 1, self.sizes[0]]);
        padded(&x, -1, 0.0, [self.sizes[0], self.call.sizes[0]])
    }

    /// The operands of the masks. Queries are dimension `dim` of the scores.
    fn masks(&self, dim: usize) -> Vec<Array> {
        let lengths = [&self.x.query_lengths, &self.x.key_lengths];
        let lengths = lengths.into_iter().flatten().map(|x| x.astype(DType::I32).reshape([self.call.batch]));
        let segments = self.x.segments.iter().flatten().enumerate().map(|(side, ids)| {
            let [from, to] = [self.sizes[side], self.call.sizes[side]];
            let ids = padded(&ids.astype(DType::I32).reshape([self.call.batch, from]), -1, 0.0, [from, to]);
            ids.expand_dims(if dim == side { 2 } else { 1 })
        });
        lengths.chain(segments).collect()
    }

    fn operands(&self, dim: usize) -> Vec<Array> {
        let mut operands = self.masks(dim);
        operands.extend([self.positions(&self.x.q, 0), self.positions(&self.x.k, 1), self.positions(&self.x.v, 1)]);
        operands
    }

    /// The output, the logsumexp of each query's scores, and ones.
    fn forward(&self) -> Result<Vec<Array>> {
        let [y, lse] = self.call.forward(&self.operands(0))?;
        let (q, v) = (self.x.q.shape(), self.x.v.shape());
        let (batch, last) = q.split_at(q.len() - 3);
        let mut y = self.to_positions(&y, 0, &[batch, &last[..2], &v[v.len() - 1..]].concat());
        let rows = [batch, &[last[1], last[0]]].concat();
        let lse = lax::slice_in_dim(&lse, 0, self.sizes[0], -1).reshape(rows.as_slice());
        let mut sum = full_dtype(rows.as_slice(), 1.0, DType::F32);
        if self.may_be_blind() {
            // A query that sees no key attends to all keys equally.
            let is_blind = lse.less_equal(HIDDEN);
            let mean = self.x.v.astype(DType::F32).mean_keepdims(-3).astype(y.dtype());
            y = where_(to_output_layout(&is_blind), repeated(&mean, &y), &y);
            sum = where_(is_blind, self.sizes[1] as f64, sum);
        }
        Ok(vec![y, lse, sum])
    }

    /// The cotangents of queries, keys and values.
    fn backward(&self, gradient: &AttentionGradient, args: &[Array]) -> Result<Vec<Array>> {
        let n = self.of.present.count();
        let (ct, mean) = gradient.cotangent(args);
        let (max, sum) = (&args[n + 1], &args[n + 2]);
        let is_blind = blind(max);
        let lse = max + sum.log();
        let lse = if self.may_be_blind() { where_(is_blind.greater(0.0), 0.0, lse) } else { lse };
        let mut operands = self.operands(1);
        operands.extend([self.positions(ct, 0), self.per_query(&lse), self.per_query(&mean)]);
        let dq = self.to_positions(&self.call.query_cotangent(&operands)?, 0, self.x.q.shape());
        let [dk, dv] = self.call.key_value_cotangents(&operands)?;
        let dk = self.to_positions(&dk, 1, self.x.k.shape());
        let mut dv = self.to_positions(&dv, 1, self.x.v.shape());
        if self.may_be_blind() {
            // A query that sees no key attends to all keys equally.
            let all_keys = Block::all(self.of, self.x.clone());
            let of_blind = all_keys.sum_over_queries(&(is_blind / self.sizes[1] as f64).expand_dims(-1), ct);
            dv = (dv.astype(DType::F32) + of_blind).astype(dv.dtype());
        }
        Ok(vec![dq, dk, dv])
    }
}
