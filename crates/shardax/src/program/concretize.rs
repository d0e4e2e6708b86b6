//! Reading values while a function is traced only to be run at once: outside of `jit`, `grad` and `shard_map` trace
//! functions whose arguments are known, so what has been computed so far can be computed in truth.

use std::sync::Arc;

use smallvec::smallvec;

use super::trace::{Known, Traced, so_far};
use super::{Atom, Aval, Eqn, Program, Var};
use crate::array::{Array, Concrete, Repr, Tracer};
use crate::error::{Result, err};
use crate::primitive::shape_ops::Reshape;
use crate::runtime::eager;
use crate::shape::AxisSet;
use crate::sharding::PartitionSpec;
use crate::spmd::shard_map::ShardMap;

/// The value of a traced array; `None` where the arguments of its function are not known.
///
/// Fails for a value that differs from device to device.
pub(crate) fn value(tracer: &Tracer) -> Result<Option<Arc<Concrete>>> {
    let Some((Traced { program, captures }, known)) = so_far(tracer) else { return Ok(None) };
    let array = match known {
        Known::Whole(args) => {
            let Some(inputs) = known_arrays(captures.iter().chain(&args))? else { return Ok(None) };
            let traced = Traced { program, captures: Vec::new() };
            eager::run_traced("value", &traced, &inputs, &Vec::new)?.into_iter().next()
        }
        Known::Blocks(args, map) => {
            let varying = varying(&program, &captures, &map)?;
            if !varying.is_empty() {
                return Err(err!(
                    Type,
                    "the value of type {} varies over {varying} and has no single value to read (TracerBoolConversionError)",
                    tracer.aval
                )
                .help("reduce it first, with psum or pmean, or act on it with `where_` or `cond`"));
            }
            blocks(program, &captures, &args, *map, PartitionSpec::default())?
        }
    };
    array.map(|a| a.concrete()).transpose()
}

/// The blocks that the devices hold of a value inside an eager `shard_map`: for each its coordinates and the block.
pub(crate) fn per_device(tracer: &Tracer) -> Result<Option<Vec<(String, Array)>>> {
    let Some((Traced { mut program, captures }, Known::Blocks(args, map))) = so_far(tracer) else { return Ok(None) };
    // One block for each device along the axes it varies over, stacked.
    let mut shape = tracer.aval.shape.clone();
    shape.insert(0, 1);
    let stacked = Var(program.avals.len() as u32);
    program.avals.push(Aval { shape: shape.clone(), ..tracer.aval.clone() });
    program.eqns.push(Eqn {
        primitive: Arc::new(Reshape { shape }),
        inputs: smallvec![Atom::Var(tracer.var)],
        outputs: smallvec![stacked],
        source: std::panic::Location::caller(),
    });
    program.outputs = vec![Atom::Var(stacked)];
    let axes: Vec<_> = varying(&program, &captures, &map)?.iter().collect();
    let mesh = map.mesh.clone();
    let spec = PartitionSpec::default().insert(0, &axes);
    let Some(all) = blocks(program, &captures, &args, *map, spec)? else { return Ok(None) };
    // Cut on the host: an operation here would be recorded in the function being traced.
    let bytes = all.to_bytes()?;
    let n = all.shape().first().copied().unwrap_or(0).max(1);
    bytes
        .chunks(bytes.len().div_ceil(n).max(1))
        .enumerate()
        .map(|(i, part)| {
            let mut rest = i;
            let mut coordinates: Vec<String> = Vec::new();
            for name in axes.iter().rev() {
                let size = mesh.axis_size(*name).unwrap_or(1);
                coordinates.push(format!("{name}={}", rest % size));
                rest /= size;
            }
            coordinates.reverse();
            Ok((coordinates.join(", "), Array::from_bytes(part, tracer.aval.dtype, &tracer.aval.shape)?))
        })
        .collect::<Result<_>>()
        .map(Some)
}

/// The axes that the value, which `program` computes, varies over.
fn varying(program: &Program, captures: &[Array], map: &ShardMap) -> Result<AxisSet> {
    Ok(map.varying(program, captures.len())?.pop().unwrap_or_default())
}

fn blocks(
    program: Program,
    captures: &[Array],
    args: &[Array],
    map: ShardMap,
    out_spec: PartitionSpec,
) -> Result<Option<Array>> {
    let Some(inputs) = known_arrays(captures.iter().chain(args))? else { return Ok(None) };
    let in_specs = captures.iter().map(|_| PartitionSpec::default()).chain(map.in_specs).collect();
    let call = ShardMap { in_specs, out_specs: vec![out_spec], body: program.simplified(), ..map };
    Ok(eager::run(Arc::new(call), &inputs)?.into_iter().next())
}

/// The arrays, with traced ones of enclosing functions replaced by their values.
fn known_arrays<'a>(arrays: impl Iterator<Item = &'a Array>) -> Result<Option<Vec<Array>>> {
    let mut out = Vec::new();
    for array in arrays {
        out.push(match &array.0 {
            Repr::Traced(t) => match value(t)? {
                Some(c) => Array(Repr::Concrete(c)),
                None => return Ok(None),
            },
            _ => array.clone(),
        });
    }
    Ok(Some(out))
}
