//! The first stage of ahead-of-time compilation: a traced function.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use super::{ArgInfo, LeafTree, Lowered, LoweredFn};
use crate::core::program::{Aval, Program};
use crate::core::tree::Tree;
use crate::error::{AtCaller, Result};

/// A function traced for arguments of certain types: the result of [`Jit::trace`](crate::Jit::trace).
///
/// It prints the program. `lower()` returns the next stage, a [`Lowered`].
pub struct Traced<Args, Out> {
    lowered: Arc<LoweredFn>,
    types: PhantomData<fn(Args) -> Out>,
}

impl<Args: Tree, Out: Tree> Traced<Args, Out> {
    pub(crate) fn new(lowered: LoweredFn) -> Self {
        Traced { lowered: Arc::new(lowered), types: PhantomData }
    }

    /// Returns the program. Its first inputs are captured arrays; unused arguments are missing.
    pub fn program(&self) -> &Program {
        &self.lowered.request.program
    }

    /// The name of JAX's field, for [`program`](Traced::program).
    pub fn jaxpr(&self) -> &Program {
        self.program()
    }

    /// Returns the type of each argument, and its donation.
    pub fn args_info(&self) -> LeafTree<ArgInfo> {
        self.lowered.args_info()
    }

    /// Returns the type of each result.
    pub fn out_info(&self) -> LeafTree<Aval> {
        self.lowered.out_info()
    }

    /// Lowers the program to StableHLO.
    ///
    /// # Errors
    /// Returns an error if an operation cannot be lowered for the platform, or if the function uses a ref that was
    /// made outside of it.
    #[track_caller]
    pub fn lower(&self) -> Result<Lowered<Args, Out>> {
        Lowered::of(self.lowered.clone()).at_caller()
    }
}

/// Prints the program.
impl<Args, Out> fmt::Display for Traced<Args, Out> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lowered.request.program.fmt(f)
    }
}
