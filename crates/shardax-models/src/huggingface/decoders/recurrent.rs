//! RecurrentGemma and MiniMax-Text-01, most of whose layers have a state instead of a cache of keys and values.

use super::experts::{expert_keys, experts as sized_experts};
use super::llama::attention_biases;
use super::*;
use crate::{ExpertsConfig, LightningConfig, ResidualFactors, RgLruConfig};

/// Reads RecurrentGemma, in which most layers have gated linear recurrent units.
pub(super) fn gemma(fields: &Fields, _: &str) -> Read {
    let sized = sizes_without_hidden(fields)?;
    let (layers, features) = (sized.layers, sized.features);
    // The field counts the features of gates too.
    let hidden = fields.size("intermediate_size")? / 2;
    if hidden == 0 {
        return Err(fields.error("`intermediate_size` must be at least 2"));
    }
    let has_units = recurrent_layers(fields, layers)?;
    let window = fields.size("attention_window_size")?;
    let channels = fields.size_opt("lru_width")?.unwrap_or(features);
    fields.divides(("num_attention_heads", sized.heads), ("lru_width", channels))?;
    let activation = fields.activation("hidden_activation")?;
    let mut config = DecoderConfig {
        hidden,
        norm: NormKind::RmsOffset,
        epsilon: fields.number("rms_norm_eps")?,
        activation,
        biases: Biases { out: true, mlp: true, ..attention_biases(fields)? },
        embedding_scale: Some(f64::from(rounded_to_bf16((features as f32).sqrt()))),
        logits_soft_cap: Some(fields.number("logits_soft_cap")?),
        windows: has_units.iter().map(|has_unit| (!has_unit).then_some(window)).collect(),
        rg_lru: Some(RgLruConfig { channels, width: fields.size("conv1d_width")?, activation, layers: has_units }),
        ..sized
    };
    rotary(&mut config, fields, Some(0.5))?;
    // Fields for initialization.
    fields.skip(&["w_init_variance_scale", "final_w_init_variance_scale"]);
    let (block, unit) = ("model.layers.*.temporal_block", "model.layers.*.temporal_block.rg_lru");
    let keys = KeyMap::new()
        .linear("blocks[*].rg_lru.value", &format!("{block}.linear_x"))
        .linear("blocks[*].rg_lru.gate", &format!("{block}.linear_y"))
        .linear("blocks[*].rg_lru.out", &format!("{block}.linear_out"))
        .array("blocks[*].rg_lru.taps", format!("{block}.conv_1d.weight"), Layout::Transposed)
        .array("blocks[*].rg_lru.taps_bias", format!("{block}.conv_1d.bias"), Layout::Same)
        .array("blocks[*].rg_lru.rate", format!("{unit}.recurrent_param"), Layout::Same)
        .array("blocks[*].rg_lru.input_gate", format!("{unit}.input_gate_weight"), Layout::Same)
        .array("blocks[*].rg_lru.input_gate_bias", format!("{unit}.input_gate_bias"), Layout::Same)
        .array("blocks[*].rg_lru.decay_gate", format!("{unit}.recurrent_gate_weight"), Layout::Same)
        .array("blocks[*].rg_lru.decay_gate_bias", format!("{unit}.recurrent_gate_bias"), Layout::Same)
        .scale("blocks[*].norm.0", "model.layers.*.temporal_pre_norm")
        .scale("blocks[*].mlp_norm.0", "model.layers.*.channel_pre_norm")
        .scale("norm.0", "model.final_norm");
    let keys = ["query", "key", "value", "out"].iter().fold(keys, |keys, part| {
        keys.linear(&format!("blocks[*].attention.{part}"), &format!("{block}.{}_proj", &part[..1]))
    });
    let keys = ["gate", "up", "down"].iter().fold(keys, |keys, part| {
        keys.linear(&format!("blocks[*].mlp.{part}"), &format!("model.layers.*.mlp_block.{part}_proj"))
    });
    Ok((config, keys.and(llama_keys())))
}

