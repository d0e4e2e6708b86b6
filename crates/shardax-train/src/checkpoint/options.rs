//! What a manager keeps, and when it saves.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::Metrics;

/// Which of two steps is the better one, by what `best_fn` says of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BestMode {
    /// The larger.
    #[default]
    Max,
    /// The smaller.
    Min,
}

pub(super) type BestFn = Arc<dyn Fn(&Metrics) -> Option<f64> + Send + Sync>;

/// What a [`CheckpointManager`](super::CheckpointManager) keeps, and when. The names are Orbax's.
#[derive(Clone)]
pub struct CheckpointManagerOptions {
    pub(super) max_to_keep: Option<usize>,
    pub(super) keep_period: Option<u64>,
    pub(super) save_interval_steps: u64,
    pub(super) best: Option<(BestFn, BestMode)>,
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
    /// Every step that is given is kept for ever.
    pub fn new() -> Self {
        CheckpointManagerOptions::default()
    }

    /// Keeps the last `n` checkpoints, or with [`best_fn`](Self::best_fn) the best `n` and the last; others are removed
    /// when a new one is whole. At least one is kept.
    pub fn max_to_keep(mut self, n: usize) -> Self {
        self.max_to_keep = Some(n.max(1));
        self
    }

    /// Keeps, beside those, the steps that are multiples of `period`.
    pub fn keep_period(mut self, period: u64) -> Self {
        self.keep_period = Some(period.max(1));
        self
    }

    /// Saves the steps that are multiples of `steps` (1); others are passed over.
    pub fn save_interval_steps(mut self, steps: u64) -> Self {
        self.save_interval_steps = steps.max(1);
        self
    }

    /// How good a step is, from its metrics: `|metrics| metrics.get("accuracy").copied()`. A step of which this is `None` or
    /// NaN is worse than all others.
    pub fn best_fn(mut self, f: impl Fn(&Metrics) -> Option<f64> + Send + Sync + 'static, mode: BestMode) -> Self {
        self.best = Some((Arc::new(f), mode));
        self
    }

    /// Whether `save` returns as soon as the values are copied from the devices, and a thread writes them (the default).
    pub fn enable_async_checkpointing(mut self, enable: bool) -> Self {
        self.asynchronous = enable;
        self
    }

    /// Nothing is written or removed: for programs that look at the checkpoints of another.
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// Whether [`restore_latest`](super::CheckpointManager::restore_latest) takes the checkpoint before one that is damaged, with
    /// a warning that names it (the default), or fails.
    pub fn fall_back(mut self, fall_back: bool) -> Self {
        self.fall_back = fall_back;
        self
    }

    /// How long processes wait for each other's parts (600 s).
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}
