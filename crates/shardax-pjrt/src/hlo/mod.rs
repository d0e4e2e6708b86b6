//! Decoding of the optimized program: the fields of XLA's `HloModuleProto` that shardax uses.

mod groups;
pub(crate) mod localize;
mod matmul_flops;
mod summary;
mod trips;
pub(crate) mod wire;

use std::collections::HashMap;
use std::fmt;

use prost::Message;

use crate::element::{ElementType, ShapeText};
use crate::error::{Code, Error, Result};
use crate::layout::Layout;
use groups::{DeviceListProto, GroupProto, IotaGroupsProto, MeshGroupsProto};
use matmul_flops::{ConvolutionDimensionsProto, DotDimensionsProto, WindowProto};
pub(crate) use summary::{Shardings, Summary, outline};
use trips::Loops;

/// One instruction of an optimized program.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HloInstruction {
    /// The name of its computation.
    pub computation: String,
    /// Its computation is the entry computation.
    pub in_entry: bool,
    /// The name by which operands refer to it.
    pub name: String,
    /// HLO's name of the operation, such as `all-reduce`, `fusion`, `custom-call`.
    pub opcode: String,
    /// Shapes of the result on one device: one, or one for each leaf of a tuple. Tokens and other opaque types have
    /// none.
    pub shapes: Vec<(ElementType, Vec<i64>)>,
    /// For collectives: the groups of partitions that communicate. Empty means one group of all.
    pub replica_groups: Vec<Vec<i64>>,
    /// For `collective-permute`: the pairs of source and target.
    pub source_target_pairs: Vec<(i64, i64)>,
    /// For collectives: the channel that all participants share.
    pub channel_id: Option<i64>,
    /// Names of the operands.
    pub operands: Vec<String>,
    /// Names of the called computations: body and condition of a loop, branches of a conditional, a reducer.
    pub calls: Vec<String>,
    /// For `while`: how often the body runs, if that is known at compile time.
    pub trip_count: Option<u64>,
    /// For `parameter`: its number in the computation.
    pub parameter_number: Option<i64>,
    /// For `custom-call`: the name of the called function.
    pub custom_call_target: Option<String>,
    /// The floating-point operations of one run on one device, counting a multiplication and an addition as two. They
    /// are known for matmuls and convolutions, including calls of cuBLAS, cuDNN and kernels, and 0 for other
    /// instructions. The operations of a fusion are counted in its computation.
    pub matmul_flops: f64,
    /// The name in the program: the scopes around the original operation. Empty if unknown.
    pub op_name: String,
    /// The file and line of the original operation.
    pub source: Option<(String, u32)>,
}

impl HloInstruction {
    /// Returns true if devices exchange data in this instruction.
    pub fn is_collective(&self) -> bool {
        is_collective(&self.opcode)
    }
}

impl fmt::Display for HloInstruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // HLO's text format, without the parts that are empty.
        write!(f, "{} = ", self.name)?;
        for (i, (ty, dims)) in self.shapes.iter().enumerate() {
            write!(f, "{}{}", if i > 0 { "," } else { "" }, ShapeText(*ty, dims))?;
        }
        write!(f, " {}({})", self.opcode, self.operands.join(", "))?;
        if !self.calls.is_empty() {
            write!(f, ", calls={{{}}}", self.calls.join(", "))?;
        }
        if let Some(count) = self.trip_count {
            write!(f, ", trip_count={count}")?;
        }
        if let Some(target) = &self.custom_call_target {
            write!(f, ", custom_call_target={target:?}")?;
        }
        if !self.replica_groups.is_empty() {
            write!(f, ", replica_groups={:?}", self.replica_groups)?;
        }
        if !self.source_target_pairs.is_empty() {
            write!(f, ", source_target_pairs={:?}", self.source_target_pairs)?;
        }
        if !self.op_name.is_empty() {
            write!(f, ", metadata={{op_name={:?}", self.op_name)?;
            if let Some((file, line)) = &self.source {
                write!(f, " source_file={file:?} source_line={line}")?;
            }
            f.write_str("}")?;
        }
        Ok(())
    }
}

