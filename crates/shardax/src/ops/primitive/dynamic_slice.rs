//! Reading and writing a block at a computed position: start indices are operands, sizes are constants.
//!
//! Start indices are clamped so that the block is inside the operand, as in XLA.

use smallvec::{SmallVec, smallvec};

use super::gather::{Gather, GatherDimensionNumbers, GatherScatterMode};
use super::reshard::with_addends;
use super::scatter::{Scatter, ScatterDimensionNumbers, ScatterKind};
use crate::core::array::Array;
use crate::core::lower::{Lowering, Value, ints};
use crate::core::primitive::{
    BatchAxis, Dims, Operand, Outputs, PartialAxes, Primitive, ShardingRule, Tangents, TypedOuts,
};
use crate::core::program::Aval;
use crate::core::program::trace::bind1;
use crate::dtype::{DType, Scalar};
use crate::error::{Result, bail, err};
use crate::shape::Shape;
use crate::sharding::UnreducedKind;

/// `dynamic_slice(x, start_0, …)`: the block of these sizes that begins at the start indices, one scalar per dimension.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct DynamicSlice {
    pub sizes: Shape,
}

/// `dynamic_update_slice(x, block, start_0, …)`: `x` with `block` written at the start indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct DynamicUpdateSlice;

fn check_starts(name: &str, x: &Aval, starts: &[Aval]) -> Result<()> {
    if starts.len() != x.rank() {
        bail!(Type, "{name} of {x} needs a start index for each of its {} dimensions, got {}", x.rank(), starts.len());
    }
    for start in starts {
        if start.rank() != 0 || !start.dtype.is_integer() {
            bail!(Type, "{name} start indices must be integer scalars, got {start}");
        }
        if start.dtype != starts[0].dtype {
            bail!(Type, "{name} start indices must have one dtype, got {} and {start}", starts[0]);
        }
    }
    Ok(())
}

fn check_block(name: &str, x: &Aval, sizes: &[usize]) -> Result<()> {
    if sizes.len() != x.rank() {
        bail!(Type, "{name} of {x} needs a block of rank {}, got sizes {sizes:?}", x.rank());
    }
    match (0..sizes.len()).find(|&d| sizes[d] > x.shape[d]) {
        None => Ok(()),
        Some(d) => Err(err!(
            Type,
            "{name} block of sizes {sizes:?} is larger than the operand of shape {:?} in dimension {d}",
            x.shape.as_slice()
        )
        .help("pass the sizes of the result; starts are clamped so that the slice fits")),
    }
}

/// The start indices as one matrix, with a row for each entry of the batch, and the dimensions that they index.
fn stack_starts(axis: &BatchAxis, starts: &[Array], dims: &[Option<usize>]) -> Array {
    let columns: Vec<Array> =
        starts.iter().zip(dims).map(|(s, d)| axis.moved(s, *d, 0).reshape([axis.size, 1].as_slice())).collect();
    crate::ops::lax::concatenate(&columns, 1)
}

/// The start indices, clamped so that the block is inside the array. The operation clamps too, but XLA adds the indices of
/// a slice of a slice before it clamps them, and along a split dimension it clamps them to each device's part.
fn clamped(cx: &mut Lowering, starts: &[Value], shape: &[usize], sizes: &[usize]) -> Vec<Value> {
    let is_clamped_here = cx.has_quirk("slices-of-slices");
    let wide = DType::for_indices(shape) == DType::I64;
    let clamped = starts.iter().enumerate().map(|(d, &start)| {
        let mut aval = cx.aval(start);
        let mut start = start;
        // XLA compares a start with the sizes in the start's dtype.
        if wide && !matches!(aval.dtype, DType::I64 | DType::U64) {
            aval = Aval::scalar(DType::I64);
            start = cx.op("stablehlo.convert", &[start], "", &aval);
        }
        if !is_clamped_here {
            return start;
        }
        let last_start = (shape[d] - sizes[d]) as i128;
        let last_start = aval.dtype.integer_range().map_or(last_start, |(_, max)| last_start.min(max));
        let [low, high] = [0, last_start].map(|bound| cx.constant(Scalar::Int(bound), &aval));
        cx.op("stablehlo.clamp", &[low, start, high], "", &aval)
    });
    clamped.collect()
}

/// A zero of the start indices' dtype, for the batch dimension.
fn zero_start(starts: &[Array]) -> Array {
    Array::literal(Scalar::Int(0), starts.first().map(|s| s.dtype()).unwrap_or(DType::I32), false)
}

