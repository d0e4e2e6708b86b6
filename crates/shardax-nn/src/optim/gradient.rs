//! Transformations that need little or no memory: scaling, clipping, momentum, weight decay.

use shardax::prelude::*;

use super::{GradientTransformation, Schedule, count, zeros_of};

/// The length of a tree taken as one vector: `sqrt(sum of squares)`, a scalar.
///
/// ```
/// use shardax_nn::prelude::*;
/// let norm = global_norm(&(array([3.0f32]), array([[4.0f32]])));
/// assert_eq!(norm.item::<f32>()?, 5.0);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn global_norm<P: Tree>(tree: &P) -> Array {
    let squares = tree::leaves(tree).into_iter().map(|x| x.abs().square().sum(..));
    squares.reduce(|a, b| a + b).unwrap_or_else(|| zeros(())).sqrt()
}

/// Implements a transformation without state from `|self, updates, params| …`.
macro_rules! stateless {
    ($name:ident, |$this:ident, $updates:ident, $params:ident| $body:expr) => {
        impl<P: Tree> GradientTransformation<P> for $name {
            type State = ();

            fn init(&self, _params: &P) -> Result<()> {
                Ok(())
            }

            fn update(&self, $updates: P, _state: (), $params: &P) -> Result<(P, ())> {
                let $this = self;
                Ok(($body?, ()))
            }
        }
    };
}

/// See [`scale`].
#[derive(Tree, Clone, Debug, PartialEq)]
pub struct Scale {
    pub factor: f64,
}

/// Multiplies by a constant.
pub fn scale(factor: f64) -> Scale {
    Scale { factor }
}

stateless!(Scale, |this, updates, _params| tree::map(|u| u * this.factor, updates));

/// See [`clip`].
#[derive(Tree, Clone, Debug, PartialEq)]
pub struct Clip {
    pub max_delta: f64,
}

/// Keeps each element between `-max_delta` and `max_delta`.
pub fn clip(max_delta: f64) -> Clip {
    Clip { max_delta }
}

stateless!(Clip, |this, updates, _params| tree::map(|u| u.clip(-this.max_delta, this.max_delta), updates));

/// See [`clip_by_global_norm`].
#[derive(Tree, Clone, Debug, PartialEq)]
pub struct ClipByGlobalNorm {
    pub max_norm: f64,
}

/// Scales all gradients together so that their [`global_norm`] is at most `max_norm`.
///
/// Source: [Pascanu et al. 2012](https://arxiv.org/abs/1211.5063).
pub fn clip_by_global_norm(max_norm: f64) -> ClipByGlobalNorm {
    ClipByGlobalNorm { max_norm }
}

stateless!(ClipByGlobalNorm, |this, updates, _params| {
    let norm = global_norm(&updates);
    let small = norm.less(this.max_norm);
    tree::map(
        |u| {
            let clipped = &u / norm.astype(u.dtype()) * this.max_norm;
            where_(&small, u, clipped)
        },
        updates,
    )
});

/// See [`add_decayed_weights`].
#[derive(Tree, Clone, Debug, PartialEq)]
pub struct AddDecayedWeights {
    pub weight_decay: f64,
}

/// Adds the parameters times `weight_decay`.
pub fn add_decayed_weights(weight_decay: f64) -> AddDecayedWeights {
    AddDecayedWeights { weight_decay }
}

stateless!(AddDecayedWeights, |this, updates, params| {
    tree::map2(|u, p| u + p * this.weight_decay, updates, params.clone())
});

/// See [`scale_by_trust_ratio`].
#[derive(Tree, Clone, Debug, PartialEq)]
pub struct ScaleByTrustRatio {}

/// Scales each array by the ratio of the parameter's norm to its own.
pub fn scale_by_trust_ratio() -> ScaleByTrustRatio {
    ScaleByTrustRatio {}
}

stateless!(ScaleByTrustRatio, |_this, updates, params| {
    tree::map2(
        |u, p| {
            let (param_norm, update_norm) = (global_norm(&p), global_norm(&u));
            let none = param_norm.equal(0) | update_norm.equal(0);
            let ratio = where_(&none, 1, &param_norm / where_(&none, 1, &update_norm));
            &u * ratio.astype(u.dtype())
        },
        updates,
        params.clone(),
    )
});

/// See [`trace`].
#[derive(Tree, Clone, Debug, PartialEq)]
pub struct Trace {
    pub decay: f64,
    pub nesterov: bool,
}

/// The state of a [`Trace`].
#[derive(Tree, Clone, Debug)]
pub struct TraceState<P> {
    pub trace: P,
}

/// Momentum: adds `decay` times all that came before.
pub fn trace(decay: f64, nesterov: bool) -> Trace {
    Trace { decay, nesterov }
}

impl<P: Tree> GradientTransformation<P> for Trace {
    type State = TraceState<P>;

    fn init(&self, params: &P) -> Result<Self::State> {
        Ok(TraceState { trace: zeros_of(params)? })
    }

    fn update(&self, grads: P, state: Self::State, _params: &P) -> Result<(P, Self::State)> {
        let add = |g: Array, t: Array| g + t * self.decay;
        let trace = tree::map2(add, grads.clone(), state.trace)?;
        let updates = if self.nesterov { tree::map2(add, grads, trace.clone())? } else { trace.clone() };
        Ok((updates, TraceState { trace }))
    }
}

/// See [`scale_by_learning_rate`].
#[derive(Tree, Clone, Debug)]
pub struct ScaleByLearningRate {
    pub learning_rate: Schedule,
}

/// The state of a [`ScaleByLearningRate`]: the count of steps, where the rate depends on it.
#[derive(Tree, Clone, Debug)]
pub struct ScheduleState {
    pub count: Option<Array>,
}

/// Multiplies by minus the learning rate, a number or a [`Schedule`].
pub fn scale_by_learning_rate(learning_rate: impl Into<Schedule>) -> ScaleByLearningRate {
    ScaleByLearningRate { learning_rate: learning_rate.into() }
}

impl<P: Tree> GradientTransformation<P> for ScaleByLearningRate {
    type State = ScheduleState;

    fn init(&self, _params: &P) -> Result<ScheduleState> {
        let constant = matches!(self.learning_rate, Schedule::Constant { .. });
        Ok(ScheduleState { count: if constant { None } else { Some(count()) } })
    }

    fn update(&self, grads: P, state: ScheduleState, _params: &P) -> Result<(P, ScheduleState)> {
        if let Schedule::Constant { value } = self.learning_rate {
            return Ok((tree::map(|u| u * -value, grads)?, state));
        }
        let step = state.count.unwrap_or_else(count);
        let rate = -self.learning_rate.at(&step);
        let updates = tree::map(|u| &u * rate.astype(u.dtype()), grads)?;
        Ok((updates, ScheduleState { count: Some(step + 1) }))
    }
}
