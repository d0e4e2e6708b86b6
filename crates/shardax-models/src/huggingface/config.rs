//! The reader of `config.json`, which rejects fields that it does not understand.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::sync::OnceLock;

use serde_json::{Map, Value};
use shardax::error::{Error, Result};

use crate::Activation;
use crate::error::{read_small, value_error};
use crate::gguf::Gguf;
use crate::quantized::Method;

/// The configuration of a model of `transformers`: the fields of its `config.json`.
///
/// ```
/// use shardax_models::{Config, Decoder, Pretrained};
/// use shardax_nn::prelude::*;
/// let config = Config::from_json(r#"{"model_type": "llama", "vocab_size": 64, "hidden_size": 16, "intermediate_size":
/// 32,
///     "num_hidden_layers": 2, "num_attention_heads": 4}"#)?;
/// let model = Decoder::from_config(&config, &mut Rngs::new(0))?;
/// assert_eq!(model.blocks.len(), 2);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The file, for messages.
    name: String,
    fields: Map<String, Value>,
}

/// The largest number of layers that a configuration can have. The files of a model bound it further.
pub(crate) const MAX_LAYERS: usize = 100_000;

/// Fields that do not change the results of a trained model.
const WITHOUT_EFFECT: &[&str] = &[
    "_name_or_path",
    "_num_labels",
    "architectures",
    "attn_implementation",
    "auto_map",
    "aux_loss_alpha",
    "cache_implementation",
    "chunk_size_feed_forward",
    "directionality",
    "dtype",
    "embedding_initializer_range",
    "encoder_stride",
    "ep_size",
    "finetuning_task",
    "gradient_checkpointing",
    "id2label",
    "ignore_index",
    "init_std",
    "initializer_cutoff_factor",
    "initializer_factor",
    "initializer_range",
    "initial_context_length",
    "is_llama_config",
    "label2id",
    "language",
    "max_position_embeddings",
    "max_sequence_length",
    "mlm_probability",
    "model_max_length",
    "n_ctx",
    "n_special",
    "num_labels",
    "num_mtp_layers",
    "num_nextn_predict_layers",
    "output_attentions",
    "output_hidden_states",
    "output_past",
    "output_router_logits",
    // AutoTrain writes this option of the tokenizer here.
    "padding",
    "pooler_act",
    "pooler_fc_size",
    "pooler_num_attention_heads",
    "pooler_num_fc_layers",
    "pooler_output_size",
    "pooler_size_per_head",
    "pooler_type",
    "predict_special_tokens",
    "pretraining_tp",
    "problem_type",
    "return_dict",
    "return_dict_in_generate",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "sbert_ce_default_activation_function",
    "sentence_transformers",
    "seq_aux",
    "seq_length",
    "task_specific_params",
    "tokenizer_class",
    "torch_dtype",
    "transformers.js_config",
    "transformers_version",
    "unsloth_fixed",
    "unsloth_version",
    "use_cache",
    // Options of generation, which older versions wrote here too.
    "bad_words_ids",
    "begin_suppress_tokens",
    "diversity_penalty",
    "do_sample",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty",
    "length_penalty",
    "max_length",
    "max_new_tokens",
    "min_length",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_scores",
    "prefix",
    "repetition_penalty",
    "suppress_tokens",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
];

/// Fields that no class has by default, and the values that have no effect.
const ABSENT: &[(&str, &str)] = &[
    ("_attn_implementation_autoset", "true"),
    ("compression_ratio", "1.0"),
    ("full_attn_mod", "1"),
    ("interpolate_factor", "1"),
    ("mlp_type", "\"default\""),
    ("moe_layer_freq", "1"),
    ("norm_type", "\"layer_norm\""),
    ("rotary", "true"),
    ("scale_attn_weights", "true"),
    ("partial_rotary_factor", "1.0"),
    ("partial_rotary_factor", "1"),
    ("position_embedding_type", "\"absolute\""),
    ("scoring_func", "\"sigmoid\""),
    ("topk_method", "\"noaux_tc\""),
    ("norm_type", "\"rms\""),
    ("normalization_function", "\"rmsnorm\""),
    ("pool_type", "\"last\""),
    ("qk_norm", "true"),
    ("use_qk_norm", "true"),
    ("use_rotary_pos_emb", "true"),
];

