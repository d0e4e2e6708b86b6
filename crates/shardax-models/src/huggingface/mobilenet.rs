//! MobileNet and EfficientNet, encoders of images whose convolutions have one group for each feature.

use shardax_nn::prelude::*;

use super::fields::Fields;
use super::vision::{ConvNorm, ConvShape, Squeeze, check_channels, classes, convolution_keys, frozen_norm_keys};
use super::{Config, KeyMap, Pretrained, known_type};
use crate::Activation;
use crate::ranks::allow_any_ranks;

/// The architecture of a [`MobileNet`].
#[derive(Clone, Debug, PartialEq)]
pub struct MobileNetConfig {
    /// The number of color channels.
    pub num_channels: usize,
    /// The features of the first convolution.
    pub first_features: usize,
    /// The blocks.
    pub blocks: Vec<MobileNetBlock>,
    /// The features of the last convolution, if there is one.
    pub last_features: Option<usize>,
    /// The activation.
    pub hidden_act: Activation,
    /// Added to the variance in norms.
    pub norm_eps: f64,
    /// The padding of convolutions.
    pub padding: MobileNetPadding,
    /// True if the last convolution of a block is followed by the activation, as in the first MobileNet.
    pub activates_output: bool,
    /// True if the head reads the maximum of each feature instead of the mean.
    pub pools_maximum: bool,
    /// The number of classes; `None` if the results are features.
    pub classes: Option<usize>,
}

/// A block of a [`MobileNet`]: a convolution of single pixels that adds features, a convolution of each feature, and a convolution
/// of single pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MobileNetBlock {
    /// The features before the block.
    pub input: usize,
    /// The features after the first convolution; `None` without the first convolution.
    pub expanded: Option<usize>,
    /// The features after the block.
    pub output: usize,
    /// The rows and columns of the kernel of the second convolution.
    pub kernel: usize,
    /// The stride of the second convolution.
    pub stride: usize,
    /// The distance of neighboring entries of the kernel of the second convolution.
    pub dilation: usize,
    /// The number of features from which factors of all features are computed.
    pub squeezed: Option<usize>,
    /// True if the input of the block is added to its output.
    pub adds_input: bool,
    /// True if EfficientNet pads one row and one column more after the image than before, if the stride is 2.
    pub pads_end: bool,
}

/// The padding of the convolutions of a [`MobileNet`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MobileNetPadding {
    /// As many rows and columns as the output needs, as in TensorFlow.
    Same,
    /// Half of the kernel at each end.
    Centered,
    /// Half of the kernel at each end; before images that are halved, one less in most blocks (EfficientNet).
    Shifted,
}

/// MobileNet ([Howard et al. 2017](https://arxiv.org/abs/1704.04861)), its second version
/// ([Sandler et al. 2018](https://arxiv.org/abs/1801.04381)), or EfficientNet
/// ([Tan and Le 2019](https://arxiv.org/abs/1905.11946)). The model type is `mobilenet_v1`, `mobilenet_v2` or `efficientnet`. Images
/// can have any size. The norms use the means and variances of the files, also in training.
#[derive(Module, Clone, Debug)]
pub struct MobileNet {
    first: ConvNorm,
    blocks: Vec<Block>,
    last: Option<ConvNorm>,
    head: Option<Linear>,
    #[tree(static)]
    activation: Activation,
    pools_maximum: bool,
}

#[derive(Module, Clone, Debug)]
struct Block {
    expand: Option<ConvNorm>,
    depthwise: ConvNorm,
    squeeze: Option<Squeeze>,
    project: ConvNorm,
    adds_input: bool,
    activates_output: bool,
    #[tree(static)]
    activation: Activation,
}

/// The supported model types.
pub(super) const KNOWN: [&str; 3] = ["mobilenet_v1", "mobilenet_v2", "efficientnet"];

/// The largest number of blocks that a configuration can have.
const MAX_BLOCKS: usize = 1000;

impl Pretrained for MobileNet {
    type Architecture = MobileNetConfig;

    fn read(config: &Config) -> Result<(MobileNetConfig, KeyMap)> {
        let fields = config.fields();
        let kind = known_type(&fields, &KNOWN)?;
        let read = match kind {
            "mobilenet_v1" => first_version(&fields)?,
            "mobilenet_v2" => second_version(&fields)?,
            _ => efficient(&fields)?,
        };
        // Images of other sizes are not errors in transformers.
        fields.skip(&["image_size", "semantic_loss_ignore_index"]);
        fields.finish()?;
        let keys = keys(kind, &read);
        Ok((read, keys))
    }

