//! Trains a classifier on CIFAR-10, data-parallel over several devices.
//!
//!     cargo run --release --example cifar10 -- --data cifar-10-batches-bin
//!     cargo run --release --example cifar10 -- --data cifar-10-batches-bin --model resnet18 --bf16 --run runs/cifar10
//!
//! With `--run` it writes checkpoints and logs to that folder. Rerun to resume, on any number of devices.

#[path = "../common/mod.rs"]
mod common;
mod model;

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use common::images::{Images, cifar, on_devices, test_batches};
use model::{CLASSES, Classifier, Cnn, ResNet};
use shardax_alloc as _;
use shardax_nn::prelude::*;
use shardax_train::data::{Augment, Source, Stream};
use shardax_train::{Accuracy, Average, Batch, MultiMetric, Trainer, accumulate, replicas_identical};

/// Trains a classifier on CIFAR-10, on several devices.
#[derive(Parser)]
struct Cli {
    /// CIFAR-10, binary version: the folder with data_batch_1.bin and test_batch.bin
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    #[arg(long, value_enum, default_value_t = Kind::Cnn)]
    model: Kind,
    /// Features in the first stage of ResNet-18
    #[arg(long, default_value_t = 64)]
    width: usize,
    /// CPU devices to simulate
    #[arg(long, default_value_t = 8)]
    devices: usize,
    /// Passes over the training set
    #[arg(long, default_value_t = 40)]
    epochs: u64,
    /// Images per step on each device
    #[arg(long, default_value_t = 32)]
    per_device_batch: usize,
    /// Number of parts that each device processes in turn; gradients are averaged over devices once
    #[arg(long, default_value_t = 1)]
    accumulate: usize,
    /// Learning rate for 32 images per step; scales with the batch
    #[arg(long, default_value_t = 5e-4)]
    learning_rate: f64,
    /// Share of each label that is spread over all classes
    #[arg(long, default_value_t = 0.0)]
    label_smoothing: f64,
    /// Compute in bfloat16, with parameters, losses and averages in float32
    #[arg(long)]
    bf16: bool,
    /// Random augmentation of training images
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["flip", "crop"])]
    augment: Vec<Change>,
    /// Threads for augmentation [default: the number of cores]
    #[arg(long)]
    threads: Option<usize>,
    /// Seed of the initial weights, the order of the images, and their augmentation
    #[arg(long, default_value_t = 0)]
    seed: u32,
    #[command(flatten)]
    files: common::Files,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    /// Two convolutions and a dense layer: 60,362 parameters
    Cnn,
    /// Eleven million parameters with a width of 64
    Resnet18,
}

#[derive(Clone, Copy, ValueEnum)]
enum Change {
    /// Mirrors half of the images
    Flip,
    /// Shifts images by up to 4 pixels
    Crop,
    /// Changes brightness, contrast and saturation by up to 40 %
    Color,
    /// Blanks a square of 8 × 8 pixels
    Cutout,
    /// No augmentation
    None,
}

/// The state of training: the model and AdamW's moments.
type State<M> = Optimizer<M>;

/// Normalizes uint8 images to mean 0 and deviation 1 per channel of CIFAR-10's training set.
fn normalized(images: &Array) -> Array {
    let (mean, deviation) = (array([0.4914f32, 0.4822, 0.4465]), array([0.247f32, 0.2435, 0.2616]));
    (images.astype(DType::F32) / 255.0 - mean) / deviation
}

/// The mean loss of a batch and its accuracy.
fn loss_fn<M: Classifier>(model: &mut M, batch: &Batch, smoothing: f64) -> (Array, Array) {
    let logits = model.forward(&normalized(&batch.images));
    let loss = match smoothing {
        0.0 => softmax_cross_entropy_with_integer_labels(&logits, &batch.labels).mean(..),
        alpha => softmax_cross_entropy(&logits, smooth_labels(one_hot(&batch.labels, CLASSES), alpha)).mean(..),
    };
    (loss, accuracy(&logits, &batch.labels))
}

/// The step of each device on its share of a batch.
fn train_step<M: Classifier>(
    (parts, smoothing): (usize, f64),
    mut state: State<M>,
    batch: Batch,
) -> Result<(State<M>, MultiMetric)> {
    let (loss, accuracy, stats, grads) = accumulate(
        parts,
        |part: Batch| {
            let mut state = state.clone();
            let ((loss, accuracy), grads) = state.value_and_grad(|model| loss_fn(model, &part, smoothing))?;
            Ok((loss, accuracy, state.model.state_of(Filter::of::<BatchStat>()), grads))
        },
        batch,
    )?;
    // One average over the devices before the update keeps the copies equal.
    let (loss, accuracy, grads) = pmean((loss, accuracy, grads), "batch");
    state.model.update(&stats)?;
    state.update(grads)?;
    Ok((state, MultiMetric::new().with("loss", Average::of(loss)).with("accuracy", Average::of(accuracy))))
}

