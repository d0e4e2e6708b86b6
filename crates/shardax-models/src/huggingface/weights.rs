//! Access to the arrays in safetensors, PyTorch and GGUF files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use shardax::error::{Error, Result};
use shardax::prelude::*;

use super::Config;
use super::layout::Raw;
use crate::error::{damaged, file_size, io_error, read_small, value_error};
use crate::gguf::{BlockType, Change, Gguf, Translated};
use crate::pytorch;
use crate::quantized::{Endings, Groups, Method};

/// The named arrays of a file, or of several files with an index. The values of an array are read when you need them.
///
/// The extension of a file determines its format: PyTorch (`.bin`, `.pt`, `.pth`), GGUF (`.gguf`, see
/// [`gguf`](crate::gguf)), otherwise safetensors.
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
    arrays: BTreeMap<String, ArrayEntry>,
    /// The names of arrays that are parts of quantized arrays. [`names`](Weights::names) leaves them out.
    parts: BTreeSet<String>,
    /// The configuration of the model, for messages.
    config: Option<Config>,
}

/// The description of an array.
#[derive(Clone, Debug)]
struct ArrayEntry {
    /// The index of the file that contains the array.
    file: usize,
    elements: Elements,
    shape: Vec<usize>,
    /// The position of the first byte in the file.
    offset: u64,
    bytes: u64,
}

/// The format in which an array's elements are stored.
#[derive(Clone, Debug)]
enum Elements {
    /// Row-major elements of a safetensors dtype, by name.
    Named(String),
    /// Elements with strides, which are counted in elements.
    Strided(DType, Vec<usize>),
    /// Blocks of a GGUF file.
    Blocks(BlockType, Change),
    /// A quantized array, which consists of the arrays with these names.
    Parts(Method, Vec<Option<String>>),
}

/// The description of an array in the header of a safetensors file.
#[derive(Deserialize)]
struct TensorHeader {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: [u64; 2],
}

/// Follows the name of a stored array if the kernel that is computed from it has the same name.
const AS_STORED: &str = " (as stored)";

/// The maximal size of a safetensors header. The reader of the `safetensors` library has the same limit.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// The files that are searched in a folder, in the order of preference.
const FILES: [&str; 4] =
    ["model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json"];

impl Weights {
    /// Opens a file, an index of several files, or a folder.
    ///
    /// An index is a file such as `model.safetensors.index.json`. In a folder, the first existing file of
    /// `model.safetensors`, `model.safetensors.index.json`, `pytorch_model.bin` and `pytorch_model.bin.index.json` is
    /// opened.
    ///
    /// # Errors
    /// Returns an error if a file is missing, if its header is damaged or does not match its size, or if an index lists an
    /// array that its file does not have. The message contains the path and the byte offset.
    #[track_caller]
    pub fn open(path: impl AsRef<Path>) -> Result<Weights> {
        let location = std::panic::Location::caller();
        open(path.as_ref()).map_err(|error| error.at(location))
    }

