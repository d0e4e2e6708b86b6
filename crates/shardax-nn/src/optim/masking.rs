//! Transformations of some of the parameters: masks, and groups with an optimizer each.
//!
//! What is inside of them sees the parameters that it is for as a [`State`], arrays by their key paths, so that its own
//! state holds nothing for the others.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use shardax::prelude::*;
use shardax::tree::Flat;

use super::{GradientTransformation, SetToZero, set_to_zero};
use crate::State;
use crate::check::value_error;
use crate::module::keys;

/// A function of a parameter's key path, such as `conv1.kernel`, and the parameter; compared by identity.
struct Of<R>(Arc<dyn Fn(&str, &Array) -> R + Send + Sync>);

impl<R> Clone for Of<R> {
    fn clone(&self) -> Self {
        Of(self.0.clone())
    }
}

impl<R> PartialEq for Of<R> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl<R> Eq for Of<R> {}

impl<R> Hash for Of<R> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).hash(state);
    }
}

impl<R> fmt::Debug for Of<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a function of a parameter")
    }
}

/// The key path of each parameter.
fn paths<P: Tree>(params: &P) -> Vec<String> {
    keys(&tree::structure(params))
}

/// The arrays of `tree` whose key is chosen.
fn pick<P: Tree>(tree: &P, keys: &[String], chosen: &[bool]) -> State {
    let leaves = keys.iter().cloned().zip(tree::leaves(tree));
    leaves.zip(chosen).filter(|(_, chosen)| **chosen).map(|(leaf, _)| leaf).collect()
}

/// `tree` with the arrays of `new` in their places.
fn put<P: Tree>(tree: &P, keys: &[String], new: &State) -> Result<P> {
    let mut flat = Flat::of(tree);
    for (leaf, key) in flat.leaves.iter_mut().zip(keys) {
        if let Some(new) = new.get(key) {
            *leaf = new.clone();
        }
    }
    flat.build()
}

/// See [`masked`].
#[derive(Tree, Clone, Debug)]
pub struct Masked<T> {
    /// What transforms the updates of the chosen parameters.
    pub inner: T,
    #[tree(static)]
    mask: Of<bool>,
}

/// `inner` for the parameters that `mask` chooses, by key path and array; the updates of the others pass unchanged.
///
/// Programs are compiled anew for every mask: make it once.
///
/// ```
/// use shardax_nn::optim::masked;
/// use shardax_nn::prelude::*;
/// let model = Linear::new(2, 3, &mut Rngs::new(0));
/// // Weight decay for matrices only.
/// let optimizer = (masked(add_decayed_weights(0.1), |_, p| p.ndim() > 1), sgd(1.0));
/// let state = TrainState::create(model.clone(), optimizer)?;
/// let state = state.apply_gradients(tree::map(|p| zeros_like(&p), model.clone())?)?;
/// assert!(allclose(&state.params.kernel, &model.kernel * 0.9, 1e-6, 1e-6)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn masked<T>(inner: T, mask: impl Fn(&str, &Array) -> bool + Send + Sync + 'static) -> Masked<T> {
    Masked { inner, mask: Of(Arc::new(mask)) }
}

impl<P: Tree, T: GradientTransformation<State>> GradientTransformation<P> for Masked<T> {
    type State = T::State;

    #[track_caller]
    fn init(&self, params: &P) -> Result<Self::State> {
        let (keys, chosen) = self.chosen(params);
        self.inner.init(&pick(params, &keys, &chosen))
    }

    fn update(&self, grads: P, state: Self::State, params: &P) -> Result<(P, Self::State)> {
        let (keys, chosen) = self.chosen(params);
        let (new, state) = self.inner.update(pick(&grads, &keys, &chosen), state, &pick(params, &keys, &chosen))?;
        Ok((put(&grads, &keys, &new)?, state))
    }
}

impl<T> Masked<T> {
    fn chosen<P: Tree>(&self, params: &P) -> (Vec<String>, Vec<bool>) {
        let keys = paths(params);
        let chosen = keys.iter().zip(tree::leaves(params)).map(|(key, p)| self.mask.0(key, &p)).collect();
        (keys, chosen)
    }
}

/// Keeps the parameters that `mask` chooses as they are: their updates become zero. Comes last in a chain.
pub fn freeze(mask: impl Fn(&str, &Array) -> bool + Send + Sync + 'static) -> Masked<SetToZero> {
    masked(set_to_zero(), mask)
}

/// See [`partition`].
#[derive(Tree, Clone, Debug)]
pub struct Partition<T> {
    /// A transformation for each label.
    pub transforms: T,
    #[tree(static)]
    labels: Vec<&'static str>,
    #[tree(static)]
    param_labels: Of<String>,
}

/// Transformations and their labels, as [`partition`] takes them: a tuple of pairs.
pub trait Labelled {
    /// The tuple of the transformations.
    type Transforms;

    /// The labels, and the transformations.
    fn unzip(self) -> (Vec<&'static str>, Self::Transforms);
}

/// A tuple of transformations, each for one group of parameters.
pub trait Groups: Tree {
    /// The states, one a group.
    type States: Tree;

    /// The states before the first step.
    fn init(&self, groups: &[State]) -> Result<Self::States>;

