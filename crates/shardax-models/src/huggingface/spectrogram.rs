//! Audio Spectrogram Transformer, an encoder of sound that reads patches of spectrograms.

use shardax_nn::prelude::*;

use super::encoder::{BlockSizes, EncoderBlock, VIT_NORMS, small_normal, vit_block_keys};
use super::patches::for_each_image;
use super::vision::classes_of_head;
use super::{Config, KeyMap, Layout, Pretrained, check_type};
use crate::Activation;
use crate::error::value_error;
use crate::ranks::allow_any_ranks;
use crate::shardings::gather_positions;

/// The architecture of a [`SpectrogramEncoder`].
#[derive(Clone, Debug, PartialEq)]
pub struct SpectrogramConfig {
    /// The features of a patch.
    pub hidden_size: usize,
    /// The features inside an MLP.
    pub intermediate_size: usize,
    /// The number of blocks.
    pub num_hidden_layers: usize,
    /// The number of attention heads. It must divide the features.
    pub num_attention_heads: usize,
    /// The number of bands and frames of a patch.
    pub patch_size: usize,
    /// The number of bands from one patch to the next one.
    pub frequency_stride: usize,
    /// The number of frames from one patch to the next one.
    pub time_stride: usize,
    /// The number of frames of a spectrogram.
    pub max_length: usize,
    /// The number of bands of the mel scale.
    pub num_mel_bins: usize,
    /// True if the projections to queries, keys and values have biases.
    pub qkv_bias: bool,
    /// The activation of the MLPs.
    pub hidden_act: Activation,
    /// Added to the variance in norms.
    pub layer_norm_eps: f64,
    /// The number of classes; `None` if the results are features.
    pub classes: Option<usize>,
}

/// Audio Spectrogram Transformer ([Gong et al. 2021](https://arxiv.org/abs/2104.01778)). The model type is
/// `audio-spectrogram-transformer`.
///
/// The input is a spectrogram of the mel scale, `[batch, frames, bands]`, with the length of the configuration. Dimensions are named
/// `embed`, `heads` and `mlp`, see [`Rules`].
#[derive(Module, Clone, Debug)]
pub struct SpectrogramEncoder {
    patches: Conv,
    /// `[1, 1, features]`: the two learned entries before the patches, whose mean represents the sound.
    class: Array,
    distillation: Array,
    /// `[1, 2 + patches, features]`
    positions: Array,
    blocks: Vec<EncoderBlock>,
    norm: LayerNorm,
    head_norm: Option<LayerNorm>,
    head: Option<Linear>,
    /// The number of frames and bands of a spectrogram.
    #[tree(static)]
    size: [usize; 2],
}

impl Pretrained for SpectrogramEncoder {
    type Architecture = SpectrogramConfig;

    fn read(config: &Config) -> Result<(SpectrogramConfig, KeyMap)> {
        let fields = config.fields();
        check_type(&fields, "audio-spectrogram-transformer")?;
        let (features, heads) = (fields.size("hidden_size")?, fields.size("num_attention_heads")?);
        fields.divides(("num_attention_heads", heads), ("hidden_size", features))?;
        let read = SpectrogramConfig {
            hidden_size: features,
            intermediate_size: fields.size("intermediate_size")?,
            num_hidden_layers: fields.layers("num_hidden_layers")?,
            num_attention_heads: heads,
            patch_size: fields.size("patch_size")?,
            frequency_stride: fields.size("frequency_stride")?,
            time_stride: fields.size("time_stride")?,
            max_length: fields.size("max_length")?,
            num_mel_bins: fields.size("num_mel_bins")?,
            qkv_bias: fields.flag("qkv_bias")?,
            hidden_act: fields.activation("hidden_act")?,
            layer_norm_eps: fields.number("layer_norm_eps")?,
            classes: classes_of_head(&fields, "ForAudioClassification")?,
        };
        // A spectrogram that is smaller than a patch would have no patches.
        for (name, size) in [("num_mel_bins", read.num_mel_bins), ("max_length", read.max_length)] {
            if size < read.patch_size {
                let message = format!("`{name}` is {size}, which is less than a patch of {}", read.patch_size);
                return Err(fields.error(message));
            }
        }
        fields.finish()?;
        let keys = keys(&read);
        Ok((read, keys))
    }

