//! Trip counts of the loops of an optimized program.
//!
//! Some plugins write them (`known_trip_count`). For others (libtpu 0.0.52), the count is derived from the loop: the
//! element of the state that the condition compares, its initial value, the increment in the body, and the limit.

use std::collections::HashMap;

use super::{InstructionProto, ModuleProto};

/// The instructions and computations of a module, by id.
pub(super) struct Loops<'a> {
    instructions: HashMap<i64, &'a InstructionProto>,
    /// The root of each computation.
    roots: HashMap<i64, i64>,
}

/// An integer in a loop: an element of its state, if any, plus a constant.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Number {
    element: Option<i64>,
    offset: i64,
}

/// The meaning of a computation's parameters.
enum Scope<'s> {
    /// The state of a loop.
    Loop,
    /// The operands of the calling instruction, in its scope.
    Call(&'s InstructionProto, &'s Scope<'s>),
    /// Unknown.
    Outside,
}

/// The longest chain of copies and calls that is followed.
const DEPTH: usize = 64;

impl<'a> Loops<'a> {
    pub fn new(module: &'a ModuleProto) -> Loops<'a> {
        let instructions = module.computations.iter().flat_map(|c| &c.instructions);
        Loops {
            instructions: instructions.map(|i| (i.id, i)).collect(),
            roots: module.computations.iter().map(|c| (c.id, c.root_id)).collect(),
        }
    }

    /// The trip count of this `while`, if it is known at compile time.
    pub fn trip_count(&self, instruction: &InstructionProto) -> Option<u64> {
        if instruction.opcode != "while" {
            return None;
        }
        known_trip_count(&instruction.backend_config).or_else(|| self.derived_trip_count(instruction))
    }

    fn derived_trip_count(&self, instruction: &InstructionProto) -> Option<u64> {
        let [body, condition] = instruction.called_computation_ids[..] else { return None };
        let (direction, left, right) = self.comparison(*self.roots.get(&condition)?, &Scope::Loop, DEPTH)?;
        // The body changes the counter. The limit may also be an element of the state, which the body leaves unchanged.
        let increments = (self.increment(left, body)?, self.increment(right, body)?);
        let initial_state = *instruction.operand_ids.first()?;
        let (left, right) = (self.initial(left, initial_state)?, self.initial(right, initial_state)?);
        match increments {
            (increment, 0) if increment != 0 => trips(left, increment, right, direction),
            (0, increment) if increment != 0 => trips(right, increment, left, flipped(direction)?),
            _ => None,
        }
    }

    /// The amount that an iteration of the body adds to a number.
    fn increment(&self, number: Number, body: i64) -> Option<i64> {
        let Some(k) = number.element else { return Some(0) };
        let updated = self.number(*self.roots.get(&body)?, &mut vec![k], &Scope::Loop, DEPTH)?;
        (updated.element == Some(k)).then_some(updated.offset)
    }

    /// The value of a number before the first iteration.
    fn initial(&self, number: Number, initial_state: i64) -> Option<i64> {
        let Some(k) = number.element else { return Some(number.offset) };
        let initial = self.number(initial_state, &mut vec![k], &Scope::Outside, DEPTH)?;
        initial.element.is_none().then(|| initial.offset.checked_add(number.offset))?
    }

    /// Returns the comparison that a condition computes: its direction and its operands.
    fn comparison(&self, id: i64, scope: &Scope, depth: usize) -> Option<(&'a str, Number, Number)> {
        let depth = depth.checked_sub(1)?;
        let instruction = *self.instructions.get(&id)?;
        match instruction.opcode.as_str() {
            "compare" => {
                let (left, right) = self.operand_pair(instruction, scope, depth)?;
                Some((&instruction.comparison_direction, left, right))
            }
            "copy" | "bitcast" | "convert" => self.comparison(*instruction.operand_ids.first()?, scope, depth),
            "fusion" | "call" => {
                let root = *self.roots.get(instruction.called_computation_ids.first()?)?;
                self.comparison(root, &Scope::Call(instruction, scope), depth)
            }
            _ => None,
        }
    }

    /// Returns the values of the two operands of an instruction.
    fn operand_pair(&self, instruction: &InstructionProto, scope: &Scope, depth: usize) -> Option<(Number, Number)> {
        let [left, right] = instruction.operand_ids[..] else { return None };
        let left_number = self.number(left, &mut Vec::new(), scope, depth)?;
        Some((left_number, self.number(right, &mut Vec::new(), scope, depth)?))
    }

    /// Returns the value of an instruction, or of the element of its tuple that `path` selects, innermost index first.
    ///
    /// It follows copies, tuples and calls up to parameters, and additions and subtractions of constants. Other
    /// instructions have no known value. `depth` limits the recursion, because a damaged module can contain cycles.
    fn number(&self, id: i64, path: &mut Vec<i64>, scope: &Scope, depth: usize) -> Option<Number> {
        let depth = depth.checked_sub(1)?;
        let instruction = *self.instructions.get(&id)?;
        let operands = &instruction.operand_ids;
        match instruction.opcode.as_str() {
            "constant" if path.is_empty() => {
                Some(Number { element: None, offset: instruction.literal.as_ref()?.int()? })
            }
            "copy" | "bitcast" | "convert" | "reshape" | "copy-start" | "copy-done" | "optimization-barrier" => {
                self.number(*operands.first()?, path, scope, depth)
            }
            "get-tuple-element" => {
                path.push(instruction.tuple_index);
                self.number(*operands.first()?, path, scope, depth)
            }
            "tuple" => {
                let index = usize::try_from(path.pop()?).ok()?;
                self.number(*operands.get(index)?, path, scope, depth)
            }
            "parameter" => match scope {
                Scope::Loop => match path[..] {
                    [element] => Some(Number { element: Some(element), offset: 0 }),
                    _ => None,
                },
                Scope::Call(caller, around) => {
                    let argument = caller.operand_ids.get(usize::try_from(instruction.parameter_number).ok()?)?;
                    self.number(*argument, path, around, depth)
                }
                Scope::Outside => None,
            },
            "fusion" | "call" => {
                let root = *self.roots.get(instruction.called_computation_ids.first()?)?;
                self.number(root, path, &Scope::Call(instruction, scope), depth)
            }
            // Arithmetic is on scalars, so a path into it is invalid.
            "add" if path.is_empty() => {
                let (a, b) = self.operand_pair(instruction, scope, depth)?;
                let offset = a.offset.checked_add(b.offset)?;
                match (a.element, b.element) {
                    (Some(_), Some(_)) => None,
                    (element, None) | (None, element) => Some(Number { element, offset }),
                }
            }
            "subtract" if path.is_empty() => {
                let (a, b) = self.operand_pair(instruction, scope, depth)?;
                let offset = a.offset.checked_sub(b.offset)?;
                b.element.is_none().then_some(Number { element: a.element, offset })
            }
            _ => None,
        }
    }
}

/// The count that the plugin wrote: `{"known_trip_count":{"n":"80"},…}`.
fn known_trip_count(backend_config: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(backend_config).ok()?;
    let (_, after) = text.split_once("\"known_trip_count\"")?;
    let (inside, _) = after.split_once('}')?;
    let (_, number) = inside.split_once("\"n\"")?;
    number.trim_matches(|c: char| c == ':' || c == '"' || c.is_whitespace()).parse().ok()
}

/// The direction after exchanging the sides of a comparison.
fn flipped(direction: &str) -> Option<&'static str> {
    Some(match direction {
        "LT" => "GT",
        "LE" => "GE",
        "GT" => "LT",
        "GE" => "LE",
        "NE" => "NE",
        _ => return None,
    })
}

