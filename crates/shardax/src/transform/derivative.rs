//! Forward and reverse derivatives of functions with any result: `jvp`, `vjp`, `linearize`.

use std::cell::RefCell;
use std::marker::PhantomData;

use std::rc::Rc;

use crate::core::array::Array;
use crate::core::function::{Function, IntoArgs};
use crate::core::primitive::Tangents;
use crate::core::program::Aval;
use crate::core::tree::{self, Flat, Tree, TreeDef, same_structure};
use crate::dtype::DType;
use crate::engine::known::Whole;
use crate::engine::staged;
use crate::error::{AtCaller, Result, err};
use crate::interpret::ad::{self, Linearized};
use crate::interpret::flat::{FlatFn, avals_of, flat_fn, trace_flat, trace_known, types_of};
use crate::scope;
use crate::source;

/// The result of `f` at `primals`, and its tangent for these tangents of the arguments.
///
/// Tangents have the structure, shapes and dtypes of the arguments.
///
/// ```
/// # use shardax::prelude::*;
/// let (y, dy) = jvp(|x: Array| x.sin(), 0.0f32, 1.0f32)?;
/// assert_eq!((y.item::<f32>()?, dy.item::<f32>()?), (0.0, 1.0));
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn jvp<Args: Tree, F: Function<Args>>(
    f: F,
    primals: impl IntoArgs<Args>,
    tangents: impl IntoArgs<Args>,
) -> Result<(F::Output, F::Output)> {
    let _line = source::enter();
    let pair = Flat::of_arguments(&(primals.into_args(), tangents.into_args()));
    push(&pair, &flat_fn(&f)).and_then(|out| out.build()).at_caller()
}

/// The flattened pair of the result and its tangent, from that of the arguments and their tangents.
fn push(pair: &Flat, f: FlatFn<'_>) -> Result<Flat> {
    staged::run("jvp", pair, &|pair| {
        let (primals, tangents) = pair.halves()?;
        same_structure(&primals.def, &tangents.def)?;
        let avals = avals_of(&primals)?;
        let (traced, out_def) = trace_known(Rc::new(Whole(primals.leaves.to_vec())), &primals.def, &avals, f)?;
        let mut ts: Tangents = vec![None; traced.captures.len()];
        for (aval, t) in avals.iter().zip(&tangents.leaves) {
            ts.push(check_tangent(aval, t)?);
        }
        let args: Vec<Array> = traced.captures.iter().chain(&primals.leaves).cloned().collect();
        let (outs, out_ts) = scope::transform("jvp", || ad::jvp_eval(&traced.program, &args, &ts, false))?;
        let out_ts: Vec<Array> = outs.iter().zip(out_ts).map(|(o, t)| t.unwrap_or_else(|| zero(&o.aval()))).collect();
        let mut out = Flat::default();
        out.node(tree::Node::Tuple(2));
        out.append(&Flat { leaves: outs.into(), def: out_def.clone() });
        out.append(&Flat { leaves: out_ts.into(), def: out_def });
        Ok(out)
    })
}

/// The tangent of a value that nothing differentiable reaches; of integers it has the dtype `float0`.
fn zero(aval: &Aval) -> Array {
    let dtype = if aval.dtype.is_inexact() { aval.dtype } else { DType::Float0 };
    Array::zeros_of(&aval.with_dtype(dtype).settled())
}

/// The tangent of a value of this type, checked; none where the value is not differentiable.
fn check_tangent(aval: &Aval, t: &Array) -> Result<Option<Array>> {
    if !aval.dtype.is_inexact() {
        return Ok(None);
    }
    if t.shape() != aval.shape.as_slice() || (t.dtype() != aval.dtype && !t.weak_type()) {
        return Err(err!(
            Type,
            "primal and tangent arguments do not match; expected a tangent of type {}, got {}",
            aval.clone().settled(),
            t.type_name()
        )
        .help("give tangents (or cotangents) of the shapes and dtypes of the values: `ones_like(&x)`"));
    }
    Ok(Some(crate::ops::numpy::convert(t, aval.dtype, aval.clone().settled().weak)))
}

/// A function linearized at a point: what [`vjp`] and [`linearize`] share.
struct AtPoint {
    linear: Linearized,
    in_def: TreeDef,
    in_avals: Vec<Aval>,
    out_def: TreeDef,
    out_avals: Vec<Aval>,
}

