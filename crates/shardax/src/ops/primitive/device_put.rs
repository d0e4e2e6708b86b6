//! `device_put` inside a program: moving a value to another memory of its devices.

use smallvec::{SmallVec, smallvec};

use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::{
    BatchAxis, Dims, Operand, Outputs, PartialAxes, Primitive, ShardingRule, Tangents, TypedOuts,
};
use crate::core::program::Aval;
use crate::core::program::trace::bind1;
use crate::error::Result;
use crate::sharding::memory::MemoryKind;
use crate::sharding::{NamedSharding, Sharding, UnreducedKind};

/// Moves a value to memory of this kind, with the sharding if there is one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct DevicePut {
    pub kind: MemoryKind,
    pub sharding: Option<Sharding>,
}

impl DevicePut {
    /// A move that leaves the sharding to the compiler.
    pub fn to(kind: MemoryKind) -> DevicePut {
        DevicePut { kind, sharding: None }
    }

    #[track_caller]
    pub fn apply(self, x: &Array) -> Array {
        bind1(self, std::slice::from_ref(x))
    }

    fn named(&self) -> Option<&NamedSharding> {
        self.sharding.as_ref()?.as_named()
    }
}

impl Primitive for DevicePut {
    fn name(&self) -> &'static str {
        "device_put"
    }

    fn placed_on(&self) -> Option<Sharding> {
        self.sharding.clone()
    }

    fn out_sharding(&self, _result: usize, aval: &Aval) -> Option<NamedSharding> {
        self.named().filter(|named| named.shard_shape(&aval.shape).is_ok()).cloned()
    }

    fn memory_kind(&self) -> Option<MemoryKind> {
        Some(self.kind)
    }

    fn print_params(&self) -> String {
        let split = self.sharding.as_ref().map_or(String::new(), |sharding| format!(" sharding={sharding}"));
        format!("memory_kind={}{split}", self.kind)
    }

    fn accepts_keys(&self) -> bool {
        true
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        Ok(smallvec![args[0].clone()])
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        match self.named().and_then(|named| named.typed(rule.args()[0].rank())) {
            Some(typed) => Ok(smallvec![typed]),
            None => rule.like(0),
        }
    }

    fn partial_rule(&self, rule: &ShardingRule<'_>) -> Result<PartialAxes> {
        rule.keep_partial()
    }

    fn keeps_unreduced(&self, _kind: UnreducedKind) -> bool {
        true
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        if !cx.moves_memory() {
            return Ok(args.to_vec());
        }
        let mut value = args[0];
        if let Some(named) = self.named().filter(|named| named.mesh().size() > 1) {
            let attrs = format!("sharding = {}", cx.sharding(named, outs[0].rank()));
            value = cx.op("sdy.sharding_constraint", &[value], &attrs, &outs[0]);
        }
        Ok(vec![cx.in_memory(value, self.kind)])
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        let out = self.clone().apply(&args[0]);
        Ok((smallvec![out], vec![tangents[0].as_ref().map(|t| self.clone().apply(t))]))
    }

    fn transpose(&self, cts: &[Option<Array>], _args: &[Operand]) -> Result<Tangents> {
        // The operand's memory is unknown: cotangents are used in computations, so they go to the device.
        Ok(vec![cts[0].as_ref().map(|ct| {
            if self.kind == MemoryKind::DEVICE { ct.clone() } else { DevicePut::to(MemoryKind::DEVICE).apply(ct) }
        })])
    }

    fn batch(&self, _axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        // The sharding describes one example.
        let sharding = self.sharding.clone().filter(|_| dims[0].is_none());
        Ok((smallvec![DevicePut { sharding, ..self.clone() }.apply(&args[0])], dims.to_vec()))
    }
}
