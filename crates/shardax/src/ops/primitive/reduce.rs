//! Reductions over dimensions, and the index of the largest or smallest element.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::binary::Compare;
use super::elementwise_rules::Accepts;
use super::reshard::{Reshard, on_parts};
use super::shape_ops::BroadcastInDim;
use crate::core::array::Array;
use crate::core::lower::{Lowering, Value, ints};
use crate::core::primitive::{
    BatchAxis, Dims, Operand, Outputs, PartialAxes, Primitive, ShardingRule, Tangents, TypedOuts,
};
use crate::core::program::trace::bind1;
use crate::core::program::{Aval, Flops};
use crate::dtype::{Category, DType, Format, Scalar};
use crate::error::{Result, bail, err};
use crate::ops::promotion::convert;
use crate::shape::{AxisSet, Shape};
use crate::sharding::{Typed, UnreducedKind};

/// The operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Reducer {
    Sum,
    Prod,
    Max,
    Min,
    And,
    Or,
}

impl Reducer {
    pub fn op(self) -> &'static str {
        match self {
            Reducer::Sum => "stablehlo.add",
            Reducer::Prod => "stablehlo.multiply",
            Reducer::Max => "stablehlo.maximum",
            Reducer::Min => "stablehlo.minimum",
            Reducer::And => "stablehlo.and",
            Reducer::Or => "stablehlo.or",
        }
    }

    /// Returns the kind of the values that stay unreduced in this reduction, if they can.
    pub fn unreduced_kind(self) -> Option<UnreducedKind> {
        match self {
            Reducer::Sum => Some(UnreducedKind::Sum),
            Reducer::Max => Some(UnreducedKind::Max),
            Reducer::Min => Some(UnreducedKind::Min),
            Reducer::Prod | Reducer::And | Reducer::Or => None,
        }
    }

    /// Returns the reduction that combines unreduced values of this kind.
    pub fn for_kind(kind: UnreducedKind) -> Reducer {
        match kind {
            UnreducedKind::Sum => Reducer::Sum,
            UnreducedKind::Max => Reducer::Max,
            UnreducedKind::Min => Reducer::Min,
        }
    }

    /// Returns the neutral element.
    pub fn identity(self, dtype: DType) -> Scalar {
        match self {
            Reducer::Sum | Reducer::Or => Scalar::Int(0),
            Reducer::Prod => Scalar::Int(1),
            Reducer::And if dtype == DType::Bool => Scalar::Bool(true),
            Reducer::And => Scalar::Int(-1),
            Reducer::Max => lowest(dtype),
            Reducer::Min => highest(dtype),
        }
    }

    /// Combines two values of one type. The result is NaN if either value is.
    ///
    /// Maxima are a comparison and a selection, because the maximum of the CPU plugin (xla-cpu-pjrt 0.0.1) keeps a NaN
    /// only with an option that prevents the vectorization of reductions. The row maxima of f32[4096,1024] take 2 ms
    /// instead of 22. The test `maxima_keep_nan` notices a change.
    pub fn combine(self, cx: &mut Lowering, a: Value, b: Value, out: &Aval) -> Value {
        let direction = match self {
            Reducer::Max if out.dtype.is_float() && cx.has_quirk("maximum-drops-nan") => "GE",
            Reducer::Min if out.dtype.is_float() && cx.has_quirk("maximum-drops-nan") => "LE",
            _ => return cx.op(self.op(), &[a, b], "", out),
        };
        let flag = Aval::new(DType::Bool, out.shape.clone());
        let better = cx.compare(direction, a, b);
        let nan = cx.compare("NE", a, a);
        let keep = cx.op("stablehlo.or", &[better, nan], "", &flag);
        cx.op("stablehlo.select", &[keep, a, b], "", out)
    }

    /// Returns the body of a reduction that the compiler does not partition: it would not know how to combine the
    /// parts.
    pub fn local_region(self, cx: &mut Lowering, dtype: DType) -> Result<crate::core::lower::Region> {
        let scalar = Aval::scalar(dtype);
        cx.region(&[scalar.clone(), scalar.clone()], |cx, args| Ok(vec![self.combine(cx, args[0], args[1], &scalar)]))
    }

    /// Writes a reduction over these axes of an operand of the result's dtype.
    pub fn reduce(self, cx: &mut Lowering, x: Value, axes: &[usize], out: &Aval) -> Result<Value> {
        let init = cx.constant(self.identity(out.dtype), &Aval::scalar(out.dtype));
        let region = if cx.is_local() { self.local_region(cx, out.dtype)? } else { self.region(cx, out.dtype)? };
        let attrs = format!("dimensions = {}", ints(axes));
        Ok(cx.op_with("stablehlo.reduce", &[x, init], &attrs, vec![region], std::slice::from_ref(out))[0])
    }

    /// Returns the body of a reduction: a function of two scalars.
    pub fn region(self, cx: &mut Lowering, dtype: DType) -> Result<crate::core::lower::Region> {
        let scalar = Aval::scalar(dtype);
        cx.region(&[scalar.clone(), scalar.clone()], |cx, args| Ok(vec![cx.op(self.op(), args, "", &scalar)]))
    }
}

