//! Request batching: a bounded queue, a task that forms batches, and the errors that clients get.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

/// A model that answers batches of rows.
pub trait Batched: Send + Sync + 'static {
    /// The largest batch size.
    fn largest(&self) -> usize;

    /// Checks a row; the error says why it cannot be answered.
    fn check(&self, row: &[f32]) -> Result<(), String>;

    /// One answer for each row.
    fn run(&self, rows: &[Vec<f32>]) -> impl Future<Output = shardax::Result<Vec<Vec<f32>>>> + Send;
}

/// The error of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Rejection {
    /// The queue is full; try again later.
    Busy,
    /// The server is stopping.
    Stopped,
    /// The request is invalid.
    Wrong(String),
    /// The model failed on this request.
    Failed(String),
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rejection::Busy => write!(f, "the server is busy"),
            Rejection::Stopped => write!(f, "the server was stopped"),
            Rejection::Wrong(what) => write!(f, "the request is wrong: {what}"),
            Rejection::Failed(what) => write!(f, "the model failed: {what}"),
        }
    }
}

type Answer = Result<Vec<f32>, Rejection>;

struct Request {
    row: Vec<f32>,
    arrived: Instant,
    answer: oneshot::Sender<Answer>,
}

enum Message {
    Row(Request),
    Stop,
}

/// Statistics since the start.
#[derive(Debug, Default)]
pub struct Counts {
    pub rows: AtomicUsize,
    pub batches: AtomicUsize,
}

/// The waiting time of a batch, and the capacity of the queue.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// An incomplete batch runs when its first request has waited for this time.
    pub wait: Duration,
    /// The capacity of the queue; further requests wait or are rejected.
    pub queue: usize,
}

/// A running server.
pub struct Server {
    queue: mpsc::Sender<Message>,
    task: JoinHandle<()>,
    counts: Arc<Counts>,
}

impl Server {
    /// Starts a task that answers requests.
    pub fn start(model: impl Batched, limits: Limits) -> Server {
        let (queue, messages) = mpsc::channel(limits.queue);
        let counts = Arc::new(Counts::default());
        let task = tokio::spawn(serve(model, messages, limits.wait, counts.clone()));
        Server { queue, task, counts }
    }

    pub fn client(&self) -> Client {
        Client { queue: self.queue.clone() }
    }

    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Answers the waiting requests, rejects new ones, and returns when all are answered.
    pub async fn stop(self) {
        // Fails only if the task has ended.
        self.queue.send(Message::Stop).await.ok();
        self.task.await.ok();
    }
}

/// A client of the server. Clones share the server.
#[derive(Clone)]
pub struct Client {
    queue: mpsc::Sender<Message>,
}

impl Client {
    /// Answers a row. If the queue is full, it waits, which slows clients down (backpressure).
    pub async fn call(&self, row: Vec<f32>) -> Answer {
        let (request, answer) = request(row);
        self.queue.send(request).await.map_err(|_| Rejection::Stopped)?;
        answer.await.unwrap_or(Err(Rejection::Stopped))
    }

    /// Answers a row; if the queue is full, the request is rejected immediately.
    pub async fn try_call(&self, row: Vec<f32>) -> Answer {
        let (request, answer) = request(row);
        self.queue.try_send(request).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => Rejection::Busy,
            mpsc::error::TrySendError::Closed(_) => Rejection::Stopped,
        })?;
        answer.await.unwrap_or(Err(Rejection::Stopped))
    }
}

fn request(row: Vec<f32>) -> (Message, oneshot::Receiver<Answer>) {
    let (answer, answered) = oneshot::channel();
    (Message::Row(Request { row, arrived: Instant::now(), answer }), answered)
}

async fn serve(model: impl Batched, mut messages: mpsc::Receiver<Message>, wait: Duration, counts: Arc<Counts>) {
    while let Some(first) = messages.recv().await {
        let mut batch = Vec::new();
        let mut request = Some(first);
        let mut deadline = Instant::now() + wait;
        while let Some(message) = request {
            match message {
                // Requests already in the queue are still answered.
                Message::Stop => messages.close(),
                // The client may have dropped the request.
                Message::Row(request) if request.answer.is_closed() => {}
                Message::Row(request) => match model.check(&request.row) {
                    Ok(()) => {
                        if batch.is_empty() {
                            deadline = request.arrived + wait;
                        }
                        batch.push(request);
                    }
                    Err(what) => drop(request.answer.send(Err(Rejection::Wrong(what)))),
                },
            }
            if batch.len() == model.largest() {
                break;
            }
            // Requests already in the queue are added even after the deadline.
            request = timeout_at(deadline, messages.recv()).await.ok().flatten();
        }
        if !batch.is_empty() {
            answer(&model, batch, &counts).await;
        }
    }
}

async fn answer(model: &impl Batched, batch: Vec<Request>, counts: &Counts) {
    counts.rows.fetch_add(batch.len(), Relaxed);
    counts.batches.fetch_add(1, Relaxed);
    let (rows, waiting): (Vec<_>, Vec<_>) = batch.into_iter().map(|request| (request.row, request.answer)).unzip();
    match model.run(&rows).await {
        // It is not an error if a client has dropped its request.
        Ok(answers) => waiting.into_iter().zip(answers).for_each(|(one, answer)| drop(one.send(Ok(answer)))),
        // Maybe only one of the rows is invalid, so each is run separately.
        Err(_) if rows.len() > 1 => {
            for (row, one) in rows.into_iter().zip(waiting) {
                one.send(single(model, row).await).ok();
            }
        }
        Err(error) => {
            let rejection = Rejection::Failed(error.to_string());
            waiting.into_iter().for_each(|one| drop(one.send(Err(rejection.clone()))));
        }
    }
}

async fn single(model: &impl Batched, row: Vec<f32>) -> Answer {
    match model.run(&[row]).await {
        Ok(answers) => answers.into_iter().next().ok_or_else(|| Rejection::Failed("no answer".to_owned())),
        Err(error) => Err(Rejection::Failed(error.to_string())),
    }
}
