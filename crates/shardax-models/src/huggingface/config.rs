//! `config.json`, of which every field must be understood.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Map, Value};
use shardax::error::{Error, Result};
use shardax_nn::prelude::*;

use crate::Activation;
use crate::error::{read_small, value_error};
use crate::gguf::Gguf;
use crate::quantized::Method;

/// The configuration of a model of `transformers`: what `config.json` holds.
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

/// More layers are no model; the files bound them further.
const MOST_LAYERS: usize = 100_000;

/// Fields that change no result of a trained model.
const WITHOUT_EFFECT: &[&str] = &[
    "_name_or_path",
    "architectures",
    "attn_implementation",
    "auto_map",
    "cache_implementation",
    "chunk_size_feed_forward",
    "dtype",
    "encoder_stride",
    "gradient_checkpointing",
    "id2label",
    "initializer_factor",
    "initializer_range",
    "label2id",
    "max_position_embeddings",
    "n_ctx",
    "output_attentions",
    "output_hidden_states",
    "pooler_act",
    "pooler_output_size",
    "problem_type",
    "return_dict",
    "task_specific_params",
    "tokenizer_class",
    "torch_dtype",
    "transformers_version",
    "use_cache",
];

/// Fields that other models have, and their value in those that do not use them.
const ABSENT: &[(&str, &str)] = &[
    ("add_cross_attention", "false"),
    ("is_decoder", "false"),
    ("is_encoder_decoder", "false"),
    ("partial_rotary_factor", "1.0"),
    ("position_embedding_type", "\"absolute\""),
    ("pretraining_tp", "1"),
    ("pruned_heads", "{}"),
    ("qk_layernorm", "false"),
    ("reorder_and_upcast_attn", "false"),
    ("scale_attn_by_inverse_layer_idx", "false"),
    ("scale_attn_weights", "true"),
    ("use_bidirectional_attention", "false"),
    ("use_sliding_window", "false"),
    ("attention_bias", "false"),
    ("mlp_bias", "false"),
    ("use_bias", "false"),
];

impl Config {
    /// The `config.json` of a folder, or the same fields from a GGUF file's metadata.
    ///
    /// Fails when it cannot be read, when it is no JSON object, and for a GGUF file of an unknown architecture.
    #[track_caller]
    pub fn open(folder: impl AsRef<Path>) -> Result<Config> {
        let location = std::panic::Location::caller();
        let folder = folder.as_ref();
        let config = if Gguf::is_named(folder) { of_gguf(folder) } else { open(&folder.join("config.json")) };
        config.map_err(|error| error.at(location))
    }

    /// A file of another name.
    pub(super) fn open_file(path: &Path) -> Result<Config> {
        open(path)
    }

    /// The configuration in a text.
    ///
    /// Fails when it is no JSON object.
    #[track_caller]
    pub fn from_json(text: &str) -> Result<Config> {
        let location = std::panic::Location::caller();
        parse("config.json".to_owned(), text.as_bytes()).map_err(|error| error.at(location))
    }

    /// The field of this name.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.fields.get(name)
    }

    /// The way in which the files have quantized kernels, if they do.
    pub(crate) fn quantization(&self) -> Result<Option<Method>> {
        self.fields.get(QUANTIZATION).map(Method::of).transpose()
    }

    /// The configuration of the same model with ordinary weights.
    pub(super) fn without_quantization(&self) -> Config {
        let mut config = self.clone();
        config.fields.remove(QUANTIZATION);
        config
    }

    /// The configuration as text.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(&self.fields).unwrap_or_default() + "\n"
    }

    /// The fields, each of which must be read or be without effect.
    pub(super) fn fields(&self) -> Fields<'_> {
        Fields { file: &self.name, of: "", map: &self.fields, read: RefCell::default() }
    }
}

/// The field that says how weights are quantized. `Config::quantization` reads it.
const QUANTIZATION: &str = "quantization_config";

fn of_gguf(path: &Path) -> Result<Config> {
    let fields = Gguf::open(path)?.config()?;
    Ok(Config { name: path.display().to_string(), fields })
}

