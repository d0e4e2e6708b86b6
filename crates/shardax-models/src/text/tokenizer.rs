//! Tokenizers.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use shardax::error::{Error, ErrorKind, Result};

use super::ChatTemplate;
use crate::error::{read_small, value_error};
use crate::gguf::Gguf;

/// The tokenizer of a model, with its chat template if it has one. Cloning a tokenizer is cheap.
///
/// ```
/// use shardax_models::text::Tokenizer;
/// let tokenizer = Tokenizer::from_json(r#"{"model": {"type": "WordLevel", "unk_token": "?", "vocab": {"?": 0, "hello": 1, "world": 2}},
///     "pre_tokenizer": {"type": "Whitespace"}}"#)?;
/// assert_eq!(tokenizer.encode("hello new world")?, [1, 0, 2]);
/// assert_eq!(tokenizer.decode(&[1, 2])?, "hello world");
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<tokenizers::Tokenizer>,
    chat: Option<Arc<ChatTemplate>>,
}

impl Tokenizer {
    /// Reads the tokenizer from a folder of `transformers`, or from a GGUF file.
    ///
    /// A folder must contain `tokenizer.json`. The chat template is read from `chat_template.jinja` or
    /// `tokenizer_config.json`, if one of them exists.
    ///
    /// # Errors
    /// Returns an error if the tokenizer is missing or damaged, or if the chat template cannot be parsed.
    #[track_caller]
    pub fn from_pretrained(folder: impl AsRef<Path>) -> Result<Tokenizer> {
        let location = std::panic::Location::caller();
        let folder = folder.as_ref();
        let tokenizer = if Gguf::is_named(folder) { read_gguf(folder) } else { read_folder(folder) };
        tokenizer.map_err(|error| error.at(location))
    }

    /// Parses a tokenizer in the format of `tokenizer.json`.
    ///
    /// # Errors
    /// Returns an error if the text is not JSON, or names a component that the tokenizer library does not have.
    #[track_caller]
    pub fn from_json(json: &str) -> Result<Tokenizer> {
        let location = std::panic::Location::caller();
        parse("tokenizer.json", json.as_bytes()).map_err(|error| error.at(location))
    }

    /// Replaces the chat template.
    pub fn with_chat_template(mut self, template: ChatTemplate) -> Tokenizer {
        self.chat = Some(Arc::new(template));
        self
    }

    /// Returns the chat template, if the tokenizer has one.
    pub fn chat_template(&self) -> Option<&ChatTemplate> {
        self.chat.as_deref()
    }

    /// Encodes a text as tokens, including the special tokens at its start and end.
    ///
    /// # Errors
    /// Returns an error if the tokenizer cannot encode the text, for example because a word is not in its
    /// vocabulary and it has no unknown token.
    #[track_caller]
    pub fn encode(&self, text: &str) -> Result<Vec<i32>> {
        self.tokens(text, true)
    }

    /// Encodes a part of a text as tokens, without special tokens at its start and end.
    ///
    /// # Errors
    /// Returns an error in the same cases as [`encode`](Self::encode).
    #[track_caller]
    pub fn encode_part(&self, text: &str) -> Result<Vec<i32>> {
        self.tokens(text, false)
    }

    /// Encodes a conversation as the prompt for the assistant's next message. `messages` is a JSON list of objects, each
    /// with a `role` and a `content`.
    ///
    /// # Errors
    /// Returns an error if the tokenizer has no chat template, or if the template rejects the messages.
    #[track_caller]
    pub fn encode_chat(&self, messages: &str) -> Result<Vec<i32>> {
        let Some(template) = &self.chat else {
            let message = "the model has no chat template";
            let help = "set a template with `with_chat_template`, or encode the text with `encode` instead";
            return Err(value_error(message, help));
        };
        // The rendered text contains the special tokens.
        self.tokens(&template.render(messages)?, false)
    }

    /// Decodes tokens to a text. Special tokens are left out.
    ///
    /// # Errors
    /// Returns an error if the tokenizer cannot decode the tokens. Numbers that are no token are left out.
    #[track_caller]
    pub fn decode(&self, tokens: &[i32]) -> Result<String> {
        let location = std::panic::Location::caller();
        let ids: Vec<u32> = tokens.iter().filter_map(|token| u32::try_from(*token).ok()).collect();
        self.inner.decode(&ids, true).map_err(|error| failed(&error).at(location))
    }

    /// Creates a stream that decodes tokens as they are generated.
    pub fn stream(&self) -> TextStream {
        TextStream { tokenizer: self.clone(), tokens: Vec::new(), shown: String::new(), first: 0 }
    }

    /// Returns the token with this text, if the vocabulary has one.
    pub fn token(&self, text: &str) -> Option<i32> {
        self.inner.token_to_id(text).and_then(|id| i32::try_from(id).ok())
    }

