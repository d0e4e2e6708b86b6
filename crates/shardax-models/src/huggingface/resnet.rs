//! ResNet, an encoder of images of convolutions.

use shardax_nn::prelude::*;

use super::vision::{
    FrozenNorm, check_channels, classes, frozen_norm_keys, skip_features_of_stages, stage_keys, stages,
};
use super::{Config, KeyMap, Pretrained, check_type};
use crate::Activation;
use crate::ranks::allow_any_ranks;

/// The architecture of a [`Resnet`].
#[derive(Clone, Debug, PartialEq)]
pub struct ResnetConfig {
    /// The number of color channels.
    pub num_channels: usize,
    /// The features of the first convolution.
    pub embedding_size: usize,
    /// The features of each stage.
    pub hidden_sizes: Vec<usize>,
    /// The number of blocks of each stage.
    pub depths: Vec<usize>,
    /// True if a block has three convolutions, and the second one has a quarter of the features. Otherwise a block has two
    /// convolutions.
    pub is_bottleneck: bool,
    /// The activation after the first convolution and after blocks. Inside of blocks it is ReLU.
    pub hidden_act: Activation,
    /// True if the first stage halves the rows and columns too.
    pub downsample_in_first_stage: bool,
    /// True if the first convolution of a block with three of them halves the rows and columns instead of the second one.
    pub downsample_in_bottleneck: bool,
    /// The number of classes; `None` if the results are features.
    pub classes: Option<usize>,
}

/// ResNet ([He et al. 2015](https://arxiv.org/abs/1512.03385)). Images can have any size. The norms use the means and variances
/// of the files, also in training.
#[derive(Module, Clone, Debug)]
pub struct Resnet {
    first: ConvNorm,
    stages: Vec<Stage>,
    head: Option<Linear>,
    #[tree(static)]
    activation: Activation,
}

#[derive(Module, Clone, Debug)]
struct Stage {
    blocks: Vec<Block>,
}

#[derive(Module, Clone, Debug)]
struct Block {
    layers: Vec<ConvNorm>,
    /// The convolution of the input, if its shape differs from the output.
    shortcut: Option<ConvNorm>,
    #[tree(static)]
    activation: Activation,
}

/// A convolution and a norm.
#[derive(Module, Clone, Debug)]
struct ConvNorm {
    conv: Conv,
    norm: FrozenNorm,
}

/// The factor by which a block with three convolutions has more features than its second convolution.
const REDUCTION: usize = 4;

impl Pretrained for Resnet {
    type Architecture = ResnetConfig;

    fn read(config: &Config) -> Result<(ResnetConfig, KeyMap)> {
        let fields = config.fields();
        check_type(&fields, "resnet")?;
        let (hidden_sizes, depths) = stages(&fields, "hidden_sizes")?;
        let is_bottleneck = match fields.text("layer_type")? {
            "bottleneck" => true,
            "basic" => false,
            other => return Err(fields.error(format!("the layer_type {other:?} is not supported"))),
        };
        if is_bottleneck && hidden_sizes.iter().any(|size| size / REDUCTION == 0) {
            return Err(fields.error("`hidden_sizes` has less than four features"));
        }
        let read = ResnetConfig {
            num_channels: fields.size("num_channels")?,
            embedding_size: fields.size("embedding_size")?,
            hidden_sizes,
            depths,
            is_bottleneck,
            hidden_act: fields.activation("hidden_act")?,
            downsample_in_first_stage: fields.flag("downsample_in_first_stage")?,
            downsample_in_bottleneck: fields.flag("downsample_in_bottleneck")?,
            classes: classes(&fields)?,
        };
        skip_features_of_stages(&fields);
        fields.finish()?;
        let keys = keys(&read);
        Ok((read, keys))
    }

    fn make(config: &ResnetConfig, rngs: &mut Rngs) -> Result<Self> {
        let last = config.hidden_sizes.last().copied().unwrap_or(config.embedding_size);
        Ok(Resnet {
            first: ConvNorm::new([config.num_channels, config.embedding_size], 7, 2, rngs),
            stages: (0..config.depths.len()).map(|stage| Stage::new(config, stage, rngs)).collect(),
            head: config.classes.map(|classes| Linear::new(last, classes, rngs)),
            activation: config.hidden_act,
        })
    }

