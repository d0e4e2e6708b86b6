//! CLAP, which compares texts with sounds.

use shardax_nn::prelude::*;

use super::bert_files::read_part;
use super::clip::similarities;
use super::fields::Fields;
use super::interpolation::{cubic_corner_weights, resized};
use super::vision::{ConvNorm, ConvShape, FrozenNorm, conv_norm_keys, frozen_norm_keys};
use super::{Bert, BertConfig, BertOptions, Config, KeyMap, Layout, Pretrained, StagedConfig, Swin, SwinConfig};
use super::{SwinVersion, check_type, swin};
use crate::Activation;
use crate::error::value_error;
use crate::ranks::allow_any_ranks;
use crate::shardings::first_token;

/// The architecture of a [`Clap`].
#[derive(Clone, Debug, PartialEq)]
pub struct ClapConfig {
    /// The encoder of texts.
    pub text: BertConfig,
    /// The encoder of sounds, whose images are spectrograms. Their rows and columns are `image_size` of this configuration.
    pub audio: SwinConfig,
    /// The number of bands of the mel scale. It must divide the rows of an image.
    pub num_mel_bins: usize,
    /// The number of features of the results, for texts and for sounds.
    pub projection_dim: usize,
    /// The activation of the layers after the encoders.
    pub projection_hidden_act: Activation,
    /// The features inside the layers that add parts of long sounds to the entire sound, if the model has these layers.
    pub fusion: Option<usize>,
}

/// CLAP ([Wu et al. 2022](https://arxiv.org/abs/2211.06687)), which compares texts with sounds. The model type is `clap`.
///
/// Sounds are logarithms of spectrograms of the mel scale, `[batch, parts, frames, bands]`. There is one part, or four with
/// [`ClapConfig::fusion`]: the entire sound and three parts of a long sound.
#[derive(Module, Clone, Debug)]
pub struct Clap {
    text: Bert,
    /// The layer after the first token of a text.
    pooler: Linear,
    text_projection: Projection,
    /// Normalizes the bands of a spectrogram.
    bands: FrozenNorm,
    audio: Swin,
    fusion: Option<Fusion>,
    norm: LayerNorm,
    audio_projection: Projection,
    /// The logarithms of the factors of logits of texts and of sounds, scalars.
    text_scale: Array,
    audio_scale: Array,
    /// The rows and columns of the images that spectrograms become.
    #[tree(static)]
    size: usize,
}

#[derive(Module, Clone, Debug)]
struct Projection {
    first: Linear,
    last: Linear,
    #[tree(static)]
    activation: Activation,
}

/// The layers that add parts of long sounds to the entire sound.
#[derive(Module, Clone, Debug)]
struct Fusion {
    /// The convolution of parts, whose patches are three times as wide.
    patches: Conv,
    /// The layers that compute the share of the entire sound for each patch, and for all patches.
    local: [ConvNorm; 2],
    global: [ConvNorm; 2],
}

/// The parts of a long sound, in addition to the entire sound.
const PARTS: usize = 3;

impl Pretrained for Clap {
    type Architecture = ClapConfig;

    fn read(config: &Config) -> Result<(ClapConfig, KeyMap)> {
        let fields = config.fields();
        check_type(&fields, "clap")?;
        let text_fields = fields.model("text_config", "clap_text_model")?;
        let audio_fields = fields.model("audio_config", "clap_audio_model")?;
        let (text, text_keys) = read_part(&text_fields, "roberta")?;
        let audio = audio(&audio_fields)?;
        let read = ClapConfig {
            text,
            num_mel_bins: audio_fields.size("num_mel_bins")?,
            projection_dim: fields.size("projection_dim")?,
            projection_hidden_act: fields.activation("projection_hidden_act")?,
            fusion: fusion(&audio_fields, audio.embed_dim)?,
            audio,
        };
        audio_fields.divides(("num_mel_bins", read.num_mel_bins), ("spec_size", read.audio.image_size))?;
        // The model replaces these fields of its parts, and its other fields are initial values or follow from the parts.
        for part in [&text_fields, &audio_fields] {
            part.skip(&["projection_dim", "projection_hidden_act"]);
            part.finish()?;
        }
        fields.skip(&["logit_scale_init_value", "hidden_size", "num_hidden_layers"]);
        fields.finish()?;
        let keys = keys(&read).and(text_keys.inside("text.", "text_model."));
        Ok((read, keys.ignore("text_model.embeddings.token_type_ids")))
    }

