//! The layers that join the stages of an image, from the last one to the first one and back.

use shardax_nn::prelude::*;

use super::super::KeyMap;
use super::super::vision::{ConvNorm, ConvShape, conv_norm_keys};
use super::RtDetrConfig;
use crate::Activation;

#[derive(Module, Clone, Debug)]
pub(super) struct Pyramid {
    /// The convolutions before a stage is joined with the stage before it.
    laterals: Vec<ConvNorm>,
    upward: Vec<Fusion>,
    /// The convolutions that halve a stage before it is joined with the stage after it.
    downsamples: Vec<ConvNorm>,
    downward: Vec<Fusion>,
    #[tree(static)]
    activation: Activation,
}

/// Joins the features of two stages, with blocks of convolutions in one of two branches.
#[derive(Module, Clone, Debug)]
struct Fusion {
    first: ConvNorm,
    second: ConvNorm,
    blocks: Vec<RepBlock>,
    last: Option<ConvNorm>,
    #[tree(static)]
    activation: Activation,
}

/// The sum of a convolution of nine pixels and a convolution of one.
#[derive(Module, Clone, Debug)]
struct RepBlock {
    wide: ConvNorm,
    point: ConvNorm,
}

/// The number of blocks of a [`Fusion`].
const BLOCKS: usize = 3;

impl Pyramid {
    pub fn new(config: &RtDetrConfig, stages: usize, rngs: &mut Rngs) -> Pyramid {
        let features = config.encoder_hidden_dim;
        let pairs = stages.saturating_sub(1);
        let shape =
            |size: usize, stride: usize| ConvShape { epsilon: config.batch_norm_eps, ..ConvShape::new(size, stride) };
        Pyramid {
            laterals: (0..pairs).map(|_| ConvNorm::new([features; 2], shape(1, 1), rngs)).collect(),
            upward: (0..pairs).map(|_| Fusion::new(config, rngs)).collect(),
            downsamples: (0..pairs).map(|_| ConvNorm::new([features; 2], shape(3, 2), rngs)).collect(),
            downward: (0..pairs).map(|_| Fusion::new(config, rngs)).collect(),
            activation: config.activation,
        }
    }

    /// Joins stages, `[batch, rows, columns, features]`. Each stage has half the rows and columns of the stage before it.
    pub fn forward(&self, stages: Vec<Array>) -> Vec<Array> {
        let mut stages = stages;
        let count = stages.len();
        for (index, (lateral, fusion)) in self.laterals.iter().zip(&self.upward).enumerate() {
            let upper = count - 1 - index;
            let x = self.activation.apply(lateral.forward(stages[upper].clone()));
            stages[upper] = x.clone();
            stages[upper - 1] = fusion.forward(concatenate(&[doubled(x), stages[upper - 1].clone()], -1));
        }
        for (index, (downsample, fusion)) in self.downsamples.iter().zip(&self.downward).enumerate() {
            let x = self.activation.apply(downsample.forward(stages[index].clone()));
            stages[index + 1] = fusion.forward(concatenate(&[x, stages[index + 1].clone()], -1));
        }
        stages
    }
}

/// Repeats rows and columns.
fn doubled(x: Array) -> Array {
    let &[batch, rows, columns, features] = x.shape() else { return x };
    let x = x.expand_dims(2).expand_dims(4).broadcast_to([batch, rows, 2, columns, 2, features]);
    x.reshape([batch, 2 * rows, 2 * columns, features])
}

impl Fusion {
    fn new(config: &RtDetrConfig, rngs: &mut Rngs) -> Fusion {
        let features = config.encoder_hidden_dim;
        let inner = config.inner_features();
        let shape = |size: usize| ConvShape { epsilon: config.batch_norm_eps, ..ConvShape::new(size, 1) };
        Fusion {
            first: ConvNorm::new([2 * features, inner], shape(1), rngs),
            second: ConvNorm::new([2 * features, inner], shape(1), rngs),
            blocks: (0..BLOCKS)
                .map(|_| RepBlock {
                    wide: ConvNorm::new([inner; 2], shape(3), rngs),
                    point: ConvNorm::new([inner; 2], shape(1), rngs),
                })
                .collect(),
            last: (inner != features).then(|| ConvNorm::new([inner, features], shape(1), rngs)),
            activation: config.activation,
        }
    }

    fn forward(&self, x: Array) -> Array {
        let first = self.activation.apply(self.first.forward(x.clone()));
        let first = self
            .blocks
            .iter()
            .fold(first, |x, block| self.activation.apply(block.wide.forward(x.clone()) + block.point.forward(x)));
        let joined = first + self.activation.apply(self.second.forward(x));
        self.last.iter().fold(joined, |x, layer| self.activation.apply(layer.forward(x)))
    }
}

impl RtDetrConfig {
    /// Returns the features inside of the layers that join stages.
    pub(super) fn inner_features(&self) -> usize {
        (self.encoder_hidden_dim as f64 * self.expansion) as usize
    }
}

/// Returns the names of the arrays, which begin with `prefix`.
pub(super) fn keys(prefix: &str) -> KeyMap {
    let keys = conv_keys(KeyMap::new(), "laterals[*]", &format!("{prefix}lateral_convs.*"));
    let mut keys = conv_keys(keys, "downsamples[*]", &format!("{prefix}downsample_convs.*"));
    for (part, name) in [("upward", "fpn_blocks"), ("downward", "pan_blocks")] {
        for (layer, conv) in [("first", "conv1"), ("second", "conv2"), ("last", "conv3")] {
            keys = conv_keys(keys, &format!("{part}[*].{layer}"), &format!("{prefix}{name}.*.{conv}"));
        }
        for block in 0..BLOCKS {
            for (layer, conv) in [("wide", "conv1"), ("point", "conv2")] {
                let name = format!("{prefix}{name}.*.bottlenecks.{block}.{conv}");
                keys = conv_keys(keys, &format!("{part}[*].blocks[{block}].{layer}"), &name);
            }
        }
    }
    keys
}

fn conv_keys(keys: KeyMap, path: &str, name: &str) -> KeyMap {
    conv_norm_keys(keys, path, name, ["conv", "norm"])
}
