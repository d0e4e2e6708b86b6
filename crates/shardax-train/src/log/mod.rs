//! Loggers of a training run: JSON lines and TensorBoard event files.

mod event_file;
mod json_lines;

use std::collections::BTreeMap;

use shardax::error::Result;

pub use event_file::EventFile;
pub use json_lines::{JsonLines, Line};

/// A destination of a training run's numbers.
pub trait Logger {
    /// The run begins, or resumes, after `step`: later steps that an earlier run logged are not part of this one.
    fn begin(&mut self, step: u64) -> Result<()>;

    /// Logs the numbers of a step by name.
    fn log(&mut self, step: u64, values: &BTreeMap<String, f64>) -> Result<()>;

    /// Writes everything to disk.
    fn flush(&mut self) -> Result<()>;
}