/// The defaults of the fields of each configuration class in transformers, by model type (`tools/huggingface/defaults.py`).
const DEFAULTS: &str = include_str!("defaults.json");

/// Returns the defaults of the configuration class for a model type.
pub(super) fn defaults_of(model_type: &str) -> Option<&'static Map<String, Value>> {
    static PARSED: OnceLock<Map<String, Value>> = OnceLock::new();
    let classes = PARSED.get_or_init(|| serde_json::from_str(DEFAULTS).unwrap_or_default());
    // transformers has no class for files of this type, which the class of the other type reads.
    let model_type = if model_type == "kimi_k2" { "deepseek_v3" } else { model_type };
    classes.get(model_type)?.as_object()
}

/// Returns `true` for values that turn a feature off.
fn is_off(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(on) => !on,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

impl Config {
    /// Reads the `config.json` of a folder, or the same fields from the metadata of a GGUF file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, if it is not a JSON object, or if a GGUF file has an unknown
    /// architecture.
    #[track_caller]
    pub fn open(folder: impl AsRef<Path>) -> Result<Config> {
        let location = std::panic::Location::caller();
        let folder = folder.as_ref();
        let config = if Gguf::is_named(folder) { read_gguf(folder) } else { open(&folder.join("config.json")) };
        config.map_err(|error| error.at(location))
    }

    /// Reads a configuration from a file with another name.
    pub(super) fn open_file(path: &Path) -> Result<Config> {
        open(path)
    }

    /// Reads a configuration from a text, which must be a JSON object.
    #[track_caller]
    pub fn from_json(text: &str) -> Result<Config> {
        let location = std::panic::Location::caller();
        parse("config.json".to_owned(), text.as_bytes()).map_err(|error| error.at(location))
    }

    /// Returns the field with this name.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.fields.get(name)
    }

    /// Returns the quantization method, if the files have quantized kernels.
    pub(crate) fn quantization(&self) -> Result<Option<Method>> {
        // Some models of text and images have the field in the object of the text.
        let text = ["text_config", "llm_config"].iter().find_map(|name| self.fields.get(*name)?.get(QUANTIZATION));
        let about = self.fields.get(QUANTIZATION).or(text).filter(|about| !about.is_null());
        about.map(Method::of).transpose()
    }

    /// Returns the configuration of the same model without quantization.
    pub(super) fn without_quantization(&self) -> Config {
        let mut config = self.clone();
        config.fields.remove(QUANTIZATION);
        config
    }

    /// Returns the name of the field from which a size that is too large most likely follows, and its value, as text. Returns an empty
    /// text if there is none.
    pub(crate) fn source_of(&self, size: usize) -> String {
        const SUSPICIOUS: u64 = 1_000_000;
        let size = size as u64;
        let integers = self.integers();
        let equal = integers.iter().find(|integer| integer.value == size);
        // The size can be a product of several fields. The largest of all is the cause if it is a large part of the product.
        let largest = integers.iter().filter(|integer| !integer.is_default).max_by_key(|integer| integer.value);
        let largest = largest.filter(|Integer { value, .. }| {
            value.saturating_mul(*value) >= size && (*value > SUSPICIOUS || size.is_multiple_of(*value))
        });
        equal.or(largest).map(|integer| format!(" ({integer})")).unwrap_or_default()
    }

    /// Returns the fields that are one of these sizes, as text, or an empty text.
    pub(crate) fn fields_of_sizes(&self, sizes: &[usize]) -> String {
        self.listed(|integer| sizes.iter().any(|size| *size as u64 == integer.value))
    }

    /// Returns the numbers of layers, as text, or an empty text.
    pub(crate) fn fields_of_layers(&self) -> String {
        self.listed(|integer| integer.name.ends_with("layers") || integer.name.ends_with("n_layer"))
    }

    /// Returns the integers that a function selects, as text for the end of a message.
    fn listed(&self, is_chosen: impl Fn(&Integer) -> bool) -> String {
        const MAX_FIELDS: usize = 4;
        let chosen = self.integers().into_iter().filter(|integer| is_chosen(integer)).take(MAX_FIELDS);
        match &chosen.map(|integer| integer.to_string()).collect::<Vec<_>>()[..] {
            [] => String::new(),
            fields => format!("; in {}, {}", self.name, fields.join(" and ")),
        }
    }

    /// Returns the integers of the file and of its objects that can be sizes, and then the defaults of missing fields.
    fn integers(&self) -> Vec<Integer> {
        let mut integers = Vec::new();
        add_integers(&self.fields, "", &mut integers);
        integers.sort_by_key(|integer| integer.is_default);
        integers
    }

    /// Returns the file, for messages.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the configuration as JSON text.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(&self.fields).unwrap_or_default() + "\n"
    }

    /// Returns the fields. You must read each of them, unless it has no effect.
    pub(crate) fn fields(&self) -> Fields<'_> {
        Fields::new(&self.name, String::new(), &self.fields)
    }

    /// Sets a size.
    pub(super) fn with_size(mut self, name: &str, size: usize) -> Config {
        self.fields.insert(name.to_owned(), Value::from(size));
        self
    }

    /// Sets a flag.
    pub(super) fn with_flag(mut self, name: &str, value: bool) -> Config {
        self.fields.insert(name.to_owned(), Value::Bool(value));
        self
    }

    /// Removes a field. The result describes the model that transformers creates from the other fields.
    ///
    /// ```
    /// use shardax_models::{Config, Decoder, Pretrained};
    /// let config = Config::from_json(r#"{"model_type": "llama", "num_hidden_layers": 1, "sliding_window": 4096}"#)?;
    /// assert!(Decoder::read(&config).is_err());
    /// assert!(Decoder::read(&config.without("sliding_window")).is_ok());
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// The name of a field of an object contains the name of the object, for example `text_config.sliding_window`.
    pub fn without(mut self, name: &str) -> Config {
        remove(&mut self.fields, name);
        self
    }
}

