//! Cross-compiled programs, for devices that are not present.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use super::{ArgInfo, Collectives, LeafTree, LoweredFn, MemoryAnalysis, report, traffic};
use crate::error::{AtCaller, Result};
use crate::runtime::cross_compile::CrossCompiledProgram;
use crate::sharding::{Mesh, Sharding};

/// A function compiled for the devices of a [`Topology`](crate::Topology). It reports the memory of each device and the
/// communication. You cannot call it, but you can load its bytes where such devices are present
/// ([`Compiled::load`](super::Compiled::load)).
///
/// [`Lowered::compile_for`](super::Lowered::compile_for) returns it.
pub struct CrossCompiled<Args, Out> {
    pub(super) lowered: Arc<LoweredFn>,
    pub(super) program: Arc<CrossCompiledProgram>,
    types: PhantomData<fn(Args) -> Out>,
}

impl<Args, Out> CrossCompiled<Args, Out> {
    pub(super) fn new(lowered: Arc<LoweredFn>, program: CrossCompiledProgram) -> Self {
        CrossCompiled { lowered, program: Arc::new(program), types: PhantomData }
    }

    /// Returns the mesh of the topology's devices; `None` for a program on one device.
    pub fn mesh(&self) -> Option<&Mesh> {
        self.program.mesh()
    }

    /// Returns the optimized program; see [`Compiled::as_text`](super::Compiled::as_text).
    ///
    /// # Errors
    /// Returns an error if the compiler does not return the optimized program.
    pub fn as_text(&self) -> Result<String> {
        Ok(report::text(&self.lowered.request.name, &self.program.executable.instructions()?))
    }

    /// Returns the communication; see [`Compiled::collectives`](super::Compiled::collectives).
    ///
    /// # Errors
    /// Returns an error if the compiler does not return the optimized program.
    pub fn collectives(&self) -> Result<Collectives> {
        Ok(Collectives::of(&self.program.executable.instructions()?, self.mesh()))
    }

    /// Returns the memory of one call on each device.
    ///
    /// # Errors
    /// Returns an error if the compiler does not report memory.
    pub fn memory_analysis(&self) -> Result<MemoryAnalysis> {
        Ok(self.program.executable.memory_analysis()?)
    }

    /// Returns the bytes read from and written to a device's memory; see
    /// [`Compiled::bytes_accessed`](super::Compiled::bytes_accessed).
    ///
    /// # Errors
    /// Returns an error if the compiler does not return the optimized program.
    pub fn bytes_accessed(&self) -> Result<usize> {
        Ok(traffic::bytes_accessed(&self.program.executable.instructions()?))
    }

    /// Returns the floating-point operations of matrix multiplications and convolutions on one device; see
    /// [`Compiled::matmul_flops`](super::Compiled::matmul_flops).
    ///
    /// # Errors
    /// Returns an error if the compiler does not return the optimized program.
    pub fn matmul_flops(&self) -> Result<f64> {
        Ok(traffic::matmul_flops(&self.program.executable.instructions()?))
    }

    /// Returns the compiler's cost estimates of one call on a device. The estimates for TPUs count the body of a loop
    /// once.
    ///
    /// # Errors
    /// Returns an error if the plugin has no estimates, as the CUDA plugin.
    pub fn cost_analysis(&self) -> Result<BTreeMap<String, f64>> {
        report::costs(&self.program.executable)
    }

    /// Returns the sharding of each argument; `None` for unused arguments.
    pub fn input_shardings(&self) -> LeafTree<Option<Sharding>> {
        let arguments = 0..self.lowered.in_avals.len();
        let shardings =
            arguments.map(|i| Some(self.lowered.in_sharding(&self.program.in_shardings, i)?.in_layout(None)));
        LeafTree::new(&self.lowered.in_def, shardings.collect())
    }

    /// Returns the sharding of each result, as requested or as the compiler chose it.
    pub fn output_shardings(&self) -> LeafTree<Sharding> {
        let shardings = self.program.out_shardings.iter().map(|sharding| sharding.in_layout(None)).collect();
        LeafTree::new(&self.lowered.convention.out_def, shardings)
    }

    /// Returns the type of each argument, and its donation.
    pub fn args_info(&self) -> LeafTree<ArgInfo> {
        self.lowered.args_info()
    }

    /// Returns the bytes of the compiled program. [`Compiled::load`](super::Compiled::load) loads them on such devices;
    /// the plugin must have the same version.
    ///
    /// # Errors
    /// Returns an error if the program calls functions of this process.
    #[track_caller]
    pub fn serialize(&self) -> Result<Vec<u8>> {
        self.program.bytes().at_caller()
    }
}

impl<Args, Out> Clone for CrossCompiled<Args, Out> {
    fn clone(&self) -> Self {
        CrossCompiled { lowered: self.lowered.clone(), program: self.program.clone(), types: PhantomData }
    }
}

/// `CrossCompiled(step for v5e:2x4, 8 × TPU v5 lite)`, with a line for each argument.
impl<Args, Out> fmt::Debug for CrossCompiled<Args, Out> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let topology = self.program.executable.topology();
        write!(f, "CrossCompiled({} for {topology})\n{}", self.lowered.request.name, self.lowered.args_info())
    }
}
