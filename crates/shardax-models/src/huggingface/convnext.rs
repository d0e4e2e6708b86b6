//! ConvNeXt, an encoder of images of convolutions.

use shardax_nn::prelude::*;

use super::vision::{StagedConfig, check_channels, stage_keys};
use super::{Config, KeyMap, Layout, Pretrained, known_type};
use crate::Activation;
use crate::ranks::allow_any_ranks;

/// The architecture of a [`ConvNext`].
#[derive(Clone, Debug, PartialEq)]
pub struct ConvNextConfig {
    /// The channels, blocks, activation and classes.
    pub stages: StagedConfig,
    /// The rows and columns of a patch.
    pub patch_size: usize,
    /// The features of each stage.
    pub hidden_sizes: Vec<usize>,
    /// Added to the variance in the norm before the head.
    pub layer_norm_eps: f64,
    /// True if learned factors scale the outputs of blocks.
    pub has_scales: bool,
    /// True if blocks normalize the energy of their features over the image, as in ConvNeXt V2.
    pub has_energy_norm: bool,
}

/// ConvNeXt ([Liu et al. 2022](https://arxiv.org/abs/2201.03545)) and its second version ([Woo et al.
/// 2023](https://arxiv.org/abs/2301.00808)). The model type is `convnext` or `convnextv2`. Images can have any size.
#[derive(Module, Clone, Debug)]
pub struct ConvNext {
    patches: Conv,
    patch_norm: LayerNorm,
    stages: Vec<Stage>,
    norm: LayerNorm,
    head: Option<Linear>,
}

/// Blocks with the same number of features. All stages but the first one halve the rows and columns.
#[derive(Module, Clone, Debug)]
struct Stage {
    norm: Option<LayerNorm>,
    downsample: Option<Conv>,
    blocks: Vec<Block>,
}

#[derive(Module, Clone, Debug)]
struct Block {
    conv: Conv,
    norm: LayerNorm,
    up: Linear,
    down: Linear,
    /// The scale and the bias of the normalized energy, `[hidden]`.
    energy: Option<[Array; 2]>,
    /// The factors of the output, `[features]`.
    scale: Option<Array>,
    #[tree(static)]
    activation: Activation,
}

/// The supported model types.
pub(super) const KNOWN: [&str; 2] = ["convnext", "convnextv2"];

/// Added to the variance in all norms but the last one.
const EPSILON: f64 = 1e-6;

impl Pretrained for ConvNext {
    type Architecture = ConvNextConfig;

    fn read(config: &Config) -> Result<(ConvNextConfig, KeyMap)> {
        let fields = config.fields();
        let kind = known_type(&fields, &KNOWN)?;
        let (stages, hidden_sizes) = StagedConfig::read(&fields, "hidden_sizes")?;
        let depths = stages.depths.len();
        if fields.size("num_stages")? != depths {
            return Err(fields.error(format!("`num_stages` must be {depths}, the length of `depths`")));
        }
        let read = ConvNextConfig {
            stages,
            patch_size: fields.size("patch_size")?,
            hidden_sizes,
            layer_norm_eps: fields.number("layer_norm_eps")?,
            has_scales: kind == "convnext" && fields.number("layer_scale_init_value")? > 0.0,
            has_energy_norm: kind == "convnextv2",
        };
        // Images of other sizes are not errors in transformers.
        fields.skip(&["image_size"]);
        fields.finish()?;
        let keys = keys(kind, &read);
        Ok((read, keys))
    }

    fn make(config: &ConvNextConfig, rngs: &mut Rngs) -> Result<Self> {
        let (first, patch) = (config.hidden_sizes[0], [config.patch_size; 2]);
        let last = config.hidden_sizes.last().copied().unwrap_or(first);
        let patches = Conv::builder(config.stages.num_channels, first, patch).strides(patch).padding(Padding::Valid);
        Ok(ConvNext {
            patches: patches.build(rngs),
            patch_norm: LayerNorm::builder(first).epsilon(EPSILON).build(rngs),
            stages: (0..config.stages.depths.len()).map(|stage| Stage::new(config, stage, rngs)).collect(),
            norm: LayerNorm::builder(last).epsilon(config.layer_norm_eps).build(rngs),
            head: config.stages.head(last, rngs),
        })
    }

