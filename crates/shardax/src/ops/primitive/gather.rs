//! Gather: reads blocks at computed positions.

use smallvec::{SmallVec, smallvec};

use super::binary::{AND, Compare, MAX, MIN, Select};
use super::reduce::{highest, lowest};
use super::reshard::with_addends;
use super::scatter::{Scatter, ScatterDimensionNumbers, ScatterKind};
use crate::choice::NamedOption;
use crate::core::array::Array;
use crate::core::lower::{Lowering, Value, ints};
use crate::core::primitive::{
    BatchAxis, Dims, Operand, Outputs, PartialAxes, Primitive, ShardingRule, Tangents, TypedOuts,
};
use crate::core::program::Aval;
use crate::core::program::trace::{bind1, infer};
use crate::dtype::{Category, DType, Scalar};
use crate::error::{Error, Result, bail, err};
use crate::ops::auto_axes::with_auto_axes;
use crate::shape::Shape;
use crate::sharding::DimSpec;

/// The treatment of out-of-bounds positions in gathers and scatters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GatherScatterMode {
    /// Clamps positions, so that the block is inside of the operand.
    Clip,
    /// Blocks out of bounds are read as a fill value, and writes to them are dropped.
    #[default]
    FillOrDrop,
    /// The caller promises that all positions are in bounds. Otherwise the values are unspecified.
    PromiseInBounds,
}

/// JAX's names.
impl NamedOption for GatherScatterMode {
    const KIND: &'static str = "mode";
    const NAMES: &'static [(&'static str, Self)] = &[
        ("clip", GatherScatterMode::Clip),
        ("fill", GatherScatterMode::FillOrDrop),
        ("drop", GatherScatterMode::FillOrDrop),
        ("promise_in_bounds", GatherScatterMode::PromiseInBounds),
    ];
}

/// The correspondence of the dimensions of a gather's operand, indices and result, as in
/// [XLA](https://openxla.org/xla/operation_semantics#gather). Index vectors are along the last dimension of the
/// indices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct GatherDimensionNumbers {
    /// The dimensions of the result within a block.
    pub offset_dims: Vec<usize>,
    /// The operand's dimensions, of size 1 in a block, that the result lacks.
    pub collapsed_slice_dims: Vec<usize>,
    /// The operand's dimension for each component of an index vector.
    pub start_index_map: Vec<usize>,
    /// The operand's batch dimensions.
    pub operand_batching_dims: Vec<usize>,
    /// The indices' batch dimensions.
    pub start_indices_batching_dims: Vec<usize>,
}

fn is_increasing(dims: &[usize], end: usize) -> bool {
    dims.windows(2).all(|w| w[0] < w[1]) && dims.iter().all(|&d| d < end)
}

/// The positions after a leading dimension is added, if it is.
fn shifted(dims: &[usize], is_added: bool) -> Vec<usize> {
    dims.iter().map(|d| d + usize::from(is_added)).collect()
}

impl GatherDimensionNumbers {
    /// The dimension numbers of the scatter that writes where this gather reads.
    pub(crate) fn to_scatter(&self) -> ScatterDimensionNumbers {
        ScatterDimensionNumbers {
            update_window_dims: self.offset_dims.clone(),
            inserted_window_dims: self.collapsed_slice_dims.clone(),
            scatter_dims_to_operand_dims: self.start_index_map.clone(),
            operand_batching_dims: self.operand_batching_dims.clone(),
            scatter_indices_batching_dims: self.start_indices_batching_dims.clone(),
        }
    }

    /// Returns `true` for the operand's dimensions that the result's blocks lack.
    pub(crate) fn missing(&self, d: usize) -> bool {
        self.collapsed_slice_dims.contains(&d) || self.operand_batching_dims.contains(&d)
    }

    /// The attribute in StableHLO, without empty parts.
    pub(crate) fn attribute(&self, names: [&str; 5], index_vector_dim: usize) -> String {
        let lists = [
            &self.offset_dims,
            &self.collapsed_slice_dims,
            &self.operand_batching_dims,
            &self.start_indices_batching_dims,
            &self.start_index_map,
        ];
        let mut parts: Vec<String> =
            names.iter().zip(lists).filter(|(_, l)| !l.is_empty()).map(|(n, l)| format!("{n} = {l:?}")).collect();
        parts.push(format!("index_vector_dim = {index_vector_dim}"));
        parts.join(", ")
    }

