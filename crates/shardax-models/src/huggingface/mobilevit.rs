//! MobileViT, an encoder of images with convolutions and transformers.

use shardax_nn::prelude::*;

use super::encoder::{BlockSizes, EncoderBlock, VIT_NORMS, block_keys};
use super::fields::Fields;
use super::interpolation::bilinear_weights;
use super::vision::{ConvNorm, ConvShape, check_channels, classes, convolution_keys};
use super::{Config, KeyMap, Pretrained, check_type};
use crate::Activation;
use crate::ranks::allow_any_ranks;

/// The architecture of a [`MobileVit`].
#[derive(Clone, Debug, PartialEq)]
pub struct MobileVitConfig {
    /// The number of color channels.
    pub num_channels: usize,
    /// The features of the first convolution, of the five stages, and of the last convolution.
    pub neck_sizes: [usize; 7],
    /// The features of the transformers of the last three stages.
    pub hidden_sizes: [usize; 3],
    /// The number of attention heads.
    pub num_attention_heads: usize,
    /// The ratio of the features inside an MLP to the features of a transformer.
    pub mlp_ratio: f64,
    /// The ratio of the features inside a block of convolutions to the features before it.
    pub expand_ratio: f64,
    /// The rows and columns of a patch. Places with the same place in their patch attend to each other.
    pub patch_size: usize,
    /// The rows and columns of the convolutions before and after transformers, an odd number.
    pub kernel: usize,
    /// The activation.
    pub hidden_act: Activation,
    /// Added to the variance in the norms of transformers.
    pub layer_norm_eps: f64,
    /// True if queries, keys and values have biases.
    pub qkv_bias: bool,
    /// The number of classes; `None` if the results are features.
    pub classes: Option<usize>,
}

/// The number of blocks of convolutions of the first two stages.
const CONV_BLOCKS: [usize; 2] = [1, 3];
/// The number of transformer blocks of the last three stages.
const TRANSFORMER_BLOCKS: [usize; 3] = [2, 4, 3];
/// The largest kernels and patches. Published models have 3 and 2.
const MAX_SIZE: usize = 1 << 10;

/// MobileViT ([Mehta and Rastegari 2021](https://arxiv.org/abs/2110.02178)). The model type is `mobilevit`. Images can have any
/// size.
#[derive(Module, Clone, Debug)]
pub struct MobileVit {
    first: ConvNorm,
    convolutions: Vec<Inverted>,
    stages: Vec<Stage>,
    last: ConvNorm,
    head: Option<Linear>,
    #[tree(static)]
    activation: Activation,
}

/// A convolution of single pixels that adds features, a convolution of each feature, and a convolution of single pixels.
#[derive(Module, Clone, Debug)]
struct Inverted {
    expand: ConvNorm,
    depthwise: ConvNorm,
    project: ConvNorm,
    adds_input: bool,
    #[tree(static)]
    activation: Activation,
}

/// A stage with a transformer.
#[derive(Module, Clone, Debug)]
struct Stage {
    downsample: Inverted,
    before: ConvNorm,
    input: Conv,
    blocks: Vec<EncoderBlock>,
    norm: LayerNorm,
    output: ConvNorm,
    fusion: ConvNorm,
    patch_size: usize,
    #[tree(static)]
    activation: Activation,
}

impl Pretrained for MobileVit {
    type Architecture = MobileVitConfig;

