//! Learning rates that change from step to step.

use std::sync::Arc;

use shardax::choice::{Choice, IntoChoice, NamedOption};
use shardax::numpy::full_dtype;
use shardax::prelude::*;

use super::{ScheduleState, count, safe_increment};
use crate::check::{FINITE, NOT_NEGATIVE, positive, require, value_error, within};
use crate::shared::Shared;

/// A number for each step, such as a learning rate. Plain numbers are constant schedules. Arrays are constant schedules, too,
/// and you can change them without recompilation. A function of the step, an int32 scalar, is a schedule too.
///
/// ```
/// use shardax_nn::prelude::*;
/// let schedule = warmup_cosine_decay_schedule(0.0, 0.1, 10, 100, 0.0);
/// assert_eq!(schedule.at(0).to_f64()?, 0.0);
/// assert!((schedule.at(10).to_f64()? - 0.1).abs() < 1e-7);
/// let optimizer = adam(schedule);
/// let optimizer = adam(|step: &Array| 1e-3 / (step + 1));
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Tree, Clone, Debug)]
#[non_exhaustive]
// The fields are the arguments of the functions that the variants name.
#[allow(missing_docs)]
pub enum Schedule {
    /// A schedule of [`constant_schedule`].
    Constant { value: f64 },
    /// A constant that is an array, a scalar.
    Value { value: Array },
    /// A schedule of [`polynomial_schedule`].
    Polynomial { init_value: f64, end_value: f64, power: f64, transition_steps: usize, transition_begin: usize },
    /// A schedule of [`exponential_decay`].
    Exponential(ExponentialDecay),
    /// A schedule of [`cosine_decay_schedule`].
    Cosine { init_value: f64, decay_steps: usize, alpha: f64, exponent: f64 },
    /// A schedule of [`piecewise_constant_schedule`].
    PiecewiseConstant { init_value: f64, boundaries_and_scales: Vec<(usize, f64)> },
    /// A schedule of [`piecewise_interpolate_schedule`].
    PiecewiseInterpolate {
        #[tree(static)]
        interpolate_type: Choice<Interpolate>,
        init_value: f64,
        boundaries_and_scales: Vec<(usize, f64)>,
    },
    /// A schedule of [`join_schedules`].
    Join { schedules: Vec<Schedule>, boundaries: Vec<usize> },
    /// A schedule of [`Schedule::function`].
    Function(#[tree(static)] ScheduleFn),
}

/// The interpolation of [`piecewise_interpolate_schedule`] between two values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Interpolate {
    /// Linear interpolation.
    Linear,
    /// Interpolation by half a period of a cosine.
    Cosine,
}

/// Optax's names.
impl NamedOption for Interpolate {
    const KIND: &'static str = "interpolate_type";
    const NAMES: &'static [(&'static str, Self)] = &[("linear", Interpolate::Linear), ("cosine", Interpolate::Cosine)];
}

/// The options of [`exponential_decay`].
#[derive(Tree, Clone, Debug, PartialEq)]
pub struct ExponentialDecay {
    /// The number at the first step.
    pub init_value: f64,
    /// The number of steps in which the number is multiplied by `decay_rate`. With 0, it is constant.
    pub transition_steps: usize,
    /// The decay factor. With 0, the number is constant.
    pub decay_rate: f64,
    /// The step at which the decay begins. Default 0.
    pub transition_begin: usize,
    /// Decays once in `transition_steps` instead of in every step. Default false.
    pub staircase: bool,
    /// The bound of the decay. Default none.
    pub end_value: Option<f64>,
}

/// A function of the step, compared by identity.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ScheduleFn(Shared<dyn Fn(&Array) -> Array + Send + Sync>);

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

impl From<i32> for Schedule {
    fn from(value: i32) -> Self {
        constant_schedule(value as f64)
    }
}

impl From<Array> for Schedule {
    fn from(value: Array) -> Self {
        Schedule::Value { value }
    }
}

impl From<&Array> for Schedule {
    fn from(value: &Array) -> Self {
        value.clone().into()
    }
}

impl From<ExponentialDecay> for Schedule {
    fn from(decay: ExponentialDecay) -> Self {
        Schedule::Exponential(decay)
    }
}

/// See [`Schedule::function`].
impl<F: Fn(&Array) -> Array + Send + Sync + 'static> From<F> for Schedule {
    fn from(function: F) -> Self {
        Schedule::function(function)
    }
}

