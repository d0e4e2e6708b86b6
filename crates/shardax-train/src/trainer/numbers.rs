//! The numbers of steps, from their metrics on the devices to those who are told.

use std::collections::{BTreeMap, VecDeque};

use shardax::error::Result;
use shardax::prelude::*;

use super::hooks::{Evaluation, LogHook};
use super::timing::Timing;
use super::{Control, Values};
use crate::log::Logger;
use crate::metrics::{Computed, MultiMetric};
use crate::progress::Progress;

/// Metrics are added up on the devices. What a window of steps comes to is read when the step after it is under way: who
/// reads it before keeps the devices waiting for their next step. When that is follows from the steps alone, so that all
/// processes are told the same at the same step.
pub(super) struct Numbers<'a> {
    loggers: Vec<Box<dyn Logger + 'a>>,
    hooks: Vec<LogHook<'a>>,
    pub progress: Option<Progress>,
    pub timing: Timing,
    /// Of the steps since the last that was logged.
    window: MultiMetric,
    /// Of the logged steps that were not read yet.
    computed: VecDeque<(u64, Computed)>,
    /// What was read, and nobody was told.
    read: BTreeMap<u64, Values>,
    /// The last value of each name.
    pub last: Values,
}

impl<'a> Numbers<'a> {
    pub fn new(
        loggers: Vec<Box<dyn Logger + 'a>>,
        hooks: Vec<LogHook<'a>>,
        progress: Option<Progress>,
        timing: Timing,
    ) -> Self {
        let (window, computed) = (MultiMetric::new(), VecDeque::new());
        Numbers { loggers, hooks, progress, timing, window, computed, read: BTreeMap::new(), last: Values::new() }
    }

    /// The metrics of one more step.
    pub fn add(&mut self, metrics: MultiMetric) -> Result<()> {
        // In memory of their own from the first on: what a step returns may be a part of the state, which the next donates.
        self.window = match self.window.is_empty() {
            true => jit(same).call(metrics)?,
            false => jit(merged).call((std::mem::take(&mut self.window), metrics))?,
        };
        Ok(())
    }

    /// The window ends with this step: its numbers are computed, and not waited for.
    pub fn close(&mut self, step: u64) {
        self.computed.push_back((step, std::mem::take(&mut self.window).computed()));
    }

    /// Waits for the numbers of logged steps, up to this one.
    pub fn read(&mut self, until: u64) -> Result<()> {
        while self.computed.front().is_some_and(|(step, _)| *step <= until)
            && let Some((step, computed)) = self.computed.pop_front()
        {
            let values = self.timing.device(|| computed.values());
            let values = values.map_err(|error| error.context(format!("step {step}")))?;
            self.read.insert(step, self.timing.finish(step, values));
        }
        Ok(())
    }

    /// Adds those of an evaluation to what was read. Its time is no step's.
    pub fn evaluate<S>(&mut self, evaluation: &mut Evaluation<'_, S>, step: u64, state: &S) -> Result<()> {
        let found = evaluation.values(state)?;
        self.read.entry(step).or_default().extend(found);
        self.timing.restart(step);
        Ok(())
    }

    /// Tells everybody what was read, step by step, and returns whether a hook wants no more steps.
    pub fn tell(&mut self) -> Result<bool> {
        let mut stop = false;
        while let Some((step, values)) = self.read.pop_first() {
            for logger in &mut self.loggers {
                logger.log(step, &values)?;
                logger.flush()?;
            }
            if let Some(progress) = &self.progress {
                progress.report(step, &values);
            }
            for hook in &mut self.hooks {
                let wanted = hook(step, &values).map_err(|error| error.context(format!("step {step}")))?;
                stop |= wanted == Control::Stop;
            }
            self.last.extend(values);
        }
        Ok(stop)
    }

    /// Reads and tells all that is left.
    pub fn finish(&mut self) -> Result<()> {
        self.read(u64::MAX)?;
        self.tell().map(drop)
    }
}

fn same(metrics: MultiMetric) -> MultiMetric {
    metrics
}

fn merged(window: MultiMetric, metrics: MultiMetric) -> MultiMetric {
    window.merge(&metrics)
}
