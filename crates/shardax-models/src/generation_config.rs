//! Generation options from `generation_config.json`.

use std::path::Path;

use serde_json::{Map, Value};
use shardax::error::Result;

use crate::GenerateOptions;
use crate::error::{read_small, value_error};
use crate::gguf::{Gguf, MetadataValue};

/// Fields that do not change the generated tokens.
const WITHOUT_EFFECT: [&str; 12] = [
    "_from_model_config",
    "bos_token_id",
    "pad_token_id",
    "decoder_start_token_id",
    "transformers_version",
    "use_cache",
    "cache_implementation",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "return_dict_in_generate",
    "max_length",
];

/// Fields of unsupported generation methods, with the values that disable them.
const DISABLED: [(&str, &[f64]); 14] = [
    ("num_beams", &[1.0]),
    ("num_beam_groups", &[1.0]),
    ("num_return_sequences", &[1.0]),
    ("typical_p", &[1.0]),
    ("epsilon_cutoff", &[0.0]),
    ("eta_cutoff", &[0.0]),
    ("penalty_alpha", &[0.0]),
    ("diversity_penalty", &[0.0]),
    ("encoder_repetition_penalty", &[1.0]),
    ("length_penalty", &[1.0]),
    ("min_length", &[0.0]),
    ("guidance_scale", &[1.0]),
    ("top_h", &[1.0]),
    ("early_stopping", &[]),
];

impl GenerateOptions {
    /// Reads the options from `generation_config.json` in a folder, or from a GGUF file.
    ///
    /// The file contains the stop tokens and, with `do_sample`, the options of sampling. `max_new_tokens` replaces the
    /// value in the file. If the folder has no `generation_config.json`, the stop tokens are read from `config.json`.
    ///
    /// # Errors
    /// Returns an error if a file is missing or damaged, or if it has an unsupported field that would change the
    /// tokens, such as `num_beams`.
    #[track_caller]
    pub fn from_pretrained(folder: impl AsRef<Path>, max_new_tokens: usize) -> Result<GenerateOptions> {
        let location = std::panic::Location::caller();
        let folder = folder.as_ref();
        let options = if Gguf::is_named(folder) {
            read_gguf(folder, max_new_tokens)
        } else {
            read_folder(folder, max_new_tokens)
        };
        options.map_err(|error| error.at(location))
    }
}

fn read_gguf(path: &Path, max_new_tokens: usize) -> Result<GenerateOptions> {
    let file = Gguf::open(path)?;
    let ends = ["eos", "eot", "eom"].map(|kind| file.metadata().get(&format!("tokenizer.ggml.{kind}_token_id")));
    let ends = ends.into_iter().flatten().filter_map(MetadataValue::as_usize).filter_map(|id| i32::try_from(id).ok());
    Ok(GenerateOptions::new(max_new_tokens).stop_tokens(ends))
}

fn read_folder(folder: &Path, max_new_tokens: usize) -> Result<GenerateOptions> {
    let path = folder.join("generation_config.json");
    let exists = path.exists();
    let path = if exists { path } else { folder.join("config.json") };
    let fields: Map<String, Value> = serde_json::from_slice(&read_small(&path)?).map_err(|error| {
        value_error(format!("{} is not a JSON object: {error}", path.display()), "download the file again")
    })?;
    let fields = Fields { path: &path, fields };
    let ends = fields.tokens("eos_token_id")?;
    if exists {
        fields.options(GenerateOptions::new(max_new_tokens).stop_tokens(ends))
    } else {
        Ok(GenerateOptions::new(max_new_tokens).stop_tokens(ends))
    }
}

/// The fields of a JSON file.
struct Fields<'a> {
    path: &'a Path,
    fields: Map<String, Value>,
}

impl Fields<'_> {
    /// Returns the value of a field, or `None` if it is missing or null.
    fn get(&self, name: &str) -> Option<&Value> {
        self.fields.get(name).filter(|value| !value.is_null())
    }

    fn error(&self, name: &str, what: &str) -> shardax::Error {
        let value = self.fields.get(name).map(Value::to_string).unwrap_or_default();
        let message = format!("field `{name}` of {} is {value}, {what}", self.path.display());
        value_error(message, "remove the field from the file, and set the options with `GenerateOptions` instead")
    }

    fn number(&self, name: &str) -> Result<Option<f64>> {
        self.get(name).map(|value| value.as_f64().ok_or_else(|| self.error(name, "which is not a number"))).transpose()
    }

    fn size(&self, name: &str) -> Result<Option<usize>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let size = value.as_u64().and_then(|size| usize::try_from(size).ok());
        size.map(Some).ok_or_else(|| self.error(name, "which is not a size"))
    }

    /// Returns the tokens of a field, which is a token or a list of tokens.
    fn tokens(&self, name: &str) -> Result<Vec<i32>> {
        let tokens = match self.get(name) {
            None => Some(Vec::new()),
            Some(Value::Array(list)) => list.iter().map(as_token).collect(),
            Some(value) => as_token(value).map(|token| vec![token]),
        };
        tokens.ok_or_else(|| self.error(name, "which is not a token or a list of tokens"))
    }

    /// Sets the options that the file has. Fields that are false or null are disabled features and have no effect.
    fn options(&self, mut options: GenerateOptions) -> Result<GenerateOptions> {
        const SUPPORTED: [&str; 12] = [
            "eos_token_id",
            "do_sample",
            "temperature",
            "top_k",
            "top_p",
            "min_p",
            "repetition_penalty",
            "no_repeat_ngram_size",
            "suppress_tokens",
            "min_new_tokens",
            "max_new_tokens",
            "chat_format",
        ];
        if self.get("do_sample").and_then(Value::as_bool) == Some(true) {
            options = options.temperature(self.number("temperature")?.unwrap_or(1.0));
            // 50 is the default of `transformers`, where 0 disables the limit.
            let top_k = self.size("top_k")?.unwrap_or(50);
            options = if top_k > 0 { options.top_k(top_k) } else { options };
            options = self.number("top_p")?.into_iter().fold(options, GenerateOptions::top_p);
            options = self.number("min_p")?.into_iter().fold(options, GenerateOptions::min_p);
        }
        options = self.number("repetition_penalty")?.into_iter().fold(options, GenerateOptions::repetition_penalty);
        options = self.size("min_new_tokens")?.into_iter().fold(options, GenerateOptions::min_new_tokens);
        options =
            options.logit_bias(self.tokens("suppress_tokens")?.into_iter().map(|token| (token, f32::NEG_INFINITY)));
        if let Some(length) = self.size("no_repeat_ngram_size")?.filter(|length| *length > 0) {
            options = options.no_repeat_ngram(length);
        }
        for (name, value) in &self.fields {
            let is_known = SUPPORTED.contains(&name.as_str()) || WITHOUT_EFFECT.contains(&name.as_str());
            let is_disabled = match DISABLED.iter().find(|(other, _)| other == name) {
                Some((_, disabled)) => {
                    value.as_bool() == Some(false) || value.as_f64().is_some_and(|value| disabled.contains(&value))
                }
                None => matches!(value, Value::Bool(false)),
            };
            if !is_known && !is_disabled && !value.is_null() {
                return Err(self.error(name, "which is not supported and would change the tokens"));
            }
        }
        options.check()?;
        Ok(options)
    }
}

fn as_token(value: &Value) -> Option<i32> {
    value.as_i64().and_then(|id| i32::try_from(id).ok())
}
