//! Trains a language model on a text file, on any mesh, and generates text.
//!
//!     cargo run --release --example lm -- --text book.txt
//!     cargo run --release --example lm -- --text book.txt --mesh data=2,fsdp=2,model=2 --run runs/book
//!
//!     cargo run --release --example lm --features tokenizers -- --text book.txt --bpe 1024 --run runs/book-bpe
//!
//! With `--run` it writes checkpoints and logs to that folder. Rerun to resume, on any mesh.

#[path = "../common/mod.rs"]
mod common;

use std::path::PathBuf;
use std::sync::Arc;

use clap::Parser;
use shardax::{Error, ErrorKind};
use shardax_alloc as _;
use shardax_models::{Decoder, DecoderConfig, GenerateOptions};
use shardax_nn::prelude::*;
use shardax_train::data::{Example, Source, Stream, Tokenizer, text_windows, token_windows};
use shardax_train::{Average, MultiMetric, Perplexity, Trainer};

/// Trains a language model on a text file, and generates text
#[derive(Parser)]
struct Cli {
    /// Training data: any file; the last tenth is for evaluation
    #[arg(long, value_name = "FILE")]
    text: PathBuf,
    /// Devices along `data` (batches), `fsdp` (batches and parameters) and `model` (heads and features)
    #[arg(long, value_name = "AXIS=N,..", default_value = "data=1")]
    mesh: String,
    #[arg(long, default_value_t = 2000)]
    steps: u64,
    /// Windows of text per step
    #[arg(long, default_value_t = 32)]
    batch_size: usize,
    /// Tokens per window
    #[arg(long, default_value_t = 128)]
    length: usize,
    /// Learns a byte pair encoding with this number of tokens [default: each byte is a token]
    #[cfg(feature = "tokenizers")]
    #[arg(long, value_name = "TOKENS")]
    bpe: Option<usize>,
    #[arg(long, default_value_t = 4)]
    layers: usize,
    #[arg(long, default_value_t = 128)]
    features: usize,
    /// Query heads
    #[arg(long, default_value_t = 4)]
    heads: usize,
    /// Key and value heads; they must divide the query heads
    #[arg(long, default_value_t = 2)]
    kv_heads: usize,
    #[arg(long, default_value_t = 1e-3)]
    learning_rate: f64,
    #[arg(long, default_value_t = 0)]
    seed: u32,
    /// Steps between lines of the log
    #[arg(long, default_value_t = 50)]
    log_every: u64,
    /// Steps between checkpoints and evaluations
    #[arg(long, default_value_t = 200)]
    save_every: u64,
    /// Beginning of the generated text
    #[arg(long, default_value = "The ")]
    prompt: String,
    /// Number of tokens to generate
    #[arg(long, default_value_t = 200)]
    sample: usize,
    /// Sampling temperature
    #[arg(long, default_value_t = 0.8)]
    temperature: f64,
    #[command(flatten)]
    files: common::Files,
}

/// Examples with `tokens` and `targets`, shared by training and evaluation.
type Windows = Arc<dyn Source<Item = Example> + Sync>;

type State = Optimizer<Decoder>;

fn loss_of(model: &Decoder, tokens: &Array, targets: &Array) -> Array {
    softmax_cross_entropy_with_integer_labels(model.forward(tokens), targets)
}

fn train_step(mut state: State, (tokens, targets): (Array, Array)) -> Result<(State, MultiMetric)> {
    let loss = |model: Decoder| loss_of(&model, &tokens, &targets).mean(..);
    let (loss, grads) = value_and_grad(loss).call(&state.model)?;
    state.update(grads)?;
    Ok((state, MultiMetric::new().with("loss", Average::of(loss))))
}

fn eval_step(model: Decoder, (tokens, targets): (Array, Array)) -> MultiMetric {
    let losses = loss_of(&model, &tokens, &targets);
    MultiMetric::new().with("loss", Average::of(&losses)).with("perplexity", Perplexity::of(losses))
}

/// The tokenizer. A learned one is saved with the run.
#[cfg(feature = "tokenizers")]
fn tokenizer(cli: &Cli) -> Result<Tokenizer> {
    let saved_tokenizer = cli.files.run.as_ref().map(|run| run.join("tokenizer.json"));
    let Some(count) = cli.bpe else { return Ok(Tokenizer::bytes()) };
    if let Some(path) = saved_tokenizer.as_ref().filter(|path| path.exists()) {
        return Tokenizer::from_file(path);
    }
    let learned = Tokenizer::train_bpe([&cli.text], &shardax_train::data::BpeOptions::new(count))?;
    if let (Some(run), Some(path)) = (&cli.files.run, &saved_tokenizer) {
        // If the folder cannot be created, the tokenizer reports it.
        std::fs::create_dir_all(run).ok();
        learned.save(path)?;
    }
    Ok(learned)
}

#[cfg(not(feature = "tokenizers"))]
fn tokenizer(_: &Cli) -> Result<Tokenizer> {
    Ok(Tokenizer::bytes())
}

