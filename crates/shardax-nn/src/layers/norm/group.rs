//! Normalization of groups of features over the spatial dimensions of each example.

use shardax::prelude::*;

use super::{Norm, NormBuilder, NormLayer, NormOptions, Statistics, check, normalize, result_dtype};
use crate::Rngs;
use crate::check::{require, value_error};

/// Normalizes groups of features over all spatial dimensions of each example, then scales and shifts each feature.
///
/// Source: [Wu and He 2018](https://arxiv.org/abs/1803.08494).
///
/// ```
/// use shardax_nn::prelude::*;
/// let layer = GroupNorm::new(8, 4, &mut Rngs::new(0));
/// assert_eq!(layer.forward(ones([2, 5, 5, 8])).shape(), [2, 5, 5, 8]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Module, Clone, Debug)]
pub struct GroupNorm {
    /// `[features]`, ones at first.
    #[tree(axis_names = options.axes)]
    pub scale: Option<Array>,
    /// `[features]`, zeros at first.
    #[tree(axis_names = options.axes)]
    pub bias: Option<Array>,
    /// The number of groups of features.
    pub num_groups: usize,
    /// The number that is added to the variance. Default 1e-6.
    pub epsilon: f64,
    #[tree(static)]
    options: NormOptions,
}

impl NormLayer for GroupNorm {
    type Own = usize;
    const HAS_BIAS: bool = true;

    fn make(norm: Norm, num_groups: usize) -> Self {
        let Norm { scale, bias, epsilon, options } = norm;
        GroupNorm { scale, bias, num_groups, epsilon, options }
    }
}

impl GroupNorm {
    /// Creates a layer of `features` features, a multiple of `num_groups`. It draws Flax's two keys from `rngs`.
    #[track_caller]
    pub fn new(features: usize, num_groups: usize, rngs: &mut Rngs) -> Self {
        GroupNorm::builder(features, num_groups).build(rngs)
    }

    /// Returns a builder of a layer.
    pub fn builder(features: usize, num_groups: usize) -> NormBuilder<Self> {
        NormBuilder::new(features, 1e-6, num_groups)
    }

    /// Normalizes `x`, `[batch, ..., features]`. The result is an error if `x` has another number of features, if the groups do
    /// not divide them, or if epsilon is negative or not finite.
    #[track_caller]
    pub fn forward(&self, x: impl ArrayLike) -> Array {
        let x = x.into_array();
        let (scale, bias) = (self.scale.as_ref(), self.bias.as_ref());
        require!(&x, check("GroupNorm", &x, self.options.features, [scale, bias], self.epsilon));
        let features = x.shape().last().copied().unwrap_or(0);
        let groups = self.num_groups;
        require!(&x, divides(groups, features));
        let outer = &x.shape()[..x.ndim() - 1];
        let grouped = x.reshape([outer, &[groups, features / groups]].concat());
        // Over all dimensions except for the batch and the groups, which are the second to last dimension.
        let feature_axis = grouped.ndim() as i32 - 1;
        let axes: Vec<i32> = (1..feature_axis - 1).chain([feature_axis]).collect();
        let statistics = Statistics { axes: &axes, axis_name: None, use_fast_variance: self.options.use_fast_variance };
        let moments = statistics.of(&grouped);
        let dtype = result_dtype(self.options.dtype, &x, [scale, bias]);
        let [scale, bias] = [scale, bias].map(|p| p.map(|p| p.reshape([groups, features / groups])));
        let parameters = (scale.as_ref(), bias.as_ref());
        normalize(&moments.centred, &moments.variance, parameters, self.epsilon, dtype).reshape(x.shape())
    }
}

fn divides(groups: usize, features: usize) -> Result<()> {
    if groups > 0 && features.is_multiple_of(groups) {
        return Ok(());
    }
    value_error(format!("GroupNorm: num_groups must divide the {features} features, got {groups}"))
}

/// Normalizes each feature of each example over its spatial dimensions, then scales and shifts it.
///
/// Source: [Ulyanov et al. 2016](https://arxiv.org/abs/1607.08022).
///
/// ```
/// use shardax_nn::prelude::*;
/// let layer = InstanceNorm::new(3, &mut Rngs::new(0));
/// let y = layer.forward(random::normal(random::key(0), [2, 8, 8, 3]));
/// assert!(allclose(y.mean([1, 2]), zeros([2, 3]), 0.0, 1e-5)?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Module, Clone, Debug)]
pub struct InstanceNorm {
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

impl NormLayer for InstanceNorm {
    type Own = ();
    const HAS_BIAS: bool = true;

    fn make(norm: Norm, (): ()) -> Self {
        let Norm { scale, bias, epsilon, options } = norm;
        InstanceNorm { scale, bias, epsilon, options }
    }
}

impl InstanceNorm {
    /// Creates a layer of `features` features. It draws Flax's two keys from `rngs`.
    #[track_caller]
    pub fn new(features: usize, rngs: &mut Rngs) -> Self {
        InstanceNorm::builder(features).build(rngs)
    }

    /// Returns a builder of a layer.
    pub fn builder(features: usize) -> NormBuilder<Self> {
        NormBuilder::new(features, 1e-6, ())
    }

    /// Normalizes `x`, `[batch, ..., features]`. The result is an error if `x` has another number of features, or if epsilon is
    /// negative or not finite.
    #[track_caller]
    pub fn forward(&self, x: impl ArrayLike) -> Array {
        let x = x.into_array();
        let (scale, bias) = (self.scale.as_ref(), self.bias.as_ref());
        require!(&x, check("InstanceNorm", &x, self.options.features, [scale, bias], self.epsilon));
        let axes: Vec<i32> = (1..x.ndim() as i32 - 1).collect();
        let statistics = Statistics { axes: &axes, axis_name: None, use_fast_variance: self.options.use_fast_variance };
        let (moments, dtype) = (statistics.of(&x), result_dtype(self.options.dtype, &x, [scale, bias]));
        normalize(&moments.centred, &moments.variance, (scale, bias), self.epsilon, dtype)
    }
}
