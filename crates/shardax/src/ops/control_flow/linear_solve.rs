//! `custom_linear_solve` and `custom_root`, whose solutions are differentiated implicitly through the equations that
//! they satisfy.

use std::panic::Location;
use std::sync::Arc;

use crate::core::array::Array;
use crate::core::function::IntoOutput;
use crate::core::program::Aval;
use crate::core::program::trace::{Traced, bind_at, check_usable, is_tracing, trace};
use crate::core::tree::{Flat, Tree, same_structure};
use crate::error::{Result, err};
use crate::interpret::ad::jvp_eval;
use crate::interpret::eval::eval;
use crate::interpret::flat::{avals_of, trace_flat};
use crate::interpret::higher_order::{drop_unused_captures, tangent_or_zeros};
use crate::ops::primitive::custom_jvp::{CustomJvp, RuleId};
use crate::ops::primitive::linear_solve::{LinearSolve, Part, transposed};
use crate::source;

/// A linear function, in the form that solvers receive it.
pub type MatVec<'a, T> = &'a dyn Fn(T) -> Result<T>;

/// The solver of the transposed equations in [`custom_linear_solve`]. Reverse mode needs it.
pub enum TransposeSolve<'a, T> {
    /// No solver, so the solution cannot be differentiated in reverse mode.
    None,
    /// The linear function is its own transpose, so `solve` also solves the transposed equations.
    Symmetric,
    /// A solver that receives the transposed function and the right side.
    With(&'a dyn Fn(MatVec<'_, T>, T) -> Result<T>),
}