    fn make(config: &MobileNetConfig, rngs: &mut Rngs) -> Result<Self> {
        let first = match config.padding {
            // EfficientNet pads its first convolution only at the end.
            MobileNetPadding::Shifted => Padding::Explicit(vec![(0, 1); 2]),
            _ => padding_of(config.padding, 3, 1),
        };
        let first = ConvShape { padding: first, ..config.shape(3, 2) };
        let blocks = config.blocks.iter().map(|block| Block::new(config, block, rngs));
        let blocks: Vec<Block> = blocks.collect();
        let last_output = config.blocks.last().map_or(config.first_features, |block| block.output);
        let last =
            config.last_features.map(|features| ConvNorm::new([last_output, features], config.shape(1, 1), rngs));
        let features = config.last_features.unwrap_or(last_output);
        Ok(MobileNet {
            first: ConvNorm::new([config.num_channels, config.first_features], first, rngs),
            blocks,
            last,
            head: config.classes.map(|classes| Linear::new(features, classes, rngs)),
            activation: config.hidden_act,
            pools_maximum: config.pools_maximum,
        })
    }

    fn extents(config: &MobileNetConfig) -> (usize, Vec<(&'static str, usize, usize)>) {
        let last = config.blocks.last().map_or(config.first_features, |block| block.output);
        let mut matrices: Vec<_> = config
            .blocks
            .iter()
            .map(|block| ("block", block.expanded.unwrap_or(block.input), block.input.max(block.output)))
            .collect();
        matrices.push(("first convolution", config.first_features, config.num_channels.saturating_mul(9)));
        matrices.push(("last convolution", config.last_features.unwrap_or(0), last));
        matrices.push(("table of classes", config.classes.unwrap_or(0), config.last_features.unwrap_or(last)));
        (config.blocks.len(), matrices)
    }
}

impl MobileNetConfig {
    /// Returns the shape of a convolution with one group.
    fn shape(&self, size: usize, stride: usize) -> ConvShape {
        ConvShape { padding: padding_of(self.padding, size, 1), epsilon: self.norm_eps, ..ConvShape::new(size, stride) }
    }
}

/// Returns the padding of a kernel, if the stride is 1 or the padding is not shifted.
fn padding_of(padding: MobileNetPadding, size: usize, dilation: usize) -> Padding {
    let around = (size.saturating_sub(1) / 2).saturating_mul(dilation) as i64;
    match padding {
        MobileNetPadding::Same => Padding::Same,
        MobileNetPadding::Centered | MobileNetPadding::Shifted => Padding::Explicit(vec![(around, around); 2]),
    }
}

/// Reads the first MobileNet, whose features double wherever the image is halved.
fn first_version(fields: &Fields) -> Result<MobileNetConfig> {
    const STRIDES: [usize; 13] = [1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1];
    let (factor, min) = (factor_of(fields, "depth_multiplier")?, fields.size("min_depth")?);
    let scaled = |features: usize| ((features as f64 * factor) as usize).max(min);
    let mut width = 32;
    let first_features = scaled(width);
    let mut input = first_features;
    let blocks = STRIDES.iter().enumerate().map(|(index, stride)| {
        if *stride == 2 || index == 0 {
            width *= 2;
        }
        let block = MobileNetBlock { stride: *stride, ..MobileNetBlock::new(input, scaled(width)) };
        input = block.output;
        block
    });
    let blocks = blocks.collect();
    Ok(MobileNetConfig { activates_output: true, ..common(fields, first_features, blocks)? })
}

/// Reads MobileNet V2.
fn second_version(fields: &Fields) -> Result<MobileNetConfig> {
    const FEATURES: [usize; 17] = [16, 24, 24, 32, 32, 32, 64, 64, 64, 64, 96, 96, 96, 160, 160, 160, 320];
    const STRIDES: [usize; 16] = [2, 1, 2, 1, 1, 2, 1, 1, 1, 1, 1, 1, 2, 1, 1, 1];
    let factor = factor_of(fields, "depth_multiplier")?;
    let (divisor, min) = (fields.size("depth_divisible_by")?, fields.size("min_depth")?);
    let scaled = |features: usize| divisible((features as f64 * factor).round_ties_even(), divisor, min);
    let ratio = factor_of(fields, "expand_ratio")?;
    let expanded = |features: usize| divisible((features as f64 * ratio).round_ties_even(), divisor, min);
    let first = scaled(32);
    // The first block follows the first convolution, and only adds features if the first convolution does not.
    let is_expansion = fields.flag("first_layer_is_expansion")?;
    let mut blocks = vec![MobileNetBlock {
        expanded: (!is_expansion).then_some(first),
        ..MobileNetBlock::new(first, scaled(FEATURES[0]))
    }];
    // Where the image has the smallest size, convolutions skip pixels instead of halving the image.
    let output_stride = fields.size("output_stride")?;
    let (mut reached, mut dilation) = (2, 1);
    for (pair, stride) in FEATURES.windows(2).zip(STRIDES) {
        let (input, output) = (scaled(pair[0]), scaled(pair[1]));
        let (stride, block_dilation) = if reached == output_stride {
            let block_dilation = dilation;
            dilation *= stride;
            (1, block_dilation)
        } else {
            reached *= stride;
            (stride, 1)
        };
        blocks.push(MobileNetBlock {
            expanded: Some(expanded(input)),
            stride,
            dilation: block_dilation,
            adds_input: stride == 1 && input == output,
            ..MobileNetBlock::new(input, output)
        });
    }
    let last = if fields.flag("finegrained_output")? && factor < 1.0 { 1280 } else { scaled(1280) };
    Ok(MobileNetConfig { last_features: Some(last), ..common(fields, first, blocks)? })
}

/// Reads the fields that both versions of MobileNet have.
fn common(fields: &Fields, first_features: usize, blocks: Vec<MobileNetBlock>) -> Result<MobileNetConfig> {
    Ok(MobileNetConfig {
        num_channels: fields.size("num_channels")?,
        first_features,
        blocks,
        last_features: None,
        hidden_act: fields.activation("hidden_act")?,
        norm_eps: fields.number("layer_norm_eps")?,
        padding: if fields.flag("tf_padding")? { MobileNetPadding::Same } else { MobileNetPadding::Centered },
        activates_output: false,
        pools_maximum: false,
        classes: classes(fields)?,
    })
}

/// Reads EfficientNet.
fn efficient(fields: &Fields) -> Result<MobileNetConfig> {
    let (width, depth) = (factor_of(fields, "width_coefficient")?, factor_of(fields, "depth_coefficient")?);
    let divisor = fields.size("depth_divisor")?;
    let scaled = |features: usize| divisible(features as f64 * width, divisor, divisor);
    let (inputs, lists) = (
        fields.size_list("in_channels")?,
        [
            fields.size_list("out_channels")?,
            fields.size_list("kernel_sizes")?,
            fields.size_list("strides")?,
            fields.size_list("num_block_repeats")?,
            fields.size_list("expand_ratios")?,
        ],
    );
    if lists.iter().any(|list| list.len() != inputs.len()) {
        return Err(fields.error("the lists of stages, such as `in_channels` and `strides`, have different lengths"));
    }
    let [outputs, kernels, strides, repeats, ratios] = lists;
    if let Some(stride) = strides.iter().find(|stride| **stride > 2) {
        return Err(fields.error(format!("`strides` has {stride}, but only 1 and 2 are supported")));
    }
    if let Some(size) = kernels.iter().find(|size| size.is_multiple_of(2) || **size > 99) {
        return Err(fields.error(format!("`kernel_sizes` has {size}, but only odd numbers below 100 are supported")));
    }
    let repeats: Vec<usize> = repeats.into_iter().map(|count| (count as f64 * depth).ceil() as usize).collect();
    if repeats.iter().fold(0usize, |sum, count| sum.saturating_add(*count)) > MAX_BLOCKS {
        return Err(fields.error(format!("`num_block_repeats` has more than {MAX_BLOCKS} blocks")));
    }
    let centered = fields.list_opt("depthwise_padding")?.map_or(&[][..], Vec::as_slice);
    let squeeze = factor_of(fields, "squeeze_expansion_ratio")?;
    let mut blocks: Vec<MobileNetBlock> = Vec::new();
    for stage in 0..inputs.len() {
        let (first_input, output) = (scaled(inputs[stage]), scaled(outputs[stage]));
        for repeat in 0..repeats[stage] {
            let input = if repeat == 0 { first_input } else { output };
            let stride = if repeat == 0 { strides[stage] } else { 1 };
            blocks.push(MobileNetBlock {
                expanded: (ratios[stage] > 1).then(|| input.saturating_mul(ratios[stage])),
                kernel: kernels[stage],
                stride,
                squeezed: Some(((input as f64 * squeeze) as usize).max(1)),
                // The first block of a stage never adds its input.
                adds_input: repeat > 0,
                pads_end: !centered.iter().any(|index| index.as_u64() == Some(blocks.len() as u64)),
                ..MobileNetBlock::new(input, output)
            });
        }
    }
    let (last, hidden) = (scaled(1280), fields.size("hidden_dim")?);
    if last != hidden {
        return Err(fields.error(format!("`hidden_dim` is {hidden}, but the last convolution has {last} features")));
    }
    let read = MobileNetConfig {
        num_channels: fields.size("num_channels")?,
        first_features: scaled(32),
        blocks,
        last_features: Some(last),
        hidden_act: fields.activation("hidden_act")?,
        norm_eps: fields.number("batch_norm_eps")?,
        padding: MobileNetPadding::Shifted,
        activates_output: false,
        pools_maximum: match fields.text("pooling_type")? {
            "mean" => false,
            "max" => true,
            other => return Err(fields.error(format!("`pooling_type` {other:?} is not supported"))),
        },
        classes: classes(fields)?,
    };
    // The first block of each stage has the features of the stage before it.
    let outputs_before = read.blocks.iter().map(|block| block.output);
    let mut befores = std::iter::once(read.first_features).chain(outputs_before);
    if read.blocks.iter().any(|block| befores.next() != Some(block.input)) {
        return Err(fields.error("`in_channels` differ from the features of the stages before them"));
    }
    // Options of training, and a number that follows from other fields.
    fields.skip(&["batch_norm_momentum", "drop_connect_rate", "num_hidden_layers"]);
    Ok(read)
}

/// Reads a factor of sizes, which must be positive.
fn factor_of<'a>(fields: &Fields<'a>, name: &'a str) -> Result<f64> {
    match fields.number(name)? {
        factor if factor > 0.0 && factor < 1e4 => Ok(factor),
        factor => Err(fields.error(format!("field `{name}` is {factor}, but must be a positive number below 10,000"))),
    }
}

