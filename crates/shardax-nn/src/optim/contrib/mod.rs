//! Optimizers of [`optax.contrib`](https://optax.readthedocs.io/en/latest/api/contrib.html), with its names and defaults.
//!
//! ```
//! use shardax_nn::optim::contrib::{ademamix, prodigy};
//! use shardax_nn::prelude::*;
//! let state = TrainState::create(ones([2]), ademamix(1e-3))?;
//! let state = state.apply_gradients(array([1.0f32, -1.0]))?;
//! assert!(state.params.get(0).item::<f32>()? < 1.0);
//! // `prodigy` estimates the learning rate.
//! let state = TrainState::create(ones([2]), prodigy(1.0))?;
//! # let _ = state;
//! # Ok::<(), shardax::Error>(())
//! ```

/// Declares a transformation: its numbers with their defaults, its state, `init`, and `update`.
macro_rules! transformation {
    (
        $(#[$doc:meta])* $make:ident -> $name:ident { $($(#[$of:meta])* $field:ident: $t:ty = $default:expr,)* }
        $state:ident { $($(#[$part_doc:meta])* $part:ident: $part_type:ty,)* }
        init |$it:ident, $params:ident| $init:expr;
        update |$this:ident, $grads:ident, $old:ident, $at:ident| $body:expr;
    ) => {
        #[doc = concat!("See [`", stringify!($make), "`].")]
        #[derive(Tree, Clone, Debug)]
        pub struct $name {
            $($(#[$of])* pub $field: $t,)*
        }

        #[doc = concat!("The state of [`", stringify!($name), "`].")]
        #[derive(Tree, Clone, Debug)]
        pub struct $state<P> {
            $($(#[$part_doc])* pub $part: $part_type,)*
        }

        $(#[$doc])*
        pub fn $make() -> $name {
            $name { $($field: $default,)* }
        }

        impl<P: Tree> GradientTransformation<P> for $name {
            type State = $state<P>;

            #[track_caller]
            fn init(&self, $params: &P) -> Result<Self::State> {
                let $it = self;
                $init
            }

            fn update(&self, grads: P, $old: Self::State, params: &P) -> Result<(P, Self::State)> {
                let ($this, dtypes) = (self, super::dtypes(&$old));
                let (updates, state) = in_wide_dtypes(grads, params, |$grads, $at| $body)?;
                Ok((updates, super::with_dtypes(state, dtypes)?))
            }
        }
    };
}

mod adaptive;
mod by_value;
mod complex;
mod galore;
mod mechanic;
mod momo;
mod parameter_free;
mod sophia;

pub use adaptive::*;
pub use by_value::*;
pub use complex::*;
pub use galore::*;
pub use mechanic::*;
pub use momo::*;
pub use parameter_free::*;
pub use sophia::*;

// Optax's `contrib` has these too.
pub use super::{
    differentially_private_aggregate, dpsgd, muon, sam, schedule_free, schedule_free_adamw, schedule_free_sgd,
};

use super::tree_utils::MixedDtype;
use super::{
    AddDecayedWeights, GradientTransformation, ScaleByLearningRate, Schedule, add_decayed_weights, count, dtypes,
    in_wide_dtypes, one_minus_power, safe_increment, scalar_dtype, scale_by_learning_rate, wide_dtype, with_dtypes,
    zeros_in,
};
use shardax::prelude::*;

/// Returns a real number in the lowest dtype of the parameters, as Optax's estimates, but in float32 at least.
fn estimate<P: Tree>(params: &P, value: f64) -> Result<Array> {
    Ok(shardax::numpy::full_dtype((), value, wide_dtype(MixedDtype::Lowest.dtype(params)?).real()))
}
