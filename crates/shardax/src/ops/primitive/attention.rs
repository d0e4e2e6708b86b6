//! Fused attention in float32, which does not store the scores of all queries and keys: the gradient recomputes
//! them from each query's largest score and its sum of exponentials
//! ([Dao et al. 2022](https://arxiv.org/abs/2205.14135)). On CPU it is a kernel that works in blocks
//! ([`attention_cpu`](super::attention_cpu)), on other platforms it is lowered to plain operations.
//!
//! Queries are `[..., queries, heads, depth]`, keys and values `[..., keys, key heads, depth]`, where each key head
//! serves several query heads; per-query values of the softmax are `[..., heads, queries]`. A mask is of booleans,
//! `[..., heads, queries, keys]`, with dimensions that may be 1.

use smallvec::smallvec;

use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::{Avals, BatchAxis, Dims, Operand, Outputs, Primitive, Tangents, bind};
use crate::core::program::trace::trace;
use crate::core::program::{Aval, Flops};
use crate::dtype::DType;
use crate::error::{Result, err};
use crate::interpret::ad::{backward, jvp_eval};
use crate::ops::lax::{DotOptions, iota};
use crate::ops::numpy::where_;
use crate::precision::Precision;
use crate::shape::Shape;

/// The score of a masked key: JAX's, finite so that its softmax and gradient are.
pub const HIDDEN: f64 = -0.7 * f32::MAX as f64;

/// The keys that a query attends to, and the precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Attention {
    /// The number of keys before the query's own position that it attends to.
    pub before: usize,
    /// The number of keys after the query's own position that it attends to.
    pub after: usize,
    /// The precision of matmuls on accelerators.
    pub precision: Precision,
}

impl Attention {
    /// Returns the attention output; each query's largest score, through which no gradient flows; and its sum of
    /// exponentials of scores relative to the largest. A query without any key attends to all
    /// equally.
    #[track_caller]
    pub fn apply(self, q: &Array, k: &Array, v: &Array, mask: Option<&Array>) -> [Array; 3] {
        let args: Vec<Array> = [q, k, v].into_iter().chain(mask).cloned().collect();
        let outs = bind(self, &args);
        [outs[0].clone(), outs[1].clone(), outs[2].clone()]
    }

    fn print(self) -> String {
        let count = |n: usize| if n >= FAR { "all".to_owned() } else { n.to_string() };
        let precision = match self.precision {
            Precision::Default => String::new(),
            precision => format!(" precision={precision:?}"),
        };
        format!("before={} after={}{precision}", count(self.before), count(self.after))
    }
}

/// Larger than every position.
const FAR: usize = i32::MAX as usize / 2;

/// The unfused implementation, on queries, keys and values.
struct Unfused<'a> {
    of: Attention,
    q: &'a Array,
    k: &'a Array,
    v: &'a Array,
    /// The attended keys, `[..., heads, queries, keys]`, or broadcastable to that.
    seen: Option<Array>,
}

impl<'a> Unfused<'a> {
    fn new(of: Attention, q: &'a Array, k: &'a Array, v: &'a Array, mask: Option<&Array>) -> Self {
        let shape = [q, k].map(|x| x.shape()[x.ndim() - 3]);
        let (query, key) = (iota(DType::I32, &shape, 0), iota(DType::I32, &shape, 1));
        let near = |n: usize| (n < FAR).then_some(n as i32);
        let before = near(of.before).map(|n| query.less_equal(&key + n));
        let after = near(of.after).map(|n| key.less_equal(&query + n));
        let seen = mask.cloned().into_iter().chain(before).chain(after).reduce(|a, b| a & b);
        Unfused { of, q, k, v, seen }
    }

    /// Splits query heads, in dimension `heads` from the end, into key heads and groups; and back.
    fn grouped(&self, x: &Array, heads: usize) -> Array {
        let (batch, last) = x.shape().split_at(x.ndim() - heads);
        let key_heads = self.k.shape()[self.k.ndim() - 2];
        x.reshape([batch, &[key_heads, last[0] / key_heads], &last[1..]].concat())
    }

    fn together(x: Array, heads: usize) -> Array {
        let (batch, last) = x.shape().split_at(x.ndim() - heads - 1);
        let shape = [batch, &[last[0] * last[1]], &last[2..]].concat();
        x.reshape(shape)
    }

