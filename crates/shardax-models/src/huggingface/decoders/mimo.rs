//! MiMo-V2-Flash.

use shardax_nn::RouterScores;

use super::experts::{expert_keys, experts as sized_experts, listed_dense_layers, with_stacked_experts};
use super::gemma::ropes_by_type;
use super::*;
use crate::ExpertsConfig;

/// Reads MiMo-V2-Flash. Its layers with a window have twice the key heads and attention sinks, and values have fewer features
/// than keys.
pub(super) fn read(fields: &Fields, _: &str) -> Read {
    let sized = llama_sizes(fields)?;
    let (layers, hidden) = (sized.layers, fields.size("moe_intermediate_size")?);
    // A field of published files has the positions before the query.
    let window = match fields.size_opt("sliding_window_size")? {
        Some(before) => Some(before.saturating_add(1)),
        None => fields.size_opt("sliding_window")?,
    };
    fields.skip(&["sliding_window"]);
    let windows = windows(fields, layers, window, |layer| layer > 0 && !(layer + 1).is_multiple_of(6))?;
    let common = sized.heads_of(0);
    let wide = crate::HeadSizes { kv_heads: common.kv_heads.saturating_mul(2), ..common };
    fields.divides(("twice num_key_value_heads", wide.kv_heads), ("num_attention_heads", wide.heads))?;
    let mut config = DecoderConfig {
        value_dim: Some(fields.size("v_head_dim")?),
        // The factor of values is a factor of the result, because the result is linear in values and has no bias.
        attention_output_scale: fields.number_opt("attention_value_scale")?,
        biases: Biases { qkv: fields.flag("attention_bias")?, ..Biases::NONE },
        layer_heads: windows.iter().map(|window| if window.is_some() { wide } else { common }).collect(),
        sinks: true,
        without_sinks: windows.iter().map(Option::is_none).collect(),
        windows,
        experts: Some(mimo_experts(fields, layers)?),
        ..sized
    };
    let rotated = (config.head_dim as f64 * ROTATED_SHARE) as usize;
    let defaults = [5_000_000.0, 10_000.0].map(|base| shardax_nn::Rope::new(base).rotary_dim(rotated));
    let [global, local] = ropes_by_type(fields, [config.head_dim; 2], defaults, Some(ROTATED_SHARE))?;
    if [&global, &local].iter().any(|rope| rope.scaling != shardax_nn::RopeScaling::None) {
        return Err(fields.error("`rope_parameters` scales rotary positions, which is not supported for this model"));
    }
    (config.positions, config.local_rope) = (Positions::Rotary(global), Some(local));
    check_unread_fields(&config, fields)?;
    let (layer, attention) = ("model.layers.*.mlp", "model.layers.*.self_attn");
    let keys = expert_keys(layer, "gate", ["gate_proj", "up_proj", "down_proj"])
        .array("blocks[*].experts.correction", format!("{layer}.gate.e_score_correction_bias"), Layout::Same)
        .array("blocks[*].attention.sinks", format!("{attention}.attention_sink_bias"), Layout::Same)
        // Layers that predict additional tokens.
        .ignore("model.mtp.**");
    Ok((config, with_stacked_experts(keys, layer, hidden).and(llama_keys())))
}

/// The share of the features of a head that MiMo-V2-Flash rotates by default.
const ROTATED_SHARE: f64 = 0.334;

/// Reads the experts of MiMo-V2-Flash, which has no shared expert.
fn mimo_experts(fields: &Fields, layers: usize) -> Result<ExpertsConfig> {
    let groups =
        shardax_nn::ExpertGroups { count: fields.size("n_group")?, kept: fields.size("topk_group")?, ranked_by: 2 };
    Ok(ExpertsConfig {
        scores: RouterScores::Sigmoid,
        groups: Some(groups).filter(|groups| groups.count > 1),
        normalized: fields.flag("norm_topk_prob")?,
        scale: fields.number_opt("routed_scaling_factor")?.unwrap_or(1.0),
        correction: true,
        dense_layers: listed_dense_layers(fields, layers, 1)?,
        ..sized_experts(fields, fields.size("n_routed_experts")?, fields.size("moe_intermediate_size")?)?
    })
}

/// Checks the fields of published files of MiMo-V2-Flash that the class in transformers does not read. Returns an error if a
/// field differs from the model of this class.
fn check_unread_fields(config: &DecoderConfig, fields: &Fields) -> Result<()> {
    let first_layers =
        [config.windows.iter().position(Option::is_none), config.windows.iter().position(Option::is_some)];
    let [global_base, local_base] =
        first_layers.map(|layer| layer.and_then(|layer| config.rope_of(layer)).map_or(0.0, |rope| rope.base));
    let kv_heads = config.kv_heads;
    let expected = [
        ("layernorm_epsilon", config.epsilon),
        ("swa_head_dim", config.head_dim as f64),
        ("swa_v_head_dim", config.value_dim.unwrap_or(0) as f64),
        ("swa_num_attention_heads", config.heads as f64),
        ("swa_num_key_value_heads", kv_heads.saturating_mul(2) as f64),
        ("partial_rotary_factor", ROTATED_SHARE),
        ("rope_theta", global_base),
        ("swa_rope_theta", local_base),
        ("add_full_attention_sink_bias", 0.0),
        ("add_swa_attention_sink_bias", 1.0),
    ];
    let differing = expected.into_iter().find_map(|(name, expected)| {
        let value = fields.value(name).filter(|_| fields.has(name))?;
        let number = value.as_f64().or(value.as_bool().map(f64::from));
        (number != Some(expected)).then(|| format!("`{name}` is {value}, but transformers computes with {expected}"))
    });
    // 1 stands for a window, and for experts.
    let dense = config.experts.as_ref().map_or(&[][..], |experts| &experts.dense_layers);
    let lists = [
        ("hybrid_layer_pattern", config.windows.iter().map(|window| window.is_some().into()).collect::<Vec<f64>>()),
        ("moe_layer_freq", dense.iter().map(|is_dense| (!is_dense).into()).collect()),
    ];
    let differing = differing.or_else(|| {
        lists.into_iter().find_map(|(name, expected)| {
            let is_equal = !fields.has(name) || fields.numbers(name).is_ok_and(|numbers| numbers == expected);
            (!is_equal).then(|| format!("`{name}` differs from the layers that transformers computes"))
        })
    });
    // The windows do not depend on chunks.
    fields.skip(&["attention_chunk_size", "hybrid_layer_pattern", "moe_layer_freq"]);
    differing.map_or(Ok(()), |message| Err(fields.error(message)))
}
