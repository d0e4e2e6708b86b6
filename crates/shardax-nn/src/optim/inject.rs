//! Hyperparameters that can be read and set during training, without recompilation.

use std::collections::BTreeMap;
use std::sync::Arc;

use shardax::prelude::*;

use super::{GradientTransformation, Schedule, count, safe_increment, scalar_dtype, tree_utils};
use crate::State;
use crate::check::value_error;
use crate::shared::Shared;

/// A function that creates an optimizer from its hyperparameters.
type Factory<T> = Shared<dyn Fn(&State) -> T + Send + Sync>;

/// The gradient transformation that [`inject_hyperparams`] returns.
#[derive(Debug)]
pub struct InjectHyperparams<T> {
    inner_factory: Factory<T>,
    hyperparams: BTreeMap<String, Schedule>,
}

impl<T> Clone for InjectHyperparams<T> {
    fn clone(&self) -> Self {
        InjectHyperparams { inner_factory: self.inner_factory.clone(), hyperparams: self.hyperparams.clone() }
    }
}

/// The state of [`InjectHyperparams`].
#[derive(Tree, Clone, Debug)]
pub struct InjectHyperparamsState<S> {
    /// The steps taken, int32.
    pub count: Array,
    /// The hyperparameters of the last step. Hyperparameters that are not schedules can be set for the next step.
    pub hyperparams: State,
    /// The state of the optimizer.
    pub inner_state: S,
}

/// Creates an optimizer with `inner_factory` from hyperparameters that are arrays in the state. You can read them, and you
/// can set each that was given as a number. The step is not recompiled. Every argument of type [`Schedule`], such as a
/// learning rate or a weight decay, accepts such an array.
///
/// Their dtype is the promoted dtype of the parameters. Create the optimizer once, because programs are compiled again for
/// every `inject_hyperparams`.
///
/// ```
/// use shardax_nn::prelude::*;
/// type Tx = InjectHyperparams<Sgd>;
/// let optimizer = inject_hyperparams([("learning_rate", 0.5)], |h| sgd(&h["learning_rate"]));
/// let mut state = TrainState::create(array([1.0f32]), optimizer)?;
/// let step = jit(|state: TrainState<Array, Tx>, grad: Array| state.apply_gradients(grad));
/// state = step.call((state, array([1.0f32])))?;
/// assert_eq!(state.params.to_vec::<f32>()?, [0.5]);
///
/// state.opt_state.hyperparams.insert("learning_rate", array(0.25f32));
/// state = step.call((state, array([1.0f32])))?;
/// assert_eq!(state.params.to_vec::<f32>()?, [0.25]);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn inject_hyperparams<T, S: Into<Schedule>, const N: usize>(
    hyperparams: [(&str, S); N],
    inner_factory: impl Fn(&State) -> T + Send + Sync + 'static,
) -> InjectHyperparams<T> {
    let hyperparams = hyperparams.map(|(name, value)| (name.to_owned(), value.into())).into_iter().collect();
    InjectHyperparams { inner_factory: Shared(Arc::new(inner_factory)), hyperparams }
}

impl<T: 'static> Tree for InjectHyperparams<T> {
    fn flatten(&self, out: &mut tree::Flat) {
        (Static(self.inner_factory.clone()), self.hyperparams.clone()).flatten(out);
    }

    fn unflatten(from: &mut tree::Unflatten<'_>) -> Result<Self> {
        let (factory, hyperparams) = <(Static<Factory<T>>, BTreeMap<String, Schedule>)>::unflatten(from)?;
        Ok(InjectHyperparams { inner_factory: factory.0, hyperparams })
    }
}

impl<P: Tree, T: GradientTransformation<P> + 'static> GradientTransformation<P> for InjectHyperparams<T> {
    type State = InjectHyperparamsState<T::State>;

    #[track_caller]
    fn init(&self, params: &P) -> Result<Self::State> {
        for (name, value) in &self.hyperparams {
            value.check(name)?;
        }
        let dtype = tree_utils::dtype(params);
        let first = |value: &Schedule| value.at_in(&count(), scalar_dtype(params)).astype(dtype);
        let hyperparams: State = self.hyperparams.iter().map(|(name, value)| (name.clone(), first(value))).collect();
        let inner_state = (self.inner_factory.0)(&hyperparams).init(params)?;
        Ok(InjectHyperparamsState { count: count(), hyperparams, inner_state })
    }

    fn update(&self, grads: P, state: Self::State, params: &P) -> Result<(P, Self::State)> {
        let dtype = tree_utils::dtype(params);
        let mut hyperparams = state.hyperparams;
        for (name, value) in &self.hyperparams {
            if !hyperparams.contains_key(name) {
                return value_error(format!("inject_hyperparams: the state has no {name:?}"));
            }
            if !value.is_constant() {
                hyperparams.insert(name.clone(), value.at_in(&state.count, scalar_dtype(params)).astype(dtype));
            }
        }
        let (updates, inner_state) = (self.inner_factory.0)(&hyperparams).update(grads, state.inner_state, params)?;
        Ok((updates, InjectHyperparamsState { count: safe_increment(state.count), hyperparams, inner_state }))
    }
}
