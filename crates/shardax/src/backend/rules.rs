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
    super::elementwise::add(&mut rules);
    rules
});

/// The rules by type of the primitive.
#[derive(Default)]
pub(super) struct Rules {
    of_platforms: HashMap<(Platform, TypeId), Rule>,
    /// The rules of all platforms, for operations that a platform's rule leaves to the portable form.
    everywhere: HashMap<TypeId, Rule>,
}

impl Rules {
    /// Adds the rule of a platform for the primitive `P`.
    pub fn add<P: Primitive + 'static>(
        &mut self,
        platform: Platform,
        rule: fn(&P, &mut Lowering, &[Value], &[Aval]) -> Lowered,
    ) {
        self.of_platforms.insert((platform, TypeId::of::<P>()), for_any_primitive(rule));
    }

    /// Adds a rule of all platforms for the primitive `P`.
    pub fn add_everywhere<P: Primitive + 'static>(
        &mut self,
        rule: fn(&P, &mut Lowering, &[Value], &[Aval]) -> Lowered,
    ) {
        self.everywhere.insert(TypeId::of::<P>(), for_any_primitive(rule));
    }

    /// The rules for this primitive on a platform, in the order in which they are tried.
    fn get(&self, platform: Platform, primitive: &dyn Primitive) -> impl Iterator<Item = &Rule> {
        let id = primitive.as_any().type_id();
        self.of_platforms.get(&(platform, id)).into_iter().chain(self.everywhere.get(&id))
    }
}

/// A rule that leaves all primitives but `P` to the portable form.
fn for_any_primitive<P: Primitive + 'static>(rule: fn(&P, &mut Lowering, &[Value], &[Aval]) -> Lowered) -> Rule {
    Box::new(move |primitive: &dyn Primitive, cx: &mut Lowering, args: &[Value], outs: &[Aval]| {
        primitive.as_any().downcast_ref::<P>().map_or(Ok(None), |primitive| rule(primitive, cx, args, outs))
    })
}

/// Writes an operation by the platform's rule for its primitive, or by its portable form.
pub(super) fn by_rule(
    cx: &mut Lowering,
    primitive: &dyn Primitive,
    args: &[Value],
    outs: &[Aval],
) -> Result<Vec<Value>> {
    for rule in RULES.get(cx.platform, primitive) {
        if let Some(values) = rule(primitive, cx, args, outs)? {
            return Ok(values);
        }
    }
    primitive.lower(cx, args, outs)
}
