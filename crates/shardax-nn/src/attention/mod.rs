//! Scaled dot-product attention.

mod mask;
mod ring;
mod rope;
mod shapes;

pub use mask::{combine_masks, make_attention_mask, make_causal_mask};
pub use ring::ring_attention;
pub use rope::{Rope, RopeScaling};

use std::ops::Bound;

use shardax::choice::{Choice, IntoOptionalChoice};
use shardax::lax::{DotOptions, Precision};
pub use shardax::nn::attention::Implementation;
use shardax::nn::attention::{Attention, HIDDEN, Operands, Window};
use shardax::nn::softmax;
use shardax::prelude::*;

use self::shapes::Shapes;
use crate::check::{FINITE, integer, same_shape, value_error, within};
use crate::layers::promoted;
use crate::ranks::allow_any_ranks;
use crate::shardings::gather_positions;

/// Scaled dot-product attention, `softmax(q kᵀ / sqrt(depth)) v` for each head. [`AttentionOptions`] adds masks and
/// more.
///
/// `query` is `[..., queries, heads, depth]`, and `key` and `value` are `[..., keys, key heads, depth]`. The number of heads
/// must be a multiple of the number of key heads. The result has the shape of `query`. Scores and their softmax are
/// computed in float32.
///
/// Source: [Vaswani et al. 2017](https://arxiv.org/abs/1706.03762).
///
/// ```
/// use shardax_nn::prelude::*;
/// let (q, kv) = (ones([2, 3, 4, 8]), ones([2, 5, 4, 8]));
/// assert_eq!(dot_product_attention(&q, &kv, &kv).shape(), [2, 3, 4, 8]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn dot_product_attention(query: impl ArrayLike, key: impl ArrayLike, value: impl ArrayLike) -> Array {
    AttentionOptions::new().dot_product_attention(query, key, value)
}

/// Options of scaled dot-product attention: bias, masks, scale, dropout.
///
/// ```
/// use shardax_nn::prelude::*;
/// let x = random::normal(random::key(0), [2, 6, 4, 8]);
/// let options = AttentionOptions::new().is_causal(true).local_window_size(3, 0);
/// let y = options.dot_product_attention(&x, &x, &x);
/// // The first position only attends to itself.
/// assert!(allclose(y.get((.., 0)), x.get((.., 0)), 1e-6, 1e-6)?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct AttentionOptions {
    bias: Option<Array>,
    mask: Option<Array>,
    is_causal: bool,
    scale: Option<f64>,
    query_seq_lengths: Option<Array>,
    key_value_seq_lengths: Option<Array>,
    pub(crate) segment_ids: Option<(Array, Array)>,
    local_window_size: Option<(usize, usize)>,
    soft_cap: Option<f64>,
    sinks: Option<Array>,
    dropout_rate: Option<f64>,
    dropout_key: Option<Array>,
    broadcast_dropout: Option<bool>,
    precision: Option<Choice<Precision>>,
    implementation: Option<Choice<Implementation>>,
    pub(crate) out_sharding: Option<NamedSharding>,
    pub(crate) positions: Option<Array>,
    pub(crate) rope: Option<Rope>,
}

impl AttentionOptions {
    /// Creates the default options: every query attends to every key.
    pub fn new() -> Self {
        AttentionOptions::default()
    }

    /// Adds a bias to the scores. It must broadcast to `[..., heads, queries, keys]`.
    pub fn bias(mut self, bias: impl ArrayLike) -> Self {
        self.bias = Some(bias.into_array());
        self
    }

    /// Adds a bias to the bias of these options, if they have one.
    pub(crate) fn add_bias(self, bias: &Array) -> Self {
        let _ranks = allow_any_ranks();
        let sum = self.bias.as_ref().map_or_else(|| bias.clone(), |other| other + bias);
        self.bias(sum)
    }

    /// Sets the mask of visible keys: booleans, or numbers where nonzero means visible. It must broadcast to `[..., heads,
    /// queries, keys]`.
    pub fn mask(mut self, mask: impl ArrayLike) -> Self {
        self.mask = Some(mask.into_array());
        self
    }

    /// Sets whether attention is causal: no query attends to a later key. Default false.
    pub fn is_causal(mut self, is_causal: bool) -> Self {
        self.is_causal = is_causal;
        self
    }