/// The text in windows, read on demand.
fn windows(cli: &Cli, tokenizer: &Tokenizer) -> Result<Windows> {
    if tokenizer.is_bytes() {
        return Ok(Arc::new(text_windows(&cli.text, cli.length)?));
    }
    let text = std::fs::read_to_string(&cli.text).map_err(|error| {
        Error::new(ErrorKind::Value, format!("cannot read {}: {error}", cli.text.display()))
            .help("pass the path of a text file")
    })?;
    Ok(Arc::new(token_windows(tokenizer.encode(&text)?, cli.length)?))
}

/// Parses axes such as `data=2,fsdp=2`.
fn axes(text: &str) -> Result<Vec<(&'static str, usize)>> {
    text.split(',').map(axis).collect::<Option<Vec<_>>>().ok_or_else(|| {
        Error::new(ErrorKind::Value, format!("{text:?} is no mesh"))
            .help("write axes of data, fsdp and model: data=2,fsdp=2,model=2")
    })
}

/// Parses an axis such as `data=2`.
fn axis(text: &str) -> Option<(&'static str, usize)> {
    let (name, count) = text.split_once('=')?;
    let name = ["data", "fsdp", "model"].into_iter().find(|known| *known == name)?;
    Some((name, count.parse().ok().filter(|n| *n > 0)?))
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    let axes = axes(&cli.mesh)?;
    let count: usize = axes.iter().map(|(_, n)| n).product();
    config::set_num_cpu_devices(count)?;
    let Cli { layers, features, heads, kv_heads, .. } = cli;
    let tokenizer = tokenizer(&cli)?;
    let config = DecoderConfig {
        kv_heads,
        tie_embeddings: true,
        ..DecoderConfig::new(tokenizer.vocab_size(), layers, features, heads)
    };
    if heads == 0 || !features.is_multiple_of(heads) {
        let message = format!("{heads} heads do not divide {features} features");
        return Err(Error::new(ErrorKind::Value, message).help("give --heads that divide --features"));
    }
    config.check()?;

    // Rules: batches are split over `data` and `fsdp`, parameters over `fsdp` and `model`.
    let mesh = make_mesh(axes.iter().copied())?;
    let has = |names: &[&'static str]| -> Vec<&'static str> {
        names.iter().copied().filter(|name| axes.iter().any(|(axis, _)| axis == name)).collect()
    };
    let along = |names: &[&'static str]| shardax::sharding::DimSpec::from_iter(has(names));
    let rules = Rules::new(&mesh, [("batch", along(&["data", "fsdp"]))])
        .and("embed", along(&["fsdp"]))
        .and("heads", along(&["model"]))
        .and("mlp", along(&["model"]));

    // The model is initialized in shards: no device ever stores more than its part.
    let (model_rules, seed, rate, steps) = (rules.clone(), cli.seed, cli.learning_rate, cli.steps as usize);
    let state = rules.init(move || {
        let schedule = warmup_cosine_decay_schedule(0.0, rate, steps / 20 + 1, steps.max(2) + steps / 20, rate / 10.0);
        let optimizer = (shardax_nn::clip_by_global_norm(1.0), adamw(schedule, 0.01));
        State::new(Decoder::new(&config, &mut Rngs::new(seed).with_rules(&model_rules))?, optimizer)
    })?;
    println!("{} parameters on {count} devices", state.model.parameter_count());

    let text = windows(&cli, &tokenizer)?;
    let windows = text.len();
    let held_out = (windows / 10).max(1);
    let batches = |source| -> Result<_> {
        let sharding = rules.sharding(["batch"]).map(shardax::Sharding::from);
        Ok(Source::stream(source).shuffled(seed.into()).batch(cli.batch_size).map(move |batch| {
            let place = |name: &str| match &sharding {
                Some(sharding) => batch[name].to_array_on(sharding),
                None => batch[name].to_array(),
            };
            Ok((place("tokens")?, place("targets")?))
        }))
    };
    let mut train = batches(text.clone().range(0..windows - held_out))?.prefetch(2);

    let shardings = rules.shardings(&state)?;
    let step = jit(train_step).out_shardings((&shardings, UNSPECIFIED)).donate_argnums([0]);
    let evaluate = jit(eval_step);
    let trainer = Trainer::new(cli.steps)
        .log_every(cli.log_every)
        .tokens_per_step((cli.batch_size * cli.length) as f64)
        .check_finite()
        .evaluate_every(cli.save_every, "test", |state: &State| {
            let mut data = batches(text.clone().range(windows - held_out..windows))?;
            let count = (held_out / cli.batch_size).clamp(1, 8);
            let mut metrics = MultiMetric::new();
            for batch in data.items().take(count) {
                metrics = metrics.merge(&evaluate.call((&state.model, batch?))?);
            }
            Ok(metrics)
        });
    let state = cli.files.train(
        &format!("lm on {}", cli.text.display()),
        &["loss", "perplexity"],
        cli.save_every,
        trainer,
        (state, &mut train),
        |state, batch| step.call((state, batch)),
        |report, state, batch| report.communication(&step.lower((state, batch))?.compile()?),
    )?;
    if cli.sample > 0 {
        let prompt = tokenizer.encode(&cli.prompt)?;
        let options = GenerateOptions::new(cli.sample).temperature(cli.temperature).seed(seed);
        let written = state.model.generate(std::slice::from_ref(&prompt), &options)?.concat();
        println!("---\n{}", tokenizer.decode(&[prompt, written].concat())?);
    }
    Ok(())
}
