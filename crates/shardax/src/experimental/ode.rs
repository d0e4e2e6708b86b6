//! Ordinary differential equations, as in
//! [`jax.experimental.ode`](https://github.com/jax-ml/jax/blob/main/jax/experimental/ode.py).
//!
//! ```
//! # use shardax::prelude::*;
//! use shardax::experimental::ode::odeint;
//! // A pendulum without friction: its angle and velocity.
//! let pendulum = |(angle, velocity): (Array, Array), _t: Array, gravity: Array| (velocity, -(gravity * angle.sin()));
//! let times = array([0.0f32, 0.5, 1.0]);
//! let (angle, velocity) = odeint(pendulum, (array(0.1f32), array(0.0f32)), times, array(9.81f32))?;
//! assert_eq!((angle.shape(), velocity.shape()), (&[3][..], &[3][..]));
//! # Ok::<(), shardax::Error>(())
//! ```

use std::sync::Arc;

use crate::core::array::{Array, array_of};
use crate::core::function::{Function, IntoArg, IntoOutput};
use crate::core::program::trace::{Traced, at_caller};
use crate::core::tree::{Flat, Tree, same_structure};
use crate::dtype::{DType, Scalar};
use crate::error::{AtCaller, Result, err};
use crate::interpret::eval::eval;
use crate::interpret::flat::{avals_of, trace_flat};
use crate::interpret::higher_order::{drop_unused_captures, marked};
use crate::ops::constants::float;
use crate::ops::control_flow::{ScanOptions, custom_vjp, scan, while_loop};
use crate::ops::lax;
use crate::ops::numpy::options::options;
use crate::ops::numpy::{convert, dot, filled, real, stack, to_inexact, where_, zeros_like};
use crate::ops::operators::ArrayLike;
use crate::precision::{Precision, default_matmul_precision};
use crate::transform::{ravel_pytree, vjp, vmap};

options! {
    /// Options of [`odeint`](odeint()).
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// use shardax::experimental::ode::OdeintOptions;
    /// let decay = |y: Array, _t: Array, rate: Array| -(y * rate);
    /// let y = OdeintOptions::new().rtol(1e-4).atol(1e-6).odeint(decay, array(1.0f32), array([0.0f32, 1.0]), array(2.0f32))?;
    /// assert!((y.to_vec::<f32>()?[1] - (-2.0f32).exp()).abs() < 1e-4);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    OdeintOptions {
        /// The tolerated error of a step relative to the solution. Default 1.4e-8.
        rtol: f64 = 1.4e-8, |rtol: f64| rtol;
        /// The tolerated absolute error of a step. Default 1.4e-8.
        atol: f64 = 1.4e-8, |atol: f64| atol;
        /// The largest number of steps from one time to the next. If the solver reaches it, the value at the next time is
        /// extrapolated. Default: no limit.
        mxstep: Option<usize> = None, |mxstep: impl Into<Option<usize>>| mxstep.into();
        /// The largest step. Default: no limit.
        hmax: f64 = f64::INFINITY, |hmax: f64| hmax;
    }
}

/// Solves `dy/dt = func(y, t, args)`, where `y0` is the solution at the first of the ascending times `t`. Returns the
/// solution at all times: a tree like `y0` with a new first dimension.
///
/// The solver uses the Dormand-Prince method of order 5, and chooses the steps so that their errors stay within the
/// tolerances of [`OdeintOptions`].
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::experimental::ode::odeint;
/// let decay = |y: Array, _t: Array, rate: Array| -(y * rate);
/// let end = |rate: Array| -> Result<Array> {
///     Ok(odeint(decay, array(1.0f64), array([0.0f64, 1.0]), rate)?.get(-1))
/// };
/// let slope = jit(grad(end)).call(array_of(2.0, DType::F64))?;
/// assert!((slope.item::<f64>()? + (-2.0f64).exp()).abs() < 1e-6);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// You can differentiate the solution with respect to `y0`, `t`, and the floating point arrays in `args` and among the
/// captures of `func`. The gradient solves the adjoint equation backwards from time to time, so that it needs no memory for
/// the steps. There is no forward mode.
///
/// # Errors
/// Returns an error if `t` is not a vector of floats, if `func` fails, or if it does not return the structure and shapes of
/// `y0`.
#[track_caller]
pub fn odeint<Y, A, R>(
    func: impl Fn(Y, Array, A) -> R,
    y0: impl IntoArg<Y>,
    t: impl ArrayLike,
    args: impl IntoArg<A>,
) -> Result<Y>
where
    Y: Tree,
    A: Tree,
    R: IntoOutput<Output = Y>,
{
    OdeintOptions::new().odeint(func, y0, t, args)
}

