//! Trains a small convolutional network on handwritten digits, data-parallel over eight CPU devices.
//!
//!     cargo run -p shardax-examples --example digits
//!     cargo run --release --example digits -- --devices 4 --epochs 5 --plot digits.svg
//!     cargo run --release --example digits -- --checkpoints digits.run     # rerun to resume

use std::path::PathBuf;
use std::time::Instant;

use clap::Parser;
use serde_json::{Value, json};
use shardax_alloc as _;
use shardax_nn::prelude::*;
use shardax_train::checkpoint::{CheckpointManager, CheckpointManagerOptions, SaveArgs};
use shardax_train::{Average, Batch, Dataset, Panel, Plot, Progress, digits, replicas_identical, shard_batch};

/// Trains a small convolutional network on handwritten digits, on several devices.
#[derive(Parser)]
struct Cli {
    /// CPU devices to simulate
    #[arg(long, default_value_t = 8)]
    devices: usize,
    /// Passes over the training set
    #[arg(long, default_value_t = 15)]
    epochs: u32,
    /// Examples per step, over all devices
    #[arg(long, default_value_t = 64)]
    batch_size: usize,
    #[arg(long, default_value_t = 1e-3)]
    learning_rate: f64,
    /// Seed of the initial weights and the order of the examples
    #[arg(long, default_value_t = 0)]
    seed: u32,
    /// Writes the loss and accuracy curves to this file
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Saves each epoch in this folder, and resumes from the last one
    #[arg(long, value_name = "DIR")]
    checkpoints: Option<PathBuf>,
}

#[derive(Module, Clone)]
struct Cnn {
    conv1: Conv,
    conv2: Conv,
    dense: Linear,
}

impl Cnn {
    fn new(rngs: &mut Rngs) -> Self {
        Cnn {
            conv1: Conv::new(1, 32, [3, 3], rngs),
            conv2: Conv::new(32, 64, [3, 3], rngs),
            dense: Linear::new(64 * 2 * 2, 10, rngs),
        }
    }

    fn forward(&self, x: &Array) -> Array {
        let x = max_pool(relu(self.conv1.forward(x)), [2, 2], [2, 2]);
        let x = max_pool(relu(self.conv2.forward(x)), [2, 2], [2, 2]);
        self.dense.forward(x.flatten_from(1))
    }
}

fn loss_fn(model: Cnn, batch: Batch) -> (Array, Array) {
    let logits = model.forward(&batch.images);
    let loss = softmax_cross_entropy_with_integer_labels(&logits, &batch.labels).mean(..);
    (loss, accuracy(&logits, &batch.labels))
}

/// The state of training: the model and Adam's moments.
type State = Optimizer<Cnn>;

/// The step of each device on its share of a batch. Averaging the gradients keeps the copies of the model equal.
fn train_step(mut state: State, batch: Batch) -> Result<(State, Array, Array)> {
    let ((loss, accuracy), grads) = value_and_grad(loss_fn).has_aux().call((&state.model, batch))?;
    state.update(pmean(grads, "batch"))?;
    let (loss, accuracy) = pmean((loss, accuracy), "batch");
    Ok((state, loss, accuracy))
}

/// The numbers of correctly classified and of real examples in a batch, over all devices.
fn eval_step(model: Cnn, batch: Batch) -> (Array, Array) {
    let right = model.forward(&batch.images).argmax(-1).equal(&batch.labels) & &batch.mask;
    psum((right.sum(..), batch.mask.sum(..)), "batch")
}

