//! Discharging checks: the first error of each kind becomes a state threaded through the program.

use std::cell::RefCell;
use std::sync::Arc;

use super::Checks;
use smallvec::SmallVec;

use super::automatic;
use super::check::{Check, last_failed};
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

/// A group of errors, the first of which in time is reported; among groups it is the first in the program.
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
    /// The types of the message's values.
    fn payload(&self) -> Vec<(DType, Shape)> {
        match self {
            Kind::Check(types) => types.clone(),
            Kind::Index => vec![(DType::I32, Shape::from_slice(&[3]))],
            Kind::Nan | Kind::Invalid(_) | Kind::Division => Vec::new(),
        }
    }
}

/// The kinds of errors that a program may have, in the order of its equations.
fn kinds(program: &Program, checks: Checks, found: &mut Vec<Kind>) {
    for eqn in &program.eqns {
        for inner in eqn.primitive.programs() {
            grow(|| kinds(inner, checks, found));
        }
        let own = match eqn.primitive.as_any().is::<Check>() {
            true if checks.has(Checks::USER) => {
                let types = eqn.inputs[2..].iter().map(|a| program.atom_aval(a));
                vec![Kind::Check(types.map(|a| (a.dtype, a.shape)).collect())]
            }
            false if eqn.primitive.programs().is_empty() => {
                automatic::kinds(eqn, eqn.outputs.iter().any(|v| program.aval_of(*v).dtype.is_inexact()), checks)
            }
            _ => Vec::new(),
        };
        own.into_iter().for_each(|kind| {
            if !found.contains(&kind) {
                found.push(kind)
            }
        });
    }
}

/// Returns `true` if a program has user checks.
fn has_checks(program: &Program) -> bool {
    let mut found = false;
    program.for_each_distinct_eqn(&mut |eqn| found |= eqn.primitive.as_any().is::<Check>());
    found
}

/// The state has for each kind: a failed flag, the number of its message, and the message's values.
struct Discharge {
    checks: Checks,
    kinds: Vec<Kind>,
    messages: RefCell<Vec<Message>>,
}

impl Discharge {
    /// The parts of the state, kind by kind.
    fn groups(&self) -> impl Iterator<Item = std::ops::Range<usize>> {
        let mut end = 0;
        let lens: Vec<usize> = self.kinds.iter().map(|kind| 2 + kind.payload().len()).collect();
        lens.into_iter().map(move |len| {
            end += len;
            end - len..end
        })
    }

    /// The initial state, without errors.
    fn start(&self) -> Vec<Array> {
        let zeros = |(dtype, shape): (DType, Shape)| Array::zeros_of(&Aval::new(dtype, shape));
        let group = |kind: &Kind| {
            let flags = [(DType::Bool, Shape::new()), (DType::I32, Shape::new())];
            flags.into_iter().chain(kind.payload()).map(zeros).collect::<Vec<_>>()
        };
        self.kinds.iter().flat_map(group).collect()
    }

    /// Records a possible error of this kind, unless there is an earlier one.
    fn update(&self, kind: &Kind, new: Vec<Array>, state: &mut [Array]) {
        let place = self.kinds.iter().zip(self.groups()).find(|(k, _)| *k == kind);
        let Some((_, range)) = place else { return };
        let group = &mut state[range];
        let before = group[0].clone();
        group[0] = &before | &new[0];
        for (old, new) in group.iter_mut().zip(new).skip(1) {
            let mut wide = before.clone();
            while wide.ndim() < old.ndim() {
                wide = wide.expand_dims(-1);
            }
            *old = where_(wide, &*old, new);
        }
    }

    fn number(&self, messages: &[Message]) -> i32 {
        let mut all = self.messages.borrow_mut();
        all.extend_from_slice(messages);
        (all.len() - messages.len()) as i32
    }
}

impl ThreadState for Discharge {
    fn concerns(&self, program: &Program) -> bool {
        let mut found = Vec::new();
        kinds(program, self.checks, &mut found);
        !found.is_empty() || has_checks(program)
    }

    fn apply(&self, eqn: &Eqn, args: &[Array], state: &mut Vec<Array>) -> Result<Outputs> {
        if let Some(check) = eqn.primitive.as_any().downcast_ref::<Check>() {
            if self.checks.has(Checks::USER) {
                let types = args[2..].iter().map(|a| (a.dtype(), a.aval().shape)).collect();
                let mut new = args.to_vec();
                new[1] = &new[1] + self.number(&check.messages);
                self.update(&Kind::Check(types), new, state);
            }
            return Ok(Outputs::new());
        }
        let outs = bind_at(eqn.primitive.clone(), args, eqn.source);
        outs.iter().try_for_each(check_usable)?;
        let inexact = outs.iter().any(|out| out.dtype().is_inexact());
        for kind in automatic::kinds(eqn, inexact, self.checks) {
            if let Some((failed, what, payload)) = automatic::failure(&kind, eqn, args, &outs) {
                let code = self.number(&[Message { what, at: eqn.source }]);
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
        self.groups().for_each(|range| last_failed(&mut state[range]));
        Ok(())
    }

    fn gather(&self, _state: &mut Vec<Array>) -> Result<()> {
        Ok(())
    }
}

/// The state is a flag that enables checks.
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

/// Adds a boolean argument, the first, that enables the program's checks: the entries of a batch that take
/// another branch, or have left the loop, compute it too. Returns `None` if it has no checks.
pub(crate) fn counting(program: &Program) -> Result<Option<Program>> {
    if !has_checks(program) {
        return Ok(None);
    }
    let counts = Aval::scalar(DType::Bool);
    let avals: Vec<Aval> = [counts].into_iter().chain(program.in_avals().cloned()).collect();
    let traced = trace(&avals, |args| {
        let (counts, args) = args.split_at(1);
        thread_eval(program, &Counting, args, &mut counts.to_vec())
    })?;
    Ok(Some(traced.program))
}

/// A traced function whose errors are values: its first results are the state, followed by its own.
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

/// Discharges the checks of a traced function. `None` if it has none.
pub(crate) fn discharge(traced: &Traced, checks: Checks) -> Result<Option<Checked>> {
    let mut found = Vec::new();
    kinds(&traced.program, checks, &mut found);
    if found.is_empty() && !has_checks(&traced.program) {
        return Ok(None);
    }
    let discharge = Discharge { checks, kinds: found, messages: RefCell::default() };
    let avals: Vec<Aval> = traced.program.in_avals().cloned().collect();
    let inner = trace(&avals, |args| {
        let mut state = discharge.start();
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
    /// The layout for a program without checks.
    pub fn none() -> Errors {
        Errors { groups: Vec::new(), messages: Arc::new([]) }
    }

    /// The number of arrays of a state.
    pub fn count(&self) -> usize {
        self.groups.iter().sum()
    }

    /// Splits the state off the results of a program; `Err` if it has an error.
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
