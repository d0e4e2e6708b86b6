//! The communication report of a compiled program.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::Deref;

use shardax_pjrt::{ElementType, HloInstruction};

use super::overlap::Overlap;
use crate::shape::AxisName;
use crate::sharding::Mesh;

/// The kind of a collective operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum CollectiveKind {
    /// A sum, or another reduction, on all devices.
    AllReduce,
    /// Every device receives all parts.
    AllGather,
    /// A reduction; each device receives one part of the result.
    ReduceScatter,
    /// Each device sends one part to every other device.
    AllToAll,
    /// Each device sends to one device and receives from one.
    CollectivePermute,
    /// One device sends to all devices.
    CollectiveBroadcast,
    /// One device sends to another.
    Send,
    /// One device receives from another.
    Recv,
}

use CollectiveKind::*;

impl CollectiveKind {
    fn of(opcode: &str) -> Option<Self> {
        Some(match opcode.strip_suffix("-start").unwrap_or(opcode) {
            "all-reduce" => AllReduce,
            "all-gather" => AllGather,
            "reduce-scatter" => ReduceScatter,
            "all-to-all" | "ragged-all-to-all" => AllToAll,
            "collective-permute" => CollectivePermute,
            "collective-broadcast" => CollectiveBroadcast,
            "send" => Send,
            "recv" => Recv,
            _ => return None,
        })
    }
}

/// HLO's name: `all-reduce`.
impl fmt::Display for CollectiveKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            AllReduce => "all-reduce",
            AllGather => "all-gather",
            ReduceScatter => "reduce-scatter",
            AllToAll => "all-to-all",
            CollectivePermute => "collective-permute",
            CollectiveBroadcast => "collective-broadcast",
            Send => "send",
            Recv => "recv",
        })
    }
}

/// Identical collectives of a compiled program.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Collective {
    /// The kind of operation.
    pub kind: CollectiveKind,
    /// The mesh axes along which data moves, major first; empty if the program has no mesh, and for a send with an
    /// unspecified receiver, as between slices of TPUs.
    pub axes: Vec<AxisName>,
    /// The number of participating devices; 0 if unspecified.
    pub participants: usize,
    /// The data on one device, in bytes: the operands or the results, whichever are larger. A ring moves `2 (n - 1) /
    /// n` times as much for an all-reduce, and half as much as that for a gather, scatter or all-to-all.
    pub bytes: usize,
    /// The number of identical instructions in the program.
    pub count: usize,
    /// The number of executions in one call, of all these instructions together. An instruction in a loop runs once per
    /// iteration. Each branch of a conditional counts as if it were taken. `None` if the number of iterations of a loop
    /// is unknown.
    pub runs: Option<usize>,
    /// `true` if the instructions are inside a loop.
    pub in_loop: bool,
    /// The number of asynchronous instructions: the device can compute between their start and their end.
    pub asynchronous: usize,
    /// The FLOPs of matmuls between the starts and the ends of all these instructions, in one call. An instruction in a
    /// loop with an unknown number of iterations counts once.
    pub flops_between: u64,
    /// The bytes of memory traffic between the starts and the ends, counted in the same way.
    pub bytes_between: u64,
}

impl Collective {
    /// Returns `true` if both are reported together: they only differ in counts and in overlapped work.
    fn is_like(&self, other: &Collective) -> bool {
        (self.kind, &self.axes, self.participants, self.bytes, self.in_loop, self.runs.is_none())
            == (other.kind, &other.axes, other.participants, other.bytes, other.in_loop, other.runs.is_none())
    }

    /// Adds the counts of an identical collective.
    fn add(&mut self, other: &Collective) {
        self.count += 1;
        self.runs = self.runs.zip(other.runs).map(|(a, b)| a.saturating_add(b));
        self.asynchronous += other.asynchronous;
        self.flops_between = self.flops_between.saturating_add(other.flops_between);
        self.bytes_between = self.bytes_between.saturating_add(other.bytes_between);
    }
}

/// `all-reduce over 'i', 4 bytes on each device, ×1`
impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind)?;
        for (i, axis) in self.axes.iter().enumerate() {
            write!(f, "{}{axis:?}", if i == 0 { " over " } else { ", " })?;
        }
        write!(f, ", {} bytes on each device, ×{}", self.bytes, self.count)?;
        match self.asynchronous {
            0 => {}
            n if n == self.count => f.write_str(", asynchronous")?,
            n => write!(f, ", {n} of them asynchronous")?,
        }
        match (self.in_loop, self.runs) {
            (false, _) => Ok(()),
            (true, Some(runs)) => write!(f, " in a loop, {runs} runs"),
            (true, None) => f.write_str(" in a loop"),
        }
    }
}

