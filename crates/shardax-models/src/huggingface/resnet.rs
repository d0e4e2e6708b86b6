//! ResNet and RegNet, encoders of images of convolutions.

use shardax_nn::prelude::*;

use super::fields::Fields;
use super::vision::{ConvNorm, ConvShape, Squeeze, StagedConfig, check_channels, convolution_keys, stage_keys};
use super::{Config, KeyMap, Pretrained, known_type};
use crate::Activation;
use crate::ranks::allow_any_ranks;

/// The architecture of a [`Resnet`].
#[derive(Clone, Debug, PartialEq)]
pub struct ResnetConfig {
    /// The channels, blocks, activation and classes.
    pub stages: StagedConfig,
    /// The features of the first convolution.
    pub embedding_size: usize,
    /// The features of each stage.
    pub hidden_sizes: Vec<usize>,
    /// True if a block has three convolutions, and the second one has a quarter of the features. Otherwise a block has two
    /// convolutions.
    pub is_bottleneck: bool,
    /// True if the first stage halves the rows and columns too.
    pub downsample_in_first_stage: bool,
    /// True if the first convolution of a block with three of them halves the rows and columns instead of the second one.
    pub downsample_in_bottleneck: bool,
    /// The blocks of RegNet, if the model is a RegNet.
    pub regnet: Option<RegnetBlocks>,
}

/// The blocks of RegNet: three convolutions with equal features. The second convolution has groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegnetBlocks {
    /// The features of a group.
    pub group_width: usize,
    /// True if the features have factors that depend on their means over the image, as in RegNetY.
    pub squeezes: bool,
}

/// ResNet ([He et al. 2015](https://arxiv.org/abs/1512.03385)), or RegNet
/// ([Radosavovic et al. 2020](https://arxiv.org/abs/2003.13678)), whose first layer has no pooling. Images can have any size. The norms use the means and variances
/// of the files, also in training.
#[derive(Module, Clone, Debug)]
pub struct Resnet {
    first: ConvNorm,
    stages: Vec<Stage>,
    head: Option<Linear>,
    #[tree(static)]
    activation: Activation,
    /// True if the first convolution is followed by a maximum over neighbors.
    pools: bool,
}

#[derive(Module, Clone, Debug)]
pub(super) struct Stage {
    pub blocks: Vec<Block>,
}

/// Convolutions whose input is added to their result.
#[derive(Module, Clone, Debug)]
pub(super) struct Block {
    pub layers: Vec<ConvNorm>,
    /// The factors of features before the last convolution.
    pub squeeze: Option<Squeeze>,
    /// True if means of squares of four pixels of the input are added instead of the input.
    pub pools: bool,
    /// The convolution of the input, if its shape differs from the output.
    pub shortcut: Option<ConvNorm>,
    #[tree(static)]
    pub inner_activation: Activation,
    #[tree(static)]
    pub activation: Activation,
}

/// The factor by which a block with three convolutions has more features than its second convolution.
pub(super) const REDUCTION: usize = 4;

impl Pretrained for Resnet {
    type Architecture = ResnetConfig;

    fn read(config: &Config) -> Result<(ResnetConfig, KeyMap)> {
        let fields = config.fields();
        let read = read_fields(&fields)?;
        fields.finish()?;
        let keys = keys(&read);
        Ok((read, keys))
    }
    fn make(config: &ResnetConfig, rngs: &mut Rngs) -> Result<Self> {
        let last = config.hidden_sizes.last().copied().unwrap_or(config.embedding_size);
        Ok(Resnet {
            first: ConvNorm::new(
                [config.stages.num_channels, config.embedding_size],
                ConvShape::new(if config.regnet.is_some() { 3 } else { 7 }, 2),
                rngs,
            ),
            stages: (0..config.stages.depths.len()).map(|stage| Stage::new(config, stage, rngs)).collect(),
            head: config.stages.head(last, rngs),
            activation: config.stages.hidden_act,
            pools: config.regnet.is_none(),
        })
    }

