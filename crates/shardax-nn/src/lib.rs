//! Modules, layers, losses, optimizers and schedules for [`shardax`].
//!
//! A model is a struct of arrays and other modules: a tree. `#[derive(Module)]` implements the traits.
//! [`grad`](shardax::grad), [`jit`](shardax::jit()), [`pmap`](shardax::pmap()) and the optimizers accept and return the model like
//! any tree, so that there is no separate store of parameters.
//!
//! Layers have Flax NNX's names, defaults and initial weights. Losses, optimizers and schedules are Optax's.
//!
//! ```
//! use shardax_nn::prelude::*;
//!
//! #[derive(Module, Clone)]
//! struct Mlp {
//!     hidden: Linear,
//!     out: Linear,
//! }
//!
//! impl Mlp {
//!     fn forward(&self, x: Array) -> Array {
//!         self.out.forward(relu(self.hidden.forward(x)))
//!     }
//! }
//!
//! let mut rngs = Rngs::new(0);
//! let model = Mlp { hidden: Linear::new(2, 8, &mut rngs), out: Linear::new(8, 2, &mut rngs) };
//! let state = TrainState::create(model, adam(1e-2))?;
//!
//! let step = jit(|state: TrainState<Mlp, Adam>, x: Array, labels: Array| -> Result<_> {
//!     let loss = |model: Mlp| softmax_cross_entropy_with_integer_labels(model.forward(x.clone()), &labels).mean(..);
//!     let (loss, grads) = value_and_grad(loss).call(state.params.clone())?;
//!     Ok((state.apply_gradients(grads)?, loss))
//! });
//!
//! let (x, labels) = (array([[0.0f32, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]), array([0, 1, 1, 0]));
//! let (state, loss_0) = step.call((state, &x, &labels))?;
//! let (_, loss_1) = step.call((state, &x, &labels))?;
//! assert!(loss_1.item::<f32>()? < loss_0.item::<f32>()?);
//! # Ok::<(), shardax::Error>(())
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

// The derive macro names this crate.
extern crate self as shardax_nn;

mod attention;
mod check;
mod filter;
// The names of other libraries.
#[allow(missing_docs, non_snake_case)]
#[doc(hidden)]
pub mod hints;
pub mod layers;
mod linen;
pub mod losses;
pub mod metrics;
mod module;
pub mod optim;
mod pipeline;
mod policy;
mod ranks;
mod rngs;
mod rules;
mod shardings;
mod shared;
mod state;
mod tabulate;
mod variable;

pub use attention::{
    AttentionOptions, Implementation, Rope, RopeScaling, combine_masks, dot_product_attention, make_attention_mask,
    make_causal_mask, ring_attention,
};
pub use filter::Filter;
pub use layers::*;
pub use linen::linen_key;
pub use losses::*;
pub use module::{Module, capture, is_mode, merge};
pub use optim::*;
pub use pipeline::{Pipeline, PipelineSchedule};
pub use policy::Policy;
pub use rngs::{RngStream, Rngs};
pub use rules::{IntoAxisNames, Rules};
pub use shardax::Module;
pub use state::State;
pub use tabulate::tabulate;
pub use variable::{
    BatchStat, Cache, Frozen, Intermediate, Kind, LoRAParam, OverwriteWithGradient, Param, RngCount, RngKey, Variable,
    kind,
};

/// This crate under the name that programs of Flax give it: `nnx::Linear`, `nnx::Rngs`, `nnx::Optimizer`, `nnx::relu`.
///
/// ```
/// use shardax_nn::prelude::*;
/// let mut rngs = nnx::Rngs::new(0);
/// let layer = nnx::Linear::new(3, 2, &mut rngs);
/// let mut optimizer = nnx::Optimizer::new(layer, optax::adam(1e-2))?;
/// let loss = optimizer.minimize(|layer| optax::l2_loss(nnx::relu(layer.forward(ones([4, 3]))), ones([4, 2])).mean(..))?;
/// assert_eq!(loss.ndim(), 0);
/// # Ok::<(), shardax::Error>(())
/// ```
pub mod nnx {
    pub use shardax::nn::*;
    pub use shardax::prelude::{cond, fori_loop, grad, jit, pmap, scan, switch, value_and_grad, vmap, while_loop};

