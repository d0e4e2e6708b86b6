//! Gated linear recurrent units.

use shardax_nn::prelude::*;

use super::recurrence::{convolve, in_rows, rank_error, seen_positions, zero_unseen};
use super::{Activation, DecoderConfig, RgLruConfig};
use crate::shardings::reshard_like;

/// A gated linear recurrent unit ([De et al. 2024](https://arxiv.org/abs/2402.19427)), as in RecurrentGemma.
///
/// Each channel has one number as its state, which decays at a rate that depends on the input. Gates are computed from the
/// channels after a short convolution, by one matrix for the channels of each head. The cache contains the state and the last
/// inputs of the convolution.
#[derive(Module, Clone, Debug)]
pub struct RgLru {
    /// The projection to the channels, `[heads, channels of a head]`.
    pub value: LinearGeneral,
    /// The projection to the factors of the result.
    pub gate: LinearGeneral,
    /// `[width, 1, channels]`: the convolution of the channels, of the earliest position first.
    pub taps: Array,
    /// `[channels]`: added to the results of the convolution.
    pub taps_bias: Array,
    /// `[heads, channels of a head, channels of a head]`: computes the gates of the input.
    pub input_gate: Array,
    /// `[heads, channels of a head]`
    pub input_gate_bias: Array,
    /// `[heads, channels of a head, channels of a head]`: computes the gates of decay.
    pub decay_gate: Array,
    /// `[heads, channels of a head]`
    pub decay_gate_bias: Array,
    /// `[channels]`: the rates of decay, before softplus.
    pub rate: Array,
    /// The projection to the result.
    pub out: LinearGeneral,
    /// `[..., width - 1, heads, channels of a head]`: the last inputs of the convolution.
    pub recent: Option<Cache>,
    /// `[..., heads, channels of a head]`
    pub state: Option<Cache>,
    /// The number of positions that the state has seen, int32.
    pub cache_index: Option<Cache>,
    #[tree(static)]
    activation: Activation,
}

/// The largest rate of decay, as the negative logarithm of what is kept, for a rate of 1.
const MAX_DECAY: f64 = 8.0;

impl RgLru {
    #[track_caller]
    pub(super) fn new(config: &DecoderConfig, about: &RgLruConfig, rngs: &mut Rngs) -> RgLru {
        // Do not change the order of the fields: layers draw their weights from `rngs`, so another order would change the
        // weights of a seed.
        let DecoderConfig { features, heads, .. } = *config;
        let RgLruConfig { channels, width, activation, .. } = *about;
        let sizes = [heads, channels / heads];
        let by_heads = LinearGeneral::builder([features], sizes).kernel_axes([Some("embed"), Some("heads"), None]);
        let out = LinearGeneral::builder(sizes, [features]).kernel_axes([Some("heads"), None, Some("embed")]);
        let dtype = rngs.policy().param_dtype;
        RgLru {
            value: by_heads.clone().build(rngs),
            gate: by_heads.build(rngs),
            taps: (random::normal_dtype(rngs.params(), [width, 1, channels], DType::F32) * 0.1).astype(dtype),
            taps_bias: zeros_dtype([channels], dtype),
            input_gate: zeros_dtype([heads, sizes[1], sizes[1]], dtype),
            input_gate_bias: zeros_dtype(sizes, dtype),
            decay_gate: zeros_dtype([heads, sizes[1], sizes[1]], dtype),
            decay_gate_bias: zeros_dtype(sizes, dtype),
            rate: zeros_dtype([channels], dtype),
            out: out.build(rngs),
            recent: None,
            state: None,
            cache_index: None,
            activation,
        }
    }

    /// Computes the results for `x`, `[..., length, features]`. They have the same shape.
    #[track_caller]
    pub fn forward(&self, x: impl ArrayLike) -> Array {
        in_rows("RgLru", x.into_array(), |rows| {
            let &[batch, length, _] = rows.shape() else { return rank_error("RgLru", &rows) };
            let positions = arange(0..length as i32).expand_dims(0);
            self.advance(&rows, (&positions, None), self.empty(&[batch])).0
        })
    }

    /// Creates an empty cache of this shape, `[..., length]`. You must call it before the first
    /// [`decode`](Self::decode), and again before a new text.
    #[track_caller]
    pub fn init_cache(&mut self, shape: &[usize]) {
        let [recent, state] = self.empty(&shape[..shape.len().saturating_sub(1)]);
        (self.recent, self.state) = (Some(recent.into()), Some(state.into()));
        self.cache_index = Some(zeros_dtype((), DType::I32).into());
    }