    fn product(&self, spec: &str, a: &Array, b: &Array) -> Array {
        DotOptions::new().precision(self.of.precision).einsum(spec, &[a, b])
    }

    /// The scores of queries and keys: `[..., heads, queries, keys]`.
    fn scores(&self, q: &Array, k: &Array) -> Array {
        Self::together(self.product("...qhgd,...khd->...hgqk", &self.grouped(q, 2), k), 3)
    }

    /// Sums over keys, weighted, for each query.
    fn of_queries(&self, weights: &Array, x: &Array) -> Array {
        Self::together(self.product("...hgqk,...khd->...qhgd", &self.grouped(weights, 3), x), 2)
    }

    /// Sums over queries, weighted, for each key. The smaller operand is first, because that one is transposed.
    fn of_keys(&self, weights: &Array, x: &Array) -> Array {
        self.product("...qhgd,...hgqk->...khd", &self.grouped(x, 2), &self.grouped(weights, 3))
    }

    fn hidden(&self, x: Array, value: f64) -> Array {
        self.seen.as_ref().map_or(x.clone(), |seen| where_(seen, x, value))
    }

    fn weights(&self, max: &Array, sum: &Array) -> Array {
        let scores = self.hidden(self.scores(self.q, self.k), HIDDEN);
        (scores - max.expand_dims(-1)).exp() / sum.expand_dims(-1)
    }

    fn forward(&self) -> Vec<Array> {
        let scores = self.hidden(self.scores(self.q, self.k), HIDDEN);
        let max = scores.max_keepdims(-1);
        let exponentials = (scores - &max).exp();
        let sum = exponentials.sum_keepdims(-1);
        let y = self.of_queries(&(exponentials / &sum), self.v);
        vec![y, max.squeeze(-1), sum.squeeze(-1)]
    }
}

fn shape_of(batch: &[usize], last: [usize; 2]) -> Shape {
    batch.iter().copied().chain(last).collect()
}

/// The type of a per-query value of the softmax.
fn of_each_query(q: &Aval) -> Aval {
    let (batch, last) = q.shape.split_at(q.rank() - 3);
    Aval::new(q.dtype, shape_of(batch, [last[1], last[0]]))
}

/// The multiply-adds of every query with every key, for `depths` numbers per key.
fn products(args: &[Aval], depths: usize) -> f64 {
    let (q, k) = (&args[0], &args[1]);
    let [queries, keys] = [q, k].map(|x| x.shape[x.rank() - 3] as f64);
    let rows = q.shape[..q.rank() - 3].iter().product::<usize>() * q.shape[q.rank() - 2];
    2.0 * rows as f64 * queries * keys * depths as f64
}

fn depth(aval: &Aval) -> usize {
    aval.shape.last().copied().unwrap_or(0)
}

