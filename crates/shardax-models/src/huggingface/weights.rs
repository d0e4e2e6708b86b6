//! The arrays of files: safetensors, PyTorch's and GGUF, and several of the first two with an index.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use shardax::error::{Error, Result};
use shardax::prelude::*;

use super::Config;
use super::layout::Raw;
use crate::error::{damaged as wrong, file_size, io_error, read_small, value_error};
use crate::gguf::{BlockType, Change, Gguf, Translated};
use crate::pytorch;
use crate::quantized::{Groups, Method};

/// The arrays of a file, or of several with an index, by their names. Their values are read on demand.
///
/// The format is safetensors, PyTorch's (`.bin`, `.pt`, `.pth`) or GGUF (`.gguf`), see [`gguf`](crate::gguf).
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
    /// The arrays that are parts of others.
    parts: BTreeSet<String>,
}

/// Where an array is.
#[derive(Clone, Debug)]
struct Entry {
    file: usize,
    elements: Elements,
    shape: Vec<usize>,
    offset: u64,
    bytes: u64,
}

/// The format in which an array's elements are stored.
#[derive(Clone, Debug)]
enum Elements {
    /// Row-major, of the dtype that safetensors calls so.
    Named(String),
    /// With strides, in elements.
    Strided(DType, Vec<usize>),
    /// Blocks of a GGUF file.
    Blocks(BlockType, Change),
    /// In the other arrays of these names.
    Parts(Method, Vec<String>),
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

/// The files of a folder, in the order of preference.
const FILES: [&str; 4] =
    ["model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json"];

impl Weights {
    /// Opens a file of safetensors, of PyTorch or of llama.cpp; an index of several (`model.safetensors.index.json`); or a folder with one
    /// of `model.safetensors`, `pytorch_model.bin` and their indices.
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
        self.arrays.keys().map(String::as_str).filter(|name| !self.parts.contains(*name))
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
        self.arrays
            .values()
            .map(|entry| entry.shape.iter().fold(1u128, |n, size| n.saturating_mul(*size as u128)))
            .fold(0, u128::saturating_add)
    }

    /// The file, or the folder, for messages.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads an array, of blocks in float32.
    pub(super) fn read(&self, name: &str) -> Result<Raw> {
        let entry = self.entry(name)?;
        let shape = entry.shape.clone();
        match &entry.elements {
            Elements::Named(text) => {
                let Some(dtype) = dtype_of(text) else {
                    let message = format!("the array {name:?} of {} has elements {text}", self.path.display());
                    return Err(value_error(message, "save it as F32, F16 or BF16"));
                };
                Ok(Raw { dtype, shape, bytes: self.bytes(name, entry)? })
            }
            Elements::Strided(dtype, strides) => {
                let bytes = self.bytes(name, entry)?;
                Ok(Raw::strided(*dtype, shape, strides, bytes))
            }
            Elements::Blocks(block, change) => self.blocks(name, entry, *block, *change),
            Elements::Parts(method, _) => {
                let groups = self.groups(name)?.ok_or_else(|| self.unfit(name))?;
                self.check_memory(name, entry)?;
                let stored = Raw::of_f32(groups.shape.clone(), &groups.widened());
                match method {
                    // Experts have their inputs first.
                    Method::Mxfp4 => stored.last_two_swapped().ok_or_else(|| self.unfit(name)),
                    Method::Gptq { .. } | Method::Awq => Ok(stored),
                }
            }
        }
    }

    /// Reads an array that is stored in few bits as it is, in rows of inputs; `None` for other arrays.
    pub(crate) fn groups(&self, name: &str) -> Result<Option<Groups>> {
        let entry = self.entry(name)?;
        match &entry.elements {
            Elements::Blocks(block, Change::None) if !block.is_plain() => {
                Ok(Some(block.groups(&entry.shape, &self.bytes(name, entry)?)))
            }
            Elements::Blocks(block, Change::Rows(order)) if !block.is_plain() => {
                let groups = block.groups(&entry.shape, &self.bytes(name, entry)?);
                let rows = entry.shape.first().and_then(|count| order.rows(*count)).ok_or_else(|| self.unfit(name))?;
                Ok(Some(groups.select_rows(&rows)))
            }
            Elements::Parts(method, parts) => {
                let parts: Vec<Raw> = parts.iter().map(|part| self.read(part)).collect::<Result<_>>()?;
                method.groups(&parts).map(Some).ok_or_else(|| self.unfit(name))
            }
            _ => Ok(None),
        }
    }