    fn make(config: &ClapConfig, rngs: &mut Rngs) -> Result<Self> {
        let features = config.text.hidden_size;
        let last = config.audio_features();
        // The logarithm of 1 / 0.07.
        let scale = array((1.0f32 / 0.07).ln()).astype(rngs.policy().param_dtype);
        Ok(Clap {
            text: Bert::make(&config.text, rngs)?,
            pooler: Linear::new(features, features, rngs),
            text_projection: Projection::new(features, config, rngs),
            bands: FrozenNorm::new(config.num_mel_bins, NORM_EPSILON, rngs),
            audio: Swin::make(&config.audio, rngs)?,
            fusion: config.fusion.map(|inner| Fusion::new(&config.audio, inner, rngs)),
            norm: LayerNorm::builder(last).epsilon(NORM_EPSILON).build(rngs),
            audio_projection: Projection::new(last, config, rngs),
            text_scale: scale.clone(),
            audio_scale: scale,
            size: config.audio.image_size,
        })
    }

    fn extents(config: &ClapConfig) -> (usize, Vec<(&'static str, usize, usize)>) {
        let ((layers, mut matrices), (stages, others)) = (Bert::extents(&config.text), Swin::extents(&config.audio));
        matrices.extend(others);
        matrices.extend([
            ("projection of texts", config.projection_dim, config.text.hidden_size),
            ("projection of sounds", config.projection_dim, config.audio_features()),
            ("projection", config.projection_dim, config.projection_dim),
            ("norm of bands", config.num_mel_bins, 1),
            ("layer of parts", config.fusion.unwrap_or(0), config.audio.embed_dim),
        ]);
        (layers.saturating_add(stages), matrices)
    }
}

/// Added to the variance in the norm of bands and in the last norm.
const NORM_EPSILON: f64 = 1e-5;

/// Reads the encoder of sounds.
fn audio(fields: &Fields) -> Result<SwinConfig> {
    let (num_heads, depths) = (fields.size_list("num_attention_heads")?, fields.size_list("depths")?);
    if num_heads.len() != depths.len() {
        let message =
            format!("`num_attention_heads` has {} stages, but `depths` has {}", num_heads.len(), depths.len());
        return Err(fields.error(message));
    }
    let stages = StagedConfig {
        num_channels: fields.size("patch_embed_input_channels")?,
        depths,
        hidden_act: fields.activation("hidden_act")?,
        classes: None,
    };
    let read = SwinConfig {
        image_size: fields.size("spec_size")?,
        patch_size: square(fields, "patch_size")?,
        stages,
        embed_dim: fields.size("patch_embeds_hidden_size")?,
        num_heads,
        window_size: fields.size("window_size")?,
        mlp_ratio: fields.number("mlp_ratio")?,
        qkv_bias: fields.flag("qkv_bias")?,
        use_absolute_embeddings: false,
        layer_norm_eps: fields.number("layer_norm_eps")?,
        final_norm: false,
        version: SwinVersion::First,
    };
    let stride = square(fields, "patch_stride")?;
    if stride != read.patch_size {
        let message = format!("`patch_stride` is {stride}, but must be `patch_size`, which is {}", read.patch_size);
        return Err(fields.error(message));
    }
    if read.stages.num_channels != 1 {
        return Err(fields.error("`patch_embed_input_channels` must be 1, because a spectrogram has one channel"));
    }
    if !fields.flag("enable_patch_layer_norm")? || !fields.flag("flatten_patch_embeds")? {
        return Err(fields.error("`enable_patch_layer_norm` and `flatten_patch_embeds` must be true"));
    }
    swin::check_blocks(fields, "num_attention_heads", &read)?;
    // Each stage after the first one has half of the rows and columns.
    let halvings = (read.stages.depths.len() - 1) as u32;
    let smallest = (read.image_size / read.patch_size).checked_shr(halvings).unwrap_or(0);
    let joined = 1usize.checked_shl(halvings).unwrap_or(0).saturating_mul(read.patch_size);
    fields.divides(("the patches of the last stage", joined), ("spec_size", read.image_size))?;
    if smallest < read.window_size {
        let message = format!(
            "`window_size` is {}, but the last stage has only {smallest} by {smallest} patches",
            read.window_size
        );
        return Err(fields.error(message));
    }
    fields.check_size("hidden_size", read.features(read.stages.depths.len() - 1))?;
    // Sizes of a head for training, and numbers that follow from others.
    fields.skip(&["num_classes", "num_hidden_layers", "drop_path_rate"]);
    Ok(read)
}

/// Reads a number, or a list of two equal numbers.
fn square<'a>(fields: &Fields<'a>, name: &'a str) -> Result<usize> {
    if fields.value(name).is_none_or(|value| !value.is_array()) {
        return fields.size(name);
    }
    match fields.size_list(name)?[..] {
        [rows, columns] if rows == columns => Ok(rows),
        _ => Err(fields.error(format!("field `{name}` must be a number or two equal numbers"))),
    }
}