impl OdeintOptions {
    /// See [`odeint`](odeint()).
    ///
    /// # Errors
    /// Returns an error if `func` fails, or if it does not return a tree with the structure and the shapes of `y0`.
    #[track_caller]
    pub fn odeint<Y, A, R>(
        &self,
        func: impl Fn(Y, Array, A) -> R,
        y0: impl IntoArg<Y>,
        t: impl ArrayLike,
        args: impl IntoArg<A>,
    ) -> Result<Y>
    where
        Y: Tree,
        A: Tree,
        R: IntoOutput<Output = Y>,
    {
        let (y0, t, args) = (Flat::of(&y0.into_arg()), t.into_array(), Flat::from_arguments(&args.into_arg()));
        at_caller(|| {
            self.solve_flat(
                &|inputs: &Flat| {
                    let (y, t, args) = inputs.build::<(Y, Array, A)>()?;
                    Ok(Flat::of(&func(y, t, args).into_output()?))
                },
                y0,
                &t,
                &args,
            )
        })
        .at_caller()?
        .build()
    }

    fn solve_flat(&self, func: &dyn Fn(&Flat) -> Result<Flat>, mut y0: Flat, t: &Array, args: &Flat) -> Result<Flat> {
        t.check()?;
        if !t.dtype().is_float() || t.ndim() != 1 || t.size() == 0 {
            return Err(err!(Type, "t must be an array of floats, but got {}", t.type_name())
                .help("pass a vector of ascending times; the first is the time of `y0`"));
        }
        for leaf in &mut y0.leaves {
            leaf.check()?;
            *leaf = convert(leaf, to_inexact(leaf.dtype()), false);
        }
        let (start, unravel) = ravel_pytree(&y0)?;
        // Weakly typed times, for example Rust numbers, get the dtype of the solution.
        let t = convert(t, if t.weak_type() { start.dtype().real() } else { t.dtype() }, false);

        let inputs = Flat::of(&(y0.clone(), t.get(0), args.clone()));
        let (traced, out_def) = trace_flat(&inputs.def, &avals_of(&inputs)?, func)?;
        same_structure(&y0.def, &out_def).map_err(|e| e.context("func of odeint must return a tree like y0"))?;
        for (slope, y) in traced.program.out_avals().iter().zip(&y0.leaves) {
            if slope.shape != y.aval().shape || slope.dtype.is_complex() && !y.dtype().is_complex() {
                return Err(err!(Type, "func of odeint must return a tree like y0, got {slope} for {}", y.type_name())
                    .help("return the derivative of each array of `y0` with respect to time"));
            }
        }
        // From here the solution is one vector, and captures are further arguments, so that they have gradients.
        let Traced { program, captures } = drop_unused_captures(traced);
        let (dtype, count) = (start.dtype(), captures.len());
        let unravel = Arc::new(unravel);
        let unravel_y = unravel.clone();
        let args = [&captures[..], &args.leaves].concat();
        let ys = solve(
            Arc::new(move |y: &Array, t: &Array, args: &[Array]| {
                let (captures, args) = args.split_at(count);
                let y = unravel_y.call(y)?;
                let slope = eval(&program, &[captures, &y.leaves, std::slice::from_ref(t), args].concat())?;
                let slope = Flat { leaves: slope.into_iter().collect(), def: y.def };
                Ok(convert(&ravel_pytree(&slope)?.0, dtype, false))
            }),
            self.clone(),
            start,
            t,
            args,
        )?;
        vmap(|y: Array| unravel.call(&y)).apply((ys,))
    }
}