    /// Returns the names of the arrays.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.arrays.keys().map(String::as_str).filter(|name| !self.parts.contains(*name))
    }

    /// Returns `true` if there is an array with this name.
    pub fn contains(&self, name: &str) -> bool {
        self.arrays.contains_key(name)
    }

    /// Returns the shape of an array, or `None` if there is no array with this name.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        Some(&self.arrays.get(name)?.shape)
    }

    /// Reads an array.
    ///
    /// # Errors
    /// Returns an error if there is no array with this name, if the type of its elements is not supported, or if the file
    /// cannot be read.
    #[track_caller]
    pub fn get(&self, name: &str) -> Result<Array> {
        let location = std::panic::Location::caller();
        self.read(name).and_then(|raw| raw.to_array(None)).map_err(|error| error.at(location))
    }

    /// Replaces arrays by the arrays of other files, which may have other shapes. `is_needed` names the arrays that the other files must
    /// have; they must not have any others.
    pub(super) fn replaced_by(mut self, other: Weights, is_needed: impl Fn(&str) -> bool) -> Result<Weights> {
        let name = self.names().find(|name| is_needed(name) != other.contains(name));
        let name = name.or_else(|| other.names().find(|name| !self.contains(name)));
        if let Some(name) = name {
            let has = if other.contains(name) { "has the array" } else { "has no array" };
            let message = format!("{} {has} {name:?}, unlike {}", other.path.display(), self.path.display());
            return Err(value_error(message, "check that both files belong to one model"));
        }
        let count = self.files.len();
        self.files.extend(other.files);
        let arrays = other.arrays.into_iter();
        self.arrays.extend(arrays.map(|(name, entry)| (name, ArrayEntry { file: entry.file + count, ..entry })));
        Ok(self)
    }

    /// Returns the number of elements of all arrays together.
    pub(super) fn elements(&self) -> u128 {
        self.arrays
            .values()
            .map(|entry| entry.shape.iter().fold(1u128, |n, size| n.saturating_mul(*size as u128)))
            .fold(0, u128::saturating_add)
    }

    /// Returns the path of the file or index, for messages.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of the file that contains the array with this name, for messages.
    pub(super) fn file_of(&self, name: &str) -> &Path {
        match self.arrays.get(name) {
            Some(ArrayEntry { elements: Elements::Parts(_, parts), .. }) => {
                parts.iter().flatten().next().map_or(&self.path, |part| self.file_of(part))
            }
            Some(entry) => &self.files[entry.file],
            None => &self.path,
        }
    }

    /// Returns the configuration of the model, for messages.
    pub(super) fn config(&self) -> Option<&Config> {
        self.config.as_ref()
    }

    /// Reads an array. Quantized arrays are dequantized to float32.
    pub(super) fn read(&self, name: &str) -> Result<Raw> {
        let entry = self.entry(name)?;
        let shape = entry.shape.clone();
        match &entry.elements {
            Elements::Named(text) => {
                let Some(dtype) = dtype_of(text) else {
                    let message = format!(
                        "the array {name:?} of {} has the unsupported dtype {text}",
                        self.file_of(name).display()
                    );
                    return Err(value_error(message, "save the array with the dtype F32, F16 or BF16"));
                };
                Ok(Raw { dtype, shape, bytes: self.bytes(name, entry)? })
            }
            Elements::Strided(dtype, strides) => {
                let bytes = self.bytes(name, entry)?;
                Ok(Raw::strided(*dtype, shape, strides, bytes))
            }
            Elements::Blocks(block, change) => self.blocks(name, entry, *block, *change),
            Elements::Parts(method, parts) => {
                self.check_memory(name, entry)?;
                method.widened(&shape, &self.parts_of(parts)?).ok_or_else(|| self.unfit(name))
            }
        }
    }

    /// Reads the parts of a quantized array. Kernels can lack some of them.
    fn parts_of(&self, parts: &[Option<String>]) -> Result<Vec<Option<Raw>>> {
        parts.iter().map(|part| part.as_ref().map(|part| self.read(part)).transpose()).collect()
    }

    /// Reads a quantized array without dequantizing it. Each row has the weights of one output. Returns `None` for arrays
    /// that are not quantized.
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
                if !method.has_groups() {
                    return Ok(None);
                }
                method.groups(&self.parts_of(parts)?).map(Some).ok_or_else(|| self.unfit(name))
            }
            _ => Ok(None),
        }
    }

    /// Combines the parts of quantized kernels to single arrays, if the configuration has a `quantization_config`.
    ///
    /// The supported methods are GPTQ, AWQ, AutoRound, MXFP4, FP8, compressed-tensors, bitsandbytes and BitNet.
    ///
    /// # Errors
    /// Returns an error if the method is not supported, or if a part is missing.
    #[track_caller]
    pub fn quantized(mut self, config: &Config) -> Result<Weights> {
        let location = std::panic::Location::caller();
        self.config = Some(config.clone());
        let method = config.quantization().map_err(|error| error.at(location))?;
        match method {
            Some(method) => self.with_method(method).map_err(|error| error.at(location)),
            None => Ok(self),
        }
    }

    fn with_method(mut self, method: Method) -> Result<Weights> {
        let Some(Endings { first, kernel, others, optional, ignored }) = method.endings() else { return Ok(self) };
        // Every array whose name has the first ending belongs to a quantized kernel. Its other parts have the same
        // prefix.
        let prefixes: Vec<String> =
            self.names().filter_map(|name| name.strip_suffix(first).map(str::to_owned)).collect();
        for prefix in &prefixes {
            let name = format!("{prefix}{kernel}");
            // A part can have the name of the kernel, which then needs another one.
            let stored = format!("{name}{AS_STORED}");
            if let Some(entry) = self.arrays.remove(&name) {
                self.arrays.insert(stored.clone(), entry);
            }
            let named = |ending: &str| if ending == kernel { stored.clone() } else { format!("{prefix}{ending}") };
            let required: Vec<String> = std::iter::once(&first).chain(others).map(|ending| named(ending)).collect();
            if let Some(missing) = required.iter().find(|part| !self.contains(part)) {
                let missing = missing.trim_end_matches(AS_STORED);
                let belongs_to = format!("{prefix}{first}");
                let message =
                    format!("{} has no array {missing:?}, which belongs to {belongs_to:?}", self.path.display());
                let help = "check that `quantization_config` in config.json belongs to the files";
                return Err(value_error(message, help));
            }
            let optional = optional.iter().map(|ending| Some(named(ending)).filter(|part| self.contains(part)));
            let parts: Vec<Option<String>> = required.into_iter().map(Some).chain(optional).collect();
            let shapes: Vec<Option<&[usize]>> =
                parts.iter().map(|part| part.as_ref().and_then(|part| self.shape(part))).collect();
            let read = |index: usize| self.read(parts.get(index)?.as_ref()?).ok();
            let shape = method.shape(&shapes, read).ok_or_else(|| self.unfit(&name))?;
            self.parts.extend(parts.iter().flatten().cloned());
            let entry = ArrayEntry { file: 0, elements: Elements::Parts(method, parts), shape, offset: 0, bytes: 0 };
            self.arrays.insert(name, entry);
        }
        let unused = self.names().filter(|name| ignored.iter().any(|ending| name.ends_with(ending)));
        let unused: Vec<String> = unused.map(str::to_owned).collect();
        self.parts.extend(unused);
        Ok(self)
    }

    /// Returns the description of an array, or an error if there is no array with this name.
    fn entry(&self, name: &str) -> Result<&ArrayEntry> {
        self.arrays.get(name).ok_or_else(|| {
            let message = format!("{} has no array {name:?}", self.path.display());
            value_error(message, "call `names` to list the arrays of the files")
        })
    }

    /// Reads the bytes of an array.
    fn bytes(&self, name: &str, entry: &ArrayEntry) -> Result<Vec<u8>> {
        let path = &self.files[entry.file];
        let mut file = fs::File::open(path).map_err(|error| io_error("read", path, &error))?;
        let mut bytes = Vec::new();
        let size = usize::try_from(entry.bytes).ok().filter(|size| shardax::__reserve_bytes(&mut bytes, *size).is_ok());
        let Some(size) = size else {
            let message = format!(
                "the array {name:?} of {} has {} bytes, which do not fit in memory",
                self.path.display(),
                entry.bytes
            );
            return Err(value_error(message, "load the model on a host with more memory"));
        };
        bytes.resize(size, 0);
        let read = file.seek(SeekFrom::Start(entry.offset)).and_then(|_| file.read_exact(&mut bytes));
        read.map_err(|error| damaged(path, entry.offset, format!("the array {name:?} could not be read: {error}")))?;
        Ok(bytes)
    }

    /// Reads a tensor of a GGUF file with the row order and the values that `transformers` expects.
    fn blocks(&self, name: &str, entry: &ArrayEntry, block: BlockType, change: Change) -> Result<Raw> {
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

    /// Returns an error if an array does not fit in memory as float32. Call this before its blocks are read.
    fn check_memory(&self, name: &str, entry: &ArrayEntry) -> Result<()> {
        let bytes = entry.shape.iter().try_fold(4usize, |product, size| product.checked_mul(*size));
        if bytes.is_some_and(|bytes| shardax::__reserve_bytes(&mut Vec::new(), bytes).is_ok()) {
            return Ok(());
        }
        let message = format!(
            "the array {name:?} of {} with the shape {:?} does not fit in memory as float32",
            self.path.display(),
            entry.shape
        );
        Err(value_error(message, "load a `Packed` model, which keeps the weights quantized"))
    }

    /// Returns the error for an array whose parts do not match each other, or whose rows do not match the heads.
    fn unfit(&self, name: &str) -> Error {
        let message =
            format!("the parts or the heads of the array {name:?} of {} do not fit each other", self.path.display());
        value_error(message, "check that the configuration belongs to the files")
    }
}

