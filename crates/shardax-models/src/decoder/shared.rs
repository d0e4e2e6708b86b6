//! Attention and MLPs that several layers share, as in Zamba 2.
//!
//! Between the layers, the embeddings of tokens follow the features in the last dimension of `x`, because shared layers read both.

use shardax::error::Result;
use shardax_nn::prelude::*;

use super::block::with_all_positions;
use super::norm::{Norm, normed};
use super::recurrence::rank_error;
use super::{Biases, Block, DecoderConfig, LayerParts, Mlp, NormKind, Positions};
use crate::error::value_error;
use crate::shardings::{gather_positions, reshard_like};

/// The sizes of shared layers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SharedConfig {
    /// The number of shared layers. Layers use them in turn.
    pub count: usize,
    /// True for each layer of the decoder that adds the output of a shared layer to the input of its state space.
    pub layers: Vec<bool>,
    /// The features of the adapters of low rank that each layer has for shared kernels.
    pub rank: usize,
    /// True if the kernels of queries, keys and values have adapters too. Otherwise only the kernels of MLPs have them.
    pub adapts_attention: bool,
}

/// Attention and an MLP that several layers share. The features of the layer and the embeddings of tokens are the input, and
/// nothing is added to the outputs.
#[derive(Module, Clone, Debug)]
pub struct SharedLayer {
    /// Normalizes the input of attention.
    pub norm: Norm,
    /// The projection to queries, `[heads, depth]`.
    pub query: LinearGeneral,
    /// The projection to keys, `[key heads, depth]`.
    pub key: LinearGeneral,
    /// The projection to values, `[key heads, depth]`.
    pub value: LinearGeneral,
    /// The projection from the results of heads.
    pub out: LinearGeneral,
    /// Normalizes the input of the MLP.
    pub mlp_norm: Norm,
    /// The MLP.
    pub mlp: Mlp,
    rope: Option<Rope>,
    scale: f64,
}

/// The parts of a layer that uses a [`SharedLayer`]: adapters, the projection of the output, and the cache.
#[derive(Module, Clone, Debug)]
pub struct SharedUse {
    /// The adapter of queries.
    pub query: Option<LowRankAdapter>,
    /// The adapter of keys.
    pub key: Option<LowRankAdapter>,
    /// The adapter of values.
    pub value: Option<LowRankAdapter>,
    /// The adapter of the gates of the MLP, which has the input of `up` too.
    pub gate: LowRankAdapter,
    /// The second layer of the adapter of the MLP's first layer.
    pub up: Linear,
    /// The projection of the output.
    pub out: Linear,
    /// `[..., length, key heads, depth]`
    pub cached_key: Option<Cache>,
    /// `[..., length, key heads, depth]`
    pub cached_value: Option<Cache>,
    /// The number of positions in the cache, int32.
    pub cache_index: Option<Cache>,
    /// The shared layer, which the decoder sets before it applies the block.
    pub layer: Option<SharedLayer>,
    /// The index of the shared layer.
    pub(super) index: usize,
    #[tree(static)]
    key_shape: [usize; 2],
}

/// Two linear layers with few features between them, whose results are added to the results of a shared kernel.
#[derive(Module, Clone, Debug)]
pub struct LowRankAdapter {
    /// The first layer.
    pub down: Linear,
    /// The second layer.
    pub up: Linear,
}

impl DecoderConfig {
    /// Checks the sizes of shared layers, and that no field is set that they do not read.
    pub(super) fn check_shared(&self) -> Result<()> {
        let Some(shared) = &self.shared else { return Ok(()) };
        let spaces = self.state_space.as_ref().is_some_and(|space| space.layers.iter().all(|has_space| *has_space));
        let is_mixer = self.parts.iter().all(|parts| *parts == LayerParts::Mixer) && !self.parts.is_empty();
        if [shared.count, shared.rank].contains(&0) || shared.layers.len() != self.layers || !spaces || !is_mixer {
            let message = format!("{shared:?} does not describe shared layers of {} state spaces", self.layers);
            return Err(value_error(message, "use positive sizes, and state spaces without MLPs in all layers"));
        }
        match self.unread_field() {
            Some(name) => Err(value_error(
                format!("shared and {name} are set, but shared layers do not read {name}"),
                format!("do not set {name}, or set shared to None"),
            )),
            None => Ok(()),
        }
    }

