//! Where a training's numbers go: JSON lines, TensorBoard's event files.

mod event_file;
mod json_lines;

use std::collections::BTreeMap;

use shardax::error::Result;

pub use event_file::EventFile;
pub use json_lines::{JsonLines, Line};

/// What takes a training's numbers.
pub trait Logger {
    /// The run begins, or goes on, after `step`: numbers of later steps that an earlier run wrote are not those of this
    /// one.
    fn begin(&mut self, step: u64) -> Result<()>;

    /// The numbers of a step, by their names.
    fn log(&mut self, step: u64, values: &BTreeMap<String, f64>) -> Result<()>;

    /// Brings all of it to the disk.
    fn flush(&mut self) -> Result<()>;
}