    /// Replaces the parts of quantized kernels by the kernels, if the configuration says that there are any: of GPTQ, AWQ, and gpt-oss.
    ///
    /// Fails for other formats, and when a part is missing.
    #[track_caller]
    pub fn quantized(self, config: &Config) -> Result<Weights> {
        let location = std::panic::Location::caller();
        let method = config.quantization().map_err(|error| error.at(location))?;
        match method {
            Some(method) => self.with_method(method).map_err(|error| error.at(location)),
            None => Ok(self),
        }
    }

    fn with_method(mut self, method: Method) -> Result<Weights> {
        let (first, ending, others) = method.endings();
        let starts: Vec<String> = self.names().filter_map(|name| name.strip_suffix(first).map(str::to_owned)).collect();
        for start in starts {
            let parts: Vec<String> =
                std::iter::once(&first).chain(others).map(|part| format!("{start}{part}")).collect();
            let name = format!("{start}{ending}");
            let shape =
                self.shape(&parts[0]).and_then(|shape| method.shape(shape)).ok_or_else(|| self.unfit(&parts[0]))?;
            if let Some(missing) = parts.iter().find(|part| !self.contains(part)) {
                let message =
                    format!("{} has no array {missing:?}, which belongs to {:?}", self.path.display(), parts[0]);
                return Err(value_error(
                    message,
                    "look whether `quantization_config` of config.json belongs to the files",
                ));
            }
            self.parts.extend(parts.iter().cloned());
            let entry = Entry { file: 0, elements: Elements::Parts(method, parts), shape, offset: 0, bytes: 0 };
            self.arrays.insert(name, entry);
        }
        Ok(self)
    }

    fn entry(&self, name: &str) -> Result<&Entry> {
        self.arrays.get(name).ok_or_else(|| {
            let message = format!("{} has no array {name:?}", self.path.display());
            value_error(message, "`names` lists those that it has")
        })
    }

    /// The bytes of an array in its file.
    fn bytes(&self, name: &str, entry: &Entry) -> Result<Vec<u8>> {
        let path = &self.files[entry.file];
        let mut file = fs::File::open(path).map_err(|error| io_error("read", path, &error))?;
        let mut bytes = Vec::new();
        let size = usize::try_from(entry.bytes).ok().filter(|size| bytes.try_reserve_exact(*size).is_ok());
        let Some(size) = size else {
            let message = format!("the array {name:?} of {} takes {} bytes", self.path.display(), entry.bytes);
            return Err(value_error(message, "it does not fit in memory: load the model on a host with more memory"));
        };
        bytes.resize(size, 0);
        let read = file.seek(SeekFrom::Start(entry.offset)).and_then(|_| file.read_exact(&mut bytes));
        read.map_err(|error| wrong(path, entry.offset, format!("the array {name:?} could not be read: {error}")))?;
        Ok(bytes)
    }

    /// A tensor of a GGUF file as `transformers` has it.
    fn blocks(&self, name: &str, entry: &Entry, block: BlockType, change: Change) -> Result<Raw> {
        let shape = entry.shape.clone();
        let raw = match block {
            BlockType::F32 => Raw { dtype: DType::F32, shape, bytes: self.bytes(name, entry)? },
            BlockType::F16 => Raw { dtype: DType::F16, shape, bytes: self.bytes(name, entry)? },
            BlockType::BF16 => Raw { dtype: DType::Bf16, shape, bytes: self.bytes(name, entry)? },
            _ => {
                self.check_memory(name, entry)?;
                let groups = block.groups(&entry.shape, &self.bytes(name, entry)?);
                Raw::of_f32(shape, &groups.widened())
            }
        };
        let changed = match change {
            Change::None => Some(raw),
            Change::Rows(order) => {
                let count = raw.shape.first().copied().unwrap_or(0);
                order.rows(count).map(|rows| raw.select_rows(&rows))
            }
            Change::Added(number) => raw.minus(number),
            Change::Transposed => raw.last_two_swapped(),
        };
        changed.ok_or_else(|| self.unfit(name))
    }

    /// Fails if an array of float32 does not fit in memory, before its blocks are read.
    fn check_memory(&self, name: &str, entry: &Entry) -> Result<()> {
        let bytes = entry.shape.iter().try_fold(4usize, |product, size| product.checked_mul(*size));
        if bytes.is_some_and(|bytes| Vec::<u8>::new().try_reserve_exact(bytes).is_ok()) {
            return Ok(());
        }
        let message = format!("the array {name:?} of {} is {:?} in float32", self.path.display(), entry.shape);
        Err(value_error(message, "it does not fit in memory: `Packed` keeps it in few bits"))
    }

