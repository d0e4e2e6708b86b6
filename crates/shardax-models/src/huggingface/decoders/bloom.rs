//! Models whose positions are a learned table with an offset (OPT), or biases of attention (BLOOM, MPT).

use super::gpt::grouped_attention;
use super::*;
use crate::Activation;

pub(super) fn opt(fields: &Fields, _: &str) -> Read {
    let (features, heads) = (fields.size("hidden_size")?, fields.size("num_attention_heads")?);
    fields.divides(("num_attention_heads", heads), ("hidden_size", features))?;
    // Only the model with 350 million parameters normalizes sums instead of inputs.
    let is_before = fields.flag("do_layer_norm_before")?;
    let is_removed = fields.flag("_remove_final_layer_norm")?;
    // The probability of skipping a layer in training.
    fields.skip(&["layerdrop"]);
    let has_bias = fields.flag("enable_bias")?;
    let layers = fields.layers("num_hidden_layers")?;
    let config = DecoderConfig {
        hidden: fields.size("ffn_dim")?,
        positions: Positions::Learned(fields.size("max_position_embeddings")?.saturating_add(OPT_FIRST_POSITION)),
        first_position: OPT_FIRST_POSITION,
        norm: if fields.flag("layer_norm_elementwise_affine")? { NormKind::Layer } else { NormKind::LayerPlain },
        epsilon: 1e-5,
        activation: fields.activation("activation_function")?,
        gated: false,
        biases: Biases { qkv: has_bias, out: has_bias, mlp: has_bias, head: false },
        pre_norms: is_before,
        sum_norms: !is_before,
        final_norm: is_before && !is_removed,
        embedding_features: fields.size_opt("word_embed_proj_dim")?.filter(|embedded| *embedded != features),
        tie_embeddings: fields.flag("tie_word_embeddings")?,
        ..DecoderConfig::new(fields.size("vocab_size")?, layers, features, heads)
    };
    let keys = KeyMap::new()
        .prefix("model.")
        .linear("embedding_projection", "decoder.project_in")
        .linear("output_projection", "decoder.project_out")
        .array("embed.embedding", "decoder.embed_tokens.weight", Layout::Same)
        .array("positions.embedding", "decoder.embed_positions.weight", Layout::Same)
        .norm("blocks[*].norm.0", "decoder.layers.*.self_attn_layer_norm")
        .linear("blocks[*].attention.query", "decoder.layers.*.self_attn.q_proj")
        .linear("blocks[*].attention.key", "decoder.layers.*.self_attn.k_proj")
        .linear("blocks[*].attention.value", "decoder.layers.*.self_attn.v_proj")
        .linear("blocks[*].attention.out", "decoder.layers.*.self_attn.out_proj")
        .norm("blocks[*].mlp_norm.0", "decoder.layers.*.final_layer_norm")
        .linear("blocks[*].mlp.up", "decoder.layers.*.fc1")
        .linear("blocks[*].mlp.down", "decoder.layers.*.fc2")
        .norm("norm.0", "decoder.final_layer_norm")
        .linear("head", "lm_head")
        .tied("lm_head.weight", "decoder.embed_tokens.weight");
    Ok((config, keys))
}

/// Reads BioGPT, which has the same blocks as OPT.
pub(super) fn biogpt(fields: &Fields, _: &str) -> Read {
    let sized = sizes(fields)?;
    fields.skip(&["layerdrop"]);
    let config = DecoderConfig {
        positions: Positions::Learned(fields.size("max_position_embeddings")?.saturating_add(OPT_FIRST_POSITION)),
        first_position: OPT_FIRST_POSITION,
        norm: NormKind::Layer,
        // The class does not read `layer_norm_eps`.
        epsilon: 1e-5,
        activation: fields.activation("hidden_act")?,
        gated: false,
        biases: Biases { head: false, ..Biases::ALL },
        embedding_scale: fields.flag("scale_embedding")?.then(|| (sized.features as f64).sqrt()),
        ..sized
    };
    fields.skip(&["layer_norm_eps"]);
    let keys = block_keys()
        .prefix("biogpt.")
        .array("positions.embedding", "embed_positions.weight", Layout::Same)
        .linear("head", "output_projection")
        .tied("output_projection.weight", "embed_tokens.weight");
    Ok((config, keys))
}

