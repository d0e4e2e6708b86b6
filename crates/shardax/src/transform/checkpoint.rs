//! `checkpoint`: memory for gradients traded for time.

use std::marker::PhantomData;
use std::panic::Location;
use std::sync::Arc;

use crate::core::function::Function;
use crate::core::program::trace::{bind1, is_tracing};
use crate::core::tree::{self, Flat, Tree};
use crate::error::Result;
use crate::interpret::flat::{flat_fn, record};
use crate::ops::primitive::checkpoint as primitive;
use crate::ops::primitive::checkpoint_policy::CheckpointPolicy;

/// A function whose gradient computes its intermediate values again; see [`checkpoint`].
#[must_use = "a transformed function does nothing until it is called"]
pub struct Checkpoint<F, Args> {
    f: F,
    policy: CheckpointPolicy,
    prevent_cse: bool,
    args: PhantomData<fn(Args)>,
}

/// The same function, which keeps less memory for its gradient: its intermediate values are computed a second time,
/// when they are needed (rematerialization; JAX's `checkpoint` and `remat`).
///
/// Values and gradients are those of `f`. It pays for the layers of a deep network: memory then grows with what goes
/// between the layers, not with what is inside them, for about a third more time. Around what the steps of a
/// [`scan`](crate::control_flow::scan()) do, only their carries are kept.
///
/// XLA's CPU compiler merges the second computation with the first all the same, but for loops, which it cannot look
/// into: there the memory is saved on every platform.
///
/// ```
/// # use shardax::prelude::*;
/// fn layer(w: Array, x: Array) -> Array {
///     x.matmul(&w).tanh()
/// }
/// fn network(w: Array, x: Array) -> Result<Array> {
///     let layer = checkpoint(layer);
///     let x = layer.call((&w, x))?;
///     Ok(layer.call((&w, x))?.sum(..))
/// }
/// let g = grad(network).call((&eye(2) * 0.5, ones([3, 2])))?;
/// assert_eq!(g.shape(), [2, 2]);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn checkpoint<Args: Tree, F: Function<Args>>(f: F) -> Checkpoint<F, Args> {
    Checkpoint { f, policy: CheckpointPolicy::default(), prevent_cse: true, args: PhantomData }
}

impl<F, Args> Checkpoint<F, Args> {
    /// Which intermediate values are kept after all; by default none.
    pub fn policy(self, policy: CheckpointPolicy) -> Self {
        Checkpoint { policy, ..self }
    }

    /// Whether the compiler is kept from merging the second computation with the first (the default). In the body of a
    /// `scan` it could not do so anyway, and `false` leaves it more freedom.
    pub fn prevent_cse(self, prevent_cse: bool) -> Self {
        Checkpoint { prevent_cse, ..self }
    }
}

impl<F: Function<Args>, Args: Tree> Function<Args> for Checkpoint<F, Args> {
    type Output = F::Output;

    #[track_caller]
    fn apply(&self, args: Args) -> Result<F::Output> {
        if !is_tracing() {
            return self.f.apply(args);
        }
        let (policy, prevent_cse) = (self.policy.clone(), self.prevent_cse);
        let out = record(&Flat::of_arguments(&args), &flat_fn(&self.f), Location::caller(), |program, _, _| {
            Arc::new(primitive::Checkpoint { program, policy, prevent_cse })
        })?;
        out.build()
    }
}

/// The same values, under a name that [`CheckpointPolicy::SaveOnlyTheseNames`] can list.
///
/// ```
/// # use shardax::prelude::*;
/// let f = checkpoint(|x: Array| checkpoint_name(x.sin(), "inner").sin())
///     .policy(CheckpointPolicy::save_only_these_names(["inner"]));
/// let slope = grad(f).call(0.0f32)?;
/// assert_eq!(slope.item::<f32>()?, 1.0);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn checkpoint_name<T: Tree>(x: T, name: &str) -> T {
    let _line = crate::source::enter();
    let kept = x.clone();
    let named = |a: crate::core::array::Array| match a.is_traced() {
        true => bind1(primitive::Name { name: name.to_owned() }, &[a]),
        false => a,
    };
    tree::map(named, x).unwrap_or(kept)
}
