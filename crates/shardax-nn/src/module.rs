//! What a module is: a tree, with a few methods.

use std::collections::BTreeMap;

use shardax::prelude::*;
use shardax::tree::{Flat, TreeDef};
use shardax::{Error, ErrorKind};

/// The arrays of a module by their key paths, such as `conv1.kernel`.
pub type State = BTreeMap<String, Array>;

/// A part of a model, or a whole one: a struct of arrays and modules.
///
/// `#[derive(Module)]` implements it, and [`Tree`], which is all that it asks for. There is no method `forward` in it:
/// what a model computes is an ordinary method with whatever arguments the model needs (`x`, a flag `train`, a key). A
/// field that is configuration, not data, is a plain number or is marked `#[tree(static)]`.
///
/// ```
/// use shardax_nn::prelude::*;
///
/// #[derive(Module, Clone)]
/// struct Affine { w: Array, b: Array }
///
/// let model = Affine { w: ones([3, 2]), b: zeros([2]) };
/// assert_eq!(model.parameter_count(), 8);
/// assert_eq!(model.state().keys().collect::<Vec<_>>(), ["b", "w"]);
/// # Ok::<(), shardax::Error>(())
/// ```
pub trait Module: Tree {
    /// The number of elements of all arrays.
    fn parameter_count(&self) -> usize {
        tree::leaves(self).iter().map(Array::size).sum()
    }

    /// The arrays by their key paths.
    fn state(&self) -> State {
        self.split().1
    }

    /// The structure, and the arrays by their key paths; [`merge`] is the reverse.
    ///
    /// ```
    /// use shardax_nn::prelude::*;
    /// let layer = Linear::new(2, 3, &mut Rngs::new(0));
    /// let (structure, mut state) = layer.split();
    /// state.insert("bias".into(), ones([3]));
    /// let layer: Linear = merge(&structure, &state)?;
    /// assert_eq!(layer.forward(zeros([1, 2])).to_vec::<f32>()?, [1.0; 3]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    fn split(&self) -> (TreeDef, State) {
        let flat = Flat::of(self);
        let state = keys(&flat.def).into_iter().zip(flat.leaves).collect();
        (flat.def, state)
    }

    /// This module with the arrays of `state` in the place of its own: `model.with_state(&params)?.forward(x)` is what
    /// `model.apply({'params': params}, x)` is in Flax.
    ///
    /// Fails as [`merge`] does.
    fn with_state(&self, state: &State) -> Result<Self> {
        merge(&tree::structure(self), state)
    }
}

/// The key path of each leaf, without the dot in front.
pub(crate) fn keys(def: &TreeDef) -> Vec<String> {
    def.paths().into_iter().map(|path| path.strip_prefix('.').map(str::to_owned).unwrap_or(path)).collect()
}

/// The module of this structure with these arrays.
///
/// Fails when an array of the structure is missing in `state`, or `state` has one that the structure has not; the
/// message names the first of them.
pub fn merge<M: Module>(structure: &TreeDef, state: &State) -> Result<M> {
    let keys = keys(structure);
    let fail = |what: String| {
        Error::new(ErrorKind::Type, what).help("the state must be that of a module of the same structure")
    };
    if let Some(unknown) = state.keys().find(|key| !keys.contains(key)) {
        return Err(fail(format!("merge: the structure has no array {unknown:?}")));
    }
    let leaves = keys
        .iter()
        .map(|key| state.get(key).cloned().ok_or_else(|| fail(format!("merge: the state has no array {key:?}"))))
        .collect::<Result<Vec<_>>>()?;
    tree::unflatten(structure, &leaves)
}