impl Primitive for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn print_params(&self) -> String {
        self.print()
    }

    fn output_count(&self) -> usize {
        3
    }

    fn infer(&self, args: &[Aval]) -> Result<Avals> {
        let [q, k, v, ..] = args else { return Err(err!(Type, "attention takes queries, keys and values")) };
        let rank = q.rank();
        let is_one = |x: &Aval| {
            x.rank() == rank && rank >= 3 && x.dtype == DType::F32 && x.shape[..rank - 3] == q.shape[..rank - 3]
        };
        let fits = [q, k, v].into_iter().all(is_one)
            && k.shape[rank - 3..rank - 1] == v.shape[rank - 3..rank - 1]
            && depth(q) == depth(k)
            && k.shape[rank - 3] > 0
            && k.shape[rank - 2] > 0
            && q.shape[rank - 2].is_multiple_of(k.shape[rank - 2]);
        if !fits {
            return Err(err!(Type, "attention of {q}, {k} and {v}, which do not fit each other"));
        }
        let scores = [&of_each_query(q).shape[..], &[k.shape[rank - 3]]].concat();
        if let Some(mask) = args.get(3) {
            let repeats = mask.shape.iter().zip(&scores).all(|(m, n)| *m == 1 || m == n);
            if mask.dtype != DType::Bool || mask.rank() != rank || !repeats {
                return Err(err!(Type, "the mask {mask} of attention does not broadcast to its scores, {scores:?}"));
            }
        }
        let mut shape = q.shape.clone();
        shape[rank - 1] = depth(v);
        Ok(smallvec![Aval::new(q.dtype, shape), of_each_query(q), of_each_query(q)])
    }

    /// Those of the unfused implementation: a maximum, a difference, an exponential, a sum and a quotient per score.
    fn flops(&self, args: &[Aval], _outs: &[Aval]) -> Flops {
        let elements = 5.0 * products(args, 1) / 2.0;
        Flops { elementwise: elements, ..Flops::of_products(products(args, depth(&args[0]) + depth(&args[2]))) }
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        #[cfg(feature = "ndarray")]
        if let Some(made) = super::attention_cpu::lower(*self, cx, args, outs) {
            return Ok(made);
        }
        let _ = outs;
        cx.expand(args, |args| Ok(Unfused::new(*self, &args[0], &args[1], &args[2], args.get(3)).forward()))
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        let [q, k, v] = [&args[0], &args[1], &args[2]];
        let [y, max, sum] = self.apply(q, k, v, args.get(3));
        let given = [q, k, v].into_iter().zip(tangents);
        let tangents: Vec<Array> =
            given.map(|(x, t)| t.clone().unwrap_or_else(|| Array::zeros_of(&x.aval()))).collect();
        let known = [q, k, v, &y, &max, &sum].into_iter().cloned();
        let operands: Vec<Array> = known.chain(tangents).chain(args.get(3).cloned()).collect();
        let mut tangents = bind(AttentionTangent(*self), &operands).into_iter();
        let (of_y, of_sum) = (tangents.next(), tangents.next());
        Ok((smallvec![y, max, sum], vec![of_y, None, of_sum]))
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        with_batch(*self, axis, args, dims)
    }
}

/// Adds a batch dimension. An unbatched mask is broadcast over it.
fn with_batch(
    primitive: impl Primitive + 'static,
    axis: &BatchAxis,
    args: &[Array],
    dims: &[Option<usize>],
) -> Result<(Outputs, Dims)> {
    let first = |(x, dim): (&Array, &Option<usize>)| match dim {
        None if x.dtype() == DType::Bool => x.expand_dims(0),
        dim => axis.moved(x, *dim, 0),
    };
    let outs = bind(primitive, &args.iter().zip(dims).map(first).collect::<Vec<_>>());
    let dims = vec![Some(0); outs.len()];
    Ok((outs, dims))
}

/// The derivative of the unfused implementation.
fn jvp_of(
    args: &[Array],
    tangents: &[Option<Array>],
    f: impl FnOnce(&[Array]) -> Result<Vec<Array>>,
) -> Result<(Outputs, Tangents)> {
    let avals: Vec<Aval> = args.iter().map(Array::aval).collect();
    let traced = trace(&avals, f)?;
    let (outs, tangents) = jvp_eval(&traced.program, args, tangents, false)?;
    Ok((outs.into(), tangents))
}

/// The tangents of [`Attention`]'s output and of its sums. Operands: queries, keys, values, the output, largest scores,
/// sums, the tangents of the first three, in which it is linear, and a mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct AttentionTangent(Attention);

impl AttentionTangent {
    fn plain(self, args: &[Array]) -> Result<Vec<Array>> {
        let [q, k, v, _, max, sum, dq, dk, dv, ..] = args else { return Ok(Vec::new()) };
        let plain = Unfused::new(self.0, q, k, v, args.get(9));
        let weights = plain.weights(max, sum);
        let slope = plain.hidden(plain.scores(dq, k) + plain.scores(q, dk), 0.0);
        let mean = (&weights * &slope).sum_keepdims(-1);
        let dy = plain.of_queries(&(&weights * (slope - &mean)), v) + plain.of_queries(&weights, dv);
        Ok(vec![dy, sum * mean.squeeze(-1)])
    }
}

