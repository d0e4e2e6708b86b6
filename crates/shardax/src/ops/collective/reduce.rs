//! Collectives that combine or spread values over named axes: all-reduce, all-gather, reduce-scatter, casts.

use smallvec::{SmallVec, smallvec};

use super::{mapped, ordered};
use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::{BatchAxis, Dims, Operand, Outputs, Primitive, Tangents};
use crate::core::program::Aval;
use crate::core::program::trace::bind1;
use crate::dtype::DType;
use crate::error::{Result, bail, err};
use crate::interpret::batching::move_batch;
use crate::ops::lax;
use crate::ops::primitive::elementwise::Accepts;
use crate::ops::primitive::reduce::Reducer;
use crate::shape::{AxisName, AxisSet};
use crate::sharding::Mesh;
use crate::sharding::axis_env::{self, AxisKind};

pub(crate) type Names = SmallVec<[AxisName; 2]>;

/// The axes that a collective works over, as bound where it is called.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Axes {
    pub names: Names,
    /// The number of participants, or of those in a group; 0 where groups differ in size.
    pub size: usize,
    /// Whether types track what varies over them.
    pub checked: bool,
    /// Those among them that a mesh has: the others are mapped by `vmap`.
    pub manual: AxisSet,
    /// The groups that communication stays within; all participants where there are none.
    pub groups: Option<Vec<Vec<usize>>>,
}

impl Axes {
    /// These axes of a mesh, without groups; their size does not matter to a sum.
    pub fn summed(names: Names, checked: bool) -> Axes {
        let manual = names.iter().copied().collect();
        Axes { names, size: 0, checked, manual, groups: None }
    }

    /// Cuts the axes into groups, checked to hold every index once.
    pub fn with_groups(mut self, groups: Option<Vec<Vec<usize>>>) -> Result<Axes> {
        let Some(groups) = groups else { return Ok(self) };
        let mut all: Vec<usize> = groups.iter().flatten().copied().collect();
        all.sort_unstable();
        if !all.iter().copied().eq(0..self.size) {
            return Err(err!(
                Value,
                "axis_index_groups must cover all indices exactly once: {groups:?} for an axis of size {}",
                self.size
            )
            .help("name every index from 0 to the size of the axis in one group"));
        }
        let first = groups.first().map_or(0, Vec::len);
        self.size = if groups.iter().all(|g| g.len() == first) { first } else { 0 };
        self.groups = Some(groups);
        Ok(self)
    }

    /// The size of every group, or what `operation` cannot do with groups of different sizes.
    pub fn even_size(&self, operation: &str) -> Result<usize> {
        match self.size {
            0 => Err(err!(Value, "{operation} needs axis_index_groups of one size, got {:?}", self.groups)
                .help("give all groups as many members: the shape of the result depends on it")),
            n => Ok(n),
        }
    }

    /// Fails where the axes are cut into groups.
    pub fn no_groups(&self, operation: &str) -> Result<()> {
        match &self.groups {
            None => Ok(()),
            Some(groups) => Err(err!(Value, "{operation} takes no axis_index_groups, got {groups:?}")
                .help("name the axis alone; indices are those along the whole axis")),
        }
    }

    /// The participants that communicate, as positions in the mesh.
    pub fn mesh_groups(&self, mesh: &Mesh) -> Vec<Vec<usize>> {
        let whole = mesh.groups(&self.names);
        match &self.groups {
            None => whole,
            Some(groups) => {
                whole.iter().flat_map(|w| groups.iter().map(|g| g.iter().map(|&i| w[i]).collect())).collect()
            }
        }
    }

    /// Looks the names up; `operation` is for the error of a name that is not bound.
    pub fn bound(names: &[AxisName], operation: &str) -> Result<Axes> {
        let mut axes = Axes { names: Names::new(), size: 1, checked: false, manual: AxisSet::default(), groups: None };
        for &name in names {
            let found = axis_env::lookup(name, operation)?;
            if axes.names.contains(&name) {
                return Err(err!(Value, "{operation} got the axis {name:?} twice").help("name each axis once"));
            }
            axes.names.push(name);
            axes.size *= found.size;
            if let AxisKind::Manual { checked, .. } = found.kind {
                axes.manual.insert(name);
                axes.checked |= checked;
            }
        }
        Ok(axes)
    }

