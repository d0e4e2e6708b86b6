//! Normalization layers. Each draws the keys that its counterpart in Flax draws, though its parameters begin as ones and
//! zeros, so that the layers made after it have Flax's weights.

use shardax::prelude::*;
use shardax::{Error, ErrorKind};

use super::compute_dtype;
use crate::Rngs;
use crate::check::{NOT_NEGATIVE, require, value_error, within};

/// `x` in float32 at least, in which statistics are computed.
fn widened(x: &Array) -> Array {
    if x.dtype().byte_size() < 4 { x.astype(DType::F32) } else { x.clone() }
}

/// The square of the absolute value.
fn abs_sq(x: &Array) -> Array {
    if x.dtype().is_complex() { x.real().square() + x.imag().square() } else { x.square() }
}

/// The variance of what has this mean and this mean of squares.
fn variance(mean: &Array, square: &Array) -> Array {
    // E[x²] - E[x]² needs one pass; rounding must not make it negative.
    maximum(square - abs_sq(mean), 0)
}

/// Mean and variance over some axes, which stay with size 1; computed in float32 at least.
fn moments(x: &Array, axes: &[i32]) -> (Array, Array) {
    let x = widened(x);
    let mean = x.mean_keepdims(axes);
    let var = variance(&mean, &abs_sq(&x).mean_keepdims(axes));
    (mean, var)
}

/// `(x - mean) / sqrt(var + epsilon) * scale + bias`, in the dtype that `x` and the parameters promote to.
fn normalize(x: &Array, mean: &Array, var: &Array, scale: &Array, bias: &Array, epsilon: f64) -> Array {
    let dtype = compute_dtype(None, &[x, scale, bias]);
    ((x - mean) * ((var + epsilon).rsqrt() * scale) + bias).astype(dtype)
}

/// Whether a layer with this scale and epsilon takes `x`.
fn check(owner: &str, x: &Array, scale: &Array, epsilon: f64) -> Result<()> {
    x.check()?;
    scale.check()?;
    within(owner, "epsilon", epsilon, NOT_NEGATIVE)?;
    if x.shape().last() == Some(&scale.size()) {
        return Ok(());
    }
    let what = format!("{owner} of {} features got {}", scale.size(), x.type_name());
    Err(Error::new(ErrorKind::Value, what).help("the last dimension must be the features"))
}

/// Normalizes each vector along the last axis to mean 0 and variance 1, then scales and shifts it.
///
/// Source: [Ba et al. 2016](https://arxiv.org/abs/1607.06450).
///
/// ```
/// use shardax_nn::prelude::*;
/// let y = LayerNorm::new(2, &mut Rngs::new(0)).forward(array([[1.0f32, 3.0]]));
/// assert!(allclose(y, array([[-1.0f32, 1.0]]), 1e-5, 1e-5)?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Module, Clone, Debug)]
pub struct LayerNorm {
    /// `[features]`, ones at first.
    pub scale: Array,
    /// `[features]`, zeros at first.
    pub bias: Array,
    /// Added to the variance. Default 1e-6.
    pub epsilon: f64,
}

impl LayerNorm {
    /// A layer of so many features. It draws the two keys of Flax's from `rngs`.
    #[track_caller]
    pub fn new(features: usize, rngs: &mut Rngs) -> Self {
        rngs.skip_params(2);
        LayerNorm { scale: ones([features]), bias: zeros([features]), epsilon: 1e-6 }
    }

    /// `x` is `[..., features]`. Other features, and an epsilon below 0 or not finite, are an error.
    #[track_caller]
    pub fn forward(&self, x: impl Operand) -> Array {
        let x = x.into_array();
        require!(&x, check("LayerNorm", &x, &self.scale, self.epsilon));
        let (mean, var) = moments(&x, &[-1]);
        normalize(&x, &mean, &var, &self.scale, &self.bias, self.epsilon)
    }
}

