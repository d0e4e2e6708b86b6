//! Line search: finds the step size along an update from values of the function.

use shardax::function::IntoOutput;
use shardax::numpy::{full_dtype, ones_dtype};
use shardax::prelude::*;

use super::tree_utils::{add_scale, scale, vdot, where_ as choose};
use super::{count, scalar_dtype};
use crate::check::{NOT_NEGATIVE, positive, within};

/// The gradient transformation that [`scale_by_zoom_linesearch`] returns.
#[derive(Tree, Clone, Debug, PartialEq)]
pub struct ScaleByZoomLinesearch {
    /// The maximum number of evaluations, at least 1. After this number, the best step so far is used.
    pub max_linesearch_steps: usize,
    /// The largest step. Default none.
    pub max_learning_rate: Option<f64>,
    /// The tolerance of both conditions. Default 0.
    pub tol: f64,
    /// The factor by which a step grows while it is too short. Default 2.
    pub increase_factor: f64,
    /// The sufficient-decrease factor of the slope (Armijo). Default 1e-4.
    pub slope_rtol: f64,
    /// The fraction of the slope that can remain (curvature condition). Default 0.9.
    pub curv_rtol: f64,
    /// The relative increase of the value that is tolerated if rounding hides its decrease. `None` tolerates no increase.
    /// Default 1e-6.
    pub approx_dec_rtol: Option<f64>,
    /// The minimum length of a searched interval. Default 1e-5.
    pub stepsize_precision: f64,
    /// Starts each search at the last step if true, otherwise at 1. Default true.
    pub keep_stepsize: bool,
}

/// The state of [`ScaleByZoomLinesearch`].
#[derive(Tree, Clone, Debug)]
pub struct ZoomLinesearchState<P> {
    /// The last step.
    pub learning_rate: Array,
    /// The function's value after the last step, or infinity before the first.
    pub value: Array,
    /// The function's gradient after the last step.
    pub grad: P,
    /// The number of evaluations of the last search, int32.
    pub num_linesearch_steps: Array,
    /// The violation of the sufficient-decrease condition by the last step.
    pub decrease_error: Array,
    /// The violation of the curvature condition by the last step.
    pub curvature_error: Array,
}

/// Finds a step along the updates that fulfils the strong Wolfe conditions: the value decreases enough, and its slope
/// flattens. Steps grow until an interval contains such a step. Cubic and quadratic interpolation then narrow the
/// interval.
///
/// The search evaluates the function. Call [`update_with`](ScaleByZoomLinesearch::update_with) instead of `update`. The
/// search cannot be part of a chain.
///
/// Source: [Nocedal and Wright 1999](https://doi.org/10.1007/978-0-387-40065-5), algorithms 3.5 and 3.6.
pub fn scale_by_zoom_linesearch(max_linesearch_steps: usize) -> ScaleByZoomLinesearch {
    ScaleByZoomLinesearch {
        max_linesearch_steps,
        max_learning_rate: None,
        tol: 0.0,
        increase_factor: 2.0,
        slope_rtol: 1e-4,
        curv_rtol: 0.9,
        approx_dec_rtol: Some(1e-6),
        stepsize_precision: 1e-5,
        keep_stepsize: true,
    }
}

/// A point on the line: its step, and the function's value and slope at this point.
#[derive(Tree, Clone, Debug)]
struct Place {
    step: Array,
    value: Array,
    slope: Array,
}

/// The state of a running search.
#[derive(Tree, Clone, Debug)]
struct Search<P> {
    count: Array,
    here: Place,
    grad: P,
    decrease_error: Array,
    curvature_error: Array,
    interval_found: Array,
    done: Array,
    failed: Array,
    low: Place,
    high: Place,
    /// A third point for the cubic, whose slope is not used.
    third: Place,
    /// The best point that decreases enough. `safe_grad` is the gradient at this point.
    safe: Place,
    safe_grad: P,
}

/// The constants of a search.
struct Line<'a, P, F> {
    options: &'a ScaleByZoomLinesearch,
    params: &'a P,
    updates: &'a P,
    value_fn: F,
    start: Place,
    guess: Array,
}

impl ScaleByZoomLinesearch {
    /// Returns the state before the first step.
    ///
    /// # Errors
    /// Returns an error if an option is out of its range.
    #[track_caller]
    pub fn init<P: Tree>(&self, params: &P) -> Result<ZoomLinesearchState<P>> {
        let owner = "scale_by_zoom_linesearch";
        positive(owner, "max_linesearch_steps", self.max_linesearch_steps)?;
        within(owner, "max_learning_rate", self.max_learning_rate.unwrap_or(1.0), f64::MIN_POSITIVE..f64::INFINITY)?;
        within(owner, "increase_factor", self.increase_factor, 1.0..f64::INFINITY)?;
        for (name, value) in [
            ("tol", self.tol),
            ("slope_rtol", self.slope_rtol),
            ("curv_rtol", self.curv_rtol),
            ("approx_dec_rtol", self.approx_dec_rtol.unwrap_or(0.0)),
            ("stepsize_precision", self.stepsize_precision),
        ] {
            within(owner, name, value, NOT_NEGATIVE)?;
        }
        let dtype = scalar_dtype(params);
        // An infinite value marks a state without a previous search.
        let infinite = full_dtype((), f64::INFINITY, dtype);
        Ok(ZoomLinesearchState {
            learning_rate: ones_dtype((), dtype),
            value: infinite.clone(),
            grad: super::tree_utils::zeros_like(params)?,
            num_linesearch_steps: count(),
            decrease_error: infinite.clone(),
            curvature_error: infinite,
        })
    }