    /// Checks the dimension numbers for an operand, indices and blocks; `what` names the operation.
    pub(crate) fn check(
        &self,
        what: &str,
        operand: &Aval,
        indices: &Aval,
        slice_sizes: &[usize],
        out_rank: usize,
    ) -> Result<()> {
        let rank = operand.rank();
        if !indices.dtype.is_integer() || indices.rank() == 0 {
            bail!(Type, "{what} indices must be integers with positions along their last dimension, got {indices}");
        }
        let positions = indices.shape[indices.rank() - 1];
        if positions != self.start_index_map.len() {
            bail!(
                Type,
                "{what} positions have {positions} numbers ({indices}), but {} dimensions are indexed: {:?}",
                self.start_index_map.len(),
                self.start_index_map
            );
        }
        // XLA ends the process for some invalid dimension numbers, so all of its conditions are checked.
        let mut mapped = self.start_index_map.clone();
        mapped.sort_unstable();
        let mut batching = self.operand_batching_dims.clone();
        batching.sort_unstable();
        let sound = slice_sizes.len() == rank
            && is_increasing(&self.offset_dims, out_rank)
            && is_increasing(&self.collapsed_slice_dims, rank)
            && is_increasing(&mapped, rank)
            && is_increasing(&batching, rank)
            && self.collapsed_slice_dims.iter().chain(&self.start_index_map).all(|d| !batching.contains(d))
            && self.operand_batching_dims.len() == self.start_indices_batching_dims.len()
            && self.start_indices_batching_dims.iter().all(|&d| d + 1 < indices.rank())
            && self.offset_dims.len() + self.collapsed_slice_dims.len() + batching.len() == rank
            && out_rank == self.offset_dims.len() + indices.rank() - 1;
        if !sound {
            bail!(
                Type,
                "{what} of {operand} with indices {indices} has dimension numbers that do not fit: {self:?}, sizes {slice_sizes:?}"
            );
        }
        for d in 0..rank {
            if slice_sizes[d] > operand.shape[d] {
                bail!(
                    Index,
                    "{what} block of sizes {slice_sizes:?} is larger than the operand of shape {:?} in dimension {d}",
                    operand.shape.as_slice()
                );
            }
            if slice_sizes[d] != 1 && self.missing(d) {
                bail!(Type, "{what} block sizes {slice_sizes:?} must be 1 in the left-out dimension {d}");
            }
        }
        for (&d, &i) in self.operand_batching_dims.iter().zip(&self.start_indices_batching_dims) {
            if operand.shape[d] != indices.shape[i] {
                bail!(Type, "{what} batching dimensions differ in size: {d} of {operand} and {i} of indices {indices}");
            }
        }
        Ok(())
    }

    /// Adds a leading batch dimension to the operand, the indices, or both.
    pub(crate) fn batched(&self, operand: bool, indices: bool) -> Self {
        let mut out = GatherDimensionNumbers {
            // The result gets the new leading dimension in any case.
            offset_dims: shifted(&self.offset_dims, true),
            collapsed_slice_dims: shifted(&self.collapsed_slice_dims, operand),
            start_index_map: shifted(&self.start_index_map, operand),
            operand_batching_dims: shifted(&self.operand_batching_dims, operand),
            start_indices_batching_dims: shifted(&self.start_indices_batching_dims, indices),
        };
        match (operand, indices) {
            (true, true) => {
                out.operand_batching_dims.insert(0, 0);
                out.start_indices_batching_dims.insert(0, 0);
            }
            (true, false) => out.offset_dims.insert(0, 0),
            _ => {}
        }
        out
    }
}

/// Reads blocks of an operand, one for each index vector.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Gather {
    pub dims: GatherDimensionNumbers,
    pub slice_sizes: Vec<usize>,
    pub mode: GatherScatterMode,
    /// The value read out of bounds; by default NaN, or the extreme value of an integer dtype.
    pub fill_value: Option<Scalar>,
    pub unique_indices: bool,
    pub indices_are_sorted: bool,
}

impl Gather {
    #[track_caller]
    pub fn apply(&self, operand: &Array, indices: &Array) -> Array {
        bind1(self.clone(), &[operand.clone(), indices.clone()])
    }

