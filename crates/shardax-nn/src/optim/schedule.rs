//! Learning rates that change from step to step.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use shardax::prelude::*;

/// A number for each step, such as a learning rate. Plain numbers are constant schedules.
///
/// ```
/// use shardax_nn::prelude::*;
/// let schedule = warmup_cosine_decay_schedule(0.0, 0.1, 10, 100, 0.0);
/// assert_eq!(schedule.at(0).to_f64()?, 0.0);
/// assert!((schedule.at(10).to_f64()? - 0.1).abs() < 1e-7);
/// let optimizer = adam(schedule);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Tree, Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Schedule {
    Constant { value: f64 },
    Polynomial { init_value: f64, end_value: f64, power: f64, transition_steps: usize, transition_begin: usize },
    Exponential(ExponentialDecay),
    Cosine { init_value: f64, decay_steps: usize, alpha: f64, exponent: f64 },
    PiecewiseConstant { init_value: f64, boundaries_and_scales: Vec<(usize, f64)> },
    Join { schedules: Vec<Schedule>, boundaries: Vec<usize> },
    Function(#[tree(static)] ScheduleFn),
}

/// See [`exponential_decay`].
#[derive(Tree, Clone, Debug, PartialEq)]
pub struct ExponentialDecay {
    pub init_value: f64,
    pub transition_steps: usize,
    pub decay_rate: f64,
    /// The step at which the decay begins. Default 0.
    pub transition_begin: usize,
    /// Whether to decay once in `transition_steps` instead of a little every step. Default false.
    pub staircase: bool,
    /// What the decay stops at. Default none.
    pub end_value: Option<f64>,
}

/// A function of the step, compared by identity.
#[derive(Clone)]
pub struct ScheduleFn(Arc<dyn Fn(&Array) -> Array + Send + Sync>);

impl PartialEq for ScheduleFn {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for ScheduleFn {}

impl Hash for ScheduleFn {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).hash(state);
    }
}

impl fmt::Debug for ScheduleFn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ScheduleFn")
    }
}

impl From<f64> for Schedule {
    fn from(value: f64) -> Self {
        constant_schedule(value)
    }
}

impl From<f32> for Schedule {
    fn from(value: f32) -> Self {
        constant_schedule(value as f64)
    }
}

impl From<ExponentialDecay> for Schedule {
    fn from(decay: ExponentialDecay) -> Self {
        Schedule::Exponential(decay)
    }
}

/// The same number at every step.
pub fn constant_schedule(value: f64) -> Schedule {
    Schedule::Constant { value }
}

/// From `init_value` to `end_value` in `transition_steps` equal steps.
pub fn linear_schedule(init_value: f64, end_value: f64, transition_steps: usize) -> Schedule {
    polynomial_schedule(init_value, end_value, 1.0, transition_steps)
}

/// From `init_value` to `end_value` as a power of the steps that remain.
pub fn polynomial_schedule(init_value: f64, end_value: f64, power: f64, transition_steps: usize) -> Schedule {
    Schedule::Polynomial { init_value, end_value, power, transition_steps, transition_begin: 0 }
}

/// `init_value * decay_rate^(step / transition_steps)`.
pub fn exponential_decay(init_value: f64, transition_steps: usize, decay_rate: f64) -> ExponentialDecay {
    ExponentialDecay {
        init_value,
        transition_steps,
        decay_rate,
        transition_begin: 0,
        staircase: false,
        end_value: None,
    }
}

/// From `init_value` to `alpha * init_value` in `decay_steps`, as half a period of a cosine.
///
/// Source: [Loshchilov and Hutter 2016](https://arxiv.org/abs/1608.03983).
pub fn cosine_decay_schedule(init_value: f64, decay_steps: usize, alpha: f64) -> Schedule {
    Schedule::Cosine { init_value, decay_steps, alpha, exponent: 1.0 }
}

/// `init_value`, multiplied by each scale from its step on.
pub fn piecewise_constant_schedule(init_value: f64, boundaries_and_scales: impl Into<Vec<(usize, f64)>>) -> Schedule {
    Schedule::PiecewiseConstant { init_value, boundaries_and_scales: boundaries_and_scales.into() }
}

