//! Evaluations and checks between steps.

use shardax::error::{Error, ErrorKind, Result};

use super::{Control, StepContext, Values};
use crate::metrics::MultiMetric;

pub(super) type Hook<'a, S> = Box<dyn FnMut(&StepContext<'_, S>) -> Result<Control> + 'a>;

pub(super) type LogHook<'a> = Box<dyn FnMut(u64, &Values) -> Result<Control> + 'a>;

/// An evaluation: metrics of a state on data that it was not trained on.
pub(super) struct Evaluation<'a, S> {
    pub every: u64,
    pub name: String,
    pub evaluate: Box<dyn FnMut(&S) -> Result<MultiMetric> + 'a>,
}

impl<S> Evaluation<'_, S> {
    pub fn is_due(&self, step: u64, last: u64) -> bool {
        step.is_multiple_of(self.every) || step == last
    }

    pub fn values(&mut self, state: &S) -> Result<Values> {
        let values = (self.evaluate)(state)?.values()?;
        Ok(values.into_iter().map(|(name, x)| (format!("{}/{name}", self.name), x)).collect())
    }
}

/// The error for copies of an array that differ.
pub(super) fn copies_differ(path: &str, step: u64) -> Error {
    let message = format!("after step {step} the copies of `{path}` on several devices differ");
    Error::new(ErrorKind::Check, message)
        .help("average the gradients over the devices (`pmean`) before the update, and draw the same random numbers")
}
