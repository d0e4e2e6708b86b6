//! L-BFGS: the inverse of the Hessian, estimated from the last steps.

use shardax::function::IntoOutput;
use shardax::prelude::*;

use super::tree_utils::{abs_sq, add_scale, cast_like, scale, sub, total, vdot};
use super::{
    GradientTransformation, ScaleByLearningRate, ScaleByZoomLinesearch, Schedule, ZoomLinesearchState, count,
    in_wide_dtypes, safe_increment, scalar_dtype, scale_by_learning_rate, scale_by_zoom_linesearch, wide_dtype,
    zeros_in,
};
use crate::check::positive;

/// The gradient transformation that [`scale_by_lbfgs`] returns.
#[derive(Tree, Clone, Debug, PartialEq)]
pub struct ScaleByLbfgs {
    /// The number of steps in memory, at least 1. Default 10.
    pub memory_size: usize,
    /// Scales the initial estimate by the last step. Default true.
    pub scale_init_precond: bool,
}

/// The state of [`ScaleByLbfgs`].
#[derive(Tree, Clone, Debug)]
pub struct LbfgsState<P> {
    /// The steps taken, int32.
    pub count: Array,
    /// The parameters of the last step.
    pub params: P,
    /// The gradients of the last step.
    pub updates: P,
    /// The changes of the parameters, `[memory_size, …]`.
    pub diff_params_memory: P,
    /// The changes of the gradients, `[memory_size, …]`.
    pub diff_updates_memory: P,
    /// The reciprocals of the dot products of both, `[memory_size]`.
    pub weights_memory: Array,
}

/// Multiplies gradients by an estimate of the inverse of the Hessian, from the changes of the last steps.
///
/// Source: [Nocedal and Wright 1999](https://doi.org/10.1007/978-0-387-40065-5), algorithm 7.4.
///
/// ```
/// use shardax_nn::optim::scale_by_lbfgs;
/// use shardax_nn::prelude::*;
/// let (params, tx) = (array([3.0f32, 4.0]), scale_by_lbfgs());
/// let (updates, _) = tx.update(array([3.0f32, -4.0]), tx.init(&params)?, &params)?;
/// assert!(allclose(updates, array([0.6f32, -0.8]), 1e-5, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn scale_by_lbfgs() -> ScaleByLbfgs {
    ScaleByLbfgs { memory_size: 10, scale_init_precond: true }
}

fn get_slot<P: Tree>(memory: &P, slot: &Array) -> Result<P> {
    tree::map(|x| x.get(slot), memory.clone())
}

fn squared_norm<P: Tree>(tree: &P) -> Array {
    total(tree::leaves(tree).iter().map(|x| abs_sq(x).sum(..)))
}

impl<P: Tree> GradientTransformation<P> for ScaleByLbfgs {
    type State = LbfgsState<P>;

    #[track_caller]
    fn init(&self, params: &P) -> Result<Self::State> {
        positive("scale_by_lbfgs", "memory_size", self.memory_size)?;
        let memory = tree::map(
            |p| zeros_dtype([&[self.memory_size], p.shape()].concat(), wide_dtype(p.dtype())),
            params.clone(),
        )?;
        Ok(LbfgsState {
            count: count(),
            params: zeros_in(params, None)?,
            updates: zeros_in(params, None)?,
            diff_params_memory: memory.clone(),
            diff_updates_memory: memory,
            weights_memory: zeros_dtype([self.memory_size], scalar_dtype(params)),
        })
    }

