//! Forward and reverse derivatives of functions with any result: `jvp`, `vjp`, `linearize`.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;

use crate::core::array::Array;
use crate::core::function::{Function, IntoArgs};
use crate::core::primitive::Tangents;
use crate::core::program::{Aval, Program};
use crate::core::sharding_rule::agrees;
use crate::core::tree::{self, Flat, Tree, TreeDef, same_structure};
use crate::dtype::DType;
use crate::error::{AtCaller, Result, err};
use crate::interpret::ad::{self, Linearized};
use crate::interpret::flat::{FlatFn, avals_of, flat_fn, trace_concrete, trace_flat, types_of};
use crate::interpret::higher_order::zeros;
use crate::runtime::concrete_inputs::WholeArrays;
use crate::runtime::device_put::{committed_sharding, return_to};
use crate::runtime::dispatch::Cache;
use crate::runtime::implicit_jit;
use crate::scope;
use crate::sharding::Sharding;
use crate::source;

/// Returns the result of `f` at `primals`, and its tangent for these tangents of the arguments.
///
/// Tangents have the structure, shapes and dtypes of the arguments. Tangents of integers are ignored.
///
/// ```
/// # use shardax::prelude::*;
/// let (y, dy) = jvp(|x: Array| x.sin(), 0.0f32, 1.0f32)?;
/// assert_eq!((y.item::<f32>()?, dy.item::<f32>()?), (0.0, 1.0));
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if the tangents do not have the structure, shapes and dtypes of the arguments, if `f` fails, or if
/// it calls an operation that has no derivative.
#[track_caller]
pub fn jvp<Args: Tree, F: Function<Args>>(
    f: F,
    primals: impl IntoArgs<Args>,
    tangents: impl IntoArgs<Args>,
) -> Result<(F::Output, F::Output)> {
    let _line = source::enter();
    let pair = Flat::from_arguments(&(primals.into_args(), tangents.into_args()));
    push(&pair, f.identity(), &flat_fn(&f)).and_then(|out| out.build()).at_caller()
}

/// Maps the flattened pair of arguments and tangents to the flattened pair of result and result tangent.
fn push(pair: &Flat, identity: Option<u64>, f: FlatFn<'_>) -> Result<Flat> {
    implicit_jit::run_shared("jvp", (identity, ()), pair, &|pair| {
        let (primals, tangents) = pair.halves()?;
        same_structure(&primals.def, &tangents.def)?;
        let avals = avals_of(&primals)?;
        let (traced, out_def) = trace_concrete(Rc::new(WholeArrays(primals.leaves.to_vec())), &primals.def, &avals, f)?;
        let mut ts: Tangents = vec![None; traced.captures.len()];
        for (aval, t) in avals.iter().zip(&tangents.leaves) {
            ts.push(check_tangent(aval, t)?);
        }
        let args: Vec<Array> = traced.captures.iter().chain(&primals.leaves).cloned().collect();
        let program = ad::merged_if_nested(traced.program);
        let (outs, out_ts) = scope::transform("jvp", || ad::jvp_eval(&program, &args, &ts, false))?;
        let out_ts: Vec<Array> = outs.iter().zip(out_ts).map(|(o, t)| t.unwrap_or_else(|| zero(&o.aval()))).collect();
        let mut out = Flat::default();
        out.node(tree::Node::Tuple(2));
        out.append(&Flat { leaves: outs.into(), def: out_def.clone() });
        out.append(&Flat { leaves: out_ts.into(), def: out_def });
        Ok(out)
    })
}

/// The tangent of a value that depends on nothing differentiable. Integers have a tangent of dtype `float0`.
fn zero(aval: &Aval) -> Array {
    if aval.dtype.is_inexact() {
        return zeros(&aval.clone().strip_weak_type());
    }
    Array::zeros_of(&aval.with_dtype(DType::Float0).strip_weak_type())
}

