//! Conversion of a GGUF file's tokenizer to the `tokenizer.json` of Hugging Face's `tokenizers`.

use std::collections::HashMap;

use serde_json::{Map, Value, json};
use shardax::error::Result;

use super::{Gguf, MetadataValue};

// Regular expressions that split a text before byte-pair encoding. Llama 3 keeps up to three digits together, Qwen
// splits numbers into single digits.
const LLAMA3_PIECES: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2_PIECES: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

// Types of tokens in `tokenizer.ggml.token_type`.
const UNKNOWN: i128 = 2;
const CONTROL: i128 = 3;
const USER_DEFINED: i128 = 4;

/// The character that SentencePiece writes for a space.
const SPACE: &str = "\u{2581}";

impl Gguf {
    /// Converts the tokenizer to the format of `tokenizer.json`.
    ///
    /// The supported kinds are `gpt2` (byte-pair encoding, with the pre-tokenizers of GPT-2, Llama 3, Qwen 2 and
    /// SmolLM) and `llama` (SentencePiece).
    ///
    /// # Errors
    /// Returns an error if the file has no tokenizer, or if its kind or its pre-tokenizer is not supported.
    #[track_caller]
    pub fn tokenizer_json(&self) -> Result<String> {
        let location = std::panic::Location::caller();
        self.tokenizer().map(|json| json.to_string()).map_err(|error| error.at(location))
    }

    /// Returns the chat template, if the file has one.
    pub fn chat_template(&self) -> Option<&str> {
        self.metadata.get("tokenizer.chat_template").and_then(MetadataValue::as_str)
    }

    /// Returns the text of a special token, such as `bos`.
    pub(crate) fn special_token(&self, kind: &str) -> Option<&str> {
        let id = self.metadata.get(&format!("tokenizer.ggml.{kind}_token_id")).and_then(MetadataValue::as_usize)?;
        self.list("tokens").get(id).and_then(MetadataValue::as_str)
    }

    /// Returns a list of the tokenizer's metadata, or an empty list if it is missing.
    fn list(&self, key: &str) -> &[MetadataValue] {
        self.metadata.get(&format!("tokenizer.ggml.{key}")).and_then(MetadataValue::as_list).unwrap_or_default()
    }

    fn flag(&self, key: &str, default: bool) -> bool {
        self.metadata.get(&format!("tokenizer.ggml.{key}")).and_then(MetadataValue::as_bool).unwrap_or(default)
    }

    fn tokenizer(&self) -> Result<Value> {
        if let Some(text) = self.metadata.get("tokenizer.huggingface.json").and_then(MetadataValue::as_str) {
            return serde_json::from_str(text)
                .map_err(|error| self.error(format!("its `tokenizer.huggingface.json` is not valid JSON: {error}")));
        }
        let tokens: Option<Vec<&str>> = self.list("tokens").iter().map(MetadataValue::as_str).collect();
        let tokens = tokens.filter(|tokens| !tokens.is_empty());
        let tokens = tokens.ok_or_else(|| self.error("its metadata has no list of strings `tokenizer.ggml.tokens`"))?;
        match self.text("model") {
            Some("gpt2") => self.byte_pairs(&tokens, self.text("pre").unwrap_or("default")),
            Some("llama") => self.sentence_pieces(&tokens),
            other => {
                let message =
                    format!("its tokenizer has the kind {other:?}, but only \"gpt2\" and \"llama\" are supported");
                Err(self.error(message))
            }
        }
    }

    fn text(&self, key: &str) -> Option<&str> {
        self.metadata.get(&format!("tokenizer.ggml.{key}")).and_then(MetadataValue::as_str)
    }

