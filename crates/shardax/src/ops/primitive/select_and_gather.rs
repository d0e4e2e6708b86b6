//! The derivative of windowed maxima with large windows: in each window, another array selects one element.
//!
//! The two primitives are each other's transpose. Both select the first largest (or smallest) element, and take
//! operands with padding already applied.

use smallvec::{SmallVec, smallvec};

use super::reduce::Reducer;
use super::reduce_window::windows;
use super::window::WindowDim;
use crate::core::array::Array;
use crate::core::lower::{Lowering, Region, Value, comparison, ints};
use crate::core::primitive::{BatchAxis, Dims, Operand, Outputs, Primitive, ShardingRule, Tangents, TypedOuts};
use crate::core::program::Aval;
use crate::core::program::trace::bind1;
use crate::dtype::{DType, Scalar};
use crate::error::{Result, bail};
use crate::shape::Shape;

type Ints = SmallVec<[usize; 4]>;

/// `select_and_gather(values, operand)`: for each window, the value where the operand is largest. Linear in the values.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SelectAndGather {
    /// Selects the smallest instead of the largest.
    pub min: bool,
    pub window: Ints,
    pub strides: Ints,
}

/// `select_and_scatter_add(source, operand)`: each window's source is added where the operand is largest in the
/// window. Linear in the source.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SelectAndScatterAdd(pub SelectAndGather);

impl SelectAndGather {
    #[track_caller]
    pub fn apply(&self, values: &Array, operand: &Array) -> Array {
        bind1(self.clone(), &[values.clone(), operand.clone()])
    }

    fn positions(&self, name: &str, operand: &Aval) -> Result<Shape> {
        if self.window.len() != operand.rank() || self.strides.len() != operand.rank() {
            bail!(
                Value,
                "{name} of {operand} takes one window size and stride a dimension, got {:?} and {:?}",
                self.window,
                self.strides
            );
        }
        let sizes = operand.shape.iter().zip(&self.window).zip(&self.strides);
        sizes.map(|((&n, &w), &s)| WindowDim::new(s).positions(name, n, w)).collect()
    }

    fn params(&self) -> String {
        format!("min={} window_dimensions={:?} window_strides={:?}", self.min, self.window, self.strides)
    }

    fn attrs(&self) -> String {
        format!("window_dimensions = {}, window_strides = {}", ints(&self.window), ints(&self.strides))
    }

    /// The comparison that keeps the first of two elements, as attributes.
    fn compare(&self, dtype: DType) -> String {
        comparison(if self.min { "LE" } else { "GE" }, dtype)
    }

    /// Adds a leading batch axis.
    fn batched(&self) -> Self {
        let mut batched = self.clone();
        batched.window.insert(0, 1);
        batched.strides.insert(0, 1);
        batched
    }
}

/// Moves the batch axis of both operands to the front.
fn in_front(axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> [Array; 2] {
    [0, 1].map(|i| axis.moved(&args[i], dims[i], 0))
}

impl Primitive for SelectAndGather {
    fn name(&self) -> &'static str {
        "select_and_gather"
    }

    fn print_params(&self) -> String {
        self.params()
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        let (values, operand) = (&args[0], &args[1]);
        if values.shape != operand.shape {
            bail!(Type, "select_and_gather got arrays of different shapes: {values}, {operand}");
        }
        Ok(smallvec![values.with_shape(self.positions(self.name(), operand)?).strip_weak_type()])
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.common(0..2, "the values and what selects among them")?;
        rule.resized()
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        let (value, operand) = (Aval::scalar(cx.dtype(args[0])), Aval::scalar(cx.dtype(args[1])));
        let worst = if self.min { Reducer::Min } else { Reducer::Max }.identity(operand.dtype);
        let init_operand = cx.constant(worst, &operand);
        let init_value = cx.constant(Scalar::Int(0), &value);
        let flag = Aval::scalar(DType::Bool);
        let types = [operand.clone(), value.clone(), operand.clone(), value.clone()];
        let region = cx.region(&types, |cx, a| {
            let keep = cx.op("stablehlo.compare", &[a[0], a[2]], &self.compare(operand.dtype), &flag);
            let selected = cx.op("stablehlo.select", &[keep, a[0], a[2]], "", &operand);
            let carried = cx.op("stablehlo.select", &[keep, a[1], a[3]], "", &value);
            Ok(vec![selected, carried])
        })?;
        let args = args.iter().map(|v| cx.without_padding(*v, windows(&self.window))).collect::<Vec<_>>();
        let results = cx.op_with(
            "stablehlo.reduce_window",
            &[args[1], args[0], init_operand, init_value],
            &self.attrs(),
            vec![region],
            &[Aval::new(operand.dtype, outs[0].shape.clone()), outs[0].clone()],
        );
        Ok(vec![results[1]])
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        let tangent = tangents[0].as_ref().map(|t| self.apply(t, &args[1]));
        Ok((smallvec![self.apply(&args[0], &args[1])], vec![tangent]))
    }

    fn transpose(&self, cts: &[Option<Array>], args: &[Operand]) -> Result<Tangents> {
        let Some(ct) = &cts[0] else { return Ok(vec![None, None]) };
        let scattered = bind1(SelectAndScatterAdd(self.clone()), &[ct.clone(), args[1].value()?.clone()]);
        Ok(vec![Some(scattered), None])
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        Ok((smallvec![bind1(self.batched(), &in_front(axis, args, dims))], vec![Some(0)]))
    }
}

impl Primitive for SelectAndScatterAdd {
    fn name(&self) -> &'static str {
        "select_and_scatter_add"
    }

    fn print_params(&self) -> String {
        self.0.params()
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        let (source, operand) = (&args[0], &args[1]);
        let positions = self.0.positions(self.name(), operand)?;
        if source.shape != positions || source.dtype != operand.dtype {
            bail!(Type, "select_and_scatter_add of {operand} has {positions:?} windows, but got {source} to scatter");
        }
        Ok(smallvec![source.with_shape(operand.shape.clone()).strip_weak_type()])
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.common(0..2, "the windows' values and what selects among them")?;
        rule.like(1)
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        let scalar = Aval::scalar(outs[0].dtype);
        let flag = Aval::scalar(DType::Bool);
        let zero = cx.constant(Scalar::Int(0), &scalar);
        let pair = [scalar.clone(), scalar.clone()];
        let compare = self.0.compare(scalar.dtype);
        let select: Region = cx.region(&pair, |cx, a| Ok(vec![cx.op("stablehlo.compare", a, &compare, &flag)]))?;
        let scatter = Reducer::Sum.region(cx, scalar.dtype)?;
        let attrs = self.0.attrs();
        let args = args.iter().map(|v| cx.without_padding(*v, windows(&self.0.window))).collect::<Vec<_>>();
        Ok(cx.op_with("stablehlo.select_and_scatter", &[args[1], args[0], zero], &attrs, vec![select, scatter], outs))
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        let tangent = tangents[0].as_ref().map(|t| bind1(self.clone(), &[t.clone(), args[1].clone()]));
        Ok((smallvec![bind1(self.clone(), args)], vec![tangent]))
    }

    fn transpose(&self, cts: &[Option<Array>], args: &[Operand]) -> Result<Tangents> {
        let Some(ct) = &cts[0] else { return Ok(vec![None, None]) };
        Ok(vec![Some(self.0.apply(ct, args[1].value()?)), None])
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        let batched = SelectAndScatterAdd(self.0.batched());
        Ok((smallvec![bind1(batched, &in_front(axis, args, dims))], vec![Some(0)]))
    }
}
