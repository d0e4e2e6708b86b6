//! DBRX.

use super::experts::{EXPERTS, ROUTER};
use super::*;
use crate::{Activation, ExpertsConfig};

/// Reads DBRX, a mixture of experts with layer norms and bounded queries, keys and values.
pub(super) fn read(fields: &Fields, _: &str) -> Read {
    let (features, heads) = (fields.size("d_model")?, fields.size("n_heads")?);
    fields.divides(("n_heads", heads), ("d_model", features))?;
    // The number of key heads is a field of another object. The length limits texts only in other programs.
    fields.skip(&["num_key_value_heads", "max_seq_len"]);
    let mut config = DecoderConfig {
        norm: NormKind::LayerScale,
        epsilon: 1e-5,
        ..DecoderConfig::new(fields.size("vocab_size")?, fields.layers("n_layers")?, features, heads)
    };
    rotary(&mut config, fields, None)?;
    let has_base = ["rope_theta", "rope_parameters", "rope_scaling"].iter().any(|name| fields.has(name));
    if let Some(about) = fields.object_opt("attn_config")? {
        read_attention(&mut config, &about, has_base)?;
    }
    fields.divides(("kv_n_heads", config.kv_heads), ("n_heads", heads))?;
    let (experts, activation) = match fields.object_opt("ffn_config")? {
        Some(about) => read_experts(&about)?,
        None => {
            (ExpertsConfig { per_token: 1, capacity_factor: None, ..ExpertsConfig::new(4, 3584) }, Activation::Silu)
        }
    };
    let keys = keys(&config, &experts);
    (config.experts, config.activation) = (Some(experts), activation);
    Ok((config, keys))
}

/// Reads the object that describes attention.
///
/// Published files have the base of rotary positions in this object, and it is the base that the models were trained with. The
/// current class in transformers reads only the fields next to the object and replaces an absent base by 10,000, so these fields
/// take precedence.
fn read_attention(config: &mut DecoderConfig, about: &Fields, has_base: bool) -> Result<()> {
    about.skip(&["attn_pdrop", "model_type", "kv_n_heads", "is_encoder_decoder"]);
    config.kv_heads = about.size_opt("kv_n_heads")?.unwrap_or(1);
    config.qkv_bound = about.number_opt("clip_qkv")?;
    let base = about.number_opt("rope_theta")?;
    if let (Positions::Rotary(rope), Some(base), false) = (&mut config.positions, base, has_base) {
        rope.base = base;
    }
    about.finish_but_empty()
}

/// Reads the object that describes experts.
fn read_experts(about: &Fields) -> Result<(ExpertsConfig, Activation)> {
    // Options of training, and the features of the model.
    about.skip(&["moe_jitter_eps", "moe_loss_weight", "hidden_size", "model_type", "is_encoder_decoder"]);
    let normalized = match about.value("moe_normalize_expert_weights") {
        None => !about.is_null("moe_normalize_expert_weights"),
        Some(power) if power.as_f64() == Some(1.0) => true,
        Some(power) => {
            return Err(about.error(format!("`moe_normalize_expert_weights` is {power}, but only 1 is supported")));
        }
    };
    let activation = match about.object_opt("ffn_act_fn")? {
        Some(function) => {
            let activation = function.activation_named("name", function.text_opt("name")?.unwrap_or("silu"))?;
            function.finish()?;
            activation
        }
        None => Activation::Silu,
    };
    let (count, hidden) =
        (about.size_opt("moe_num_experts")?.unwrap_or(4), about.size_opt("ffn_hidden_size")?.unwrap_or(3584));
    let per_token = about.size_opt("moe_top_k")?.unwrap_or(1);
    about.finish_but_empty()?;
    let experts = ExpertsConfig { per_token, normalized, capacity_factor: None, ..ExpertsConfig::new(count, hidden) };
    Ok((experts, activation))
}

/// Returns the names of DBRX's arrays. The rows of each of three arrays are the hidden features of all experts.
fn keys(config: &DecoderConfig, experts: &ExpertsConfig) -> KeyMap {
    let narrow = config.kv_heads.saturating_mul(config.head_dim);
    let rows = config.features.saturating_add(narrow.saturating_mul(2));
    let (attention, ffn) = ("transformer.blocks.*.norm_attn_norm", "transformer.blocks.*.ffn");
    let joined = format!("{attention}.attn.Wqkv");
    let [matrices, transposed] =
        [false, true].map(|transposed| Layout::JoinedMatrices { count: experts.count, transposed });
    KeyMap::new()
        .array("embed.embedding", "transformer.wte.weight", Layout::Same)
        .norm("blocks[*].norm.0", &format!("{attention}.norm_1"))
        .weights("blocks[*].attention.query", &joined, Layout::rows(0, config.features, rows))
        .weights("blocks[*].attention.key", &joined, Layout::rows(config.features, narrow, rows))
        .weights(
            "blocks[*].attention.value",
            &joined,
            Layout::rows(config.features.saturating_add(narrow), narrow, rows),
        )
        .linear("blocks[*].attention.out", &format!("{attention}.attn.out_proj"))
        .norm("blocks[*].mlp_norm.0", &format!("{attention}.norm_2"))
        .linear(ROUTER, &format!("{ffn}.router.layer"))
        .array(format!("{EXPERTS}.gate.kernel"), format!("{ffn}.experts.mlp.w1"), transposed)
        .array(format!("{EXPERTS}.up.kernel"), format!("{ffn}.experts.mlp.v1"), transposed)
        .array(format!("{EXPERTS}.down.kernel"), format!("{ffn}.experts.mlp.w2"), matrices)
        .norm("norm.0", "transformer.norm_f")
        .linear("head", "lm_head")
}
