//! Normalization layers. Each layer draws the same keys as its counterpart in Flax, although its parameters start as ones and
//! zeros, so that layers that are created later have Flax's weights.

mod batch;
mod group;
mod layer;
mod spectral;
mod weight;

pub use batch::BatchNorm;
pub use group::{GroupNorm, InstanceNorm};
pub use layer::{LayerNorm, RmsNorm};
pub use spectral::SpectralNorm;
pub use weight::WeightNorm;

use shardax::nn::initializers::{self, Initializer};
use shardax::prelude::*;
use shardax::tree::AxisNames;
use shardax::{Error, ErrorKind};

use super::compute_dtype;
use crate::check::{NOT_NEGATIVE, within};
use crate::layers::Layer;
use crate::ranks::allow_any_ranks;
use crate::shardings::align_with;
use crate::{Filter, IntoAxisNames, Param, Rngs};

/// Applies `normalized`, which is `layer` with other parameters, to `x`. Changes of its other variables, such as
/// running statistics, are stored in `layer`.
#[track_caller]
pub(super) fn forward_as<L: Layer>(layer: &mut L, mut normalized: L, x: &Array) -> Result<Array> {
    let y = normalized.forward(x.clone());
    layer.update(&normalized.state_of(!Filter::of::<Param>()))?;
    Ok(y)
}

/// The parameters and options that all normalization layers share.
#[doc(hidden)]
#[derive(Debug)]
pub struct Norm {
    scale: Option<Array>,
    bias: Option<Array>,
    epsilon: f64,
    options: NormOptions,
}

/// The options that all normalization layers have, and that do not change when a layer was built.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct NormOptions {
    features: usize,
    /// The dtype of the result. `None` is the promoted dtype of input and parameters.
    dtype: Option<DType>,
    /// The logical name of the features.
    axes: Option<AxisNames>,
    /// See [`NormBuilder::use_fast_variance`].
    use_fast_variance: bool,
}

/// A normalization layer.
#[doc(hidden)]
pub trait NormLayer: Sized {
    /// The options that only this layer has.
    type Own;
    /// True if the layer has a bias.
    const HAS_BIAS: bool;

    fn make(norm: Norm, own: Self::Own) -> Self;
}

/// The options of a normalization layer `L`.
#[derive(Debug)]
pub struct NormBuilder<L: NormLayer> {
    features: usize,
    epsilon: f64,
    use_scale: bool,
    use_bias: bool,
    dtype: Option<DType>,
    param_dtype: Option<DType>,
    scale_init: Initializer,
    bias_init: Initializer,
    axes: Option<AxisNames>,
    use_fast_variance: bool,
    own: L::Own,
}

impl<L: NormLayer> NormBuilder<L> {
    fn new(features: usize, epsilon: f64, own: L::Own) -> Self {
        NormBuilder {
            features,
            epsilon,
            use_scale: true,
            use_bias: L::HAS_BIAS,
            dtype: None,
            param_dtype: None,
            scale_init: initializers::ones(),
            bias_init: initializers::zeros(),
            axes: None,
            use_fast_variance: false,
            own,
        }
    }

    /// Sets the number that is added to the variance.
    pub fn epsilon(mut self, epsilon: f64) -> Self {
        self.epsilon = epsilon;
        self
    }

    /// Sets whether there is a scale. Default true.
    pub fn use_scale(mut self, use_scale: bool) -> Self {
        self.use_scale = use_scale;
        self
    }

    /// Sets whether there is a bias. Default true, except for a layer that never shifts ([`RmsNorm`]).
    pub fn use_bias(mut self, use_bias: bool) -> Self {
        self.use_bias = use_bias && L::HAS_BIAS;
        self
    }

    /// Sets the dtype of the result. Default: the policy's, or the promoted dtype of input and parameters. Statistics
    /// are always computed in float32 at least, so that you can normalize bfloat16 without a loss of accuracy.
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.dtype = Some(dtype);
        self
    }

    /// Sets the dtype of the parameters. Default: the policy's, float32.
    pub fn param_dtype(mut self, dtype: DType) -> Self {
        self.param_dtype = Some(dtype);
        self
    }

    /// Sets the initializer of the scale. Default ones.
    pub fn scale_init(mut self, init: Initializer) -> Self {
        self.scale_init = init;
        self
    }

    /// Sets the initializer of the bias. Default zeros.
    pub fn bias_init(mut self, init: Initializer) -> Self {
        self.bias_init = init;
        self
    }

    /// Sets whether the variance is computed as the mean of squares minus the square of the mean, which is Flax's
    /// default. This reads `x` once instead of twice, and sums over devices once. You should not use it for features
    /// whose mean is a hundred times their deviation or more, because the difference loses all digits. [`RmsNorm`] has
    /// no variance. Default false.
    ///
    /// ```
    /// use shardax_nn::prelude::*;
    /// let x = 1000.0 + arange(0..8) * 1e-3;
    /// let layer = |fast: bool| LayerNorm::builder(8).use_fast_variance(fast).epsilon(0.0).build(&mut Rngs::new(0));
    /// assert!((layer(false).forward(&x).get(7).item::<f32>()? - 1.5275).abs() < 1e-2);
    /// assert!((layer(true).forward(&x).get(7).item::<f32>()? - 1.5275).abs() > 1e-2);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    pub fn use_fast_variance(mut self, use_fast_variance: bool) -> Self {
        self.use_fast_variance = use_fast_variance;
        self
    }

    /// Sets the logical name of the features, so that [`Rules`](crate::Rules) can shard the parameters.
    pub fn axes(mut self, names: impl IntoAxisNames) -> Self {
        self.axes = Some(names.into_axis_names());
        self
    }

    /// Builds the layer. As in Flax, it draws one key for the scale and one for the bias from the stream `params`.
    #[track_caller]
    pub fn build(self, rngs: &mut Rngs) -> L {
        let policy = rngs.policy();
        let dtype = self.param_dtype.unwrap_or(policy.param_dtype);
        let [scale, bias] = [(self.use_scale, &self.scale_init), (self.use_bias, &self.bias_init)]
            .map(|(is_used, init)| is_used.then(|| init.init(&rngs.params(), &[self.features], dtype)));
        let norm = Norm {
            scale,
            bias,
            epsilon: self.epsilon,
            options: NormOptions {
                features: self.features,
                dtype: self.dtype.or(policy.dtype),
                axes: self.axes,
                use_fast_variance: self.use_fast_variance,
            },
        };
        L::make(norm, self.own)
    }
}

