//! Discharge: a program with refs as a function of their values.

use smallvec::smallvec;

use super::access::{Get, Swap};
use crate::core::array::Array;
use crate::core::primitive::{Outputs, Primitive, ThreadState};
use crate::core::program::trace::{bind_at, check_usable};
use crate::core::program::{Eqn, Program};
use crate::error::Result;
use crate::interpret::thread_state::thread_eval;

/// The values of refs as a state: each read is of the state, and each write changes it. The function gives the values of
/// primitives that depend on the context, such as the position in a grid.
pub(crate) struct Discharge<'a>(pub &'a dyn Fn(&dyn Primitive) -> Option<Array>);

impl Discharge<'_> {
    /// The outputs of `program` on `args`; updates the values of the refs, which are in the order of their numbers.
    pub fn eval(&self, program: &Program, args: &[Array], refs: &mut Vec<Array>) -> Result<Vec<Array>> {
        thread_eval(program, self, args, refs)
    }
}

/// Returns `true` if a primitive reads or writes a ref.
pub(crate) fn accesses(primitive: &dyn Primitive) -> bool {
    primitive.as_any().is::<Get>() || primitive.as_any().is::<Swap>()
}

impl ThreadState for Discharge<'_> {
    fn concerns(&self, program: &Program) -> bool {
        let mut found = false;
        program.for_each_eqn(&mut |eqn| found |= accesses(&*eqn.primitive) || (self.0)(&*eqn.primitive).is_some());
        found
    }

    fn apply(&self, eqn: &Eqn, args: &[Array], state: &mut Vec<Array>) -> Result<Outputs> {
        let any = eqn.primitive.as_any();
        let outs = if let Some(get) = any.downcast_ref::<Get>() {
            smallvec![get.discharge(args, state)?]
        } else if let Some(swap) = any.downcast_ref::<Swap>() {
            smallvec![swap.discharge(args, state)?]
        } else if let Some(value) = (self.0)(&*eqn.primitive) {
            smallvec![value]
        } else {
            bind_at(eqn.primitive.clone(), args, eqn.source)
        };
        outs.iter().chain(state.iter()).try_for_each(check_usable)?;
        Ok(outs)
    }

    fn cast_state(&self, _state: &mut Vec<Array>) -> Result<()> {
        Ok(())
    }

    fn gather(&self, _state: &mut Vec<Array>) -> Result<()> {
        Ok(())
    }
}