/// A function that returns the derivative of the solution. It takes the solution (a vector), the time, and further arguments.
type Dynamics = Arc<dyn Fn(&Array, &Array, &[Array]) -> Result<Array> + Send + Sync>;

/// Computes the solution at all times, with a rule for reverse mode.
fn solve(dynamics: Dynamics, options: OdeintOptions, y0: Array, ts: Array, args: Vec<Array>) -> Result<Array> {
    let primal = |y0: Array, ts: Array, args: Vec<Array>| integrate(&dynamics, &options, &y0, &ts, &args);
    let (forward_dynamics, reverse_dynamics) = (dynamics.clone(), dynamics.clone());
    let (forward_options, reverse_options) = (options.clone(), options.clone());
    custom_vjp(primal)
        .defvjp(
            move |y0: Array, ts: Array, args: Vec<Array>| -> Result<(Array, (Array, Array, Vec<Array>))> {
                let ys = solve(forward_dynamics.clone(), forward_options.clone(), y0, ts.clone(), args.clone())?;
                Ok((ys.clone(), (ys, ts, args)))
            },
            move |residuals: (Array, Array, Vec<Array>), ct: Array| {
                adjoint(&reverse_dynamics, &reverse_options, residuals, &ct)
            },
        )
        .apply((y0, ts, args))
}

/// Computes the cotangents of the initial value, the times and the arguments. It solves an augmented equation backwards,
/// whose state is the solution and these cotangents
/// ([Chen et al., Neural ordinary differential equations, appendix C](https://arxiv.org/abs/1806.07366)).
fn adjoint(
    dynamics: &Dynamics,
    options: &OdeintOptions,
    (ys, ts, args): (Array, Array, Vec<Array>),
    ct: &Array,
) -> Result<(Array, Array, Vec<Array>)> {
    type State = (Array, Array, Array, Vec<Array>);
    let _precise = default_matmul_precision(Precision::Highest);
    let is_varied: Vec<bool> = args.iter().map(|x| x.dtype().is_inexact()).collect();
    let varied: Vec<Array> = marked(&args, &is_varied);
    let zeros: Vec<Array> = varied.iter().map(|x| filled(x.shape(), Scalar::Int(0), x.dtype())).collect();
    let (end, zero) = (ts.size() - 1, filled(&[], Scalar::Int(0), ts.dtype()));

    let end_state: State = (ys.get(end), ct.get(end), zero.clone(), zeros.clone());
    let (vector, unravel) = ravel_pytree(&end_state)?;
    let (dtype, unravel) = (vector.dtype(), Arc::new(unravel));
    let augmented: Dynamics = {
        let (dynamics, unravel, is_varied) = (dynamics.clone(), unravel.clone(), is_varied.clone());
        // The equation is solved backwards, so time is negated: the solver expects ascending times.
        Arc::new(move |state: &Array, t: &Array, args: &[Array]| {
            let (y, y_bar, ..) = unravel.call(state)?;
            let slope = |y: Array, t: Array, varied: Vec<Array>| {
                let args = merge_marked(args, &is_varied, varied, Array::clone);
                dynamics(&y, &t, &args)
            };
            let (slope, pull_back) = vjp(slope, (y, -t, marked(args, &is_varied)))?;
            let (y_bar, t_bar, args_bar) = pull_back.call(y_bar)?;
            Ok(convert(&ravel_pytree(&(-slope, y_bar, t_bar, args_bar))?.0, dtype, false))
        })
    };
    // A step integrates from one time back to the time before it, and adds the cotangent of the solution there.
    let inputs = [without_first(&ys), without_first(&ts), without_last(&ts), without_first(ct), without_last(ct)];
    let scan = ScanOptions::new().reverse(true);
    let ((y_bar, t0_bar, args_bar), ts_bar) = scan.scan(
        |(y_bar, t0_bar, args_bar): (Array, Array, Vec<Array>), inputs: [Array; 5]| -> Result<_> {
            let [y, t, t_before, ct, ct_before] = inputs;
            // A later end time moves the solution along its slope.
            let t_bar = real(dot(&dynamics(&y, &t, &args)?, &ct)).astype(t.dtype());
            let state: State = (y, y_bar, t0_bar - &t_bar, args_bar);
            let times = stack([-t, -t_before], 0);
            let states = solve(augmented.clone(), options.clone(), ravel_pytree(&state)?.0, times, args.clone())?;
            let (_, y_bar, t0_bar, args_bar) = unravel.call(&states.get(1))?;
            Ok(((y_bar + ct_before, t0_bar, args_bar), t_bar))
        },
        (ct.get(end), zero, zeros),
        inputs,
    )?;
    let args_bar = merge_marked(&args, &is_varied, args_bar, |x| zeros_like(x));
    Ok((y_bar, lax::concatenate(&[t0_bar.reshape([1]), ts_bar], 0), args_bar))
}

