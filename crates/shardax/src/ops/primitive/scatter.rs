//! Scatter: writes blocks at computed positions, or combines them with the operand.

use smallvec::{SmallVec, smallvec};

use super::binary::{Compare, MAX, Select};
use super::elementwise_rules::Accepts;
use super::gather::{Gather, GatherDimensionNumbers, GatherScatterMode, clipped, comparable};
use super::reduce::accumulator;
use super::reshard::with_addends;
use crate::core::array::Array;
use crate::core::lower::{Lowering, Region, Value};
use crate::core::primitive::{
    BatchAxis, Dims, Operand, Outputs, PartialAxes, Primitive, ShardingRule, Tangents, TypedOuts,
};
use crate::core::program::Aval;
use crate::core::program::trace::bind1;
use crate::dtype::{DType, Scalar};
use crate::error::{Result, bail, err};
use crate::sharding::DimSpec;

/// The combination of an element and its updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScatterKind {
    /// Replaces the element; which of several updates wins is unspecified.
    Set,
    /// Adds the updates.
    Add,
    /// Multiplies by the updates.
    Mul,
    /// Keeps the minimum.
    Min,
    /// Keeps the maximum.
    Max,
}

/// The correspondence of the dimensions of a scatter's operand, indices and updates, as in
/// [XLA](https://openxla.org/xla/operation_semantics#scatter). Index vectors are along the last dimension of the
/// indices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ScatterDimensionNumbers {
    /// The dimensions of the updates within a block.
    pub update_window_dims: Vec<usize>,
    /// The operand's dimensions, of size 1 in a block, that the updates lack.
    pub inserted_window_dims: Vec<usize>,
    /// The operand's dimension for each component of an index vector.
    pub scatter_dims_to_operand_dims: Vec<usize>,
    /// The operand's batch dimensions.
    pub operand_batching_dims: Vec<usize>,
    /// The indices' batch dimensions.
    pub scatter_indices_batching_dims: Vec<usize>,
}

impl ScatterDimensionNumbers {
    /// The dimension numbers of the gather that reads where this scatter writes.
    pub(crate) fn to_gather(&self) -> GatherDimensionNumbers {
        GatherDimensionNumbers {
            offset_dims: self.update_window_dims.clone(),
            collapsed_slice_dims: self.inserted_window_dims.clone(),
            start_index_map: self.scatter_dims_to_operand_dims.clone(),
            operand_batching_dims: self.operand_batching_dims.clone(),
            start_indices_batching_dims: self.scatter_indices_batching_dims.clone(),
        }
    }
}

/// `scatter(operand, indices, updates)`: writes blocks to the operand, one for each index vector.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Scatter {
    pub kind: ScatterKind,
    pub dims: ScatterDimensionNumbers,
    pub mode: GatherScatterMode,
    /// `true` if the caller promises that no element is written twice.
    pub unique_indices: bool,
    pub indices_are_sorted: bool,
}

impl Scatter {
    #[track_caller]
    pub fn apply(&self, operand: &Array, indices: &Array, updates: &Array) -> Array {
        bind1(self.clone(), &[operand.clone(), indices.clone(), updates.clone()])
    }

    fn with(&self, kind: ScatterKind) -> Self {
        Scatter { kind, ..self.clone() }
    }

    /// Returns the sizes of a block of the operand.
    pub fn window(&self, rank: usize, updates: &[usize]) -> Vec<usize> {
        let gather = self.dims.to_gather();
        let mut windows = self.dims.update_window_dims.iter().map(|&d| updates.get(d).copied().unwrap_or(0));
        (0..rank).map(|d| if gather.missing(d) { 1 } else { windows.next().unwrap_or(0) }).collect()
    }

    /// The gather that reads where this writes, with zeros out of bounds.
    fn gather(&self, operand: &Aval, updates: &[usize]) -> Gather {
        Gather {
            dims: self.dims.to_gather(),
            slice_sizes: self.window(operand.rank(), updates),
            mode: self.mode,
            fill_value: Some(Scalar::Int(0)),
            unique_indices: self.unique_indices,
            indices_are_sorted: self.indices_are_sorted,
        }
    }