/// The number of values from `start`, in steps of `increment`, that satisfy the comparison with the limit.
fn trips(start: i64, increment: i64, limit: i64, direction: &str) -> Option<u64> {
    let distance = i128::from(limit) - i128::from(start);
    let increment = i128::from(increment);
    // A loop that counts down is mirrored.
    let (distance, increment, direction) =
        if increment > 0 { (distance, increment, direction) } else { (-distance, -increment, flipped(direction)?) };
    let count = match direction {
        "LT" => (distance.max(0) + increment - 1) / increment,
        "LE" if distance < 0 => 0,
        "LE" => distance / increment + 1,
        "NE" if distance >= 0 && distance % increment == 0 => distance / increment,
        _ => return None,
    };
    u64::try_from(count).ok()
}

#[cfg(test)]
mod tests {
    use super::super::{ComputationProto, LiteralProto};
    use super::*;

    /// An instruction with its id, operation and operands.
    fn op(id: i64, opcode: &str, operands: &[i64]) -> InstructionProto {
        InstructionProto { id, opcode: opcode.to_owned(), operand_ids: operands.to_vec(), ..Default::default() }
    }

    fn constant(id: i64, value: i32) -> InstructionProto {
        InstructionProto {
            literal: Some(LiteralProto { s32s: vec![value], ..Default::default() }),
            ..op(id, "constant", &[])
        }
    }

    fn element(id: i64, of: i64, tuple_index: i64) -> InstructionProto {
        InstructionProto { tuple_index, ..op(id, "get-tuple-element", &[of]) }
    }