/// Rounds a number of features to a multiple of `divisor` that is not much smaller.
fn divisible(features: f64, divisor: usize, min: usize) -> usize {
    let rounded = ((features + divisor as f64 / 2.0) as usize / divisor * divisor).max(min);
    if (rounded as f64) < 0.9 * features { rounded.saturating_add(divisor) } else { rounded }
}

/// Returns the names of the arrays.
fn keys(kind: &str, config: &MobileNetConfig) -> KeyMap {
    let prefix = if config.classes.is_some() { format!("{kind}.") } else { String::new() };
    let keys = KeyMap::new().linear("head", "classifier");
    if kind == "efficientnet" {
        return efficient_keys(keys, &prefix);
    }
    let pair = |keys: KeyMap, path: &str, name: &str| convolution_keys(keys, path, &format!("{prefix}{name}"));
    if kind == "mobilenet_v1" {
        let keys = pair(keys, "first", "conv_stem");
        return (0..config.blocks.len()).fold(keys, |keys, block| {
            let keys = pair(keys, &format!("blocks[{block}].depthwise"), &format!("layer.{}", 2 * block));
            pair(keys, &format!("blocks[{block}].project"), &format!("layer.{}", 2 * block + 1))
        });
    }
    let keys = pair(pair(keys, "first", "conv_stem.first_conv"), "last", "conv_1x1");
    (0..config.blocks.len()).fold(keys, |keys, block| {
        let name = block.checked_sub(1).map_or("conv_stem".to_owned(), |layer| format!("layer.{layer}"));
        let parts = [("expand", "expand_1x1"), ("depthwise", "conv_3x3"), ("project", "reduce_1x1")];
        parts.into_iter().fold(keys, |keys, (part, layer)| {
            pair(keys, &format!("blocks[{block}].{part}"), &format!("{name}.{layer}"))
        })
    })
}

