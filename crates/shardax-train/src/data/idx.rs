//! IDX files, MNIST's format: a header, and numbers of any rank.

use std::path::Path;

use shardax::error::Result;
use shardax::prelude::*;

use super::HostArray;
use super::file::Bytes;
use super::source::InMemory;

/// Reads the array in an IDX file, which can be a gzip file.
///
/// ```
/// # let path = std::env::temp_dir().join(format!("shardax-doc-idx-{}", std::process::id()));
/// std::fs::write(&path, [0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]).expect("a file");
/// let labels = shardax_train::data::idx(&path)?;
/// assert_eq!(labels.to_vec::<u8>()?, [7, 8, 9]);
/// # std::fs::remove_file(&path).ok();
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error, with the file and the offset, if it is truncated or not such a file.
#[track_caller]
pub fn idx(path: impl AsRef<Path>) -> Result<HostArray> {
    let location = std::panic::Location::caller();
    read(path.as_ref()).map_err(|error| error.at(location))
}

/// Reads images with their labels from two files, such as MNIST's `train-images-idx3-ubyte.gz` and
/// `train-labels-idx1-ubyte.gz`. An example has `image`, uint8 `[rows, columns]`, and `label`, uint8.
///
/// # Errors
/// Returns the errors of [`idx()`], and an error if the numbers of images and labels differ.
///
/// # Examples
/// ```no_run
/// use shardax_train::data::{Source, Stream, idx_images};
/// let training = idx_images("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz")?;
/// let mut batches = training.stream().shuffled(0).batch(128);
/// let batch = batches.next_item().expect("a batch")?;
/// assert_eq!((batch["image"].shape(), batch["label"].shape()), (&[128, 28, 28][..], &[128][..]));
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn idx_images(images: impl AsRef<Path>, labels: impl AsRef<Path>) -> Result<InMemory> {
    InMemory::new([("image", idx(images)?), ("label", idx(labels)?)])
}

fn read(path: &Path) -> Result<HostArray> {
    let mut file = Bytes::open(path)?;
    let magic = file.u32_be("the header")?;
    let (kind, rank) = (magic >> 8, magic as u8);
    let dtype = match kind {
        0x08 => DType::U8,
        0x09 => DType::I8,
        0x0b => DType::I16,
        0x0c => DType::I32,
        0x0d => DType::F32,
        0x0e => DType::F64,
        _ => return Err(file.wrong(format!("the header says {magic:#010x}, which is not a type of numbers"))),
    };
    let shape: Vec<usize> = (0..rank).map(|_| Ok(file.u32_be("sizes")? as usize)).collect::<Result<_>>()?;
    let size = dtype.byte_size();
    let count = shape.iter().try_fold(size, |n, d| n.checked_mul(*d));
    let Some(count) = count else { return Err(file.wrong(format!("the sizes {shape:?} are too large"))) };
    let mut bytes = file.take(count, "numbers")?;
    file.end()?;
    // The file is big-endian.
    bytes.chunks_exact_mut(size).for_each(|number| number.reverse());
    HostArray::from_bytes(bytes, dtype, &shape)
}
