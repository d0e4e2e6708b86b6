//! The interface for platform-dependent rules. The layer `backend` implements it.

use super::{Lowering, ResultUse, Value};
use crate::core::primitive::Primitive;
use crate::core::program::{Aval, Program};
use crate::error::Result;

/// The parts of lowering that depend on the platform. The layer `backend` implements them.
pub(crate) trait PlatformRules {
    /// Writes an operation by the platform's rule for its primitive, or by [`Primitive::lower`] if the platform has
    /// none.
    fn operation(&mut self, primitive: &dyn Primitive, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>>;

    /// Returns `true` if the platform's plugin has this defect, so that programs must avoid it. `backend::quirks` lists
    /// the defects.
    fn plugin_has(&self, quirk: &str) -> bool;

    /// Fails for a text on which the platform's compiler would abort the process.
    fn check_text(&self, text: &str, num_partitions: usize) -> Result<()>;

    /// Marks the values of a program to [materialize](Lowering::materialize), by variable. The list can be shorter than
    /// the number of variables.
    fn values_to_materialize(&self, program: &Program) -> Vec<bool>;

    /// Returns where the results of transposes are read, by variable, for [`result_use`](Lowering::result_use). The list can be shorter
    /// than the number of variables.
    fn uses_of_transposes(&self, program: &Program) -> Vec<ResultUse>;

    /// Returns `false` for a value that the platform's rules replace by the operands it was computed from.
    fn is_read(&self, value: Value) -> bool;
}

impl Lowering {
    /// Returns `true` if the platform's plugin has this defect, listed in `backend::quirks`.
    pub(crate) fn has_quirk(&self, quirk: &str) -> bool {
        PlatformRules::plugin_has(self, quirk)
    }

    /// Writes an operation of this primitive. Rules of other primitives can call it.
    pub(crate) fn apply(&mut self, primitive: &dyn Primitive, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        self.unread.clear();
        self.result_use = ResultUse::Fused;
        PlatformRules::operation(self, primitive, args, outs)
    }
}