    /// The updates of each group, and the next states.
    fn update(&self, grads: Vec<State>, states: Self::States, params: &[State]) -> Result<(Vec<State>, Self::States)>;
}

macro_rules! groups {
    ($(($($t:ident $s:ident $i:tt),+))*) => {$(
        impl<$($t),+> Labelled for ($((&'static str, $t),)+) {
            type Transforms = ($($t,)+);

            fn unzip(self) -> (Vec<&'static str>, Self::Transforms) {
                (vec![$(self.$i.0),+], ($(self.$i.1,)+))
            }
        }

        impl<$($t: GradientTransformation<State>),+> Groups for ($($t,)+) {
            type States = ($($t::State,)+);

            #[track_caller]
            fn init(&self, groups: &[State]) -> Result<Self::States> {
                Ok(($(self.$i.init(&groups[$i])?,)+))
            }

            fn update(
                &self,
                mut grads: Vec<State>,
                states: Self::States,
                params: &[State],
            ) -> Result<(Vec<State>, Self::States)> {
                $(
                    let (updates, $s) = self.$i.update(std::mem::take(&mut grads[$i]), states.$i, &params[$i])?;
                    grads[$i] = updates;
                )+
                Ok((grads, ($($s,)+)))
            }
        }
    )*};
}

groups! {
    (A a 0)
    (A a 0, B b 1)
    (A a 0, B b 1, C c 2)
    (A a 0, B b 1, C c 2, D d 3)
    (A a 0, B b 1, C c 2, D d 3, E e 4)
    (A a 0, B b 1, C c 2, D d 3, E e 4, F f 5)
}

/// A transformation for each group of parameters: `param_labels` gives the label of each, by key path and array.
///
/// `init` and `update` fail where a parameter has a label without a transformation. Programs are compiled anew for every
/// `partition`: make it once.
///
/// ```
/// use shardax_nn::optim::{partition, set_to_zero};
/// use shardax_nn::prelude::*;
/// let model = Linear::new(2, 3, &mut Rngs::new(0));
/// let groups = (("train", adam(1e-3)), ("frozen", set_to_zero()));
/// let optimizer = partition(groups, |path, _| if path == "bias" { "train" } else { "frozen" });
/// let state = TrainState::create(model.clone(), optimizer)?;
/// let state = state.apply_gradients(tree::map(|p| ones_like(&p), model.clone())?)?;
/// assert_eq!(state.params.kernel.to_vec::<f32>()?, model.kernel.to_vec::<f32>()?);
/// let bias = state.params.bias.expect("a bias");
/// assert!(allclose(bias, array([-1e-3f32; 3]), 1e-3, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn partition<L: Labelled, S: Into<String>>(
    transforms: L,
    param_labels: impl Fn(&str, &Array) -> S + Send + Sync + 'static,
) -> Partition<L::Transforms> {
    let (labels, transforms) = transforms.unzip();
    let param_labels = Of(Arc::new(move |path: &str, p: &Array| param_labels(path, p).into()) as Arc<_>);
    Partition { transforms, labels, param_labels }
}

/// [`partition`], by Optax's older name.
pub fn multi_transform<L: Labelled, S: Into<String>>(
    transforms: L,
    param_labels: impl Fn(&str, &Array) -> S + Send + Sync + 'static,
) -> Partition<L::Transforms> {
    partition(transforms, param_labels)
}

/// `optimizer` for the parameters that `freeze_mask` does not choose; the others stay as they are.
pub fn selective_transform<T>(
    optimizer: T,
    freeze_mask: impl Fn(&str, &Array) -> bool + Send + Sync + 'static,
) -> Partition<(T, SetToZero)> {
    let label = move |path: &str, p: &Array| if freeze_mask(path, p) { "freeze" } else { "train" };
    partition((("train", optimizer), ("freeze", set_to_zero())), label)
}

impl<T> Partition<T> {
    /// The key paths, and for each label which of them have it.
    #[track_caller]
    fn groups<P: Tree>(&self, params: &P) -> Result<(Vec<String>, Vec<Vec<bool>>)> {
        let keys = paths(params);
        let mut groups = vec![vec![false; keys.len()]; self.labels.len()];
        for (i, (key, p)) in keys.iter().zip(tree::leaves(params)).enumerate() {
            let label = self.param_labels.0(key, &p);
            match self.labels.iter().position(|known| *known == label) {
                Some(group) => groups[group][i] = true,
                None => {
                    let known = &self.labels;
                    return value_error(format!(
                        "partition: the parameter {key} has the label {label:?}, which is none of {known:?}"
                    ));
                }
            }
        }
        Ok((keys, groups))
    }
}

impl<P: Tree, T: Groups> GradientTransformation<P> for Partition<T> {
    type State = T::States;

    #[track_caller]
    fn init(&self, params: &P) -> Result<Self::State> {
        let (keys, groups) = self.groups(params)?;
        let groups: Vec<State> = groups.iter().map(|chosen| pick(params, &keys, chosen)).collect();
        self.transforms.init(&groups)
    }

    fn update(&self, grads: P, state: Self::State, params: &P) -> Result<(P, Self::State)> {
        let (keys, groups) = self.groups(params)?;
        let split = |tree: &P| -> Vec<State> { groups.iter().map(|chosen| pick(tree, &keys, chosen)).collect() };
        let (updates, state) = self.transforms.update(split(&grads), state, &split(params))?;
        let all: State = updates.into_iter().flatten().collect();
        Ok((put(&grads, &keys, &all)?, state))
    }
}
