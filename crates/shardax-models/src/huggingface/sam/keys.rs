//! The names of SAM's arrays.

use super::SamConfig;
use crate::huggingface::{KeyMap, Layout};

/// Returns the names of the arrays.
pub(super) fn keys(config: &SamConfig) -> KeyMap {
    let (layer, features) = ("vision_encoder.layers.*", config.hidden_size);
    let joined = format!("{layer}.attn.qkv");
    let keys = KeyMap::new()
        .conv("patches", "vision_encoder.patch_embed.projection")
        .array("positions", "vision_encoder.pos_embed", Layout::Same)
        .norm("blocks[*].norm", &format!("{layer}.layer_norm1"))
        .norm("blocks[*].mlp_norm", &format!("{layer}.layer_norm2"))
        .weights("blocks[*].attention.query", &joined, Layout::nth_rows(0, features, 3))
        .weights("blocks[*].attention.key", &joined, Layout::nth_rows(1, features, 3))
        .weights("blocks[*].attention.value", &joined, Layout::nth_rows(2, features, 3))
        .linear("blocks[*].attention.out", &format!("{layer}.attn.proj"))
        .array("blocks[*].distances[0]", format!("{layer}.attn.rel_pos_h"), Layout::Same)
        .array("blocks[*].distances[1]", format!("{layer}.attn.rel_pos_w"), Layout::Same)
        .linear("blocks[*].mlp.up", &format!("{layer}.mlp.lin1"))
        .linear("blocks[*].mlp.down", &format!("{layer}.mlp.lin2"))
        .conv("neck[0]", "vision_encoder.neck.conv1")
        .conv("neck[1]", "vision_encoder.neck.conv2")
        .norm("neck_norms[0]", "vision_encoder.neck.layer_norm1")
        .norm("neck_norms[1]", "vision_encoder.neck.layer_norm2")
        .array("waves", "shared_image_embedding.positional_embedding", Layout::Same)
        .tied("prompt_encoder.shared_embedding.positional_embedding", "shared_image_embedding.positional_embedding")
        .array("points[*].embedding", "prompt_encoder.point_embed.*.weight", Layout::Same)
        .array("no_point.embedding", "prompt_encoder.not_a_point_embed.weight", Layout::Same)
        .array("no_mask.embedding", "prompt_encoder.no_mask_embed.weight", Layout::Same)
        .conv("mask_convs[0]", "prompt_encoder.mask_embed.conv1")
        .conv("mask_convs[1]", "prompt_encoder.mask_embed.conv2")
        .conv("mask_convs[2]", "prompt_encoder.mask_embed.conv3")
        .norm("mask_norms[0]", "prompt_encoder.mask_embed.layer_norm1")
        .norm("mask_norms[1]", "prompt_encoder.mask_embed.layer_norm2");
    decoder_keys(keys, config)
}

/// Adds the names of the decoder.
fn decoder_keys(keys: KeyMap, config: &SamConfig) -> KeyMap {
    let (block, layer) = ("two_way[*]", "mask_decoder.transformer.layers.*");
    let last = "mask_decoder.transformer.final_attn_token_to_image";
    let mut keys = keys
        .array("score_token.embedding", "mask_decoder.iou_token.weight", Layout::Same)
        .array("mask_tokens.embedding", "mask_decoder.mask_tokens.weight", Layout::Same)
        .norm("two_way[*].norm", &format!("{layer}.layer_norm1"))
        .norm("two_way[*].to_image_norm", &format!("{layer}.layer_norm2"))
        .norm("two_way[*].mlp_norm", &format!("{layer}.layer_norm3"))
        .norm("two_way[*].to_prompts_norm", &format!("{layer}.layer_norm4"))
        .linear("two_way[*].mlp.up", &format!("{layer}.mlp.lin1"))
        .linear("two_way[*].mlp.down", &format!("{layer}.mlp.lin2"))
        .norm("last_norm", "mask_decoder.transformer.layer_norm_final_attn")
        .norm("upsample_norm", "mask_decoder.upscale_layer_norm");
    for (path, name) in [
        (format!("{block}.attention"), format!("{layer}.self_attn")),
        (format!("{block}.to_image"), format!("{layer}.cross_attn_token_to_image")),
        (format!("{block}.to_prompts"), format!("{layer}.cross_attn_image_to_token")),
        ("last_attention".to_owned(), last.to_owned()),
    ] {
        for (part, array) in [("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj"), ("out", "out_proj")] {
            keys = keys.linear(&format!("{path}.{part}"), &format!("{name}.{array}"));
        }
    }
    for index in 0..2 {
        let (path, name) = (format!("upsample[{index}]"), format!("mask_decoder.upscale_conv{}", index + 1));
        keys = keys.array(format!("{path}.kernel"), format!("{name}.weight"), Layout::Same).array(
            format!("{path}.bias"),
            format!("{name}.bias"),
            Layout::Same,
        );
    }
    let heads = (0..=config.decoder.num_multimask_outputs)
        .map(|index| (format!("mask_heads[{index}]"), format!("mask_decoder.output_hypernetworks_mlps.{index}")));
    let scores = ("score_head".to_owned(), "mask_decoder.iou_prediction_head".to_owned());
    heads.chain([scores]).fold(keys, |keys, (path, name)| {
        keys.linear(&format!("{path}.first"), &format!("{name}.proj_in"))
            .linear(&format!("{path}.middle[*]"), &format!("{name}.layers.*"))
            .linear(&format!("{path}.last"), &format!("{name}.proj_out"))
    })
}
