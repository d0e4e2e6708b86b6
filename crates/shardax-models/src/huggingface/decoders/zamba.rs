//! Zamba 2.

use super::experts::shared_rows;
use super::state_space::{check_inner, expanded, skip_training, space, space_keys};
use super::*;
use crate::{LayerParts, SharedConfig, StateSpaceConfig};

/// Reads Zamba 2, in which all layers are state spaces, and some of them also add the output of attention and an MLP, which they
/// share.
pub(super) fn read(fields: &Fields, _: &str) -> Read {
    let is_hybrid = hybrid_layers(fields)?;
    let (layers, features) = (is_hybrid.len(), fields.size("hidden_size")?);
    let heads = fields.size("num_attention_heads")?;
    fields.divides(("num_attention_heads", heads), ("twice the hidden_size", features.saturating_mul(2)))?;
    let head_dim = features.saturating_mul(2) / heads;
    let kv_heads = fields.size_opt("num_key_value_heads")?.unwrap_or(heads);
    fields.divides(("num_key_value_heads", kv_heads), ("num_attention_heads", heads))?;
    let has_bias = fields.flag("add_bias_linear")?;
    let users = is_hybrid.iter().filter(|is_hybrid| **is_hybrid).count();
    let shared = SharedConfig {
        count: fields.size("num_mem_blocks")?.min(users),
        layers: is_hybrid,
        rank: fields.size("adapter_rank")?,
        adapts_attention: fields.flag("use_shared_attention_adapter")?,
    };
    if shared.adapts_attention && kv_heads != heads {
        return Err(fields.error(format!(
            "`use_shared_attention_adapter` is true, but `num_key_value_heads` is {kv_heads}, not {heads}"
        )));
    }
    let mut config = DecoderConfig {
        kv_heads,
        head_dim,
        hidden: fields.size_opt("intermediate_size")?.unwrap_or(features.saturating_mul(4)),
        epsilon: fields.number("rms_norm_eps")?,
        activation: fields.activation("hidden_act")?,
        biases: Biases { mlp: has_bias, ..Biases::NONE },
        tie_embeddings: fields.flag("tie_word_embeddings")?,
        attention_scale: Some((head_dim as f64 / 2.0).sqrt().recip()),
        parts: vec![LayerParts::Mixer; layers],
        state_space: Some(state_space(fields, features, layers, has_bias)?),
        shared: Some(shared).filter(|shared| shared.count > 0),
        ..DecoderConfig::new(fields.size("vocab_size")?, layers, features, heads)
    };
    if fields.flag("use_mem_rope")? {
        rotary(&mut config, fields, None)?;
    } else {
        fields.skip(&["rope_parameters", "rope_scaling", "rope_theta"]);
        config.without_rope = vec![true; layers];
    }
    check_derived(fields, &config)?;
    let keys = keys(&config);
    Ok((config, keys))
}

/// The number of layers, and the layers that use a shared layer, of a model whose file does not list the types of layers.
const DEFAULT_LAYERS: usize = 54;
const DEFAULT_HYBRID_LAYERS: [usize; 9] = [6, 12, 18, 24, 30, 36, 42, 47, 51];

/// Returns for each layer whether it uses a shared layer.
fn hybrid_layers(fields: &Fields) -> Result<Vec<bool>> {
    let name = if fields.has("layer_types") { "layer_types" } else { "layers_block_type" };
    let Some(types) = fields.list_opt(name)? else {
        fields.check_size("num_hidden_layers", DEFAULT_LAYERS)?;
        return Ok((0..DEFAULT_LAYERS).map(|layer| DEFAULT_HYBRID_LAYERS.contains(&layer)).collect());
    };
    fields.check_size("num_hidden_layers", types.len())?;
    types
        .iter()
        .map(|entry| match entry.as_str() {
            Some("linear_attention" | "mamba") => Ok(false),
            Some("hybrid") => Ok(true),
            _ => Err(fields.error(format!("`{name}` has the layer type {entry}, which is not supported"))),
        })
        .collect()
}

/// Reads the state spaces, which all layers have.
fn state_space(fields: &Fields, features: usize, layers: usize, has_bias: bool) -> Result<StateSpaceConfig> {
    let (heads, inner) = (fields.size("n_mamba_heads")?, expanded(fields, "mamba_expand", features)?);
    let head_dim = inner / heads;
    check_inner(fields, heads, head_dim, inner)?;
    if fields.has("mamba_headdim") {
        fields.check_size("mamba_headdim", head_dim)?;
    }
    let (groups, state_dim) = (fields.size("mamba_ngroups")?, fields.size("mamba_d_state")?);
    // The class ignores the field of the convolution's bias.
    fields.skip(&["use_conv_bias", "chunk_size", "use_mamba_kernels", "use_mem_eff_path", "num_logits_to_keep"]);
    let min_step = fields.number("time_step_min")?;
    skip_training(fields);
    Ok(StateSpaceConfig {
        use_bias: has_bias,
        out_bias: has_bias,
        conv_bias: true,
        epsilon: Some(1e-5),
        min_step,
        layers: vec![true; layers],
        ..space(heads, head_dim, groups, state_dim, fields.size("mamba_d_conv")?)
    })
}

