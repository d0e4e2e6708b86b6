//! Dynamic loss scaling, which keeps small gradients of half precision from underflow.

use shardax::prelude::*;

use super::{count, safe_increment};
use crate::check::within;

/// The dynamic scale of a loss in float16. It is halved when gradients overflow, and doubled after a number of finite
/// steps. It is a tree that your step must take and return, like Flax's `dynamic_scale.DynamicScale`.
///
/// Skip steps whose gradients are not finite, for example with [`apply_if_finite`](super::apply_if_finite). In data-parallel
/// training, average the gradients before [`unscale`](DynamicScale::unscale).
///
/// ```
/// use shardax_nn::optim::{ApplyIfFinite, DynamicScale, Unscaled};
/// use shardax_nn::prelude::*;
/// type State = TrainState<Linear, ApplyIfFinite<Sgd>>;
/// let model = Linear::new(2, 1, &mut Rngs::new(0).with_policy(Policy::f16_compute()));
/// let state = TrainState::create(model, apply_if_finite(sgd(0.1), 100))?;
/// let step = jit(|state: State, dynamic_scale: DynamicScale, x: Array| -> Result<_> {
///     let loss = |model: Linear| dynamic_scale.scale_loss(model.forward(&x).square().mean(..));
///     let (loss, grads) = value_and_grad(loss).call(&state.params)?;
///     let loss = loss / &dynamic_scale.scale;
///     let Unscaled { dynamic_scale, is_finite: _, grads } = dynamic_scale.unscale(grads)?;
///     Ok((state.apply_gradients(grads)?, dynamic_scale, loss))
/// });
/// let (state, dynamic_scale, _) = step.call((state, DynamicScale::new(), ones([4, 2])))?;
/// // A scale of 65536 is beyond float16.
/// assert_eq!(dynamic_scale.scale.item::<f32>()?, 32768.0);
/// let (_, dynamic_scale, loss) = step.call((state, dynamic_scale, ones([4, 2])))?;
/// assert_eq!(dynamic_scale.fin_steps.item::<i32>()?, 1);
/// assert!(loss.item::<f32>()?.is_finite());
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Tree, Clone, Debug)]
pub struct DynamicScale {
    /// The factor by which the scale grows, at least 1. Default 2.
    pub growth_factor: f64,
    /// The factor by which it shrinks when gradients are not finite, between 0 and 1. Default 0.5.
    pub backoff_factor: f64,
    /// The number of finite steps after which it grows. Default 2000.
    pub growth_interval: usize,
    /// The minimum of the scale. Default: the smallest normal float32.
    pub minimum_scale: Option<f64>,
    /// The number of finite steps since it changed, int32.
    pub fin_steps: Array,
    /// The factor of losses, float32. It starts at 65536.
    pub scale: Array,
}

/// The result of [`DynamicScale::unscale`].
#[derive(Tree, Clone, Debug)]
pub struct Unscaled<G> {
    /// The scale of the next step.
    pub dynamic_scale: DynamicScale,
    /// True if all gradients are finite.
    pub is_finite: Array,
    /// The gradients of the unscaled loss, float32.
    pub grads: G,
}

impl Default for DynamicScale {
    fn default() -> Self {
        DynamicScale::new()
    }
}

impl DynamicScale {
    /// Creates a scale of 65536, with Flax's defaults.
    pub fn new() -> Self {
        DynamicScale {
            growth_factor: 2.0,
            backoff_factor: 0.5,
            growth_interval: 2000,
            minimum_scale: Some(f32::MIN_POSITIVE.into()),
            fin_steps: count(),
            scale: array(65536.0f32),
        }
    }

    /// Returns the loss times the scale, to be differentiated.
    #[track_caller]
    pub fn scale_loss(&self, loss: impl ArrayLike) -> Array {
        &self.scale * loss.into_array()
    }

    /// Divides the gradients of a scaled loss, any tree, by the scale. Also returns whether they are finite, and the
    /// scale of the next step.
    ///
    /// # Errors
    /// Returns an error if a factor is out of its range, or if an array of the gradients failed.
    #[track_caller]
    pub fn unscale<G: Tree>(&self, grads: G) -> Result<Unscaled<G>> {
        within("DynamicScale", "growth_factor", self.growth_factor, 1.0..f64::INFINITY)?;
        within("DynamicScale", "backoff_factor", self.backoff_factor, 0.0..=1.0)?;
        let grads = tree::map(|g| g.astype(DType::F32) / &self.scale, grads)?;
        let finite = tree::leaves(&grads).iter().map(|g| g.isfinite().all(..)).reduce(|a, b| a & b);
        let is_finite = finite.unwrap_or_else(|| array(true));
        let grow = self.fin_steps.equal(i32::try_from(self.growth_interval).unwrap_or(i32::MAX));
        // An infinite scale could never shrink again.
        let grown = minimum(&self.scale * self.growth_factor, f32::MAX);
        let fin_scale = where_(&grow & &is_finite, grown, &self.scale);
        let smaller = &self.scale * self.backoff_factor;
        let inf_scale = match self.minimum_scale {
            Some(least) => maximum(smaller, least),
            None => smaller,
        };
        let scale = where_(&is_finite, fin_scale, inf_scale).astype(DType::F32);
        let fin_steps = where_(grow | !&is_finite, 0, safe_increment(&self.fin_steps)).astype(DType::I32);
        Ok(Unscaled { dynamic_scale: DynamicScale { scale, fin_steps, ..self.clone() }, is_finite, grads })
    }
}
