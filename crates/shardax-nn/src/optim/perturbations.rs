//! Differentiable approximations of functions by random perturbations of their arguments (`optax.perturbations`).

use shardax::function::IntoOutput;
use shardax::prelude::*;

use super::tree_utils::{add_scale, scale, sum};
use crate::check::{positive, within};

/// A distribution of perturbations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Noise {
    /// The standard Gumbel distribution, as of maxima.
    #[default]
    Gumbel,
    /// The standard normal distribution.
    Normal,
}

impl Noise {
    /// Returns a sample of the distribution for each element of a tree.
    fn sample_like<P: Tree>(self, key: &Array, tree: &P) -> Result<P> {
        let keys = random::split(key, tree::leaves(tree).len());
        let mut keys = keys.iter();
        tree::map(
            |x: Array| match (keys.next(), self) {
                (Some(key), Noise::Gumbel) => random::gumbel_dtype(key, x.shape(), x.dtype()),
                (Some(key), Noise::Normal) => random::normal_dtype(key, x.shape(), x.dtype()),
                (None, _) => x,
            },
            tree.clone(),
        )
    }

    /// Returns the logarithm of the density without its constant term, which has no derivative.
    fn log_density(self, x: &Array) -> Array {
        match self {
            Noise::Gumbel => -x - (-x).exp(),
            Noise::Normal => -0.5 * x.square(),
        }
    }
}

/// The options of [`make_perturbed_fun`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PerturbationOptions {
    /// The number of perturbations whose results are averaged. Default 1000.
    pub num_samples: usize,
    /// The factor of the perturbations. Default 0.1.
    pub sigma: f64,
    /// The distribution of the perturbations. Default [`Noise::Gumbel`].
    pub noise: Noise,
    /// If true, the result without a perturbation is subtracted from the others, so that derivatives vary less. Default
    /// true.
    pub use_baseline: bool,
}

impl Default for PerturbationOptions {
    fn default() -> Self {
        PerturbationOptions { num_samples: 1000, sigma: 0.1, noise: Noise::Gumbel, use_baseline: true }
    }
}

/// Returns a function of a key and a tree that averages `f` over random perturbations of the tree. Its derivatives exist
/// even if `f` has none, such as a function that sorts or selects: they are estimated from values of `f` alone.
///
/// The result of `f` must be a tree of floating point.
///
/// Sources: [Berthet et al. 2020](https://arxiv.org/abs/2002.08676), and for derivatives of any order
/// [Foerster et al. 2018](https://arxiv.org/abs/1802.05098).
///
/// ```
/// use shardax_nn::optim::perturbations::{PerturbationOptions, make_perturbed_fun};
/// use shardax_nn::prelude::*;
/// let f = |x: Array| maximum(x, 0.0).sum(..);
/// let smooth = make_perturbed_fun(f, PerturbationOptions::default());
/// let slopes = grad(smooth).argnums(Arg::<1>).call((random::key(0), zeros([3])))?;
/// assert!(allclose(slopes, array([0.69f32, 0.72, 0.58]), 0.0, 5e-3)?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The returned function fails if `f` fails, if there are no samples, or if `sigma` is not above 0.
pub fn make_perturbed_fun<P: Tree, R: IntoOutput>(
    f: impl Fn(P) -> R,
    options: PerturbationOptions,
) -> impl Fn(Array, P) -> Result<R::Output>
where
    R::Output: Tree,
{
    move |key: Array, x: P| {
        positive("make_perturbed_fun", "num_samples", options.num_samples)?;
        within("make_perturbed_fun", "sigma", options.sigma, f64::MIN_POSITIVE..f64::INFINITY)?;
        let baseline = match options.use_baseline {
            true => Some(f(stop_gradient(x.clone())).into_output()?),
            false => None,
        };
        let samples = vmap(|key: Array| options.sample(&f, &key, &x, baseline.as_ref()))
            .call(random::split(&key, options.num_samples))?;
        tree::map(|y: Array| y.mean(0), samples)
    }
}

impl PerturbationOptions {
    /// Returns the result for one perturbation, whose derivative is the derivative of the perturbation's density.
    fn sample<P: Tree, R: IntoOutput>(
        &self,
        f: &impl Fn(P) -> R,
        key: &Array,
        x: &P,
        baseline: Option<&R::Output>,
    ) -> Result<R::Output>
    where
        R::Output: Tree,
    {
        let noise = self.noise.sample_like(key, x)?;
        let shifted = tree::map2(|x, z| stop_gradient(x + z * self.sigma), x.clone(), noise)?;
        let noise = tree::map2(|x, shifted| (shifted - x) / self.sigma, x.clone(), shifted.clone())?;
        let log_density = sum(&tree::map(|z| self.noise.log_density(&z), noise)?);
        // The weight is 1, and has the derivative of the logarithm.
        let weight = (&log_density - stop_gradient(log_density.clone())).exp();
        let result = scale(&weight, &f(shifted).into_output()?)?;
        match baseline {
            Some(baseline) => add_scale(&result, 1 - weight, baseline),
            None => Ok(result),
        }
    }
}
