//! The server of texts over HTTP: answers, streams, limits, and its end.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use serde_json::{Value, json};
use serve_text::{Limits, Model, serve};
use shardax_models::text::{ChatTemplate, Tokenizer};
use shardax_models::{Decoder, DecoderConfig, GenerateOptions, TextModel};
use shardax_nn::prelude::*;

const LIMITS: Limits = Limits { slots: 2, context: 64, queue: 2, max_tokens: 8 };
/// Longer than a request takes on a busy machine.
const DEADLINE: Duration = Duration::from_secs(120);

/// Words of one letter.
fn tokenizer() -> Result<Tokenizer> {
    let vocabulary: serde_json::Map<String, Value> =
        ('a'..='z').enumerate().map(|(id, letter)| (letter.to_string(), id.into())).collect();
    let json = json!({
        "model": {"type": "WordLevel", "unk_token": "a", "vocab": vocabulary}, "pre_tokenizer": {"type": "WhitespaceSplit"}
    });
    let template = ChatTemplate::new("{% for m in messages %}{{ m.content }} {% endfor %}z")?;
    Ok(Tokenizer::from_json(&json.to_string())?.with_chat_template(template))
}

/// A server of a random model, and its end.
struct Server {
    address: SocketAddr,
    decoder: Decoder,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    ended: mpsc::Receiver<()>,
}

impl Server {
    fn start(limits: Limits) -> Result<Server> {
        Server::with_model(limits, |decoder| decoder)
    }

    fn with_model<M: TextModel + Send + 'static>(limits: Limits, model: fn(Decoder) -> M) -> Result<Server> {
        let decoder = Decoder::new(&DecoderConfig::new(26, 1, 16, 4), &mut Rngs::new(0))?;
        let model = Model::start("letters", model(decoder.clone()), tokenizer()?, GenerateOptions::new(8), limits)?;
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let (address, started) = mpsc::channel();
        let (end, ended) = mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
            runtime.expect("a runtime").block_on(async move {
                let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
                address.send(listener.local_addr().expect("an address")).expect("the test");
                serve(model, listener, async move { drop(stopped.await) }).await.expect("the server");
                end.send(()).ok();
            });
        });
        Ok(Server { address: started.recv().expect("an address"), decoder, stop: Some(stop), ended })
    }

    /// Sends a request; its answer is read by the result.
    fn send(&self, method: &str, path: &str, body: &str) -> BufReader<TcpStream> {
        let mut stream = TcpStream::connect(self.address).expect("the server");
        stream.set_read_timeout(Some(DEADLINE)).expect("a deadline");
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(format!("{head}{body}").as_bytes()).expect("the request");
        BufReader::new(stream)
    }

    /// The status and the body of an answer.
    fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let mut text = String::new();
        self.send(method, path, body).read_to_string(&mut text).expect("an answer");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        (head[9..12].parse().expect("a status"), body.to_owned())
    }

    fn post(&self, path: &str, body: Value) -> (u16, Value) {
        let (status, text) = self.ask("POST", path, &body.to_string());
        (status, serde_json::from_str(&text).unwrap_or_else(|_| panic!("no JSON: {text}")))
    }

    /// The text that the model generates without other texts.
    fn expected(&self, prompt: &[i32], new: usize) -> Result<String> {
        tokenizer()?.decode(&self.decoder.generate(&[prompt.to_vec()], &GenerateOptions::new(new))?[0])
    }
}

#[test]
fn answers_are_the_texts_of_the_model() -> Result<()> {
    let server = Server::start(LIMITS)?;
    assert_eq!(server.ask("GET", "/health", ""), (200, "ok".to_owned()));
    let (status, models) = server.ask("GET", "/v1/models", "");
    assert!(status == 200 && models.contains("\"letters\""), "{models}");

    let (status, answer) = server.post("/v1/completions", json!({"prompt": "b c", "max_tokens": 5}));
    assert_eq!((status, &answer["choices"][0]["finish_reason"]), (200, &json!("length")), "{answer}");
    assert_eq!(answer["choices"][0]["text"], json!(server.expected(&[1, 2], 5)?));
    assert_eq!(answer["usage"], json!({"prompt_tokens": 2, "completion_tokens": 5, "total_tokens": 7}));
    assert_eq!(
        server.post("/v1/completions", json!({"prompt": [1, 2], "max_tokens": 5})).1["choices"],
        answer["choices"]
    );

    let messages = json!([{"role": "system", "content": "d"}, {"role": "user", "content": "e"}]);
    let (status, chat) = server.post("/v1/chat/completions", json!({"messages": messages, "max_completion_tokens": 6}));
    assert_eq!((status, &chat["object"]), (200, &json!("chat.completion")), "{chat}");
    let message = json!({"role": "assistant", "content": server.expected(&[3, 4, 25], 6)?});
    assert_eq!(chat["choices"][0]["message"], message);

    // A stop text ends the answer before it.
    let text = answer["choices"][0]["text"].as_str().expect("a text");
    let stop = &text[4..5];
    let (_, stopped) = server.post("/v1/completions", json!({"prompt": "b c", "max_tokens": 5, "stop": [stop]}));
    assert_eq!(stopped["choices"][0]["text"], json!(text[..text.find(stop).expect("the stop")]));
    assert_eq!(stopped["choices"][0]["finish_reason"], json!("stop"));

    let (_, metrics) = server.ask("GET", "/metrics", "");
    assert!(
        metrics.contains("serve_text_requests_total 4\n") && metrics.contains("serve_text_running 0\n"),
        "{metrics}"
    );
    Ok(())
}

