//! The communication report of a compiled program.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::Deref;

use shardax_pjrt::{ElementType, HloInstruction};

use crate::shape::AxisName;
use crate::sharding::Mesh;

/// How devices exchange data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum CollectiveKind {
    /// A sum, or another reduction, that all devices get.
    AllReduce,
    /// All devices get everybody's part.
    AllGather,
    /// A reduction, of which each device gets its part.
    ReduceScatter,
    /// Each device sends a part to each.
    AllToAll,
    /// Each device sends to one and receives from one.
    CollectivePermute,
    /// One device sends to all.
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

/// Collectives of a compiled program that are alike.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Collective {
    /// What it does.
    pub kind: CollectiveKind,
    /// The mesh axes along which data moves, major first; empty where the program has no mesh.
    pub axes: Vec<AxisName>,
    /// The number of devices that take part together.
    pub participants: usize,
    /// The data on one device, in bytes: of the operands or of the results, whichever is more. A ring moves
    /// `2 (n - 1) / n` times as much for an all-reduce, and half of that for a gather, scatter or all-to-all.
    pub bytes: usize,
    /// How many of them there are in the program.
    pub count: usize,
    /// Whether they are inside a loop, which runs them once for each of its steps.
    pub in_loop: bool,
}

/// `all-reduce over 'i', 4 bytes on each device, ×1`
impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind)?;
        for (i, axis) in self.axes.iter().enumerate() {
            write!(f, "{}{axis:?}", if i == 0 { " over " } else { ", " })?;
        }
        write!(f, ", {} bytes on each device, ×{}", self.bytes, self.count)?;
        f.write_str(if self.in_loop { " in a loop" } else { "" })
    }
}

/// All collectives of a compiled program, like ones together. Dereferences to a slice.
///
/// Communication of custom calls is not among them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Collectives(Vec<Collective>);

impl Collectives {
    pub(crate) fn of(instructions: &[HloInstruction], mesh: Option<&Mesh>) -> Self {
        let looped = looped_computations(instructions);
        let sizes: HashMap<(&str, &str), usize> =
            instructions.iter().map(|i| ((i.computation.as_str(), i.name.as_str()), bytes(&i.shapes))).collect();
        let mut found: Vec<Collective> = Vec::new();
        for instruction in instructions {
            let Some(kind) = CollectiveKind::of(&instruction.opcode) else { continue };
            let size_of = |name: &String| sizes.get(&(instruction.computation.as_str(), name.as_str())).copied();
            let operands: usize = instruction.operands.iter().filter_map(size_of).sum();
            let mut results = bytes(&instruction.shapes);
            if instruction.opcode.ends_with("-start") && results > operands {
                // Its result holds the operands too.
                results -= operands;
            }
            let groups = groups(instruction, mesh);
            let one = Collective {
                kind,
                axes: axes(&groups, mesh),
                participants: groups.iter().map(Vec::len).max().unwrap_or(0),
                bytes: operands.max(results),
                count: 1,
                in_loop: looped.contains(instruction.computation.as_str()),
            };
            match found.iter_mut().find(|c| Collective { count: 1, ..(*c).clone() } == one) {
                Some(known) => known.count += 1,
                None => found.push(one),
            }
        }
        Collectives(found)
    }

    /// The number of collectives of all kinds.
    pub fn count(&self) -> usize {
        self.iter().map(|c| c.count).sum()
    }

    /// The number of collectives of this kind.
    pub fn count_of(&self, kind: CollectiveKind) -> usize {
        self.iter().filter(|c| c.kind == kind).map(|c| c.count).sum()
    }

    /// The data of all of them on one device, in bytes.
    pub fn bytes(&self) -> usize {
        self.iter().map(|c| c.bytes * c.count).sum()
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

fn bytes(shapes: &[(ElementType, Vec<i64>)]) -> usize {
    let one = |(ty, dims): &(ElementType, Vec<i64>)| {
        let elements: i64 = dims.iter().product();
        (usize::try_from(elements).unwrap_or(0) * ty.bits()).div_ceil(8)
    };
    shapes.iter().map(one).sum()
}

/// The computations that loops run, directly or not.
fn looped_computations(instructions: &[HloInstruction]) -> HashSet<&str> {
    let mut looped: HashSet<&str> = HashSet::new();
    loop {
        let before = looped.len();
        for i in instructions {
            if i.opcode == "while" || looped.contains(i.computation.as_str()) {
                looped.extend(i.calls.iter().map(String::as_str));
            }
        }
        if looped.len() == before {
            return looped;
        }
    }
}

/// The positions in the mesh that take part together.
fn groups(instruction: &HloInstruction, mesh: Option<&Mesh>) -> Vec<Vec<usize>> {
    let position = |id: &i64| usize::try_from(*id).unwrap_or(0);
    if !instruction.source_target_pairs.is_empty() {
        return instruction.source_target_pairs.iter().map(|(a, b)| vec![position(a), position(b)]).collect();
    }
    let groups: Vec<Vec<usize>> = instruction.replica_groups.iter().map(|g| g.iter().map(position).collect()).collect();
    if groups.is_empty() { vec![(0..mesh.map_or(1, Mesh::size)).collect()] } else { groups }
}

/// The axes along which members of a group differ.
fn axes(groups: &[Vec<usize>], mesh: Option<&Mesh>) -> Vec<AxisName> {
    let Some(mesh) = mesh else { return Vec::new() };
    let differ = |name: &AxisName| {
        groups.iter().any(|g| {
            let first = g.first().map(|&p| mesh.coordinate(p, *name));
            g.iter().any(|&p| Some(mesh.coordinate(p, *name)) != first)
        })
    };
    mesh.axis_names().filter(differ).collect()
}
