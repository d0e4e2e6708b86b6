//! Programs compiled for devices that are not attached.

use std::fmt;
use std::ops::Deref;

use super::CompiledProgram;
use crate::error::Result;
use crate::topology::Topology;

/// A program compiled for the devices of a [`Topology`]. To run it, a client of such devices
/// [loads](crate::Client::deserialize) its bytes. It dereferences to [`CompiledProgram`], which has its properties.
pub struct CrossCompiledExecutable {
    program: CompiledProgram,
    topology: Topology,
}

impl CrossCompiledExecutable {
    pub(crate) fn new(program: CompiledProgram, topology: Topology) -> CrossCompiledExecutable {
        CrossCompiledExecutable { program, topology }
    }

    /// The topology that it was compiled for.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Serializes the program, for [`Client::deserialize`](crate::Client::deserialize) with the same plugin version on
    /// devices of the same kind.
    ///
    /// # Errors
    /// Returns an error if the platform cannot serialize programs.
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
        f.debug_struct("CrossCompiledExecutable").field("topology", &self.topology).finish_non_exhaustive()
    }
}
