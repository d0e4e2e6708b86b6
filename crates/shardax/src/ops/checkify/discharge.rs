//! Discharges checks: threads a state through the program that holds the first error of each kind.

use std::cell::RefCell;
use std::sync::Arc;

use super::Checks;
use smallvec::SmallVec;

use super::automatic;
use super::check::{Check, select_last_failed};
use super::error::{CheckError, Message};
use crate::core::array::Array;
use crate::core::primitive::{Outputs, ThreadState};
use crate::core::program::trace::{Traced, bind_at, check_usable, trace};
use crate::core::program::{Aval, Eqn, Program};
use crate::core::tree::Static;
use crate::dtype::{DType, Scalar};
use crate::error::Result;
use crate::interpret::thread_state::thread_eval;
use crate::ops::constants::filled;
use crate::ops::select::where_;
use crate::shape::Shape;
use crate::stack::grow;

/// A kind of error. The state holds the first error of each kind that occurs while the program runs; of different kinds, the
/// error that comes first in the program is reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Checks with values of these types.
    Check(Vec<(DType, Shape)>),
    Nan,
    /// An invalid value in a result: `nan` or `inf`.
    Invalid(&'static str),
    Division,
    Index,
}

impl Kind {
    /// Returns the types of the message's values.
    fn payload(&self) -> Vec<(DType, Shape)> {
        match self {
            Kind::Check(types) => types.clone(),
            Kind::Index => vec![(DType::I32, Shape::from_slice(&[3]))],
            Kind::Nan | Kind::Invalid(_) | Kind::Division => Vec::new(),
        }
    }
}

