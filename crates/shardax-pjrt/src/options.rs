//! Compile options, and signatures that executions are checked against.

use std::collections::{HashMap, HashSet};

use prost::Message;

use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::named_value::Value;

/// The parameters of a program on each device.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Signature {
    /// The parameters in order.
    pub parameters: Vec<ParameterSpec>,
}

/// One parameter of a program.
#[derive(Clone, Debug, PartialEq)]
pub struct ParameterSpec {
    /// The element type.
    pub ty: ElementType,
    /// The shape on one device.
    pub dims: Vec<i64>,
    /// An execution takes the buffer's memory and deletes the buffer.
    pub donated: bool,
}

impl ParameterSpec {
    /// Makes a parameter that is not donated.
    pub fn new(ty: ElementType, dims: impl Into<Vec<i64>>) -> ParameterSpec {
        ParameterSpec { ty, dims: dims.into(), donated: false }
    }

    /// Marks the parameter as donated.
    pub fn donated(mut self) -> ParameterSpec {
        self.donated = true;
        self
    }
}

/// Compile options.
#[derive(Clone, Debug, PartialEq)]
pub struct CompileOptions {
    /// Replicas of the program, which run on different data; 1 with SPMD partitioning.
    pub num_replicas: usize,
    /// Devices that one replica is partitioned over.
    pub num_partitions: usize,
    /// Ids of the devices, replica-major (`replica * num_partitions + partition`). Empty means the first devices of the
    /// client.
    pub device_ids: Vec<usize>,
    /// Partition with Shardy, which reads `sdy` shardings, instead of GSPMD.
    pub use_shardy: bool,
    /// A flag for each parameter that is true if the compiler can choose its sharding. Empty means that it can choose
    /// none.
    pub propagate_to_parameters: Vec<bool>,
    /// A flag for each output that is true if the compiler can choose its sharding. Empty means that it can choose
    /// none.
    pub propagate_to_outputs: Vec<bool>,
    /// XLA debug options by name, such as `xla_cpu_use_fusion_emitters`.
    pub overrides: Vec<(String, Value)>,
    /// Compile for any single device: run with [`crate::Executable::execute_on`]; `device_ids` must be empty.
    pub portable: bool,
}

impl Default for CompileOptions {
    fn default() -> CompileOptions {
        CompileOptions {
            num_replicas: 1,
            num_partitions: 1,
            device_ids: Vec::new(),
            use_shardy: true,
            propagate_to_parameters: Vec::new(),
            propagate_to_outputs: Vec::new(),
            overrides: Vec::new(),
            portable: false,
        }
    }
}

impl CompileOptions {
    /// Checks the options against the existing device ids, and encodes them as a `CompileOptionsProto`.
    pub(crate) fn encode(&self, all: &[usize]) -> Result<Vec<u8>> {
        let count = self
            .num_replicas
            .checked_mul(self.num_partitions)
            .filter(|&count| count > 0 && i32::try_from(count).is_ok())
            .ok_or_else(|| {
                Error::invalid_argument(format!(
                    "num_replicas ({}) and num_partitions ({}) must be at least 1",
                    self.num_replicas, self.num_partitions
                ))
            })?;
        let device_assignment = if self.portable {
            if count != 1 || !self.device_ids.is_empty() {
                return Err(Error::invalid_argument("a portable executable has one device, which execute_on chooses"));
            }
            None
        } else {
            Some(self.assignment(all, count)?)
        };
        self.check_overrides()?;
        let overrides = self.overrides.iter().map(|(name, value)| (name.clone(), OverrideProto::new(value))).collect();
        let build = BuildOptionsProto {
            device_ordinal: -1,
            num_replicas: self.num_replicas as i64,
            num_partitions: self.num_partitions as i64,
            // On one device too: the partitioner's passes also remove sharding annotations.
            use_spmd_partitioning: true,
            device_assignment,
            propagate_to_outputs: self.propagate_to_outputs.clone(),
            propagate_to_parameters: self.propagate_to_parameters.clone(),
            use_shardy_partitioner: self.use_shardy,
        };
        let options = CompileOptionsProto {
            build: Some(build),
            compile_portable_executable: self.portable,
            env_option_overrides: overrides,
        };
        Ok(options.encode_to_vec())
    }

