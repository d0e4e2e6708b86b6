//! Short convolutions, which some models use instead of attention.

use shardax_nn::prelude::*;

use super::ConvConfig;
use super::recurrence::rank_error;

/// A convolution over the last few positions, with gates before and after it, as in LFM2.
///
/// The cache contains the inputs of all positions, like a cache of keys and values, so that texts with different start
/// positions can share it.
#[derive(Module, Clone, Debug)]
pub struct ShortConv {
    /// The projection from inputs to both gates and the values.
    pub input: Linear,
    /// The weights of the convolution, `[features, 1, width]`. The earliest position is the first one.
    pub taps: Array,
    /// `[features]`
    pub bias: Option<Array>,
    /// The projection to the result.
    pub out: Linear,
    /// The values of earlier positions, `[..., length, features]`.
    pub cached: Option<Cache>,
    /// The number of positions in the cache, int32.
    pub cache_index: Option<Cache>,
}

impl ShortConv {
    #[track_caller]
    pub(super) fn new(features: usize, config: &ConvConfig, rngs: &mut Rngs) -> ShortConv {
        let ConvConfig { width, use_bias, .. } = *config;
        let input = Linear::builder(features, features.saturating_mul(3)).use_bias(use_bias);
        let out = Linear::builder(features, features).use_bias(use_bias);
        let dtype = rngs.policy().param_dtype;
        ShortConv {
            input: input.kernel_axes([Some("embed"), None]).build(rngs),
            taps: random::normal_dtype(rngs.params(), [features, 1, width], DType::F32).astype(dtype) * 0.1,
            bias: use_bias.then(|| zeros_dtype([features], dtype)),
            out: out.kernel_axes([None, Some("embed")]).build(rngs),
            cached: None,
            cache_index: None,
        }
    }

    /// Applies the convolution to `x`, `[..., length, features]`. The result has the same shape.
    #[track_caller]
    pub fn forward(&self, x: impl ArrayLike) -> Array {
        let [before, after] = self.gated(&x.into_array());
        let length = before.shape().get(before.ndim().saturating_sub(2)).copied().unwrap_or(0) as i32;
        let places = arange(0..length);
        self.mixed(&before, after, &places, &places)
    }

    /// Creates an empty cache of this shape, `[..., length]`. You must call it before the first
    /// [`decode`](Self::decode), and again before a new text.
    #[track_caller]
    pub fn init_cache(&mut self, shape: &[usize]) {
        let features = self.out.kernel.shape().first().copied().unwrap_or(0);
        self.cached = Some(zeros_dtype([shape, &[features]].concat(), self.taps.dtype()).into());
        self.cache_index = Some(zeros_dtype((), DType::I32).into());
    }

    /// Computes the next positions `x`, `[batch, length, features]`, from the positions in the cache. Results beyond the
    /// length of the cache are NaN. If texts do not start at the first position of the cache, you must pass their
    /// `positions`, `[batch, length]`.
    #[track_caller]
    pub fn decode(&mut self, x: Array, positions: Option<&Array>) -> Array {
        let (Some(cached), Some(index)) = (&self.cached, &self.cache_index) else {
            let error = Error::new(ErrorKind::Value, "ShortConv: the cache is not initialized");
            return Array::from_error(error.help("call `init_cache` before you decode the first token"), &x);
        };
        let &[.., new, _] = x.shape() else { return rank_error("ShortConv", &x) };
        let (axis, new) = (x.ndim() as i32 - 2, new as i32);
        let room = cached.shape().get(axis as usize).copied().unwrap_or(0) as i32;
        let [before, after] = self.gated(&x);
        let cached = lax::dynamic_update_slice_in_dim(cached, &before.astype(cached.dtype()), &**index, axis);
        let (places, end) = (&**index + arange(0..new), &**index + new);
        let positions = positions.unwrap_or(&places);
        let y = self.mixed(&cached.astype(x.dtype()), after, &places, positions);
        let y = where_(end.greater(room), f64::NAN, y);
        (self.cached, self.cache_index) = (Some(cached.into()), Some(end.into()));
        y
    }

    /// Returns the input of the convolution and the gates after it.
    #[track_caller]
    fn gated(&self, x: &Array) -> [Array; 2] {
        let parts = self.input.forward(x);
        let features = parts.shape().last().copied().unwrap_or(0) / 3;
        let (gate, rest) = (parts.get((Ellipsis, ..features)), parts.get((Ellipsis, features..)));
        [gate * rest.get((Ellipsis, features..)), rest.get((Ellipsis, ..features))]
    }

    /// Computes the convolution of `values` at these places. Values before the first position of a text are zero.
    #[track_caller]
    fn mixed(&self, values: &Array, after: Array, places: &Array, positions: &Array) -> Array {
        let kernel = self.taps.astype(values.dtype());
        let width = kernel.shape().last().copied().unwrap_or(0);
        let mut y = match &self.bias {
            Some(bias) => bias.astype(values.dtype()),
            None => zeros_dtype((), values.dtype()),
        };
        for lag in 0..width {
            let earlier = values.take((places - lag as i32).maximum(0), -2);
            let exists = positions.greater_equal(lag as i32).astype(values.dtype()).expand_dims(-1);
            y = y + earlier * exists * kernel.get((.., 0, width - 1 - lag));
        }
        self.out.forward(after * y)
    }
}
