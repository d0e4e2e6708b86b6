//! Collectives that exchange values between participants (`ppermute`, `all_to_all`), and `axis_index`.

use smallvec::{SmallVec, smallvec};

use super::axes::{Axes, channel, groups_text, mesh};
use super::{mapped, narrow};
use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::{
    BatchAxis, Dims, Operand, Outputs, PartialAxes, Primitive, ShardingRule, Tangents, TypedOuts,
};
use crate::core::program::Aval;
use crate::core::program::trace::{bind1, check_usable};
use crate::dtype::{DType, Scalar};
use crate::error::{Result, bail, err};
use crate::interpret::batching::move_batch;
use crate::ops::lax;
use crate::shape::{AxisName, AxisSet};
use crate::sharding::Mesh;

/// Sends each participant's value to another one. Participants that receive no value get zeros.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Ppermute {
    pub axes: Axes,
    /// Pairs of source and target, as indices along the axes.
    pub perm: Vec<(usize, usize)>,
}

impl Ppermute {
    #[track_caller]
    pub fn apply(&self, x: &Array) -> Array {
        self.axes.bind(self.clone(), x)
    }
}

impl Primitive for Ppermute {
    fn name(&self) -> &'static str {
        "ppermute"
    }

    fn print_params(&self) -> String {
        format!("{} perm={:?}", self.axes.print(), self.perm)
    }

    fn uses_axis(&self, name: AxisName) -> bool {
        self.axes.names.contains(&name)
    }

    fn accepts_keys(&self) -> bool {
        true
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        Ok(smallvec![args[0].clone()])
    }

    fn vary(&self, args: &[AxisSet]) -> Result<SmallVec<[AxisSet; 1]>> {
        Ok(smallvec![args[0].union(&self.axes.set())])
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.like(0)
    }

    fn partial_rule(&self, rule: &ShardingRule<'_>) -> Result<PartialAxes> {
        rule.keep_partial()
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        let groups = mesh(cx)?.groups(&self.axes.names);
        let pairs: Vec<Vec<usize>> =
            groups.iter().flat_map(|g| self.perm.iter().map(|&(s, d)| vec![g[s], g[d]])).collect();
        let pairs = if pairs.is_empty() {
            "source_target_pairs = dense<> : tensor<0x2xi64>".to_owned()
        } else {
            groups_text("source_target_pairs", &pairs)
        };
        let attrs = format!("{}, {pairs}", channel(cx));
        narrow::exchanged(cx, args[0], &outs[0], false, |cx, x, out| {
            Ok(cx.op("stablehlo.collective_permute", &[x], &attrs, out))
        })
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        Ok((smallvec![self.apply(&args[0])], vec![tangents[0].as_ref().map(|t| self.apply(t))]))
    }

    fn transpose(&self, cts: &[Option<Array>], _args: &[Operand]) -> Result<Tangents> {
        let perm = self.perm.iter().map(|&(s, d)| (d, s)).collect();
        let inverse = Ppermute { axes: self.axes.clone(), perm };
        Ok(vec![cts[0].as_ref().map(|ct| inverse.apply(ct))])
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        if !self.axes.has(axis.name) {
            return Ok((smallvec![self.apply(&args[0])], dims.to_vec()));
        }
        if self.axes.names.len() > 1 {
            return mapped::permute(&self.axes, &self.perm, axis, args, dims);
        }
        // Row d of the result is row s of the operand for a pair (s, d), otherwise zeros.
        let x = axis.moved(&args[0], dims[0], 0);
        let zeros = Array::zeros_of(&lax::slice_in_dim(&x, 0, 1, 0).aval());
        let rows: Vec<Array> = (0..axis.size)
            .map(|to| match self.perm.iter().find(|(_, d)| *d == to) {
                Some(&(from, _)) => lax::slice_in_dim(&x, from, from + 1, 0),
                None => zeros.clone(),
            })
            .collect();
        Ok((smallvec![lax::concatenate(&rows, 0)], vec![Some(0)]))
    }
}

/// Splits each participant's value along one dimension, exchanges the parts and concatenates them along another
/// (`tiled`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct AllToAll {
    pub axes: Axes,
    pub split: usize,
    pub concat: usize,
}

impl AllToAll {
    #[track_caller]
    pub fn apply(&self, x: &Array) -> Array {
        self.axes.bind(self.clone(), x)
    }
}