/// The linear map of cotangents of the result to those of the arguments; see [`vjp`].
pub struct VjpFn<Args, Out> {
    at: AtPoint,
    types: PhantomData<fn(Out) -> Args>,
}

/// The linear map of tangents of the arguments to that of the result; see [`linearize`].
pub struct LinearFn<Args, Out> {
    at: AtPoint,
    types: PhantomData<fn(Args) -> Out>,
}

/// The result of `f` at `args`, and the function from cotangents of the result to cotangents of the arguments.
#[track_caller]
pub fn vjp<Args: Tree, F: Function<Args>>(
    f: F,
    args: impl IntoArgs<Args>,
) -> Result<(F::Output, VjpFn<Args, F::Output>)> {
    let _line = source::enter();
    let (out, at) = at_point(&Flat::of_arguments(&args.into_args()), &flat_fn(&f)).at_caller()?;
    Ok((out.build()?, VjpFn { at, types: PhantomData }))
}

/// As [`vjp`], of a function that returns a pair: its result, and what is not differentiated (JAX's `has_aux`).
///
/// ```
/// # use shardax::prelude::*;
/// let f = |x: Array| (x.square(), x.cos());
/// let (y, pull_back, aux) = shardax::vjp_has_aux(f, array([0.0f32, 3.0]))?;
/// assert_eq!((y.to_vec::<f32>()?, aux.to_vec::<f32>()?[0]), (vec![0.0, 9.0], 1.0));
/// assert_eq!(pull_back.call(ones([2]))?.0.to_vec::<f32>()?, [0.0, 6.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn vjp_has_aux<Args: Tree, Out: Tree, Aux: Tree, F: Function<Args, Output = (Out, Aux)>>(
    f: F,
    args: impl IntoArgs<Args>,
) -> Result<(Out, VjpFn<Args, Out>, Aux)> {
    let _line = source::enter();
    let (pair, mut at) = at_point(&Flat::of(&args.into_args()), &flat_fn(&f)).at_caller()?;
    let (out, aux) = pair.halves()?;
    at.keep_results(&out);
    Ok((out.build()?, VjpFn { at, types: PhantomData }, aux.build()?))
}

/// The result of `f` at `args`, and the function from tangents of the arguments to the tangent of the result.
#[track_caller]
pub fn linearize<Args: Tree, F: Function<Args>>(
    f: F,
    args: impl IntoArgs<Args>,
) -> Result<(F::Output, LinearFn<Args, F::Output>)> {
    let _line = source::enter();
    let (out, at) = at_point(&Flat::of_arguments(&args.into_args()), &flat_fn(&f)).at_caller()?;
    Ok((out.build()?, LinearFn { at, types: PhantomData }))
}

/// The transpose of a function that is linear: from cotangents of its result to cotangents of its arguments, of which
/// only the types matter ([`shape_dtype_struct`](crate::shape_dtype_struct) will do).
///
/// ```
/// # use shardax::prelude::*;
/// let w = array([[1.0f32, 2.0], [3.0, 4.0]]);
/// let back = linear_transpose(|x: Array| w.dot(x), ones(2))?;
/// assert_eq!(back.call(array([1.0f32, 0.0]))?.0.to_vec::<f32>()?, [1.0, 2.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// Fails when an argument or a result is not floating point; applying it fails where the function is not linear.
#[track_caller]
pub fn linear_transpose<Args: Tree, F: Function<Args>>(
    f: F,
    args: impl IntoArgs<Args>,
) -> Result<VjpFn<Args, F::Output>> {
    let _line = source::enter();
    let at = transposable(&Flat::of_arguments(&args.into_args()), &flat_fn(&f)).at_caller()?;
    Ok(VjpFn { at, types: PhantomData })
}

fn transposable(flat: &Flat, f: FlatFn<'_>) -> Result<AtPoint> {
    let in_avals = types_of(flat)?;
    let (traced, out_def) = trace_flat(&flat.def, &in_avals, f)?;
    let out_avals = traced.program.out_avals();
    for (what, avals) in [("inputs", &in_avals), ("outputs", &out_avals)] {
        if let Some(aval) = avals.iter().find(|a| !a.dtype.is_inexact()) {
            return Err(err!(Type, "linear_transpose only supports floating point and complex {what}, but got {aval}")
                .help("capture what is not differentiable instead of passing it"));
        }
    }
    let nonzero_out = vec![true; out_avals.len()];
    let linear = Linearized { program: traced.program, residuals: traced.captures, nonzero_out };
    Ok(AtPoint { linear, in_def: flat.def.clone(), in_avals, out_def, out_avals })
}

