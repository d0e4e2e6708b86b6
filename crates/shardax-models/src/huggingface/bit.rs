//! BiT, an encoder of images of convolutions whose kernels are standardized.

use shardax_nn::prelude::*;

use super::fields::Fields;
use super::vision::{StagedConfig, check_channels, stage_keys};
use super::{Config, KeyMap, Pretrained, check_type};
use crate::Activation;
use crate::ranks::allow_any_ranks;

/// The architecture of a [`Bit`].
#[derive(Clone, Debug, PartialEq)]
pub struct BitConfig {
    /// The channels, blocks, activation and classes.
    pub stages: StagedConfig,
    /// The features of the first convolution.
    pub embedding_size: usize,
    /// The features of each stage.
    pub hidden_sizes: Vec<usize>,
    /// True if blocks normalize their input. Otherwise they normalize the outputs of convolutions.
    pub pre_norms: bool,
    /// True if images are padded to a multiple of each stride. Otherwise each side is padded by half of a kernel.
    pub pads_to_stride: bool,
    /// True if the maximum over neighbors after the first convolution pads images too.
    pub pads_pool: bool,
    /// The groups of features that norms normalize.
    pub num_groups: usize,
    /// The number of pixels of the image, in a row, that become a place of the last stage. Later convolutions skip places instead.
    pub output_stride: usize,
}

/// BiT ([Kolesnikov et al. 2019](https://arxiv.org/abs/1912.11370)): a ResNet with group norms, whose kernels have the mean 0 and the
/// variance 1. The model type is `bit`. Images can have any size.
#[derive(Module, Clone, Debug)]
pub struct Bit {
    first: StandardConv,
    /// The norm after the first convolution, if blocks do not normalize their inputs.
    norm: Option<GroupNorm>,
    stages: Vec<Stage>,
    /// The norm after the last stage, if blocks normalize their inputs.
    last_norm: Option<GroupNorm>,
    head: Option<Linear>,
    #[tree(static)]
    activation: Activation,
    pads_to_stride: bool,
    pads_pool: bool,
}

#[derive(Module, Clone, Debug)]
struct Stage {
    blocks: Vec<Block>,
}

#[derive(Module, Clone, Debug)]
struct Block {
    convs: Vec<StandardConv>,
    norms: Vec<GroupNorm>,
    /// The convolution of the input, in the first block of a stage.
    shortcut: Option<StandardConv>,
    shortcut_norm: Option<GroupNorm>,
    #[tree(static)]
    activation: Activation,
    pre_norms: bool,
}

/// A convolution whose kernel is standardized for each output.
#[derive(Module, Clone, Debug)]
struct StandardConv {
    conv: Conv,
}

/// Added to the variance of kernels.
const KERNEL_EPSILON: f64 = 1e-8;

/// Added to the variance in norms.
const NORM_EPSILON: f64 = 1e-5;

/// The stride of the first convolution and the maximum over neighbors together.
const FIRST_STRIDE: usize = 4;

/// The largest number of stages. Each stage halves the rows and columns, or doubles the distance of the places that a kernel reads.
const MAX_STAGES: usize = 16;

impl Pretrained for Bit {
    type Architecture = BitConfig;

    fn read(config: &Config) -> Result<(BitConfig, KeyMap)> {
        let fields = config.fields();
        check_type(&fields, "bit")?;
        let read = read_fields(&fields)?;
        fields.finish()?;
        let keys = keys(&read, if read.stages.classes.is_some() { "bit." } else { "" });
        Ok((read, keys))
    }