    /// Applies a collective over these axes; where types are tracked, to a value that varies over them.
    #[track_caller]
    pub fn bind(&self, collective: impl Primitive + 'static, x: &Array) -> Array {
        let x = if self.checked { x.varying_over(&self.set()) } else { x.clone() };
        bind1(collective, &[x])
    }

    /// The axes over which what each participant has may differ from device to device.
    pub fn set(&self) -> AxisSet {
        self.manual.clone()
    }

    /// The axes that `vmap` maps, over which types say nothing.
    fn mapped(&self) -> Option<Axes> {
        let names: Names = self.names.iter().copied().filter(|n| !self.manual.contains(*n)).collect();
        (!names.is_empty()).then(|| Axes { names, checked: false, manual: AxisSet::default(), ..self.clone() })
    }

    /// The axes but one, which is handled apart; `None` when none is left.
    pub fn without(&self, axis: &BatchAxis) -> Option<Axes> {
        let names: Names = self.names.iter().copied().filter(|n| Some(*n) != axis.name).collect();
        (!names.is_empty()).then(|| Axes { names, size: self.size / axis.size, ..self.clone() })
    }

    /// The axes one by one; the mapped one is not bound any more.
    pub fn each(&self, mapped: &BatchAxis) -> Result<Vec<Axes>> {
        let one = |&name: &AxisName| {
            let manual: AxisSet = self.manual.iter().filter(|n| *n == name).collect();
            Ok(Axes {
                size: if mapped.name == Some(name) { mapped.size } else { axis_env::lookup(name, "it")?.size },
                checked: self.checked && !manual.is_empty(),
                names: smallvec![name],
                manual,
                groups: None,
            })
        };
        self.names.iter().map(one).collect()
    }

    pub fn has(&self, name: Option<AxisName>) -> bool {
        name.is_some_and(|n| self.names.contains(&n))
    }

    /// The groups of participants and a channel, as attributes.
    fn attrs(&self, cx: &mut Lowering, group_attr: &str) -> Result<String> {
        let groups = self.mesh_groups(&mesh(cx)?);
        Ok(format!("{}, {}", channel(cx), groups_text(group_attr, &groups)))
    }

    pub fn print(&self) -> String {
        let names: Vec<_> = self.names.iter().map(|n| n.as_str()).collect();
        let groups = self.groups.as_ref().map(|g| format!(" groups={g:?}")).unwrap_or_default();
        format!("axes=({}){groups}", names.join(","))
    }
}

pub(crate) fn mesh(cx: &Lowering) -> Result<Mesh> {
    cx.manual_mesh.clone().ok_or_else(|| err!(Runtime, "a collective was lowered outside of shard_map"))
}

pub(crate) fn channel(cx: &mut Lowering) -> String {
    format!("channel_handle = #stablehlo.channel_handle<handle = {}, type = 1>", cx.channel())
}

/// `replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>`
pub(crate) fn groups_text(attr: &str, groups: &[Vec<usize>]) -> String {
    // Rows of one length: shorter groups are filled with -1.
    let width = groups.iter().map(Vec::len).max().unwrap_or(0);
    let rows: Vec<String> = groups
        .iter()
        .map(|g| {
            let padded = g.iter().map(|p| p.to_string()).chain(std::iter::repeat_n("-1".to_owned(), width - g.len()));
            format!("[{}]", padded.collect::<Vec<_>>().join(", "))
        })
        .collect();
    format!("{attr} = dense<[{}]> : tensor<{}x{width}xi64>", rows.join(", "), groups.len())
}

/// What tracing and the interpreters need of collectives, to keep types right.
impl Array {
    /// The same, as varying over `axes` besides what it varies over.
    pub(crate) fn varying_over(&self, axes: &AxisSet) -> Array {
        let missing: Names = axes.minus(&self.vma()).iter().collect();
        if missing.is_empty() { self.clone() } else { bind1(Pcast { axes: missing }, std::slice::from_ref(self)) }
    }

    /// The same, as varying over exactly `axes`: cast where it varies over fewer, summed where over more. For cotangents.
    pub(crate) fn varying_as(&self, axes: &AxisSet) -> Array {
        let vma = self.vma();
        if vma == *axes {
            return self.clone();
        }
        let extra: Names = vma.minus(axes).iter().collect();
        let x = match extra.is_empty() {
            true => self.clone(),
            false => AllReduce { reducer: Reducer::Sum, axes: Axes::summed(extra, true) }.apply(self),
        };
        x.varying_over(axes)
    }
}

