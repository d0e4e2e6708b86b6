//! Normalization of each vector separately.

use shardax::prelude::*;

use super::{Norm, NormBuilder, NormLayer, NormOptions, Statistics, abs_sq, check, normalize, result_dtype, widened};
use crate::Rngs;
use crate::check::require;
use crate::ranks::allow_any_ranks;
use crate::shardings::align_with;

/// Normalizes each vector along the last axis to mean 0 and variance 1, then scales and shifts it.
///
/// Source: [Ba et al. 2016](https://arxiv.org/abs/1607.06450).
///
/// ```
/// use shardax_nn::prelude::*;
/// let mut rngs = Rngs::new(0);
/// let y = LayerNorm::new(2, &mut rngs).forward(array([[1.0f32, 3.0]]));
/// assert!(allclose(y, array([[-1.0f32, 1.0]]), 1e-5, 1e-5)?);
/// let plain = LayerNorm::builder(2).use_scale(false).use_bias(false).epsilon(1e-5).build(&mut rngs);
/// assert_eq!(plain.parameter_count(), 0);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Module, Clone, Debug)]
pub struct LayerNorm {
    /// `[features]`, ones at first.
    #[tree(axis_names = options.axes)]
    pub scale: Option<Array>,
    /// `[features]`, zeros at first.
    #[tree(axis_names = options.axes)]
    pub bias: Option<Array>,
    /// The number that is added to the variance. Default 1e-6.
    pub epsilon: f64,
    #[tree(static)]
    options: NormOptions,
}

impl NormLayer for LayerNorm {
    type Own = ();
    const HAS_BIAS: bool = true;

    fn make(norm: Norm, (): ()) -> Self {
        let Norm { scale, bias, epsilon, options } = norm;
        LayerNorm { scale, bias, epsilon, options }
    }
}

impl LayerNorm {
    /// Creates a layer of `features` features. It draws Flax's two keys from `rngs`.
    #[track_caller]
    pub fn new(features: usize, rngs: &mut Rngs) -> Self {
        LayerNorm::builder(features).build(rngs)
    }

    /// Returns a builder of a layer.
    pub fn builder(features: usize) -> NormBuilder<Self> {
        NormBuilder::new(features, 1e-6, ())
    }

    /// Normalizes `x`, `[..., features]`. The result is an error if `x` has another number of features, or if epsilon is negative
    /// or not finite.
    #[track_caller]
    pub fn forward(&self, x: impl ArrayLike) -> Array {
        let x = x.into_array();
        let (scale, bias) = (self.scale.as_ref(), self.bias.as_ref());
        require!(&x, check("LayerNorm", &x, self.options.features, [scale, bias], self.epsilon));
        let statistics = Statistics { axes: &[-1], axis_name: None, use_fast_variance: self.options.use_fast_variance };
        let (moments, dtype) = (statistics.of(&x), result_dtype(self.options.dtype, &x, [scale, bias]));
        normalize(&moments.centred, &moments.variance, (scale, bias), self.epsilon, dtype)
    }
}

/// Divides each vector along the last axis by its root mean square, then scales it.
///
/// Source: [Zhang and Sennrich 2019](https://arxiv.org/abs/1910.07467).
///
/// ```
/// use shardax_nn::prelude::*;
/// let y = RmsNorm::new(2, &mut Rngs::new(0)).forward(array([[3.0f32, 3.0]]));
/// assert!(allclose(y, array([[1.0f32, 1.0]]), 1e-5, 1e-5)?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Module, Clone, Debug)]
pub struct RmsNorm {
    /// `[features]`, ones at first.
    #[tree(axis_names = options.axes)]
    pub scale: Option<Array>,
    /// The number that is added to the mean square. Default 1e-6.
    pub epsilon: f64,
    /// The number that is added to the scale. Default 0.
    pub scale_offset: f64,
    #[tree(static)]
    options: NormOptions,
}

impl NormLayer for RmsNorm {
    type Own = f64;
    const HAS_BIAS: bool = false;

    fn make(norm: Norm, scale_offset: f64) -> Self {
        let Norm { scale, bias: _, epsilon, options } = norm;
        RmsNorm { scale, epsilon, scale_offset, options }
    }
}

impl NormBuilder<RmsNorm> {
    /// Sets the number that is added to the scale. For example, Gemma's norms store `scale - 1`. Default 0.
    pub fn scale_offset(mut self, offset: f64) -> Self {
        self.own = offset;
        self
    }
}

impl RmsNorm {
    /// Creates a layer of `features` features. It draws Flax's key from `rngs`.
    #[track_caller]
    pub fn new(features: usize, rngs: &mut Rngs) -> Self {
        RmsNorm::builder(features).build(rngs)
    }

    /// Returns a builder of a layer.
    pub fn builder(features: usize) -> NormBuilder<Self> {
        NormBuilder::new(features, 1e-6, 0.0)
    }

    /// Normalizes `x`, `[..., features]`. The result is an error if `x` has another number of features, or if epsilon is negative
    /// or not finite.
    #[track_caller]
    pub fn forward(&self, x: impl ArrayLike) -> Array {
        let x = x.into_array();
        let scale = self.scale.as_ref();
        require!(&x, check("RmsNorm", &x, self.options.features, [scale, None], self.epsilon));
        let _ranks = allow_any_ranks();
        let factor = (abs_sq(&widened(&x)).mean_keepdims(-1) + self.epsilon).rsqrt();
        let factor = match (scale, self.scale_offset) {
            (None, _) => factor,
            (Some(scale), 0.0) => factor * align_with(scale.clone(), &x),
            (Some(scale), offset) => factor * (widened(&align_with(scale.clone(), &x)) + offset),
        };
        (&x * factor).astype(result_dtype(self.options.dtype, &x, [scale, None]))
    }
}
