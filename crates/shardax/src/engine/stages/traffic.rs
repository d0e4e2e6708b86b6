//! What a compiled program reads from a device's memory and writes to it.

use std::collections::HashMap;

use shardax_pjrt::HloInstruction;

use super::collectives::{Runs, bytes};

type ByName<'a> = HashMap<&'a str, &'a HloInstruction>;

/// The bytes that one call reads and writes on one device: operands and results of every instruction that runs by itself,
/// as often as it runs; of what takes a slice, the slice. `None` for the steps of loops that do not say how many: once.
pub(super) fn bytes_accessed(instructions: &[HloInstruction]) -> usize {
    let runs = Runs::of(instructions);
    let mut computations: HashMap<&str, ByName<'_>> = HashMap::new();
    let mut roots: HashMap<&str, &HloInstruction> = HashMap::new();
    for i in instructions {
        computations.entry(&i.computation).or_default().insert(&i.name, i);
        // Instructions stand after their operands.
        roots.insert(&i.computation, i);
    }
    // What is run one instruction after another: the entry, and what loops, branches and calls run.
    let mut in_order: Vec<&str> =
        instructions.iter().filter(|i| i.in_entry).map(|i| i.computation.as_str()).take(1).collect();
    let mut at = 0;
    while let Some(&computation) = in_order.get(at) {
        at += 1;
        let inside = instructions.iter().filter(|i| i.computation == computation);
        for called in inside.filter(|i| is_control(&i.opcode)).flat_map(|i| &i.calls) {
            if !in_order.contains(&called.as_str()) {
                in_order.push(called);
            }
        }
    }
    let mut sum = 0usize;
    for i in instructions.iter().filter(|i| in_order.contains(&i.computation.as_str())) {
        let times = runs.of_computation(&i.computation).unwrap_or(1);
        let fused = i.calls.first().filter(|_| i.opcode == "fusion").map(String::as_str);
        let names = &computations[i.computation.as_str()];
        let once = match fused.and_then(|name| Some((computations.get(name)?, *roots.get(name)?))) {
            Some((inside, root)) => fusion(i, names, inside, root),
            None => alone(i, names),
        };
        sum = sum.saturating_add(once.saturating_mul(times));
    }
    sum
}

fn is_control(opcode: &str) -> bool {
    matches!(opcode, "while" | "conditional" | "call")
}

fn size(names: &ByName<'_>, name: &str) -> usize {
    names.get(name).map_or(0, |i| bytes(&i.shapes))
}

fn alone(i: &HloInstruction, names: &ByName<'_>) -> usize {
    let result = bytes(&i.shapes);
    let operand = |at: usize| i.operands.get(at).map_or(0, |name| size(names, name));
    match i.opcode.as_str() {
        "parameter"
        | "constant"
        | "tuple"
        | "get-tuple-element"
        | "bitcast"
        | "after-all"
        | "partition-id"
        | "replica-id"
        | "opt-barrier"
        | "optimization-barrier"
        | "domain"
        | "iota" => 0,
        opcode if is_control(opcode) || opcode.ends_with("-done") => 0,
        "dynamic-slice" | "slice" | "gather" => 2 * result,
        "dynamic-update-slice" => 2 * operand(1),
        "scatter" => 3 * operand(2),
        // Its result holds the operands too.
        opcode if opcode.ends_with("-start") => result,
        _ => result + i.operands.iter().map(|name| size(names, name)).sum::<usize>(),
    }
}

/// What a fusion touches: of an operand that it takes slices of, the slices; of a result that it changes a slice of, that.
fn fusion(i: &HloInstruction, names: &ByName<'_>, inside: &ByName<'_>, root: &HloInstruction) -> usize {
    let mut sum = written(root, inside);
    for parameter in inside.values().filter(|p| p.opcode == "parameter") {
        let whole = parameter
            .parameter_number
            .and_then(|at| i.operands.get(usize::try_from(at).ok()?))
            .map_or(0, |name| size(names, name));
        sum += read(parameter, inside, whole);
    }
    sum
}

/// What is read of a value, of which `whole` bytes are there.
fn read(value: &HloInstruction, inside: &ByName<'_>, whole: usize) -> usize {
    let mut sum = 0usize;
    for user in inside.values().filter(|u| u.operands.contains(&value.name)) {
        let first = user.operands.first() == Some(&value.name);
        sum += match user.opcode.as_str() {
            "dynamic-slice" | "slice" | "gather" if first => bytes(&user.shapes),
            "dynamic-update-slice" if first => 0,
            "bitcast" | "get-tuple-element" => read(user, inside, whole),
            _ => whole,
        };
    }
    sum.min(whole)
}

fn written(root: &HloInstruction, inside: &ByName<'_>) -> usize {
    let operand = |at: usize| root.operands.get(at).and_then(|name| inside.get(name.as_str()));
    match root.opcode.as_str() {
        "tuple" => root.operands.iter().filter_map(|name| inside.get(name.as_str())).map(|i| written(i, inside)).sum(),
        "dynamic-update-slice" => operand(1).map_or(0, |update| bytes(&update.shapes)),
        "bitcast" => operand(0).map_or(0, |value| written(value, inside)),
        _ => bytes(&root.shapes),
    }
}
