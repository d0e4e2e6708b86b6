//! The text of Molmo 2.

use shardax_nn::Rope;

use super::*;

/// Reads the text of Molmo 2. The last rows of its token table are for images, and have no logits.
pub(super) fn read(fields: &Fields, _: &str) -> Read {
    let has_bias = fields.flag(if fields.has("qkv_bias") { "qkv_bias" } else { "attention_bias" })?;
    let epsilon = fields.number(if fields.has("layer_norm_eps") { "layer_norm_eps" } else { "rms_norm_eps" })?;
    let norm_after = fields.flag("norm_after")?;
    let sized = sizes(fields)?;
    let mut config = DecoderConfig {
        vocab_size: sized.vocab_size.saturating_add(fields.natural("additional_vocab_size")?),
        logits: Some(sized.vocab_size),
        epsilon,
        activation: fields.activation("hidden_act")?,
        biases: Biases { qkv: has_bias, ..Biases::NONE },
        pre_norms: !norm_after,
        post_norms: norm_after,
        qk_norm: match fields.text("qk_norm_type")? {
            "qwen3" => QkNorm::Head,
            "olmo" => QkNorm::AllHeads,
            other => return Err(fields.error(format!("`qk_norm_type` is {other:?}, which is not supported"))),
        },
        ..sized
    };
    let rope = rope(fields, config.head_dim, None)?;
    if let Some(layers) = fields.list_opt("rope_scaling_layers")? {
        // The other layers have no scaling, which differs only if there is one.
        let is_all = (0..config.layers).all(|layer| layers.iter().any(|entry| entry.as_u64() == Some(layer as u64)));
        if !is_all && rope != Rope::new(rope.base) {
            return Err(fields.error("`rope_scaling_layers` does not have all layers, which is not supported"));
        }
    }
    config.positions = Positions::Rotary(rope);
    // The class does not use these in inference, and their names differ between versions.
    fields.skip(&["residual_dropout", "embedding_dropout", "use_qk_norm", "rope_theta"]);
    let (wide, narrow) =
        (config.heads.saturating_mul(config.head_dim), config.kv_heads.saturating_mul(config.head_dim));
    let rows = wide.saturating_add(narrow.saturating_mul(2));
    let joined = of_layer("self_attn.att_proj");
    let parts = [("query", 0, wide), ("key", wide, narrow), ("value", wide.saturating_add(narrow), narrow)];
    let keys = parts.into_iter().fold(KeyMap::new(), |keys, (part, start, count)| {
        keys.weights(&format!("blocks[*].attention.{part}"), &joined, Layout::rows(start, count, rows))
    });
    let (norm, mlp_norm) = if norm_after { ("post_attention_norm", "post_mlp_norm") } else { ("norm", "mlp_norm") };
    let keys = keys
        .linear("blocks[*].attention.out", &of_layer("self_attn.attn_out"))
        .weights("blocks[*].mlp.up", &of_layer("mlp.ff_proj"), Layout::nth_rows(0, config.hidden, 2))
        .weights("blocks[*].mlp.gate", &of_layer("mlp.ff_proj"), Layout::nth_rows(1, config.hidden, 2))
        .linear("blocks[*].mlp.down", &of_layer("mlp.ff_out"))
        .scale(&format!("blocks[*].{norm}.0"), &of_layer("attn_norm"))
        .scale(&format!("blocks[*].{mlp_norm}.0"), &of_layer("ff_norm"))
        .array("embed.embedding", "model.transformer.wte.embedding+model.transformer.wte.new_embedding", Layout::Same)
        .prefix_alias("model.layers.", "model.transformer.blocks.")
        .prefix_alias("model.norm.", "model.transformer.ln_f.");
    Ok((config, keys.and(llama_keys())))
}