impl Primitive for DynamicSlice {
    fn name(&self) -> &'static str {
        "dynamic_slice"
    }

    fn print_params(&self) -> String {
        format!("slice_sizes={}", super::shape_ops::list(&self.sizes))
    }

    fn accepts_keys(&self) -> bool {
        true
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        check_block("dynamic_slice", &args[0], &self.sizes)?;
        check_starts("dynamic_slice", &args[0], &args[1..])?;
        Ok(smallvec![args[0].with_shape(self.sizes.clone())])
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.resized()
    }

    fn partial_rule(&self, rule: &ShardingRule<'_>) -> Result<PartialAxes> {
        rule.keep_partial_of(&rule.args()[..1])
    }

    fn keeps_unreduced(&self, _kind: UnreducedKind) -> bool {
        true
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        let attrs = format!("slice_sizes = {}", ints(&self.sizes));
        let shape = cx.shape(args[0]).to_vec();
        let starts = clamped(cx, &args[1..], &shape, &self.sizes);
        let args: Vec<Value> = std::iter::once(args[0]).chain(starts).collect();
        with_addends(cx, &args, &outs[0], |cx, args| Ok(cx.op("stablehlo.dynamic_slice", args, &attrs, &outs[0])))
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        let out = bind1(self.clone(), args);
        let tangent = tangents[0].as_ref().map(|t| {
            let mut args = args.to_vec();
            args[0] = t.clone();
            bind1(self.clone(), &args)
        });
        Ok((smallvec![out], vec![tangent]))
    }

    fn transpose(&self, cts: &[Option<Array>], args: &[Operand]) -> Result<Tangents> {
        let mut out = vec![None; args.len()];
        if let Some(ct) = &cts[0] {
            let mut operands = vec![Array::zeros_of(&args[0].aval().cotangent()), ct.clone()];
            for start in &args[1..] {
                operands.push(start.value()?.clone());
            }
            out[0] = Some(bind1(DynamicUpdateSlice, &operands));
        }
        Ok(out)
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        if dims[1..].iter().all(Option::is_none) {
            let d = dims[0].unwrap_or(0);
            let mut sizes = self.sizes.clone();
            sizes.insert(d, axis.size);
            let mut operands = args.to_vec();
            operands.insert(1 + d, zero_start(&args[1..]));
            return Ok((smallvec![bind1(DynamicSlice { sizes }, &operands)], vec![Some(d)]));
        }
        // Each entry has its own position: a gather of blocks.
        let rank = self.sizes.len();
        let gather = Gather {
            dims: GatherDimensionNumbers {
                offset_dims: (0..rank).collect(),
                start_index_map: (0..rank).collect(),
                ..GatherDimensionNumbers::default()
            },
            slice_sizes: self.sizes.to_vec(),
            mode: GatherScatterMode::Clip,
            fill_value: None,
            unique_indices: true,
            indices_are_sorted: true,
        };
        let starts = stack_starts(axis, &args[1..], &dims[1..]);
        gather.batch(axis, &[args[0].clone(), starts], &[dims[0], Some(0)])
    }
}

impl Primitive for DynamicUpdateSlice {
    fn name(&self) -> &'static str {
        "dynamic_update_slice"
    }

    fn accepts_keys(&self) -> bool {
        true
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        let (x, block) = (&args[0], &args[1]);
        if x.dtype != block.dtype {
            return Err(err!(Type, "dynamic_update_slice update {block} must have the dtype of the operand {x}")
                .help("convert the update with `astype`"));
        }
        check_block("dynamic_update_slice", x, &block.shape)?;
        check_starts("dynamic_update_slice", x, &args[2..])?;
        Ok(smallvec![x.clone()])
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.common(0..2, "the operand and the update")?;
        rule.like(0)
    }

    fn partial_rule(&self, rule: &ShardingRule<'_>) -> Result<PartialAxes> {
        rule.keep_partial_of(&rule.args()[..2])
    }

    fn keeps_unreduced(&self, _kind: UnreducedKind) -> bool {
        true
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        let sizes = cx.shape(args[1]).to_vec();
        let starts = clamped(cx, &args[2..], &outs[0].shape, &sizes);
        let args: Vec<Value> = args[..2].iter().copied().chain(starts).collect();
        with_addends(cx, &args, &outs[0], |cx, args| Ok(cx.op("stablehlo.dynamic_update_slice", args, "", &outs[0])))
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        let out = bind1(*self, args);
        let mut operands = args.to_vec();
        for i in 0..2 {
            operands[i] = tangents[i].clone().unwrap_or_else(|| Array::zeros_of(&args[i].aval().strip_weak_type()));
        }
        Ok((smallvec![out], vec![Some(bind1(*self, &operands))]))
    }

    fn transpose(&self, cts: &[Option<Array>], args: &[Operand]) -> Result<Tangents> {
        let mut out = vec![None; args.len()];
        let Some(ct) = &cts[0] else { return Ok(out) };
        let starts: Vec<Array> = args[2..].iter().map(|s| s.value().cloned()).collect::<Result<_>>()?;
        let block = args[1].aval();

        if args[0].is_linear() {
            let zeros = Array::zeros_of(&block.cotangent());
            out[0] = Some(bind1(*self, &[&[ct.clone(), zeros][..], &starts].concat()));
        }
        if args[1].is_linear() {
            out[1] = Some(bind1(DynamicSlice { sizes: block.shape }, &[&[ct.clone()][..], &starts].concat()));
        }
        Ok(out)
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        let x = axis.moved(&args[0], dims[0], 0);
        let block = axis.moved(&args[1], dims[1], 0);
        if dims[2..].iter().all(Option::is_none) {
            let mut operands = vec![x, block, zero_start(&args[2..])];
            operands.extend(args[2..].iter().cloned());
            return Ok((smallvec![bind1(*self, &operands)], vec![Some(0)]));
        }
        let rank = args.len() - 2;
        let scatter = Scatter {
            kind: ScatterKind::Set,
            dims: ScatterDimensionNumbers {
                update_window_dims: (0..rank).collect(),
                scatter_dims_to_operand_dims: (0..rank).collect(),
                ..ScatterDimensionNumbers::default()
            },
            mode: GatherScatterMode::Clip,
            unique_indices: true,
            indices_are_sorted: true,
        };
        let starts = stack_starts(axis, &args[2..], &dims[2..]);
        scatter.batch(axis, &[x, starts, block], &[Some(0), Some(0), Some(0)])
    }
}
