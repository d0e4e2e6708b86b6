//! Parameters together with their optimizer.

use shardax::prelude::*;
use shardax::tree::{Flat, LeafInfo};
use shardax::{Error, ErrorKind};

use crate::filter::key;
use crate::module::put;
use crate::variable::{Kind, kind};
use crate::{Filter, Module, State};

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
    /// The state before the first step.
    ///
    /// Fails when a number of the optimizer is out of its range, and when some variables are no parameters, which an
    /// optimizer must not move: [`Optimizer`] is for such models.
    #[track_caller]
    pub fn create(params: P, tx: T) -> Result<Self> {
        let infos = tree::structure(&params).leaf_infos();
        if let Some((leaf, kind)) =
            infos.iter().find_map(|leaf| Some((leaf, leaf.kind.filter(|k| *k != kind::Param::NAME)?)))
        {
            let what =
                format!("TrainState: {} is a {kind}, not a parameter; the optimizer would move it", key(&leaf.path));
            return Err(Error::new(ErrorKind::Value, what)
                .help("use `Optimizer`, which moves parameters alone")
                .at(std::panic::Location::caller()));
        }
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
/// The optimizer moves the variables that a [`Filter`] means, [`Param`](crate::Param)s if nothing else is said, and has a
/// state for them alone; statistics, caches and what is frozen stay as the program leaves them.
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
/// // The bias alone.
/// let mut optimizer = Optimizer::wrt(optimizer.model, adam(1e-3), "bias")?;
/// let model = optimizer.model.clone();
/// let of_bias = |bias: ModuleState| -> Result<Array> { Ok(loss(model.with_state(&bias)?)) };
/// optimizer.update(grad(of_bias).call(optimizer.params())?)?;
/// assert_eq!(optimizer.model.kernel.to_vec::<f32>()?, model.kernel.to_vec::<f32>()?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Tree, Clone, Debug)]
pub struct Optimizer<M: Tree, T: GradientTransformation<State>> {
    /// The updates made, int32.
    pub step: Array,
    /// The model, with all of its variables.
    pub model: M,
    /// The optimizer. Its numbers are part of the structure.
    pub tx: T,
    /// Its state, for the variables that it moves.
    pub opt_state: T::State,
    #[tree(static)]
    wrt: Filter,
}

/// Gradients as [`Optimizer::update`] takes them: of a whole model, or of some of its variables by their key paths.
pub trait Gradients {
    /// The gradients of the variables that `filter` means.
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

impl<M: Module, T: GradientTransformation<State>> Optimizer<M, T> {
    /// The optimizer of the parameters of `model`, before the first step. Fails when a number of it is out of its range.
    #[track_caller]
    pub fn new(model: M, tx: T) -> Result<Self> {
        Optimizer::wrt(model, tx, Filter::of::<kind::Param>())
    }

    /// The same of the variables that a filter means. Fails also when it means none, as where a path is misspelled:
    /// nothing would be trained.
    #[track_caller]
    pub fn wrt(model: M, tx: T, wrt: impl Into<Filter>) -> Result<Self> {
        let wrt = wrt.into();
        let params = model.state_of(&wrt);
        if params.is_empty() {
            let infos = tree::structure(&model).leaf_infos();
            let variable =
                |leaf: &LeafInfo| format!("{} ({})", key(&leaf.path), leaf.kind.unwrap_or(kind::Param::NAME));
            let some: Vec<String> = infos.iter().take(4).map(variable).collect();
            let more = if infos.len() > 4 { ", …" } else { "" };
            let what = format!(
                "Optimizer: no variable of the model is meant by {wrt:?}; it has {}{more}",
                if some.is_empty() { "none".to_owned() } else { some.join(", ") }
            );
            return Err(Error::new(ErrorKind::Value, what)
                .help("the filter is a kind, as `Filter::of::<Param>()`, or a pattern of key paths, as `**.kernel`")
                .at(std::panic::Location::caller()));
        }
        let opt_state = tx.init(&params)?;
        Ok(Optimizer { step: count(), model, tx, opt_state, wrt })
    }

    /// The variables that it moves.
    pub fn params(&self) -> State {
        self.model.state_of(&self.wrt)
    }

    /// Updates the model, and the state, in place. On failure both stay as they were.
    ///
    /// Fails when the gradients are not those of the variables that it moves.
    #[track_caller]
    pub fn update(&mut self, grads: impl Gradients) -> Result<()> {
        let (params, grads) = (self.params(), grads.of(&self.wrt));
        same_keys(&grads, &params)?;
        let (updates, opt_state) = self.tx.update(grads, self.opt_state.clone(), &params)?;
        self.model = put(&Flat::of(&self.model), &apply_updates(params, updates)?)?.build()?;
        self.opt_state = opt_state;
        self.step = safe_increment(&self.step);
        Ok(())
    }
}

/// Whether there is a gradient for each variable, and no other.
#[track_caller]
fn same_keys(grads: &State, params: &State) -> Result<()> {
    let missing = params.keys().find(|key| !grads.contains_key(key)).map(|key| format!("no gradient of {key}"));
    let unknown = || {
        let key = grads.keys().find(|key| !params.contains_key(key))?;
        Some(format!("a gradient of {key}, which the optimizer does not move"))
    };
    let Some(what) = missing.or_else(unknown) else { return Ok(()) };
    Err(Error::new(ErrorKind::Type, format!("Optimizer: there is {what}"))
        .help("give the gradients of `optimizer.params()`, or those of the whole model")
        .at(std::panic::Location::caller()))
}
