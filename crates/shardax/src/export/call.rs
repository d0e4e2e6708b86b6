//! The primitive that calls an exported program.

use std::path::Path;
use std::sync::Arc;

use super::jax::in_program;
use super::program::Exchanged;
use crate::backend::{CallFile, ExportedFile};
use crate::core::array::Array;
use crate::core::lower::imported::Imported;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::{Avals, BatchAxis, Dims, Outputs, Primitive, ShardingRule, Tangents, TypedOuts, bind};
use crate::core::program::Aval;
use crate::error::{Result, bail, err};
use crate::ops::control_flow::map;
use crate::random::{key_data, wrap_key_data};
use crate::sharding::{AbstractMesh, Mesh, NamedSharding, Sharding, get_abstract_mesh};
use crate::warning;

/// The call of an exported program. Operands are the inputs of its `main`: captured values, then the arguments that the
/// program uses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct CallExported {
    pub program: Arc<Exchanged>,
    pub mesh: Option<Mesh>,
    /// `true` if the program runs on the devices of this mesh; otherwise it runs on the devices of the calling program.
    pub has_devices: bool,
}

/// Targets that do not compute.
const MARKER_TARGETS: [&str; 6] = [
    "Sharding",
    "SPMDFullToShardShape",
    "SPMDShardToFullShape",
    "LayoutConstraint",
    "annotate_device_placement",
    "shape_assertion",
];

/// Returns `true` for kernels that JAX does not let the compiler split either: Pallas kernels for TPUs and GPUs, and
/// cuDNN's attention.
fn is_fused(target: &str) -> bool {
    target.contains("mosaic")
        || target.contains("triton")
        || target.starts_with("__cudnn$")
        || target == "tpu_custom_call"
}

/// Finds kernels outside of `shard_map` that XLA does not know how to split. Fused kernels are an error, and others a
/// warning.
fn check_kernels(name: &str, text: &str) -> Result<()> {
    let mut manual_indent = None;
    let mut targets: Vec<&str> = Vec::new();
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        // `sdy.manual_computation` is the body of a `shard_map`: its kernels run on the part of each device.
        match manual_indent {
            Some(open_indent) if open_indent == indent && line.trim_start().starts_with('}') => manual_indent = None,
            None if line.contains("sdy.manual_computation(") => manual_indent = Some(indent),
            _ => {}
        }
        let target = line.split_once("call_target_name = \"").and_then(|(_, rest)| rest.split('"').next());
        let target = target.or_else(|| line.split_once("custom_call @").and_then(|(_, rest)| rest.split('(').next()));
        if let Some(target) = target.filter(|target| manual_indent.is_none() && !MARKER_TARGETS.contains(target))
            && !targets.contains(&target)
        {
            targets.push(target);
        }
    }
    let names = targets.join(", ");
    if targets.iter().any(|target| is_fused(target)) {
        return Err(err!(
            NotImplemented,
            "{name} was exported with the kernels {names}, which cannot be automatically partitioned: split operands would be gathered"
        )
        .help("call it within `shard_map`, on the part of each device"));
    }
    if !targets.is_empty() {
        warning::warn(
            &format!(
                "{name} was exported with the kernels {names}, which read and return entire arrays: on several devices, split operands are gathered, and the results are replicated"
            ),
            "call it within `shard_map`, on the part of each device, or split its results again with `with_sharding_constraint`",
        );
    }
    Ok(())
}

/// Calls a program whose `main` takes and returns the words of random keys.
fn call_with_words(cx: &mut Lowering, program: &Imported, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
    let words = args.iter().map(|&v| if cx.dtype(v).is_key() { expanded(cx, v, |keys| key_data(keys)) } else { Ok(v) });
    let words: Vec<Value> = words.collect::<Result<_>>()?;
    let results = cx.call_imported(program, &words, &outs.iter().map(in_program).collect::<Vec<_>>())?;
    let keys = results
        .into_iter()
        .zip(outs)
        .map(|(v, out)| if out.dtype.is_key() { expanded(cx, v, |words| wrap_key_data(words)) } else { Ok(v) });
    keys.collect()
}

/// Lowers a function of one array.
fn expanded(cx: &mut Lowering, v: Value, f: fn(&Array) -> Array) -> Result<Value> {
    Ok(cx.expand(&[v], |x| Ok(vec![f(&x[0])]))?[0])
}