    fn make(config: &SpectrogramConfig, rngs: &mut Rngs) -> Result<Self> {
        let features = config.hidden_size;
        let patches = Conv::builder(1, features, [config.patch_size; 2]).padding(Padding::Valid);
        let sizes = [features, config.intermediate_size, config.num_attention_heads];
        let sizes = BlockSizes::new(sizes, config.hidden_act, config.layer_norm_eps, config.qkv_bias);
        let norm = LayerNorm::builder(features).epsilon(config.layer_norm_eps).build(rngs);
        // Two entries precede the patches: one of the class, and one for distillation.
        Ok(SpectrogramEncoder {
            patches: patches.strides([config.frequency_stride, config.time_stride]).build(rngs),
            class: small_normal(&[1, 1, features], rngs),
            distillation: small_normal(&[1, 1, features], rngs),
            positions: small_normal(&[1, config.patches().saturating_add(2), features], rngs),
            blocks: (0..config.num_hidden_layers).map(|_| EncoderBlock::new(&sizes, rngs)).collect(),
            head_norm: config.classes.map(|_| norm.clone()),
            norm,
            head: config.classes.map(|classes| Linear::new(features, classes, rngs)),
            size: [config.max_length, config.num_mel_bins],
        })
    }

    fn extents(config: &SpectrogramConfig) -> (usize, Vec<(&'static str, usize, usize)>) {
        let features = config.hidden_size;
        let matrices = vec![
            ("position table", config.patches(), features),
            ("query kernel", features, features),
            ("MLP kernel", features, config.intermediate_size),
            ("patch", config.patch_size.saturating_mul(config.patch_size), features),
            ("table of classes", config.classes.unwrap_or(0), features),
        ];
        (config.num_hidden_layers, matrices)
    }
}

impl SpectrogramConfig {
    /// Returns the number of patches of a spectrogram.
    fn patches(&self) -> usize {
        let count = |size: usize, stride: usize| size.saturating_sub(self.patch_size) / stride + 1;
        count(self.num_mel_bins, self.frequency_stride).saturating_mul(count(self.max_length, self.time_stride))
    }
}

/// Returns the names of the arrays.
fn keys(config: &SpectrogramConfig) -> KeyMap {
    let base = "audio_spectrogram_transformer.";
    let prefix = if config.classes.is_some() { base } else { "" };
    let layer = format!("{prefix}encoder.layer.*");
    let keys = vit_block_keys(&layer, VIT_NORMS, ["intermediate.dense", "output.dense"])
        .conv("patches", &format!("{prefix}embeddings.patch_embeddings.projection"))
        .array("class", format!("{prefix}embeddings.cls_token"), Layout::Same)
        .array("distillation", format!("{prefix}embeddings.distillation_token"), Layout::Same)
        .array("positions", format!("{prefix}embeddings.position_embeddings"), Layout::Same)
        .norm("norm", &format!("{prefix}layernorm"))
        .norm("head_norm", "classifier.layernorm")
        .linear("head", "classifier.dense");
    if prefix.is_empty() { keys.prefix_alias("", base).ignore("classifier.**") } else { keys }
}

impl SpectrogramEncoder {
    /// Computes features, `[batch, 2 + patches, features]`, from spectrograms `[batch, frames, bands]`. The first two entries represent
    /// the sound.
    #[track_caller]
    pub fn encode(&self, spectrograms: impl ArrayLike) -> Array {
        let _ranks = allow_any_ranks();
        let x = spectrograms.into_array();
        if let Err(error) = self.check_shape(&x) {
            return Array::from_error(error, &x);
        }
        let x = self.patches.forward(gather_positions(x).transpose([0, 2, 1]).expand_dims(-1));
        let &[batch, rows, columns, features] = x.shape() else { return x };
        let x = x.reshape([batch, rows * columns, features]);
        let entries = [&self.class, &self.distillation].map(|entry| for_each_image(entry, &x));
        let x = concatenate(&[&entries[0], &entries[1], &x], 1);
        let x = &x + self.positions.reshape([-1, features as i32]).astype(x.dtype());
        let x = self.blocks.iter().fold(x, |x, block| block.forward(x));
        self.norm.forward(x)
    }

    fn check_shape(&self, x: &Array) -> Result<()> {
        x.check()?;
        let [frames, bands] = self.size;
        if x.ndim() == 3 && x.shape()[1..] == self.size {
            return Ok(());
        }
        let message = format!("SpectrogramEncoder: the shape {:?} is not [batch, {frames}, {bands}]", x.shape());
        Err(value_error(message, "pad or cut spectrograms to the length of the configuration"))
    }

    /// Computes logits `[batch, classes]` from spectrograms `[batch, frames, bands]`. Without a head, the results are features.
    #[track_caller]
    pub fn forward(&self, spectrograms: impl ArrayLike) -> Array {
        let x = self.encode(spectrograms);
        match (&self.head_norm, &self.head) {
            (Some(norm), Some(head)) if x.check().is_ok() => head.forward(norm.forward(x.get((.., ..2)).mean(1))),
            _ => x,
        }
    }
}