/// Adds the names of EfficientNet.
fn efficient_keys(keys: KeyMap, prefix: &str) -> KeyMap {
    let block = format!("{prefix}encoder.blocks.*");
    let layers = [
        ("first", format!("{prefix}embeddings.convolution"), format!("{prefix}embeddings.batchnorm")),
        ("last", format!("{prefix}encoder.top_conv"), format!("{prefix}encoder.top_bn")),
        ("blocks[*].expand", format!("{block}.expansion.expand_conv"), format!("{block}.expansion.expand_bn")),
        (
            "blocks[*].depthwise",
            format!("{block}.depthwise_conv.depthwise_conv"),
            format!("{block}.depthwise_conv.depthwise_norm"),
        ),
        ("blocks[*].project", format!("{block}.projection.project_conv"), format!("{block}.projection.project_bn")),
    ];
    let keys = layers.into_iter().fold(keys, |keys, (path, conv, norm)| {
        frozen_norm_keys(keys.conv(&format!("{path}.conv"), &conv), &format!("{path}.norm"), &norm)
    });
    keys.conv("blocks[*].squeeze.down", &format!("{block}.squeeze_excite.reduce"))
        .conv("blocks[*].squeeze.up", &format!("{block}.squeeze_excite.expand"))
}

impl MobileNetBlock {
    /// Returns a block with a kernel of 3 by 3 pixels.
    fn new(input: usize, output: usize) -> MobileNetBlock {
        MobileNetBlock {
            input,
            expanded: None,
            output,
            kernel: 3,
            stride: 1,
            dilation: 1,
            squeezed: None,
            adds_input: false,
            pads_end: false,
        }
    }
}

