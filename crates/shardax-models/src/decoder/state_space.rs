//! State-space layers of the second form of Mamba.

use shardax_nn::prelude::*;

use super::recurrence::{convolve, in_rows, rank_error, seen_positions, zero_unseen};
use super::state_chunks::scan_chunks;
use super::{Activation, StateSpaceConfig, StateSpaceNorm, StateSpaceScales};
use crate::shardings::{gather_last, reshard_like};

/// A state-space layer of the second form of Mamba ([Dao and Gu 2024](https://arxiv.org/abs/2405.21060)).
///
/// Each head has a state, a matrix of the features of its values and of its keys. At each position the state decays, and the
/// product of the position's value and key is added. The result is the product of the state and the position's query. Keys and
/// queries are shared by the heads of a group. The cache contains the state and the last inputs of the convolution.
#[derive(Module, Clone, Debug)]
pub struct StateSpace {
    /// The projection to the gates of the result, `[heads, features of values]`.
    pub gate: LinearGeneral,
    /// The projection to values, `[heads, features of values]`.
    pub value: LinearGeneral,
    /// The projection to the keys of all groups, and then to their queries.
    pub key_query: Linear,
    /// The projection to the lengths of steps, `[heads]`.
    pub step: Linear,
    /// `[width, 1, channels]`: the convolution of values, keys and queries, of the earliest position first.
    pub taps: Array,
    /// `[channels]`: added to the results of the convolution.
    pub taps_bias: Option<Array>,
    /// `[heads]`: added to the lengths of steps.
    pub step_bias: Array,
    /// `[heads]`: the logarithms of the rates of decay.
    pub log_rate: Array,
    /// `[heads]`: the factors of values that are added to the result.
    pub skip: Array,
    /// `[heads * features of values]`: the scale of the norm of the result.
    pub norm_scale: Option<Array>,
    /// The projection to the result.
    pub out: LinearGeneral,
    /// `[..., width - 1, heads, features of values]`: the last values before the convolution.
    pub recent_values: Option<Cache>,
    /// `[..., width - 1, 2 * groups * features of keys]`: the last keys and queries before the convolution.
    pub recent_keys: Option<Cache>,
    /// `[..., heads, features of values, features of keys]`
    pub state: Option<Cache>,
    /// The number of positions that the state has seen, int32.
    pub cache_index: Option<Cache>,
    epsilon: f64,
    min_step: f64,
    max_step: f64,
    scales: Option<StateSpaceScales>,
    #[tree(static)]
    sizes: Sizes,
}

/// The sizes and the functions of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Sizes {
    heads: usize,
    head_dim: usize,
    groups: usize,
    state_dim: usize,
    width: usize,
    activation: Activation,
    norm: StateSpaceNorm,
}

/// The memory of earlier positions: the last values, the last keys and queries, and the state.
type Past = [Array; 3];

impl StateSpace {
    #[track_caller]
    pub(super) fn new(features: usize, config: &StateSpaceConfig, epsilon: f64, rngs: &mut Rngs) -> StateSpace {
        // Do not change the order of the fields: layers draw their weights from `rngs`, so another order would change the
        // weights of a seed.
        let StateSpaceConfig { heads, head_dim, groups, state_dim, width, activation, norm, .. } = *config;
        let (inner, keys) = (heads * head_dim, 2 * groups * state_dim);
        let by_heads = LinearGeneral::builder([features], [heads, head_dim]).use_bias(config.use_bias).kernel_axes([
            Some("embed"),
            Some("heads"),
            None,
        ]);
        let [key_query, step] =
            [keys, heads].map(|outputs| Linear::builder(features, outputs).use_bias(config.use_bias));
        let out = LinearGeneral::builder([heads, head_dim], [features]).use_bias(config.out_bias).kernel_axes([
            Some("heads"),
            None,
            Some("embed"),
        ]);
        let dtype = rngs.policy().param_dtype;
        StateSpace {
            gate: by_heads.clone().build(rngs),
            value: by_heads.build(rngs),
            key_query: key_query.kernel_axes([Some("embed"), None]).build(rngs),
            step: step.kernel_axes(["embed", "heads"]).build(rngs),
            taps: (random::normal_dtype(rngs.params(), [width, 1, inner + keys], DType::F32) * 0.1).astype(dtype),
            taps_bias: config.conv_bias.then(|| zeros_dtype([inner + keys], dtype)),
            step_bias: ones_dtype([heads], dtype),
            log_rate: zeros_dtype([heads], dtype),
            skip: ones_dtype([heads], dtype),
            norm_scale: (norm != StateSpaceNorm::None).then(|| ones_dtype([inner], dtype)),
            out: out.build(rngs),
            recent_values: None,
            recent_keys: None,
            state: None,
            cache_index: None,
            epsilon: config.epsilon.unwrap_or(epsilon),
            min_step: config.min_step,
            max_step: config.max_step,
            scales: config.scales.clone(),
            sizes: Sizes { heads, head_dim, groups, state_dim, width, activation, norm },
        }
    }

