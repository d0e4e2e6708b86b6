//! Conversion of a GGUF file's metadata to the fields of `config.json`.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use serde_json::{Map, Value, json};
use shardax::error::Result;

use super::{Gguf, MetadataValue};
use crate::error::io_error;
use crate::huggingface::MAX_LAYERS;

/// The supported architectures and their model types. Some model types depend on the metadata too.
const ARCHITECTURES: [(&str, &str); 25] = [
    ("gpt2", "gpt2"),
    ("llama", "llama"),
    ("qwen2", "qwen2"),
    ("qwen2moe", "qwen2_moe"),
    ("qwen3", "qwen3"),
    ("qwen3moe", "qwen3_moe"),
    ("gemma", "gemma"),
    ("gemma2", "gemma2"),
    ("gemma3", "gemma3_text"),
    ("phi2", "phi"),
    ("phi3", "phi3"),
    ("arcee", "arcee"),
    ("command-r", "cohere"),
    ("glm4", "glm4"),
    ("gpt-oss", "gpt_oss"),
    ("granite", "granite"),
    ("olmo2", "olmo2"),
    ("smollm3", "smollm3"),
    ("starcoder2", "starcoder2"),
    ("ernie4_5", "ernie4_5"),
    ("exaone4", "exaone4"),
    ("seed_oss", "seed_oss"),
    // The decoders of models of text and images. In a text, they rotate queries and keys like the models without images.
    ("qwen2vl", "qwen2"),
    ("qwen3vl", "qwen3"),
    ("qwen3vlmoe", "qwen3_moe"),
];

/// Metadata keys of an architecture that do not change the results of the model.
const WITHOUT_EFFECT: [&str; 5] = [
    "tensor_data_layout",
    "rope.scaling.finetuned",
    "context_length",
    // The features that turn by the rows and columns of images, and the layers that add images.
    "rope.dimension_sections",
    "n_deepstack_layers",
];

impl Gguf {
    /// Returns the numbers of query heads and of key heads, or 0 if the file does not state them.
    pub(super) fn heads(&self) -> [usize; 2] {
        let heads = self.architecture_size("attention.head_count").unwrap_or(0);
        [heads, self.architecture_size("attention.head_count_kv").unwrap_or(heads)]
    }

    /// Returns a size from the metadata of the architecture.
    fn architecture_size(&self, key: &str) -> Option<usize> {
        let architecture = self.architecture().ok()?;
        self.metadata.get(&format!("{architecture}.{key}")).and_then(MetadataValue::as_usize)
    }

    /// Returns the fields of `config.json`.
    ///
    /// # Errors
    /// Returns an error if the architecture is not supported, if metadata is missing, or if the architecture has unknown
    /// metadata, because that could change the results of the model.
    pub(crate) fn config(&self) -> Result<Map<String, Value>> {
        let architecture = self.architecture()?;
        let keys = Keys { file: self, architecture, read: RefCell::default() };
        let Some((_, model_type)) = ARCHITECTURES.iter().find(|(name, _)| *name == architecture) else {
            let known = ARCHITECTURES.map(|(name, _)| name).join(", ");
            return Err(self.error(format!("its architecture is {architecture:?}, but only {known} are supported")));
        };
        let mut fields = if architecture == "gpt2" { gpt2(&keys)? } else { llama(&keys, model_type)? };
        for (field, key) in [("bos_token_id", "bos"), ("eos_token_id", "eos"), ("pad_token_id", "padding")] {
            if let Some(id) =
                self.metadata.get(&format!("tokenizer.ggml.{key}_token_id")).and_then(MetadataValue::as_usize)
            {
                fields.insert(field.to_owned(), id.into());
            }
        }
        keys.finish()?;
        Ok(fields)
    }

    /// Returns the size of the vocabulary, which is the number of rows of the embedding.
    fn vocabulary(&self) -> Result<usize> {
        let table = self.tensors().find(|(name, _)| *name == "token_embd.weight");
        match table {
            Some((_, &[rows, _])) => Ok(rows),
            _ => Err(self.error("it has no tensor `token_embd.weight` with two dimensions")),
        }
    }

