//! Trains a variational autoencoder on handwritten digits, and draws new ones.
//!
//!     cargo run --release --example vae
//!     cargo run --release --example vae -- --devices 4 --run runs/vae --plot vae.svg --samples vae.pgm

#[path = "../common/mod.rs"]
mod common;

use std::path::{Path, PathBuf};

use clap::Parser;
use common::images::{of_digits, split, train_batches};
use shardax::{Error, ErrorKind};
use shardax_alloc as _;
use shardax_nn::prelude::*;
use shardax_train::data::{Source, Stream};
use shardax_train::{Average, Batch, MultiMetric, Trainer};

/// Trains a variational autoencoder on handwritten digits, and draws new ones
#[derive(Parser)]
struct Cli {
    /// CPU devices to simulate, over which batches are split
    #[arg(long, default_value_t = 1)]
    devices: usize,
    #[arg(long, default_value_t = 3000)]
    steps: u64,
    /// Images per step, over all devices
    #[arg(long, default_value_t = 64)]
    batch_size: usize,
    /// Latent dimensions
    #[arg(long, default_value_t = 8)]
    latent: usize,
    #[arg(long, default_value_t = 256)]
    hidden: usize,
    #[arg(long, default_value_t = 1e-3)]
    learning_rate: f64,
    #[arg(long, default_value_t = 0)]
    seed: u32,
    /// Steps between lines of the log, evaluations and checkpoints
    #[arg(long, default_value_t = 300)]
    log_every: u64,
    /// Writes new digits to this picture
    #[arg(long, value_name = "FILE.pgm")]
    samples: Option<PathBuf>,
    #[command(flatten)]
    files: common::Files,
}

const SIDE: usize = 8;
const PIXELS: usize = SIDE * SIDE;

/// An encoder from images to normal distributions over latent variables, and a decoder from latent variables to images
/// ([Kingma and Welling 2013](https://arxiv.org/abs/1312.6114)).
#[derive(Module, Clone)]
struct Vae {
    encoder: Linear,
    mean: Linear,
    log_variance: Linear,
    decoder: Linear,
    pixels: Linear,
}

impl Vae {
    fn new(hidden: usize, latent: usize, rngs: &mut Rngs) -> Self {
        Vae {
            encoder: Linear::new(PIXELS, hidden, rngs),
            mean: Linear::new(hidden, latent, rngs),
            log_variance: Linear::new(hidden, latent, rngs),
            decoder: Linear::new(latent, hidden, rngs),
            pixels: Linear::new(hidden, PIXELS, rngs),
        }
    }

    /// Means and log variances, `[B, latent]`, for images `[B, 64]`.
    fn encode(&self, images: &Array) -> (Array, Array) {
        let hidden = relu(self.encoder.forward(images));
        (self.mean.forward(&hidden), self.log_variance.forward(hidden))
    }

    /// Logits of the pixels, `[B, 64]`.
    fn decode(&self, latent: &Array) -> Array {
        self.pixels.forward(relu(self.decoder.forward(latent)))
    }

    /// The two terms of the negative evidence lower bound for each image, `[B]`: the reconstruction loss of its pixels
    /// and the KL divergence of the latent variables.
    fn costs(&self, images: &Array, key: &Array) -> (Array, Array) {
        let images = images.astype(DType::F32).reshape([images.shape()[0], PIXELS]) / 255.0;
        let (mean, log_variance) = self.encode(&images);
        let noise = random::normal(key, mean.shape());
        let logits = self.decode(&(&mean + (&log_variance * 0.5).exp() * noise));
        let pixels = sigmoid_binary_cross_entropy(logits, images).sum(-1);
        let divergence = (mean.square() + log_variance.exp() - 1.0 - log_variance).sum(-1) * 0.5;
        (pixels, divergence)
    }
}

type State = Optimizer<Vae>;

fn metrics(loss: Array, pixels: Array, divergence: Array) -> MultiMetric {
    let metrics = MultiMetric::new().with("loss", Average::of(loss));
    metrics.with("reconstruction", Average::of(pixels)).with("divergence", Average::of(divergence))
}