/// Converts `x` to float32 at least, the dtype in which statistics are computed.
fn widened(x: &Array) -> Array {
    if x.dtype().byte_size() < 4 { x.astype(DType::F32) } else { x.clone() }
}

/// Divides `x` by its Euclidean length over these axes.
fn l2_normalize(x: &Array, axes: &[i32], epsilon: f64) -> Array {
    let wide = widened(x);
    (&wide * (wide.square().sum_keepdims(axes) + epsilon).rsqrt()).astype(x.dtype())
}

/// Returns the square of the absolute value.
fn abs_sq(x: &Array) -> Array {
    if x.dtype().is_complex() { x.real().square() + x.imag().square() } else { x.square() }
}

/// The computation of the moments of an array.
struct Statistics<'a> {
    /// The axes to reduce. They remain with size 1.
    axes: &'a [i32],
    /// The mapped axis to reduce, if any.
    axis_name: Option<&'static str>,
    /// See [`NormBuilder::use_fast_variance`].
    use_fast_variance: bool,
}

/// The moments of an array, in float32 at least.
struct Moments {
    /// The array minus its mean.
    centred: Array,
    mean: Array,
    variance: Array,
}

impl Statistics<'_> {
    fn of(&self, x: &Array) -> Moments {
        let x = widened(x);
        if self.use_fast_variance {
            let [mean, square] = self.means([x.clone(), abs_sq(&x)]);
            // Rounding could make the difference negative.
            let variance = maximum(square - abs_sq(&mean), 0);
            return Moments { centred: x - &mean, mean, variance };
        }
        let [mean] = self.means([x.clone()]);
        let centred = x - &mean;
        // The mean is rounded. If it is large, its error is large too, and would be part of the variance. Therefore the mean of
        // the differences is subtracted again.
        let [error, square] = self.means([centred.clone(), abs_sq(&centred)]);
        let variance = maximum(square - abs_sq(&error), 0);
        Moments { centred: centred - error, mean, variance }
    }

    fn means<const N: usize>(&self, arrays: [Array; N]) -> [Array; N] {
        let means = arrays.map(|x| x.mean_keepdims(self.axes));
        match self.axis_name {
            Some(name) => pmean(means, name),
            None => means,
        }
    }
}

/// Returns the dtype of the result of a layer with these parameters.
fn result_dtype(dtype: Option<DType>, x: &Array, parameters: [Option<&Array>; 2]) -> DType {
    let operands: Vec<&Array> = [Some(x)].into_iter().chain(parameters).flatten().collect();
    compute_dtype(dtype, &operands)
}

/// Returns `centred / sqrt(var + epsilon) * scale + bias`, in this dtype.
fn normalize(
    centred: &Array,
    var: &Array,
    (scale, bias): (Option<&Array>, Option<&Array>),
    epsilon: f64,
    dtype: DType,
) -> Array {
    let _ranks = allow_any_ranks();
    let [scale, bias] = [scale, bias].map(|p| p.map(|p| align_with(p.clone(), centred)));
    let factor = (var + epsilon).rsqrt();
    let y = centred * scale.map_or(factor.clone(), |scale| factor * scale);
    bias.map_or(y.clone(), |bias| y + bias).astype(dtype)
}

/// Checks that a layer of `features` features with this epsilon accepts `x`.
fn check(owner: &str, x: &Array, features: usize, parameters: [Option<&Array>; 2], epsilon: f64) -> Result<()> {
    x.check()?;
    parameters.into_iter().flatten().try_for_each(Array::check)?;
    within(owner, "epsilon", epsilon, NOT_NEGATIVE)?;
    // A parameter of another size, set by the user, takes precedence.
    let features = parameters.into_iter().flatten().next().map_or(features, Array::size);
    if x.shape().last() == Some(&features) {
        return Ok(());
    }
    let message = format!("{owner} of {features} features got {}", x.type_name());
    Err(Error::new(ErrorKind::Value, message)
        .help("the last dimension must be the features; move it there with `moveaxis`"))
}
