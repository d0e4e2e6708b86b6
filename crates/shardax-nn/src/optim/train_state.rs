//! Parameters together with their optimizer.

use std::any::{TypeId, type_name};
use std::fmt;
use std::hash::{Hash, Hasher};

use shardax::prelude::*;
use shardax::tree::{Flat, LeafInfo};
use shardax::{Error, ErrorKind};

use crate::filter::key;
use crate::module::put;
use crate::variable::{Kind, kind};
use crate::{Filter, Module, State};

use super::{GradientTransformation, apply_updates, count, safe_increment};

/// The state of training: step, parameters, optimizer, and optimizer state. It is a tree, and its methods return a new one.
///
/// Use it if all arrays of your model are parameters. For a model with other variables, such as dropout keys or running
/// statistics, use [`Optimizer`]. Because the state is a tree, you can pass it to [`jit`](shardax::jit()), donate it, and save it in
/// a checkpoint. It holds the optimizer's state too, so Adam needs memory for about three copies of the parameters.
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
#[must_use = "a state is immutable: its methods return the next one"]
pub struct TrainState<P: Tree, T: GradientTransformation<P>> {
    /// The number of updates so far, int32.
    pub step: Array,
    /// The parameters.
    pub params: P,
    /// The optimizer. Its numbers are part of the structure.
    pub tx: T,
    /// The optimizer's state.
    pub opt_state: T::State,
}

impl<P: Tree, T: GradientTransformation<P>> TrainState<P, T> {
    /// Returns the state before the first step.
    ///
    /// # Errors
    /// Returns an error if a number of the optimizer is out of its range, or if some variables are not parameters,
    /// because an optimizer must not update them. Use [`Optimizer`] for such models.
    #[track_caller]
    pub fn create(params: P, tx: T) -> Result<Self> {
        let infos = tree::structure(&params).leaf_infos();
        if let Some((leaf, kind)) =
            infos.iter().find_map(|leaf| Some((leaf, leaf.kind.filter(|k| *k != kind::Param::NAME)?)))
        {
            let message =
                format!("TrainState: {} is a {kind}, not a parameter; the optimizer would move it", key(&leaf.path));
            return Err(Error::new(ErrorKind::Value, message)
                .help("use `Optimizer::new(model, tx)`, which only updates parameters")
                .at(std::panic::Location::caller()));
        }
        let opt_state = tx.init(&params)?;
        Ok(TrainState { step: count(), params, tx, opt_state })
    }

    /// Returns the state after one step of the optimizer.
    ///
    /// # Errors
    /// Returns an error if `grads` do not have the structure of the parameters, or if the optimizer fails.
    pub fn apply_gradients(self, grads: P) -> Result<Self> {
        let TrainState { step, params, tx, opt_state } = self;
        let (updates, opt_state) = tx.update(grads, opt_state, &params)?;
        Ok(TrainState { step: safe_increment(step), params: apply_updates(params, updates)?, tx, opt_state })
    }
}

/// A model together with its optimizer, updated in place, as in Flax NNX. It is a tree, like [`TrainState`].
///
/// Use it for models whose layers have variables other than parameters, such as dropout keys or running statistics. If the update
/// fails, for example because the gradients belong to other variables, the model and the optimizer's state do not change.
///
/// The optimizer updates the variables that a [`Filter`] selects, by default [`Param`](crate::Param)s, and has a state only
/// for them. Your program must update statistics, caches and other variables.
///
/// Only the model is part of the type. The optimizer and its state are stored as trees of any type, [`Flat`].
/// `optimizer.opt_state.build::<S>()` reads the state as an `S`, and `Flat::of(&state)` replaces it.
///
/// ```
/// use shardax_nn::prelude::*;
/// let model = Linear::new(2, 1, &mut Rngs::new(0));
/// let mut optimizer = Optimizer::new(model, adam(1e-3))?;
/// let loss = |model: Linear| model.forward(ones([1, 2])).square().mean(..);
/// let before = loss(optimizer.model.clone()).item::<f32>()?;
/// let grads = grad(loss).call(optimizer.model.clone())?;
/// optimizer.update(grads)?;
/// assert!(loss(optimizer.model.clone()).item::<f32>()? < before);
///
/// // Only the bias.
/// let mut optimizer = Optimizer::wrt(optimizer.model, adam(1e-3), "bias")?;
/// let model = optimizer.model.clone();
/// let of_bias = |bias: ModuleState| -> Result<Array> { Ok(loss(model.with_state(&bias)?)) };
/// optimizer.update(grad(of_bias).call(optimizer.params())?)?;
/// assert_eq!(optimizer.model.kernel.to_vec::<f32>()?, model.kernel.to_vec::<f32>()?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Tree, Clone, Debug)]
pub struct Optimizer<M: Tree> {
    /// The number of updates so far, int32.
    pub step: Array,
    /// The model, with all of its variables.
    pub model: M,
    /// The optimizer. Its numbers are part of the structure.
    pub tx: Flat,
    /// The optimizer's state, for the variables that it updates.
    pub opt_state: Flat,
    #[tree(static)]
    wrt: Filter,
    #[tree(static)]
    transformation: Transformation,
}