fn at_point(flat: &Flat, f: FlatFn<'_>) -> Result<(Flat, AtPoint)> {
    let in_avals = avals_of(flat)?;
    let found = RefCell::new(None);
    let result = staged::run("linearize", flat, &|flat| {
        let (traced, out_def) = trace_known(Rc::new(Whole(flat.leaves.to_vec())), &flat.def, &in_avals, f)?;
        let primals: Vec<Array> = traced.captures.iter().chain(&flat.leaves).cloned().collect();
        let nonzero: Vec<bool> = std::iter::repeat_n(false, traced.captures.len())
            .chain(in_avals.iter().map(|a| a.dtype.is_inexact()))
            .collect();
        let (outs, linear) = ad::linearize(&traced.program, &primals, &nonzero)?;
        // The residuals leave the trace beside the results.
        let mut out = Flat::default();
        out.node(tree::Node::Tuple(2));
        out.append(&Flat { leaves: outs.into(), def: out_def.clone() });
        out.append(&Flat::of(&linear.residuals));
        let out_avals = traced.program.out_avals();
        *found.borrow_mut() =
            Some(AtPoint { linear, in_def: flat.def.clone(), in_avals: in_avals.clone(), out_def, out_avals });
        Ok(out)
    })?;
    let (out, residuals) = result.halves()?;
    let mut at = found.into_inner().ok_or_else(|| err!(Runtime, "linearization left no linear map"))?;
    at.linear.residuals = residuals.leaves.into_vec();
    Ok((out, at))
}

impl AtPoint {
    /// Forgets all results but the first, which are these.
    fn keep_results(&mut self, out: &Flat) {
        self.out_def = out.def.clone();
        self.out_avals.truncate(out.leaves.len());
        self.linear.nonzero_out.truncate(out.leaves.len());
        let kept = self.linear.nonzero_out.iter().filter(|nz| **nz).count();
        self.linear.program.outputs.truncate(kept);
    }

    fn pull_back(&self, ct: &Flat) -> Result<Flat> {
        same_structure(&self.out_def, &ct.def)?;
        let cts: Tangents =
            self.out_avals.iter().zip(&ct.leaves).map(|(a, t)| check_tangent(a, t)).collect::<Result<_>>()?;
        let nonzero = self.linear.transpose(&cts)?;
        let mut nonzero = nonzero.into_iter();
        let leaves = self
            .in_avals
            .iter()
            .map(|aval| match aval.dtype.is_inexact() {
                true => nonzero.next().flatten().unwrap_or_else(|| zero(aval)),
                false => zero(aval),
            })
            .collect();
        Ok(Flat { leaves, def: self.in_def.clone() })
    }

    fn push_forward(&self, tangents: &Flat) -> Result<Flat> {
        same_structure(&self.in_def, &tangents.def)?;
        let ts: Vec<Option<Array>> =
            self.in_avals.iter().zip(&tangents.leaves).map(|(a, t)| check_tangent(a, t)).collect::<Result<_>>()?;
        let ts: Vec<Array> = ts.into_iter().flatten().collect();
        let outs = self.linear.apply(&ts)?;
        let leaves = outs.into_iter().zip(&self.out_avals).map(|(t, a)| t.unwrap_or_else(|| zero(a))).collect();
        Ok(Flat { leaves, def: self.out_def.clone() })
    }
}

impl<Args: Tree, Out: Tree> VjpFn<Args, Out> {
    /// The cotangents of the arguments.
    #[track_caller]
    pub fn call(&self, ct: impl crate::core::function::IntoArg<Out>) -> Result<Args> {
        let _line = source::enter();
        staged::run("vjp", &Flat::of_arguments(&ct.into_arg()), &|ct| self.at.pull_back(ct)).at_caller()?.build()
    }
}

impl<Args: Tree, Out: Tree> LinearFn<Args, Out> {
    /// The tangent of the result.
    #[track_caller]
    pub fn call(&self, tangents: impl IntoArgs<Args>) -> Result<Out> {
        let _line = source::enter();
        staged::run("linear", &Flat::of_arguments(&tangents.into_args()), &|t| self.at.push_forward(t))
            .at_caller()?
            .build()
    }
}