    /// Reads the elements of a small float32 tensor. Returns `None` if the file has no such tensor.
    fn read_f32(&self, name: &str) -> Result<Option<Vec<f32>>> {
        const MAX_BYTES: u64 = 1 << 20;
        let Some(tensor) = self.tensor_list().iter().find(|tensor| tensor.name == name) else { return Ok(None) };
        if tensor.block != super::BlockType::F32 || tensor.bytes > MAX_BYTES {
            return Err(self.error(format!(
                "the tensor {name:?} should be a small F32 tensor, but is {} of {:?}",
                tensor.block.name(),
                tensor.shape
            )));
        }
        let mut bytes = vec![0; tensor.bytes as usize];
        let mut file = File::open(&self.path).map_err(|error| io_error("read", &self.path, &error))?;
        let read = file.seek(SeekFrom::Start(tensor.offset)).and_then(|_| file.read_exact(&mut bytes));
        read.map_err(|error| io_error("read", &self.path, &error))?;
        Ok(Some(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()))
    }
}

/// The metadata of the architecture. It records which keys were read, so that unknown keys can be reported.
struct Keys<'a> {
    file: &'a Gguf,
    architecture: &'a str,
    read: RefCell<BTreeSet<String>>,
}

impl Keys<'_> {
    fn get(&self, key: &str) -> Option<&MetadataValue> {
        self.read.borrow_mut().insert(key.to_owned());
        self.file.metadata.get(&format!("{}.{key}", self.architecture))
    }

    fn size_opt(&self, key: &str) -> Result<Option<usize>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value
            .as_usize()
            .map(Some)
            .ok_or_else(|| self.file.error(format!("`{}.{key}` is {value:?}, which is not a size", self.architecture)))
    }

    fn size(&self, key: &str) -> Result<usize> {
        self.size_opt(key)?.ok_or_else(|| self.file.error(format!("its metadata has no `{}.{key}`", self.architecture)))
    }

    /// Reads a number of layers, which must be at most `MAX_LAYERS`.
    fn layers(&self) -> Result<usize> {
        match self.size("block_count")? {
            layers if layers > MAX_LAYERS => Err(self.file.error(format!(
                "`{}.block_count` is {layers}, but a model can have at most {MAX_LAYERS} layers",
                self.architecture
            ))),
            layers => Ok(layers),
        }
    }

    fn number(&self, key: &str) -> Result<Option<f64>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        // The file contains float32. Without the conversion through text, 1e-5 would become 9.999999747378752e-06.
        let number = value.as_f64().map(|number| (number as f32).to_string().parse().unwrap_or(number));
        number.filter(|number| number.is_finite()).map(Some).ok_or_else(|| {
            self.file.error(format!("`{}.{key}` is {value:?}, which is not a finite number", self.architecture))
        })
    }

    /// Returns an error if a key was not read.
    fn finish(&self) -> Result<()> {
        let read = self.read.borrow();
        let prefix = format!("{}.", self.architecture);
        let unknown = self.file.metadata.iter().find(|(key, _)| {
            key.strip_prefix(&prefix).is_some_and(|key| !read.contains(key) && !WITHOUT_EFFECT.contains(&key))
        });
        match unknown {
            None => Ok(()),
            Some((key, value)) => Err(self
                .file
                .error(format!("`{key}` is {value:?}, which is not supported and could change the results"))),
        }
    }
}

fn gpt2(keys: &Keys<'_>) -> Result<Map<String, Value>> {
    let positions = keys.size("context_length")?;
    let mut fields = object(json!({
        "model_type": "gpt2",
        "vocab_size": keys.file.vocabulary()?,
        "n_embd": keys.size("embedding_length")?,
        "n_head": keys.size("attention.head_count")?,
        "n_layer": keys.layers()?,
        "n_inner": keys.size_opt("feed_forward_length")?,
        "n_positions": positions,
    }));
    insert(&mut fields, "layer_norm_epsilon", keys.number("attention.layer_norm_epsilon")?);
    Ok(fields)
}