fn open(path: &Path) -> Result<Config> {
    let text = read_small(path).map_err(|error| error.help("give the folder that `save_pretrained` wrote"))?;
    parse(path.display().to_string(), &text)
}

fn parse(name: String, text: &[u8]) -> Result<Config> {
    let fields = serde_json::from_slice(text).map_err(|error| {
        value_error(
            format!("{name} is not a configuration: {error}"),
            "give a JSON object, as `save_pretrained` wrote it",
        )
    })?;
    Ok(Config { name, fields })
}

/// The fields of an object, of which those that are read are noted.
pub(super) struct Fields<'a> {
    file: &'a str,
    /// The object inside the file.
    of: &'a str,
    map: &'a Map<String, Value>,
    read: RefCell<BTreeSet<&'a str>>,
}

impl<'a> Fields<'a> {
    /// The error of a field.
    pub fn error(&self, what: impl std::fmt::Display) -> Error {
        let of = if self.of.is_empty() { String::new() } else { format!("{:?} of ", self.of) };
        let what = format!("{of}{} is not the configuration of a model that is known: {what}", self.file);
        value_error(what, "convert the model, or load its weights into a model of your own with `KeyMap` and `load`")
    }

    /// The value of this name, unless it is missing or null.
    fn get(&self, name: &'a str) -> Option<&'a Value> {
        self.read.borrow_mut().insert(name);
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// The value of this name as another type.
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

    /// A number of layers, which is bounded.
    pub fn layers(&self, name: &'a str) -> Result<usize> {
        match self.size(name)? {
            layers if layers > MOST_LAYERS => {
                Err(self.error(format!("field `{name}` is {layers}, and no model has more than {MOST_LAYERS} layers")))
            }
            layers => Ok(layers),
        }
    }

    pub fn number_opt(&self, name: &'a str) -> Result<Option<f64>> {
        self.typed(name, "a number", Value::as_f64)
    }

    pub fn number_or(&self, name: &'a str, default: f64) -> Result<f64> {
        Ok(self.number_opt(name)?.unwrap_or(default))
    }

    /// A number that null switches off.
    pub fn nullable_or(&self, name: &'a str, default: f64) -> Result<Option<f64>> {
        match self.map.contains_key(name) {
            true => self.number_opt(name),
            false => Ok(Some(default)),
        }
    }

    pub fn flag_or(&self, name: &'a str, default: bool) -> Result<bool> {
        Ok(self.typed(name, "true or false", Value::as_bool)?.unwrap_or(default))
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

    /// The object of this name, whose fields are read by the result.
    pub fn object_opt(&self, name: &'a str) -> Result<Option<Fields<'a>>> {
        let map = self.typed(name, "an object", Value::as_object)?;
        Ok(map.map(|map| Fields { file: self.file, of: name, map, read: RefCell::default() }))
    }

    /// The number of entries of an object.
    pub fn count_opt(&self, name: &'a str) -> Result<Option<usize>> {
        Ok(self.typed(name, "an object", Value::as_object)?.map(Map::len))
    }

    /// The activation of this name.
    pub fn activation(&self, name: &'a str, default: &'a str) -> Result<Activation> {
        Ok(match self.text_opt(name)?.unwrap_or(default) {
            "gelu" => Activation::Gelu,
            "gelu_new" | "gelu_pytorch_tanh" => Activation::GeluTanh,
            "silu" | "swish" => Activation::Silu,
            "relu" => Activation::Relu,
            other => return Err(self.error(format!("the activation {other:?} is not known"))),
        })
    }

    /// Fails unless `divisor` divides `all`; both are numbers of a configuration.
    pub fn divides(&self, (divisor, by): (&str, usize), (all, of): (&str, usize)) -> Result<()> {
        match by > 0 && of.is_multiple_of(by) {
            true => Ok(()),
            false => Err(self.error(format!("{divisor} ({by}) does not divide {all} ({of})"))),
        }
    }

    /// Marks fields that another one replaces as read.
    pub fn skip(&self, names: &[&'a str]) {
        self.read.borrow_mut().extend(names);
    }

    /// Fails where a field was not read that is neither false nor empty.
    pub fn finish_but_empty(&self) -> Result<()> {
        let empty = |value: &Value| match value {
            Value::Bool(on) => !on,
            Value::Array(list) => list.is_empty(),
            Value::Object(map) => map.is_empty(),
            _ => false,
        };
        self.read.borrow_mut().extend(self.map.iter().filter(|(_, value)| empty(value)).map(|(name, _)| name.as_str()));
        self.finish()
    }

    /// Fails where a field was not read, and may have an effect.
    pub fn finish(&self) -> Result<()> {
        let read = self.read.borrow();
        let understood = |name: &str, value: &Value| {
            let without_effect = name.contains("dropout")
                || name.ends_with("_pdrop")
                || name.ends_with("_token_id")
                || name.starts_with("summary_")
                || WITHOUT_EFFECT.contains(&name);
            let absent = || ABSENT.iter().any(|(other, text)| *other == name && *text == value.to_string().as_str());
            let is_quantization = || name == QUANTIZATION && Method::of(value).is_ok();
            read.contains(name)
                || value.is_null()
                || is_quantization()
                || (self.of.is_empty() && (without_effect || absent()))
        };
        match self.map.iter().find(|(name, value)| !understood(name, value)) {
            None => Ok(()),
            Some((name, value)) => {
                Err(self.error(format!("field `{name}` is {}, which this model does not have", shown(value))))
            }
        }
    }
}

/// A value as text that is not too long.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// Rotary positions, of `rope_parameters` or of the older `rope_scaling` and `rope_theta`.
pub(super) fn rope(fields: &Fields, theta: f64, head_dim: usize, partial: Option<f64>) -> Result<Rope> {
    let theta = fields.number_or("rope_theta", theta)?;
    let (new, old) = (fields.object_opt("rope_parameters")?, fields.object_opt("rope_scaling")?);
    let partial = match partial {
        Some(default) => Some(fields.number_or("partial_rotary_factor", default)?),
        None => None,
    };
    match new.or(old) {
        Some(about) => scaled_rope(&about, theta, head_dim, partial),
        None => turned(fields, Rope::new(theta), head_dim, partial),
    }
}

/// Rotary positions as an object describes them.
pub(super) fn scaled_rope(about: &Fields, theta: f64, head_dim: usize, partial: Option<f64>) -> Result<Rope> {
    let number = |name| about.required(name, about.number_opt(name)?);
    let kind = match about.text_opt("rope_type")? {
        Some(kind) => Some(kind),
        None => about.text_opt("type")?,
    };
    about.skip(&["type"]);
    let scaling = match kind {
        None | Some("default") => RopeScaling::None,
        Some("linear") => RopeScaling::Linear(number("factor")?),
        Some("llama3") => RopeScaling::Llama3 {
            factor: number("factor")?,
            low_freq_factor: number("low_freq_factor")?,
            high_freq_factor: number("high_freq_factor")?,
            original_max_position: number("original_max_position_embeddings")?,
        },
        Some(other) => return Err(about.error(format!("rotary positions of the kind {other:?} are not known"))),
    };
    let theta = about.number_or("rope_theta", theta)?;
    let partial = match (about.number_opt("partial_rotary_factor")?, partial) {
        (Some(share), None) if share != 1.0 => {
            return Err(
                about.error(format!("field `partial_rotary_factor` is {share}, which this model does not have"))
            );
        }
        (share, default) => share.or(default),
    };
    about.finish()?;
    turned(about, Rope::new(theta).scaling(scaling), head_dim, partial)
}

/// Turns a part of the features of each head.
fn turned(about: &Fields, rope: Rope, head_dim: usize, partial: Option<f64>) -> Result<Rope> {
    let share = partial.unwrap_or(1.0);
    let features = (head_dim as f64 * share) as usize;
    match share {
        1.0 => Ok(rope),
        _ if share > 0.0 && share < 1.0 && features > 0 && features.is_multiple_of(2) => Ok(rope.rotary_dim(features)),
        _ => Err(about.error(format!("`partial_rotary_factor` of {share} turns {features} features of {head_dim}"))),
    }
}
