//! Trains a vision transformer on handwritten digits, or on CIFAR-10.
//!
//!     cargo run --release --example vit
//!     cargo run --release --example vit -- --data cifar-10-batches-bin --devices 4 --bf16 --run runs/vit

#[path = "../common/mod.rs"]
mod common;
mod model;

use std::path::PathBuf;

use clap::Parser;
use common::images::{cifar, of_digits, split, train_batches};
use model::{Sizes, Vit};
use shardax::{Error, ErrorKind};
use shardax_alloc as _;
use shardax_nn::prelude::*;
use shardax_train::data::{Source, Stream};
use shardax_train::{Accuracy, Average, Batch, MultiMetric, Trainer};

/// Trains a vision transformer on handwritten digits or CIFAR-10
#[derive(Parser)]
struct Cli {
    /// CIFAR-10, binary version [default: the built-in digits of 8 × 8 pixels]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// CPU devices to simulate, over which batches are split
    #[arg(long, default_value_t = 1)]
    devices: usize,
    #[arg(long, default_value_t = 1000)]
    steps: u64,
    /// Images per step, over all devices
    #[arg(long, default_value_t = 64)]
    batch_size: usize,
    /// Side of a patch in pixels [default: 2 for digits, 4 for CIFAR-10]
    #[arg(long)]
    patch: Option<usize>,
    #[arg(long, default_value_t = 4)]
    layers: usize,
    #[arg(long, default_value_t = 64)]
    features: usize,
    /// Attention heads; must divide the features
    #[arg(long, default_value_t = 4)]
    heads: usize,
    #[arg(long, default_value_t = 0.1)]
    dropout: f64,
    #[arg(long, default_value_t = 1e-3)]
    learning_rate: f64,
    /// Compute in bfloat16, with parameters and losses in float32
    #[arg(long)]
    bf16: bool,
    #[arg(long, default_value_t = 0)]
    seed: u32,
    /// Steps between lines of the log, evaluations and checkpoints
    #[arg(long, default_value_t = 100)]
    log_every: u64,
    #[command(flatten)]
    files: common::Files,
}

type State = Optimizer<Vit>;

/// Scales pixels to -1 to 1.
fn scaled(images: &Array) -> Array {
    images.astype(DType::F32) / 127.5 - 1.0
}

fn train_step(mut state: State, batch: Batch) -> Result<(State, MultiMetric)> {
    let (loss, accuracy) = state.minimize(|model| {
        let logits = model.forward(&scaled(&batch.images));
        let loss = softmax_cross_entropy_with_integer_labels(&logits, &batch.labels).mean(..);
        (loss, Accuracy::of(logits, &batch.labels))
    })?;
    Ok((state, MultiMetric::new().with("loss", Average::of(loss)).with("accuracy", accuracy)))
}

fn eval_step(mut model: Vit, batch: Batch) -> MultiMetric {
    model.eval();
    let logits = model.forward(&scaled(&batch.images));
    let losses = softmax_cross_entropy_with_integer_labels(&logits, &batch.labels);
    let metrics = MultiMetric::new().with("loss", Average::masked(losses, &batch.mask));
    metrics.with("accuracy", Accuracy::masked(logits, batch.labels, batch.mask))
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    config::set_num_cpu_devices(cli.devices)?;
    let images = match &cli.data {
        Some(folder) => cifar(folder)?,
        None => of_digits(cli.seed.into())?,
    };
    let patch = cli.patch.unwrap_or(if cli.data.is_some() { 4 } else { 2 });
    let Cli { layers, features, heads, .. } = cli;
    let sizes = Sizes { image: images.shape, patch, layers, features, heads, classes: 10 };
    if patch == 0 || images.shape[0] % patch != 0 || heads == 0 || features % heads != 0 || features == 0 {
        let message = format!("patches of {patch} pixels, {features} features and {heads} heads do not fit");
        return Err(Error::new(ErrorKind::Value, message)
            .help(format!("the patch divides {} pixels, and the heads divide the features", images.shape[0])));
    }
    let mesh = make_mesh([("data", cli.devices)])?;
    let (rows, replicated) = (NamedSharding::new(&mesh, P!["data"]), NamedSharding::new(&mesh, P![]));

    // Every device has the entire model and a part of each batch; the compiler adds the sums of gradients.
    let policy = if cli.bf16 { Policy::bf16_compute() } else { Policy::default() };
    let model = Vit::new(sizes, cli.dropout, &mut Rngs::new(cli.seed).with_policy(policy));
    println!("{} parameters on {} devices", model.parameter_count(), cli.devices);
    let (seed, steps) = (cli.seed, cli.steps as usize);
    let warm_up = steps / 10 + 1;
    let schedule = warmup_cosine_decay_schedule(0.0, cli.learning_rate, warm_up, steps.max(warm_up + 1), 0.0);
    let state = device_put(&State::new(model, adamw(schedule, 0.05))?, &replicated)?;
    let step = jit(train_step).out_shardings(&replicated).donate_argnums([0]);
    let eval_step = jit(eval_step).out_shardings(&replicated);

    let evaluate = |state: &State| -> Result<MultiMetric> {
        let mut metrics = MultiMetric::new();
        let mut test = images.test.clone().stream().epochs(1).batch_masked(cli.batch_size);
        for batch in test.items() {
            metrics = metrics.merge(&eval_step.call((&state.model, split(&batch?, &rows)?))?);
        }
        Ok(metrics)
    };
    let mut data = train_batches(images.train.clone(), seed.into(), cli.batch_size, &rows);
    let trainer =
        Trainer::new(cli.steps).log_every(cli.log_every).examples_per_step(cli.batch_size as f64).check_finite();
    let trainer = trainer.evaluate_every(cli.log_every, "test", evaluate);
    let curves = ["loss", "accuracy"];
    let state = cli.files.train(
        "vit",
        &curves,
        cli.log_every,
        trainer,
        (state, &mut data),
        |state, batch| step.call((state, batch)),
        |report, state, batch| report.communication(&step.lower((state, batch))?.compile()?),
    )?;
    println!("test accuracy: {:.4}", evaluate(&state)?.values()?["accuracy"]);
    Ok(())
}
