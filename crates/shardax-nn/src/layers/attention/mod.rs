//! The attention layer.

mod builder;
mod difference;
mod value_scores;

pub use builder::MultiHeadAttentionBuilder;
pub use difference::HeadDifference;
use shardax::choice::Choice;
use shardax::lax::Precision;
use shardax::prelude::*;
use shardax::shape::{AxisName, IntoSizes};
pub use value_scores::ValueScores;

use super::{LayerNorm, LinearGeneral, RmsNorm};
use crate::attention::{AttentionOptions, Implementation, Rope};
use crate::check::{rejected, require, value_error};
use crate::rules::Place;
use crate::shardings::{reshard_like, split_last_dims_like};
use crate::{Cache, Rngs, Rules};

/// Multi-head attention: linear projections of the inputs to queries, keys and values, and a linear projection of the
/// heads' results.
///
/// The layer has no stream of random keys for its dropout. Instead, pass a key to [`AttentionOptions::dropout_key`]. To draw
/// the same keys as `nnx.MultiHeadAttention(…, dropout_rate=…)`, call [`Rngs::fork`] after you create the layer, and use the
/// keys of this stream.
///
/// ```
/// use shardax_nn::prelude::*;
/// let mut rngs = Rngs::new(0);
/// let layer = MultiHeadAttention::builder(8, 64).num_kv_heads(2).rope(Rope::default()).is_causal(true).build(&mut rngs);
/// let x = random::normal(random::key(1), [2, 10, 64]);
/// let y = layer.forward(&x);
///
/// // One position after the other, with the keys and values of earlier positions.
/// let mut decoder = layer.clone();
/// decoder.init_cache([2, 10, 64], DType::F32);
/// for i in 0..10 {
///     let decoded = decoder.decode(x.get((.., i..i + 1)));
///     assert!(allclose(decoded.get((.., 0)), y.get((.., i)), 1e-4, 1e-5)?);
/// }
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Module, Clone, Debug)]
pub struct MultiHeadAttention {
    /// The projection from inputs to `[heads, depth]`.
    pub query: LinearGeneral,
    /// The projection from inputs to `[key heads, depth]`. `None` if the layer uses the keys and values of another layer, see
    /// [`attend_over`](MultiHeadAttention::attend_over).
    pub key: Option<LinearGeneral>,
    /// The projection from inputs to `[key heads, depth]`. `None` if the results of `key` are values too.
    pub value: Option<LinearGeneral>,
    /// The projection from `[heads, depth]` to the features of the result.
    pub out: LinearGeneral,
    /// The norm of each head's query, if they are normalized.
    pub query_ln: Option<LayerNorm>,
    /// The norm of each head's key, if they are normalized.
    pub key_ln: Option<LayerNorm>,
    /// The RMS norm of each head's query, or of all heads together if it has as many features. Default none; set this field
    /// if your model has one.
    pub query_norm: Option<RmsNorm>,
    /// The RMS norm of each head's key, or of all heads together if it has as many features. Default none; set this field
    /// if your model has one.
    pub key_norm: Option<RmsNorm>,
    /// The RMS norm of each head's value. Default none; set this field if your model has one.
    pub value_norm: Option<RmsNorm>,
    /// `[heads, depth]`: the factors of normalized queries, for a norm whose scale differs between heads. Default none; set
    /// this field if your model has one.
    pub query_scale: Option<Array>,
    /// `[key heads, depth]`: the factors of normalized keys. Default none; set this field if your model has one.
    pub key_scale: Option<Array>,
    /// The projection from the inputs of queries to `[heads, depth]` or `[heads, 1]`, whose sigmoid or softplus
    /// ([`softplus_gate`](MultiHeadAttentionBuilder::softplus_gate)) is a factor of the heads' results. Default none; set this
    /// field if your model has one.
    pub gate: Option<LinearGeneral>,
    /// `[heads]`: added to all results of `gate` for a head, as in Beam. Default none; set this field if your model has one, and
    /// `gate` too.
    pub gate_bias: Option<Array>,
    /// Subtracts the results of heads from others. Default none; set this field if your model does, as DiffLlama does.
    pub difference: Option<Box<HeadDifference>>,
    /// Scores of keys that are computed from their values. Default none; set this field if your model has them, as Doge does.
    /// They need all keys, so that you cannot split the sequence over a mesh axis with a ring.
    pub value_scores: Option<Box<ValueScores>>,
    /// The RMS norm of the results of all heads together, before `out`. Default none; set this field if your model has one, as
    /// BitNet does.
    pub out_norm: Option<RmsNorm>,
    /// A score of each head, `[heads]`, that contributes to the softmax but adds nothing to the result, as in gpt-oss.
    /// Default none: a model that has them sets it.
    pub sinks: Option<Array>,
    /// `[..., length, key heads, depth]`, after [`init_cache`](MultiHeadAttention::init_cache).
    pub cached_key: Option<Cache>,
    /// `[..., length, key heads, depth]`, after [`init_cache`](MultiHeadAttention::init_cache).
    pub cached_value: Option<Cache>,
    /// The number of positions in the cache, int32.
    pub cache_index: Option<Cache>,
    own: Own,
    #[tree(static)]
    sequence: Option<Sequence>,
    /// The sharding of queries over batch and heads, if there are rules.
    #[tree(static)]
    out_sharding: Option<NamedSharding>,
}