    /// The error of an array whose parts or rows do not fit each other.
    fn unfit(&self, name: &str) -> Error {
        let message =
            format!("the parts or the heads of the array {name:?} of {} do not fit each other", self.path.display());
        value_error(message, "look whether the configuration belongs to the files")
    }
}

fn open(path: &Path) -> Result<Weights> {
    let mut weights =
        Weights { path: path.to_owned(), files: Vec::new(), arrays: BTreeMap::new(), parts: BTreeSet::new() };
    let file = match path.is_dir() {
        true => FILES.iter().map(|name| path.join(name)).find(|file| file.exists()).unwrap_or(path.join(FILES[0])),
        false => path.to_owned(),
    };
    match file.extension().is_some_and(|extension| extension == "json") {
        true => indexed(&mut weights, &file)?,
        false => one_file(&mut weights, &file)?,
    }
    Ok(weights)
}

/// The arrays of one more file, in the format that its name ends with.
fn one_file(weights: &mut Weights, path: &Path) -> Result<()> {
    if Gguf::is_named(path) {
        return gguf(weights, path);
    }
    match pytorch::is_named(path) {
        true => torch(weights, path),
        false => header(weights, path),
    }
}

fn gguf(weights: &mut Weights, path: &Path) -> Result<()> {
    let (file, number) = (Gguf::open(path)?, weights.files.len());
    for Translated { name, change, tensor } in file.arrays() {
        let elements = Elements::Blocks(tensor.block, change);
        let entry = Entry {
            file: number + tensor.file,
            elements,
            shape: tensor.shape.clone(),
            offset: tensor.offset,
            bytes: tensor.bytes,
        };
        if weights.arrays.insert(name.clone(), entry).is_some() {
            return Err(wrong(path, 0, format!("two tensors are the array {name:?}")));
        }
    }
    weights.files.extend_from_slice(file.files());
    Ok(())
}

fn torch(weights: &mut Weights, path: &Path) -> Result<()> {
    let number = weights.files.len();
    for tensor in pytorch::tensors(path)? {
        let pytorch::Tensor { name, dtype, shape, strides, offset, bytes } = tensor;
        let entry = Entry { file: number, elements: Elements::Strided(dtype, strides), shape, offset, bytes };
        if weights.arrays.insert(name.clone(), entry).is_some() {
            return Err(wrong(path, 0, format!("the tensor {name:?} is there twice")));
        }
    }
    weights.files.push(path.to_owned());
    Ok(())
}

/// The arrays of all files that an index names.
fn indexed(weights: &mut Weights, index: &Path) -> Result<()> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let text = read_small(index)?;
    let Index { weight_map } = serde_json::from_slice(&text)
        .map_err(|error| wrong(index, 0, format!("it is not an index of files: {error}")))?;
    let mut files: Vec<&String> = weight_map.values().collect();
    files.sort();
    files.dedup();
    for name in files {
        // Beside the index, and nowhere else.
        if Path::new(name).file_name().is_none_or(|last| last != name.as_str()) {
            return Err(wrong(index, 0, format!("{name:?} is not the name of a file beside it")));
        }
        one_file(weights, &index.with_file_name(name))?;
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
        let expected_len = dtype_of(&dtype)
            .map(|dtype| shape.iter().try_fold(dtype.byte_size() as u64, |n, d| n.checked_mul(*d as u64)));
        if expected_len.is_some_and(|expected_len| expected_len != Some(end - begin)) {
            return Err(odd(format!("has {} bytes, and is {dtype}{shape:?}", end - begin)));
        }
        places.push([begin, end]);
        let entry = Entry {
            file: number,
            elements: Elements::Named(dtype),
            shape,
            offset: 8 + length + begin,
            bytes: end - begin,
        };
        if weights.arrays.insert(name.clone(), entry).is_some() {
            return Err(odd("is in another file too".to_owned()));
        }
    }
    // Arrays lie one after the other: those that overlap, or leave gaps, would be read without an error.
    places.sort_unstable();
    let mut offset = 0;
    for [begin, end] in places {
        if begin != offset {
            return Err(wrong(path, 8, format!("an array begins at {begin}, and the one before it ends at {offset}")));
        }
        offset = end;
    }
    if offset != size - 8 - length {
        return Err(wrong(
            path,
            8,
            format!("its arrays have {offset} bytes, and {} follow the header", size - 8 - length),
        ));
    }
    weights.files.push(path.to_owned());
    Ok(())
}

/// The dtype that the format calls so.
fn dtype_of(name: &str) -> Option<DType> {
    serde_json::from_value::<safetensors::Dtype>(name.into()).ok().and_then(DType::from_safetensors)
}
