//! Memory kinds of a program's arguments and results.

use std::collections::HashMap;
use std::panic::Location;
use std::sync::Arc;

use super::load::Request;
use crate::core::array::Buffers;
use crate::core::lower::Platform;
use crate::core::lower::module::Memory;
use crate::core::program::{Atom, Eqn, Program, Var};
use crate::error::{Error, Result};
use crate::sharding::Sharding;
use crate::sharding::memory::MemoryKind;
use crate::stack::grow;

impl Request {
    /// Returns the memory kind that the user requested for this result.
    pub fn requested_kind(&self, output: usize) -> Option<MemoryKind> {
        self.out_kinds.get(output).copied().flatten()
    }

    /// Returns the memory kinds of the arguments, where specified.
    pub fn in_kinds(&self) -> Vec<Option<MemoryKind>> {
        self.in_shardings.iter().map(|sharding| sharding.kind()).collect()
    }

    /// Explains the compiler's error for a program that computes on values outside of device memory:
    /// adds the line of the first such operation, and advice.
    pub fn explained(&self, rejection: Error, platform: Platform) -> Error {
        let uses_other_memory = platform.has_memories() && self.uses_other_memory();
        match uses_other_memory.then(|| first_use(&self.program, &self.in_kinds())).flatten() {
            None => rejection,
            Some((name, kind, source)) => rejection.at(source).help(format!(
                "{name} is not supported on a value in {kind} memory, because XLA computes in device memory: move it there first, with `device_put(&x, Space::Device)`"
            )),
        }
    }

    /// Returns the sharding of a result with its memory kind, from [`result_kinds`](Request::result_kinds).
    pub fn with_kind(sharding: Sharding, kinds: &[Option<MemoryKind>], result: usize) -> Sharding {
        match kinds.get(result).copied().flatten() {
            kind if MemoryKind::is_default(kind) => sharding,
            kind => sharding.in_memory(kind),
        }
    }

    /// Returns the results that the program leaves in device memory although another memory was requested. This happens
    /// on platforms whose programs know only one memory.
    pub fn results_to_move(&self, found: &[Option<Sharding>]) -> Vec<usize> {
        found
            .iter()
            .enumerate()
            .filter(|(_, sharding)| {
                !self.place.platform().has_memories()
                    && sharding.as_ref().is_some_and(|sharding| !MemoryKind::is_default(sharding.kind()))
            })
            .map(|(i, _)| i)
            .collect()
    }

    /// Returns the memory kinds in the program's text: none, or one for each argument and result.
    pub fn memory(&self) -> Memory {
        let or_device =
            |kinds: Vec<Option<MemoryKind>>| kinds.iter().map(|k| k.unwrap_or(MemoryKind::DEVICE)).collect();
        if self.uses_other_memory() {
            Memory {
                inputs: or_device(self.in_kinds()),
                outputs: or_device(self.result_kinds()),
                asked: self.out_kinds.clone(),
            }
        } else {
            Memory::default()
        }
    }

    /// Returns `true` if a value is outside of device memory.
    pub fn uses_other_memory(&self) -> bool {
        let mut uses_other = self.in_kinds().iter().chain(&self.out_kinds).any(|kind| !MemoryKind::is_default(*kind));
        self.program
            .for_each_distinct_eqn(&mut |eqn| uses_other |= !MemoryKind::is_default(eqn.primitive.memory_kind()));
        uses_other
    }

    /// Returns the memory kinds of the results: the requested ones, or the ones that the program chooses. Empty if all
    /// results are in device memory.
    pub fn result_kinds(&self) -> Vec<Option<MemoryKind>> {
        if !self.uses_other_memory() {
            return Vec::new();
        }
        let kinds = kinds_of_results(&self.program, &self.in_kinds());
        kinds.into_iter().enumerate().map(|(i, kind)| self.requested_kind(i).or(kind)).collect()
    }
}

/// Copies the buffers to memory of this kind of the same devices.
pub(crate) fn moved_to_memory(buffers: &Buffers, kind: Option<MemoryKind>) -> Result<Buffers> {
    let copies = buffers.iter().map(|buffer| {
        let mut memories = buffer.device().addressable_memories()?.into_iter();
        let requested = memories.find(|memory| kind.is_some_and(|kind| kind.as_str() == memory.kind()));
        let memory = requested.map_or_else(|| buffer.device().default_memory(), Ok)?;
        Ok(Arc::new(buffer.copy_to_memory(&memory)?))
    });
    copies.collect()
}

/// Operations that do not compute, so that their results stay in the memory of their operands.
const IN_PLACE: [&str; 6] = ["optimization_barrier", "name", "slice", "dynamic_slice", "reshape", "squeeze"];