    /// Returns the tangent of a replacing scatter whose positions can repeat. Each element has the tangent of the
    /// update that won, which is found by scattering the updates' numbers.
    fn set_tangent(&self, args: &[Array], operand_t: &Array, updates_t: &Array) -> Array {
        let (operand, indices, updates) = (&args[0], &args[1], &args[2]);
        let gather = self.gather(&operand.aval(), updates.shape());
        // One number per position, equal for all elements of its block.
        let rows: Vec<usize> = (0..updates.ndim()).filter(|d| !self.dims.update_window_dims.contains(d)).collect();
        let shape: Vec<usize> = rows.iter().map(|&d| updates.shape()[d]).collect();
        let count = shape.iter().product::<usize>();
        let dtype = DType::for_indices(&[count]);
        let numbers = (crate::ops::lax::iota(dtype, &[count], 0) + 1).reshape(shape.as_slice());
        let numbers = numbers.broadcast_in_dim(updates.shape(), &rows);
        let zeros = crate::ops::constants::filled(operand.shape(), Scalar::Int(0), dtype);
        let winners = self.apply(&zeros, indices, &numbers);
        let untouched = Compare::Eq.apply(&winners, &Array::literal(Scalar::Int(0), dtype, false));
        let won = Compare::Eq.apply(&gather.apply(&winners, indices), &numbers);
        self.with(ScatterKind::Add).apply(&zero_unless(&untouched, operand_t), indices, &zero_unless(&won, updates_t))
    }

    /// The tangent of a minimum or maximum: shared equally by all operands that equal the result.
    fn extreme_tangent(&self, args: &[Array], out: &Array, operand_t: &Array, updates_t: &Array) -> Array {
        let (operand, indices, updates) = (&args[0], &args[1], &args[2]);
        let gather = self.gather(&operand.aval(), updates.shape());
        let add = self.with(ScatterKind::Add);
        // The number of winners may exceed the range of float16.
        let wide = accumulator(operand.dtype());
        // An element without updates stays unchanged, even NaN.
        let [zero, one] = [0, 1].map(|n| Array::literal(Scalar::Int(n), wide, false));
        let always = Array::literal(Scalar::Bool(true), DType::Bool, false);
        let writes = add.apply(&zero.broadcast_to(operand.shape()), indices, &one.broadcast_to(updates.shape()));
        let written = Compare::Gt.apply(&writes, &zero);
        let operand_wins = Select.apply(&written, &always, &Compare::Eq.apply(operand, out)).astype(wide);
        let update_wins = Compare::Eq.apply(updates, &gather.apply(out, indices)).astype(wide);
        // NaN equals nothing, so there are no winners.
        let winners = MAX.apply(&add.apply(&operand_wins, indices, &update_wins), &one);
        let tangents =
            add.apply(&(operand_t.astype(wide) * operand_wins), indices, &(updates_t.astype(wide) * update_wins));
        (tangents / winners).astype(operand.dtype())
    }
}

/// The number of blocks that a scatter writes.
fn rows_of(updates: &[usize], dims: &ScatterDimensionNumbers) -> usize {
    (0..updates.len()).filter(|d| !dims.update_window_dims.contains(d)).map(|d| updates[d]).product()
}

impl Scatter {
    /// Lowers the scatter in a wider dtype, and rounds the result once.
    pub(crate) fn lower_in(&self, wide: DType, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        let [operand, updates] = [args[0], args[2]].map(|v| {
            let converted = cx.aval(v).with_dtype(wide);
            cx.op("stablehlo.convert", &[v], "", &converted)
        });
        let results = self.write(cx, &[operand, args[1], updates], &[outs[0].with_dtype(wide)])?;
        Ok(vec![cx.op("stablehlo.convert", &results, "", &outs[0])])
    }

    /// Writes an operation whose index vectors are empty, so that all updates go to one position. The operand gets a first
    /// dimension of size 1, in which the position is 0.
    fn write_at_zero(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        let dims = ScatterDimensionNumbers {
            inserted_window_dims: [&[0], shifted_by_one(&self.dims.inserted_window_dims).as_slice()].concat(),
            scatter_dims_to_operand_dims: vec![0],
            operand_batching_dims: shifted_by_one(&self.dims.operand_batching_dims),
            ..self.dims.clone()
        };
        let positions = &cx.shape(args[1])[..cx.shape(args[1]).len() - 1];
        let positions = Aval::new(DType::I32, [positions, &[1]].concat().as_slice());
        let indices = cx.constant(Scalar::Int(0), &positions);
        let wide = Aval::new(outs[0].dtype, [&[1], cx.shape(args[0]).as_slice()].concat().as_slice());
        let operand = cx.op("stablehlo.reshape", &args[..1], "", &wide);
        let results = Scatter { dims, ..self.clone() }.write(cx, &[operand, indices, args[2]], &[wide])?;
        Ok(vec![cx.op("stablehlo.reshape", &results, "", &outs[0])])
    }