    fn read(config: &Config) -> Result<(MobileVitConfig, KeyMap)> {
        let fields = config.fields();
        check_type(&fields, "mobilevit")?;
        let read = MobileVitConfig {
            num_channels: fields.size("num_channels")?,
            neck_sizes: sizes(&fields, "neck_hidden_sizes")?,
            hidden_sizes: sizes(&fields, "hidden_sizes")?,
            num_attention_heads: fields.size("num_attention_heads")?,
            mlp_ratio: fields.number("mlp_ratio")?,
            expand_ratio: fields.number("expand_ratio")?,
            patch_size: fields.size("patch_size")?,
            kernel: fields.size("conv_kernel_size")?,
            hidden_act: fields.activation("hidden_act")?,
            layer_norm_eps: fields.number("layer_norm_eps")?,
            qkv_bias: fields.flag("qkv_bias")?,
            classes: classes(&fields)?,
        };
        for size in read.hidden_sizes {
            fields.divides(("num_attention_heads", read.num_attention_heads), ("hidden_sizes", size))?;
            if read.mlp_ratio * (size as f64) < 1.0 {
                return Err(fields.error(format!("`mlp_ratio` is {}, with which there are no MLPs", read.mlp_ratio)));
            }
        }
        if read.kernel.is_multiple_of(2) || read.kernel > MAX_SIZE || read.patch_size > MAX_SIZE {
            let message = format!("`conv_kernel_size` is {} and `patch_size` {}", read.kernel, read.patch_size);
            return Err(fields.error(format!("{message}, but the first must be odd, and both at most {MAX_SIZE}")));
        }
        if !(read.expand_ratio > 0.0 && read.expand_ratio < MAX_SIZE as f64) {
            return Err(fields.error(format!("`expand_ratio` is {}, which is not supported", read.expand_ratio)));
        }
        fields.check_size("output_stride", 32)?;
        // Images of other sizes are not errors in transformers, and the other fields belong to the class for pixels.
        fields.skip(&["image_size", "aspp_out_channels", "atrous_rates", "aspp_dropout_prob"]);
        fields.skip(&["semantic_loss_ignore_index", "classifier_dropout_prob"]);
        fields.finish()?;
        let keys = keys(&read);
        Ok((read, keys))
    }

    fn make(config: &MobileVitConfig, rngs: &mut Rngs) -> Result<Self> {
        let neck = config.neck_sizes;
        let first = ConvNorm::new([config.num_channels, neck[0]], ConvShape::new(3, 2), rngs);
        let convolutions = CONV_BLOCKS.iter().enumerate().flat_map(|(stage, count)| {
            (0..*count).map(move |index| match index {
                0 => ([neck[stage], neck[stage + 1]], stage + 1),
                _ => ([neck[stage + 1]; 2], 1),
            })
        });
        let convolutions: Vec<Inverted> =
            convolutions.map(|(sizes, stride)| Inverted::new(config, sizes, stride, rngs)).collect();
        let stages = (0..TRANSFORMER_BLOCKS.len()).map(|stage| Stage::new(config, stage, rngs)).collect();
        Ok(MobileVit {
            first,
            convolutions,
            stages,
            last: ConvNorm::new([neck[5], neck[6]], ConvShape::new(1, 1), rngs),
            head: config.classes.map(|classes| Linear::new(neck[6], classes, rngs)),
            activation: config.hidden_act,
        })
    }

    fn extents(config: &MobileVitConfig) -> (usize, Vec<(&'static str, usize, usize)>) {
        let widest = config.neck_sizes.iter().copied().max().unwrap_or(0);
        let hidden = config.hidden_sizes.iter().copied().max().unwrap_or(0);
        let area = config.kernel.saturating_mul(config.kernel).saturating_mul(2);
        let matrices = vec![
            ("convolution", widest, widest.saturating_mul(area)),
            ("first convolution", config.neck_sizes[0], config.num_channels.saturating_mul(9)),
            ("expanded convolution", widest, config.expanded(widest)),
            ("query kernel", hidden, hidden.max(widest)),
            ("MLP kernel", hidden, (config.mlp_ratio * hidden as f64) as usize),
            ("table of classes", config.classes.unwrap_or(0), config.neck_sizes[6]),
        ];
        (CONV_BLOCKS.iter().chain(&TRANSFORMER_BLOCKS).sum(), matrices)
    }
}

/// Reads a list of `N` sizes.
fn sizes<'a, const N: usize>(fields: &Fields<'a>, name: &'a str) -> Result<[usize; N]> {
    let list = fields.size_list(name)?;
    let count = list.len();
    list.try_into().map_err(|_| fields.error(format!("`{name}` has {count} sizes, but must have {N}")))
}

