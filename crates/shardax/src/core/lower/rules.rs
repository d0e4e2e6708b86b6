//! The rules of platforms, which the layer `backend` implements.

use super::{Lowering, Value};
use crate::core::primitive::Primitive;
use crate::core::program::Aval;
use crate::error::Result;

/// What a platform changes about lowering. The layer `backend` implements it.
pub(crate) trait PlatformRules {
    /// Writes an operation by the platform's rule for its primitive, or by [`Primitive::lower`] if there is none.
    fn operation(&mut self, primitive: &dyn Primitive, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>>;
}

impl Lowering {
    /// Writes an operation of this primitive, for rules that are written with other primitives.
    pub(crate) fn apply(&mut self, primitive: &dyn Primitive, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        PlatformRules::operation(self, primitive, args, outs)
    }
}
