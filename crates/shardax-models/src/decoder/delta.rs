//! Linear attention with the gated delta rule.

use shardax_nn::prelude::*;

use super::recurrence::{convolve, in_rows, rank_error, seen_positions, zero_unseen};
use super::{DeltaConfig, delta_chunks as chunks};

/// Linear attention with the gated delta rule ([Yang et al. 2024](https://arxiv.org/abs/2412.06464)), as in Qwen3-Next.
///
/// The state maps keys to values. At each position it decays, and the layer corrects the value that the state returns for
/// the position's key. The cache contains the state and the last inputs of the convolution.
///
/// In Kimi Linear each feature of a key has its own rate of forgetting ([Kimi Team 2025](https://arxiv.org/abs/2510.26692)),
/// see [`DeltaConfig::channel_rates`].
#[derive(Module, Clone, Debug)]
pub struct GatedDelta {
    /// The projection to queries, `[heads of keys * features]`.
    pub query: Linear,
    /// The projection to keys.
    pub key: Linear,
    /// The projection to values, `[heads of values * features]`.
    pub value: Linear,
    /// The projection to the features from which gates are computed, see [`DeltaConfig::rank`].
    pub gate_down: Option<Linear>,
    /// The projection to the gates of the result.
    pub gate: Linear,
    /// The projection to the rates of writing, `[heads of values]`.
    pub write: Linear,
    /// The projection to the features from which rates of forgetting are computed, see [`DeltaConfig::rank`].
    pub forget_down: Option<Linear>,
    /// The projection to the rates of forgetting, `[heads of values]`, or `[heads of values * features of keys]`.
    pub forget: Linear,
    /// `[width, 1, channels]`: the convolution of queries, of the earliest position first.
    pub query_taps: Array,
    /// The convolution of keys.
    pub key_taps: Array,
    /// The convolution of values.
    pub value_taps: Array,
    /// Added to the rates of forgetting.
    pub rate_bias: Array,
    /// The logarithms of the speeds of forgetting, `[heads of values]`, or `[1, 1, heads of values, 1]` in Kimi Linear.
    pub log_speed: Array,
    /// Normalizes the result of each head.
    pub norm: RmsNorm,
    /// The projection to the result.
    pub out: Linear,
    /// `[..., width - 1, channels]`: the last inputs of the convolution.
    pub recent: Option<Cache>,
    /// `[..., heads of values, features of keys, features of values]`
    pub state: Option<Cache>,
    /// The number of positions that the state has seen, int32.
    pub cache_index: Option<Cache>,
    has_sigmoid_gates: bool,
    doubles_writes: bool,
    has_channel_rates: bool,
    rate_bound: Option<f64>,
    #[tree(static)]
    sizes: Sizes,
}

/// The heads and their features.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Sizes {
    key_heads: usize,
    value_heads: usize,
    key_dim: usize,
    value_dim: usize,
    width: usize,
}

impl Sizes {
    fn channels(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }
}

/// Creates a layer that computes `outputs` features from a few features, without a bias.
fn upward_layer(rank: usize, outputs: usize, rngs: &mut Rngs) -> Linear {
    Linear::builder(rank, outputs).use_bias(false).build(rngs)
}

/// Creates a layer that computes `outputs` features of the input, without a bias.
fn input_layer(features: usize, outputs: usize, rngs: &mut Rngs) -> Linear {
    Linear::builder(features, outputs).use_bias(false).kernel_axes([Some("embed"), None]).build(rngs)
}

