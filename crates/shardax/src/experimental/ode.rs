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
use crate::core::function::{Function, IntoOutput};
use crate::core::program::trace::{Traced, at_caller};
use crate::core::tree::{Flat, Tree, same_structure};
use crate::dtype::{DType, Scalar};
use crate::error::{AtCaller, Result, err};
use crate::interpret::eval::eval;
use crate::interpret::flat::{avals_of, trace_flat};
use crate::interpret::higher_order::{drop_unused_captures, marked};
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
        /// The error of a step relative to the solution. Default 1.4e-8.
        rtol: f64 = 1.4e-8, |rtol: f64| rtol;
        /// The error of a step that is always allowed. Default 1.4e-8.
        atol: f64 = 1.4e-8, |atol: f64| atol;
        /// The largest number of steps from one time to the next; the value there is extrapolated if it is reached.
        /// Default: no limit.
        mxstep: Option<usize> = None, |mxstep: impl Into<Option<usize>>| mxstep.into();
        /// The largest step. Default: no limit.
        hmax: f64 = f64::INFINITY, |hmax: f64| hmax;
    }
}

/// Solves `dy/dt = func(y, t, args)` from `y0` at the first of the times `t`, which ascend: the solution at all times, a
/// tree like `y0` with a new first dimension. The steps are those of Dormand's and Prince's method, of order 5, as long as
/// the tolerances allow ([`OdeintOptions`]).
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
/// The gradient is that of the adjoint equation, solved backwards from time to time, with respect to `y0`, `t`, the
/// floating point arrays of `args`, and those that `func` captures; it needs no memory for the steps. There is no forward
/// mode.
///
/// Fails unless `t` is a vector of floats, and `func` returns the structure and shapes of `y0`.
#[track_caller]
pub fn odeint<Y, A, R>(func: impl Fn(Y, Array, A) -> R, y0: Y, t: impl ArrayLike, args: A) -> Result<Y>
where
    Y: Tree,
    A: Tree,
    R: IntoOutput<Output = Y>,
{
    OdeintOptions::new().odeint(func, y0, t, args)
}

impl OdeintOptions {
    /// See [`odeint`](odeint()).
    #[track_caller]
    pub fn odeint<Y, A, R>(&self, func: impl Fn(Y, Array, A) -> R, y0: Y, t: impl ArrayLike, args: A) -> Result<Y>
    where
        Y: Tree,
        A: Tree,
        R: IntoOutput<Output = Y>,
    {
        let (y0, t, args) = (Flat::of(&y0), t.into_array(), Flat::of_arguments(&args));
        let of_leaves = |leaves: &Flat| {
            let (y, t, args) = leaves.build::<(Y, Array, A)>()?;
            Ok(Flat::of(&func(y, t, args).into_output()?))
        };
        at_caller(|| self.solved(&of_leaves, y0, &t, &args)).at_caller()?.build()
    }

    fn solved(&self, func: &dyn Fn(&Flat) -> Result<Flat>, mut y0: Flat, t: &Array, args: &Flat) -> Result<Flat> {
        t.check()?;
        if !t.dtype().is_float() || t.ndim() != 1 || t.size() == 0 {
            return Err(err!(Type, "t must be an array of floats, but got {}", t.type_name())
                .help("give a vector of ascending times, the first of them that of `y0`"));
        }
        for leaf in &mut y0.leaves {
            leaf.check()?;
            *leaf = convert(leaf, to_inexact(leaf.dtype()), false);
        }
        let (start, unravel) = ravel_pytree(&y0)?;
        // Times without a dtype of their own have that of the solution.
        let t = convert(t, if t.weak_type() { start.dtype().real() } else { t.dtype() }, false);

        let inputs = Flat::of(&(y0.clone(), t.get(0), args.clone()));
        let (traced, out_def) = trace_flat(&inputs.def, &avals_of(&inputs)?, func)?;
        same_structure(&y0.def, &out_def).map_err(|e| e.context("func of odeint must return a tree like y0"))?;
        for (got, want) in traced.program.out_avals().iter().zip(&y0.leaves) {
            if got.shape != want.aval().shape || got.dtype.is_complex() && !want.dtype().is_complex() {
                return Err(err!(
                    Type,
                    "func of odeint must return a tree like y0, got {got} for {}",
                    want.type_name()
                )
                .help("return the derivative of each array of `y0` with respect to time"));
            }
        }
        let Traced { program, captures } = drop_unused_captures(traced);
        let (dtype, count) = (start.dtype(), captures.len());
        let unravel = Arc::new(unravel);
        let unravel_one = unravel.clone();
        let dynamics = move |y: &Array, t: &Array, args: &[Array]| {
            let (captures, args) = args.split_at(count);
            let y = unravel_one.call(y)?;
            let slope = eval(&program, &[captures, &y.leaves, std::slice::from_ref(t), args].concat())?;
            let slope = Flat { leaves: slope.into_iter().collect(), def: y.def };
            Ok(convert(&ravel_pytree(&slope)?.0, dtype, false))
        };
        let args = [&captures[..], &args.leaves].concat();
        let ys = solve(Arc::new(dynamics), self.clone(), start, t, args)?;
        vmap(|y: Array| unravel.call(&y)).apply((ys,))
    }
}

