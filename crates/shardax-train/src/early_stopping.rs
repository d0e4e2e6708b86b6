//! Early stopping of a run that no longer improves.

/// Counts the epochs in which a metric that should fall does not (`flax.training.early_stopping.EarlyStopping`).
///
/// ```
/// use shardax_train::EarlyStopping;
/// let mut early = EarlyStopping::new(1e-3, 2);
/// let losses = [1.0, 0.5, 0.5, 0.4999, 0.5];
/// let epochs = losses.iter().take_while(|loss| !early.update(**loss).should_stop).count();
/// assert_eq!((epochs, early.best_metric), (4, 0.5));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EarlyStopping {
    /// The least improvement that counts.
    pub min_delta: f64,
    /// The number of updates without improvement that can follow each other.
    pub patience: usize,
    /// The best metric. At first infinity.
    pub best_metric: f64,
    /// The number of updates since it improved.
    pub patience_count: usize,
    /// True after more updates without improvement than are allowed.
    pub should_stop: bool,
    /// True if the last update improved the metric.
    pub has_improved: bool,
}

impl EarlyStopping {
    /// Creates a counter without values.
    pub fn new(min_delta: f64, patience: usize) -> Self {
        let best_metric = f64::INFINITY;
        EarlyStopping { min_delta, patience, best_metric, patience_count: 0, should_stop: false, has_improved: false }
    }

    /// Counts a value of the metric. NaN does not count as an improvement.
    pub fn update(&mut self, metric: f64) -> Self {
        self.has_improved =
            self.best_metric.is_infinite() && metric.is_finite() || self.best_metric - metric > self.min_delta;
        if self.has_improved {
            (self.best_metric, self.patience_count) = (metric, 0);
        } else {
            self.should_stop = self.patience_count >= self.patience || self.should_stop;
            self.patience_count += 1;
        }
        *self
    }
}