/// Constrains a value to a sharding, if the program runs on several devices.
fn constrained(cx: &mut Lowering, v: Value, sharding: Option<NamedSharding>) -> Value {
    match sharding {
        Some(sharding) if cx.many_devices => {
            let aval = cx.aval(v);
            let attrs = format!("sharding = {}", cx.sharding(&sharding, aval.rank()));
            cx.op("sdy.sharding_constraint", &[v], &attrs, &aval)
        }
        _ => v,
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

    fn accepts_keys(&self) -> bool {
        true
    }

    fn infer(&self, args: &[Aval]) -> Result<Avals> {
        let program = &self.program;
        let captured = program.captures.iter().map(Array::aval);
        let expected: Vec<Aval> = captured.chain(program.kept.iter().map(|&i| program.in_avals[i].clone())).collect();
        if args.len() != expected.len() {
            bail!(Type, "{} takes {} operands, got {}", program.name, expected.len(), args.len());
        }
        for (i, (arg, expected_type)) in args.iter().zip(&expected).enumerate() {
            if (arg.dtype, &arg.shape) != (expected_type.dtype, &expected_type.shape) {
                bail!(Type, "operand {i} of {} must have type {expected_type}, got {arg}", program.name);
            }
        }
        let typed = self.enters_mesh().is_some();
        Ok(program.out_avals.iter().map(|aval| if typed { aval.clone() } else { aval.with_sharding(None) }).collect())
    }

    /// Over the mesh that the program was exported for, results have the program's types. Over another mesh they are
    /// replicated.
    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        match self.enters_mesh() {
            Some(_) => rule.from_results(),
            None => rule.replicated(),
        }
    }

    fn enters_mesh(&self) -> Option<AbstractMesh> {
        let mesh = self.program.explicit_mesh()?;
        get_abstract_mesh().is_none_or(|context| context == mesh).then_some(mesh)
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        let program = &self.program;
        let args = args.iter().enumerate().map(|(i, &v)| {
            let sharding = self.mesh.as_ref().and_then(|mesh| program.in_sharding(i, mesh));
            constrained(cx, v, sharding)
        });
        let args: Vec<Value> = args.collect();
        let text = program.text(cx.platform)?.clone();
        // Within `shard_map` each device runs the kernels on its part.
        if !cx.is_local() {
            check_kernels(&program.name, &text)?;
        }
        let key = format!("{} {:?}", program.digest, cx.platform);
        let meshes = self.mesh.as_ref().map_or_else(|| Ok(Vec::new()), |mesh| program.text_meshes(mesh))?;
        let foreign = Imported { key: &key, text: &text, meshes: &meshes };
        let results = if program.keys_are_words {
            call_with_words(cx, &foreign, &args, outs)?
        } else {
            cx.call_imported(&foreign, &args, outs)?
        };
        let results = results.into_iter().enumerate().map(|(i, v)| {
            let sharding = self.mesh.as_ref().and_then(|mesh| program.out_sharding(i, mesh));
            constrained(cx, v, sharding)
        });
        Ok(results.collect())
    }

    fn jvp(&self, _args: &[Array], _tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        let name = &self.program.name;
        Err(match self.program.vjp {
            Some(_) => err!(
                NotImplemented,
                "{name} was exported with its derivative in reverse mode, but is differentiated in forward mode"
            )
            .help("differentiate in reverse mode, with `grad` or `vjp`"),
            None => err!(NotImplemented, "{name} was exported without its derivative")
                .help("export it with `ExportOptions::new().vjp_order(1)`; of order 2 the derivative has one too"),
        })
    }

    /// Calls the program once per entry, because it has fixed shapes.
    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        let moved: Vec<Array> =
            args.iter().zip(dims).filter(|(_, d)| d.is_some()).map(|(x, d)| axis.moved(x, *d, 0)).collect();
        let outs = map(
            |rows: Vec<Array>| -> Vec<Array> {
                let mut rows = rows.into_iter();
                let operands: Vec<Array> = args
                    .iter()
                    .zip(dims)
                    .map(|(x, d)| d.and_then(|_| rows.next()).unwrap_or_else(|| x.clone()))
                    .collect();
                bind(self.clone(), &operands).into_vec()
            },
            moved,
        )?;
        let dims = vec![Some(0); outs.len()];
        Ok((outs.into(), dims))
    }

    fn placed_on(&self) -> Option<Sharding> {
        self.has_devices.then(|| self.placed_by_default()).flatten()
    }

    fn placed_by_default(&self) -> Option<Sharding> {
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

impl CallFile for ExportedFile {
    fn call(path: &Path, cx: &mut Lowering, args: &[Value]) -> Result<Vec<Value>> {
        call_file(path, cx, args).map_err(|e| e.context(path.display()))
    }
}

fn call_file(path: &Path, cx: &mut Lowering, args: &[Value]) -> Result<Vec<Value>> {
    let bytes = std::fs::read(path).map_err(|e| err!(Runtime, "{e}"))?;
    let program = Arc::new(Exchanged::from_bytes(&bytes)?);
    let operands: Option<Vec<Value>> = program.kept.iter().map(|&i| args.get(i).copied()).collect();
    let operands = operands.filter(|_| args.len() == program.in_avals.len() && program.captures.is_empty());
    let operands = operands.ok_or_else(|| {
        err!(Type, "the exported function has {} parameters, but got {} arrays", program.in_avals.len(), args.len())
    })?;
    let call = CallExported { program, mesh: None, has_devices: false };
    let outs = call.infer(&operands.iter().map(|&arg| cx.aval(arg)).collect::<Vec<_>>())?;
    call.lower(cx, &operands, &outs)
}