    fn update(&self, grads: P, state: Self::State, params: &P) -> Result<(P, Self::State)> {
        in_wide_dtypes(grads, params, |grads, params| {
            let started = state.count.greater(0);
            let diff_params = sub(params, &state.params)?;
            let diff_updates = sub(&grads, &state.updates)?;
            let product = vdot(&diff_updates, &diff_params)?.real();
            let is_flat = product.equal(0);
            let weight = where_(&is_flat, 0, 1 / where_(&is_flat, 1, &product));
            // The changes are zero in the first step, because there is no previous point.
            let diff_params = tree::map(|x| zero_unless(&started, &x), diff_params)?;
            let diff_updates = tree::map(|x| zero_unless(&started, &x), diff_updates)?;
            let slot = remainder(&state.count - 1, self.memory_size);
            let diff_params_memory = set_slot(state.diff_params_memory, &slot, diff_params.clone())?;
            let diff_updates_memory = set_slot(state.diff_updates_memory, &slot, diff_updates.clone())?;
            let weights_memory = state.weights_memory.at(&slot).set(zero_unless(&started, &weight));

            let identity = if self.scale_init_precond {
                let (numerator, denominator) = (vdot(&diff_updates, &diff_params)?.real(), squared_norm(&diff_updates));
                let is_positive = denominator.greater(0);
                let ratio = where_(&is_positive, numerator / where_(&is_positive, &denominator, 1), 1);
                where_(&started, ratio, minimum(1, 1 / squared_norm(&grads).sqrt()))
            } else {
                shardax::numpy::ones_dtype((), scalar_dtype(&grads))
            };
            // The indices in the memory, from the oldest to the newest.
            let slots: Vec<Array> =
                (0..self.memory_size).map(|i| remainder(&state.count + i, self.memory_size)).collect();
            let (mut vector, mut alphas) = (grads.clone(), Vec::new());
            for i in slots.iter().rev() {
                let (dw, du) = (get_slot(&diff_params_memory, i)?, get_slot(&diff_updates_memory, i)?);
                let alpha = weights_memory.get(i) * vdot(&dw, &vector)?.real();
                vector = cast_like(&add_scale(&vector, -&alpha, &du)?, &vector)?;
                alphas.push(alpha);
            }
            vector = cast_like(&scale(identity, &vector)?, &vector)?;
            for (i, alpha) in slots.iter().zip(alphas.into_iter().rev()) {
                let (dw, du) = (get_slot(&diff_params_memory, i)?, get_slot(&diff_updates_memory, i)?);
                let beta = weights_memory.get(i) * vdot(&du, &vector)?.real();
                vector = cast_like(&add_scale(&vector, alpha - beta, &dw)?, &vector)?;
            }
            let count = safe_increment(state.count);
            let params = params.clone();
            let state =
                LbfgsState { count, params, updates: grads, diff_params_memory, diff_updates_memory, weights_memory };
            Ok((vector, state))
        })
    }
}

/// The optimizer that [`lbfgs`] returns.
pub type Lbfgs = (ScaleByLbfgs, ScaleByLearningRate);

/// L-BFGS with a fixed or scheduled step size, as Optax's `lbfgs` with `linesearch=None`. You should use it only for
/// smooth functions whose gradients have no noise. If you do not know a good step size, [`lbfgs_linesearch`] searches
/// for it.
///
/// ```
/// use shardax_nn::optim::lbfgs;
/// use shardax_nn::prelude::*;
/// let scales = array([1.0f32, 10.0]);
/// let mut state = TrainState::create(ones([2]), lbfgs(1.0))?;
/// for _ in 0..10 {
///     let grads = &scales * &state.params;
///     state = state.apply_gradients(grads)?;
/// }
/// assert!(global_norm(&state.params).item::<f32>()? < 1e-3);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn lbfgs(learning_rate: impl Into<Schedule>) -> Lbfgs {
    (scale_by_lbfgs(), scale_by_learning_rate(learning_rate))
}

/// The gradient transformation that [`lbfgs_linesearch`] returns.
#[derive(Tree, Clone, Debug, PartialEq)]
pub struct LbfgsLinesearch {
    /// The estimate of the Hessian's inverse.
    pub precondition: ScaleByLbfgs,
    /// The line search. By default, it starts at 1 and evaluates the function at most 20 times.
    pub linesearch: ScaleByZoomLinesearch,
}

/// The state of [`LbfgsLinesearch`]: the states of both parts.
pub type LbfgsLinesearchState<P> = (LbfgsState<P>, ZoomLinesearchState<P>);