    pub use crate::layers::*;
    pub use crate::{
        BatchStat, Cache, Filter, Frozen, Intermediate, LoRAParam, Module, Optimizer, Param, RngStream, Rngs, State,
        TrainState, Variable, combine_masks, dot_product_attention, make_attention_mask, make_causal_mask, merge,
        metrics, tabulate,
    };
}

/// Optimizers and losses under the name that programs of JAX give them: `optax::adam`, `optax::l2_loss`.
///
/// ```
/// use shardax_nn::prelude::*;
/// let params = array([1.0f32, -2.0]);
/// let optimizer = (optax::clip_by_global_norm(1.0), optax::sgd(0.1));
/// let state = optimizer.init(&params)?;
/// let (updates, _) = optimizer.update(array([0.5f32, 0.0]), state, &params)?;
/// assert_eq!(optax::apply_updates(params, updates)?.to_vec::<f32>()?, [0.95, -2.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
pub mod optax {
    pub use crate::losses::*;
    pub use crate::optim::*;
}

/// The items that most programs need, from shardax and this crate: `use shardax_nn::prelude::*;`
pub mod prelude {
    #[doc(hidden)]
    pub use crate::hints::{
        AvgPool2d, BatchNorm1d, BatchNorm2d, Conv1d, Conv2d, Conv3d, Embedding, Gru, Lstm, MaxPool2d, ModuleHints as _,
        binary_cross_entropy, binary_cross_entropy_with_logits, cross_entropy, cross_entropy_loss, l1_loss, mse_loss,
    };
    pub use crate::layers::*;
    pub use crate::linen::linen_key;
    pub use crate::losses::*;
    pub use crate::metrics::accuracy;
    pub use crate::module::{Module, capture, merge};
    pub use crate::state::State as ModuleState;
    pub use crate::tabulate::tabulate;
    // Some are left out: `clip`, `scale` and `trace` are too common as names.
    pub use crate::optim::{
        AdaBeliefOptions, AdaGradOptions, Adam, AdamOptions, AdamW, AdamaxOptions, AdanOptions, AmsgradOptions,
        ApplyIfFinite, CenteredRmsPropOptions, ClipByGlobalNorm, DynamicScale, GradientTransformation,
        InjectHyperparams, Lamb, Lion, LionOptions, Masked, MultiSteps, NovogradOptions, Optimizer, RadamOptions,
        RmsPropOptions, ScaleByAdam, Schedule, Sgd, SgdOptions, TrainState, Unscaled, WeightDecayOptions, YogiOptions,
        adabelief, adafactor, adagrad, adam, adamw, add_decayed_weights, apply_if_finite, apply_updates, chain,
        clip_by_global_norm, constant_schedule, cosine_decay_schedule, ema, exponential_decay, freeze, fromage,
        global_norm, incremental_update, inject_hyperparams, join_schedules, lamb, lars, lbfgs, lbfgs_linesearch,
        linear_schedule, lion, masked, multi_steps, multi_transform, muon, noisy_sgd, partition, periodic_update,
        piecewise_constant_schedule, polynomial_schedule, radam, rmsprop, rmsprop_centered, rmsprop_momentum, sam,
        scale_by_adam, scale_by_learning_rate, schedule_free, set_to_zero, sgd, sgd_momentum,
        value_and_grad_from_state, warmup_constant_schedule, warmup_cosine_decay_schedule,
        warmup_exponential_decay_schedule, yogi,
    };
    pub use crate::{
        AttentionOptions, BatchStat, Cache, Filter, Frozen, Intermediate, Kind, LoRAParam, Param, Pipeline,
        PipelineSchedule, Policy, RngStream, Rngs, Rope, RopeScaling, Rules, Variable, combine_masks,
        dot_product_attention, make_attention_mask, make_causal_mask, ring_attention,
    };
    pub use crate::{losses, nnx, optax, optim};
    pub use shardax::lax::Padding;
    pub use shardax::nn::*;
    pub use shardax::prelude::*;
}
