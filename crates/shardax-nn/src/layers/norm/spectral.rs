//! Weights divided by their largest singular value.

use shardax::nn::initializers;
use shardax::prelude::*;

use super::{forward_as, l2_normalize};
use crate::check::{NOT_NEGATIVE, value_error, within};
use crate::layers::Layer;
use crate::shardings::replicated;
use crate::{BatchStat, Filter, Module, Param, Rngs, State};

/// A layer whose kernels are divided by an estimate of their largest singular value, which makes it about 1-Lipschitz.
///
/// The estimate is computed by power iteration, from a vector that the layer stores and updates in training mode. The kernels
/// of the inner layer do not change (Flax NNX overwrites them with the divided kernels). A kernel of more than two
/// dimensions is reshaped to a matrix, whose columns are the last dimension.
///
/// Source: [Miyato et al. 2018](https://arxiv.org/abs/1802.05957).
///
/// ```
/// use shardax_nn::prelude::*;
/// let mut rngs = Rngs::new(0);
/// let mut layer = SpectralNorm::new(Linear::new(3, 4, &mut rngs), &mut rngs);
/// let y = layer.forward(ones([2, 3]));
/// layer.eval();
/// assert_eq!((y.shape(), layer.forward(ones([2, 3])).shape()), (&[2, 4][..], &[2, 4][..]));
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Module, Clone, Debug)]
pub struct SpectralNorm<L> {
    /// The layer.
    pub layer: L,
    /// The vectors, with the key paths of their kernels and `.u`, and the last estimates, with `.sigma`.
    pub batch_stats: BatchStat<State>,
    /// The training flag: if true, calls update the vectors. See [`Module::train`](crate::Module::train).
    pub training: bool,
    n_steps: usize,
    epsilon: f64,
}

impl<L: Layer> SpectralNorm<L> {
    /// Wraps a layer, with one step of power iteration for each call. It draws a key from the stream `params` for each
    /// kernel.
    #[track_caller]
    pub fn new(layer: L, rngs: &mut Rngs) -> Self {
        let params = layer.state_of(Filter::of::<Param>());
        let dtype = rngs.policy().param_dtype;
        let mut stats = State::new();
        for (key, p) in params.iter().filter(|(_, p)| p.ndim() > 1) {
            let columns = p.shape()[p.ndim() - 1];
            stats.insert(format!("{key}.u"), initializers::normal(0.01).init(&rngs.params(), &[1, columns], dtype));
            stats.insert(format!("{key}.sigma"), ones_dtype((), dtype));
        }
        SpectralNorm { layer, batch_stats: stats.into(), training: true, n_steps: 1, epsilon: 1e-12 }
    }

    /// Sets the number of power iterations per call, at least 1. Default 1.
    pub fn n_steps(mut self, steps: usize) -> Self {
        self.n_steps = steps;
        self
    }

    /// Sets the number that is added to the squares of lengths. Default 1e-12.
    pub fn epsilon(mut self, epsilon: f64) -> Self {
        self.epsilon = epsilon;
        self
    }

    /// Returns the layer with its kernels divided, and the vectors and estimates after the iteration.
    ///
    /// # Errors
    /// Returns an error if `epsilon` is negative, if `n_steps` is 0, or if the layer has a kernel for which `new`
    /// created no vector.
    #[track_caller]
    pub fn normalized(&self) -> Result<(L, State)> {
        within("SpectralNorm", "epsilon", self.epsilon, NOT_NEGATIVE)?;
        crate::check::positive("SpectralNorm", "n_steps", self.n_steps)?;
        let params = self.layer.state_of(Filter::of::<Param>());
        let (mut divided, mut stats) = (State::new(), State::new());
        for (key, p) in params.iter().filter(|(_, p)| p.ndim() > 1) {
            let (u_key, sigma_key) = (format!("{key}.u"), format!("{key}.sigma"));
            let Some(start) = self.batch_stats.get(&u_key) else {
                return value_error(format!(
                    "SpectralNorm: there is no vector {u_key:?}; the layer's parameters changed"
                ));
            };
            let matrix = replicated(p).reshape([-1, p.shape()[p.ndim() - 1] as i64]);
            let (mut u, mut v) = (start.clone(), start.clone());
            for _ in 0..self.n_steps {
                v = l2_normalize(&u.matmul(matrix.t()), &[0, 1], self.epsilon);
                u = l2_normalize(&v.matmul(&matrix), &[0, 1], self.epsilon);
            }
            // The vectors are constants for the gradient; only the kernel is differentiated.
            let (u, v) = (stop_gradient(u), stop_gradient(v));
            let sigma = v.matmul(&matrix).matmul(u.t()).get((0, 0));
            let divisor = where_(sigma.not_equal(0), &sigma, 1);
            divided.insert(key, p / divisor);
            stats.insert(u_key, u);
            stats.insert(sigma_key, sigma);
        }
        Ok((self.layer.with_state(&divided)?, stats))
    }

    /// Applies the layer with divided kernels to `x`. In training mode, the vectors are updated.
    #[track_caller]
    pub fn forward(&mut self, x: impl ArrayLike) -> Array {
        let x = x.into_array();
        let y = self.normalized().and_then(|(layer, stats)| {
            if self.training {
                *self.batch_stats = stats.into_iter().map(|(key, x)| (key, stop_gradient(x))).collect();
            }
            forward_as(&mut self.layer, layer, &x)
        });
        y.unwrap_or_else(|error| Array::from_error(error, &x))
    }
}

impl<L: Layer> Layer for SpectralNorm<L> {
    #[track_caller]
    fn forward(&mut self, x: Array) -> Array {
        SpectralNorm::forward(self, x)
    }
}
