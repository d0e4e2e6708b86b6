//! Layers of `flax.linen` that `flax.nnx` does not have, with its numbers (Flax 0.12.12).

use shardax_nn::prelude::*;

use crate::quick::setup;

fn wave(shape: &[usize], phase: f64) -> Array {
    let count: usize = shape.iter().product();
    (((arange(0..count as i32).astype(DType::F32) * 0.37 + phase).sin()) * 0.5).reshape(shape)
}

/// The sum of the elements times a wave.
fn weighted_by_a_wave(x: &Array) -> Result<f64> {
    let wave = wave(x.shape(), 1.0).to_f64_vec()?;
    Ok(x.to_f64_vec()?.iter().zip(wave).map(|(x, wave)| x * wave).sum())
}

/// Checks the first three outputs, and the sums of the outputs, of the first array of the carry, and of the gradient of
/// the sum of squares, weighted by a wave.
fn compare<C: RnnCell + Clone>(cell: C, input: &[usize], first: [f64; 3], sums: [f64; 3]) -> Result<()> {
    let rnn = tree::map(|p: Array| wave(p.shape(), p.ndim() as f64), Rnn::new(cell))?;
    let x = wave(input, 0.0);
    let (carry, y) = rnn.run(&x, None, None)?;
    let loss = |rnn: Rnn<C>| rnn.forward(&x).square().sum(..);
    let gradients = tree::leaves(&jit(grad(loss)).call(rnn.clone())?);
    let weighted = gradients.iter().map(weighted_by_a_wave).sum::<Result<f64>>()?;
    let results = [y.sum(..).to_f64()?, tree::leaves(&carry)[0].sum(..).to_f64()?, weighted];
    let first_results = y.ravel().get(..3).to_f64_vec()?;
    for (got, want) in first_results.iter().chain(&results).zip(first.iter().chain(&sums)) {
        assert!((got - want).abs() < 2e-5 * (1.0 + want.abs()), "{first_results:?} {results:?}");
    }
    let compiled = jit(|rnn: Rnn<C>, x: Array| rnn.forward(x)).call((&rnn, &x))?;
    assert!(allclose(compiled, y, 1e-5, 1e-6)?);
    Ok(())
}

#[test]
fn cells_equal_linen() -> Result<()> {
    setup();
    let rngs = &mut Rngs::new(0);
    let gated = [0.19123715, 0.22148561, 0.22764635];
    compare(MguCell::new(3, 4, rngs), &[2, 6, 3], gated, [21.16422844, 4.50077629, 14.26599407])?;
    let plain = MguCell::builder(3, 4).reset_gate(false).build(rngs);
    compare(plain, &[2, 6, 3], [0.09908547, 0.12195361, 0.13031331], [13.38172245, 2.90905976, 6.70015717])?;
    let image = ConvLstmCell::new(2, 3, [3, 2], rngs);
    compare(image, &[2, 3, 4, 5, 2], [0.135507, 0.11379308, 0.07920033], [50.82268524, 93.08611298, -1.04036689])?;
    let circular = ConvLstmCell::builder(2, 3, [3, 2]).use_bias(false).padding(ConvPadding::Circular).build(rngs);
    let first = [0.02984042, 0.04638899, 0.05645418];
    compare(circular, &[2, 3, 4, 5, 2], first, [-0.37954572, 1.77968991, -0.80351198])?;
    let line = ConvLstmCell::new(2, 3, [3], rngs);
    compare(line, &[2, 3, 5, 2], [0.1283018, 0.10422246, 0.06197526], [11.32886124, 18.68563271, 0.20072339])
}

