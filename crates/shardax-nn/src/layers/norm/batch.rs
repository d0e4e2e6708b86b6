//! Normalization of each feature over the batch.

use shardax::prelude::*;

use super::{Norm, NormBuilder, NormLayer, NormOptions, Statistics, check, normalize, result_dtype, widened};
use crate::check::{require, within};
use crate::layers::Layer;
use crate::ranks::allow_any_ranks;
use crate::shardings::reshard_like;
use crate::{BatchStat, Rngs};

/// Normalizes each feature over the batch, then scales and shifts it.
///
/// In training mode, `x` is normalized with its own mean and variance, and the running statistics move towards them.
/// For inference you must call [`Module::eval`](crate::Module::eval), because otherwise the result depends on the other
/// examples of the batch.
///
/// The running statistics are of the kind [`BatchStat`], which no [`Optimizer`](crate::Optimizer) trains;
/// [`Optimizer::value_and_grad`](crate::Optimizer::value_and_grad) stores their new values.
///
/// Source: [Ioffe and Szegedy 2015](https://arxiv.org/abs/1502.03167).
///
/// ```
/// use shardax_nn::prelude::*;
/// let mut layer = BatchNorm::new(3, &mut Rngs::new(0));
/// let y = layer.forward(array([[1.0f32, 2.0, 3.0], [3.0, 2.0, 1.0]]));
/// assert!(allclose(&*layer.mean, array([0.02f32, 0.02, 0.02]), 1e-5, 0.0)?);
/// layer.eval();
/// assert_eq!((y.shape(), layer.forward(ones([8, 3])).shape()), (&[2, 3][..], &[8, 3][..]));
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Module, Clone, Debug)]
pub struct BatchNorm {
    /// `[features]`, ones at first.
    #[tree(axis_names = options.axes)]
    pub scale: Option<Array>,
    /// `[features]`, zeros at first.
    #[tree(axis_names = options.axes)]
    pub bias: Option<Array>,
    /// The running mean, `[features]`, zeros at first.
    pub mean: BatchStat,
    /// The running variance, `[features]`, ones at first.
    pub var: BatchStat,
    /// The training flag: if true, `x` is normalized with its own statistics. See
    /// [`Module::train`](crate::Module::train).
    pub training: bool,
    /// The share of the old running statistics that each batch keeps. Default 0.99.
    pub momentum: f64,
    /// The number that is added to the variance. Default 1e-5.
    pub epsilon: f64,
    /// The mapped axis over which the batch is also split, if any.
    #[tree(static)]
    pub axis_name: Option<&'static str>,
    #[tree(static)]
    options: NormOptions,
}

/// The options that only batch normalization has.
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
        let Norm { scale, bias, epsilon, options } = norm;
        let BatchOptions { momentum, axis_name } = own;
        let shape = [options.features];
        let (mean, var) = (zeros_dtype(shape, DType::F32).into(), ones_dtype(shape, DType::F32).into());
        BatchNorm { scale, bias, mean, var, training: true, momentum, epsilon, axis_name, options }
    }
}

impl<L: NormLayer<Own = BatchOptions>> NormBuilder<L> {
    /// Sets the share of the old running statistics that each batch keeps, between 0 and 1. You can choose a smaller
    /// number if a run has few steps. Default 0.99.
    pub fn momentum(mut self, momentum: f64) -> Self {
        self.own.momentum = momentum;
        self
    }

    /// Sets the mapped axis over which the batch is also split. You should set it inside `pmap` and `shard_map`,
    /// because otherwise each device normalizes only with its own examples.
    pub fn axis_name(mut self, axis_name: &'static str) -> Self {
        self.own.axis_name = Some(axis_name);
        self
    }
}

impl BatchNorm {
    /// Creates a layer of `features` features. It draws Flax's two keys from `rngs`.
    #[track_caller]
    pub fn new(features: usize, rngs: &mut Rngs) -> Self {
        BatchNorm::builder(features).build(rngs)
    }

    /// Returns a builder of a layer.
    pub fn builder(features: usize) -> NormBuilder<Self> {
        NormBuilder::new(features, 1e-5, BatchOptions { momentum: 0.99, axis_name: None })
    }

    /// Normalizes `x`, `[..., features]`. In training mode, it uses the statistics of `x`, and updates the running
    /// statistics; in evaluation mode, it uses the running statistics.
    ///
    /// The result is an error if `x` has another number of features, or if epsilon or the momentum is out of range.
    #[track_caller]
    pub fn forward(&mut self, x: impl ArrayLike) -> Array {
        let x = x.into_array();
        require!(&x, self.check(&x));
        let dtype = self.result_dtype(&x);
        let x = x.astype(dtype);
        if !self.training {
            let _ranks = allow_any_ranks();
            let centred = widened(&x) - &*self.mean;
            return normalize(&centred, &self.var, self.parameters(), self.epsilon, dtype);
        }
        let axes: Vec<i32> = (0..x.ndim() as i32 - 1).collect();
        let statistics =
            Statistics { axes: &axes, axis_name: self.axis_name, use_fast_variance: self.options.use_fast_variance };
        let moments = statistics.of(&x);
        // The running statistics are only used in evaluation, so they have no gradient.
        let momentum = self.momentum;
        for (running, new) in [(&mut *self.mean, &moments.mean), (&mut *self.var, &moments.variance)] {
            let updated = &*running * momentum + new.squeeze(&axes[..]) * (1.0 - momentum);
            *running = stop_gradient(reshard_like(updated, running));
        }
        normalize(&moments.centred, &moments.variance, self.parameters(), self.epsilon, dtype)
    }

    fn parameters(&self) -> (Option<&Array>, Option<&Array>) {
        (self.scale.as_ref(), self.bias.as_ref())
    }

    /// Returns the dtype of the result. The statistics take part in the promotion: with float32 statistics it is float32.
    fn result_dtype(&self, x: &Array) -> DType {
        let dtype = self.options.dtype.unwrap_or_else(|| super::compute_dtype(None, &[x, &self.mean, &self.var]));
        result_dtype(self.options.dtype, &x.astype(dtype), [self.scale.as_ref(), self.bias.as_ref()])
    }

    #[track_caller]
    fn check(&self, x: &Array) -> Result<()> {
        within("BatchNorm", "momentum", self.momentum, 0.0..=1.0)?;
        self.mean.check()?;
        let features = self.scale.as_ref().or(self.bias.as_ref()).map_or(self.options.features, Array::size);
        check("BatchNorm", x, features, [self.scale.as_ref(), self.bias.as_ref()], self.epsilon)
    }
}

impl Layer for BatchNorm {
    #[track_caller]
    fn forward(&mut self, x: Array) -> Array {
        BatchNorm::forward(self, x)
    }
}