    /// Returns the first field that is set, but that neither shared layers nor the decoder around them read.
    ///
    /// The fields that they read are listed here, not the others, so that a new field is an error until shared layers read it.
    fn unread_field(&self) -> Option<String> {
        let read = DecoderConfig {
            logits: self.logits,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            value_dim: self.value_dim.filter(|value_dim| *value_dim == self.head_dim),
            hidden: self.hidden,
            positions: match &self.positions {
                Positions::Rotary(rope) => Positions::Rotary(rope.clone()),
                _ => Positions::Rotary(Rope::default()),
            },
            // All uses of a shared layer have the same positions.
            without_rope: self
                .without_rope
                .first()
                .map_or_else(Vec::new, |first| vec![*first; self.without_rope.len()]),
            epsilon: self.epsilon,
            activation: self.activation,
            biases: Biases { mlp: self.biases.mlp, head: self.biases.head, ..Biases::NONE },
            tie_embeddings: self.tie_embeddings,
            embedding_norm: self.embedding_norm,
            embedding_features: self.embedding_features,
            embedding_scale: self.embedding_scale,
            logits_scale: self.logits_scale,
            logits_soft_cap: self.logits_soft_cap,
            attention_scale: self.attention_scale,
            final_norm: self.final_norm,
            head_activation: self.head_activation,
            state_space: self.state_space.clone(),
            parts: self.parts.clone(),
            shared: self.shared.clone(),
            checkpoint: self.checkpoint.clone(),
            ..DecoderConfig::new(self.vocab_size, self.layers, self.features, self.heads)
        };
        (*self != read).then(|| first_difference(self, &read))
    }
}

/// Returns the name of the first field that differs. It compares texts, because the fields have many types.
fn first_difference(config: &DecoderConfig, other: &DecoderConfig) -> String {
    let [text, other] = [config, other].map(|config| format!("{config:#?}"));
    let equal = text.lines().zip(other.lines()).take_while(|(line, other)| line == other).count();
    // The names of fields are indented by four spaces, and the lines of their values by more.
    let names = text.lines().take(equal + 1).filter_map(|line| line.strip_prefix("    ")?.split_once(": "));
    names
        .filter(|(name, _)| !name.starts_with(' '))
        .last()
        .map_or_else(|| "a field".to_owned(), |(name, _)| name.to_owned())
}

impl LowRankAdapter {
    fn new(features: usize, rank: usize, outputs: usize, rngs: &mut Rngs) -> LowRankAdapter {
        let down = Linear::builder(features, rank).use_bias(false).kernel_axes([Some("embed"), None]);
        LowRankAdapter { down: down.build(rngs), up: Linear::builder(rank, outputs).use_bias(false).build(rngs) }
    }

    fn forward(&self, x: &Array) -> Array {
        self.up.forward(self.down.forward(x))
    }
}

impl SharedLayer {
    /// Creates a shared layer of the decoder.
    #[track_caller]
    pub(super) fn new(config: &DecoderConfig, rngs: &mut Rngs) -> SharedLayer {
        let DecoderConfig { features, heads, kv_heads, head_dim, hidden, activation, .. } = *config;
        let [query, key, value] = [heads, kv_heads, kv_heads].map(|heads| {
            let layer = LinearGeneral::builder([2 * features], [heads, head_dim]).use_bias(false);
            layer.kernel_axes([Some("embed"), Some("heads"), None]).build(rngs)
        });
        let out = LinearGeneral::builder([heads, head_dim], [features]).use_bias(false);
        SharedLayer {
            norm: Norm::new(NormKind::Rms, 2 * features, config.epsilon, rngs),
            query,
            key,
            value,
            out: out.kernel_axes([Some("heads"), None, Some("embed")]).build(rngs),
            mlp_norm: Norm::new(NormKind::Rms, features, config.epsilon, rngs),
            mlp: Mlp::new(features, hidden, activation, true, config.biases.mlp, rngs),
            rope: config.rope_of(0),
            scale: config.attention_scale.unwrap_or_else(|| (head_dim as f64).sqrt().recip()),
        }
    }