    /// Computes the results for `x`, `[..., length, features]`. They have the same shape.
    #[track_caller]
    pub fn forward(&self, x: impl ArrayLike) -> Array {
        in_rows("StateSpace", x.into_array(), |rows| self.advance(&rows, None, self.empty(&rows.shape()[..1])).0)
    }

    /// Creates an empty cache of this shape, `[..., length]`. You must call it before the first
    /// [`decode`](Self::decode), and again before a new text.
    #[track_caller]
    pub fn init_cache(&mut self, shape: &[usize]) {
        let [values, keys, state] = self.empty(&shape[..shape.len().saturating_sub(1)]);
        (self.recent_values, self.recent_keys) = (Some(values.into()), Some(keys.into()));
        (self.state, self.cache_index) = (Some(state.into()), Some(zeros_dtype((), DType::I32).into()));
    }

    /// The inputs and the state before the first position.
    fn empty(&self, shape: &[usize]) -> Past {
        let Sizes { heads, head_dim, groups, state_dim, width, .. } = self.sizes;
        let sizes: [&[usize]; 3] =
            [&[width - 1, heads, head_dim], &[width - 1, 2 * groups * state_dim], &[heads, head_dim, state_dim]];
        sizes.map(|sizes| zeros_dtype([shape, sizes].concat(), DType::F32))
    }

    /// Computes the next positions `x`, `[batch, length, features]`. A mask, `[batch, heads, length, length of the cache]`, is for
    /// texts that do not start at the first position of the cache: masked positions do not change the state of a text.
    #[track_caller]
    pub fn decode(&mut self, x: Array, mask: Option<&Array>) -> Array {
        let (Some(values), Some(keys), Some(state), Some(index)) =
            (&self.recent_values, &self.recent_keys, &self.state, &self.cache_index)
        else {
            let error = Error::new(ErrorKind::Value, "StateSpace: the cache is not initialized");
            return Array::from_error(error.help("call `init_cache` before you decode the first token"), &x);
        };
        let &[_, new, _] = x.shape() else { return rank_error("StateSpace", &x) };
        let seen = mask.map(|mask| seen_positions(mask, index, new));
        let end = &**index + new as i32;
        let past = [values, keys, state].map(|cache| (**cache).clone());
        let (y, [values, keys, state]) = self.advance(&x, seen.as_ref(), past);
        (self.recent_values, self.recent_keys) = (Some(values.into()), Some(keys.into()));
        (self.state, self.cache_index) = (Some(state.into()), Some(end.into()));
        y
    }

