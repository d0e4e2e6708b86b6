//! `while_loop` and `fori_loop`.

use std::panic::Location;
use std::sync::Arc;

use super::conditionals::FlatFn;
use super::scan::ScanOptions;
use super::{Carry, converted};
use crate::core::array::{Array, Repr};
use crate::core::function::{IntoArg, IntoOutput};
use crate::core::program::Aval;
use crate::core::program::trace::{Traced, bind_at, check_usable, with_source};
use crate::core::tree::{Flat, Tree, TreeDef};
use crate::dtype::{DType, promote};
use crate::error::{Result, err};
use crate::interpret::flat::{avals_of, trace_flat};
use crate::interpret::higher_order::drop_unused_captures;
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::while_loop::While;
use crate::ops::promotion::convert;
use crate::source;

/// The result of the condition of a loop: an array with one `bool`, or a `Result` of one.
#[diagnostic::on_unimplemented(
    message = "the condition of the loop returns `{Self}`, not an array",
    label = "not an array with one `bool`",
    note = "compare arrays by their methods, `i.less(10)`; a number of the carry is an array if it begins as `array(0)`"
)]
pub trait IntoPredicate {
    /// Returns the array, or the function's error.
    fn into_predicate(self) -> Result<Array>;
}

impl IntoPredicate for Array {
    fn into_predicate(self) -> Result<Array> {
        Ok(self)
    }
}

impl IntoPredicate for Result<Array> {
    fn into_predicate(self) -> Result<Array> {
        self
    }
}

/// Applies `body_fun` to the carry while `cond_fun(carry)`, a boolean scalar, is true. You can pass `init` by reference, and a
/// number for an array.
///
/// The number of steps can depend on the data, so only forward-mode differentiation works. For reverse mode, use
/// [`scan`](super::scan()), or [`fori_loop`] with plain numbers as bounds.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::control_flow::while_loop;
/// let x = while_loop(|x: Array| x.less(100), |x| x * 3, 1)?;
/// assert_eq!(x.item::<i32>()?, 243);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if the condition is not one boolean, or if the body changes the structure, a dtype or a shape of
/// the carry.
#[track_caller]
pub fn while_loop<C, P, R>(cond_fun: impl Fn(C) -> P, body_fun: impl Fn(C) -> R, init: impl IntoArg<C>) -> Result<C>
where
    C: Tree,
    P: IntoPredicate,
    R: IntoOutput<Output = C>,
{
    let location = Location::caller();
    let _line = source::enter_at(location);
    let init = Flat::from_arguments(&init.into_arg());
    run_while(
        &Carry::new("while_loop", &init.def),
        &|carry: &Flat| Ok(Flat::of(&cond_fun(carry.build()?).into_predicate()?)),
        &|carry: &Flat| Ok(Flat::of(&body_fun(carry.build()?).into_output()?)),
        &init,
        location,
    )
    .map_err(|e| e.at(location))?
    .build()
}

fn run_while(
    carry: &Carry<'_>,
    cond: FlatFn<'_>,
    body: FlatFn<'_>,
    init: &Flat,
    location: &'static Location<'static>,
) -> Result<Flat> {
    let mut avals = avals_of(init)?;
    let mut traced_body = trace_body(carry, body, &init.def, &avals)?;
    // The first trace may show that the carry has to start from other types. The second trace then has to keep them.
    if let Some(start) = carry.check(&avals, &traced_body.program.out_avals())? {
        avals = start;
        traced_body = trace_body(carry, body, &init.def, &avals)?;
        carry.check(&avals, &traced_body.program.out_avals())?;
    }
    let cond = trace_flat(&init.def, &avals, cond)?.0;
    let predicate = cond.program.out_avals();
    if !matches!(&predicate[..], [p] if p.dtype == DType::Bool && p.rank() == 0) {
        return Err(err!(Type, "cond_fun must return a boolean scalar, but got output type(s) {predicate:?}")
            .help("compare, and reduce with `.any(..)` or `.all(..)` where the carry is an array"));
    }

    let (cond, body) = (drop_unused_captures(cond), drop_unused_captures(traced_body));
    let this = While {
        cond: cond.program,
        body: body.program,
        cond_consts: cond.captures.len(),
        body_consts: body.captures.len(),
    };
    let start = with_source(location, || converted(&init.leaves, &avals));
    let outs = bind_at(Arc::new(this), &[cond.captures, body.captures, start].concat(), location);
    outs.iter().try_for_each(check_usable)?;
    Ok(Flat { leaves: outs.into_iter().collect(), def: init.def.clone() })
}

/// Traces the body of a `while_loop` for a carry of these types.
fn trace_body(carry: &Carry<'_>, body: FlatFn<'_>, def: &TreeDef, avals: &[Aval]) -> Result<Traced> {
    let step = trace_flat(def, avals, &|args: &Flat| {
        let mut result = body(args)?;
        carry.returned(&args.leaves, &mut result)?;
        Ok(result)
    });
    Ok(step?.0)
}