impl AllToAll {
    /// Exchanges over one axis after another.
    fn one_by_one(&self, axis: &BatchAxis, x: &Array) -> Result<Array> {
        // Splits the split dimension into one dimension for each axis.
        let axes = self.axes.each(axis)?;
        let mut cut = x.shape_owned();
        cut[self.split] /= self.axes.size;
        axes.iter().rev().for_each(|one| cut.insert(self.split, one.size));
        let mut x = x.reshape(&cut);
        for (i, one) in axes.iter().enumerate() {
            let dim = self.split + i;
            x = AllToAll { axes: one.clone(), split: dim, concat: dim }.apply(&x);
        }
        // Moves the source dimensions before the concat dimension.
        for i in 0..axes.len() {
            let (from, to) = if self.concat < self.split {
                (self.split + i, self.concat + i)
            } else {
                (self.split, self.concat + axes.len() - 1)
            };
            x = x.moveaxis(from as i32, to as i32);
        }
        let mut joined = x.shape_owned();
        joined.drain(self.concat..self.concat + axes.len());
        joined[self.concat] *= self.axes.size;
        Ok(x.reshape(&joined))
    }
}

impl Primitive for AllToAll {
    fn name(&self) -> &'static str {
        "all_to_all"
    }

    fn print_params(&self) -> String {
        format!("{} split={} concat={}", self.axes.print(), self.split, self.concat)
    }

    fn uses_axis(&self, name: AxisName) -> bool {
        self.axes.names.contains(&name)
    }

    fn accepts_keys(&self) -> bool {
        true
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        let mut out = args[0].clone();
        let n = self.axes.size;
        if self.split >= out.rank() || self.concat >= out.rank() {
            bail!(Index, "all_to_all axes {} and {} are out of bounds for {}", self.split, self.concat, args[0]);
        }
        if !out.shape[self.split].is_multiple_of(n) {
            return Err(err!(
                Value,
                "all_to_all split_axis of size {} has to be divisible by the size {n} of the axes {:?}",
                out.shape[self.split],
                self.axes.names
            )
            .help("make the dimension a multiple of the number of participants"));
        }
        out.shape[self.split] /= n;
        out.shape[self.concat] *= n;
        Ok(smallvec![out])
    }

    fn vary(&self, args: &[AxisSet]) -> Result<SmallVec<[AxisSet; 1]>> {
        Ok(smallvec![args[0].union(&self.axes.set())])
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.resized()
    }

    fn partial_rule(&self, rule: &ShardingRule<'_>) -> Result<PartialAxes> {
        rule.keep_partial()
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        let groups = self.axes.mesh_groups(&mesh(cx)?);
        let attrs = format!(
            "split_dimension = {} : i64, concat_dimension = {} : i64, split_count = {} : i64, {}, {}",
            self.split,
            self.concat,
            self.axes.size,
            channel(cx),
            groups_text("replica_groups", &groups)
        );
        narrow::exchanged(cx, args[0], &outs[0], false, |cx, x, out| {
            Ok(cx.op("stablehlo.all_to_all", &[x], &attrs, out))
        })
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        Ok((smallvec![self.apply(&args[0])], vec![tangents[0].as_ref().map(|t| self.apply(t))]))
    }

    fn transpose(&self, cts: &[Option<Array>], _args: &[Operand]) -> Result<Tangents> {
        let inverse = AllToAll { axes: self.axes.clone(), split: self.concat, concat: self.split };
        Ok(vec![cts[0].as_ref().map(|ct| inverse.apply(ct))])
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        if !self.axes.has(axis.name) {
            let d = dims[0].unwrap_or(0);
            let [split, concat] = [self.split, self.concat].map(|i| if i >= d { i + 1 } else { i });
            let out = AllToAll { axes: self.axes.clone(), split, concat };
            return Ok((smallvec![out.apply(&args[0])], vec![Some(d)]));
        }
        if self.axes.groups.is_some() {
            return mapped::groups(&self.axes, self.name(), axis, args, dims, |axes| AllToAll { axes, ..self.clone() });
        }
        if self.axes.names.len() > 1 {
            return mapped::rewritten(axis, args, dims, |x| self.one_by_one(axis, x));
        }
        // Part d of entry s becomes part s of entry d: split, exchange, concatenate.
        let n = axis.size;
        let x = move_batch(&args[0], dims[0], 0, n);
        let mut cut = x.shape_owned();
        cut[self.split + 1] /= n;
        cut.insert(self.split + 1, n);
        let x = x.reshape(&cut).swapaxes(0, self.split as i32 + 1);
        // The source index is now at the position of the split dimension and moves before the concat dimension.
        let x = x.moveaxis(self.split as i32 + 1, self.concat as i32 + 1);
        // If one of these operations failed, the array has no dimensions.
        check_usable(&x)?;
        let mut joined = x.shape_owned();
        let sources = joined.remove(self.concat + 1);
        joined[self.concat + 1] *= sources;
        Ok((smallvec![x.reshape(&joined)], vec![Some(0)]))
    }
}