    fn fill(&self, dtype: DType) -> Scalar {
        self.fill_value.unwrap_or(match dtype.category() {
            Category::Float | Category::Complex => Scalar::float(f64::NAN),
            Category::Signed => lowest(dtype),
            Category::Unsigned | Category::Bool => highest(dtype),
            // All bits of both words, as in JAX.
            Category::Key => highest(DType::U64),
        })
    }

    /// Marks the positions whose block is inside the operand.
    fn inside(&self, operand: &[usize], indices: &Array) -> Array {
        let n = indices.ndim() - 1;
        let mut inside: Option<Array> = None;
        for (k, &d) in self.dims.start_index_map.iter().enumerate() {
            let i = crate::ops::lax::slice_in_dim(indices, k, k + 1, n).reshape(&indices.shape()[..n]);
            let largest = Array::literal(Scalar::Int((operand[d] - self.slice_sizes[d]) as i128), i.dtype(), false);
            let zero = Array::literal(Scalar::Int(0), i.dtype(), false);
            let ok = AND.apply(&Compare::Ge.apply(&i, &zero), &Compare::Le.apply(&i, &largest));
            inside = Some(match inside {
                Some(other) => AND.apply(&other, &ok),
                None => ok,
            });
        }
        inside.unwrap_or_else(|| crate::ops::constants::filled(&indices.shape()[..n], Scalar::Bool(true), DType::Bool))
    }
}