    fn extents(config: &ResnetConfig) -> (usize, Vec<(&'static str, usize, usize)>) {
        let largest = config.hidden_sizes.iter().copied().max().unwrap_or(0);
        let inner = if config.is_bottleneck { largest / REDUCTION } else { largest };
        let matrices = vec![
            ("convolution", inner, inner.saturating_mul(9)),
            ("first convolution", config.embedding_size, config.stages.num_channels.saturating_mul(49)),
        ];
        config.stages.extents(largest, matrices)
    }
}

/// Reads the fields of a model or of the encoder in another model, without the check of unknown fields.
pub(super) fn read_fields(fields: &Fields) -> Result<ResnetConfig> {
    let kind = known_type(fields, &KNOWN)?;
    let (stages, hidden_sizes) = StagedConfig::read(fields, "hidden_sizes")?;
    let (is_bottleneck, regnet) = match (fields.text("layer_type")?, kind) {
        ("bottleneck", "resnet") => (true, None),
        ("basic", "resnet") => (false, None),
        ("x" | "y", "regnet") => (false, Some(regnet_blocks(fields, &hidden_sizes)?)),
        (other, _) => return Err(fields.error(format!("the layer_type {other:?} is not supported"))),
    };
    if is_bottleneck && hidden_sizes.iter().any(|size| size / REDUCTION == 0) {
        return Err(fields.error("`hidden_sizes` has less than four features"));
    }
    Ok(ResnetConfig {
        stages,
        embedding_size: fields.size("embedding_size")?,
        hidden_sizes,
        is_bottleneck,
        downsample_in_first_stage: fields.flag("downsample_in_first_stage")?,
        downsample_in_bottleneck: kind == "resnet" && fields.flag("downsample_in_bottleneck")?,
        regnet,
    })
}

/// Returns the ResNet with this name in the library `timm`, if it has such blocks.
pub(super) fn named(name: &str, num_channels: usize) -> Option<ResnetConfig> {
    let (depths, is_bottleneck) = match name {
        "resnet18" => ([2, 2, 2, 2], false),
        "resnet34" => ([3, 4, 6, 3], false),
        "resnet50" => ([3, 4, 6, 3], true),
        "resnet101" => ([3, 4, 23, 3], true),
        "resnet152" => ([3, 8, 36, 3], true),
        _ => return None,
    };
    let sizes = [64, 128, 256, 512].map(|size| if is_bottleneck { size * REDUCTION } else { size });
    let hidden_act = Activation::Relu;
    Some(ResnetConfig {
        stages: StagedConfig { num_channels, depths: depths.into(), hidden_act, classes: None },
        embedding_size: 64,
        hidden_sizes: sizes.into(),
        is_bottleneck,
        downsample_in_first_stage: false,
        downsample_in_bottleneck: false,
        regnet: None,
    })
}

/// The types of these models.
pub(super) const KNOWN: [&str; 2] = ["resnet", "regnet"];

/// Reads the blocks of RegNet. The number of groups must divide the features of each stage.
fn regnet_blocks(fields: &Fields, hidden_sizes: &[usize]) -> Result<RegnetBlocks> {
    let blocks =
        RegnetBlocks { group_width: fields.size("groups_width")?, squeezes: fields.text("layer_type")? == "y" };
    for size in hidden_sizes {
        fields.divides(("the number of groups", blocks.groups(*size)), ("hidden_sizes", *size))?;
    }
    Ok(blocks)
}

impl RegnetBlocks {
    /// Returns the number of groups of the second convolution.
    fn groups(self, features: usize) -> usize {
        features.checked_div(self.group_width).unwrap_or(0).max(1)
    }
}

/// Returns the names of the arrays.
pub(super) fn keys(config: &ResnetConfig) -> KeyMap {
    let prefix = match (config.stages.classes, config.regnet) {
        (None, _) => "",
        (Some(_), None) => "resnet.",
        (Some(_), Some(_)) => "regnet.",
    };
    let keys = convolution_keys(KeyMap::new(), "first", &format!("{prefix}embedder.embedder"));
    let layers = if config.is_bottleneck || config.regnet.is_some() { 3 } else { 2 };
    // The factors of features are a layer before the last convolution.
    let squeezes = config.regnet.is_some_and(|blocks| blocks.squeezes);
    stage_keys(keys.linear("head", "classifier.1"), config.stages.depths.len(), |keys, path, stage| {
        let (path, block) = (format!("{path}.blocks[*]"), format!("{prefix}encoder.stages.{stage}.layers.*"));
        let keys = convolution_keys(keys, &format!("{path}.shortcut"), &format!("{block}.shortcut"));
        let keys = if squeezes {
            keys.conv(&format!("{path}.squeeze.down"), &format!("{block}.layer.2.attention.0"))
                .conv(&format!("{path}.squeeze.up"), &format!("{block}.layer.2.attention.2"))
        } else {
            keys
        };
        (0..layers).fold(keys, |keys, layer| {
            let place = if squeezes && layer == 2 { 3 } else { layer };
            convolution_keys(keys, &format!("{path}.layers[{layer}]"), &format!("{block}.layer.{place}"))
        })
    })
}

impl Stage {
    fn new(config: &ResnetConfig, stage: usize, rngs: &mut Rngs) -> Stage {
        let features = config.hidden_sizes[stage];
        let before = stage.checked_sub(1).map_or(config.embedding_size, |before| config.hidden_sizes[before]);
        let stride = if stage == 0 && !config.downsample_in_first_stage { 1 } else { 2 };
        let blocks = (0..config.stages.depths[stage]).map(|index| match index {
            0 => Block::new(config, [before, features], stride, rngs),
            _ => Block::new(config, [features, features], 1, rngs),
        });
        Stage { blocks: blocks.collect() }
    }
}

impl Block {
    fn new(config: &ResnetConfig, [before, features]: [usize; 2], stride: usize, rngs: &mut Rngs) -> Block {
        let layers = match config.regnet {
            Some(blocks) => vec![
                ([before, features], ConvShape::new(1, 1)),
                ([features, features], ConvShape { groups: blocks.groups(features), ..ConvShape::new(3, stride) }),
                ([features, features], ConvShape::new(1, 1)),
            ],
            None if config.is_bottleneck => bottleneck([before, features], stride, config.downsample_in_bottleneck),
            None => two_convolutions([before, features], stride),
        };
        let squeezes = config.regnet.is_some_and(|blocks| blocks.squeezes);
        // transformers rounds halves to even numbers.
        let reduced = (before as f64 / 4.0).round_ties_even() as usize;
        let has_shortcut = before != features || stride != 1;
        Block {
            layers: layers.into_iter().map(|(sizes, shape)| ConvNorm::new(sizes, shape, rngs)).collect(),
            squeeze: squeezes.then(|| Squeeze::new(features, reduced, Activation::Relu, rngs)),
            pools: false,
            shortcut: has_shortcut.then(|| ConvNorm::new([before, features], ConvShape::new(1, stride), rngs)),
            inner_activation: if config.regnet.is_some() { config.stages.hidden_act } else { Activation::Relu },
            activation: config.stages.hidden_act,
        }
    }