/// Checks the tangent of a value of this type; `None` if the value is not differentiable.
fn check_tangent(aval: &Aval, t: &Array) -> Result<Option<Array>> {
    if !aval.dtype.is_inexact() {
        // A tangent of an integer is ignored, so that a floating-point one would be lost silently.
        if t.dtype().is_inexact() && !aval.dtype.is_key() {
            return Err(err!(
                Type,
                "primal and tangent arguments do not match; the tangent of an integer has no effect, but {} has the tangent {}",
                aval.clone().strip_weak_type(),
                t.type_name()
            )
            .help("convert the value with `astype(DType::F32)`, or pass `zeros_like(&x)` as its tangent"));
        }
        return Ok(None);
    }
    // Numbers take the dtype of the value. Other tangents must have it, unless the value is weakly typed and has 64 bits, such as
    // `arange(3.0)`: then `ones(3)` is converted without a loss.
    let is_same_kind = t.dtype().is_inexact() && t.dtype().is_complex() == aval.dtype.is_complex();
    let is_converted = t.weak_type() || (aval.weak && aval.dtype.is_wide() && is_same_kind);
    if t.shape() != aval.shape.as_slice() || (t.dtype() != aval.dtype && !is_converted) {
        return Err(err!(
            Type,
            "primal and tangent arguments do not match; expected a tangent of type {}, got {}",
            aval.clone().strip_weak_type(),
            t.type_name()
        )
        .help("pass tangents (or cotangents) of the shapes and dtypes of the values: `ones_like(&x)`"));
    }
    if !agrees(aval, &t.aval()) {
        return Err(err!(
            Value,
            "expected a tangent (or cotangent) of type {}, got {}",
            aval.clone().strip_weak_type(),
            t.type_name()
        )
        .help("reshard it to the sharding of the value with `reshard(t, x.aval().sharding())`"));
    }
    Ok(Some(crate::ops::numpy::convert(t, aval.dtype, aval.clone().strip_weak_type().weak)))
}

/// Like [`check_tangent`], for a map that was linearized for values of this type. A tangent or cotangent that varies
/// over more axes than the values is rejected.
fn check_same_axes(aval: &Aval, t: &Array) -> Result<Option<Array>> {
    let extra = t.vma().minus(&aval.vma);
    if aval.dtype.is_inexact() && extra.iter().next().is_some() {
        return Err(err!(
            Type,
            "linearized function called on tangent values inconsistent with the original primal values: got {} for a value of type {}, which does not vary over {extra}",
            t.type_name(),
            aval.clone().strip_weak_type()
        )
        .help("make the value vary with `pcast` before the function is linearized, or sum this with `psum`"));
    }
    check_tangent(aval, t)
}

/// A linearized function, for [`vjp`] and [`linearize`]. The values at the point are stored next to it.
#[derive(Clone)]
struct LinearMap {
    program: Program,
    nonzero_out: Vec<bool>,
    in_def: TreeDef,
    in_avals: Vec<Aval>,
    out_def: TreeDef,
    out_avals: Vec<Aval>,
    /// The compiled programs, if functions of one identity share them.
    programs: Option<Arc<Cache>>,
}

/// The linear map from cotangents of the result to cotangents of the arguments; see [`vjp`].
pub struct VjpFn<Args, Out> {
    at: AtPoint,
    types: PhantomData<fn(Out) -> Args>,
}

/// The linear map from tangents of the arguments to the tangent of the result; see [`linearize`].
pub struct LinearFn<Args, Out> {
    at: AtPoint,
    types: PhantomData<fn(Args) -> Out>,
}

