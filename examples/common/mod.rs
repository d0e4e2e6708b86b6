//! What the programs share: where a run's files go, and how its curves are drawn.

// Each program uses a part of it.
#![allow(dead_code)]

pub mod images;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;

use shardax_nn::prelude::*;
use shardax_train::checkpoint::{CheckpointManager, CheckpointManagerOptions, RestoreOptions};
use shardax_train::data::Stream;
use shardax_train::log::{EventFile, JsonLines, Line, Logger};
use shardax_train::report::Report;
use shardax_train::{MultiMetric, Panel, Plot, Trainer};

/// Where a run's files go.
#[derive(clap::Args)]
pub struct Files {
    /// Checkpoints, metrics.jsonl, TensorBoard's files and report.html go here; a run that is there goes on
    #[arg(long, value_name = "DIR")]
    pub run: Option<PathBuf>,
    /// Draws the curves
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
}

/// The numbers of this process's part of a run.
#[derive(Clone, Default)]
struct Memory(Rc<RefCell<Vec<Line>>>);

impl Logger for Memory {
    fn begin(&mut self, _: u64) -> Result<()> {
        Ok(())
    }

    fn log(&mut self, step: u64, values: &BTreeMap<String, f64>) -> Result<()> {
        self.0.borrow_mut().push(Line { step, values: values.clone() });
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

impl Files {
    /// Runs a training with its files: it goes on from the last checkpoint, one is kept every `save_every` steps, and
    /// at the end each of `curves` is a panel of the plot, with that of the test set. `about` adds to the report what
    /// it knows of a step that is given this state and this batch.
    #[allow(clippy::too_many_arguments)]
    pub fn train<S: Tree, D: Stream>(
        &self,
        title: &str,
        curves: &[&str],
        save_every: u64,
        trainer: Trainer<'_, S>,
        (state, data): (S, &mut D),
        step: impl FnMut(S, D::Item) -> Result<(S, MultiMetric)>,
        about: impl FnOnce(Report, &S, D::Item) -> Result<Report>,
    ) -> Result<S> {
        let memory = Memory::default();
        // The arguments say how it goes on, such as the number of steps that a schedule is for.
        let keep = CheckpointManagerOptions::new().save_interval_steps(save_every).max_to_keep(3);
        let mut checkpoints =
            self.run.as_ref().map(|run| CheckpointManager::new(run.join("checkpoints"), keep)).transpose()?;
        let mut trainer = trainer.logger(memory.clone()).restore_options(RestoreOptions::new().keep_numbers());
        if let Some(run) = &self.run {
            trainer = trainer.logger(JsonLines::new(run.join("metrics.jsonl"))?).logger(EventFile::new(run)?);
        }
        if let Some(checkpoints) = &mut checkpoints {
            trainer = trainer.checkpoints(checkpoints);
        }
        let state = trainer.run(state, data, step)?;

        let lines = match &self.run {
            Some(run) => JsonLines::read(run.join("metrics.jsonl"))?,
            None => memory.0.take(),
        };
        if let Some(run) = &self.run {
            let mut report = Report::new(title).curves(&[("run", &lines)])?.shardings(&state)?;
            if let Some(batch) = data.next_item() {
                report = about(report, &state, batch?)?;
            }
            let page = run.join("report.html");
            report.save(&page)?;
            println!("the run's page: {}", page.display());
        }
        if let Some(path) = &self.plot {
            plot(curves, &lines).save(path)?;
        }
        Ok(state)
    }
}

fn plot(curves: &[&str], lines: &[Line]) -> Plot {
    let points = |name: String| {
        lines.iter().filter_map(move |line| Some((line.step as f64, *line.values.get(&name)?))).collect::<Vec<_>>()
    };
    curves.iter().fold(Plot::new(), |plot, name| {
        let panel = Panel::new(name, "step").points("train", points((*name).to_owned()));
        plot.panel(panel.points("test", points(format!("test/{name}"))))
    })
}