    /// Writes the region that combines an element with its update.
    fn combine_region(&self, cx: &mut Lowering, dtype: DType) -> Result<Region> {
        let scalar = Aval::scalar(dtype);
        cx.region(&[scalar.clone(), scalar.clone()], |cx, a| {
            let op = match self.kind {
                ScatterKind::Set => return Ok(vec![a[1]]),
                ScatterKind::Add => "stablehlo.add",
                ScatterKind::Mul => "stablehlo.multiply",
                ScatterKind::Min => "stablehlo.minimum",
                ScatterKind::Max => "stablehlo.maximum",
            };
            Ok(vec![cx.op(op, a, "", &scalar)])
        })
    }

    /// Writes the operation in the operands' dtype.
    fn write(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        let has_positions = !self.dims.scatter_dims_to_operand_dims.is_empty();
        if !has_positions && rows_of(cx.shape(args[2]), &self.dims) > 1 && cx.has_quirk("scatters-without-positions") {
            return self.write_at_zero(cx, args, outs);
        }
        let mut indices = comparable(cx, args[1], args[0]);
        if self.mode == GatherScatterMode::Clip {
            // The operation itself drops blocks that are out of bounds.
            let window = self.window(cx.shape(args[0]).len(), cx.shape(args[2]));
            indices = clipped(cx, args[0], indices, &self.dims.scatter_dims_to_operand_dims, &window)?;
        }
        let names = [
            "update_window_dims",
            "inserted_window_dims",
            "input_batching_dims",
            "scatter_indices_batching_dims",
            "scatter_dims_to_operand_dims",
        ];
        let attrs = format!(
            "scatter_dimension_numbers = #stablehlo.scatter<{}>, indices_are_sorted = {}, unique_indices = {}",
            self.dims.to_gather().attribute(names, cx.shape(indices).len() - 1),
            self.indices_are_sorted,
            self.unique_indices
        );
        let dtype = cx.dtype(args[0]);
        let region = self.combine_region(cx, dtype)?;
        // The partitioner joins the wrong parts if positions are sharded next to a batch, and writes the padding of
        // unevenly sharded positions. Therefore such dimensions are not sharded.
        let batch = &self.dims.scatter_indices_batching_dims;
        let rows = (0..cx.shape(args[2]).len()).filter(|d| !self.dims.update_window_dims.contains(d));
        let unsplit: Vec<(usize, usize)> = rows
            .enumerate()
            .filter(|(k, d)| (!batch.is_empty() && !batch.contains(k)) || cx.may_pad(cx.shape(args[2])[*d]))
            .collect();
        let mut updates = args[2];
        if (!batch.is_empty() || !unsplit.is_empty()) && cx.has_quirk("split-scatter-positions") {
            let (mut of_indices, of_updates): (Vec<usize>, Vec<usize>) = unsplit.into_iter().unzip();
            of_indices.push(cx.shape(indices).len() - 1);
            (indices, updates) =
                (cx.with_replicated_dims(indices, &of_indices), cx.with_replicated_dims(updates, &of_updates));
        }
        // XLA rewrites a scatter of one row as an update of a slice that it reads at the same position. If the operand
        // is itself a slice, like each device's part of an array, XLA merges both slices, and a position out of bounds
        // reads another part.
        let is_apart = rows_of(cx.shape(updates), &self.dims) == 1 && cx.has_quirk("scatters-into-slices");
        with_addends(cx, &[args[0], indices, updates], &outs[0], |cx, args| {
            let mut args = args.to_vec();
            if is_apart {
                let aval = cx.aval(args[0]);
                args[0] = cx.op("stablehlo.optimization_barrier", &args[..1], "", &aval);
            }
            Ok(cx.op_with("stablehlo.scatter", &args, &attrs, vec![region], outs)[0])
        })
    }
}

