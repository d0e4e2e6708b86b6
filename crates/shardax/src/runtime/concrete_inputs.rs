//! Concrete arguments of functions traced for eager execution: whole arrays, or local shards.

use std::sync::Arc;

use smallvec::smallvec;

use super::eager;
use crate::core::array::Array;
use crate::core::primitive::Run;
use crate::core::program::concretize::concrete_arrays;
use crate::core::program::trace::{ConcreteInputs, Traced};
use crate::core::program::{Atom, Eqn, Var};
use crate::error::{Result, err};
use crate::ops::primitive::shape_ops::Reshape;
use crate::ops::shard_map::ShardMap;
use crate::shape::AxisSet;
use crate::sharding::PartitionSpec;

/// The arguments are these arrays.
pub(crate) struct WholeArrays(pub Vec<Array>);

impl ConcreteInputs for WholeArrays {
    fn value(&self, Traced { program, captures }: Traced) -> Result<Option<Array>> {
        let Some(inputs) = concrete_arrays(captures.iter().chain(&self.0))? else { return Ok(None) };
        let traced = Traced { program, captures: Vec::new() };
        Ok(eager::run_traced("value", &traced, &inputs, &Vec::new)?.into_iter().next())
    }
}

/// The arguments are the local shards of these arrays inside this map; the body of the map is empty.
pub(crate) struct LocalShards {
    pub args: Vec<Array>,
    pub map: ShardMap,
}

impl ConcreteInputs for LocalShards {
    fn value(&self, so_far: Traced) -> Result<Option<Array>> {
        let varying = self.varying(&so_far)?;
        if !varying.is_empty() {
            return Err(err!(
                Type,
                "the value of type {} varies over {varying} and has no single value to read (TracerBoolConversionError)",
                so_far.program.out_avals()[0]
            )
            .help("reduce it first, with psum or pmean, or act on it with `where_` or `cond`"));
        }
        self.joined(so_far, PartitionSpec::default())
    }

    fn per_device(&self, mut so_far: Traced) -> Result<Option<Vec<(String, Array)>>> {
        // One shard for each device along the axes it varies over, stacked.
        let block = so_far.program.out_avals()[0].clone();
        let mut shape = block.shape.clone();
        shape.insert(0, 1);
        let program = &mut so_far.program;
        let stacked = Var(program.avals.len() as u32);
        program.avals.push(block.with_shape(shape.clone()));
        program.eqns.push(Eqn {
            primitive: Arc::new(Reshape { shape, out: None }),
            inputs: program.outputs.iter().copied().collect(),
            outputs: smallvec![stacked],
            source: std::panic::Location::caller(),
            scope: Default::default(),
            mesh: None,
        });
        program.outputs = vec![Atom::Var(stacked)];
        let axes: Vec<_> = self.varying(&so_far)?.iter().collect();
        let spec = PartitionSpec::default().insert(0, &axes);
        let Some(stack) = self.joined(so_far, spec)? else { return Ok(None) };
        // Sliced on the host, because an operation here would be recorded in the function being traced.
        let bytes = stack.to_bytes()?;
        let n = stack.shape().first().copied().unwrap_or(0).max(1);
        bytes
            .chunks(bytes.len().div_ceil(n).max(1))
            .enumerate()
            .map(|(i, part)| {
                let mut quotient = i;
                let mut coordinates: Vec<String> = Vec::new();
                for name in axes.iter().rev() {
                    let size = self.map.mesh.axis_size(*name).unwrap_or(1);
                    coordinates.push(format!("{name}={}", quotient % size));
                    quotient /= size;
                }
                coordinates.reverse();
                Ok((coordinates.join(", "), Array::from_bytes(part, block.dtype, &block.shape)?))
            })
            .collect::<Result<_>>()
            .map(Some)
    }
}

impl LocalShards {
    /// The axes that the value varies over.
    fn varying(&self, so_far: &Traced) -> Result<AxisSet> {
        Ok(self.map.varying(&so_far.program, so_far.captures.len())?.pop().unwrap_or_default())
    }

    /// The global array of the devices' values.
    fn joined(&self, Traced { program, captures }: Traced, out_spec: PartitionSpec) -> Result<Option<Array>> {
        let Some(inputs) = concrete_arrays(captures.iter().chain(&self.args))? else { return Ok(None) };
        let in_specs =
            captures.iter().map(|_| PartitionSpec::default()).chain(self.map.in_specs.iter().cloned()).collect();
        let call = ShardMap { in_specs, out_specs: vec![out_spec], body: program.simplified(), ..self.map.clone() };
        Ok(Arc::new(call).run(&inputs)?.into_iter().next())
    }
}