/// The first operation on a value outside of device memory.
fn first_use(
    program: &Program,
    inputs: &[Option<MemoryKind>],
) -> Option<(&'static str, MemoryKind, &'static Location<'static>)> {
    let mut first_use = None;
    walk(program, inputs, &mut |eqn, operands| {
        let kind = operands.iter().flatten().find(|kind| !MemoryKind::is_default(Some(**kind)));
        if let (None, Some(kind)) = (&first_use, kind) {
            first_use = Some((eqn.primitive.name(), *kind, eqn.source));
        }
    });
    first_use
}

/// The memory kinds of a program's results.
fn kinds_of_results(program: &Program, inputs: &[Option<MemoryKind>]) -> Vec<Option<MemoryKind>> {
    walk(program, inputs, &mut |_, _| {})
}

/// The memory kinds of a program's results; computed values are in the default memory. `visit` is called for each
/// equation that computes, with the kinds of its operands.
fn walk(
    program: &Program,
    inputs: &[Option<MemoryKind>],
    visit: &mut dyn FnMut(&Eqn, &[Option<MemoryKind>]),
) -> Vec<Option<MemoryKind>> {
    let mut kinds_of_vars: HashMap<Var, MemoryKind> = HashMap::new();
    kinds_of_vars.extend(program.inputs.iter().zip(inputs).filter_map(|(var, kind)| Some((*var, (*kind)?))));
    for eqn in &program.eqns {
        if let Some(kind) = eqn.primitive.memory_kind() {
            kinds_of_vars.extend(eqn.outputs.iter().map(|var| (*var, kind)));
            continue;
        }
        // Only sub-programs with the same inputs and results as the equation.
        let programs = eqn.primitive.programs();
        let inner =
            programs.iter().find(|p| p.inputs.len() == eqn.inputs.len() && p.outputs.len() == eqn.outputs.len());
        let inputs: Vec<_> = eqn.inputs.iter().map(|atom| kind_of(atom, &kinds_of_vars)).collect();
        if IN_PLACE.contains(&eqn.primitive.name()) {
            kinds_of_vars.extend(eqn.outputs.iter().zip(inputs).filter_map(|(var, kind)| Some((*var, kind?))));
            continue;
        }
        let Some(inner) = inner else {
            if programs.is_empty() {
                visit(eqn, &inputs);
            }
            continue;
        };
        let kinds = grow(|| walk(inner, &inputs, visit));
        kinds_of_vars.extend(eqn.outputs.iter().zip(kinds).filter_map(|(var, kind)| Some((*var, kind?))));
    }
    program.outputs.iter().map(|atom| kind_of(atom, &kinds_of_vars)).collect()
}

fn kind_of(atom: &Atom, kinds_of_vars: &HashMap<Var, MemoryKind>) -> Option<MemoryKind> {
    match atom {
        Atom::Var(var) => kinds_of_vars.get(var).copied(),
        Atom::Literal { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use crate::prelude::*;

    /// The actual memory kinds of an array's shards.
    fn kinds(x: &Array) -> Result<Vec<String>> {
        x.concrete()?.buffers.iter().map(|buffer| Ok(buffer.memory()?.kind().to_owned())).collect()
    }

    /// A sharding always has the actual memory kind, whether `device_put` or a program placed the array.
    #[test]
    fn shardings_have_the_actual_memory_kind() -> Result<()> {
        let device = &local_devices()?[0];
        let on_device = SingleDeviceSharding::new(device);
        let host = on_device.with_memory_kind("pinned_host");
        let x = device_put(&arange(0..4), &on_device)?;
        let moved = {
            let host = host.clone();
            jit(move |x: Array| device_put(&(x + 1), &host))
        };
        // In the function, by its options, and outside of it.
        let space = jit(|x: Array| device_put(&(x + 1), Space::Host));
        let with_out_shardings = jit(|x: Array| x + 1).out_shardings(&host);
        let on_host = device_put(&x, &host)?;
        for y in [
            moved.call(&x)?,
            space.call(&x)?,
            with_out_shardings.call(&x)?,
            on_host.clone(),
            device_put(&x, Space::Host)?,
        ] {
            assert_eq!(
                (y.sharding()?.memory_kind(), kinds(&y)?),
                (Some("pinned_host"), vec!["pinned_host".to_owned()])
            );
            assert_eq!(y.to_vec::<i32>()?.len(), 4);
        }
        let copied = PutOptions::new().may_alias(false).device_put(&on_host, &host)?;
        assert_eq!(kinds(&copied)?, ["pinned_host"]);
        for y in [device_put(&on_host, &on_device)?, device_put(&on_host, Space::Device)?, &on_host + 1] {
            assert_eq!((y.sharding()?.memory_kind(), kinds(&y)?), (None, vec!["device".to_owned()]));
        }
        Ok(())
    }
}
