//! Linear regression by data-parallel gradient descent: each device has its share of the samples and a copy of the
//! parameters; averaging the gradients keeps the copies equal.
//!
//!     cargo run --release --example linear_regression
//!
//! JAX prints the same losses with the same keys.

use clap::Parser;
use shardax::prelude::*;
use shardax_alloc as _;

/// Fits a linear model to noisy samples, on several devices.
#[derive(Parser)]
struct Cli {
    /// CPU devices to simulate
    #[arg(long, default_value_t = 4)]
    devices: usize,
    /// Passes over the samples
    #[arg(long, default_value_t = 50)]
    epochs: usize,
    #[arg(long, default_value_t = 0.05)]
    learning_rate: f32,
}

const FEATURES: usize = 5;
const SAMPLES: usize = 100;

#[derive(Tree, Clone)]
struct Params {
    w: Array,
    b: Array,
}

impl Params {
    fn random(w_key: &Array, b_key: &Array) -> Self {
        Params { w: random::normal(w_key, FEATURES), b: random::normal(b_key, ()) }
    }

    fn predict(&self, x: &Array) -> Array {
        x.dot(&self.w) + &self.b
    }
}

fn mse(params: Params, x: Array, y: Array) -> Array {
    (params.predict(&x) - y).square().mean(..)
}

/// The step of each device: its own gradient, the average over devices, the update.
#[pmap(axis_name = "devices", in_axes = (0, 0, 0, None), out_axes = (0, None))]
fn train_step(params: Params, x: Array, y: Array, learning_rate: f32) -> Result<(Params, Array)> {
    let (loss, grads) = value_and_grad(mse).call((&params, x, y))?;
    let grads = pmean(grads, "devices");
    let params = tree::map2(|p, g| p - g * learning_rate, params, grads)?;
    Ok((params, pmean(loss, "devices")))
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    config::set_num_cpu_devices(cli.devices)?;
    let n = device_count();
    println!("devices: {n}");
    if n < 2 {
        println!("note: one device; more devices share the work");
    }

    // y = x·w + b with noise.
    let [key, w_key, b_key, x_key, noise_key] = random::split_n(random::key(0));
    let truth = Params::random(&w_key, &b_key);
    let x = random::normal(&x_key, [n * SAMPLES, FEATURES]);
    let y = truth.predict(&x) + 0.1 * random::normal(&noise_key, n * SAMPLES);

    // Each device gets 100 samples and a copy of the initial parameters.
    let (x, y) = (x.reshape([n, SAMPLES, FEATURES]), y.reshape([n, SAMPLES]));
    let [_, w_key, b_key] = random::split_n(key);
    let mut params = replicate(&Params::random(&w_key, &b_key))?;

    for epoch in 1..=cli.epochs {
        let (updated, loss) = train_step(params, &x, &y, cli.learning_rate)?;
        params = updated;
        if epoch % 10 == 0 {
            println!("epoch {epoch}: loss {loss:.4}");
        }
    }

    let same = params.w.equal(params.w.get(0)).all(..) & params.b.equal(params.b.get(0)).all(..);
    println!("replicas identical: {}", same.item::<bool>()?);
    let learned = unreplicate(&params)?;
    println!("w learned {}", learned.w);
    println!("w true    {}", truth.w);
    println!("b learned {}, true {}", learned.b, truth.b);
    Ok(())
}