/// Returns a schedule with the same number at every step. Plain numbers convert to it, so that you rarely need it.
///
/// ```
/// use shardax_nn::prelude::*;
/// let schedule = constant_schedule(0.5);
/// assert_eq!(schedule.at(100).item::<f32>()?, 0.5);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn constant_schedule(value: f64) -> Schedule {
    Schedule::Constant { value }
}

/// Returns a schedule that changes from `init_value` to `end_value` in `transition_steps` equal steps, and then stays.
///
/// ```
/// use shardax_nn::prelude::*;
/// let schedule = linear_schedule(1.0, 0.0, 4);
/// assert_eq!(schedule.at(array([0, 1, 4, 100])).to_vec::<f32>()?, [1.0, 0.75, 0.0, 0.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn linear_schedule(init_value: f64, end_value: f64, transition_steps: usize) -> Schedule {
    polynomial_schedule(init_value, end_value, 1.0, transition_steps)
}

/// Returns a schedule that changes from `init_value` to `end_value` in `transition_steps` steps. The distance to `end_value` is
/// proportional to the number of remaining steps to the power `power`.
///
/// ```
/// use shardax_nn::prelude::*;
/// let schedule = polynomial_schedule(1.0, 0.0, 2.0, 4);
/// assert_eq!(schedule.at(array([0, 2, 4, 100])).to_vec::<f32>()?, [1.0, 0.25, 0.0, 0.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn polynomial_schedule(init_value: f64, end_value: f64, power: f64, transition_steps: usize) -> Schedule {
    Schedule::Polynomial { init_value, end_value, power, transition_steps, transition_begin: 0 }
}

/// Returns a schedule whose number is `init_value * decay_rate^(step / transition_steps)`. You can change the other fields of the
/// result, such as `staircase`.
///
/// ```
/// use shardax_nn::prelude::*;
/// let schedule = Schedule::from(exponential_decay(1.0, 10, 0.5));
/// assert!(allclose(schedule.at(array([0, 10, 20])), array([1.0f32, 0.5, 0.25]), 1e-6, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
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

/// Returns a schedule that decays from `init_value` to `alpha * init_value` in `decay_steps` steps, along half a period of a
/// cosine, and then stays.
///
/// Source: [Loshchilov and Hutter 2016](https://arxiv.org/abs/1608.03983).
///
/// ```
/// use shardax_nn::prelude::*;
/// let schedule = cosine_decay_schedule(1.0, 100, 0.1);
/// assert!(allclose(schedule.at(array([0, 50, 100])), array([1.0f32, 0.55, 0.1]), 1e-6, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn cosine_decay_schedule(init_value: f64, decay_steps: usize, alpha: f64) -> Schedule {
    Schedule::Cosine { init_value, decay_steps, alpha, exponent: 1.0 }
}

/// Returns a schedule that begins with `init_value` and is multiplied by each scale at its boundary, a step.
///
/// ```
/// use shardax_nn::prelude::*;
/// let schedule = piecewise_constant_schedule(1.0, [(3, 0.5), (6, 0.5)]);
/// assert_eq!(schedule.at(array([2, 3, 6])).to_vec::<f32>()?, [1.0, 0.5, 0.25]);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn piecewise_constant_schedule(init_value: f64, boundaries_and_scales: impl Into<Vec<(usize, f64)>>) -> Schedule {
    Schedule::PiecewiseConstant { init_value, boundaries_and_scales: boundaries_and_scales.into() }
}

/// Returns a schedule that follows the first schedule until the first boundary, then the second, and so on. Each schedule counts
/// its steps from its boundary. There must be one boundary less than schedules.
///
/// ```
/// use shardax_nn::prelude::*;
/// let schedule = join_schedules([linear_schedule(0.0, 1.0, 10), 0.5.into()], [10]);
/// assert_eq!(schedule.at(array([0, 5, 10, 20])).to_vec::<f32>()?, [0.0, 0.5, 0.5, 0.5]);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn join_schedules(schedules: impl Into<Vec<Schedule>>, boundaries: impl Into<Vec<usize>>) -> Schedule {
    Schedule::Join { schedules: schedules.into(), boundaries: boundaries.into() }
}

