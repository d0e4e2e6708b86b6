//! Code shared by the programs for parallelism: the arguments of a run, and the training loop.

#[path = "common/mod.rs"]
mod common;

use clap::Args;
use common::Files;
use shardax_nn::prelude::*;
use shardax_train::data::Stream;
use shardax_train::{MultiMetric, Trainer};

/// The length of a run and its output files.
#[derive(Args)]
pub struct Run {
    #[arg(long, default_value_t = 300)]
    steps: u64,
    /// Seed of the initial weights and the data
    #[arg(long, default_value_t = 0)]
    pub seed: u32,
    /// Steps between lines of the log
    #[arg(long, default_value_t = 50)]
    log_every: u64,
    /// Steps between checkpoints
    #[arg(long, default_value_t = 100)]
    save_every: u64,
    #[command(flatten)]
    files: Files,
}

impl Run {
    /// Trains with a compiled step, and prints its communication.
    pub fn train<S: Tree, B: Tree>(
        &self,
        title: &str,
        state: S,
        data: &mut impl Stream<Item = B>,
        step: &Compiled<(S, B), (S, MultiMetric)>,
    ) -> Result<S> {
        println!("a step sends:\n{}", step.collectives()?);
        println!("a step needs {} KB on each device", step.memory_analysis()?.temporaries / 1000);
        let trainer = Trainer::new(self.steps).log_every(self.log_every).check_finite();
        self.files.train(
            title,
            &["loss"],
            self.save_every,
            trainer,
            (state, data),
            |state, batch| step.apply((state, batch)),
            |report, _, _| report.communication(step),
        )
    }
}
