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

/// A part of a model, or a whole one: a struct of arrays and modules.
///
/// `#[derive(Module)]` implements it, and [`Tree`], its only requirement. The trait has no method `forward`: write one,
/// with the arguments that the model needs. It borrows the model mutably if a call changes a layer, as with
/// [`Dropout`](crate::Dropout) and [`BatchNorm`](crate::BatchNorm). A field that is configuration is a plain number or
/// is marked `#[tree(static)]`.
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
    /// Puts the module into training mode, as `nnx.Module.train` does: sets every field `training: bool` of it and of
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

    /// Puts the module into evaluation mode: sets every field `training: bool` of it and of its submodules to false.
    /// See
    /// [`train`](Module::train).
    fn eval(&mut self) {
        set_training(self, false);
    }

    /// Returns the number of elements of the weights: of [`Param`](crate::Param)s, plain arrays,
    /// [`LoRAParam`](crate::LoRAParam)s and [`Frozen`](crate::Frozen) weights. Statistics, caches, random keys and kinds of
    /// your own are not counted; `tree::leaves(&model)` has all arrays.
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
        let is_weight = |kind: Option<&str>| kind.is_none_or(|kind| WEIGHTS.contains(&kind));
        let infos = flat.def.leaf_infos();
        infos.iter().zip(&flat.leaves).filter(|(leaf, _)| is_weight(leaf.kind)).map(|(_, array)| array.size()).sum()
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

    /// Returns the structure, and for each filter the arrays that it selects and no earlier filter does. [`merge`]
    /// combines the states again.
    ///
    /// Fails when no filter selects some array; the message names it.
    ///
    /// ```
    /// use shardax_nn::prelude::*;
    /// let layer = Linear::new(2, 3, &mut Rngs::new(0));
    /// let (structure, [kernel, rest]) = layer.split_by(["kernel".into(), Filter::everything()])?;
    /// assert_eq!((kernel.len(), rest.len()), (1, 1));
    /// let layer: Linear = merge(&structure, kernel.into_iter().chain(rest).collect::<ModuleState>())?;
    /// # let _ = layer;
    /// # Ok::<(), shardax::Error>(())
    /// ```
    fn split_by<const N: usize>(&self, filters: [Filter; N]) -> Result<(TreeDef, [State; N])> {
        let flat = Flat::of(self);
        let infos = flat.def.leaf_infos();
        let group = |(leaf, array)| filters.iter().position(|filter| filter.matches(leaf, array));
        let groups: Vec<Option<usize>> = infos.iter().zip(&flat.leaves).map(group).collect();
        if let Some(left) = groups.iter().position(Option::is_none) {
            let what = format!("split_by: no filter means the array {:?}", key(&infos[left].path));
            return Err(Error::new(ErrorKind::Value, what).help("end with `Filter::everything()` for the rest"));
        }
        let states = std::array::from_fn(|n| pick(&flat, |i| groups[i] == Some(n)));
        Ok((flat.def, states))
    }

    /// Returns this module with its arrays replaced by those of `state`: `model.with_state(&params)?.forward(x)` is
    /// `model.apply({'params': params}, x)` in Flax. Arrays that are not in the state stay. Use it to differentiate
    /// with respect to some of a model's arrays:
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
    /// Fails when the state has an array that is not in this module.
    fn with_state(&self, state: &State) -> Result<Self> {
        put(&Flat::of(self), state)?.build()
    }

    /// Takes the values of a kind out of the module, as `nnx.pop` does, and returns them by their key paths: lists of them,
    /// such as [`Intermediate`](crate::Intermediate)s, are empty afterwards.
    ///
    /// Fails for a kind whose variables are not lists, which a struct cannot be without.
    fn pop<K: Kind>(&mut self) -> Result<State> {
        let flat = Flat::of(self);
        let infos = flat.def.leaf_infos();
        let is_popped: Vec<bool> = infos.iter().map(|leaf| leaf.kind == Some(K::NAME)).collect();
        let state = pick(&flat, |i| is_popped[i]);
        let kept = (0..flat.leaves.len()).filter(|i| !is_popped[*i]).map(|i| flat.leaves[i].clone()).collect();
        *self = Flat { leaves: kept, def: flat.def.without_lists_of_kind(K::NAME)? }.build()?;
        Ok(state)
    }

    /// Replaces this module's arrays by those of `state`; the others stay.
    ///
    /// Fails as [`with_state`](Module::with_state) does, and then changes nothing.
    fn update(&mut self, state: &State) -> Result<()> {
        *self = self.with_state(state)?;
        Ok(())
    }
}

