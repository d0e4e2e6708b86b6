//! The work that a device does between the start and the end of its asynchronous collectives, according to the
//! program's schedule.

use std::collections::HashMap;

use shardax_pjrt::HloInstruction;

use super::traffic::Traffic;

/// The work of a device between the start and the end of a collective, per execution.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Between {
    /// FLOPs of matmuls.
    pub flops: f64,
    /// Bytes of memory traffic.
    pub bytes: usize,
}

/// The work during each asynchronous collective of a program. `started` finds it by the computation and the name of the
/// instruction that starts the collective, `of_called` by the computation that this instruction calls.
pub(super) struct Overlap<'a> {
    started: HashMap<(&'a str, &'a str), Between>,
    of_called: HashMap<&'a str, Between>,
}

/// Returns `true` if an instruction starts a collective, in the fusion of a TPU or by itself.
fn starts(i: &HloInstruction, marks: &HashMap<&str, &str>) -> bool {
    let is_async = i.opcode.ends_with("-start") && (i.is_collective() || i.opcode == "async-start");
    is_async || i.calls.iter().any(|called| marks.get(called.as_str()) == Some(&"AsyncCollectiveStart"))
}

fn ends(i: &HloInstruction, marks: &HashMap<&str, &str>) -> bool {
    let is_async = i.opcode.ends_with("-done") && (i.is_collective() || i.opcode == "async-done");
    is_async || i.calls.iter().any(|called| marks.get(called.as_str()) == Some(&"AsyncCollectiveDone"))
}

impl<'a> Overlap<'a> {
    pub fn of(instructions: &'a [HloInstruction]) -> Self {
        // The custom calls by which TPUs mark the fusions that start collectives and wait for them.
        let marks: HashMap<&str, &str> = instructions
            .iter()
            .filter_map(|i| Some((i.computation.as_str(), i.custom_call_target.as_deref()?)))
            .filter(|(_, target)| target.starts_with("AsyncCollective"))
            .collect();
        let traffic = Traffic::of(instructions);
        let mut overlap = Overlap { started: HashMap::new(), of_called: HashMap::new() };
        for (name, sequence) in traffic.in_order() {
            // The total work before each instruction, and the start that its value depends on.
            let mut before = Between::default();
            let mut open: HashMap<&str, (&HloInstruction, Between)> = HashMap::new();
            for &i in sequence {
                let start = i.operands.iter().find_map(|operand| open.get(operand.as_str()).copied());
                if starts(i, &marks) {
                    open.insert(&i.name, (i, before));
                    continue;
                }
                if let Some((start, then)) = start {
                    if ends(i, &marks) {
                        let between = Between { flops: before.flops - then.flops, bytes: before.bytes - then.bytes };
                        overlap.started.insert((name, &start.name), between);
                        overlap.of_called.extend(start.calls.iter().map(|called| (called.as_str(), between)));
                        continue;
                    }
                    // The instruction may extract a part of the start's result, or do work that passes this result on.
                    open.insert(&i.name, (start, then));
                }
                before.flops += traffic.flops(i);
                before.bytes += traffic.bytes(i);
            }
        }
        overlap
    }

    /// Returns the work that a collective overlaps with each time; `None` if it is synchronous.
    pub fn with(&self, collective: &'a HloInstruction) -> Option<Between> {
        let instruction = (collective.computation.as_str(), collective.name.as_str());
        self.started.get(&instruction).or_else(|| self.of_called.get(collective.computation.as_str())).copied()
    }
}

#[cfg(test)]
mod tests {
    use shardax_pjrt::ElementType;

    use super::*;

    fn instruction(name: &str, opcode: &str, operands: &[&str]) -> HloInstruction {
        HloInstruction {
            computation: "main".to_owned(),
            in_entry: true,
            name: name.to_owned(),
            opcode: opcode.to_owned(),
            shapes: vec![(ElementType::F32, vec![8])],
            operands: operands.iter().map(|&name| name.to_owned()).collect(),
            matmul_flops: if opcode == "dot" { 100.0 } else { 0.0 },
            ..Default::default()
        }
    }

    #[test]
    fn work_between_start_and_end_counts() {
        let program = [
            instruction("x", "parameter", &[]),
            instruction("first", "dot", &["x", "x"]),
            instruction("start", "all-gather-start", &["x"]),
            instruction("second", "dot", &["x", "x"]),
            instruction("sum", "add", &["second", "x"]),
            instruction("done", "all-gather-done", &["start"]),
            instruction("third", "dot", &["done", "x"]),
            instruction("alone", "all-reduce", &["x"]),
        ];
        let overlap = Overlap::of(&program);
        assert_eq!(overlap.with(&program[2]), Some(Between { flops: 100.0, bytes: 2 * 3 * 32 }));
        assert_eq!(overlap.with(&program[7]), None);
    }
}