/// Converts the metadata of all architectures except GPT-2, because they have most keys in common.
fn llama(keys: &Keys<'_>, model_type: &str) -> Result<Map<String, Value>> {
    let Keys { file, architecture, .. } = keys;
    let (features, heads) = (keys.size("embedding_length")?, keys.size("attention.head_count")?);
    let head_dim = match keys.size_opt("attention.key_length")? {
        Some(length) => length,
        None => features.checked_div(heads).unwrap_or(0),
    };
    if let Some(length) = keys.size_opt("attention.value_length")?.filter(|length| *length != head_dim) {
        return Err(file.error(format!("its heads have keys of {head_dim} features but values of {length} features")));
    }
    let experts = keys.size_opt("expert_count")?.filter(|experts| *experts > 0);
    let per_token = keys.size_opt("expert_used_count")?;
    if let Some(experts) =
        experts.filter(|_| !matches!(*architecture, "llama" | "qwen2moe" | "qwen3moe" | "qwen3vlmoe" | "gpt-oss"))
    {
        return Err(file.error(format!("it has {experts} experts, which are not supported for {architecture}")));
    }
    let vocabulary = file.vocabulary()?;
    if let Some(size) = keys.size_opt("vocab_size")?.filter(|size| *size != vocabulary) {
        return Err(file.error(format!("`vocab_size` is {size}, but `token_embd.weight` has {vocabulary} rows")));
    }
    let model_type = if *architecture == "llama" && experts.is_some() { "mixtral" } else { model_type };
    let layers = keys.layers()?;
    let mut fields = object(json!({
        "model_type": model_type,
        "vocab_size": vocabulary,
        "hidden_size": features,
        "intermediate_size": keys.size("feed_forward_length")?,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": keys.size_opt("attention.head_count_kv")?.unwrap_or(heads),
        "tie_word_embeddings": !file.has_tensor("output.weight"),
    }));
    // The configurations of Phi have no field `head_dim`.
    if *architecture != "phi2" && *architecture != "phi3" {
        fields.insert("head_dim".to_owned(), head_dim.into());
    }
    let layer_norm = match *architecture {
        "phi2" | "command-r" => Some("layer_norm_eps"),
        "starcoder2" => Some("norm_epsilon"),
        _ => None,
    };
    match layer_norm {
        Some(field) => insert(&mut fields, field, keys.number("attention.layer_norm_epsilon")?),
        None => insert(&mut fields, "rms_norm_eps", keys.number("attention.layer_norm_rms_epsilon")?),
    }
    if let Some(experts) = experts {
        expert_sizes(keys, [experts, per_token.unwrap_or(0)], &mut fields)?;
    }
    match model_type {
        "llama" | "qwen3" | "qwen3_moe" | "granite" | "smollm3" | "arcee" | "olmo2" | "gpt_oss" | "glm4" | "cohere" => {
            fields.insert("attention_bias".to_owned(), has_bias(file, "attn_q"));
        }
        "seed_oss" => {
            for (field, part) in
                [("attention_bias", "attn_q"), ("attention_out_bias", "attn_output"), ("mlp_bias", "ffn_up")]
            {
                fields.insert(field.to_owned(), has_bias(file, part));
            }
        }
        "ernie4_5" => {
            fields.insert("use_bias".to_owned(), has_bias(file, "attn_q"));
        }
        "starcoder2" => {
            fields.insert("use_bias".to_owned(), has_bias(file, "attn_q"));
            // The format has no windows for this architecture.
            fields.insert("sliding_window".to_owned(), Value::Null);
        }
        _ => {}
    }
    match model_type {
        "granite" => granite_factors(keys, &mut fields)?,
        "cohere" => {
            insert(&mut fields, "logit_scale", keys.number("logit_scale")?);
            fields.insert("use_qk_norm".to_owned(), file.has_tensor("blk.0.attn_q_norm.weight").into());
        }
        _ => {}
    }
    rotary_positions(keys, head_dim, &mut fields)?;
    windows(keys, layers, &mut fields)?;
    if matches!(*architecture, "gemma2" | "gemma3") {
        gemma_scores(keys, layers, head_dim, &mut fields)?;
    }
    Ok(fields)
}

