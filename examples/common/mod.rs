//! Code shared by the programs: output files of a run, and plots.

// Each program uses only part of it.
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

/// The output files of a run.
#[derive(clap::Args)]
pub struct Files {
    /// Folder for checkpoints, metrics.jsonl, TensorBoard files and report.html; an existing run is resumed
    #[arg(long, value_name = "DIR")]
    pub run: Option<PathBuf>,
    /// Writes the curves to this file
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
}

/// Logged values of this process's part of the run.
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
    /// Trains and writes the files: resumes from the last checkpoint, saves every `save_every` steps, and draws
    /// `curves` at the end, each in a panel with the test curve. `about` adds information to the report, from the state
    /// and batch of a step.
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
        // The arguments that later steps depend on, such as the number of steps of a schedule, are stored too.
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
    curves.iter().fold(Plot::new(), |plot, name| {
        let panel = Panel::new(name, "step").points("train", points(lines, name));
        plot.panel(panel.points("test", points(lines, &format!("test/{name}"))))
    })
}

/// The steps and values of a metric.
fn points(lines: &[Line], name: &str) -> Vec<(f64, f64)> {
    lines.iter().filter_map(|line| Some((line.step as f64, *line.values.get(name)?))).collect()
}
