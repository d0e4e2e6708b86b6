//! Transformations of some of the parameters: masks, and groups, each with its own optimizer.
//!
//! An inner transformation gets its parameters as a [`State`], arrays by their key paths. Its state contains nothing for the
//! other parameters.

use std::sync::Arc;

use shardax::prelude::*;
use shardax::tree::Flat;

use super::{GradientTransformation, SetToZero, set_to_zero};
use crate::check::value_error;
use crate::filter::Of;
use crate::module::{keys, pick, put};
use crate::shared::Shared;
use crate::{Filter, State};

/// The gradient transformation that [`masked`] returns.
#[derive(Tree, Clone, Debug)]
pub struct Masked<T> {
    /// The transformation of the selected parameters' updates.
    pub inner: T,
    #[tree(static)]
    mask: Filter,
}

/// Applies `inner` to the parameters that `mask` selects. The updates of the other parameters do not change.
///
/// ```
/// use shardax_nn::optim::masked;
/// use shardax_nn::prelude::*;
/// let model = Linear::new(2, 3, &mut Rngs::new(0));
/// // Weight decay for matrices only.
/// let optimizer = (masked(add_decayed_weights(0.1), Filter::predicate(|_, p| p.ndim() > 1)), sgd(1.0));
/// let state = TrainState::create(model.clone(), optimizer)?;
/// let state = state.apply_gradients(tree::map(|p| zeros_like(&p), model.clone())?)?;
/// assert!(allclose(&state.params.kernel, &model.kernel * 0.9, 1e-6, 1e-6)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn masked<T>(inner: T, mask: impl Into<Filter>) -> Masked<T> {
    Masked { inner, mask: mask.into() }
}

impl<P: Tree, T: GradientTransformation<State>> GradientTransformation<P> for Masked<T> {
    type State = T::State;

    #[track_caller]
    fn init(&self, params: &P) -> Result<Self::State> {
        let flat = Flat::of(params);
        let chosen = self.mask.choose(&flat);
        self.inner.init(&pick(&flat, |i| chosen[i]))
    }

    fn update(&self, grads: P, state: Self::State, params: &P) -> Result<(P, Self::State)> {
        let (flat, grads) = (Flat::of(params), Flat::of(&grads));
        let chosen = self.mask.choose(&flat);
        let (new, state) = self.inner.update(pick(&grads, |i| chosen[i]), state, &pick(&flat, |i| chosen[i]))?;
        Ok((put(&grads, &new)?.build()?, state))
    }
}

/// Freezes the parameters that `mask` selects: their updates become zero. You must put it last in a chain, because later
/// transformations, such as weight decay, would change the updates again.
///
/// If only few parameters are trained, [`Optimizer::wrt`](super::Optimizer::wrt) is cheaper, because it computes no gradients for
/// the others.
///
/// ```
/// use shardax_nn::optim::freeze;
/// use shardax_nn::prelude::*;
/// let model = Linear::new(1, 1, &mut Rngs::new(0));
/// let state = TrainState::create(model.clone(), (sgd(0.5), freeze("**.kernel")))?;
/// let state = state.apply_gradients(tree::map(|p| ones_like(&p), model.clone())?)?;
/// assert_eq!(state.params.kernel.item::<f32>()?, model.kernel.item::<f32>()?);
/// assert_eq!(state.params.bias.expect("a bias").item::<f32>()?, -0.5);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn freeze(mask: impl Into<Filter>) -> Masked<SetToZero> {
    masked(set_to_zero(), mask)
}

/// The gradient transformation that [`partition`] returns.
#[derive(Tree, Clone, Debug)]
pub struct Partition<T> {
    /// A transformation for each label.
    pub transforms: T,
    #[tree(static)]
    labels: Vec<&'static str>,
    #[tree(static)]
    param_labels: Of<String>,
}

/// Transformations and their labels, which you can pass to [`partition`]: a tuple of pairs.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a tuple of labelled transformations",
    label = "not a tuple of pairs",
    note = "each entry is a label with a transformation: `((\"body\", adam(1e-3)), (\"head\", sgd(0.1)))`; a tuple, because each transformation has a type of its own"
)]
pub trait Labelled {
    /// The tuple of the transformations.
    type Transforms;

    /// Splits the pairs into the labels and the transformations.
    fn unzip(self) -> (Vec<&'static str>, Self::Transforms);
}

/// A tuple of transformations, each for one group of parameters. The names of the methods differ from the names in
/// [`GradientTransformation`], because a chain of transformations is a tuple, too, and both traits may be imported.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a tuple of gradient transformations",
    label = "not a tuple of transformations",
    note = "a tuple with a transformation for each group of parameters: `(adam(1e-3), sgd(0.1))`"
)]
pub trait Groups: Tree {
    /// The states, one for each group.
    type States: Tree;

