//! Attention in programs that the compiler splits over devices. The compiler cannot look into a fused kernel, so it
//! would gather the operands. Instead, each device runs the kernel on its part of the batch and of the heads.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use crate::core::lower::{Lowering, Value};
use crate::core::primitive::{Primitive, bind};
use crate::core::program::Aval;
use crate::core::program::trace::trace;
use crate::error::{Result, err};
use crate::ops::collective::psum;
use crate::ops::primitive::attention::derivative::AttentionGradient;
use crate::ops::primitive::attention::{Attention, Implementation, Operands};
use crate::ops::shard_map::ShardMap;
use crate::shape::{AxisName, AxisSet};
use crate::sharding::{DimSpec, Mesh, NamedSharding, PartitionSpec};
use crate::warning::warn;

/// Returns `true` for a single query, as in a decoder that computes one token at a time. Kernels for many queries are
/// not faster then.
pub(super) fn is_of_one_query(cx: &Lowering, args: &[Value]) -> bool {
    cx.shape(args[0]).iter().nth_back(2) == Some(&1)
}

/// An implementation by fused kernels.
pub(super) struct Fused {
    /// The name of the kernels in messages.
    pub name: &'static str,
    pub implementation: Implementation,
}

impl Fused {
    /// Reports, once for each reason, why these kernels cannot compute this attention. Returns an error if the user
    /// requested them.
    pub fn lacks(&self, of: &Attention, cx: &Lowering, args: &[Value], reason: &str) -> Result<Option<Vec<Value>>> {
        let types: Vec<String> = args[..3].iter().map(|&x| cx.aval(x).to_string()).collect();
        let message = format!("{} does not compute attention of {}: {reason}", self.name, types.join(", "));
        if of.implementation == Some(self.implementation) {
            return Err(err!(NotImplemented, "{message}")
                .help("leave `implementation` unset, or change what the message names"));
        }
        // Each message is given once, because a model lowers the same attention many times.
        static WARNED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
        if WARNED.lock().unwrap_or_else(PoisonError::into_inner).insert(message.clone()) {
            warn(
                &message,
                "XLA's operations compute it, with more memory and time; `Implementation::Xla` chooses these",
            );
        }
        Ok(None)
    }

    /// Lowers attention in a program that the compiler splits.
    pub fn forward_of_parts(
        &self,
        of: &Attention,
        cx: &mut Lowering,
        args: &[Value],
        outs: &[Aval],
    ) -> Result<Option<Vec<Value>>> {
        let out_forms = [Form::Output, Form::PerQuery, Form::PerQuery];
        self.call_on_parts(of, self.on_one_device(of), cx, (args, &forms(of)), (outs, &out_forms[..outs.len()]))
    }

    /// Lowers the gradient of attention in a program that the compiler splits.
    pub fn backward_of_parts(
        &self,
        gradient: &AttentionGradient,
        cx: &mut Lowering,
        args: &[Value],
        outs: &[Aval],
    ) -> Result<Option<Vec<Value>>> {
        let attention = &gradient.of;
        let per_device = AttentionGradient { of: self.on_one_device(attention), ..*gradient };
        let more = [Form::Output, Form::PerQuery, Form::PerQuery, Form::Output];
        let of_sum = gradient.of_sum.then_some(Form::PerQuery);
        let operand_forms: Vec<Form> = forms(attention).into_iter().chain(more).chain(of_sum).collect();
        let out_forms = [Form::Output, Form::Output, Form::Output, Form::Scores];
        self.call_on_parts(attention, per_device, cx, (args, &operand_forms), (outs, &out_forms[..outs.len()]))
    }

    /// The attention of a device's part.
    fn on_one_device(&self, of: &Attention) -> Attention {
        of.clone().sharding(None).implementation(Some(self.implementation))
    }

    fn call_on_parts(
        &self,
        of: &Attention,
        alone: impl Primitive + Clone + 'static,
        cx: &mut Lowering,
        args: (&[Value], &[Form]),
        outs: (&[Aval], &[Form]),
    ) -> Result<Option<Vec<Value>>> {
        let Some(sharding) = known_sharding(of, cx, args.0[0]) else {
            let reason = "the compiler chooses the sharding of the batch and heads of `q`: set `out_sharding`, or call it in a shard_map";
            return self.lacks(of, cx, args.0, reason);
        };
        match lower(alone, &sharding, cx, args, outs)? {
            Ok(made) => Ok(Some(made)),
            Err(reason) => self.lacks(of, cx, args.0, &reason),
        }
    }
}

/// The relation of an operand or a result to batch and heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// `[..., positions, heads, depth]`.
    Output,
    /// `[..., heads, queries]`.
    PerQuery,
    /// `[..., heads, queries, keys]`, where dimensions can be 1.
    Scores,
    /// `[...]`, or `[..., positions]`.
    Batch,
}

