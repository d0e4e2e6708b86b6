//! The requests and answers of OpenAI's interface.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use shardax_models::GenerateOptions;

/// The fields of a request that say how to continue, of both endpoints.
#[derive(Debug, Default, Deserialize)]
pub struct Request {
    pub model: Option<String>,
    pub messages: Option<Vec<Value>>,
    pub tools: Option<Value>,
    pub chat_template_kwargs: Option<Map<String, Value>>,
    pub prompt: Option<Value>,
    #[serde(default)]
    pub stream: bool,
    pub stream_options: Option<StreamOptions>,
    pub max_tokens: Option<usize>,
    pub max_completion_tokens: Option<usize>,
    pub temperature: Option<f64>,
    pub top_p: Option<f64>,
    pub top_k: Option<usize>,
    pub min_p: Option<f64>,
    pub presence_penalty: Option<f64>,
    pub frequency_penalty: Option<f64>,
    pub repetition_penalty: Option<f64>,
    pub logit_bias: Option<Map<String, Value>>,
    pub seed: Option<i64>,
    pub stop: Option<Value>,
    pub n: Option<u64>,
    pub echo: Option<bool>,
    pub logprobs: Option<Value>,
    pub response_format: Option<Value>,
    pub tool_choice: Option<Value>,
}

#[derive(Debug, Deserialize)]
pub struct StreamOptions {
    #[serde(default)]
    pub include_usage: bool,
}

/// The numbers of tokens of an answer.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Usage {
    pub prompt_tokens: usize,
    pub completion_tokens: usize,
    pub total_tokens: usize,
}

impl Usage {
    pub fn new(prompt_tokens: usize, completion_tokens: usize) -> Usage {
        Usage { prompt_tokens, completion_tokens, total_tokens: prompt_tokens + completion_tokens }
    }
}

impl Request {
    /// The options of this request; the error names a field that is out of range or not served.
    pub fn options(&self, defaults: &GenerateOptions, max_tokens: usize, seed: u32) -> Result<GenerateOptions, String> {
        // An option that would be ignored must be an error, because the client would otherwise get another answer than it
        // asked for.
        let unserved = [
            ("n", self.n.is_some_and(|n| n != 1)),
            ("echo", self.echo == Some(true)),
            ("logprobs", self.logprobs.as_ref().is_some_and(|value| *value != json!(false) && !value.is_null())),
            ("response_format", self.response_format.as_ref().is_some_and(|value| value["type"] != "text")),
            ("tool_choice", self.tool_choice.as_ref().is_some_and(|value| value != "auto" && value != "none")),
        ];
        if let Some((name, _)) = unserved.iter().find(|(_, is_set)| *is_set) {
            return Err(format!("`{name}` is not served"));
        }
        let requested = self.max_completion_tokens.or(self.max_tokens).unwrap_or(max_tokens);
        let mut options = defaults.clone().max_new_tokens(requested).seed(self.seed.map_or(seed, |seed| seed as u32));
        options = self.temperature.into_iter().fold(options, GenerateOptions::temperature);
        options = self.top_p.into_iter().fold(options, GenerateOptions::top_p);
        options = self.top_k.into_iter().fold(options, GenerateOptions::top_k);
        options = self.min_p.into_iter().fold(options, GenerateOptions::min_p);
        options = self.presence_penalty.into_iter().fold(options, GenerateOptions::presence_penalty);
        options = self.frequency_penalty.into_iter().fold(options, GenerateOptions::frequency_penalty);
        options = self.repetition_penalty.into_iter().fold(options, GenerateOptions::repetition_penalty);
        let mut terms = Vec::new();
        for (token, term) in self.logit_bias.iter().flatten() {
            match (token.parse::<i32>(), term.as_f64()) {
                (Ok(token), Some(term)) => terms.push((token, term as f32)),
                _ => return Err(format!("`logit_bias` has {token:?}: {term}, and not a token and a number")),
            }
        }
        Ok(options.logit_bias(terms))
    }

    /// The texts that end an answer.
    pub fn stops(&self) -> Result<Vec<String>, String> {
        let stops: Option<Vec<String>> = match &self.stop {
            None | Some(Value::Null) => Some(Vec::new()),
            Some(Value::String(stop)) => Some(vec![stop.clone()]),
            Some(Value::Array(stops)) => stops.iter().map(|stop| stop.as_str().map(str::to_owned)).collect(),
            Some(_) => None,
        };
        let stops = stops.ok_or_else(|| "`stop` is not a text or a list of texts".to_owned())?;
        Ok(stops.into_iter().filter(|stop| !stop.is_empty()).collect())
    }
}

/// One of the two endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Chat,
    Completion,
}

/// The fields that all answers to one request begin with.
#[derive(Clone, Debug)]
pub struct Head {
    pub kind: Kind,
    pub id: String,
    pub model: String,
    pub created: u64,
}

impl Head {
    /// A complete answer.
    pub fn answer(&self, text: &str, reason: &str, usage: Usage) -> Value {
        let choice = match self.kind {
            Kind::Chat => {
                json!({"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": reason})
            }
            Kind::Completion => json!({"index": 0, "text": text, "finish_reason": reason}),
        };
        let object = if self.kind == Kind::Chat { "chat.completion" } else { "text_completion" };
        json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model, "choices": [choice],
            "usage": usage,
        })
    }

    /// A part of an answer: more text, or the reason of its end.
    pub fn chunk(&self, text: Option<&str>, is_first: bool, reason: Option<&str>) -> Value {
        let choice = match self.kind {
            Kind::Chat => {
                let mut delta = Map::new();
                if is_first {
                    delta.insert("role".to_owned(), "assistant".into());
                }
                if let Some(text) = text {
                    delta.insert("content".to_owned(), text.into());
                }
                json!({"index": 0, "delta": delta, "finish_reason": reason})
            }
            Kind::Completion => json!({"index": 0, "text": text.unwrap_or_default(), "finish_reason": reason}),
        };
        self.object(json!([choice]))
    }

    /// The last part of an answer whose client asks for the numbers of tokens.
    pub fn usage(&self, usage: Usage) -> Value {
        let mut object = self.object(json!([]));
        object["usage"] = json!(usage);
        object
    }

    fn object(&self, choices: Value) -> Value {
        let object = if self.kind == Kind::Chat { "chat.completion.chunk" } else { "text_completion" };
        json!({"id": self.id, "object": object, "created": self.created, "model": self.model, "choices": choices})
    }
}
