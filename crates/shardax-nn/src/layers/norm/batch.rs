//! Normalization of each feature over the batch.

use shardax::prelude::*;
use shardax::tree::AxisNames;

use super::{Norm, NormBuilder, NormLayer, abs_sq, check, normalize, result_dtype, variance, widened};
use crate::check::{require, value_error, within};
use crate::{BatchStat, Rngs};

/// Normalizes each feature over the batch, then scales and shifts it.
///
/// The running statistics that evaluation uses are no parameters, so that an optimizer leaves them alone: they are a
/// tree of their own, [`BatchStats`], which training returns anew. [`StatefulBatchNorm`] has them in the layer.
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
    #[tree(axis_names = axes)]
    pub scale: Option<Array>,
    /// `[features]`, zeros at first.
    #[tree(axis_names = axes)]
    pub bias: Option<Array>,
    /// The share of the old running statistics that each batch keeps. Default 0.99.
    pub momentum: f64,
    /// Added to the variance. Default 1e-5.
    pub epsilon: f64,
    /// The mapped axis over which the batch is spread too, if any.
    #[tree(static)]
    pub axis_name: Option<&'static str>,
    features: usize,
    #[tree(static)]
    dtype: Option<DType>,
    #[tree(static)]
    axes: Option<AxisNames>,
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

/// The options that batch normalization has alone.
#[doc(hidden)]
#[derive(Debug)]
pub struct BatchOptions {
    momentum: f64,
    axis_name: Option<&'static str>,
}

impl NormLayer for BatchNorm {
    type Own = BatchOptions;
    const HAS_BIAS: bool = true;

    fn make(norm: Norm, own: BatchOptions) -> Self {
        let Norm { scale, bias, epsilon, features, dtype, axes } = norm;
        let BatchOptions { momentum, axis_name } = own;
        BatchNorm { scale, bias, momentum, epsilon, axis_name, features, dtype, axes }
    }
}

impl<L: NormLayer<Own = BatchOptions>> NormBuilder<L> {
    /// The share of the old running statistics that each batch keeps, between 0 and 1. Default 0.99.
    pub fn momentum(mut self, momentum: f64) -> Self {
        self.own.momentum = momentum;
        self
    }

    /// The mapped axis over which the batch is spread too.
    pub fn axis_name(mut self, axis_name: &'static str) -> Self {
        self.own.axis_name = Some(axis_name);
        self
    }
}

impl BatchNorm {
    /// A layer of so many features. It draws the two keys of Flax's from `rngs`.
    #[track_caller]
    pub fn new(features: usize, rngs: &mut Rngs) -> Self {
        BatchNorm::builder(features).build(rngs)
    }

    /// A layer with options.
    pub fn builder(features: usize) -> NormBuilder<Self> {
        NormBuilder::new(features, 1e-5, BatchOptions { momentum: 0.99, axis_name: None })
    }

    /// Evaluation: normalizes `x`, `[..., features]`, with the running statistics. Other features, and an epsilon or a
    /// momentum out of range, are an error.
    #[track_caller]
    pub fn forward(&self, x: impl ArrayLike, stats: &BatchStats) -> Array {
        let x = x.into_array();
        require!(&x, self.check(&x, stats));
        let dtype = self.result_dtype(&x, stats);
        normalize(&x.astype(dtype), (&stats.mean, &stats.var), self.parameters(), self.epsilon, dtype)
    }

    /// Training: normalizes `x` with its own statistics, and returns the running ones moved towards them.
    ///
    /// Errors are those of [`forward`](BatchNorm::forward).
    #[track_caller]
    pub fn train(&self, x: impl ArrayLike, stats: &BatchStats) -> (Array, BatchStats) {
        let x = x.into_array();
        if let Err(error) = self.check(&x, stats) {
            let failed = |like: &Array| Array::from_error(error.clone(), like);
            return (failed(&x), BatchStats { mean: failed(&stats.mean), var: failed(&stats.var) });
        }
        let dtype = self.result_dtype(&x, stats);
        let x = x.astype(dtype);
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
        (normalize(&x, (&mean, &var), self.parameters(), self.epsilon, dtype), stats)
    }