    fn extents(config: &ConvNextConfig) -> (usize, Vec<(&'static str, usize, usize)>) {
        let largest = config.hidden_sizes.iter().copied().max().unwrap_or(0);
        let patch = config.patch_size.saturating_mul(config.patch_size);
        let matrices = vec![
            ("MLP kernel", largest, largest.saturating_mul(4)),
            ("patch", patch, config.stages.num_channels.saturating_mul(config.hidden_sizes[0])),
        ];
        config.stages.extents(largest, matrices)
    }
}

/// Returns the names of the arrays.
fn keys(kind: &str, config: &ConvNextConfig) -> KeyMap {
    let prefix = if config.stages.classes.is_some() { format!("{kind}.") } else { String::new() };
    let keys = KeyMap::new()
        .conv("patches", &format!("{prefix}embeddings.patch_embeddings"))
        .norm("patch_norm", &format!("{prefix}embeddings.layernorm"))
        .norm("norm", &format!("{prefix}layernorm"))
        .linear("head", "classifier");
    stage_keys(keys, config.stages.depths.len(), |keys, path, stage| {
        let (name, layer) =
            (format!("{prefix}encoder.stages.{stage}"), format!("{prefix}encoder.stages.{stage}.layers.*"));
        keys.norm(&format!("{path}.norm"), &format!("{name}.downsampling_layer.0"))
            .conv(&format!("{path}.downsample"), &format!("{name}.downsampling_layer.1"))
            .conv(&format!("{path}.blocks[*].conv"), &format!("{layer}.dwconv"))
            .norm(&format!("{path}.blocks[*].norm"), &format!("{layer}.layernorm"))
            .linear(&format!("{path}.blocks[*].up"), &format!("{layer}.pwconv1"))
            .linear(&format!("{path}.blocks[*].down"), &format!("{layer}.pwconv2"))
            .array(format!("{path}.blocks[*].energy[0]"), format!("{layer}.grn.weight"), Layout::Same)
            .array(format!("{path}.blocks[*].energy[1]"), format!("{layer}.grn.bias"), Layout::Same)
            .array(format!("{path}.blocks[*].scale"), format!("{layer}.layer_scale_parameter"), Layout::Same)
    })
}

/// The convolution before a stage, which halves the rows and columns.
fn downsample(features_before: usize, features: usize, rngs: &mut Rngs) -> Conv {
    Conv::builder(features_before, features, [2, 2]).strides([2, 2]).padding(Padding::Valid).build(rngs)
}

impl Stage {
    fn new(config: &ConvNextConfig, stage: usize, rngs: &mut Rngs) -> Stage {
        let features = config.hidden_sizes[stage];
        let before = stage.checked_sub(1).map(|before| config.hidden_sizes[before]);
        Stage {
            norm: before.map(|before| LayerNorm::builder(before).epsilon(EPSILON).build(rngs)),
            downsample: before.map(|before| downsample(before, features, rngs)),
            blocks: (0..config.stages.depths[stage]).map(|_| Block::new(config, features, rngs)).collect(),
        }
    }

    fn forward(&self, x: Array) -> Array {
        let x = self.norm.iter().fold(x, |x, norm| norm.forward(x));
        let x = self.downsample.iter().fold(x, |x, conv| conv.forward(x));
        self.blocks.iter().fold(x, |x, block| block.forward(x))
    }
}

impl Block {
    fn new(config: &ConvNextConfig, features: usize, rngs: &mut Rngs) -> Block {
        let (hidden, dtype) = (features.saturating_mul(4), rngs.policy().param_dtype);
        let around = Padding::Explicit(vec![(3, 3); 2]);
        Block {
            conv: Conv::builder(features, features, [7, 7]).padding(around).feature_group_count(features).build(rngs),
            norm: LayerNorm::builder(features).epsilon(EPSILON).build(rngs),
            up: Linear::builder(features, hidden).kernel_axes(["embed", "mlp"]).build(rngs),
            down: Linear::builder(hidden, features).kernel_axes(["mlp", "embed"]).build(rngs),
            energy: config.has_energy_norm.then(|| [(); 2].map(|()| zeros_dtype([1, 1, 1, hidden], dtype))),
            scale: config.has_scales.then(|| ones_dtype([features], dtype)),
            activation: config.stages.hidden_act,
        }
    }

    fn forward(&self, x: Array) -> Array {
        let y = self.up.forward(self.norm.forward(self.conv.forward(&x)));
        let y = self.activation.apply(y);
        let y = match &self.energy {
            Some([scale, bias]) => {
                let energy = y.square().sum_keepdims([1, 2]).sqrt();
                let normed = &energy / (energy.mean_keepdims(-1) + EPSILON);
                scale.astype(y.dtype()) * (&y * normed) + bias.astype(y.dtype()) + &y
            }
            None => y,
        };
        let y = self.down.forward(y);
        match &self.scale {
            Some(scale) => x + &y * scale.astype(y.dtype()),
            None => x + y,
        }
    }
}

impl ConvNext {
    /// Computes features, `[batch, rows, columns, features]`, from images `[batch, rows, columns, channels]`. The results have a
    /// row and a column for each square of `patch_size * 2^(stages - 1)` pixels; the remaining pixels have no effect.
    #[track_caller]
    pub fn encode(&self, images: impl ArrayLike) -> Array {
        let _ranks = allow_any_ranks();
        let images = images.into_array();
        if let Err(error) = check_channels("ConvNext", &images, &self.patches) {
            return Array::from_error(error, &images);
        }
        let x = self.patch_norm.forward(self.patches.forward(images));
        self.stages.iter().fold(x, |x, stage| stage.forward(x))
    }

    /// Computes logits `[batch, classes]` from images `[batch, rows, columns, channels]`. Without a head, the results are
    /// features.
    #[track_caller]
    pub fn forward(&self, images: impl ArrayLike) -> Array {
        let x = self.encode(images);
        match &self.head {
            Some(head) if x.check().is_ok() => head.forward(self.norm.forward(x.mean([1, 2]))),
            _ => x,
        }
    }
}