impl Primitive for Scatter {
    fn name(&self) -> &'static str {
        match self.kind {
            ScatterKind::Set => "scatter",
            ScatterKind::Add => "scatter_add",
            ScatterKind::Mul => "scatter_mul",
            ScatterKind::Min => "scatter_min",
            ScatterKind::Max => "scatter_max",
        }
    }

    fn print_params(&self) -> String {
        let d = &self.dims;
        let batching = if d.operand_batching_dims.is_empty() {
            String::new()
        } else {
            format!(
                " operand_batching_dims={:?} scatter_indices_batching_dims={:?}",
                d.operand_batching_dims, d.scatter_indices_batching_dims
            )
        };
        format!(
            "update_window_dims={:?} inserted_window_dims={:?} scatter_dims_to_operand_dims={:?}{batching} mode={:?}{}",
            d.update_window_dims,
            d.inserted_window_dims,
            d.scatter_dims_to_operand_dims,
            self.mode,
            if self.unique_indices { " unique_indices" } else { "" }
        )
    }

    fn accepts_keys(&self) -> bool {
        self.kind == ScatterKind::Set
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        let (x, indices, updates) = (&args[0], &args[1], &args[2]);
        if x.dtype != updates.dtype {
            return Err(err!(Type, "{} updates {updates} must have the dtype of the operand {x}", self.name())
                .help("convert the updates with `astype`"));
        }
        if matches!(self.kind, ScatterKind::Min | ScatterKind::Max) {
            Accepts::Real.check(self.name(), x.dtype)?;
        }
        let window = self.window(x.rank(), &updates.shape);
        self.dims.to_gather().check(self.name(), x, indices, &window, updates.rank())?;
        let rows = (0..updates.rank()).filter(|d| !self.dims.update_window_dims.contains(d)).map(|d| updates.shape[d]);
        if !rows.eq(indices.shape[..indices.rank() - 1].iter().copied()) {
            bail!(
                Type,
                "{} updates {updates} do not have one block for each position of the indices {indices}",
                self.name()
            );
        }
        Ok(smallvec![x.clone()])
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        let (x, indices, updates) = (rule.arg(0), rule.arg(1), rule.arg(2));
        if x.is_replicated() && indices.is_replicated() && updates.is_replicated() {
            return rule.replicated();
        }
        let dims = self.dims.to_gather();
        let batch = &dims.operand_batching_dims;
        let of_batch = &dims.start_indices_batching_dims;
        // A dimension that updates cover entirely must be sharded alike. Other dimensions must not be sharded.
        let mut window = self.dims.update_window_dims.iter();
        let fits = (0..x.rank()).all(|d| {
            if batch.contains(&d) {
                return true;
            }
            let Some(&u) = (if dims.missing(d) { None } else { window.next() }) else {
                return x.dims()[d] == DimSpec::None;
            };
            let is_covered = rule.args()[2].shape[u] == rule.args()[0].shape[d];
            let (of_operand, of_updates) = (&x.dims()[d], &updates.dims()[u]);
            if is_covered {
                *of_updates == DimSpec::None || of_operand == of_updates
            } else {
                *of_operand == DimSpec::None && *of_updates == DimSpec::None
            }
        });
        let indices_fit = (0..indices.rank()).all(|d| of_batch.contains(&d) || indices.dims()[d] == DimSpec::None);
        let rows = (0..updates.rank()).filter(|d| !self.dims.update_window_dims.contains(d));
        let rows_fit = rows.enumerate().all(|(k, d)| of_batch.contains(&k) || updates.dims()[d] == DimSpec::None);
        if !fits || !indices_fit || !rows_fit {
            return Err(rule.error(
                format_args!("the sharding of the result cannot be inferred, for operands of type {}", rule.types()),
                "use `x.at(index).out_sharding(spec).set(value)`, or `add` and the others",
            ));
        }
        rule.like(0)
    }

    fn partial_rule(&self, rule: &ShardingRule<'_>) -> Result<PartialAxes> {
        let values = [rule.args()[0].clone(), rule.args()[2].clone()];
        match self.kind {
            ScatterKind::Add | ScatterKind::Set => rule.keep_partial_of(&values),
            _ => rule.keep_reduced_of(&values),
        }
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        let accumulates = matches!(self.kind, ScatterKind::Add | ScatterKind::Mul);
        match accumulator(outs[0].dtype) {
            wide if accumulates && wide != outs[0].dtype => self.lower_in(wide, cx, args, outs),
            _ => self.write(cx, args, outs),
        }
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        let (operand, indices, updates) = (&args[0], &args[1], &args[2]);
        let out = self.apply(operand, indices, updates);
        if tangents[0].is_none() && tangents[2].is_none() {
            return Ok((smallvec![out], vec![None]));
        }
        let [operand_t, updates_t] = [0, 2].map(|i| zeros_if_none(tangents[i].clone(), &args[i]));
        let tangent = match self.kind {
            ScatterKind::Add => self.apply(&operand_t, indices, &updates_t),
            ScatterKind::Set if self.unique_indices => self.apply(&operand_t, indices, &updates_t),
            // The last update of a position decides which tangent it has.
            ScatterKind::Set => self.set_tangent(args, &operand_t, &updates_t),
            ScatterKind::Min | ScatterKind::Max => self.extreme_tangent(args, &out, &operand_t, &updates_t),
            ScatterKind::Mul => {
                let from_operand = tangents[0].as_ref().map(|t| self.apply(t, indices, updates));
                match &tangents[2] {
                    None => zeros_if_none(from_operand, operand),
                    Some(_) if !self.unique_indices => {
                        return Err(err!(
                            NotImplemented,
                            "scatter_mul is differentiable with respect to its updates only where positions do not repeat"
                        )
                        .help("say so with `x.at(index).unique_indices().multiply(v)`"));
                    }
                    Some(t) => {
                        let factors = self.gather(&operand.aval(), updates.shape()).apply(operand, indices);
                        let base = zeros_if_none(from_operand, operand);
                        self.with(ScatterKind::Add).apply(&base, indices, &(t * factors))
                    }
                }
            }
        };
        Ok((smallvec![out], vec![Some(tangent)]))
    }

    fn transpose(&self, cts: &[Option<Array>], args: &[Operand]) -> Result<Tangents> {
        let Some(ct) = &cts[0] else { return Ok(vec![None; 3]) };
        let indices = args[1].value()?;
        let updates = args[2].aval();
        let gather = self.gather(&args[0].aval(), &updates.shape);
        let (operand_ct, updates_ct): (Option<Array>, Option<Array>) = match self.kind {
            ScatterKind::Add => {
                (args[0].is_linear().then(|| ct.clone()), args[2].is_linear().then(|| gather.apply(ct, indices)))
            }
            ScatterKind::Set if self.unique_indices => (
                args[0].is_linear().then(|| self.apply(ct, indices, &Array::zeros_of(&updates.cotangent()))),
                args[2].is_linear().then(|| gather.apply(ct, indices)),
            ),
            ScatterKind::Mul if args[0].is_linear() => (Some(self.apply(ct, indices, args[2].value()?)), None),
            _ => return Err(err!(NotImplemented, "'{}' is not linear and has no transpose", self.name())),
        };
        Ok(vec![operand_ct, None, updates_ct])
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        let operand = axis.moved(&args[0], dims[0], 0);
        let updates = axis.moved(&args[2], dims[2], 0);
        let indexed = dims[1].is_some();
        let indices = if indexed { axis.moved(&args[1], dims[1], 0) } else { args[1].clone() };
        let scatter = Scatter {
            dims: self.dims.to_gather().batched(true, indexed).to_scatter(),
            indices_are_sorted: self.indices_are_sorted && !indexed,
            ..self.clone()
        };
        Ok((smallvec![scatter.apply(&operand, &indices, &updates)], vec![Some(0)]))
    }
}

/// `x` where `which` holds, else zero.
fn zero_unless(which: &Array, x: &Array) -> Array {
    Select.apply(which, &Array::literal(Scalar::Int(0), x.dtype(), false), x)
}

fn zeros_if_none(t: Option<Array>, like: &Array) -> Array {
    t.unwrap_or_else(|| Array::zeros_of(&like.aval().strip_weak_type()))
}

/// Returns the dimensions after a new first dimension is inserted.
fn shifted_by_one(dims: &[usize]) -> Vec<usize> {
    dims.iter().map(|d| d + 1).collect()
}
