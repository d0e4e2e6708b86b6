//! The configurations and the array names of FSMT, which translates texts, and of Speech2Text, which writes the text of sound.

use shardax_nn::prelude::*;

use super::read::{cross_keys, side_keys};
use super::{EncoderDecoderConfig, EncoderDecoderPositions, FramesEncoderConfig, Side};
use crate::NormKind;
use crate::huggingface::{Fields, KeyMap, Layout};

/// The table of the decoder.
const TABLE: &str = "model.decoder.embed_tokens.weight";

/// The largest number of convolutions.
const MAX_CONVOLUTIONS: usize = 16;

/// Reads the fields of FSMT. Without tied embeddings, both sides have separate vocabularies.
pub(super) fn read(fields: &Fields) -> Result<(EncoderDecoderConfig, KeyMap)> {
    let is_tied = fields.flag("tie_word_embeddings")?;
    let (source, target) = (fields.size("src_vocab_size")?, fields.size("tgt_vocab_size")?);
    if is_tied && source != target {
        let message = format!("`tie_word_embeddings` is true, but the vocabularies have {source} and {target} tokens");
        return Err(fields.error(message));
    }
    let config = EncoderDecoderConfig {
        source_vocab_size: (!is_tied).then_some(source),
        sum_norms: true,
        final_norm: false,
        tie_embeddings: is_tied,
        ..shared(fields, target, fields.size("max_position_embeddings")?)?
    };
    // The languages, a copy of the size of the decoder's vocabulary, and options of generation.
    fields.skip(&["langs", "decoder", "max_length", "num_beams", "length_penalty", "early_stopping", "vocab_size"]);
    let head = "model.decoder.output_projection";
    let source_table = "model.encoder.embed_tokens.weight";
    let keys = keys().linear("head", head);
    let keys = match is_tied {
        true => keys.tied(&format!("{head}.weight"), TABLE).tied(source_table, TABLE),
        false => keys.array("source.embedding", source_table, Layout::Same),
    };
    Ok((config, keys))
}

/// Reads the fields of Speech2Text.
pub(super) fn read_speech(fields: &Fields) -> Result<(EncoderDecoderConfig, KeyMap)> {
    let kernels = fields.size_list("conv_kernel_sizes")?;
    fields.check_size("num_conv_layers", kernels.len())?;
    let channels = fields.size("conv_channels")?;
    if kernels.len() > MAX_CONVOLUTIONS || !channels.is_multiple_of(2) {
        let message = format!(
            "`conv_kernel_sizes` has {} entries and `conv_channels` is {channels}, but must have at most {MAX_CONVOLUTIONS} entries, and be even",
            kernels.len()
        );
        return Err(fields.error(message));
    }
    let is_tied = fields.flag_or("tie_word_embeddings", true)?;
    let length = fields.size("max_source_positions")?.max(fields.size("max_target_positions")?);
    let bins = fields.size("input_feat_per_channel")?.saturating_mul(fields.size("input_channels")?);
    let config = EncoderDecoderConfig {
        frames: Some(FramesEncoderConfig { bins, channels, kernels }),
        tie_embeddings: is_tied,
        ..shared(fields, fields.size("vocab_size")?, length)?
    };
    let last = config.frames.as_ref().map_or(0, |frames| frames.kernels.len());
    let keys = (0..last).fold(keys().linear("head", "lm_head"), |keys, index| {
        keys.conv(&format!("frames.layers[{index}]"), &format!("model.encoder.conv.conv_layers.{index}"))
    });
    let keys = keys.prefix_alias("model.", "");
    Ok((config, if is_tied { keys.tied("lm_head.weight", TABLE) } else { keys }))
}

/// Reads the fields that both have.
fn shared(fields: &Fields, vocab_size: usize, length: usize) -> Result<EncoderDecoderConfig> {
    let features = fields.size("d_model")?;
    let [encoder, decoder] = Side::read_both(fields)?;
    fields.skip(&["encoder_layerdrop", "decoder_layerdrop", "num_hidden_layers"]);
    Ok(EncoderDecoderConfig {
        vocab_size,
        source_vocab_size: None,
        features,
        head_dim: None,
        encoder,
        decoder,
        mel_bins: None,
        frames: None,
        samples: None,
        images: None,
        local: None,
        windows: Vec::new(),
        positions: EncoderDecoderPositions::Sines { length, is_inclusive: true },
        norm: NormKind::Layer,
        epsilon: 1e-5,
        activation: fields.activation("activation_function")?,
        gated: false,
        biases: true,
        key_biases: true,
        logits_bias: false,
        first_position: fields.natural_or("pad_token_id", 1)? + 1,
        embedding_scale: fields.flag("scale_embedding")?.then(|| (features as f64).sqrt()),
        embedding_norm: false,
        norm_before_positions: false,
        sum_norms: false,
        final_norm: true,
        attention_scale: None,
        output_transform: false,
        tie_embeddings: true,
        logits_scale: None,
    })
}

/// Returns the names of the arrays of both.
fn keys() -> KeyMap {
    let keys = KeyMap::new().array("embed.embedding", TABLE, Layout::Same);
    let keys = ["encoder", "decoder"].into_iter().fold(keys, |keys, stage| {
        let table = format!("model.{stage}.embed_positions");
        // Some files contain the sinusoidal positions, which are computed here.
        side_keys(keys, stage).ignore(&format!("{table}.weight")).ignore(&format!("{table}.weights"))
    });
    cross_keys(keys)
}