/// The type of an optimizer, as a value.
#[derive(Clone, Copy)]
struct Transformation {
    id: TypeId,
    name: &'static str,
    /// [`GradientTransformation::update`] of this type.
    update: fn(&Flat, &Flat, State, &State) -> Result<(State, Flat)>,
}

impl Transformation {
    fn of<T: GradientTransformation<State> + 'static>() -> Self {
        fn update<T: GradientTransformation<State>>(
            tx: &Flat,
            state: &Flat,
            grads: State,
            params: &State,
        ) -> Result<(State, Flat)> {
            let (updates, state) = tx.build::<T>()?.update(grads, state.build()?, params)?;
            Ok((updates, Flat::of(&state)))
        }
        Transformation { id: TypeId::of::<T>(), name: type_name::<T>(), update: update::<T> }
    }
}

impl PartialEq for Transformation {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for Transformation {}

impl Hash for Transformation {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}

/// The name of the type.
impl fmt::Debug for Transformation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Gradients that you can pass to [`Optimizer::update`]: of an entire model, or of some of its variables by their key paths.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not gradients of a model",
    label = "not gradients",
    note = "pass the gradients that `grad` or `value_and_grad` returned, of the model's type, or a `ModuleState` of some of its variables, by value: `optimizer.update(grads)?`"
)]
pub trait Gradients {
    /// Returns the gradients of the variables that `filter` selects.
    fn of(self, filter: &Filter) -> State;
}

impl<M: Module> Gradients for M {
    fn of(self, filter: &Filter) -> State {
        self.state_of(filter)
    }
}

impl Gradients for State {
    fn of(self, _: &Filter) -> State {
        self
    }
}

impl Gradients for &State {
    fn of(self, _: &Filter) -> State {
        self.clone()
    }
}

/// A loss, or a pair of a loss and auxiliary outputs, or a [`Result`] of one of them.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a loss",
    label = "neither a scalar nor a pair with one",
    note = "return a scalar `Array`, a pair `(loss, auxiliary)`, or a `Result` of one of them, from the loss function"
)]
pub trait Loss {
    /// The loss, or the pair.
    type Value;
    /// The auxiliary outputs.
    type Aux: Tree;

    /// Splits the value into the loss and the auxiliary outputs.
    fn into_loss(self) -> Result<(Array, Self::Aux)>;

    /// Combines both again.
    fn value(loss: Array, aux: Self::Aux) -> Self::Value;
}

impl Loss for Array {
    type Value = Array;
    type Aux = ();

    fn into_loss(self) -> Result<(Array, ())> {
        Ok((self, ()))
    }

    fn value(loss: Array, (): ()) -> Array {
        loss
    }
}

impl<A: Tree> Loss for (Array, A) {
    type Value = (Array, A);
    type Aux = A;

    fn into_loss(self) -> Result<(Array, A)> {
        Ok(self)
    }

    fn value(loss: Array, aux: A) -> (Array, A) {
        (loss, aux)
    }
}

impl<L: Loss> Loss for Result<L> {
    type Value = L::Value;
    type Aux = L::Aux;

    fn into_loss(self) -> Result<(Array, L::Aux)> {
        self?.into_loss()
    }

    fn value(loss: Array, aux: L::Aux) -> L::Value {
        L::value(loss, aux)
    }
}

