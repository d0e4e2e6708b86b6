//! The derivative of windowed maxima and minima: in each window, another array selects one element.
//!
//! The two primitives are each other's transpose. Both select the element that remains if each element is compared with the best one
//! before it: the first largest or smallest one, after the last NaN. Padding is the worst element.
//!
//! Small windows are combinations of slices, because XLA runs `select_and_scatter` one element at a time on some platforms: the places of the
//! elements are found from one strided slice for each element of the window, and select values or cotangents.

use smallvec::{SmallVec, smallvec};

use super::binary::{Compare, Select};
use super::reduce::Reducer;
use super::reduce_window::{MAX_SLICES, ReduceWindow, windows};
use crate::core::array::Array;
use crate::core::lower::{Lowering, Region, Value, comparison, ints};
use crate::core::primitive::{BatchAxis, Dims, Operand, Outputs, Primitive, ShardingRule, Tangents, TypedOuts};
use crate::core::program::Aval;
use crate::core::program::trace::bind1;
use crate::dtype::{DType, Scalar};
use crate::error::{Result, bail};
use crate::ops::lax;
use crate::shape::Shape;

/// `select_and_gather(values, operand)`: for each window, the value where the operand is largest or smallest. Linear in the values.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SelectAndGather(pub ReduceWindow);

/// `select_and_scatter_add(source, operand)`: each window's source is added where the operand is largest or smallest in
/// the window. Linear in the source.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SelectAndScatterAdd(pub ReduceWindow);

impl ReduceWindow {
    fn is_small(&self) -> bool {
        self.count() <= MAX_SLICES
    }

    /// The operand with padding that is never selected.
    fn padded_operand(&self, operand: &Array) -> Array {
        self.pad(operand, self.reducer.identity(operand.dtype()))
    }

    /// The row-major positions of the selected elements in their windows, from one slice for each element of the window.
    fn places(&self, slices: Vec<Array>) -> Result<Array> {
        let keeps = if self.reducer == Reducer::Min { Compare::Le } else { Compare::Ge };
        let mut slices = slices.into_iter();
        let mut best = slices.next().ok_or_else(|| self.empty_window())?;
        let mut places = crate::ops::constants::filled(best.shape(), Scalar::Int(0), DType::I32);
        for (k, slice) in slices.enumerate() {
            let is_kept = keeps.apply(&best, &slice);
            places = Select.apply(&is_kept, &Array::literal(Scalar::Int(k as i128 + 1), DType::I32, false), &places);
            best = Select.apply(&is_kept, &slice, &best);
        }
        Ok(places)
    }

    /// Selects values by slices.
    fn gather(&self, values: &Array, operand: &Array, out: &[usize]) -> Result<Array> {
        let places = self.places(self.slices(&self.padded_operand(operand), out))?;
        let zero = zero_of(values);
        let slices = self.slices(&self.pad(values, Scalar::Int(0)), out);
        let terms = slices.iter().enumerate().map(|(k, slice)| Select.apply(&places.equal(k as i32), &zero, slice));
        terms.reduce(|a, b| a + b).ok_or_else(|| self.empty_window())
    }

    /// Adds up the sources of each place, padded to the size of the operand.
    fn scatter(&self, source: &Array, operand: &Array) -> Result<Array> {
        let padded = self.padded_operand(operand);
        let places = self.places(self.slices(&padded, source.shape()))?;
        let zero = zero_of(source);
        let terms = self.parts(source.shape()).into_iter().enumerate().map(|(k, part)| {
            let selected = Select.apply(&places.equal(k as i32), &zero, source);
            let config: Vec<(i64, i64, i64)> = (0..padded.ndim())
                .map(|d| {
                    let after = padded.shape()[d] - part.limit[d];
                    (part.start[d] as i64, after as i64, part.strides[d] as i64 - 1)
                })
                .collect();
            lax::pad(&selected, &zero, &config)
        });
        let sums = terms.reduce(|a, b| a + b).ok_or_else(|| self.empty_window())?;
        Ok(self.without_padding(&sums))
    }

    /// Removes the padding and the base dilation.
    fn without_padding(&self, padded: &Array) -> Array {
        let edges: Vec<(i64, i64, i64)> = self.dims.iter().map(|d| (-d.low, -d.high, 0)).collect();
        let inner = if edges.iter().all(|edge| *edge == (0, 0, 0)) {
            padded.clone()
        } else {
            lax::pad(padded, zero_of(padded), &edges)
        };
        let strides: SmallVec<[usize; 4]> = self.dims.iter().map(|d| d.base_dilation).collect();
        lax::slice(&inner, &vec![0; inner.ndim()], inner.shape(), Some(&strides))
    }

    /// This window over an operand whose padding is already applied.
    fn of_padded(&self) -> Self {
        let mut window = self.clone();
        window.dims.iter_mut().for_each(|d| (d.low, d.high, d.base_dilation) = (0, 0, 1));
        window
    }

    /// The comparison that keeps the first of two elements, as attributes.
    fn comparison(&self, dtype: DType) -> String {
        comparison(if self.reducer == Reducer::Min { "LE" } else { "GE" }, dtype)
    }

    fn positions_over(&self, name: &str, operand: &Aval) -> Result<Shape> {
        if self.window.len() != operand.rank() || self.dims.len() != operand.rank() {
            bail!(
                Value,
                "{name} of {operand} takes one window size and stride a dimension, got {:?} and {:?}",
                self.window,
                self.dims
            );
        }
        let sizes = operand.shape.iter().zip(&self.window).zip(&self.dims);
        sizes.map(|((&n, &w), d)| d.positions(name, n, w)).collect()
    }

