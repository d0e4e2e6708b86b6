//! Softmax of rows and columns by the CPU kernel.

use super::common::child;
use super::common::quick::one_of;
use super::*;

/// Run in a process of its own, where the CPU kernels compute it whatever the build.
#[test]
#[ignore = "the test below runs it"]
fn in_a_process_with_cpu_kernels() -> Result<()> {
    common::quick::setup();
    let x = (arange(0.0f32..120.0) * 7.3).sin().reshape([4, 5, 6]) * 9;
    // XLA computes it along axes that are not next to each other.
    let axes = [(vec![-1], 1), (vec![1, 2], 1), (vec![0, 1, 2], 1), (vec![0], 1), (vec![1], 1), (vec![0, 2], 0)];
    for (a, (axes, calls)) in axes.into_iter().enumerate() {
        // A slice has each dtype with one of the axes.
        let dtypes = [DType::F32, DType::F64, DType::Bf16, DType::F16];
        for dtype in dtypes.into_iter().skip(a % one_of(4)).step_by(one_of(4)) {
            let x = x.astype(dtype);
            let along = axes.clone();
            let program = jit(move |x: Array| nn::softmax(x, &along[..])).lower(&x)?;
            let text = program.as_text().to_string();
            assert_eq!(text.matches("\"shardax_softmax\"").count(), calls, "{axes:?} of {dtype}: {text}");
            let expected = softmax_by_parts(&if dtype == DType::F64 { x.clone() } else { x.astype(DType::F32) }, &axes)
                .astype(dtype);
            // XLA rounds exponentials and quotients of half precision.
            let tolerance = match dtype {
                DType::F64 => 1e-13,
                DType::F32 => 4e-6,
                _ => 2e-2,
            };
            assert!(
                allclose(nn::softmax(&x, &axes[..]), expected, tolerance, tolerance.min(1e-6))?,
                "{axes:?} of {dtype}"
            );
        }
        let slope = grad(|x: Array| nn::softmax(x, &axes[..]).square().sum(..)).call(&x)?;
        let expected = grad(|x: Array| softmax_by_parts(&x, &axes).square().sum(..)).call(&x)?;
        assert!(allclose(slope, expected, 1e-5, 1e-6)?, "{axes:?}");
    }
    let mapped = vmap(|x: Array| nn::softmax(x, -1)).call(&x)?;
    assert_eq!(floats(&mapped), floats(&nn::softmax(&x, -1)));
    Ok(())
}

fn softmax_by_parts(x: &Array, axes: &[i32]) -> Array {
    x.exp() / x.exp().sum_keepdims(axes)
}

#[test]
fn softmax_by_cpu_kernels() {
    let mut command = child::command("softmax::in_a_process_with_cpu_kernels");
    child::run(command.env("SHARDAX_CPU_KERNELS", "all"));
}