    /// Sets the factor of the dot products of queries and keys. Default `1 / sqrt(depth)`.
    pub fn scale(mut self, scale: f64) -> Self {
        self.scale = Some(scale);
        self
    }

    /// Sets the number of valid queries of each example, integers of the batch's shape. The results of other queries
    /// are zero.
    pub fn query_seq_lengths(mut self, lengths: impl ArrayLike) -> Self {
        self.query_seq_lengths = Some(lengths.into_array());
        self
    }

    /// Sets the number of valid keys of each example, integers of the batch's shape. Other keys are masked.
    pub fn key_value_seq_lengths(mut self, lengths: impl ArrayLike) -> Self {
        self.key_value_seq_lengths = Some(lengths.into_array());
        self
    }

    /// Sets the segment of each query and of each key, as integers `[..., queries]` and `[..., keys]`. A query only
    /// attends to keys of the same segment. You can use segments to pack several texts into one row, and to mask padding
    /// by giving it a segment.
    pub fn segment_ids(mut self, queries: impl ArrayLike, keys: impl ArrayLike) -> Self {
        self.segment_ids = Some((queries.into_array(), keys.into_array()));
        self
    }

    /// Restricts attention to `left` keys before the query's position and `right` keys after it.
    pub fn local_window_size(mut self, left: usize, right: usize) -> Self {
        self.local_window_size = Some((left, right));
        self
    }

    /// Limits scores to between `-cap` and `cap` with `cap * tanh(scores / cap)`, before bias and masks.
    pub fn soft_cap(mut self, cap: f64) -> Self {
        self.soft_cap = Some(cap);
        self
    }