    /// Returns queries, keys and values of the normalized input `x` at these positions, with the adapters of the layer.
    #[track_caller]
    fn projected(&self, user: &SharedUse, x: &Array, positions: &Array) -> [Array; 3] {
        let parts = [(&self.query, &user.query), (&self.key, &user.key), (&self.value, &user.value)];
        let [query, key, value] = parts.map(|(layer, adapter)| {
            let y = layer.forward(x);
            adapter.iter().fold(y, |y, adapter| &y + reshard_like(adapter.forward(x).reshape(y.shape()), &y))
        });
        match &self.rope {
            Some(rope) => [rope.apply(&query, positions), rope.apply(&key, positions), value],
            None => [query, key, value],
        }
    }

    /// Computes the output from the results of heads.
    #[track_caller]
    fn output(&self, user: &SharedUse, attended: Array) -> Array {
        let x = self.mlp_norm.forward(self.out.forward(attended));
        let reduced = user.gate.down.forward(&x);
        let y = self.mlp.forward_with(&x, user.gate.up.forward(&reduced), user.up.forward(&reduced));
        user.out.forward(y)
    }
}

impl SharedUse {
    /// Creates the parts of a layer that uses the shared layer with this index.
    #[track_caller]
    pub(super) fn new(config: &DecoderConfig, about: &SharedConfig, index: usize, rngs: &mut Rngs) -> SharedUse {
        let DecoderConfig { features, heads, kv_heads, head_dim, hidden, .. } = *config;
        let [query, key, value] = [heads, kv_heads, kv_heads].map(|heads| {
            about.adapts_attention.then(|| LowRankAdapter::new(2 * features, about.rank, heads * head_dim, rngs))
        });
        let up = Linear::builder(about.rank, hidden).use_bias(false).kernel_axes([None, Some("mlp")]);
        let down = Linear::builder(features, about.rank).use_bias(false).kernel_axes([Some("embed"), None]);
        SharedUse {
            query,
            key,
            value,
            gate: LowRankAdapter { down: down.build(rngs), up: up.clone().build(rngs) },
            up: up.build(rngs),
            out: Linear::builder(features, features).use_bias(false).kernel_axes([Some("embed"), None]).build(rngs),
            cached_key: None,
            cached_value: None,
            cache_index: None,
            layer: None,
            index,
            key_shape: [kv_heads, head_dim],
        }
    }

    /// Creates an empty cache of this shape, `[..., length]`.
    pub(super) fn init_cache(&mut self, shape: &[usize]) {
        let dtype = self.out.kernel.dtype();
        let [keys, values] = [(); 2].map(|()| zeros_dtype([shape, &self.key_shape].concat(), dtype));
        (self.cached_key, self.cached_value) = (Some(keys.into()), Some(values.into()));
        self.cache_index = Some(zeros_dtype((), DType::I32).into());
    }

    /// Computes the output of a shared layer for `x`, `[..., length, 2 * features]`. The mask must broadcast to `[batch, heads,
    /// queries, keys]`.
    #[track_caller]
    fn forward(&self, layer: &SharedLayer, x: &Array) -> Array {
        let length = x.shape().get(x.ndim().saturating_sub(2)).copied().unwrap_or(0);
        let [query, key, value] = layer.projected(self, &layer.norm.forward(x), &arange(0..length as i32));
        let options = AttentionOptions::new().is_causal(true).scale(layer.scale);
        layer.output(self, options.dot_product_attention(query, key, value))
    }