    fn make(config: &BitConfig, rngs: &mut Rngs) -> Result<Self> {
        let last = config.hidden_sizes.last().copied().unwrap_or(config.embedding_size);
        let sizes = [config.stages.num_channels, config.embedding_size];
        let mut before = config.embedding_size;
        let (mut stride_so_far, mut dilation) = (FIRST_STRIDE, 1);
        let stages = config.hidden_sizes.iter().zip(&config.stages.depths).enumerate().map(|(index, (size, depth))| {
            let mut stride = if index == 0 { 1 } else { 2 };
            if stride_so_far >= config.output_stride {
                dilation *= stride;
                stride = 1;
            }
            stride_so_far *= stride;
            let first_dilation = if dilation <= 2 { 1 } else { 2 };
            let blocks = (0..*depth).map(|block| {
                let sizes = [if block == 0 { before } else { *size }, *size];
                let (stride, dilation) = if block == 0 { (stride, first_dilation) } else { (1, dilation) };
                Block::new(config, sizes, stride, dilation, block == 0, rngs)
            });
            let stage = Stage { blocks: blocks.collect() };
            before = *size;
            stage
        });
        let stages = stages.collect();
        Ok(Bit {
            first: StandardConv::new(config, sizes, [7, 2, 1], rngs),
            norm: (!config.pre_norms).then(|| norm(config, config.embedding_size, rngs)),
            stages,
            last_norm: config.pre_norms.then(|| norm(config, last, rngs)),
            head: config.stages.head(last, rngs),
            activation: config.stages.hidden_act,
            pads_to_stride: config.pads_to_stride,
            pads_pool: config.pads_pool,
        })
    }

    fn extents(config: &BitConfig) -> (usize, Vec<(&'static str, usize, usize)>) {
        let largest = config.hidden_sizes.iter().copied().max().unwrap_or(0);
        let inner = inner_size(largest);
        let matrices = vec![
            ("convolution", inner, inner.saturating_mul(9)),
            ("shortcut", largest, largest),
            ("first convolution", config.embedding_size, config.stages.num_channels.saturating_mul(49)),
        ];
        config.stages.extents(largest, matrices)
    }
}

/// Reads the fields of a model or of the encoder in another model, without the check of unknown fields.
pub(super) fn read_fields(fields: &Fields) -> Result<BitConfig> {
    let (mut hidden_sizes, depths) = (fields.size_list("hidden_sizes")?, fields.size_list("depths")?);
    let stages = StagedConfig {
        num_channels: fields.size("num_channels")?,
        hidden_act: fields.activation("hidden_act")?,
        classes: super::vision::classes(fields)?,
        depths,
    };
    let pre_norms = match fields.text("layer_type")? {
        "preactivation" => true,
        "bottleneck" => false,
        other => return Err(fields.error(format!("the layer_type {other:?} is not supported"))),
    };
    // The encoder of DPT has the default sizes of four stages, but three stages.
    let (count, sizes) = (stages.depths.len(), hidden_sizes.len());
    if sizes < count || (sizes > count && pre_norms) {
        return Err(fields.error(format!("`hidden_sizes` has {sizes} stages, but `depths` has {count}")));
    }
    hidden_sizes.truncate(count);
    if count > MAX_STAGES {
        return Err(fields.error(format!("`depths` has {count} stages, but at most {MAX_STAGES} are supported")));
    }
    let factor = fields.size("width_factor")?;
    let widened = hidden_sizes.iter().map(|size| multiple_of_eight(size.saturating_mul(factor) as f64));
    let widened: Vec<usize> = widened.collect();
    // The norm and the head after the last stage have the features that are not widened.
    if widened.last() != hidden_sizes.last() {
        let message = format!("`hidden_sizes` becomes {widened:?} by `width_factor`, which differs from the last size");
        return Err(fields.error(message));
    }
    let pads_to_stride = match fields.text_opt("global_padding")?.map(str::to_lowercase).as_deref() {
        None => false,
        Some("same") => true,
        Some(other) => return Err(fields.error(format!("the global_padding {other:?} is not supported"))),
    };
    let read = BitConfig {
        stages,
        embedding_size: fields.size("embedding_size")?,
        hidden_sizes: widened,
        pre_norms,
        pads_to_stride,
        pads_pool: fields.flag("embedding_dynamic_padding")?,
        num_groups: fields.size("num_groups")?,
        output_stride: fields.size("output_stride")?,
    };
    let inner = read.hidden_sizes.iter().map(|size| inner_size(*size));
    for size in read.hidden_sizes.iter().copied().chain(inner).chain([read.embedding_size]) {
        fields.divides(("num_groups", read.num_groups), ("the features of a norm", size))?;
    }
    super::vision::skip_features_of_stages(fields);
    Ok(read)
}

impl BitConfig {
    /// Returns the features of a stage, counted from 1. Stage 0 is the features before the first stage.
    pub(super) fn features(&self, stage: usize) -> usize {
        let before = stage.checked_sub(1).map(|index| self.hidden_sizes.get(index));
        before.flatten().copied().unwrap_or(self.embedding_size)
    }