    /// Rejects values for which the compiler of the CPU plugin (xla-cpu-pjrt 0.0.1) throws a C++ exception through
    /// Rust, which ends the process (-1), or never returns (10⁹). Test:
    /// `hazards::options_that_would_end_or_hang_the_process_are_rejected`.
    fn check_overrides(&self) -> Result<()> {
        const LIMITS: &[(&str, i64, i64)] = &[("xla_cpu_parallel_codegen_split_count", 1, 4096)];
        for (name, value) in &self.overrides {
            let Some((_, least, most)) = LIMITS.iter().find(|(limited, _, _)| limited == name) else { continue };
            // A string is parsed by XLA, so it is checked as well.
            if value.to_string().trim().parse().is_ok_and(|n: i64| !(*least..=*most).contains(&n)) {
                return Err(Error::invalid_argument(format!(
                    "{name} is {value}, but must be between {least} and {most}"
                )));
            }
        }
        Ok(())
    }

    /// Assigns devices to replicas and partitions: `device_ids`, or the first `count` of `all` devices.
    fn assignment(&self, all: &[usize], count: usize) -> Result<AssignmentProto> {
        let ids = if self.device_ids.is_empty() {
            all.get(..count).ok_or_else(|| {
                Error::invalid_argument(format!("the program needs {count} devices, but there are only {}", all.len()))
            })?
        } else {
            &self.device_ids
        };
        if ids.len() != count {
            return Err(Error::invalid_argument(format!(
                "{} device ids were passed for {} replicas × {} partitions",
                ids.len(),
                self.num_replicas,
                self.num_partitions
            )));
        }
        // Checked here, so that the error names the wrong id.
        let device_ids: HashSet<usize> = all.iter().copied().collect();
        let mut assigned = HashSet::with_capacity(count);
        for &id in ids {
            if !device_ids.contains(&id) {
                return Err(Error::invalid_argument(format!("the client has no device with id {id}")));
            }
            if !assigned.insert(id) {
                return Err(Error::invalid_argument(format!("device id {id} appears twice")));
            }
        }
        let computation_devices = (0..self.num_partitions)
            .map(|partition| ComputationDevicesProto {
                replica_device_ids: (0..self.num_replicas)
                    .map(|replica| ids[replica * self.num_partitions + partition] as i64)
                    .collect(),
            })
            .collect();
        Ok(AssignmentProto {
            replica_count: self.num_replicas as i32,
            computation_count: self.num_partitions as i32,
            computation_devices,
        })
    }
}

#[derive(Clone, PartialEq, Message)]
struct CompileOptionsProto {
    #[prost(message, optional, tag = "3")]
    build: Option<BuildOptionsProto>,
    #[prost(bool, tag = "4")]
    compile_portable_executable: bool,
    #[prost(map = "string, message", tag = "7")]
    env_option_overrides: HashMap<String, OverrideProto>,
}

#[derive(Clone, PartialEq, Message)]
struct BuildOptionsProto {
    #[prost(int64, tag = "1")]
    device_ordinal: i64,
    #[prost(int64, tag = "4")]
    num_replicas: i64,
    #[prost(int64, tag = "5")]
    num_partitions: i64,
    #[prost(bool, tag = "6")]
    use_spmd_partitioning: bool,
    #[prost(message, optional, tag = "9")]
    device_assignment: Option<AssignmentProto>,
    #[prost(bool, repeated, tag = "12")]
    propagate_to_outputs: Vec<bool>,
    #[prost(bool, repeated, tag = "18")]
    propagate_to_parameters: Vec<bool>,
    #[prost(bool, tag = "19")]
    use_shardy_partitioner: bool,
}

#[derive(Clone, PartialEq, Message)]
struct AssignmentProto {
    #[prost(int32, tag = "1")]
    replica_count: i32,
    #[prost(int32, tag = "2")]
    computation_count: i32,
    #[prost(message, repeated, tag = "3")]
    computation_devices: Vec<ComputationDevicesProto>,
}

#[derive(Clone, PartialEq, Message)]
struct ComputationDevicesProto {
    #[prost(int64, repeated, tag = "1")]
    replica_device_ids: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct OverrideProto {
    #[prost(oneof = "OverrideValue", tags = "1, 2, 3, 4")]
    value: Option<OverrideValue>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum OverrideValue {
    #[prost(string, tag = "1")]
    String(String),
    #[prost(bool, tag = "2")]
    Bool(bool),
    #[prost(int64, tag = "3")]
    Int(i64),
    #[prost(double, tag = "4")]
    Double(f64),
}

impl OverrideProto {
    fn new(value: &Value) -> OverrideProto {
        let value = match value {
            Value::String(v) => OverrideValue::String(v.clone()),
            Value::Int(v) => OverrideValue::Int(*v),
            Value::Float(v) => OverrideValue::Double(f64::from(*v)),
            Value::Bool(v) => OverrideValue::Bool(*v),
            Value::Ints(v) => OverrideValue::String(v.iter().map(i64::to_string).collect::<Vec<_>>().join(",")),
        };
        OverrideProto { value: Some(value) }
    }
}