/// Marks a value that is equal on all devices as one that may vary. No communication; its transpose is a sum.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Pcast {
    pub axes: Names,
}

impl Primitive for Pcast {
    fn name(&self) -> &'static str {
        "pcast"
    }

    fn print_params(&self) -> String {
        format!("axes=({}) to=varying", self.axes.iter().map(|n| n.as_str()).collect::<Vec<_>>().join(","))
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        Ok(smallvec![args[0].clone()])
    }

    fn vary(&self, args: &[AxisSet]) -> Result<SmallVec<[AxisSet; 1]>> {
        Ok(smallvec![args[0].union(&self.axes.iter().copied().collect())])
    }

    fn casts_operands(&self) -> bool {
        false
    }

    fn lower(&self, _cx: &mut Lowering, args: &[Value], _outs: &[Aval]) -> Result<Vec<Value>> {
        Ok(args.to_vec())
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        let out = bind1(self.clone(), args);
        Ok((smallvec![out], vec![tangents[0].as_ref().map(|t| bind1(self.clone(), std::slice::from_ref(t)))]))
    }

    fn transpose(&self, cts: &[Option<Array>], args: &[Operand]) -> Result<Tangents> {
        // Over axes that the operand varied over already, nothing was cast.
        let before = args[0].aval().vma;
        let cast: Names = self.axes.iter().copied().filter(|n| !before.contains(*n)).collect();
        if cast.is_empty() {
            return Ok(cts.to_vec());
        }
        let sum = AllReduce { reducer: Reducer::Sum, axes: Axes::summed(cast, true) };
        Ok(vec![cts[0].as_ref().map(|ct| sum.apply(ct))])
    }

    fn batch(&self, _axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        Ok((smallvec![bind1(self.clone(), args)], dims.to_vec()))
    }
}

/// The elementwise combination over all participants, which all of them get: `psum`, `pmax`, `pmin`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct AllReduce {
    pub reducer: Reducer,
    pub axes: Axes,
}

impl AllReduce {
    #[track_caller]
    pub fn apply(&self, x: &Array) -> Array {
        self.axes.bind(self.clone(), x)
    }

    fn sum(&self) -> Self {
        AllReduce { reducer: Reducer::Sum, axes: self.axes.clone() }
    }
}

impl Primitive for AllReduce {
    fn name(&self) -> &'static str {
        match self.reducer {
            Reducer::Max => "pmax",
            Reducer::Min => "pmin",
            _ if self.axes.checked && self.axes.groups.is_none() => "psum_invariant",
            _ => "psum",
        }
    }

    fn print_params(&self) -> String {
        self.axes.print()
    }

    fn uses_axis(&self, name: AxisName) -> bool {
        self.axes.names.contains(&name)
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        let accepts = if self.reducer == Reducer::Sum { Accepts::Number } else { Accepts::Real };
        accepts.check(self.name(), args[0].dtype)?;
        Ok(smallvec![args[0].clone()])
    }

    fn vary(&self, args: &[AxisSet]) -> Result<SmallVec<[AxisSet; 1]>> {
        // Groups end with different results, of one and the same value if they differ in size.
        Ok(smallvec![match (&self.axes.groups, self.axes.size) {
            (None, _) => args[0].minus(&self.axes.set()),
            (Some(_), 0) => args[0].union(&self.axes.set()),
            (Some(_), _) => args[0].clone(),
        }])
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        let attrs = format!("{}, use_global_device_ids", self.axes.attrs(cx, "replica_groups")?);
        if matches!(self.reducer, Reducer::Max | Reducer::Min) && outs[0].dtype.is_float() {
            return ordered::all_reduce(self.reducer, cx, args[0], &attrs, &outs[0]);
        }
        let region = self.reducer.region(cx, outs[0].dtype)?;
        Ok(cx.op_with("stablehlo.all_reduce", args, &attrs, vec![region], outs))
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        let x = &args[0];
        let out = self.apply(x);
        let tangent = tangents[0].as_ref().map(|t| match self.reducer {
            Reducer::Max | Reducer::Min => {
                // Shared equally by the participants that have the result.
                let chosen = x.equal(&out).astype(x.dtype());
                self.sum().apply(&(t * &chosen)) / self.sum().apply(&chosen)
            }
            _ => self.apply(t),
        });
        Ok((smallvec![out], vec![tangent]))
    }

    fn transpose(&self, cts: &[Option<Array>], _args: &[Operand]) -> Result<Tangents> {
        if self.reducer != Reducer::Sum {
            return Err(err!(NotImplemented, "'{}' is not linear and has no transpose", self.name()));
        }
        // Each participant's operand went into the sum that all have. Where types tell a cotangent that is the same
        // everywhere, it is that; where they do not, each holds a part of it.
        let checked = self.axes.checked && self.axes.groups.is_none();
        Ok(vec![cts[0].as_ref().map(|ct| match (checked, self.axes.mapped()) {
            (false, _) => self.apply(ct),
            (true, None) => ct.varying_over(&ct.vma().union(&self.axes.set())),
            (true, Some(axes)) => {
                AllReduce { axes, ..self.clone() }.apply(ct).varying_over(&ct.vma().union(&self.axes.set()))
            }
        })])
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        if !self.axes.has(axis.name) {
            return Ok((smallvec![self.apply(&args[0])], dims.to_vec()));
        }
        if self.axes.groups.is_some() {
            return mapped::groups(&self.axes, self.name(), axis, args, dims, |axes| AllReduce {
                axes,
                ..self.clone()
            });
        }
        let local = match dims[0] {
            Some(d) => lax::reduce(&args[0], self.reducer, &[d]),
            None if self.reducer == Reducer::Sum => &args[0] * axis.size,
            None => args[0].clone(),
        };
        let out = match self.axes.without(axis) {
            Some(axes) => AllReduce { axes, ..self.clone() }.apply(&local),
            None => local,
        };
        Ok((smallvec![out], vec![None]))
    }
}