fn is_collective(opcode: &str) -> bool {
    let base = opcode.strip_suffix("-start").or_else(|| opcode.strip_suffix("-done")).unwrap_or(opcode);
    matches!(
        base,
        "all-reduce"
            | "all-gather"
            | "all-to-all"
            | "ragged-all-to-all"
            | "reduce-scatter"
            | "collective-permute"
            | "collective-broadcast"
            | "send"
            | "recv"
    )
}

/// The module inside a `HloModuleProtoWithConfig`.
pub(crate) fn without_config(bytes: Vec<u8>) -> Result<Vec<u8>> {
    Ok(WithConfigProto::decode(bytes.as_slice()).map_err(bad_proto)?.module)
}

/// All instructions of a module, computation by computation. A scheduled computation is listed in the order of its
/// schedule.
pub(crate) fn instructions(module: &[u8]) -> Result<Vec<HloInstruction>> {
    let module = ModuleProto::decode(module).map_err(bad_proto)?;
    let mut instructions = Vec::new();
    let loops = Loops::new(&module);
    let computations: HashMap<i64, &str> = module.computations.iter().map(|c| (c.id, c.name.as_str())).collect();
    for computation in &module.computations {
        let schedule = module.schedule.as_ref().and_then(|s| s.sequences.get(&computation.id));
        // Protos refer to operands and computations by id, and an `HloInstruction` by name.
        let names: HashMap<i64, &str> = computation.instructions.iter().map(|i| (i.id, i.name.as_str())).collect();
        let by_id: HashMap<i64, &InstructionProto> = computation.instructions.iter().map(|i| (i.id, i)).collect();
        let mut sequence: Vec<&InstructionProto> = computation.instructions.iter().collect();
        if let Some(schedule) = schedule {
            let positions: HashMap<i64, usize> = schedule.ids.iter().enumerate().map(|(k, id)| (*id, k)).collect();
            sequence.sort_by_key(|i| positions.get(&i.id).copied().unwrap_or(usize::MAX));
        }
        for proto in sequence {
            let mut shapes = Vec::new();
            if let Some(shape) = &proto.shape {
                shape.leaves(&mut shapes);
            }
            instructions.push(HloInstruction {
                computation: computation.name.clone(),
                in_entry: computation.id == module.entry_computation_id,
                name: proto.name.clone(),
                opcode: proto.opcode.clone(),
                shapes,
                replica_groups: proto.groups(),
                source_target_pairs: proto.source_target_pairs.iter().map(|p| (p.source, p.target)).collect(),
                channel_id: (proto.channel_id > 0).then_some(proto.channel_id),
                operands: proto.operand_ids.iter().map(|id| name_or_id(&names, *id)).collect(),
                calls: proto.called_computation_ids.iter().map(|id| name_or_id(&computations, *id)).collect(),
                trip_count: loops.trip_count(proto),
                parameter_number: (proto.opcode == "parameter").then_some(proto.parameter_number),
                custom_call_target: Some(proto.custom_call_target.clone()).filter(|target| !target.is_empty()),
                matmul_flops: matmul_flops::matmul_flops(proto, &by_id),
                op_name: proto.metadata.as_ref().map(|m| m.op_name.clone()).unwrap_or_default(),
                source: proto.metadata.as_ref().and_then(|m| m.source(&module.frames)),
            });
        }
    }
    Ok(instructions)
}

/// The name with this id, or the id as text if a plugin omits the name's instruction.
fn name_or_id(names: &HashMap<i64, &str>, id: i64) -> String {
    names.get(&id).map_or_else(|| format!("#{id}"), |name| (*name).to_owned())
}

fn bad_proto(error: prost::DecodeError) -> Error {
    Error::new(Code::Internal, format!("the plugin's optimized program cannot be decoded: {error}"))
}