/// Returns the result of `f` at `args`, and the function that maps a cotangent of the result to the tuple of cotangents
/// of the arguments.
///
/// Use it if the result is not a scalar, or if you need the gradients for several cotangents: the returned function can be
/// called again and transformed (`vmap(&pull_back)`), and does not evaluate `f`, but it keeps the residuals in memory. For a scalar result, [`grad`](crate::grad)
/// is simpler.
///
/// ```
/// # use shardax::prelude::*;
/// let (y, pull_back) = vjp(|x: Array, w: Array| x * w, (array([1.0f32, 2.0]), array([3.0f32, 4.0])))?;
/// let (dx, dw) = pull_back.call(ones([2]))?;
/// assert_eq!(y.to_vec::<f32>()?, [3.0, 8.0]);
/// assert_eq!((dx.to_vec::<f32>()?, dw.to_vec::<f32>()?), (vec![3.0, 4.0], vec![1.0, 2.0]));
/// // The rows of the Jacobian: a cotangent for each result.
/// let (rows, _) = vmap(&pull_back).call(eye(2))?;
/// assert_eq!(rows.to_vec::<f32>()?, [3.0, 0.0, 0.0, 4.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if `f` fails, or if it calls an operation that has no derivative. The returned function fails if
/// its cotangent does not have the structure, shapes and dtypes of the result.
#[track_caller]
pub fn vjp<Args: Tree, F: Function<Args>>(
    f: F,
    args: impl IntoArgs<Args>,
) -> Result<(F::Output, VjpFn<Args, F::Output>)> {
    let _line = source::enter();
    let (out, at) =
        at_point(&Flat::from_arguments(&args.into_args()), f.identity(), false, &flat_fn(&f)).at_caller()?;
    Ok((out.build()?, VjpFn { at, types: PhantomData }))
}

/// Like [`vjp`], for a function that returns a pair: the result, and auxiliary data that is not differentiated (JAX's
/// `has_aux`).
///
/// ```
/// # use shardax::prelude::*;
/// let f = |x: Array| (x.square(), x.cos());
/// let (y, pull_back, aux) = shardax::vjp_has_aux(f, array([0.0f32, 3.0]))?;
/// assert_eq!((y.to_vec::<f32>()?, aux.to_vec::<f32>()?[0]), (vec![0.0, 9.0], 1.0));
/// assert_eq!(pull_back.call(ones([2]))?.0.to_vec::<f32>()?, [0.0, 6.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error for the same reasons as [`vjp`].
#[track_caller]
pub fn vjp_has_aux<Args: Tree, Out: Tree, Aux: Tree, F: Function<Args, Output = (Out, Aux)>>(
    f: F,
    args: impl IntoArgs<Args>,
) -> Result<(Out, VjpFn<Args, Out>, Aux)> {
    let _line = source::enter();
    let flat = Flat::from_arguments(&args.into_args());
    let (pair, at) = at_point(&flat, f.identity(), true, &flat_fn(&f)).at_caller()?;
    let (out, aux) = pair.halves()?;
    Ok((out.build()?, VjpFn { at, types: PhantomData }, aux.build()?))
}

/// Returns the result of `f` at `args`, and the function that maps tangents of the arguments to the tangent of the
/// result.
///
/// Use it instead of [`jvp`] if you need many tangents at one point, because the returned function does not evaluate `f`
/// again. It keeps the residuals in memory.
///
/// ```
/// # use shardax::prelude::*;
/// let (y, push_forward) = linearize(|x: Array| x.square(), array([1.0f32, 3.0]))?;
/// assert_eq!(y.to_vec::<f32>()?, [1.0, 9.0]);
/// assert_eq!(push_forward.call(ones([2]))?.to_vec::<f32>()?, [2.0, 6.0]);
/// assert_eq!(jit(&push_forward).call(ones([2]))?.to_vec::<f32>()?, [2.0, 6.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if `f` fails, or if it calls an operation that has no derivative. The returned function fails if
/// its tangents do not have the structure, shapes and dtypes of the arguments.
#[track_caller]
pub fn linearize<Args: Tree, F: Function<Args>>(
    f: F,
    args: impl IntoArgs<Args>,
) -> Result<(F::Output, LinearFn<Args, F::Output>)> {
    let _line = source::enter();
    let (out, at) =
        at_point(&Flat::from_arguments(&args.into_args()), f.identity(), false, &flat_fn(&f)).at_caller()?;
    Ok((out.build()?, LinearFn { at, types: PhantomData }))
}