/// Divides each vector along the last axis by its root mean square, then scales it.
///
/// Source: [Zhang and Sennrich 2019](https://arxiv.org/abs/1910.07467).
#[derive(Module, Clone, Debug)]
pub struct RmsNorm {
    /// `[features]`, ones at first.
    pub scale: Array,
    /// Added to the mean square. Default 1e-6.
    pub epsilon: f64,
}

impl RmsNorm {
    /// A layer of so many features. It draws the key of Flax's from `rngs`.
    #[track_caller]
    pub fn new(features: usize, rngs: &mut Rngs) -> Self {
        rngs.skip_params(1);
        RmsNorm { scale: ones([features]), epsilon: 1e-6 }
    }

    /// `x` is `[..., features]`. Other features, and an epsilon below 0 or not finite, are an error.
    #[track_caller]
    pub fn forward(&self, x: impl Operand) -> Array {
        let x = x.into_array();
        require!(&x, check("RmsNorm", &x, &self.scale, self.epsilon));
        let factor = (abs_sq(&widened(&x)).mean_keepdims(-1) + self.epsilon).rsqrt();
        (&x * (factor * &self.scale)).astype(compute_dtype(None, &[&x, &self.scale]))
    }
}

/// Normalizes groups of features over all spatial dimensions of each example, then scales and shifts each feature.
///
/// Source: [Wu and He 2018](https://arxiv.org/abs/1803.08494).
#[derive(Module, Clone, Debug)]
pub struct GroupNorm {
    /// `[features]`, ones at first.
    pub scale: Array,
    /// `[features]`, zeros at first.
    pub bias: Array,
    /// How many groups the features are divided into.
    pub num_groups: usize,
    /// Added to the variance. Default 1e-6.
    pub epsilon: f64,
}

impl GroupNorm {
    /// A layer of so many features; `num_groups`, at least 1, must divide them. It draws the two keys of Flax's from `rngs`.
    #[track_caller]
    pub fn new(features: usize, num_groups: usize, rngs: &mut Rngs) -> Self {
        rngs.skip_params(2);
        GroupNorm { scale: ones([features]), bias: zeros([features]), num_groups, epsilon: 1e-6 }
    }

    /// `x` is `[batch, ..., features]`. Other features, groups that do not divide them, and an epsilon below 0 or not
    /// finite, are an error.
    #[track_caller]
    pub fn forward(&self, x: impl Operand) -> Array {
        let x = x.into_array();
        let (features, groups) = (self.scale.size(), self.num_groups);
        require!(&x, check("GroupNorm", &x, &self.scale, self.epsilon), divides(groups, features));
        let outer = &x.shape()[..x.ndim() - 1];
        let grouped = x.reshape([outer, &[groups, features / groups]].concat());
        // Over everything but the batch and the groups.
        let last = grouped.ndim() as i32 - 1;
        let axes: Vec<i32> = (1..last - 1).chain([last]).collect();
        let (mean, var) = moments(&grouped, &axes);
        let by_group = |a: &Array| a.reshape([groups, features / groups]);
        let y = normalize(&grouped, &mean, &var, &by_group(&self.scale), &by_group(&self.bias), self.epsilon);
        y.reshape(x.shape())
    }
}

fn divides(groups: usize, features: usize) -> Result<()> {
    if groups > 0 && features.is_multiple_of(groups) {
        return Ok(());
    }
    value_error(format!("GroupNorm: num_groups must divide the {features} features, got {groups}"))
}

/// Normalizes each feature over the batch, then scales and shifts it.
///
/// The running statistics that evaluation uses are no parameters, so that an optimizer leaves them alone: they are a
/// tree of their own, [`BatchStats`], which training returns anew.
///
/// Source: [Ioffe and Szegedy 2015](https://arxiv.org/abs/1502.03167).
///
/// ```
/// use shardax_nn::prelude::*;
/// let (layer, stats) = (BatchNorm::new(3, &mut Rngs::new(0)), BatchStats::new(3));
/// let (y, stats) = layer.train(ones([8, 3]), &stats);
/// let z = layer.forward(ones([8, 3]), &stats);
/// assert_eq!((y.shape(), z.shape()), (&[8, 3][..], &[8, 3][..]));
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Module, Clone, Debug)]
pub struct BatchNorm {
    /// `[features]`, ones at first.
    pub scale: Array,
    /// `[features]`, zeros at first.
    pub bias: Array,
    /// The share of the old running statistics that each batch keeps. Default 0.99.
    pub momentum: f64,
    /// Added to the variance. Default 1e-5.
    pub epsilon: f64,
    /// The mapped axis over which the batch is spread too, if any.
    #[tree(static)]
    pub axis_name: Option<&'static str>,
}

