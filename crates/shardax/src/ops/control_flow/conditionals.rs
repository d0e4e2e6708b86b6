//! `cond` and `switch`, which execute one of several functions.

use std::panic::Location;
use std::sync::Arc;

use smallvec::SmallVec;

use super::{cast_hint, spec_text};
use crate::core::array::Array;
use crate::core::function::{IntoArg, IntoOutput};
use crate::core::program::trace::{Traced, bind_at, check_usable, with_source};
use crate::core::program::{Aval, Program};
use crate::core::sharding_rule::agrees;
use crate::core::tree::{Flat, Tree, TreeDef, same_structure};
use crate::dtype::DType;
use crate::error::{Error, Result, bail, err};
use crate::interpret::flat::{avals_of, trace_flat};
use crate::interpret::higher_order::{join, marked};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::cond::Cond;
use crate::ops::promotion::convert;
use crate::source;

/// Returns `true_fun(operands)` if the scalar `pred` is true (or not 0), otherwise `false_fun(operands)`. Only one of
/// the functions runs. You can pass `operands` by reference, and a number for an array.
///
/// If the condition is a Rust `bool`, use an `if` instead: only the chosen branch is then part of the program. For a
/// choice between elements, use [`where_`](crate::numpy::where_).
///
/// Under `vmap` with a predicate for each example, both functions run and each example selects its result.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::control_flow::cond;
/// let f = |x: Array| cond(x.greater(0), |x| x.sqrt(), |x| -x, x.clone());
/// assert_eq!(f(array(9.0f32))?.item::<f32>()?, 3.0);
/// assert_eq!(f(array(-9.0f32))?.item::<f32>()?, 9.0);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if `pred` is not a scalar, or if the functions' results differ in structure, dtypes or shapes.
#[track_caller]
pub fn cond<T, O, A, B>(
    pred: impl ArrayLike,
    true_fun: impl Fn(T) -> A,
    false_fun: impl Fn(T) -> B,
    operands: impl IntoArg<T>,
) -> Result<O>
where
    T: Tree,
    O: Tree,
    A: IntoOutput<Output = O>,
    B: IntoOutput<Output = O>,
{
    let location = Location::caller();
    let _line = source::enter_at(location);
    cond_flat(
        pred.into_array(),
        &|flat: &Flat| Ok(Flat::of(&true_fun(flat.build()?).into_output()?)),
        &|flat: &Flat| Ok(Flat::of(&false_fun(flat.build()?).into_output()?)),
        &Flat::from_arguments(&operands.into_arg()),
        location,
    )
    .map_err(|e| e.at(location))?
    .build()
}

/// [`cond`] on flattened trees.
fn cond_flat(
    pred: Array,
    true_fun: FlatFn<'_>,
    false_fun: FlatFn<'_>,
    operands: &Flat,
    location: &'static Location<'static>,
) -> Result<Flat> {
    pred.check()?;
    if pred.ndim() != 0 {
        return Err(err!(Type, "Pred must be a scalar, got {} of shape {:?}", pred.type_name(), pred.shape())
            .help("reduce it with `.any(..)` or `.all(..)`, or choose elementwise with `where_`"));
    }
    let index = with_source(location, || {
        let truth = if pred.dtype() == DType::Bool { pred } else { pred.not_equal(0) };
        convert(&truth, DType::I32, false)
    });
    choose(index, &[false_fun, true_fun], &["false_fun", "true_fun"], operands, location)
}

/// The error of [`Branches::apply`] for an index without a branch. `switch` itself clamps its index.
fn no_branch(index: usize, count: usize) -> Error {
    err!(Index, "branch index {index} is out of range: there are {count} branches")
        .help("pass an index that is less than `Branches::count`")
}

/// The branches of [`switch`]: a tuple, a `Vec` or an array of functions of the operands. All functions must return the
/// same type, or a `Result` of it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a tuple or list of branches for these operands",
    label = "not branches",
    note = "branches are a tuple of functions, or a `Vec` or an array of functions of one type: `switch(i, (|x: Array| x, |x: Array| x * 2), &x)`",
    note = "each branch takes the operands by value (`|x: Array|`), and all branches return the same type"
)]
pub trait Branches<T> {
    /// The return type of every branch, without the `Result`.
    type Output: Tree;

    /// Returns the number of branches.
    fn count(&self) -> usize;

    /// Applies the branch at `index`.
    fn apply(&self, index: usize, operands: T) -> Result<Self::Output>;
}

