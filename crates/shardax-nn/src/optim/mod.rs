//! Optimizers, as [Optax](https://optax.readthedocs.io) has them: transformations of gradients, and chains of them.
//!
//! A transformation has a state, a tree made from the parameters by [`init`](GradientTransformation::init);
//! [`update`](GradientTransformation::update) turns gradients into updates, which [`apply_updates`] adds to the
//! parameters. A tuple of transformations is their chain. All are trees, with their numbers as structure: a compiled
//! step can take and return them.
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

mod adaptive;
mod gradient;
mod multi_steps;
mod optimizers;
mod schedule;
mod train_state;

pub use adaptive::*;
pub use gradient::*;
pub use multi_steps::{MultiSteps, MultiStepsState, multi_steps};
pub use optimizers::*;
pub use schedule::*;
pub use train_state::{Optimizer, TrainState};

use shardax::prelude::{Array, DType, Result, Tree, tree, zeros_dtype, zeros_like};

/// A transformation of gradients of parameters of type `P`, any tree.
pub trait GradientTransformation<P: Tree>: Tree {
    /// What it remembers from one step to the next.
    type State: Tree;

    /// The state before the first step.
    fn init(&self, params: &P) -> Result<Self::State>;

    /// The updates for these gradients (or for the updates of the transformation before it), and the next state.
    ///
    /// Fails when `grads`, `state` and `params` do not have one structure.
    fn update(&self, grads: P, state: Self::State, params: &P) -> Result<(P, Self::State)>;
}

/// `params + updates`, in the dtypes of `params`.
pub fn apply_updates<P: Tree>(params: P, updates: P) -> Result<P> {
    tree::map2(
        |p, u| {
            let dtype = p.dtype();
            p + u.astype(dtype)
        },
        params,
        updates,
    )
}

/// No transformation, or one.
impl<P: Tree, T: GradientTransformation<P>> GradientTransformation<P> for Option<T> {
    type State = Option<T::State>;

    fn init(&self, params: &P) -> Result<Self::State> {
        self.as_ref().map(|t| t.init(params)).transpose()
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
    ($(($($t:ident $s:ident $i:tt),+))*) => {$(
        /// One after the other.
        impl<P: Tree, $($t: GradientTransformation<P>),+> GradientTransformation<P> for ($($t,)+) {
            type State = ($($t::State,)+);

            fn init(&self, params: &P) -> Result<Self::State> {
                Ok(($(self.$i.init(params)?,)+))
            }

            fn update(&self, grads: P, state: Self::State, params: &P) -> Result<(P, Self::State)> {
                let updates = grads;
                $(let (updates, $s) = self.$i.update(updates, state.$i, params)?;)+
                Ok((updates, ($($s,)+)))
            }
        }
    )*};
}

chains! {
    (A a 0)
    (A a 0, B b 1)
    (A a 0, B b 1, C c 2)
    (A a 0, B b 1, C c 2, D d 3)
    (A a 0, B b 1, C c 2, D d 3, E e 4)
    (A a 0, B b 1, C c 2, D d 3, E e 4, F f 5)
}

/// Zeros like every array of `params`.
fn zeros_of<P: Tree>(params: &P) -> Result<P> {
    tree::map(|p| zeros_like(&p), params.clone())
}

/// Zero, int32: a count of steps.
fn count() -> Array {
    zeros_dtype((), DType::I32)
}