/// An integer of a configuration.
struct Integer {
    /// The name of the field, with the names of the objects that contain it.
    name: String,
    value: u64,
    /// True if the file does not have the field, so that it has the default of the model's class.
    is_default: bool,
}

impl fmt::Display for Integer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = if self.is_default { " by default" } else { "" };
        write!(f, "`{}` is {}{source}", self.name, self.value)
    }
}

/// Adds the integers of an object and of objects inside that can be sizes. `of` is the name of the object and a dot, or empty.
fn add_integers(fields: &Map<String, Value>, of: &str, integers: &mut Vec<Integer>) {
    let model_type = fields.get("model_type").and_then(Value::as_str);
    let defaults = model_type.and_then(defaults_of).into_iter().flatten();
    let defaults = defaults.filter(|(name, _)| !fields.contains_key(*name));
    let entries = fields.iter().map(|entry| (entry, false)).chain(defaults.map(|entry| (entry, true)));
    for ((name, value), is_default) in entries {
        let can_be_size = !WITHOUT_EFFECT.contains(&name.as_str()) || name == "max_position_embeddings";
        let largest = match value {
            Value::Object(object) if !matches!(name.as_str(), "label2id" | "id2label") => {
                add_integers(object, &format!("{of}{name}."), integers);
                None
            }
            Value::Array(list) => list.iter().filter_map(Value::as_u64).max(),
            value => value.as_u64(),
        };
        if let Some(value) = largest.filter(|_| can_be_size && !name.ends_with("_token_id")) {
            integers.push(Integer { name: format!("{of}{name}"), value, is_default });
        }
    }
}

/// Removes a field. The name of a field of an object starts with the name of the object and a dot.
fn remove(fields: &mut Map<String, Value>, name: &str) {
    match name.split_once('.').filter(|_| !fields.contains_key(name)) {
        Some((object, name)) => {
            if let Some(object) = fields.get_mut(object).and_then(Value::as_object_mut) {
                remove(object, name);
            }
        }
        None => {
            fields.remove(name);
        }
    }
}