/// Opens a file, an index or a folder.
fn open(path: &Path) -> Result<Weights> {
    let file = if path.is_dir() {
        let file = FILES.iter().map(|name| path.join(name)).find(|file| file.exists());
        file.ok_or_else(|| without_weights(path))?
    } else {
        path.to_owned()
    };
    let mut weights = Weights {
        path: file.clone(),
        files: Vec::new(),
        arrays: BTreeMap::new(),
        parts: BTreeSet::new(),
        config: None,
    };
    if file.extension().is_some_and(|extension| extension == "json") {
        add_index(&mut weights, &file)?
    } else {
        add_file(&mut weights, &file)?
    }
    Ok(weights)
}

/// Returns the error for a folder without a file of weights. The message names files that have weights by other names.
fn without_weights(folder: &Path) -> Error {
    const ENDINGS: [&str; 8] = ["safetensors", "safetensors.index.json", "bin", "pt", "pth", "gguf", "h5", "msgpack"];
    const MAX_FILES: usize = 4;
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter(|name| ENDINGS.iter().any(|ending| name.ends_with(ending))).collect();
    names.sort();
    names.truncate(MAX_FILES);
    let others = if names.is_empty() { String::new() } else { format!(", but {}", names.join(", ")) };
    let message = format!("{} has none of the files {}{others}", folder.display(), FILES.join(", "));
    value_error(
        message,
        "download the files that transformers loads, rename a file to one of these names, or pass the path of a GGUF file \
         instead of the folder",
    )
}

