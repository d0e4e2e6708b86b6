//! Localization: replaces the collectives of a partitioned program by calls of host functions.
//!
//! The result is a program for one partition, which the plugin compiles like any other. The functions, which the user
//! of this crate [registers](crate::ffi::register), exchange data between devices and processes:
//!
//! | function | arguments and attributes |
//! |---|---|
//! | `shardax.all_reduce` | arrays of one type; `op`, `groups` |
//! | `shardax.all_gather` | one array; the result concatenates the arrays of all devices; `groups` |
//! | `shardax.reduce_scatter` | one array, the concatenated parts of all devices; `op`, `groups` |
//! | `shardax.all_to_all` | one array, split and concatenated along its first dimension; `groups` |
//! | `shardax.permute` | one array; `pairs` of source and target, `devices` of the whole program |
//! | `shardax.partition_id` | none; `devices` by partition, omitted if partitions and devices have equal numbers |
//! | `shardax.after` | an array, returned unchanged |
//!
//! Groups are concatenated lists of device ids with the lengths `sizes`. `n` numbers the calls in the program.
//!
//! **Order.** XLA runs independent calls of a device concurrently, but every device must reach the calls in the same
//! order. Therefore the last argument of each call is a value that depends on the previous call of its computation, and
//! each call returns an additional result, a `u32[]`, for the next. Loops and branches that contain calls are ordered
//! by passing an operand through `shardax.after`.

mod context;
mod proto;
mod rewrite;

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use context::Context;
use proto::*;
use rewrite::{Rewrite, SUPPORTED_COLLECTIVES};

use super::wire::Wire;
use crate::error::Result;
use crate::partition::Partitioned;

/// Returns true if a host function waits for other devices.
pub(crate) fn is_collective_call(target: &str) -> bool {
    target
        .strip_prefix("shardax.")
        .is_some_and(|name| matches!(name, "all_reduce" | "all_gather" | "reduce_scatter" | "all_to_all" | "permute"))
}

impl Partitioned {
    /// Returns the program with calls of host functions in place of collectives. Compile it with
    /// [`Client::compile_hlo`](crate::Client::compile_hlo) and one replica for each device of this process.
    ///
    /// # Errors
    /// Returns [`Code::Unimplemented`](crate::Code::Unimplemented) with the name of an operation that has no such
    /// function.
    pub fn localize(&self) -> Result<Vec<u8>> {
        self.localize_as(0, true)
    }

    /// Like [`Partitioned::localize`], with a number of the program in each call (`program`), by which the functions
    /// distinguish programs. If `widen`, `bf16` is exchanged as `f32`. The plugin's collectives exchange `f32`, and
    /// fused with operations before and after them they do not round at all: results have the same bits only with
    /// `widen`.
    ///
    /// # Errors
    /// Returns the errors of [`Partitioned::localize`].
    pub fn localize_as(&self, program: u64, widen: bool) -> Result<Vec<u8>> {
        let mut wire = Wire::parse(&self.module)?;
        let entry = wire.int(module::ENTRY);
        let bytes: Vec<Vec<u8>> = wire.all_bytes(module::COMPUTATIONS).map(<[u8]>::to_vec).collect();
        let mut computations = bytes.iter().map(|b| Computation::parse(b)).collect::<Result<Vec<_>>>()?;
        for computation in computations.iter_mut().filter(|c| c.id == entry) {
            computation.drop_stop()?;
        }
        let reducers = computations.iter().map(|c| (c.id, c.root_opcode())).collect();
        let communicating = communicating(&computations);
        let mut context = Context {
            devices: &self.device_ids,
            program,
            widen,
            reducers,
            communicating,
            calls: 0,
            new_instructions: 0,
        };
        // Only computations that communicate or ask for their partition change. The others keep their bytes, so that
        // fields which this crate does not know are preserved.
        let mut edited = Vec::with_capacity(computations.len());
        for (computation, original) in computations.into_iter().zip(&bytes) {
            let must_change = computation.id == entry
                || context.communicating.contains(&computation.id)
                || computation.instructions.iter().any(|i| matches!(i.opcode.as_str(), "partition-id" | "replica-id"));
            edited.push(if must_change { Rewrite::run(computation, &mut context)? } else { original.clone() });
        }
        wire.remove(&[module::COMPUTATIONS]);
        edited.into_iter().for_each(|bytes| wire.push_bytes(module::COMPUTATIONS, bytes));
        // Each process compiles its part as a program for one device.
        wire.remove(&module::PARTITIONING);
        let result = wire.bytes(module::PROGRAM_SHAPE).map(without_last_result).transpose()?;
        if let Some(shape) = result {
            wire.set_bytes(module::PROGRAM_SHAPE, shape);
        }
        Ok(wire.encode())
    }
}

/// The ids of computations that contain collectives or call such computations.
fn communicating(computations: &[Computation<'_>]) -> HashSet<i64> {
    let mut communicating: HashSet<i64> = computations
        .iter()
        .filter(|c: &&Computation<'_>| {
            c.instructions.iter().any(|i| SUPPORTED_COLLECTIVES.contains(&i.opcode.as_str()))
        })
        .map(|c| c.id)
        .collect();
    loop {
        let mut callers = Vec::new();
        for computation in computations.iter().filter(|c| !communicating.contains(&c.id)) {
            let mut control_flow = computation.instructions.iter().filter(|i| i.is_control_flow());
            if control_flow.any(|i| i.calls.iter().any(|id| communicating.contains(id))) {
                callers.push(computation.id);
            }
        }
        if callers.is_empty() {
            return communicating;
        }
        communicating.extend(callers);
    }
}

/// The communicating instructions of a program as text, for tests.
#[cfg_attr(not(test), expect(dead_code))]
pub(crate) fn text(module: &[u8]) -> Result<String> {
    use instruction::*;
    let wire = Wire::parse(module)?;
    let mut out = String::new();
    for bytes in wire.all_bytes(module::COMPUTATIONS) {
        let computation = Computation::parse(bytes)?;
        let names: HashMap<i64, &str> = computation.instructions.iter().map(|i| (i.id, i.wire.text(NAME))).collect();
        let _ = writeln!(out, "{}:", computation.wire.text(1));
        for i in &computation.instructions {
            let operands: Vec<&str> = i.operands.iter().map(|id| names.get(id).copied().unwrap_or("?")).collect();
            let root = if i.id == computation.root { "ROOT " } else { "" };
            let _ = write!(out, "  {root}{} = {}({})", i.wire.text(NAME), i.opcode, operands.join(", "));
            if i.opcode == "custom-call" {
                let _ = write!(out, " {} {}", i.wire.text(TARGET), i.wire.text(CONFIG));
            }
            out.push('\n');
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests;
