//! CIFAR's binary format.

use std::path::Path;

use shardax::error::Result;
use shardax::prelude::*;

use super::HostArray;
use super::file::Bytes;
use super::source::InMemory;

const SIDE: usize = 32;
const PIXELS: usize = SIDE * SIDE;

/// Reads CIFAR-10's files, such as `data_batch_1.bin`, one after the other. An example has `image`, uint8 `[32, 32,
/// 3]`, and `label`, uint8.
///
/// # Errors
/// Returns an error, with the file and the offset, if a file is truncated, or a label is not below 10.
///
/// # Examples
/// ```no_run
/// use shardax_train::data::{Source, Stream, cifar10};
/// let training = cifar10((1..=5).map(|i| format!("cifar-10-batches-bin/data_batch_{i}.bin")))?;
/// let mut batches = training.stream().shuffled(0).batch(128);
/// let batch = batches.next_item().expect("a batch")?;
/// assert_eq!(batch["image"].shape(), [128, 32, 32, 3]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn cifar10<P: AsRef<Path>>(files: impl IntoIterator<Item = P>) -> Result<InMemory> {
    let location = std::panic::Location::caller();
    read(files, &[("label", 10)]).map_err(|error| error.at(location))
}

/// Reads CIFAR-100's files, `train.bin` or `test.bin`, like [`cifar10()`]. An example also has `coarse`, uint8, the label of
/// the superclass.
///
/// # Errors
/// Returns an error if a file cannot be read, ends within an example, or has a label that is not a class.
#[track_caller]
pub fn cifar100<P: AsRef<Path>>(files: impl IntoIterator<Item = P>) -> Result<InMemory> {
    let location = std::panic::Location::caller();
    read(files, &[("coarse", 20), ("label", 100)]).map_err(|error| error.at(location))
}

fn read<P: AsRef<Path>>(files: impl IntoIterator<Item = P>, names: &[(&str, u8)]) -> Result<InMemory> {
    let mut images = Vec::new();
    let mut labels = vec![Vec::new(); names.len()];
    for path in files {
        let mut file = Bytes::open(path.as_ref())?;
        file.fits()?;
        while !file.at_exit()? {
            for ((name, classes), labels) in names.iter().zip(&mut labels) {
                let label = file.take(1, "a label")?[0];
                if label >= *classes {
                    return Err(file.wrong(format!("the {name} before it is {label}, and there are {classes} classes")));
                }
                labels.push(label);
            }
            let planes = file.take(3 * PIXELS, "an image")?;
            images.extend((0..PIXELS).flat_map(|i| [planes[i], planes[PIXELS + i], planes[2 * PIXELS + i]]));
        }
    }
    let count = images.len() / (3 * PIXELS);
    let images = HostArray::from_bytes(images, DType::U8, &[count, SIDE, SIDE, 3])?;
    let mut fields = vec![("image", images)];
    for ((name, _), labels) in names.iter().zip(labels) {
        fields.push((name, HostArray::from_bytes(labels, DType::U8, &[count])?));
    }
    InMemory::new(fields)
}
