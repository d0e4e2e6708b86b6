//! The endpoints.

use std::convert::Infallible;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::api::{Head, Kind, Request, Usage};
use crate::engine::{Model, Piece, Refusal};

/// The bytes of a request.
const MAX_BODY: usize = 4 << 20;

/// Serves until `stopped` returns, and then answers the requests that it has.
pub async fn serve(
    model: Model,
    listener: TcpListener,
    stopped: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let router = Router::new()
        .route("/v1/chat/completions", post(chat))
        .route("/v1/completions", post(completion))
        .route("/v1/models", get(models))
        .route("/health", get(health))
        .route("/metrics", get(metrics))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(model);
    axum::serve(listener, router).with_graceful_shutdown(stopped).await
}

/// An error in the form that clients of OpenAI's interface read.
struct Failure(StatusCode, String);

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let Failure(status, message) = self;
        let kind = if status.is_client_error() { "invalid_request_error" } else { "server_error" };
        (status, Json(json!({"error": {"message": message, "type": kind, "code": status.as_u16()}}))).into_response()
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Full => {
                Failure(StatusCode::TOO_MANY_REQUESTS, "the server has too many requests, try again later".into())
            }
            Refusal::Stopped => {
                Failure(StatusCode::SERVICE_UNAVAILABLE, "the model has stopped: restart the server".into())
            }
        }
    }
}

fn invalid(what: impl ToString) -> Failure {
    Failure(StatusCode::BAD_REQUEST, what.to_string())
}

async fn chat(State(model): State<Model>, body: Bytes) -> Result<Response, Failure> {
    let request = parsed(&body)?;
    let Some(messages) = &request.messages else { return Err(invalid("`messages` is missing")) };
    let Some(template) = model.tokenizer().chat_template() else {
        return Err(invalid("the model has no chat template: use /v1/completions"));
    };
    let mut variables = request.chat_template_kwargs.clone().unwrap_or_default();
    if let Some(tools) = &request.tools {
        variables.insert("tools".to_owned(), tools.clone());
    }
    let messages = Value::Array(messages.clone()).to_string();
    let text = template.render_with(&messages, &Value::Object(variables).to_string()).map_err(invalid)?;
    // The template writes the special tokens.
    let prompt = model.tokenizer().encode_part(&text).map_err(invalid)?;
    answer(&model, Kind::Chat, request, prompt).await
}

async fn completion(State(model): State<Model>, body: Bytes) -> Result<Response, Failure> {
    let request = parsed(&body)?;
    let prompt = match &request.prompt {
        Some(Value::String(text)) => model.tokenizer().encode(text).map_err(invalid)?,
        Some(Value::Array(tokens)) => {
            let tokens: Option<Vec<i32>> =
                tokens.iter().map(|token| token.as_i64().and_then(|token| i32::try_from(token).ok())).collect();
            tokens.ok_or_else(|| invalid("`prompt` is not a text or a list of tokens"))?
        }
        _ => return Err(invalid("`prompt` is not a text or a list of tokens")),
    };
    answer(&model, Kind::Completion, request, prompt).await
}

fn parsed(body: &[u8]) -> Result<Request, Failure> {
    serde_json::from_slice(body).map_err(|error| invalid(format!("the request is not understood: {error}")))
}

/// Sends a request to the model, and answers with its text, at once or in parts.
async fn answer(model: &Model, kind: Kind, request: Request, prompt: Vec<i32>) -> Result<Response, Failure> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Relaxed);
    let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let limits = model.limits();
    let room = limits.context.saturating_sub(prompt.len());
    let options = request.options(model.options(), limits.max_tokens.min(room), created as u32 ^ number as u32);
    let options = options.map_err(invalid)?;
    model.check(&prompt, &options).map_err(invalid)?;
    let stops = request.stops().map_err(invalid)?;
    let prompt_tokens = prompt.len();
    let pieces = model.ask(prompt, options, stops)?;
    let prefix = if kind == Kind::Chat { "chatcmpl" } else { "cmpl" };
    let name = request.model.unwrap_or_else(|| model.name().to_owned());
    let head = Head { kind, id: format!("{prefix}-{created}-{number}"), model: name, created };
    if request.stream {
        let with_usage = request.stream_options.is_some_and(|options| options.include_usage);
        Ok(streamed(head, pieces, prompt_tokens, with_usage))
    } else {
        whole(head, pieces, prompt_tokens).await
    }
}