/// The field that describes how weights are quantized. `Config::quantization` reads it.
const QUANTIZATION: &str = "quantization_config";

fn read_gguf(path: &Path) -> Result<Config> {
    let fields = Gguf::open(path)?.config()?;
    Ok(Config { name: path.display().to_string(), fields })
}

fn open(path: &Path) -> Result<Config> {
    let text =
        read_small(path).map_err(|error| error.help("pass the path of a folder that `save_pretrained` wrote"))?;
    parse(path.display().to_string(), &text)
}

fn parse(name: String, text: &[u8]) -> Result<Config> {
    let fields =
        serde_json::from_slice(text).or_else(|error| without_infinity(text).ok_or(error)).map_err(|error| {
            value_error(
                format!("{name} is not a configuration: {error}"),
                "use a JSON object, such as the `config.json` that `save_pretrained` writes",
            )
        })?;
    Ok(Config { name, fields })
}

/// Reads a text with the number `Infinity`, which Python writes although JSON does not have it. The result has the object
/// that newer versions of transformers write instead.
fn without_infinity(text: &[u8]) -> Option<Map<String, Value>> {
    let text = std::str::from_utf8(text).ok()?;
    // Every second part is between quotes. This is wrong for texts with an escaped quote, but no configuration with an
    // infinity has any.
    let parts = text.split('"').enumerate().map(|(index, part)| match index % 2 {
        0 => part.replace("Infinity", r#"{"__float__": "Infinity"}"#),
        _ => part.to_owned(),
    });
    serde_json::from_str(&parts.collect::<Vec<_>>().join("\"")).ok()
}

/// The fields of an object. It records which fields were read, so that `finish` can reject the others.
pub(crate) struct Fields<'a> {
    file: &'a str,
    /// The name of the object inside the file, with the names of the objects that contain it; empty for the file itself.
    of: String,
    map: &'a Map<String, Value>,
    /// The defaults of the model's class, if the object is the configuration of a model.
    defaults: Option<&'static Map<String, Value>>,
    is_model: bool,
    /// True if rotary positions may have sections for time, rows and columns of images.
    pub(super) has_sections: bool,
    read: RefCell<BTreeSet<&'a str>>,
}

impl<'a> Fields<'a> {
    fn new(file: &'a str, of: String, map: &'a Map<String, Value>) -> Self {
        let model_type = map.get("model_type").and_then(Value::as_str);
        let is_model = of.is_empty() || model_type.is_some();
        let defaults = model_type.and_then(defaults_of);
        let has_sections = model_type.is_some_and(has_sections);
        Fields { file, of, map, defaults, is_model, has_sections, read: RefCell::default() }
    }

    /// Returns the error for a field that is not supported.
    pub fn error(&self, what: impl fmt::Display) -> Error {
        let object = if self.of.is_empty() { String::new() } else { format!("{:?} of ", self.of) };
        let message = format!("{object}{} is not the configuration of a supported model: {what}", self.file);
        value_error(
            message,
            "convert the model to a supported type, or load its weights into your own model with `KeyMap` and `load`",
        )
    }

    /// Returns the value with this name, or the default of the model's class. Returns `None` for null.
    fn get(&self, name: &'a str) -> Option<&'a Value> {
        self.read.borrow_mut().insert(name);
        let value = self.map.get(name).or_else(|| self.defaults?.get(name));
        value.filter(|value| !value.is_null())
    }

    /// Returns the value with this name, which can have any type.
    pub fn value(&self, name: &'a str) -> Option<&'a Value> {
        self.get(name)
    }

    /// Returns `true` if the file has a field with this name that is not null.
    pub fn has(&self, name: &str) -> bool {
        self.map.get(name).is_some_and(|value| !value.is_null())
    }

    /// Returns `true` if the file has null for this field.
    pub fn is_null(&self, name: &str) -> bool {
        self.map.get(name).is_some_and(Value::is_null)
    }

    /// Returns `true` if the object describes a model of this type.
    pub fn has_type(&self, model_type: &str) -> bool {
        self.map.get("model_type").and_then(Value::as_str) == Some(model_type)
    }

    /// Returns `true` if the object has no fields.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Converts the value with this name. Returns an error if `of` cannot convert it.
    fn typed<T>(&self, name: &'a str, kind: &str, of: impl Fn(&'a Value) -> Option<T>) -> Result<Option<T>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        of(value).map(Some).ok_or_else(|| self.error(format!("field `{name}` must be {kind}, got {}", shown(value))))
    }