/// Adds the kinds of errors that a program can have to `kinds`, in the order of its equations.
fn collect_kinds(program: &Program, checks: Checks, kinds: &mut Vec<Kind>) {
    for eqn in &program.eqns {
        for inner in eqn.primitive.programs() {
            grow(|| collect_kinds(inner, checks, kinds));
        }
        let eqn_kinds = match eqn.primitive.as_any().is::<Check>() {
            true if checks.has(Checks::USER) => {
                let types = eqn.inputs[2..].iter().map(|a| program.atom_aval(a));
                vec![Kind::Check(types.map(|a| (a.dtype, a.shape)).collect())]
            }
            false if eqn.primitive.programs().is_empty() => {
                automatic::kinds(eqn, eqn.outputs.iter().any(|v| program.aval_of(*v).dtype.is_inexact()), checks)
            }
            _ => Vec::new(),
        };
        for kind in eqn_kinds {
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
    }
}

/// Returns `true` if a program has user checks.
fn has_checks(program: &Program) -> bool {
    let mut has_checks = false;
    program.for_each_distinct_eqn(&mut |eqn| has_checks |= eqn.primitive.as_any().is::<Check>());
    has_checks
}

/// Threads the errors through a program. The state is a group of arrays for each kind: a failed flag, the number of its
/// message, and the values of the message.
struct Discharge {
    checks: Checks,
    kinds: Vec<Kind>,
    /// The messages of all equations so far. A `RefCell`, because [`ThreadState`] has shared access.
    messages: RefCell<Vec<Message>>,
}

impl Discharge {
    /// Returns the range of each kind's group in the state.
    fn groups(&self) -> impl Iterator<Item = std::ops::Range<usize>> {
        let mut end = 0;
        let lens: Vec<usize> = self.kinds.iter().map(|kind| 2 + kind.payload().len()).collect();
        lens.into_iter().map(move |len| {
            end += len;
            end - len..end
        })
    }

    /// Returns the initial state, which has no errors.
    fn initial_state(&self) -> Vec<Array> {
        let mut state = Vec::new();
        for kind in &self.kinds {
            let (failed, code) = ((DType::Bool, Shape::new()), (DType::I32, Shape::new()));
            let types = [failed, code].into_iter().chain(kind.payload());
            state.extend(types.map(|(dtype, shape)| Array::zeros_of(&Aval::new(dtype, shape))));
        }
        state
    }

    /// Records a possible error of this kind in the state, unless the state already holds an earlier error.
    fn update(&self, kind: &Kind, error: Vec<Array>, state: &mut [Array]) {
        let group = self.kinds.iter().zip(self.groups()).find(|(k, _)| *k == kind);
        let Some((_, range)) = group else { return };
        let group = &mut state[range];
        let has_failed = group[0].clone();
        group[0] = &has_failed | &error[0];
        for (old, new) in group.iter_mut().zip(error).skip(1) {
            // A mapped state has a flag for each entry, which selects all elements of a value.
            let mut keeps_old = has_failed.clone();
            while keeps_old.ndim() < old.ndim() {
                keeps_old = keeps_old.expand_dims(-1);
            }
            *old = where_(keeps_old, &*old, new);
        }
    }

    /// Adds messages and returns the number of the first one.
    fn add_messages(&self, new: &[Message]) -> i32 {
        let mut messages = self.messages.borrow_mut();
        messages.extend_from_slice(new);
        (messages.len() - new.len()) as i32
    }
}

impl ThreadState for Discharge {
    fn concerns(&self, program: &Program) -> bool {
        let mut kinds = Vec::new();
        collect_kinds(program, self.checks, &mut kinds);
        !kinds.is_empty() || has_checks(program)
    }

    fn apply(&self, eqn: &Eqn, args: &[Array], state: &mut Vec<Array>) -> Result<Outputs> {
        if let Some(check) = eqn.primitive.as_any().downcast_ref::<Check>() {
            if self.checks.has(Checks::USER) {
                let types = args[2..].iter().map(|a| (a.dtype(), a.aval().shape)).collect();
                let mut error = args.to_vec();
                error[1] = &error[1] + self.add_messages(&check.messages);
                self.update(&Kind::Check(types), error, state);
            }
            return Ok(Outputs::new());
        }
        let outs = bind_at(eqn.primitive.clone(), args, eqn.source);
        outs.iter().try_for_each(check_usable)?;
        let inexact = outs.iter().any(|out| out.dtype().is_inexact());
        for kind in automatic::kinds(eqn, inexact, self.checks) {
            if let Some((failed, what, payload)) = automatic::failure(&kind, eqn, args, &outs) {
                let code = self.add_messages(&[Message { what, line: eqn.source }]);
                let code = filled(&[], Scalar::Int(code.into()), DType::I32);
                self.update(&kind, [vec![failed, code], payload].concat(), state);
            }
        }
        state.iter().try_for_each(check_usable)?;
        Ok(outs)
    }

    fn apply_nested(&self, eqn: &Eqn, args: &[Array], state: &mut Vec<Array>) -> Result<Outputs> {
        eqn.primitive.thread_state(self, args, state)
    }

    fn cast_state(&self, state: &mut Vec<Array>) -> Result<()> {
        self.groups().for_each(|range| select_last_failed(&mut state[range]));
        Ok(())
    }

    fn gather(&self, _state: &mut Vec<Array>) -> Result<()> {
        Ok(())
    }
}

/// Threads a flag through a program that enables its checks.
struct Counting;

impl ThreadState for Counting {
    fn concerns(&self, program: &Program) -> bool {
        has_checks(program)
    }

    fn apply(&self, eqn: &Eqn, args: &[Array], state: &mut Vec<Array>) -> Result<Outputs> {
        let mut args = args.to_vec();
        if eqn.primitive.as_any().is::<Check>() {
            args[0] = &args[0] & &state[0];
        }
        Ok(bind_at(eqn.primitive.clone(), &args, eqn.source))
    }

    fn apply_nested(&self, eqn: &Eqn, args: &[Array], state: &mut Vec<Array>) -> Result<Outputs> {
        eqn.primitive.thread_state(self, args, state)
    }

    fn cast_state(&self, _state: &mut Vec<Array>) -> Result<()> {
        Ok(())
    }

    fn gather(&self, state: &mut Vec<Array>) -> Result<()> {
        state[0] = state[0].all(..);
        Ok(())
    }
}

/// Adds a first argument to the program, a boolean that enables its checks, or returns `None` if it has no checks.
///
/// Mapped control flow needs it: all entries of a batch compute a branch or the body of a loop, including entries that take
/// another branch or have left the loop, whose checks must not fail.
pub(crate) fn counting(program: &Program) -> Result<Option<Program>> {
    if !has_checks(program) {
        return Ok(None);
    }
    let flag = Aval::scalar(DType::Bool);
    let avals: Vec<Aval> = [flag].into_iter().chain(program.in_avals().cloned()).collect();
    let traced = trace(&avals, |args| {
        let (flag, args) = args.split_at(1);
        thread_eval(program, &Counting, args, &mut flag.to_vec())
    })?;
    Ok(Some(traced.program))
}

/// A traced function whose errors are values. Its results are the state, then the results of the original function.
pub(crate) struct Checked {
    pub traced: Traced,
    pub errors: Errors,
}

/// The layout of a state.
#[derive(Clone)]
pub(crate) struct Errors {
    /// The number of arrays of each kind.
    groups: Vec<usize>,
    messages: Arc<[Message]>,
}

/// Discharges the checks of a traced function. Returns `None` if it has no checks.
pub(crate) fn discharge(traced: &Traced, checks: Checks) -> Result<Option<Checked>> {
    let mut kinds = Vec::new();
    collect_kinds(&traced.program, checks, &mut kinds);
    if kinds.is_empty() && !has_checks(&traced.program) {
        return Ok(None);
    }
    let discharge = Discharge { checks, kinds, messages: RefCell::default() };
    let avals: Vec<Aval> = traced.program.in_avals().cloned().collect();
    let inner = trace(&avals, |args| {
        let mut state = discharge.initial_state();
        let outs = thread_eval(&traced.program, &discharge, args, &mut state)?;
        Ok([state, outs].concat())
    })?;
    let errors = Errors {
        groups: discharge.groups().map(|range| range.len()).collect(),
        messages: discharge.messages.into_inner().into(),
    };
    // A program is closed, so evaluating it captures nothing.
    let traced = Traced { program: inner.program, captures: traced.captures.clone() };
    Ok(Some(Checked { traced, errors }))
}

impl Errors {
    /// Returns the layout for a program without checks.
    pub fn none() -> Errors {
        Errors { groups: Vec::new(), messages: Arc::new([]) }
    }

    /// Returns the number of arrays of a state.
    pub fn count(&self) -> usize {
        self.groups.iter().sum()
    }

    /// Splits the state off the results of a program, and returns `Err` if it holds an error.
    pub fn throw(&self, mut outs: SmallVec<[Array; 8]>) -> Result<SmallVec<[Array; 8]>> {
        if self.groups.is_empty() {
            return Ok(outs);
        }
        let state: Vec<Array> = outs.drain(..self.count()).collect();
        self.error(&state).throw()?;
        Ok(outs)
    }

    /// Converts a state to an error.
    pub fn error(&self, mut state: &[Array]) -> CheckError {
        let messages = Static(self.messages.clone());
        let mut error = CheckError { failed: Vec::new(), codes: Vec::new(), payloads: Vec::new(), messages };
        for &len in &self.groups {
            let (group, rest) = state.split_at(len);
            state = rest;
            error.failed.push(group[0].clone());
            error.codes.push(group[1].clone());
            error.payloads.push(group[2..].to_vec());
        }
        error
    }
}