/// Transposes a linear function: the returned function maps cotangents of the result to cotangents of the arguments.
/// Only the types of the arguments matter, so you can pass [`shape_dtype_struct`](crate::shape_dtype_struct)s.
///
/// ```
/// # use shardax::prelude::*;
/// let w = array([[1.0f32, 2.0], [3.0, 4.0]]);
/// let back = linear_transpose(|x: Array| w.dot(x), ones(2))?;
/// assert_eq!(back.call(array([1.0f32, 0.0]))?.0.to_vec::<f32>()?, [1.0, 2.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if an argument or a result is not floating point. Calling the transposed function fails if the
/// function is not linear.
#[track_caller]
pub fn linear_transpose<Args: Tree, F: Function<Args>>(
    f: F,
    args: impl IntoArgs<Args>,
) -> Result<VjpFn<Args, F::Output>> {
    let _line = source::enter();
    let linear = transposable(&Flat::from_arguments(&args.into_args()), &flat_fn(&f)).at_caller()?;
    Ok(VjpFn { at: linear, types: PhantomData })
}

fn transposable(flat: &Flat, f: FlatFn<'_>) -> Result<AtPoint> {
    let in_avals = types_of(flat)?;
    let (traced, out_def) = trace_flat(&flat.def, &in_avals, f)?;
    let out_avals = traced.program.out_avals();
    for (what, avals) in [("inputs", &in_avals), ("outputs", &out_avals)] {
        if let Some(aval) = avals.iter().find(|a| !a.dtype.is_inexact()) {
            return Err(err!(Type, "linear_transpose only supports floating point and complex {what}, but got {aval}")
                .help("capture values that are not differentiable instead of passing them"));
        }
    }
    // The function itself is the linear map, so no linearization is needed.
    let nonzero_out = vec![true; out_avals.len()];
    let map = LinearMap {
        program: traced.program,
        nonzero_out,
        in_def: flat.def.clone(),
        in_avals,
        out_def,
        out_avals,
        programs: None,
    };
    let shardings = vec![None; flat.leaves.len()];
    Ok(AtPoint { map: Arc::new(map), residuals: traced.captures, shardings })
}

/// Returns the function's result and the linear map. With `has_aux` the function returns a pair, and the map is for the
/// first of them.
fn at_point(flat: &Flat, identity: Option<u64>, has_aux: bool, f: FlatFn<'_>) -> Result<(Flat, AtPoint)> {
    let in_avals = avals_of(flat)?;
    let linearized = |flat: &Flat| {
        let (traced, out_def) = trace_concrete(Rc::new(WholeArrays(flat.leaves.to_vec())), &flat.def, &in_avals, f)?;
        let primals: Vec<Array> = traced.captures.iter().chain(&flat.leaves).cloned().collect();
        let nonzero: Vec<bool> = std::iter::repeat_n(false, traced.captures.len())
            .chain(in_avals.iter().map(|a| a.dtype.is_inexact()))
            .collect();
        let program = ad::merged_if_nested(traced.program);
        let (outs, linear) = ad::linearize(&program, &primals, &nonzero)?;
        // The residuals must leave the trace together with the results, so they are additional outputs.
        let mut out = Flat::default();
        out.node(tree::Node::Tuple(2));
        out.append(&Flat { leaves: outs.into(), def: out_def.clone() });
        out.append(&Flat::of(&linear.residuals));
        let mut map = LinearMap {
            program: linear.program,
            nonzero_out: linear.nonzero_out,
            in_def: flat.def.clone(),
            in_avals: in_avals.clone(),
            out_def,
            out_avals: program.out_avals(),
            programs: identity.map(|_| Cache::new()),
        };
        if has_aux {
            map.keep_first();
        }
        Ok((out, Arc::new(map)))
    };
    let (result, map) = implicit_jit::run_shared_with_aux("linearize", (identity, has_aux), flat, &linearized)?;
    let (out, residuals) = result.halves()?;
    let shardings = flat.leaves.iter().map(committed_sharding).collect();
    Ok((out, AtPoint { map, residuals: residuals.leaves.into_vec(), shardings }))
}