/// Loss and accuracies of each epoch, from a checkpoint.
fn curves(saved: &Value) -> Vec<[f64; 3]> {
    let epochs = saved.as_array().map(Vec::as_slice).unwrap_or_default();
    epochs.iter().map(|epoch| std::array::from_fn(|i| epoch[i].as_f64().unwrap_or(f64::NAN))).collect()
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    config::set_num_cpu_devices(cli.devices)?;
    let n = device_count();
    let (train, test) = digits()?.shuffle(cli.seed.into()).split(1500);

    // Every device has the entire state and its share of the batch. Each step donates the state.
    let replicated = NamedSharding::new(&make_mesh([("batch", n)])?, P![]);
    let mut state = State::new(Cnn::new(&mut Rngs::new(cli.seed)), adam(cli.learning_rate))?;
    state = device_put(&state, &replicated)?;
    let train_step = pmap(train_step).axis_name("batch").in_axes((None, 0)).out_axes(None).donate_argnums([0]);
    let eval_step = pmap(eval_step).axis_name("batch").in_axes((None, 0)).out_axes(None);
    let evaluate = |model: &Cnn, data: &Dataset| -> Result<f64> {
        let mut accuracy = Average::new();
        for batch in data.batches(cli.batch_size) {
            let (right, count) = eval_step.call((model, shard_batch(&batch?, n)?))?;
            accuracy.add_sum(right, count);
        }
        accuracy.value()
    };

    // The curves are saved with the state; the order of an epoch's examples depends only on its number.
    let (mut done, mut history, mut samples_per_second) = (0, Vec::new(), 0.0);
    let keep = CheckpointManagerOptions::new().max_to_keep(2);
    let mut checkpoints = cli.checkpoints.map(|folder| CheckpointManager::new(folder, keep)).transpose()?;
    if let Some(checkpoints) = &mut checkpoints
        && let Some(last) = checkpoints.restore_latest(&state)?
    {
        (state, done) = (last.tree, last.step as u32);
        history = curves(&last.metadata);
        println!("resumes after epoch {done}");
    }

    let steps = train.batches(cli.batch_size).drop_last().len();
    let progress = Progress::from_step(cli.epochs as usize * steps, done as usize * steps);
    for epoch in done + 1..=cli.epochs {
        let start = Instant::now();
        let (mut loss, mut accuracy) = (Average::new(), Average::new());
        let order = u64::from(cli.seed) + u64::from(epoch);
        for batch in train.batches(cli.batch_size).shuffle(order).drop_last() {
            let (next, step_loss, step_accuracy) = train_step.call((state, shard_batch(&batch?, n)?))?;
            state = next;
            loss.add(step_loss);
            accuracy.add(step_accuracy);
            progress.step();
        }
        // Reading the averages waits for the last step of the epoch.
        let (loss, accuracy) = (loss.value()?, accuracy.value()?);
        samples_per_second = (steps * cli.batch_size) as f64 / start.elapsed().as_secs_f64();
        let test_accuracy = evaluate(&state.model, &test)?;
        progress.println(format_args!(
            "epoch {epoch:2}: train loss {loss:.6}, train accuracy {accuracy:.4}, test accuracy {test_accuracy:.4}"
        ));
        history.push([loss, accuracy, test_accuracy]);
        if let Some(checkpoints) = &mut checkpoints {
            let save_args = SaveArgs::new().metric("test_accuracy", test_accuracy).metadata(json!(history));
            checkpoints.save_with(epoch.into(), &state, &save_args)?;
        }
    }
    drop(progress);
    if let Some(checkpoints) = checkpoints {
        checkpoints.close()?;
    }

    println!("devices: {n}");
    println!("test accuracy: {:.4}", evaluate(&state.model, &test)?);
    println!("replicas identical: {}", replicas_identical(&state)?);
    println!("samples/s: {samples_per_second:.0}");
    if let Some(path) = cli.plot {
        let [train_loss, train_accuracy, test_accuracy] = [0, 1, 2].map(|i| history.iter().map(move |h| h[i]));
        let loss = Panel::new("Loss", "epoch").line("train", train_loss);
        let accuracy = Panel::new("Accuracy", "epoch").line("train", train_accuracy).line("test", test_accuracy);
        Plot::new().panel(loss).panel(accuracy).save(&path)?;
    }
    Ok(())
}