/// Adds the sizes of experts. The numbers are the number of experts, and of experts for each token.
fn expert_sizes(keys: &Keys<'_>, [experts, per_token]: [usize; 2], fields: &mut Map<String, Value>) -> Result<()> {
    let count = if keys.architecture == "qwen2moe" { "num_experts" } else { "num_local_experts" };
    fields.insert(count.to_owned(), experts.into());
    fields.insert("num_experts_per_tok".to_owned(), per_token.into());
    let hidden = keys.size_opt("expert_feed_forward_length")?;
    match keys.architecture {
        "qwen2moe" | "qwen3moe" | "qwen3vlmoe" => {
            let hidden = hidden.map_or_else(|| keys.size("expert_feed_forward_length"), Ok)?;
            fields.insert("moe_intermediate_size".to_owned(), hidden.into());
            // llama.cpp normalizes the weights of the later version only.
            fields.insert("norm_topk_prob".to_owned(), (keys.architecture != "qwen2moe").into());
            fields.insert("mlp_only_layers".to_owned(), json!([]));
        }
        "gpt-oss" => {
            if let Some(hidden) = hidden {
                fields.insert("intermediate_size".to_owned(), hidden.into());
            }
        }
        _ => {
            fields.insert("sliding_window".to_owned(), Value::Null);
        }
    }
    if keys.architecture == "qwen2moe" {
        let shared = keys.size("expert_shared_feed_forward_length")?;
        fields.insert("shared_expert_intermediate_size".to_owned(), shared.into());
    }
    Ok(())
}

/// Adds the factors of Granite's models. The file omits a factor of 1.
fn granite_factors(keys: &Keys<'_>, fields: &mut Map<String, Value>) -> Result<()> {
    let factors = [
        ("attention_multiplier", "attention.scale"),
        ("embedding_multiplier", "embedding_scale"),
        ("residual_multiplier", "residual_scale"),
        ("logits_scaling", "logit_scale"),
    ];
    for (field, key) in factors {
        insert(fields, field, keys.number(key)?);
    }
    Ok(())
}

/// Adds the fields of the scale and the caps of scores.
fn gemma_scores(keys: &Keys<'_>, layers: usize, head_dim: usize, fields: &mut Map<String, Value>) -> Result<()> {
    let (features, heads) = (keys.size("embedding_length")?, keys.size("attention.head_count")?);
    // The file does not contain the scale of queries. Like llama.cpp, recognize the models with 27 billion weights,
    // which use features / heads, by their number of layers.
    let is_largest = matches!((keys.architecture, layers), ("gemma2", 46) | ("gemma3", 62));
    let scalar = if is_largest { features.checked_div(heads).unwrap_or(0) } else { head_dim };
    fields.insert("query_pre_attn_scalar".to_owned(), scalar.into());
    for (field, key) in
        [("attn_logit_softcapping", "attn_logit_softcapping"), ("final_logit_softcapping", "final_logit_softcapping")]
    {
        fields.insert(field.to_owned(), keys.number(key)?.into());
    }
    Ok(())
}

