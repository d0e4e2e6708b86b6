//! A partitioned program made local: its collectives become calls of functions of the host.
//!
//! What is left is a program for one partition that the plugin compiles like any other; the functions, which the user of
//! this crate [registers](crate::ffi::register), carry data between devices and processes:
//!
//! | function | arguments and attributes |
//! |---|---|
//! | `shardax.all_reduce` | arrays of one type; `op`, `groups` |
//! | `shardax.all_gather` | one array; those of all devices lie one after the other; `groups` |
//! | `shardax.reduce_scatter` | one array, in which the parts of all devices lie one after the other; `op`, `groups` |
//! | `shardax.all_to_all` | one array, cut and put together along its first dimension; `groups` |
//! | `shardax.permute` | one array; `pairs` of source and target, `devices` of the whole program |
//! | `shardax.partition_id` | none; `devices` by partition, absent where they are numbered alike |
//! | `shardax.after` | an array, given back |
//!
//! Groups are lists of device ids one after the other, `sizes` their lengths. `n` numbers the calls in the program.
//!
//! **Order.** XLA runs calls of one device side by side where their data allow, and every device must come to them in the
//! same order. So each takes, as its last argument, a value that depends on the call before it in its computation, and
//! gives one more result, a `u32[]`, for the next. Loops and branches with calls inside are ordered by passing an operand
//! through `shardax.after`.

mod context;
mod proto;
mod rewrite;

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use context::Context;
use proto::*;
use rewrite::{KNOWN, Rewrite};

use super::wire::Wire;
use crate::error::Result;
use crate::partition::Partitioned;

/// Whether a function named in a program waits for other devices.
pub(crate) fn meets(target: &str) -> bool {
    target
        .strip_prefix("shardax.")
        .is_some_and(|name| matches!(name, "all_reduce" | "all_gather" | "reduce_scatter" | "all_to_all" | "permute"))
}

impl Partitioned {
    /// The program with calls of functions of the host in the place of collectives, for
    /// [`Client::compile_hlo`](crate::Client::compile_hlo) with as many replicas as this process has devices.
    ///
    /// # Errors
    /// [`Code::Unimplemented`](crate::Code::Unimplemented) naming an operation that has no such function.
    pub fn localize(&self) -> Result<Vec<u8>> {
        self.localize_as(0, true)
    }

    /// The same, with a number of the program in each call (`program`), by which the functions tell programs apart, and
    /// with `bf16` exchanged as `f32` or as it is. The plugin's own collectives exchange `f32`, and with operations before
    /// and after them never round at all: only so are the results the same bits.
    ///
    /// # Errors
    /// As for [`Partitioned::localize`].
    pub fn localize_as(&self, program: u64, widen: bool) -> Result<Vec<u8>> {
        let mut whole = Wire::parse(&self.module)?;
        let entry = whole.int(module::ENTRY);
        let bytes: Vec<Vec<u8>> = whole.all_bytes(module::COMPUTATIONS).map(<[u8]>::to_vec).collect();
        let mut computations = bytes.iter().map(|b| Computation::parse(b)).collect::<Result<Vec<_>>>()?;
        for computation in computations.iter_mut().filter(|c| c.id == entry) {
            computation.drop_stop()?;
        }
        let reducers = computations.iter().map(|c| (c.id, c.root_opcode())).collect();
        let communicating = communicating(&computations);
        let mut context =
            Context { devices: &self.device_ids, program, widen, reducers, communicating, calls: 0, made: 0 };
        let mut edited = Vec::with_capacity(computations.len());
        for (computation, original) in computations.into_iter().zip(&bytes) {
            let touched = computation.id == entry
                || context.communicating.contains(&computation.id)
                || computation.instructions.iter().any(|i| matches!(i.opcode.as_str(), "partition-id" | "replica-id"));
            edited.push(if touched { Rewrite::run(computation, &mut context)? } else { original.clone() });
        }
        whole.remove(&[module::COMPUTATIONS]);
        edited.into_iter().for_each(|bytes| whole.push_bytes(module::COMPUTATIONS, bytes));
        whole.remove(&module::PARTITIONING);
        let result = whole.bytes(module::PROGRAM_SHAPE).map(without_last_result).transpose()?;
        if let Some(shape) = result {
            whole.set_bytes(module::PROGRAM_SHAPE, shape);
        }
        Ok(whole.encode())
    }
}

/// Computations with collectives, also in those that they run.
fn communicating(computations: &[Computation<'_>]) -> HashSet<i64> {
    let own = |c: &Computation<'_>| c.instructions.iter().any(|i| KNOWN.contains(&i.opcode.as_str()));
    let mut found: HashSet<i64> = computations.iter().filter(|c| own(c)).map(|c| c.id).collect();
    loop {
        let calls = |c: &&Computation<'_>| {
            !found.contains(&c.id)
                && c.instructions
                    .iter()
                    .filter(|i| i.is_control_flow())
                    .any(|i| i.calls.iter().any(|id| found.contains(id)))
        };
        let more: Vec<i64> = computations.iter().filter(calls).map(|c| c.id).collect();
        if more.is_empty() {
            return found;
        }
        found.extend(more);
    }
}

/// Text of a program's instructions that meet or order, for tests and reports.
#[cfg_attr(not(test), expect(dead_code))]
pub(crate) fn text(module: &[u8]) -> Result<String> {
    use instruction::*;
    let whole = Wire::parse(module)?;
    let mut out = String::new();
    for bytes in whole.all_bytes(module::COMPUTATIONS) {
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