/// The smallest value of a dtype.
pub(crate) fn lowest(dtype: DType) -> Scalar {
    match dtype.category() {
        Category::Bool => Scalar::Bool(false),
        Category::Unsigned => Scalar::Int(0),
        Category::Signed => Scalar::Int(-(1i128 << (dtype.bits() - 1))),
        // Where there is no infinity, the lowest finite number.
        _ => Scalar::float(Format::of(dtype).filter(|f| !f.has_infinity()).map_or(f64::NEG_INFINITY, Format::min)),
    }
}

/// The largest value of a dtype.
pub(crate) fn highest(dtype: DType) -> Scalar {
    match dtype.category() {
        Category::Bool => Scalar::Bool(true),
        Category::Unsigned => Scalar::Int((1i128 << dtype.bits()) - 1),
        Category::Signed => Scalar::Int((1i128 << (dtype.bits() - 1)) - 1),
        _ => Scalar::float(Format::of(dtype).filter(|f| !f.has_infinity()).map_or(f64::INFINITY, Format::max)),
    }
}

/// The accumulation dtype of sums and products. Half precision would lose addends that are a few hundred times smaller
/// than the sum, so it is widened, and the result is rounded once.
pub(crate) fn accumulator(dtype: DType) -> DType {
    if dtype.is_float() && dtype.bits() < 32 { DType::F32 } else { dtype }
}

/// Computes a function of `x` in float32 if the range of its dtype is narrower, as of float16, and rounds the result once. Sums
/// of exponentials and of squares may exceed the range where the function does not. bfloat16 has the range of float32.
#[track_caller]
pub(crate) fn in_accumulator(x: &Array, f: impl FnOnce(&Array) -> Array) -> Array {
    if x.dtype() == DType::Bf16 {
        return f(x);
    }
    let result = f(&convert(x, accumulator(x.dtype()), x.weak_type()));
    if result.dtype() == accumulator(x.dtype()) { convert(&result, x.dtype(), result.weak_type()) } else { result }
}

/// Writes an operation that adds or multiplies many elements of `x`: `write` maps the widened operand to the widened
/// results.
pub(crate) fn accumulated(
    cx: &mut Lowering,
    x: Value,
    out: &Aval,
    write: impl FnOnce(&mut Lowering, Value, &Aval) -> Result<Value>,
) -> Result<Value> {
    let wide = accumulator(out.dtype);
    if wide == out.dtype {
        return write(cx, x, out);
    }
    let x = cx.op("stablehlo.convert", &[x], "", &cx.aval(x).with_dtype(wide));
    let sum = write(cx, x, &out.with_dtype(wide))?;
    Ok(cx.op("stablehlo.convert", &[sum], "", out))
}

