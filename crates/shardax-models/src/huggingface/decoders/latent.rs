//! DeepSeek's models, with latent attention.

use shardax_nn::{ExpertGroups, RouterScores};

use super::super::rope::{rope_object, yarn_scale};
use super::experts::{chosen_experts, grouped_experts, grouped_keys, shared_keys, stacked_expert_keys};
use super::llama::{attention_biases, interleave, ministral_growth};
use super::*;
use crate::{ExpertsConfig, LatentConfig, LatentGate, SparseConfig};

pub(super) fn read(fields: &Fields, kind: &str) -> Read {
    let is_second = kind == "deepseek_v2";
    let is_sparse = matches!(kind, "deepseek_v32" | "glm_moe_dsa" | "axk2");
    let (features, heads) = (fields.size("hidden_size")?, fields.size("num_attention_heads")?);
    let latent = LatentConfig {
        query_rank: fields.size_opt("q_lora_rank")?,
        rank: fields.size("kv_lora_rank")?,
        key_dim: fields.size("qk_nope_head_dim")?,
        rope_dim: fields.size("qk_rope_head_dim")?,
        value_dim: match fields.size_opt("v_head_dim")? {
            Some(size) => size,
            None => {
                fields.divides(("num_attention_heads", heads), ("hidden_size", features))?;
                features / heads
            }
        },
        sparse: if is_sparse { Some(indexer(fields, kind)?) } else { None },
        gate: (kind == "axk2").then_some(LatentGate::Latents),
        scales_latents: false,
    };
    // Each head has its own key, and rotary positions apply to a part of its features.
    fields.skip(&["num_key_value_heads", "head_dim", "qk_head_dim"]);
    let layers = fields.layers("num_hidden_layers")?;
    let depth = latent.key_dim.saturating_add(latent.rope_dim);
    let mut config = DecoderConfig {
        head_dim: latent.rope_dim,
        hidden: fields.size("intermediate_size")?,
        epsilon: fields.number("rms_norm_eps")?,
        activation: fields.activation("hidden_act")?,
        biases: Biases {
            mlp: matches!(kind, "deepseek_v2" | "minicpm3") && fields.flag("mlp_bias")?,
            ..attention_biases(fields)?
        },
        tie_embeddings: fields.flag("tie_word_embeddings")?,
        experts: match kind {
            "youtu" | "minicpm3" => None,
            // The router applies a softmax and adds no correction.
            "mistral4" => Some(ExpertsConfig {
                scores: RouterScores::Softmax,
                correction: false,
                ..grouped_experts(fields, layers)?
            }),
            "axk2" => Some(ungrouped_experts(fields, layers)?),
            "axk1" => Some(ExpertsConfig { post_norms: true, ..grouped_experts(fields, layers)? }),
            "deepseek_v2" => Some(softmax_experts(fields, layers)?),
            _ => Some(grouped_experts(fields, layers)?),
        },
        norm_gates: if kind == "axk2" { Some(fields.size("gated_norm_rank")?) } else { None },
        attention_scale: Some((depth as f64).sqrt().recip() * attention_growth(fields)?),
        latent: Some(latent),
        ..DecoderConfig::new(fields.size("vocab_size")?, layers, features, heads)
    };
    match kind {
        "mistral4" => mistral4_positions(&mut config, fields, depth)?,
        _ => rotary(&mut config, fields, None)?,
    }
    if kind == "minicpm3" {
        minicpm_factors(&mut config, fields)?;
    }
    if is_second || is_sparse || (kind != "minicpm3" && fields.flag("rope_interleave")?) {
        interleave(&mut config);
    }
    let keys = latent_keys(&config, kind);
    Ok((config.clone(), if kind == "axk2" { axk2_keys(&config) } else { KeyMap::new() }.and(keys).and(llama_keys())))
}

/// Reads the experts of A.X K2, which come from all experts.
fn ungrouped_experts(fields: &Fields, layers: usize) -> Result<ExpertsConfig> {
    if let Some(groups) = fields.size_opt("n_group")?.filter(|groups| *groups > 1) {
        // The class sets the scores of other groups to 0, which can be more than the corrected scores of the kept groups.
        return Err(fields.error(format!("`n_group` is {groups}, but groups of experts are not supported")));
    }
    fields.skip(&["topk_group"]);
    Ok(ExpertsConfig {
        scores: RouterScores::Sigmoid,
        normalized: fields.flag("norm_topk_prob")?,
        correction: true,
        ..chosen_experts(fields, layers)?
    })
}

