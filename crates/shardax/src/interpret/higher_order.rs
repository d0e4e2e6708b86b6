//! Helpers for higher-order primitives: varying axes of operands, and joining captures.

use super::ad::{Linearized, linearize_nested, tangent_aval};
use super::eval::eval;
use super::memo;
use crate::core::array::{Array, Repr};
use crate::core::primitive::{Outputs, Primitive, Tangents};
use crate::core::program::trace::{Traced, bind, check_usable, trace};
use crate::core::program::{Aval, Program, Var};
use crate::error::{Result, err};
use crate::shape::AxisSet;

/// Applies a primitive. Returns `Err` if it failed.
#[track_caller]
pub(crate) fn bind_checked(primitive: impl Primitive + 'static, args: &[Array]) -> Result<Outputs> {
    let outs = bind(std::sync::Arc::new(primitive), args);
    outs.iter().try_for_each(check_usable)?;
    Ok(outs)
}

/// The axes over which each operand of a program must vary: the operand's axes, and the axes that the program was
/// traced for. `None` if both are equal.
pub(crate) fn operand_sets<'a>(
    inputs: impl Iterator<Item = &'a Aval> + Clone,
    args: &[AxisSet],
) -> Option<Vec<AxisSet>> {
    let same = inputs.clone().zip(args).all(|(aval, arg)| aval.vma == *arg);
    (!same).then(|| inputs.zip(args).map(|(aval, arg)| aval.vma.union(arg)).collect())
}

/// The axes over which each array varies.
pub(crate) fn sets_of(args: &[Array]) -> Vec<AxisSet> {
    args.iter().map(Array::vma).collect()
}

/// Traces the program for inputs that vary over the axes in `inputs`, and casts its first outputs to vary over the axes
/// in `outputs`.
pub(crate) fn varying(program: &Program, inputs: &[AxisSet], outputs: &[AxisSet]) -> Result<Program> {
    let avals: Vec<Aval> =
        program.in_avals().zip(inputs).map(|(aval, vma)| Aval { vma: vma.clone(), ..aval.clone() }).collect();
    let traced = trace(&avals, |args| {
        let mut outs = eval(program, args)?;
        outs.iter_mut().zip(outputs).for_each(|(out, vma)| *out = cast_up(out, vma));
        Ok(outs)
    })?;
    // A program is closed, so evaluating it captured nothing.
    Ok(traced.program)
}

/// Casts `array` to vary over `vma`, unless it already does.
#[track_caller]
pub(crate) fn cast_up(array: &Array, vma: &AxisSet) -> Array {
    if vma.is_subset(&array.vma()) { array.clone() } else { array.varying_over(&array.vma().union(vma)) }
}

/// Casts each operand to the axes of its set.
#[track_caller]
pub(crate) fn cast_all(args: &[Array], sets: &[AxisSet]) -> Vec<Array> {
    args.iter().zip(sets).map(|(arg, vma)| cast_up(arg, vma)).collect()
}

/// Zeros of this type, varying over its axes.
#[track_caller]
pub(crate) fn zeros(aval: &Aval) -> Array {
    cast_up(&Array::zeros_of(aval), &aval.vma)
}

/// A tangent, or zeros if there is none.
#[track_caller]
pub(crate) fn tangent_or_zeros(tangent: &Option<Array>, primal: &Aval) -> Array {
    match (tangent, tangent_aval(primal)) {
        (Some(t), _) => t.clone(),
        (None, Some(aval)) => zeros(&aval),
        (None, None) => zeros(&primal.with_dtype(crate::dtype::DType::Float0)),
    }
}

/// The marked tangents, with zeros for missing ones.
#[track_caller]
pub(crate) fn marked_tangents(tangents: &[Option<Array>], primals: &[Array], marks: &[bool]) -> Vec<Array> {
    let mark = tangents.iter().zip(primals).zip(marks).filter(|(_, m)| **m);
    mark.map(|((t, primal), _)| tangent_or_zeros(t, &primal.aval())).collect()
}

/// The marked items of a list.
pub(crate) fn marked<T: Clone>(list: &[T], marks: &[bool]) -> Vec<T> {
    list.iter().zip(marks).filter(|(_, m)| **m).map(|(item, _)| item.clone()).collect()
}

/// One item for each mark: the next of `items` if the mark is set, otherwise `None`.
pub(crate) fn spread_marked(items: impl IntoIterator<Item = Array>, marks: &[bool]) -> Tangents {
    let mut items = items.into_iter();
    marks.iter().map(|m| if *m { items.next() } else { None }).collect()
}

/// The trace that an array belongs to.
pub(crate) fn trace_of(array: &Array) -> Option<u64> {
    match &array.0 {
        Repr::Traced(t) => Some(t.trace),
        _ => None,
    }
}

/// Returns `true` if two arrays are the same value, and not only equal.
pub(crate) fn is_same(a: &Array, b: &Array) -> bool {
    match (&a.0, &b.0) {
        (Repr::Traced(a), Repr::Traced(b)) => (a.trace, a.var) == (b.trace, b.var),
        (Repr::Concrete(a), Repr::Concrete(b)) => std::sync::Arc::ptr_eq(a, b),
        _ => false,
    }
}