#[derive(Clone, PartialEq, Message)]
struct WithConfigProto {
    #[prost(bytes = "vec", tag = "1")]
    module: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct ShapeProto {
    #[prost(int32, tag = "2")]
    element_type: i32,
    #[prost(int64, repeated, tag = "3")]
    dimensions: Vec<i64>,
    #[prost(message, repeated, tag = "4")]
    tuple_shapes: Vec<ShapeProto>,
    #[prost(message, optional, tag = "5")]
    layout: Option<LayoutProto>,
}

impl ShapeProto {
    fn leaves(&self, found: &mut Vec<(ElementType, Vec<i64>)>) {
        for shape in &self.tuple_shapes {
            shape.leaves(found);
        }
        if let Some(ty) = ElementType::from_xla(self.element_type) {
            found.push((ty, self.dimensions.clone()));
        }
    }

    /// The layouts of the leaves, in the order of [`leaves`](Self::leaves).
    fn layouts(&self, found: &mut Vec<Layout>) {
        for shape in &self.tuple_shapes {
            shape.layouts(found);
        }
        if ElementType::from_xla(self.element_type).is_some() {
            found.push(self.memory());
        }
    }

    fn memory(&self) -> Layout {
        let Some(layout) = &self.layout else { return Layout::default() };
        Layout {
            minor_to_major: layout.minor_to_major.clone(),
            tiles: layout.tiles.iter().map(|tile| tile.dimensions.clone()).collect(),
            element_bits: layout.element_size_in_bits,
        }
    }
}

#[derive(Clone, PartialEq, Message)]
struct LayoutProto {
    #[prost(int64, repeated, tag = "1")]
    minor_to_major: Vec<i64>,
    #[prost(message, repeated, tag = "6")]
    tiles: Vec<TileProto>,
    #[prost(int64, tag = "7")]
    element_size_in_bits: i64,
}

#[derive(Clone, PartialEq, Message)]
struct TileProto {
    #[prost(int64, repeated, tag = "1")]
    dimensions: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct ModuleProto {
    #[prost(message, repeated, tag = "3")]
    computations: Vec<ComputationProto>,
    #[prost(int64, tag = "6")]
    entry_computation_id: i64,
    #[prost(message, optional, tag = "7")]
    schedule: Option<ScheduleProto>,
    #[prost(message, optional, tag = "25")]
    frames: Option<FramesProto>,
}

/// The order in which the instructions of a computation run.
#[derive(Clone, PartialEq, Message)]
struct ScheduleProto {
    #[prost(map = "int64, message", tag = "1")]
    sequences: HashMap<i64, SequenceProto>,
}

#[derive(Clone, PartialEq, Message)]
struct SequenceProto {
    #[prost(int64, repeated, tag = "1")]
    ids: Vec<i64>,
}

/// Source locations, to which instructions refer by number. All numbers count from 1.
#[derive(Clone, PartialEq, Message)]
struct FramesProto {
    #[prost(string, repeated, tag = "1")]
    files: Vec<String>,
    #[prost(message, repeated, tag = "3")]
    places: Vec<PlaceProto>,
    #[prost(message, repeated, tag = "4")]
    frames: Vec<FrameProto>,
}

#[derive(Clone, PartialEq, Message)]
struct PlaceProto {
    #[prost(int32, tag = "1")]
    file: i32,
    #[prost(int32, tag = "3")]
    line: i32,
}

#[derive(Clone, PartialEq, Message)]
struct FrameProto {
    #[prost(int32, tag = "1")]
    place: i32,
}

#[derive(Clone, PartialEq, Message)]
struct MetadataProto {
    #[prost(string, tag = "2")]
    op_name: String,
    #[prost(string, tag = "3")]
    source_file: String,
    #[prost(int32, tag = "4")]
    source_line: i32,
    #[prost(int32, tag = "15")]
    frame: i32,
}

impl MetadataProto {
    /// The file and line, stored in place or as a frame number.
    fn source(&self, frames: &Option<FramesProto>) -> Option<(String, u32)> {
        fn nth<T>(list: &[T], number: i32) -> Option<&T> {
            list.get(usize::try_from(number).ok()?.checked_sub(1)?)
        }
        if !self.source_file.is_empty() {
            return Some((self.source_file.clone(), u32::try_from(self.source_line).ok()?));
        }
        let frames = frames.as_ref()?;
        let place = nth(&frames.places, nth(&frames.frames, self.frame)?.place)?;
        Some((nth(&frames.files, place.file)?.clone(), u32::try_from(place.line).ok()?))
    }
}

#[derive(Clone, PartialEq, Message)]
struct ComputationProto {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, repeated, tag = "2")]
    instructions: Vec<InstructionProto>,
    #[prost(int64, tag = "5")]
    id: i64,
    #[prost(int64, tag = "6")]
    root_id: i64,
}