/// The first schedule until the first boundary, then the second, whose steps count from there, and so on.
pub fn join_schedules(schedules: impl Into<Vec<Schedule>>, boundaries: impl Into<Vec<usize>>) -> Schedule {
    Schedule::Join { schedules: schedules.into(), boundaries: boundaries.into() }
}

/// From `init_value` up to `peak_value` in `warmup_steps`, then down to `end_value` as a cosine, until `decay_steps`,
/// which includes the warmup.
pub fn warmup_cosine_decay_schedule(
    init_value: f64,
    peak_value: f64,
    warmup_steps: usize,
    decay_steps: usize,
    end_value: f64,
) -> Schedule {
    let alpha = if peak_value == 0.0 { 0.0 } else { end_value / peak_value };
    join_schedules(
        [
            linear_schedule(init_value, peak_value, warmup_steps),
            cosine_decay_schedule(peak_value, decay_steps.saturating_sub(warmup_steps), alpha),
        ],
        [warmup_steps],
    )
}

/// From `init_value` up to the decay's first value in `warmup_steps`, then the decay.
pub fn warmup_exponential_decay_schedule(init_value: f64, warmup_steps: usize, decay: ExponentialDecay) -> Schedule {
    join_schedules([linear_schedule(init_value, decay.init_value, warmup_steps), decay.into()], [warmup_steps])
}

impl Schedule {
    /// A schedule that is any function of the step, an int32 scalar.
    ///
    /// Programs are compiled anew for every `Schedule` made this way: make it once.
    pub fn function(f: impl Fn(&Array) -> Array + Send + Sync + 'static) -> Self {
        Schedule::Function(ScheduleFn(Arc::new(f)))
    }

    /// The number at a step, which counts from 0: a float32 scalar.
    #[track_caller]
    pub fn at(&self, step: impl Operand) -> Array {
        let step = step.into_array();
        match self {
            Schedule::Constant { value } => zeros(()) + *value,
            Schedule::Function(f) => f.0(&step),
            &Schedule::Polynomial { init_value, end_value, power: exponent, transition_steps, transition_begin } => {
                if transition_steps == 0 {
                    return zeros(()) + init_value;
                }
                let done = (step - transition_begin).clip(0, transition_steps).astype(DType::F32);
                let left = 1 - done / transition_steps;
                let left = if exponent == 1.0 { left } else { power(left, exponent) };
                left * (init_value - end_value) + end_value
            }
            Schedule::Exponential(decay) => decay.at(&step),
            &Schedule::Cosine { init_value, decay_steps, alpha, exponent } => {
                let done = minimum(step, decay_steps).astype(DType::F32) / decay_steps.max(1);
                let cosine = ((done * std::f64::consts::PI).cos() + 1) * 0.5;
                let cosine = if exponent == 1.0 { cosine } else { power(cosine, exponent) };
                (cosine * (1.0 - alpha) + alpha) * init_value
            }
            Schedule::PiecewiseConstant { init_value, boundaries_and_scales } => {
                boundaries_and_scales.iter().fold(zeros(()) + *init_value, |value, &(boundary, scale)| {
                    where_(step.less(boundary), &value, &value * scale)
                })
            }
            Schedule::Join { schedules, boundaries } => {
                let first = schedules.first().map_or_else(|| zeros(()), |s| s.at(&step));
                boundaries.iter().zip(schedules.iter().skip(1)).fold(first, |value, (&boundary, schedule)| {
                    where_(step.less(boundary), value, schedule.at(&step - boundary))
                })
            }
        }
    }
}

impl ExponentialDecay {
    fn at(&self, step: &Array) -> Array {
        let steps = step - self.transition_begin;
        let periods = steps.astype(DType::F32) / self.transition_steps.max(1);
        let periods = if self.staircase { periods.floor() } else { periods };
        let decayed = where_(steps.less_equal(0), self.init_value, power(self.decay_rate, periods) * self.init_value);
        match self.end_value {
            Some(end) if self.decay_rate < 1.0 => maximum(decayed, end),
            Some(end) => minimum(decayed, end),
            None => decayed,
        }
    }
}