impl Primitive for AttentionTangent {
    fn name(&self) -> &'static str {
        "attention_tangent"
    }

    fn print_params(&self) -> String {
        self.0.print()
    }

    fn output_count(&self) -> usize {
        2
    }

    fn infer(&self, args: &[Aval]) -> Result<Avals> {
        Ok(smallvec![args[3].clone(), args[5].clone()])
    }

    /// The recomputed scores, and the term of each tangent.
    fn flops(&self, args: &[Aval], _outs: &[Aval]) -> Flops {
        let (keys, values) = (depth(&args[0]), depth(&args[2]));
        let recomputed = products(args, keys);
        let elementwise = 5.0 * products(args, 1);
        Flops { recomputed, elementwise, ..Flops::of_products(recomputed + products(args, 2 * keys + 2 * values)) }
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], _outs: &[Aval]) -> Result<Vec<Value>> {
        cx.expand(args, |args| self.plain(args))
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        jvp_of(args, tangents, |args| self.plain(args))
    }

    fn transpose(&self, cts: &[Option<Array>], args: &[Operand]) -> Result<Tangents> {
        let [y, max, sum] = [args[3].value()?, args[4].value()?, args[5].value()?];
        let ct = cts[0].clone().unwrap_or_else(|| Array::zeros_of(&y.aval()));
        // The softmax's correction of the weights' cotangents, one per query.
        let mut mean = (&ct * y).sum(-1).swapaxes(-1, -2);
        if let Some(of_sum) = &cts[1] {
            mean = mean - sum * of_sum;
        }
        let known = [args[0].value()?, args[1].value()?, args[2].value()?, max, sum, &ct, &mean];
        let mask = args.get(9).map(Operand::value).transpose()?;
        let operands: Vec<Array> = known.into_iter().chain(mask).cloned().collect();
        let gradients = bind(AttentionGradient(self.0), &operands);
        let of_tangents = gradients.into_iter().zip(&args[6..9]).map(|(ct, arg)| arg.is_linear().then_some(ct));
        let none = std::iter::repeat_n(None, 6);
        Ok(none.chain(of_tangents).chain(mask.map(|_| None)).collect())
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        with_batch(*self, axis, args, dims)
    }
}

/// The cotangents of queries, keys and values. Operands: these, largest scores, sums, the output's cotangent, the
/// softmax's correction per query, and a mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct AttentionGradient(Attention);

impl AttentionGradient {
    fn plain(self, args: &[Array]) -> Result<Vec<Array>> {
        let [q, k, v, max, sum, ct, mean, ..] = args else { return Ok(Vec::new()) };
        let plain = Unfused::new(self.0, q, k, v, args.get(7));
        let weights = plain.weights(max, sum);
        let slope = plain.hidden(&weights * (plain.scores(ct, v) - mean.expand_dims(-1)), 0.0);
        Ok(vec![plain.of_queries(&slope, k), plain.of_keys(&slope, q), plain.of_keys(&weights, ct)])
    }
}

impl Primitive for AttentionGradient {
    fn name(&self) -> &'static str {
        "attention_gradient"
    }

    fn print_params(&self) -> String {
        self.0.print()
    }

    fn output_count(&self) -> usize {
        3
    }

    fn infer(&self, args: &[Aval]) -> Result<Avals> {
        Ok(args[..3].iter().cloned().collect())
    }

    /// The recomputed scores, and two matmuls for each of the first two.
    fn flops(&self, args: &[Aval], _outs: &[Aval]) -> Flops {
        let (keys, values) = (depth(&args[0]), depth(&args[2]));
        let recomputed = products(args, keys);
        let elementwise = 3.0 * products(args, 1);
        Flops { recomputed, elementwise, ..Flops::of_products(recomputed + products(args, 2 * keys + 2 * values)) }
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        #[cfg(feature = "ndarray")]
        if let Some(made) = super::attention_cpu::lower_gradient(self.0, cx, args, outs) {
            return Ok(made);
        }
        let _ = outs;
        cx.expand(args, |args| self.plain(args))
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        jvp_of(args, tangents, |args| self.plain(args))
    }

    /// It is linear in the output's cotangent and the correction.
    fn transpose(&self, cts: &[Option<Array>], args: &[Operand]) -> Result<Tangents> {
        let avals: Vec<Aval> = args.iter().map(Operand::aval).collect();
        let traced = trace(&avals, |args| self.plain(args))?;
        backward(&traced.program, args, cts)
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        with_batch(*self, axis, args, dims)
    }
}