    pub fn forward(&self, x: Array) -> Array {
        let last = self.layers.len().saturating_sub(1);
        let y =
            self.layers.iter().enumerate().fold(x.clone(), |y, (index, layer)| match (&self.squeeze, index == last) {
                (Some(squeeze), true) => layer.forward(squeeze.forward(y)),
                (None, true) => layer.forward(y),
                (_, false) => self.inner_activation.apply(layer.forward(y)),
            });
        let x = if self.pools { mean_of_squares(x) } else { x };
        let x = self.shortcut.iter().fold(x, |x, layer| layer.forward(x));
        self.activation.apply(x + y)
    }
}

/// Returns the features before and after each of three convolutions, and its kernel. The first or the second one has the stride.
pub(super) fn bottleneck(
    [before, features]: [usize; 2],
    stride: usize,
    is_first_strided: bool,
) -> Vec<([usize; 2], ConvShape)> {
    let inner = features / REDUCTION;
    let [first_stride, second_stride] = if is_first_strided { [stride, 1] } else { [1, stride] };
    vec![
        ([before, inner], ConvShape::new(1, first_stride)),
        ([inner, inner], ConvShape::new(3, second_stride)),
        ([inner, features], ConvShape::new(1, 1)),
    ]
}

/// Returns the features before and after each of two convolutions, and its kernel.
pub(super) fn two_convolutions([before, features]: [usize; 2], stride: usize) -> Vec<([usize; 2], ConvShape)> {
    vec![([before, features], ConvShape::new(3, stride)), ([features, features], ConvShape::new(3, 1))]
}

/// Returns the means of squares of four pixels. At the end of an odd number of rows or columns, fewer pixels count.
fn mean_of_squares(x: Array) -> Array {
    let &[batch, rows, columns, features] = x.shape() else { return x };
    let [down, right] = [rows, columns].map(|size| size.div_ceil(2));
    let x = pad(x, vec![(0, 0), (0, 2 * down - rows), (0, 2 * right - columns), (0, 0)], PadMode::Constant(0.0));
    let sums = x.reshape([batch, down, 2, right, 2, features]).sum([2, 4]);
    let count = |place: usize, size: usize| if 2 * place + 1 < size { 2.0f32 } else { 1.0 };
    let [down, right] = [(down, rows), (right, columns)]
        .map(|(places, size)| array((0..places).map(|place| count(place, size)).collect::<Vec<f32>>()));
    let counts = down.expand_dims(-1) * right;
    &sums / counts.expand_dims(-1).astype(sums.dtype())
}

impl Resnet {
    /// Computes features, `[batch, rows, columns, features]`, from images `[batch, rows, columns, channels]`. `transformers`
    /// expects the channels first instead.
    #[track_caller]
    pub fn encode(&self, images: impl ArrayLike) -> Array {
        let images = images.into_array();
        match self.outputs(&images).map(|mut outputs| outputs.pop()) {
            Ok(last) => last.unwrap_or(images),
            Err(error) => Array::from_error(error, &images),
        }
    }

    /// Computes the features before the first stage and after each stage.
    pub(super) fn outputs(&self, images: &Array) -> Result<Vec<Array>> {
        let _ranks = allow_any_ranks();
        let mut stages = Vec::with_capacity(self.stages.len() + 1);
        check_channels("Resnet", images, &self.first.conv)?;
        let x = self.activation.apply(self.first.forward(images.clone()));
        let mut x = if self.pools { Pool::new([3, 3]).strides([2, 2]).padding(vec![(1, 1), (1, 1)]).max(x) } else { x };
        stages.push(x.clone());
        for stage in &self.stages {
            x = stage.blocks.iter().fold(x, |x, block| block.forward(x));
            stages.push(x.clone());
        }
        Ok(stages)
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