impl MobileVitConfig {
    /// Returns the features inside a block of convolutions, a multiple of 8 near the product with `expand_ratio`.
    fn expanded(&self, features: usize) -> usize {
        let exact = (features as f64 * self.expand_ratio).round_ties_even();
        let multiple = (((exact + 4.0) as usize) / 8).max(1).saturating_mul(8);
        if (multiple as f64) < 0.9 * exact { multiple.saturating_add(8) } else { multiple }
    }
}

impl Inverted {
    fn new(config: &MobileVitConfig, [before, features]: [usize; 2], stride: usize, rngs: &mut Rngs) -> Inverted {
        let inner = config.expanded(before);
        let depthwise = ConvShape { groups: inner, ..ConvShape::new(3, stride) };
        Inverted {
            expand: ConvNorm::new([before, inner], ConvShape::new(1, 1), rngs),
            depthwise: ConvNorm::new([inner, inner], depthwise, rngs),
            project: ConvNorm::new([inner, features], ConvShape::new(1, 1), rngs),
            adds_input: stride == 1 && before == features,
            activation: config.hidden_act,
        }
    }

    fn forward(&self, x: Array) -> Array {
        let y = self.activation.apply(self.expand.forward(x.clone()));
        let y = self.project.forward(self.activation.apply(self.depthwise.forward(y)));
        if self.adds_input { x + y } else { y }
    }
}

impl Stage {
    fn new(config: &MobileVitConfig, stage: usize, rngs: &mut Rngs) -> Stage {
        let (before, features, hidden) =
            (config.neck_sizes[stage + 2], config.neck_sizes[stage + 3], config.hidden_sizes[stage]);
        let inner = (config.mlp_ratio * hidden as f64) as usize;
        let sizes = BlockSizes::new(
            [hidden, inner, config.num_attention_heads],
            config.hidden_act,
            config.layer_norm_eps,
            config.qkv_bias,
        );
        Stage {
            downsample: Inverted::new(config, [before, features], 2, rngs),
            before: ConvNorm::new([features, features], ConvShape::new(config.kernel, 1), rngs),
            input: Conv::builder(features, hidden, [1, 1]).use_bias(false).build(rngs),
            blocks: (0..TRANSFORMER_BLOCKS[stage]).map(|_| EncoderBlock::new(&sizes, rngs)).collect(),
            norm: LayerNorm::builder(hidden).epsilon(config.layer_norm_eps).build(rngs),
            output: ConvNorm::new([hidden, features], ConvShape::new(1, 1), rngs),
            fusion: ConvNorm::new([2 * features, features], ConvShape::new(config.kernel, 1), rngs),
            patch_size: config.patch_size,
            activation: config.hidden_act,
        }
    }

    /// Applies the stage to `[batch, rows, columns, features]`.
    fn forward(&self, x: Array) -> Result<Array> {
        let x = self.downsample.forward(x);
        let y = self.input.forward(self.activation.apply(self.before.forward(x.clone())));
        let &[batch, rows, columns, features] = y.shape() else { return Ok(y) };
        // Images are scaled so that patches fill them.
        let patch = self.patch_size;
        let [down, right] = [rows, columns].map(|size| size.div_ceil(patch));
        let y = scaled(y, [down * patch, right * patch])?;
        let y = y.reshape([batch, down, patch, right, patch, features]).transpose([0, 2, 4, 1, 3, 5]);
        let y = y.reshape([batch, patch * patch, down * right, features]);
        let y = self.norm.forward(self.blocks.iter().fold(y, |y, block| block.forward(y)));
        let y = y.reshape([batch, patch, patch, down, right, features]).transpose([0, 3, 1, 4, 2, 5]);
        let y = scaled(y.reshape([batch, down * patch, right * patch, features]), [rows, columns])?;
        let y = self.activation.apply(self.output.forward(y));
        Ok(self.activation.apply(self.fusion.forward(concatenate(&[x, y], -1))))
    }
}