/// The start of a file that Git LFS stores in place of a large one.
const LFS_POINTER: &[u8] = b"version https://git-lfs.github.com/";

/// Returns an error if a file is the small text that Git LFS stores in place of the weights.
fn check_pointer(path: &Path) -> Result<()> {
    let mut start = Vec::new();
    // Later reads report a file that cannot be read.
    let read = fs::File::open(path).and_then(|file| file.take(LFS_POINTER.len() as u64).read_to_end(&mut start));
    if read.is_ok() && start == LFS_POINTER {
        let message = format!("{} is a pointer of Git LFS instead of the weights", path.display());
        return Err(value_error(message, "download the file, for example with `git lfs pull`"));
    }
    Ok(())
}

/// Adds the arrays of a file. The extension of the file determines its format.
fn add_file(weights: &mut Weights, path: &Path) -> Result<()> {
    if path.is_file() {
        check_pointer(path)?;
    }
    if Gguf::is_named(path) {
        return add_gguf(weights, path);
    }
    if pytorch::is_named(path) { add_pytorch(weights, path) } else { add_safetensors(weights, path) }
}

/// Adds the arrays of a GGUF file.
fn add_gguf(weights: &mut Weights, path: &Path) -> Result<()> {
    let (file, number) = (Gguf::open(path)?, weights.files.len());
    for Translated { name, change, tensor } in file.arrays() {
        let elements = Elements::Blocks(tensor.block, change);
        let entry = ArrayEntry {
            file: number + tensor.file,
            elements,
            shape: tensor.shape.clone(),
            offset: tensor.offset,
            bytes: tensor.bytes,
        };
        if weights.arrays.insert(name.clone(), entry).is_some() {
            return Err(damaged(path, 0, format!("two tensors correspond to the array {name:?}")));
        }
    }
    weights.files.extend_from_slice(file.files());
    Ok(())
}

/// Adds the arrays of a PyTorch file.
fn add_pytorch(weights: &mut Weights, path: &Path) -> Result<()> {
    let number = weights.files.len();
    for tensor in pytorch::tensors(path)? {
        let pytorch::Tensor { name, dtype, shape, strides, offset, bytes } = tensor;
        let entry = ArrayEntry { file: number, elements: Elements::Strided(dtype, strides), shape, offset, bytes };
        if weights.arrays.insert(name.clone(), entry).is_some() {
            return Err(damaged(path, 0, format!("the tensor {name:?} occurs twice")));
        }
    }
    weights.files.push(path.to_owned());
    Ok(())
}

/// Adds the arrays of all files that an index lists.
fn add_index(weights: &mut Weights, index: &Path) -> Result<()> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let text = read_small(index)?;
    let Index { weight_map } = serde_json::from_slice(&text)
        .map_err(|error| damaged(index, 0, format!("it is not an index of files: {error}")))?;
    let mut files: Vec<&String> = weight_map.values().collect();
    files.sort();
    files.dedup();
    for name in files {
        // An index must not refer to files outside of its folder.
        if Path::new(name).file_name().is_none_or(|last| last != name.as_str()) {
            return Err(damaged(index, 0, format!("{name:?} is not the name of a file in the same folder")));
        }
        let path = index.with_file_name(name);
        if !path.exists() {
            let message = format!("{} lists the file {name}, which is not in its folder", index.display());
            return Err(value_error(message, "download all files of the model into one folder"));
        }
        add_file(weights, &path)?;
    }
    match weight_map.iter().find(|(name, _)| !weights.arrays.contains_key(*name)) {
        None => Ok(()),
        Some((name, file)) => Err(damaged(index, 0, format!("the array {name:?} should be in {file}, but is not"))),
    }
}