/// Returns the names of the arrays of A.X K2 that other models do not have: factors of norms, and a matrix of each head's rows
/// for queries and factors.
fn axk2_keys(config: &DecoderConfig) -> KeyMap {
    let (depth, values) = config
        .latent
        .as_ref()
        .map_or((0, 0), |latent| (latent.key_dim.saturating_add(latent.rope_dim), latent.value_dim));
    let joined = of_layer("self_attn.q_b_proj");
    let keys = KeyMap::new()
        .weights("blocks[*].latent.query", &joined, Layout::rows_of_groups(config.heads, 0, depth))
        .weights("blocks[*].latent.gate", &joined, Layout::rows_of_groups(config.heads, depth, values));
    [("norm", "input_layernorm"), ("mlp_norm", "post_attention_layernorm")].into_iter().fold(
        keys,
        |keys, (part, name)| {
            keys.scale(&format!("blocks[*].{part}.0.norm"), &of_layer(&format!("{name}.norm")))
                .linear(&format!("blocks[*].{part}.0.down"), &of_layer(&format!("{name}.W_down")))
                .linear(&format!("blocks[*].{part}.0.up"), &of_layer(&format!("{name}.W_up")))
        },
    )
}

/// Reads the decoder of DeepSeek-OCR 2, which has the experts of DeepSeek-V2 and Llama's attention.
pub(super) fn deepseek_ocr(fields: &Fields, _: &str) -> Read {
    let mut config = DecoderConfig {
        biases: Biases { mlp: fields.flag("mlp_bias")?, ..attention_biases(fields)? },
        ..llama_sizes(fields)?
    };
    if config.heads.checked_mul(config.head_dim) != Some(config.features) {
        return Err(fields.error(format!("`head_dim` is {}, which transformers does not read", config.head_dim)));
    }
    config.experts = Some(softmax_experts(fields, config.layers)?);
    rotary(&mut config, fields, None)?;
    Ok((config, grouped_keys().and(llama_keys())))
}

/// Reads the sizes of the layer that chooses positions.
fn indexer(fields: &Fields, kind: &str) -> Result<SparseConfig> {
    // Queries of all models of these types have a latent vector.
    fields.size("q_lora_rank")?;
    let entries = fields.list_opt("layer_types")?.into_iter().flatten();
    if let Some(other) =
        entries.map(|entry| entry.as_str().unwrap_or_default()).find(|entry| *entry != "indexed_attention")
    {
        return Err(fields.error(format!("the entry {other:?} of `layer_types` is not supported")));
    }
    let shared = shared_layers(fields)?;
    if kind != "glm_moe_dsa" && shared.contains(&true) {
        return Err(fields.error("some layers share the positions of others, which this model does not have"));
    }
    Ok(SparseConfig {
        heads: fields.size("index_n_heads")?,
        depth: fields.size("index_head_dim")?,
        count: fields.size("index_topk")?,
        interleaved: kind == "glm_moe_dsa",
        shared: if shared.contains(&true) { shared } else { Vec::new() },
    })
}

/// Returns which layers see the positions that the layer before them sees: from a list, from a pattern, or in a fixed distance.
fn shared_layers(fields: &Fields) -> Result<Vec<bool>> {
    let layers = fields.layers("num_hidden_layers")?;
    let (interval, first) =
        (fields.number_or("index_topk_freq", 1.0)?, fields.number_or("index_skip_topk_offset", 2.0)?);
    let pattern = fields.value("index_topk_pattern");
    let listed: Vec<&str> = match (fields.list_opt("indexer_types")?, pattern) {
        (Some(types), _) => types.iter().map(|entry| entry.as_str().unwrap_or_default()).collect(),
        (None, Some(serde_json::Value::String(letters))) => letters.split("").filter(|part| !part.is_empty()).collect(),
        (None, Some(serde_json::Value::Array(types))) => {
            types.iter().map(|entry| entry.as_str().unwrap_or_default()).collect()
        }
        (None, Some(other)) => return Err(fields.error(format!("`index_topk_pattern` is {other}"))),
        // Without a list, every `index_topk_freq`th layer selects positions, and so do the first ones.
        (None, None) => {
            let places = (0..layers).map(|layer| (layer as f64 - first + 1.0).max(0.0));
            return Ok(places.map(|place| place % interval.max(1.0) != 0.0).collect());
        }
    };
    if listed.len() != layers {
        return Err(fields.error(format!("the list of indexers has {} entries for {layers} layers", listed.len())));
    }
    let shared = listed.into_iter().map(|entry| match entry {
        "full" | "F" => Ok(false),
        "shared" | "S" => Ok(true),
        other => Err(fields.error(format!("the indexer {other:?} is not supported"))),
    });
    shared.collect()
}

/// Returns the names of the arrays of latent attention, whose names in files start with `attention`.
pub(super) fn latent_attention_keys(config: &DecoderConfig, attention: &str) -> KeyMap {
    let query = if config_has_query_latent(config) { "q_b_proj" } else { "q_proj" };
    KeyMap::new()
        .linear("blocks[*].latent.query_down", &format!("{attention}.q_a_proj"))
        .scale("blocks[*].latent.query_norm", &format!("{attention}.q_a_layernorm"))
        .linear("blocks[*].latent.query", &format!("{attention}.{query}"))
        .linear("blocks[*].latent.latent", &format!("{attention}.kv_a_proj_with_mqa"))
        .scale("blocks[*].latent.latent_norm", &format!("{attention}.kv_a_layernorm"))
        .linear("blocks[*].latent.key_value", &format!("{attention}.kv_b_proj"))
        .linear("blocks[*].latent.out", &format!("{attention}.o_proj"))
        .linear("blocks[*].latent.indexer.query", &format!("{attention}.indexer.wq_b"))
        .linear("blocks[*].latent.indexer.key", &format!("{attention}.indexer.wk"))
        .norm("blocks[*].latent.indexer.key_norm", &format!("{attention}.indexer.k_norm"))
        .linear("blocks[*].latent.indexer.weights", &format!("{attention}.indexer.weights_proj"))
}

