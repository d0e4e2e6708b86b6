//! Products of float8 and of int8, compiled for GPUs and TPUs.

use shardax::lax::DotOptions;
use shardax::prelude::*;

/// The compiled text of a product of two matrices of these dtypes, times a scale.
fn product(topology: &Topology, [left, right, to]: [DType; 3], options: &[(&str, bool)]) -> Result<String> {
    let device = topology.devices().swap_remove(0);
    let (x, y) = (shape_dtype_struct_on([256, 512], left, &device), shape_dtype_struct_on([512, 128], right, &device));
    let f = jit(move |x: Array, y: Array| DotOptions::new().preferred_element_type(to).dot(x, y) * 2);
    f.compiler_options(options.iter().copied()).lower((&x, &y))?.compile_for(topology)?.as_text()
}

/// Float8 is multiplied by a kernel of Triton, int8 by cuBLAS where Triton's kernels are turned off; neither is widened.
pub fn on_gpus(topology: &Topology) -> Result<()> {
    use DType::{F8E4M3Fn, F8E5M2, F32, I8, I32};
    for types in [[F8E4M3Fn, F8E4M3Fn, F32], [F8E5M2, F8E4M3Fn, F32]] {
        let text = product(topology, types, &[])?;
        assert!(text.contains("f8e4m3fn[512,128]") && !text.contains("f16["), "{types:?}:\n{text}");
    }
    let text = product(topology, [I8, I8, I32], &[("xla_gpu_enable_triton_gemm", false)])?;
    let call = text.lines().find(|line| line.contains("__cublas$"));
    assert!(call.is_some_and(|line| line.contains("s32[256,128]")), "{text}");
    assert!(!text.contains("s32[256,512]") && !text.contains("f32["), "operands are widened:\n{text}");
    Ok(())
}

pub fn on_tpus(topology: &Topology) -> Result<()> {
    let text = product(topology, [DType::F8E4M3Fn, DType::F8E5M2, DType::F32], &[])?;
    assert!(text.contains("f8e4m3fn[256,512]") && text.contains("f8e5m2[512,128]"), "{text}");
    let text = product(topology, [DType::I8, DType::I8, DType::I32], &[])?;
    assert!(text.contains("s8[256,512]") && !text.contains("s32[256,512]"), "operands are widened:\n{text}");
    let device = topology.devices().swap_remove(0);
    let w = shape_dtype_struct_on([512, 128], DType::I4, &device);
    let x = shape_dtype_struct_on([256, 512], DType::Bf16, &device);
    let text =
        jit(|x: Array, w: Array| x.dot(w.astype(DType::Bf16))).lower((&x, &w))?.compile_for(topology)?.as_text()?;
    assert!(text.contains("s4[512,128]"), "{text}");
    Ok(())
}
