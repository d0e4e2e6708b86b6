//! The architecture of SAM, and how it is read from `config.json`.

use shardax_nn::prelude::*;

use crate::Activation;
use crate::huggingface::fields::Fields;
use crate::huggingface::{Config, attention, check_type};

/// The architecture of a [`Sam`](super::Sam).
#[derive(Clone, Debug, PartialEq)]
pub struct SamConfig {
    /// The rows and columns of an image.
    pub image_size: usize,
    /// The rows and columns of a patch. They must divide the rows and columns of an image.
    pub patch_size: usize,
    /// The number of color channels.
    pub num_channels: usize,
    /// The features of a patch.
    pub hidden_size: usize,
    /// The features inside an MLP of the encoder.
    pub mlp_dim: usize,
    /// The rows and columns of patches in the window of each block of the encoder; 0 if patches attend to all patches.
    pub windows: Vec<usize>,
    /// The number of attention heads of the encoder.
    pub num_attention_heads: usize,
    /// True if the projections to queries, keys and values have biases.
    pub qkv_bias: bool,
    /// True if learned positions are added to the patches.
    pub use_abs_pos: bool,
    /// True if attention of the encoder adds learned scores of distances.
    pub use_rel_pos: bool,
    /// The activation of the MLPs of the encoder.
    pub hidden_act: Activation,
    /// Added to the variance in the norms of the encoder.
    pub layer_norm_eps: f64,
    /// The features of an image and of prompts.
    pub output_channels: usize,
    /// The number of random waves of each half of the positions. Twice this number is `output_channels`.
    pub num_pos_feats: usize,
    /// The features inside of the convolutions that read masks.
    pub mask_input_channels: usize,
    /// The activation of these convolutions.
    pub mask_act: Activation,
    /// Added to the variance in the norms of these convolutions.
    pub mask_norm_eps: f64,
    /// The decoder of masks.
    pub decoder: SamDecoderConfig,
}

/// The decoder of a [`Sam`](super::Sam).
#[derive(Clone, Debug, PartialEq)]
pub struct SamDecoderConfig {
    /// The number of blocks.
    pub num_hidden_layers: usize,
    /// The number of attention heads.
    pub num_attention_heads: usize,
    /// The features inside an MLP.
    pub mlp_dim: usize,
    /// The activation of the MLPs.
    pub hidden_act: Activation,
    /// The factor by which attention between prompts and images has less features.
    pub attention_downsample_rate: usize,
    /// The number of masks of a prompt.
    pub num_multimask_outputs: usize,
    /// The number of layers that compute scores of masks.
    pub iou_head_depth: usize,
    /// The features between these layers.
    pub iou_head_hidden_dim: usize,
    /// Added to the variance in norms of blocks.
    pub layer_norm_eps: f64,
}

/// The kinds of points.
pub(super) const POINT_KINDS: usize = 4;
/// The largest number of masks of a prompt and of layers of a head.
const MAX_LAYERS: usize = 1000;

impl SamConfig {
    /// Reads all fields of `config.json`, and rejects unknown ones.
    pub(super) fn read(config: &Config) -> Result<SamConfig> {
        let fields = config.fields();
        check_type(&fields, "sam")?;
        if let Some(name) = fields.class()?
            && name != "SamModel"
        {
            return Err(fields.error(format!("the class {name:?} of `architectures` is not supported")));
        }
        let vision = fields.model("vision_config", "sam_vision_model")?;
        let prompts = fields.model("prompt_encoder_config", "sam_prompt_encoder")?;
        let decoder = fields.model("mask_decoder_config", "sam_mask_decoder")?;
        let features = vision.size("hidden_size")?;
        let read = SamConfig {
            image_size: vision.size("image_size")?,
            patch_size: vision.size("patch_size")?,
            num_channels: vision.size("num_channels")?,
            hidden_size: features,
            mlp_dim: mlp_size(&vision, features)?,
            windows: windows(&vision)?,
            num_attention_heads: vision.size("num_attention_heads")?,
            qkv_bias: vision.flag("qkv_bias")?,
            use_abs_pos: vision.flag("use_abs_pos")?,
            use_rel_pos: vision.flag("use_rel_pos")?,
            hidden_act: vision.activation("hidden_act")?,
            layer_norm_eps: vision.number("layer_norm_eps")?,
            output_channels: vision.size("output_channels")?,
            num_pos_feats: vision.size("num_pos_feats")?,
            mask_input_channels: prompts.size("mask_input_channels")?,
            mask_act: prompts.activation("hidden_act")?,
            mask_norm_eps: prompts.number("layer_norm_eps")?,
            decoder: SamDecoderConfig {
                num_hidden_layers: decoder.layers("num_hidden_layers")?,
                num_attention_heads: decoder.size("num_attention_heads")?,
                mlp_dim: decoder.size("mlp_dim")?,
                hidden_act: decoder.activation("hidden_act")?,
                attention_downsample_rate: decoder.size("attention_downsample_rate")?,
                num_multimask_outputs: decoder.size("num_multimask_outputs")?,
                iou_head_depth: decoder.size("iou_head_depth")?,
                iou_head_hidden_dim: decoder.size("iou_head_hidden_dim")?,
                layer_norm_eps: decoder.number("layer_norm_eps")?,
            },
        };
        check(&read, [&vision, &prompts, &decoder])?;
        for part in [&vision, &prompts, &decoder] {
            part.finish()?;
        }
        fields.skip(&["tie_word_embeddings"]);
        fields.finish()?;
        Ok(read)
    }

