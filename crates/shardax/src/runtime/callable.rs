//! Calling a compiled program as the function that it was compiled from.

use std::any::Any;
use std::sync::Arc;

use smallvec::SmallVec;

use super::eager::input_name;
use super::execute::LoadedProgram;
use super::stages::Stages;
use crate::core::array::{Array, Concrete};
use crate::core::program::trace::check_usable;
use crate::core::tree::{Flat, TreeDef};
use crate::error::{Error, ErrorKind, Result, err};
use crate::ops::checkify::Errors;
use crate::ops::state::lift::Lifted;

/// The mapping from a function's arguments and results to the inputs and outputs of its program.
pub(crate) struct CallConvention {
    /// Arrays that the function captured: the program's first inputs.
    pub captures: Vec<Arc<Concrete>>,
    /// The outside refs that the function uses. Their values are the last captures, and their new values are the last
    /// results.
    pub refs: Lifted,
    /// The arguments that the program uses.
    pub kept: Vec<usize>,
    pub out_def: TreeDef,
    /// `true` if results are committed.
    pub committed: bool,
}

/// A function compiled for its arguments.
pub(crate) struct Callable {
    /// The program, or the last of its stages.
    pub loaded: Arc<LoadedProgram>,
    /// The stages of the program, if it is very long.
    pub stages: Option<Stages>,
    pub convention: CallConvention,
    /// The check errors, which are the first results of the program.
    pub errors: Errors,
    /// `true` if the program is valid for all such arguments. It is `false` if tracing read the values of the
    /// arguments.
    pub reusable: bool,
    /// Auxiliary data of the function's trace.
    pub aux: Option<Arc<dyn Any + Send + Sync>>,
}

impl Callable {
    pub fn call(&self, flat: &Flat) -> Result<SmallVec<[Array; 8]>> {
        self.errors.throw(self.convention.call(&self.loaded, self.stages.as_ref(), flat)?)
    }
}

impl CallConvention {
    /// Runs the program on the captured arrays and these arguments.
    pub fn call(&self, loaded: &LoadedProgram, stages: Option<&Stages>, flat: &Flat) -> Result<SmallVec<[Array; 8]>> {
        if self.kept.len() < flat.leaves.len() {
            check_all(flat)?;
        }
        self.run(loaded, stages, &flat.leaves).map_err(|error| match error.kind() {
            // The program ran, and may have consumed its arguments.
            ErrorKind::FloatingPoint => error,
            // The program checks its operands when it starts. Search for the reason only after a failure, because the
            // search costs time.
            _ => check_all(flat).err().unwrap_or_else(|| self.explain(loaded, flat, error)),
        })
    }

    fn run(&self, loaded: &LoadedProgram, stages: Option<&Stages>, leaves: &[Array]) -> Result<SmallVec<[Array; 8]>> {
        // Plain numbers are first sent to a device.
        let numbers = self.kept.iter().map(|&i| &leaves[i]).filter(|leaf| leaf.concrete_ref().is_none());
        let sent: SmallVec<[Arc<Concrete>; 2]> = numbers.map(Array::concrete).collect::<Result<_>>()?;
        let mut sent = sent.iter().map(Arc::as_ref);
        let has_callbacks = stages.map_or(!loaded.retained.is_empty(), Stages::has_callbacks);
        let _turns = self.refs.turns(has_callbacks);
        let refs: Vec<Arc<Concrete>> = self.refs.values().map(|value| value.concrete()).collect::<Result<_>>()?;
        let captured = self.captures.len() - refs.len();
        let mut args: SmallVec<[&Concrete; 32]> =
            self.captures[..captured].iter().chain(&refs).map(Arc::as_ref).collect();
        args.extend(self.kept.iter().filter_map(|&i| leaves[i].concrete_ref().or_else(|| sent.next())));
        let mut outs: SmallVec<[Array; 8]> = match stages {
            Some(stages) => stages.run(&args, self.committed)?,
            None => loaded.run(&args, self.committed)?,
        };
        let result_count = outs.len() - self.refs.results();
        self.refs.store(outs.drain(result_count..));
        Ok(outs)
    }

    /// Explains, in the caller's terms, an execution that failed because of a donation.
    fn explain(&self, loaded: &LoadedProgram, flat: &Flat, error: Error) -> Error {
        // A buffer that is passed twice and donated once is the likely cause, which XLA's error does not name.
        let CallConvention { captures, kept, .. } = self;
        let mut donated = loaded.donated.clone();
        donated.resize(captures.len() + kept.len(), false);
        let captured = captures.iter().map(|c| Some(&**c));
        let args: Vec<_> = captured.chain(kept.iter().map(|&i| flat.leaves[i].concrete_ref())).collect();
        for (j, arg) in args.iter().enumerate() {
            let Some(arg) = arg else { continue };
            let Some(i) = (0..j)
                .find(|i| args[*i].is_some_and(|other| share_buffers(other, arg)))
                .filter(|&i| donated[i] || donated[j])
            else {
                continue;
            };
            let [earlier, later] =
                [i, j].map(|i| input_name(i.checked_sub(captures.len()).map(|i| kept[i]), &|| flat.def.paths()));
            return err!(
                Value,
                "Attempt to use a buffer that was previously donated in the same call to Execute(): {earlier} and {later} of {} are the same array of type {}, and {} is donated",
                loaded.name,
                arg.aval,
                if donated[i] { &earlier } else { &later }
            )
            .help(
                "pass a copy, `PutOptions::new().may_alias(false).device_put(&x, None)`, or remove the argument from donate_argnums",
            );
        }
        error
    }
}

fn share_buffers(a: &Concrete, b: &Concrete) -> bool {
    a.buffers.iter().any(|x| b.buffers.iter().any(|y| Arc::ptr_eq(x, y)))
}

/// Fails unless every argument can be used, including the arguments that the program ignores.
pub(crate) fn check_all(flat: &Flat) -> Result<()> {
    let mut leaves = flat.leaves.iter().enumerate();
    leaves.try_for_each(|(i, leaf)| check_usable(leaf).map_err(|e| name_argument(flat, i, e)))
}

/// Adds the argument's name to an error, unless the error occurred before the call.
fn name_argument(flat: &Flat, i: usize, error: Error) -> Error {
    if flat.leaves[i].error().is_some() {
        return error;
    }
    error.context(format!("argument{}", flat.def.paths().get(i).cloned().unwrap_or_default()))
}