/// Interpolates linearly to another number of rows and columns.
fn scaled(x: Array, [rows, columns]: [usize; 2]) -> Result<Array> {
    if x.shape()[1..3] == [rows, columns] {
        return Ok(x);
    }
    let [down, right] = [bilinear_weights(x.shape()[1], rows)?, bilinear_weights(x.shape()[2], columns)?];
    Ok(einsum("ir,jc,brcf->bijf", &[&down.astype(x.dtype()), &right.astype(x.dtype()), &x]))
}

/// Returns the names of the arrays.
fn keys(config: &MobileVitConfig) -> KeyMap {
    let prefix = if config.classes.is_some() { "mobilevit." } else { "" };
    let layer = format!("{prefix}encoder.layer");
    let mut keys = convolution_keys(KeyMap::new(), "first", &format!("{prefix}conv_stem"));
    let places = CONV_BLOCKS.iter().enumerate().flat_map(|(stage, count)| (0..*count).map(move |index| (stage, index)));
    for (number, (stage, index)) in places.enumerate() {
        keys = inverted_keys(keys, &format!("convolutions[{number}]"), &format!("{layer}.{stage}.layer.{index}"));
    }
    for stage in 0..TRANSFORMER_BLOCKS.len() {
        let (path, layer) = (format!("stages[{stage}]"), format!("{layer}.{}", stage + CONV_BLOCKS.len()));
        let block = format!("{layer}.transformer.layer.*");
        let attention = ["attention.query", "attention.key", "attention.value", "output.dense"];
        let blocks = block_keys(
            &format!("{path}.blocks[*]"),
            &attention.map(|part| format!("{block}.attention.{part}")),
            &VIT_NORMS.map(|part| format!("{block}.{part}")),
            &["intermediate.dense", "output.dense"].map(|part| format!("{block}.{part}")),
        );
        keys = inverted_keys(keys, &format!("{path}.downsample"), &format!("{layer}.downsampling_layer"));
        keys = convolution_keys(keys, &format!("{path}.before"), &format!("{layer}.conv_kxk"));
        keys = convolution_keys(keys, &format!("{path}.output"), &format!("{layer}.conv_projection"));
        keys = convolution_keys(keys, &format!("{path}.fusion"), &format!("{layer}.fusion"));
        keys = keys
            .conv(&format!("{path}.input"), &format!("{layer}.conv_1x1.convolution"))
            .norm(&format!("{path}.norm"), &format!("{layer}.layernorm"))
            .and(blocks);
    }
    convolution_keys(keys, "last", &format!("{prefix}conv_1x1_exp")).linear("head", "classifier")
}

/// Adds the names of a block of three convolutions.
fn inverted_keys(keys: KeyMap, path: &str, name: &str) -> KeyMap {
    let parts = [("expand", "expand_1x1"), ("depthwise", "conv_3x3"), ("project", "reduce_1x1")];
    parts
        .into_iter()
        .fold(keys, |keys, (part, layer)| convolution_keys(keys, &format!("{path}.{part}"), &format!("{name}.{layer}")))
}

impl MobileVit {
    /// Computes features, `[batch, rows, columns, features]`, from images `[batch, rows, columns, channels]`. `transformers`
    /// expects the channels first instead.
    #[track_caller]
    pub fn encode(&self, images: impl ArrayLike) -> Array {
        let _ranks = allow_any_ranks();
        let images = images.into_array();
        if let Err(error) = check_channels("MobileVit", &images, &self.first.conv) {
            return Array::from_error(error, &images);
        }
        let x = self.activation.apply(self.first.forward(images.clone()));
        let x = self.convolutions.iter().fold(x, |x, block| block.forward(x));
        match self.stages.iter().try_fold(x, |x, stage| stage.forward(x)) {
            Ok(x) => self.activation.apply(self.last.forward(x)),
            Err(error) => Array::from_error(error, &images),
        }
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
