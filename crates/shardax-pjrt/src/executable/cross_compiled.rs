//! Programs for devices that are not there.

use std::fmt;
use std::ops::Deref;

use super::CompiledProgram;
use crate::error::Result;
use crate::topology::Topology;

/// A program compiled for the devices of a [`Topology`], which need not be there. A client of such devices runs it once
/// it has [loaded](crate::Client::deserialize) its bytes. What can be asked of any [`CompiledProgram`] can be asked of
/// it.
pub struct CrossCompiledExecutable {
    program: CompiledProgram,
    topology: Topology,
}

impl CrossCompiledExecutable {
    pub(crate) fn new(program: CompiledProgram, topology: Topology) -> CrossCompiledExecutable {
        CrossCompiledExecutable { program, topology }
    }

    /// The devices that it was compiled for.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The compiled program as bytes, for [`Client::deserialize`](crate::Client::deserialize) by the same plugin
    /// version on devices of the same kind.
    ///
    /// # Errors
    /// The platform cannot.
    pub fn serialize(&self) -> Result<Vec<u8>> {
        self.program.cache_entry(&self.topology.plugin_id())
    }
}

impl Deref for CrossCompiledExecutable {
    type Target = CompiledProgram;

    fn deref(&self) -> &CompiledProgram {
        &self.program
    }
}

impl fmt::Debug for CrossCompiledExecutable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnloadedExecutable").field("topology", &self.topology).finish_non_exhaustive()
    }
}