/// The answer when it is complete.
async fn whole(head: Head, mut pieces: UnboundedReceiver<Piece>, prompt_tokens: usize) -> Result<Response, Failure> {
    let (mut text, mut tokens) = (String::new(), 0);
    loop {
        match pieces.recv().await {
            Some(Piece::Text(more, count)) => {
                text.push_str(&more);
                tokens += count;
            }
            Some(Piece::End(reason)) => {
                return Ok(Json(head.answer(&text, reason, Usage::new(prompt_tokens, tokens))).into_response());
            }
            Some(Piece::Failed(what)) => return Err(Failure(StatusCode::INTERNAL_SERVER_ERROR, what)),
            None => return Err(Failure(StatusCode::INTERNAL_SERVER_ERROR, "the model has stopped".into())),
        }
    }
}

/// The answer as server-sent events.
fn streamed(head: Head, pieces: UnboundedReceiver<Piece>, prompt_tokens: usize, with_usage: bool) -> Response {
    let state = (head, pieces, 0usize, true, Vec::<Event>::new(), false);
    let events = futures_util::stream::unfold(state, move |state| async move {
        let (head, mut pieces, mut tokens, is_first, mut ready, is_done) = state;
        if let Some(event) = ready.pop() {
            return Some((Ok::<Event, Infallible>(event), (head, pieces, tokens, is_first, ready, is_done)));
        }
        if is_done {
            return None;
        }
        let event = |value: &Value| Event::default().data(value.to_string());
        let (next, is_done) = match pieces.recv().await {
            Some(Piece::Text(text, count)) => {
                tokens += count;
                (event(&head.chunk(Some(&text), is_first, None)), false)
            }
            Some(Piece::End(reason)) => {
                // The last one comes first: they are taken from the end.
                ready.push(Event::default().data("[DONE]"));
                if with_usage {
                    ready.push(event(&head.usage(Usage::new(prompt_tokens, tokens))));
                }
                (event(&head.chunk(None, is_first, Some(reason))), true)
            }
            Some(Piece::Failed(what)) => (event(&json!({"error": {"message": what, "type": "server_error"}})), true),
            None => (event(&json!({"error": {"message": "the model has stopped", "type": "server_error"}})), true),
        };
        Some((Ok(next), (head, pieces, tokens, false, ready, is_done)))
    });
    Sse::new(events).keep_alive(KeepAlive::default()).into_response()
}

async fn health(State(model): State<Model>) -> Result<&'static str, Failure> {
    if model.is_running() { Ok("ok") } else { Err(Refusal::Stopped.into()) }
}

async fn models(State(model): State<Model>) -> Json<Value> {
    Json(json!({"object": "list", "data": [{"id": model.name(), "object": "model", "owned_by": "shardax"}]}))
}

/// Returns a counter of microseconds in seconds.
fn seconds(micros: &AtomicU64) -> f64 {
    micros.load(Relaxed) as f64 / 1e6
}

/// Returns the counters in the text format of Prometheus.
async fn metrics(State(model): State<Model>) -> Response {
    let metrics = model.metrics();
    let lines = [
        ("requests_total", "counter", metrics.requests.load(Relaxed) as f64),
        ("rejected_total", "counter", metrics.rejected.load(Relaxed) as f64),
        ("prompt_tokens_total", "counter", metrics.prompt_tokens.load(Relaxed) as f64),
        ("new_tokens_total", "counter", metrics.new_tokens.load(Relaxed) as f64),
        ("steps_total", "counter", metrics.steps.load(Relaxed) as f64),
        ("step_seconds_total", "counter", seconds(&metrics.step_micros)),
        ("first_token_seconds_total", "counter", seconds(&metrics.first_token_micros)),
        ("running", "gauge", metrics.running.load(Relaxed) as f64),
        ("waiting", "gauge", metrics.waiting.load(Relaxed) as f64),
    ];
    let text: String = (lines.iter())
        .map(|(name, kind, value)| format!("# TYPE serve_text_{name} {kind}\nserve_text_{name} {value}\n"))
        .collect();
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
}