    /// Returns the states before the first step.
    fn init_groups(&self, groups: &[State]) -> Result<Self::States>;

    /// Returns the updates of each group, and the next states.
    fn update_groups(
        &self,
        grads: Vec<State>,
        states: Self::States,
        params: &[State],
    ) -> Result<(Vec<State>, Self::States)>;
}

macro_rules! groups {
    ($(($($t:ident $i:tt),+))*) => {$(
        impl<$($t),+> Labelled for ($((&'static str, $t),)+) {
            type Transforms = ($($t,)+);

            fn unzip(self) -> (Vec<&'static str>, Self::Transforms) {
                (vec![$(self.$i.0),+], ($(self.$i.1,)+))
            }
        }

        impl<$($t: GradientTransformation<State>),+> Groups for ($($t,)+) {
            type States = ($($t::State,)+);

            #[track_caller]
            fn init_groups(&self, groups: &[State]) -> Result<Self::States> {
                Ok(($(self.$i.init(&groups[$i])?,)+))
            }

            // The states are named after the types of their transformations.
            #[allow(non_snake_case)]
            fn update_groups(
                &self,
                mut grads: Vec<State>,
                states: Self::States,
                params: &[State],
            ) -> Result<(Vec<State>, Self::States)> {
                $(
                    let (updates, $t) = self.$i.update(std::mem::take(&mut grads[$i]), states.$i, &params[$i])?;
                    grads[$i] = updates;
                )+
                Ok((grads, ($($t,)+)))
            }
        }
    )*};
}

shardax::__each_tuple!(groups);

/// Applies a transformation to each group of parameters. `param_labels` returns the label of a parameter from its key path
/// and its array.
///
/// `init` and `update` fail if a parameter has a label without a transformation. Create it once, because programs are
/// compiled again for every `partition`.
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
    let param_labels = Shared(Arc::new(move |path: &str, p: &Array| param_labels(path, p).into()) as Arc<_>);
    Partition { transforms, labels, param_labels }
}

/// Applies a transformation to each group of parameters: Optax's older name of [`partition`].
pub fn multi_transform<L: Labelled, S: Into<String>>(
    transforms: L,
    param_labels: impl Fn(&str, &Array) -> S + Send + Sync + 'static,
) -> Partition<L::Transforms> {
    partition(transforms, param_labels)
}

/// Applies `optimizer` to the parameters that `freeze_mask` does not select. The parameters that it selects stay frozen.
pub fn selective_transform<T>(optimizer: T, freeze_mask: impl Into<Filter>) -> (Masked<T>, Masked<SetToZero>) {
    let frozen = freeze_mask.into();
    (masked(optimizer, !frozen.clone()), freeze(frozen))
}

impl<T> Partition<T> {
    /// Returns the group of each parameter: the position of its label.
    #[track_caller]
    fn groups(&self, params: &Flat) -> Result<Vec<usize>> {
        let mut groups = Vec::with_capacity(params.leaves.len());
        for (key, p) in keys(&params.def).iter().zip(&params.leaves) {
            let label = self.param_labels.0(key, p);
            match self.labels.iter().position(|known| *known == label) {
                Some(group) => groups.push(group),
                None => {
                    let labels = &self.labels;
                    return value_error(format!(
                        "partition: the parameter {key} has the label {label:?}, which is none of {labels:?}"
                    ));
                }
            }
        }
        Ok(groups)
    }

    /// Returns the parameters of each group, or other arrays of the same structure.
    fn states(&self, groups: &[usize], flat: &Flat) -> Vec<State> {
        (0..self.labels.len()).map(|group| pick(flat, |i| groups[i] == group)).collect()
    }
}

impl<P: Tree, T: Groups> GradientTransformation<P> for Partition<T> {
    type State = T::States;

    #[track_caller]
    fn init(&self, params: &P) -> Result<Self::State> {
        let flat = Flat::of(params);
        let groups = self.groups(&flat)?;
        self.transforms.init_groups(&self.states(&groups, &flat))
    }

    fn update(&self, grads: P, state: Self::State, params: &P) -> Result<(P, Self::State)> {
        let (flat, grads) = (Flat::of(params), Flat::of(&grads));
        let groups = self.groups(&flat)?;
        let (grads_of, params_of) = (self.states(&groups, &grads), self.states(&groups, &flat));
        let (updates, state) = self.transforms.update_groups(grads_of, state, &params_of)?;
        let updates: State = updates.into_iter().flatten().collect();
        Ok((put(&grads, &updates)?.build()?, state))
    }
}