/// A reduction over `axes` (sorted).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Reduce {
    pub reducer: Reducer,
    pub axes: SmallVec<[usize; 4]>,
    /// The requested sharding of the result.
    pub out: Option<Arc<Typed>>,
}

impl Reduce {
    #[track_caller]
    pub fn apply(&self, x: &Array) -> Array {
        bind1(self.clone(), std::slice::from_ref(x))
    }

    /// `y`, a cotangent, repeated to the operand's type.
    fn spread_as(&self, y: &Array, operand: &Aval) -> Array {
        let dims = (0..operand.rank()).filter(|d| !self.axes.contains(d)).collect();
        let out =
            operand.sharding.clone().filter(|_| y.is_number() || y.aval_ref().is_some_and(|y| y.sharding.is_some()));
        bind1(BroadcastInDim { shape: operand.shape.clone(), dims, out }, std::slice::from_ref(y))
    }

    /// `y`, a result, repeated to the operand's shape.
    fn spread(&self, y: &Array, shape: &[usize]) -> Array {
        let dims: Vec<usize> = (0..shape.len()).filter(|d| !self.axes.contains(d)).collect();
        y.broadcast_in_dim(shape, &dims)
    }
}

fn reduced(name: &str, axes: &[usize], x: &Aval) -> Result<Shape> {
    if let Some(a) = axes.iter().find(|a| **a >= x.rank()) {
        bail!(Index, "{name} axis {a} is out of bounds for {x}");
    }
    if let Some((i, a)) = axes.iter().enumerate().find(|(i, a)| axes[..*i].contains(a)) {
        return Err(err!(Value, "duplicate axis {a} in the axes {axes:?} of {name}, for {x}")
            .help(format!("name each dimension only once: leave entry {i} out")));
    }
    Ok((0..x.rank()).filter(|d| !axes.contains(d)).map(|d| x.shape[d]).collect())
}

