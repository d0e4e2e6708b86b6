//! Conversion of the names and the row order of GGUF tensors to the names and the order of `transformers`.

use super::{Gguf, Tensor};

/// The difference between the values of a GGUF tensor and of the array of `transformers`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Change {
    /// The values are equal.
    #[default]
    None,
    /// The rows are in a different order.
    Rows(RowOrder),
    /// The file contains the weights plus this number, because the norm multiplies by `1 + weight`.
    Added(f32),
    /// The matrix is transposed.
    Transposed,
}

/// The row order of query and key matrices in Llama's GGUF files.
///
/// In the file, the two features of each rotation are neighbors. In `transformers`, the first features of all rotations
/// of a head come before the second features.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RowOrder {
    /// The number of heads.
    pub heads: usize,
}

impl RowOrder {
    /// Returns the row numbers of the file in the order of `transformers`, or `None` if the rows of a head are not pairs.
    pub fn rows(self, count: usize) -> Option<Vec<usize>> {
        let RowOrder { heads } = self;
        if heads == 0 || !count.is_multiple_of(heads.checked_mul(2)?) {
            return None;
        }
        let half = count / heads / 2;
        let mut rows = Vec::with_capacity(count);
        for head in 0..heads {
            for side in 0..2 {
                rows.extend((0..half).map(|pair| (head * half + pair) * 2 + side));
            }
        }
        Some(rows)
    }
}

/// Returns the name in `transformers` of a tensor of this architecture, and how its values differ. Returns `None` if
/// `transformers` has no such array.
pub(super) fn translate(architecture: &str, name: &str, heads: [usize; 2]) -> Option<(String, Change)> {
    if architecture == "gpt2" {
        return gpt2(name);
    }
    let model_name = match name {
        "token_embd.weight" => Some("model.embed_tokens.weight".to_owned()),
        "output.weight" | "output.bias" => Some(name.replace("output", "lm_head")),
        _ => None,
    };
    if let Some(model_name) = model_name {
        return Some((model_name, Change::None));
    }
    // llama.cpp stores Gemma's norms as `1 + weight`.
    let is_gemma = architecture.starts_with("gemma");
    let norm_change = if is_gemma { Change::Added(1.0) } else { Change::None };
    if let Some(kind) = name.strip_prefix("output_norm.") {
        let norm = if architecture == "phi2" { "final_layernorm" } else { "norm" };
        return Some((format!("model.{norm}.{kind}"), norm_change));
    }
    let (layer, part, kind) = split(name)?;
    let (model_name, change) = match part {
        "attn_norm" => ("input_layernorm", norm_change),
        "attn_q" => ("self_attn.q_proj", rotated(architecture, heads[0])),
        "attn_k" => ("self_attn.k_proj", rotated(architecture, heads[1])),
        "attn_v" => ("self_attn.v_proj", Change::None),
        "attn_qkv" => ("self_attn.qkv_proj", Change::None),
        // The array of sinks has no ending.
        "attn_sinks" => return Some((format!("model.layers.{layer}.self_attn.sinks"), Change::None)),
        "attn_output" if architecture == "phi2" => ("self_attn.dense", Change::None),
        "attn_output" => ("self_attn.o_proj", Change::None),
        "attn_q_norm" => ("self_attn.q_norm", norm_change),
        "attn_k_norm" => ("self_attn.k_norm", norm_change),
        "post_attention_norm" if architecture == "glm4" => ("post_self_attn_layernorm", norm_change),
        "post_attention_norm" => ("post_attention_layernorm", norm_change),
        "ffn_norm" if matches!(architecture, "gemma2" | "gemma3") => ("pre_feedforward_layernorm", norm_change),
        "ffn_norm" => ("post_attention_layernorm", norm_change),
        "post_ffw_norm" if architecture == "glm4" => ("post_mlp_layernorm", norm_change),
        "post_ffw_norm" => ("post_feedforward_layernorm", norm_change),
        "ffn_gate" => ("mlp.gate_proj", Change::None),
        "ffn_up" if architecture == "phi2" => ("mlp.fc1", Change::None),
        "ffn_up" if architecture == "starcoder2" => ("mlp.c_fc", Change::None),
        "ffn_up" if matches!(architecture, "phi3" | "glm4") => ("mlp.gate_up_proj", Change::None),
        "ffn_up" => ("mlp.up_proj", Change::None),
        "ffn_down" if architecture == "phi2" => ("mlp.fc2", Change::None),
        "ffn_down" if architecture == "starcoder2" => ("mlp.c_proj", Change::None),
        "ffn_down" => ("mlp.down_proj", Change::None),
        "ffn_gate_inp" if architecture == "gpt-oss" => ("mlp.router", Change::None),
        "ffn_gate_inp_shexp" => ("mlp.shared_expert_gate", Change::None),
        "ffn_gate_shexp" => ("mlp.shared_expert.gate_proj", Change::None),
        "ffn_up_shexp" => ("mlp.shared_expert.up_proj", Change::None),
        "ffn_down_shexp" => ("mlp.shared_expert.down_proj", Change::None),
        "ffn_gate_inp" if architecture == "llama" => ("block_sparse_moe.gate", Change::None),
        "ffn_gate_inp" => ("mlp.gate", Change::None),
        _ => return None,
    };
    Some((format!("model.layers.{layer}.{model_name}.{kind}"), change))
}

