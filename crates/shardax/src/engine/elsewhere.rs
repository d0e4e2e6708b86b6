//! Programs compiled a second time, for devices that need not be there: whether what runs here would compile there too.

use std::sync::OnceLock;

use super::counts;
use super::load::Request;
use crate::core::lower::Platform;
use crate::error::Result;
use crate::sharding::{GpuSpec, Topology};
use crate::warning;

const VARIABLE: &str = "SHARDAX_COMPILE_ALSO_FOR";

/// The topologies that the environment names: GPUs by their name (`h100`, a host of eight), TPUs by that of the slice.
fn topologies() -> &'static [Topology] {
    static TOPOLOGIES: OnceLock<Vec<Topology>> = OnceLock::new();
    TOPOLOGIES.get_or_init(|| {
        let names = std::env::var(VARIABLE).unwrap_or_default();
        names.split(',').map(str::trim).filter(|name| !name.is_empty()).filter_map(named).collect()
    })
}

fn named(name: &str) -> Option<Topology> {
    let topology: Result<Topology> = match GpuSpec::named(name) {
        Ok(gpu) => Topology::gpu(gpu),
        Err(_) => Topology::tpu(name),
    };
    let help = "name TPUs as `v5e:2x4`, GPUs as `h100`, several with commas";
    topology.map_err(|error| warning::warn(&format!("{VARIABLE}: {name}: {}", error.message()), help)).ok()
}

/// Compiles a program that was compiled for CPUs for those as well, and says on a line how that went.
pub(super) fn compile(request: &Request) {
    if request.place.platform() != Platform::Cpu {
        return;
    }
    for topology in topologies() {
        let compiled = counts::apart(|| request.compile_for(topology, &[]));
        let name = &request.name;
        warning::log(&match compiled {
            Ok(_) => format!("{name} compiles for {}", topology.name()),
            Err(error) => format!("{name} does not compile for {}: {}", topology.name(), error.message()),
        });
    }
}