/// The logical name of the dimension of positions, and the rules for it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Sequence {
    name: &'static str,
    rules: Rules,
}

/// The options of a layer that are not themselves layers.
#[derive(Tree, Clone, Debug, PartialEq)]
struct Own {
    dropout_rate: f64,
    broadcast_dropout: bool,
    is_causal: bool,
    scale: Option<f64>,
    local_window_size: Option<(usize, usize)>,
    soft_cap: Option<f64>,
    #[tree(static)]
    implementation: Option<Choice<Implementation>>,
    rope: Option<Rope>,
    normalize_after_rope: bool,
    qkv_bound: Option<f64>,
    query_growth: Option<QueryGrowth>,
    softplus_gate: bool,
    #[tree(static)]
    precision: Option<Choice<Precision>>,
}

/// A factor of queries that grows with their position, so that attention over longer texts is not flatter:
/// `1 + rate * log(1 + floor((position + offset) / length))`, or a [`power`](QueryGrowth::power).
///
/// ```
/// use shardax_nn::QueryGrowth;
/// use shardax_nn::prelude::*;
/// let growth = QueryGrowth { rate: 0.1, length: 4.0, offset: 0.0, power: false };
/// let layer = MultiHeadAttention::builder(2, 8).query_growth(growth).is_causal(true).build(&mut Rngs::new(0));
/// assert_eq!(layer.forward(ones([1, 6, 8])).shape(), [1, 6, 8]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Tree, Clone, Debug, PartialEq)]
pub struct QueryGrowth {
    /// The factor of the logarithm.
    pub rate: f64,
    /// The number of positions that have the same factor.
    pub length: f64,
    /// The number that is added to positions.
    pub offset: f64,
    /// True if the factor is `(1 + (position + offset) / length)` to the power of `rate`, as in Beam.
    pub power: bool,
}

impl QueryGrowth {
    /// Returns the factors at positions `[..., length]`: `[..., length, 1, 1]`, float32.
    pub fn factors(&self, positions: &Array) -> Array {
        let steps = (positions.astype(DType::F32) + self.offset) / self.length;
        let factors =
            if self.power { (steps.log1p() * self.rate).exp() } else { (steps.floor() + 1.0).log() * self.rate + 1.0 };
        factors.expand_dims(-1).expand_dims(-1)
    }
}