    /// Returns the updates times the step that was found, and the next state. `value_fn` must be a scalar function; `value`
    /// and `grad` are its value and gradient at `params`.
    ///
    /// # Errors
    /// Returns an error if the trees differ in structure, or if `value_fn` fails or does not return a real scalar.
    #[track_caller]
    pub fn update_with<P, F, R>(
        &self,
        updates: P,
        state: ZoomLinesearchState<P>,
        params: &P,
        (value, grad): (Array, P),
        value_fn: F,
    ) -> Result<(P, ZoomLinesearchState<P>)>
    where
        P: Tree,
        F: Fn(P) -> R,
        R: IntoOutput<Output = Array>,
    {
        let dtype = scalar_dtype(params);
        let value = value.astype(dtype);
        let slope = vdot(&updates, &grad)?.real().astype(dtype);
        let start = Place { step: zeros_dtype((), dtype), value, slope };
        let guess = if self.keep_stepsize { state.learning_rate } else { ones_dtype((), dtype) };
        let line = Line { options: self, params, updates: &updates, value_fn, start: start.clone(), guess };
        let (no, infinite) = (array(false), full_dtype((), f64::INFINITY, dtype));
        // The errors are infinite because no step has been evaluated.
        let search = Search {
            count: count(),
            here: start.clone(),
            grad: grad.clone(),
            decrease_error: infinite.clone(),
            curvature_error: infinite,
            interval_found: no.clone(),
            done: no.clone(),
            failed: no,
            low: start.clone(),
            high: start.clone(),
            third: start.clone(),
            safe: start,
            safe_grad: grad,
        };
        let end = while_loop(
            |s: Search<P>| !(s.done | s.failed),
            |s: Search<P>| -> Result<Search<P>> {
                let interval_found = s.interval_found.clone();
                let s = cond(interval_found, |s: Search<P>| line.zoom(s), |s: Search<P>| line.widen(s), s)?;
                line.at_safe_point(s)
            },
            search,
        )?;
        let state = ZoomLinesearchState {
            learning_rate: end.here.step.clone(),
            value: end.here.value,
            grad: end.grad,
            num_linesearch_steps: end.count,
            decrease_error: end.decrease_error,
            curvature_error: end.curvature_error,
        };
        let scaled = super::tree_utils::cast_like(&scale(&state.learning_rate, &updates)?, &updates)?;
        Ok((scaled, state))
    }
}

