//! Staging: a function is traced for its arguments, cleaned up, and placed.

use std::sync::Arc;
use std::time::Instant;

use super::Staged;
use crate::core::array::Concrete;
use crate::core::program::Program;
use crate::core::program::trace::Traced;
use crate::core::tree::{Flat, TreeDef};
use crate::engine::counts;
use crate::engine::eager::input_name;
use crate::engine::load::{Effort, Request};
use crate::engine::placement::{Input, Placed, Placing};
use crate::error::Result;
use crate::interpret::flat::{FlatFn, trace_flat, types_of, with_arguments};
use crate::sharding::Sharding;

/// What is asked of a function that is staged; all that `jit` and `pmap` differ in.
pub(crate) struct Staging<'a> {
    /// The function's name in errors.
    pub function: &'a str,
    /// The program's name in texts and profiles.
    pub program: String,
    /// Which arguments are donated, leaf by leaf.
    pub donated: Vec<bool>,
    /// Whether arguments that nothing depends on stay.
    pub keep_unused: bool,
    /// The sharding that each argument is to have, where one is asked for.
    pub in_shardings: Vec<Option<Sharding>>,
    /// Where captured arrays are to lie; `None` leaves them where they are.
    pub captured: Option<Sharding>,
    /// The sharding that each result is to have, from the structure of the results and the program.
    pub out_shardings: &'a dyn Fn(&TreeDef, &Program) -> Result<Vec<Option<Sharding>>>,
}

impl Staging<'_> {
    /// Traces `f` and decides where it runs.
    pub fn stage(self, flat: &Flat, f: FlatFn<'_>) -> Result<Staged> {
        let in_avals = types_of(flat)?;
        let begun = Instant::now();
        let (traced, out_def) = with_arguments(&flat.leaves, || trace_flat(&flat.def, &in_avals, f))?;
        counts::traced(self.function, begun);
        let Pruned { program, captures, kept } = Pruned::new(&traced, self.keep_unused)?;
        let outputs = (self.out_shardings)(&out_def, &program)?;

        let committed = |c: &Concrete| c.committed.then(|| c.sharding.clone());
        let captured = captures.iter().map(|c| match &self.captured {
            Some(sharding) => Input { committed: None, given: Some(sharding.clone()) },
            None => Input { committed: committed(c), given: None },
        });
        let arguments = kept.iter().map(|&i| Input {
            committed: flat.leaves[i].concrete_ref().and_then(committed),
            given: self.in_shardings[i].clone(),
        });
        let paths = || flat.def.paths();
        let placed = Placing {
            program: &program,
            function: self.function,
            inputs: &captured.chain(arguments).collect::<Vec<_>>(),
            input_name: &|i| input_name(i.checked_sub(captures.len()).map(|i| kept[i]), &paths),
            outputs: &outputs,
            output_name: &|i| format!("output{}", out_def.paths().get(i).map(String::as_str).unwrap_or_default()),
        }
        .place()?;
        let Placed { place, in_shardings, out_shardings, committed } = placed;
        let taken = captures.iter().map(|_| false).chain(kept.iter().map(|&i| self.donated[i]));
        let request = Request {
            name: self.program,
            donated: taken.collect(),
            program,
            place,
            in_shardings,
            out_shardings,
            effort: Effort::Full,
        };
        let in_def = flat.def.clone();
        Ok(Staged { request, captures, kept, in_def, in_avals, donated: self.donated, out_def, committed })
    }
}

/// A traced function without the equations and inputs that nothing depends on.
struct Pruned {
    program: Program,
    captures: Vec<Arc<Concrete>>,
    /// The arguments that are left.
    kept: Vec<usize>,
}

impl Pruned {
    /// With `keep_unused` the arguments all stay.
    fn new(traced: &Traced, keep_unused: bool) -> Result<Self> {
        let mut program = traced.program.simplified();
        let mut used = program.used_inputs();
        let count = traced.captures.len();
        if keep_unused {
            used[count..].fill(true);
        }
        let captures = traced.captures.iter().zip(&used).filter(|(_, u)| **u).map(|(c, _)| c.concrete());
        let captures = captures.collect::<Result<Vec<_>>>()?;
        let kept = used[count..].iter().enumerate().filter(|(_, u)| **u).map(|(i, _)| i).collect();
        let mut flags = used.iter();
        program.inputs.retain(|_| *flags.next().unwrap_or(&true));
        Ok(Pruned { program, captures, kept })
    }
}
