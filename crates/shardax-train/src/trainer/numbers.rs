//! The numbers of steps, from metrics on the devices to loggers and hooks.

use std::collections::{BTreeMap, VecDeque};

use shardax::error::Result;
use shardax::prelude::*;

use super::hooks::{Evaluation, LogHook};
use super::timing::Timing;
use super::{Control, Values};
use crate::log::Logger;
use crate::metrics::{Computed, MultiMetric};
use crate::progress::Progress;

/// Accumulates metrics on the devices. The host reads the numbers of a window while the step after it runs, because
/// reading them earlier would keep the devices waiting for their next step. That moment depends only on the step
/// numbers, so that all processes report the same numbers at the same step.
pub(super) struct Numbers<'a> {
    loggers: Vec<Box<dyn Logger + 'a>>,
    hooks: Vec<LogHook<'a>>,
    pub progress: Option<Progress>,
    pub timing: Timing,
    /// Metrics of the steps since the last logged one.
    window: MultiMetric,
    /// Numbers of logged steps that were not read yet.
    computed: VecDeque<(u64, Computed)>,
    /// Numbers that were read and not yet reported.
    read: BTreeMap<u64, Values>,
    /// The last step that was reported, with its numbers.
    last: (u64, Values),
}

impl<'a> Numbers<'a> {
    pub fn new(
        loggers: Vec<Box<dyn Logger + 'a>>,
        hooks: Vec<LogHook<'a>>,
        progress: Option<Progress>,
        timing: Timing,
    ) -> Self {
        let (window, computed) = (MultiMetric::new(), VecDeque::new());
        Numbers { loggers, hooks, progress, timing, window, computed, read: BTreeMap::new(), last: (0, Values::new()) }
    }

    /// Adds the metrics of one more step.
    pub fn add(&mut self, metrics: MultiMetric) -> Result<()> {
        // The sums are copied to separate memory from the first step on: a step's metrics may share a buffer with the
        // state, which the next step donates.
        self.window = if self.window.is_empty() {
            jit(identity).call(metrics)?
        } else {
            jit(merged).call((std::mem::take(&mut self.window), metrics))?
        };
        Ok(())
    }

    /// Ends the window with this step, and starts to compute its numbers without waiting.
    pub fn end_window(&mut self, step: u64) {
        self.computed.push_back((step, std::mem::take(&mut self.window).computed()));
    }

    /// Waits for the numbers of logged steps, up to this one.
    pub fn read(&mut self, until: u64) -> Result<()> {
        while self.computed.front().is_some_and(|(step, _)| *step <= until)
            && let Some((step, computed)) = self.computed.pop_front()
        {
            let values = tracing::debug_span!("wait for the devices", step)
                .in_scope(|| self.timing.device(|| computed.values()));
            let values = values.map_err(|error| error.context(format!("step {step}")))?;
            self.read.insert(step, self.timing.finish(step, values));
        }
        Ok(())
    }

    /// Adds the metrics of an evaluation to the numbers that were read. Its time counts for no step.
    pub fn evaluate<S>(&mut self, evaluation: &mut Evaluation<'_, S>, step: u64, state: &S) -> Result<()> {
        let values = evaluation.values(state)?;
        self.read.entry(step).or_default().extend(values);
        self.timing.restart(step);
        Ok(())
    }

    /// Reports the numbers that were read, step by step. Returns true if a hook stops the run.
    pub fn report(&mut self) -> Result<bool> {
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
                let control = hook(step, &values).map_err(|error| error.context(format!("step {step}")))?;
                stop |= control == Control::Stop;
            }
            tracing::info!(
                step,
                loss = values.get("loss").copied(),
                steps_per_second = values.get("steps_per_second").copied(),
                "numbers"
            );
            if self.last.0 != step {
                self.last = (step, Values::new());
            }
            self.last.1.extend(values);
        }
        Ok(stop)
    }

    /// The numbers of this step, if it was logged or evaluated. Those of an earlier step belong to another state.
    pub fn of(&self, step: u64) -> Values {
        let (last, values) = &self.last;
        if *last == step { values.clone() } else { Values::new() }
    }

    /// Reads and reports all remaining numbers.
    pub fn finish(&mut self) -> Result<()> {
        self.read(u64::MAX)?;
        self.report().map(drop)
    }
}

fn identity(metrics: MultiMetric) -> MultiMetric {
    metrics
}

fn merged(window: MultiMetric, metrics: MultiMetric) -> MultiMetric {
    window.merge(&metrics)
}