impl GatedDelta {
    #[track_caller]
    pub(super) fn new(features: usize, config: &DeltaConfig, epsilon: f64, rngs: &mut Rngs) -> GatedDelta {
        // Do not change the order of the fields: layers draw their weights from `rngs`, so another order would change the
        // weights of a seed.
        let DeltaConfig { key_heads, value_heads, key_dim, value_dim, width, rank, channel_rates, .. } = *config;
        let sizes = Sizes { key_heads, value_heads, key_dim, value_dim, width };
        let (keys, values) = (key_heads * key_dim, value_heads * value_dim);
        let out = Linear::builder(values, features).use_bias(false);
        let dtype = rngs.policy().param_dtype;
        let epsilon = config.epsilon.unwrap_or(epsilon);
        let [query, key, value] = [keys, keys, values].map(|outputs| input_layer(features, outputs, rngs));
        let gate_down = rank.map(|rank| input_layer(features, rank, rngs));
        let gate = match rank {
            Some(rank) => upward_layer(rank, values, rngs),
            None => input_layer(features, values, rngs),
        };
        let write = input_layer(features, value_heads, rngs);
        // Only rates of channels are so many that they have a layer of low rank.
        let forget_rank = rank.filter(|_| channel_rates);
        let rates = if channel_rates { value_heads * key_dim } else { value_heads };
        let forget_down = forget_rank.map(|rank| input_layer(features, rank, rngs));
        let forget = match forget_rank {
            Some(rank) => upward_layer(rank, rates, rngs),
            None => input_layer(features, rates, rngs),
        };
        let taps = random::normal_dtype(rngs.params(), [sizes.channels(), 1, width], DType::F32) * 0.1;
        let taps = taps.astype(dtype).transpose([2, 1, 0]);
        let speeds = if forget_rank.is_some() { vec![1, 1, value_heads, 1] } else { vec![value_heads] };
        GatedDelta {
            query,
            key,
            value,
            gate_down,
            gate,
            write,
            forget_down,
            forget,
            query_taps: taps.get((Ellipsis, ..keys)),
            key_taps: taps.get((Ellipsis, keys..2 * keys)),
            value_taps: taps.get((Ellipsis, 2 * keys..)),
            rate_bias: ones_dtype([rates], dtype),
            log_speed: zeros_dtype(speeds, dtype),
            norm: RmsNorm::builder(value_dim).epsilon(epsilon).build(rngs),
            out: out.kernel_axes([None, Some("embed")]).build(rngs),
            recent: None,
            state: None,
            cache_index: None,
            has_sigmoid_gates: config.sigmoid_gates,
            doubles_writes: config.doubles_writes,
            has_channel_rates: channel_rates,
            rate_bound: config.rate_bound,
            sizes,
        }
    }

    /// Computes the results for `x`, `[..., length, features]`. They have the same shape.
    #[track_caller]
    pub fn forward(&self, x: impl ArrayLike) -> Array {
        in_rows("GatedDelta", x.into_array(), |rows| {
            let (recent, state) = self.empty(&rows.shape()[..1]);
            self.advance(rows, recent, state).0
        })
    }

    /// Creates an empty cache of this shape, `[..., length]`. You must call it before the first
    /// [`decode`](Self::decode), and again before a new text.
    #[track_caller]
    pub fn init_cache(&mut self, shape: &[usize]) {
        let (recent, state) = self.empty(&shape[..shape.len().saturating_sub(1)]);
        (self.recent, self.state) = (Some(recent.into()), Some(state.into()));
        self.cache_index = Some(zeros_dtype((), DType::I32).into());
    }

    /// Returns the inputs of the convolution and the state before the first position: zeros.
    fn empty(&self, shape: &[usize]) -> (Array, Array) {
        let Sizes { value_heads, key_dim, value_dim, width, .. } = self.sizes;
        let recent = zeros_dtype([shape, &[width - 1, self.sizes.channels()]].concat(), DType::F32);
        (recent, zeros_dtype([shape, &[value_heads, key_dim, value_dim]].concat(), DType::F32))
    }

    /// Computes the next positions `x`, `[batch, length, features]`. If texts do not start at the first position of the
    /// cache, you must pass a mask, `[batch, heads, length, length of the cache]`, because the positions before a text
    /// must not change the state.
    #[track_caller]
    pub fn decode(&mut self, x: Array, mask: Option<&Array>) -> Array {
        let (Some(recent), Some(state), Some(index)) = (&self.recent, &self.state, &self.cache_index) else {
            let error = Error::new(ErrorKind::Value, "GatedDelta: the cache is not initialized");
            return Array::from_error(error.help("call `init_cache` before you decode the first token"), &x);
        };
        let &[_, new, _] = x.shape() else { return rank_error("GatedDelta", &x) };
        let seen = mask.map(|mask| seen_positions(mask, index, new));
        let x = zero_unseen(x, seen.as_ref());
        let end = &**index + new as i32;
        let (y, recent, state) = self.advance(x, (**recent).clone(), (**state).clone());
        (self.recent, self.state, self.cache_index) = (Some(recent.into()), Some(state.into()), Some(end.into()));
        y
    }