/// Every participant's value, joined along a dimension: `all_gather`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct AllGather {
    pub axes: Axes,
    /// The dimension along which values are joined, which the operand has (`tiled`).
    pub dim: usize,
    /// Whether the result, which is the same everywhere, is typed so.
    pub invariant: bool,
}

impl AllGather {
    #[track_caller]
    pub fn apply(&self, x: &Array) -> Array {
        self.axes.bind(self.clone(), x)
    }
}

impl Primitive for AllGather {
    fn name(&self) -> &'static str {
        "all_gather"
    }

    fn print_params(&self) -> String {
        format!("{} dimension={}", self.axes.print(), self.dim)
    }

    fn uses_axis(&self, name: AxisName) -> bool {
        self.axes.names.contains(&name)
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        let mut out = args[0].clone();
        match out.shape.get_mut(self.dim) {
            Some(d) => *d *= self.axes.size,
            None => bail!(Index, "all_gather dimension {} is out of bounds for {}", self.dim, args[0]),
        }
        Ok(smallvec![out])
    }

    /// Where types are tracked the result is typed as varying unless asked for otherwise, as in JAX: its transpose is
    /// then a scatter of the sum.
    fn vary(&self, args: &[AxisSet]) -> Result<SmallVec<[AxisSet; 1]>> {
        let same = self.axes.groups.is_none() && (self.invariant || !self.axes.checked);
        Ok(smallvec![if same { args[0].minus(&self.axes.set()) } else { args[0].clone() }])
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        let attrs = format!(
            "all_gather_dim = {} : i64, {}, use_global_device_ids",
            self.dim,
            self.axes.attrs(cx, "replica_groups")?
        );
        Ok(vec![cx.op("stablehlo.all_gather", args, &attrs, &outs[0])])
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        Ok((smallvec![self.apply(&args[0])], vec![tangents[0].as_ref().map(|t| self.apply(t))]))
    }

    fn transpose(&self, cts: &[Option<Array>], _args: &[Operand]) -> Result<Tangents> {
        let scatter = PsumScatter { axes: self.axes.clone(), dim: self.dim };
        Ok(vec![cts[0].as_ref().map(|ct| {
            let sum = scatter.apply(ct);
            // The one cotangent of a result that all share is counted once.
            if self.invariant && self.axes.checked { sum / self.axes.size } else { sum }
        })])
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        if !self.axes.has(axis.name) {
            let d = dims[0].unwrap_or(0);
            let dim = if self.dim >= d { self.dim + 1 } else { self.dim };
            return Ok((smallvec![AllGather { dim, ..self.clone() }.apply(&args[0])], vec![Some(d)]));
        }
        if self.axes.groups.is_some() {
            return mapped::groups(&self.axes, "all_gather", axis, args, dims, |axes| AllGather {
                axes,
                ..self.clone()
            });
        }
        if self.axes.names.len() > 1 {
            // The innermost first, so that those of the first axis end outermost.
            return mapped::rewritten(axis, args, dims, |x| {
                let one = |x: Array, axes: Axes| AllGather { axes, ..self.clone() }.apply(&x);
                Ok(self.axes.each(axis)?.into_iter().rev().fold(x.clone(), one))
            });
        }
        // [N, …, n, …] becomes […, N * n, …].
        let x = move_batch(&args[0], dims[0], 0, axis.size);
        let x = x.moveaxis(0, self.dim as i32);
        let mut shape = x.shape_owned();
        let outer = shape.remove(self.dim);
        shape[self.dim] *= outer;
        Ok((smallvec![x.reshape(&shape)], vec![None]))
    }
}

