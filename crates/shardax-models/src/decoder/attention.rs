//! The attention of a decoder's layer, from the configuration.

use shardax_nn::prelude::*;
use shardax_nn::{HeadDifference, ValueScores};

use super::norm::Norm;
use super::{DecoderConfig, HeadSizes, NormKind, QkNorm};
use crate::huggingface::remove_input_biases;

/// Creates the attention of a layer.
#[track_caller]
pub(super) fn build(config: &DecoderConfig, layer: usize, rngs: &mut Rngs) -> MultiHeadAttention {
    let window = config.window(layer);
    let rope = config.rope_of(layer);
    let HeadSizes { heads, kv_heads, head_dim } = config.heads_of(layer);
    let mut builder = MultiHeadAttention::builder(heads, config.features)
        .qkv_features(heads * head_dim)
        .num_kv_heads(kv_heads)
        .use_bias(config.biases.qkv || config.biases.out)
        .is_causal(!config.bidirectional)
        .softplus_gate(config.attention_gate.is_some_and(|gate| gate.softplus))
        .normalize_after_rope(config.qk_norm_after_rope)
        .kernel_axes([Some("embed"), Some("heads"), None])
        .out_kernel_axes([Some("heads"), None, Some("embed")]);
    builder = config.value_dim.into_iter().fold(builder, MultiHeadAttentionBuilder::value_features);
    builder = rope.into_iter().fold(builder, MultiHeadAttentionBuilder::rope);
    let scale = config.attention_scales.get(layer).copied().or(config.attention_scale);
    builder = scale.into_iter().fold(builder, MultiHeadAttentionBuilder::scale);
    builder = config.qkv_bound.into_iter().fold(builder, MultiHeadAttentionBuilder::qkv_bound);
    // If some layers have no rotary positions, only their queries grow with the position.
    let grows = config.without_rope.is_empty() || config.rope_of(layer).is_none();
    builder = config
        .query_growth
        .clone()
        .filter(|_| grows)
        .into_iter()
        .fold(builder, MultiHeadAttentionBuilder::query_growth);
    builder = config.attention_soft_cap.into_iter().fold(builder, MultiHeadAttentionBuilder::soft_cap);
    let chosen = config.attention_implementation;
    builder = chosen.into_iter().fold(builder, MultiHeadAttentionBuilder::implementation);
    builder = window.into_iter().fold(builder, |builder, window| {
        builder.local_window_size(window - 1, if config.bidirectional { window - 1 } else { 0 })
    });
    let mut attention = builder.build(rngs);
    if !config.biases.qkv {
        remove_input_biases(&mut attention);
    }
    if !config.biases.out || config.without_out_bias.get(layer) == Some(&true) {
        attention.out.bias = None;
    }
    add_qk_norms(&mut attention, config, layer, rngs);
    if config.values_from_keys.get(layer) == Some(&true) {
        attention.value = None;
    }
    if config.value_norm {
        attention.value_norm = Some(
            RmsNorm::builder(config.value_dim.unwrap_or(head_dim)).use_scale(false).epsilon(config.epsilon).build(rngs),
        );
    }
    if config.inner_norms {
        let features = heads * config.value_dim.unwrap_or(head_dim);
        attention.out_norm = Some(RmsNorm::builder(features).epsilon(config.epsilon).build(rngs));
    }
    if config.key_layer(layer).is_some() {
        (attention.key, attention.value, attention.key_norm, attention.value_norm) = (None, None, None, None);
    }
    if let Some(gate) = config.attention_gate {
        let depth = if gate.per_head { 1 } else { head_dim };
        attention.gate = Some(
            LinearGeneral::builder([config.features], [heads, depth])
                .use_bias(config.biases.qkv && !gate.head_bias)
                .kernel_axes([Some("embed"), Some("heads"), None])
                .build(rngs),
        );
    }
    if config.differential {
        // The paper's factor, which grows with the depth of the layer.
        let initial = 0.8 - 0.6 * (-0.3 * layer as f64).exp();
        attention.difference = Some(Box::new(HeadDifference::new(head_dim, initial, config.epsilon, rngs)));
    }
    if let Some(count) = config.value_scores {
        attention.value_scores = Some(Box::new(ValueScores::new(kv_heads, head_dim, count, config.biases.qkv, rngs)));
    }
    if config.attention_gate.is_some_and(|gate| gate.head_bias) {
        attention.gate_bias = Some(zeros_dtype([heads], rngs.policy().param_dtype));
    }
    if config.sinks && !config.without_sinks.get(layer).is_some_and(|without| *without) {
        attention.sinks = Some(zeros_dtype([heads], rngs.policy().param_dtype));
    }
    attention
}

/// Adds the norms of queries and keys that the configuration describes.
fn add_qk_norms(attention: &mut MultiHeadAttention, config: &DecoderConfig, layer: usize, rngs: &mut Rngs) {
    let HeadSizes { heads, kv_heads, head_dim } = config.heads_of(layer);
    for (is_query, heads) in [(true, heads), (false, kv_heads)] {
        let (kind, features) = match config.qk_norm {
            QkNorm::None => continue,
            QkNorm::HeadPlain => {
                let norm = RmsNorm::builder(head_dim).use_scale(false).epsilon(config.epsilon).build(rngs);
                let norm = Some(norm).filter(|_| config.rope_of(layer).is_some());
                *(if is_query { &mut attention.query_norm } else { &mut attention.key_norm }) = norm;
                continue;
            }
            QkNorm::Head => (config.norm, head_dim),
            QkNorm::AllHeads => (config.norm, heads * head_dim),
            // The scales of heads follow the norm.
            QkNorm::EachHead => (NormKind::LayerPlain, head_dim),
        };
        match (Norm::new(kind, features, config.epsilon, rngs), is_query) {
            (Norm::Rms(norm), true) => attention.query_norm = Some(norm),
            (Norm::Rms(norm), false) => attention.key_norm = Some(norm),
            (Norm::Layer(norm) | Norm::LayerOffset(norm), true) => attention.query_ln = Some(norm),
            (Norm::Layer(norm) | Norm::LayerOffset(norm), false) => attention.key_ln = Some(norm),
            (Norm::Gated(_) | Norm::Identity, _) => {}
        }
        if config.qk_norm == QkNorm::EachHead {
            let scale = Some(ones_dtype([heads, head_dim], rngs.policy().param_dtype));
            *(if is_query { &mut attention.query_scale } else { &mut attention.key_scale }) = scale;
        }
    }
}