    fn parameters(&self) -> (Option<&Array>, Option<&Array>) {
        (self.scale.as_ref(), self.bias.as_ref())
    }

    /// The dtype of the result, which the statistics take part in: with those of float32 it is float32.
    fn result_dtype(&self, x: &Array, stats: &BatchStats) -> DType {
        let of_stats = super::compute_dtype(None, &[x, &stats.mean, &stats.var]);
        let dtype = self.dtype.unwrap_or(of_stats);
        result_dtype(self.dtype, &x.astype(dtype), [self.scale.as_ref(), self.bias.as_ref()])
    }

    #[track_caller]
    fn check(&self, x: &Array, stats: &BatchStats) -> Result<()> {
        within("BatchNorm", "momentum", self.momentum, 0.0..=1.0)?;
        stats.mean.check()?;
        let features = self.scale.as_ref().or(self.bias.as_ref()).map_or(self.features, Array::size);
        if stats.mean.size() != features {
            let found = stats.mean.size();
            return value_error(format!("BatchNorm of {features} features got statistics of {found}"));
        }
        check("BatchNorm", x, features, [self.scale.as_ref(), self.bias.as_ref()], self.epsilon)
    }
}

/// [`BatchNorm`] with its running statistics in the layer, as Flax NNX has it: training moves them in place. They are of the
/// kind [`BatchStat`], which no [`Optimizer`](crate::Optimizer) moves.
///
/// A loss whose model has one returns the model beside the value, with its new statistics.
///
/// ```
/// use shardax_nn::prelude::*;
/// let mut optimizer = Optimizer::new(StatefulBatchNorm::new(3, &mut Rngs::new(0)), sgd(0.1))?;
/// let loss = |mut model: StatefulBatchNorm| {
///     let y = model.train(array([[1.0f32, 2.0, 3.0], [3.0, 2.0, 1.0]]));
///     (y.square().mean(..), model)
/// };
/// let (_, model, grads) = {
///     let ((value, model), grads) = value_and_grad(loss).has_aux().call(optimizer.model.clone())?;
///     (value, model, grads)
/// };
/// optimizer.model = model;
/// optimizer.update(grads)?;
/// assert!(allclose(&*optimizer.model.mean, array([0.02f32, 0.02, 0.02]), 1e-5, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Module, Clone, Debug)]
pub struct StatefulBatchNorm {
    /// Scale, bias and options.
    pub norm: BatchNorm,
    /// `[features]`, zeros at first.
    pub mean: BatchStat,
    /// `[features]`, ones at first.
    pub var: BatchStat,
}

impl NormLayer for StatefulBatchNorm {
    type Own = BatchOptions;
    const HAS_BIAS: bool = true;

    fn make(norm: Norm, own: BatchOptions) -> Self {
        let BatchStats { mean, var } = BatchStats::new(norm.features);
        StatefulBatchNorm { norm: BatchNorm::make(norm, own), mean: mean.into(), var: var.into() }
    }
}

impl StatefulBatchNorm {
    /// A layer of so many features. It draws the two keys of Flax's from `rngs`.
    #[track_caller]
    pub fn new(features: usize, rngs: &mut Rngs) -> Self {
        StatefulBatchNorm::builder(features).build(rngs)
    }

    /// A layer with options.
    pub fn builder(features: usize) -> NormBuilder<Self> {
        NormBuilder::new(features, 1e-5, BatchOptions { momentum: 0.99, axis_name: None })
    }

    /// Evaluation, with the running statistics. Errors are those of [`BatchNorm::forward`].
    #[track_caller]
    pub fn forward(&self, x: impl ArrayLike) -> Array {
        self.norm.forward(x, &self.stats())
    }

    /// Training: normalizes `x` with its own statistics, and moves the running ones towards them.
    #[track_caller]
    pub fn train(&mut self, x: impl ArrayLike) -> Array {
        let (y, BatchStats { mean, var }) = self.norm.train(x, &self.stats());
        (*self.mean, *self.var) = (mean, var);
        y
    }

    fn stats(&self) -> BatchStats {
        BatchStats { mean: self.mean.clone().into_inner(), var: self.var.clone().into_inner() }
    }
}
