//! The ResNet of RT-DETR, which begins with three convolutions, and whose shortcuts take means of pixels.

use shardax_nn::prelude::*;

use super::super::fields::Fields;
use super::super::resnet::{Block, REDUCTION, Stage, bottleneck, two_convolutions};
use super::super::vision::{ConvNorm, ConvShape, convolution_keys, stage_keys};
use super::super::{KeyMap, StagedConfig};
use crate::Activation;

/// The architecture of the ResNet of an [`RtDetr`](crate::RtDetr).
#[derive(Clone, Debug, PartialEq)]
pub struct RtDetrBackbone {
    /// The channels, blocks and activation.
    pub stages: StagedConfig,
    /// The features of the first convolutions, an even number.
    pub embedding_size: usize,
    /// The features of each stage.
    pub hidden_sizes: Vec<usize>,
    /// True if blocks have three convolutions, and the first and the last are of single pixels. Otherwise blocks have two convolutions.
    pub is_bottleneck: bool,
    /// True if the first stage halves the image.
    pub downsample_in_first_stage: bool,
    /// True if the first convolution of a block with three halves the image, instead of the second.
    pub downsample_in_bottleneck: bool,
    /// The stages, counted from 1, whose features are read.
    pub outputs: Vec<usize>,
}

impl RtDetrBackbone {
    /// Reads the fields, without the check of unknown fields.
    pub(super) fn read(fields: &Fields) -> Result<RtDetrBackbone> {
        let (sizes, depths) = super::super::vision::stages(fields, "hidden_sizes")?;
        let count = sizes.len();
        let outputs = match fields.has("out_indices") || fields.has("out_features") {
            true => super::super::depth::layers(fields, count)?,
            false => (2..=count).collect(),
        };
        if outputs.is_empty() || outputs.contains(&0) {
            return Err(fields.error(format!("`out_indices` are {outputs:?}, but must be stages from 1 on")));
        }
        let read = RtDetrBackbone {
            stages: StagedConfig {
                num_channels: fields.size("num_channels")?,
                depths,
                hidden_act: fields.activation("hidden_act")?,
                classes: None,
            },
            embedding_size: fields.size("embedding_size")?,
            is_bottleneck: match fields.text("layer_type")? {
                "bottleneck" => true,
                "basic" => false,
                other => return Err(fields.error(format!("the layer_type {other:?} is not supported"))),
            },
            downsample_in_first_stage: fields.flag("downsample_in_first_stage")?,
            downsample_in_bottleneck: fields.flag("downsample_in_bottleneck")?,
            hidden_sizes: sizes,
            outputs,
        };
        if !read.embedding_size.is_multiple_of(2) {
            return Err(fields.error(format!("`embedding_size` is {}, but must be even", read.embedding_size)));
        }
        if read.is_bottleneck && read.hidden_sizes.iter().any(|size| size / REDUCTION == 0) {
            return Err(fields.error("`hidden_sizes` has less than four features"));
        }
        // The class would take means of pixels without halving the image.
        if !read.is_bottleneck && !read.downsample_in_first_stage && read.hidden_sizes[0] != read.embedding_size {
            return Err(fields.error("the first of `hidden_sizes` must be `embedding_size`"));
        }
        fields.skip(&["out_features", "out_indices", "stage_names"]);
        Ok(read)
    }

    /// Returns the features of the stages that are read.
    pub(super) fn features(&self) -> Vec<usize> {
        self.outputs.iter().map(|stage| self.hidden_sizes[stage - 1]).collect()
    }

