//! The fields of an object of a configuration. Each field must be read, unless it has no effect.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::OnceLock;

use serde_json::{Map, Value};
use shardax::error::{Error, Result};

use super::config::{MAX_LAYERS, QUANTIZATION, defaults_of};
use super::harmless::{WITHOUT_EFFECT, is_as_if_absent, is_off};
use crate::Activation;
use crate::error::value_error;
use crate::quantized::Method;

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
    pub(super) fn new(file: &'a str, of: String, map: &'a Map<String, Value>) -> Self {
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

    /// Reads an integer from 0 to the largest int32.
    pub fn natural(&self, name: &'a str) -> Result<usize> {
        self.required(name, self.natural_opt(name)?)
    }

    pub fn natural_or(&self, name: &'a str, default: usize) -> Result<usize> {
        Ok(self.natural_opt(name)?.unwrap_or(default))
    }

    fn natural_opt(&self, name: &'a str) -> Result<Option<usize>> {
        self.typed(name, "an integer from 0 to 2147483647", |value| {
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
        // Every class of transformers that masks later positions reads this field, and none declares it. Therefore false is not the
        // same as an absent field.
        if name == "is_causal" {
            return value == &Value::Bool(true);
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