    /// Returns the number of pixels in a row that become a place of the last stage.
    pub(super) fn stride(&self) -> usize {
        (1..self.hidden_sizes.len()).fold(FIRST_STRIDE, |stride, _| {
            if stride >= self.output_stride { stride } else { stride.saturating_mul(2) }
        })
    }
}

/// Returns the features of the inner convolutions of a block.
fn inner_size(features: usize) -> usize {
    multiple_of_eight(features as f64 / 4.0)
}

/// Rounds a number of features to a multiple of 8 that is at least 90 % of it.
fn multiple_of_eight(features: f64) -> usize {
    let rounded = ((features + 4.0) as usize / 8 * 8).max(8);
    if (rounded as f64) < 0.9 * features { rounded + 8 } else { rounded }
}

/// Returns the names of the arrays.
pub(super) fn keys(config: &BitConfig, prefix: &str) -> KeyMap {
    let keys = KeyMap::new()
        .conv("first.conv", &format!("{prefix}embedder.convolution"))
        .norm("norm", &format!("{prefix}embedder.norm"))
        .norm("last_norm", &format!("{prefix}norm"))
        .linear("head", "classifier.1");
    stage_keys(keys, config.hidden_sizes.len(), |keys, path, stage| {
        let (path, block) = (format!("{path}.blocks[*]"), format!("{prefix}encoder.stages.{stage}.layers.*"));
        let keys = (0..3).fold(keys, |keys, index| {
            keys.conv(&format!("{path}.convs[{index}].conv"), &format!("{block}.conv{}", index + 1))
                .norm(&format!("{path}.norms[{index}]"), &format!("{block}.norm{}", index + 1))
        });
        keys.conv(&format!("{path}.shortcut.conv"), &format!("{block}.downsample.conv"))
            .norm(&format!("{path}.shortcut_norm"), &format!("{block}.downsample.norm"))
    })
}

/// Creates a norm of groups of features.
fn norm(config: &BitConfig, features: usize, rngs: &mut Rngs) -> GroupNorm {
    GroupNorm::builder(features, config.num_groups).epsilon(NORM_EPSILON).build(rngs)
}

impl StandardConv {
    /// Creates a convolution with this size of the kernel, stride and dilation.
    fn new(
        config: &BitConfig,
        [before, features]: [usize; 2],
        [size, stride, dilation]: [usize; 3],
        rngs: &mut Rngs,
    ) -> StandardConv {
        let around = ((stride - 1 + dilation * (size - 1)) / 2) as i64;
        let padding = if config.pads_to_stride { Padding::Same } else { Padding::Explicit(vec![(around, around); 2]) };
        let conv = Conv::builder(before, features, [size; 2]).strides([stride; 2]).kernel_dilation([dilation; 2]);
        StandardConv { conv: conv.padding(padding).use_bias(false).build(rngs) }
    }