    /// Computes the results for `x`, `[batch, length, features]`. Also returns the last inputs of the convolution and the
    /// state after `x`.
    ///
    /// The state is a matrix for each head. At each position it decays, and is then changed by the difference between the
    /// position's value and the value that it returns for the position's key.
    #[track_caller]
    fn advance(&self, x: Array, recent: Array, state: Array) -> (Array, Array, Array) {
        let Sizes { value_heads, value_dim, .. } = self.sizes;
        let (batch, length) = (x.shape()[0], x.shape()[1]);
        // A causal convolution mixes queries, keys and values of neighboring positions.
        let mixed = [&self.query, &self.key, &self.value].map(|layer| layer.forward(&x));
        let gates = through(&self.gate_down, &self.gate, &x).reshape([batch, length, value_heads, value_dim]);
        let inputs = concatenate(&[recent, concatenate(&mixed, -1).astype(DType::F32)], 1);
        let [query, key, value] = self.heads_of(silu(convolve(&inputs, &self.taps(), length)));
        let write_rate = sigmoid(self.write.forward(&x).astype(DType::F32));
        let write_rate = if self.doubles_writes { write_rate * 2.0 } else { write_rate };
        let log_keep_rate = self.log_keep_rates(&x);
        let (state, y) = match chunks::scan_chunks(state, [query, key, value, write_rate, log_keep_rate]) {
            Ok(scanned) => scanned,
            Err(error) => {
                let failed = Array::from_error(error, &x);
                return (failed.clone(), failed.clone(), failed);
            }
        };
        let gates = if self.has_sigmoid_gates { sigmoid(gates) } else { silu(gates) };
        let y = self.norm.forward(y.astype(x.dtype())) * gates;
        let y = self.out.forward(y.reshape([batch, length, value_heads * value_dim]));
        (y, inputs.get((.., length..)), state)
    }

    /// Returns the factors of the convolution, `[width, channels]`.
    fn taps(&self) -> Array {
        let taps = [&self.query_taps, &self.key_taps, &self.value_taps].map(|taps| taps.astype(DType::F32));
        concatenate(&taps, -1).squeeze(1)
    }

    /// Splits the results of the convolution, `[batch, length, channels]`, into queries, keys and values, `[batch, length, heads
    /// of values, features]`. Queries and keys have the length 1 before the factor of attention.
    fn heads_of(&self, mixed: Array) -> [Array; 3] {
        let Sizes { key_heads, value_heads, key_dim, .. } = self.sizes;
        let keys_end = key_heads * key_dim;
        let query = split_heads(&mixed.get((Ellipsis, ..keys_end)), key_heads);
        let query = repeat_heads(&with_unit_length(&query), value_heads) * (key_dim as f64).sqrt().recip();
        let key = split_heads(&mixed.get((Ellipsis, keys_end..2 * keys_end)), key_heads);
        let key = repeat_heads(&with_unit_length(&key), value_heads);
        [query, key, split_heads(&mixed.get((Ellipsis, 2 * keys_end..)), value_heads)]
    }

    /// Computes the logarithms of the rates of keeping, `[batch, length, heads]`, or with a feature for each feature of a key.
    fn log_keep_rates(&self, x: &Array) -> Array {
        let forget = through(&self.forget_down, &self.forget, x).astype(DType::F32);
        let inputs = forget + self.rate_bias.astype(DType::F32);
        let speed = self.log_speed.astype(DType::F32).exp();
        let (inputs, speed) = if self.has_channel_rates {
            (split_heads(&inputs, self.sizes.value_heads), speed.reshape([-1, 1]))
        } else {
            (inputs, speed)
        };
        match self.rate_bound {
            Some(bound) => sigmoid(speed * inputs) * bound,
            None => -speed * softplus(inputs),
        }
    }
}

/// Applies a layer after another one, if there is another one.
#[track_caller]
fn through(down: &Option<Linear>, up: &Linear, x: &Array) -> Array {
    match down {
        Some(down) => up.forward(down.forward(x)),
        None => up.forward(x),
    }
}

/// Splits the channels of `x`, `[batch, length, channels]`, into heads: `[batch, length, heads, features]`.
fn split_heads(x: &Array, heads: usize) -> Array {
    let (batch, length) = (x.shape()[0], x.shape()[1]);
    x.reshape([batch as i32, length as i32, heads as i32, -1])
}

/// Repeats the heads of `x`, `[batch, length, heads, features]`, because several heads of values share a head of keys.
fn repeat_heads(x: &Array, heads: usize) -> Array {
    let &[batch, length, key_heads, features] = x.shape() else { return x.clone() };
    let repeated = x.expand_dims(3).broadcast_to([batch, length, key_heads, heads / key_heads, features]);
    repeated.reshape([batch, length, heads, features])
}

/// Divides vectors along the last dimension by their lengths.
fn with_unit_length(x: &Array) -> Array {
    x * (x.square().sum_keepdims(-1) + 1e-6).rsqrt()
}