/// Solves `matvec(x) = b` for a linear function with `solve(matvec, b)`, which may be any program. The solution is
/// differentiated implicitly, with the same solver. `matvec` may capture values that are differentiated.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::control_flow::{TransposeSolve, custom_linear_solve};
/// // A matrix that is diagonal is inverted by dividing.
/// let solve = |d: Array, b: Array| {
///     let matvec = |x: Array| x * &d;
///     custom_linear_solve(matvec, b, |a, b| Ok(&b / a(ones_like(&b))?), TransposeSolve::Symmetric)
/// };
/// let slope = grad(|d: Array, b: Array| Ok(solve(d, b)?.sum(..))).call((array([2.0f32, 4.0]), array([8.0f32, 8.0])))?;
/// assert_eq!(slope.to_vec::<f32>()?, [-2.0, -0.5]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// Fails unless `matvec` and the solvers return the structure, shapes and dtypes of `b`. Reverse mode fails without a
/// transposed solver.
#[track_caller]
pub fn custom_linear_solve<T: Tree, R: IntoOutput<Output = T>>(
    matvec: impl Fn(T) -> R,
    b: T,
    solve: impl Fn(MatVec<'_, T>, T) -> Result<T>,
    transpose_solve: TransposeSolve<'_, T>,
) -> Result<T> {
    let at = Location::caller();
    let _line = source::enter_at(at);
    solved(&|x: T| matvec(x).into_output(), &b, &solve, transpose_solve, at).map_err(|e| e.at(at))
}

type Solver<'a, T> = &'a dyn Fn(MatVec<'_, T>, T) -> Result<T>;

fn solved<T: Tree>(
    matvec: MatVec<'_, T>,
    b: &T,
    solve: Solver<'_, T>,
    transpose_solve: TransposeSolve<'_, T>,
    at: &'static Location<'static>,
) -> Result<T> {
    let flat = Flat::of_arguments(b);
    let avals: Vec<Aval> = avals_of(&flat)?.into_iter().map(Aval::strip_weak_type).collect();
    let part = |name: &str, f: &dyn Fn(T) -> Result<T>| -> Result<(Part, Vec<Array>)> {
        let (traced, def) = trace_flat(&flat.def, &avals, &|x: &Flat| Ok(Flat::of(&f(x.build()?)?)))?;
        same_structure(&flat.def, &def).map_err(|e| e.context(format!("{name}() output must be like b")))?;
        for (have, want) in traced.program.out_avals().iter().zip(&avals) {
            if (have.dtype, &have.shape) != (want.dtype, &want.shape) {
                return Err(err!(Type, "{name}() output shapes must match b, got {have} for {want}")
                    .help("return an array of the shape and dtype of the right side for each of its leaves"));
            }
        }
        Ok(split(drop_unused_captures(traced)))
    };
    let (matvec_part, matvec_own) = part("matvec", matvec)?;
    let (vecmat, vecmat_own) = match transpose_solve {
        TransposeSolve::Symmetric => (matvec_part.clone(), matvec_own.clone()),
        _ => {
            let Traced { program, captures } = transposed(&matvec_part)?;
            let count = captures.len() + matvec_part.captures;
            (Part { program, captures: count }, [captures, matvec_own.clone()].concat())
        }
    };
    let (solve_part, solve_own) = part("solve", &|x| solve(matvec, x))?;
    let transposed_matvec = |x: T| {
        let x = Flat::of(&x);
        let leaves = eval(&vecmat.program, &[&vecmat_own[..], &x.leaves].concat())?;
        Flat { leaves: leaves.into_iter().collect(), def: x.def }.build()
    };
    let transpose = match transpose_solve {
        TransposeSolve::None => None,
        TransposeSolve::Symmetric => Some((solve_part.clone(), solve_own.clone())),
        TransposeSolve::With(f) => Some(part("transpose_solve", &|x| f(&transposed_matvec, x))?),
    };
    let (transpose_solve, transpose_own) = transpose.unzip();
    let transpose_own = transpose_own.unwrap_or_default();
    let right: Vec<Array> = super::converted(&flat.leaves, &avals);
    let operands = [matvec_own, vecmat_own, solve_own, transpose_own, right].concat();
    let this = LinearSolve { matvec: matvec_part, vecmat, solve: solve_part, transpose_solve };
    let outs = bind_at(Arc::new(this), &operands, at);
    outs.iter().try_for_each(check_usable)?;
    Flat { leaves: outs.into_iter().collect(), def: flat.def }.build()
}

/// Splits a traced function into a part of the primitive and the values that the function captured.
fn split(traced: Traced) -> (Part, Vec<Array>) {
    (Part { program: traced.program, captures: traced.captures.len() }, traced.captures)
}

/// Returns the root of `f` that `solve(f, initial_guess)` finds. `solve` may be any program, because the root is
/// differentiated by the implicit function theorem with respect to the values that `f` captures. `tangent_solve` solves
/// `g(x) = y` for the derivative `g` of `f` at the root. For reverse mode, it must be transposable, for example a
/// division or [`custom_linear_solve`]. The initial guess has no derivative.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::control_flow::custom_root;
/// let sqrt = |a: Array| {
///     let f = |x: Array| x.square() - &a;
///     let newton = |_f: &dyn Fn(Array) -> Result<Array>, x0: Array| {
///         fori_loop(0, 20, |_, x: Array| (&x + &a / &x) / 2, x0)
///     };
///     custom_root(f, array(1.0f32), newton, |g, y: Array| Ok(&y / g(ones_like(&y))?))
/// };
/// assert!((grad(sqrt).call(array(4.0f32))?.item::<f32>()? - 0.25).abs() < 1e-6);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// Fails unless `f` and the solvers return the structure, shapes and dtypes of the initial guess.
#[track_caller]
pub fn custom_root<T: Tree, R: IntoOutput<Output = T>>(
    f: impl Fn(T) -> R,
    initial_guess: T,
    solve: impl Fn(MatVec<'_, T>, T) -> Result<T>,
    tangent_solve: impl Fn(MatVec<'_, T>, T) -> Result<T>,
) -> Result<T> {
    let at = Location::caller();
    let _line = source::enter_at(at);
    root(&|x: T| f(x).into_output(), &initial_guess, &solve, &tangent_solve, at).map_err(|e| e.at(at))
}

fn root<T: Tree>(
    f: MatVec<'_, T>,
    initial_guess: &T,
    solve: Solver<'_, T>,
    tangent_solve: Solver<'_, T>,
    at: &'static Location<'static>,
) -> Result<T> {
    let flat = Flat::of_arguments(initial_guess);
    if !is_tracing() {
        return solve(f, flat.build()?);
    }
    let avals: Vec<Aval> = avals_of(&flat)?.into_iter().map(Aval::strip_weak_type).collect();
    let n = avals.len();
    let like = |name: &str, out: Flat| -> Result<Flat> {
        same_structure(&flat.def, &out.def).map_err(|e| e.context(format!("{name}() output must be like x0")))?;
        Ok(out)
    };
    let traced = |g: &dyn Fn(T) -> Result<T>, name: &str| -> Result<Traced> {
        let traced = trace_flat(&flat.def, &avals, &|x: &Flat| like(name, Flat::of(&g(x.build()?)?)))?.0;
        Ok(drop_unused_captures(traced))
    };
    let (function, solver) = (traced(f, "f")?, traced(&|x| solve(f, x), "solve")?);
    // Traces a function that computes the solution of the linearized equation from the values that f captures, the
    // root, and the right side.
    let captured: Vec<Aval> = function.captures.iter().map(Array::aval).collect();
    let of_all = [captured, avals.clone(), avals.clone()].concat();
    let own = function.captures.len();
    let tangent = trace(&of_all, |args| {
        let (point, right) = args.split_at(own + n);
        let derivative = |x: T| {
            let x = Flat::of(&x);
            let ts = [vec![None; own], x.leaves.iter().cloned().map(Some).collect()].concat();
            let (_, ts) = jvp_eval(&function.program, point, &ts, false)?;
            let leaves = ts.iter().zip(&avals).map(|(t, aval)| tangent_or_zeros(t, aval)).collect();
            Flat { leaves, def: x.def }.build()
        };
        let right = Flat { leaves: right.iter().cloned().collect(), def: flat.def.clone() };
        Ok(like("tangent_solve", Flat::of(&tangent_solve(&derivative, right.build()?)?))?.leaves.into_vec())
    })?;
    let tangent = drop_unused_captures(tangent);

    // The operands are the values that the tangent's solver captured, the values that the solver captured, the values
    // that f captured, and the guess.
    let (a, b) = (tangent.captures.len(), tangent.captures.len() + solver.captures.len());
    let program = {
        let operands = [&tangent.captures[..], &solver.captures, &function.captures, &flat.leaves].concat();
        let types: Vec<Aval> = operands.iter().map(|x| x.aval().strip_weak_type()).collect();
        let program = solver.program.clone();
        (trace(&types, move |args| eval(&program, &[&args[a..b], &args[b + own..]].concat()))?.program, operands)
    };
    let (program, operands) = program;
    let out_avals = program.out_avals();
    let solution = program.clone();
    let rule = move |primals: &[Array], tangents: &[Array], _zeros: &[bool]| {
        let roots = eval(&solution, primals)?;
        let (own_primals, own_tangents) = (&primals[b..b + own], &tangents[b..b + own]);
        let point = [own_primals, &roots].concat();
        let ts: Vec<Option<Array>> = own_tangents
            .iter()
            .map(|t| t.dtype().is_inexact().then(|| t.clone()))
            .chain(std::iter::repeat_n(None, roots.len()))
            .collect();
        let (_, right) = jvp_eval(&function.program, &point, &ts, false)?;
        let right: Vec<Array> = right.iter().zip(&out_avals).map(|(t, aval)| -tangent_or_zeros(t, aval)).collect();
        let found = eval(&tangent.program, &[&primals[..a], &point, &right].concat())?;
        Ok((roots, found))
    };
    let rule = Arc::new(rule);
    let id = RuleId::of(&rule, &flat.def);
    let outs = bind_at(Arc::new(CustomJvp { program, num_consts: 0, id, rule }), &operands, at);
    outs.iter().try_for_each(check_usable)?;
    Flat { leaves: outs.into_iter().collect(), def: flat.def.clone() }.build()
}
