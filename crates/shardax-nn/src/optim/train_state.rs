//! Parameters together with their optimizer.

use shardax::prelude::*;

use super::{GradientTransformation, apply_updates, count, safe_increment};

/// The state of a training: step, parameters, optimizer and its state. A tree, whose functions return a new one.
///
/// ```
/// use shardax_nn::prelude::*;
/// let state = TrainState::create(array([1.0f32, 2.0]), sgd(0.1))?;
/// let state = state.apply_gradients(array([1.0f32, 1.0]))?;
/// assert_eq!(state.params.to_vec::<f32>()?, [0.9, 1.9]);
/// assert_eq!(state.step.item::<i32>()?, 1);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Tree, Clone, Debug)]
pub struct TrainState<P: Tree, T: GradientTransformation<P>> {
    /// The updates made, int32.
    pub step: Array,
    /// The parameters.
    pub params: P,
    /// The optimizer. Its numbers are part of the structure.
    pub tx: T,
    /// The optimizer's state.
    pub opt_state: T::State,
}

impl<P: Tree, T: GradientTransformation<P>> TrainState<P, T> {
    /// The state before the first step. Fails when a number of the optimizer is out of its range.
    #[track_caller]
    pub fn create(params: P, tx: T) -> Result<Self> {
        let opt_state = tx.init(&params)?;
        Ok(TrainState { step: count(), params, tx, opt_state })
    }

    /// The state after one step of the optimizer.
    pub fn apply_gradients(self, grads: P) -> Result<Self> {
        let TrainState { step, params, tx, opt_state } = self;
        let (updates, opt_state) = tx.update(grads, opt_state, &params)?;
        Ok(TrainState { step: safe_increment(step), params: apply_updates(params, updates)?, tx, opt_state })
    }
}

/// A model together with its optimizer, updated in place: the form of Flax NNX. A tree, like [`TrainState`].
///
/// ```
/// use shardax_nn::prelude::*;
/// let model = Linear::new(2, 1, &mut Rngs::new(0));
/// let mut optimizer = Optimizer::new(model, adam(1e-3))?;
/// let loss = |model: Linear| model.forward(ones([1, 2])).square().mean(..);
/// let before = loss(optimizer.model.clone()).item::<f32>()?;
/// let grads = grad(loss).call(optimizer.model.clone())?;
/// optimizer.update(grads)?;
/// assert!(loss(optimizer.model).item::<f32>()? < before);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Tree, Clone, Debug)]
pub struct Optimizer<M: Tree, T: GradientTransformation<M>> {
    /// The updates made, int32.
    pub step: Array,
    /// The model, with its parameters and its state.
    pub model: M,
    /// The optimizer. Its numbers are part of the structure.
    pub tx: T,
    /// The optimizer's state.
    pub opt_state: T::State,
}

impl<M: Tree, T: GradientTransformation<M>> Optimizer<M, T> {
    /// The optimizer of `model`, before the first step. Fails when a number of it is out of its range.
    #[track_caller]
    pub fn new(model: M, tx: T) -> Result<Self> {
        let opt_state = tx.init(&model)?;
        Ok(Optimizer { step: count(), model, tx, opt_state })
    }

    /// Updates the model, and the state, in place. On failure both stay as they were.
    pub fn update(&mut self, grads: M) -> Result<()> {
        let (updates, opt_state) = self.tx.update(grads, self.opt_state.clone(), &self.model)?;
        self.model = apply_updates(self.model.clone(), updates)?;
        self.opt_state = opt_state;
        self.step = safe_increment(&self.step);
        Ok(())
    }
}
