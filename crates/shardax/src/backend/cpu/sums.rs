//! Reductions of many elements on CPU, as a few steps with short chains of additions.
//!
//! XLA (xla-cpu-pjrt 0.0.1) computes each element of a reduction as one chain of additions. Its rounding errors grow
//! with the length of the chain, and the latency of additions bounds its speed. XLA's remedy divides every dimension
//! into windows of 32, so a sum over five dimensions still is a chain of millions.
//!
//! A step divides one dimension into [`PARTS`] parts and adds them. The compiler unrolls so few additions, vectorizes
//! the loop over the elements of a part, and fuses the computation of the operand into the first step. Between steps
//! the partial sums are materialized; otherwise XLA would fuse the steps and compute the first ones again for every
//! addition of the last.

use smallvec::SmallVec;

use super::dot_vector;
#[cfg(feature = "cpu-kernels")]
use super::kernels;
use crate::backend::rules::Lowered;
use crate::core::lower::{Lowering, Value};
use crate::core::program::Aval;
use crate::dtype::{DType, Scalar};
use crate::error::Result;
use crate::ops::primitive::reduce::{Reduce, Reducer, accumulated};
use crate::shape::{Shape, size, sizes_are_open};

/// The number of parts that a step adds.
const PARTS: usize = 8;

/// Operands with fewer elements are added in one step.
const MIN_ELEMENTS: usize = 1 << 14;

/// Sums of fewer elements are one step: the compiler unrolls them.
const MIN_ADDENDS: usize = 32;

/// The shortest part: vectors of this many elements.
const MIN_PART: usize = 8;

/// The longest rows that are added as products with a vector of ones.
const MAX_ROW: usize = 1024;

/// XLA divides each dimension of a sum into windows of this size, and adds a window of all dimensions as one chain.
const XLA_WINDOW: usize = 32;

/// Lowers sums and products.
pub(super) fn lower(reduce: &Reduce, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Lowered {
    let sum = accumulated(cx, args[0], &outs[0], |cx, x, out| self::reduce(reduce.reducer, &reduce.axes, cx, x, out))?;
    Ok(Some(vec![sum]))
}

/// Writes a reduction, in the operand's dtype, over these sorted axes.
pub(super) fn reduce(reducer: Reducer, axes: &[usize], cx: &mut Lowering, x: Value, out: &Aval) -> Result<Value> {
    match in_steps(reducer, axes, cx, x, out)? {
        Some(result) => Ok(result),
        None => reducer.reduce(cx, x, axes, out),
    }
}

/// Writes a reduction as several steps, if it is large.
fn in_steps(reducer: Reducer, axes: &[usize], cx: &mut Lowering, x: Value, out: &Aval) -> Result<Option<Value>> {
    let mut sums = PartialSums { reducer, axes: SmallVec::from_slice(axes), value: x, cx };
    let is_worth = size(sums.shape()) >= MIN_ELEMENTS && sums.addends() >= MIN_ADDENDS;
    if !is_worth || !sums.cx.has_quirk("long-chains-of-additions") || sizes_are_open() {
        return Ok(None);
    }
    if !sums.cx.is_local() {
        return sums.add_dimensions(out).map(Some);
    }
    #[cfg(feature = "cpu-kernels")]
    if let Some((value, axes)) = kernels::matmul::before_transposes(sums.cx, x, axes) {
        (sums.value, sums.axes) = (value, axes);
    }
    if sums.axes.iter().all(|&d| sums.shape()[d] < PARTS) {
        sums.merge_neighbours();
    }
    loop {
        sums.step()?;
        // XLA drops an `optimization_barrier` before it fuses.
        sums.value = sums.cx.materialize(sums.value);
        if sums.are_rows() && sums.addends() <= MAX_ROW {
            return Ok(Some(sums.add_rows(out)));
        }
        if sums.addends() <= PARTS || size(sums.shape()) < MIN_ELEMENTS / PARTS {
            return Ok(Some(reducer.reduce(sums.cx, sums.value, &sums.axes, out)?));
        }
    }
}

/// Partial sums of an operand.
struct PartialSums<'a> {
    reducer: Reducer,
    /// The dimensions that are still to be added, sorted.
    axes: SmallVec<[usize; 4]>,
    value: Value,
    cx: &'a mut Lowering,
}