    /// Creates attention of prompts or of an image in the decoder.
    pub(super) fn prompt_attention(&self, rate: usize, rngs: &mut Rngs) -> MultiHeadAttention {
        let features = self.output_channels;
        attention(self.decoder.num_attention_heads, features).qkv_features(features / rate).build(rngs)
    }
}

/// Returns the features inside an MLP of the encoder.
fn mlp_size(vision: &Fields, features: usize) -> Result<usize> {
    if let Some(size) = vision.size_opt("mlp_dim")? {
        vision.skip(&["mlp_ratio"]);
        return Ok(size);
    }
    match vision.number("mlp_ratio")? * features as f64 {
        size if (1.0..1e9).contains(&size) => Ok(size as usize),
        _ => Err(vision.error("`mlp_ratio` is not supported")),
    }
}

/// Returns the rows and columns of windows of each block. Some blocks have none.
fn windows(vision: &Fields) -> Result<Vec<usize>> {
    let (layers, window) = (vision.layers("num_hidden_layers")?, vision.number("window_size")?);
    if !(0.0..1e6).contains(&window) || window.fract() != 0.0 {
        return Err(vision.error(format!("`window_size` is {window}")));
    }
    let everywhere = vision.numbers("global_attn_indexes")?;
    let window_of = |layer: usize| if everywhere.contains(&(layer as f64)) { 0 } else { window as usize };
    Ok((0..layers).map(window_of).collect())
}

/// Returns an error if sizes do not fit each other, and marks fields as read that follow from others.
fn check(config: &SamConfig, [vision, prompts, decoder]: [&Fields; 3]) -> Result<()> {
    let outputs = config.output_channels;
    vision.divides(("num_attention_heads", config.num_attention_heads), ("hidden_size", config.hidden_size))?;
    vision.divides(("patch_size", config.patch_size), ("image_size", config.image_size))?;
    if config.num_pos_feats.checked_mul(2) != Some(outputs) || !outputs.is_multiple_of(8) {
        let message = "`output_channels` must be a multiple of 8, and twice as large as `num_pos_feats`";
        return Err(vision.error(message));
    }
    for (part, name, size) in [
        (prompts, "hidden_size", outputs),
        (prompts, "image_size", config.image_size),
        (prompts, "patch_size", config.patch_size),
        (prompts, "num_point_embeddings", POINT_KINDS),
        (decoder, "hidden_size", outputs),
    ] {
        part.check_size(name, size)?;
    }
    if !config.mask_input_channels.is_multiple_of(4) {
        return Err(prompts.error("`mask_input_channels` must be a multiple of 4"));
    }
    let rate = config.decoder.attention_downsample_rate;
    decoder.divides(("attention_downsample_rate", rate), ("hidden_size", outputs))?;
    let inner = outputs / rate;
    decoder
        .divides(("num_attention_heads", config.decoder.num_attention_heads), ("the features of attention", inner))?;
    let depth = config.decoder.iou_head_depth;
    if !(2..=MAX_LAYERS).contains(&depth) || config.decoder.num_multimask_outputs > MAX_LAYERS {
        let message =
            format!("`iou_head_depth` must be 2 to {MAX_LAYERS}, and `num_multimask_outputs` at most {MAX_LAYERS}");
        return Err(decoder.error(message));
    }
    // Older files have a field of CLIP here.
    vision.skip(&["scale", "projection_dim"]);
    prompts.skip(&["image_embedding_size"]);
    Ok(())
}