/// Reads the features inside the layers for parts of long sounds.
fn fusion(fields: &Fields, features: usize) -> Result<Option<usize>> {
    let (is_used, ratio) = (fields.flag("enable_fusion")?, fields.size("aff_block_r")?);
    let kind = fields.text_opt("fusion_type")?;
    if !is_used {
        return Ok(None);
    }
    if kind == Some("channel_map") {
        return Err(fields.error("`fusion_type` \"channel_map\" is not supported"));
    }
    match features / ratio {
        0 => Err(fields.error(format!("`aff_block_r` is {ratio}, which is more than the {features} features"))),
        inner => Ok(Some(inner)),
    }
}

impl ClapConfig {
    /// The features of the last stage of sounds.
    fn audio_features(&self) -> usize {
        self.audio.features(self.audio.stages.depths.len().saturating_sub(1))
    }
}

/// Returns the names of the arrays, without the names of the encoder of texts.
fn keys(config: &ClapConfig) -> KeyMap {
    let audio = "audio_model.audio_encoder";
    let mut keys = KeyMap::new()
        .linear("pooler", "text_model.pooler.dense")
        .conv("audio.patches", &format!("{audio}.patch_embed.proj"))
        .norm("audio.patch_norm", &format!("{audio}.patch_embed.norm"))
        .conv("fusion.patches", &format!("{audio}.patch_embed.mel_conv2d"))
        .norm("norm", &format!("{audio}.norm"))
        .array("text_scale", "logit_scale_t", Layout::Same)
        .array("audio_scale", "logit_scale_a", Layout::Same);
    for part in ["text_projection", "audio_projection"] {
        keys = keys
            .linear(&format!("{part}.first"), &format!("{part}.linear1"))
            .linear(&format!("{part}.last"), &format!("{part}.linear2"));
    }
    // The layers for all patches follow their mean, which has a number too.
    for (part, name, first) in [("local", "local_att", 0), ("global", "global_att", 1)] {
        let name = format!("{audio}.patch_embed.fusion_model.{name}");
        for index in 0..2 {
            let numbers = [0, 1].map(|layer| (first + 3 * index + layer).to_string());
            let parts = numbers.each_ref().map(String::as_str);
            keys = conv_norm_keys(keys, &format!("fusion.{part}[{index}]"), &name, parts);
        }
    }
    // The names of stages begin with "encoder", as in Swin.
    frozen_norm_keys(keys, "bands", &format!("{audio}.batch_norm"))
        .and(swin::keys(&config.audio).inside("audio.", "audio_model.audio_"))
}

impl Projection {
    fn new(inputs: usize, config: &ClapConfig, rngs: &mut Rngs) -> Projection {
        let features = config.projection_dim;
        Projection {
            first: Linear::new(inputs, features, rngs),
            last: Linear::new(features, features, rngs),
            activation: config.projection_hidden_act,
        }
    }

    fn forward(&self, x: Array) -> Array {
        self.last.forward(self.activation.apply(self.first.forward(x)))
    }
}

impl Fusion {
    fn new(audio: &SwinConfig, inner: usize, rngs: &mut Rngs) -> Fusion {
        let (patch, features) = (audio.patch_size, audio.embed_dim);
        let size = [patch, patch.saturating_mul(PARTS)];
        let shape = ConvShape { has_bias: true, ..ConvShape::new(1, 1) };
        let layers = |rngs: &mut Rngs| {
            [[features, inner], [inner, features]].map(|sizes| ConvNorm::new(sizes, shape.clone(), rngs))
        };
        Fusion {
            patches: Conv::builder(1, features, size).strides(size).padding(Padding::Valid).build(rngs),
            local: layers(rngs),
            global: layers(rngs),
        }
    }

    /// Adds parts of a long sound, `[batch, rows, columns, 3]`, to the patches of the entire sound, `[batch, rows, columns,
    /// features]`.
    fn forward(&self, patches: &Array, parts: &Array) -> Result<Array> {
        let &[batch, rows, columns, features] = patches.shape() else { return Ok(patches.clone()) };
        let &[_, pixels, pixels_across, count] = parts.shape() else { return Ok(patches.clone()) };
        let parts = parts.transpose([0, 3, 1, 2]).reshape([batch * count, pixels, pixels_across, 1]);
        let parts = self.patches.forward(parts);
        parts.check()?;
        // The patches of all parts are next to each other. Zeros fill the columns that remain.
        let width = parts.shape()[2];
        let parts = parts.reshape([batch, count, rows, width, features]).transpose([0, 2, 1, 3, 4]);
        let parts = parts.reshape([batch, rows, count * width, features]);
        let missing = columns.saturating_sub(count * width);
        let parts = pad(parts, vec![(0, 0), (0, 0), (0, missing), (0, 0)], PadMode::Constant(0.0));
        let sum = patches + &parts;
        let shares = |[down, up]: &[ConvNorm; 2], x: Array| up.forward(relu(down.forward(x)));
        let share = sigmoid(shares(&self.local, sum.clone()) + shares(&self.global, sum.mean_keepdims([1, 2])));
        Ok((patches * &share + parts * (1.0 - &share)) * 2.0)
    }
}

