//! Optimizers: gradient transformations and chains of them, as in [Optax](https://optax.readthedocs.io).
//!
//! Averages and sums over steps, and all numbers that are computed from them, are in float32 at least. If parameters have
//! half precision, a state is therefore larger than Optax's, but it stays accurate. Updates have the dtypes of the gradients.
//!
//! A transformation has a state, a tree that [`init`](GradientTransformation::init) creates from the parameters.
//! [`update`](GradientTransformation::update) converts gradients to updates, and [`apply_updates`] adds the updates to the
//! parameters. A tuple of transformations is their chain. Transformations are trees, and their numbers are part of the
//! structure, so that a compiled step can take and return them.
//!
//! ```
//! use shardax_nn::prelude::*;
//! let params = vec![ones([2])];
//! let optimizer = (clip_by_global_norm(1.0), adam(0.1));
//! let state = optimizer.init(&params)?;
//! let (updates, state) = optimizer.update(vec![array([3.0f32, 4.0])], state, &params)?;
//! let params = apply_updates(params, updates)?;
//! assert!(allclose(&params[0], array([0.9f32, 0.9]), 1e-4, 0.0)?);
//! # let _ = state;
//! # Ok::<(), shardax::Error>(())
//! ```

/// Implements a transformation without state. The arguments are the type, a closure that checks the numbers (and the
/// parameters), and a closure that returns the updates.
macro_rules! stateless {
    ($name:ident, |$it:ident| $check:expr, |$this:ident, $updates:ident, $params:ident| $body:expr) => {
        stateless!($name, |$it, _init_params| $check, |$this, $updates, $params| $body);
    };
    ($name:ident, |$it:ident, $init_params:ident| $check:expr, |$this:ident, $updates:ident, $params:ident| $body:expr) => {
        impl<P: Tree> GradientTransformation<P> for $name {
            type State = ();

            #[track_caller]
            fn init(&self, $init_params: &P) -> Result<()> {
                let $it = self;
                $check
            }

            fn update(&self, updates: P, _state: (), params: &P) -> Result<(P, ())> {
                let $this = self;
                in_wide_dtypes(updates, params, |$updates, $params| Ok(($body?, ())))
            }
        }
    };
}

mod accumulators;
mod adam;
pub mod assignment;
mod clipping;
mod conditionality;
pub mod contrib;
mod dynamic_scale;
mod flatten;
mod gradient;
mod inject;
mod lbfgs;
mod linear_algebra;
mod linesearch;
mod lookahead;
mod masking;
mod monitoring;
mod multi_steps;
mod muon;
mod noise;
mod optimizers;
mod options;
pub mod perturbations;
pub mod projections;
mod rms;
mod sam;
mod scale_gradient;
mod schedule;
mod schedule_free;
mod train_state;
mod tree_keys;
pub mod tree_utils;

pub use adam::*;
pub use clipping::*;
pub use conditionality::*;
pub use dynamic_scale::{DynamicScale, Unscaled};
pub use flatten::{Flatten, flatten};
pub use gradient::*;
pub use inject::{InjectHyperparams, InjectHyperparamsState, inject_hyperparams};
pub use lbfgs::*;
pub use linear_algebra::*;
pub use linesearch::*;
pub use lookahead::*;
pub use masking::*;
pub use monitoring::*;
pub use multi_steps::*;
pub use muon::*;
pub use noise::*;
pub use optimizers::*;
pub use options::*;
pub use rms::*;
pub use sam::*;
pub use scale_gradient::scale_gradient;
pub use schedule::*;
pub use schedule_free::*;
pub use train_state::{Optimizer, TrainState, chain};
pub use tree_utils::safe_increment;

use shardax::prelude::{Array, ArrayLike, DType, Result, Tree, remainder, tree, where_, zeros_dtype};
use shardax::tree::IntoTree;

use accumulators::{
    dtypes, full_in, in_wide_dtypes, one_minus_power, scalar_dtype, wide_dtype, widened, with_dtypes, zeros_in,
};

/// A transformation of gradients of parameters of type `P`, any tree.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a gradient transformation of `{P}`",
    label = "not an optimizer, or not one of these parameters",
    note = "`adam(1e-3)`, `sgd(0.1)`, …, and tuples of transformations, which are a chain: `(clip_by_global_norm(1.0), adam(1e-3))`",
    note = "parameters and gradients are trees that are passed by reference: `tx.init(&params)?`, `tx.update(&grads, state, &params)?`"
)]
pub trait GradientTransformation<P: Tree>: Tree {
    /// The state from one step to the next.
    type State: Tree;

