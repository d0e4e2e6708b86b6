//! Programs compiled for devices that need not be there.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use super::{ArgInfo, Collectives, LeafTree, LoweredFn, MemoryAnalysis, report, traffic};
use crate::error::{AtCaller, Result};
use crate::runtime::cross_compile::CrossCompiledProgram;
use crate::sharding::{Mesh, Sharding};

/// A function compiled for the devices of a [`Topology`](crate::Topology), which need not be there: it tells what each
/// would need and what they would communicate, and its bytes run where such devices are
/// ([`Compiled::load`](super::Compiled::load)). It cannot be called.
///
/// It is made by [`Lowered::compile_for`](super::Lowered::compile_for).
pub struct CrossCompiled<Args, Out> {
    pub(super) lowered: Arc<LoweredFn>,
    pub(super) program: Arc<CrossCompiledProgram>,
    types: PhantomData<fn(Args) -> Out>,
}

impl<Args, Out> CrossCompiled<Args, Out> {
    pub(super) fn new(lowered: Arc<LoweredFn>, program: CrossCompiledProgram) -> Self {
        CrossCompiled { lowered, program: Arc::new(program), types: PhantomData }
    }

    /// The mesh of the topology's devices that it is for; `None` of a program for one device.
    pub fn mesh(&self) -> Option<&Mesh> {
        self.program.mesh()
    }

    /// The optimized program, as [`Compiled::as_text`](super::Compiled::as_text) gives it.
    pub fn as_text(&self) -> Result<String> {
        Ok(report::text(&self.lowered.request.name, &self.program.executable.instructions()?))
    }

    /// The communication, as [`Compiled::collectives`](super::Compiled::collectives) gives it.
    pub fn collectives(&self) -> Result<Collectives> {
        Ok(Collectives::of(&self.program.executable.instructions()?, self.mesh()))
    }

    /// The memory that one call would need on each device.
    pub fn memory_analysis(&self) -> Result<MemoryAnalysis> {
        Ok(self.program.executable.memory_analysis()?)
    }

    /// What is read from a device's memory and written to it, as
    /// [`Compiled::bytes_accessed`](super::Compiled::bytes_accessed) counts it.
    pub fn bytes_accessed(&self) -> Result<usize> {
        Ok(traffic::bytes_accessed(&self.program.executable.instructions()?))
    }

    /// What one device computes in matrix products and convolutions, as
    /// [`Compiled::products`](super::Compiled::matmul_flops) counts it.
    pub fn matmul_flops(&self) -> Result<f64> {
        Ok(traffic::products(&self.program.executable.instructions()?))
    }

    /// The compiler's estimates of what one call costs on a device. The TPU's counts what a loop does once; the CUDA
    /// plugin has none, which is an error.
    pub fn cost_analysis(&self) -> Result<BTreeMap<String, f64>> {
        report::costs(&self.program.executable)
    }

    /// How the program takes each argument; `None` for arguments that it does not take, as nothing depends on them.
    pub fn input_shardings(&self) -> LeafTree<Option<Sharding>> {
        let of = |i| Some(self.lowered.in_sharding(&self.program.in_shardings, i)?.in_layout(None));
        LeafTree::new(&self.lowered.in_def, (0..self.lowered.in_avals.len()).map(of).collect())
    }

    /// How each result lies, given or chosen by the compiler.
    pub fn output_shardings(&self) -> LeafTree<Sharding> {
        let all = self.program.out_shardings.iter().map(|sharding| sharding.in_layout(None)).collect();
        LeafTree::new(&self.lowered.convention.out_def, all)
    }

    /// The type of each argument, and whether it is donated.
    pub fn args_info(&self) -> LeafTree<ArgInfo> {
        self.lowered.args_info()
    }

    /// The compiled program as bytes, for [`Compiled::load`](super::Compiled::load) where such devices are, by the same
    /// version of the plugin.
    ///
    /// Fails where it calls functions of this process.
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
        write!(f, "Unloaded({} for {topology})\n{}", self.lowered.request.name, self.lowered.args_info())
    }
}