/// Reads the decoder of BERT generation, which has BERT's blocks. Unless `is_decoder` is true, its positions attend to all
/// positions.
pub(super) fn bert_generation(fields: &Fields, _: &str) -> Read {
    let sized = sizes(fields)?;
    let config = DecoderConfig {
        positions: Positions::Learned(fields.size("max_position_embeddings")?),
        norm: NormKind::Layer,
        epsilon: fields.number("layer_norm_eps")?,
        activation: fields.activation("hidden_act")?,
        gated: false,
        biases: Biases::ALL,
        embedding_norm: true,
        pre_norms: false,
        sum_norms: true,
        final_norm: false,
        bidirectional: !fields.flag("is_decoder")?,
        ..sized
    };
    let keys = KeyMap::new()
        .prefix("bert.")
        .array("embed.embedding", "embeddings.word_embeddings.weight", Layout::Same)
        .array("positions.embedding", "embeddings.position_embeddings.weight", Layout::Same)
        .norm("embedding_norm.0", "embeddings.LayerNorm")
        .linear("blocks[*].attention.query", "encoder.layer.*.attention.self.query")
        .linear("blocks[*].attention.key", "encoder.layer.*.attention.self.key")
        .linear("blocks[*].attention.value", "encoder.layer.*.attention.self.value")
        .linear("blocks[*].attention.out", "encoder.layer.*.attention.output.dense")
        .norm("blocks[*].norm.0", "encoder.layer.*.attention.output.LayerNorm")
        .linear("blocks[*].mlp.up", "encoder.layer.*.intermediate.dense")
        .linear("blocks[*].mlp.down", "encoder.layer.*.output.dense")
        .norm("blocks[*].mlp_norm.0", "encoder.layer.*.output.LayerNorm")
        .linear("head", "lm_head.decoder")
        .array("head_bias", "lm_head.bias", Layout::Same)
        .tied("lm_head.decoder.weight", "embeddings.word_embeddings.weight")
        .tied("lm_head.decoder.bias", "lm_head.bias");
    Ok((config, keys))
}

/// Returns the names that BioGPT and XGLM share.
fn block_keys() -> KeyMap {
    KeyMap::new()
        .array("embed.embedding", "embed_tokens.weight", Layout::Same)
        .norm("blocks[*].norm.0", "layers.*.self_attn_layer_norm")
        .linear("blocks[*].attention.query", "layers.*.self_attn.q_proj")
        .linear("blocks[*].attention.key", "layers.*.self_attn.k_proj")
        .linear("blocks[*].attention.value", "layers.*.self_attn.v_proj")
        .linear("blocks[*].attention.out", "layers.*.self_attn.out_proj")
        .norm("blocks[*].mlp_norm.0", "layers.*.final_layer_norm")
        .linear("blocks[*].mlp.up", "layers.*.fc1")
        .linear("blocks[*].mlp.down", "layers.*.fc2")
        .norm("norm.0", "layer_norm")
}

/// Reads XGLM, which has the same blocks and sines of positions.
pub(super) fn xglm(fields: &Fields, _: &str) -> Read {
    let (features, heads) = (fields.size("d_model")?, fields.size("attention_heads")?);
    fields.divides(("attention_heads", heads), ("d_model", features))?;
    // The class sets the row of the padding token's number to zero in its table. No position has a smaller row than 2.
    let padding = fields.number_or("pad_token_id", 1.0)?;
    if padding >= OPT_FIRST_POSITION as f64 {
        return Err(fields.error(format!("`pad_token_id` is {padding}, which would remove the sines of a position")));
    }
    fields.skip(&["layerdrop"]);
    let config = DecoderConfig {
        hidden: fields.size("ffn_dim")?,
        positions: Positions::Sines,
        first_position: OPT_FIRST_POSITION,
        norm: NormKind::Layer,
        epsilon: 1e-5,
        activation: fields.activation("activation_function")?,
        gated: false,
        biases: Biases { head: false, ..Biases::ALL },
        embedding_scale: fields.flag("scale_embedding")?.then(|| (features as f64).sqrt()),
        tie_embeddings: fields.flag("tie_word_embeddings")?,
        ..DecoderConfig::new(fields.size("vocab_size")?, fields.layers("num_layers")?, features, heads)
    };
    let keys = block_keys()
        .prefix("model.")
        .linear("head", "lm_head")
        .tied("lm_head.weight", "embed_tokens.weight")
        // Older files contain the table of sines.
        .ignore("embed_positions.weights");
    Ok((config, keys))
}

/// The row of OPT's position table for the first token of a text.
const OPT_FIRST_POSITION: usize = 2;