/// Returns the name in `transformers` of one expert. `name` is the GGUF tensor that contains all experts of a layer.
fn expert_name(architecture: &str, name: &str, expert: usize) -> Option<String> {
    let (layer, part, kind) = split(name)?;
    let names = match architecture {
        "llama" => ["block_sparse_moe.experts", "w1", "w3", "w2"],
        _ => ["mlp.experts", "gate_proj", "up_proj", "down_proj"],
    };
    let model_name = match part {
        "ffn_gate_exps" => names[1],
        "ffn_up_exps" => names[2],
        "ffn_down_exps" => names[3],
        _ => return None,
    };
    Some(format!("model.layers.{layer}.{}.{expert}.{model_name}.{kind}", names[0]))
}

/// Returns the change of query and key matrices. Files of Llama and of architectures that are converted like it have a different
/// row order.
fn rotated(architecture: &str, heads: usize) -> Change {
    match architecture {
        "llama" | "arcee" | "granite" | "smollm3" => Change::Rows(RowOrder { heads }),
        _ => Change::None,
    }
}

fn gpt2(name: &str) -> Option<(String, Change)> {
    let (other, change) = match name {
        "token_embd.weight" => ("wte.weight".to_owned(), Change::None),
        "position_embd.weight" => ("wpe.weight".to_owned(), Change::None),
        "output.weight" => ("lm_head.weight".to_owned(), Change::None),
        "output_norm.weight" | "output_norm.bias" => (name.replace("output_norm", "ln_f"), Change::None),
        _ => {
            let (layer, part, kind) = split(name)?;
            let (other, is_kernel) = match part {
                "attn_norm" => ("ln_1", false),
                "attn_qkv" => ("attn.c_attn", true),
                "attn_output" => ("attn.c_proj", true),
                "ffn_norm" => ("ln_2", false),
                "ffn_up" => ("mlp.c_fc", true),
                "ffn_down" => ("mlp.c_proj", true),
                _ => return None,
            };
            let change = if is_kernel && kind == "weight" { Change::Transposed } else { Change::None };
            (format!("h.{layer}.{other}.{kind}"), change)
        }
    };
    Some((other, change))
}

/// Splits a name such as `blk.3.attn_q.weight` into the layer, the part and the kind.
fn split(name: &str) -> Option<(usize, &str, &str)> {
    let (layer, part_and_kind) = name.strip_prefix("blk.")?.split_once('.')?;
    let (part, kind) = part_and_kind.split_once('.')?;
    matches!(kind, "weight" | "bias").then_some((layer.parse().ok()?, part, kind))
}

/// A GGUF tensor, or one expert of it, with its name in `transformers`.
pub(crate) struct Translated {
    pub name: String,
    pub change: Change,
    pub tensor: Tensor,
}

impl Gguf {
    /// Returns the tensors with the names of `transformers`. Each expert becomes a separate tensor.
    ///
    /// Tensors that `transformers` does not have keep their names, so that loading a model can report them.
    pub(crate) fn arrays(&self) -> Vec<Translated> {
        let architecture = self.architecture().unwrap_or_default();
        let heads = self.heads();
        let mut arrays = Vec::new();
        for tensor in self.tensor_list() {
            // `config` converts the factors of rotary positions to fields of the configuration.
            if tensor.name == "rope_freqs.weight" {
                continue;
            }
            if let Some(experts) = experts_of(architecture, tensor) {
                arrays.extend(experts);
                continue;
            }
            let (name, change) =
                translate(architecture, &tensor.name, heads).unwrap_or_else(|| (tensor.name.clone(), Change::None));
            arrays.push(Translated { name, change, tensor: tensor.clone() });
        }
        arrays
    }
}

/// Splits a tensor `[experts, outputs, inputs]`, or biases `[experts, outputs]`, into its experts. Returns `None` for other tensors.
fn experts_of(architecture: &str, tensor: &Tensor) -> Option<Vec<Translated>> {
    expert_name(architecture, &tensor.name, 0)?;
    let (&experts, entry_shape) = tensor.shape.split_first()?;
    if entry_shape.len() != if tensor.name.ends_with(".bias") { 1 } else { 2 } {
        return None;
    }
    // Each expert needs memory for its name and description, so a damaged file must not state millions of them.
    let bytes = tensor.bytes.checked_div(experts as u64).filter(|_| experts <= 1 << 16)?;
    (0..experts)
        .map(|expert| {
            let offset = tensor.offset + bytes * expert as u64;
            let tensor = Tensor { shape: entry_shape.to_vec(), offset, bytes, ..tensor.clone() };
            let name = expert_name(architecture, &tensor.name, expert)?;
            Some(Translated { name, change: Change::None, tensor })
        })
        .collect()
}
