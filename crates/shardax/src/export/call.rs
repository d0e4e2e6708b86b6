//! The primitive that stands for an exported program.

use std::sync::Arc;

use super::program::Exchanged;
use crate::core::array::Array;
use crate::core::lower::imported::Imported;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::{Avals, BatchAxis, Dims, Outputs, Primitive, Tangents, bind};
use crate::core::program::Aval;
use crate::error::{Result, bail, err};
use crate::interpret::batching::move_batch;
use crate::ops::control_flow::map;
use crate::sharding::{Mesh, NamedSharding, Sharding};
use crate::warning;

/// Operands are the inputs of its `main`: what was captured, then the arguments that it takes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct CallExported {
    pub program: Arc<Exchanged>,
    pub mesh: Option<Mesh>,
}

/// Targets that are no computation.
const MARKS: [&str; 6] = [
    "Sharding",
    "SPMDFullToShardShape",
    "SPMDShardToFullShape",
    "LayoutConstraint",
    "annotate_device_placement",
    "shape_assertion",
];

/// Warns of kernels outside of `shard_map`: XLA knows nothing of how they could be split.
fn warn_of_kernels(name: &str, text: &str) {
    let mut within = None;
    let mut found: Vec<&str> = Vec::new();
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        match within {
            Some(of) if of == indent && line.trim_start().starts_with('}') => within = None,
            None if line.contains("sdy.manual_computation(") => within = Some(indent),
            _ => {}
        }
        let target = line.split_once("call_target_name = \"").and_then(|(_, rest)| rest.split('"').next());
        let target = target.or_else(|| line.split_once("custom_call @").and_then(|(_, rest)| rest.split('(').next()));
        if let Some(target) = target.filter(|target| within.is_none() && !MARKS.contains(target))
            && !found.contains(&target)
        {
            found.push(target);
        }
    }
    if !found.is_empty() {
        warning::warn(
            &format!(
                "{name} was exported with the kernels {}, which take and give whole arrays: where it runs on several devices, split operands are gathered, and the results stay so",
                found.join(", ")
            ),
            "call it within `shard_map`, on the part of each device, or split its results again with `with_sharding_constraint`",
        );
    }
}

impl Primitive for CallExported {
    fn name(&self) -> &'static str {
        "call_exported"
    }

    fn output_count(&self) -> usize {
        self.program.out_avals.len()
    }

    fn print_params(&self) -> String {
        format!("name={}", self.program.name)
    }

    fn infer(&self, args: &[Aval]) -> Result<Avals> {
        let program = &self.program;
        let captured = program.captures.iter().map(Array::aval);
        let wanted: Vec<Aval> = captured.chain(program.kept.iter().map(|&i| program.in_avals[i].clone())).collect();
        if args.len() != wanted.len() {
            bail!(Type, "{} takes {} operands, got {}", program.name, wanted.len(), args.len());
        }
        for (i, (arg, want)) in args.iter().zip(&wanted).enumerate() {
            if (arg.dtype, &arg.shape) != (want.dtype, &want.shape) {
                bail!(Type, "operand {i} of {} must have type {want}, got {arg}", program.name);
            }
        }
        Ok(program.out_avals.iter().cloned().collect())
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        let program = &self.program;
        let constrained = |cx: &mut Lowering, v: Value, sharding: Option<NamedSharding>| match sharding {
            Some(sharding) if cx.many_devices => {
                let aval = cx.aval(v);
                let attrs = format!("sharding = {}", cx.sharding(&sharding, aval.rank()));
                cx.op("sdy.sharding_constraint", &[v], &attrs, &aval)
            }
            _ => v,
        };
        let of_mesh = |of: &dyn Fn(&Mesh) -> Option<NamedSharding>| self.mesh.as_ref().and_then(of);
        let args: Vec<Value> = args
            .iter()
            .enumerate()
            .map(|(i, &v)| constrained(cx, v, of_mesh(&|mesh| program.in_sharding(i, mesh))))
            .collect();
        let text = program.text(cx.platform)?.clone();
        if cx.many_devices {
            warn_of_kernels(&program.name, &text);
        }
        let key = format!("{} {:?}", program.digest, cx.platform);
        let foreign = Imported { key: &key, text: &text, meshes: self.mesh.as_slice() };
        let made = cx.call_imported(&foreign, &args, outs)?;
        Ok(made
            .into_iter()
            .enumerate()
            .map(|(i, v)| constrained(cx, v, of_mesh(&|mesh| program.out_sharding(i, mesh))))
            .collect())
    }

    fn jvp(&self, _args: &[Array], _tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        let name = &self.program.name;
        Err(match self.program.vjp {
            Some(_) => err!(
                NotImplemented,
                "{name} was exported with its derivative in reverse mode, and is differentiated in forward mode"
            )
            .help("use `grad` or `vjp`"),
            None => err!(NotImplemented, "{name} was exported without its derivative")
                .help("export it with `ExportOptions::new().vjp_order(1)`; of order 2 the derivative has one too"),
        })
    }

    /// One after the other: a program is for these shapes.
    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        let moved: Vec<Array> =
            args.iter().zip(dims).filter(|(_, d)| d.is_some()).map(|(x, d)| move_batch(x, *d, 0, axis.size)).collect();
        let one = |rows: Vec<Array>| -> Vec<Array> {
            let mut rows = rows.into_iter();
            let all: Vec<Array> =
                args.iter().zip(dims).map(|(x, d)| d.and_then(|_| rows.next()).unwrap_or_else(|| x.clone())).collect();
            bind(self.clone(), &all).into_vec()
        };
        let outs = map(one, moved)?;
        let dims = vec![Some(0); outs.len()];
        Ok((outs.into(), dims))
    }

    fn placed_on(&self) -> Option<Sharding> {
        let mesh = self.mesh.as_ref()?;
        Some(Sharding::Named(NamedSharding::new(mesh, Default::default())))
    }

    fn in_sharding(&self, operand: usize, _aval: &Aval) -> Option<Sharding> {
        self.program.in_sharding(operand, self.mesh.as_ref()?).map(Sharding::Named)
    }

    fn out_sharding(&self, result: usize, _aval: &Aval) -> Option<NamedSharding> {
        self.program.out_sharding(result, self.mesh.as_ref()?)
    }
}
