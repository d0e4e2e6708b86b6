//! Kernels for GPUs whose last grid axes are a loop. Positions of a grid run concurrently on a GPU, and share no
//! memory. Along these axes, the loop carries scratch memory and results that a kernel also reads.

use crate::core::array::Array;
use crate::core::primitive::{Outputs, Primitive, ThreadState};
use crate::core::program::trace::{bind_at, check_usable, trace};
use crate::core::program::{Atom, Aval, Eqn, Program};
use crate::error::{Result, err};
use crate::interpret::thread_state::thread_eval;
use crate::ops::pallas::primitive::Kernel;
use crate::ops::state::{Access, Entries, Get, Swap};

/// The parts of a kernel that run sequentially.
pub(super) struct Carried {
    /// The first grid axis that is a loop.
    pub axis: usize,
    /// The numbers of the refs whose values are carried.
    pub refs: Vec<usize>,
    /// Their types.
    pub types: Vec<Aval>,
    /// The kernel as a function from the values of these refs to their new values.
    pub program: Program,
}

impl Carried {
    /// Finds the refs that a kernel carries from one step of the grid to the next.
    ///
    /// # Errors
    /// Returns an error if a part of a carried ref is read or written.
    pub fn of(kernel: &Kernel) -> Result<Carried> {
        let (written, read) = (kernel.written(), read(&kernel.program, kernel.written().len()));
        let prefetched = kernel.prefetch();
        let results = kernel.num_inputs()..kernel.blocks.len();
        // The last axes along which the block of every result stays the same.
        let axis = (0..kernel.grid.len())
            .rev()
            .take_while(|axis: &usize| {
                !results
                    .clone()
                    .any(|number| written[prefetched + number] && kernel.blocks[number].index.used_inputs()[*axis])
            })
            .last()
            .unwrap_or(kernel.grid.len());
        let shared = kernel.grid[axis..].iter().product::<usize>() > 1;
        let scratch = prefetched + kernel.blocks.len()..prefetched + kernel.blocks.len() + kernel.scratch.len();
        let carried =
            results.map(|number| prefetched + number).filter(|&number| shared && written[number] && read[number]);
        let refs: Vec<usize> = carried.chain(scratch).collect();
        let types: Vec<Aval> = refs
            .iter()
            .map(|&number| match kernel.blocks.get(number - prefetched) {
                Some(block) => block.ref_aval(),
                None => kernel.scratch[number - prefetched - kernel.blocks.len()].clone(),
            })
            .collect();
        let values = Values { refs: &refs };
        let traced = trace(&types, |values_of| {
            let mut state = values_of.to_vec();
            thread_eval(&kernel.program, &values, &[], &mut state)?;
            Ok(state)
        })?;
        // Without carried refs the program does not change, so that locations stay as they are.
        let program = if refs.is_empty() { kernel.program.clone() } else { traced.program };
        Ok(Carried { axis, refs, types, program })
    }
}

/// Marks the refs that a kernel reads, or replaces while it uses the previous value.
fn read(program: &Program, count: usize) -> Vec<bool> {
    let mut read = vec![false; count];
    mark(program, &mut read);
    read
}

fn mark(program: &Program, found: &mut [bool]) {
    let used: Vec<_> = program.eqns.iter().flat_map(|eqn| &eqn.inputs).chain(&program.outputs).collect();
    for eqn in &program.eqns {
        let any = eqn.primitive.as_any();
        let number = match (any.downcast_ref::<Get>(), any.downcast_ref::<Swap>()) {
            (Some(get), _) => Some(get.access.number),
            (_, Some(swap))
                if swap.access.masked
                    || used.iter().any(|atom| matches!(atom, Atom::Var(var) if eqn.outputs.contains(var))) =>
            {
                Some(swap.access.number)
            }
            _ => None,
        };
        number.and_then(|number| found.get_mut(number)).into_iter().for_each(|read| *read = true);
        for inner in eqn.primitive.programs() {
            crate::stack::grow(|| mark(inner, found));
        }
    }
}

/// The values of some refs as a state; other refs stay.
struct Values<'a> {
    refs: &'a [usize],
}

impl Values<'_> {
    /// The position in the state of the ref that an operation accesses, if the ref is in the state.
    fn position(&self, primitive: &dyn Primitive) -> Option<(usize, Access)> {
        let any = primitive.as_any();
        let access = any.downcast_ref::<Get>().map(|get| &get.access);
        let access = access.or_else(|| any.downcast_ref::<Swap>().map(|swap| &swap.access))?;
        let position = self.refs.iter().position(|number| *number == access.number)?;
        Some((position, access.clone()))
    }
}

impl ThreadState for Values<'_> {
    fn concerns(&self, program: &Program) -> bool {
        let mut accesses_state = false;
        program.for_each_eqn(&mut |eqn| accesses_state |= self.position(&*eqn.primitive).is_some());
        accesses_state
    }

    fn apply(&self, eqn: &Eqn, args: &[Array], state: &mut Vec<Array>) -> Result<Outputs> {
        let Some((position, access)) = self.position(&*eqn.primitive) else {
            return Ok(bind_at(eqn.primitive.clone(), args, eqn.source));
        };
        let is_entire = access
            .place
            .entries()
            .iter()
            .zip(state[position].shape())
            .all(|(entry, size)| matches!(entry, Entries::Range(0, n) if n == size));
        if !is_entire || access.masked || access.padded {
            return Err(err!(
                NotImplemented,
                "a part of scratch memory, or of a result that positions share, cannot be read or written on GPUs: its type is {}",
                state[position].type_name()
            )
            .help("read and write the entire ref, with `where_` for a part of it, or use a separate ref for each part"));
        }
        let old = state[position].clone();
        if eqn.primitive.as_any().is::<Swap>() {
            check_usable(&args[0])?;
            state[position] = args[0].clone();
        }
        Ok(smallvec::smallvec![old])
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