impl Primitive for Gather {
    fn name(&self) -> &'static str {
        "gather"
    }

    fn print_params(&self) -> String {
        let d = &self.dims;
        let batching = if d.operand_batching_dims.is_empty() {
            String::new()
        } else {
            format!(
                " operand_batching_dims={:?} start_indices_batching_dims={:?}",
                d.operand_batching_dims, d.start_indices_batching_dims
            )
        };
        format!(
            "offset_dims={:?} collapsed_slice_dims={:?} start_index_map={:?}{batching} slice_sizes={:?} mode={:?}",
            d.offset_dims, d.collapsed_slice_dims, d.start_index_map, self.slice_sizes, self.mode
        )
    }

    fn accepts_keys(&self) -> bool {
        true
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        let (x, indices) = (&args[0], &args[1]);
        let out_rank = (self.dims.offset_dims.len() + indices.rank()).saturating_sub(1);
        self.dims.check("gather", x, indices, &self.slice_sizes, out_rank)?;
        if let Some(value) = self.fill_value.filter(|_| x.dtype.is_key()) {
            return Err(err!(Type, "gather cannot fill {x} with the number {value:?}")
                .help("select keys for the indices outside with `where_`"));
        }
        let mut block = (0..x.rank()).filter(|d| !self.dims.missing(*d)).map(|d| self.slice_sizes[d]);
        let mut rows = indices.shape[..indices.rank() - 1].iter().copied();
        let shape: Shape = (0..out_rank)
            .filter_map(|d| if self.dims.offset_dims.contains(&d) { block.next() } else { rows.next() })
            .collect();
        Ok(smallvec![x.with_shape(shape)])
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        let (x, indices) = (rule.arg(0), rule.arg(1));
        if x.is_replicated() && indices.is_replicated() {
            return rule.replicated();
        }
        let shape = &rule.args()[0].shape;
        let batch = &self.dims.operand_batching_dims;
        if (0..x.rank()).any(|d| !batch.contains(&d) && self.slice_sizes[d] != shape[d] && x.dims()[d] != DimSpec::None)
        {
            return Err(unknown_sharding(rule));
        }
        let of_batch = &self.dims.start_indices_batching_dims;
        if (0..indices.rank()).any(|d| !of_batch.contains(&d) && indices.dims()[d] != DimSpec::None) {
            return Err(unknown_sharding(rule));
        }
        // The result has the sharding of the block's dimensions, and of the batch dimensions of both operands.
        let mut block = (0..x.rank()).filter(|d| !self.dims.missing(*d)).map(|d| x.dims()[d].clone());
        let mut rows = Vec::new();
        for d in 0..indices.rank().saturating_sub(1) {
            let operand = of_batch.iter().position(|b| *b == d).map(|i| x.dims()[batch[i]].clone()).unwrap_or_default();
            rows.push(match (operand, indices.dims()[d].clone()) {
                (DimSpec::None, of_indices) => of_indices,
                (operand, DimSpec::None) => operand,
                (operand, of_indices) if operand == of_indices => operand,
                _ => return Err(unknown_sharding(rule)),
            });
        }
        let mut rows = rows.into_iter();
        let out = (0..rule.outs()[0].rank())
            .map(|d| if self.dims.offset_dims.contains(&d) { block.next() } else { rows.next() }.unwrap_or_default());
        rule.dims(out)
    }

    fn partial_rule(&self, rule: &ShardingRule<'_>) -> Result<PartialAxes> {
        let partial = rule.keep_partial_of(&rule.args()[..1])?;
        // Devices would add up the fill values that they read out of bounds.
        if self.mode == GatherScatterMode::FillOrDrop && !partial.0.is_empty() {
            Err(rule.reject_partial())
        } else {
            Ok(partial)
        }
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        let names = [
            "offset_dims",
            "collapsed_slice_dims",
            "operand_batching_dims",
            "start_indices_batching_dims",
            "start_index_map",
        ];
        let attrs = format!(
            "dimension_numbers = #stablehlo.gather<{}>, indices_are_sorted = {}, slice_sizes = {}",
            self.dims.attribute(names, cx.shape(args[1]).len() - 1),
            self.indices_are_sorted,
            ints(&self.slice_sizes)
        );
        // The operation itself clamps positions, but XLA adds the position of a single row to the position of a slice without clamping it.
        let mut args = args.to_vec();
        args[1] = comparable(cx, args[1], args[0]);
        if self.mode == GatherScatterMode::Clip && cx.has_quirk("slices-of-slices") {
            args[1] = clipped(cx, args[0], args[1], &self.dims.start_index_map, &self.slice_sizes)?;
        }
        let args = &args;
        let out =
            with_addends(cx, args, &outs[0], |cx, args| Ok(cx.op("stablehlo.gather", args, &attrs, &outs[0])))?[0];
        if self.mode != GatherScatterMode::FillOrDrop {
            return Ok(vec![out]);
        }
        let operand: Shape = cx.shape(args[0]).clone();
        cx.expand(&[out, args[1]], |args| {
            let (out, indices) = (&args[0], wide(&args[1], &operand));
            let rows: Vec<usize> = (0..out.ndim()).filter(|d| !self.dims.offset_dims.contains(d)).collect();
            let inside = self.inside(&operand, &indices).broadcast_in_dim(out.shape(), &rows);
            Ok(vec![Select.apply(&inside, &Array::literal(self.fill(out.dtype()), out.dtype(), false), out)])
        })
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        let zero_filled = Gather { fill_value: Some(Scalar::Int(0)), ..self.clone() };
        let tangent = tangents[0].as_ref().map(|t| zero_filled.apply(t, &args[1]));
        Ok((smallvec![self.apply(&args[0], &args[1])], vec![tangent]))
    }

    fn transpose(&self, cts: &[Option<Array>], args: &[Operand]) -> Result<Tangents> {
        let Some(ct) = &cts[0] else { return Ok(vec![None, None]) };
        let scatter = Scatter {
            kind: ScatterKind::Add,
            dims: self.dims.to_scatter(),
            mode: self.mode,
            unique_indices: self.unique_indices,
            indices_are_sorted: self.indices_are_sorted,
        };
        Ok(vec![Some(scatter.apply(&Array::zeros_of(&args[0].aval().cotangent()), args[1].value()?, ct)), None])
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        let (x, indices) = (dims[0].is_some(), dims[1].is_some());
        let [operand, positions] = [0, 1].map(|i| match dims[i] {
            Some(_) => axis.moved(&args[i], dims[i], 0),
            None => args[i].clone(),
        });
        let mut slice_sizes = self.slice_sizes.clone();
        if x {
            slice_sizes.insert(0, if indices { 1 } else { axis.size });
        }
        let gather = Gather {
            dims: self.dims.batched(x, indices),
            slice_sizes,
            // Different entries may have equal positions, in any order.
            indices_are_sorted: self.indices_are_sorted && !indices,
            unique_indices: self.unique_indices && (x || !indices),
            ..self.clone()
        };
        if !x && !axis.explicit.axes().is_empty() {
            // Positions that are split over devices have no sharding rule, but the batch keeps its axes.
            let positions_entry = dims[1].map_or_else(|| args[1].aval(), |dim| args[1].aval().without_dim(dim));
            let entry = infer(self, &[args[0].aval(), positions_entry])?.swap_remove(0);
            if let Some(typed) = entry.sharding() {
                let batch = axis.inserted(typed, 0)?;
                let like = entry.with_dim(0, axis.size, DimSpec::None).with_sharding(Some(batch));
                let out = with_auto_axes(&[&operand, &positions], &like, |args| Ok(gather.apply(&args[0], &args[1])))?;
                return Ok((smallvec![out], vec![Some(0)]));
            }
        }
        Ok((smallvec![gather.apply(&operand, &positions)], vec![Some(0)]))
    }
}