fn train_step(seed: u32, mut state: State, batch: Batch) -> Result<(State, MultiMetric)> {
    // Depends only on the step, so that a resumed run draws the same numbers.
    let key = random::fold_in(random::key(seed), &state.step);
    let loss = |model: Vae| {
        let (pixels, divergence) = model.costs(&batch.images, &key);
        ((&pixels + &divergence).mean(..), (pixels.mean(..), divergence.mean(..)))
    };
    let ((loss, (pixels, divergence)), grads) = value_and_grad(loss).has_aux().call(&state.model)?;
    state.update(grads)?;
    Ok((state, metrics(loss, pixels, divergence)))
}

fn eval_step(model: Vae, batch: Batch) -> MultiMetric {
    let (pixels, divergence) = model.costs(&batch.images, &random::key(0));
    MultiMetric::new()
        .with("loss", Average::masked(&(&pixels + &divergence), &batch.mask))
        .with("reconstruction", Average::masked(&pixels, &batch.mask))
        .with("divergence", Average::masked(&divergence, &batch.mask))
}

/// New digits as grey values, `[rows * 8, columns * 8]`.
fn draw(model: &Vae, rows: usize, columns: usize, seed: u32) -> Result<Vec<u8>> {
    let latent = random::normal(random::key(seed), [rows * columns, model.mean.kernel.shape()[1]]);
    let drawn = jit(|model: Vae, latent: Array| model.decode(&latent).logistic()).call((model, latent))?;
    let tiles = drawn.reshape([rows, columns, SIDE, SIDE]).transpose([0, 2, 1, 3]);
    Ok(tiles.to_vec::<f32>()?.into_iter().map(|x| (x * 255.0) as u8).collect())
}

/// Writes a picture in the PGM format.
fn save(picture: &[u8], width: usize, path: &Path) -> Result<()> {
    let header = format!("P5\n{width} {}\n255\n", picture.len() / width);
    std::fs::write(path, [header.as_bytes(), picture].concat()).map_err(|error| {
        Error::new(ErrorKind::Runtime, format!("cannot write {}: {error}", path.display()))
            .help("pass a path in a folder that exists and that this user may write to")
    })
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    config::set_num_cpu_devices(cli.devices)?;
    let images = of_digits(cli.seed.into())?;
    let mesh = make_mesh([("data", cli.devices)])?;
    let (rows, replicated) = (NamedSharding::new(&mesh, P!["data"]), NamedSharding::new(&mesh, P![]));

    let model = Vae::new(cli.hidden, cli.latent, &mut Rngs::new(cli.seed));
    println!("{} parameters on {} devices", model.parameter_count(), cli.devices);
    let state = device_put(&State::new(model, adam(cli.learning_rate))?, &replicated)?;
    let seed = cli.seed;
    let step = jit(move |state: State, batch: Batch| train_step(seed, state, batch))
        .out_shardings(&replicated)
        .donate_argnums([0]);
    let eval_step = jit(eval_step).out_shardings(&replicated);

    let mut data = train_batches(images.train, seed.into(), cli.batch_size, &rows);
    let trainer =
        Trainer::new(cli.steps).log_every(cli.log_every).examples_per_step(cli.batch_size as f64).check_finite();
    let trainer = trainer.evaluate_every(cli.log_every, "test", |state: &State| {
        let mut metrics = MultiMetric::new();
        let mut test = images.test.clone().stream().epochs(1).batch_masked(cli.batch_size);
        for batch in test.items() {
            metrics = metrics.merge(&eval_step.call((&state.model, split(&batch?, &rows)?))?);
        }
        Ok(metrics)
    });
    let curves = ["loss", "reconstruction", "divergence"];
    let state = cli.files.train(
        "vae",
        &curves,
        cli.log_every,
        trainer,
        (state, &mut data),
        |state, batch| step.call((state, batch)),
        |report, state, batch| report.communication(&step.lower((state, batch))?.compile()?),
    )?;

    // A row of digits on the terminal, where characters are about twice as high as wide.
    for line in draw(&state.model, 1, 8, seed)?.chunks(8 * SIDE) {
        let text: String =
            line.iter().flat_map(|v| [[' ', '.', ':', '+', '#'][usize::from(*v) * 5 / 256]; 2]).collect();
        println!("{}", text.trim_end());
    }
    if let Some(path) = &cli.samples {
        save(&draw(&state.model, 10, 20, seed)?, 20 * SIDE, path)?;
    }
    Ok(())
}
