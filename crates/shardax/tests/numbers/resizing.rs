//! Resized images, whose weights are sparse matrices: values, gradients and infinities compared with dense products.

use shardax::image::{ResizeMethod, resize, scale_and_translate};

use super::common::child;
use super::*;

/// The weights of each pixel, as images of its unit vectors.
fn resize_by_matrices(x: &Array, shape: &[usize], method: ResizeMethod) -> Array {
    (0..x.ndim()).fold(x.clone(), |x, d| {
        let (m, n) = (x.shape()[d], shape[d]);
        if m == n {
            return x;
        }
        let weights = resize(eye(m).astype(x.dtype()), [m, n], method);
        x.moveaxis(d as i32, -1).matmul(weights).moveaxis(-1, d as i32)
    })
}

fn check(count: usize) -> Result<()> {
    let x = (arange(0.0f32..720.0) * 1.7).sin();
    // Neighbouring elements that share weights: many, few, and one. The last one has an axis between others and becomes smaller.
    let cases = [
        ([2, 6, 5, 12], [2, 9, 8, 12], ResizeMethod::Linear),
        ([2, 10, 12, 3], [2, 21, 5, 3], ResizeMethod::Cubic),
        ([1, 20, 6, 6], [1, 20, 9, 13], ResizeMethod::Linear),
        ([2, 20, 6, 3], [2, 7, 6, 3], ResizeMethod::Lanczos3),
    ];
    let dtypes = [(DType::F32, 2e-6), (DType::F64, 1e-12), (DType::F32, 2e-6), (DType::Bf16, 0.03)];
    for ((shape, to, method), (dtype, tolerance)) in cases.into_iter().zip(dtypes) {
        let x = x.reshape(shape).astype(dtype);
        let resized = jit(move |x: Array| resize(x, to, method));
        let text = resized.lower(&x)?.as_text().to_string();
        let calls = (0..4).filter(|d| shape[*d] != to[*d]).count();
        assert_eq!(text.matches("\"shardax_weighted_sums\"").count(), calls * count, "{text}");
        let expected = resize_by_matrices(&x, &to, method);
        assert!(allclose(resized.call(&x)?, &expected, tolerance, tolerance)?, "{shape:?} to {to:?}, {dtype}");
        let gradient = jit(grad(move |x: Array| resize(x, to, method).square().sum(..)));
        let text = gradient.lower(&x)?.as_text().to_string();
        assert_eq!(text.matches("\"shardax_weighted_sums\"").count(), 2 * calls * count, "{text}");
        let by_matrices = jit(grad(move |x: Array| resize_by_matrices(&x, &to, method).square().sum(..))).call(&x)?;
        let tolerance = tolerance * 4.0;
        assert!(allclose(gradient.call(&x)?, by_matrices, tolerance, tolerance)?, "{shape:?} to {to:?}, {dtype}");
    }
    infinities()?;
    let moved = scale_and_translate(
        ones([4, 5]),
        [4, 9],
        &[0, 1],
        array([1.0f32, 1.0]),
        array([0.0f32, 2.0]),
        ResizeMethod::Linear,
    );
    assert_eq!(floats(&moved), [0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0].repeat(4));
    let mapped = vmap(|x: Array| resize(x, [3, 7, 2], ResizeMethod::Linear)).call(ones([3, 3, 4, 2]))?;
    assert_eq!(floats(&mapped), floats(&ones([3, 3, 7, 2])));
    Ok(())
}

/// A product with a matrix multiplies an infinity with the zeros too.
fn infinities() -> Result<()> {
    let x = zeros([3, 4]).at((1, 1)).set(f32::INFINITY);
    let resized = resize(&x, [3, 8], ResizeMethod::Linear);
    let expected = resize_by_matrices(&x, &[3, 8], ResizeMethod::Linear);
    assert_eq!(format!("{:?}", floats(&resized)), format!("{:?}", floats(&expected)));
    assert!(floats(&resized)[8..16].iter().any(|x| x.is_nan()));
    Ok(())
}

#[test]
fn resized_images() -> Result<()> {
    common::quick::setup();
    check(0)
}

/// Run in a process of its own, where the CPU kernels compute them whatever the build.
#[test]
#[ignore = "the test below runs it"]
fn in_a_process_with_cpu_kernels() -> Result<()> {
    common::quick::setup();
    check(1)
}

#[test]
fn resized_images_by_cpu_kernels() {
    let mut command = child::command("resizing::in_a_process_with_cpu_kernels");
    child::run(command.env("SHARDAX_CPU_KERNELS", "all"));
}
