//! The configuration and the array names of Moonshine, which writes the text of sound.

use shardax_nn::prelude::*;

use super::read::attention_keys;
use super::{EncoderDecoderConfig, EncoderDecoderPositions, SamplesEncoderConfig, Side};
use crate::NormKind;
use crate::huggingface::{Fields, KeyMap, Layout, rotary_positions};

/// The share of each head that is rotated, if the configuration does not have it.
const ROTATED_SHARE: f64 = 0.9;

/// Reads the fields of Moonshine, and returns the names of its arrays.
pub(super) fn read(fields: &Fields) -> Result<(EncoderDecoderConfig, KeyMap)> {
    let (features, hidden) = (fields.size("hidden_size")?, fields.size("intermediate_size")?);
    let heads = fields.size("encoder_num_attention_heads")?;
    // The class takes the sizes of both from one field, and cannot share keys between heads.
    fields.check_size("decoder_num_attention_heads", heads)?;
    for name in ["encoder_num_key_value_heads", "decoder_num_key_value_heads"] {
        if fields.size_opt(name)?.is_some_and(|count| count != heads) {
            return Err(fields.error(format!("`{name}` must be {heads}, the number of heads")));
        }
    }
    fields.divides(("encoder_num_attention_heads", heads), ("hidden_size", features))?;
    let rope = rotary_positions(fields, features / heads, Some(ROTATED_SHARE))?;
    if rope.scaling != RopeScaling::None {
        return Err(fields.error("rotary positions are scaled, which is not supported"));
    }
    let is_tied = fields.flag("tie_word_embeddings")?;
    let config = EncoderDecoderConfig {
        vocab_size: fields.size("vocab_size")?,
        source_vocab_size: None,
        features,
        head_dim: None,
        encoder: Side { layers: fields.layers("encoder_num_hidden_layers")?, heads, hidden },
        decoder: Side { layers: fields.layers("decoder_num_hidden_layers")?, heads, hidden },
        mel_bins: None,
        frames: None,
        samples: Some(SamplesEncoderConfig {
            activation: fields.activation("encoder_hidden_act")?,
            biases: fields.flag("attention_bias")?,
        }),
        images: None,
        local: None,
        windows: Vec::new(),
        positions: EncoderDecoderPositions::Rotary {
            base: rope.base,
            features: rope.rotary_dim.unwrap_or(features / heads),
        },
        norm: NormKind::LayerScale,
        epsilon: 1e-5,
        activation: fields.activation("decoder_hidden_act")?,
        gated: true,
        biases: true,
        key_biases: true,
        logits_bias: false,
        first_position: 0,
        embedding_scale: None,
        embedding_norm: false,
        norm_before_positions: false,
        sum_norms: false,
        final_norm: true,
        attention_scale: None,
        output_transform: false,
        tie_embeddings: is_tied,
        logits_scale: None,
    };
    // Heads can be padded with zeros, which changes no scores.
    fields.skip(&["pad_head_dim_to_multiple_of", "partial_rotary_factor", "rope_theta", "is_encoder_decoder"]);
    Ok((config, keys(hidden, is_tied)))
}

/// Returns the names of the arrays. The up layer of the decoder's MLPs comes before the gate.
fn keys(hidden: usize, is_tied: bool) -> KeyMap {
    let table = "model.decoder.embed_tokens.weight";
    let mut keys = KeyMap::new()
        .array("embed.embedding", table, Layout::Same)
        .linear("head", "proj_out")
        .conv("samples.first", "model.encoder.conv1")
        .norm("samples.norm", "model.encoder.groupnorm")
        .conv("samples.second", "model.encoder.conv2")
        .conv("samples.third", "model.encoder.conv3")
        .scale("encoder.norm.0", "model.encoder.layer_norm")
        .scale("decoder.norm.0", "model.decoder.norm");
    const PROJECTIONS: [&str; 4] = ["q_proj", "k_proj", "v_proj", "o_proj"];
    for (stage, mlp_norm) in [("encoder", "post_attention_layernorm"), ("decoder", "final_layernorm")] {
        let (block, layer) = (format!("{stage}.blocks[*]"), format!("model.{stage}.layers.*"));
        keys = attention_keys(keys, &format!("{block}.attention"), &format!("{layer}.self_attn"), PROJECTIONS)
            .scale(&format!("{block}.norm.0"), &format!("{layer}.input_layernorm"))
            .scale(&format!("{block}.mlp_norm.0"), &format!("{layer}.{mlp_norm}"))
            .linear(&format!("{block}.mlp.down"), &format!("{layer}.mlp.fc2"));
    }
    let (of, layer) = (hidden.saturating_mul(2), "model.decoder.layers.*");
    let keys = attention_keys(keys, "decoder.blocks[*].cross", &format!("{layer}.encoder_attn"), PROJECTIONS)
        .scale("decoder.blocks[*].cross_norm.0", &format!("{layer}.post_attention_layernorm"))
        .linear("encoder.blocks[*].mlp.up", "model.encoder.layers.*.mlp.fc1")
        .weights("decoder.blocks[*].mlp.up", &format!("{layer}.mlp.fc1"), Layout::Rows { start: 0, end: hidden, of })
        .weights(
            "decoder.blocks[*].mlp.gate",
            &format!("{layer}.mlp.fc1"),
            Layout::Rows { start: hidden, end: of, of },
        );
    if is_tied { keys.tied("proj_out.weight", table) } else { keys }
}
