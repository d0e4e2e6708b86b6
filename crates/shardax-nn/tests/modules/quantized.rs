//! Layers whose weights or products have 8 bits and fewer.

use shardax_nn::prelude::*;
use shardax_nn::{Fp8DotGeneral, Fp8Linear, OverwriteWithGradient, QuantizedLinear};

use super::setup;

#[derive(Module, Clone)]
struct Mlp {
    hidden: Fp8Linear,
    out: Fp8Linear,
}

impl Mlp {
    fn forward(&self, x: &Array) -> Array {
        self.out.forward(relu(self.hidden.forward(x)))
    }
}

/// Beside one that trains in float32 from the same weights.
#[test]
fn float8_trains() -> Result<()> {
    setup();
    let mut rngs = Rngs::new(0);
    let layers = [Linear::new(16, 32, &mut rngs), Linear::new(32, 1, &mut rngs)];
    let x = random::normal(random::key(1), [64, 16]);
    let y = (x.get((.., ..1)) * 2.0).tanh() + x.get((.., 1..2));
    let [hidden, out] = layers.clone().map(Fp8Linear::new);
    let mut narrow = Optimizer::new(Mlp { hidden, out }, adam(1e-2))?;
    let mut wide = Optimizer::new(Sequential((layers[0].clone(), Apply(relu), layers[1].clone())), adam(1e-2))?;
    let step = jit(|mut optimizer: Optimizer<Mlp>, x: Array, y: Array| -> Result<(Optimizer<Mlp>, Array)> {
        let loss = optimizer.minimize(|model| mse(model.forward(&x), &y))?;
        Ok((optimizer, loss))
    });
    let (mut of_narrow, mut of_wide) = (0.0, 0.0);
    let first = mse(narrow.model.forward(&x), &y).to_f64()?;
    for _ in 0..60 {
        let (next, loss) = step.call((narrow, &x, &y))?;
        narrow = next;
        of_narrow = loss.to_f64()?;
        of_wide = wide.minimize(|model| mse(model.forward(&x), &y))?.to_f64()?;
    }
    assert!(
        of_narrow < first / 10.0 && of_narrow < of_wide + 0.05,
        "{first} became {of_narrow}, and {of_wide} in float32"
    );
    // The history has the largest input of every step, and the scale follows from it.
    let op = &narrow.model.hidden.dot_general;
    let largest = x.abs().max(..).to_f64()?;
    assert_eq!(op.input_amax_history.get(..3).to_f64_vec()?[0], largest);
    assert!((op.input_scale.to_f64()? - largest / 448.0).abs() < 1e-6, "{}", *op.input_scale);
    assert!(op.output_grad_scale.to_f64()? < 1e-3, "gradients are small");
    assert_eq!(narrow.model.state_of(Filter::of::<OverwriteWithGradient>()).len(), 12);
    assert_eq!(narrow.params().len(), 4);
    Ok(())
}

/// A batch over devices has the scales of one device.
#[test]
fn scales_are_of_the_whole_batch() -> Result<()> {
    setup();
    let layer = Fp8Linear::new(Linear::new(8, 4, &mut Rngs::new(0)));
    let x = random::normal(random::key(1), [16, 8]);
    fn step(x: Array, layer: &Fp8Linear) -> Result<Fp8DotGeneral> {
        let mut optimizer = Optimizer::new(layer.clone(), sgd(0.1))?;
        let _ = optimizer.minimize(|layer| layer.forward(x.clone()).square().mean(..))?;
        Ok(optimizer.model.dot_general)
    }
    let single_step = step(x.clone(), &layer)?;
    let split = device_put(&x, &NamedSharding::new(&make_mesh([("data", 4)])?, P!["data"]))?;
    let many = step(split, &layer)?;
    for (a, b) in tree::leaves(&single_step).iter().zip(tree::leaves(&many)) {
        assert!(allclose(a, &b, 1e-5, 1e-7)?, "{a} and {b}");
    }
    Ok(())
}

#[test]
fn weights_of_four_bits() -> Result<()> {
    setup();
    let layer = Linear::new(64, 8, &mut Rngs::new(0));
    weights_are_quantized(&layer, |layer| QuantizedLinear::new(layer, 16), 7.0)?;
    weights_are_quantized(&layer, |layer| QuantizedLinear::new(layer, 64), 7.0)?;
    let error = QuantizedLinear::new(&layer, 24).err().expect("no groups").to_string();
    assert!(error.contains("the kernel float32[64,8] do not divide into groups of 24"), "{error}");
    Ok(())
}

#[test]
fn weights_of_eight_bits() -> Result<()> {
    setup();
    let layer = Linear::new(64, 8, &mut Rngs::new(0));
    weights_are_quantized(&layer, QuantizedLinear::int8, 127.0)?;
    // Sums of integers, which are scaled afterwards, do not overflow in half precision.
    let mut half = Linear::builder(4096, 2).use_bias(false).build(&mut Rngs::new(0));
    half.kernel = full([4096, 2], 3.0).astype(DType::F16);
    let y = QuantizedLinear::int8(&half)?.forward(ones([1, 4096]).astype(DType::F16));
    assert_eq!((y.dtype(), y.astype(DType::F32).to_vec::<f32>()?), (DType::F16, vec![12288.0; 2]));
    let empty = Linear::new(0, 8, &mut Rngs::new(0));
    assert!(QuantizedLinear::int8(&empty).is_err());
    Ok(())
}

fn weights_are_quantized(
    layer: &Linear,
    quantize: impl Fn(&Linear) -> Result<QuantizedLinear>,
    largest: f64,
) -> Result<()> {
    let small = quantize(layer)?;
    // Each weight is off by half a step at most.
    let restored = small.forward(eye(64));
    let step = small.scales.to_f64_vec()?.into_iter().fold(0.0, f64::max);
    let error = (restored - &layer.kernel).abs().max(..).to_f64()?;
    assert!(error > 0.0 && error <= step / 2.0 + 1e-6, "{error} of {step}");
    assert_eq!(small.kernel.astype(DType::I32).abs().max(..).to_f64()?, largest);
    // Inside `jit`, with gradients with respect to the input; only the bias trains.
    let x = random::normal(random::key(1), [4, 64]);
    let slope = jit(grad(|x: Array, layer: QuantizedLinear| layer.forward(x).sum(..))).call((&x, small.clone()))?;
    let bias = layer.bias.as_ref().expect("a bias");
    assert!(allclose(slope.get(0), (small.forward(eye(64)) - bias).sum(1), 1e-4, 1e-5)?);
    assert_eq!(small.state_of(Filter::of::<Param>()).keys().collect::<Vec<_>>(), ["bias"]);
    for lost in [f32::NAN, f32::INFINITY] {
        let mut broken = layer.clone();
        broken.kernel = layer.kernel.at((0, 0)).set(lost);
        let out = quantize(&broken)?.forward(ones([64])).isnan().to_vec::<bool>()?;
        assert_eq!(out, [true, false, false, false, false, false, false, false], "{lost}");
    }
    Ok(())
}

#[test]
fn fp8_products_reject_invalid_kernels() {
    setup();
    let op = Fp8DotGeneral::new(4);
    let error = op.dot(ones([2, 3]), ones([3, 4]).astype(DType::I32)).check().err().expect("integers").to_string();
    assert!(error.contains("needs a kernel [in, out] of 16 bits or more, got int32[3,4]"), "{error}");
    assert!(op.dot(ones([2, 3]), ones([4, 4])).check().is_err());
}