    /// Returns the inputs and the state before the first position.
    fn empty(&self, shape: &[usize]) -> [Array; 2] {
        let (width, heads) = (self.taps.shape()[0], self.input_gate_bias.shape());
        [&[width - 1, heads[0], heads[1]][..], heads].map(|sizes| zeros_dtype([shape, sizes].concat(), DType::F32))
    }

    /// Computes the next positions `x`, `[batch, length, features]`. For texts that do not start at the first position of the
    /// cache, you must pass their positions, `[batch, length]`, and a mask, `[batch, heads, length, length of the cache]`: masked
    /// positions do not change the state of a text.
    #[track_caller]
    pub fn decode(&mut self, x: Array, positions: Option<&Array>, mask: Option<&Array>) -> Array {
        let (Some(recent), Some(state), Some(index)) = (&self.recent, &self.state, &self.cache_index) else {
            let error = Error::new(ErrorKind::Value, "RgLru: the cache is not initialized");
            return Array::from_error(error.help("call `init_cache` before you decode the first token"), &x);
        };
        let &[_, new, _] = x.shape() else { return rank_error("RgLru", &x) };
        let seen = mask.map(|mask| seen_positions(mask, index, new));
        let end = &**index + new as i32;
        let positions = positions.cloned().unwrap_or_else(|| (&**index + arange(0..new as i32)).expand_dims(0));
        let past = [recent, state].map(|cache| (**cache).clone());
        let (y, [recent, state]) = self.advance(&x, (&positions, seen.as_ref()), past);
        (self.recent, self.state, self.cache_index) = (Some(recent.into()), Some(state.into()), Some(end.into()));
        y
    }

    /// Returns the results of `x`, `[batch, length, features]`, and what later positions need. Positions that are not `seen`,
    /// `[batch, length]`, change nothing.
    #[track_caller]
    fn advance(
        &self,
        x: &Array,
        (positions, seen): (&Array, Option<&Array>),
        [recent, state]: [Array; 2],
    ) -> (Array, [Array; 2]) {
        let length = x.shape()[1];
        let factor = self.activation.apply(self.gate.forward(x).astype(DType::F32));
        let value = self.value.forward(x).astype(DType::F32);
        let sizes = value.shape()[2..].to_vec();
        let inputs = concatenate(&[reshard_like(recent, &value), zero_unseen(value, seen)], 1);
        let width = self.taps.shape()[0];
        let taps = self.taps.astype(DType::F32).reshape([&[width], &sizes[..]].concat());
        let value = convolve(&inputs, &taps, length) + self.taps_bias.astype(DType::F32).reshape(sizes.as_slice());

        let input_gate = gates(&value, &self.input_gate, &self.input_gate_bias);
        let decay = gates(&value, &self.decay_gate, &self.decay_gate_bias) * MAX_DECAY;
        let log_kept = -decay * softplus(self.rate.astype(DType::F32)).reshape(sizes.as_slice());
        let kept = log_kept.exp();
        // The first position of a text keeps nothing, and is not scaled.
        let scale = (1.0 - (log_kept * 2.0).exp()).sqrt();
        let is_first = positions.equal(0).expand_dims(-1).expand_dims(-1);
        let written = zero_unseen(value * input_gate * where_(is_first, 1.0, scale), seen);
        let kept = match seen {
            Some(seen) => where_(seen.expand_dims(-1).expand_dims(-1), kept, 1.0),
            None => kept,
        };
        let state = reshard_like(state, &written.get((.., 0)));
        let scanned = scan(
            |state: Array, [kept, written]: [Array; 2]| -> Result<(Array, Array)> {
                let state = state * kept + written;
                Ok((state.clone(), state))
            },
            state,
            [kept, written].map(|x| x.moveaxis(1, 0)),
        );
        let (state, y) = match scanned {
            Ok((state, y)) => (state, y.moveaxis(0, 1)),
            Err(error) => {
                let failed = Array::from_error(error, x);
                return (failed.clone(), [failed.clone(), failed]);
            }
        };
        (self.out.forward((y * factor).astype(x.dtype())), [inputs.get((.., length..)), state])
    }
}

/// Computes gates of channels, `[batch, length, heads, channels of a head]`.
fn gates(x: &Array, kernel: &Array, bias: &Array) -> Array {
    let y = einsum("blhi,hio->blho", &[x, &kernel.astype(DType::F32)]);
    sigmoid(y + bias.astype(DType::F32))
}