impl LinearMap {
    /// Drops all results but the first of a function that returns a pair.
    fn keep_first(&mut self) {
        let children = self.out_def.root_children().unwrap_or_default();
        let Some((_, first)) = children.into_iter().next() else { return };
        let count = first.leaf_count();
        self.out_def = first;
        self.out_avals.truncate(count);
        self.nonzero_out.truncate(count);
        // The program returns only the tangents that are not zero.
        let count = self.nonzero_out.iter().filter(|nz| **nz).count();
        self.program.outputs.truncate(count);
    }

    fn at(&self, residuals: &[Array]) -> Linearized {
        let (program, nonzero_out) = (self.program.clone(), self.nonzero_out.clone());
        Linearized { program, residuals: residuals.to_vec(), nonzero_out }
    }

    fn pull_back(&self, residuals: &[Array], ct: &Flat) -> Result<Flat> {
        Ok(self.arguments(self.at(residuals).transpose(&self.cotangents(ct)?)?))
    }

    /// Returns a pair: the cotangents of the arguments, and the map of what rules log.
    fn pull_back_with_logs(&self, residuals: &[Array], ct: &Flat) -> Result<Flat> {
        let (cts, logs) = self.at(residuals).transpose_with_logs(&self.cotangents(ct)?)?;
        let mut pair = Flat::default();
        pair.node(tree::Node::Tuple(2));
        pair.append(&self.arguments(cts));
        pair.append(&Flat::of(&logs));
        Ok(pair)
    }

    /// Checks the cotangents of the results.
    fn cotangents(&self, ct: &Flat) -> Result<Tangents> {
        same_structure(&self.out_def, &ct.def)?;
        self.out_avals.iter().zip(&ct.leaves).map(|(a, t)| check_same_axes(&a.cotangent(), t)).collect()
    }

    /// The cotangents of all arguments from the cotangents of the differentiable ones.
    fn arguments(&self, cts: Tangents) -> Flat {
        let mut nonzero = cts.into_iter();
        let leaves = self
            .in_avals
            .iter()
            .map(|aval| {
                if aval.dtype.is_inexact() {
                    nonzero.next().flatten().unwrap_or_else(|| zero(&aval.cotangent()))
                } else {
                    zero(aval)
                }
            })
            .collect();
        Flat { leaves, def: self.in_def.clone() }
    }

    fn push_forward(&self, residuals: &[Array], tangents: &Flat) -> Result<Flat> {
        same_structure(&self.in_def, &tangents.def)?;
        let ts: Vec<Option<Array>> =
            self.in_avals.iter().zip(&tangents.leaves).map(|(a, t)| check_same_axes(a, t)).collect::<Result<_>>()?;
        let ts: Vec<Array> = ts.into_iter().flatten().collect();
        let outs = self.at(residuals).apply(&ts)?;
        let leaves = outs.into_iter().zip(&self.out_avals).map(|(t, a)| t.unwrap_or_else(|| zero(a))).collect();
        Ok(Flat { leaves, def: self.out_def.clone() })
    }
}

/// A linear map and its residuals.
struct AtPoint {
    map: Arc<LinearMap>,
    residuals: Vec<Array>,
    /// The shardings of the arguments that are committed. Their cotangents have the same devices.
    shardings: Vec<Option<Sharding>>,
}

impl AtPoint {
    /// Applies the map or the transposed map to a tree: in the trace in effect, or outside of a trace.
    fn apply(
        &self,
        name: &str,
        to: Flat,
        way: fn(&LinearMap, residuals: &[Array], to: &Flat) -> Result<Flat>,
    ) -> Result<Flat> {
        // The residuals are arguments too, so that one program serves all points.
        let mut args = Flat::default();
        args.node(tree::Node::Tuple(2));
        args.append(&to);
        args.append(&Flat::of(&self.residuals));
        let count = to.leaves.len();
        let f = |args: &Flat| {
            let (leaves, residuals) = args.leaves.split_at(count);
            way(&self.map, residuals, &Flat { leaves: leaves.into(), def: to.def.clone() })
        };
        match &self.map.programs {
            Some(programs) => implicit_jit::run_in(programs, name, &args, &f),
            None => implicit_jit::run(name, &args, &f),
        }
    }
}

