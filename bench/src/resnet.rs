//! The benchmark of ResNet-18 for small images: a training step with 32 images on one device.

use shardax::nn::initializers;
use shardax_nn::prelude::*;

use crate::clock::{Timing, measure_steps};
use crate::data::{images, labels};

const IMAGES: usize = 32;

/// A convolution without bias, followed by batch normalization.
#[derive(Module, Clone)]
struct ConvNorm {
    conv: Conv,
    norm: BatchNorm,
}

impl ConvNorm {
    fn new(from: usize, to: usize, size: usize, stride: usize, rngs: &mut Rngs) -> Self {
        // As in PyTorch: with `Same` and strides of 2 there would be padding at the end alone.
        let padding = [(size as i64 / 2, size as i64 / 2); 2];
        let conv = Conv::builder(from, to, [size, size]).strides([stride, stride]).padding(padding).use_bias(false);
        let conv = conv.kernel_init(initializers::he_normal()).build(rngs);
        ConvNorm { conv, norm: BatchNorm::builder(to).momentum(0.9).build(rngs) }
    }

    fn forward(&mut self, x: &Array) -> Array {
        self.norm.forward(self.conv.forward(x))
    }
}

#[derive(Module, Clone)]
struct Block {
    first: ConvNorm,
    second: ConvNorm,
    /// Used where the number of features or the resolution changes.
    shortcut: Option<ConvNorm>,
}

impl Block {
    fn new(from: usize, to: usize, stride: usize, rngs: &mut Rngs) -> Self {
        Block {
            first: ConvNorm::new(from, to, 3, stride, rngs),
            second: ConvNorm::new(to, to, 3, 1, rngs),
            shortcut: (from != to).then(|| ConvNorm::new(from, to, 1, stride, rngs)),
        }
    }

    fn forward(&mut self, x: &Array) -> Array {
        let y = self.second.forward(&relu(self.first.forward(x)));
        let short = self.shortcut.as_mut().map_or_else(|| x.clone(), |shortcut| shortcut.forward(x));
        relu(y + short)
    }
}

#[derive(Module, Clone)]
struct ResNet {
    stem: ConvNorm,
    blocks: Vec<Block>,
    dense: Linear,
}

impl ResNet {
    fn new(rngs: &mut Rngs) -> Self {
        let stem = ConvNorm::new(3, 64, 3, 1, rngs);
        let sizes = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)];
        let blocks = sizes
            .into_iter()
            .flat_map(|(from, to, stride)| [(from, to, stride), (to, to, 1)])
            .map(|(from, to, stride)| Block::new(from, to, stride, rngs));
        ResNet { stem, blocks: blocks.collect(), dense: Linear::new(512, 10, rngs) }
    }

    fn forward(&mut self, images: &Array) -> Array {
        let features = relu(self.stem.forward(images));
        let x = self.blocks.iter_mut().fold(features, |x, block| block.forward(&x));
        self.dense.forward(x.mean([1, 2]))
    }
}

type State = Optimizer<ResNet>;

fn step(mut state: State, images: Array, labels: Array) -> Result<(State, Array)> {
    let loss =
        state.minimize(|model| softmax_cross_entropy_with_integer_labels(model.forward(&images), &labels).mean(..))?;
    Ok((state, loss))
}

/// The model and batch of `resnet18_step_1`.
pub fn inputs() -> Result<impl Tree> {
    Ok((ResNet::new(&mut Rngs::new(0)), images([IMAGES, 32, 32, 3]), labels(&[IMAGES])?))
}

pub fn resnet18_step_1() -> Result<Timing> {
    let mut state = State::new(ResNet::new(&mut Rngs::new(0)), sgd(0.1))?;
    let (images, labels) = (images([IMAGES, 32, 32, 3]), labels(&[IMAGES])?);
    let step = jit(step).donate_argnums([0]);
    measure_steps(|| {
        let (next, loss) = block_until_ready(step.call((&state, &images, &labels))?)?;
        state = next;
        Ok(loss)
    })
}
