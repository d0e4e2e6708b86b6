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
