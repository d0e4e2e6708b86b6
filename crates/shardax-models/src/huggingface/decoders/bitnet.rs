//! BitNet, whose kernels have three values.

use super::*;

/// Reads BitNet, which normalizes the inputs of the last layers of attention and MLP.
pub(super) fn read(fields: &Fields, _: &str) -> Read {
    let mut config =
        DecoderConfig { inner_norms: true, biases: super::llama::attention_biases(fields)?, ..llama_sizes(fields)? };
    rotary(&mut config, fields, None)?;
    let keys = KeyMap::new()
        .scale("blocks[*].attention.out_norm", &of_layer("self_attn.attn_sub_norm"))
        .scale("blocks[*].mlp.norm", &of_layer("mlp.ffn_sub_norm"));
    Ok((config, keys.and(llama_keys())))
}
