//! The part of a program that the checks before an execution need.

use prost::Message;

use super::{ShapeProto, bad_proto, is_collective, localize};
use crate::element::ElementType;
use crate::error::Result;
use crate::layout::Layout;
use crate::sharding::{OpSharding, OpShardingProto};

/// The properties of a program that the checks before an execution need. Decoding skips all other fields of the module.
pub(crate) struct Summary {
    pub(crate) parameters: Vec<(Option<ElementType>, Vec<i64>)>,
    /// Parameters that an execution donates.
    pub(crate) donated: Vec<usize>,
    /// Devices exchange data, in collectives or through host functions.
    pub(crate) has_collectives: bool,
    /// The program calls functions that the host can register.
    pub(crate) calls_host: bool,
    /// The layout of each parameter.
    pub(crate) parameter_layouts: Vec<Layout>,
    /// The layout of each result.
    pub(crate) output_layouts: Vec<Layout>,
}

impl Summary {
    pub(crate) fn decode(module: &[u8]) -> Result<Summary> {
        let module = SummaryProto::decode(module).map_err(bad_proto)?;
        let shape = module.program_shape.unwrap_or_default();
        let parameters =
            shape.parameters.iter().map(|p| (ElementType::from_xla(p.element_type), p.dimensions.clone())).collect();
        let aliases = module.aliases.iter().flat_map(|a| &a.entries).map(|e| e.parameter_number);
        let donors = module.donors.iter().flat_map(|d| &d.entries).map(|e| e.parameter_number);
        let donated = aliases.chain(donors).filter_map(|n| usize::try_from(n).ok()).collect();
        let mut instructions = module.computations.iter().flat_map(|c| &c.instructions);
        let has_collectives = instructions.clone().any(OpcodeProto::communicates);
        let calls_host = instructions.any(OpcodeProto::calls_host);
        let parameter_layouts = shape.parameters.iter().map(ShapeProto::memory).collect();
        let mut output_layouts = Vec::new();
        if let Some(result) = &shape.result {
            result.layouts(&mut output_layouts);
        }
        Ok(Summary { parameters, donated, has_collectives, calls_host, parameter_layouts, output_layouts })
    }
}

/// The shardings that the compiler chose for the parameters and results of a program.
pub(crate) struct Shardings {
    pub(crate) parameters: Option<Vec<OpSharding>>,
    pub(crate) outputs: Option<Vec<OpSharding>>,
}

impl Shardings {
    pub(crate) fn decode(module: &[u8], num_outputs: usize) -> Result<Shardings> {
        let module = ShardingsProto::decode(module).map_err(bad_proto)?;
        let parameters: Vec<OpSharding> = module.parameters.iter().map(OpSharding::from).collect();
        let outputs = module.output.as_ref().map(|proto| {
            let sharding = OpSharding::from(proto);
            if !sharding.tuple_shardings.is_empty() { sharding.tuple_shardings } else { vec![sharding; num_outputs] }
        });
        Ok(Shardings { parameters: (!parameters.is_empty()).then_some(parameters), outputs })
    }
}

/// Returns a module with only the fields that [`Summary`] and [`Shardings`] read, which are a small part of its size.
pub(crate) fn outline(module: &[u8]) -> Result<Vec<u8>> {
    let mut summary = SummaryProto::decode(module).map_err(bad_proto)?;
    for computation in &mut summary.computations {
        computation.instructions.retain(|i| i.communicates() || i.calls_host());
    }
    summary.computations.retain(|computation| !computation.instructions.is_empty());
    let mut bytes = summary.encode_to_vec();
    // Fields of one message may follow each other in any order.
    bytes.extend(ShardingsProto::decode(module).map_err(bad_proto)?.encode_to_vec());
    Ok(bytes)
}

#[derive(Clone, PartialEq, Message)]
struct SummaryProto {
    #[prost(message, repeated, tag = "3")]
    computations: Vec<OpcodesProto>,
    #[prost(message, optional, tag = "4")]
    program_shape: Option<ProgramShapeProto>,
    #[prost(message, optional, tag = "8")]
    aliases: Option<AliasesProto>,
    #[prost(message, optional, tag = "18")]
    donors: Option<DonorsProto>,
}

#[derive(Clone, PartialEq, Message)]
struct OpcodesProto {
    #[prost(message, repeated, tag = "2")]
    instructions: Vec<OpcodeProto>,
}

#[derive(Clone, PartialEq, Message)]
struct OpcodeProto {
    #[prost(string, tag = "2")]
    opcode: String,
    #[prost(string, tag = "28")]
    custom_call_target: String,
    #[prost(int32, tag = "77")]
    custom_call_api_version: i32,
}

impl OpcodeProto {
    fn communicates(&self) -> bool {
        is_collective(&self.opcode) || localize::is_collective_call(&self.custom_call_target)
    }

    fn calls_host(&self) -> bool {
        const TYPED_FFI: i32 = 4;
        self.custom_call_api_version == TYPED_FFI
    }
}

#[derive(Clone, PartialEq, Message)]
struct AliasesProto {
    #[prost(message, repeated, tag = "1")]
    entries: Vec<AliasProto>,
}

#[derive(Clone, PartialEq, Message)]
struct AliasProto {
    #[prost(int64, tag = "2")]
    parameter_number: i64,
}

#[derive(Clone, PartialEq, Message)]
struct DonorsProto {
    #[prost(message, repeated, tag = "1")]
    entries: Vec<DonorProto>,
}

#[derive(Clone, PartialEq, Message)]
struct DonorProto {
    #[prost(int64, tag = "1")]
    parameter_number: i64,
}

#[derive(Clone, PartialEq, Message)]
struct ProgramShapeProto {
    #[prost(message, repeated, tag = "1")]
    parameters: Vec<ShapeProto>,
    #[prost(message, optional, tag = "2")]
    result: Option<ShapeProto>,
}

#[derive(Clone, PartialEq, Message)]
struct ShardingsProto {
    #[prost(message, optional, tag = "12")]
    output: Option<OpShardingProto>,
    #[prost(message, repeated, tag = "14")]
    parameters: Vec<OpShardingProto>,
}