/// Metrics of a batch over all devices, without padding.
fn eval_step<M: Classifier>(mut model: M, batch: Batch) -> MultiMetric {
    let Batch { images, labels, mask } = batch;
    model.eval();
    let logits = model.forward(&normalized(&images));
    let losses = softmax_cross_entropy_with_integer_labels(&logits, &labels);
    let metrics = MultiMetric::new().with("loss", Average::masked(losses, &mask));
    psum(metrics.with("accuracy", Accuracy::masked(logits, labels, mask)), "batch")
}

fn train<M: Classifier>(cli: &Cli, images: &Images, model: M) -> Result<()> {
    let n = device_count();
    let batch_size = cli.per_device_batch * n;
    let steps_per_epoch = (images.train.len() / batch_size.max(1)).max(1) as u64;
    let steps = steps_per_epoch * cli.epochs;
    let (parameters, share) = (model.parameter_count(), cli.per_device_batch);
    println!("{:?}: {parameters} parameters, {batch_size} images a step on {n} devices, {share} on each", cli.model);

    // Twice the batch has half the gradient noise and allows twice the step size.
    let rate = cli.learning_rate * batch_size as f64 / 32.0;
    let warm_up = steps as usize / 20 + 1;
    let schedule = warmup_cosine_decay_schedule(0.0, rate, warm_up, (steps as usize).max(warm_up + 1), rate / 100.0);
    let replicated = NamedSharding::new(&make_mesh([("batch", n)])?, P![]);
    let state = device_put(&State::new(model, adamw(schedule, 0.02))?, &replicated)?;

    let seed = u64::from(cli.seed);
    let augment = cli.augment.iter().fold(Augment::new(seed), |augment, change| match change {
        Change::Flip => augment.random_flip(),
        Change::Crop => augment.random_crop(4),
        Change::Color => augment.color_jitter(0.4),
        Change::Cutout => augment.cutout(8),
        Change::None => augment,
    });
    let threads = cli.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let mut data = images
        .train
        .clone()
        .stream()
        .shuffled(seed)
        .enumerate()
        .parallel_map(threads, move |item| augment.example(item))
        .batch_masked(batch_size)
        .map(move |batch| on_devices(&batch, n))
        .prefetch(2);

    let how = (cli.accumulate, cli.label_smoothing);
    let step = pmap(move |state: State<M>, batch: Batch| train_step(how, state, batch))
        .axis_name("batch")
        .in_axes((None, 0))
        .out_axes(None)
        .donate_argnums([0]);
    let eval_step = pmap(eval_step::<M>).axis_name("batch").in_axes((None, 0)).out_axes(None);
    let evaluate = |state: &State<M>| -> Result<MultiMetric> {
        let mut metrics = MultiMetric::new();
        for batch in test_batches(&images.test, batch_size, n).items() {
            metrics = metrics.merge(&eval_step.call((&state.model, batch?))?);
        }
        Ok(metrics)
    };
    let trainer = Trainer::new(steps)
        .log_every(steps_per_epoch)
        .examples_per_step(batch_size as f64)
        .check_finite()
        .check_replicas_every(steps_per_epoch)
        .evaluate_every(steps_per_epoch, "test", evaluate);
    let state = cli.files.train(
        "cifar10",
        &["loss", "accuracy"],
        steps_per_epoch,
        trainer,
        (state, &mut data),
        |state, batch| step.call((state, batch)),
        |report, state, batch| report.communication(&step.lower((state, batch))?.compile()?),
    )?;

    println!("test accuracy: {:.4}", evaluate(&state)?.values()?["accuracy"]);
    println!("replicas identical: {}", replicas_identical(&state)?);
    Ok(())
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    config::set_num_cpu_devices(cli.devices)?;
    let images = cifar(&cli.data)?;
    let mut rngs = Rngs::new(cli.seed);
    if cli.bf16 {
        rngs = rngs.with_policy(Policy::bf16_compute());
    }
    match cli.model {
        Kind::Cnn => train(&cli, &images, Cnn::new(&mut rngs)),
        Kind::Resnet18 => train(&cli, &images, ResNet::resnet18(cli.width, &mut rngs)),
    }
}
