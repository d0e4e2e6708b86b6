//! ModernBERT's decoder.

use super::experts::shared_rows;
use super::gemma::ropes;
use super::*;

/// Reads ModernBERT's decoder.
pub(super) fn read(fields: &Fields, _: &str) -> Read {
    let attention = fields.flag("attention_bias")?;
    let mut config = DecoderConfig {
        norm: if fields.flag("norm_bias")? { NormKind::Layer } else { NormKind::LayerScale },
        epsilon: fields.number("norm_eps")?,
        activation: fields.activation("hidden_activation")?,
        biases: Biases {
            qkv: attention,
            out: attention,
            mlp: fields.flag("mlp_bias")?,
            head: fields.flag("decoder_bias")?,
        },
        embedding_norm: true,
        first_norm: false,
        head_activation: Some((fields.activation("classifier_activation")?, fields.flag("classifier_bias")?)),
        ..sizes(fields)?
    };
    let interval = fields.size_opt("global_attn_every_n_layers")?.unwrap_or(3);
    let window = fields.size_opt("local_attention")?.map(|length| length / 2).filter(|length| *length > 0);
    config.windows = windows(fields, config.layers, window, |layer| !layer.is_multiple_of(interval))?;
    let names = [Some("global_rope_theta"), Some("local_rope_theta")];
    let [global, local] = ropes(fields, config.head_dim, (names, [160_000.0, 10_000.0]))?;
    // The older object applies to all layers.
    let local = match fields.object_opt("rope_scaling")?.filter(|about| !about.is_empty()) {
        Some(about) if about.has("rope_theta") => global.clone(),
        Some(_) => shardax_nn::Rope { base: local.base, ..global.clone() },
        None => local,
    };
    (config.positions, config.local_rope) = (Positions::Rotary(global), Some(local));
    fields.skip(&["embedding_dropout", "mlp_dropout", "initializer_cutoff_factor", "sliding_window"]);
    let keys = KeyMap::new()
        .array("embed.embedding", "model.embeddings.tok_embeddings.weight", Layout::Same)
        .norm("embedding_norm.0", "model.embeddings.norm")
        .norm("blocks[*].norm.0", &of_layer("attn_norm"))
        .linear("blocks[*].attention.query", &of_layer("attn.q_proj"))
        .linear("blocks[*].attention.key", &of_layer("attn.k_proj"))
        .linear("blocks[*].attention.value", &of_layer("attn.v_proj"))
        .linear("blocks[*].attention.out", &of_layer("attn.Wo"))
        .norm("blocks[*].mlp_norm.0", &of_layer("mlp_norm"))
        .weights("blocks[*].mlp.gate", &of_layer("mlp.Wi"), shared_rows(Some(config.hidden), 0))
        .weights("blocks[*].mlp.up", &of_layer("mlp.Wi"), shared_rows(Some(config.hidden), 1))
        .linear("blocks[*].mlp.down", &of_layer("mlp.Wo"))
        .norm("norm.0", "model.final_norm")
        .linear("head_dense", "lm_head.dense")
        .norm("head_norm.0", "lm_head.norm")
        .linear("head", "decoder")
        .array("head_bias", "decoder.bias", Layout::Same)
        .tied("decoder.weight", "model.embeddings.tok_embeddings.weight");
    Ok((config, keys))
}