impl MultiHeadAttention {
    /// Creates a layer of `num_heads` heads, which must divide the features. Kernels are LeCun normal, biases zero.
    #[track_caller]
    pub fn new(num_heads: usize, in_features: usize, rngs: &mut Rngs) -> Self {
        MultiHeadAttention::builder(num_heads, in_features).build(rngs)
    }

    /// Returns a builder of a layer.
    pub fn builder(num_heads: usize, in_features: usize) -> MultiHeadAttentionBuilder {
        MultiHeadAttentionBuilder::new(num_heads, in_features)
    }

    /// Applies self-attention without dropout: `x` is `[..., length, features]`, and so is the result.
    #[track_caller]
    pub fn forward(&self, x: impl ArrayLike) -> Array {
        let x = x.into_array();
        self.attend(&x, &x, &x, AttentionOptions::new())
    }

    /// Computes attention of the queries of `inputs_q` over the keys of `inputs_k` and the values of `inputs_v`, all
    /// `[..., length, features]`. `options` override the layer's options.
    #[track_caller]
    pub fn attend(
        &self,
        inputs_q: impl ArrayLike,
        inputs_k: impl ArrayLike,
        inputs_v: impl ArrayLike,
        options: AttentionOptions,
    ) -> Array {
        let inputs = [inputs_q.into_array(), inputs_k.into_array(), inputs_v.into_array()];
        let mut options = options.or(self.options());
        let rope = options.rope.take();
        let gate = self.gate_of(&inputs[0]);
        require!(&inputs[0], self.has_keys());
        let [query, key, value] = self.projected(inputs, rope, options.positions.as_ref(), None);
        // The sharding is for one batch dimension.
        if query.ndim() == 4 {
            options.out_sharding = options.out_sharding.or_else(|| self.out_sharding.clone());
        }
        match self.place() {
            Ok(Place::Whole) => self.joined(&options, [query, key, value], gate),
            Ok(Place::Manual(_) | Place::Auto(..)) if self.value_scores.is_some() => {
                rejected("MultiHeadAttention: value_scores need all keys, but the rules split the sequence", &query)
            }
            Ok(Place::Manual(axis)) => {
                self.outputs(options.ring_attention(query, key, self.values(&value), axis), gate)
            }
            Ok(Place::Auto(mesh, axis)) => {
                self.outputs(round(&options, [query, key, self.values(&value)], &mesh, axis), gate)
            }
            Err(error) => Array::from_error(error, &query),
        }
    }

    /// Computes the keys and values of `x`, `[..., length, features]`, as [`attend`](MultiHeadAttention::attend) uses them:
    /// `[..., length, key heads, depth]`, normalized and rotated. Another layer can attend to them with
    /// [`attend_over`](MultiHeadAttention::attend_over).
    #[track_caller]
    pub fn keys_and_values(&self, x: impl ArrayLike, options: &AttentionOptions) -> [Array; 2] {
        let x = x.into_array();
        if let Err(error) = self.has_keys() {
            return [(); 2].map(|()| Array::from_error(error.clone(), &x));
        }
        let rope = options.rope.clone().or_else(|| self.own.rope.clone());
        self.projected_keys([x.clone(), x], rope.as_ref(), options.positions.as_ref(), None)
    }