/// Adds the arrays of a safetensors file.
///
/// Files are untrusted input, so every size in the header is compared with the size of the file.
fn add_safetensors(weights: &mut Weights, path: &Path) -> Result<()> {
    let size = file_size(path)?;
    let mut file = fs::File::open(path).map_err(|error| io_error("read", path, &error))?;
    let mut length = [0; 8];
    file.read_exact(&mut length)
        .map_err(|_| damaged(path, 0, format!("8 bytes should follow, but only {size} bytes remain")))?;
    let length = u64::from_le_bytes(length);
    if length > size - 8 || length > MAX_HEADER_BYTES {
        return Err(damaged(
            path,
            0,
            format!("a header of {length} bytes should follow, but only {} bytes remain", size - 8),
        ));
    }
    let mut text = vec![0; length as usize];
    file.read_exact(&mut text).map_err(|error| io_error("read", path, &error))?;
    let head: BTreeMap<String, serde_json::Value> = serde_json::from_slice(&text)
        .map_err(|error| damaged(path, 8, format!("the header is not valid JSON: {error}")))?;
    let number = weights.files.len();
    let mut ranges = Vec::with_capacity(head.len());
    for (name, description) in head.into_iter().filter(|(name, _)| name != "__metadata__") {
        let TensorHeader { dtype, shape, data_offsets: [begin, end] } = serde_json::from_value(description)
            .map_err(|error| damaged_array(path, &name, format_args!("has an invalid description: {error}")))?;
        let data_bytes = size - 8 - length;
        if begin > end || end > data_bytes {
            return Err(damaged_array(path, &name, format_args!("is at {begin}..{end} of {data_bytes} bytes")));
        }
        let bytes = end - begin;
        // A dtype without a known size is an error when the array is read, so that other arrays of the file still load.
        let expected_len = dtype_of(&dtype)
            .map(|dtype| shape.iter().try_fold(dtype.byte_size() as u64, |n, d| n.checked_mul(*d as u64)));
        if expected_len.is_some_and(|expected_len| expected_len != Some(bytes)) {
            let problem = format_args!("has {bytes} bytes, which is not the size of {dtype}{shape:?}");
            return Err(damaged_array(path, &name, problem));
        }
        ranges.push([begin, end]);
        let entry =
            ArrayEntry { file: number, elements: Elements::Named(dtype), shape, offset: 8 + length + begin, bytes };
        if weights.arrays.insert(name.clone(), entry).is_some() {
            return Err(damaged_array(path, &name, format_args!("is also in another file")));
        }
    }
    check_contiguous(path, ranges, size - 8 - length)?;
    weights.files.push(path.to_owned());
    Ok(())
}

/// Returns the error for an array that the header of a safetensors file describes wrongly.
fn damaged_array(path: &Path, name: &str, problem: std::fmt::Arguments<'_>) -> Error {
    damaged(path, 8, format!("the header's array {name:?} {problem}"))
}

/// Returns an error unless the arrays cover all bytes of the data without gaps and overlaps.
///
/// A damaged header could otherwise be read without an error.
fn check_contiguous(path: &Path, mut ranges: Vec<[u64; 2]>, data_bytes: u64) -> Result<()> {
    ranges.sort_unstable();
    let mut offset = 0;
    for [begin, end] in ranges {
        if begin != offset {
            return Err(damaged(
                path,
                8,
                format!("an array starts at {begin}, but the previous array ends at {offset}"),
            ));
        }
        offset = end;
    }
    if offset != data_bytes {
        return Err(damaged(
            path,
            8,
            format!("its arrays have {offset} bytes, but {data_bytes} bytes follow the header"),
        ));
    }
    Ok(())
}

/// Returns the dtype with this safetensors name, if it is supported.
fn dtype_of(name: &str) -> Option<DType> {
    serde_json::from_value::<safetensors::Dtype>(name.into()).ok().and_then(DType::from_safetensors)
}
