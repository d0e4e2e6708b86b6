//! The `Module` trait: a tree with a few methods.

use std::borrow::Borrow;

use shardax::dtype::Scalar;
use shardax::function::IntoOutput;
use shardax::prelude::*;
use shardax::tree::{Flat, TreeDef};
use shardax::{Error, ErrorKind};

use crate::filter::key;
use crate::variable::kind;
use crate::{Filter, Kind, State};

/// The kinds of variables that are a model's weights.
const WEIGHTS: [&str; 3] = [kind::Param::NAME, kind::LoRAParam::NAME, kind::Frozen::NAME];

/// A model, or a part of one: a struct of arrays and modules.
///
/// `#[derive(Module)]` implements this trait, and also [`Tree`], its only requirement. The trait has no method `forward`: you
/// write one, with the arguments that your model needs. If a call changes a layer, such as a [`Dropout`](crate::Dropout) or a
/// [`BatchNorm`](crate::BatchNorm), `forward` must borrow the model mutably. A field that is configuration must be a plain
/// number, or be marked `#[tree(static)]`.
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
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a module",
    label = "not a module",
    note = "put `#[derive(Module, Clone)]` on a struct or an enum of layers and arrays",
    note = "mark a field that is configuration, such as a `String` or a `fn(Array) -> Array`, with `#[tree(static)]`",
    note = "`!` stands for a type that rustc cannot infer: state it, such as `let model: Model = merge(&def, state)?`"
)]
pub trait Module: Tree {
    /// Puts the module into training mode, like `nnx.Module.train`: sets every field `training: bool` of the module and of
    /// its submodules to true. New layers are in training mode.
    ///
    /// ```
    /// use shardax_nn::prelude::*;
    /// let mut rngs = Rngs::new(0);
    /// let mut model = Sequential((Linear::new(2, 8, &mut rngs), Dropout::new(0.5, &mut rngs)));
    /// model.eval();
    /// assert_eq!(model.forward(ones([2])).to_vec::<f32>()?, model.forward(ones([2])).to_vec::<f32>()?);
    /// model.train();
    /// assert_ne!(model.forward(ones([2])).to_vec::<f32>()?, model.forward(ones([2])).to_vec::<f32>()?);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    fn train(&mut self) {
        set_training(self, true);
    }

    /// Puts the module into evaluation mode: sets every field `training: bool` of the module and of its submodules to false.
    /// See [`train`](Module::train).
    fn eval(&mut self) {
        set_training(self, false);
    }

    /// Returns the number of elements of the weights: of [`Param`](crate::Param)s, plain arrays,
    /// [`LoRAParam`](crate::LoRAParam)s and [`Frozen`](crate::Frozen) weights. Statistics, caches, random keys and your own
    /// kinds are not counted; `tree::leaves(&model)` returns all arrays.
    ///
    /// ```
    /// use shardax_nn::prelude::*;
    /// let mut rngs = Rngs::new(0);
    /// let model = (Linear::new(2, 3, &mut rngs), BatchNorm::new(3, &mut rngs), Dropout::new(0.5, &mut rngs));
    /// assert_eq!(model.parameter_count(), 9 + 6);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    fn parameter_count(&self) -> usize {
        let flat = Flat::of(self);
        let infos = flat.def.leaf_infos();
        let weights =
            infos.iter().zip(&flat.leaves).filter(|(leaf, _)| leaf.kind.is_none_or(|kind| WEIGHTS.contains(&kind)));
        weights.map(|(_, array)| array.size()).sum()
    }

    /// Returns the arrays by their key paths.
    fn state(&self) -> State {
        self.split().1
    }

    /// Returns the structure, and the arrays by their key paths. [`merge`] is the inverse.
    ///
    /// ```
    /// use shardax_nn::prelude::*;
    /// let layer = Linear::new(2, 3, &mut Rngs::new(0));
    /// let (structure, mut state) = layer.split();
    /// state.insert("bias", ones([3]));
    /// let layer: Linear = merge(&structure, &state)?;
    /// assert_eq!(layer.forward(zeros([1, 2])).to_vec::<f32>()?, [1.0; 3]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    fn split(&self) -> (TreeDef, State) {
        let flat = Flat::of(self);
        let state = pick(&flat, |_| true);
        (flat.def, state)
    }

    /// Returns the arrays that `filter` selects, by their key paths.
    fn state_of(&self, filter: impl Into<Filter>) -> State {
        let flat = Flat::of(self);
        let chosen = filter.into().choose(&flat);
        pick(&flat, |i| chosen[i])
    }

    /// Returns the structure, and for each filter the arrays that it selects, except for the arrays that an earlier filter
    /// selects. [`merge`] combines the states again.
    ///
    /// Every array must be selected by a filter; otherwise the message names the array.
    ///
    /// ```
    /// use shardax_nn::prelude::*;
    /// let layer = Linear::new(2, 3, &mut Rngs::new(0));
    /// let (structure, [kernel, bias]) = layer.split_by(["kernel".into(), Filter::everything()])?;
    /// assert_eq!((kernel.len(), bias.len()), (1, 1));
    /// let layer: Linear = merge(&structure, kernel.into_iter().chain(bias).collect::<ModuleState>())?;
    /// # let _ = layer;
    /// # Ok::<(), shardax::Error>(())
    /// ```
    fn split_by<const N: usize>(&self, filters: [Filter; N]) -> Result<(TreeDef, [State; N])> {
        let flat = Flat::of(self);
        let infos = flat.def.leaf_infos();
        let leaves = infos.iter().zip(&flat.leaves);
        let groups: Vec<Option<usize>> =
            leaves.map(|(leaf, array)| filters.iter().position(|filter| filter.matches(leaf, array))).collect();
        if let Some(unselected) = groups.iter().position(Option::is_none) {
            let message = format!("split_by: no filter selects the array {:?}", key(&infos[unselected].path));
            return Err(Error::new(ErrorKind::Value, message)
                .help("add a filter for this array, or end with `Filter::everything()` for all remaining arrays"));
        }
        let states = std::array::from_fn(|n| pick(&flat, |i| groups[i] == Some(n)));
        Ok((flat.def, states))
    }

    /// Returns this module with arrays replaced by the arrays of `state`; arrays that are not in the state do not change.
    /// `model.with_state(&params)?.forward(x)` is Flax's `model.apply({'params': params}, x)`. Use it to differentiate with
    /// respect to some of a model's arrays:
    ///
    /// ```
    /// use shardax_nn::prelude::*;
    /// let model = Linear::new(2, 3, &mut Rngs::new(0));
    /// let loss = |bias: ModuleState| -> Result<Array> { Ok(model.with_state(&bias)?.forward(ones([1, 2])).sum(..)) };
    /// let grads = grad(loss).call(model.state_of("bias"))?;
    /// assert_eq!(grads["bias"].to_vec::<f32>()?, [1.0; 3]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// The state must not have an array that is not in this module.
    fn with_state(&self, state: &State) -> Result<Self> {
        put(&Flat::of(self), state)?.build()
    }

    /// Removes the values of a kind from the module, like `nnx.pop`, and returns them by their key paths. Lists of this kind,
    /// such as [`Intermediate`](crate::Intermediate)s, are empty afterwards.
    ///
    /// The variables of this kind must be lists, because a struct must have all its other fields.
    fn pop<K: Kind>(&mut self) -> Result<State> {
        let flat = Flat::of(self);
        let infos = flat.def.leaf_infos();
        let is_popped: Vec<bool> = infos.iter().map(|leaf| leaf.kind == Some(K::NAME)).collect();
        let state = pick(&flat, |i| is_popped[i]);
        let remaining = (0..flat.leaves.len()).filter(|i| !is_popped[*i]).map(|i| flat.leaves[i].clone()).collect();
        *self = Flat { leaves: remaining, def: flat.def.without_lists_of_kind(K::NAME)? }.build()?;
        Ok(state)
    }

    /// Replaces arrays of this module by the arrays of `state`; arrays that are not in the state do not change.
    ///
    /// Fails like [`with_state`](Module::with_state), and then changes nothing.
    fn update(&mut self, state: &State) -> Result<()> {
        *self = self.with_state(state)?;
        Ok(())
    }
}