    /// Adds a leading batch axis.
    fn batched_in_front(&self) -> Self {
        let mut batched = self.clone();
        batched.window.insert(0, 1);
        batched.dims.insert(0, super::window::WindowDim::new(1));
        batched
    }
}

fn zero_of(x: &Array) -> Array {
    Array::literal(Scalar::Int(0), x.dtype(), false)
}

/// Moves the batch axis of both operands to the front.
fn in_front(axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> [Array; 2] {
    [0, 1].map(|i| axis.moved(&args[i], dims[i], 0))
}

impl SelectAndGather {
    #[track_caller]
    pub fn apply(&self, values: &Array, operand: &Array) -> Array {
        bind1(self.clone(), &[values.clone(), operand.clone()])
    }
}

impl Primitive for SelectAndGather {
    fn name(&self) -> &'static str {
        "select_and_gather"
    }

    fn print_params(&self) -> String {
        format!("min={} {}", self.0.reducer == Reducer::Min, self.0.print_params())
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        let (values, operand) = (&args[0], &args[1]);
        if values.shape != operand.shape {
            bail!(Type, "select_and_gather got arrays of different shapes: {values}, {operand}");
        }
        Ok(smallvec![values.with_shape(self.0.positions_over(self.name(), operand)?).strip_weak_type()])
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.common(0..2, "the values and what selects among them")?;
        rule.resized()
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        if self.0.is_small() {
            return cx.expand(args, |args| Ok(vec![self.0.gather(&args[0], &args[1], &outs[0].shape)?]));
        }
        let (value, operand) = (Aval::scalar(cx.dtype(args[0])), Aval::scalar(cx.dtype(args[1])));
        let init_operand = cx.constant(self.0.reducer.identity(operand.dtype), &operand);
        let init_value = cx.constant(Scalar::Int(0), &value);
        let flag = Aval::scalar(DType::Bool);
        let types = [operand.clone(), value.clone(), operand.clone(), value.clone()];
        let region = cx.region(&types, |cx, a| {
            let keep = cx.op("stablehlo.compare", &[a[0], a[2]], &self.0.comparison(operand.dtype), &flag);
            let selected = cx.op("stablehlo.select", &[keep, a[0], a[2]], "", &operand);
            let carried = cx.op("stablehlo.select", &[keep, a[1], a[3]], "", &value);
            Ok(vec![selected, carried])
        })?;
        let args = args.iter().map(|v| cx.without_padding(*v, windows(&self.0.window))).collect::<Vec<_>>();
        let results = cx.op_with(
            "stablehlo.reduce_window",
            &[args[1], args[0], init_operand, init_value],
            &self.0.attrs(),
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
        let scattered = bind1(SelectAndScatterAdd(self.0.clone()), &[ct.clone(), args[1].value()?.clone()]);
        Ok(vec![Some(scattered), None])
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        Ok((smallvec![bind1(SelectAndGather(self.0.batched_in_front()), &in_front(axis, args, dims))], vec![Some(0)]))
    }
}

impl Primitive for SelectAndScatterAdd {
    fn name(&self) -> &'static str {
        "select_and_scatter_add"
    }

    fn print_params(&self) -> String {
        SelectAndGather(self.0.clone()).print_params()
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        let (source, operand) = (&args[0], &args[1]);
        let positions = self.0.positions_over(self.name(), operand)?;
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
        let of_padded = self.0.of_padded();
        if self.0.is_small() {
            return cx.expand(args, |args| Ok(vec![self.0.scatter(&args[0], &args[1])?]));
        }
        if of_padded != self.0 {
            return cx.expand(args, |args| {
                let padded = self.0.padded_operand(&args[1]);
                let sums = bind1(SelectAndScatterAdd(of_padded), &[args[0].clone(), padded]);
                Ok(vec![self.0.without_padding(&sums)])
            });
        }
        let scalar = Aval::scalar(outs[0].dtype);
        let flag = Aval::scalar(DType::Bool);
        let zero = cx.constant(Scalar::Int(0), &scalar);
        let pair = [scalar.clone(), scalar.clone()];
        let compare = self.0.comparison(scalar.dtype);
        let select: Region = cx.region(&pair, |cx, a| Ok(vec![cx.op("stablehlo.compare", a, &compare, &flag)]))?;
        let scatter = Reducer::Sum.region(cx, scalar.dtype)?;
        let strides: SmallVec<[usize; 4]> = self.0.dims.iter().map(|d| d.stride).collect();
        let attrs = format!("window_dimensions = {}, window_strides = {}", ints(&self.0.window), ints(&strides));
        let args = args.iter().map(|v| cx.without_padding(*v, windows(&self.0.window))).collect::<Vec<_>>();
        Ok(cx.op_with("stablehlo.select_and_scatter", &[args[1], args[0], zero], &attrs, vec![select, scatter], outs))
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        let tangent = tangents[0].as_ref().map(|t| bind1(self.clone(), &[t.clone(), args[1].clone()]));
        Ok((smallvec![bind1(self.clone(), args)], vec![tangent]))
    }

    fn transpose(&self, cts: &[Option<Array>], args: &[Operand]) -> Result<Tangents> {
        let Some(ct) = &cts[0] else { return Ok(vec![None, None]) };
        Ok(vec![Some(SelectAndGather(self.0.clone()).apply(ct, args[1].value()?)), None])
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        let batched = SelectAndScatterAdd(self.0.batched_in_front());
        Ok((smallvec![bind1(batched, &in_front(axis, args, dims))], vec![Some(0)]))
    }
}