/// The derivative of the solution, a vector, from the solution, the time and further arguments.
type Dynamics = Arc<dyn Fn(&Array, &Array, &[Array]) -> Result<Array> + Send + Sync>;

/// The solution at all times, with its own rule for reverse mode.
fn solve(dynamics: Dynamics, options: OdeintOptions, y0: Array, ts: Array, args: Vec<Array>) -> Result<Array> {
    let primal = |y0: Array, ts: Array, args: Vec<Array>| integrate(&dynamics, &options, &y0, &ts, &args);
    let (of_forward, of_reverse) = (dynamics.clone(), dynamics.clone());
    let (forward_options, reverse_options) = (options.clone(), options.clone());
    let forward = move |y0: Array, ts: Array, args: Vec<Array>| -> Result<(Array, (Array, Array, Vec<Array>))> {
        let ys = solve(of_forward.clone(), forward_options.clone(), y0, ts.clone(), args.clone())?;
        Ok((ys.clone(), (ys, ts, args)))
    };
    let reverse =
        move |residuals: (Array, Array, Vec<Array>), ct: Array| adjoint(&of_reverse, &reverse_options, residuals, &ct);
    custom_vjp(primal).defvjp(forward, reverse).apply((y0, ts, args))
}

/// The cotangents of the initial value, the times and the arguments: those of the state are solved for backwards, together
/// with the state ([Chen et al., Neural ordinary differential equations, appendix C](https://arxiv.org/abs/1806.07366)).
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
    let (last, zero) = (ts.size() - 1, filled(&[], Scalar::Int(0), ts.dtype()));

    let first: State = (ys.get(last), ct.get(last), zero.clone(), zeros.clone());
    let (vector, unravel) = ravel_pytree(&first)?;
    let (dtype, unravel) = (vector.dtype(), Arc::new(unravel));
    let augmented: Dynamics = {
        let (dynamics, unravel, is_varied) = (dynamics.clone(), unravel.clone(), is_varied.clone());
        // Time is negated, so that it ascends.
        Arc::new(move |state: &Array, t: &Array, args: &[Array]| {
            let (y, y_bar, ..) = unravel.call(state)?;
            let slope = |y: Array, t: Array, varied: Vec<Array>| {
                let mut varied = varied.into_iter();
                let all = args.iter().zip(&is_varied);
                let all =
                    all.map(|(x, is_varied)| is_varied.then(|| varied.next()).flatten().unwrap_or_else(|| x.clone()));
                dynamics(&y, &t, &all.collect::<Vec<_>>())
            };
            let (slope, pull_back) = vjp(slope, (y, -t, marked(args, &is_varied)))?;
            let (y_bar, t_bar, args_bar) = pull_back.call(y_bar)?;
            Ok(convert(&ravel_pytree(&(-slope, y_bar, t_bar, args_bar))?.0, dtype, false))
        })
    };
    let step = |(y_bar, t0_bar, args_bar): (Array, Array, Vec<Array>), at: [Array; 5]| -> Result<_> {
        let [y, t, before, ct, ct_before] = at;
        // The effect of the time at which the solution is taken.
        let t_bar = real(dot(&dynamics(&y, &t, &args)?, &ct)).astype(t.dtype());
        let state: State = (y, y_bar, t0_bar - &t_bar, args_bar);
        let times = stack([-t, -before], 0);
        let states = solve(augmented.clone(), options.clone(), ravel_pytree(&state)?.0, times, args.clone())?;
        let (_, y_bar, t0_bar, args_bar) = unravel.call(&states.get(1))?;
        Ok(((y_bar + ct_before, t0_bar, args_bar), t_bar))
    };
    let but_first = |x: &Array| lax::slice_in_dim(x, 1, last + 1, 0);
    let but_last = |x: &Array| lax::slice_in_dim(x, 0, last, 0);
    let each = [but_first(&ys), but_first(&ts), but_last(&ts), but_first(ct), but_last(ct)];
    let scan = ScanOptions::default().reverse(true);
    let ((y_bar, t0_bar, args_bar), ts_bar) = scan.scan(step, (ct.get(last), zero, zeros), each)?;
    let mut args_bar = args_bar.into_iter();
    let args_bar = args.iter().zip(is_varied).map(|(x, is_varied)| match is_varied {
        true => args_bar.next().unwrap_or_else(|| zeros_like(x)),
        false => zeros_like(x),
    });
    Ok((y_bar, lax::concatenate(&[t0_bar.reshape([1]), ts_bar], 0), args_bar.collect()))
}

