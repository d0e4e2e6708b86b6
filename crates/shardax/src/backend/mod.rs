//! Platforms: rules for primitives where a platform's compiler needs another form than the portable one of
//! [`Primitive::lower`], and passes over programs.
//!
//! A rule is a function for one primitive and one platform. [`Lowering::program`] asks for it first; a rule that
//! returns `None` leaves the operation to the portable form. `quirks` lists the defects of plugins that rules work
//! around.

mod rules;
mod tpu;

use rules::RULES;

use crate::core::lower::{Lowering, PlatformRules, Value};
use crate::core::primitive::Primitive;
use crate::core::program::Aval;
use crate::error::Result;

impl PlatformRules for Lowering {
    fn operation(&mut self, primitive: &dyn Primitive, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        if let Some(rule) = RULES.get(self.platform, primitive)
            && let Some(values) = rule(primitive, self, args, outs)?
        {
            return Ok(values);
        }
        primitive.lower(self, args, outs)
    }
}