    /// The results of `x`, `[batch, length, features]`, and what later positions need. Positions that are not `seen`,
    /// `[batch, length]`, change nothing.
    #[track_caller]
    fn advance(&self, x: &Array, seen: Option<&Array>, past: Past) -> (Array, Past) {
        let Sizes { heads, head_dim, groups, state_dim, width, activation, .. } = self.sizes;
        let (batch, length) = (x.shape()[0], x.shape()[1]);
        let scales = self.scales.clone().unwrap_or_default();
        let x = &scaled(x.clone(), scales.input);
        let gate = scaled(self.gate.forward(x), scales.gate);
        let value = scaled(self.value.forward(x).astype(DType::F32), scales.value);
        let key_query = self.scaled_keys(self.key_query.forward(x).astype(DType::F32), &scales);
        let step = scaled(self.step.forward(x).astype(DType::F32), scales.step);

        // The convolution of values, split by heads, and of keys and queries, which all devices have.
        let [recent_values, recent_keys, state] = past;
        let values = concatenate(&[reshard_like(recent_values, &value), zero_unseen(value, seen)], 1);
        let keys = concatenate(&[reshard_like(recent_keys, &key_query), zero_unseen(key_query, seen)], 1);
        let (inner, taps) = (heads * head_dim, self.taps.astype(DType::F32).squeeze(1));
        let value_taps = taps.get((.., ..inner)).reshape([width, heads, head_dim]);
        let (mut value, mut key_query) =
            (convolve(&values, &value_taps, length), convolve(&keys, &taps.get((.., inner..)), length));
        if let Some(bias) = &self.taps_bias {
            let bias = bias.astype(DType::F32);
            value = value + bias.get(..inner).reshape([heads, head_dim]);
            key_query = key_query + bias.get(inner..);
        }
        let (value, key_query) = (activation.apply(value), activation.apply(key_query));
        let (half, by_groups) = (groups * state_dim, [batch, length, groups, state_dim]);
        let key = key_query.get((.., .., ..half)).reshape(by_groups);
        let query = key_query.get((.., .., half..)).reshape(by_groups);

        let step = softplus(step + self.step_bias.astype(DType::F32));
        let step = zero_unseen(bounded(step, self.min_step, self.max_step), seen);
        let log_kept = &step * -self.log_rate.astype(DType::F32).exp();
        // The state has the sharding of values.
        let state = reshard_like(state, &value.get((.., 0)).expand_dims(-1));
        let written = &value * step.expand_dims(-1);
        let (state, y) = match scan_chunks(state, [query, key, written, log_kept]) {
            Ok(scanned) => scanned,
            Err(error) => {
                let failed = Array::from_error(error, x);
                return (failed.clone(), [failed.clone(), failed.clone(), failed]);
            }
        };
        let y = y + value * self.skip.astype(DType::F32).expand_dims(-1);
        let y = self.normalized(y, gate.astype(DType::F32)).astype(x.dtype());
        let y = scaled(self.out.forward(y), scales.output);
        (y, [values.get((.., length..)), keys.get((.., length..)), state])
    }

    /// Multiplies keys and queries, which are one array, by their factors.
    fn scaled_keys(&self, key_query: Array, scales: &StateSpaceScales) -> Array {
        if scales.key == 1.0 && scales.query == 1.0 {
            return key_query;
        }
        let half = self.sizes.groups * self.sizes.state_dim;
        let factors = [vec![scales.key as f32; half], vec![scales.query as f32; half]].concat();
        key_query * array(factors)
    }

    /// Multiplies the results of heads by their gates, and normalizes the results of each group of heads.
    fn normalized(&self, y: Array, gate: Array) -> Array {
        let Sizes { heads, head_dim, groups, norm, .. } = self.sizes;
        let gate = silu(gate);
        let Some(scale) = &self.norm_scale else { return y * gate };
        let y = if norm == StateSpaceNorm::BeforeGate { y } else { y * &gate };
        // Every device has the mean squares of all heads, because a group can be on several devices.
        let squares = gather_last(y.square().mean(-1));
        let shape = squares.shape().to_vec();
        let groups_shape = [shape[0], shape[1], groups, heads / groups];
        let means = squares.reshape(groups_shape).mean_keepdims(-1).broadcast_to(groups_shape).reshape(shape);
        let factors = (means + self.epsilon).rsqrt().expand_dims(-1);
        let y = y * factors * scale.astype(DType::F32).reshape([heads, head_dim]);
        if norm == StateSpaceNorm::BeforeGate { y * gate } else { y }
    }
}

/// Multiplies `x` by a factor, unless it is 1.
pub(super) fn scaled(x: Array, scale: f64) -> Array {
    if scale == 1.0 { x } else { x * scale }
}

/// Clips the lengths of steps.
fn bounded(step: Array, min: f64, max: f64) -> Array {
    let step = if min > 0.0 { step.maximum(min) } else { step };
    if max.is_finite() { step.minimum(max) } else { step }
}