impl<T, F: Fn(T) -> R, R: IntoOutput> Branches<T> for Vec<F> {
    type Output = R::Output;

    fn count(&self) -> usize {
        self.len()
    }

    fn apply(&self, index: usize, operands: T) -> Result<R::Output> {
        match self.get(index) {
            Some(f) => f(operands).into_output(),
            None => Err(no_branch(index, self.count())),
        }
    }
}

impl<T, F: Fn(T) -> R, R: IntoOutput, const N: usize> Branches<T> for [F; N] {
    type Output = R::Output;

    fn count(&self) -> usize {
        N
    }

    fn apply(&self, index: usize, operands: T) -> Result<R::Output> {
        match self.get(index) {
            Some(f) => f(operands).into_output(),
            None => Err(no_branch(index, self.count())),
        }
    }
}

macro_rules! tuples_of_branches {
    ($(($n:literal $($f:ident $r:ident $i:tt),+))*) => {$(
        impl<T, Out: Tree, $($f: Fn(T) -> $r, $r: IntoOutput<Output = Out>),+> Branches<T> for ($($f,)+) {
            type Output = Out;

            fn count(&self) -> usize {
                $n
            }

            fn apply(&self, index: usize, operands: T) -> Result<Out> {
                match index {
                    $($i => (self.$i)(operands).into_output(),)+
                    _ => Err(no_branch(index, self.count())),
                }
            }
        }
    )*};
}

tuples_of_branches! {
    (1 F0 R0 0)
    (2 F0 R0 0, F1 R1 1)
    (3 F0 R0 0, F1 R1 1, F2 R2 2)
    (4 F0 R0 0, F1 R1 1, F2 R2 2, F3 R3 3)
    (5 F0 R0 0, F1 R1 1, F2 R2 2, F3 R3 3, F4 R4 4)
    (6 F0 R0 0, F1 R1 1, F2 R2 2, F3 R3 3, F4 R4 4, F5 R5 5)
    (7 F0 R0 0, F1 R1 1, F2 R2 2, F3 R3 3, F4 R4 4, F5 R5 5, F6 R6 6)
    (8 F0 R0 0, F1 R1 1, F2 R2 2, F3 R3 3, F4 R4 4, F5 R5 5, F6 R6 6, F7 R7 7)
}

/// Applies the branch at `index`, an integer scalar, to the operands. An index out of range is clamped.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::control_flow::switch;
/// let f = |i: i32| switch(i, (|x: Array| x + 1, |x: Array| x * 10, |x: Array| -x), array(5));
/// assert_eq!(f(1)?.item::<i32>()?, 50);
/// assert_eq!(f(7)?.item::<i32>()?, -5);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if the index is not an integer scalar, if there are no branches, or if the branches' results differ
/// in structure, dtypes or shapes.
#[track_caller]
pub fn switch<T: Tree, B: Branches<T>>(
    index: impl ArrayLike,
    branches: B,
    operands: impl IntoArg<T>,
) -> Result<B::Output> {
    let location = Location::caller();
    let _line = source::enter_at(location);
    switch_flat(index.into_array(), &branches, &Flat::from_arguments(&operands.into_arg()), location)
        .map_err(|e| e.at(location))?
        .build()
}

/// [`switch`] on flattened trees.
fn switch_flat<T: Tree, B: Branches<T>>(
    index: Array,
    branches: &B,
    operands: &Flat,
    location: &'static Location<'static>,
) -> Result<Flat> {
    index.check()?;
    if index.ndim() != 0 {
        return Err(err!(Type, "Branch index must be scalar, got {} of shape {:?}", index.type_name(), index.shape())
            .help("use `vmap` to choose for each entry"));
    }
    if !index.dtype().is_integer() {
        return Err(err!(Type, "Index type must be an integer, got {}", index.dtype())
            .help("convert it with `astype(DType::I32)`"));
    }
    let count = branches.count();
    let functions: Vec<_> =
        (0..count).map(|i| move |flat: &Flat| Ok(Flat::of(&branches.apply(i, flat.build()?)?))).collect();
    match &functions[..] {
        [] => Err(err!(Value, "Empty branch sequence").help("pass at least one branch to `switch`")),
        [function] => function(operands),
        _ => {
            let index = with_source(location, || {
                // Clamps in a wider type, because the last index may not fit a narrow one.
                let wide = if index.dtype().bits() < 32 { index.astype(DType::I32) } else { index };
                convert(&wide.clip(0, count - 1), DType::I32, false)
            });
            let names: Vec<String> = (0..count).map(|i| format!("branch {i}")).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let functions: Vec<FlatFn<'_>> = functions.iter().map(|f| f as FlatFn<'_>).collect();
            choose(index, &functions, &names, operands, location)
        }
    }
}