    /// Returns a byte-pair tokenizer.
    fn byte_pairs(&self, tokens: &[&str], pre_tokenizer: &str) -> Result<Value> {
        // A file contains the name of its pre-tokenizer, not the regular expression.
        let (pre_tokenizers, adds_start) = match pre_tokenizer {
            "gpt-2" | "gpt2" => (vec![byte_level(true)], false),
            "llama-bpe" | "llama3" | "llama-v3" => (vec![split_by(LLAMA3_PIECES), byte_level(false)], true),
            "qwen2" | "deepseek-r1-qwen" => (vec![split_by(QWEN2_PIECES), byte_level(false)], false),
            "smollm" => (vec![json!({"type": "Digits", "individual_digits": true}), byte_level(true)], false),
            other => {
                let names = "\"gpt-2\", \"llama-bpe\", \"qwen2\" and \"smollm\"";
                let message = format!("its tokenizer has the pre-tokenizer {other:?}, but only {names} are supported");
                return Err(self.error(message));
            }
        };
        let merges: Option<Vec<Value>> = self
            .list("merges")
            .iter()
            .map(|merge| {
                let (left, right) = merge.as_str()?.split_once(' ')?;
                Some(json!([left, right]))
            })
            .collect();
        let merges = merges.ok_or_else(|| {
            self.error("an entry of `tokenizer.ggml.merges` is not two strings with a space between them")
        })?;
        Ok(json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": self.added_tokens(tokens),
            "normalizer": if pre_tokenizer.contains("qwen") { json!({"type": "NFC"}) } else { Value::Null },
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": pre_tokenizers},
            "post_processor": self.start_and_end(tokens, adds_start),
            "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
            "model": {
                "type": "BPE",
                "dropout": null,
                "unk_token": null,
                "continuing_subword_prefix": null,
                "end_of_word_suffix": null,
                "fuse_unk": false,
                "byte_fallback": false,
                "ignore_merges": adds_start,
                "vocab": vocabulary(tokens),
                "merges": merges,
            },
        }))
    }

    /// Returns a SentencePiece tokenizer. `tokenizers` has no such model, so it becomes a byte-pair tokenizer with byte
    /// fallback and the same results.
    fn sentence_pieces(&self, tokens: &[&str]) -> Result<Value> {
        let scores: Option<Vec<f64>> = self.list("scores").iter().map(MetadataValue::as_f64).collect();
        let scores = scores.filter(|scores| scores.len() == tokens.len());
        let scores =
            scores.ok_or_else(|| self.error("`tokenizer.ggml.scores` does not have one number for each token"))?;
        let adds_space = self.flag("add_space_prefix", true);
        let mut normalizers = vec![replacement(" ", SPACE)];
        let mut decoders = vec![replacement(SPACE, " "), json!({"type": "ByteFallback"}), json!({"type": "Fuse"})];
        if adds_space {
            normalizers.insert(0, json!({"type": "Prepend", "prepend": SPACE}));
            decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
        }
        // The unknown token is known by its type, because its text differs between models.
        let types = self.list("token_type");
        let unknown = types.iter().position(|kind| *kind == MetadataValue::Integer(UNKNOWN));
        Ok(json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": self.added_tokens(tokens),
            "normalizer": {"type": "Sequence", "normalizers": normalizers},
            "pre_tokenizer": null,
            "post_processor": self.start_and_end(tokens, true),
            "decoder": {"type": "Sequence", "decoders": decoders},
            "model": {
                "type": "BPE",
                "dropout": null,
                "unk_token": unknown.map(|id| tokens[id]),
                "continuing_subword_prefix": null,
                "end_of_word_suffix": null,
                "fuse_unk": true,
                "byte_fallback": true,
                "ignore_merges": false,
                "vocab": vocabulary(tokens),
                "merges": merges(tokens, &scores),
            },
        }))
    }

    /// Returns the added tokens, which are never split.
    fn added_tokens(&self, tokens: &[&str]) -> Vec<Value> {
        let kinds = self.list("token_type").iter().zip(tokens).enumerate();
        kinds
            .filter_map(|(id, (kind, content))| {
                let is_special = match kind {
                    MetadataValue::Integer(CONTROL | UNKNOWN) => true,
                    MetadataValue::Integer(USER_DEFINED) => false,
                    _ => return None,
                };
                Some(json!({
                    "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false, "special": is_special,
                }))
            })
            .collect()
    }

    /// Returns the post-processor, which adds the tokens at the start and the end of a text.
    fn start_and_end(&self, tokens: &[&str], adds_start: bool) -> Value {
        let [start, end] = ["bos", "eos"].map(|kind| self.special_token(kind).filter(|token| tokens.contains(token)));
        let start = start.filter(|_| self.flag("add_bos_token", adds_start));
        let end = end.filter(|_| self.flag("add_eos_token", false));
        if start.is_none() && end.is_none() {
            return Value::Null;
        }
        let [first, second] = ["A", "B"].map(|sequence| with_special_tokens(sequence, start, end));
        let (single, pair) = (&first, [&first[..], &second].concat());
        let mut specials = Map::new();
        for token in start.iter().chain(&end) {
            let id = tokens.iter().position(|other| other == token).unwrap_or(0);
            specials.insert((*token).to_owned(), json!({"id": token, "ids": [id], "tokens": [token]}));
        }
        json!({"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": specials})
    }
}

fn vocabulary(tokens: &[&str]) -> Map<String, Value> {
    tokens.iter().enumerate().map(|(id, token)| ((*token).to_owned(), id.into())).collect()
}

/// Converts SentencePiece's scores to merges. Every pair of tokens that forms another token is a merge; those with
/// high scores come first.
fn merges(tokens: &[&str], scores: &[f64]) -> Vec<Value> {
    let ids: HashMap<&str, usize> = tokens.iter().enumerate().map(|(id, token)| (*token, id)).collect();
    let mut merges = Vec::new();
    for (token, score) in tokens.iter().zip(scores) {
        let mut splits: Vec<(&str, &str)> = (token.char_indices().skip(1))
            .map(|(position, _)| token.split_at(position))
            .filter(|(left, right)| ids.contains_key(left) && ids.contains_key(right))
            .collect();
        splits.sort_by_key(|(left, right)| (ids[left], ids[right]));
        merges.extend(splits.into_iter().map(|(left, right)| (*score, left, right)));
    }
    merges.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| lengths(b.1, b.2).cmp(&lengths(a.1, a.2))));
    merges.into_iter().map(|(_, left, right)| json!([left, right])).collect()
}

fn split_by(regex: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false})
}

fn byte_level(use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
}

fn replacement(pattern: &str, content: &str) -> Value {
    json!({"type": "Replace", "pattern": {"String": pattern}, "content": content})
}

/// Returns the template of a sequence between the tokens that start and end a text.
fn with_special_tokens(sequence: &str, start: Option<&str>, end: Option<&str>) -> Vec<Value> {
    let [start, end] =
        [start, end].map(|token| token.map(|token| json!({"SpecialToken": {"id": token, "type_id": 0}})));
    start.into_iter().chain([json!({"Sequence": {"id": sequence, "type_id": 0}})]).chain(end).collect()
}

fn lengths(left: &str, right: &str) -> (usize, usize) {
    (left.chars().count(), right.chars().count())
}