/// Passes the results of a traced function through `change`. The equations are recorded again without applying rules.
pub(crate) fn with_outputs(traced: &Traced, change: impl FnOnce(Vec<Array>) -> Vec<Array>) -> Result<Traced> {
    let types: Vec<Aval> = traced.program.in_avals().skip(traced.captures.len()).cloned().collect();
    trace(&types, |inputs| Ok(change(eval(&traced.program, &[&traced.captures, inputs].concat())?)))
}

/// Gives programs that were traced on the same arguments the same inputs: the captures of all programs, then the
/// arguments.
pub(crate) fn join(traced: Vec<Traced>) -> (Vec<Program>, Vec<Array>) {
    let mut captures_of_all: Vec<Array> = Vec::new();
    for capture in traced.iter().flat_map(|t| &t.captures) {
        if !captures_of_all.iter().any(|known| is_same(known, capture)) {
            captures_of_all.push(capture.clone());
        }
    }
    let programs = traced
        .into_iter()
        .map(|Traced { mut program, captures }| {
            let args = program.inputs.split_off(captures.len());
            let capture_vars = std::mem::take(&mut program.inputs);
            program.inputs = captures_of_all
                .iter()
                .map(|array| match captures.iter().position(|c| is_same(c, array)) {
                    Some(i) => capture_vars[i],
                    None => new_var(&mut program, array.aval()),
                })
                .collect();
            program.inputs.extend(args);
            program
        })
        .collect();
    (programs, captures_of_all)
}

/// Adds a variable that nothing uses yet.
pub(crate) fn new_var(program: &mut Program, aval: Aval) -> Var {
    program.avals.push(aval);
    Var(program.avals.len() as u32 - 1)
}

/// Drops unused captures.
pub(crate) fn drop_unused_captures(traced: Traced) -> Traced {
    let mut program = traced.program.simplified();
    let mut used = program.used_inputs();
    used[traced.captures.len()..].fill(true);
    let captures = marked(&traced.captures, &used);
    program.inputs = marked(&program.inputs, &used);
    Traced { program, captures }
}

/// A residual: a value that the linear part receives from outside.
#[derive(Clone)]
pub(crate) enum Residual {
    /// An input of the program.
    Input(usize),
    /// A value from outside of the program.
    Outer(Array),
    /// The value with this index among the values that the non-linear part returns in addition to the outputs.
    Stored(usize),
}

/// A program that is split into its non-linear part, which also returns residuals, and its linear part.
#[derive(Clone)]
pub(crate) struct Split {
    pub known: Traced,
    pub linear: Linearized,
    /// An entry for each residual of the linear part.
    pub residuals: Vec<Residual>,
    /// The types of the residuals that the non-linear part returns.
    pub stored: Vec<Aval>,
}

impl Split {
    /// Splits `program` for tangents of the inputs in `nonzero`. Inputs in `reach` are available without being stored.
    pub fn of(program: &Program, nonzero: &[bool], reach: impl Fn(usize) -> bool) -> Result<Split> {
        let reach: Vec<bool> = (0..program.inputs.len()).map(reach).collect();
        memo::derived("linearize", program, &(nonzero, &reach), Split::is_closed, || {
            Split::derive(program, nonzero, &reach)
        })
    }

    /// Returns `true` if the split can be used again, because it holds no values of this trace.
    fn is_closed(&self) -> bool {
        self.known.captures.is_empty() && !self.residuals.iter().any(|r| matches!(r, Residual::Outer(_)))
    }

    fn derive(program: &Program, nonzero: &[bool], reach: &[bool]) -> Result<Split> {
        let avals: Vec<Aval> = program.in_avals().cloned().collect();
        // Residuals that are inputs, or values from outside of this trace, are not stored.
        let mut linearized = None;
        let nonlinear = trace(&avals, |inputs| {
            let (mut outs, mut linear) = linearize_nested(program, inputs, nonzero)?;
            let needed = drop_unused_captures(Traced { program: linear.program, captures: linear.residuals });
            (linear.program, linear.residuals) = (needed.program, needed.captures);
            let this_trace = inputs.first().and_then(trace_of);
            let mut stored = Vec::new();
            let residuals = linear
                .residuals
                .iter()
                .map(|array| match inputs.iter().position(|input| is_same(input, array)) {
                    Some(i) if reach[i] => Residual::Input(i),
                    None if trace_of(array) != this_trace => Residual::Outer(array.clone()),
                    _ => {
                        outs.push(array.clone());
                        stored.push(array.aval().strip_weak_type());
                        Residual::Stored(stored.len() - 1)
                    }
                })
                .collect();
            linearized = Some((linear, residuals, stored));
            Ok(outs)
        })?;
        let (linear, residuals, stored) = linearized.ok_or_else(|| err!(Runtime, "a program was not linearized"))?;
        Ok(Split { known: nonlinear, linear, residuals, stored })
    }
}
