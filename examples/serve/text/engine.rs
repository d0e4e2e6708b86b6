//! The thread that computes: it begins requests while others continue, and sends their texts piece by piece.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use shardax::Result;
use shardax_models::text::{TextStream, Tokenizer};
use shardax_models::{Batcher, Decoder, End, GenerateOptions, NextToken, Packed, Pretrained, TextBounds, TextModel};
use tokio::sync::mpsc::{self, error::TrySendError};

/// Limits of the requests that a server accepts.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Texts that are continued at a time.
    pub slots: usize,
    /// Tokens of a text, with its prompt.
    pub context: usize,
    /// Requests that wait for a slot.
    pub queue: usize,
    /// New tokens of a request that asks for no number.
    pub max_tokens: usize,
}

/// A model with its tokenizer and its thread. Clones share them; the thread ends when all clones are gone and all texts are written.
#[derive(Clone)]
pub struct Model {
    name: Arc<str>,
    tokenizer: Tokenizer,
    options: GenerateOptions,
    limits: Limits,
    bounds: TextBounds,
    requests: mpsc::Sender<Request>,
    metrics: Arc<Metrics>,
}

/// A request to the thread.
struct Request {
    prompt: Vec<i32>,
    options: GenerateOptions,
    /// Texts that end the answer, and are not part of it.
    stops: Vec<String>,
    pieces: mpsc::UnboundedSender<Piece>,
    arrived: Instant,
}

/// The reason for which the thread takes no request.
#[derive(Debug)]
pub enum Refusal {
    /// Too many requests wait.
    Full,
    /// The thread has ended, because it panicked.
    Stopped,
}

/// A part of an answer.
#[derive(Debug)]
pub enum Piece {
    /// More text, of so many tokens.
    Text(String, usize),
    /// The end, `stop` or `length`.
    End(&'static str),
    /// The model failed.
    Failed(String),
}

/// Counts since the start.
#[derive(Debug, Default)]
pub struct Metrics {
    pub requests: AtomicU64,
    pub rejected: AtomicU64,
    pub prompt_tokens: AtomicU64,
    pub new_tokens: AtomicU64,
    pub running: AtomicUsize,
    pub waiting: AtomicUsize,
    pub steps: AtomicU64,
    /// Microseconds from a request to its first token, of all requests.
    pub first_token_micros: AtomicU64,
    /// Microseconds of all steps.
    pub step_micros: AtomicU64,
}

impl Model {
    /// Loads a model, and starts its thread.
    pub fn open(path: &Path, limits: Limits) -> Result<Model> {
        let tokenizer = Tokenizer::from_pretrained(path)?;
        let options = GenerateOptions::from_pretrained(path, limits.max_tokens)?;
        let name = path.file_stem().map_or("model".into(), |name| name.to_string_lossy().into_owned());
        let is_file = path.is_file();
        if is_file {
            Model::start(&name, Packed::<Decoder>::from_pretrained(path)?, tokenizer, options, limits)
        } else {
            Model::start(&name, Decoder::from_pretrained(path)?, tokenizer, options, limits)
        }
    }

    /// Starts the thread of a model. `options` are the defaults of requests.
    pub fn start(
        name: &str,
        model: impl TextModel + Send + 'static,
        tokenizer: Tokenizer,
        options: GenerateOptions,
        limits: Limits,
    ) -> Result<Model> {
        let batcher = Batcher::new(model, limits.slots, limits.context)?;
        let bounds = batcher.bounds();
        let (requests, received) = mpsc::channel(limits.queue.max(1));
        let metrics = Arc::new(Metrics::default());
        let engine = Engine { batcher, tokenizer: tokenizer.clone(), texts: Vec::new(), metrics: metrics.clone() };
        std::thread::spawn(move || engine.run(received));
        Ok(Model { name: name.into(), tokenizer, options, limits, bounds, requests, metrics })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The options of a request that sets none.
    pub fn options(&self) -> &GenerateOptions {
        &self.options
    }

    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Fails for a request that cannot be answered.
    pub fn check(&self, prompt: &[i32], options: &GenerateOptions) -> Result<()> {
        self.bounds.check(prompt, options)
    }

    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Returns false if the thread has ended, so that no request can be answered.
    pub fn is_running(&self) -> bool {
        !self.requests.is_closed()
    }

    /// Sends a request to the thread.
    pub fn ask(
        &self,
        prompt: Vec<i32>,
        options: GenerateOptions,
        stops: Vec<String>,
    ) -> std::result::Result<mpsc::UnboundedReceiver<Piece>, Refusal> {
        let (pieces, answer) = mpsc::unbounded_channel();
        let tokens = prompt.len() as u64;
        self.metrics.waiting.fetch_add(1, Relaxed);
        match self.requests.try_send(Request { prompt, options, stops, pieces, arrived: Instant::now() }) {
            Ok(()) => {
                self.metrics.requests.fetch_add(1, Relaxed);
                self.metrics.prompt_tokens.fetch_add(tokens, Relaxed);
                Ok(answer)
            }
            Err(error) => {
                self.metrics.waiting.fetch_sub(1, Relaxed);
                self.metrics.rejected.fetch_add(1, Relaxed);
                Err(match error {
                    TrySendError::Full(_) => Refusal::Full,
                    TrySendError::Closed(_) => Refusal::Stopped,
                })
            }
        }
    }
}

/// The state of the thread.
struct Engine<M: TextModel> {
    batcher: Batcher<M>,
    tokenizer: Tokenizer,
    texts: Vec<Running>,
    metrics: Arc<Metrics>,
}

/// A text that is written.
struct Running {
    text: u64,
    stream: TextStream,
    stops: Vec<String>,
    /// Text that may be the begin of a stop, and is not sent yet.
    held: String,
    /// Tokens since the last piece.
    unsent: usize,
    pieces: mpsc::UnboundedSender<Piece>,
}

impl<M: TextModel> Engine<M> {
    /// Runs until no request can come and all texts are written.
    fn run(mut self, mut requests: mpsc::Receiver<Request>) {
        loop {
            while !self.batcher.is_full() {
                // Without texts there is nothing to do but to wait.
                let request = if self.texts.is_empty() { requests.blocking_recv() } else { requests.try_recv().ok() };
                match request {
                    Some(request) => self.begin(request),
                    None if self.texts.is_empty() => return,
                    None => break,
                }
            }
            self.step();
            self.metrics.running.store(self.texts.len(), Relaxed);
        }
    }

