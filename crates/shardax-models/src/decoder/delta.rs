//! Linear attention with the gated delta rule.

use std::ops::Range;

use shardax_nn::prelude::*;

use super::recurrence::{convolve, in_rows, rank_error, seen_positions, zero_unseen};
use super::{DeltaConfig, delta_chunks as chunks};

/// Linear attention with the gated delta rule ([Yang et al. 2024](https://arxiv.org/abs/2412.06464)), as in Qwen3-Next.
///
/// The state maps keys to values. At each position it decays, and the layer corrects the value that the state returns for
/// the position's key. The cache contains the state and the last inputs of the convolution.
#[derive(Module, Clone, Debug)]
pub struct GatedDelta {
    /// The projection to queries, `[heads of keys * features]`.
    pub query: Linear,
    /// The projection to keys.
    pub key: Linear,
    /// The projection to values, `[heads of values * features]`.
    pub value: Linear,
    /// The projection to the gates of the result.
    pub gate: Linear,
    /// The projection to the rates of writing, `[heads of values]`.
    pub write: Linear,
    /// The projection to the rates of forgetting, `[heads of values]`.
    pub forget: Linear,
    /// `[channels, 1, width]`: the convolution of queries, keys and values, of the earliest position first.
    pub taps: Array,
    /// `[heads of values]`: added to the rates of forgetting.
    pub rate_bias: Array,
    /// `[heads of values]`: the logarithms of the speeds of forgetting.
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

/// Creates a layer that computes `outputs` features of the input, without a bias.
fn input_layer(features: usize, outputs: usize, rngs: &mut Rngs) -> Linear {
    Linear::builder(features, outputs).use_bias(false).kernel_axes([Some("embed"), None]).build(rngs)
}

impl GatedDelta {
    #[track_caller]
    pub(super) fn new(features: usize, config: &DeltaConfig, epsilon: f64, rngs: &mut Rngs) -> GatedDelta {
        // Do not change the order of the fields: layers draw their weights from `rngs`, so another order would change the
        // weights of a seed.
        let DeltaConfig { key_heads, value_heads, key_dim, value_dim, width, .. } = *config;
        let sizes = Sizes { key_heads, value_heads, key_dim, value_dim, width };
        let values = value_heads * value_dim;
        let out = Linear::builder(values, features).use_bias(false);
        let dtype = rngs.policy().param_dtype;
        GatedDelta {
            query: input_layer(features, key_heads * key_dim, rngs),
            key: input_layer(features, key_heads * key_dim, rngs),
            value: input_layer(features, values, rngs),
            gate: input_layer(features, values, rngs),
            write: input_layer(features, value_heads, rngs),
            forget: input_layer(features, value_heads, rngs),
            taps: (random::normal_dtype(rngs.params(), [sizes.channels(), 1, width], DType::F32) * 0.1).astype(dtype),
            rate_bias: ones_dtype([value_heads], dtype),
            log_speed: zeros_dtype([value_heads], dtype),
            norm: RmsNorm::builder(value_dim).epsilon(epsilon).build(rngs),
            out: out.kernel_axes([None, Some("embed")]).build(rngs),
            recent: None,
            state: None,
            cache_index: None,
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

    /// Creates an empty cache of this shape, `[..., length]`.
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

    /// Computes the next positions `x`, `[batch, length, features]`. Pass a mask, `[batch, heads, length, length of the
    /// cache]`, if texts do not start at the first position of the cache: masked positions do not change the state.
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
        let Sizes { key_heads, value_heads, key_dim, value_dim, .. } = self.sizes;
        let (batch, length) = (x.shape()[0], x.shape()[1]);
        // A causal convolution mixes queries, keys and values of neighboring positions.
        let mixed = [&self.query, &self.key, &self.value].map(|layer| layer.forward(&x));
        let gates = self.gate.forward(&x).reshape([batch, length, value_heads, value_dim]);
        let inputs = concatenate(&[recent, concatenate(&mixed, -1).astype(DType::F32)], 1);
        let taps = self.taps.astype(DType::F32).squeeze(1).transpose([1, 0]);
        let mixed = silu(convolve(&inputs, &taps, length));
        let keys_end = key_heads * key_dim;
        let query = split_heads(&mixed, 0..keys_end, key_heads);
        let query = repeat_heads(&with_unit_length(&query), value_heads) * (key_dim as f64).sqrt().recip();
        let key = split_heads(&mixed, keys_end..2 * keys_end, key_heads);
        let key = repeat_heads(&with_unit_length(&key), value_heads);
        let value = split_heads(&mixed, 2 * keys_end..self.sizes.channels(), value_heads);

        let write_rate = sigmoid(self.write.forward(&x).astype(DType::F32));
        let speed = self.log_speed.astype(DType::F32).exp();
        let forget = self.forget.forward(&x).astype(DType::F32);
        let log_keep_rate = -speed * softplus(forget + self.rate_bias.astype(DType::F32));
        let (state, y) = match chunks::scan_chunks(state, [query, key, value, write_rate, log_keep_rate]) {
            Ok(scanned) => scanned,
            Err(error) => {
                let failed = Array::from_error(error, &x);
                return (failed.clone(), failed.clone(), failed);
            }
        };
        let y = self.norm.forward(y.astype(x.dtype())) * silu(gates);
        let y = self.out.forward(y.reshape([batch, length, value_heads * value_dim]));
        (y, inputs.get((.., length..)), state)
    }
}

/// Splits some channels of `x`, `[batch, length, channels]`, into heads: `[batch, length, heads, features]`.
fn split_heads(x: &Array, channels: Range<usize>, heads: usize) -> Array {
    let (batch, length) = (x.shape()[0], x.shape()[1]);
    x.get((.., .., channels)).reshape([batch as i32, length as i32, heads as i32, -1])
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
