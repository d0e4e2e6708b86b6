//! Cumulative reductions along an axis: each element combined with all before it.

use smallvec::{SmallVec, smallvec};

use super::binary::{ADD, MAX, MIN, MUL};
use super::elementwise_rules::Accepts;
use super::expanded::LOGADDEXP;
use super::reduce::{Reducer, accumulated};
use super::reshard::with_addends;
use super::window::{WindowDim, padding_attr};
use crate::core::array::Array;
use crate::core::lower::{Lowering, Value, ints};
use crate::core::primitive::{
    BatchAxis, Dims, Operand, Outputs, PartialAxes, Primitive, ShardingRule, Tangents, TypedOuts,
};
use crate::core::program::trace::{bind1, trace};
use crate::core::program::{Aval, Flops};
use crate::dtype::{DType, Scalar};
use crate::error::{Result, err};
use crate::ops::control_flow::AssociativeScanOptions;

/// The operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum CumulativeKind {
    Sum,
    Prod,
    Max,
    Min,
    LogSumExp,
}

/// A cumulative reduction; `reverse` counts from the end of the axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Cumulative {
    pub kind: CumulativeKind,
    pub axis: usize,
    pub reverse: bool,
}

impl Cumulative {
    #[track_caller]
    pub fn apply(self, x: &Array) -> Array {
        bind1(self, std::slice::from_ref(x))
    }

    fn combine(self, a: &Array, b: &Array) -> Array {
        match self.kind {
            CumulativeKind::Sum => ADD.apply(a, b),
            CumulativeKind::Prod => MUL.apply(a, b),
            CumulativeKind::Max => MAX.apply(a, b),
            CumulativeKind::Min => MIN.apply(a, b),
            CumulativeKind::LogSumExp => LOGADDEXP.apply(&[a.clone(), b.clone()]),
        }
    }

    /// The neutral element.
    fn identity(self, dtype: DType) -> Scalar {
        match self.kind {
            CumulativeKind::Sum => Reducer::Sum.identity(dtype),
            CumulativeKind::Prod => Reducer::Prod.identity(dtype),
            CumulativeKind::Max | CumulativeKind::LogSumExp => Reducer::Max.identity(dtype),
            CumulativeKind::Min => Reducer::Min.identity(dtype),
        }
    }

    /// The reduction in terms of simpler operations, for differentiation.
    fn expand(self, x: &Array) -> Result<Array> {
        let options = AssociativeScanOptions::new().reverse(self.reverse).axis(self.axis as i32);
        options.associative_scan(|a, b| self.combine(&a, &b), x.clone())
    }
}

impl Cumulative {
    fn write(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        let n = outs[0].shape[self.axis];
        if n < 2 {
            return Ok(args.to_vec());
        }
        // Each element's window extends to the end of the axis. XLA computes such windows as a tree of blocks, which is
        // at worst half as fast as the expansion and compiles several times as fast.
        let rank = outs[0].rank();
        let ones = ints(&vec![1i64; rank]);
        let (mut window, mut padding) = (vec![1i64; rank], vec![WindowDim::new(1); rank]);
        window[self.axis] = n as i64;
        if !self.reverse {
            padding[self.axis].low = n as i64 - 1
        } else {
            padding[self.axis].high = n as i64 - 1
        }
        let attrs = format!(
            "window_dimensions = {}, window_strides = {ones}, base_dilations = {ones}, window_dilations = {ones}, padding = {}",
            ints(&window),
            padding_attr(&padding)
        );
        let x = cx.without_padding(args[0], [self.axis]);
        let sums = accumulated(cx, x, &outs[0], |cx, x, out| {
            let scalar = Aval::scalar(out.dtype);
            let init = cx.constant(self.identity(scalar.dtype), &scalar);
            let region = cx.region(&[scalar.clone(), scalar], |cx, args| {
                cx.expand(args, |args| Ok(vec![self.combine(&args[0], &args[1])]))
            })?;
            let out = std::slice::from_ref(out);
            Ok(cx.op_with("stablehlo.reduce_window", &[x, init], &attrs, vec![region], out)[0])
        })?;
        Ok(vec![sums])
    }
}

impl Primitive for Cumulative {
    fn name(&self) -> &'static str {
        match self.kind {
            CumulativeKind::Sum => "cumsum",
            CumulativeKind::Prod => "cumprod",
            CumulativeKind::Max => "cummax",
            CumulativeKind::Min => "cummin",
            CumulativeKind::LogSumExp => "cumlogsumexp",
        }
    }

    fn print_params(&self) -> String {
        format!("axis={} reverse={}", self.axis, self.reverse)
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        let accepts = match self.kind {
            CumulativeKind::Sum | CumulativeKind::Prod => Accepts::Number,
            CumulativeKind::Max | CumulativeKind::Min => Accepts::Real,
            CumulativeKind::LogSumExp => Accepts::Float,
        };
        accepts.check(self.name(), args[0].dtype)?;
        if self.axis >= args[0].rank() {
            return Err(err!(Index, "{} axis {} is out of bounds for {}", self.name(), self.axis, args[0])
                .help("pass an axis that is less than the number of dimensions"));
        }
        Ok(smallvec![args[0].clone()])
    }

    fn flops(&self, _args: &[Aval], outs: &[Aval]) -> Flops {
        Flops::from_elements(outs)
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.check_unsharded(0, [self.axis])?;
        rule.like(0)
    }

    fn partial_rule(&self, rule: &ShardingRule<'_>) -> Result<PartialAxes> {
        match self.kind {
            CumulativeKind::Sum => rule.keep_partial(),
            _ => rule.keep_reduced(),
        }
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        with_addends(cx, args, &outs[0], |cx, args| Ok(self.write(cx, args, outs)?[0]))
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        if self.kind == CumulativeKind::Sum {
            return Ok((smallvec![self.apply(&args[0])], vec![tangents[0].as_ref().map(|t| self.apply(t))]));
        }
        // The derivative of the expansion.
        let expanded = trace(&[args[0].aval()], |x| Ok(vec![self.expand(&x[0])?]))?;
        let (outs, tangents) = crate::interpret::ad::jvp_eval(&expanded.program, args, tangents, false)?;
        Ok((outs.into(), tangents))
    }

    fn transpose(&self, cts: &[Option<Array>], _args: &[Operand]) -> Result<Tangents> {
        if self.kind != CumulativeKind::Sum {
            return Err(err!(NotImplemented, "'{}' is not linear and has no transpose", self.name()));
        }
        let back = Cumulative { reverse: !self.reverse, ..*self };
        Ok(vec![cts[0].as_ref().map(|ct| back.apply(ct))])
    }

    fn batch(&self, _axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        let d = dims[0].unwrap_or(0);
        let axis = if self.axis >= d { self.axis + 1 } else { self.axis };
        Ok((smallvec![Cumulative { axis, ..*self }.apply(&args[0])], vec![Some(d)]))
    }
}