impl Block {
    fn new(config: &MobileNetConfig, block: &MobileNetBlock, rngs: &mut Rngs) -> Block {
        let inner = block.expanded.unwrap_or(block.input);
        let half = (block.kernel / 2) as i64;
        let padding = match config.padding {
            MobileNetPadding::Shifted if block.stride == 2 && block.pads_end => {
                Padding::Explicit(vec![(half - 1, half); 2])
            }
            padding => padding_of(padding, block.kernel, block.dilation),
        };
        let shape =
            ConvShape { groups: inner, dilation: block.dilation, padding, ..config.shape(block.kernel, block.stride) };
        let pixels = config.shape(1, 1);
        Block {
            expand: block.expanded.map(|expanded| ConvNorm::new([block.input, expanded], pixels.clone(), rngs)),
            depthwise: ConvNorm::new([inner, inner], shape, rngs),
            squeeze: block.squeezed.map(|squeezed| Squeeze::new(inner, squeezed, config.hidden_act, rngs)),
            project: ConvNorm::new([inner, block.output], pixels, rngs),
            adds_input: block.adds_input,
            activates_output: config.activates_output,
            activation: config.hidden_act,
        }
    }

    fn forward(&self, x: Array) -> Array {
        let y = self.expand.iter().fold(x.clone(), |y, layer| self.activation.apply(layer.forward(y)));
        let y = self.activation.apply(self.depthwise.forward(y));
        let y = self.squeeze.iter().fold(y, |y, squeeze| squeeze.forward(y));
        let y = self.project.forward(y);
        let y = if self.activates_output { self.activation.apply(y) } else { y };
        if self.adds_input { x + y } else { y }
    }
}

impl MobileNet {
    /// Computes features, `[batch, rows, columns, features]`, from images `[batch, rows, columns, channels]`. `transformers`
    /// expects the channels first instead.
    #[track_caller]
    pub fn encode(&self, images: impl ArrayLike) -> Array {
        let _ranks = allow_any_ranks();
        let images = images.into_array();
        if let Err(error) = check_channels("MobileNet", &images, &self.first.conv) {
            return Array::from_error(error, &images);
        }
        let x = self.activation.apply(self.first.forward(images));
        let x = self.blocks.iter().fold(x, |x, block| block.forward(x));
        self.last.iter().fold(x, |x, layer| self.activation.apply(layer.forward(x)))
    }

    /// Computes logits `[batch, classes]` from images `[batch, rows, columns, channels]`. Without a head, the results are
    /// features.
    #[track_caller]
    pub fn forward(&self, images: impl ArrayLike) -> Array {
        let x = self.encode(images);
        match &self.head {
            Some(head) if x.check().is_ok() => {
                head.forward(if self.pools_maximum { x.max([1, 2]) } else { x.mean([1, 2]) })
            }
            _ => x,
        }
    }
}