/// A function on flattened trees.
pub(crate) type FlatFn<'a> = &'a dyn Fn(&Flat) -> Result<Flat>;

/// Selects among functions of the operands by an int32 index that is already in range.
pub(crate) fn choose(
    index: Array,
    branches: &[FlatFn<'_>],
    names: &[&str],
    operands: &Flat,
    location: &'static Location<'static>,
) -> Result<Flat> {
    let avals = avals_of(operands)?;
    let mut traced: Vec<Traced> = Vec::new();
    let mut result_type: Option<(TreeDef, Vec<Aval>)> = None;
    for (branch, name) in branches.iter().zip(names) {
        let (branch, def) = trace_flat(&operands.def, &avals, *branch)?;
        let outs = branch.program.out_avals();
        match &result_type {
            Some((first_def, first_outs)) => same_results(names[0], first_def, first_outs, name, &def, &outs)?,
            None => result_type = Some((def, outs)),
        }
        traced.push(branch);
    }
    let Some((def, _)) = result_type else { bail!(Value, "Empty branch sequence") };

    // The branches share one list of operands, so an operand is dropped only if no branch uses it.
    let (branches, captures) = join(traced);
    let mut branches: Vec<Program> = branches.iter().map(Program::simplified).collect();
    let mut used = vec![false; captures.len() + operands.leaves.len()];
    for branch in &branches {
        used.iter_mut().zip(branch.used_inputs()).for_each(|(used, used_by_branch)| *used |= used_by_branch);
    }
    for branch in &mut branches {
        branch.inputs = marked(&branch.inputs, &used);
    }
    let args = marked(&[&captures[..], &operands.leaves].concat(), &used);
    let outs = with_source(location, || -> Result<SmallVec<[Array; 1]>> {
        let (this, mut args) = Cond { branches }.fit(&index, &args)?;
        args.insert(0, index.clone());
        Ok(bind_at(Arc::new(this), &args, location))
    })?;
    outs.iter().try_for_each(check_usable)?;
    Ok(Flat { leaves: outs.into_iter().collect(), def })
}

/// Returns an error if the results of two branches differ.
fn same_results(
    name: &str,
    def: &TreeDef,
    outs: &[Aval],
    other_name: &str,
    other_def: &TreeDef,
    others: &[Aval],
) -> Result<()> {
    let help = format!("revise {name} and/or {other_name} so that all output types match");
    same_structure(def, other_def).map_err(|e| {
        e.context(format!(
            "cond branch outputs must have the same pytree structure, but the outputs of {name} and {other_name} differ"
        ))
        .help(help.clone())
    })?;
    for ((out, other), path) in outs.iter().zip(others).zip(def.paths()) {
        if (out.dtype, &out.shape) != (other.dtype, &other.shape) || !agrees(out, other) {
            let (what, help) = match () {
                () if out.dtype != other.dtype => ("dtypes", help),
                () if out.shape != other.shape => ("shapes", help),
                () => ("shardings", format!("reshard the output of {other_name}: `reshard(.., {})`", spec_text(out))),
            };
            return Err(err!(
                Type,
                "cond branches must have equal output types but they differ: the output{path} of {name} has type {out} but \
                 the corresponding output of {other_name} has type {other}, so the {what} do not match"
            )
            .help(help));
        }
        if out.vma != other.vma {
            // Each branch may lack an axis that the other one has, so the help can name a cast in both.
            let fixes: Vec<String> = [(name, out, other), (other_name, other, out)]
                .into_iter()
                .filter(|(_, have, want)| !want.vma.is_subset(&have.vma))
                .map(|(name, have, want)| cast_hint(&want.vma.minus(&have.vma), &format!("the output{path} of {name}")))
                .collect();
            return Err(err!(
                Type,
                "cond branches must have equal output types but they differ: the output{path} of {name} has type {out} but \
                 the corresponding output of {other_name} has type {other}, so the manual axis types do not match"
            )
            .help(fixes.join("; ")));
        }
    }
    Ok(())
}