impl Primitive for Reduce {
    fn name(&self) -> &'static str {
        match self.reducer {
            Reducer::Sum => "reduce_sum",
            Reducer::Prod => "reduce_prod",
            Reducer::Max => "reduce_max",
            Reducer::Min => "reduce_min",
            Reducer::And => "reduce_and",
            Reducer::Or => "reduce_or",
        }
    }

    fn print_params(&self) -> String {
        format!("axes={:?}", self.axes)
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        let accepts = match self.reducer {
            Reducer::And | Reducer::Or => Accepts::Bits,
            Reducer::Max | Reducer::Min => Accepts::Real,
            _ => Accepts::Number,
        };
        accepts.check(self.name(), args[0].dtype)?;
        Ok(smallvec![args[0].with_shape(reduced(self.name(), &self.axes, &args[0])?).strip_weak_type()])
    }

    fn flops(&self, args: &[Aval], _outs: &[Aval]) -> Flops {
        Flops::from_elements(&args[..1])
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        match &self.out {
            Some(out) => {
                let kind = self.reducer.unreduced_kind();
                if !out.unreduced().is_empty() && kind != Some(out.kind()) {
                    return Err(rule.error(
                        format_args!(
                            "out_sharding must have the unreduced_kind {}, got {}",
                            kind.unwrap_or_default().name(),
                            out.spec()
                        ),
                        "set it with `unreduced_kind`",
                    ));
                }
                // The result may be unreduced over unreduced axes of the operand, or over axes that split the summed
                // dimensions.
                let split = self.axes.iter().flat_map(|&d| rule.entry(0, d).axes().to_vec());
                let partial: AxisSet = split.chain(rule.arg(0).unreduced().iter()).collect();
                if !out.unreduced().is_subset(&partial) {
                    return Err(rule.error(
                        format_args!(
                            "out_sharding {} is unreduced over axes that are not summed over, for an operand of type {}",
                            out.spec(),
                            rule.args()[0]
                        ),
                        "unreduced axes are those of the dimensions that are summed",
                    ));
                }
                rule.requested(out)
            }
            None => rule.drop(&self.axes),
        }
    }

    fn partial_rule(&self, rule: &ShardingRule<'_>) -> Result<PartialAxes> {
        match (self.reducer, &self.out) {
            (Reducer::Sum, None) => rule.keep_partial(),
            (Reducer::Sum, Some(_)) => Ok(Default::default()),
            // The largest of the devices' largest elements is the largest of all.
            (_, None) if rule.arg(0).kind() != UnreducedKind::Sum => rule.keep_partial_of_first(),
            (_, Some(_)) if rule.arg(0).kind() != UnreducedKind::Sum => Ok(Default::default()),
            _ => rule.keep_reduced(),
        }
    }

    fn keeps_unreduced(&self, kind: UnreducedKind) -> bool {
        self.reducer.unreduced_kind() == Some(kind)
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        if matches!(self.reducer, Reducer::Sum | Reducer::Prod) {
            let sum = accumulated(cx, args[0], &outs[0], |cx, x, out| self.reducer.reduce(cx, x, &self.axes, out))?;
            return Ok(vec![sum]);
        }
        if let Some(y) = self.lower_unreduced(cx, args[0], &outs[0])? {
            return Ok(vec![y]);
        }
        let dtype = cx.dtype(args[0]);
        let reduced = self.reducer.reduce(cx, args[0], &self.axes, &outs[0])?;
        let is_extreme = dtype.is_float() && matches!(self.reducer, Reducer::Max | Reducer::Min);
        if cx.is_local() || !is_extreme || !cx.has_quirk("split-maxima-drop-nan") {
            return Ok(vec![reduced]);
        }
        // The all-reduce of the partitioner may lose a NaN, so it is detected separately. Noticed by `maxima_keep_nan`.
        let flags = Aval::new(DType::Bool, cx.shape(args[0]).clone());
        let nan = Compare::Ne.lower(cx, &[args[0], args[0]], std::slice::from_ref(&flags))?;
        let flag = Aval::new(DType::Bool, outs[0].shape.clone());
        let has_nan = Reducer::Or.reduce(cx, nan[0], &self.axes, &flag)?;
        let value = cx.constant(Scalar::float(f64::NAN), &outs[0]);
        Ok(vec![cx.op("stablehlo.select", &[has_nan, value, reduced], "", &outs[0])])
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        let x = &args[0];
        let y = self.apply(x);
        if let (Some(out), Some(_), Reducer::Max | Reducer::Min) = (&self.out, &tangents[0], self.reducer) {
            if !out.unreduced().is_empty() {
                return Err(err!(NotImplemented, "{} to {} has no derivative", self.name(), out.spec())
                    .help("leave unreduced axes out of out_sharding"));
            }
            let (_, mut ts) = Reduce { out: None, ..self.clone() }.jvp(args, tangents)?;
            return Ok((smallvec![y], vec![ts.remove(0).map(|t| t.sharded(out))]));
        }
        let sum = Reduce { reducer: Reducer::Sum, ..self.clone() };
        let tangent = match (&tangents[0], self.reducer) {
            (None, _) => None,
            (Some(t), Reducer::Sum) => Some(sum.apply(t)),
            (Some(t), Reducer::Max | Reducer::Min) => {
                // Shared equally by all elements that equal the result, whose number may exceed the range of float16.
                let wide = accumulator(x.dtype());
                let chosen = x.equal(self.spread(&y, x.shape())).astype(wide);
                let count = sum.apply(&chosen);
                Some((sum.apply(&(t.astype(wide) * chosen)) / count).astype(x.dtype()))
            }
            (Some(t), Reducer::Prod) => Some(sum.apply(&(t * self.product_of_others(x)))),
            (Some(_), _) => None,
        };
        Ok((smallvec![y], vec![tangent]))
    }

    fn transpose(&self, cts: &[Option<Array>], args: &[Operand]) -> Result<Tangents> {
        if self.reducer != Reducer::Sum {
            return Err(err!(NotImplemented, "'{}' is not linear and has no transpose", self.name()));
        }
        Ok(vec![cts[0].as_ref().map(|ct| self.spread_as(ct, &args[0].aval().cotangent()))])
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        let d = dims[0].unwrap_or(0);
        let axes: SmallVec<[usize; 4]> = self.axes.iter().map(|&a| if a >= d { a + 1 } else { a }).collect();
        let out = d - axes.iter().filter(|&&a| a < d).count();
        let typed = axis.out(&self.out, out)?;
        Ok((smallvec![Reduce { axes, out: typed, ..*self }.apply(&args[0])], vec![Some(out)]))
    }
}

