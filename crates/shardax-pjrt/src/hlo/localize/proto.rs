//! The edited parts of a module: computations, instructions and shapes, with the fields of their messages.

use std::borrow::Cow;
use std::collections::HashSet;

use super::super::wire::Wire;
use crate::element::ElementType;
use crate::error::{Code, Error, Result};
use crate::partition::STOP;

/// Fields of XLA's `HloModuleProto`, `HloComputationProto` and `HloInstructionProto`.
pub(super) mod module {
    pub const COMPUTATIONS: u32 = 3;
    pub const PROGRAM_SHAPE: u32 = 4;
    pub const ENTRY: u32 = 6;
    /// Shardings of the whole program, and its device assignment.
    pub const PARTITIONING: [u32; 4] = [12, 14, 15, 16];
}
pub(super) mod computation {
    pub const INSTRUCTIONS: u32 = 2;
    pub const PROGRAM_SHAPE: u32 = 4;
    pub const ID: u32 = 5;
    pub const ROOT: u32 = 6;
}
pub(super) mod instruction {
    pub const NAME: u32 = 1;
    pub const OPCODE: u32 = 2;
    pub const SHAPE: u32 = 3;
    pub const LITERAL: u32 = 8;
    pub const TUPLE_INDEX: u32 = 13;
    pub const DIMENSIONS: u32 = 14;
    pub const SLICE: u32 = 17;
    pub const CHANNEL: u32 = 26;
    pub const TARGET: u32 = 28;
    pub const ID: u32 = 35;
    pub const OPERANDS: u32 = 36;
    pub const CONTROL: u32 = 37;
    pub const CALLS: u32 = 38;
    pub const SHARDING: u32 = 40;
    pub const CONFIG: u32 = 43;
    pub const GROUPS: u32 = 49;
    pub const PAIRS: u32 = 52;
    pub const CONSTRAIN_LAYOUT: u32 = 56;
    pub const OPERAND_LAYOUTS: u32 = 57;
    pub const SIDE_EFFECT: u32 = 65;
    pub const GLOBAL_IDS: u32 = 71;
    pub const API_VERSION: u32 = 77;
    pub const DEVICE_LIST: u32 = 87;
}
/// Fields of `ProgramShapeProto` and `ShapeProto`.
pub(super) const RESULT: u32 = 2;
pub(super) const ELEMENTS: u32 = 4;

pub(super) const U32: i32 = 8;
pub(super) const F32: i32 = 11;
pub(super) const BF16: i32 = 16;
pub(super) const TUPLE: i32 = 13;

/// Instructions that run other computations once or more. The calls in each computation are ordered separately.
pub(super) const CONTROL_FLOW: &[&str] = &["while", "conditional", "call"];

pub(super) struct Computation<'a> {
    pub(super) wire: Wire<'a>,
    pub(super) id: i64,
    pub(super) root: i64,
    pub(super) instructions: Vec<Instruction<'a>>,
}

pub(super) struct Instruction<'a> {
    pub(super) wire: Wire<'a>,
    pub(super) id: i64,
    pub(super) opcode: String,
    pub(super) operands: Vec<i64>,
    pub(super) control: Vec<i64>,
    pub(super) calls: Vec<i64>,
    pub(super) shape: Shape,
}

impl<'a> Computation<'a> {
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Computation<'a>> {
        let mut wire = Wire::parse(bytes)?;
        let instructions =
            wire.take_bytes(computation::INSTRUCTIONS).into_iter().map(Instruction::parse).collect::<Result<_>>()?;
        let (id, root) = (wire.int(computation::ID), wire.int(computation::ROOT));
        Ok(Computation { wire, id, root, instructions })
    }

    pub(super) fn root_opcode(&self) -> String {
        self.instructions.iter().find(|i| i.id == self.root).map_or(String::new(), |i| i.opcode.clone())
    }

    /// Removes the additional result that stopped XLA after partitioning (see [`crate::partition`]).
    pub(super) fn drop_stop(&mut self) -> Result<()> {
        use instruction::*;
        let stop = self.instructions.iter().find(|i| i.wire.text(TARGET) == STOP);
        let stop = stop.ok_or_else(|| unexpected_program("lacks the result that was added to stop the compiler"))?.id;
        let mut removed = HashSet::from([stop]);
        // The values that the partitioner derived from it, up to the root. Operands come before their users.
        for i in &self.instructions {
            if i.id != self.root && i.operands.iter().any(|o| removed.contains(o)) {
                removed.insert(i.id);
            }
        }
        let root_id = self.root;
        let root =
            self.instructions.iter_mut().find(|i| i.id == root_id).ok_or_else(|| unexpected_program("has no root"))?;
        if root.opcode != "tuple" || root.operands.last().is_none_or(|last| !removed.contains(last)) {
            // It was the only result.
            root.opcode = "tuple".into();
            root.wire.remove(&[TARGET, CONFIG, API_VERSION, SIDE_EFFECT]);
            root.wire.set_bytes(OPCODE, *b"tuple");
            root.shape = Shape::tuple(vec![Shape::scalar(U32)]);
            root.operands = vec![stop];
            root.wire.set_bytes(SHAPE, root.shape.encode());
            removed.remove(&root_id);
        }
        root.operands.pop();
        root.shape.elements.pop();
        let shape = root.wire.bytes(SHAPE).map(without_last_element).transpose()?.unwrap_or_default();
        root.wire.set_bytes(SHAPE, shape);
        root.wire.set_ints(OPERANDS, &root.operands);
        self.instructions.retain(|i| !removed.contains(&i.id));
        let shape = self.wire.bytes(computation::PROGRAM_SHAPE).map(without_last_result).transpose()?;
        if let Some(shape) = shape {
            self.wire.set_bytes(computation::PROGRAM_SHAPE, shape);
        }
        Ok(())
    }
}

