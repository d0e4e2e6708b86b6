//! Serves an exported model: collects requests into batches of several sizes, and answers each.
//!
//!     cargo run --release --example serve
//!     cargo run --release --example serve -- --model models/mnist --wait-us 0
//!
//! Clients are tasks in the same process, so that the table measures the server and not the network.

mod model;
mod server;

use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use clap::Parser;
use model::Model;
use server::{Client, Limits, Server};
use shardax::prelude::*;
use shardax::{Error, ErrorKind};
use shardax_alloc as _;

/// Serves an exported model, and measures throughput and latency
#[derive(Parser)]
struct Cli {
    /// Folder of exported functions, one for each batch size; if there is none, a random classifier is written
    #[arg(long, default_value = "target/serve")]
    model: PathBuf,
    /// Batch sizes of that classifier
    #[arg(long, value_delimiter = ',', default_value = "1,8,64")]
    sizes: Vec<usize>,
    /// Features of its hidden layers
    #[arg(long, default_value_t = 512)]
    hidden: usize,
    /// Microseconds that a request waits for others
    #[arg(long, default_value_t = 1000)]
    wait_us: u64,
    /// Capacity of the queue
    #[arg(long, default_value_t = 256)]
    queue: usize,
    /// Numbers of concurrent clients
    #[arg(long, value_delimiter = ',', default_value = "1,8,64")]
    clients: Vec<usize>,
    /// Total number of requests
    #[arg(long, default_value_t = 6400)]
    requests: usize,
}

/// Sends requests from `clients` concurrent clients and returns the latencies. Each client waits for its answers.
async fn ask(client: &Client, clients: usize, requests: usize, features: usize) -> Result<Vec<Duration>> {
    // All clients ask at the same time, because the server joins their requests into batches.
    let tasks: Vec<_> = (0..clients)
        .map(|number| {
            let client = client.clone();
            tokio::spawn(async move {
                let mut times = Vec::new();
                for i in 0..requests.div_ceil(clients) {
                    let row: Vec<f32> = (0..features).map(|at| ((number + i + at) % 7) as f32 / 7.0).collect();
                    let start = Instant::now();
                    let answer = client.call(row).await.map_err(|rejection| rejection.to_string())?;
                    times.push(start.elapsed());
                    if !answer.iter().all(|value| value.is_finite()) {
                        return Err(format!("client {number} was answered {answer:?}"));
                    }
                }
                Ok(times)
            })
        })
        .collect();
    let mut times = Vec::new();
    for task in tasks {
        let answered = task.await.map_err(|error| error.to_string()).flatten();
        times.extend(answered.map_err(|message| Error::new(ErrorKind::Runtime, message))?);
    }
    times.sort();
    Ok(times)
}

async fn run(cli: Cli, model: Model) -> Result<()> {
    // The first request is invalid on purpose: it shows that a rejected request does not stop the server.
    let features = model.features();
    let server = Server::start(model, Limits { wait: Duration::from_micros(cli.wait_us), queue: cli.queue.max(1) });
    let client = server.client();
    if let Err(rejection) = client.try_call(vec![0.0; features + 1]).await {
        println!("a request with one feature too many: {rejection}");
    }
    println!("clients  requests   p50 ms   p99 ms  requests/s  rows/batch");
    for &clients in &cli.clients {
        let before = (server.counts().rows.load(Relaxed), server.counts().batches.load(Relaxed));
        let start = Instant::now();
        let times = ask(&client, clients.max(1), cli.requests.max(1), features).await?;
        let seconds = start.elapsed().as_secs_f64();
        let rows = server.counts().rows.load(Relaxed) - before.0;
        let batches = server.counts().batches.load(Relaxed) - before.1;
        let [median, p99] =
            [0.5, 0.99].map(|part| times[((times.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e3);
        println!(
            "{clients:7}  {:8}  {median:7.3}  {p99:7.3}  {:10.0}  {:10.1}",
            times.len(),
            times.len() as f64 / seconds,
            rows as f64 / batches as f64
        );
    }
    server.stop().await;
    println!(
        "stopped, and after that: {}",
        client.call(vec![0.0; features]).await.err().map_or(String::new(), |r| r.to_string())
    );
    Ok(())
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    if !cli.model.is_dir() {
        model::write(&cli.model, &cli.sizes, cli.hidden)?;
    }
    let start = Instant::now();
    let model = Model::load(&cli.model)?;
    let sizes: Vec<_> = model.sizes().collect();
    println!(
        "{} features, batches of {sizes:?}; ready in {:.0} ms, {} compiled, {} found",
        model.features(),
        start.elapsed().as_secs_f64() * 1e3,
        model.compiled,
        sizes.len() - model.compiled
    );
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build();
    runtime.map_err(|e| Error::new(ErrorKind::Runtime, e.to_string()))?.block_on(run(cli, model))
}
