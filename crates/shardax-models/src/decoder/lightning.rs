//! Linear attention whose states decay at constant rates.

use shardax_nn::prelude::*;

use super::recurrence::{in_rows, rank_error, seen_positions, zero_unseen};
use super::slopes::Slopes;
use super::state_chunks::scan_chunks;
use super::{Activation, DecoderConfig, LightningConfig};
use crate::shardings::{gather_last, reshard_like};

/// Linear attention with a constant rate of decay for each head ([Qin et al. 2024](https://arxiv.org/abs/2401.04658)), as in
/// MiniMax-Text-01.
///
/// The state maps keys to values. At each position it decays, and the product of the position's key and value is added. The
/// result is the state's value for the position's query, which is normalized and multiplied by a gate. The cache contains the
/// state.
#[derive(Module, Clone, Debug)]
pub struct LightningAttention {
    /// The projection to queries, `[heads, features of a head]`.
    pub query: LinearGeneral,
    /// The projection to keys.
    pub key: LinearGeneral,
    /// The projection to values.
    pub value: LinearGeneral,
    /// The projection to the gates of the result.
    pub gate: LinearGeneral,
    /// `[heads * features of a head]`: the scale of the norm of the result.
    pub norm_scale: Array,
    /// The projection to the result.
    pub out: LinearGeneral,
    /// `[..., heads, features of a head, features of a head]`
    pub state: Option<Cache>,
    /// The number of positions that the state has seen, int32.
    pub cache_index: Option<Cache>,
    /// The rate of decay of each head.
    #[tree(static)]
    rates: Slopes,
    #[tree(static)]
    activation: Activation,
    #[tree(static)]
    sizes: [usize; 2],
}

/// The number that the norm of the result adds to the mean square. The class does not read it from the configuration.
const EPSILON: f64 = 1e-6;

impl LightningAttention {
    #[track_caller]
    pub(super) fn new(
        config: &DecoderConfig,
        about: &LightningConfig,
        layer: usize,
        rngs: &mut Rngs,
    ) -> LightningAttention {
        let DecoderConfig { features, heads, head_dim, .. } = *config;
        let input = LinearGeneral::builder([features], [heads, head_dim]).use_bias(false).kernel_axes([
            Some("embed"),
            Some("heads"),
            None,
        ]);
        let out = LinearGeneral::builder([heads, head_dim], [features]).use_bias(false).kernel_axes([
            Some("heads"),
            None,
            Some("embed"),
        ]);
        // Do not change the order: layers draw their weights from `rngs`, so another order would change the weights of a seed.
        let [query, key, value, gate] = [(); 4].map(|()| input.clone().build(rngs));
        LightningAttention {
            query,
            key,
            value,
            gate,
            norm_scale: ones_dtype([heads * head_dim], rngs.policy().param_dtype),
            out: out.build(rngs),
            state: None,
            cache_index: None,
            rates: Slopes::new(rates(heads, layer, config.layers)),
            activation: about.activation,
            sizes: [heads, head_dim],
        }
    }

    /// Computes the results for `x`, `[..., length, features]`. They have the same shape.
    #[track_caller]
    pub fn forward(&self, x: impl ArrayLike) -> Array {
        in_rows("LightningAttention", x.into_array(), |rows| {
            let state = self.empty(&rows.shape()[..1]);
            self.advance(&rows, None, state).0
        })
    }

    /// Creates an empty cache of this shape, `[..., length]`. You must call it before the first
    /// [`decode`](Self::decode), and again before a new text.
    #[track_caller]
    pub fn init_cache(&mut self, shape: &[usize]) {
        self.state = Some(self.empty(&shape[..shape.len().saturating_sub(1)]).into());
        self.cache_index = Some(zeros_dtype((), DType::I32).into());
    }

    /// Returns the state before the first position.
    fn empty(&self, shape: &[usize]) -> Array {
        let [heads, head_dim] = self.sizes;
        zeros_dtype([shape, &[heads, head_dim, head_dim]].concat(), DType::F32)
    }

    /// Computes the next positions `x`, `[batch, length, features]`. A mask, `[batch, heads, length, length of the cache]`, is for
    /// texts that do not start at the first position of the cache: masked positions do not change the state of a text.
    #[track_caller]
    pub fn decode(&mut self, x: Array, mask: Option<&Array>) -> Array {
        let (Some(state), Some(index)) = (&self.state, &self.cache_index) else {
            let error = Error::new(ErrorKind::Value, "LightningAttention: the cache is not initialized");
            return Array::from_error(error.help("call `init_cache` before you decode the first token"), &x);
        };
        let &[_, new, _] = x.shape() else { return rank_error("LightningAttention", &x) };
        let seen = mask.map(|mask| seen_positions(mask, index, new));
        let end = &**index + new as i32;
        let (y, state) = self.advance(&x, seen.as_ref(), (**state).clone());
        (self.state, self.cache_index) = (Some(state.into()), Some(end.into()));
        y
    }

    /// Returns the results of `x`, `[batch, length, features]`, and the state after them. Positions that are not `seen`,
    /// `[batch, length]`, add nothing to the state.
    #[track_caller]
    fn advance(&self, x: &Array, seen: Option<&Array>, state: Array) -> (Array, Array) {
        let [heads, head_dim] = self.sizes;
        let [query, key, value] = [&self.query, &self.key, &self.value]
            .map(|layer| self.activation.apply(layer.forward(x)).astype(DType::F32));
        let value = zero_unseen(value, seen);
        let log_kept = zeros_like(value.get((Ellipsis, 0))) - self.rates.to_array();
        // The state has the sharding of values.
        let state = reshard_like(state, &value.get((.., 0)).expand_dims(-1));
        let (state, y) = match scan_chunks(state, [query, key, value, log_kept]) {
            Ok(scanned) => scanned,
            Err(error) => {
                let failed = Array::from_error(error, x);
                return (failed.clone(), failed);
            }
        };
        // Every device has the mean squares of all heads.
        let mean = gather_last(y.square().mean(-1)).mean_keepdims(-1);
        let scale = self.norm_scale.astype(DType::F32).reshape([heads, head_dim]);
        let y = y * (mean + EPSILON).rsqrt().expand_dims(-1) * scale;
        let y = sigmoid(self.gate.forward(x).astype(DType::F32)) * y;
        (self.out.forward(y.astype(x.dtype())), state)
    }
}

/// Returns the rate of decay of each head. Later layers decay more slowly.
fn rates(heads: usize, layer: usize, layers: usize) -> Vec<f32> {
    let base = (-8.0 / heads as f64).exp2();
    let factor = 1.0 - layer as f64 / (layers as f64 - 1.0 + 1e-5) + 1e-5;
    (1..=heads).map(|head| (base.powf(head as f64) * factor) as f32).collect()
}
