//! Products of float8 and of int8, compiled for GPUs and TPUs.

use shardax::lax::DotOptions;
use shardax::prelude::*;

/// The compiled text of a product of two matrices of these dtypes, times a scale.
fn product(topology: &Topology, [left, right, to]: [DType; 3]) -> Result<String> {
    let device = topology.devices().swap_remove(0);
    let (x, y) = (shape_dtype_struct_on([256, 512], left, &device), shape_dtype_struct_on([512, 128], right, &device));
    let f = jit(move |x: Array, y: Array| DotOptions::new().preferred_element_type(to).dot(x, y) * 2);
    f.lower((&x, &y))?.compile_for(topology)?.as_text()
}

/// Float8 is multiplied by a kernel of Triton, without widening. Int8, of which those kernels give other sums, is widened.
pub fn on_gpus(topology: &Topology) -> Result<()> {
    use DType::{F8E4M3Fn, F8E5M2, F32, I8, I32};
    for types in [[F8E4M3Fn, F8E4M3Fn, F32], [F8E5M2, F8E4M3Fn, F32]] {
        let text = product(topology, types)?;
        assert!(text.contains("f8e4m3fn[512,128]") && !text.contains("f16["), "{types:?}:\n{text}");
    }
    for to in [I8, I32] {
        let text = product(topology, [I8, I8, to])?;
        let products: Vec<_> = text.lines().filter(|line| line.contains(" dot(")).collect();
        assert!(products.iter().all(|line| line.contains("= s32[256,128]")) && !products.is_empty(), "{text}");
        assert!(text.contains("s32[256,512]") && text.contains("s32[512,128]"), "operands are not widened:\n{text}");
    }
    let device = topology.devices().swap_remove(0);
    // Conversions to a narrow type and back stay: they are a quantization. Those to bfloat16 go, which only adds digits.
    for (dtype, stays) in [(F8E4M3Fn, true), (DType::F4E2M1Fn, true), (DType::Bf16, false)] {
        let rounded = jit(move |x: Array| (x * 3).astype(dtype).astype(F32) * 2);
        let text = rounded.lower(shape_dtype_struct_on([64], F32, &device))?.compile_for(topology)?.as_text()?;
        assert_eq!(text.contains(" convert("), stays, "{dtype}: {text}");
    }
    let sorted = jit(|x: Array| x.argsort(1));
    sorted.lower(shape_dtype_struct_on([8, 8], DType::I4, &device))?.compile_for(topology)?;
    let error = sorted.lower(shape_dtype_struct_on([8, 8], DType::I2, &device)).err().expect("no elements of 2 bits");
    assert!(error.message().contains("sort of int2 and uint2 is not implemented on GPU"), "{error}");
    Ok(())
}

pub fn on_tpus(topology: &Topology) -> Result<()> {
    let text = product(topology, [DType::F8E4M3Fn, DType::F8E5M2, DType::F32])?;
    assert!(text.contains("f8e4m3fn[256,512]") && text.contains("f8e5m2[512,128]"), "{text}");
    let text = product(topology, [DType::I8, DType::I8, DType::I32])?;
    assert!(text.contains("s8[256,512]") && !text.contains("s32[256,512]"), "operands are widened:\n{text}");
    let device = topology.devices().swap_remove(0);
    let w = shape_dtype_struct_on([512, 128], DType::I4, &device);
    let x = shape_dtype_struct_on([256, 512], DType::Bf16, &device);
    let text =
        jit(|x: Array, w: Array| x.dot(w.astype(DType::Bf16))).lower((&x, &w))?.compile_for(topology)?.as_text()?;
    assert!(text.contains("s4[512,128]"), "{text}");
    Ok(())
}
