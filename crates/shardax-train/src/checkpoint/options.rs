//! Options of a checkpoint manager: which steps it saves and retains.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use shardax::choice::{Choice, IntoChoice, NamedOption};

use super::Metrics;

/// The order of `best_fn`'s values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum BestMode {
    /// Larger is better.
    #[default]
    Max,
    /// Smaller is better.
    Min,
}

/// Orbax's names.
impl NamedOption for BestMode {
    const KIND: &'static str = "mode";
    const NAMES: &'static [(&'static str, Self)] = &[("max", BestMode::Max), ("min", BestMode::Min)];
}

pub(super) type BestFn = Arc<dyn Fn(&Metrics) -> Option<f64> + Send + Sync>;

/// Options of a [`CheckpointManager`](super::CheckpointManager), with Orbax's names.
#[derive(Clone)]
pub struct CheckpointManagerOptions {
    pub(super) max_to_keep: Option<usize>,
    pub(super) keep_period: Option<u64>,
    pub(super) save_interval_steps: u64,
    pub(super) best: Option<(BestFn, Choice<BestMode>)>,
    pub(super) asynchronous: bool,
    pub(super) read_only: bool,
    pub(super) fall_back: bool,
    pub(super) timeout: Duration,
}

impl Default for CheckpointManagerOptions {
    fn default() -> Self {
        CheckpointManagerOptions {
            max_to_keep: None,
            keep_period: None,
            save_interval_steps: 1,
            best: None,
            asynchronous: true,
            read_only: false,
            fall_back: true,
            timeout: Duration::from_secs(600),
        }
    }
}

impl fmt::Debug for CheckpointManagerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CheckpointManagerOptions")
            .field("max_to_keep", &self.max_to_keep)
            .field("keep_period", &self.keep_period)
            .field("save_interval_steps", &self.save_interval_steps)
            .field("best_mode", &self.best.as_ref().map(|(_, mode)| mode))
            .finish_non_exhaustive()
    }
}

impl CheckpointManagerOptions {
    /// Creates options that save every step and never remove one.
    pub fn new() -> Self {
        CheckpointManagerOptions::default()
    }

    /// Retains the last `n` checkpoints, or with [`best_fn`](Self::best_fn) the best `n` and the last. Others are
    /// removed when a new one is complete, so the disk must have room for one more. At least one is retained.
    pub fn max_to_keep(mut self, n: usize) -> Self {
        self.max_to_keep = Some(n.max(1));
        self
    }

    /// Also retains the steps that are multiples of `period`.
    pub fn keep_period(mut self, period: u64) -> Self {
        self.keep_period = Some(period.max(1));
        self
    }

    /// Saves only the steps that are multiples of `steps` (1 by default).
    pub fn save_interval_steps(mut self, steps: u64) -> Self {
        self.save_interval_steps = steps.max(1);
        self
    }

    /// Ranks steps by the metrics that you pass with [`SaveArgs`](super::SaveArgs), such as
    /// `|metrics| metrics.get("accuracy").copied()`. A step for which the function returns `None` or NaN is worse than
    /// all others. The mode is a [`BestMode`], or `"max"` or `"min"`.
    pub fn best_fn(
        mut self,
        f: impl Fn(&Metrics) -> Option<f64> + Send + Sync + 'static,
        mode: impl IntoChoice<BestMode>,
    ) -> Self {
        self.best = Some((Arc::new(f), mode.into_choice()));
        self
    }

    /// Sets whether a thread writes the values while your program continues (the default). Otherwise `save` returns
    /// when the checkpoint is on disk.
    pub fn enable_async_checkpointing(mut self, enable: bool) -> Self {
        self.asynchronous = enable;
        self
    }

    /// Never writes or removes anything, so that you can read the checkpoints of a program that is still running.
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// Sets whether [`restore_latest`](super::CheckpointManager::restore_latest) skips a damaged checkpoint with a
    /// warning that names it, and restores the one before (the default), or fails.
    pub fn fall_back(mut self, fall_back: bool) -> Self {
        self.fall_back = fall_back;
        self
    }

    /// Sets the time that processes wait for each other (600 s by default). A save fails after it, because a process
    /// that has stopped would block the others forever.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}