impl PartialSums<'_> {
    fn shape(&self) -> &Shape {
        self.cx.shape(self.value)
    }

    /// The number of elements that one result adds.
    fn addends(&self) -> usize {
        self.axes.iter().map(|&d| self.shape()[d]).product()
    }

    /// Returns `true` if the addends of each result are neighbours in memory, so that a product with ones can add them.
    fn are_rows(&self) -> bool {
        let kept_end = (0..self.shape().len()).rev().find(|d| !self.axes.contains(d) && self.shape()[*d] > 1);
        self.reducer == Reducer::Sum
            && matches!(self.cx.dtype(self.value), DType::F32 | DType::F64)
            && kept_end.is_none_or(|kept| self.axes.iter().all(|&d| d > kept || self.shape()[d] == 1))
    }

    /// Adds the last dimensions first, and as many at once as form short chains. Operands that the compiler partitions
    /// need this form, because parts of a dimension can be on several devices.
    fn add_dimensions(mut self, out: &Aval) -> Result<Value> {
        while let Some(count) = self.dimensions_of_short_chains() {
            let axes: SmallVec<[usize; 4]> = self.axes.drain(self.axes.len() - count..).collect();
            let mut result = self.cx.aval(self.value);
            result.shape = (0..result.rank()).filter(|d| !axes.contains(d)).map(|d| result.shape[d]).collect();
            let sums = self.reducer.reduce(self.cx, self.value, &axes, &result)?;
            // Without the barrier XLA joins the reductions.
            self.value = self.cx.op("stablehlo.optimization_barrier", &[sums], "", &result);
        }
        self.reducer.reduce(self.cx, self.value, &self.axes, out)
    }

    /// The number of dimensions to add first; `None` if XLA can add all of them at once.
    fn dimensions_of_short_chains(&self) -> Option<usize> {
        let windows = self.axes.iter().rev().scan(1, |chain, &d| {
            *chain *= self.shape()[d].min(XLA_WINDOW);
            Some(*chain)
        });
        let count = windows.take_while(|chain| *chain <= MAX_ROW).count();
        (count < self.axes.len()).then_some(count)
    }

    /// Merges dimensions to add that are next to each other.
    fn merge_neighbours(&mut self) {
        let (mut shape, mut axes) = (Shape::new(), SmallVec::new());
        for (d, &n) in self.shape().iter().enumerate() {
            let is_added = self.axes.contains(&d);
            match shape.last_mut() {
                Some(last) if is_added && self.axes.contains(&(d.wrapping_sub(1))) => *last *= n,
                _ => {
                    if is_added {
                        axes.push(shape.len());
                    }
                    shape.push(n);
                }
            }
        }
        let merged = Aval::new(self.cx.dtype(self.value), shape);
        self.value = self.cx.op("stablehlo.reshape", &[self.value], "", &merged);
        self.axes = axes;
    }

    /// Adds parts of one dimension.
    fn step(&mut self) -> Result<()> {
        let division = (2..=PARTS).rev().find_map(|parts| Some((self.axis_of(parts)?, parts)));
        match (division, self.axes.iter().copied().max_by_key(|&d| self.shape()[d])) {
            (Some((axis, parts)), _) => self.add_equal_parts(axis, parts),
            (None, Some(axis)) => {
                self.add_uneven_parts(axis);
                Ok(())
            }
            (None, None) => Ok(()),
        }
    }

    /// The first dimension that this number of equal parts divides, if the parts are long enough for vectors.
    fn axis_of(&self, parts: usize) -> Option<usize> {
        let shape = self.shape();
        self.axes.iter().copied().find(|&d| shape[d].is_multiple_of(parts) && size(&shape[d..]) >= parts * MIN_PART)
    }

    /// Adds `parts` equal parts of a dimension; `parts` must divide it.
    fn add_equal_parts(&mut self, axis: usize, parts: usize) -> Result<()> {
        let mut result = self.cx.aval(self.value);
        result.shape[axis] /= parts;
        let mut divided = result.clone();
        divided.shape.insert(axis, parts);
        let divided = self.cx.op("stablehlo.reshape", &[self.value], "", &divided);
        self.value = self.reducer.reduce(self.cx, divided, &[axis], &result)?;
        Ok(())
    }

    /// Adds parts of a dimension that they do not divide. The last part begins early enough to be as long as the
    /// others, and the elements that it shares with the part before are left out, because padding would prevent
    /// vectorization.
    fn add_uneven_parts(&mut self, axis: usize) {
        let shape = self.shape().clone();
        let (n, len) = (shape[axis], shape[axis].div_ceil(PARTS));
        let part = Aval::new(self.cx.dtype(self.value), {
            let mut shape = shape.clone();
            shape[axis] = len;
            shape
        });
        let complete = n / len;
        let mut parts: Vec<Value> = (0..complete).map(|i| self.part(axis, i * len, len)).collect();
        let shared = (complete + 1) * len - n;
        if shared < len {
            let last = self.part(axis, n - len, len);
            let index = part.with_dtype(DType::I32);
            let indices = self.cx.op("stablehlo.iota", &[], &format!("iota_dimension = {axis} : i64"), &index);
            let first = self.cx.constant(Scalar::Int(shared as i128), &index);
            let is_new = self.cx.compare("GE", indices, first);
            let identity = self.cx.constant(self.reducer.identity(part.dtype), &part);
            parts.push(self.cx.op("stablehlo.select", &[is_new, last, identity], "", &part));
        }
        // A tree of sums has smaller rounding errors than a chain.
        while parts.len() > 1 {
            let pairs = parts.chunks(2);
            parts = pairs
                .map(|pair| match *pair {
                    [a, b] => self.cx.op(self.reducer.op(), &[a, b], "", &part),
                    _ => pair[0],
                })
                .collect();
        }
        self.value = parts[0];
    }

    /// Returns the elements `start..start + len` of a dimension.
    fn part(&mut self, axis: usize, start: usize, len: usize) -> Value {
        let (mut starts, mut limits) = (vec![0; self.shape().len()], self.shape().to_vec());
        (starts[axis], limits[axis]) = (start, start + len);
        let strides = vec![1; starts.len()];
        self.cx.slice(self.value, &starts, &limits, &strides)
    }

    /// Adds rows, as products with ones.
    fn add_rows(self, out: &Aval) -> Value {
        let row = self.addends();
        let rows = size(self.shape()) / row.max(1);
        let dtype = self.cx.dtype(self.value);
        let matrix = Aval::new(dtype, Shape::from_slice(&[rows, row]));
        let matrix = self.cx.op("stablehlo.reshape", &[self.value], "", &matrix);
        let ones = self.cx.constant(Scalar::Int(1), &Aval::new(dtype, Shape::from_slice(&[1, row])));
        let sums = dot_vector::product(None, self.cx, [ones, matrix], 1, rows);
        self.cx.op("stablehlo.reshape", &[sums], "", out)
    }
}