pub(super) fn bloom(fields: &Fields, _: &str) -> Read {
    // The class and the published configurations use different names.
    let [heads_name, features_name, layers_name] =
        [("n_head", "num_attention_heads"), ("hidden_size", "n_embed"), ("n_layer", "num_hidden_layers")]
            .map(|(name, other)| if fields.has(other) { other } else { name });
    let (features, heads) = (fields.size(features_name)?, fields.size(heads_name)?);
    fields.divides((heads_name, heads), (features_name, features))?;
    // Fields that select another way to compute the same result.
    fields.skip(&["attention_softmax_in_fp32", "bias_dropout_fusion", "masked_softmax_fusion", "offset_alibi"]);
    fields.skip(&["skip_bias_add", "skip_bias_add_qkv", "slow_but_exact"]);
    let config = DecoderConfig {
        positions: Positions::Alibi(MAX_BIAS),
        embedding_norm: true,
        norm: NormKind::Layer,
        epsilon: fields.number("layer_norm_epsilon")?,
        activation: Activation::GeluTanh,
        gated: false,
        biases: Biases { head: false, ..Biases::ALL },
        tie_embeddings: fields.flag("tie_word_embeddings")?,
        ..DecoderConfig::new(fields.size("vocab_size")?, fields.layers(layers_name)?, features, heads)
    };
    let keys = grouped_attention(&config, "h.*.self_attention.query_key_value")
        .prefix("transformer.")
        .array("embed.embedding", "word_embeddings.weight", Layout::Same)
        .norm("embedding_norm.0", "word_embeddings_layernorm")
        .norm("blocks[*].norm.0", "h.*.input_layernorm")
        .linear("blocks[*].attention.out", "h.*.self_attention.dense")
        .norm("blocks[*].mlp_norm.0", "h.*.post_attention_layernorm")
        .linear("blocks[*].mlp.up", "h.*.mlp.dense_h_to_4h")
        .linear("blocks[*].mlp.down", "h.*.mlp.dense_4h_to_h")
        .norm("norm.0", "ln_f")
        .linear("head", "lm_head")
        .tied("lm_head.weight", "word_embeddings.weight");
    Ok((config, keys))
}

/// The negative logarithm of the smallest slope, to the base 2.
const MAX_BIAS: f64 = 8.0;

pub(super) fn mpt(fields: &Fields, _: &str) -> Read {
    let (features, heads) = (fields.size("d_model")?, fields.size("n_heads")?);
    fields.divides(("n_heads", heads), ("d_model", features))?;
    // Fields for initialization, and the length for which the class precomputes biases.
    fields.skip(&["init_config", "init_device", "verbose", "max_seq_len", "tokenizer_name"]);
    let (attention_scale, qkv_bound) = match fields.object_opt("attn_config")? {
        Some(about) => mpt_attention(&about)?,
        None => (None, None),
    };
    let config = DecoderConfig {
        positions: Positions::Alibi(MAX_BIAS),
        norm: NormKind::LayerScale,
        epsilon: fields.number("layer_norm_epsilon")?,
        activation: Activation::Gelu,
        gated: false,
        attention_scale,
        qkv_bound,
        tie_embeddings: fields.flag("tie_word_embeddings")?,
        ..DecoderConfig::new(fields.size("vocab_size")?, fields.layers("n_layers")?, features, heads)
    };
    let keys = KeyMap::new()
        .prefix("transformer.")
        .array("embed.embedding", "wte.weight", Layout::Same)
        .norm("blocks[*].norm.0", "blocks.*.norm_1")
        .weights("blocks[*].attention.query", "blocks.*.attn.Wqkv", Layout::nth_rows(0, features, 3))
        .weights("blocks[*].attention.key", "blocks.*.attn.Wqkv", Layout::nth_rows(1, features, 3))
        .weights("blocks[*].attention.value", "blocks.*.attn.Wqkv", Layout::nth_rows(2, features, 3))
        .linear("blocks[*].attention.out", "blocks.*.attn.out_proj")
        .norm("blocks[*].mlp_norm.0", "blocks.*.norm_2")
        .linear("blocks[*].mlp.up", "blocks.*.ffn.up_proj")
        .linear("blocks[*].mlp.down", "blocks.*.ffn.down_proj")
        .norm("norm.0", "norm_f")
        .linear("head", "lm_head")
        .tied("lm_head.weight", "wte.weight");
    Ok((config, keys))
}

/// Reads the factor of scores in MPT's attention, and the bound of queries, keys and values. Returns an error if another
/// field has a value that the class ignores.
fn mpt_attention(about: &Fields) -> Result<(Option<f64>, Option<f64>)> {
    about.skip(&["attn_impl", "attn_pdrop", "model_type"]);
    if !about.flag_or("alibi", true)? {
        return Err(about.error("field `alibi` is false, but only models with ALiBi are supported"));
    }
    // The class treats 0 as no bound.
    let bound = about.number_opt("clip_qkv")?.filter(|bound| *bound != 0.0);
    let max_bias = about.number_or("alibi_bias_max", MAX_BIAS)?;
    if max_bias != MAX_BIAS {
        return Err(
            about.error(format!("field `alibi_bias_max` is {max_bias}, but transformers always uses {MAX_BIAS}"))
        );
    }
    match about.text_opt("attn_type")? {
        None | Some("multihead_attention") => {}
        Some(other) => return Err(about.error(format!("the attention {other:?} is not supported"))),
    }
    let scale = about.number_opt("softmax_scale")?;
    about.finish_but_empty()?;
    Ok((scale, bound))
}