/// Undoes [`marked`]: returns one array for each of `args`, which is the next of `values` if the argument is marked, and
/// `otherwise(argument)` if not.
fn merge_marked(args: &[Array], marks: &[bool], values: Vec<Array>, otherwise: fn(&Array) -> Array) -> Vec<Array> {
    let mut values = values.into_iter();
    let args = args.iter().zip(marks);
    args.map(|(x, mark)| mark.then(|| values.next()).flatten().unwrap_or_else(|| otherwise(x))).collect()
}

/// Returns the array without the first entry of its first dimension.
fn without_first(x: &Array) -> Array {
    lax::slice_in_dim(x, 1, x.shape()[0], 0)
}

/// Returns the array without the last entry of its first dimension.
fn without_last(x: &Array) -> Array {
    lax::slice_in_dim(x, 0, x.shape()[0] - 1, 0)
}

/// The nodes of a step, as fractions of its size.
const NODES: [f64; 6] = [1.0 / 5.0, 3.0 / 10.0, 4.0 / 5.0, 8.0 / 9.0, 1.0, 1.0];

/// The weights of the earlier slopes at each node.
const WEIGHTS: [[f64; 7]; 6] = [
    [1.0 / 5.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
    [3.0 / 40.0, 9.0 / 40.0, 0.0, 0.0, 0.0, 0.0, 0.0],
    [44.0 / 45.0, -56.0 / 15.0, 32.0 / 9.0, 0.0, 0.0, 0.0, 0.0],
    [19372.0 / 6561.0, -25360.0 / 2187.0, 64448.0 / 6561.0, -212.0 / 729.0, 0.0, 0.0, 0.0],
    [9017.0 / 3168.0, -355.0 / 33.0, 46732.0 / 5247.0, 49.0 / 176.0, -5103.0 / 18656.0, 0.0, 0.0],
    SOLUTION,
];

/// The weights of the slopes for the solution of order 5.
const SOLUTION: [f64; 7] = [35.0 / 384.0, 0.0, 500.0 / 1113.0, 125.0 / 192.0, -2187.0 / 6784.0, 11.0 / 84.0, 0.0];

/// The weights of the slopes for the difference between the solutions of order 5 and 4, which estimates the error.
const ERROR: [f64; 7] = [
    35.0 / 384.0 - 1951.0 / 21600.0,
    0.0,
    500.0 / 1113.0 - 22642.0 / 50085.0,
    125.0 / 192.0 - 451.0 / 720.0,
    -2187.0 / 6784.0 + 12231.0 / 42400.0,
    11.0 / 84.0 - 649.0 / 6300.0,
    -1.0 / 60.0,
];

/// The weights of the slopes for the solution in the middle of the step
/// ([Shampine, Some practical Runge-Kutta formulas](https://doi.org/10.1090/S0025-5718-1986-0815836-3)).
const MIDDLE: [f64; 7] = [
    6025192743.0 / 30085553152.0 / 2.0,
    0.0,
    51252292925.0 / 65400821598.0 / 2.0,
    -2691868925.0 / 45128329728.0 / 2.0,
    187940372067.0 / 1594534317056.0 / 2.0,
    -1776094331.0 / 19743644256.0 / 2.0,
    11237099.0 / 235043384.0 / 2.0,
];

/// Computes one step from the solution `y` and its slope `f`. Returns the solution at the end of the step, its slope, its
/// error, and the slopes at all nodes, one row each.
fn runge_kutta_step(
    slope: &dyn Fn(&Array, &Array) -> Result<Array>,
    (y, f): (&Array, &Array),
    t: &Array,
    dt: &Array,
) -> Result<[Array; 4]> {
    let step = dt.astype(y.dtype());
    let start = filled(&[7, y.size()], Scalar::Int(0), y.dtype()).at(0).set(f);
    let nodes = (lax::iota(DType::I32, &[6], 0) + 1, array_of(NODES, dt.dtype()), array_of(WEIGHTS, y.dtype()));
    let (k, ()) = scan(
        |k: Array, (i, node, weights): (Array, Array, Array)| -> Result<(Array, ())> {
            let y_at_node = y + &step * dot(&weights, &k);
            Ok((k.at(&i).set(slope(&y_at_node, &(t + dt * node))?), ()))
        },
        start,
        nodes,
    )?;
    let end = &step * dot(&array_of(SOLUTION, y.dtype()), &k) + y;
    let error = &step * dot(&array_of(ERROR, y.dtype()), &k);
    Ok([end, k.get(6), error, k])
}

/// Returns the coefficients of the polynomial of degree 4 that interpolates a step, one row each, the highest first.
fn interpolant(y0: &Array, y1: &Array, k: &Array, dt: &Array) -> Array {
    let dt = &dt.astype(y0.dtype());
    let middle = &(y0 + dt * dot(&array_of(MIDDLE, y0.dtype()), k));
    let (s0, s1) = (&(dt * k.get(0)), &(dt * k.get(6)));
    let a = s0 * -2.0 + s1 * 2.0 - y0 * 8.0 - y1 * 8.0 + middle * 16.0;
    let b = s0 * 5.0 - s1 * 3.0 + y0 * 18.0 + y1 * 14.0 - middle * 32.0;
    let c = s0 * -4.0 + s1 - y0 * 11.0 - y1 * 5.0 + middle * 16.0;
    stack([&a, &b, &c, s0, y0], 0)
}

/// Returns the square of the absolute value.
fn square(x: &Array) -> Array {
    if x.dtype().is_complex() { real(x).square() + x.imag().square() } else { x.square() }
}

/// Estimates the size of the first step
/// ([Hairer, Nørsett and Wanner, Solving ordinary differential equations I, section II.4](https://doi.org/10.1007/978-3-540-78862-1)).
fn first_step(
    slope: &dyn Fn(&Array, &Array) -> Result<Array>,
    options: &OdeintOptions,
    (y, f): (&Array, &Array),
    t: &Array,
) -> Result<Array> {
    let scale = y.abs() * options.rtol + options.atol;
    let (d0, d1) = (norm(&(y / &scale)), norm(&(f / &scale)));
    let h0 = where_(d0.less(1e-5) | d1.less(1e-5), 1e-6, &d0 * 0.01 / &d1);
    let f1 = slope(&(y + h0.astype(y.dtype()) * f), &(t + h0.astype(t.dtype())))?;
    let d2 = norm(&((f1 - f) / &scale)) / &h0;
    let flat = d1.less_equal(1e-15) & d2.less_equal(1e-15);
    let h1 = where_(flat, (&h0 * 1e-3).maximum(1e-6), (0.01 / d1.maximum(d2)).pow(1.0 / 5.0));
    Ok((h0 * 100.0).minimum(h1).clip(0.0, options.hmax).astype(t.dtype()))
}

fn norm(x: &Array) -> Array {
    square(x).sum(..).sqrt()
}

/// Computes the size of the next step from the last size and the step's error relative to the tolerance. After an accepted
/// step the size never shrinks.
fn next_step(dt: &Array, error: &Array) -> Array {
    // A choice between two plain numbers would be float32, also for errors in float64.
    let smallest_factor = where_(error.less(1), 1.0, float(0.2, error.dtype()));
    let factor = (error.pow(-1.0 / 5.0) * 0.9).maximum(smallest_factor).minimum(10.0);
    where_(error.equal(0), dt * 10.0, dt * factor.astype(dt.dtype()))
}

/// Computes the solution at all times. A scan over the times runs a loop of steps up to the next time, and interpolates the
/// last step there; therefore steps do not have to end at the times.
fn integrate(dynamics: &Dynamics, options: &OdeintOptions, y0: &Array, ts: &Array, args: &[Array]) -> Result<Array> {
    /// The solution, its slope, the time, the size of the next step, and the start and polynomial of the last step.
    type State = [Array; 6];
    let _precise = default_matmul_precision(Precision::Highest);
    let slope = |y: &Array, t: &Array| dynamics(y, t, args);
    // One step of the inner loop. Both outcomes are computed, because a program cannot skip a rejected step.
    let step = |(i, [y, f, t, dt, last_t, fit]): (Array, State)| -> Result<(Array, State)> {
        let [end, end_slope, error, k] = runge_kutta_step(&slope, (&y, &f), &t, &dt)?;
        let tolerance = y.abs().maximum(end.abs()) * options.rtol + options.atol;
        let ratio = square(&(error / tolerance)).mean(..).sqrt();
        let next_dt = next_step(&dt, &ratio).clip(0.0, options.hmax);
        let new = [end.clone(), end_slope, &t + &dt, next_dt.clone(), t.clone(), interpolant(&y, &end, &k, &dt)];
        let accepted = &ratio.less_equal(1.0);
        let old = [y, f, t, next_dt, last_t, fit];
        let mut chosen = new.iter().zip(&old).map(|(new, old)| where_(accepted, new, old));
        Ok((i + 1, std::array::from_fn(|i| chosen.next().unwrap_or_else(|| old[i].clone()))))
    };
    let t0 = ts.get(0);
    let f0 = slope(y0, &t0)?;
    let dt = first_step(&slope, options, (y0, &f0), &t0)?;
    let start = [y0.clone(), f0, t0.clone(), dt, t0, stack([y0; 5], 0)];
    let (_, ys) = scan(
        |state: State, target: Array| -> Result<(State, Array)> {
            let (_, state) = while_loop(
                |(i, [_, _, t, dt, ..]): (Array, State)| {
                    let is_before_target = t.less(&target) & dt.greater(0);
                    match options.mxstep {
                        Some(max_steps) => is_before_target & i.less(max_steps.min(i32::MAX as usize)),
                        None => is_before_target,
                    }
                },
                step,
                (Array::from(0), state),
            )?;
            // The last step ends at or after the target, so that the polynomial of the step covers it.
            let [_, _, t, _, last_t, fit] = &state;
            let fraction = ((target - last_t) / (t - last_t)).astype(fit.dtype());
            let value = (1..5).fold(fit.get(0), |sum, i| sum * &fraction + fit.get(i));
            Ok((state, value))
        },
        start,
        lax::slice_in_dim(ts, 1, ts.size(), 0),
    )?;
    Ok(lax::concatenate(&[y0.expand_dims(0), ys], 0))
}