/// Returns a schedule that increases from `init_value` to `peak_value` in `warmup_steps` steps, then decreases to `end_value`
/// along a cosine until step `decay_steps`, which includes the warmup. [`Schedule`] has an example.
///
/// ```
/// use shardax_nn::prelude::*;
/// let schedule = warmup_cosine_decay_schedule(0.0, 1.0, 2, 6, 0.0);
/// assert!(allclose(schedule.at(array([0, 1, 2, 4])), array([0.0f32, 0.5, 1.0, 0.5]), 1e-6, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
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

/// Returns a schedule that increases from `init_value` to the first value of `decay` in `warmup_steps` steps, then decays.
///
/// ```
/// use shardax_nn::prelude::*;
/// let schedule = warmup_exponential_decay_schedule(0.0, 2, exponential_decay(1.0, 10, 0.5));
/// assert!(allclose(schedule.at(array([0, 1, 2, 12])), array([0.0f32, 0.5, 1.0, 0.5]), 1e-6, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn warmup_exponential_decay_schedule(init_value: f64, warmup_steps: usize, decay: ExponentialDecay) -> Schedule {
    join_schedules([linear_schedule(init_value, decay.init_value, warmup_steps), decay.into()], [warmup_steps])
}

/// Returns a schedule that increases from `init_value` to `peak_value` in `warmup_steps` steps, then stays at `peak_value`.
///
/// ```
/// use shardax_nn::prelude::*;
/// let schedule = warmup_constant_schedule(0.0, 1.0, 2);
/// assert_eq!(schedule.at(array([0, 1, 2, 100])).to_vec::<f32>()?, [0.0, 0.5, 1.0, 1.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn warmup_constant_schedule(init_value: f64, peak_value: f64, warmup_steps: usize) -> Schedule {
    linear_schedule(init_value, peak_value, warmup_steps)
}

/// Returns a schedule that interpolates between the values at boundaries, along lines or cosines. The value at step 0 is
/// `init_value`. The value at a boundary is its scale times the value at the boundary before it.
///
/// ```
/// use shardax_nn::optim::piecewise_interpolate_schedule;
/// use shardax_nn::prelude::*;
/// let schedule = piecewise_interpolate_schedule("linear", 1.0, [(2, 0.5), (4, 0.5)]);
/// assert!(allclose(schedule.at(array([0, 1, 2, 4])), array([1.0f32, 0.75, 0.5, 0.25]), 1e-6, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn piecewise_interpolate_schedule(
    interpolate_type: impl IntoChoice<Interpolate>,
    init_value: f64,
    boundaries_and_scales: impl Into<Vec<(usize, f64)>>,
) -> Schedule {
    let mut boundaries_and_scales = boundaries_and_scales.into();
    boundaries_and_scales.sort_by_key(|&(boundary, _)| boundary);
    Schedule::PiecewiseInterpolate {
        interpolate_type: interpolate_type.into_choice(),
        init_value,
        boundaries_and_scales,
    }
}

/// Options of [`linear_onecycle_schedule`] and [`cosine_onecycle_schedule`].
///
/// ```
/// use shardax_nn::optim::OnecycleOptions;
/// let schedule = OnecycleOptions::new().pct_start(0.5).div_factor(10.0).linear_onecycle_schedule(10, 1.0);
/// assert!((schedule.at(0).to_f64()? - 0.1).abs() < 1e-6 && (schedule.at(5).to_f64()? - 1.0).abs() < 1e-6);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "options do nothing until a schedule is made"]
pub struct OnecycleOptions {
    pct_start: f64,
    pct_final: f64,
    div_factor: f64,
    final_div_factor: f64,
}

impl Default for OnecycleOptions {
    fn default() -> Self {
        OnecycleOptions { pct_start: 0.3, pct_final: 0.85, div_factor: 25.0, final_div_factor: 1e4 }
    }
}

impl OnecycleOptions {
    /// Creates options with the defaults of Optax.
    pub fn new() -> Self {
        OnecycleOptions::default()
    }

    /// Sets the fraction of the steps before the peak. Default 0.3.
    pub fn pct_start(mut self, share: f64) -> Self {
        self.pct_start = share;
        self
    }

    /// Sets the fraction of the steps after which a linear cycle returns to its first value. Default 0.85.
    pub fn pct_final(mut self, share: f64) -> Self {
        self.pct_final = share;
        self
    }

    /// Sets the ratio of the peak to the first value. Default 25.
    pub fn div_factor(mut self, factor: f64) -> Self {
        self.div_factor = factor;
        self
    }