    fn forward(&self, x: Array) -> Array {
        let kernel = self.conv.kernel.astype(DType::F32);
        let centered = &kernel - kernel.mean_keepdims([0, 1, 2]);
        let variance = centered.square().mean_keepdims([0, 1, 2]);
        let mut conv = self.conv.clone();
        conv.kernel = (centered * (variance + KERNEL_EPSILON).rsqrt()).astype(x.dtype());
        conv.forward(x)
    }
}

impl Block {
    fn new(
        config: &BitConfig,
        [before, features]: [usize; 2],
        stride: usize,
        dilation: usize,
        is_first: bool,
        rngs: &mut Rngs,
    ) -> Block {
        let inner = inner_size(features);
        // Blocks that normalize their input have no dilation.
        let dilation = if config.pre_norms { 1 } else { dilation };
        let normed = if config.pre_norms { [before, inner, inner] } else { [inner, inner, features] };
        Block {
            convs: vec![
                StandardConv::new(config, [before, inner], [1, 1, 1], rngs),
                StandardConv::new(config, [inner, inner], [3, stride, dilation], rngs),
                StandardConv::new(config, [inner, features], [1, 1, 1], rngs),
            ],
            norms: normed.into_iter().map(|features| norm(config, features, rngs)).collect(),
            shortcut: is_first.then(|| StandardConv::new(config, [before, features], [1, stride, 1], rngs)),
            shortcut_norm: (is_first && !config.pre_norms).then(|| norm(config, features, rngs)),
            activation: config.stages.hidden_act,
            pre_norms: config.pre_norms,
        }
    }

    fn forward(&self, x: Array) -> Array {
        let layers = self.convs.iter().zip(&self.norms).enumerate();
        if self.pre_norms {
            let mut shortcut = x.clone();
            let y = layers.fold(x, |y, (index, (conv, norm))| {
                let y = self.activation.apply(norm.forward(y));
                if let Some(layer) = self.shortcut.as_ref().filter(|_| index == 0) {
                    shortcut = layer.forward(y.clone());
                }
                conv.forward(y)
            });
            return y + shortcut;
        }
        let y = layers.fold(x.clone(), |y, (index, (conv, norm))| {
            let y = norm.forward(conv.forward(y));
            if index == 2 { y } else { self.activation.apply(y) }
        });
        let x = self.shortcut.iter().fold(x, |x, layer| layer.forward(x));
        let x = self.shortcut_norm.iter().fold(x, |x, norm| norm.forward(x));
        self.activation.apply(x + y)
    }
}

impl Bit {
    /// Computes features, `[batch, rows, columns, features]`, from images `[batch, rows, columns, channels]`. `transformers`
    /// expects the channels first instead.
    #[track_caller]
    pub fn encode(&self, images: impl ArrayLike) -> Array {
        let images = images.into_array();
        match self.outputs(&images) {
            Ok(mut outputs) => {
                let x = outputs.pop().unwrap_or(images);
                self.last_norm.iter().fold(x, |x, norm| self.activation.apply(norm.forward(x)))
            }
            Err(error) => Array::from_error(error, &images),
        }
    }

    /// Computes the features before the first stage and after each stage.
    pub(super) fn outputs(&self, images: &Array) -> Result<Vec<Array>> {
        let _ranks = allow_any_ranks();
        check_channels("Bit", images, &self.first.conv)?;
        let x = self.first.forward(images.clone());
        let around = if self.pads_to_stride { 0 } else { 1 };
        let x = pad(x, vec![(0, 0), (around, around), (around, around), (0, 0)], PadMode::Constant(0.0));
        let x = self.norm.iter().fold(x, |x, norm| self.activation.apply(norm.forward(x)));
        x.check()?;
        // The maximum includes the zeros of padding.
        let missing = |axis: usize| match x.shape()[axis] {
            size if self.pads_pool => ((size.div_ceil(2) * 2 + 1).saturating_sub(size)).min(2),
            _ => 0,
        };
        let widths = [0, 1, 2, 3].map(|axis| match axis {
            1 | 2 => (missing(axis) / 2, missing(axis) - missing(axis) / 2),
            _ => (0, 0),
        });
        let x = pad(&x, widths.to_vec(), PadMode::Constant(0.0));
        let mut x = Pool::new([3, 3]).strides([2, 2]).padding(Padding::Valid).max(x);
        let mut stages = vec![x.clone()];
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