    fn compare(id: i64, operands: &[i64], direction: &str) -> InstructionProto {
        InstructionProto { comparison_direction: direction.to_owned(), ..op(id, "compare", operands) }
    }

    fn calling(id: i64, opcode: &str, operands: &[i64], called: &[i64]) -> InstructionProto {
        InstructionProto { called_computation_ids: called.to_vec(), ..op(id, opcode, operands) }
    }

    fn computation(id: i64, instructions: Vec<InstructionProto>) -> ComputationProto {
        let root_id = instructions.last().map_or(0, |i| i.id);
        ComputationProto { id, root_id, instructions, ..Default::default() }
    }

    /// The trip count of `while i < limit { i += by }` from `start`. The limit is part of the loop's state, and a copy
    /// and a fusion are between the instructions that the count depends on.
    fn counted(start: i32, by: i32, limit: i32, direction: &str, sides: [i64; 2]) -> Option<u64> {
        // The increment is computed in a fusion (1), and the limit is an element of the loop's state. Computations 2
        // and 3 are body and condition, 4 is the entry.
        let module = ModuleProto {
            computations: vec![
                computation(1, vec![op(10, "parameter", &[]), constant(11, by), op(12, "add", &[10, 11])]),
                computation(
                    2,
                    vec![
                        op(20, "parameter", &[]),
                        element(21, 20, 0),
                        calling(22, "fusion", &[21], &[1]),
                        element(23, 20, 1),
                        op(24, "copy", &[23]),
                        op(25, "tuple", &[22, 24]),
                    ],
                ),
                computation(
                    3,
                    vec![
                        op(30, "parameter", &[]),
                        element(31, 30, 0),
                        element(32, 30, 1),
                        compare(33, &sides.map(|side| 31 + side), direction),
                    ],
                ),
                computation(
                    4,
                    vec![
                        constant(40, start),
                        constant(41, limit),
                        op(42, "tuple", &[40, 41]),
                        calling(43, "while", &[42], &[2, 3]),
                    ],
                ),
            ],
            ..Default::default()
        };
        let loops = Loops::new(&module);
        loops.trip_count(loops.instructions[&43])
    }

    #[test]
    fn counting_loops_have_a_trip_count() {
        assert_eq!(counted(0, 1, 80, "LT", [0, 1]), Some(80));
        assert_eq!(counted(0, 1, 80, "LE", [0, 1]), Some(81));
        assert_eq!(counted(0, 3, 80, "LT", [0, 1]), Some(27));
        assert_eq!(counted(5, 5, 80, "NE", [0, 1]), Some(15));
        assert_eq!(counted(0, 1, 80, "GT", [1, 0]), Some(80));
        assert_eq!(counted(79, -1, -1, "GT", [0, 1]), Some(80));
        assert_eq!(counted(79, -1, 0, "GE", [0, 1]), Some(80));
        assert_eq!(counted(9, 1, 3, "LT", [0, 1]), Some(0));
        // Loops that never end, never begin, or have no constant step.
        assert_eq!(counted(0, 0, 80, "LT", [0, 1]), None);
        assert_eq!(counted(0, 3, 80, "NE", [0, 1]), None);
        assert_eq!(counted(0, 1, 80, "GT", [0, 1]), None);
        assert_eq!(counted(0, 1, 80, "EQ", [0, 1]), None);
    }

    #[test]
    fn the_trip_count_of_the_plugin_is_used() {
        let config = br#"{"known_init_step":{"init":"0"},"known_trip_count":{"n":"80"},"x":{"n":"3"}}"#;
        assert_eq!(known_trip_count(config), Some(80));
        assert_eq!(known_trip_count(br#"{"known_trip_count": {"n": 7}}"#), Some(7));
        assert_eq!(
            (known_trip_count(b"{}"), known_trip_count(b"\xff"), known_trip_count(br#"{"known_trip_count":{}}"#)),
            (None, None, None)
        );
    }

    #[test]
    fn an_invalid_module_has_no_trip_count() {
        // An instruction that is its own operand, and a loop with missing computations.
        let around = op(1, "copy", &[1]);
        let lost = calling(2, "while", &[1], &[7, 8]);
        let odd = calling(3, "while", &[1], &[9, 9]);
        let module = ModuleProto { computations: vec![computation(9, vec![lost, odd, around])], ..Default::default() };
        let loops = Loops::new(&module);
        assert_eq!(loops.trip_count(loops.instructions[&2]), None);
        assert_eq!(loops.trip_count(loops.instructions[&3]), None);
    }
}