/// Returns the names of the arrays of latent attention and of the experts.
pub(super) fn latent_keys(config: &DecoderConfig, kind: &str) -> KeyMap {
    let expert_keys = match kind {
        "mistral4" => mistral4_expert_keys(config),
        _ => grouped_keys(),
    };
    let keys = expert_keys
        .and(latent_attention_keys(config, "model.layers.*.self_attn"))
        // Layers that predict additional tokens in training.
        .ignore(&format!("model.layers.{}.**", config.layers));
    let keys = match kind {
        // The files contain an unused norm for dense layers.
        "axk1" => (0..config.layers)
            .filter(|layer| config.experts_of(*layer).is_none())
            .fold(keys, |keys, layer| keys.ignore(&format!("model.layers.{layer}.post_mlp_layernorm.weight"))),
        _ => keys,
    };
    keys.scale("blocks[*].post_mlp_norm.0", "model.layers.*.post_mlp_layernorm")
}

/// Sets the factors of MiniCPM3. A field that is null means a factor of 1.
fn minicpm_factors(config: &mut DecoderConfig, fields: &Fields) -> Result<()> {
    config.embedding_scale = Some(fields.number("scale_emb")?);
    config.residual_scale = fields.number_opt("scale_depth")?.map(|scale| scale / (config.layers as f64).sqrt());
    config.logits_scale = fields.number_opt("dim_model_base")?.map(|base| base / config.features as f64);
    Ok(())
}

/// Sets the rotary positions of Mistral 4, whose object has the share of the rotated features among all of a head, and the
/// growth of queries.
fn mistral4_positions(config: &mut DecoderConfig, fields: &Fields, depth: usize) -> Result<()> {
    let rope_dim = config.head_dim;
    let rope = rope(fields, depth, Some(rope_dim as f64 / depth as f64))?;
    if rope.rotary_dim.unwrap_or(depth) != rope_dim {
        return Err(fields.error(format!("`partial_rotary_factor` does not rotate {rope_dim} of {depth} features")));
    }
    config.positions = Positions::Rotary(rope);
    config.query_growth = Some(ministral_growth(fields)?);
    Ok(())
}

/// Returns the names of Mistral 4's experts, which files store as two arrays for each layer.
fn mistral4_expert_keys(config: &DecoderConfig) -> KeyMap {
    let hidden = config.experts.as_ref().map_or(0, |experts| experts.hidden);
    stacked_expert_keys("model.layers.*.mlp", "gate", hidden).and(shared_keys("model.layers.*.mlp.shared_experts"))
}

/// Reads the experts of DeepSeek-V2. The router chooses the best experts by softmax, either from all experts or from the
/// groups with the best experts.
fn softmax_experts(fields: &Fields, layers: usize) -> Result<ExpertsConfig> {
    let groups = match fields.text("topk_method")? {
        "greedy" => {
            // This method has no groups.
            fields.skip(&["n_group", "topk_group"]);
            None
        }
        "group_limited_greedy" => {
            Some(ExpertGroups { count: fields.size("n_group")?, kept: fields.size("topk_group")?, ranked_by: 1 })
        }
        other => return Err(fields.error(format!("`topk_method` is {other:?}, which is not supported"))),
    };
    match fields.text_opt("scoring_func")? {
        None | Some("softmax") => {}
        Some(other) => {
            return Err(fields.error(format!("`scoring_func` is {other:?}, but this model supports only softmax")));
        }
    }
    let experts = chosen_experts(fields, layers)?;
    Ok(ExpertsConfig { groups: groups.filter(|groups| groups.count > 1), ..experts })
}

/// Returns `true` if queries are computed from a latent vector.
fn config_has_query_latent(config: &DecoderConfig) -> bool {
    config.latent.as_ref().is_some_and(|latent| latent.query_rank.is_some())
}

/// Returns the factor for attention scores in texts beyond the original length.
pub(super) fn attention_growth(fields: &Fields) -> Result<f64> {
    let Some(about) = rope_object(fields)? else { return Ok(1.0) };
    let kind = about.text_opt("rope_type")?.or(about.text_opt("type")?).unwrap_or("default");
    match about.number_opt("mscale_all_dim")? {
        Some(all) if kind != "default" => Ok(yarn_scale(about.number("factor")?, all).powi(2)),
        _ => Ok(1.0),
    }
}