impl AtPoint {
    /// Moves the cotangents of the arguments, which come first in `result`, to the devices of the arguments.
    fn return_cotangents(&self, mut result: Flat) -> Result<Flat> {
        for (sharding, cotangent) in self.shardings.iter().zip(&mut result.leaves) {
            return_to(sharding.as_ref(), cotangent)?;
        }
        Ok(result)
    }
}

impl<Args: Tree, Out: Tree> VjpFn<Args, Out> {
    /// Returns the cotangents of the arguments.
    ///
    /// # Errors
    /// Returns an error if the cotangent does not have the structure, shapes and dtypes of the function's result.
    #[track_caller]
    pub fn call(&self, ct: impl crate::core::function::IntoArg<Out>) -> Result<Args> {
        let _line = source::enter();
        let cts = self.at.apply("vjp", Flat::from_arguments(&ct.into_arg()), LinearMap::pull_back);
        cts.and_then(|cts| self.at.return_cotangents(cts)).at_caller()?.build()
    }

    /// Returns the cotangents of the arguments, and the values that the rules of `custom_vjp` functions log
    /// ([`defvjp_with_logs`](crate::control_flow::CustomVjp::defvjp_with_logs)), by key. A key that is logged in a loop
    /// or in `vmap` has stacked values. A key that is logged in a branch of `cond` has a pair: the index of the branch
    /// that ran, and for each branch `None` or a value, which is zero unless the branch ran.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// use std::collections::BTreeMap;
    /// let f = custom_vjp(|x: Array| x.sin()).defvjp_with_logs(
    ///     |x: Array| (x.sin(), x),
    ///     |x: Array, ct: Array| ((&ct * x.cos(),), BTreeMap::from([("cotangent".to_owned(), ct)])),
    /// );
    /// let (_, pull_back) = vjp(move |x: Array| -> Result<Array> { Ok(f.call(x)? * 3.0) }, 0.0f32)?;
    /// let ((slope,), logs) = pull_back.with_logs(1.0)?;
    /// assert_eq!(slope.item::<f32>()?, 3.0);
    /// assert_eq!(logs["cotangent"].build::<Array>()?.item::<f32>()?, 3.0);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the cotangent does not have the structure, shapes and dtypes of the result.
    #[track_caller]
    pub fn with_logs(&self, ct: impl crate::core::function::IntoArg<Out>) -> Result<(Args, BTreeMap<String, Flat>)> {
        let _line = source::enter();
        let ct = Flat::from_arguments(&ct.into_arg());
        let pair = self.at.apply("vjp_with_logs", ct, LinearMap::pull_back_with_logs);
        pair.and_then(|pair| self.at.return_cotangents(pair)).at_caller()?.build()
    }
}

impl<Args: Tree, Out: Tree> LinearFn<Args, Out> {
    /// Returns the tangent of the result.
    ///
    /// # Errors
    /// Returns an error if the tangents do not have the structure, shapes and dtypes of the arguments.
    #[track_caller]
    pub fn call(&self, tangents: impl IntoArgs<Args>) -> Result<Out> {
        self.apply(tangents.into_args())
    }
}

impl<Args: Tree, Out: Tree> Function<(Out,)> for VjpFn<Args, Out> {
    type Output = Args;

    #[track_caller]
    fn apply(&self, (ct,): (Out,)) -> Result<Args> {
        self.call(ct)
    }
}

impl<Args: Tree, Out: Tree> Function<Args> for LinearFn<Args, Out> {
    type Output = Out;

    #[track_caller]
    fn apply(&self, tangents: Args) -> Result<Out> {
        let _line = source::enter();
        self.at.apply("linear", Flat::from_arguments(&tangents), LinearMap::push_forward).at_caller()?.build()
    }
}
