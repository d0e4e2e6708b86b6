//! Names of layers in the models of `transformers` 5, which `peft` uses, that differ from the names in files.

use super::{Config, KeyMap};

/// Parts of the names of layers in files, and of their names in `transformers` 5, by model type.
const RENAMED_BY_TYPE: [(&[&str], &[[&str; 2]]); 8] = [
    (&["gpt_neox"], &[["embed_out", "lm_head"]]),
    (&["mixtral", "minimax", "minimax_m2"], &[[".block_sparse_moe.", ".mlp."]]),
    (&["phimoe"], &[[".block_sparse_moe.gate", ".mlp.router"], [".block_sparse_moe.", ".mlp."]]),
    (
        &["kimi_linear"],
        &[
            [".block_sparse_moe.", ".mlp."],
            [".self_attn.f_a_proj", ".self_attn.forget_gate.f_a_proj"],
            [".self_attn.f_b_proj", ".self_attn.forget_gate.f_b_proj"],
        ],
    ),
    (&["hy_v3"], &[[".shared_mlp.", ".shared_experts."]]),
    (&["laguna"], &[[".shared_expert.", ".shared_experts."]]),
    (&["lfm3"], &[[".self_attn.gate_proj", ".self_attn.g_proj"]]),
    (
        &["bailing_hybrid"],
        &[
            [".attention.dense", ".self_attn.o_proj"],
            [".attention.f_proj", ".self_attn.forget_gate.f_proj"],
            [".attention.", ".self_attn."],
        ],
    ),
];

/// Suffixes of layer names that transformers 5 renamed in several types, with the suffixes that the files of models still have.
const RENAMED: [(&str, &[&str]); 8] = [
    (".attention.q_proj", &[".attention.attention.query", ".attention.self.query"]),
    (".attention.k_proj", &[".attention.attention.key", ".attention.self.key"]),
    (".attention.v_proj", &[".attention.attention.value", ".attention.self.value"]),
    (".attention.o_proj", &[".attention.output.dense"]),
    (".self_attn.o_proj", &[".self_attn.out_proj"]),
    (".encoder_attn.o_proj", &[".encoder_attn.out_proj"]),
    (".mlp.fc1", &[".intermediate.dense", ".mlp.dense1", ".fc1"]),
    (".mlp.fc2", &[".output.dense", ".mlp.dense2", ".fc2"]),
];

/// Parts of the names of blocks that transformers 5 renamed, with the parts that files have.
const RENAMED_BLOCKS: [(&str, &str); 3] =
    [("layers.", "encoder.layer."), (".encoder.aifi.", ".encoder.encoder."), (".stages.", ".encoder.block.")];

/// Ends of the names of layers in files that several layers of `transformers` 5 replace, by model type.
const DIVIDED: [(&[&str], &[&str]); 4] = [
    (&["lara_mini"], &[".linear_attn.in_proj"]),
    (&["nomic_bert"], &[".attn.Wqkv", ".attn.out_proj", ".mlp.fc11", ".mlp.fc12", ".mlp.fc2"]),
    (&["gte"], &[".attention.qkv_proj", ".attention.o_proj", ".mlp.up_gate_proj", ".mlp.down_proj"]),
    (&["jina_embeddings_v3"], &[".mixer.Wqkv", ".mixer.out_proj", ".mlp.fc1", ".mlp.fc2"]),
];

/// Returns `true` if the model of `transformers` has no layer with the name of this array, so that `peft` would ignore its adapter.
pub(super) fn is_divided(config: &Config, name: &str) -> bool {
    let kind = config.get("model_type").and_then(|kind| kind.as_str()).unwrap_or_default();
    let layer = name.trim_end_matches(".weight");
    DIVIDED.iter().any(|(kinds, ends)| kinds.contains(&kind) && ends.iter().any(|end| layer.ends_with(end)))
}

/// Returns the parts of names that differ in a model type: the part in files, and the part in `transformers` 5.
fn renamed_parts(config: &Config) -> &'static [[&'static str; 2]] {
    let kind = config.get("model_type").and_then(|kind| kind.as_str()).unwrap_or_default();
    let entry = RENAMED_BY_TYPE.iter().find(|(kinds, _)| kinds.contains(&kind));
    entry.map_or(&[], |(_, parts)| *parts)
}

/// Returns the name of a layer in the model of `transformers`, from the name of its weight in files.
pub(super) fn written_layer(config: &Config, keys: &KeyMap, name: &str) -> String {
    // The name of the array decides whether it has the prefix.
    let name = keys.written(name);
    let name = name.trim_end_matches(".weight");
    let renamed = renamed_parts(config).iter().find(|[file, _]| name.contains(file));
    renamed.map_or(name.to_owned(), |[file, class]| name.replacen(file, class, 1))
}

/// Returns the names that files can have for a layer which transformers 5 renamed.
pub(super) fn older_names(config: &Config, name: &str) -> Vec<String> {
    // The name in files comes first, because some models have another layer under the other name.
    let renamed = renamed_parts(config).iter().find(|[_, class]| name.contains(class));
    let mut names: Vec<String> = renamed.map(|[file, class]| name.replacen(class, file, 1)).into_iter().collect();
    names.push(name.to_owned());
    for (new, suffixes) in RENAMED {
        if let Some(start) = name.strip_suffix(new) {
            names.extend(suffixes.iter().map(|suffix| format!("{start}{suffix}")));
        }
    }
    let blocks = names.iter().flat_map(|name| {
        let renamed = RENAMED_BLOCKS.iter().filter(|(new, _)| name.contains(new));
        renamed.map(|(new, old)| name.replacen(new, old, 1).replacen(".blocks.", ".", 1))
    });
    let blocks: Vec<String> = blocks.collect();
    names.extend(blocks);
    names
}
