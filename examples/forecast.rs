//! Forecasts the next hour of a series from a CSV table with an LSTM: gaps, windows, a schedule, early stopping.
//!
//!     cargo run -p shardax-examples --example forecast
//!     cargo run -p shardax-examples --example forecast -- --csv FILE     # with a column `load`
//!
//! Without a file it writes one: 60 days of a load with a daily rhythm, noise and gaps.

use std::path::{Path, PathBuf};

use clap::Parser;
use shardax_alloc as _;
use shardax_nn::prelude::*;
use shardax_train::EarlyStopping;
use shardax_train::data::{CsvOptions, Missing, Record, Source, Stream};

/// Forecasts the next value of the column `load` of a table.
#[derive(Parser)]
struct Cli {
    /// A table with a line of names, and values at equal intervals
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    #[arg(long, default_value_t = 15)]
    epochs: usize,
}

/// The values from which the next one is forecast.
const HISTORY: usize = 24;
const BATCH: usize = 32;

#[derive(Module, Clone)]
struct Forecaster {
    lstm: Rnn<LstmCell>,
    head: Linear,
}

impl Forecaster {
    fn new(rngs: &mut Rngs) -> Self {
        Forecaster { lstm: Rnn::new(LstmCell::new(1, 32, rngs)), head: Linear::new(32, 1, rngs) }
    }

    /// The value after each of the sequences `x`, `[batch, steps]`.
    fn forward(&self, x: Array) -> Array {
        let outputs = self.lstm.forward(x.expand_dims(-1));
        self.head.forward(outputs.get((.., -1))).squeeze(-1)
    }
}

/// Windows of the series: `HISTORY` values and the next one.
#[derive(Record, Tree, Clone)]
struct Batch {
    load: Array,
}

/// The mean and the standard deviation of the training set.
type Scale = (Array, Array);

/// The mean squared error of the forecasts, and of the forecast that nothing changes.
fn errors(model: &Forecaster, batch: &Batch, (mean, std): &Scale) -> (Array, Array) {
    let load = (&batch.load - mean) / std;
    let (x, y) = (load.get((.., ..-1)), load.get((.., -1)));
    let last_value = x.get((.., -1));
    ((model.forward(x) - &y).square().mean(..), (last_value - y).square().mean(..))
}

#[jit(donate = [optimizer])]
fn train_step(
    mut optimizer: Optimizer<Forecaster>,
    batch: Batch,
    scale: Scale,
) -> Result<(Optimizer<Forecaster>, Array)> {
    let loss = optimizer.minimize(|model| errors(model, &batch, &scale).0)?;
    Ok((optimizer, loss))
}

#[jit]
fn evaluate(model: Forecaster, batch: Batch, scale: Scale) -> (Array, Array) {
    let (error, naive) = errors(&model, &batch, &scale);
    (error.sqrt(), naive.sqrt())
}

/// A table of 60 days in hours: a daily rhythm with noise, in which every 50th value is missing.
fn write_table(path: &Path) -> Result<()> {
    let hour = arange(0..60 * 24).astype(DType::F32);
    let noise = random::normal(random::key(1), hour.shape());
    let load = (hour * (std::f64::consts::TAU / 24.0)).sin() * 10 + 50 + noise;
    let mut text = "hour,site,load\n".to_owned();
    for (hour, load) in load.to_vec::<f32>()?.into_iter().enumerate() {
        let load = if hour % 50 == 49 { "NA".to_owned() } else { format!("{load:.2}") };
        text.push_str(&format!("{hour},north,{load}\n"));
    }
    Ok(std::fs::write(path, text)?)
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    let written = std::env::temp_dir().join(format!("shardax-forecast-{}.csv", std::process::id()));
    if cli.csv.is_none() {
        write_table(&written)?;
    }
    let path = cli.csv.as_ref().unwrap_or(&written);
    let table = CsvOptions::new().columns(["load"]).missing(Missing::Previous).read(path)?;

    // The last fifth of the series is the test set; the first part also sets the scale.
    let split = table.len() * 4 / 5;
    let train_load = table.fields()["load"].to_array()?.get(..split);
    let scale = (train_load.mean(..), train_load.std(..));
    let train = table.clone().range(0..split).windows(HISTORY + 1, 1);
    let test = table.range(split - HISTORY..usize::MAX).windows(HISTORY + 1, 1);
    let steps = train.len() / BATCH;
    println!("{} windows to train, {} to test", train.len(), test.len());

    let count = test.len();
    let test = test.stream().batch(count).map(Batch::from_example).next_item().transpose()?.expect("one batch");
    let mut batches = train.stream().shuffled(0).whole_batches(BATCH).batch(BATCH).map(Batch::from_example).prefetch(2);
    let rate = cosine_decay_schedule(1e-2, cli.epochs * steps, 0.0);
    let model = Forecaster::new(&mut Rngs::new(0));
    let mut optimizer = Optimizer::new(model, (clip_by_global_norm(1.0), adam(rate)))?;

    let mut early = EarlyStopping::new(1e-4, 5);
    for epoch in 1..=cli.epochs {
        let mut loss = array(0.0f32);
        for batch in batches.items().take(steps) {
            (optimizer, loss) = train_step(optimizer, batch?, &scale)?;
        }
        let (error, naive) = evaluate(&optimizer.model, &test, &scale)?;
        println!("epoch {epoch:2}: loss {loss:.4}, test error {error:.4}, of the last value {naive:.4}");
        if early.update(error.item::<f32>()?.into()).should_stop {
            break;
        }
    }
    std::fs::remove_file(written).ok();
    Ok(())
}
