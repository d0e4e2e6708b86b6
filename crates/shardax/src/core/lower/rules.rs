//! The rules of platforms, which the layer `backend` implements.

use super::{Lowering, Value};
use crate::core::primitive::Primitive;
use crate::core::program::{Aval, Program};
use crate::error::Result;

/// The parts of lowering that depend on the platform. The layer `backend` implements them.
pub(crate) trait PlatformRules {
    /// Writes an operation by the platform's rule for its primitive, or by [`Primitive::lower`] if there is none.
    fn operation(&mut self, primitive: &dyn Primitive, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>>;

    /// Returns `true` if the platform's plugin has a defect that programs are written around: `backend::quirks` lists them.
    fn plugin_has(&self, quirk: &str) -> bool;

    /// Fails for a text that the platform's compiler would abort the process for.
    fn check_text(&self, text: &str, num_partitions: usize) -> Result<()>;

    /// Marks the values of a program to [materialize](Lowering::materialize), by variable; may be shorter.
    fn values_to_materialize(&self, program: &Program) -> Vec<bool>;
}

impl Lowering {
    /// Returns `true` if the platform's plugin has this defect, listed in `backend::quirks`.
    pub(crate) fn has_quirk(&self, quirk: &str) -> bool {
        PlatformRules::plugin_has(self, quirk)
    }

    /// Writes an operation of this primitive, for rules that are written with other primitives.
    pub(crate) fn apply(&mut self, primitive: &dyn Primitive, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        PlatformRules::operation(self, primitive, args, outs)
    }
}
