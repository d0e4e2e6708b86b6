//! `custom_linear_solve` and `custom_root`, whose solutions are differentiated implicitly through the equations that
//! they satisfy.

use std::ops::Range;
use std::panic::Location;
use std::sync::Arc;

use crate::core::array::Array;
use crate::core::function::IntoOutput;
use crate::core::program::trace::{Traced, bind_at, check_usable, is_tracing, trace};
use crate::core::program::{Aval, Program};
use crate::core::tree::{Flat, Tree, TreeDef, same_structure};
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
    /// The linear function is its own transpose, so `solve` also solves the transposed equations. A Hermitian matrix that is
    /// not real is not its own transpose.
    Symmetric,
    /// A solver that receives the transposed function and the right side.
    With(&'a dyn Fn(MatVec<'_, T>, T) -> Result<T>),
}

/// Solves `matvec(x) = b` for a linear function with `solve(matvec, b)`, which can be any program. The solution is
/// differentiated implicitly, with the same solver. `matvec` can capture values that are differentiated.
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
/// # Errors
/// Returns an error unless `matvec` and the solvers return the structure, shapes and dtypes of `b`. Reverse mode fails
/// without a transposed solver.
#[track_caller]
pub fn custom_linear_solve<T: Tree, R: IntoOutput<Output = T>>(
    matvec: impl Fn(T) -> R,
    b: T,
    solve: impl Fn(MatVec<'_, T>, T) -> Result<T>,
    transpose_solve: TransposeSolve<'_, T>,
) -> Result<T> {
    let location = Location::caller();
    let _line = source::enter_at(location);
    solve_implicitly(&|x: T| matvec(x).into_output(), &b, &solve, transpose_solve, location).map_err(|e| e.at(location))
}

type Solver<'a, T> = &'a dyn Fn(MatVec<'_, T>, T) -> Result<T>;

/// Traces a function of the right side, whose result must have the types of the right side. Returns a part of the
/// primitive and the values that the function captured.
fn trace_part<T: Tree>(
    name: &str,
    def: &TreeDef,
    avals: &[Aval],
    f: &dyn Fn(T) -> Result<T>,
) -> Result<(Part, Vec<Array>)> {
    let (traced, out_def) = trace_flat(def, avals, &|x: &Flat| Ok(Flat::of(&f(x.build()?)?)))?;
    same_structure(def, &out_def).map_err(|e| e.context(format!("{name}() output must be like b")))?;
    for (have, want) in traced.program.out_avals().iter().zip(avals) {
        if (have.dtype, &have.shape) != (want.dtype, &want.shape) {
            return Err(err!(Type, "{name}() output shapes must match b, got {have} for {want}")
                .help("return an array of the shape and dtype of the right side for each of its leaves"));
        }
    }
    let traced = drop_unused_captures(traced);
    Ok((Part { program: traced.program, captures: traced.captures.len() }, traced.captures))
}

fn solve_implicitly<T: Tree>(
    matvec: MatVec<'_, T>,
    b: &T,
    solve: Solver<'_, T>,
    transpose_solve: TransposeSolve<'_, T>,
    location: &'static Location<'static>,
) -> Result<T> {
    let flat = Flat::from_arguments(b);
    let avals: Vec<Aval> = avals_of(&flat)?.into_iter().map(Aval::strip_weak_type).collect();
    let (matvec_part, matvec_captures) = trace_part("matvec", &flat.def, &avals, matvec)?;
    let (vecmat, vecmat_captures) = match transpose_solve {
        TransposeSolve::Symmetric => (matvec_part.clone(), matvec_captures.clone()),
        _ => {
            let Traced { program, captures } = transposed(&matvec_part)?;
            let count = captures.len() + matvec_part.captures;
            (Part { program, captures: count }, [captures, matvec_captures.clone()].concat())
        }
    };
    let (solve_part, solve_captures) = trace_part("solve", &flat.def, &avals, &|x| solve(matvec, x))?;
    let transpose = match transpose_solve {
        TransposeSolve::None => None,
        TransposeSolve::Symmetric => Some((solve_part.clone(), solve_captures.clone())),
        TransposeSolve::With(f) => Some(trace_part("transpose_solve", &flat.def, &avals, &|x| {
            f(&|x: T| eval_tree(&vecmat.program, &vecmat_captures, &x), x)
        })?),
    };
    // The order of the operands is the order in which `LinearSolve` divides them again.
    let (transpose_solve, transpose_captures) = transpose.unzip();
    let transpose_captures = transpose_captures.unwrap_or_default();
    let right_side: Vec<Array> = super::converted(&flat.leaves, &avals);
    let operands = [matvec_captures, vecmat_captures, solve_captures, transpose_captures, right_side].concat();
    let this = LinearSolve { matvec: matvec_part, vecmat, solve: solve_part, transpose_solve };
    let outs = bind_at(Arc::new(this), &operands, location);
    outs.iter().try_for_each(check_usable)?;
    Flat { leaves: outs.into_iter().collect(), def: flat.def }.build()
}

/// Evaluates a program of captured values and a tree. The result has the structure of the tree.
fn eval_tree<T: Tree>(program: &Program, captures: &[Array], x: &T) -> Result<T> {
    let x = Flat::of(x);
    let leaves = eval(program, &[captures, &x.leaves].concat())?;
    Flat { leaves: leaves.into_iter().collect(), def: x.def }.build()
}

/// Returns the root of `f` that `solve(f, initial_guess)` finds. `solve` can be any program, because the root is
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
/// # Errors
/// Returns an error unless `f` and the solvers return the structure, shapes and dtypes of the initial guess.
#[track_caller]
pub fn custom_root<T: Tree, R: IntoOutput<Output = T>>(
    f: impl Fn(T) -> R,
    initial_guess: T,
    solve: impl Fn(MatVec<'_, T>, T) -> Result<T>,
    tangent_solve: impl Fn(MatVec<'_, T>, T) -> Result<T>,
) -> Result<T> {
    let location = Location::caller();
    let _line = source::enter_at(location);
    root(&|x: T| f(x).into_output(), &initial_guess, &solve, &tangent_solve, location).map_err(|e| e.at(location))
}

/// Returns an error unless the result of a function of [`custom_root`] has the structure of the initial guess.
fn like_guess(name: &str, def: &TreeDef, out: Flat) -> Result<Flat> {
    same_structure(def, &out.def).map_err(|e| e.context(format!("{name}() output must be like x0")))?;
    Ok(out)
}

/// Traces a function from the types of the initial guess to a result of its structure.
fn trace_like_guess<T: Tree>(name: &str, def: &TreeDef, avals: &[Aval], f: &dyn Fn(T) -> Result<T>) -> Result<Traced> {
    let traced = trace_flat(def, avals, &|x: &Flat| like_guess(name, def, Flat::of(&f(x.build()?)?)))?.0;
    Ok(drop_unused_captures(traced))
}

/// Applies the derivative of `program` at `point` to the tangent `x`. The point begins with the captured values, which
/// have no tangents.
fn derivative_at<T: Tree>(program: &Program, point: &[Array], avals: &[Aval], x: &T) -> Result<T> {
    let x = Flat::of(x);
    let num_captures = point.len() - x.leaves.len();
    let ts = [vec![None; num_captures], x.leaves.iter().cloned().map(Some).collect()].concat();
    let (_, ts) = jvp_eval(program, point, &ts, false)?;
    let leaves = ts.iter().zip(avals).map(|(t, aval)| tangent_or_zeros(t, aval)).collect();
    Flat { leaves, def: x.def }.build()
}

/// The traced parts of [`custom_root`], which its derivative rule needs. The operands are the values that the tangent's
/// solver captured, the values that the solver captured, the values that `f` captured, and the guess.
struct RootProblem {
    /// Computes the root from the operands.
    solution: Program,
    /// `f`, of its captured values and a point.
    function: Program,
    /// Solves the linearized equation for its captured values, the values that `f` captured, the root, and the right side.
    tangent: Program,
    tangent_captures: usize,
    /// The places of the values that `f` captured among the operands.
    function_captures: Range<usize>,
    def: TreeDef,
    location: &'static Location<'static>,
}

impl RootProblem {
    fn bind(self: &Arc<Self>, operands: &[Array]) -> Result<Vec<Array>> {
        let problem = self.clone();
        let rule = move |primals: &[Array], tangents: &[Array], _zeros: &[bool]| problem.derivative(primals, tangents);
        let id = RuleId::of(self, &self.def);
        let operation = CustomJvp { program: self.solution.clone(), num_consts: 0, id, rule: Arc::new(rule) };
        let outs = bind_at(Arc::new(operation), operands, self.location);
        outs.iter().try_for_each(check_usable)?;
        Ok(outs.into_iter().collect())
    }

    /// Returns the roots and their tangents. The roots are bound with this rule again, so that higher derivatives are
    /// implicit too and the solver's steps are never differentiated.
    fn derivative(self: &Arc<Self>, primals: &[Array], tangents: &[Array]) -> Result<(Vec<Array>, Vec<Array>)> {
        let roots = self.bind(primals)?;
        let captured = self.function_captures.clone();
        let point = [&primals[captured.clone()], &roots].concat();
        let ts: Vec<Option<Array>> = tangents[captured]
            .iter()
            .map(|t| t.dtype().is_inexact().then(|| t.clone()))
            .chain(std::iter::repeat_n(None, roots.len()))
            .collect();
        let (_, right) = jvp_eval(&self.function, &point, &ts, false)?;
        let avals = self.solution.out_avals();
        let right: Vec<Array> = right.iter().zip(&avals).map(|(t, aval)| -tangent_or_zeros(t, aval)).collect();
        let root_tangents = eval(&self.tangent, &[&primals[..self.tangent_captures], &point, &right].concat())?;
        Ok((roots, root_tangents))
    }
}

fn root<T: Tree>(
    f: MatVec<'_, T>,
    initial_guess: &T,
    solve: Solver<'_, T>,
    tangent_solve: Solver<'_, T>,
    location: &'static Location<'static>,
) -> Result<T> {
    let flat = Flat::from_arguments(initial_guess);
    if !is_tracing() {
        return solve(f, flat.build()?);
    }
    let avals: Vec<Aval> = avals_of(&flat)?.into_iter().map(Aval::strip_weak_type).collect();
    let n = avals.len();
    let function = trace_like_guess("f", &flat.def, &avals, f)?;
    let solver = trace_like_guess("solve", &flat.def, &avals, &|x| solve(f, x))?;
    // Traces a function that computes the solution of the linearized equation from the values that f captures, the
    // root, and the right side.
    let captured: Vec<Aval> = function.captures.iter().map(Array::aval).collect();
    let num_captures = function.captures.len();
    let tangent = trace(&[captured, avals.clone(), avals.clone()].concat(), |args| {
        let (point, right) = args.split_at(num_captures + n);
        let right = Flat { leaves: right.iter().cloned().collect(), def: flat.def.clone() };
        let solution = tangent_solve(&|x: T| derivative_at(&function.program, point, &avals, &x), right.build()?)?;
        Ok(like_guess("tangent_solve", &flat.def, Flat::of(&solution))?.leaves.into_vec())
    })?;
    let tangent = drop_unused_captures(tangent);

    let (a, b) = (tangent.captures.len(), tangent.captures.len() + solver.captures.len());
    let operands = [&tangent.captures[..], &solver.captures, &function.captures, &flat.leaves].concat();
    let types: Vec<Aval> = operands.iter().map(|x| x.aval().strip_weak_type()).collect();
    let solution =
        trace(&types, move |args| eval(&solver.program, &[&args[a..b], &args[b + num_captures..]].concat()))?.program;
    let problem = Arc::new(RootProblem {
        solution,
        function: function.program,
        tangent: tangent.program,
        tangent_captures: a,
        function_captures: b..b + num_captures,
        def: flat.def.clone(),
        location,
    });
    let leaves = problem.bind(&operands)?.into_iter().collect();
    Flat { leaves, def: flat.def }.build()
}