    fn begin(&mut self, request: Request) {
        self.metrics.waiting.fetch_sub(1, Relaxed);
        let Request { prompt, options, stops, pieces, arrived } = request;
        if pieces.is_closed() {
            return;
        }
        match self.batcher.add(&prompt, &options) {
            Ok(next) => {
                self.metrics.first_token_micros.fetch_add(arrived.elapsed().as_micros() as u64, Relaxed);
                let stream = self.tokenizer.stream();
                let held_text = String::new();
                self.texts.push(Running { text: next.text, stream, stops, held: held_text, unsent: 0, pieces });
                self.written(next);
            }
            Err(error) => drop(pieces.send(Piece::Failed(error.to_string()))),
        }
    }

    fn step(&mut self) {
        if self.texts.is_empty() {
            return;
        }
        let start = Instant::now();
        match self.batcher.step() {
            Ok(tokens) => tokens.into_iter().for_each(|next| self.written(next)),
            Err(error) => {
                for running in self.texts.drain(..) {
                    self.batcher.remove(running.text);
                    running.pieces.send(Piece::Failed(error.to_string())).ok();
                }
            }
        }
        self.metrics.steps.fetch_add(1, Relaxed);
        self.metrics.step_micros.fetch_add(start.elapsed().as_micros() as u64, Relaxed);
    }

    /// Sends a token's text, and forgets a text that has ended or that nobody reads.
    fn written(&mut self, next: NextToken) {
        self.metrics.new_tokens.fetch_add(1, Relaxed);
        let Some(index) = self.texts.iter().position(|running| running.text == next.text) else { return };
        if self.texts[index].push(next) {
            self.batcher.remove(next.text);
            self.texts.swap_remove(index);
        }
    }
}

impl Running {
    /// Sends what a token adds; true if the text has ended.
    fn push(&mut self, next: NextToken) -> bool {
        self.unsent += 1;
        // A stop token has no text.
        if next.end != Some(End::Stop) {
            match self.stream.push(next.token) {
                Ok(text) => self.held.push_str(&text),
                Err(error) => {
                    self.pieces.send(Piece::Failed(error.to_string())).ok();
                    return true;
                }
            }
        }
        if let Some(place) = self.stops.iter().filter_map(|stop| self.held.find(stop.as_str())).min() {
            self.held.truncate(place);
            return self.finish("stop");
        }
        match next.end {
            Some(end) => {
                self.held.push_str(&self.stream.finish().unwrap_or_default());
                self.finish(if end == End::Stop { "stop" } else { "length" })
            }
            None => {
                let overlap_len = self.stops.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
                let ready = self.held.len() - overlap_len;
                if ready == 0 {
                    return self.pieces.is_closed();
                }
                let text: String = self.held.drain(..ready).collect();
                self.pieces.send(Piece::Text(text, std::mem::take(&mut self.unsent))).is_err()
            }
        }
    }

    fn finish(&mut self, reason: &'static str) -> bool {
        let text = std::mem::take(&mut self.held);
        self.pieces.send(Piece::Text(text, std::mem::take(&mut self.unsent))).ok();
        self.pieces.send(Piece::End(reason)).ok();
        true
    }
}

/// The bytes at the end of a text that may be the begin of `stop`.
fn overlap(text: &str, stop: &str) -> usize {
    let most = stop.len().saturating_sub(1).min(text.len());
    (1..=most).rev().find(|length| text.as_bytes().ends_with(&stop.as_bytes()[..*length])).unwrap_or(0)
}