    /// Adds a score to the softmax of each head's queries, `[heads]`. The score takes a share of the weights and adds nothing
    /// to the result.
    ///
    /// ```
    /// use shardax_nn::prelude::*;
    /// let x = ones([1, 1, 2, 4]);
    /// // The score of the only key is 1 * 4 / sqrt(4) = 2, so that a sink of 2 takes half of the weight.
    /// let y = AttentionOptions::new().sinks(array([2.0f32, -1e9])).dot_product_attention(&x, &x, &x);
    /// assert!(allclose(y.get((0, 0, .., 0)), array([0.5f32, 1.0]), 1e-6, 1e-6)?);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    pub fn sinks(mut self, sinks: impl ArrayLike) -> Self {
        self.sinks = Some(sinks.into_array());
        self
    }

    /// Zeroes each weight with probability `rate`, between 0 and 1, and scales the other weights so that the mean does not
    /// change.
    pub fn dropout(self, rate: f64, key: &Array) -> Self {
        self.dropout_rate(rate).dropout_key(key)
    }

    /// Sets the random key of a layer's dropout; the layer sets the rate. Without a key, nothing is dropped.
    pub fn dropout_key(mut self, key: &Array) -> Self {
        self.dropout_key = Some(key.clone());
        self
    }

    pub(crate) fn dropout_rate(mut self, rate: f64) -> Self {
        self.dropout_rate = Some(rate);
        self
    }

    /// Rotates queries and keys by their [`positions`](Self::positions) before the scores are computed (Flax's
    /// `dot_product_attention_with_rope`). In the options of a call of a layer, it replaces the layer's `rope`.
    ///
    /// ```
    /// use shardax_nn::prelude::*;
    /// let x = random::normal(random::key(0), [2, 6, 4, 8]);
    /// let y = AttentionOptions::new().rope(Rope::default()).dot_product_attention(&x, &x, &x);
    /// let rotated = Rope::default().apply(&x, arange(0..6));
    /// assert!(allclose(y, dot_product_attention(&rotated, &rotated, &x), 1e-6, 1e-6)?);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    pub fn rope(mut self, rope: Rope) -> Self {
        self.rope = Some(rope);
        self
    }

    /// Sets the positions of queries and keys, `[..., length]`, for [`rope`](Self::rope) or the [`Rope`] of a layer. By
    /// default they start at 0.
    pub fn positions(mut self, positions: impl ArrayLike) -> Self {
        self.positions = Some(positions.into_array());
        self
    }

    /// Sets whether all examples and heads share one dropout mask. Default true.
    pub fn broadcast_dropout(mut self, broadcast: bool) -> Self {
        self.broadcast_dropout = Some(broadcast);
        self
    }

    /// Sets the precision of both matmuls on accelerators. Default:
    /// [`default_matmul_precision`](shardax::default_matmul_precision).
    pub fn precision(mut self, precision: impl IntoOptionalChoice<Precision>) -> Self {
        self.precision = precision.into_optional_choice();
        self
    }

    /// Sets the implementation, an [`Implementation`] or its name: `"xla"` and `"cudnn"` as in JAX, `"flash"` or
    /// `"blockwise"`. The default depends on platform, dtypes and size: cuDNN's kernels on NVIDIA GPUs for
    /// bfloat16 and float16, [`Flash`](Implementation::Flash) on TPUs from 1,024 queries and keys on,
    /// [`Blockwise`](Implementation::Blockwise) if the scores of a device are larger than 4 GiB, and otherwise XLA's
    /// operations, or a kernel in Rust on CPU. If cuDNN or flash attention does not apply, a warning says why. If you choose
    /// [`Cudnn`](Implementation::Cudnn) or [`Flash`](Implementation::Flash) yourself, compiling fails instead.
    ///
    /// ```
    /// use shardax_nn::prelude::*;
    /// let x = random::normal(random::key(0), [1, 700, 2, 8]);
    /// let blocks = AttentionOptions::new().is_causal(true).implementation("blockwise");
    /// let plain = AttentionOptions::new().is_causal(true).implementation("xla");
    /// let (blocks, plain) = (blocks.dot_product_attention(&x, &x, &x), plain.dot_product_attention(&x, &x, &x));
    /// assert!(allclose(blocks, plain, 1e-5, 1e-5)?);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    pub fn implementation(mut self, implementation: impl IntoOptionalChoice<Implementation>) -> Self {
        self.implementation = implementation.into_optional_choice();
        self
    }

    /// Sets the sharding of the result, and therefore of the queries, over batch and heads. In a program that the compiler
    /// partitions, the kernels of GPUs and TPUs are only called if this sharding is known, because the compiler would
    /// otherwise gather their operands. Positions and depths must not be split.
    pub fn out_sharding(mut self, sharding: &NamedSharding) -> Self {
        self.out_sharding = Some(sharding.clone());
        self
    }

    /// Fills the options that are not set with the layer's options.
    pub(crate) fn or(mut self, layer: AttentionOptions) -> Self {
        self.is_causal |= layer.is_causal;
        self.scale = self.scale.or(layer.scale);
        self.local_window_size = self.local_window_size.or(layer.local_window_size);
        self.soft_cap = self.soft_cap.or(layer.soft_cap);
        self.sinks = self.sinks.or(layer.sinks);
        self.dropout_rate = self.dropout_rate.or(layer.dropout_rate);
        self.broadcast_dropout = self.broadcast_dropout.or(layer.broadcast_dropout);
        self.precision = self.precision.or(layer.precision);
        self.implementation = self.implementation.or(layer.implementation);
        self.out_sharding = self.out_sharding.or(layer.out_sharding);
        self.rope = self.rope.or(layer.rope);
        self
    }

    /// Replaces causality and window by a mask for queries at positions `start..` among all keys.
    pub(crate) fn seen_from(mut self, start: &Array, queries: usize, keys: usize) -> Self {
        let _ranks = allow_any_ranks();
        let query = start + arange(0..queries as i32).expand_dims(1);
        let key = arange(0..keys as i32);
        let mut visible = query.greater_equal(&key);
        if let Some((left, _)) = self.local_window_size.take() {
            visible = visible & query.less_equal(key + left.min(keys) as i32);
        }
        self.is_causal = false;
        self.mask = Some(match self.mask {
            Some(mask) => mask.astype(DType::Bool) & visible,
            None => visible,
        });
        self
    }

    /// Computes [`dot_product_attention`] with these options.
    #[track_caller]
    pub fn dot_product_attention(&self, query: impl ArrayLike, key: impl ArrayLike, value: impl ArrayLike) -> Array {
        let query = query.into_array();
        match self.attend(&query, key.into_array(), value.into_array(), false) {
            Ok((y, _)) => y,
            Err(error) => Array::from_error(error, &query),
        }
    }

    /// Returns the result and the logsumexp of each query's scores, `[..., queries, heads]`, which has no gradient. You need
    /// the logsumexp to combine the results of several blocks of keys.
    #[track_caller]
    pub fn with_residual(&self, query: impl ArrayLike, key: impl ArrayLike, value: impl ArrayLike) -> (Array, Array) {
        let query = query.into_array();
        match self.attend(&query, key.into_array(), value.into_array(), true) {
            Ok((y, logsumexp)) => {
                let residual = logsumexp.map(|x| stop_gradient(x.astype(y.dtype()).swapaxes(-1, -2)));
                (y.clone(), residual.unwrap_or(y))
            }
            Err(error) => (Array::from_error(error.clone(), &query), Array::from_error(error, &query)),
        }
    }

    /// Applies the positions to queries or keys.
    fn rotate(&self, rope: &Rope, x: Array) -> Array {
        match &self.positions {
            Some(positions) => rope.apply(&x, positions),
            None => rope.apply(&x, arange(0..x.shape()[x.ndim() - 3] as i32)),
        }
    }

    /// Returns the result, and, if `residual`, the logsumexp of each query's scores, `[..., heads, queries]`.
    #[track_caller]
    fn attend(&self, query: &Array, key: Array, value: Array, residual: bool) -> Result<(Array, Option<Array>)> {
        let _ranks = allow_any_ranks();
        let [q, k, v] = promoted([query.clone(), key, value]);
        self.check("dot_product_attention", &q, &k, &v)?;
        self.chosen_implementation()?;
        let [k, v] = [k, v].map(gather_positions);
        if let Some(rope) = &self.rope {
            // Positions are applied first, because fused kernels know nothing of them.
            let options = AttentionOptions { rope: None, ..self.clone() };
            return options.attend(&self.rotate(rope, q), self.rotate(rope, k), v, residual);
        }
        if let Some(sinks) = &self.sinks {
            let (options, k, v) = self.with_sink_key(sinks, &q, &k, &v)?;
            return options.attend(&q, k, v, residual);
        }
        // Fused kernels compute the logsumexp anyway; without one it is computed from the stored scores.
        let shapes = Shapes::of(&q, &k);
        let (mut y, residual) = if !self.can_fuse(&q, &shapes) {
            let scores = self.scores(&q, &k, &shapes);
            let weights = self.dropped(softmax(&scores, -1).astype(k.dtype()), &shapes);
            (shapes.values(&weights, &v, self.dot()), residual.then(|| scores.logsumexp(-1)))
        } else if residual {
            let [y, max, sum] = self.fused(&shapes)?.with_residual(&self.operands(&q, &k, &v, &shapes));
            (y, Some(max + sum.log()))
        } else {
            (self.fused(&shapes)?.apply(&self.operands(&q, &k, &v, &shapes)), None)
        };
        // As in JAX, the results of padded queries are 0.
        if let Some(lengths) = &self.query_seq_lengths {
            let rows = arange(0..shapes.queries as i32).reshape([shapes.queries, 1, 1]);
            let dtype = y.dtype();
            y = y * rows.less(shapes.per_example(lengths)).astype(dtype);
        }
        Ok((y, residual))
    }

    /// Returns options, keys and values in which the sinks are one more key. The key and its value are zero, and its score is
    /// the bias. It comes after the other keys, so causality and windows are converted to a mask.
    #[track_caller]
    fn with_sink_key(&self, sinks: &Array, q: &Array, k: &Array, v: &Array) -> Result<(Self, Array, Array)> {
        let shapes = Shapes::of(q, k);
        let heads = q.shape()[q.ndim() - 2];
        if sinks.shape() != [heads] {
            let sinks_type = sinks.type_name();
            return value_error(format!(
                "dot_product_attention: sinks must be [{heads}], one for each head, got {sinks_type}"
            ));
        }
        let key_axis = k.ndim() - 3;
        let mask = self.seen(&shapes).map(|mask| {
            let mask = broadcast_keys(&mask, shapes.keys);
            let one_key = [&mask.shape()[..mask.ndim() - 1], &[1]].concat();
            concatenate(&[mask, ones_dtype(one_key, DType::Bool)], -1)
        });
        let bias = match &self.bias {
            Some(bias) => broadcast_keys(bias, shapes.keys),
            None => zeros_dtype([1, 1, shapes.keys], DType::F32),
        };
        let sinks = sinks.astype(bias.dtype()).reshape([heads, 1, 1]);
        let rows = [&bias.shape()[..bias.ndim() - 3], &[heads, bias.shape()[bias.ndim() - 2]]].concat();
        let sinks = sinks.broadcast_to([&rows[..], &[1]].concat());
        let bias = bias.broadcast_to([&rows[..], &[shapes.keys]].concat());
        let options = AttentionOptions {
            sinks: None,
            bias: Some(concatenate(&[bias, sinks], -1)),
            mask,
            // The mask contains these options. They would hide the sink if they were applied again.
            is_causal: false,
            local_window_size: None,
            query_seq_lengths: self.query_seq_lengths.clone(),
            key_value_seq_lengths: None,
            segment_ids: None,
            ..self.clone()
        };
        Ok((options, pad_end(k, key_axis), pad_end(v, key_axis)))
    }

    /// Returns true if the fused attention primitive applies.
    fn can_fuse(&self, q: &Array, shapes: &Shapes) -> bool {
        let dtype = matches!(q.dtype(), DType::F32 | DType::Bf16 | DType::F16);
        dtype && !self.drops() && shapes.queries > 0 && shapes.keys > 0
    }

    /// Returns the fused attention of these options.
    fn fused(&self, shapes: &Shapes) -> Result<Attention> {
        let (before, after) = self.near();
        Ok(Attention::default()
            .scale(self.factor(shapes))
            .soft_cap(self.soft_cap)
            .window(Window { before, after })
            .precision(self.precision)?
            .implementation(self.chosen_implementation()?)
            .sharding(self.out_sharding.clone()))
    }

    fn chosen_implementation(&self) -> Result<Option<Implementation>> {
        self.implementation.map(|implementation| implementation.value("dot_product_attention")).transpose()
    }

    /// Returns the operands of the fused attention.
    fn operands(&self, q: &Array, k: &Array, v: &Array, shapes: &Shapes) -> Operands {
        // The rank of the scores, `[..., heads, queries, keys]`.
        let rank = shapes.batch.len() + 3;
        Operands {
            bias: self.bias.as_ref().map(|bias| with_rank(as_float(bias), rank)),
            mask: self.mask.as_ref().map(|mask| with_rank(mask.astype(DType::Bool), rank)),
            query_lengths: self.query_seq_lengths.as_ref().map(as_integers),
            key_lengths: self.key_value_seq_lengths.as_ref().map(as_integers),
            segments: self.segment_ids.as_ref().map(|(queries, keys)| [as_integers(queries), as_integers(keys)]),
            ..Operands::new(q, k, v)
        }
    }

    fn drops(&self) -> bool {
        self.dropout_key.is_some() && self.dropout_rate.unwrap_or(0.0) > 0.0
    }

    /// Returns the numbers of visible keys before and after a query's position.
    fn near(&self) -> (usize, usize) {
        let (before, behind) = self.local_window_size.unwrap_or((usize::MAX, usize::MAX));
        (before, if self.is_causal { 0 } else { behind })
    }

    /// Returns the scores, `[..., heads, queries, keys]`, in float32 at least.
    fn scores(&self, q: &Array, k: &Array, shapes: &Shapes) -> Array {
        let mut scores = self.products(q, k, shapes);
        if let Some(bias) = &self.bias {
            let dtype = scores.dtype();
            scores = (scores + bias).astype(dtype);
        }
        self.hidden(&scores, &self.seen(shapes))
    }

    /// Returns the options of the matmuls.
    fn dot(&self) -> DotOptions {
        self.precision.into_iter().fold(DotOptions::new(), DotOptions::precision)
    }

    fn factor(&self, shapes: &Shapes) -> f64 {
        self.scale.unwrap_or_else(|| 1.0 / (shapes.depth.max(1) as f64).sqrt())
    }

    /// Returns the dot products of queries and keys, scaled and capped.
    fn products(&self, q: &Array, k: &Array, shapes: &Shapes) -> Array {
        let scores = shapes.products(q, k, self.dot()) * self.factor(shapes);
        match self.soft_cap {
            Some(cap) => (scores / cap).tanh() * cap,
            None => scores,
        }
    }

    /// Masks the scores of keys that are not visible.
    fn hidden(&self, scores: &Array, seen: &Option<Array>) -> Array {
        // `HIDDEN` is finite, because with infinities the gradient of a query without visible keys would be NaN. Its
        // weights are equal instead.
        seen.as_ref().map_or(scores.clone(), |seen| where_(seen, scores, HIDDEN))
    }

    /// Returns the combined mask of options and positions for queries and keys, `[..., length, heads, depth]`; `None` if every
    /// key is visible.
    pub(crate) fn visible(&self, query: &Array, key: &Array) -> Option<Array> {
        self.seen(&Shapes::of(query, key))
    }

    /// Returns the combined mask of options and positions; `None` if every key is visible.
    fn seen(&self, shapes: &Shapes) -> Option<Array> {
        let query = arange(0..shapes.queries as i32).expand_dims(1);
        let key = arange(0..shapes.keys as i32);
        self.masks(shapes).into_iter().chain(self.seen_between(&query, &key)).reduce(|a, b| a & b)
    }

    fn masks(&self, shapes: &Shapes) -> Vec<Array> {
        let query = arange(0..shapes.queries as i32).expand_dims(1);
        let key = arange(0..shapes.keys as i32);
        let mut masks: Vec<Array> = self.mask.iter().map(|mask| mask.astype(DType::Bool)).collect();
        masks.extend(self.segment_ids.iter().map(|(queries, keys)| same_segment(queries, keys)));
        if let Some(lengths) = &self.query_seq_lengths {
            masks.push(query.less(shapes.per_example(lengths)));
        }
        if let Some(lengths) = &self.key_value_seq_lengths {
            masks.push(key.less(shapes.per_example(lengths)));
        }
        masks
    }

    /// Returns the mask that follows from the positions `[queries, 1]` and `[keys]`.
    fn seen_between(&self, query: &Array, key: &Array) -> Option<Array> {
        let causal = self.is_causal.then(|| query.greater_equal(key));
        let window = self.local_window_size.map(|(left, right)| {
            // The sum with a position must not overflow an int32; no sequence is longer than this limit.
            let [left, right] = [left, right].map(|size| size.min(1 << 30) as i32);
            query.less_equal(key + left) & query.greater_equal(key - right)
        });
        causal.into_iter().chain(window).reduce(|a, b| a & b)
    }

    fn dropped(&self, weights: Array, shapes: &Shapes) -> Array {
        let rate = self.dropout_rate.unwrap_or(0.0);
        let Some(key) = self.dropout_key.as_ref().filter(|_| rate > 0.0) else { return weights };
        let keep = 1.0 - rate;
        if keep <= 0.0 {
            return zeros_like(&weights);
        }
        let shape = if self.broadcast_dropout.unwrap_or(true) {
            [vec![1; weights.ndim() - 2], vec![shapes.queries, shapes.keys]].concat()
        } else {
            weights.shape().to_vec()
        };
        where_(random::bernoulli(key, keep, shape), &weights / keep, 0)
    }

    #[track_caller]
    fn check(&self, owner: &str, q: &Array, k: &Array, v: &Array) -> Result<()> {
        [q, k, v].into_iter().try_for_each(Array::check)?;
        within(owner, "scale", self.scale.unwrap_or(1.0), FINITE)?;
        within(
            owner,
            "soft_cap",
            self.soft_cap.unwrap_or(1.0),
            (Bound::Excluded(0.0), Bound::Excluded(f64::INFINITY)),
        )?;
        within(owner, "dropout's rate", self.dropout_rate.unwrap_or(0.0), 0.0..=1.0)?;
        let types = format!("{}, {} and {}", q.type_name(), k.type_name(), v.type_name());
        // Shapes of queries, keys and values.
        let rank = q.ndim();
        if rank < 3 || k.ndim() != rank || v.ndim() != rank {
            return value_error(format!("{owner}: q, k, v must have the same rank, at least 3, got {types}"));
        }
        let (q, k, v) = (q.shape(), k.shape(), v.shape());
        if [k, v].iter().any(|x| x[..rank - 3] != q[..rank - 3]) {
            return value_error(format!("{owner}: q, k, v batch dims must match, got {types}"));
        }
        if k[rank - 3..rank - 1] != v[rank - 3..rank - 1] {
            return value_error(format!("{owner}: k, v lengths and heads must match, got {types}"));
        }
        if q[rank - 1] != k[rank - 1] {
            return value_error(format!("{owner}: q, k depths must match, got {types}"));
        }
        if k[rank - 2] == 0 || !q[rank - 2].is_multiple_of(k[rank - 2]) {
            return value_error(format!(
                "{owner}: the number of heads of q must be a multiple of the heads of k and v, got {types}"
            ));
        }
        // Mask and bias must broadcast to the scores.
        for (name, operand) in [("mask", &self.mask), ("bias", &self.bias)] {
            let Some(operand) = operand else { continue };
            operand.check()?;
            let scores = [&q[..rank - 3], &[q[rank - 2], q[rank - 3], k[rank - 3]]].concat();
            let mut sizes = operand.shape().iter().rev();
            let fits = scores.iter().rev().zip(sizes.by_ref()).all(|(n, size)| *size == 1 || size == n);
            if !fits || !sizes.all(|size| *size == 1) {
                let operand = operand.type_name();
                return value_error(format!(
                    "{owner}: the {name} {operand} does not broadcast to the scores, {scores:?}"
                ));
            }
        }
        // There is one length for each example, and one segment for each position.
        for (name, lengths) in
            [("query_seq_lengths", &self.query_seq_lengths), ("key_value_seq_lengths", &self.key_value_seq_lengths)]
        {
            let Some(lengths) = lengths else { continue };
            integer(owner, name, lengths)?;
            same_shape(owner, (name, lengths.shape()), ("the batch", &q[..rank - 3]))?;
        }
        if let Some((queries, keys)) = &self.segment_ids {
            for (ids, (name, x)) in [(queries, ("the queries", q)), (keys, ("the keys", k))] {
                integer(owner, "segment_ids", ids)?;
                same_shape(owner, ("segment_ids", ids.shape()), (name, &x[..rank - 2]))?;
            }
        }
        Ok(())
    }
}