/// The running statistics of a [`BatchNorm`].
#[derive(Tree, Clone, Debug)]
pub struct BatchStats {
    /// `[features]`
    pub mean: Array,
    /// `[features]`
    pub var: Array,
}

impl BatchStats {
    /// Mean 0 and variance 1.
    #[track_caller]
    pub fn new(features: usize) -> Self {
        BatchStats { mean: zeros([features]), var: ones([features]) }
    }
}

impl BatchNorm {
    /// A layer of so many features. It draws the two keys of Flax's from `rngs`.
    #[track_caller]
    pub fn new(features: usize, rngs: &mut Rngs) -> Self {
        rngs.skip_params(2);
        BatchNorm { scale: ones([features]), bias: zeros([features]), momentum: 0.99, epsilon: 1e-5, axis_name: None }
    }

    /// Evaluation: normalizes `x`, `[..., features]`, with the running statistics. Other features, and an epsilon or a
    /// momentum out of range, are an error.
    #[track_caller]
    pub fn forward(&self, x: impl Operand, stats: &BatchStats) -> Array {
        let x = x.into_array();
        require!(&x, self.check(&x, stats));
        let x = self.promoted(&x, stats);
        normalize(&x, &stats.mean, &stats.var, &self.scale, &self.bias, self.epsilon)
    }

    /// Training: normalizes `x` with its own statistics, and returns the running ones moved towards them.
    ///
    /// Errors are those of [`forward`](BatchNorm::forward).
    #[track_caller]
    pub fn train(&self, x: impl Operand, stats: &BatchStats) -> (Array, BatchStats) {
        let x = x.into_array();
        if let Err(error) = self.check(&x, stats) {
            let failed = |like: &Array| Array::from_error(error.clone(), like);
            return (failed(&x), BatchStats { mean: failed(&stats.mean), var: failed(&stats.var) });
        }
        let x = self.promoted(&x, stats);
        let wide = widened(&x);
        let axes: Vec<i32> = (0..x.ndim() as i32 - 1).collect();
        let (mut mean, mut square) = (wide.mean(axes.as_slice()), abs_sq(&wide).mean(axes.as_slice()));
        if let Some(name) = self.axis_name {
            (mean, square) = pmean((mean, square), name);
        }
        let var = variance(&mean, &square);
        // They are for evaluation later: no gradient flows through them.
        let moved = |old: &Array, new: &Array| stop_gradient(old * self.momentum + new * (1.0 - self.momentum));
        let stats = BatchStats { mean: moved(&stats.mean, &mean), var: moved(&stats.var, &var) };
        (normalize(&x, &mean, &var, &self.scale, &self.bias, self.epsilon), stats)
    }

    /// `x` in the dtype of the result, which the statistics take part in: with those of float32 it is float32.
    fn promoted(&self, x: &Array, stats: &BatchStats) -> Array {
        x.astype(compute_dtype(None, &[x, &stats.mean, &stats.var, &self.scale, &self.bias]))
    }

    #[track_caller]
    fn check(&self, x: &Array, stats: &BatchStats) -> Result<()> {
        within("BatchNorm", "momentum", self.momentum, 0.0..=1.0)?;
        stats.mean.check()?;
        if stats.mean.size() != self.scale.size() {
            let (features, found) = (self.scale.size(), stats.mean.size());
            return value_error(format!("BatchNorm of {features} features got statistics of {found}"));
        }
        check("BatchNorm", x, &self.scale, self.epsilon)
    }
}
