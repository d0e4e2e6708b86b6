//! The end of a run that has a notice of preemption.

use std::path::Path;

use shardax::distributed::preemption::{self, Listening};
use shardax::error::Result;
use shardax::multihost;
use shardax::prelude::*;

/// The reaction of a run to a [notice of preemption](preemption), once its state is saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnPreemption {
    /// Ends the process, with the exit status [`preemption::EXIT_STATUS`] (75) and a line on standard error.
    Exit,
    /// Returns the state from [`Trainer::run`](super::Trainer::run); [`preemption::notice`] has the reason.
    Return,
    /// Nothing: the signals end the process, as without a [`Trainer`](super::Trainer).
    Ignore,
}

/// The notices of a run.
pub(super) struct Notices {
    listening: Option<Listening>,
    /// The step at which the run stopped.
    pub stopped: Option<u64>,
}

impl Notices {
    pub fn new(reaction: OnPreemption) -> Result<Notices> {
        let listening = (reaction != OnPreemption::Ignore).then(preemption::listen).transpose()?;
        Ok(Notices { listening, stopped: None })
    }

    /// Returns true if all processes stop after this step.
    pub fn stop_after(&mut self, step: u64) -> Result<bool> {
        let stop = self.listening.is_some() && multihost::reached_preemption_sync_point(step)?;
        if stop {
            self.stopped = Some(step);
        }
        Ok(stop)
    }
}

/// Ends the process.
pub(super) fn exit(step: u64, saved: Option<&Path>) -> ! {
    if process_index() == 0 {
        let reason = preemption::notice().unwrap_or_default();
        let saved = saved.map_or_else(String::new, |folder| format!(", which is saved in {}", folder.display()));
        let status = preemption::EXIT_STATUS;
        eprintln!(
            "shardax: preempted ({reason}): the run ends after step {step}{saved}; rerun to resume (status {status})"
        );
    }
    std::process::exit(preemption::EXIT_STATUS)
}