#[derive(Clone, PartialEq, Message)]
struct InstructionProto {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    opcode: String,
    #[prost(message, optional, tag = "3")]
    shape: Option<ShapeProto>,
    #[prost(message, optional, tag = "7")]
    metadata: Option<MetadataProto>,
    #[prost(message, optional, tag = "8")]
    literal: Option<LiteralProto>,
    #[prost(int64, tag = "9")]
    parameter_number: i64,
    #[prost(int64, tag = "13")]
    tuple_index: i64,
    #[prost(message, optional, tag = "15")]
    window: Option<WindowProto>,
    #[prost(message, optional, tag = "16")]
    convolution_dimensions: Option<ConvolutionDimensionsProto>,
    #[prost(int64, tag = "26")]
    channel_id: i64,
    #[prost(string, tag = "28")]
    custom_call_target: String,
    #[prost(message, optional, tag = "30")]
    dot_dimensions: Option<DotDimensionsProto>,
    #[prost(int64, tag = "35")]
    id: i64,
    #[prost(int64, repeated, tag = "36")]
    operand_ids: Vec<i64>,
    #[prost(int64, repeated, tag = "38")]
    called_computation_ids: Vec<i64>,
    #[prost(bytes = "vec", tag = "43")]
    backend_config: Vec<u8>,
    /// The form before `device_list`.
    #[prost(message, repeated, tag = "49")]
    replica_groups: Vec<GroupProto>,
    #[prost(message, repeated, tag = "52")]
    source_target_pairs: Vec<PairProto>,
    #[prost(string, tag = "63")]
    comparison_direction: String,
    #[prost(message, optional, tag = "68")]
    frontend_attributes: Option<FrontendAttributesProto>,
    #[prost(message, optional, tag = "87")]
    device_list: Option<DeviceListProto>,
    #[prost(message, optional, tag = "92")]
    iota_groups: Option<IotaGroupsProto>,
    #[prost(message, optional, tag = "93")]
    mesh_groups: Option<MeshGroupsProto>,
}

/// Attributes that the frontend added and the compiler preserves.
#[derive(Clone, PartialEq, Message)]
struct FrontendAttributesProto {
    #[prost(map = "string, string", tag = "1")]
    attributes: HashMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
struct PairProto {
    #[prost(int64, tag = "1")]
    source: i64,
    #[prost(int64, tag = "2")]
    target: i64,
}

/// The integers of a constant, for the trip counts of loops.
#[derive(Clone, PartialEq, Message)]
struct LiteralProto {
    #[prost(int32, repeated, tag = "4")]
    s32s: Vec<i32>,
    #[prost(int64, repeated, tag = "5")]
    s64s: Vec<i64>,
    #[prost(uint32, repeated, tag = "6")]
    u32s: Vec<u32>,
    #[prost(uint64, repeated, tag = "7")]
    u64s: Vec<u64>,
}

impl LiteralProto {
    /// The value of a constant of one integer.
    fn int(&self) -> Option<i64> {
        match (&self.s32s[..], &self.s64s[..], &self.u32s[..], &self.u64s[..]) {
            ([n], [], [], []) => Some(i64::from(*n)),
            ([], [n], [], []) => Some(*n),
            ([], [], [n], []) => Some(i64::from(*n)),
            ([], [], [], [n]) => i64::try_from(*n).ok(),
            _ => None,
        }
    }
}