impl Reduce {
    /// Writes a maximum or minimum whose operand or result is unreduced; `None` if neither is. The partitioner would add
    /// the devices' values. Therefore each device reduces its part, and a `reshard` combines the values.
    fn lower_unreduced(&self, cx: &mut Lowering, x: Value, out: &Aval) -> Result<Option<Value>> {
        let typed = cx.typed(x);
        let (Some(to), false) = (out.sharding(), cx.is_local()) else { return Ok(None) };
        if to.unreduced().is_empty() && typed.as_ref().is_none_or(|typed| typed.unreduced().is_empty()) {
            return Ok(None);
        }
        let from = typed.map_or_else(|| Typed::replicated(to.mesh(), cx.aval(x).rank()), |typed| (*typed).clone());
        let unreduced: AxisSet = self
            .axes
            .iter()
            .flat_map(|d| from.dims()[*d].axes().iter().copied())
            .chain(from.unreduced().iter())
            .collect();
        let dims = (0..from.rank()).filter(|d| !self.axes.contains(d)).map(|d| from.dims()[d].clone());
        let kind = self.reducer.unreduced_kind().unwrap_or_default();
        let parts =
            Typed::from_dims(to.mesh(), dims.collect()).with_kind(kind).with_partial(unreduced, AxisSet::default());
        let aval = out.with_sharding(Some(parts.clone()));
        let plain = Reduce { out: None, ..self.clone() };
        let y = on_parts(cx, &[x], &[from], (&aval, &parts), |args| Ok(plain.apply(&args[0])))?;
        let y = Reshard { to: to.clone(), mesh: None, from: None }.lower(cx, &[y], std::slice::from_ref(out))?[0];
        Ok(Some(cx.constrain(y, to)))
    }

    /// For each element, the product of the other elements that are reduced with it. It does not divide, so it is also
    /// correct for zeros.
    fn product_of_others(&self, x: &Array) -> Array {
        // The reduced dimensions are moved last and merged. The result is then the product of all elements before times
        // the product of all elements after.
        let unreduced: Vec<usize> = (0..x.ndim()).filter(|d| !self.axes.contains(d)).collect();
        let order: Vec<usize> = unreduced.iter().chain(self.axes.iter()).copied().collect();
        let moved = crate::ops::lax::transpose(x, &order);
        let mut flat: Shape = unreduced.iter().map(|&d| x.shape()[d]).collect();
        let last_dim = flat.len();
        flat.push(self.axes.iter().map(|&d| x.shape()[d]).product());
        let rows = moved.reshape(flat.as_slice());
        let n = flat[last_dim];
        let ones = crate::ops::constants::ones_like(crate::ops::lax::slice_in_dim(&rows, 0, 1.min(n), last_dim));
        // Shifts the elements by one, so that each position has the product without its own element.
        let [before, after] = [rows.clone(), crate::ops::lax::rev(&rows, &[last_dim])].map(|rows| {
            let preceding = crate::ops::lax::slice_in_dim(&rows, 0, n.saturating_sub(1), last_dim);
            crate::ops::lax::cumprod(&crate::ops::lax::concatenate(&[ones.clone(), preceding], last_dim), last_dim)
        });
        let after = crate::ops::lax::rev(&after, &[last_dim]);
        let mut back = vec![0; order.len()];
        for (i, &d) in order.iter().enumerate() {
            back[d] = i;
        }
        crate::ops::lax::transpose(&(before * after).reshape(moved.shape()), &back)
    }
}

