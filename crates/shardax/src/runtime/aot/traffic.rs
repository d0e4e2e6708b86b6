//! Memory traffic and floating-point operations of a compiled program on one device.

use std::collections::HashMap;

use shardax_pjrt::HloInstruction;

use super::collectives::{Runs, bytes};

/// The instructions of a computation by name, and its root.
struct Computation<'a> {
    by_name: HashMap<&'a str, &'a HloInstruction>,
    root: &'a HloInstruction,
}

impl Computation<'_> {
    /// The bytes of the result of an instruction.
    fn bytes_of(&self, name: &str) -> usize {
        self.by_name.get(name).map_or(0, |i| bytes(&i.shapes))
    }
}

type Computations<'a> = HashMap<&'a str, Computation<'a>>;

/// The computations of a program, indexed to compute the traffic and the operations of its instructions.
pub(super) struct Traffic<'a> {
    runs: Runs<'a>,
    all: Computations<'a>,
    sequences: Vec<(&'a str, Vec<&'a HloInstruction>)>,
    /// The FLOPs of each computation, for one execution.
    flops: HashMap<&'a str, f64>,
}

impl<'a> Traffic<'a> {
    pub fn of(instructions: &'a [HloInstruction]) -> Self {
        let mut computations = Computations::new();
        let mut members: HashMap<&str, Vec<&HloInstruction>> = HashMap::new();
        for i in instructions {
            let computation =
                computations.entry(&i.computation).or_insert_with(|| Computation { by_name: HashMap::new(), root: i });
            computation.by_name.insert(&i.name, i);
            // Instructions come after their operands.
            computation.root = i;
            members.entry(&i.computation).or_default().push(i);
        }
        // The computations whose instructions run sequentially: the entry, and the bodies of loops, branches and calls.
        let mut in_order: Vec<&str> =
            instructions.iter().filter(|i| i.in_entry).map(|i| i.computation.as_str()).take(1).collect();
        let mut visited = 0;
        while let Some(computation) = in_order.get(visited).and_then(|name| members.get(name)) {
            visited += 1;
            for called in computation.iter().filter(|i| is_control(&i.opcode)).flat_map(|i| &i.calls) {
                if !in_order.contains(&called.as_str()) {
                    in_order.push(called);
                }
            }
        }
        let sequences = in_order.into_iter().filter_map(|name| Some((name, members.remove(name)?))).collect();
        let mut flops: HashMap<&str, f64> = HashMap::new();
        for i in instructions {
            *flops.entry(&i.computation).or_default() += i.matmul_flops;
        }
        Traffic { runs: Runs::of(instructions), all: computations, sequences, flops }
    }

    /// Iterates over the computations whose instructions run sequentially, with their instructions in order.
    pub fn in_order(&self) -> impl Iterator<Item = (&'a str, &[&'a HloInstruction])> {
        self.sequences.iter().map(|(name, sequence)| (*name, sequence.as_slice()))
    }

    /// Returns the bytes that an instruction reads and writes per execution. A loop includes the bytes of its body.
    pub fn bytes(&self, i: &HloInstruction) -> usize {
        let own_bytes = self.all.get(i.computation.as_str()).map_or(0, |around| accessed(i, around, &self.all));
        let called = i.calls.iter().filter_map(|name| self.sequences.iter().find(|(n, _)| n == name));
        let sum =
            |(_, sequence): &(&str, Vec<&HloInstruction>)| -> usize { sequence.iter().map(|i| self.bytes(i)).sum() };
        let times = usize::try_from(i.trip_count.unwrap_or(1)).unwrap_or(usize::MAX);
        let called: usize = if is_control(&i.opcode) { called.map(sum).sum() } else { 0 };
        own_bytes.saturating_add(called.saturating_mul(times))
    }

    /// Returns the matmul FLOPs of an instruction per execution, including the FLOPs of the computations that it calls.
    pub fn flops(&self, i: &HloInstruction) -> f64 {
        let called: f64 = if is_control(&i.opcode) {
            let inside = i.calls.iter().filter_map(|name| self.sequences.iter().find(|(n, _)| n == name));
            inside.flat_map(|(_, sequence)| sequence).map(|i| self.flops(i)).sum()
        } else {
            i.calls.iter().filter_map(|name| self.flops.get(name.as_str())).sum()
        };
        i.matmul_flops + called * i.trip_count.unwrap_or(1) as f64
    }
}

