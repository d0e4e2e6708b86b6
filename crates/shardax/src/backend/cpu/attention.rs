//! Attention on CPU: the kernel in Rust, or the loop of flash attention where it is requested, for tests.

#[cfg(feature = "cpu-kernels")]
use super::kernels::attention as kernel;
use crate::backend::rules::Lowered;
use crate::backend::tpu::flash;
#[cfg(feature = "cpu-kernels")]
use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::program::Aval;
#[cfg(feature = "cpu-kernels")]
use crate::dtype::DType;
use crate::ops::primitive::attention::derivative::AttentionGradient;
#[cfg(feature = "cpu-kernels")]
use crate::ops::primitive::attention::unfused::positions;
use crate::ops::primitive::attention::{Attention, Implementation};
#[cfg(feature = "cpu-kernels")]
use crate::ops::primitive::attention::{Operands, PresentOperands, per_query_aval};

pub(super) fn forward(of: &Attention, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Lowered {
    if of.implementation == Some(Implementation::Flash) {
        return flash::forward(of, cx, args, outs);
    }
    #[cfg(feature = "cpu-kernels")]
    return by_kernel(of, cx, args, outs);
    #[cfg(not(feature = "cpu-kernels"))]
    Ok(None)
}

pub(super) fn backward(gradient: &AttentionGradient, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Lowered {
    if gradient.of.implementation == Some(Implementation::Flash) {
        return flash::backward(gradient, cx, args, outs);
    }
    #[cfg(feature = "cpu-kernels")]
    return gradient_by_kernel(gradient, cx, args, outs);
    #[cfg(not(feature = "cpu-kernels"))]
    Ok(None)
}

/// Returns `true` if the kernel can compute this attention.
#[cfg(feature = "cpu-kernels")]
fn is_known(of: &Attention) -> bool {
    !of.present.bias && of.cap().is_none() && matches!(of.implementation, None | Some(Implementation::Cudnn))
}

/// Lowers attention to the kernel, which takes scaled queries in float32 and one mask.
#[cfg(feature = "cpu-kernels")]
fn by_kernel(of: &Attention, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Lowered {
    if !is_known(of) || !kernel::is_worthwhile(cx, args) {
        return Ok(None);
    }
    let operands = cx.expand(args, |args| Ok(operands(of, &Operands::of(of.present, args))))?;
    let rows = per_query_aval(&cx.aval(args[0]));
    let wide = [Aval::new(DType::F32, outs[0].shape.clone()), rows.clone(), rows];
    let results = kernel::lower(of.window, cx, &operands, &wide);
    let dtype = outs[0].dtype;
    let y = cx.expand(&results[..1], |results| Ok(vec![results[0].astype(dtype)]))?;
    Ok(Some(y.into_iter().chain(results[1..outs.len()].iter().copied()).collect()))
}

/// Combines the caller's mask with the masks of segments and lengths. The kernel applies the window itself.
#[cfg(feature = "cpu-kernels")]
fn mask(x: &Operands) -> Option<Array> {
    let [query, key] = positions(x.queries(), x.keys());
    x.combined_mask().into_iter().chain(x.length_mask(&query, &key)).reduce(|a, b| a & b)
}

#[cfg(feature = "cpu-kernels")]
fn operands(of: &Attention, x: &Operands) -> Vec<Array> {
    let first = [x.q.astype(DType::F32) * of.factor(), x.k.astype(DType::F32), x.v.astype(DType::F32)];
    first.into_iter().chain(mask(x)).collect()
}

#[cfg(feature = "cpu-kernels")]
fn gradient_by_kernel(gradient: &AttentionGradient, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Lowered {
    let of = &gradient.of;
    if !is_known(of) || !kernel::is_worthwhile_gradient(cx, args) {
        return Ok(None);
    }
    let n = of.present.count();
    let operands = cx.expand(args, |args| {
        let (ct, mean) = gradient.cotangent(args);
        let mut first = operands(of, &Operands::of(of.present, args));
        let mask = first.split_off(PresentOperands::BIAS);
        let softmax = [args[n + 1].clone(), args[n + 2].clone(), ct.astype(DType::F32), mean];
        Ok(first.into_iter().chain(softmax).chain(mask).collect())
    })?;
    let wide: Vec<Aval> = outs.iter().map(|out| Aval::new(DType::F32, out.shape.clone())).collect();
    let results = kernel::lower_gradient(of.window, cx, &operands, &wide);
    let (factor, dtype) = (of.factor(), outs[0].dtype);
    cx.expand(&results, |results: &[Array]| {
        let dq = if factor == 1.0 { results[0].clone() } else { &results[0] * factor };
        Ok([&dq, &results[1], &results[2]].map(|x| x.astype(dtype)).to_vec())
    })
    .map(Some)
}