/// L-BFGS with a zoom line search, Optax's default: function values determine the step size. You should use it only for
/// smooth functions whose gradients have no noise.
///
/// ```
/// use shardax_nn::optim::lbfgs_linesearch;
/// use shardax_nn::prelude::*;
/// let scales = array([1.0f32, 100.0]);
/// let loss = |x: Array| (&scales * x.square()).sum(..);
/// let solver = lbfgs_linesearch();
/// let mut params = ones([2]);
/// let mut state = solver.init(&params)?;
/// for _ in 0..5 {
///     // The line search evaluated value and gradient already.
///     let (value, grad) = value_and_grad_from_state(loss, params.clone(), &state)?;
///     let (updates, next) = solver.update_with(grad, state, &params, value, loss)?;
///     (params, state) = (apply_updates(params, updates)?, next);
/// }
/// assert!(loss(params).item::<f32>()? < 1e-6);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn lbfgs_linesearch() -> LbfgsLinesearch {
    let linesearch = ScaleByZoomLinesearch { keep_stepsize: false, ..scale_by_zoom_linesearch(20) };
    LbfgsLinesearch { precondition: scale_by_lbfgs(), linesearch }
}

impl LbfgsLinesearch {
    /// Returns the state before the first step.
    ///
    /// # Errors
    /// Returns an error if a setting of the line search is out of its range.
    #[track_caller]
    pub fn init<P: Tree>(&self, params: &P) -> Result<LbfgsLinesearchState<P>> {
        Ok((self.precondition.init(params)?, self.linesearch.init(params)?))
    }

    /// Returns the updates and the next state. `value_fn` must be a scalar function; `value` and `grad` are its value and
    /// gradient at `params`.
    ///
    /// # Errors
    /// Returns an error if the trees differ in structure, or if `value_fn` fails or does not return a real scalar.
    #[track_caller]
    pub fn update_with<P, F, R>(
        &self,
        grad: P,
        state: LbfgsLinesearchState<P>,
        params: &P,
        value: Array,
        value_fn: F,
    ) -> Result<(P, LbfgsLinesearchState<P>)>
    where
        P: Tree,
        F: Fn(P) -> R,
        R: IntoOutput<Output = Array>,
    {
        let (direction, lbfgs) = self.precondition.update(grad.clone(), state.0, params)?;
        let descent = tree::map(|x| -x, direction)?;
        let (updates, search) = self.linesearch.update_with(descent, state.1, params, (value, grad), value_fn)?;
        Ok((updates, (lbfgs, search)))
    }
}

/// Returns the value and the gradient of a scalar function at `params`. They come from the last line search if
/// possible, so that the function is evaluated only before the first step, and after a search that found no finite
/// value.
///
/// # Errors
/// Returns an error if `value_fn` fails, or if its value is not a scalar.
#[track_caller]
pub fn value_and_grad_from_state<P, F, R>(value_fn: F, params: P, state: &LbfgsLinesearchState<P>) -> Result<(Array, P)>
where
    P: Tree,
    F: Fn(P) -> R,
    R: IntoOutput<Output = Array>,
{
    let stored = (state.1.value.clone(), state.1.grad.clone());
    let dtype = state.1.value.dtype();
    let finite = state.1.value.isfinite();
    // A line search stores the value and gradient of its last point. Before the first search the value is infinite.
    type Both<P> = (P, (Array, P));
    cond(
        finite,
        |(_, stored): Both<P>| stored,
        |(params, _): Both<P>| -> Result<(Array, P)> {
            let (value, grad) = value_and_grad(|p: P| value_fn(p).into_output()).call(params)?;
            Ok((value.astype(dtype), grad))
        },
        (params, stored),
    )
}

fn zero_unless(condition: &Array, x: &Array) -> Array {
    where_(condition, x, zeros_like(x))
}

/// Stores `new` in one slot of the memory.
fn set_slot<P: Tree>(memory: P, slot: &Array, new: P) -> Result<P> {
    tree::map2(|memory: Array, new: Array| memory.at(slot).set(new), memory, new)
}
