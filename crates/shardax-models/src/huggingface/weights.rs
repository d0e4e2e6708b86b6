//! Reading safetensors files, and several of them with an index.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use shardax::error::Result;
use shardax::prelude::*;

use super::layout::Raw;
use crate::error::{damaged as wrong, file_size, io_error, read_small, value_error};

/// The arrays of a safetensors file, or of several with an index, by their names. What they hold is read when it is
/// asked for.
///
/// ```
/// use shardax_models::huggingface::Weights;
/// # let path = std::env::temp_dir().join(format!("shardax-doc-weights-{}", std::process::id()));
/// let header = br#"{"bias":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
/// let length = (header.len() as u64).to_le_bytes();
/// let file = [&length[..], header, &1.0f32.to_le_bytes(), &2.0f32.to_le_bytes()].concat();
/// std::fs::write(&path, file).expect("a file");
/// let weights = Weights::open(&path)?;
/// assert_eq!(weights.names().collect::<Vec<_>>(), ["bias"]);
/// assert_eq!(weights.get("bias")?.to_vec::<f32>()?, [1.0, 2.0]);
/// # std::fs::remove_file(&path).ok();
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Weights {
    path: PathBuf,
    files: Vec<PathBuf>,
    arrays: BTreeMap<String, Entry>,
}

/// Where an array is.
#[derive(Clone, Debug)]
struct Entry {
    file: usize,
    /// The file's name of it.
    dtype: String,
    shape: Vec<usize>,
    offset: u64,
    bytes: u64,
}

/// An array in a file's header.
#[derive(Deserialize)]
struct About {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: [u64; 2],
}

/// Headers are no longer, as in the format's own reader.
const LONGEST_HEADER: u64 = 100_000_000;

const FILE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

impl Weights {
    /// A safetensors file; an index of several (`model.safetensors.index.json`); or a folder with one or the other.
    ///
    /// Fails, with the file and the place in it, where a header does not fit its file, and for an index that names
    /// files or arrays that are not there.
    #[track_caller]
    pub fn open(path: impl AsRef<Path>) -> Result<Weights> {
        let location = std::panic::Location::caller();
        open(path.as_ref()).map_err(|error| error.at(location))
    }

    /// The names of the arrays.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.arrays.keys().map(String::as_str)
    }

    /// True if there is an array of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.arrays.contains_key(name)
    }

    /// The sizes of the array of this name.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        Some(&self.arrays.get(name)?.shape)
    }

    /// The array of this name, as it is in the file.
    ///
    /// Fails when there is none, when its elements are of a type that is not known here, and where the file cannot be
    /// read.
    #[track_caller]
    pub fn get(&self, name: &str) -> Result<Array> {
        let location = std::panic::Location::caller();
        self.read(name).and_then(|raw| raw.to_array(None)).map_err(|error| error.at(location))
    }

    /// The number of elements of all arrays.
    pub(super) fn elements(&self) -> u128 {
        let of = |entry: &Entry| entry.shape.iter().fold(1u128, |n, size| n.saturating_mul(*size as u128));
        self.arrays.values().map(of).fold(0, u128::saturating_add)
    }

    /// The file, or the folder, for messages.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn read(&self, name: &str) -> Result<Raw> {
        let Some(entry) = self.arrays.get(name) else {
            let what = format!("{} has no array {name:?}", self.path.display());
            return Err(value_error(what, "`names` lists those that it has"));
        };
        let Some(dtype) = dtype_of(&entry.dtype) else {
            let what = format!("the array {name:?} of {} has elements {}", self.path.display(), entry.dtype);
            return Err(value_error(what, "save it as F32, F16 or BF16"));
        };
        let path = &self.files[entry.file];
        let mut file = fs::File::open(path).map_err(|error| io_error("read", path, &error))?;
        let mut bytes = Vec::new();
        let size = usize::try_from(entry.bytes).ok().filter(|size| bytes.try_reserve_exact(*size).is_ok());
        let Some(size) = size else {
            let what = format!("the array {name:?} of {} takes {} bytes", self.path.display(), entry.bytes);
            return Err(value_error(what, "it does not fit in memory"));
        };
        bytes.resize(size, 0);
        let read = file.seek(SeekFrom::Start(entry.offset)).and_then(|_| file.read_exact(&mut bytes));
        read.map_err(|error| wrong(path, entry.offset, format!("the array {name:?} could not be read: {error}")))?;
        Ok(Raw { dtype, shape: entry.shape.clone(), bytes })
    }
}