    /// Sets the ratio of the first value to the last. Default 10,000.
    pub fn final_div_factor(mut self, factor: f64) -> Self {
        self.final_div_factor = factor;
        self
    }

    /// See [`linear_onecycle_schedule`].
    pub fn linear_onecycle_schedule(self, transition_steps: usize, peak_value: f64) -> Schedule {
        let [peak_step, final_step] =
            [self.pct_start, self.pct_final].map(|fraction| (fraction * transition_steps as f64) as usize);
        let scales = [
            (peak_step, self.div_factor),
            (final_step, 1.0 / self.div_factor),
            (transition_steps, 1.0 / self.final_div_factor),
        ];
        piecewise_interpolate_schedule(Interpolate::Linear, peak_value / self.div_factor, scales)
    }

    /// See [`cosine_onecycle_schedule`].
    pub fn cosine_onecycle_schedule(self, transition_steps: usize, peak_value: f64) -> Schedule {
        let peak_step = (self.pct_start * transition_steps as f64) as usize;
        let last_scale = 1.0 / (self.div_factor * self.final_div_factor);
        let scales = [(peak_step, self.div_factor), (transition_steps, last_scale)];
        piecewise_interpolate_schedule(Interpolate::Cosine, peak_value / self.div_factor, scales)
    }
}

/// Returns one linear cycle with Optax's defaults. It begins at 1/25 of `peak_value`, increases to `peak_value` in 0.3
/// of `transition_steps`, returns to the first value at 0.85 of the steps, and then decreases to 1/10000 of the first
/// value. [`OnecycleOptions`] sets other values.
///
/// Source: [Smith and Topin 2018](https://arxiv.org/abs/1708.07120).
///
/// ```
/// use shardax_nn::optim::linear_onecycle_schedule;
/// use shardax_nn::prelude::*;
/// let schedule = linear_onecycle_schedule(20, 1.0);
/// assert!(allclose(schedule.at(array([0, 6, 17])), array([0.04f32, 1.0, 0.04]), 1e-4, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn linear_onecycle_schedule(transition_steps: usize, peak_value: f64) -> Schedule {
    OnecycleOptions::new().linear_onecycle_schedule(transition_steps, peak_value)
}

/// Returns one cycle along cosines with Optax's defaults. It begins at 1/25 of `peak_value`, increases to `peak_value`
/// in 0.3 of `transition_steps`, and decreases to 1/250000 of the peak. [`OnecycleOptions`] sets other values.
///
/// Source: [Smith and Topin 2018](https://arxiv.org/abs/1708.07120).
///
/// ```
/// use shardax_nn::optim::cosine_onecycle_schedule;
/// use shardax_nn::prelude::*;
/// let schedule = cosine_onecycle_schedule(20, 1.0);
/// assert!(allclose(schedule.at(array([0, 6, 20])), array([0.04f32, 1.0, 4e-6]), 1e-3, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn cosine_onecycle_schedule(transition_steps: usize, peak_value: f64) -> Schedule {
    OnecycleOptions::new().cosine_onecycle_schedule(transition_steps, peak_value)
}

/// Cosine decays with warm restarts. Each item contains the arguments of a [`warmup_cosine_decay_schedule`], which takes
/// `decay_steps` steps.
///
/// Source: [Loshchilov and Hutter 2016](https://arxiv.org/abs/1608.03983).
///
/// ```
/// use shardax_nn::optim::sgdr_schedule;
/// use shardax_nn::prelude::*;
/// let schedule = sgdr_schedule([(0.0, 0.1, 2, 10, 0.0), (0.0, 0.05, 2, 20, 0.0)]);
/// assert!((schedule.at(12).to_f64()? - 0.05).abs() < 1e-7);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn sgdr_schedule(cosine_kwargs: impl IntoIterator<Item = (f64, f64, usize, usize, f64)>) -> Schedule {
    let (mut schedules, mut boundaries, mut step) = (Vec::new(), Vec::new(), 0usize);
    for (init_value, peak_value, warmup_steps, decay_steps, end_value) in cosine_kwargs {
        if !schedules.is_empty() {
            boundaries.push(step);
        }
        schedules.push(warmup_cosine_decay_schedule(init_value, peak_value, warmup_steps, decay_steps, end_value));
        step = step.saturating_add(decay_steps);
    }
    join_schedules(schedules, boundaries)
}

