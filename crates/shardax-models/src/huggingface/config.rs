//! The reader of `config.json`, which rejects fields that it does not understand.

use std::fmt;
use std::path::Path;
use std::sync::OnceLock;

use serde_json::{Map, Value};
use shardax::error::Result;

use super::fields::Fields;
use super::harmless::WITHOUT_EFFECT;
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
pub(super) const QUANTIZATION: &str = "quantization_config";

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