/// Checks fields that the class computes from others.
fn check_derived(fields: &Fields, config: &DecoderConfig) -> Result<()> {
    if fields.flag("use_long_context")? {
        return Err(fields.error("`use_long_context` is true, which is not supported"));
    }
    let inputs = config.features.saturating_mul(2);
    for (name, size) in [("attention_head_dim", config.head_dim), ("attention_hidden_size", inputs)] {
        if fields.has(name) {
            fields.check_size(name, size)?;
        }
    }
    fields.skip(&["hybrid_layer_ids", "kv_channels", "num_query_groups"]);
    Ok(())
}

/// Returns the names of the arrays. Shared layers have the name of the first layer that uses them, and contain the adapters of
/// all layers.
fn keys(config: &DecoderConfig) -> KeyMap {
    let (hybrid, plain): (Vec<usize>, Vec<usize>) =
        (0..config.layers).partition(|layer| config.shared_of(*layer).is_some());
    let keys = mamba_keys(config, "", &plain).and(mamba_keys(config, "mamba_decoder.", &hybrid));
    let keys = keys.scale("norm.0", "model.final_layernorm");
    let keys = hybrid.iter().enumerate().fold(keys, |keys, (user, layer)| {
        let index = config.shared_of(*layer).map_or(0, |(_, index)| index);
        let name = format!("model.layers.{}.shared_transformer", hybrid[index]);
        let keys = if user == index { keys.and(shared_keys(index, &name, config.hidden)) } else { keys };
        keys.and(adapter_keys(&format!("blocks[{layer}].shared"), &name, user, config.hidden))
    });
    keys.and(llama_keys())
}

/// Returns the names of the state spaces of these layers, whose names start with `name` in files.
fn mamba_keys(config: &DecoderConfig, name: &str, layers: &[usize]) -> KeyMap {
    space_keys(&of_layer(&format!("{name}mamba")), config.state_space.as_ref())
        .scale("blocks[*].norm.0", &of_layer(&format!("{name}input_layernorm")))
        .linear("blocks[*].shared.out", &of_layer("linear"))
        .with_layers(layers.iter().map(|layer| (*layer, *layer)))
}

/// Returns the names of the arrays of a shared layer.
fn shared_keys(index: usize, name: &str, hidden: usize) -> KeyMap {
    let (path, joined) = (format!("shared[{index}]"), format!("{name}.feed_forward.gate_up_proj"));
    let keys = KeyMap::new()
        .scale(&format!("{path}.norm.0"), &format!("{name}.input_layernorm"))
        .scale(&format!("{path}.mlp_norm.0"), &format!("{name}.pre_ff_layernorm"))
        .weights(&format!("{path}.mlp.gate"), &joined, shared_rows(Some(hidden), 0))
        .weights(&format!("{path}.mlp.up"), &joined, shared_rows(Some(hidden), 1))
        .linear(&format!("{path}.mlp.down"), &format!("{name}.feed_forward.down_proj"));
    [("query", "q"), ("key", "k"), ("value", "v"), ("out", "o")].into_iter().fold(keys, |keys, (part, letter)| {
        keys.linear(&format!("{path}.{part}"), &format!("{name}.self_attn.{letter}_proj"))
    })
}

/// Returns the names of the adapters of a layer, which have the number of the layer among the layers that use shared ones.
fn adapter_keys(path: &str, name: &str, user: usize, hidden: usize) -> KeyMap {
    let list = format!("{name}.feed_forward.gate_up_proj_adapter_list.{user}");
    let keys = KeyMap::new()
        .linear(&format!("{path}.gate.down"), &format!("{list}.0"))
        .weights(&format!("{path}.gate.up"), &format!("{list}.1"), shared_rows(Some(hidden), 0))
        .weights(&format!("{path}.up"), &format!("{list}.1"), shared_rows(Some(hidden), 1));
    [("query", "q"), ("key", "k"), ("value", "v")].into_iter().fold(keys, |keys, (part, letter)| {
        let list = format!("{name}.self_attn.linear_{letter}_adapter_list.{user}");
        keys.linear(&format!("{path}.{part}.down"), &format!("{list}.0"))
            .linear(&format!("{path}.{part}.up"), &format!("{list}.1"))
    })
}