/// Returns for each layer whether it has a recurrent unit. The list of types is repeated.
fn recurrent_layers(fields: &Fields, layers: usize) -> Result<Vec<bool>> {
    let usual = || vec![true, true, false];
    let types = match fields.list_opt("block_types")? {
        None => usual(),
        Some(list) => {
            let types = list.iter().map(|entry| match entry.as_str() {
                Some("recurrent") => Ok(true),
                Some("attention") => Ok(false),
                _ => Err(fields.error(format!("`block_types` has the type {entry}, which is not supported"))),
            });
            types.collect::<Result<Vec<bool>>>()?
        }
    };
    // The class repeats the list a hundred times.
    if types.len().saturating_mul(100) < layers {
        return Err(fields.error(format!("`block_types` has {} entries, too few for {layers} layers", types.len())));
    }
    Ok(types.into_iter().cycle().take(layers).collect())
}

/// Rounds to the nearest number in bfloat16, as the class rounds the factor of embeddings.
fn rounded_to_bf16(number: f32) -> f32 {
    let bits = number.to_bits();
    let is_odd = (bits >> 16) & 1;
    f32::from_bits((bits + 0x7fff + is_odd) & 0xffff_0000)
}

/// Reads MiniMax-Text-01, in which most layers have linear attention, and sums are of normalized inputs.
pub(super) fn minimax(fields: &Fields, _: &str) -> Read {
    let sized = llama_sizes(fields)?;
    let layers = sized.layers;
    let is_linear = match fields.list_opt("layer_types")? {
        Some(types) if types.len() != layers => {
            return Err(fields.error(format!("`layer_types` has {} entries for {layers} layers", types.len())));
        }
        Some(types) => types
            .iter()
            .map(|entry| match entry.as_str() {
                Some("linear_attention") => Ok(true),
                Some("full_attention") => Ok(false),
                _ => Err(fields.error(format!("`layer_types` has the layer type {entry}, which is not supported"))),
            })
            .collect::<Result<Vec<bool>>>()?,
        None => (0..layers).map(|layer| layer % 2 == 1).collect(),
    };
    let experts = sized_experts(fields, fields.size("num_local_experts")?, sized.hidden)?;
    let full = [fields.number("full_attn_alpha_factor")?, fields.number("full_attn_beta_factor")?];
    let linear = [fields.number("linear_attn_alpha_factor")?, fields.number("linear_attn_beta_factor")?];
    let [mlp_input, mlp_output] = [fields.number("mlp_alpha_factor")?, fields.number("mlp_beta_factor")?];
    let factors = is_linear.iter().map(|is_linear| {
        let [attention_input, attention_output] = if *is_linear { linear } else { full };
        ResidualFactors { attention_input, attention_output, mlp_input, mlp_output }
    });
    let window = fields.size_opt("sliding_window")?;
    let mut config = DecoderConfig {
        residual_factors: factors.collect(),
        windows: is_linear.iter().map(|is_linear| window.filter(|_| !is_linear)).collect(),
        lightning: Some(LightningConfig { activation: sized.activation, layers: is_linear }),
        experts: Some(ExpertsConfig { capacity_factor: None, ..experts }),
        ..sized
    };
    rotary(&mut config, fields, None)?;
    // The size of the blocks in which the class computes linear attention.
    fields.skip(&["block_size"]);
    let layer = "model.layers.*.self_attn";
    let keys = ["query", "key", "value"].iter().enumerate().fold(KeyMap::new(), |keys, (index, part)| {
        let start = index.saturating_mul(config.head_dim);
        let rows = Layout::rows_of_groups(config.heads, start, config.head_dim);
        keys.weights(&format!("blocks[*].lightning.{part}"), &format!("{layer}.qkv_proj"), rows)
    });
    let keys = keys
        .linear("blocks[*].lightning.gate", &format!("{layer}.output_gate"))
        .linear("blocks[*].lightning.out", &format!("{layer}.out_proj"))
        .array("blocks[*].lightning.norm_scale", format!("{layer}.norm.weight"), Layout::Same);
    // Tables that follow from the rates.
    let keys = ["slope_rate", "query_decay", "key_decay", "diagonal_decay"]
        .iter()
        .fold(keys, |keys, name| keys.ignore(&format!("{layer}.{name}")));
    let keys = keys.and(expert_keys("model.layers.*.block_sparse_moe", "gate", ["w1", "w3", "w2"]));
    Ok((config, keys.and(llama_keys())))
}
