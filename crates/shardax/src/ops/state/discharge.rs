//! Discharge of a kernel, which converts a program with refs to a function of their values.

use smallvec::smallvec;

use super::access::{Access, Get, Swap};
use crate::core::array::Array;
use crate::core::primitive::{Outputs, Primitive, ThreadState};
use crate::core::program::trace::{bind_at, check_usable};
use crate::core::program::{Eqn, Program};
use crate::error::{Result, err};
use crate::interpret::thread_state::thread_eval;

/// The values of a kernel's refs as a state: reads return a part of the state and writes change it. The function
/// returns the values of primitives that depend on the context, for example the position in a grid.
pub(crate) struct Discharge<'a>(pub &'a dyn Fn(&dyn Primitive) -> Option<Array>);

impl Discharge<'_> {
    /// Returns the outputs of `program` on `args`, and updates the values of the refs, which are in the order of their
    /// numbers.
    pub fn eval(&self, program: &Program, args: &[Array], refs: &mut Vec<Array>) -> Result<Vec<Array>> {
        thread_eval(program, self, args, refs)
    }
}

/// Returns `true` if a primitive reads or writes a ref.
pub(crate) fn accesses(primitive: &dyn Primitive) -> bool {
    primitive.as_any().is::<Get>() || primitive.as_any().is::<Swap>()
}

fn value<'a>(access: &Access, state: &'a mut [Array]) -> Result<&'a mut Array> {
    let count = state.len();
    state.get_mut(access.number).ok_or_else(|| {
        err!(
            Runtime,
            "internal error: ref {} is not one of the {count} refs of the state; please report this",
            access.number
        )
    })
}

impl ThreadState for Discharge<'_> {
    fn concerns(&self, program: &Program) -> bool {
        let mut is_concerned = false;
        program.for_each_distinct_eqn(&mut |eqn| {
            is_concerned |= accesses(&*eqn.primitive) || (self.0)(&*eqn.primitive).is_some()
        });
        is_concerned
    }

    fn apply(&self, eqn: &Eqn, args: &[Array], state: &mut Vec<Array>) -> Result<Outputs> {
        let any = eqn.primitive.as_any();
        let outs = if let Some(get) = any.downcast_ref::<Get>() {
            smallvec![get.read(args, value(&get.access, state)?)]
        } else if let Some(swap) = any.downcast_ref::<Swap>() {
            smallvec![swap.write(args, value(&swap.access, state)?)?]
        } else if let Some(value) = (self.0)(&*eqn.primitive) {
            smallvec![value]
        } else {
            bind_at(eqn.primitive.clone(), args, eqn.source)
        };
        // Reports an error at the access that caused it, instead of at a later use of the state.
        outs.iter().chain(state.iter()).try_for_each(check_usable)?;
        Ok(outs)
    }

    fn apply_nested(&self, eqn: &Eqn, args: &[Array], state: &mut Vec<Array>) -> Result<Outputs> {
        eqn.primitive.thread_state(self, args, state)
    }

    fn cast_state(&self, _state: &mut Vec<Array>) -> Result<()> {
        Ok(())
    }

    fn gather(&self, _state: &mut Vec<Array>) -> Result<()> {
        Ok(())
    }
}