fn open(path: &Path) -> Result<Weights> {
    let (file, index) = (path.join(FILE), path.join(INDEX));
    let mut weights = Weights { path: path.to_owned(), files: Vec::new(), arrays: BTreeMap::new() };
    if path.is_dir() && !file.exists() && index.exists() {
        indexed(&mut weights, &index)?;
    } else if path.is_dir() {
        header(&mut weights, &file)?;
    } else if path.extension().is_some_and(|ending| ending == "json") {
        indexed(&mut weights, path)?;
    } else {
        header(&mut weights, path)?;
    }
    Ok(weights)
}

/// The arrays of all files that an index names.
fn indexed(weights: &mut Weights, index: &Path) -> Result<()> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let text = read_small(index)?;
    let Index { weight_map } = serde_json::from_slice(&text)
        .map_err(|error| wrong(index, 0, format!("it is not an index of safetensors files: {error}")))?;
    let mut files: Vec<&String> = weight_map.values().collect();
    files.sort();
    files.dedup();
    for name in files {
        // Beside the index, and nowhere else.
        if Path::new(name).file_name().is_none_or(|last| last != name.as_str()) {
            return Err(wrong(index, 0, format!("{name:?} is not the name of a file beside it")));
        }
        header(weights, &index.with_file_name(name))?;
    }
    match weight_map.iter().find(|(name, _)| !weights.arrays.contains_key(*name)) {
        None => Ok(()),
        Some((name, file)) => Err(wrong(index, 0, format!("the array {name:?} should be in {file}, and is not"))),
    }
}

/// The arrays of one more file.
fn header(weights: &mut Weights, path: &Path) -> Result<()> {
    let size = file_size(path)?;
    let mut file = fs::File::open(path).map_err(|error| io_error("read", path, &error))?;
    let mut length = [0; 8];
    file.read_exact(&mut length).map_err(|_| wrong(path, 0, format!("8 bytes should follow, and {size} do")))?;
    let length = u64::from_le_bytes(length);
    if length > size - 8 || length > LONGEST_HEADER {
        return Err(wrong(path, 0, format!("a header of {length} bytes should follow, and {} bytes do", size - 8)));
    }
    let mut text = vec![0; length as usize];
    file.read_exact(&mut text).map_err(|error| io_error("read", path, &error))?;
    let head: BTreeMap<String, serde_json::Value> =
        serde_json::from_slice(&text).map_err(|error| wrong(path, 8, format!("the header is no JSON: {error}")))?;
    let number = weights.files.len();
    let mut places = Vec::with_capacity(head.len());
    for (name, about) in head.into_iter().filter(|(name, _)| name != "__metadata__") {
        let odd = |what: String| wrong(path, 8, format!("the header's array {name:?} {what}"));
        let About { dtype, shape, data_offsets: [begin, end] } =
            serde_json::from_value(about).map_err(|error| odd(format!("is described otherwise: {error}")))?;
        let room = size - 8 - length;
        if begin > end || end > room {
            return Err(odd(format!("is at {begin}..{end} of {room} bytes")));
        }
        let wanted = dtype_of(&dtype)
            .map(|dtype| shape.iter().try_fold(dtype.byte_size() as u64, |n, d| n.checked_mul(*d as u64)));
        if wanted.is_some_and(|wanted| wanted != Some(end - begin)) {
            return Err(odd(format!("has {} bytes, and is {dtype}{shape:?}", end - begin)));
        }
        places.push([begin, end]);
        let entry = Entry { file: number, dtype, shape, offset: 8 + length + begin, bytes: end - begin };
        if weights.arrays.insert(name.clone(), entry).is_some() {
            return Err(odd("is in another file too".to_owned()));
        }
    }
    // Arrays lie one after the other: those that overlap, or leave gaps, would be read without an error.
    places.sort_unstable();
    let mut at = 0;
    for [begin, end] in places {
        if begin != at {
            return Err(wrong(path, 8, format!("an array begins at {begin}, and the one before it ends at {at}")));
        }
        at = end;
    }
    if at != size - 8 - length {
        return Err(wrong(path, 8, format!("its arrays have {at} bytes, and {} follow the header", size - 8 - length)));
    }
    weights.files.push(path.to_owned());
    Ok(())
}

/// The dtype that the format calls so.
fn dtype_of(name: &str) -> Option<DType> {
    serde_json::from_value::<safetensors::Dtype>(name.into()).ok().and_then(DType::of_stored)
}
