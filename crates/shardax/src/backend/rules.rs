//! The table of rules: (platform, primitive) → rule.

use std::any::TypeId;
use std::collections::HashMap;
use std::sync::LazyLock;

use crate::core::lower::{Lowering, Platform, Value};
use crate::core::primitive::Primitive;
use crate::core::program::Aval;
use crate::error::Result;

/// The values of a rule's results, or `None` to leave the operation to the portable form.
pub(super) type Lowered = Result<Option<Vec<Value>>>;

/// A rule for any primitive.
type Rule = Box<dyn Fn(&dyn Primitive, &mut Lowering, &[Value], &[Aval]) -> Lowered + Send + Sync>;

/// The rules of all platforms.
static RULES: LazyLock<Rules> = LazyLock::new(|| {
    let mut rules = Rules::default();
    super::cpu::add(&mut rules);
    super::gpu::add(&mut rules);
    super::tpu::add(&mut rules);
    rules
});

/// The rules by platform and type of the primitive.
#[derive(Default)]
pub(super) struct Rules(HashMap<(Platform, TypeId), Rule>);

impl Rules {
    /// Adds the rule of a platform for the primitive `P`.
    pub fn add<P: Primitive + 'static>(
        &mut self,
        platform: Platform,
        rule: fn(&P, &mut Lowering, &[Value], &[Aval]) -> Lowered,
    ) {
        let of_any = move |primitive: &dyn Primitive, cx: &mut Lowering, args: &[Value], outs: &[Aval]| {
            primitive.as_any().downcast_ref::<P>().map_or(Ok(None), |primitive| rule(primitive, cx, args, outs))
        };
        self.0.insert((platform, TypeId::of::<P>()), Box::new(of_any));
    }

    /// The rule of a platform for this primitive.
    fn get(&self, platform: Platform, primitive: &dyn Primitive) -> Option<&Rule> {
        self.0.get(&(platform, primitive.as_any().type_id()))
    }
}

/// Writes an operation by the platform's rule for its primitive, or by its portable form.
pub(super) fn by_rule(
    cx: &mut Lowering,
    primitive: &dyn Primitive,
    args: &[Value],
    outs: &[Aval],
) -> Result<Vec<Value>> {
    if let Some(rule) = RULES.get(cx.platform, primitive)
        && let Some(values) = rule(primitive, cx, args, outs)?
    {
        return Ok(values);
    }
    primitive.lower(cx, args, outs)
}