/// Adds or removes leading dimensions of size 1, so that `x` has this rank.
fn with_rank(x: Array, rank: usize) -> Array {
    let mut shape = x.shape().to_vec();
    let excess = shape.len().saturating_sub(rank);
    shape.drain(..excess);
    shape.splice(0..0, std::iter::repeat_n(1, rank - shape.len()));
    x.reshape(shape)
}

/// Converts integers and booleans to float32.
fn as_float(x: &Array) -> Array {
    if x.dtype().is_float() { x.clone() } else { x.astype(DType::F32) }
}

/// Converts other numbers to int32.
fn as_integers(x: &Array) -> Array {
    if x.dtype().is_integer() { x.clone() } else { x.astype(DType::I32) }
}

/// Returns the mask of equal segments, `[..., 1, queries, keys]`, for queries `[..., queries]` and keys `[..., keys]`.
fn same_segment(queries: &Array, keys: &Array) -> Array {
    queries.expand_dims(-1).equal(keys.expand_dims(-2)).expand_dims(-3)
}

/// Returns `x` with one more entry of zeros in this dimension.
fn pad_end(x: &Array, axis: usize) -> Array {
    let mut shape = x.shape().to_vec();
    shape[axis] = 1;
    concatenate(&[x.clone(), zeros_dtype(shape, x.dtype())], axis as i32)
}

/// Returns `x`, broadcastable to `[..., heads, queries, keys]`, with at least three dimensions. The last one has
/// `keys` entries.
fn broadcast_keys(x: &Array, keys: usize) -> Array {
    let missing = 3usize.saturating_sub(x.ndim());
    let mut shape = [&vec![1; missing][..], x.shape()].concat();
    let x = x.reshape(shape.clone());
    if let Some(last) = shape.last_mut() {
        *last = keys;
    }
    x.broadcast_to(shape)
}
