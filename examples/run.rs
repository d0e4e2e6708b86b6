//! What the programs for parallel forms have in common: the arguments of a run, and the loop.

use std::path::PathBuf;

use clap::Args;
use shardax_nn::prelude::*;
use shardax_train::checkpoint::{CheckpointManager, CheckpointManagerOptions};
use shardax_train::data::Stream;
use shardax_train::log::{EventFile, JsonLines};
use shardax_train::report::Report;
use shardax_train::{MultiMetric, Trainer};

/// How long it trains, and where it writes.
#[derive(Args)]
pub struct Run {
    /// Checkpoints, metrics.jsonl, TensorBoard's files and report.html go here; a run that is there goes on
    #[arg(long, value_name = "DIR")]
    run: Option<PathBuf>,
    #[arg(long, default_value_t = 300)]
    steps: u64,
    /// Decides the first weights and the data
    #[arg(long, default_value_t = 0)]
    pub seed: u32,
    /// Steps between lines of the log
    #[arg(long, default_value_t = 50)]
    log_every: u64,
    /// Steps between checkpoints
    #[arg(long, default_value_t = 100)]
    save_every: u64,
}

impl Run {
    /// Trains with a compiled step, and says what it sends between devices.
    pub fn train<S: Tree, B: Tree>(
        &self,
        state: S,
        data: &mut impl Stream<Item = B>,
        step: &Compiled<(S, B), (S, MultiMetric)>,
    ) -> Result<S> {
        println!("a step sends:\n{}", step.collectives()?);
        println!("a step needs {} KB on each device", step.memory_analysis()?.temporaries / 1000);
        let keep = CheckpointManagerOptions::new().save_interval_steps(self.save_every).max_to_keep(3);
        let folder = self.run.as_ref().map(|run| run.join("checkpoints"));
        let mut checkpoints = folder.map(|folder| CheckpointManager::new(folder, keep)).transpose()?;
        let mut trainer = Trainer::new(self.steps).log_every(self.log_every).check_finite();
        if let Some(run) = &self.run {
            trainer = trainer.logger(JsonLines::new(run.join("metrics.jsonl"))?).logger(EventFile::new(run)?);
        }
        if let Some(checkpoints) = &mut checkpoints {
            trainer = trainer.checkpoints(checkpoints);
        }
        let state = trainer.run(state, data, |state, batch| step.apply((state, batch)))?;
        if let Some(run) = &self.run {
            let lines = JsonLines::read(run.join("metrics.jsonl"))?;
            let report = Report::new("a run").curves(&[("run", &lines)])?.shardings(&state)?;
            report.communication(step)?.save(run.join("report.html"))?;
        }
        Ok(state)
    }
}