    /// Returns the state before the first step.
    ///
    /// Every number of the transformation must be in its range.
    fn init(&self, params: &P) -> Result<Self::State>;

    /// Returns the updates for these gradients (or for the updates of the transformation before it), and the next state.
    ///
    /// `grads`, `state` and `params` must have the same structure.
    fn update(&self, grads: P, state: Self::State, params: &P) -> Result<(P, Self::State)>;
}

/// Returns `params + updates`. The sum is computed in the promoted dtype, then rounded to the dtypes of `params`.
///
/// ```
/// use shardax_nn::prelude::*;
/// let (params, updates) = (ones([2]), array([0.5f32, -0.5]));
/// let params = apply_updates(&params, updates)?;
/// assert_eq!(params.to_vec::<f32>()?, [1.5, 0.5]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if the trees differ in structure, or if the shapes of two arrays do not broadcast together.
#[track_caller]
pub fn apply_updates<P: IntoTree>(params: P, updates: P::Tree) -> Result<P::Tree> {
    tree::map2(
        |p, u| {
            let dtype = p.dtype();
            (p + u).astype(dtype)
        },
        params.into_tree(),
        updates,
    )
}

/// Returns `step_size * new + (1 - step_size) * old`, for parameters that follow other parameters slowly, such as a target
/// network's.
///
/// ```
/// use shardax_nn::prelude::*;
/// let target = incremental_update(ones([1]), zeros([1]), 0.25)?;
/// assert_eq!(target.to_vec::<f32>()?, [0.25]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if the trees differ in structure, or if the shapes of two arrays do not broadcast together.
#[track_caller]
pub fn incremental_update<P: Tree>(new_tensors: P, old_tensors: P, step_size: impl ArrayLike) -> Result<P> {
    let step_size = step_size.into_array();
    let old_weight = 1 - &step_size;
    tree::map2(|new, old| &step_size * new + &old_weight * old, new_tensors, old_tensors)
}

/// Returns the new parameters if `steps` is a multiple of `update_period`, otherwise the old ones.
///
/// ```
/// use shardax_nn::prelude::*;
/// let target = |step: i32| periodic_update(ones([1]), zeros([1]), step, 10);
/// assert_eq!(target(20)?.to_vec::<f32>()?, [1.0]);
/// assert_eq!(target(21)?.to_vec::<f32>()?, [0.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if `update_period` is 0, if the trees differ in structure, or if the shapes of two arrays do not
/// broadcast together.
#[track_caller]
pub fn periodic_update<P: Tree>(
    new_tensors: P,
    old_tensors: P,
    steps: impl ArrayLike,
    update_period: usize,
) -> Result<P> {
    crate::check::positive("periodic_update", "update_period", update_period)?;
    let due = remainder(steps.into_array(), update_period).equal(0);
    tree::map2(|new, old| where_(&due, new, old), new_tensors, old_tensors)
}

/// `None` does not change the updates.
impl<P: Tree, T: GradientTransformation<P>> GradientTransformation<P> for Option<T> {
    type State = Option<T::State>;

    #[track_caller]
    fn init(&self, params: &P) -> Result<Self::State> {
        Ok(match self {
            Some(t) => Some(t.init(params)?),
            None => None,
        })
    }

    fn update(&self, grads: P, state: Self::State, params: &P) -> Result<(P, Self::State)> {
        match (self, state) {
            (Some(t), Some(state)) => {
                let (updates, state) = t.update(grads, state, params)?;
                Ok((updates, Some(state)))
            }
            (_, state) => Ok((grads, state)),
        }
    }
}

macro_rules! chains {
    ($(($($t:ident $i:tt),+))*) => {$(
        /// Applies the transformations one after the other.
        impl<Params: Tree, $($t: GradientTransformation<Params>),+> GradientTransformation<Params> for ($($t,)+) {
            type State = ($($t::State,)+);

            #[track_caller]
            fn init(&self, params: &Params) -> Result<Self::State> {
                Ok(($(self.$i.init(params)?,)+))
            }

            // The states are named after the types of their transformations.
            #[allow(non_snake_case)]
            fn update(&self, grads: Params, state: Self::State, params: &Params) -> Result<(Params, Self::State)> {
                let updates = grads;
                $(let (updates, $t) = self.$i.update(updates, state.$i, params)?;)+
                Ok((updates, ($($t,)+)))
            }
        }
    )*};
}

shardax::__each_tuple!(chains);

/// Returns the count of steps before the first step: zero, int32.
fn count() -> Array {
    zeros_dtype((), DType::I32)
}