impl<M: Module> Optimizer<M> {
    /// Creates the optimizer of the parameters of `model`.
    ///
    /// # Errors
    /// Returns an error if a number of the optimizer is out of its range.
    #[track_caller]
    pub fn new(model: M, tx: impl GradientTransformation<State> + 'static) -> Result<Self> {
        Optimizer::wrt(model, tx, Filter::of::<kind::Param>())
    }

    /// Creates the optimizer of the variables that a filter selects.
    ///
    /// # Errors
    /// Also returns an error if it selects none, for example because a path is misspelled: nothing would be trained.
    #[track_caller]
    pub fn wrt<T: GradientTransformation<State> + 'static>(model: M, tx: T, wrt: impl Into<Filter>) -> Result<Self> {
        let wrt = wrt.into();
        let params = model.state_of(&wrt);
        if params.is_empty() {
            // Four variables are enough to see how key paths are written.
            let infos = tree::structure(&model).leaf_infos();
            let variable =
                |leaf: &LeafInfo| format!("{} ({})", key(&leaf.path), leaf.kind.unwrap_or(kind::Param::NAME));
            let some: Vec<String> = infos.iter().take(4).map(variable).collect();
            let more = if infos.len() > 4 { ", …" } else { "" };
            let message = format!(
                "Optimizer: no variable of the model matches {wrt:?}; it has {}{more}",
                if some.is_empty() { "none".to_owned() } else { some.join(", ") }
            );
            return Err(Error::new(ErrorKind::Value, message)
                .help("select variables by kind, as `Filter::of::<Param>()`, or by a pattern of key paths, as `**.kernel`")
                .at(std::panic::Location::caller()));
        }
        let opt_state = Flat::of(&tx.init(&params)?);
        Ok(Optimizer {
            step: count(),
            model,
            tx: Flat::of(&tx),
            opt_state,
            wrt,
            transformation: Transformation::of::<T>(),
        })
    }

    /// Returns the variables that the optimizer updates.
    pub fn params(&self) -> State {
        self.model.state_of(&self.wrt)
    }

    /// Returns the loss and the gradients of the variables that the optimizer updates. Also stores the changes that the
    /// loss makes to the other variables of the model: running statistics, keys, caches, and variables that are
    /// [overwritten with their gradients](crate::OverwriteWithGradient).
    ///
    /// You can average the gradients over devices before [`update`](Optimizer::update).
    /// [`minimize`](Optimizer::minimize) calls both methods.
    ///
    /// ```
    /// use shardax_nn::prelude::*;
    /// let mut optimizer = Optimizer::new(BatchNorm::new(3, &mut Rngs::new(0)), sgd(0.1))?;
    /// let x = array([[1.0f32, 2.0, 3.0], [3.0, 2.0, 1.0]]);
    /// let (loss, grads) = optimizer.value_and_grad(|model| model.forward(&x).square().mean(..))?;
    /// assert_eq!((loss.shape(), grads.len()), (&[][..], 2));
    /// assert!(allclose(&*optimizer.model.mean, array([0.02f32, 0.02, 0.02]), 1e-5, 0.0)?);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`value_and_grad`](shardax::value_and_grad); the model does not change then.
    #[track_caller]
    pub fn value_and_grad<L: Loss>(&mut self, loss: impl Fn(&mut M) -> L) -> Result<(L::Value, State)> {
        let overwritten = Filter::of::<kind::OverwriteWithGradient>() & !self.wrt.clone();
        let differentiated = self.wrt.clone() | overwritten.clone();
        let variables = vec![self.params(), self.model.state_of(overwritten)];
        let ((value, (aux, rest)), mut grads) =
            value_and_grad(|variables: Vec<State>| -> Result<(Array, (L::Aux, State))> {
                let mut model = self.model.with_state(&variables[0])?.with_state(&variables[1])?;
                let (loss, aux) = loss(&mut model).into_loss()?;
                Ok((loss, (aux, model.state_of(!differentiated.clone()))))
            })
            .has_aux()
            .call(variables)?;
        self.model.update(&rest)?;
        // The last gradients are the new values of the overwritten variables.
        if let Some(new_values) = grads.pop() {
            self.model.update(&new_values)?;
        }
        let grads = grads.pop().unwrap_or_default();
        Ok((L::value(value, aux), grads))
    }

    /// Makes one training step: updates the variables with the gradients of `loss`, and stores the changes that the loss
    /// makes to the other variables of the model. Returns the loss.
    ///
    /// The loss returns a scalar, or a pair of a scalar and auxiliary outputs. If the step fails, the model may have new
    /// statistics but not the new parameters.
    ///
    /// ```
    /// use shardax_nn::prelude::*;
    /// let mut rngs = Rngs::new(0);
    /// let model = Sequential((Linear::new(2, 8, &mut rngs), Dropout::new(0.1, &mut rngs), Linear::new(8, 1, &mut rngs)));
    /// let mut optimizer = Optimizer::new(model, adam(1e-2))?;
    /// let (x, y) = (ones([4, 2]), zeros([4, 1]));
    /// let first = optimizer.minimize(|model| mse(model.forward(&x), &y))?;
    /// let (second, outputs) = optimizer.minimize(|model| {
    ///     let outputs = model.forward(&x);
    ///     (mse(&outputs, &y), outputs)
    /// })?;
    /// assert_eq!((first.shape(), second.shape(), outputs.shape()), (&[][..], &[][..], &[4, 1][..]));
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the loss fails or is not a real scalar, or if the optimizer fails.
    #[track_caller]
    pub fn minimize<L: Loss>(&mut self, loss: impl Fn(&mut M) -> L) -> Result<L::Value> {
        let (value, grads) = self.value_and_grad(loss)?;
        self.update(grads)?;
        Ok(value)
    }

    /// Updates the model and the state in place. If the update fails, both do not change.
    ///
    /// # Errors
    /// Returns an error if the gradients do not have the key paths of the variables that the optimizer updates, or if
    /// the optimizer fails.
    #[track_caller]
    pub fn update(&mut self, grads: impl Gradients) -> Result<()> {
        let (params, grads) = (self.params(), grads.of(&self.wrt));
        same_keys(&grads, &params)?;
        let (updates, opt_state) = (self.transformation.update)(&self.tx, &self.opt_state, grads, &params)?;
        self.model = put(&Flat::of(&self.model), &apply_updates(params, updates)?)?.build()?;
        self.opt_state = opt_state;
        self.step = safe_increment(&self.step);
        Ok(())
    }
}

