//! PyTorch files (`.bin`, `.pt`, `.pth`): zip archives that contain a pickle and the storage of each tensor, or, before PyTorch
//! 1.6, pickles that storages follow.
//!
//! A pickle is a program that can call any Python function. This reader only supports the calls that rebuild tensors,
//! and returns an error for every other call, so that a file cannot run code.

mod pickle;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use shardax::error::Result;
use shardax::prelude::*;
use zip::{CompressionMethod, ZipArchive};

use crate::error::{damaged, file_size, io_error, value_error};

/// The description of a tensor in a PyTorch file.
#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    pub name: String,
    pub dtype: DType,
    pub shape: Vec<usize>,
    /// The strides, in elements.
    pub strides: Vec<usize>,
    /// The position of the first element in the file.
    pub offset: u64,
    /// The number of bytes from the first to the last element.
    pub bytes: u64,
}

/// The maximal size of a pickle. Pickles are small, because they do not contain the elements of tensors.
const MAX_PICKLE_BYTES: u64 = 100_000_000;

/// Returns `true` if a path has an extension of PyTorch files.
pub(crate) fn is_named(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "bin" || extension == "pt" || extension == "pth")
}

/// Lists the tensors of a file. The keys of nested dictionaries are joined with dots.
///
/// # Errors
/// Returns an error if the file is damaged, or if its pickle does something other than rebuild tensors.
pub(crate) fn tensors(path: &Path) -> Result<Vec<Tensor>> {
    let size = file_size(path)?;
    let mut file = BufReader::new(File::open(path).map_err(|error| io_error("read", path, &error))?);
    let mut start = Vec::new();
    let read = file.by_ref().take(32).read_to_end(&mut start).and_then(|_| file.rewind());
    read.map_err(|error| io_error("read", path, &error))?;
    if pickle::is_older_format(&start) {
        return older_tensors(path, &mut file, size);
    }
    let mut archive = match ZipArchive::new(&mut file) {
        Ok(archive) => archive,
        Err(error) => {
            let message = format!(
                "{} is not a zip archive, which PyTorch has written since version 1.6: {error}",
                path.display()
            );
            let help = "load it in Python and save it again: `torch.save(torch.load(path), path)`";
            return Err(value_error(message, help));
        }
    };
    let names: Vec<String> = archive.file_names().map(str::to_owned).collect();
    let Some(prefix) = names.iter().find_map(|name| name.strip_suffix("data.pkl")) else {
        return Err(damaged(path, 0, "the archive has no data.pkl"));
    };
    // Record only the positions of the storages. The elements of a tensor are read when a model needs them.
    let mut parts = BTreeMap::new();
    let (mut pickle, mut order) = (Vec::new(), Vec::new());
    for index in 0..archive.len() {
        let part =
            archive.by_index(index).map_err(|error| damaged(path, 0, format!("an entry is damaged: {error}")))?;
        let name = part.name().strip_prefix(prefix).unwrap_or_default().to_owned();
        if name == "data.pkl" {
            part.take(MAX_PICKLE_BYTES).read_to_end(&mut pickle).map_err(|error| io_error("read", path, &error))?;
        } else if name == "byteorder" {
            part.take(16).read_to_end(&mut order).map_err(|error| io_error("read", path, &error))?;
        } else if let Some(key) = name.strip_prefix("data/") {
            if part.compression() != CompressionMethod::Stored {
                return Err(damaged(path, part.data_start(), format!("the storage {key:?} is compressed")));
            }
            parts.insert(key.to_owned(), (part.data_start(), part.size()));
        }
    }
    if order == b"big" {
        return Err(value_error(
            format!("{} contains big-endian numbers, which are not supported", path.display()),
            "load the file in Python and save it again on a little-endian machine",
        ));
    }
    let parsed = pickle::tensors(&pickle).map_err(|what| {
        let message = format!("cannot read the tensors of {}: {what}", path.display());
        value_error(message, "save a dictionary of tensors: `torch.save(model.state_dict(), path)`, or use safetensors")
    })?;
    parsed.into_iter().map(|tensor| placed(path, tensor, &parts)).collect()
}

/// Lists the tensors of a file of the format before PyTorch 1.6.
fn older_tensors(path: &Path, file: &mut BufReader<File>, size: u64) -> Result<Vec<Tensor>> {
    let mut pickles = Vec::new();
    file.by_ref().take(MAX_PICKLE_BYTES).read_to_end(&mut pickles).map_err(|error| io_error("read", path, &error))?;
    let pickle::OlderFile { tensors, storages, end } = pickle::older_file(&pickles).map_err(|what| {
        let message = format!("cannot read the tensors of {}: {what}", path.display());
        value_error(message, "load it in Python and save it again: `torch.save(torch.load(path), path)`")
    })?;
    // Each storage starts with its number of elements.
    let (mut parts, mut position) = (BTreeMap::new(), end as u64);
    for key in storages {
        let mut count = [0; 8];
        let read = file.seek(SeekFrom::Start(position)).and_then(|_| file.read_exact(&mut count));
        read.map_err(|_| damaged(path, position, format!("the storage {key:?} should follow, but the file ends")))?;
        let Some(tensor) = tensors.iter().find(|tensor| tensor.storage == key) else {
            return Err(damaged(path, position, format!("no tensor has the storage {key:?}")));
        };
        let bytes = u64::from_le_bytes(count).checked_mul(tensor.dtype.byte_size() as u64);
        let start = position + count.len() as u64;
        let Some(end) = bytes.and_then(|bytes| start.checked_add(bytes)).filter(|end| *end <= size) else {
            return Err(damaged(
                path,
                position,
                format!("the storage {key:?} does not fit in the {size} bytes of the file"),
            ));
        };
        parts.insert(key, (start, end - start));
        position = end;
    }
    tensors.into_iter().map(|tensor| placed(path, tensor, &parts)).collect()
}

/// Locates a tensor in the file and checks that it is inside of its storage.
fn placed(path: &Path, tensor: pickle::Rebuilt, parts: &BTreeMap<String, (u64, u64)>) -> Result<Tensor> {
    let pickle::Rebuilt { name, dtype, storage, offset, shape, strides } = tensor;
    let Some((start, size)) = parts.get(&storage).copied() else {
        return Err(damaged(path, 0, format!("the storage {storage:?} of {name:?} is missing")));
    };
    let element = dtype.byte_size() as u64;
    let bytes = (|| {
        if strides.len() != shape.len() {
            return None;
        }
        if shape.contains(&0) {
            return Some(0);
        }
        let steps = shape.iter().zip(&strides).map(|(size, stride)| (*size as u64 - 1).checked_mul(*stride as u64));
        let last_element = steps.into_iter().try_fold(0u64, |sum, step| sum.checked_add(step?))?;
        last_element.checked_add(1)?.checked_mul(element)
    })();
    let begin = (offset as u64).checked_mul(element);
    let end = begin.and_then(|begin| begin.checked_add(bytes?));
    // An expanded tensor can have more elements than its storage. It is an error, because a small file could otherwise
    // require any amount of memory.
    let elements = shape.iter().try_fold(element, |product, size| product.checked_mul(*size as u64));
    match (begin, bytes, end) {
        (Some(begin), Some(bytes), Some(end)) if end <= size && elements.is_some_and(|elements| elements <= size) => {
            Ok(Tensor { name, dtype, shape, strides, offset: start + begin, bytes })
        }
        _ => {
            let message = format!(
                "the tensor {name:?} of {shape:?} with strides {strides:?} at element {offset} exceeds its storage of {size} bytes"
            );
            Err(damaged(path, start, message))
        }
    }
}
