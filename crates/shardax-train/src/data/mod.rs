//! Data loading: data sets in memory, files of the common formats, and streams of examples that are mapped, shuffled,
//! batched and mixed. A stream's position is saved and restored exactly.
//!
//! A [`Source`] has random access to examples: [`idx()`], [`cifar10()`], [`csv()`], [`npy()`], [`npz()`],
//! [`text_windows()`]. A [`Stream`] yields them in sequence: [`Source::stream`], [`WebDataset`]. [`ParallelMap`] uses
//! several threads, [`Augment`] changes images, [`Prefetch`] reads ahead.
//!
//! ```
//! use shardax_nn::prelude::*;
//! use shardax_train::data::{Example, HostArray, Source, Stream};
//!
//! let numbers = |i: usize| Ok(Example::from([("x".to_owned(), HostArray::from_slice(&[i as f32, 1.0], &[2])?)]));
//! let make = || (100usize, numbers).stream().shuffled(7).batch(8);
//! let mut batches = make();
//! batches.next_item().expect("a batch")?;
//! let position = batches.position();
//! let second = batches.next_item().expect("a batch")?;
//! assert_eq!(second["x"].shape(), [8, 2]);
//!
//! // Another run resumes at this position.
//! let mut again = make();
//! again.seek(&position)?;
//! assert_eq!(again.next_item().expect("a batch")?, second);
//! # Ok::<(), shardax::Error>(())
//! ```

mod augment;
mod cifar;
mod csv_file;
mod dataset;
mod example;
pub(crate) mod file;
mod idx;
#[cfg(feature = "image")]
mod image_folder;
mod mix;
mod npy;
mod pack;
mod parallel;
#[cfg(feature = "parquet")]
mod parquet_file;
mod prefetch;
mod record;
mod shuffle;
mod source;
mod stream;
mod tar;
mod text;
mod tokenizer;
mod windows;

pub use augment::Augment;
pub use cifar::{cifar10, cifar100};
pub use csv_file::{CsvOptions, Missing, csv};
pub(crate) use dataset::shuffled;
pub use dataset::{Dataset, digits};
pub use example::{Example, HostArray, arrays, field};
pub use idx::{idx, idx_images};
#[cfg(feature = "image")]
pub use image_folder::{ImageFolder, decode_image, image_folder};
pub use mix::Mix;
pub use npy::{npy, npz};
pub use pack::Pack;
pub use parallel::{Enumerate, ParallelMap};
#[cfg(feature = "parquet")]
pub use parquet_file::{Parquet, parquet};
pub use prefetch::Prefetch;
#[doc(hidden)]
pub use record::derive as __derive;
pub use record::{Record, RecordField};
pub use shuffle::ShuffleBuffer;
pub use source::{InMemory, Part, Source, SourceStream};
pub use stream::{Batched, Map, Repeat, Shard, Stream};
pub use tar::WebDataset;
pub use text::{TextWindows, TokenWindows, text_windows, token_windows};
#[cfg(feature = "tokenizers")]
pub use tokenizer::BpeOptions;
pub use tokenizer::Tokenizer;
pub use windows::{Pad, Windows};