/// Sets all training flags of a module.
fn set_training<M: Module>(module: &mut M, training: bool) {
    let mut flat = Flat::of(module);
    let numbers = flat.def.numbers().into_iter().map(|(path, value): (String, Scalar)| match value {
        Scalar::Bool(_) if is_mode(&path) => Scalar::Bool(training),
        other => other,
    });
    let changed = flat.def.with_numbers(numbers).and_then(|def| {
        flat.def = def;
        flat.build()
    });
    if let Ok(changed) = changed {
        *module = changed;
    }
}

/// Calls `f` with the module, and returns its result and the [`Intermediate`](crate::Intermediate)s that `f` stored
/// (`nnx.capture`). These, and earlier intermediates, are removed from the module.
///
/// # Errors
/// Returns an error if `f` fails.
pub fn capture<M: Module, R: IntoOutput>(module: &mut M, f: impl FnOnce(&mut M) -> R) -> Result<(R::Output, State)> {
    module.pop::<crate::Intermediate>()?;
    let out = f(module).into_output()?;
    Ok((out, module.pop::<crate::Intermediate>()?))
}

/// Returns true if the plain number with this key path is a module's training flag.
pub fn is_mode(path: &str) -> bool {
    path.rsplit('.').next() == Some("training")
}

/// Returns the arrays of a tree whose positions are chosen.
pub(crate) fn pick(flat: &Flat, chosen: impl Fn(usize) -> bool) -> State {
    let leaves = flat.def.leaf_infos().into_iter().zip(&flat.leaves).enumerate().filter(|(i, _)| chosen(*i));
    State::of(leaves.map(|(_, (leaf, array))| (key(&leaf.path).to_owned(), leaf.axis_names, array.clone())))
}