/// The index of the first largest (or smallest) element along an axis; NaN counts as both.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ArgMax {
    pub min: bool,
    pub axis: usize,
    pub index_dtype: DType,
}

impl Primitive for ArgMax {
    fn name(&self) -> &'static str {
        if self.min { "argmin" } else { "argmax" }
    }

    fn print_params(&self) -> String {
        format!("axis={} index_dtype={}", self.axis, self.index_dtype)
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        Accepts::Real.check(self.name(), args[0].dtype)?;
        let shape = reduced(self.name(), &[self.axis], &args[0])?;
        if args[0].shape[self.axis] == 0 {
            return Err(err!(
                Value,
                "attempt to get {} of an empty sequence: axis {} of {} has size 0",
                self.name(),
                self.axis,
                args[0]
            )
            .help("reduce an axis with at least one element, or handle empty arrays separately"));
        }
        Ok(smallvec![Aval::new(self.index_dtype, shape)])
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.drop(&[self.axis])
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        let dtype = cx.dtype(args[0]);
        let index_aval = Aval::new(self.index_dtype, cx.shape(args[0]).clone());
        let iota = cx.op("stablehlo.iota", &[], &format!("iota_dimension = {} : i64", self.axis), &index_aval);
        let (value, index) = (Aval::scalar(dtype), Aval::scalar(self.index_dtype));
        let identity = if self.min { highest(dtype) } else { lowest(dtype) };
        let init_value = cx.constant(identity, &value);
        let init_index = cx.constant(Scalar::Int(0), &index);
        let flag = Aval::scalar(DType::Bool);
        let region = cx.region(&[value.clone(), index.clone(), value.clone(), index.clone()], |cx, a| {
            let (x, i, y, j) = (a[0], a[1], a[2], a[3]);
            // Keeps x if it is better, or the only NaN; among equals and among NaN the lower index. The order of x and y does not
            // matter, because GPUs reduce parts of an axis in any order.
            let better = cx.compare(if self.min { "LT" } else { "GT" }, x, y);
            let equal = cx.compare("EQ", x, y);
            let (keep, equal) = if dtype.is_float() {
                let is_nan = cx.compare("NE", x, x);
                let [is_only_nan, are_nan] = ["EQ", "NE"].map(|direction| {
                    let other = cx.compare(direction, y, y);
                    cx.op("stablehlo.and", &[is_nan, other], "", &flag)
                });
                (
                    cx.op("stablehlo.or", &[better, is_only_nan], "", &flag),
                    cx.op("stablehlo.or", &[equal, are_nan], "", &flag),
                )
            } else {
                (better, equal)
            };
            let is_lower = cx.compare("LT", i, j);
            let tie = cx.op("stablehlo.and", &[equal, is_lower], "", &flag);
            let keep_index = cx.op("stablehlo.or", &[keep, tie], "", &flag);
            let v = cx.op("stablehlo.select", &[keep, x, y], "", &value);
            let k = cx.op("stablehlo.select", &[keep_index, i, j], "", &index);
            Ok(vec![v, k])
        })?;
        let out_value = Aval::new(dtype, outs[0].shape.clone());
        let attrs = format!("dimensions = {}", ints(&[self.axis]));
        let results = cx.op_with(
            "stablehlo.reduce",
            &[args[0], iota, init_value, init_index],
            &attrs,
            vec![region],
            &[out_value, outs[0].clone()],
        );
        Ok(vec![results[1]])
    }

    fn jvp(&self, args: &[Array], _tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        Ok((smallvec![bind1(self.clone(), args)], vec![None]))
    }

    fn batch(&self, _axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        let d = dims[0].unwrap_or(0);
        let axis = if self.axis >= d { self.axis + 1 } else { self.axis };
        let out = if axis < d { d - 1 } else { d };
        Ok((smallvec![bind1(ArgMax { axis, ..self.clone() }, args)], vec![Some(out)]))
    }
}
