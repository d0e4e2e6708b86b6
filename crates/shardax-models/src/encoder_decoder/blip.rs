//! BLIP, whose decoder of captions attends to a ViT.

use shardax_nn::prelude::*;

use super::{EncoderDecoderConfig, EncoderDecoderPositions, ImageEncoderConfig, ImageTower, Side};
use crate::NormKind;
use crate::huggingface::{Fields, KeyMap, Layout, VitConfig, VitHead};

/// Reads the class that writes captions.
pub(super) fn read(fields: &Fields) -> Result<(EncoderDecoderConfig, KeyMap)> {
    let (text, vision) =
        (fields.model("text_config", "blip_text_model")?, fields.model("vision_config", "blip_vision_model")?);
    let images = read_images(&vision)?;
    let (features, heads) = (text.size("hidden_size")?, text.size("num_attention_heads")?);
    text.divides(("num_attention_heads", heads), ("hidden_size", features))?;
    let side = Side { layers: text.layers("num_hidden_layers")?, heads, hidden: text.size("intermediate_size")? };
    let length = text.size("max_position_embeddings")?;
    let keys = image_keys(images.hidden_size).inside("images.", "").and(text_keys());
    let config = EncoderDecoderConfig {
        vocab_size: text.size("vocab_size")?,
        source_vocab_size: None,
        features,
        head_dim: None,
        encoder: side,
        decoder: side,
        mel_bins: None,
        frames: None,
        samples: None,
        images: Some(ImageEncoderConfig { encoder: ImageTower::Vit(images), is_projected: false }),
        local: None,
        windows: Vec::new(),
        positions: EncoderDecoderPositions::Learned { encoder: length, decoder: length },
        norm: NormKind::Layer,
        epsilon: text.number("layer_norm_eps")?,
        activation: text.activation("hidden_act")?,
        gated: false,
        biases: true,
        key_biases: true,
        logits_bias: true,
        first_position: 0,
        embedding_scale: None,
        embedding_norm: true,
        norm_before_positions: false,
        sum_norms: true,
        final_norm: false,
        attention_scale: None,
        output_transform: true,
        // The class or the class of its decoder ties both.
        tie_embeddings: fields.flag_or("tie_word_embeddings", true)? || text.flag_or("tie_word_embeddings", true)?,
        logits_scale: None,
    };
    // The features of images, from which transformers sets this field, and fields of the other classes and of training.
    text.skip(&["encoder_hidden_size", "projection_dim", "label_smoothing", "is_decoder"]);
    text.skip(&["is_encoder_decoder", "add_cross_attention"]);
    fields.skip(&["projection_dim", "logit_scale_init_value", "image_text_hidden_size", "label_smoothing"]);
    text.finish()?;
    Ok((config, keys))
}

/// Reads the encoder of images.
fn read_images(vision: &Fields) -> Result<VitConfig> {
    let (features, heads) = (vision.size("hidden_size")?, vision.size("num_attention_heads")?);
    let (image_size, patch_size) = (vision.size("image_size")?, vision.size("patch_size")?);
    vision.divides(("num_attention_heads", heads), ("hidden_size", features))?;
    vision.divides(("patch_size", patch_size), ("image_size", image_size))?;
    let images = VitConfig {
        hidden_size: features,
        intermediate_size: vision.size("intermediate_size")?,
        num_hidden_layers: vision.layers("num_hidden_layers")?,
        num_attention_heads: heads,
        image_size,
        patch_size,
        num_channels: 3,
        layer_norm_eps: vision.number("layer_norm_eps")?,
        qkv_bias: true,
        key_bias: true,
        hidden_act: vision.activation("hidden_act")?,
        is_gated: false,
        has_scales: false,
        has_mask: false,
        has_class: true,
        has_distillation: false,
        registers: 0,
        interpolates: true,
        interpolates_linearly: false,
        rope_base: None,
        has_positions: true,
        has_distances: false,
        shares_distances: false,
        final_norm: true,
        head: VitHead::None,
    };
    // The class does not read the number of channels, and the other field belongs to other classes.
    if vision.has("num_channels") {
        vision.check_size("num_channels", images.num_channels)?;
    }
    vision.skip(&["projection_dim"]);
    vision.finish()?;
    Ok(images)
}