#[test]
fn sequences_of_images_have_lengths_and_orders() -> Result<()> {
    setup();
    let cell = ConvLstmCell::new(2, 3, [3, 3], &mut Rngs::new(0));
    let x = wave(&[2, 4, 5, 5, 2], 0.0);
    let rnn = Rnn::new(cell);
    let ((_, h), y) = rnn.run(&x, None, Some(&array([2, 4])))?;
    assert!(allclose(h.get(0), y.get((0, 1)), 1e-6, 1e-6)? && allclose(h.get(1), y.get((1, 3)), 1e-6, 1e-6)?);
    let time_major = rnn.clone().time_major(true).forward(x.swapaxes(0, 1));
    assert!(allclose(time_major.swapaxes(0, 1), &y, 1e-5, 1e-6)?);
    let reversed = rnn.clone().reverse(true).keep_order(true).forward(x.flip(1));
    assert!(allclose(reversed.flip(1), &y, 1e-5, 1e-6)?);
    assert_eq!(rnn.forward(x.get(0)).shape(), [4, 5, 5, 3]);
    assert_eq!(rnn.forward(x.get((.., ..0))).shape(), [2, 0, 5, 5, 3]);
    let error = rnn.forward(ones([5, 5, 2])).check().expect_err("no steps");
    assert!(error.message().contains("[batch, steps, spatial dimensions, features]"), "{error}");
    Ok(())
}

/// Checks the shape of the kernels, the first three outputs, and the sums of the outputs and of the gradient of the sum of
/// squares, weighted by a wave.
fn compare_local(layer: ConvLocal, kernel: &[usize], first: [f64; 3], sums: [f64; 2]) -> Result<()> {
    assert_eq!(layer.kernel.shape(), kernel);
    let layer = tree::map(|p: Array| wave(p.shape(), p.ndim() as f64), layer)?;
    let x = wave(&[2, 7, 5, 3], 0.0);
    let y = layer.forward(&x);
    let gradients = jit(grad(|layer: ConvLocal| layer.forward(&x).square().sum(..))).call(&layer)?;
    let weighted = tree::leaves(&gradients);
    let weighted = weighted.iter().map(weighted_by_a_wave);
    let results = [y.sum(..).to_f64()?, weighted.sum::<Result<f64>>()?];
    let first_results = y.ravel().get(..3).to_f64_vec()?;
    for (got, want) in first_results.iter().chain(&results).zip(first.iter().chain(&sums)) {
        assert!((got - want).abs() < 2e-5 * (1.0 + want.abs()), "{first_results:?} {results:?}");
    }
    assert!(allclose(layer.forward(x.get(1)), y.get(1), 1e-5, 1e-6)?);
    let error = layer.forward(x.get((.., 1..))).check().expect_err("six rows");
    assert!(error.message().contains("must have the sizes [7, 5, 3]"), "{error}");
    Ok(())
}

#[test]
fn locally_connected_layers_equal_linen() -> Result<()> {
    setup();
    let rngs = &mut Rngs::new(0);
    compare_local(
        ConvLocal::new(3, 4, [3, 2], [7, 5], rngs),
        &[7, 5, 18, 4],
        [0.13381031, -0.039033, -0.20659348],
        [-0.20889406, -31.26772499],
    )?;
    let strided = ConvLocal::builder(3, 4, [3, 2], [7, 5]).strides([2, 1]).kernel_dilation([2, 1]);
    let valid = strided.padding(shardax::lax::Padding::Valid).use_bias(false).build(rngs);
    compare_local(valid, &[2, 4, 18, 4], [-0.0683626, -0.06320295, -0.04948871], [-0.83668804, -0.40206119])?;
    let circular = ConvLocal::builder(3, 4, [3, 2], [7, 5]).padding(ConvPadding::Circular).strides(2).build(rngs);
    compare_local(circular, &[4, 3, 18, 4], [0.09415956, -0.07945384, -0.24231327], [-2.35898781, -11.14215946])?;
    let error = ConvLocal::new(3, 4, [3, 2], [7], rngs).kernel.check().expect_err("one dimension");
    assert!(error.message().contains("need the same number of dimensions"), "{error}");
    Ok(())
}
