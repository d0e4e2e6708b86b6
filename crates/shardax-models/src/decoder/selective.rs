//! State-space layers of the first form of Mamba.

use shardax_nn::prelude::*;

use super::recurrence::{convolve, in_rows, rank_error, seen_positions, zero_unseen};
use super::{Activation, SelectiveConfig};
use crate::shardings::reshard_like;

/// A state-space layer of the first form of Mamba ([Gu and Dao 2023](https://arxiv.org/abs/2312.00752)).
///
/// Each channel has a state of several numbers, and each number decays at its own rate. Steps, keys and queries are computed from
/// the channels after the convolution. Positions are computed one after the other. The cache contains the state and the last
/// inputs of the convolution.
#[derive(Module, Clone, Debug)]
pub struct SelectiveState {
    /// The projection to the channels.
    pub value: Linear,
    /// The projection to the gates of the result.
    pub gate: Linear,
    /// `[width, 1, channels]`: the convolution of the channels, of the earliest position first.
    pub taps: Array,
    /// `[channels]`: added to the results of the convolution.
    pub taps_bias: Option<Array>,
    /// The projection of channels to a few features, from which the lengths of steps are computed.
    pub step_input: Linear,
    /// The projection of channels to keys.
    pub key: Linear,
    /// The projection of channels to queries.
    pub query: Linear,
    /// Normalizes the features of steps.
    pub step_norm: Option<RmsNorm>,
    /// Normalizes keys.
    pub key_norm: Option<RmsNorm>,
    /// Normalizes queries.
    pub query_norm: Option<RmsNorm>,
    /// The projection to the lengths of steps of all channels.
    pub step: Linear,
    /// `[channels, features of keys]`: the logarithms of the rates of decay.
    pub log_rate: Array,
    /// `[channels]`: the factors of channels that are added to the result.
    pub skip: Array,
    /// The projection to the result.
    pub out: Linear,
    /// `[..., width - 1, channels]`: the last inputs of the convolution.
    pub recent: Option<Cache>,
    /// `[..., channels, features of keys]`
    pub state: Option<Cache>,
    /// The number of positions that the state has seen, int32.
    pub cache_index: Option<Cache>,
    #[tree(static)]
    activation: Activation,
}

/// Creates a layer that computes `outputs` features of the channels, without a bias.
fn channel_layer(channels: usize, outputs: usize, rngs: &mut Rngs) -> Linear {
    Linear::builder(channels, outputs).use_bias(false).kernel_axes([Some("heads"), None]).build(rngs)
}

impl SelectiveState {
    #[track_caller]
    pub(super) fn new(features: usize, config: &SelectiveConfig, rngs: &mut Rngs) -> SelectiveState {
        // Do not change the order of the fields: layers draw their weights from `rngs`, so another order would change the
        // weights of a seed.
        let SelectiveConfig { channels, state_dim, width, rank, activation, use_bias, .. } = *config;
        let input = Linear::builder(features, channels).use_bias(use_bias).kernel_axes(["embed", "heads"]);
        let dtype = rngs.policy().param_dtype;
        SelectiveState {
            value: input.clone().build(rngs),
            gate: input.build(rngs),
            taps: (random::normal_dtype(rngs.params(), [width, 1, channels], DType::F32) * 0.1).astype(dtype),
            taps_bias: config.conv_bias.then(|| zeros_dtype([channels], dtype)),
            step_input: channel_layer(channels, rank, rngs),
            key: channel_layer(channels, state_dim, rngs),
            query: channel_layer(channels, state_dim, rngs),
            step_norm: norm(rank, config, rngs),
            key_norm: norm(state_dim, config, rngs),
            query_norm: norm(state_dim, config, rngs),
            step: Linear::builder(rank, channels).kernel_axes([None, Some("heads")]).build(rngs),
            log_rate: zeros_dtype([channels, state_dim], dtype),
            skip: ones_dtype([channels], dtype),
            out: Linear::builder(channels, features).use_bias(use_bias).kernel_axes(["heads", "embed"]).build(rngs),
            recent: None,
            state: None,
            cache_index: None,
            activation,
        }
    }

    /// Computes the results for `x`, `[..., length, features]`. They have the same shape.
    #[track_caller]
    pub fn forward(&self, x: impl ArrayLike) -> Array {
        in_rows("SelectiveState", x.into_array(), |rows| self.advance(&rows, None, self.empty(&rows.shape()[..1])).0)
    }