impl<P: Tree, F: Fn(P) -> R, R: IntoOutput<Output = Array>> Line<'_, P, F> {
    /// Returns the point at this step, and the gradient at this point.
    fn at(&self, step: Array) -> Result<(Place, P)> {
        let point = super::tree_utils::cast_like(&add_scale(self.params, &step, self.updates)?, self.params)?;
        let (value, grad) = value_and_grad(|p: P| (self.value_fn)(p).into_output()).call(point)?;
        let dtype = self.start.value.dtype();
        let slope = vdot(&grad, self.updates)?.real().astype(dtype);
        Ok((Place { step, value: value.astype(dtype), slope }, grad))
    }

    /// Returns by how much a point violates the two conditions.
    fn errors(&self, place: &Place) -> (Array, Array) {
        let (o, start) = (self.options, &self.start);
        let mut decrease = &place.value - &start.value - o.slope_rtol * &place.step * &start.slope;
        if let Some(rtol) = o.approx_dec_rtol {
            let slope = &place.slope - (2.0 * o.slope_rtol - 1.0) * &start.slope;
            let value = &place.value - &start.value - rtol * start.value.abs();
            decrease = minimum(maximum(slope, value), decrease);
        }
        let curvature = place.slope.abs() - o.curv_rtol * start.slope.abs();
        (violation(decrease), violation(curvature))
    }

    /// Extends the search until an interval contains a good step.
    fn widen(&self, s: Search<P>) -> Result<Search<P>> {
        let o = self.options;
        let is_first = s.count.equal(0);
        let mut step = where_(&is_first, &self.guess, &s.here.step * o.increase_factor);
        let mut is_largest = array(false);
        if let Some(largest) = o.max_learning_rate {
            is_largest = step.greater_equal(largest);
            step = minimum(step, largest);
        }
        let (new, grad) = self.at(step)?;
        let (decrease_error, curvature_error) = self.errors(&new);
        let good = decrease_error.maximum(&curvature_error).less_equal(o.tol);
        let is_safe = decrease_error.less_equal(o.tol);
        // If the value stops decreasing, or the slope changes its sign, a good step lies between the last two points.
        let high = decrease_error.greater(0) | (new.value.greater_equal(&s.here.value) & !&is_first);
        let low = new.slope.greater_equal(0) & !&high;
        let interval_found = &high | &low | &good;
        let done = &good | (is_largest & !&interval_found);
        let low_place = choose(&low, &new, &s.here)?;
        let count = &s.count + 1;
        Ok(Search {
            failed: count.greater_equal(o.max_linesearch_steps as i32) & !&done,
            third: low_place.clone(),
            high: choose(&low, &s.here, &new)?,
            low: low_place,
            safe: choose(&is_safe, &new, &s.safe)?,
            safe_grad: choose(&is_safe, &grad, &s.safe_grad)?,
            here: new,
            count,
            grad,
            decrease_error,
            curvature_error,
            interval_found,
            done,
        })
    }

    /// Narrows the interval.
    fn zoom(&self, s: Search<P>) -> Result<Search<P>> {
        let o = self.options;
        let (low, high) = (&s.low, &s.high);
        let length = (&high.step - &low.step).abs();
        let (left, right) = (minimum(&high.step, &low.step), maximum(&high.step, &low.step));
        // A minimum near an end is not used, because the interval would shrink too slowly.
        let is_inside =
            |x: &Array, margin: f64| x.greater(&left + &length * margin) & x.less(&right - &length * margin);
        let (cubic, quadratic) = (cubic_minimum(low, high, &s.third), quadratic_minimum(low, high));
        let bisection = (&low.step + &high.step) / 2.0;
        let middle = where_(is_inside(&quadratic, 0.1), &quadratic, bisection);
        let (middle, grad) = self.at(where_(is_inside(&cubic, 0.2), &cubic, middle))?;
        let (decrease_error, curvature_error) = self.errors(&middle);
        let done = decrease_error.maximum(&curvature_error).less_equal(o.tol);
        let is_safe = decrease_error.less_equal(o.tol) & middle.value.less(&s.safe.value);
        let safe = choose(&is_safe, &middle, &s.safe)?;
        let to_middle = decrease_error.greater(0) | middle.value.greater_equal(&low.value);
        let to_low = (&middle.slope * (&high.step - &low.step)).greater_equal(0) & !&to_middle;
        let new_high = choose(&to_low, low, &choose(&to_middle, &middle, high)?)?;
        let new_low = choose(&to_middle, low, &middle)?;
        let third = choose(&to_middle | &to_low, high, low)?;
        let count = &s.count + 1;
        let too_short = length.less_equal(o.stepsize_precision) & safe.step.greater(0);
        Ok(Search {
            failed: (count.greater_equal(o.max_linesearch_steps as i32) | too_short) & !&done,
            safe_grad: choose(&is_safe, &grad, &s.safe_grad)?,
            here: middle,
            low: new_low,
            high: new_high,
            interval_found: s.interval_found,
            count,
            grad,
            decrease_error,
            curvature_error,
            done,
            third,
            safe,
        })
    }

    /// Ends a failed search at the best point that decreases enough, or at the start if nothing is finite.
    fn at_safe_point(&self, s: Search<P>) -> Result<Search<P>> {
        let is_not_finite = s.decrease_error.isinf();
        let use_safe = &s.failed & (s.safe.step.greater(0) | is_not_finite);
        Ok(Search { here: choose(&use_safe, &s.safe, &s.here)?, grad: choose(&use_safe, &s.safe_grad, &s.grad)?, ..s })
    }
}

/// Returns how much a condition `error <= 0` is violated: 0 if it holds, and infinity if the error is NaN.
fn violation(error: Array) -> Array {
    where_(error.isnan(), f64::INFINITY, maximum(error, 0))
}

/// Returns the minimum of the cubic through three values and the slope at the first.
fn cubic_minimum(a: &Place, b: &Place, c: &Place) -> Array {
    let (db, dc) = (&b.step - &a.step, &c.step - &a.step);
    let denominator = (&db * &dc).square() * (&db - &dc);
    let (vb, vc) = (&b.value - &a.value - &a.slope * &db, &c.value - &a.value - &a.slope * &dc);
    let third = (dc.square() * &vb - db.square() * &vc) / &denominator;
    let second = (db.square() * &db * vc - dc.square() * &dc * vb) / denominator;
    let radical = second.square() - 3.0 * &third * &a.slope;
    &a.step + (-second + radical.sqrt()) / (3.0 * third)
}

/// Returns the minimum of the parabola through two values and the slope at the first.
fn quadratic_minimum(a: &Place, b: &Place) -> Array {
    let db = &b.step - &a.step;
    let second = (&b.value - &a.value - &a.slope * &db) / db.square();
    &a.step - &a.slope / (2.0 * second)
}