impl Schedule {
    /// Checks that there is a value at every step. `name` is the use of the schedule.
    #[track_caller]
    pub(crate) fn check(&self, name: &str) -> Result<()> {
        // Values are computed on the device, where an invalid number would only result in NaN.
        match self {
            Schedule::Constant { value } => within(name, "the value", *value, FINITE),
            Schedule::Value { value } => {
                value.check()?;
                match value.shape() {
                    [] => Ok(()),
                    _ => value_error(format!("{name}: an array must be a scalar, got {}", value.type_name())),
                }
            }
            Schedule::Polynomial { init_value, end_value, power, .. } => {
                within(name, "init_value", *init_value, FINITE)?;
                within(name, "end_value", *end_value, FINITE)?;
                within(name, "power", *power, FINITE)
            }
            Schedule::Exponential(decay) => {
                within(name, "init_value", decay.init_value, FINITE)?;
                within(name, "decay_rate", decay.decay_rate, NOT_NEGATIVE)?;
                within(name, "end_value", decay.end_value.unwrap_or(0.0), FINITE)
            }
            Schedule::Cosine { init_value, decay_steps, alpha, exponent } => {
                within(name, "init_value", *init_value, FINITE)?;
                within(name, "alpha", *alpha, FINITE)?;
                within(name, "exponent", *exponent, FINITE)?;
                positive(name, "decay_steps, which includes a warmup,", *decay_steps)
            }
            Schedule::PiecewiseConstant { init_value, boundaries_and_scales }
            | Schedule::PiecewiseInterpolate { init_value, boundaries_and_scales, .. } => {
                within(name, "init_value", *init_value, FINITE)?;
                for (_, scale) in boundaries_and_scales {
                    within(name, "a scale", *scale, NOT_NEGATIVE)?;
                }
                Ok(())
            }
            Schedule::Join { schedules, boundaries } => {
                let (n, m) = (schedules.len(), boundaries.len());
                if n != m + 1 {
                    return value_error(format!("{name}: {n} schedules join at {} boundaries, got {m}", n.max(1) - 1));
                }
                for schedule in schedules {
                    schedule.check(name)?;
                }
                Ok(())
            }
            Schedule::Function(_) => Ok(()),
        }
    }

    /// Returns true if the value is the same at every step.
    pub(super) fn is_constant(&self) -> bool {
        matches!(self, Schedule::Constant { .. } | Schedule::Value { .. })
    }

    /// Returns the state before the first step. `name` is the use of the schedule.
    #[track_caller]
    pub(super) fn start(&self, name: &str) -> Result<ScheduleState> {
        self.check(name)?;
        Ok(ScheduleState { count: (!self.is_constant()).then(count) })
    }

    /// Returns the number of this step and the next state. The number has this dtype, or is weakly typed if the schedule is a
    /// plain number.
    pub(super) fn step(&self, state: ScheduleState, dtype: DType) -> (Array, ScheduleState) {
        match self {
            Schedule::Constant { value } => (value.into_array(), state),
            Schedule::Value { value } => (value.clone(), state),
            _ => {
                let step = state.count.unwrap_or_else(count);
                (self.at_in(&step, dtype), ScheduleState { count: Some(safe_increment(step)) })
            }
        }
    }

    /// Creates a schedule from any function of the step, an int32 scalar.
    ///
    /// Create it once, because programs are compiled again for every `Schedule` that is created this way.
    pub fn function(f: impl Fn(&Array) -> Array + Send + Sync + 'static) -> Self {
        Schedule::Function(ScheduleFn(Shared(Arc::new(f))))
    }

    /// Returns the number at a step, a float32 scalar. Steps count from 0.
    ///
    /// Numbers must be finite, a cosine must have steps, and scales must not be negative. There must be a boundary between
    /// two joined schedules.
    #[track_caller]
    pub fn at(&self, step: impl ArrayLike) -> Array {
        self.at_in(&step.into_array(), DType::F32)
    }