impl<'a> Instruction<'a> {
    pub(super) fn parse(bytes: Cow<'a, [u8]>) -> Result<Instruction<'a>> {
        use instruction::*;
        let wire = Wire::parse_cow(bytes)?;
        Ok(Instruction {
            id: wire.int(ID),
            opcode: wire.text(OPCODE).to_owned(),
            operands: wire.ints(OPERANDS)?,
            control: wire.ints(CONTROL)?,
            calls: wire.ints(CALLS)?,
            shape: Shape::parse(wire.bytes(SHAPE).unwrap_or_default())?,
            wire,
        })
    }

    pub(super) fn is_control_flow(&self) -> bool {
        CONTROL_FLOW.contains(&self.opcode.as_str())
    }

    pub(super) fn unsupported(&self, why: &str) -> Error {
        Error::new(
            Code::Unimplemented,
            format!("{} {:?} {why} between processes", self.opcode, self.wire.text(instruction::NAME)),
        )
    }
}

/// The element type and dimensions of an array, or the elements of a tuple.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Shape {
    pub(super) ty: i32,
    pub(super) dims: Vec<i64>,
    pub(super) elements: Vec<Shape>,
    /// The major-most dimension of the layout; the others follow in order.
    major: usize,
}

impl Shape {
    pub(super) fn array(ty: i32, dims: impl Into<Vec<i64>>) -> Shape {
        Shape { ty, dims: dims.into(), elements: Vec::new(), major: 0 }
    }

    pub(super) fn scalar(ty: i32) -> Shape {
        Shape::array(ty, [])
    }

    pub(super) fn tuple(elements: Vec<Shape>) -> Shape {
        Shape { ty: TUPLE, dims: Vec::new(), elements, major: 0 }
    }

    pub(super) fn is_tuple(&self) -> bool {
        self.ty == TUPLE
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<Shape> {
        let wire = Wire::parse(bytes)?;
        let elements = wire.all_bytes(ELEMENTS).map(Shape::parse).collect::<Result<_>>()?;
        Ok(Shape { ty: wire.int(2) as i32, dims: wire.ints(3)?, elements, major: 0 })
    }

    /// The shape of result `k` of an instruction with this shape.
    pub(super) fn leaf(&self, k: usize) -> &Shape {
        if self.is_tuple() { &self.elements[k] } else { self }
    }

    /// The shape with a new first dimension of size `n`.
    pub(super) fn with_leading(&self, n: usize) -> Shape {
        let dims: Vec<i64> = [n as i64].into_iter().chain(self.dims.iter().copied()).collect();
        Shape::array(self.ty, dims)
    }

    /// The shape with this dimension major-most.
    pub(super) fn by(&self, major: usize) -> Shape {
        Shape { major, ..self.clone() }
    }

    /// The shape with `f32` instead of `bf16`.
    pub(super) fn wide(&self) -> Shape {
        Shape { ty: if self.ty == BF16 { F32 } else { self.ty }, ..self.clone() }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut wire = Wire::default();
        wire.push_int(2, self.ty.into());
        if self.is_tuple() {
            self.elements.iter().for_each(|element| wire.push_bytes(ELEMENTS, element.encode()));
            return wire.encode();
        }
        let rank = self.dims.len() as i64;
        wire.set_ints(3, &self.dims);
        let mut layout = Wire::default();
        let major = self.major as i64;
        let minor_to_major: Vec<i64> =
            (0..rank).rev().filter(|&d| d != major).chain((rank > 0).then_some(major)).collect();
        layout.set_ints(1, &minor_to_major);
        wire.push_bytes(5, layout.encode());
        // Marks every dimension as static.
        wire.set_ints(6, &vec![0; self.dims.len()]);
        wire.encode()
    }

    /// Size in bytes of an array that can be passed to a function.
    pub(super) fn size(&self) -> Option<usize> {
        let ty = ElementType::from_xla(self.ty).filter(|ty| !ty.is_sub_byte())?;
        crate::element::dense_byte_size(ty, &self.dims)
    }
}

/// The index and shape of the smallest array, which is the cheapest to pass through a call.
pub(super) fn smallest(elements: &[Shape]) -> Option<(usize, &Shape)> {
    elements.iter().enumerate().filter(|(_, e)| e.size().is_some()).min_by_key(|(_, e)| e.size())
}

pub(super) fn without_last_element(shape: &[u8]) -> Result<Vec<u8>> {
    let wire = Wire::parse(shape)?;
    let elements: Vec<Vec<u8>> = wire.all_bytes(ELEMENTS).map(<[u8]>::to_vec).collect();
    if elements.is_empty() {
        return Ok(Shape::tuple(Vec::new()).encode());
    }
    let mut edited = wire.clone();
    edited.remove(&[ELEMENTS]);
    elements[..elements.len() - 1].iter().for_each(|e| edited.push_bytes(ELEMENTS, e.clone()));
    Ok(edited.encode())
}

pub(super) fn without_last_result(program_shape: &[u8]) -> Result<Vec<u8>> {
    let mut wire = Wire::parse(program_shape)?;
    let result = without_last_element(wire.bytes(RESULT).unwrap_or_default())?;
    wire.set_bytes(RESULT, result);
    Ok(wire.encode())
}

pub(super) fn unexpected_program(what: &str) -> Error {
    Error::new(Code::Internal, format!("the partitioned program {what}"))
}
