//! A primitive that sets the sharding of a value.

use shardax::prelude::*;
use shardax::primitive::{
    Aval, Avals, BatchAxis, Dims, Lowering, Operand, Outputs, Primitive, Tangents, Value, bind1, smallvec,
};
use shardax::sharding::DimSpec;

/// `x` with its first dimension split over the axis `axis` of `mesh`.
///
/// If the dimension is not divisible by the size of the axis, or the mesh has no such axis, the result carries an
/// error.
#[track_caller]
pub fn split(x: impl Into<Array>, mesh: &Mesh, axis: &str) -> Array {
    bind1(Split { sharding: NamedSharding::new(mesh, P![axis]) }, &[x.into()])
}

/// The identity, with a sharding.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Split {
    sharding: NamedSharding,
}

impl Split {
    #[track_caller]
    fn apply(&self, x: &Array) -> Array {
        bind1(self.clone(), std::slice::from_ref(x))
    }
}

impl Primitive for Split {
    fn name(&self) -> &'static str {
        "split"
    }

    fn print_params(&self) -> String {
        format!("spec={}", self.sharding.spec())
    }

    fn infer(&self, args: &[Aval]) -> Result<Avals> {
        self.sharding.shard_shape(&args[0].shape)?;
        Ok(smallvec![args[0].clone()])
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        let attrs = format!("sharding = {}", cx.sharding(&self.sharding, outs[0].rank()));
        Ok(vec![cx.op("sdy.sharding_constraint", args, &attrs, &outs[0])])
    }

    // Placement: the devices of the program, the sharding of an uncommitted operand, and the sharding of the result.
    fn placed_on(&self) -> Option<Sharding> {
        Some(self.sharding.clone().into())
    }

    fn in_sharding(&self, _operand: usize, _aval: &Aval) -> Option<Sharding> {
        Some(self.sharding.clone().into())
    }

    fn out_sharding(&self, _result: usize, _aval: &Aval) -> Option<NamedSharding> {
        Some(self.sharding.clone())
    }

    // Tangents and cotangents have the sharding of the values.
    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        Ok((smallvec![self.apply(&args[0])], vec![tangents[0].as_ref().map(|t| self.apply(t))]))
    }

    fn transpose(&self, cts: &[Option<Array>], _args: &[Operand]) -> Result<Tangents> {
        Ok(vec![cts[0].as_ref().map(|ct| self.apply(ct))])
    }

    // The batch dimension is not split.
    fn batch(&self, _axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        let mut spec = self.sharding.spec().dims().to_vec();
        if let Some(d) = dims[0].filter(|&d| d < spec.len()) {
            spec.insert(d, DimSpec::None);
        }
        let sharding = NamedSharding::try_new(self.sharding.mesh(), PartitionSpec::new(spec))?;
        Ok((smallvec![Split { sharding }.apply(&args[0])], dims.to_vec()))
    }
}