    /// Computes the output of a shared layer for the next positions `x`, as [`Block::decode`] does.
    #[track_caller]
    fn decode(&mut self, layer: &SharedLayer, x: &Array, positions: Option<&Array>, mask: Option<&Array>) -> Array {
        let (Some(keys), Some(values), Some(index)) = (&self.cached_key, &self.cached_value, &self.cache_index) else {
            let error = Error::new(ErrorKind::Value, "SharedUse: the cache is not initialized");
            return Array::from_error(error.help("call `init_cache` before you decode the first token"), x);
        };
        let &[.., new, _] = x.shape() else { return rank_error("SharedUse", x) };
        let location = &**index + arange(0..new as i32);
        let positions = positions.cloned().unwrap_or_else(|| location.clone());
        let [query, key, value] = layer.projected(self, &layer.norm.forward(x), &positions);
        let axis = key.ndim() as i32 - 3;
        let [keys, values] = [(keys, &key), (values, &value)].map(|(cache, new)| {
            let new = reshard_like(new.astype(cache.dtype()), cache);
            lax::dynamic_update_slice_in_dim(&**cache, &new, &**index, axis)
        });
        let length = keys.shape().get(axis as usize).copied().unwrap_or(0) as i32;
        let end = &**index + new as i32;
        let visible = location.expand_dims(1).greater_equal(arange(0..length));
        let visible = mask.iter().fold(visible, |visible, mask| mask.astype(DType::Bool) & visible);
        let options = AttentionOptions::new().scale(layer.scale).mask(visible);
        let attended = options.dot_product_attention(&query, keys.astype(query.dtype()), values.astype(query.dtype()));
        let y = where_(end.greater(length), f64::NAN, layer.output(self, attended));
        (self.cached_key, self.cached_value) = (Some(keys.into()), Some(values.into()));
        self.cache_index = Some(end.into());
        y
    }
}

impl Block {
    /// Computes the output for `x`, which ends with the embeddings of tokens. `shared` is the output of a shared layer, and
    /// `advance` computes the state space of its input.
    #[track_caller]
    fn add_state_space(&self, x: &Array, shared: Option<Array>, advance: impl FnOnce(Array) -> Array) -> Array {
        let features = x.shape().last().map_or(0, |features| features / 2);
        let (x, embeddings) = (x.get((Ellipsis, ..features)), x.get((Ellipsis, features..)));
        let input = shared.iter().fold(x.clone(), |x, shared| x + shared);
        let y = with_all_positions(&x, |_| advance(gather_positions(normed(&self.norm, &input))));
        concatenate(&[self.place(x + y), embeddings], -1)
    }

    /// Returns true if the block uses a shared layer that is not set, because the decoder does not apply the block.
    fn lacks_shared_layer(&self) -> bool {
        self.shared.as_ref().is_some_and(|user| user.layer.is_none())
    }

    /// Computes the output of the block for `x`, `[..., length, 2 * features]`, which ends with the embeddings of tokens.
    #[track_caller]
    pub(super) fn forward_shared(&self, x: &Array) -> Array {
        if self.lacks_shared_layer() {
            return without_layer(x);
        }
        let shared = self.shared.as_ref().and_then(|user| Some(user.forward(user.layer.as_ref()?, x)));
        self.add_state_space(x, shared, |x| {
            self.state_space.as_ref().map_or_else(|| x.clone(), |space| space.forward(&x))
        })
    }

    /// Computes the output of the block for the next positions `x`, which end with the embeddings of tokens.
    #[track_caller]
    pub(super) fn decode_shared(&mut self, x: &Array, positions: Option<&Array>, mask: Option<&Array>) -> Array {
        if self.lacks_shared_layer() {
            return without_layer(x);
        }
        let shared = self.shared.as_mut().and_then(|user| {
            let layer = user.layer.clone()?;
            Some(user.decode(&layer, x, positions, mask))
        });
        let mut space = self.state_space.take();
        let y = self.add_state_space(x, shared, |x| match &mut space {
            Some(space) => space.decode(x, mask),
            None => x,
        });
        self.state_space = space;
        y
    }
}

/// Returns the error of a block whose shared layer is not set.
#[track_caller]
fn without_layer(x: &Array) -> Array {
    let error = value_error(
        "Block: the block uses a shared layer, which the decoder sets, but `shared.layer` is None",
        "apply the layers with `Decoder::forward` or `Decoder::decode`, or set `shared.layer` of the block to its layer in \
         `Decoder::shared`",
    );
    Array::from_error(error, x)
}