    /// Returns the number at a step, computed in `dtype`, which must be float32 or float64.
    #[track_caller]
    pub(super) fn at_in(&self, step: &Array, dtype: DType) -> Array {
        require!(&zeros_dtype((), dtype), self.check("schedule"));
        match self {
            Schedule::Value { value } => value.clone(),
            Schedule::Constant { value } => full_dtype((), *value, dtype),
            Schedule::Function(f) => f.0.0(step),
            &Schedule::Polynomial { init_value, end_value, power: exponent, transition_steps, transition_begin } => {
                if transition_steps == 0 {
                    return full_dtype((), init_value, dtype);
                }
                // The steps that remain are counted, since a difference from 1 would lose the digits of the last steps.
                let done = (step - transition_begin).clip(0, transition_steps);
                let remaining = (-&done + transition_steps).astype(dtype) / transition_steps;
                if exponent == 1.0 {
                    return remaining * init_value + done.astype(dtype) / transition_steps * end_value;
                }
                let decayed = power(&remaining, exponent);
                if exponent <= 0.0 || init_value >= end_value {
                    return decayed * (init_value - end_value) + end_value;
                }
                // A difference from `end_value` would lose the digits of the first, small numbers.
                let grown = -((-(done.astype(dtype) / transition_steps)).log1p() * exponent).expm1();
                decayed * init_value + grown * end_value
            }
            Schedule::Exponential(decay) => decay.at_in(step, dtype),
            &Schedule::Cosine { init_value, decay_steps, alpha, exponent } => {
                let remaining = (-minimum(step, decay_steps) + decay_steps).astype(dtype) / decay_steps;
                let cosine = half_cosine(remaining);
                let cosine = if exponent == 1.0 { cosine } else { power(cosine, exponent) };
                (cosine * (1.0 - alpha) + alpha) * init_value
            }
            Schedule::PiecewiseConstant { init_value, boundaries_and_scales } => {
                boundaries_and_scales.iter().fold(full_dtype((), *init_value, dtype), |value, &(boundary, scale)| {
                    where_(step.less(boundary), &value, &value * scale)
                })
            }
            Schedule::PiecewiseInterpolate { interpolate_type, init_value, boundaries_and_scales } => {
                let interpolate_type = match interpolate_type.value("piecewise_interpolate_schedule") {
                    Ok(interpolate_type) => interpolate_type,
                    Err(e) => return Array::from_error(e, step),
                };
                let (mut start, mut value, mut interpolated) =
                    (0, full_dtype((), *init_value, dtype), full_dtype((), 0.0, dtype));
                for &(end, scale) in boundaries_and_scales {
                    let end_value = &value * scale;
                    let is_between = step.greater_equal(start) & step.less(end);
                    // At least 1, because two boundaries can be at the same step.
                    let steps = end.saturating_sub(start).max(1);
                    let done = (step - start).clip(0, steps);
                    // The steps that remain are counted, like those of a polynomial.
                    let remaining = (-&done + steps).astype(dtype) / steps;
                    let done = done.astype(dtype) / steps;
                    let between = match interpolate_type {
                        Interpolate::Linear => remaining * &value + done * &end_value,
                        Interpolate::Cosine => half_cosine(remaining) * &value + half_cosine(done) * &end_value,
                    };
                    interpolated = where_(is_between, between, interpolated);
                    (start, value) = (end, end_value);
                }
                where_(step.greater_equal(start), value, interpolated)
            }
            Schedule::Join { schedules, boundaries } => {
                let first = schedules.first().map_or_else(|| full_dtype((), 0.0, dtype), |s| s.at_in(step, dtype));
                boundaries.iter().zip(schedules.iter().skip(1)).fold(first, |value, (&boundary, schedule)| {
                    where_(step.less(boundary), value, schedule.at_in(&(step - boundary), dtype))
                })
            }
        }
    }
}

/// Half a period of a cosine from 1 to 0, by the share of the steps that remain.
fn half_cosine(remaining: Array) -> Array {
    // (1 + cos(π t)) / 2 is sin²(π (1 - t) / 2), which keeps the digits of the last steps.
    (remaining * std::f64::consts::FRAC_PI_2).sin().square()
}

impl ExponentialDecay {
    fn at_in(&self, step: &Array, dtype: DType) -> Array {
        if self.transition_steps == 0 || self.decay_rate == 0.0 {
            return shardax::numpy::full_dtype((), self.init_value, dtype);
        }
        let steps = step - self.transition_begin;
        let periods = steps.astype(dtype) / self.transition_steps;
        let periods = if self.staircase { periods.floor() } else { periods };
        // A power would multiply the rounding error of the rate by the number of periods.
        let decay = (periods * self.decay_rate.ln()).exp();
        let decayed = where_(steps.less_equal(0), self.init_value, decay * self.init_value);
        match self.end_value {
            Some(end) if self.decay_rate < 1.0 => maximum(decayed, end),
            Some(end) => minimum(decayed, end),
            None => decayed,
        }
    }
}