/// Applies `body_fun` to the index (an integer scalar) and the carry, for each index in `lower..upper`.
///
/// With plain numbers as bounds, the loop is a [`scan`](super::scan()), which is differentiable in both modes. With
/// arrays as bounds, it is a [`while_loop`], which is differentiable in forward mode only.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::control_flow::fori_loop;
/// let factorial = fori_loop(1, 6, |i, product| product * i, array(1))?;
/// assert_eq!(factorial.item::<i32>()?, 120);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if a bound is not an integer scalar, or if the body changes the structure, a dtype or a shape of
/// the carry.
#[track_caller]
pub fn fori_loop<C, R>(
    lower: impl ArrayLike,
    upper: impl ArrayLike,
    body_fun: impl Fn(Array, C) -> R,
    init: impl IntoArg<C>,
) -> Result<C>
where
    C: Tree,
    R: IntoOutput<Output = C>,
{
    ScanOptions::new().fori_loop(lower, upper, body_fun, init)
}

impl ScanOptions {
    /// Like [`fori_loop`], with several steps per iteration ([`unroll`](Self::unroll)) if both bounds are plain
    /// numbers. The other options have no effect.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let sum = ScanOptions::new().unroll(4).fori_loop(0, 10, |i, sum: Array| sum + i, array(0))?;
    /// assert_eq!(sum.item::<i32>()?, 45);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if a bound is not an integer scalar, if `body_fun` fails, or if it changes the structure, a
    /// dtype or a shape of the carry.
    #[track_caller]
    pub fn fori_loop<C, R>(
        self,
        lower: impl ArrayLike,
        upper: impl ArrayLike,
        body_fun: impl Fn(Array, C) -> R,
        init: impl IntoArg<C>,
    ) -> Result<C>
    where
        C: Tree,
        R: IntoOutput<Output = C>,
    {
        let unroll = self.steps_at_once();
        counted(unroll, lower.into_array(), upper.into_array(), body_fun, init.into_arg(), Location::caller())
    }
}

fn counted<C, R>(
    unroll: usize,
    lower: Array,
    upper: Array,
    body_fun: impl Fn(Array, C) -> R,
    init: C,
    location: &'static Location<'static>,
) -> Result<C>
where
    C: Tree,
    R: IntoOutput<Output = C>,
{
    let _line = source::enter_at(location);
    let init_def = Flat::of(&init).def;
    let (lower, upper) = bounds(lower, upper).map_err(|e| e.at(location))?;
    let mut paths: Vec<String> = init_def.paths().iter().map(|path| format!("carry{path}")).collect();
    paths.insert(0, "the index".into());

    // A loop of a known number of steps is a scan, which can be differentiated in reverse mode.
    if let (Repr::Literal(start), Repr::Literal(end)) = (&lower.0, &upper.0) {
        let length = (end.value.to_i128() - start.value.to_i128()).clamp(0, u32::MAX as i128) as usize;
        let args = Flat::from_arguments(&((lower, init), ()));
        let options = ScanOptions::new().length(length).unroll(unroll);
        let body: FlatFn<'_> = &|args| {
            let (carry, ()) = args.build::<((Array, C), ())>()?;
            Ok(Flat::of(&(counted_step(&body_fun, carry)?, ())))
        };
        let out = options.run("fori_loop", &args, Some(paths), body, location)?;
        let ((_, carry), ()) = out.build::<((Array, C), ())>()?;
        return Ok(carry);
    }
    let init = Flat::from_arguments(&(lower, init));
    let cond: FlatFn<'_> = &|carry| Ok(Flat::of(&carry.leaves[0].less(&upper)));
    let body: FlatFn<'_> = &|carry| Ok(Flat::of(&counted_step(&body_fun, carry.build()?)?));
    let carry = Carry { function: "fori_loop", def: &init.def, paths };
    let out = run_while(&carry, cond, body, &init, location).map_err(|e| e.at(location))?;
    Ok(out.build::<(Array, C)>()?.1)
}

/// Runs one step of a counted loop. The index is part of the carry.
fn counted_step<C: Tree, R: IntoOutput<Output = C>>(
    body_fun: &impl Fn(Array, C) -> R,
    (i, carry): (Array, C),
) -> Result<(Array, C)> {
    let following = &i + 1;
    Ok((following, body_fun(i, carry).into_output()?))
}

/// Converts the bounds to one integer type.
fn bounds(lower: Array, upper: Array) -> Result<(Array, Array)> {
    for bound in [&lower, &upper] {
        bound.check()?;
        if bound.ndim() != 0 || !bound.dtype().is_integer() {
            return Err(err!(Type, "fori_loop bounds must be integer scalars, got {}", bound.type_name())
                .help("convert them with `as i32`, or `astype(DType::I32)`"));
        }
    }
    let (dtype, weak) = promote((lower.dtype(), lower.weak_type()), (upper.dtype(), upper.weak_type()))?;
    if [&lower, &upper].iter().any(|bound| !bound.weak_type() && bound.dtype() != dtype) {
        return Err(err!(
            Type,
            "lower and upper arguments to fori_loop must have equal types, got {} and {}",
            lower.dtype(),
            upper.dtype()
        )
        .help("convert one of them with `astype`"));
    }
    Ok((convert(&lower, dtype, weak), convert(&upper, dtype, weak)))
}
