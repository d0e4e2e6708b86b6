//! Checkpoints of a run that cannot be written, or must not be.

use shardax::config::warn;
use shardax::error::{Error, ErrorKind, Result};

use crate::finite::FiniteCheck;

/// The checks and failures of the checkpoints of a run.
#[derive(Default)]
pub(super) struct Saves {
    pub finite: FiniteCheck,
    /// The number of checkpoints in a row that could not be written. The run continues after a few failures, because a
    /// disk may be full or unavailable for a while, and the run's work would be lost.
    pub failures: u32,
}

impl Saves {
    /// The number of failures in a row that a run survives.
    const MAX_FAILURES: u32 = 3;

    /// Warns about a failure, or returns it if it is one too many.
    pub fn count_failure(&mut self, error: Error) -> Result<()> {
        self.failures += 1;
        if error.kind() != ErrorKind::Runtime || self.failures > Self::MAX_FAILURES {
            return Err(error);
        }
        warn(
            &format!(
                "a checkpoint was not written ({} of {} in a row that end the run): {error}",
                self.failures,
                Self::MAX_FAILURES + 1
            ),
            "the run continues, and saves the next step instead",
        );
        Ok(())
    }
}