    fn extents(config: &ResnetConfig) -> (usize, Vec<(&'static str, usize, usize)>) {
        let largest = config.hidden_sizes.iter().copied().max().unwrap_or(0);
        let inner = if config.is_bottleneck { largest / REDUCTION } else { largest };
        let matrices = vec![
            ("convolution", inner, inner.saturating_mul(9)),
            ("first convolution", config.embedding_size, config.num_channels.saturating_mul(49)),
            ("table of classes", config.classes.unwrap_or(0), largest),
        ];
        (config.depths.iter().fold(0, |sum, depth| depth.saturating_add(sum)), matrices)
    }
}

/// Returns the names of the arrays.
fn keys(config: &ResnetConfig) -> KeyMap {
    let prefix = if config.classes.is_some() { "resnet." } else { "" };
    let keys = conv_norm_keys(KeyMap::new(), "first", &format!("{prefix}embedder.embedder"));
    let layers = if config.is_bottleneck { 3 } else { 2 };
    stage_keys(keys.linear("head", "classifier.1"), config.depths.len(), |keys, path, stage| {
        let (path, block) = (format!("{path}.blocks[*]"), format!("{prefix}encoder.stages.{stage}.layers.*"));
        let keys = conv_norm_keys(keys, &format!("{path}.shortcut"), &format!("{block}.shortcut"));
        (0..layers).fold(keys, |keys, layer| {
            conv_norm_keys(keys, &format!("{path}.layers[{layer}]"), &format!("{block}.layer.{layer}"))
        })
    })
}

fn conv_norm_keys(keys: KeyMap, path: &str, name: &str) -> KeyMap {
    let keys = keys.conv(&format!("{path}.conv"), &format!("{name}.convolution"));
    frozen_norm_keys(keys, &format!("{path}.norm"), &format!("{name}.normalization"))
}

impl Stage {
    fn new(config: &ResnetConfig, stage: usize, rngs: &mut Rngs) -> Stage {
        let features = config.hidden_sizes[stage];
        let before = stage.checked_sub(1).map_or(config.embedding_size, |before| config.hidden_sizes[before]);
        let stride = if stage == 0 && !config.downsample_in_first_stage { 1 } else { 2 };
        let block = |index, rngs: &mut Rngs| match index {
            0 => Block::new(config, [before, features], stride, rngs),
            _ => Block::new(config, [features, features], 1, rngs),
        };
        Stage { blocks: (0..config.depths[stage]).map(|index| block(index, rngs)).collect() }
    }
}

impl Block {
    fn new(config: &ResnetConfig, [before, features]: [usize; 2], stride: usize, rngs: &mut Rngs) -> Block {
        let inner = features / REDUCTION;
        let [first_stride, second_stride] = if config.downsample_in_bottleneck { [stride, 1] } else { [1, stride] };
        // Features before and after, the size of the kernel, and the stride.
        let layers = match config.is_bottleneck {
            true => {
                vec![([before, inner], 1, first_stride), ([inner, inner], 3, second_stride), ([inner, features], 1, 1)]
            }
            false => vec![([before, features], 3, stride), ([features, features], 3, 1)],
        };
        let has_shortcut = before != features || stride != 1;
        Block {
            layers: layers
                .into_iter()
                .map(|(sizes, kernel, stride)| ConvNorm::new(sizes, kernel, stride, rngs))
                .collect(),
            shortcut: has_shortcut.then(|| ConvNorm::new([before, features], 1, stride, rngs)),
            activation: config.hidden_act,
        }
    }

    fn forward(&self, x: Array) -> Array {
        let y = self.layers.iter().enumerate().fold(x.clone(), |y, (index, layer)| {
            let y = layer.forward(y);
            if index + 1 < self.layers.len() { relu(y) } else { y }
        });
        let x = self.shortcut.iter().fold(x, |x, layer| layer.forward(x));
        self.activation.apply(x + y)
    }
}

impl ConvNorm {
    fn new([before, features]: [usize; 2], size: usize, stride: usize, rngs: &mut Rngs) -> ConvNorm {
        let around = (size / 2) as i64;
        let conv = Conv::builder(before, features, [size; 2]).strides([stride; 2]).use_bias(false);
        let conv = conv.padding(Padding::Explicit(vec![(around, around); 2])).build(rngs);
        ConvNorm { conv, norm: FrozenNorm::new(features, rngs) }
    }

    fn forward(&self, x: Array) -> Array {
        self.norm.forward(self.conv.forward(x))
    }
}

impl Resnet {
    /// Computes features, `[batch, rows, columns, features]`, from images `[batch, rows, columns, channels]`. `transformers`
    /// expects the channels first instead.
    #[track_caller]
    pub fn encode(&self, images: impl ArrayLike) -> Array {
        let _ranks = allow_any_ranks();
        let images = images.into_array();
        if let Err(error) = check_channels("Resnet", &images, &self.first.conv) {
            return Array::from_error(error, &images);
        }
        let x = self.activation.apply(self.first.forward(images));
        let x = Pool::new([3, 3]).strides([2, 2]).padding(vec![(1, 1), (1, 1)]).max(x);
        self.stages.iter().flat_map(|stage| &stage.blocks).fold(x, |x, block| block.forward(x))
    }

    /// Computes logits `[batch, classes]` from images `[batch, rows, columns, channels]`. Without a head, the results are
    /// features.
    #[track_caller]
    pub fn forward(&self, images: impl ArrayLike) -> Array {
        let x = self.encode(images);
        match &self.head {
            Some(head) if x.check().is_ok() => head.forward(x.mean([1, 2])),
            _ => x,
        }
    }
}