    /// Computes attention of the queries of `x`, `[..., length, features]`, over the keys and values that another layer
    /// computed.
    ///
    /// ```
    /// use shardax_nn::prelude::*;
    /// let mut rngs = Rngs::new(0);
    /// let first = MultiHeadAttention::builder(4, 16).num_kv_heads(2).is_causal(true).build(&mut rngs);
    /// let mut second = first.clone();
    /// (second.key, second.value) = (None, None);
    /// let (x, options) = (random::normal(random::key(1), [1, 5, 16]), AttentionOptions::new());
    /// let [keys, values] = first.keys_and_values(&x, &options);
    /// let y = second.attend_over(&x, keys, values, options);
    /// assert!(allclose(y, first.forward(&x), 1e-5, 1e-5)?);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn attend_over(
        &self,
        x: impl ArrayLike,
        keys: impl ArrayLike,
        values: impl ArrayLike,
        options: AttentionOptions,
    ) -> Array {
        let x = x.into_array();
        let mut options = options.or(self.options());
        let rope = options.rope.take();
        let query = self.projected_query(x.clone(), rope.as_ref(), options.positions.as_ref(), None);
        if query.ndim() == 4 {
            options.out_sharding = options.out_sharding.or_else(|| self.out_sharding.clone());
        }
        self.joined(&options, [query, keys.into_array(), values.into_array()], self.gate_of(&x))
    }

    /// Computes attention of the last positions `x` over the cache of another layer, to which these positions have already
    /// been added.
    #[track_caller]
    pub fn decode_over(&self, x: impl ArrayLike, other: &MultiHeadAttention, options: AttentionOptions) -> Array {
        let x = x.into_array();
        let (Some(keys), Some(values), Some(end)) = (&other.cached_key, &other.cached_value, &other.cache_index) else {
            return rejected(
                "MultiHeadAttention: the cache of the other layer is not initialized, call `init_cache` first",
                &x,
            );
        };
        let mut options = options.or(self.options());
        let rope = options.rope.take();
        let new = x.shape().get(x.ndim().saturating_sub(2)).copied().unwrap_or(0);
        let length = keys.shape().get(keys.ndim().saturating_sub(3)).copied().unwrap_or(0);
        let start = &**end - new as i32;
        let query = self.projected_query(x.clone(), rope.as_ref(), options.positions.as_ref(), Some(&start));
        let options = options.seen_from(&start, new, length);
        let attended = [query.clone(), keys.astype(query.dtype()), values.astype(query.dtype())];
        let y = self.joined(&options, attended, self.gate_of(&x));
        where_(end.greater(length as i32), f64::NAN, y)
    }

    /// Returns an error if another layer computes the keys of this layer.
    fn has_keys(&self) -> Result<()> {
        match self.key {
            Some(_) => Ok(()),
            None => value_error(
                "MultiHeadAttention: the layer has no keys, so it can only attend to those of another layer; call `attend_over`",
            ),
        }
    }

    /// Returns the options of the layer.
    fn options(&self) -> AttentionOptions {
        let options = self.own.options();
        self.sinks.iter().fold(options, |options, sinks| options.sinks(sinks))
    }

    /// Returns how the sequence is sharded.
    #[track_caller]
    fn place(&self) -> Result<Place> {
        self.sequence.as_ref().map_or(Ok(Place::Whole), |sequence| sequence.rules.place(sequence.name))
    }

    /// Creates an empty cache of keys and values for inputs of this shape, `[..., length, features]`.
    #[track_caller]
    pub fn init_cache(&mut self, input_shape: impl IntoSizes, dtype: DType) {
        let input_shape = input_shape.into_sizes();
        // A layer without keys attends to the cache of another layer.
        let Some(key) = &self.key else { return };
        // Keys can be values too.
        let value = self.value.as_ref().unwrap_or(key);
        // Keys and values are two arrays, because a step that donates its state cannot donate one array twice.
        let [keys, values] = [key, value].map(|layer| {
            let heads = layer.out_features();
            let shape = [&input_shape[..input_shape.len().saturating_sub(1)], heads].concat();
            split_last_dims_like(zeros_dtype(shape.as_slice(), dtype), &layer.kernel, heads.len())
        });
        (self.cached_key, self.cached_value) = (Some(keys.into()), Some(values.into()));
        self.cache_index = Some(zeros_dtype((), DType::I32).into());
    }

    /// Applies causal self-attention of the next positions, one or several, to all positions in the cache, and adds
    /// the new positions to the cache. Beyond the cache's length, the result is NaN.
    ///
    /// You must call [`init_cache`](MultiHeadAttention::init_cache) first, and `x` must have the batch of the cache.
    #[track_caller]
    pub fn decode(&mut self, x: impl ArrayLike) -> Array {
        self.decode_with(x, AttentionOptions::new())
    }

    /// Computes [`decode`](MultiHeadAttention::decode) with options. A mask must broadcast to `[..., heads, length of x,
    /// length of the cache]`.
    #[track_caller]
    pub fn decode_with(&mut self, x: impl ArrayLike, options: AttentionOptions) -> Array {
        let x = x.into_array();
        let (Some(keys), Some(values), Some(index)) = (&self.cached_key, &self.cached_value, &self.cache_index) else {
            return rejected("MultiHeadAttention: the cache is not initialized, call `init_cache` first", &x);
        };
        let mut options = options.or(self.options());
        let rope = options.rope.take();
        let [query, key, value] =
            self.projected([x.clone(), x.clone(), x.clone()], rope, options.positions.as_ref(), Some(index));
        require!(&x, fits(&key, keys));
        let axis = key.ndim() as i32 - 3;
        let (new, length) = (key.shape()[axis as usize], keys.shape()[axis as usize]);
        let [keys, values] = [(keys, &key), (values, &value)].map(|(cache, new)| {
            let cache: &Array = cache;
            let new = reshard_like(new.astype(cache.dtype()), cache);
            lax::dynamic_update_slice_in_dim(cache, &new, &**index, axis)
        });
        let end = &**index + new as i32;
        let options = options.seen_from(index, new, length);
        let attended = [query.clone(), keys.astype(query.dtype()), values.astype(query.dtype())];
        let y = self.joined(&options, attended, self.gate_of(&x));
        // An update beyond the end of the cache would overwrite its last positions. A traced position cannot be an error.
        let y = where_(end.greater(length as i32), f64::NAN, y);
        (self.cached_key, self.cached_value, self.cache_index) =
            (Some(keys.into()), Some(values.into()), Some(end.into()));
        y
    }

    /// Returns queries, keys and values, `[..., length, heads, depth]`, normalized and rotated.
    #[track_caller]
    fn projected(
        &self,
        inputs: [Array; 3],
        rope: Option<Rope>,
        positions: Option<&Array>,
        start: Option<&Array>,
    ) -> [Array; 3] {
        let [q, k, v] = inputs;
        let query = self.projected_query(q, rope.as_ref(), positions, start);
        let [key, value] = self.projected_keys([k, v], rope.as_ref(), positions, start);
        [query, key, value]
    }

    /// Returns queries, `[..., length, heads, depth]`, normalized and rotated.
    #[track_caller]
    fn projected_query(
        &self,
        x: Array,
        rope: Option<&Rope>,
        positions: Option<&Array>,
        start: Option<&Array>,
    ) -> Array {
        let norms = (&self.query_ln, &self.query_norm, &self.query_scale);
        let query = self.turned(self.query.forward(x), norms, rope, positions, start);
        match &self.own.query_growth {
            Some(growth) if query.check().is_ok() => {
                let factors = growth.factors(&self.positions_of(&query, positions, start));
                (&query * factors).astype(query.dtype())
            }
            _ => query,
        }
    }

    /// Returns keys and values, `[..., length, key heads, depth]`, normalized and, for keys, rotated.
    #[track_caller]
    fn projected_keys(
        &self,
        [k, v]: [Array; 2],
        rope: Option<&Rope>,
        positions: Option<&Array>,
        start: Option<&Array>,
    ) -> [Array; 2] {
        let key = self.key.iter().fold(k, |x, layer| layer.forward(x));
        let value = self.value.as_ref().map_or_else(|| key.clone(), |layer| layer.forward(v));
        let value = self.value_norm.iter().fold(value, |x, norm| norm.forward(x));
        let norms = (&self.key_ln, &self.key_norm, &self.key_scale);
        [self.turned(key, norms, rope, positions, start), self.bounded(value)]
    }

    /// Applies the bound of elements, if there is one.
    #[track_caller]
    fn bounded(&self, x: Array) -> Array {
        self.own.qkv_bound.map_or_else(|| x.clone(), |bound| x.clip(-bound, bound))
    }

    /// Normalizes and rotates queries or keys. Models differ in which of both comes first. The projections are clipped before
    /// the rotation in both cases.
    #[track_caller]
    fn turned(
        &self,
        x: Array,
        norms: Norms<'_>,
        rope: Option<&Rope>,
        positions: Option<&Array>,
        start: Option<&Array>,
    ) -> Array {
        if self.own.normalize_after_rope {
            normalized(self.rotated(self.bounded(x), rope, positions, start), norms)
        } else {
            self.rotated(self.bounded(normalized(x, norms)), rope, positions, start)
        }
    }

    /// Rotates queries or keys by their positions, if there is a rotary embedding.
    #[track_caller]
    fn rotated(&self, x: Array, rope: Option<&Rope>, positions: Option<&Array>, start: Option<&Array>) -> Array {
        match rope.filter(|_| x.check().is_ok()) {
            Some(rope) => rope.apply(&x, self.positions_of(&x, positions, start)),
            None => x,
        }
    }

    /// Returns the positions of `x`, `[..., length, heads, depth]`, unless the caller has set them.
    #[track_caller]
    fn positions_of(&self, x: &Array, positions: Option<&Array>, start: Option<&Array>) -> Array {
        let local = arange(0..x.shape()[x.ndim() - 3] as i32);
        positions.cloned().unwrap_or_else(|| match (start, self.place()) {
            // In decoding, after the positions of the cache.
            (Some(start), _) => start + &local,
            // On a device of a ring, after the positions of the devices before it.
            (None, Ok(Place::Manual(axis))) => axis_index(axis) * local.size() as i32 + &local,
            _ => local.clone(),
        })
    }

    #[track_caller]
    fn joined(&self, options: &AttentionOptions, [query, key, value]: [Array; 3], gate: Option<Array>) -> Array {
        let options = match self.value_scores.as_ref().filter(|_| query.check().is_ok() && value.check().is_ok()) {
            Some(scores) => &scores.add_to(options, [&query, &key, &value]),
            None => options,
        };
        self.outputs(options.dot_product_attention(query, key, self.values(&value)), gate)
    }

    /// Returns the values that heads attend to, which are the values of pairs if the layer has a difference of heads.
    #[track_caller]
    fn values(&self, value: &Array) -> Array {
        match self.difference.as_ref().filter(|_| value.check().is_ok()) {
            Some(difference) => difference.values_of_pairs(value),
            None => value.clone(),
        }
    }

    /// Computes the features of the result from the results of heads, `[..., heads, depth]`.
    #[track_caller]
    fn outputs(&self, x: Array, gate: Option<Array>) -> Array {
        let x = match self.difference.as_ref().filter(|_| x.check().is_ok()) {
            Some(difference) => difference.subtract(&x),
            None => x,
        };
        let x = multiplied(x, gate);
        self.out.forward(self.out_norm.iter().fold(x, |x, norm| over_features(norm, x)))
    }

    /// Returns the factors of the heads' results, if there is a gate.
    #[track_caller]
    fn gate_of(&self, x: &Array) -> Option<Array> {
        let Some(gate) = &self.gate else {
            // Without a gate, nothing would read the bias.
            return self
                .gate_bias
                .as_ref()
                .map(|_| rejected("MultiHeadAttention: gate_bias is set, but gate is None; set both or neither", x));
        };
        let y = gate.forward(x);
        let y = self.gate_bias.iter().fold(y, |y, bias| &y + bias.astype(y.dtype()).expand_dims(-1));
        Some(if self.own.softplus_gate { shardax::nn::softplus(y) } else { shardax::nn::sigmoid(y) })
    }
}