/// Returns the names of the arrays of the encoder of images, which have this number of features.
pub(super) fn image_keys(features: usize) -> KeyMap {
    let (images, layer) = ("vision_model.embeddings", "vision_model.encoder.layers.*");
    // One kernel has the rows of queries, keys and values.
    let joined = ["query", "key", "value"].into_iter().enumerate().fold(KeyMap::new(), |keys, (index, part)| {
        let rows = Layout::nth_rows(index, features, 3);
        keys.weights(&format!("blocks[*].attention.{part}"), &format!("{layer}.self_attn.qkv"), rows)
    });
    joined
        .conv("patches.conv", &format!("{images}.patch_embedding"))
        .array("patches.class", format!("{images}.class_embedding"), Layout::Same)
        .array("patches.positions", format!("{images}.position_embedding"), Layout::Same)
        .linear("blocks[*].attention.out", &format!("{layer}.self_attn.projection"))
        .norm("blocks[*].norm", &format!("{layer}.layer_norm1"))
        .norm("blocks[*].mlp_norm", &format!("{layer}.layer_norm2"))
        .linear("blocks[*].mlp.up", &format!("{layer}.mlp.fc1"))
        .linear("blocks[*].mlp.down", &format!("{layer}.mlp.fc2"))
        .norm("norm", "vision_model.post_layernorm")
}

/// The names of the decoder's parts.
const DECODER: &str = "text_decoder.bert";
const HEAD: &str = "text_decoder.cls.predictions";

/// Returns the names of the decoder's arrays.
fn text_keys() -> KeyMap {
    let keys = KeyMap::new()
        .linear("transform.layer", &format!("{HEAD}.transform.dense"))
        .norm("transform.norm.0", &format!("{HEAD}.transform.LayerNorm"))
        .array("head.kernel", format!("{HEAD}.decoder.weight"), Layout::Transposed)
        .array("logits_bias", format!("{HEAD}.bias"), Layout::Same);
    with_copies(keys.and(reader_keys("embed", "decoder", DECODER)))
}

/// Accepts the copies of the token embedding and of the bias of the last layer.
pub(super) fn with_copies(keys: KeyMap) -> KeyMap {
    keys.tied(&format!("{HEAD}.decoder.weight"), &format!("{DECODER}.embeddings.word_embeddings.weight"))
        .tied(&format!("{HEAD}.decoder.bias"), &format!("{HEAD}.bias"))
}

/// Returns the names of the arrays of an encoder or decoder of texts with the name `model`, whose token embedding and blocks have these
/// key paths.
pub(super) fn reader_keys(embed: &str, stage: &str, model: &str) -> KeyMap {
    let embeddings = format!("{model}.embeddings");
    let (layer, block) = (format!("{model}.encoder.layer.*"), format!("{stage}.blocks[*]"));
    let keys = KeyMap::new()
        .array(format!("{embed}.embedding"), format!("{embeddings}.word_embeddings.weight"), Layout::Same)
        .array(format!("{stage}.positions.embedding"), format!("{embeddings}.position_embeddings.weight"), Layout::Same)
        .norm(&format!("{stage}.embedding_norm.0"), &format!("{embeddings}.LayerNorm"))
        .ignore(&format!("{embeddings}.position_ids"))
        .linear(&format!("{block}.mlp.up"), &format!("{layer}.intermediate.dense"))
        .linear(&format!("{block}.mlp.down"), &format!("{layer}.output.dense"))
        .norm(&format!("{block}.mlp_norm.0"), &format!("{layer}.output.LayerNorm"));
    let attentions = [("attention", "norm.0", "attention"), ("cross", "cross_norm.0", "crossattention")];
    attentions.into_iter().fold(keys, |keys, (path, norm, name)| {
        let parts = [("query", "self.query"), ("key", "self.key"), ("value", "self.value"), ("out", "output.dense")];
        let keys = keys.norm(&format!("{block}.{norm}"), &format!("{layer}.{name}.output.LayerNorm"));
        parts.into_iter().fold(keys, |keys, (part, array)| {
            keys.linear(&format!("{block}.{path}.{part}"), &format!("{layer}.{name}.{array}"))
        })
    })
}