/// The message for calls of PyTorch's `optimizer.zero_grad()` and `optimizer.step()`. No type implements it; the lifetime defers
/// the check of the bound to the call.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "an optimizer keeps no gradients, because gradients are values",
    label = "not a method of the optimizer",
    note = "`optimizer.minimize(|model| loss(model))?` differentiates and updates; `optimizer.update(grads)?` takes gradients of your own"
)]
pub trait KeepsGradients {}

#[doc(hidden)]
impl<M: Tree> Optimizer<M> {
    pub fn zero_grad(&mut self)
    where
        for<'a> &'a (): KeepsGradients,
    {
    }

    pub fn step(&mut self)
    where
        for<'a> &'a (): KeepsGradients,
    {
    }
}

#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "a chain of optimizers is a tuple",
    label = "there is no function `chain`",
    note = "write `(clip_by_global_norm(1.0), adam(1e-3))`, with up to sixteen transformations"
)]
pub trait ChainsByFunction {}

/// The message for calls of Optax's `chain` with two transformations. With other numbers of them, the compiler reports
/// the number.
#[doc(hidden)]
pub fn chain<First, Second>(first: First, second: Second) -> (First, Second)
where
    for<'a> &'a (): ChainsByFunction,
{
    (first, second)
}

/// Checks that there is a gradient for each variable, and no other.
#[track_caller]
fn same_keys(grads: &State, params: &State) -> Result<()> {
    let missing = params.keys().find(|key| !grads.contains_key(key)).map(|key| format!("no gradient of {key}"));
    let Some(difference) = missing.or_else(|| -> Option<String> {
        let key = grads.keys().find(|key| !params.contains_key(key))?;
        Some(format!("a gradient of {key}, which the optimizer does not move"))
    }) else {
        return Ok(());
    };
    Err(Error::new(ErrorKind::Type, format!("Optimizer: there is {difference}"))
        .help("pass the gradients of `optimizer.params()`, or the gradients of the entire model")
        .at(std::panic::Location::caller()))
}