impl Own {
    fn options(&self) -> AttentionOptions {
        let mut options = AttentionOptions::new()
            .is_causal(self.is_causal)
            .dropout_rate(self.dropout_rate)
            .broadcast_dropout(self.broadcast_dropout);
        options = self.precision.into_iter().fold(options, AttentionOptions::precision);
        if let Some(scale) = self.scale {
            options = options.scale(scale);
        }
        if let Some((left, right)) = self.local_window_size {
            options = options.local_window_size(left, right);
        }
        if let Some(cap) = self.soft_cap {
            options = options.soft_cap(cap);
        }
        options.rope = self.rope.clone();
        self.implementation.into_iter().fold(options, AttentionOptions::implementation)
    }
}

/// Runs ring attention in a `shard_map` over only the axis of the sequence.
#[track_caller]
fn round(options: &AttentionOptions, qkv: [Array; 3], mesh: &Mesh, axis: AxisName) -> Array {
    let [query, key, value] = qkv;
    let spec = PartitionSpec::default().insert(query.ndim().saturating_sub(3), &[axis]);
    // Segment ids are arrays, so they must be arguments of the mapped function. It would otherwise capture them without
    // a sharding.
    let ids = options.segment_ids.clone();
    let ring = shard_map(
        |(q, k, v): (Array, Array, Array), segment_ids: Option<(Array, Array)>| {
            let options = options.clone();
            let options = match segment_ids {
                Some((queries, keys)) => options.segment_ids(queries, keys),
                None => options,
            };
            options.ring_attention(q, k, v, axis)
        },
        mesh,
    );
    let ring = ring.axis_names(axis).in_specs((&spec, &spec)).out_specs(&spec);
    match ring.call(((query.clone(), key, value), ids)) {
        Ok(y) => y,
        Err(error) => Array::from_error(error, &query),
    }
}

