//! The precision of layers: in the forward pass and in gradients.

use shardax::lax::Precision;
use shardax_nn::prelude::*;

use super::setup;

/// Every product of a layer's loss and gradient is of this precision.
#[track_caller]
fn all_highest<M: Module>(name: &str, layer: M, x: [usize; 3], forward: fn(&M, Array) -> Array) {
    let slope = jit(grad(move |layer: M, x: Array| forward(&layer, x).square().sum(..)));
    let lowered = slope.lower((layer, shape_dtype_struct(x, DType::F32))).expect("a program");
    let text = lowered.as_text();
    assert!(text.contains("<precision HIGHEST>"), "{name}:\n{text}");
    assert!(!text.contains("<precision DEFAULT>"), "{name}:\n{text}");
}

#[test]
fn layers_keep_their_precision() {
    setup();
    let (rngs, p) = (&mut Rngs::new(0), Precision::Highest);
    all_highest("Linear", Linear::builder(4, 3).precision(p).build(rngs), [2, 5, 4], |l, x| l.forward(x));
    let general = LinearGeneral::builder([4], [2, 3]).precision(p).build(rngs);
    all_highest("LinearGeneral", general, [2, 5, 4], |l, x| l.forward(x));
    let einsum = Einsum::builder("nta,hab->nthb", [2, 4, 3]).precision(p).build(rngs);
    all_highest("Einsum", einsum, [2, 5, 4], |l, x| l.forward(x));
    all_highest("Conv", Conv::builder(4, 3, [3]).precision(p).build(rngs), [2, 5, 4], |l, x| l.forward(x));
    let transposed = ConvTranspose::builder(4, 3, [3]).precision(p).build(rngs);
    all_highest("ConvTranspose", transposed, [2, 5, 4], |l, x| l.forward(x));
    let attention = MultiHeadAttention::builder(2, 4).precision(p).build(rngs);
    all_highest("MultiHeadAttention", attention, [2, 5, 4], |l, x| l.forward(x));
}
