//! Image data sets: CIFAR-10's files or the built-in digits, in batches.

use std::path::{Path, PathBuf};

use shardax::{Error, ErrorKind};
use shardax_nn::prelude::*;
use shardax_train::data::{Example, HostArray, InMemory, Source, Stream, cifar10};
use shardax_train::{Batch, digits, shard_batch};

/// A training and a test set of examples with `image`, uint8 `[rows, columns, channels]`, and `label`, int32.
pub struct Images {
    pub train: InMemory,
    pub test: InMemory,
    /// The shape of an image.
    pub shape: [usize; 3],
}

/// CIFAR-10, binary version: `data_batch_1.bin` and so on, and `test_batch.bin`.
pub fn cifar(folder: &Path) -> Result<Images> {
    let entries = std::fs::read_dir(folder).map_err(|error| {
        Error::new(ErrorKind::Value, format!("cannot read the folder {}: {error}", folder.display()))
            .help("pass the folder of CIFAR-10's binary version, with data_batch_1.bin and test_batch.bin")
    })?;
    let mut batches: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    batches.retain(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("data_batch_") && name.ends_with(".bin")
    });
    batches.sort();
    if batches.is_empty() {
        let message = format!("{} has no data_batch_1.bin", folder.display());
        return Err(Error::new(ErrorKind::Value, message).help("pass the folder of CIFAR-10's binary version"));
    }
    let (train, test) = (cifar10(&batches)?, cifar10(&[folder.join("test_batch.bin")])?);
    Ok(Images { train: with_labels(train)?, test: with_labels(test)?, shape: [32, 32, 3] })
}

/// The built-in digits of 8 × 8 pixels.
pub fn of_digits(seed: u64) -> Result<Images> {
    let (train, test) = digits()?.shuffle(seed).split(1500);
    Ok(Images { train: digit_images(train)?, test: digit_images(test)?, shape: [8, 8, 1] })
}

/// Converts digits to images of bytes, the format of CIFAR-10.
fn digit_images(data: shardax_train::Dataset) -> Result<InMemory> {
    let pixels: Vec<u8> =
        (0..data.len()).flat_map(|i| data.image(i).unwrap_or_default()).map(|x| (x * 255.0) as u8).collect();
    let images = HostArray::from_slice(&pixels, &[data.len(), 8, 8, 1])?;
    InMemory::new([("image", images), ("label", HostArray::from_slice(data.labels(), &[data.len()])?)])
}

/// Converts labels to int32, as losses require.
fn with_labels(data: InMemory) -> Result<InMemory> {
    let mut fields = data.fields().clone();
    if let Some(label) = fields.get_mut("label") {
        let wide: Vec<i32> = label.to_vec::<u8>()?.into_iter().map(i32::from).collect();
        *label = HostArray::from_slice(&wide, label.shape())?;
    }
    InMemory::new(fields)
}

/// A batch with a leading dimension of devices, `[devices, B / devices, …]`.
pub fn on_devices(example: &Example, devices: usize) -> Result<Batch> {
    let batch = Batch {
        images: example["image"].to_array()?,
        labels: example["label"].to_array()?,
        mask: example["mask"].to_array()?,
    };
    shard_batch(&batch, devices)
}

/// The batches of a test set in order. The last one is padded with blank examples, which its mask marks.
pub fn test_batches(test: &InMemory, size: usize, devices: usize) -> impl Stream<Item = Batch> + use<> {
    let test = test.clone().stream().epochs(1);
    test.batch_masked(size).map(move |batch| on_devices(&batch, devices)).prefetch(2)
}

/// A batch whose first dimension is split by the sharding.
pub fn split(example: &Example, rows: &NamedSharding) -> Result<Batch> {
    Ok(Batch {
        images: example["image"].to_array_on(rows)?,
        labels: example["label"].to_array_on(rows)?,
        mask: example["mask"].to_array_on(rows)?,
    })
}

/// Endless, shuffled training batches with prefetching.
pub fn train_batches(
    train: InMemory,
    seed: u64,
    size: usize,
    rows: &NamedSharding,
) -> impl Stream<Item = Batch> + use<> {
    let rows = rows.clone();
    train.stream().shuffled(seed).batch_masked(size).map(move |batch| split(&batch, &rows)).prefetch(2)
}
