//! Serves a model that writes texts, by OpenAI's interface.
//!
//!     cargo run --release --example serve_text -- --model Qwen3-0.6B
//!     curl localhost:8080/v1/chat/completions -d '{"messages": [{"role": "user", "content": "Hello"}]}'
//!
//! The model is a folder of `transformers` or a GGUF file, whose weights stay in few bits. All texts share one batch: a request begins
//! while others continue. SIGTERM and Ctrl-C end the server after the requests that it has.

use std::path::PathBuf;

use clap::Parser;
use serve_text::{Limits, Model, serve};
use shardax_alloc as _;

/// Serves a model by OpenAI's chat completions and completions
#[derive(Parser)]
struct Cli {
    /// A folder of transformers, or a GGUF file
    #[arg(long)]
    model: PathBuf,
    /// Address
    #[arg(long, default_value = "127.0.0.1:8080")]
    address: String,
    /// Texts that are continued at a time
    #[arg(long, default_value_t = 8)]
    slots: usize,
    /// Tokens of a text, with its prompt
    #[arg(long, default_value_t = 2048)]
    context: usize,
    /// Requests that wait for a slot; further ones are rejected
    #[arg(long, default_value_t = 64)]
    queue: usize,
    /// New tokens of a request that asks for no number
    #[arg(long, default_value_t = 512)]
    max_tokens: usize,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cli = Cli::parse();
    let limits = Limits { slots: cli.slots, context: cli.context, queue: cli.queue, max_tokens: cli.max_tokens };
    let model = Model::open(&cli.model, limits)?;
    let listener = tokio::net::TcpListener::bind(&cli.address).await?;
    println!("serving {} on http://{}", model.name(), listener.local_addr()?);
    serve(model, listener, stopped()).await?;
    println!("stopped");
    Ok(())
}

/// Returns when the process is asked to end.
async fn stopped() {
    let interrupted = tokio::signal::ctrl_c();
    #[cfg(unix)]
    {
        let terminated = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate());
        if let Ok(mut terminated) = terminated {
            tokio::select! { _ = interrupted => {}, _ = terminated.recv() => {} }
            return;
        }
    }
    interrupted.await.ok();
}