/// Adds the fields of rotary positions, with the names of older versions of `transformers`.
fn rotary_positions(keys: &Keys<'_>, head_dim: usize, fields: &mut Map<String, Value>) -> Result<()> {
    let Keys { file, architecture, .. } = keys;
    let theta = keys.number("rope.freq_base")?.unwrap_or(10_000.0);
    fields.insert("rope_theta".to_owned(), theta.into());
    let dimensions = keys.size_opt("rope.dimension_count")?.unwrap_or(head_dim);
    if dimensions != head_dim && !matches!(*architecture, "phi2" | "phi3" | "glm4") {
        return Err(file.error(format!(
            "rotary positions apply to {dimensions} of {head_dim} features, which {architecture} does not support"
        )));
    }
    if dimensions != head_dim || matches!(*architecture, "phi2" | "glm4") {
        fields.insert("partial_rotary_factor".to_owned(), (dimensions as f64 / head_dim as f64).into());
    }
    if let Some(local) = keys.number("rope.freq_base_swa")? {
        fields.insert("rope_local_base_freq".to_owned(), local.into());
    }
    let factor = keys.number("rope.scaling.factor")?;
    let original = keys.size_opt("rope.scaling.original_context_length")?;
    // Older versions of llama.cpp wrote this key.
    let linear_factor = keys.number("rope.scale_linear")?;
    match (keys.get("rope.scaling.type").and_then(MetadataValue::as_str), factor.or(linear_factor)) {
        (Some("none"), _) | (None, None) => {}
        (Some("linear") | None, Some(factor)) => {
            fields.insert("rope_scaling".to_owned(), json!({"rope_type": "linear", "factor": factor}));
        }
        (Some("yarn"), Some(factor)) => {
            let scaling = json!({"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original});
            let mut scaling = object(scaling);
            insert(&mut scaling, "attention_factor", keys.number("rope.scaling.attn_factor")?);
            if *architecture == "gpt-oss" {
                // The bounds of the frequencies are not rounded, which the format does not state.
                scaling.insert("truncate".to_owned(), false.into());
            }
            fields.insert("rope_scaling".to_owned(), scaling.into());
        }
        (kind, factor) => {
            return Err(file.error(format!(
                "its scaling of rotary positions is {kind:?} with the factor {factor:?}, which is not supported"
            )));
        }
    }
    if let Some(factors) = file.read_f32("rope_freqs.weight")? {
        let Some(scaling) = llama3_scaling(&factors, theta, dimensions) else {
            return Err(file.error("its frequency factors `rope_freqs.weight` are not from Llama 3's scaling"));
        };
        fields.insert("rope_scaling".to_owned(), scaling);
    }
    Ok(())
}

/// The constants of Llama 3's scaling, which files do not contain.
const LLAMA3_LOW_FREQ_FACTOR: f64 = 1.0;
const LLAMA3_HIGH_FREQ_FACTOR: f64 = 4.0;
const LLAMA3_ORIGINAL_POSITIONS: f64 = 8192.0;

/// Derives Llama 3's scaling of rotary positions from the factor of each frequency, because files contain only these
/// factors. Returns `None` if the factors are not from this scaling.
fn llama3_scaling(factors: &[f32], theta: f64, dimensions: usize) -> Option<Value> {
    // The largest factor is the factor of the lowest frequency, which is scaled in full.
    let factor = f64::from(factors.iter().copied().fold(1.0, f32::max));
    if factors.len() * 2 != dimensions {
        return None;
    }
    let is_equal = factors.iter().enumerate().all(|(i, found)| {
        let wavelength = 2.0 * std::f64::consts::PI * theta.powf(2.0 * i as f64 / dimensions as f64);
        (f64::from(*found) / llama3_factor(wavelength, factor) - 1.0).abs() < 1e-3
    });
    is_equal.then(|| {
        json!({
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": LLAMA3_LOW_FREQ_FACTOR,
            "high_freq_factor": LLAMA3_HIGH_FREQ_FACTOR,
            "original_max_position_embeddings": LLAMA3_ORIGINAL_POSITIONS as usize,
        })
    })
}

/// The factor that Llama 3's scaling applies to the frequency with this wavelength.
fn llama3_factor(wavelength: f64, factor: f64) -> f64 {
    let turns = LLAMA3_ORIGINAL_POSITIONS / wavelength;
    if turns > LLAMA3_HIGH_FREQ_FACTOR {
        1.0
    } else if turns < LLAMA3_LOW_FREQ_FACTOR {
        factor
    } else {
        let smooth = (turns - LLAMA3_LOW_FREQ_FACTOR) / (LLAMA3_HIGH_FREQ_FACTOR - LLAMA3_LOW_FREQ_FACTOR);
        1.0 / ((1.0 - smooth) / factor + smooth)
    }
}

/// Adds the fields of sliding windows. The pattern in the metadata is a period, or a flag for each layer.
fn windows(keys: &Keys<'_>, layers: usize, fields: &mut Map<String, Value>) -> Result<()> {
    let Some(window) = keys.size_opt("attention.sliding_window")?.filter(|window| *window > 0) else {
        // `null` means no window. Without the field, `transformers` would use a default window.
        if matches!(keys.architecture, "phi3" | "exaone4") {
            fields.insert("sliding_window".to_owned(), Value::Null);
        }
        return Ok(());
    };
    fields.insert("sliding_window".to_owned(), window.into());
    let is_local: Vec<bool> = match (keys.get("attention.sliding_window_pattern"), keys.architecture) {
        (Some(MetadataValue::List(flags)), _) => flags.iter().filter_map(MetadataValue::as_bool).collect(),
        (Some(value), _) => {
            let Some(every) = value.as_usize() else {
                let message = format!("its window pattern is {value:?}, which is not a period or a list of flags");
                return Err(keys.file.error(message));
            };
            (0..layers).map(|layer| every > 0 && !(layer + 1).is_multiple_of(every)).collect()
        }
        (None, "gemma2" | "gpt-oss") => (0..layers).map(|layer| !(layer + 1).is_multiple_of(2)).collect(),
        (None, "gemma3") => (0..layers).map(|layer| !(layer + 1).is_multiple_of(6)).collect(),
        (None, "llama") => {
            // Only Mistral's models have the architecture `llama` and a window.
            fields.insert("model_type".to_owned(), "mistral".into());
            fields.remove("attention_bias");
            return Ok(());
        }
        (None, "phi3") => return Ok(()),
        (None, other) => {
            return Err(keys
                .file
                .error(format!("its window is {window}, but the layers with a window are unknown for {other}")));
        }
    };
    if is_local.len() != layers {
        return Err(keys.file.error(format!("its window pattern has {} entries for {layers} layers", is_local.len())));
    }
    if keys.architecture == "olmo2" {
        // OLMo 3 has the same architecture, with windows. Its rotary positions are scaled only in layers without a window.
        fields.insert("model_type".to_owned(), "olmo3".into());
        let base = fields.remove("rope_theta").unwrap_or_default();
        let mut scaled = object(fields.remove("rope_scaling").unwrap_or_else(|| json!({"rope_type": "default"})));
        scaled.insert("rope_theta".to_owned(), base.clone());
        let plain = json!({"rope_type": "default", "rope_theta": base});
        let ropes = json!({"full_attention": scaled, "sliding_attention": plain});
        fields.insert("rope_parameters".to_owned(), ropes);
    }
    let types = is_local.iter().map(|local| if *local { "sliding_attention" } else { "full_attention" });
    fields.insert("layer_types".to_owned(), types.collect::<Vec<_>>().into());
    Ok(())
}

/// Returns the fields of an object that are not null.
fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map.into_iter().filter(|(_, value)| !value.is_null()).collect(),
        _ => Map::new(),
    }
}

/// Inserts a field if it has a value.
fn insert(fields: &mut Map<String, Value>, name: &str, value: Option<f64>) {
    if let Some(value) = value {
        fields.insert(name.to_owned(), value.into());
    }
}

/// True if this part of the first layer has a bias.
fn has_bias(file: &Gguf, part: &str) -> Value {
    file.has_tensor(&format!("blk.0.{part}.bias")).into()
}