/// Converts indices to a type that can be compared with the sizes of the dimensions that they index.
pub(crate) fn wide(indices: &Array, sizes: &[usize]) -> Array {
    match indices.dtype() {
        DType::I64 | DType::U64 => indices.clone(),
        DType::U32 => indices.astype(DType::I64),
        _ => indices.astype(DType::for_indices(sizes)),
    }
}

/// Writes indices in a type that XLA can compare with the sizes of the dimensions that they index: it compares them in theirs.
pub(super) fn comparable(cx: &mut Lowering, indices: Value, operand: Value) -> Value {
    let fits = matches!(cx.dtype(indices), DType::I64 | DType::U64);
    if fits || DType::for_indices(cx.shape(operand)) == DType::I32 {
        return indices;
    }
    let wide = Aval::new(DType::I64, cx.shape(indices).clone());
    cx.op("stablehlo.convert", &[indices], "", &wide)
}

fn unknown_sharding(rule: &ShardingRule<'_>) -> Error {
    rule.error(
        format_args!("the sharding of the result cannot be inferred, for operands of type {}", rule.types()),
        "use `x.at(index).out_sharding(spec).get()`",
    )
}

/// Clamps the positions of blocks of these sizes, so that each block is inside of the operand.
pub(super) fn clipped(
    cx: &mut Lowering,
    operand: Value,
    indices: Value,
    dims: &[usize],
    window: &[usize],
) -> Result<Value> {
    let operand = cx.shape(operand).clone();
    let clamped = cx.expand(&[indices], |args| {
        let indices = wide(&args[0], &operand);
        let n = indices.ndim() - 1;
        let columns: Vec<Array> = dims
            .iter()
            .enumerate()
            .map(|(k, &d)| {
                let i = crate::ops::lax::slice_in_dim(&indices, k, k + 1, n);
                let [first, last] =
                    [0, operand[d] - window[d]].map(|v| Array::literal(Scalar::Int(v as i128), i.dtype(), false));
                MIN.apply(&MAX.apply(&i, &first), &last)
            })
            .collect();
        Ok(vec![if columns.is_empty() { indices } else { crate::ops::lax::concatenate(&columns, n) }])
    })?;
    Ok(clamped[0])
}

/// Takes `x` at `indices` along `axis`, entry by entry. The other dimensions of both are equal.
#[track_caller]
pub(crate) fn take_along(x: &Array, indices: &Array, axis: usize, mode: GatherScatterMode, unique: bool) -> Array {
    if indices.shape().contains(&0) {
        // The operand may be empty, too.
        return crate::ops::constants::filled(indices.shape(), Scalar::Int(0), x.dtype());
    }
    let batch_dims: Vec<usize> = (0..x.ndim()).filter(|&d| d != axis).collect();
    let mut shape = indices.shape_owned();
    shape.push(1);
    let gather = Gather {
        dims: GatherDimensionNumbers {
            offset_dims: Vec::new(),
            collapsed_slice_dims: vec![axis],
            start_index_map: vec![axis],
            operand_batching_dims: batch_dims.clone(),
            start_indices_batching_dims: batch_dims,
        },
        slice_sizes: vec![1; x.ndim()],
        mode,
        fill_value: None,
        unique_indices: unique,
        indices_are_sorted: false,
    };
    gather.apply(x, &indices.reshape(shape.as_slice()))
}
