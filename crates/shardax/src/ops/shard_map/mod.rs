//! The primitive behind `shard_map` and `pmap`: a program that each device runs on its local shards of the arguments.

mod rules;

use std::sync::Arc;

use smallvec::SmallVec;

use crate::core::lower::{Lowering, Value};
use crate::core::program::{Aval, Program};
use crate::error::{Result, err};
use crate::scope::Part;
use crate::shape::{AxisName, AxisSet, Shape};
use crate::sharding::axis_env::{AxisKind, BoundAxis, is_spmd, with_axes};
use crate::sharding::context::with_manual;
use crate::sharding::typed::entry;
use crate::sharding::{Mesh, NamedSharding, PartitionSpec, Typed, get_abstract_mesh};

/// A program that every device of a mesh runs on its local shards of the operands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ShardMap {
    pub mesh: Mesh,
    /// The manual axes, over which the program is run device by device; the others are left to the compiler.
    pub manual: Vec<AxisName>,
    pub in_specs: Vec<PartitionSpec>,
    pub out_specs: Vec<PartitionSpec>,
    /// `true` if types in the body track the axes that values vary over.
    pub checked: bool,
    pub body: Program,
}

impl ShardMap {
    /// Returns the manual axes.
    pub fn axes(&self) -> impl Iterator<Item = AxisName> + '_ {
        self.manual.iter().copied()
    }

    /// A copy with an empty program, to be replaced.
    fn without_body(&self) -> ShardMap {
        ShardMap {
            mesh: self.mesh.clone(),
            manual: self.manual.clone(),
            in_specs: Vec::new(),
            out_specs: Vec::new(),
            checked: self.checked,
            body: Program::default(),
        }
    }

    /// Runs `f`, which traces a body, with the axes bound.
    pub fn bind_axes<R>(mesh: &Mesh, manual: &[AxisName], checked: bool, f: impl FnOnce() -> R) -> R {
        let bound = mesh
            .axes()
            .iter()
            .filter(|(name, _)| manual.contains(name))
            .map(|&(name, size)| BoundAxis { name, size, kind: AxisKind::Manual { checked, mesh: mesh.clone() } })
            .collect();
        with_axes(bound, f)
    }

    /// Returns the type of a local shard of a value.
    pub fn shard_aval(
        mesh: &Mesh,
        manual: &[AxisName],
        spec: &PartitionSpec,
        aval: &Aval,
        checked: bool,
    ) -> Result<Aval> {
        let shape = NamedSharding::new(mesh, spec.clone()).shard_shape(&aval.shape)?;
        let vma = if checked { aval.vma.union(&spec.all_axes().collect()) } else { AxisSet::default() };
        // The type of a block has no manual axes. It keeps the sharding over the other axes.
        let sharding = aval.sharding().and_then(|typed| {
            let mesh = with_manual(typed.mesh(), &manual.iter().copied().collect());
            let free = typed.dims().iter().map(|e| entry(e.axes().iter().copied().filter(|n| !manual.contains(n))));
            let inside = Typed::from_dims(&mesh, free.collect());
            let inside = if checked {
                inside.with_kind(spec.kind()).with_partial(spec.unreduced_axes().clone(), spec.reduced_axes().clone())
            } else {
                inside
            };
            (mesh.has_explicit() || inside.is_partial()).then(|| Arc::new(inside))
        });
        Ok(Aval { shape, vma, sharding, ..aval.clone() })
    }

    /// Returns the type of the global value with local shards of this type.
    pub fn unshard_aval(&self, spec: &PartitionSpec, block: &Aval) -> Result<Aval> {
        if spec.len() > block.rank() {
            return Err(err!(
                Value,
                "shard_map applied to a function was given an out_specs entry which is too long to be compatible with the corresponding output value: {spec} has {} entries, but the output {block} has rank {}",
                spec.len(),
                block.rank()
            )
            .help(if block.rank() == 0 {
                "a scalar output can only have the spec P![]; give it a dimension with `expand_dims(0)` to stack one per device"
            } else {
                "shorten the spec, or give the output more dimensions"
            }));
        }
        let shape: Shape = block
            .shape
            .iter()
            .enumerate()
            .map(|(d, &n)| Ok(n * self.mesh.axes_size(spec.axes(d))?))
            .collect::<Result<_>>()?;
        let vma = block.vma.minus(&self.axes().collect());
        let context = get_abstract_mesh().filter(|mesh| mesh.axes() == self.mesh.axes());
        let outer = context.as_ref().unwrap_or(self.mesh.abstract_mesh());
        // Outside, a dimension is split over the axes of the spec, and then over the axes that split the block.
        let dims = (0..block.rank()).map(|d| {
            let block_axes = block.sharding().map_or(&[][..], |typed| typed.dims()[d].axes());
            entry(spec.axes(d).iter().chain(block_axes).copied())
        });
        let joined = PartitionSpec::new(dims).with_partial_of(spec);
        let sharding = outer.has_explicit().then(|| Arc::new(Typed::from_spec(outer, &joined, block.rank())));
        Ok(Aval { shape, vma, sharding, ..block.clone() })
    }

    /// The axes that a spec does not name: all devices along them hold one value, unless they hold different
    /// entries of a batch.
    fn unmentioned(&self, spec: &PartitionSpec) -> SmallVec<[AxisName; 2]> {
        let named = spec.varying();
        self.axes().filter(|n| !named.contains(*n) && !is_spmd(*n)).collect()
    }

    /// Returns the shardings of values with these specs and ranks, as Shardy's attribute.
    fn sdy_shardings<'a>(
        &self,
        mesh_name: &str,
        is_open: bool,
        values: impl Iterator<Item = (&'a PartitionSpec, usize)>,
    ) -> String {
        let texts = values.map(|(spec, rank)| {
            let sharding = NamedSharding::new(&self.mesh, spec.clone());
            let text = if is_open { sharding.sdy_open(mesh_name, rank) } else { sharding.sdy(mesh_name, rank) };
            text.trim_start_matches("#sdy.sharding").to_owned()
        });
        format!("#sdy.sharding_per_value<[{}]>", texts.collect::<Vec<_>>().join(", "))
    }

    fn lower_call(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        if self.mesh.size() == 1 {
            // The shard of the only device is the entire value, so there is nothing to partition.
            let part = Some(Part::Name("shard_map".into()));
            return self.in_manual(cx, |cx| cx.named(part, |cx| cx.program(&self.body, args)));
        }
        let name = cx.mesh_name(&self.mesh);
        // The compiler decides how local shards are split over axes left to it.
        let mut axes = self.mesh.axis_names();
        let is_open = !axes.all(|axis| self.axes().any(|name| name == axis) || cx.manual_axes.contains(&axis));
        let in_ranks = args.iter().map(|&v| cx.shape(v).len());
        let in_shardings = self.sdy_shardings(&name, is_open, self.in_specs.iter().zip(in_ranks));
        let out_shardings = self.sdy_shardings(&name, is_open, self.out_specs.iter().zip(outs.iter().map(Aval::rank)));
        let axes: Vec<String> = self.axes().map(|n| self.mesh.axis_text(n)).collect();
        let attrs = format!(
            "in_shardings = {in_shardings}, manual_axes = #sdy<manual_axes{{{}}}>, out_shardings = {out_shardings}",
            axes.join(", ")
        );
        let blocks: Vec<Aval> = self.body.in_avals().cloned().collect();
        let region = self.in_manual(cx, |cx| {
            cx.region_returning("sdy.return", &blocks, |cx, args| {
                cx.named_in_function(|cx| cx.program(&self.body, args))
            })
        })?;
        Ok(cx.op_with("sdy.manual_computation", args, &attrs, vec![region], outs))
    }

    /// Writes text with the axes manual.
    fn in_manual<R>(&self, cx: &mut Lowering, f: impl FnOnce(&mut Lowering) -> R) -> R {
        let manual_axes = self.axes().chain(cx.manual_axes.iter().copied()).collect();
        let outer = (cx.manual_mesh.replace(self.mesh.clone()), std::mem::replace(&mut cx.manual_axes, manual_axes));
        let result = f(cx);
        (cx.manual_mesh, cx.manual_axes) = outer;
        result
    }
}