/// The norms of queries or of keys, and the factors of each head.
type Norms<'a> = (&'a Option<LayerNorm>, &'a Option<RmsNorm>, &'a Option<Array>);

/// Applies the norms of queries or keys, if there are any.
#[track_caller]
fn normalized(x: Array, (layer, rms, scale): Norms<'_>) -> Array {
    let x = layer.iter().fold(x, |x, norm| norm.forward(x));
    let x = rms.iter().fold(x, |x, norm| over_features(norm, x));
    scale.iter().fold(x, |x, scale| &x * scale.astype(x.dtype()))
}

/// Multiplies the results of heads by a gate, if there is one.
#[track_caller]
fn multiplied(x: Array, gate: Option<Array>) -> Array {
    gate.map_or_else(|| x.clone(), |gate| &x * gate.astype(x.dtype()))
}

/// Normalizes the features of each head of `x`, `[..., heads, depth]`, or of all heads together if the norm's scale has
/// as many.
#[track_caller]
fn over_features(norm: &RmsNorm, x: Array) -> Array {
    let features = norm.scale.as_ref().map(|scale| scale.shape().iter().product::<usize>());
    let shape = x.shape().to_vec();
    match shape[..] {
        [ref rows @ .., heads, depth] if heads > 1 && features == Some(heads * depth) => {
            norm.forward(x.reshape([rows, &[heads * depth]].concat())).reshape(shape)
        }
        _ => norm.forward(x),
    }
}

/// Checks that new keys fit into a cache.
#[track_caller]
fn fits(key: &Array, cache: &Array) -> Result<()> {
    key.check()?;
    cache.check()?;
    // All dimensions must be equal, except for the length, which must not exceed the cache's.
    let (new, room) = (key.shape(), cache.shape());
    let length_dim = room.len().saturating_sub(3);
    let fits = new.len() == room.len()
        && (0..new.len()).all(|d| if d == length_dim { new[d] <= room[d] } else { new[d] == room[d] });
    if fits {
        return Ok(());
    }
    let (key, cache) = (key.type_name(), cache.type_name());
    value_error(format!("MultiHeadAttention: the new keys {key} do not fit into the cache, which is {cache}"))
}
