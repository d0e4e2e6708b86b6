//! Normalization layers.

use shardax::prelude::*;

use super::compute_dtype;

/// Mean and variance over some axes, which stay with size 1; computed in float32 at least.
fn moments(x: &Array, axes: &[i32]) -> (Array, Array) {
    let x = if x.dtype().byte_size() < 4 { x.astype(DType::F32) } else { x.clone() };
    let mean = x.mean_keepdims(axes);
    // E[x²] - E[x]² needs one pass; rounding must not make it negative.
    let var = maximum(x.square().mean_keepdims(axes) - mean.square(), 0);
    (mean, var)
}

/// `(x - mean) / sqrt(var + epsilon) * scale + bias`, in the dtype that `x` and the parameters promote to.
fn normalize(x: &Array, mean: &Array, var: &Array, scale: &Array, bias: &Array, epsilon: f64) -> Array {
    let dtype = compute_dtype(None, &[x, scale, bias]);
    ((x - mean) * ((var + epsilon).rsqrt() * scale) + bias).astype(dtype)
}

/// Normalizes each vector along the last axis to mean 0 and variance 1, then scales and shifts it.
///
/// Source: [Ba et al. 2016](https://arxiv.org/abs/1607.06450).
///
/// ```
/// use shardax_nn::prelude::*;
/// let y = LayerNorm::new(2).forward(array([[1.0f32, 3.0]]));
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
    #[track_caller]
    pub fn new(features: usize) -> Self {
        LayerNorm { scale: ones([features]), bias: zeros([features]), epsilon: 1e-6 }
    }

    /// `x` is `[..., features]`.
    #[track_caller]
    pub fn forward(&self, x: impl Operand) -> Array {
        let x = x.into_array();
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
    #[track_caller]
    pub fn new(features: usize) -> Self {
        RmsNorm { scale: ones([features]), epsilon: 1e-6 }
    }

    /// `x` is `[..., features]`.
    #[track_caller]
    pub fn forward(&self, x: impl Operand) -> Array {
        let x = x.into_array();
        let wide = if x.dtype().byte_size() < 4 { x.astype(DType::F32) } else { x.clone() };
        let factor = (wide.square().mean_keepdims(-1) + self.epsilon).rsqrt();
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
    /// `num_groups` must divide `features`.
    #[track_caller]
    pub fn new(features: usize, num_groups: usize) -> Self {
        GroupNorm { scale: ones([features]), bias: zeros([features]), num_groups, epsilon: 1e-6 }
    }

    /// `x` is `[batch, ..., features]`.
    #[track_caller]
    pub fn forward(&self, x: impl Operand) -> Array {
        let x = x.into_array();
        let (Some((&features, outer)), groups) = (x.shape().split_last(), self.num_groups.max(1)) else { return x };
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

/// Normalizes each feature over the batch, then scales and shifts it.
///
/// The running statistics that evaluation uses are no parameters, so that an optimizer leaves them alone: they are a
/// tree of their own, [`BatchStats`], which training returns anew.
///
/// Source: [Ioffe and Szegedy 2015](https://arxiv.org/abs/1502.03167).
///
/// ```
/// use shardax_nn::prelude::*;
/// let (layer, stats) = (BatchNorm::new(3), BatchStats::new(3));
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
    #[track_caller]
    pub fn new(features: usize) -> Self {
        BatchNorm { scale: ones([features]), bias: zeros([features]), momentum: 0.99, epsilon: 1e-5, axis_name: None }
    }

    /// Evaluation: normalizes `x`, `[..., features]`, with the running statistics.
    #[track_caller]
    pub fn forward(&self, x: impl Operand, stats: &BatchStats) -> Array {
        normalize(&x.into_array(), &stats.mean, &stats.var, &self.scale, &self.bias, self.epsilon)
    }

    /// Training: normalizes `x` with its own statistics, and returns the running ones moved towards them.
    #[track_caller]
    pub fn train(&self, x: impl Operand, stats: &BatchStats) -> (Array, BatchStats) {
        let x = x.into_array();
        let wide = if x.dtype().byte_size() < 4 { x.astype(DType::F32) } else { x.clone() };
        let axes: Vec<i32> = (0..x.ndim() as i32 - 1).collect();
        let (mut mean, mut square) = (wide.mean(axes.as_slice()), wide.square().mean(axes.as_slice()));
        if let Some(name) = self.axis_name {
            (mean, square) = pmean((mean, square), name);
        }
        let var = maximum(square - mean.square(), 0);
        // They are for evaluation later: no gradient flows through them.
        let moved = |old: &Array, new: &Array| stop_gradient(old * self.momentum + new * (1.0 - self.momentum));
        let stats = BatchStats { mean: moved(&stats.mean, &mean), var: moved(&stats.var, &var) };
        (normalize(&x, &mean, &var, &self.scale, &self.bias, self.epsilon), stats)
    }
}