    /// Returns the number of blocks, and the names and sizes of the largest matrices.
    pub(super) fn extents(&self) -> (usize, Vec<(&'static str, usize, usize)>) {
        let largest = self.hidden_sizes.iter().copied().max().unwrap_or(0);
        let inner = if self.is_bottleneck { largest / REDUCTION } else { largest };
        let first = self.embedding_size.saturating_mul(9);
        let matrices = vec![
            ("convolution", inner, inner.saturating_mul(9)),
            ("shortcut", largest, largest),
            ("first convolution", self.embedding_size, first.max(self.stages.num_channels.saturating_mul(9))),
        ];
        self.stages.extents(largest, matrices)
    }

    /// Returns the features before a stage, its features, and its stride.
    fn stage(&self, stage: usize) -> ([usize; 2], usize) {
        let before = stage.checked_sub(1).map_or(self.embedding_size, |before| self.hidden_sizes[before]);
        let stride = if stage == 0 && !self.downsample_in_first_stage { 1 } else { 2 };
        ([before, self.hidden_sizes[stage]], stride)
    }

    /// Returns whether the shortcut of a block takes means of pixels.
    fn pools(&self, [before, features]: [usize; 2], stride: usize) -> bool {
        stride == 2 && (self.is_bottleneck || before != features)
    }
}

#[derive(Module, Clone, Debug)]
pub(super) struct Backbone {
    pub first: Vec<ConvNorm>,
    stages: Vec<Stage>,
    #[tree(static)]
    outputs: Vec<usize>,
    #[tree(static)]
    activation: Activation,
}

impl Backbone {
    pub fn new(config: &RtDetrBackbone, rngs: &mut Rngs) -> Backbone {
        let (size, half) = (config.embedding_size, config.embedding_size / 2);
        let first = [([config.stages.num_channels, half], 2), ([half, half], 1), ([half, size], 1)];
        let stages = (0..config.stages.depths.len()).map(|index| {
            let ([before, features], stride) = config.stage(index);
            let blocks = (0..config.stages.depths[index]).map(|block| match block {
                0 => new_block(config, [before, features], (stride, true), rngs),
                _ => new_block(config, [features; 2], (1, false), rngs),
            });
            Stage { blocks: blocks.collect() }
        });
        let stages = stages.collect();
        Backbone {
            first: first
                .into_iter()
                .map(|(sizes, stride)| ConvNorm::new(sizes, ConvShape::new(3, stride), rngs))
                .collect(),
            stages,
            outputs: config.outputs.clone(),
            activation: config.stages.hidden_act,
        }
    }

    /// Computes the features of the stages that are read, `[batch, rows, columns, features]`.
    pub fn forward(&self, images: Array) -> Vec<Array> {
        let x = self.first.iter().fold(images, |x, layer| self.activation.apply(layer.forward(x)));
        let mut x = Pool::new([3, 3]).strides([2, 2]).padding(vec![(1, 1), (1, 1)]).max(x);
        let mut outputs = Vec::new();
        for (index, stage) in self.stages.iter().enumerate() {
            x = stage.blocks.iter().fold(x, |x, block| block.forward(x));
            if self.outputs.contains(&(index + 1)) {
                outputs.push(x.clone());
            }
        }
        outputs
    }
}

/// Creates a block. Inside of it, the activation is ReLU.
fn new_block(
    config: &RtDetrBackbone,
    [before, features]: [usize; 2],
    (stride, is_first): (usize, bool),
    rngs: &mut Rngs,
) -> Block {
    let layers = match config.is_bottleneck {
        true => bottleneck([before, features], stride, config.downsample_in_bottleneck),
        false => two_convolutions([before, features], stride),
    };
    let pools = config.pools([before, features], stride);
    let has_shortcut = before != features || stride != 1 || (is_first && !config.is_bottleneck);
    let shape = ConvShape::new(1, if pools { 1 } else { stride });
    Block {
        layers: layers.into_iter().map(|(sizes, shape)| ConvNorm::new(sizes, shape, rngs)).collect(),
        squeeze: None,
        pools,
        shortcut: has_shortcut.then(|| ConvNorm::new([before, features], shape, rngs)),
        inner_activation: Activation::Relu,
        activation: config.stages.hidden_act,
    }
}

/// Returns the names of the arrays, which begin with `prefix`.
pub(super) fn keys(config: &RtDetrBackbone, prefix: &str) -> KeyMap {
    let keys = (0..3).fold(KeyMap::new(), |keys, layer| {
        convolution_keys(keys, &format!("first[{layer}]"), &format!("{prefix}embedder.embedder.{layer}"))
    });
    let layers = if config.is_bottleneck { 3 } else { 2 };
    stage_keys(keys, config.stages.depths.len(), |keys, path, stage| {
        let (sizes, stride) = config.stage(stage);
        let blocks = format!("{prefix}encoder.stages.{stage}.layers");
        let shortcut = if config.pools(sizes, stride) { "shortcut.1" } else { "shortcut" };
        let keys = convolution_keys(keys, &format!("{path}.blocks[0].shortcut"), &format!("{blocks}.0.{shortcut}"));
        (0..layers).fold(keys, |keys, layer| {
            convolution_keys(keys, &format!("{path}.blocks[*].layers[{layer}]"), &format!("{blocks}.*.layer.{layer}"))
        })
    })
}