fn set_training<M: Module>(module: &mut M, training: bool) {
    let mut flat = Flat::of(module);
    let mode = |(path, value): (String, Scalar)| match value {
        Scalar::Bool(_) if is_mode(&path) => Scalar::Bool(training),
        other => other,
    };
    let changed = flat.def.with_numbers(flat.def.numbers().into_iter().map(mode)).and_then(|def| {
        flat.def = def;
        flat.build()
    });
    if let Ok(changed) = changed {
        *module = changed;
    }
}

/// Calls `f` with the module, and returns its result with the [`Intermediate`](crate::Intermediate)s that `f` stored,
/// which are removed from the module (`nnx.capture`). Earlier ones are dropped.
///
/// Fails if `f` does.
pub fn capture<M: Module, R: IntoOutput>(module: &mut M, f: impl FnOnce(&mut M) -> R) -> Result<(R::Output, State)> {
    module.pop::<crate::Intermediate>()?;
    let out = f(module).into_output()?;
    Ok((out, module.pop::<crate::Intermediate>()?))
}

/// Returns true if the plain number at this key path is a module's training flag.
pub fn is_mode(path: &str) -> bool {
    path.rsplit('.').next() == Some("training")
}

/// Returns the arrays of a tree that are chosen by position.
pub(crate) fn pick(flat: &Flat, chosen: impl Fn(usize) -> bool) -> State {
    let leaves = flat.def.leaf_infos().into_iter().zip(&flat.leaves).enumerate().filter(|(i, _)| chosen(*i));
    State::of(leaves.map(|(_, (leaf, array))| (key(&leaf.path).to_owned(), leaf.axis_names, array.clone())))
}

/// Returns the tree with its arrays replaced by those of `state`.
pub(crate) fn put(flat: &Flat, state: &State) -> Result<Flat> {
    let mut new = flat.clone();
    let mut found = 0;
    for (leaf, key) in new.leaves.iter_mut().zip(keys(&flat.def)) {
        if let Some(array) = state.get(&key) {
            *leaf = array.clone();
            found += 1;
        }
    }
    if found == state.len() {
        return Ok(new);
    }
    let keys = keys(&flat.def);
    let unknown = state.keys().find(|key| !keys.iter().any(|known| known == key)).unwrap_or_default();
    Err(Error::new(ErrorKind::Type, format!("the module has no array {unknown:?}"))
        .help("the state must be that of a module of the same structure; `capture` takes out what `sow` put aside"))
}

/// Returns the key path of each leaf, without the dot in front.
pub(crate) fn keys(def: &TreeDef) -> Vec<String> {
    def.paths().iter().map(|path| key(path).to_owned()).collect()
}

/// Builds the module of this structure from these arrays.
///
/// Fails when an array of the structure is missing in `state`, or `state` has one that is not in the structure. The
/// message names the first of them.
pub fn merge<M: Module>(structure: &TreeDef, state: impl Borrow<State>) -> Result<M> {
    let state = state.borrow();
    let keys = keys(structure);
    let fail = |what: String| {
        Error::new(ErrorKind::Type, what).help("the state must be that of a module of the same structure")
    };
    if let Some(unknown) = state.keys().find(|key| !keys.iter().any(|known| known == key)) {
        return Err(fail(format!("merge: the structure has no array {unknown:?}")));
    }
    let leaves = keys
        .iter()
        .map(|key| state.get(key).cloned().ok_or_else(|| fail(format!("merge: the state has no array {key:?}"))))
        .collect::<Result<Vec<_>>>()?;
    tree::unflatten(structure, &leaves)
}