impl Clap {
    /// Computes the features of texts, `[batch, projected features]`, from their tokens `[batch, length]`. The options have the mask of
    /// padded texts. The features are not normalized.
    #[track_caller]
    pub fn text_features(&self, tokens: impl ArrayLike, options: &BertOptions) -> Array {
        let _ranks = allow_any_ranks();
        let x = self.text.encode(tokens, options);
        if x.check().is_err() {
            return x;
        }
        self.text_projection.forward(self.pooler.forward(first_token(x)).tanh())
    }

    /// Computes the features of sounds, `[batch, projected features]`, from spectrograms `[batch, parts, frames, bands]`. `is_longer`,
    /// `[batch]` or `[batch, 1]`, is true for sounds of which the spectrograms have three parts in addition to the entire sound. Models
    /// without [`ClapConfig::fusion`] ignore it. The features are not normalized.
    #[track_caller]
    pub fn sound_features(&self, spectrograms: impl ArrayLike, is_longer: Option<&Array>) -> Array {
        let _ranks = allow_any_ranks();
        let x = spectrograms.into_array();
        self.try_sound_features(&x, is_longer).unwrap_or_else(|error| Array::from_error(error, &x))
    }

    fn try_sound_features(&self, x: &Array, is_longer: Option<&Array>) -> Result<Array> {
        let images = self.images(x)?;
        let patches = self.audio.projected(&images.get((Ellipsis, ..1)));
        let patches = match (&self.fusion, is_longer) {
            (Some(fusion), Some(is_longer)) => {
                is_longer.check()?;
                let batch = x.shape()[0];
                if is_longer.size() != batch {
                    let message = format!("Clap: `is_longer` has the shape {:?} for {batch} sounds", is_longer.shape());
                    return Err(value_error(message, "pass one entry for each sound"));
                }
                let is_longer = is_longer.astype(DType::Bool).reshape([batch, 1, 1, 1]);
                where_(is_longer, fusion.forward(&patches, &images.get((Ellipsis, 1..)))?, &patches)
            }
            _ => patches,
        };
        let x = self.norm.forward(self.audio.encode_patches(patches)?);
        Ok(self.audio_projection.forward(x.mean([1, 2])))
    }

    /// Converts spectrograms to images, `[batch, rows, columns, parts]`. Chunks of frames are below each other, so that the image of a
    /// long spectrogram is a square.
    fn images(&self, x: &Array) -> Result<Array> {
        x.check()?;
        let bands = self.bands.features();
        let chunks = self.size / bands;
        let (frames, parts) = (self.size * chunks, if self.fusion.is_some() { 1 + PARTS } else { 1 });
        let fits = matches!(*x.shape(), [_, count, length, own] if count == parts && own == bands && (1..=frames).contains(&length));
        if !fits {
            let message = format!(
                "Clap: spectrograms of the shape {:?} are not [batch, {parts}, frames, {bands}] with at most {frames} frames",
                x.shape()
            );
            return Err(value_error(message, "cut sounds to the length of the configuration"));
        }
        let x = self.bands.forward(x.clone()).transpose([0, 2, 3, 1]);
        let x = resized(x, [frames, bands], cubic_corner_weights)?;
        let shape = [x.shape()[0], chunks, frames / chunks, bands, parts];
        Ok(x.reshape(shape).transpose([0, 1, 3, 2, 4]).reshape([shape[0], self.size, self.size, parts]))
    }

    /// Computes logits `[sounds, texts]`: the cosine similarity of the features of each sound and each text, times the learned factor of
    /// sounds.
    #[track_caller]
    pub fn forward(
        &self,
        tokens: impl ArrayLike,
        spectrograms: impl ArrayLike,
        is_longer: Option<&Array>,
        options: &BertOptions,
    ) -> Array {
        let _ranks = allow_any_ranks();
        let (texts, sounds) = (self.text_features(tokens, options), self.sound_features(spectrograms, is_longer));
        similarities(texts, sounds, &self.audio_scale)
    }

    /// Returns the learned factor of logits of texts, a scalar. [`forward`](Self::forward) multiplies by the factor of sounds, which can
    /// differ from it.
    pub fn text_factor(&self) -> Array {
        self.text_scale.exp()
    }
}