/// The nodes of a step, in units of its size.
const NODES: [f64; 6] = [1.0 / 5.0, 3.0 / 10.0, 4.0 / 5.0, 8.0 / 9.0, 1.0, 1.0];

/// The weights of the slopes before each node.
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

/// Those for its difference to the solution of order 4.
const ERROR: [f64; 7] = [
    35.0 / 384.0 - 1951.0 / 21600.0,
    0.0,
    500.0 / 1113.0 - 22642.0 / 50085.0,
    125.0 / 192.0 - 451.0 / 720.0,
    -2187.0 / 6784.0 + 12231.0 / 42400.0,
    11.0 / 84.0 - 649.0 / 6300.0,
    -1.0 / 60.0,
];

/// Those for the solution in the middle of the step
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

/// The solution at the end of a step, its slope there and its error, from the solution and the slope at its start; and the
/// slopes at all nodes, one row each.
fn runge_kutta_step(
    slope: &dyn Fn(&Array, &Array) -> Result<Array>,
    (y, f): (&Array, &Array),
    t: &Array,
    dt: &Array,
) -> Result<[Array; 4]> {
    let step = dt.astype(y.dtype());
    let weights = |weights: &[f64; 7]| array_of(*weights, y.dtype());
    let node = |k: Array, (i, node, weights): (Array, Array, Array)| -> Result<(Array, ())> {
        let at = y + &step * dot(&weights, &k);
        Ok((k.at(&i).set(slope(&at, &(t + dt * node))?), ()))
    };
    let start = filled(&[7, y.size()], Scalar::Int(0), y.dtype()).at(0).set(f);
    let nodes = (lax::iota(DType::I32, &[6], 0) + 1, array_of(NODES, dt.dtype()), array_of(WEIGHTS, y.dtype()));
    let (k, ()) = scan(node, start, nodes)?;
    let end = &step * dot(&weights(&SOLUTION), &k) + y;
    let error = &step * dot(&weights(&ERROR), &k);
    Ok([end, k.get(6), error, k])
}

/// The coefficients of the polynomial of degree 4 through a step, one row each, the highest first.
fn interpolant(y0: &Array, y1: &Array, k: &Array, dt: &Array) -> Array {
    let dt = &dt.astype(y0.dtype());
    let middle = &(y0 + dt * dot(&array_of(MIDDLE, y0.dtype()), k));
    let (s0, s1) = (&(dt * k.get(0)), &(dt * k.get(6)));
    let a = s0 * -2.0 + s1 * 2.0 - y0 * 8.0 - y1 * 8.0 + middle * 16.0;
    let b = s0 * 5.0 - s1 * 3.0 + y0 * 18.0 + y1 * 14.0 - middle * 32.0;
    let c = s0 * -4.0 + s1 - y0 * 11.0 - y1 * 5.0 + middle * 16.0;
    stack([&a, &b, &c, s0, y0], 0)
}

/// The square of the absolute value.
fn square(x: &Array) -> Array {
    match x.dtype().is_complex() {
        true => real(x).square() + x.imag().square(),
        false => x.square(),
    }
}

