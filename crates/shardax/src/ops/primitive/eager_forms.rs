//! Forms of primitives for eager execution, in which parameters that vary from call to call are an operand: one program
//! computes all slices of a size, and one all small powers. In traced functions the parameters are constants.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::binary::IntegerPow;
use super::shape_ops::Ints;
use super::slices::Slice;
use crate::core::lower::{Lowering, Value, ints};
use crate::core::primitive::{Avals, EagerForm, Primitive};
use crate::core::program::Aval;
use crate::dtype::{DType, Scalar};
use crate::error::Result;

/// A slice that begins at the positions of its second operand, an int32 for each dimension, all within bounds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct SliceAt {
    /// The extent from the first to the last element of the slice, in each dimension.
    extent: Ints,
    strides: Ints,
}

impl Slice {
    /// The slice with its start as parameters. `None` at the origin, where the shapes alone determine the program, and
    /// for a limit before the start, which is an error of the slice.
    pub(super) fn with_start_as_operand(&self) -> Option<EagerForm> {
        if self.start.iter().all(|start| *start == 0) {
            return None;
        }
        let parameters = self.start.iter().map(|&start| i32::try_from(start).ok()).collect::<Option<_>>()?;
        let bounds = self.start.iter().zip(&self.limit);
        let extent = bounds.map(|(start, limit)| limit.checked_sub(*start)).collect::<Option<_>>()?;
        Some(EagerForm { primitive: Arc::new(SliceAt { extent, strides: self.strides.clone() }), parameters })
    }
}

impl Primitive for SliceAt {
    fn name(&self) -> &'static str {
        "slice"
    }

    fn accepts_keys(&self) -> bool {
        true
    }

    fn infer(&self, args: &[Aval]) -> Result<Avals> {
        let sizes = self.extent.iter().zip(&self.strides).map(|(extent, stride)| extent.div_ceil(*stride));
        Ok(smallvec![args[0].with_shape(sizes.collect::<SmallVec<[usize; 4]>>().as_slice())])
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], _outs: &[Aval]) -> Result<Vec<Value>> {
        let mut operands = vec![args[0]];
        for d in 0..self.extent.len() {
            let start = cx.slice(args[1], &[d], &[d + 1], &[1]);
            operands.push(cx.op("stablehlo.reshape", &[start], "", &Aval::scalar(DType::I32)));
        }
        let block = Aval::new(cx.dtype(args[0]), self.extent.as_slice());
        let attrs = format!("slice_sizes = {}", ints(&self.extent));
        let block = cx.op("stablehlo.dynamic_slice", &operands, &attrs, &block);
        if self.strides.iter().all(|stride| *stride == 1) {
            return Ok(vec![block]);
        }
        let origin: Ints = smallvec![0; self.extent.len()];
        Ok(vec![cx.slice(block, &origin, &self.extent, &self.strides)])
    }
}

/// The bits of the exponents that [`PowerOf`] takes.
const EXPONENT_BITS: u32 = 10;
/// Exponents up to this one have programs of their own, which are shorter.
const MAX_OWN_EXPONENT: u32 = 4;
/// The largest array whose powers share a program: it does more than is needed for one exponent.
const MAX_SHARED_ELEMENTS: usize = 4096;

/// The power of `x` whose exponent, without its sign, is the second operand, an int32 of one element: the products of
/// [`IntegerPow`], in the same order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct PowerOf {
    is_negative: bool,
}

impl IntegerPow {
    /// The power with its exponent as a parameter.
    pub(super) fn with_exponent_as_operand(self, x: &Aval) -> Option<EagerForm> {
        let exponent = self.0.unsigned_abs();
        let is_shared = exponent > MAX_OWN_EXPONENT && exponent < 1 << EXPONENT_BITS && x.size() <= MAX_SHARED_ELEMENTS;
        is_shared.then(|| EagerForm {
            primitive: Arc::new(PowerOf { is_negative: self.0 < 0 }),
            parameters: smallvec![exponent as i32],
        })
    }
}

impl Primitive for PowerOf {
    fn name(&self) -> &'static str {
        "integer_pow"
    }

    fn infer(&self, args: &[Aval]) -> Result<Avals> {
        Ok(smallvec![args[0].clone()])
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        let out = &outs[0];
        let scalar = Aval::scalar(DType::I32);
        let exponent = cx.op("stablehlo.reshape", &[args[1]], "", &scalar);
        let zero = cx.constant(Scalar::Int(0), &scalar);
        let (mut base, mut product) = (args[0], args[0]);
        for bit in 1..EXPONENT_BITS {
            base = cx.op("stablehlo.multiply", &[base, base], "", out);
            let longer = cx.op("stablehlo.multiply", &[product, base], "", out);
            let has_lower = has_bits(cx, [exponent, zero], (1 << bit) - 1, out);
            let longer = cx.op("stablehlo.select", &[has_lower, longer, base], "", out);
            let has_bit = has_bits(cx, [exponent, zero], 1 << bit, out);
            product = cx.op("stablehlo.select", &[has_bit, longer, product], "", out);
        }
        if !self.is_negative {
            return Ok(vec![product]);
        }
        let unit = cx.constant(Scalar::Int(1), out);
        Ok(vec![cx.op("stablehlo.divide", &[unit, product], "", out)])
    }
}

/// Returns `true`, in the shape of `out`, where a scalar exponent has one of these bits.
fn has_bits(cx: &mut Lowering, [exponent, zero]: [Value; 2], bits: u32, out: &Aval) -> Value {
    let scalar = Aval::scalar(DType::I32);
    let mask = cx.constant(Scalar::Int(i128::from(bits)), &scalar);
    let masked = cx.op("stablehlo.and", &[exponent, mask], "", &scalar);
    let flag = cx.compare("NE", masked, zero);
    cx.broadcast_in_dim(flag, &[], &out.with_dtype(DType::Bool))
}