#[test]
fn streams_send_the_text_in_parts() -> Result<()> {
    let server = Server::start(LIMITS)?;
    let body = json!({"messages": [{"role": "user", "content": "b"}], "stream": true, "max_tokens": 4,
        "stream_options": {"include_usage": true}});
    let (status, text) = server.ask("POST", "/v1/chat/completions", &body.to_string());
    assert_eq!(status, 200);
    let events: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    assert_eq!(events.last(), Some(&"[DONE]"), "{text}");
    let chunks: Vec<Value> =
        events[..events.len() - 1].iter().map(|event| serde_json::from_str(event).expect("JSON")).collect();
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], json!("assistant"));
    let written: String = chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(written, server.expected(&[1, 25], 4)?);
    assert_eq!(chunks[chunks.len() - 2]["choices"][0]["finish_reason"], json!("length"));
    assert_eq!(chunks[chunks.len() - 1]["usage"]["completion_tokens"], json!(4));
    Ok(())
}

#[test]
fn requests_that_cannot_be_answered_are_errors() -> Result<()> {
    let server = Server::start(LIMITS)?;
    let fails = |path: &str, body: Value, with: &str| {
        let (status, answer) = server.post(path, body);
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(status == 400 && message.contains(with), "{status} {answer}");
    };
    fails("/v1/chat/completions", json!({}), "`messages` is missing");
    fails("/v1/completions", json!({"prompt": 3}), "`prompt` is not a text");
    fails("/v1/completions", json!({"prompt": ""}), "the prompt is empty");
    fails("/v1/completions", json!({"prompt": [77]}), "the token 77");
    fails("/v1/completions", json!({"prompt": "b", "max_tokens": 64}), "1 tokens and 64 new tokens");
    fails("/v1/completions", json!({"prompt": "b", "temperature": -1}), "the temperature is -1");
    fails("/v1/completions", json!({"prompt": "b", "n": 2}), "`n` is not served");
    fails("/v1/completions", json!({"prompt": "b", "logit_bias": {"x": 1}}), "`logit_bias` has \"x\"");
    let (status, text) = server.ask("POST", "/v1/completions", "{");
    assert!(status == 400 && text.contains("not understood"), "{text}");
    assert_eq!(server.ask("GET", "/other", "").0, 404);
    Ok(())
}

/// More requests than slots and queue hold: some are rejected, and all others are answered.
#[test]
fn a_full_server_rejects_requests() -> Result<()> {
    let server = Server::start(LIMITS)?;
    let body = json!({"prompt": "b", "max_tokens": 40}).to_string();
    let waiting: Vec<_> = (0..12).map(|_| server.send("POST", "/v1/completions", &body)).collect();
    let mut statuses = Vec::new();
    for mut answer in waiting {
        let mut text = String::new();
        answer.read_to_string(&mut text).expect("an answer");
        statuses.push(text[9..12].to_owned());
    }
    assert!(statuses.iter().all(|status| status == "200" || status == "429"), "{statuses:?}");
    assert!(statuses.iter().filter(|status| *status == "200").count() >= LIMITS.slots, "{statuses:?}");
    assert_eq!(server.post("/v1/completions", json!({"prompt": "b", "max_tokens": 1})).0, 200);
    Ok(())
}

/// A model that panics once the server runs, as by a fault of the program.
#[derive(Clone, Module)]
struct Panics(Decoder);

static PANICS: AtomicBool = AtomicBool::new(false);

impl TextModel for Panics {
    fn decoder(self) -> Result<Decoder> {
        assert!(!PANICS.load(Ordering::Relaxed), "a fault of the program");
        Ok(self.0)
    }
}

#[test]
fn a_server_whose_model_has_stopped_says_so() -> Result<()> {
    let server = Server::with_model(LIMITS, Panics)?;
    PANICS.store(true, Ordering::Relaxed);
    let ask = || server.post("/v1/completions", json!({"prompt": "b", "max_tokens": 4}));
    assert_eq!(ask().0, 500);
    // The thread unwinds a moment longer.
    while server.ask("GET", "/health", "").0 == 200 {
        std::thread::sleep(Duration::from_millis(5));
    }
    let (status, answer) = ask();
    assert!(status == 503 && answer.to_string().contains("the model has stopped"), "{status} {answer}");
    let (status, text) = server.ask("GET", "/health", "");
    assert!(status == 503 && text.contains("restart the server"), "{status} {text}");
    Ok(())
}

/// A server that is asked to end finishes the text that it writes.
#[test]
fn a_stopped_server_finishes_its_texts() -> Result<()> {
    let mut server = Server::start(LIMITS)?;
    let expected = server.expected(&[1], 60)?;
    let body = json!({"prompt": "b", "max_tokens": 60, "stream": true}).to_string();
    let mut answer = server.send("POST", "/v1/completions", &body);
    let mut line = String::new();
    while !line.starts_with("data: ") {
        line.clear();
        assert!(answer.read_line(&mut line).expect("a line") > 0);
    }
    server.stop.take().expect("a server").send(()).expect("the server");
    let mut remaining = line;
    answer.read_to_string(&mut remaining).expect("the rest");
    let written: String = (remaining.lines().filter_map(|line| line.strip_prefix("data: ")))
        .filter_map(|event| serde_json::from_str::<Value>(event).ok())
        .filter_map(|chunk| chunk["choices"][0]["text"].as_str().map(str::to_owned))
        .collect();
    assert_eq!(written, expected);
    assert!(remaining.ends_with("data: [DONE]\n\n") || remaining.contains("[DONE]"), "{remaining}");
    server.ended.recv_timeout(DEADLINE).expect("the server ends");
    assert!(TcpStream::connect(server.address).is_err());
    Ok(())
}