impl Form {
    /// Returns how a value is split, for queries with these specs of the batch and the heads.
    fn spec(self, shape: &[usize], batch: &[DimSpec], heads: &DimSpec) -> PartitionSpec {
        let of_batch = batch.iter().zip(shape).map(|(spec, &n)| if n == 1 { DimSpec::None } else { spec.clone() });
        let of_others = match self {
            Form::Output => vec![DimSpec::None, heads.clone(), DimSpec::None],
            Form::PerQuery => vec![heads.clone(), DimSpec::None],
            Form::Scores if shape[batch.len()] == 1 => vec![DimSpec::None; 3],
            Form::Scores => vec![heads.clone(), DimSpec::None, DimSpec::None],
            Form::Batch => vec![DimSpec::None; shape.len() - batch.len()],
        };
        PartitionSpec::new(of_batch.chain(of_others))
    }
}

/// The forms of the operands of attention.
fn forms(of: &Attention) -> Vec<Form> {
    let present = of.present;
    let operands = Operands {
        bias: present.bias.then_some(Form::Scores),
        mask: present.mask.then_some(Form::Scores),
        query_lengths: present.query_lengths.then_some(Form::Batch),
        key_lengths: present.key_lengths.then_some(Form::Batch),
        segments: present.segments.then_some([Form::Batch; 2]),
        ..Operands::new(&Form::Output, &Form::Output, &Form::Output)
    };
    operands.flat()
}

/// Returns the sharding of the queries, if it is known.
fn known_sharding(of: &Attention, cx: &Lowering, q: Value) -> Option<NamedSharding> {
    of.sharding.clone().or_else(|| {
        let typed = cx.typed(q)?;
        let mesh = cx.auto_mesh.as_ref().filter(|mesh| mesh.axes() == typed.mesh().axes())?;
        Some(NamedSharding::new(mesh, typed.spec()))
    })
}

/// Lowers `primitive` as a manual computation over batch and heads. `Err` contains the reason why this is impossible,
/// for people.
fn lower(
    primitive: impl Primitive + Clone + 'static,
    sharding: &NamedSharding,
    cx: &mut Lowering,
    (args, forms): (&[Value], &[Form]),
    (outs, out_forms): (&[Aval], &[Form]),
) -> Result<std::result::Result<Vec<Value>, String>> {
    let mesh: &Mesh = sharding.mesh();
    let rank = cx.shape(args[0]).len();
    let mut dims = sharding.spec().dims().to_vec();
    dims.resize(rank, DimSpec::default());
    if !dims[rank - 3].axes().is_empty() || !dims[rank - 1].axes().is_empty() {
        return Ok(Err(format!("its sharding {} splits positions or depths", sharding.spec())));
    }
    if cx.auto_mesh.as_ref().is_some_and(|known| known.axes() != mesh.axes()) {
        return Ok(Err("its sharding is over another mesh than the program's".to_owned()));
    }
    if cx.manual_mesh.is_some() {
        return Ok(Err("it is in a shard_map over some of the mesh's axes".to_owned()));
    }
    let (batch, heads) = (&dims[..rank - 3], &dims[rank - 2]);
    let in_avals: Vec<Aval> = args.iter().map(|&v| cx.aval(v)).collect();
    let in_specs: Vec<PartitionSpec> =
        in_avals.iter().zip(forms).map(|(a, form)| form.spec(&a.shape, batch, heads)).collect();
    let out_specs: Vec<PartitionSpec> =
        outs.iter().zip(out_forms).map(|(a, form)| form.spec(&a.shape, batch, heads)).collect();
    let manual: Vec<AxisName> = mesh.axis_names().collect();
    let blocks: Result<Vec<Aval>> = in_specs
        .iter()
        .zip(&in_avals)
        .map(|(spec, aval)| ShardMap::shard_aval(mesh, &manual, spec, aval, false))
        .collect();
    let blocks = match blocks {
        Ok(blocks) => blocks,
        Err(error) => return Ok(Err(error.to_string().lines().next().unwrap_or_default().to_owned())),
    };
    // A value that is shared by all entries of a batch, or by all heads, has a cotangent that is summed over their
    // devices.
    let split: AxisSet = in_specs[0].all_axes().collect();
    let sums: Vec<Vec<AxisName>> = out_specs
        .iter()
        .map(|spec| {
            let out_axes: AxisSet = spec.all_axes().collect();
            split.minus(&out_axes).iter().collect()
        })
        .collect();
    let traced = ShardMap::bind_axes(mesh, &manual, false, || {
        trace(&blocks, |args| {
            let outs = bind(primitive, args).into_iter().zip(&sums);
            Ok(outs.map(|(out, axes)| if axes.is_empty() { out } else { psum(out, axes.as_slice()) }).collect())
        })
    })?;
    let body = traced.program.simplified();
    let map = ShardMap { mesh: mesh.clone(), manual, in_specs, out_specs, checked: false, body };
    Arc::new(map).lower(cx, args, outs).map(Ok)
}