/// The bytes that one call reads and writes on one device: the operands and results of every top-level instruction,
/// once per execution. If an operand is sliced, only the slice counts. Loops with an unknown number of iterations count
/// once.
pub(super) fn bytes_accessed(instructions: &[HloInstruction]) -> usize {
    let traffic = Traffic::of(instructions);
    let mut sum = 0usize;
    for (name, sequence) in traffic.in_order() {
        let times = traffic.runs.executions_of(name).unwrap_or(1);
        let Some(computation) = traffic.all.get(name) else { continue };
        let once: usize = sequence.iter().map(|i| accessed(i, computation, &traffic.all)).sum();
        sum = sum.saturating_add(once.saturating_mul(times));
    }
    sum
}

/// The floating-point operations of matmuls of one call on one device, once per execution. Loops with an
/// unknown number of iterations count once.
pub(super) fn matmul_flops(instructions: &[HloInstruction]) -> f64 {
    let runs = Runs::of(instructions);
    let matmuls = instructions.iter().filter(|i| i.matmul_flops > 0.0);
    matmuls.map(|i| i.matmul_flops * runs.executions_of(&i.computation).unwrap_or(1) as f64).sum()
}

fn is_control(opcode: &str) -> bool {
    matches!(opcode, "while" | "conditional" | "call")
}

/// The computation of a fusion.
fn fused<'a>(i: &HloInstruction, all: &'a Computations<'_>) -> Option<&'a Computation<'a>> {
    if i.opcode != "fusion" {
        return None;
    }
    all.get(i.calls.first()?.as_str())
}

fn accessed(i: &HloInstruction, around: &Computation<'_>, all: &Computations<'_>) -> usize {
    let result = bytes(&i.shapes);
    let operands: Vec<usize> = i.operands.iter().map(|name| around.bytes_of(name)).collect();
    if let Some(inside) = fused(i, all) {
        let read = operands.iter().enumerate().map(|(at, &bytes)| read_of_parameter(at, inside, all, bytes));
        let read: usize = read.sum();
        return read + written(inside.root, inside, all);
    }
    match i.opcode.as_str() {
        "parameter" | "constant" | "iota" | "tuple" | "get-tuple-element" | "bitcast" | "after-all" | "domain" => 0,
        "partition-id" | "replica-id" | "opt-barrier" | "optimization-barrier" => 0,
        opcode if is_control(opcode) || opcode.ends_with("-done") => 0,
        "dynamic-slice" | "slice" | "gather" => 2 * result,
        "dynamic-update-slice" => 2 * operands.get(1).copied().unwrap_or(0),
        "scatter" => 3 * operands.get(2).copied().unwrap_or(0),
        // The result of a start also holds the operands.
        opcode if opcode.ends_with("-start") => 2 * result.saturating_sub(operands.iter().sum()),
        _ => result + operands.iter().sum::<usize>(),
    }
}

/// The bytes that a fusion reads of one operand, which has `full_size` bytes: only the slices if the fusion slices the
/// operand.
fn read_of_parameter(at: usize, inside: &Computation<'_>, all: &Computations<'_>, full_size: usize) -> usize {
    inside
        .by_name
        .values()
        .find(|i| i.parameter_number == i64::try_from(at).ok())
        .map_or(full_size, |parameter| read(parameter, inside, all, full_size))
}

fn read(value: &HloInstruction, inside: &Computation<'_>, all: &Computations<'_>, full_size: usize) -> usize {
    let mut sum = 0usize;
    for user in inside.by_name.values() {
        for at in (0..user.operands.len()).filter(|&at| user.operands[at] == value.name) {
            sum += match (user.opcode.as_str(), fused(user, all)) {
                ("dynamic-slice" | "slice" | "gather", _) if at == 0 => bytes(&user.shapes),
                ("dynamic-update-slice", _) if at == 0 => 0,
                ("bitcast", _) => read(user, inside, all, full_size),
                (_, Some(deeper)) => read_of_parameter(at, deeper, all, full_size),
                _ => full_size,
            };
        }
    }
    sum.min(full_size)
}

/// The bytes that a computation writes: only the slice if the result is an in-place update, otherwise the entire
/// result.
fn written(root: &HloInstruction, inside: &Computation<'_>, all: &Computations<'_>) -> usize {
    let mut operands = root.operands.iter().map(|name| inside.by_name.get(name.as_str()));
    match (root.opcode.as_str(), fused(root, all)) {
        ("tuple", _) => operands.flatten().map(|i| written(i, inside, all)).sum(),
        ("dynamic-update-slice", _) => operands.nth(1).flatten().map_or(0, |update| bytes(&update.shapes)),
        ("bitcast", _) => operands.next().flatten().map_or(0, |i| written(i, inside, all)),
        (_, Some(deeper)) => written(deeper.root, deeper, all),
        _ => bytes(&root.shapes),
    }
}
