//! Compiles programs a second time for devices that are not present, to check that they compile there too.

use std::sync::OnceLock;

use super::counts;
use super::load::Request;
use crate::core::lower::Platform;
use crate::error::Result;
use crate::sharding::{GpuSpec, Topology};
use crate::warning;

const VARIABLE: &str = "SHARDAX_COMPILE_ALSO_FOR";

/// The topologies in the environment variable: GPUs by name (`h100` is a host with eight), TPUs by the name of the
/// slice.
fn topologies() -> &'static [(String, Result<Topology>)] {
    static TOPOLOGIES: OnceLock<Vec<(String, Result<Topology>)>> = OnceLock::new();
    TOPOLOGIES.get_or_init(|| {
        let names = std::env::var(VARIABLE).unwrap_or_default();
        let names = names.split(',').map(str::trim).filter(|name| !name.is_empty());
        names.map(|name| (name.to_owned(), topology_named(name))).collect()
    })
}

fn topology_named(name: &str) -> Result<Topology> {
    match GpuSpec::named(name) {
        Ok(gpu) => Topology::gpu(gpu),
        Err(_) => Topology::tpu(name),
    }
}

/// Compiles a program for these topologies too, and reports the result on one line.
pub(super) fn compile(request: &Request) {
    if request.place.platform() != Platform::Cpu {
        return;
    }
    for (name, topology) in topologies() {
        let (program, on) = (&request.name, topology.as_ref().map_or(&name[..], Topology::name));
        warning::log(&match topology
            .as_ref()
            .map_err(Clone::clone)
            .and_then(|topology| counts::uncounted(|| request.compile_for(topology, &[]).map(drop)))
        {
            Ok(()) => format!("{program} compiles for {on}"),
            Err(error) => format!("{program} does not compile for {on}: {}", error.message()),
        });
    }
}
