//! The refs that a function makes itself, as a state threaded through its program.

use std::cell::RefCell;

use smallvec::smallvec;

use super::access::{Access, Get, Swap, written_inside};
use super::new_ref::NewRef;
use crate::core::array::Array;
use crate::core::primitive::{Outputs, Primitive, ThreadState};
use crate::core::program::trace::{Traced, bind_at, check_usable, trace};
use crate::core::program::{Aval, Eqn, Program};
use crate::error::{Result, err};
use crate::interpret::higher_order::cast_up;
use crate::interpret::thread_state::thread_eval;

/// The values of refs as a state, in the order of `numbers`. Refs that a sub-program never writes are not part of the
/// sub-program's state: their values are `fixed`.
#[derive(Default)]
pub(super) struct Threaded {
    /// The number and the type of each ref. The list grows with each new ref.
    pub numbers: RefCell<Vec<(usize, Aval)>>,
    pub fixed: Vec<(usize, Array)>,
}

/// The read or written part of a ref, and whether it is written.
pub(super) fn access_of(primitive: &dyn Primitive) -> Option<(&Access, bool)> {
    let any = primitive.as_any();
    match (any.downcast_ref::<Get>(), any.downcast_ref::<Swap>()) {
        (Some(get), _) => Some((&get.access, false)),
        (_, Some(swap)) => Some((&swap.access, true)),
        _ => None,
    }
}

/// Calls `visit` with each access in a program and its sub-programs.
pub(super) fn for_each_access(program: &Program, visit: &mut dyn FnMut(&Access, bool)) {
    program.for_each_distinct_eqn(&mut |eqn| {
        if let Some((access, written)) = access_of(&*eqn.primitive) {
            visit(access, written);
        }
    });
}

/// Returns an error if a program that runs for several entries or devices at once writes a ref that was made outside of
/// the program.
pub(crate) fn check_unwritten(program: &Program, function: &str) -> Result<()> {
    let mut result = Ok(());
    program.for_each_distinct_eqn(&mut |eqn| {
        if let Some((access, true)) = access_of(&*eqn.primitive)
            && result.is_ok()
            && access.number >= super::FIRST_REF_NUMBER
        {
            result = Err(written_inside(function, access).at(eqn.source));
        }
    });
    result
}

/// Converts a function that makes refs to a function of values. Refs from outside remain.
pub(super) fn discharge(traced: Traced) -> Result<Traced> {
    let avals: Vec<Aval> = traced.program.in_avals().cloned().collect();
    let refs = Threaded::default();
    let inner = trace(&avals, |args| thread_eval(&traced.program, &refs, args, &mut Vec::new()))?;
    // A program is closed, so evaluating it captures nothing.
    Ok(Traced { program: inner.program, captures: traced.captures })
}

impl Threaded {
    fn place(&self, access: &Access) -> Option<usize> {
        self.numbers.borrow().iter().position(|(number, _)| *number == access.number)
    }

    fn fixed(&self, access: &Access) -> Option<&Array> {
        self.fixed.iter().find(|(number, _)| *number == access.number).map(|(_, value)| value)
    }
}

impl ThreadState for Threaded {
    fn concerns(&self, program: &Program) -> bool {
        let mut is_concerned = false;
        for_each_access(program, &mut |access, _| {
            is_concerned |= self.place(access).is_some() || self.fixed(access).is_some();
        });
        is_concerned
    }

    fn apply(&self, eqn: &Eqn, args: &[Array], state: &mut Vec<Array>) -> Result<Outputs> {
        let any = eqn.primitive.as_any();
        if let Some(new) = any.downcast_ref::<NewRef>() {
            self.numbers.borrow_mut().push((new.number, args[0].aval()));
            state.push(args[0].clone());
            return Ok(Outputs::new());
        }
        let outs = if let Some(get) = any.downcast_ref::<Get>()
            && let Some(value) = self.place(&get.access).map(|i| &state[i]).or(self.fixed(&get.access))
        {
            smallvec![get.read(args, value)]
        } else if let Some(swap) = any.downcast_ref::<Swap>()
            && let Some(i) = self.place(&swap.access)
        {
            smallvec![swap.write(args, &mut state[i])?]
        } else {
            bind_at(eqn.primitive.clone(), args, eqn.source)
        };
        outs.iter().chain(state.iter()).try_for_each(check_usable)?;
        Ok(outs)
    }

    fn apply_nested(&self, eqn: &Eqn, args: &[Array], state: &mut Vec<Array>) -> Result<Outputs> {
        // Only refs that the inner programs write become their state. They read the others as constants, so that a loop does
        // not carry values that it never changes.
        let mut written = Vec::new();
        for program in eqn.primitive.programs() {
            for_each_access(program, &mut |access, is_write| {
                if is_write && let Some(i) = self.place(access) {
                    written.push(i);
                }
            });
        }
        written.sort_unstable();
        written.dedup();
        let numbers = self.numbers.borrow().clone();
        let (inside, outside): (Vec<usize>, Vec<usize>) = (0..state.len()).partition(|i| written.contains(i));
        let constant = outside.into_iter().map(|i| (numbers[i].0, state[i].clone()));
        let inner = Threaded {
            numbers: RefCell::new(inside.iter().map(|&i| numbers[i].clone()).collect()),
            fixed: self.fixed.iter().cloned().chain(constant).collect(),
        };
        let mut inner_state: Vec<Array> = inside.iter().map(|&i| state[i].clone()).collect();
        let outs = eqn.primitive.thread_state(&inner, args, &mut inner_state)?;
        inner.cast_state(&mut inner_state)?;
        for (i, value) in inside.into_iter().zip(inner_state) {
            state[i] = value;
        }
        Ok(outs)
    }

    fn cast_state(&self, state: &mut Vec<Array>) -> Result<()> {
        for (value, (_, aval)) in state.iter_mut().zip(self.numbers.borrow().iter()) {
            check_usable(value)?;
            if !value.vma().is_subset(&aval.vma) {
                return Err(err!(
                    Type,
                    "a ref of type {aval} was written in a branch or loop that differs from device to device"
                )
                .help("make the ref of a value that varies over the axes too: `new_ref(&pcast(&x, axes))`"));
            }
            *value = cast_up(value, &aval.vma);
        }
        Ok(())
    }

    fn gather(&self, state: &mut Vec<Array>) -> Result<()> {
        match (state.is_empty(), self.numbers.borrow().first()) {
            (false, Some((_, aval))) => {
                Err(err!(Value, "a ref of type {aval} from outside of shard_map is written inside of it").help(
                    "make the ref inside of the function, or return the value from the function and write it outside",
                ))
            }
            _ => Ok(()),
        }
    }
}