/// Returns the tree with arrays replaced by the arrays of `state`.
pub(crate) fn put(flat: &Flat, state: &State) -> Result<Flat> {
    let mut new = flat.clone();
    let mut num_replaced = 0;
    for (leaf, key) in new.leaves.iter_mut().zip(keys(&flat.def)) {
        if let Some(array) = state.get(&key) {
            *leaf = array.clone();
            num_replaced += 1;
        }
    }
    // Every array of the state was used, so no name is unknown.
    if num_replaced == state.len() {
        return Ok(new);
    }
    let keys = keys(&flat.def);
    let unknown = state.keys().find(|key| !keys.iter().any(|known| known == key)).unwrap_or_default();
    Err(Error::new(ErrorKind::Type, format!("the module has no array {unknown:?}")).help(
        "pass the state of a module with the same structure; remove values that `sow` stored with `capture` first",
    ))
}

/// Returns the key path of each leaf, without the leading dot.
pub(crate) fn keys(def: &TreeDef) -> Vec<String> {
    def.paths().iter().map(|path| key(path).to_owned()).collect()
}

/// Builds a module with this structure from the arrays of `state`.
///
/// # Errors
/// Returns an error if an array of the structure is missing in `state`, or if `state` has an array that is not in the
/// structure. The message names the first such array.
pub fn merge<M: Module>(structure: &TreeDef, state: impl Borrow<State>) -> Result<M> {
    let state = state.borrow();
    let keys = keys(structure);
    if let Some(unknown) = state.keys().find(|key| !keys.iter().any(|known| known == key)) {
        return Err(wrong_structure(format!("merge: the structure has no array {unknown:?}")));
    }
    let leaves = keys
        .iter()
        .map(|key| {
            let array = state.get(key).cloned();
            array.ok_or_else(|| wrong_structure(format!("merge: the state has no array {key:?}")))
        })
        .collect::<Result<Vec<_>>>()?;
    tree::unflatten(structure, &leaves)
}

fn wrong_structure(message: String) -> Error {
    Error::new(ErrorKind::Type, message).help("pass the state of a module with the same structure")
}
