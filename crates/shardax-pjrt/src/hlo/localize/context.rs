//! State shared by the computations of a module; attributes of instructions: device groups, reductions.

use std::collections::{HashMap, HashSet};

use super::super::wire::Wire;
use super::proto::*;
use crate::error::Result;
use crate::sharding::transposed_iota;

/// State shared by the computations of a module.
pub(super) struct Context<'a> {
    /// The device of each partition.
    pub(super) devices: &'a [usize],
    /// The number of the program, or 0.
    pub(super) program: u64,
    /// `bf16` is exchanged as `f32`.
    pub(super) widen: bool,
    /// The root operation of each computation: for a reducer, the reduction.
    pub(super) reducers: HashMap<i64, String>,
    pub(super) communicating: HashSet<i64>,
    /// The number of calls so far.
    pub(super) calls: usize,
    /// The number of new instructions so far.
    pub(super) new_instructions: usize,
}

impl Instruction<'_> {
    /// The groups of devices that communicate.
    pub(super) fn groups(&self, context: &Context<'_>) -> Result<Vec<Vec<usize>>> {
        use instruction::*;
        // Only collectives with a channel exchange between partitions.
        if self.wire.int(CHANNEL) == 0 {
            return Err(self.unsupported("has no channel, and would exchange between replicas, not"));
        }
        if matches!(self.opcode.as_str(), "all-reduce" | "all-gather" | "reduce-scatter")
            && self.wire.int(GLOBAL_IDS) == 0
        {
            return Err(self.unsupported("numbers replicas and not partitions, so it cannot exchange"));
        }
        // Groups are listed in the instruction or in its device list, or follow from an iota.
        let mut groups = listed_groups(self.wire.all_bytes(GROUPS))?;
        if let Some(list) = self.wire.bytes(DEVICE_LIST) {
            let list = Wire::parse(list)?;
            groups = listed_groups(list.all_bytes(1))?;
            if let Some(iota) = list.bytes(2) {
                let iota = Wire::parse(iota)?;
                let flat = transposed_iota(&sizes(&iota, 3)?, &sizes(&iota, 4)?);
                let size = usize::try_from(iota.int(2)).unwrap_or(0).max(1);
                groups = flat.chunks(size).map(|group| group.iter().map(|&i| i as i64).collect()).collect();
            }
        }
        if groups.is_empty() {
            groups = vec![(0..context.devices.len() as i64).collect()];
        }
        let size = groups[0].len();
        if groups.iter().any(|group| group.len() != size) && self.opcode != "all-reduce" {
            return Err(self.unsupported("has groups of several sizes, which is not supported"));
        }
        groups.iter().map(|group| group.iter().map(|&position| self.device(position, context)).collect()).collect()
    }

    pub(super) fn device(&self, position: i64, context: &Context<'_>) -> Result<usize> {
        let device = usize::try_from(position).ok().and_then(|p| context.devices.get(p));
        device
            .copied()
            .ok_or_else(|| unexpected_program(&format!("names partition {position} of {}", context.devices.len())))
    }

    pub(super) fn reducer(&self, context: &Context<'_>) -> Result<String> {
        let op = self.calls.first().and_then(|id| context.reducers.get(id)).cloned().unwrap_or_default();
        match op.as_str() {
            "add" | "multiply" | "minimum" | "maximum" | "and" | "or" => Ok(op),
            other => Err(self.unsupported(&format!("combines values by {other:?}, which is not supported"))),
        }
    }

    pub(super) fn dimension(&self) -> Result<usize> {
        let dims = self.wire.ints(instruction::DIMENSIONS)?;
        let dim = dims.first().and_then(|&d| usize::try_from(d).ok()).filter(|&d| d < self.shape.dims.len());
        dim.ok_or_else(|| unexpected_program(&format!("has no dimension in an {}", self.opcode)))
    }
}

/// Decodes groups whose first field lists their members.
fn listed_groups<'a>(groups: impl Iterator<Item = &'a [u8]>) -> Result<Vec<Vec<i64>>> {
    groups.map(|group| Wire::parse(group)?.ints(1)).collect()
}

/// The numbers of a field; negative ones, which are invalid, become 0.
fn sizes(wire: &Wire<'_>, field: u32) -> Result<Vec<usize>> {
    Ok(wire.ints(field)?.iter().map(|&n| usize::try_from(n).unwrap_or(0)).collect())
}

pub(super) fn list(numbers: impl IntoIterator<Item = usize>) -> String {
    let numbers: Vec<String> = numbers.into_iter().map(|n| n.to_string()).collect();
    if numbers.is_empty() { "array<i64>".into() } else { format!("array<i64: {}>", numbers.join(", ")) }
}

pub(super) fn group_attributes(groups: &[Vec<usize>]) -> String {
    format!("groups = {}, sizes = {}", list(groups.iter().flatten().copied()), list(groups.iter().map(Vec::len)))
}