/// The size of the first step
/// ([Hairer, Nørsett and Wanner, Solving ordinary differential equations I, section II.4](https://doi.org/10.1007/978-3-540-78862-1)).
fn first_step(
    slope: &dyn Fn(&Array, &Array) -> Result<Array>,
    options: &OdeintOptions,
    (y, f): (&Array, &Array),
    t: &Array,
) -> Result<Array> {
    let scale = y.abs() * options.rtol + options.atol;
    let norm = |x: &Array| square(&(x / &scale)).sum(..).sqrt();
    let (d0, d1) = (norm(y), norm(f));
    let h0 = where_(d0.less(1e-5) | d1.less(1e-5), 1e-6, &d0 * 0.01 / &d1);
    let f1 = slope(&(y + h0.astype(y.dtype()) * f), &(t + h0.astype(t.dtype())))?;
    let d2 = norm(&(f1 - f)) / &h0;
    let flat = d1.less_equal(1e-15) & d2.less_equal(1e-15);
    let h1 = where_(flat, (&h0 * 1e-3).maximum(1e-6), (0.01 / d1.maximum(d2)).pow(1.0 / 5.0));
    Ok((h0 * 100.0).minimum(h1).clip(0.0, options.hmax).astype(t.dtype()))
}

/// The size of the next step, from the last and its error relative to the tolerance.
fn next_step(dt: &Array, error: &Array) -> Array {
    let at_least = where_(error.less(1), 1.0, 0.2);
    let factor = (error.pow(-1.0 / 5.0) * 0.9).maximum(at_least).minimum(10.0);
    where_(error.equal(0), dt * 10.0, dt * factor.astype(dt.dtype()))
}

/// The solution at all times.
fn integrate(dynamics: &Dynamics, options: &OdeintOptions, y0: &Array, ts: &Array, args: &[Array]) -> Result<Array> {
    /// The solution, its slope, the time, the next step, the time of the last step, and the polynomial through it.
    type State = [Array; 6];
    let _precise = default_matmul_precision(Precision::Highest);
    let slope = |y: &Array, t: &Array| dynamics(y, t, args);
    let step = |(i, [y, f, t, dt, last, fit]): (Array, State)| -> Result<(Array, State)> {
        let [end, end_slope, error, k] = runge_kutta_step(&slope, (&y, &f), &t, &dt)?;
        let tolerance = y.abs().maximum(end.abs()) * options.rtol + options.atol;
        let ratio = square(&(error / tolerance)).mean(..).sqrt();
        let next_dt = next_step(&dt, &ratio).clip(0.0, options.hmax);
        let new = [end.clone(), end_slope, &t + &dt, next_dt.clone(), t.clone(), interpolant(&y, &end, &k, &dt)];
        let accepted = &ratio.less_equal(1.0);
        let old = [y, f, t, next_dt, last, fit];
        let mut chosen = new.iter().zip(&old).map(|(new, old)| where_(accepted, new, old));
        Ok((i + 1, std::array::from_fn(|i| chosen.next().unwrap_or_else(|| old[i].clone()))))
    };
    let until = |state: State, target: Array| -> Result<(State, Array)> {
        let going = |(i, [_, _, t, dt, ..]): (Array, State)| {
            let going = t.less(&target) & dt.greater(0);
            match options.mxstep {
                Some(most) => going & i.less(most.min(i32::MAX as usize)),
                None => going,
            }
        };
        let (_, state) = while_loop(going, step, (Array::from(0), state))?;
        let [_, _, t, _, last, fit] = &state;
        let at = ((target - last) / (t - last)).astype(fit.dtype());
        let value = (1..5).fold(fit.get(0), |sum, i| sum * &at + fit.get(i));
        Ok((state, value))
    };
    let t0 = ts.get(0);
    let f0 = slope(y0, &t0)?;
    let dt = first_step(&slope, options, (y0, &f0), &t0)?;
    let start = [y0.clone(), f0, t0.clone(), dt, t0, stack([y0; 5], 0)];
    let (_, ys) = scan(until, start, lax::slice_in_dim(ts, 1, ts.size(), 0))?;
    Ok(lax::concatenate(&[y0.expand_dims(0), ys], 0))
}
