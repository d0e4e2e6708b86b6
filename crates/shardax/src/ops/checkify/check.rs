//! `check!`, an equation that records a failure.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::error::{CheckError, Message, What};
use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::{BatchAxis, Dims, Outputs, PartialAxes, Primitive, ShardingRule, Tangents, TypedOuts};
use crate::core::program::Aval;
use crate::core::program::trace::{bind, check_usable, runs_now};
use crate::core::tree::Static;
use crate::dtype::{DType, Scalar};
use crate::error::{AtCaller, Result, err};
use crate::ops::callback::debug::Named;
use crate::ops::callback::text;
use crate::ops::operators::ArrayLike;
use crate::ops::select::where_;
use crate::source;

/// The primitive of a check. Operands: a boolean that is true if the check failed, the number of its message in `messages`,
/// and the values of the message.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Check {
    pub messages: Arc<[Message]>,
}

/// Adds a check; for [`check!`](crate::check!).
///
/// # Errors
/// Returns an error if the condition is known and false, or if it is not a boolean.
#[doc(hidden)]
#[track_caller]
pub fn check(pred: impl ArrayLike, text: &'static str, values: Vec<Named>) -> Result<()> {
    let _line = source::enter();
    check_array(pred.into_array(), text, values).at_caller()
}

#[track_caller]
fn check_array(pred: Array, text: &'static str, values: Vec<Named>) -> Result<()> {
    let (names, values): (Vec<&'static str>, Vec<Array>) = values.into_iter().unzip();
    values.iter().chain([&pred]).try_for_each(check_usable)?;
    if pred.dtype() != DType::Bool || pred.ndim() > 0 {
        return Err(err!(Type, "check takes a scalar pred as argument, got {}", pred.type_name())
            .help("reduce the predicate to one boolean: `check!(x.greater(0).all(..), …)`"));
    }
    let mut missing = None;
    text::fill(text, |place| {
        if place.among(&names).is_none() {
            missing = Some(format!("{place:?}"));
        }
        None
    });
    if let Some(missing) = missing {
        return Err(err!(Value, "the text of the check, {text:?}, asks for {missing}, but its values are {names:?}")
            .help("pass the value as `name = value`, or write `{{` for a brace"));
    }
    let line = source::line().unwrap_or_else(|| std::panic::Location::caller());
    let messages: Arc<[Message]> = [Message { what: What::Check { text, names }, line }].into();
    let failed = pred.logical_not();
    record(failed, Array::literal(Scalar::Int(0), DType::I32, false), values, messages)
}

/// Returns a concrete failure as `Err` immediately; otherwise adds a check to the program.
#[track_caller]
fn record(failed: Array, code: Array, payload: Vec<Array>, messages: Arc<[Message]>) -> Result<()> {
    let operands = [&[failed.clone(), code.clone()], &payload[..]].concat();
    if !runs_now(&operands) {
        let outs = bind(Arc::new(Check { messages }), &operands);
        return outs.iter().try_for_each(check_usable);
    }
    let (failed, codes, payloads) = (vec![failed], vec![code], vec![payload]);
    CheckError { failed, codes, payloads, messages: Static(messages) }.throw()
}

/// Checks that `error` is not set. In a traced function this adds a [`check!`](crate::check!) to the program, so an
/// enclosing [`checkify`](crate::checkify()) must return it.
///
/// # Errors
/// Returns a concrete error immediately.
#[track_caller]
pub fn check_error(error: &CheckError) -> Result<()> {
    let _line = source::enter();
    for ((failed, code), payload) in error.failed.iter().zip(&error.codes).zip(&error.payloads) {
        let mut group = [&[failed.clone(), code.clone()], &payload[..]].concat();
        select_last_failed(&mut group);
        let payload = group.split_off(2);
        record(group.remove(0), group.remove(0), payload, error.messages.0.clone()).at_caller()?;
    }
    Ok(())
}

/// Reduces a batch of errors to the last one that failed, as JAX does. The group is the failed flags, the numbers of the
/// messages, and their values.
pub(super) fn select_last_failed(group: &mut [Array]) {
    let batch = group.first().map(|failed| failed.shape().to_vec()).unwrap_or_default();
    if batch.is_empty() {
        return;
    }
    let n: usize = batch.iter().product();
    let flat: Vec<Array> =
        group.iter().map(|x| x.replicated().reshape([&[n], &x.shape()[batch.len()..]].concat())).collect();
    let index = crate::ops::lax::iota(DType::I32, &[n], 0);
    // If none failed, any entry will do.
    let last_failed = where_(&flat[0], index, -1).max(..);
    let entry = where_(last_failed.less(0), n as i32 - 1, last_failed);
    for (part, batch) in group.iter_mut().zip(flat) {
        *part = crate::ops::lax::dynamic_index_in_dim(&batch, &entry, 0).squeeze(0);
    }
}

impl Primitive for Check {
    fn name(&self) -> &'static str {
        "check"
    }

    fn output_count(&self) -> usize {
        0
    }

    fn has_effects(&self) -> bool {
        true
    }

    fn infer(&self, _args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        Ok(smallvec![])
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.replicated()
    }

    fn partial_rule(&self, _rule: &ShardingRule<'_>) -> Result<PartialAxes> {
        Ok(Default::default())
    }

    fn lower(&self, _cx: &mut Lowering, _args: &[Value], _outs: &[Aval]) -> Result<Vec<Value>> {
        Err(err!(
            Value,
            "Cannot abstractly evaluate a checkify.check which was not functionalized. This probably means you tried to stage (jit/scan/pmap/...) a `check` without functionalizing it through `checkify.checkify`."
        )
        .help("make the function return its error: `let (error, out) = jit(checkify(f)).call(x)?; error.throw()?`"))
    }

    fn jvp(&self, args: &[Array], _tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        Ok((bind(Arc::new(self.clone()), args), Vec::new()))
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        let mut group: Vec<Array> = args.iter().zip(dims).map(|(a, &d)| axis.moved(a, d, 0)).collect();
        select_last_failed(&mut group);
        Ok((bind(Arc::new(self.clone()), &group), Vec::new()))
    }
}

/// Checks a boolean scalar, which can be an array: `check!(x.all(..), "all must hold, got {x}", x)?`. The text has the same
/// placeholders as the text of [`debug_print!`](crate::debug_print!).
///
/// A failed check returns `Err` immediately if the value is concrete, also in a [`grad`](crate::grad) or
/// [`vmap`](crate::vmap()) outside of `jit`. A compiled program cannot fail in the middle, so it must return the error
/// instead: apply [`checkify`](crate::checkify()) to the function before `jit`, otherwise `jit` fails.
///
/// ```
/// # use shardax::prelude::*;
/// let root = |x: Array| -> Result<Array> {
///     check!(x.greater_equal(0), "no root of {x}", x)?;
///     Ok(x.sqrt())
/// };
/// assert!(root(Array::from(-1.0f32)).is_err_and(|e| e.message() == "no root of -1.0 (`check` failed)"));
/// let (error, _) = jit(checkify(root)).call(-4.0f32)?;
/// assert_eq!(error.get()?.as_deref(), Some("no root of -4.0 (`check` failed)"));
/// # Ok::<(), shardax::Error>(())
/// ```
#[macro_export]
macro_rules! check {
    ($pred:expr, $text:literal $(, $($values:tt)*)?) => {
        $crate::checkify::check($pred, $text, $crate::debug_print!(@values [] $($($values)*)?))
    };
}