/// All collectives of a compiled program, grouped. Dereferences to a slice.
///
/// Communication inside custom calls is not included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Collectives(Vec<Collective>);

impl Collectives {
    pub(crate) fn of(instructions: &[HloInstruction], mesh: Option<&Mesh>) -> Self {
        let runs = Runs::of(instructions);
        let overlap = Overlap::of(instructions);
        let scattering = fused_reduce_scatters(instructions);
        let continuing = continued(instructions);
        let sizes: HashMap<(&str, &str), usize> =
            instructions.iter().map(|i| ((i.computation.as_str(), i.name.as_str()), bytes(&i.shapes))).collect();
        let mut groups_found: Vec<Collective> = Vec::new();
        for instruction in instructions {
            let Some(kind) = CollectiveKind::of(&instruction.opcode) else { continue };
            let computation = instruction.computation.as_str();
            if continuing.contains(computation) {
                continue;
            }
            let operands: usize =
                instruction.operands.iter().filter_map(|name| sizes.get(&(computation, name.as_str())).copied()).sum();
            let mut results = bytes(&instruction.shapes);
            if instruction.opcode.ends_with("-start") {
                // The result of a start also holds the operands, and additional u32 scalars.
                let has_scalars = instruction.shapes.len() > 2;
                let scalars = if has_scalars {
                    instruction.shapes.iter().filter(|(ty, dims)| *ty == ElementType::U32 && dims.is_empty()).count()
                } else {
                    0
                };
                results = results.saturating_sub(4 * scalars);
                results = if results > operands { results - operands } else { results };
            }
            let groups = groups(instruction, mesh);
            let executions = runs.executions_of(computation);
            let between = overlap.with(instruction);
            let times = executions.unwrap_or(1);
            let work = between.unwrap_or_default();
            let collective = Collective {
                kind: if scattering.contains(computation) { ReduceScatter } else { kind },
                axes: axes(&groups, mesh),
                participants: groups.iter().map(Vec::len).max().unwrap_or(0),
                bytes: operands.max(results),
                count: 1,
                runs: executions,
                in_loop: runs.looped.contains(computation),
                asynchronous: usize::from(between.is_some()),
                flops_between: (work.flops * times as f64) as u64,
                bytes_between: work.bytes.saturating_mul(times) as u64,
            };
            match groups_found.iter_mut().find(|group| group.is_like(&collective)) {
                Some(group) => group.add(&collective),
                None => groups_found.push(collective),
            }
        }
        Collectives(groups_found)
    }

    /// Returns the number of collectives of all kinds.
    pub fn count(&self) -> usize {
        self.iter().map(|c| c.count).sum()
    }

    /// Returns the number of collectives of this kind.
    pub fn count_of(&self, kind: CollectiveKind) -> usize {
        self.iter().filter(|c| c.kind == kind).map(|c| c.count).sum()
    }

    /// Returns the data of all collectives on one device in one call, in bytes. A collective in a loop with an unknown
    /// number of iterations counts once.
    pub fn bytes(&self) -> usize {
        self.iter().map(|c| c.bytes.saturating_mul(c.runs.unwrap_or(c.count))).fold(0, usize::saturating_add)
    }
}

impl Deref for Collectives {
    type Target = [Collective];
    fn deref(&self) -> &[Collective] {
        &self.0
    }
}