/// The index of the participant along the axes, int32.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct AxisIndex {
    pub axes: Axes,
}

impl Primitive for AxisIndex {
    fn name(&self) -> &'static str {
        "axis_index"
    }

    fn print_params(&self) -> String {
        self.axes.print()
    }

    fn uses_axis(&self, name: AxisName) -> bool {
        self.axes.names.contains(&name)
    }

    fn infer(&self, _args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        Ok(smallvec![Aval::scalar(DType::I32)])
    }

    fn vary(&self, _args: &[AxisSet]) -> Result<SmallVec<[AxisSet; 1]>> {
        Ok(smallvec![self.axes.set()])
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.replicated()
    }

    fn lower(&self, cx: &mut Lowering, _args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        let mesh = mesh(cx)?;
        let out = &outs[0];
        let id = partition_id(cx, &mesh)?;
        let id = cx.op("stablehlo.convert", &[id], "", out);
        let mut index: Option<Value> = None;
        for &name in &self.axes.names {
            let size = mesh.axis_size(name).unwrap_or(1);
            let after = mesh.axes().iter().skip_while(|(n, _)| *n != name).skip(1);
            let stride: usize = after.map(|(_, s)| s).product();
            let [stride, size] = [stride, size].map(|n| cx.constant(Scalar::Int(n as i128), out));
            let quotient = cx.op("stablehlo.divide", &[id, stride], "", out);
            let coordinate = cx.op("stablehlo.remainder", &[quotient, size], "", out);
            index = Some(match index {
                None => coordinate,
                Some(i) => {
                    let scaled = cx.op("stablehlo.multiply", &[i, size], "", out);
                    cx.op("stablehlo.add", &[scaled, coordinate], "", out)
                }
            });
        }
        Ok(index.into_iter().collect())
    }

    fn batch(&self, axis: &BatchAxis, _args: &[Array], _dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        if !self.axes.has(axis.name) {
            return Ok((smallvec![bind1(self.clone(), &[])], vec![None]));
        }
        let mut index = Array::literal(Scalar::Int(0), DType::I32, false);
        for one in self.axes.each(axis)? {
            let (size, mapped) = (one.size, one.has(axis.name));
            let coordinate =
                if mapped { lax::iota(DType::I32, &[size], 0) } else { bind1(AxisIndex { axes: one }, &[]) };
            index = index * size + coordinate;
        }
        Ok((smallvec![index], vec![Some(0)]))
    }
}

/// Returns the device's position in the mesh. `partition_id` is defined only if every axis is manual, so the other axes
/// are made manual around it.
fn partition_id(cx: &mut Lowering, mesh: &Mesh) -> Result<Value> {
    let aval = Aval::scalar(DType::U32);
    let terms: Vec<String> =
        mesh.axis_names().filter(|n| !cx.manual_axes.contains(n)).map(|n| mesh.axis_text(n)).collect();
    if terms.is_empty() {
        return Ok(cx.op("stablehlo.partition_id", &[], "", &aval));
    }
    let attrs = format!(
        "in_shardings = #sdy.sharding_per_value<[]>, manual_axes = #sdy<manual_axes{{{}}}>, out_shardings = #sdy.sharding_per_value<[<@{}, []>]>",
        terms.join(", "),
        cx.mesh_name(mesh)
    );
    let region =
        cx.region_returning("sdy.return", &[], |cx, _| Ok(vec![cx.op("stablehlo.partition_id", &[], "", &aval)]))?;
    Ok(cx.op_with("sdy.manual_computation", &[], &attrs, vec![region], &[aval])[0])
}
