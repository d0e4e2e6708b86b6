//! The calls that compute gradients with respect to a filter: how their operands lie, and what the window meets.
//!
//! Operands are `[images, depth, height, width, features]`, results `[depth, height, width, features, outputs]`; missing
//! spatial dimensions have size 1.

use shardax_pjrt::ffi::CallFrame;

use super::conv::{Conv, SPATIAL, order};
use super::{call, number, reshape, sizes, transpose};
use crate::core::lower::{Lowering, Value};
use crate::core::program::Aval;
use crate::ops::primitive::conv::Spec;
use crate::shape::Shape;

/// Lowers the convolution to a call of `target`.
pub(super) fn lower(target: &str, of: &Conv<'_>, cx: &mut Lowering, args: &[Value]) -> Value {
    let conv = of.conv;
    let missing = SPATIAL - conv.window.len();
    let mut operand = |v: Value, spec: &Spec| {
        let v = transpose(cx, v, &order(spec, 1));
        let mut shape = cx.shape(v).to_vec();
        shape.splice(1..1, std::iter::repeat_n(1, missing));
        reshape(cx, v, &shape)
    };
    let operands = [operand(args[0], &conv.lhs), operand(args[1], &conv.rhs)];
    let places = [&conv.out[2..], &conv.out[..2]].concat();
    let shape: Shape = std::iter::repeat_n(1, missing).chain(places.iter().map(|&d| of.out.shape[d])).collect();
    let mut numbers = Vec::with_capacity(3 * SPATIAL);
    for d in 0..SPATIAL {
        let w = d.checked_sub(missing).map(|d| conv.window[d]);
        numbers.push((STRIDE[d], w.map_or(1, |w| w.stride as i64)));
        numbers.push((DILATION[d], w.map_or(1, |w| w.window_dilation as i64)));
        numbers.push((LOW[d], w.map_or(0, |w| w.low)));
    }
    let result = call(cx, target, &operands, &numbers, &[Aval::new(of.out.dtype, shape)])[0];
    of.result(cx, result, &places)
}

/// The attributes of a call.
const STRIDE: [&str; SPATIAL] = ["stride_0", "stride_1", "stride_2"];
const DILATION: [&str; SPATIAL] = ["dilation_0", "dilation_1", "dilation_2"];
const LOW: [&str; SPATIAL] = ["low_0", "low_1", "low_2"];

/// The window of a call, and the sizes of its operand, itself and its result along three dimensions.
#[derive(Clone, Copy)]
pub(super) struct Window {
    pub stride: [usize; SPATIAL],
    pub dilation: [usize; SPATIAL],
    pub low: [i64; SPATIAL],
    pub operand: [usize; SPATIAL],
    pub window: [usize; SPATIAL],
    pub positions: [usize; SPATIAL],
}

impl Window {
    /// Reads the window of a call.
    pub fn read(frame: &mut CallFrame<'_>) -> Result<Self, String> {
        let ([x, window], [out]) = frame.split() else {
            return Err("not two operands and a result".into());
        };
        let middle = |dims: &[i64]| match sizes(dims)[..] {
            [_, a, b, c, _] => Ok([a, b, c]),
            _ => Err(format!("not five dimensions: {dims:?}")),
        };
        let positions = match sizes(out.dims)[..] {
            [a, b, c, _, _] => [a, b, c],
            _ => return Err(format!("not five dimensions: {:?}", out.dims)),
        };
        let mut of = Window {
            stride: [1; SPATIAL],
            dilation: [1; SPATIAL],
            low: [0; SPATIAL],
            operand: middle(x.dims)?,
            window: middle(window.dims)?,
            positions,
        };
        for d in 0..SPATIAL {
            of.stride[d] = number(frame, STRIDE[d])?;
            of.dilation[d] = number(frame, DILATION[d])?;
            of.low[d] = frame.attr(LOW[d]).and_then(|a| a.as_i64()).ok_or("the call has no padding")?;
        }
        Ok(of)
    }

    /// The operand's index that an element of the window meets at a position along a dimension; `None` for padding.
    pub fn meets(&self, d: usize, element: usize, position: usize) -> Option<usize> {
        let at = (element * self.dilation[d] + position * self.stride[d]) as i64 - self.low[d];
        usize::try_from(at).ok().filter(|&at| at < self.operand[d])
    }

    /// The first two indices of a line of the window, and what comes before them.
    pub fn line(&self, line: usize) -> (usize, [usize; 2]) {
        let [d, h, _] = self.window;
        (line / (d * h), [line / h % d, line % h])
    }
}
