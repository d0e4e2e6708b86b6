//! Data, a training loop, metrics, logs, plots and checkpoints.
//!
//! ```
//! use shardax::prelude::*;
//! use shardax_train::{Average, digits, shard_batch};
//! # shardax::config::set_num_cpu_devices(8).ok();
//!
//! let (train, _test) = digits()?.shuffle(0).split(1500);
//! let brightness = pmap(|images: Array| pmean(images.mean(..), "batch")).axis_name("batch").out_axes(None);
//!
//! let mut mean = Average::new();
//! for batch in train.batches(64).drop_last() {
//!     let batch = shard_batch(&batch?, device_count())?;
//!     mean.add(brightness.call(batch.images)?);
//! }
//! assert!((mean.value()? - 0.305).abs() < 0.005);
//! # Ok::<(), shardax::Error>(())
//! ```

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
#![warn(missing_docs)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod accumulate;
pub mod batching;
pub mod checkpoint;
pub mod data;
mod early_stopping;
mod finite;
mod forest;
pub mod log;
pub mod metrics;
pub mod picture;
pub mod plot;
pub mod progress;
mod replicas;
pub mod report;
pub mod serialization;
mod sum;
pub mod trainer;

pub use accumulate::accumulate;
pub use batching::{Batch, Batches, shard_batch};
pub use checkpoint::{CheckpointManager, CheckpointManagerOptions};
pub use data::{Dataset, digits};
pub use early_stopping::EarlyStopping;
pub use finite::FiniteCheck;
pub use forest::{get_metrics, stack_forest};
pub use metrics::{Accuracy, AnyMetric, Average, LastValue, Metric, MultiMetric, Perplexity, Std};
pub use picture::Picture;
pub use plot::{Panel, Plot};
pub use progress::Progress;
pub use replicas::replicas_identical;
pub use trainer::{Control, OnPreemption, StepContext, Trainer};

/// The items that most programs need, from this crate and from `shardax-nn`: `use shardax_train::prelude::*;`
///
/// ```
/// use shardax_train::prelude::*;
/// let mut batches = InMemory::new([field("x", &[0, 1, 2, 3], [4])?])?.stream().epochs(1).batch(2);
/// let mut mean = Average::new();
/// while let Some(batch) = batches.next_item() {
///     mean.add(batch?["x"].to_array()?.mean(..));
/// }
/// assert_eq!(mean.value()?, 1.5);
/// # Ok::<(), shardax::Error>(())
/// ```
pub mod prelude {
    pub use shardax_nn::prelude::*;

    pub use crate::checkpoint::{CheckpointManager, CheckpointManagerOptions};
    pub use crate::data::{
        CsvOptions, Dataset, Example, HostArray, InMemory, Missing, Record, Source, Stream, arrays, digits, field,
    };
    pub use crate::log::{JsonLines, Logger};
    pub use crate::metrics::{Accuracy, Average, LastValue, Metric, MultiMetric, Perplexity, Std};
    pub use crate::{
        Batch, Batches, EarlyStopping, Panel, Plot, Progress, Trainer, accumulate, checkpoint, data,
        replicas_identical, shard_batch,
    };
}
