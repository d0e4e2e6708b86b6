//! Transformations that measure the updates that pass through them.

use std::fmt;
use std::sync::Arc;

use shardax::prelude::*;
use shardax::tree::{Flat, Unflatten};

use super::GradientTransformation;
use crate::State;
use crate::shared::Shared;

/// A function of the updates.
type Measure<P> = Shared<dyn Fn(&P) -> Array + Send + Sync>;

/// The gradient transformation that [`monitor`] returns.
pub struct Monitor<P> {
    measures: Vec<(String, Measure<P>)>,
}

/// Measures the updates that pass through it, and does not change them. The state contains the last value of each measure
/// under its name. Put it in a chain after the transformation whose updates you want to measure.
///
/// Create it once, because programs are compiled again for every monitor.
///
/// ```
/// use shardax_nn::optim::monitor;
/// use shardax_nn::prelude::*;
/// let monitor = monitor().measure("norm", |u: &Array| global_norm(u)).measure("largest", |u: &Array| u.abs().max(..));
/// let state = TrainState::create(zeros([2]), (monitor, sgd(0.1)))?;
/// let state = state.apply_gradients(array([3.0f32, 4.0]))?;
/// assert_eq!(state.opt_state.0["norm"].item::<f32>()?, 5.0);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn monitor<P>() -> Monitor<P> {
    Monitor { measures: Vec::new() }
}

/// Measures one function of the updates; see [`monitor`].
pub fn snapshot<P>(name: &str, measure: impl Fn(&P) -> Array + Send + Sync + 'static) -> Monitor<P> {
    monitor().measure(name, measure)
}

impl<P> Monitor<P> {
    /// Adds a measure of this name.
    pub fn measure(mut self, name: &str, measure: impl Fn(&P) -> Array + Send + Sync + 'static) -> Self {
        self.measures.push((name.to_owned(), Shared(Arc::new(measure))));
        self
    }

    fn of(&self, updates: &P) -> State {
        self.measures.iter().map(|(name, measure)| (name.clone(), (measure.0)(updates))).collect()
    }
}

impl<P> Clone for Monitor<P> {
    fn clone(&self) -> Self {
        Monitor { measures: self.measures.clone() }
    }
}

impl<P> fmt::Debug for Monitor<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.measures.iter().map(|(name, _)| name)).finish()
    }
}

impl<P: 'static> Tree for Monitor<P> {
    fn flatten(&self, out: &mut Flat) {
        Static(self.measures.clone()).flatten(out);
    }

    fn unflatten(from: &mut Unflatten<'_>) -> Result<Self> {
        Ok(Monitor { measures: Static::unflatten(from)?.0 })
    }
}

impl<P: Tree + 'static> GradientTransformation<P> for Monitor<P> {
    type State = State;

    /// Measures the parameters, in place of updates.
    #[track_caller]
    fn init(&self, params: &P) -> Result<State> {
        Ok(self.of(params))
    }

    fn update(&self, grads: P, _state: State, _params: &P) -> Result<(P, State)> {
        let state = self.of(&grads);
        Ok((grads, state))
    }
}
