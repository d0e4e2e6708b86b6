//! `checkpoint`: rematerialization, which trades time for memory in gradients.

use std::marker::PhantomData;
use std::panic::Location;
use std::sync::Arc;

use crate::core::function::{Function, identity_of};
use crate::core::program::trace::{bind1, is_tracing};
use crate::core::tree::{self, Flat, IntoTree, Tree};
use crate::error::Result;
use crate::interpret::flat::{flat_fn, record};
use crate::ops::primitive::checkpoint as primitive;
use crate::ops::primitive::checkpoint_policy::CheckpointPolicy;

/// A function whose gradient recomputes its intermediate values; see [`checkpoint`].
#[must_use = "a transformed function does nothing until it is called"]
pub struct Checkpoint<F, Args> {
    f: F,
    policy: CheckpointPolicy,
    prevent_cse: bool,
    args: PhantomData<fn(Args)>,
}

/// Creates a function whose gradient saves fewer residuals, because it computes intermediate values again when they are
/// needed (rematerialization; JAX's `checkpoint` and `remat`).
///
/// Values and gradients are the same as for `f`. Use it for the layers of a deep network: then memory grows only with
/// the values passed between the layers, not with the values inside them, at the cost of about a third more time.
/// Around the body of a [`scan`](crate::control_flow::scan()), only the carries are saved.
///
/// XLA's CPU compiler merges the two computations again except in loops, so only in loops does `checkpoint` save memory
/// on every platform.
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
    /// Sets the intermediate values to save; by default none.
    pub fn policy(self, policy: CheckpointPolicy) -> Self {
        Checkpoint { policy, ..self }
    }

    /// Sets whether the compiler must not merge the second computation with the first (the default). In the body of a
    /// `scan` it cannot merge them anyway, so you can pass `false` there to leave the compiler more freedom.
    pub fn prevent_cse(self, prevent_cse: bool) -> Self {
        Checkpoint { prevent_cse, ..self }
    }
}

impl<F: Function<Args>, Args: Tree> Function<Args> for Checkpoint<F, Args> {
    type Output = F::Output;

    fn identity(&self) -> Option<u64> {
        identity_of::<Self>((&self.policy, self.prevent_cse), self.f.identity())
    }

    #[track_caller]
    fn apply(&self, args: Args) -> Result<F::Output> {
        if !is_tracing() {
            return self.f.apply(args);
        }
        let (policy, prevent_cse) = (self.policy.clone(), self.prevent_cse);
        let out = record(&Flat::from_arguments(&args), &flat_fn(&self.f), Location::caller(), |program, _, _| {
            Ok(Arc::new(primitive::Checkpoint { program, policy, prevent_cse }))
        })?;
        out.build()
    }
}

/// Returns the array under a name that [`CheckpointPolicy::SaveOnlyTheseNames`] can list.
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
pub fn checkpoint_name<T: IntoTree>(x: T, name: &str) -> T::Tree {
    let _line = crate::source::enter();
    let x = x.into_tree();
    let unchanged = x.clone();
    let named = tree::map(
        |a: crate::core::array::Array| {
            if a.is_traced() { bind1(primitive::Name { name: name.to_owned() }, &[a]) } else { a }
        },
        x,
    );
    named.unwrap_or(unchanged)
}
