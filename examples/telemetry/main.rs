//! Trains a line, and shows the run to Prometheus and, with the feature `otlp`, to a collector of OpenTelemetry.
//!
//!     cargo run --release --example telemetry
//!     curl http://127.0.0.1:9464/metrics
//!     cargo run --release -p shardax-example-telemetry --features otlp --example telemetry
//!
//! The program waits for the end of its standard input after the run, so that the page can be looked at.

mod metrics;
#[cfg(feature = "otlp")]
mod spans;

use clap::Parser;
use metrics::Page;
use shardax::prelude::*;
use shardax_alloc as _;
use shardax_train::data::{Source, Stream};
use shardax_train::{Average, MultiMetric, Trainer};

/// Trains a line, and serves the run's numbers for Prometheus
#[derive(Parser)]
struct Cli {
    /// Where the page of metrics is served
    #[arg(long, default_value = "127.0.0.1:9464")]
    address: String,
    /// Training steps
    #[arg(long, default_value_t = 1000)]
    steps: u64,
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    #[cfg(feature = "otlp")]
    let _spans = spans::Spans::export()?;
    let page = Page::serve(&cli.address)?;
    if let Some(address) = page.address() {
        println!("metrics at http://{address}/metrics");
    }

    // Points on y = 3 x + 1.
    let mut data = (100usize, |i: usize| Ok(array(i as f32 / 50.0 - 1.0))).stream().shuffled(0).repeat();
    let step = jit(|w: (Array, Array), x: Array| -> Result<_> {
        let loss = |(slope, shift): (Array, Array)| (slope * &x + shift - (&x * 3.0 + 1.0)).square();
        let (loss, slopes) = value_and_grad(loss).call(&w)?;
        Ok(((w.0 - slopes.0 * 0.1, w.1 - slopes.1 * 0.1), MultiMetric::new().with("loss", Average::of(loss))))
    });
    let trainer = Trainer::new(cli.steps).quiet().log_every(10).logger(page.gauges());
    let (slope, shift) = trainer.run((zeros(()), zeros(())), &mut data, |w, x| step.call((w, x)))?;
    println!("slope {:.3}, shift {:.3}", slope.item::<f32>()?, shift.item::<f32>()?);
    // The page is there until standard input ends.
    std::io::read_to_string(std::io::stdin()).ok();
    Ok(())
}