/// The sum over all participants, of which each gets its part along a dimension: `psum_scatter`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PsumScatter {
    pub axes: Axes,
    /// The dimension that is cut; the result keeps it (`tiled`).
    pub dim: usize,
}

impl PsumScatter {
    #[track_caller]
    pub fn apply(&self, x: &Array) -> Array {
        self.axes.bind(self.clone(), x)
    }
}

impl Primitive for PsumScatter {
    fn name(&self) -> &'static str {
        "reduce_scatter"
    }

    fn print_params(&self) -> String {
        format!("{} dimension={}", self.axes.print(), self.dim)
    }

    fn uses_axis(&self, name: AxisName) -> bool {
        self.axes.names.contains(&name)
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        if args[0].dtype == DType::Bool {
            return Err(err!(Type, "psum_scatter does not accept dtype bool")
                .help("convert it with `astype(DType::I32)` to count"));
        }
        let mut out = args[0].clone();
        match out.shape.get_mut(self.dim) {
            Some(d) if *d % self.axes.size == 0 => *d /= self.axes.size,
            Some(d) => {
                return Err(err!(
                    Value,
                    "tiled reduce_scatter operand scatter dimension size {d} must be divisible by shard_count {}",
                    self.axes.size
                )
                .help("make the dimension a multiple of the number of participants"));
            }
            None => bail!(Index, "psum_scatter dimension {} is out of bounds for {}", self.dim, args[0]),
        }
        Ok(smallvec![out])
    }

    fn vary(&self, args: &[AxisSet]) -> Result<SmallVec<[AxisSet; 1]>> {
        Ok(smallvec![args[0].union(&self.axes.set())])
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        let attrs = format!(
            "scatter_dimension = {} : i64, {}, use_global_device_ids",
            self.dim,
            self.axes.attrs(cx, "replica_groups")?
        );
        let region = Reducer::Sum.region(cx, outs[0].dtype)?;
        Ok(cx.op_with("stablehlo.reduce_scatter", args, &attrs, vec![region], outs))
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        Ok((smallvec![self.apply(&args[0])], vec![tangents[0].as_ref().map(|t| self.apply(t))]))
    }

    fn transpose(&self, cts: &[Option<Array>], _args: &[Operand]) -> Result<Tangents> {
        let gather = AllGather { axes: self.axes.clone(), dim: self.dim, invariant: false };
        Ok(vec![cts[0].as_ref().map(|ct| gather.apply(ct))])
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        if !self.axes.has(axis.name) {
            let d = dims[0].unwrap_or(0);
            let dim = if self.dim >= d { self.dim + 1 } else { self.dim };
            return Ok((smallvec![PsumScatter { dim, ..self.clone() }.apply(&args[0])], vec![Some(d)]));
        }
        if self.axes.groups.is_some() {
            return mapped::groups(&self.axes, self.name(), axis, args, dims, |axes| PsumScatter {
                axes,
                ..self.clone()
            });
        }
        if self.axes.names.len() > 1 {
            return mapped::rewritten(axis, args, dims, |x| {
                let one = |x: Array, axes: Axes| PsumScatter { axes, ..self.clone() }.apply(&x);
                Ok(self.axes.each(axis)?.into_iter().fold(x.clone(), one))
            });
        }
        let sum = match dims[0] {
            Some(d) => lax::reduce(&args[0], Reducer::Sum, &[d]),
            None => &args[0] * axis.size,
        };
        // […, N * n, …] becomes [N, …, n, …].
        let mut shape = sum.shape_owned();
        shape[self.dim] /= axis.size;
        shape.insert(self.dim, axis.size);
        let out = sum.reshape(&shape).moveaxis(self.dim as i32, 0);
        Ok((smallvec![out], vec![Some(0)]))
    }
}
