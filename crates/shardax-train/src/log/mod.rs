//! Loggers of a training run: JSON lines and TensorBoard event files.

mod event_file;
mod json_lines;

use std::collections::BTreeMap;

use shardax::error::Result;

pub use event_file::EventFile;
pub use json_lines::{JsonLines, Line};

/// A destination of a training run's numbers.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a destination of logs",
    label = "not a logger",
    note = "`JsonLines::new(path)?`, `EventFile::new(folder)?`, or a type of your own that implements `Logger`"
)]
pub trait Logger {
    /// The run begins, or resumes, after `step`: later steps that an earlier run logged are not part of this one.
    fn begin(&mut self, step: u64) -> Result<()>;

    /// Logs the numbers of a step by name.
    fn log(&mut self, step: u64, values: &BTreeMap<String, f64>) -> Result<()>;

    /// Writes everything to disk.
    fn flush(&mut self) -> Result<()>;
}