    fn required<T>(&self, name: &str, value: Option<T>) -> Result<T> {
        value.ok_or_else(|| self.error(format!("missing field `{name}`")))
    }

    pub fn size_opt(&self, name: &'a str) -> Result<Option<usize>> {
        self.typed(name, "a positive integer", |value| {
            value.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0)
        })
    }

    pub fn size(&self, name: &'a str) -> Result<usize> {
        self.required(name, self.size_opt(name)?)
    }

    /// Reads a number of layers or of other parts, which must be at most `MAX_LAYERS`.
    pub fn layers(&self, name: &'a str) -> Result<usize> {
        match self.size(name)? {
            layers if layers > MAX_LAYERS => {
                Err(self.error(format!("field `{name}` is {layers}, but can be at most {MAX_LAYERS}")))
            }
            layers => Ok(layers),
        }
    }

    /// Reads an integer of at least 0 that int32 can hold.
    pub fn natural(&self, name: &'a str) -> Result<usize> {
        self.required(name, self.natural_opt(name)?)
    }

    pub fn natural_or(&self, name: &'a str, default: usize) -> Result<usize> {
        Ok(self.natural_opt(name)?.unwrap_or(default))
    }

    fn natural_opt(&self, name: &'a str) -> Result<Option<usize>> {
        self.typed(name, "an integer of at least 0", |value| {
            let number = value.as_f64().filter(|number| number.fract() == 0.0)?;
            (0.0..=f64::from(i32::MAX)).contains(&number).then_some(number as usize)
        })
    }

    pub fn number_opt(&self, name: &'a str) -> Result<Option<f64>> {
        let (range, is_valid) = range_of(name);
        self.typed(name, range, |value| {
            value.as_f64().filter(|number| number.abs() <= f64::from(f32::MAX) && is_valid(*number))
        })
    }

    pub fn number(&self, name: &'a str) -> Result<f64> {
        self.required(name, self.number_opt(name)?)
    }

    pub fn number_or(&self, name: &'a str, default: f64) -> Result<f64> {
        Ok(self.number_opt(name)?.unwrap_or(default))
    }

    /// Reads a list of numbers.
    pub fn numbers(&self, name: &'a str) -> Result<Vec<f64>> {
        let list = self.required(name, self.list_opt(name)?)?;
        let numbers: Option<Vec<f64>> = list.iter().map(Value::as_f64).collect();
        numbers.ok_or_else(|| self.error(format!("field `{name}` must be a list of numbers")))
    }

    /// Reads a list of at least one positive integer.
    pub fn size_list(&self, name: &'a str) -> Result<Vec<usize>> {
        let list = self.required(name, self.list_opt(name)?)?;
        let sizes = list.iter().map(|value| usize::try_from(value.as_u64()?).ok().filter(|size| *size > 0));
        sizes
            .collect::<Option<Vec<usize>>>()
            .filter(|sizes| !sizes.is_empty())
            .ok_or_else(|| self.error(format!("field `{name}` must be a list of positive integers")))
    }

    pub fn flag_or(&self, name: &'a str, default: bool) -> Result<bool> {
        Ok(self.typed(name, "true or false", Value::as_bool)?.unwrap_or(default))
    }

    pub fn flag(&self, name: &'a str) -> Result<bool> {
        self.flag_or(name, false)
    }

    pub fn text_opt(&self, name: &'a str) -> Result<Option<&'a str>> {
        self.typed(name, "a text", Value::as_str)
    }

    pub fn text(&self, name: &'a str) -> Result<&'a str> {
        self.required(name, self.text_opt(name)?)
    }

    pub fn list_opt(&self, name: &'a str) -> Result<Option<&'a Vec<Value>>> {
        self.typed(name, "a list", Value::as_array)
    }

    /// Returns the class that `architectures` names, if there is one.
    pub fn class(&self) -> Result<Option<&'a str>> {
        let Some(first) = self.list_opt("architectures")?.and_then(|list| list.first()) else { return Ok(None) };
        let message = || self.error(format!("`architectures` must be a list of texts, got {}", shown(first)));
        first.as_str().map(Some).ok_or_else(message)
    }

    /// Reads the object with this name. You must call `finish` on the result too.
    pub fn object_opt(&self, name: &'a str) -> Result<Option<Fields<'a>>> {
        let map = self.typed(name, "an object", Value::as_object)?;
        Ok(map.map(|map| Fields::new(self.file, self.path_of(name), map)))
    }

    /// Reads the configuration of a part of a model. If the object is missing, all fields have the defaults of the
    /// part's type.
    pub fn model(&self, name: &'a str, model_type: &str) -> Result<Fields<'a>> {
        static NO_FIELDS: OnceLock<Map<String, Value>> = OnceLock::new();
        let map = self.typed(name, "an object", Value::as_object)?;
        let map = map.unwrap_or_else(|| NO_FIELDS.get_or_init(Map::new));
        let fields = Fields {
            defaults: defaults_of(model_type),
            is_model: true,
            has_sections: has_sections(model_type),
            ..Fields::new(self.file, self.path_of(name), map)
        };
        fields.skip(&["model_type"]);
        Ok(fields)
    }

    /// Returns these fields with the defaults of another class.
    pub fn with_defaults_of(&self, model_type: &str) -> Fields<'a> {
        let has_sections = has_sections(model_type);
        Fields { defaults: defaults_of(model_type), has_sections, ..Fields::new(self.file, self.of.clone(), self.map) }
    }

    /// Returns all entries.
    pub fn entries(&self) -> impl Iterator<Item = (&'a String, &'a Value)> {
        self.map.iter()
    }

    /// Returns the name of a field with the names of the objects that contain it.
    fn path_of(&self, name: &str) -> String {
        if self.of.is_empty() { name.to_owned() } else { format!("{}.{name}", self.of) }
    }

    /// Marks all fields as read.
    pub fn skip_all(&self) {
        self.read.borrow_mut().extend(self.map.keys().map(String::as_str));
    }

    /// Returns the number of entries of an object.
    pub fn count_opt(&self, name: &'a str) -> Result<Option<usize>> {
        Ok(self.typed(name, "an object", Value::as_object)?.map(Map::len))
    }

    /// Reads an activation from the field with this name.
    pub fn activation(&self, name: &'a str) -> Result<Activation> {
        self.activation_named(name, self.text(name)?)
    }

    /// Returns the activation that the text of a field names.
    pub fn activation_named(&self, field: &str, name: &str) -> Result<Activation> {
        Ok(match name {
            "gelu" | "gelu_python" => Activation::Gelu,
            "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" | "gelu_accurate" => Activation::GeluTanh,
            "quick_gelu" => Activation::QuickGelu,
            "silu" | "swish" => Activation::Silu,
            "relu" => Activation::Relu,
            "relu6" => Activation::Relu6,
            "relu2" => Activation::ReluSquared,
            "xielu" => Activation::Xielu,
            other => {
                return Err(
                    self.error(format!("field `{field}` is {other:?}, but the activation {other:?} is not supported"))
                );
            }
        })
    }

    /// Returns an error unless the field with this name has the value that follows from another field.
    pub fn check_size(&self, name: &'a str, expected: usize) -> Result<()> {
        match self.size(name)? {
            size if size == expected => Ok(()),
            size => Err(self.error(format!("field `{name}` must be {expected}, got {size}"))),
        }
    }

    /// Returns an error unless `divisor` divides `all`. Each is the name and the value of a number.
    pub fn divides(&self, (divisor, by): (&str, usize), (all, of): (&str, usize)) -> Result<()> {
        if by > 0 && of.is_multiple_of(by) {
            Ok(())
        } else {
            Err(self.error(format!("{divisor} ({by}) does not divide {all} ({of})")))
        }
    }

    /// Marks fields as read, because they have no effect or because another field replaces them.
    pub fn skip(&self, names: &[&'a str]) {
        self.read.borrow_mut().extend(names);
    }

    /// Returns an error if a field was not read, unless it is false or empty.
    pub fn finish_but_empty(&self) -> Result<()> {
        let off = self.map.iter().filter(|(_, value)| is_off(value)).map(|(name, _)| name.as_str());
        self.read.borrow_mut().extend(off);
        self.finish()
    }

    /// Returns an error if a field was not read and may have an effect.
    pub fn finish(&self) -> Result<()> {
        match self.map.iter().find(|(name, value)| !self.is_understood(name, value)) {
            None => Ok(()),
            Some((name, value)) => {
                if name == QUANTIZATION {
                    Method::of(value)?;
                }
                let message = format!("field `{name}` is {}, which this model does not have", shown(value));
                let name = self.path_of(name);
                Err(self.error(message).help(format!(
                    "if it has no effect here, load without it: `LoadOptions::new().ignore_field({name:?})`, or \
                     `Config::open(folder)?.without({name:?})`"
                )))
            }
        }
    }

    /// Returns `true` if a field was read or has no effect. The latter follows from its name, from its value if this is
    /// the default of the model's class, or because it turns off a feature that the class does not have.
    fn is_understood(&self, name: &str, value: &Value) -> bool {
        if value.is_null() || self.read.borrow().contains(name) {
            return true;
        }
        if name == QUANTIZATION && Method::of(value).is_ok() {
            return true;
        }
        if !self.is_model {
            return false;
        }
        let without_effect = name.contains("dropout")
            || name.ends_with("_pdrop")
            || name.ends_with("_token_id")
            || name.ends_with("_token_index")
            || name.starts_with("summary_")
            || WITHOUT_EFFECT.contains(&name);
        without_effect
            || match self.defaults.and_then(|defaults| defaults.get(name)) {
                Some(default) => is_equal(default, value),
                None => is_off(value) || is_as_if_absent(name, value),
            }
    }
}

/// The range of numbers in a field with this name, in words and as a function. Outside of the range, all results of a model would be
/// infinite or not numbers.
fn range_of(name: &str) -> (&'static str, fn(f64) -> bool) {
    const POSITIVE: [&str; 9] = [
        "attn_logit_softcapping",
        "final_logit_softcapping",
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "beta_fast",
        "original_max_position_embeddings",
        "query_pre_attn_scalar",
        "rotary_emb_base",
    ];
    if POSITIVE.contains(&name) || name.contains("theta") {
        ("a finite number above 0", |number| number > 0.0)
    } else if name.ends_with("eps") || name.ends_with("epsilon") {
        ("a finite number of at least 0", |number| number >= 0.0)
    } else {
        ("a finite number", |_| true)
    }
}

/// Returns `true` if a field with this value has the same effect as a missing field.
fn is_as_if_absent(name: &str, value: &Value) -> bool {
    ABSENT.iter().any(|(other, text)| *other == name && *text == value.to_string().as_str())
}

/// Returns `true` if the rotary positions of this model type have sections.
fn has_sections(model_type: &str) -> bool {
    let is_qwen = model_type.starts_with("qwen") && ["_omni", "qwen3_5"].iter().any(|part| model_type.contains(part));
    is_qwen
        || matches!(model_type, "cosmos3_edge_text" | "cohere_compass_text")
        || model_type.contains("_vl")
        || ["glm4v", "glm_ocr"].iter().any(|start| model_type.starts_with(start))
}

/// Returns `true` if two values are equal. `1` equals `1.0`.
fn is_equal(a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a == b,
        _ => a == b,
    }
}

/// Returns a value as text, shortened for messages.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