/// A line for each kind, or `no communication`.
impl fmt::Display for Collectives {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("no communication");
        }
        for (i, c) in self.iter().enumerate() {
            write!(f, "{}{c}", if i == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

pub(super) fn bytes(shapes: &[(ElementType, Vec<i64>)]) -> usize {
    let sizes = shapes.iter().map(|(ty, dims)| {
        let elements: i64 = dims.iter().product();
        (usize::try_from(elements).unwrap_or(0) * ty.bits()).div_ceil(8)
    });
    sizes.sum()
}

/// The number of executions of each computation in one call.
pub(super) struct Runs<'a> {
    /// `None` if the number of iterations of a loop is unknown.
    runs: HashMap<&'a str, Option<usize>>,
    /// The computations that loops run, directly or indirectly.
    looped: HashSet<&'a str>,
}

impl<'a> Runs<'a> {
    /// Returns the number of executions; `None` if the number of iterations of a loop is unknown.
    pub fn executions_of(&self, name: &str) -> Option<usize> {
        self.runs.get(name).copied().unwrap_or(Some(1))
    }

    pub fn of(instructions: &'a [HloInstruction]) -> Runs<'a> {
        // The caller of a computation, the number of calls per execution of the caller, and `true` if the call is a
        // loop.
        type Call<'a> = (&'a str, Option<usize>, bool);
        let mut callers: HashMap<&str, Vec<Call<'_>>> = HashMap::new();
        let mut entry = None;
        for i in instructions {
            if i.in_entry {
                entry = Some(i.computation.as_str());
            }
            for (position, called) in i.calls.iter().enumerate() {
                let is_loop = i.opcode == "while";
                let trips = i.trip_count.map(|n| usize::try_from(n).unwrap_or(usize::MAX));
                // A loop calls the body, then the condition, which runs once more than the body.
                let times = if is_loop { trips.map(|n| n.saturating_add(position)) } else { Some(1) };
                callers.entry(called.as_str()).or_default().push((i.computation.as_str(), times, is_loop));
            }
        }
        let mut result = Runs { runs: entry.into_iter().map(|name| (name, Some(1))).collect(), looped: HashSet::new() };
        // Callers precede their callees in the call graph, so the graph's depth bounds the number of rounds.
        let mut open: HashSet<&str> = callers.keys().copied().filter(|name| Some(*name) != entry).collect();
        while !open.is_empty() {
            let ready =
                |name: &&str| callers[name].iter().all(|(caller, _, _)| !open.contains(caller) || caller == name);
            let (round, later): (HashSet<&str>, HashSet<&str>) = open.iter().copied().partition(ready);
            // HLO has no recursion. If there is a cycle nevertheless, cut it, because the loop would not end otherwise.
            let round = if round.is_empty() { std::mem::take(&mut open) } else { round };
            for name in round {
                let mut sum = Some(0usize);
                for (caller, times, is_loop) in &callers[name] {
                    // A computation without a caller counts as if the entry called it.
                    let caller_runs = result.runs.get(caller).copied().unwrap_or(Some(1));
                    let runs = caller_runs.zip(*times).map(|(a, b)| a.saturating_mul(b));
                    sum = sum.zip(runs).map(|(a, b)| a.saturating_add(b));
                    if *is_loop || result.looped.contains(caller) {
                        result.looped.insert(name);
                    }
                }
                result.runs.insert(name, sum);
            }
            open = later;
        }
        result
    }
}

/// The fused computations that perform a reduce-scatter on TPUs: they contain an all-reduce, and each device keeps only
/// its part of the result.
fn fused_reduce_scatters(instructions: &[HloInstruction]) -> HashSet<&str> {
    let fusions = instructions.iter().filter(|i| i.opcode == "fusion");
    let computations = fusions.flat_map(|i| i.calls.iter().map(|called| (i.name.as_str(), called.as_str())));
    computations
        .filter(|(name, called)| is_reduce_scatter_name(name) || is_reduce_scatter_name(called))
        .map(|(_, called)| called)
        .collect()
}

/// Compilers for TPUs use this name for such fusions.
fn is_reduce_scatter_name(name: &str) -> bool {
    name.starts_with("all-reduce-scatter")
}

/// The computations that only continue collectives. TPUs write an asynchronous collective several times: in the
/// fusion that starts it, in each fusion that it overlaps, and in the one that waits for it.
fn continued(instructions: &[HloInstruction]) -> HashSet<&str> {
    let mut computations: HashSet<&str> = instructions
        .iter()
        .filter(|i| i.custom_call_target.as_deref() == Some("AsyncCollectiveDone"))
        .map(|i| i.computation.as_str())
        .collect();
    computations.extend(
        instructions
            .iter()
            .filter(|i| i.computation.starts_with("async_collective_fusion"))
            .map(|i| i.computation.as_str()),
    );
    // Add the computations that these call, until there are no more.
    loop {
        let inside = instructions.iter().filter(|i| computations.contains(i.computation.as_str()));
        let called: Vec<&str> = inside.flat_map(|i| &i.calls).map(String::as_str).collect();
        let count = computations.len();
        computations.extend(called);
        if computations.len() == count {
            return computations;
        }
    }
}

/// The groups of participants, as positions in the mesh.
fn groups(instruction: &HloInstruction, mesh: Option<&Mesh>) -> Vec<Vec<usize>> {
    if !instruction.source_target_pairs.is_empty() {
        return instruction
            .source_target_pairs
            .iter()
            .map(|(a, b)| vec![device_position(a), device_position(b)])
            .collect();
    }
    let groups: Vec<Vec<usize>> =
        instruction.replica_groups.iter().map(|g| g.iter().map(device_position).collect()).collect();
    match (groups.is_empty(), CollectiveKind::of(&instruction.opcode)) {
        // A transfer between two devices; the program does not name the devices.
        (true, Some(Send | Recv)) => Vec::new(),
        (true, _) => vec![(0..mesh.map_or(1, Mesh::size)).collect()],
        (false, _) => groups,
    }
}

fn device_position(id: &i64) -> usize {
    usize::try_from(*id).unwrap_or(0)
}

/// The axes along which the members of a group differ.
fn axes(groups: &[Vec<usize>], mesh: Option<&Mesh>) -> Vec<AxisName> {
    let Some(mesh) = mesh else { return Vec::new() };
    mesh.axis_names()
        .filter(|name| {
            groups.iter().any(|g| {
                let first_coordinate = g.first().map(|&p| mesh.coordinate(p, *name));
                g.iter().any(|&p| Some(mesh.coordinate(p, *name)) != first_coordinate)
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `computation: name = f32[elements] opcode(operands), calls`
    fn instruction(computation: &str, name: &str, opcode: &str, operands: &[&str], calls: &[&str]) -> HloInstruction {
        HloInstruction {
            computation: computation.to_owned(),
            in_entry: computation == "main",
            name: name.to_owned(),
            opcode: opcode.to_owned(),
            shapes: vec![(ElementType::F32, vec![8])],
            operands: operands.iter().copied().map(str::to_owned).collect(),
            calls: calls.iter().copied().map(str::to_owned).collect(),
            custom_call_target: (opcode == "custom-call").then(|| name.to_owned()),
            ..Default::default()
        }
    }

    fn kinds(program: &[HloInstruction]) -> Vec<(CollectiveKind, usize)> {
        Collectives::of(program, None).iter().map(|c| (c.kind, c.count)).collect()
    }

    #[test]
    fn reduce_scatters_of_tpus_are_found_by_the_fusion_or_its_computation() {
        for (fusion, called) in [("fusion.3", "all-reduce-scatter.1"), ("all-reduce-scatter.2", "fused_computation")] {
            let program = [
                instruction(called, "input", "parameter", &[], &[]),
                instruction(called, "all-reduce.2", "all-reduce", &["input"], &["add"]),
                instruction(called, "part", "dynamic-slice", &["all-reduce.2"], &[]),
                instruction("main", "x", "parameter", &[], &[]),
                instruction("main", fusion, "fusion", &["x"], &[called]),
            ];
            assert_eq!(kinds(&program), [(ReduceScatter, 1)], "{fusion} {called}");
        }
    }

    fn all_gather(computation: &str) -> HloInstruction {
        instruction(computation, "all-gather", "all-gather", &["x"], &[])
    }

    #[test]
    fn a_collective_of_tpus_that_runs_beside_other_work_counts_once() {
        let program = [
            all_gather("fused_computation.12"),
            instruction("fused_computation.12", "AsyncCollectiveStart", "custom-call", &["all-gather"], &[]),
            all_gather("async_collective_fusion.16"),
            instruction("async_collective_fusion.16", "sum", "fusion", &["x"], &["all-reduce-scatter"]),
            instruction("all-reduce-scatter", "all-reduce", "all-reduce", &["x"], &[]),
            all_gather("fused_computation.14"),
            instruction("fused_computation.14", "AsyncCollectiveDone", "custom-call", &["all-gather"], &[]),
            instruction("main", "start", "fusion", &[], &["fused_computation.12"]),
            instruction("main", "beside", "fusion", &[], &["async_collective_fusion.16"]),
            instruction("main", "done", "fusion", &[], &["fused_computation.14"]),
            all_gather("main"),
        ];
        assert_eq!(kinds(&program), [(AllGather, 2)]);
    }
}
