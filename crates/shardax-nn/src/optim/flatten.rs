//! Parameters as one vector.

use shardax::prelude::*;

use super::projections::split_like;
use super::{GradientTransformation, tree_utils};
use crate::shardings::replicated;

/// The gradient transformation that [`flatten`] returns.
#[derive(Tree, Clone, Debug)]
pub struct Flatten<T> {
    /// The transformation of the vector.
    pub inner: T,
}

/// Applies `inner` to all gradients as one vector, of their promoted dtype: fewer and larger operations where there are
/// many small arrays. Not for transformations that depend on single arrays or their shapes.
///
/// ```
/// use shardax_nn::optim::flatten;
/// use shardax_nn::prelude::*;
/// let state = TrainState::create(Linear::new(2, 3, &mut Rngs::new(0)), flatten(adam(0.1)))?;
/// assert_eq!(state.opt_state.0.mu.shape(), [9]);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn flatten<T>(inner: T) -> Flatten<T> {
    Flatten { inner }
}

impl<P: Tree, T: GradientTransformation<Array>> GradientTransformation<P> for Flatten<T> {
    type State = T::State;

    #[track_caller]
    fn init(&self, params: &P) -> Result<Self::State> {
        self.inner.init(&joined(params))
    }

    fn update(&self, grads: P, state: Self::State, params: &P) -> Result<(P, Self::State)> {
        let (updates, state) = self.inner.update(joined(&grads), state, &joined(params))?;
        Ok((split_like(&updates, &grads)?, state))
    }
}

/// Concatenates all elements of a tree.
fn joined<P: Tree>(tree: &P) -> Array {
    let dtype = tree_utils::dtype(tree);
    let parts: Vec<Array> = tree::leaves(tree).iter().map(|x| replicated(x).ravel().astype(dtype)).collect();
    if parts.is_empty() { zeros_dtype([0], DType::F32) } else { concatenate(&parts, 0) }
}