    /// Returns the number of tokens in the vocabulary, including added tokens.
    pub fn vocabulary(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    #[track_caller]
    fn tokens(&self, text: &str, special: bool) -> Result<Vec<i32>> {
        let location = std::panic::Location::caller();
        let encoding = self.inner.encode_fast(text, special).map_err(|error| failed(&error).at(location))?;
        Ok(encoding.get_ids().iter().map(|id| *id as i32).collect())
    }
}

/// Decodes a text token by token, see [`Tokenizer::stream`].
pub struct TextStream {
    tokenizer: Tokenizer,
    tokens: Vec<i32>,
    /// The text of the tokens from `first` on, which `push` has returned.
    shown: String,
    first: usize,
}

/// The number of tokens before a new token that are decoded with it, because decoders join neighboring tokens.
const CONTEXT: usize = 8;

/// The largest number of bytes of a character that is not complete, each of which a decoder may replace.
const MAX_MISSING: usize = 3;

impl TextStream {
    /// Adds a token and returns the text that it completes, without the last character while bytes of it are missing.
    ///
    /// # Errors
    /// Returns an error in the same cases as [`Tokenizer::decode`].
    #[track_caller]
    pub fn push(&mut self, token: i32) -> Result<String> {
        self.tokens.push(token);
        let mut text = self.tokenizer.decode(&self.tokens[self.first..])?;
        let missing = text.chars().rev().take(MAX_MISSING).take_while(|c| *c == char::REPLACEMENT_CHARACTER).count();
        text.truncate(text.len() - missing * char::REPLACEMENT_CHARACTER.len_utf8());
        let new = self.show(text);
        if missing == 0 && self.tokens.len() - self.first > 4 * CONTEXT {
            self.first = self.tokens.len() - CONTEXT;
            self.shown = self.tokenizer.decode(&self.tokens[self.first..])?;
        }
        Ok(new)
    }

    /// Ends the text and returns what is left of it: a replacement character for a character whose bytes are incomplete.
    ///
    /// # Errors
    /// Returns an error in the same cases as [`Tokenizer::decode`].
    #[track_caller]
    pub fn finish(&mut self) -> Result<String> {
        let text = self.tokenizer.decode(&self.tokens[self.first..])?;
        Ok(self.show(text))
    }

    /// Returns what a text adds to the text that was shown. A decoder may change a little of what was shown, such as a space
    /// before an apostrophe, which cannot be taken back.
    fn show(&mut self, text: String) -> String {
        let new = text.strip_prefix(self.shown.as_str()).or_else(|| text.get(self.shown.len()..));
        let new = new.unwrap_or_default().to_owned();
        self.shown = text;
        new
    }
}

fn failed(error: &tokenizers::Error) -> Error {
    let message = format!("the tokenizer returned an error: {error}");
    Error::new(ErrorKind::Value, message).help("check that the tokenizer belongs to the model")
}

fn parse(name: &str, json: &[u8]) -> Result<Tokenizer> {
    let inner = tokenizers::Tokenizer::from_bytes(json).map_err(|error| {
        value_error(format!("{name} is not a tokenizer: {error}"), "pass the `tokenizer.json` of the model")
    })?;
    Ok(Tokenizer { inner: Arc::new(inner), chat: None })
}

fn read_gguf(path: &Path) -> Result<Tokenizer> {
    let file = Gguf::open(path)?;
    let mut tokenizer = parse(&path.display().to_string(), file.tokenizer_json()?.as_bytes())?;
    if let Some(text) = file.chat_template() {
        let [bos, eos] = ["bos", "eos"].map(|kind| file.special_token(kind).unwrap_or_default().to_owned());
        let template = ChatTemplate::new(text)?.special_token("bos_token", bos);
        tokenizer = tokenizer.with_chat_template(template.special_token("eos_token", eos));
    }
    Ok(tokenizer)
}

fn read_folder(folder: &Path) -> Result<Tokenizer> {
    let path = folder.join("tokenizer.json");
    let json =
        read_small(&path).map_err(|error| error.help("save the tokenizer with `AutoTokenizer.save_pretrained`"))?;
    let mut tokenizer = parse(&path.display().to_string(), &json)?;
    let path = folder.join("tokenizer_config.json");
    let config: Value = if path.exists() {
        serde_json::from_slice(&read_small(&path)?).map_err(|error| {
            value_error(format!("{} is not valid JSON: {error}", path.display()), "download the file again")
        })?
    } else {
        Value::Null
    };
    let path = folder.join("chat_template.jinja");
    let text = if path.exists() {
        Some(String::from_utf8_lossy(&read_small(&path)?).into_owned())
    } else {
        configured_template(&config)
    };
    if let Some(text) = text {
        let mut template = ChatTemplate::new(&text)?;
        for name in ["bos_token", "eos_token", "pad_token", "unk_token"] {
            // A token is a string, or an object with the string as its `content`.
            let token = config.get(name).and_then(|token| token.as_str().or_else(|| token.get("content")?.as_str()));
            if let Some(token) = token {
                template = template.special_token(name, token.to_owned());
            }
        }
        tokenizer = tokenizer.with_chat_template(template);
    }
    Ok(tokenizer)
}

/// Returns the chat template in `tokenizer_config.json`. If it has several named templates, returns the one named
/// `default`.
fn configured_template(config: &Value) -> Option<String> {
    let template = config.get("chat_template")?;
    if let Some(text) = template.as_str() {
        return Some(text.to_owned());
    }
    let entry =
        template.as_array()?.iter().find(|entry| entry.get("name").and_then(Value::as_str) == Some("default"))?;
    entry.get("template")?.as_str().map(str::to_owned)
}
