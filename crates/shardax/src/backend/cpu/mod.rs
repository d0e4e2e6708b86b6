//! CPU: kernels in Rust, forms of operations that XLA computes fast, and workarounds for its plugin.

mod arcsin;
mod arctan;
mod argmax;
mod attention;
mod bfloat16;
mod binary;
pub(super) mod calling_thread;
mod conv;
mod conv_depthwise;
mod conv_dot;
mod conv_few;
#[cfg(feature = "decompositions")]
mod decompositions;
mod dot;
mod dot_long;
mod dot_vector;
mod erf_inv;
mod extremes;
mod integer_division;
mod integers;
#[cfg(feature = "cpu-kernels")]
pub(super) mod kernels;
mod log1p;
mod loop_products;
pub(super) mod materialize;
mod ordered;
mod reduce_window;
mod scatter;
mod sums;
pub(super) mod transposes;
mod triangular_solve;
mod unary;

use super::host_calls;
use super::rules::{Lowered, Rules};
use crate::core::lower::{Lowering, Platform, Value};
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::ops::callback::function::register;
use crate::ops::callback::primitive::HostCall;
#[cfg(feature = "cpu-kernels")]
use crate::ops::primitive::cumulative::Cumulative;
#[cfg(feature = "cpu-kernels")]
use crate::ops::primitive::random_gamma::RandomGammaFactor;
use crate::ops::primitive::reduce::{Reduce, Reducer};
#[cfg(feature = "cpu-kernels")]
use crate::ops::primitive::search_sorted::SearchSorted;
#[cfg(feature = "cpu-kernels")]
use crate::ops::primitive::select_and_gather::SelectAndScatterAdd;
#[cfg(feature = "cpu-kernels")]
use crate::ops::primitive::shape_ops::Transpose;
use crate::ops::primitive::slices::{Concatenate, Pad, Reverse, Slice};
#[cfg(feature = "cpu-kernels")]
use crate::ops::primitive::softmax::Softmax;
#[cfg(feature = "cpu-kernels")]
use crate::ops::primitive::sort::Sort;
use crate::ops::primitive::top_k::TopK;

pub(super) fn add(rules: &mut Rules) {
    // The type of a rule's first argument is the primitive that it replaces, so each primitive has at most one rule here.
    const CPU: Platform = Platform::Cpu;
    rules.add(CPU, attention::forward);
    rules.add(CPU, attention::backward);
    rules.add(CPU, dot::lower);
    rules.add(CPU, conv::lower);
    rules.add(CPU, reduce_window::lower);
    rules.add(CPU, scatter::lower);
    rules.add(CPU, reduce);
    rules.add(CPU, triangular_solve::lower);
    rules.add(CPU, unary::lower);
    rules.add(CPU, binary::lower);
    rules.add(CPU, ordered::lower);
    rules.add(CPU, host_call);
    rules.add(CPU, bfloat16::move_bits::<Slice>);
    rules.add(CPU, bfloat16::move_bits::<Pad>);
    rules.add(CPU, bfloat16::move_bits::<Concatenate>);
    rules.add(CPU, bfloat16::move_bits::<Reverse>);
    rules.add(CPU, argmax::lower);
    rules.add(CPU, loop_products::lower);
    rules.add(CPU, top_k);
    #[cfg(feature = "cpu-kernels")]
    rules.add(CPU, |_: &RandomGammaFactor, cx, args, outs| {
        Ok(kernels::random_gamma::lower(cx, args, &outs[0]).map(|factors| vec![factors]))
    });
    #[cfg(feature = "cpu-kernels")]
    rules.add(CPU, |search: &SearchSorted, cx, args, outs| {
        Ok(kernels::search_sorted::lower(search, cx, args, &outs[0]))
    });
    #[cfg(feature = "cpu-kernels")]
    rules.add(CPU, |scatter: &SelectAndScatterAdd, cx, args, outs| {
        Ok(kernels::select_and_scatter::lower(&scatter.0, cx, [args[0], args[1]], &outs[0]).map(|sums| vec![sums]))
    });
    #[cfg(feature = "cpu-kernels")]
    rules.add(CPU, |softmax: &Softmax, cx, args, outs| {
        Ok(kernels::softmax::lower(softmax, cx, args[0], &outs[0]).map(|y| vec![y]))
    });
    #[cfg(feature = "cpu-kernels")]
    rules.add(CPU, |transpose: &Transpose, cx, args, outs| {
        Ok(kernels::transpose::lower(transpose, cx, args[0], &outs[0]).map(|y| vec![y]))
    });
    #[cfg(feature = "cpu-kernels")]
    rules.add(CPU, |sort: &Sort, cx, args, outs| Ok(kernels::sort::lower(sort, cx, args, outs)));
    #[cfg(feature = "cpu-kernels")]
    rules.add(CPU, cumulative);
    #[cfg(feature = "decompositions")]
    decompositions::add(rules);
}

#[cfg(feature = "cpu-kernels")]
fn cumulative(of: &Cumulative, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Lowered {
    if outs[0].shape[of.axis] < 2 {
        return Ok(None);
    }
    let result = kernels::cumulative::lower(of.kind, of.axis, of.reverse, cx, args[0], &outs[0]);
    Ok(result.map(|result| vec![result]))
}

/// Computes bfloat16 in float32, which has all of its numbers, so that each element is converted once.
fn top_k(of: &TopK, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Lowered {
    if cx.dtype(args[0]) == DType::Bf16 && cx.is_local() {
        let wide = widen(cx, args, Some(DType::F32))[0];
        let largest = cx.apply(of, &[wide], &[outs[0].with_dtype(DType::F32), outs[1].clone()])?;
        return Ok(Some(vec![cx.op("stablehlo.convert", &largest[..1], "", &outs[0]), largest[1]]));
    }
    #[cfg(feature = "cpu-kernels")]
    if let Some(largest) = kernels::top_k::lower(cx, args[0], outs) {
        return Ok(Some(largest));
    }
    Ok(None)
}

fn reduce(reduce: &Reduce, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Lowered {
    match reduce.reducer {
        Reducer::Sum | Reducer::Prod => sums::lower(reduce, cx, args, outs),
        Reducer::Max | Reducer::Min => extremes::lower(reduce, cx, args, outs),
        Reducer::And | Reducer::Or => Ok(None),
    }
}

fn host_call(call: &HostCall, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Lowered {
    register()?;
    host_calls::host_call(call, &call.function, cx, args, outs)
}

/// Converts operands to the type of a wider result.
pub(super) fn widen(cx: &mut Lowering, args: &[Value], to: Option<DType>) -> Vec<Value> {
    let Some(dtype) = to else { return args.to_vec() };
    args.iter()
        .map(|&v: &Value| {
            let wide = Aval::new(dtype, cx.shape(v).clone());
            if cx.dtype(v) == dtype { v } else { cx.op("stablehlo.convert", &[v], "", &wide) }
        })
        .collect()
}
