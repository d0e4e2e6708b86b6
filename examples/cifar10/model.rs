//! Classifiers of images of 32 × 32 pixels: a small convolutional network, and ResNet-18.

use shardax::nn::initializers;
use shardax_nn::prelude::*;

/// The number of CIFAR-10's classes.
pub const CLASSES: usize = 10;

/// An image classifier. A call may update state that is not parameters, such as running statistics.
pub trait Classifier: Module + Clone {
    /// Logits `[B, 10]`, float32, for images `[B, 32, 32, 3]`, float32.
    fn forward(&mut self, images: &Array) -> Array;
}

/// Two convolutions and a dense layer: 60,362 parameters.
#[derive(Module, Clone)]
pub struct Cnn {
    conv1: Conv,
    conv2: Conv,
    dense: Linear,
}

impl Cnn {
    pub fn new(rngs: &mut Rngs) -> Self {
        Cnn {
            conv1: Conv::new(3, 32, [3, 3], rngs),
            conv2: Conv::new(32, 64, [3, 3], rngs),
            dense: Linear::new(64 * 8 * 8, CLASSES, rngs),
        }
    }
}

impl Classifier for Cnn {
    fn forward(&mut self, images: &Array) -> Array {
        let x = max_pool(relu(self.conv1.forward(images)), [2, 2], [2, 2]);
        let x = max_pool(relu(self.conv2.forward(x)), [2, 2], [2, 2]);
        self.dense.forward(x.flatten_from(1)).astype(DType::F32)
    }
}

/// ResNet-18 ([He et al. 2015](https://arxiv.org/abs/1512.03385)) in the usual form for small images: the first
/// convolution is 3 × 3 with stride 1, without pooling after it. 11,173,962 parameters with a width of 64.
#[derive(Module, Clone)]
pub struct ResNet {
    stem: ConvNorm,
    blocks: Vec<Block>,
    dense: Linear,
}

/// A convolution without bias, followed by batch normalization over all devices.
#[derive(Module, Clone)]
struct ConvNorm {
    conv: Conv,
    norm: BatchNorm,
}

#[derive(Module, Clone)]
struct Block {
    first: ConvNorm,
    second: ConvNorm,
    /// Used where the number of features or the resolution changes.
    shortcut: Option<ConvNorm>,
}

impl ConvNorm {
    fn new(from: usize, to: usize, size: usize, stride: usize, rngs: &mut Rngs) -> Self {
        let conv = Conv::builder(from, to, [size, size]).strides([stride, stride]).use_bias(false);
        let conv = conv.kernel_init(initializers::he_normal()).build(rngs);
        ConvNorm { conv, norm: BatchNorm::builder(to).momentum(0.9).axis_name("batch").build(rngs) }
    }

    fn forward(&mut self, x: &Array) -> Array {
        self.norm.forward(self.conv.forward(x))
    }
}

impl Block {
    fn new(from: usize, to: usize, stride: usize, rngs: &mut Rngs) -> Self {
        Block {
            first: ConvNorm::new(from, to, 3, stride, rngs),
            second: ConvNorm::new(to, to, 3, 1, rngs),
            shortcut: (from != to || stride != 1).then(|| ConvNorm::new(from, to, 1, stride, rngs)),
        }
    }

    fn forward(&mut self, x: &Array) -> Array {
        let y = relu(self.first.forward(x));
        let y = self.second.forward(&y);
        let short = self.shortcut.as_mut().map_or_else(|| x.clone(), |shortcut| shortcut.forward(x));
        relu(y + short)
    }
}

impl ResNet {
    /// `width` is the number of features of the first stage; each further stage has twice as many.
    pub fn resnet18(width: usize, rngs: &mut Rngs) -> Self {
        let stem = ConvNorm::new(3, width, 3, 1, rngs);
        let mut from = width;
        let mut blocks = Vec::new();
        for stage in 0..4 {
            let to = width << stage;
            for block in 0..2 {
                let stride = if stage > 0 && block == 0 { 2 } else { 1 };
                blocks.push(Block::new(from, to, stride, rngs));
                from = to;
            }
        }
        ResNet { stem, blocks, dense: Linear::new(from, CLASSES, rngs) }
    }
}

impl Classifier for ResNet {
    fn forward(&mut self, images: &Array) -> Array {
        let mut x = relu(self.stem.forward(images));
        for block in &mut self.blocks {
            x = block.forward(&x);
        }
        self.dense.forward(x.mean([1, 2])).astype(DType::F32)
    }
}