    /// Creates an empty cache of this shape, `[..., length]`. You must call it before the first
    /// [`decode`](Self::decode), and again before a new text.
    #[track_caller]
    pub fn init_cache(&mut self, shape: &[usize]) {
        let [recent, state] = self.empty(&shape[..shape.len().saturating_sub(1)]);
        (self.recent, self.state) = (Some(recent.into()), Some(state.into()));
        self.cache_index = Some(zeros_dtype((), DType::I32).into());
    }

    /// The inputs and the state before the first position.
    fn empty(&self, shape: &[usize]) -> [Array; 2] {
        let (width, state) = (self.taps.shape()[0], self.log_rate.shape());
        [&[width - 1, state[0]], state].map(|sizes| zeros_dtype([shape, sizes].concat(), DType::F32))
    }

    /// Computes the next positions `x`, `[batch, length, features]`. A mask, `[batch, heads, length, length of the cache]`, is for
    /// texts that do not start at the first position of the cache: masked positions do not change the state of a text.
    #[track_caller]
    pub fn decode(&mut self, x: Array, mask: Option<&Array>) -> Array {
        let (Some(recent), Some(state), Some(index)) = (&self.recent, &self.state, &self.cache_index) else {
            let error = Error::new(ErrorKind::Value, "SelectiveState: the cache is not initialized");
            return Array::from_error(error.help("call `init_cache` before you decode the first token"), &x);
        };
        let &[_, new, _] = x.shape() else { return rank_error("SelectiveState", &x) };
        let seen = mask.map(|mask| seen_positions(mask, index, new));
        let end = &**index + new as i32;
        let past = [recent, state].map(|cache| (**cache).clone());
        let (y, [recent, state]) = self.advance(&x, seen.as_ref(), past);
        (self.recent, self.state, self.cache_index) = (Some(recent.into()), Some(state.into()), Some(end.into()));
        y
    }

    /// The results of `x`, `[batch, length, features]`, and what later positions need. Positions that are not `seen`,
    /// `[batch, length]`, change nothing.
    #[track_caller]
    fn advance(&self, x: &Array, seen: Option<&Array>, [recent, state]: [Array; 2]) -> (Array, [Array; 2]) {
        let length = x.shape()[1];
        let gate = silu(self.gate.forward(x).astype(DType::F32));
        let value = self.value.forward(x).astype(DType::F32);
        let inputs = concatenate(&[reshard_like(recent, &value), zero_unseen(value, seen)], 1);
        let value = convolve(&inputs, &self.taps.astype(DType::F32).squeeze(1), length);
        let value = self.taps_bias.iter().fold(value, |value, bias| value + bias.astype(DType::F32));
        let value = self.activation.apply(value);

        let channels = value.astype(x.dtype());
        let [step, key, query] =
            [(&self.step_input, &self.step_norm), (&self.key, &self.key_norm), (&self.query, &self.query_norm)]
                .map(|(layer, norm)| norm.iter().fold(layer.forward(&channels), |y, norm| norm.forward(y)));
        let step = zero_unseen(softplus(self.step.forward(step).astype(DType::F32)), seen);
        let [key, query] = [key, query].map(|x| x.astype(DType::F32));
        let rates = -self.log_rate.astype(DType::F32).exp();
        // The state has the sharding of channels.
        let state = reshard_like(state, &value.get((.., 0)).expand_dims(-1));
        let by_position = [step.clone(), &value * step, key, query].map(|x| x.moveaxis(1, 0));
        let scanned = scan(
            |state: Array, [step, written, key, query]: [Array; 4]| -> Result<(Array, Array)> {
                let decay = (step.expand_dims(-1) * &rates).exp();
                let state = state * decay + written.expand_dims(-1) * key.expand_dims(1);
                let y = (&state * query.expand_dims(1)).sum(-1);
                Ok((state, y))
            },
            state,
            by_position,
        );
        let (state, y) = match scanned {
            Ok((state, y)) => (state, y.moveaxis(0, 1)),
            Err(error) => {
                let failed = Array::from_error(error, x);
                return (failed.clone(), [failed.clone(), failed]);
            }
        };
        let y = (y + value * self.skip.astype(DType::F32)) * gate;
        (self.out.forward(y.astype(x.dtype())), [inputs.get((.., length..)), state])
    }
}

/// The norm of steps, keys or queries, if the model has these norms.
fn norm(features: usize, config: &SelectiveConfig, rngs: &mut Rngs) -> Option<RmsNorm> {
    let (has_scale, epsilon) = config.norms?;
    Some(RmsNorm::builder(features).use_scale(has_scale).epsilon(epsilon).build(rngs))
}
