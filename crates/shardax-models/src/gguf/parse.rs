//! The parser for the header of a GGUF file.
//!
//! Files are untrusted input, so every count is compared with the remaining bytes of the file before memory is
//! allocated for it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use shardax::error::{Error, Result};

use super::{BlockType, Gguf, MetadataValue, Tensor};
use crate::error::{damaged, file_size, io_error};

const MAGIC: [u8; 4] = *b"GGUF";
const DEFAULT_ALIGNMENT: u64 = 32;
/// ggml's `GGML_MAX_DIMS`.
const MAX_DIMENSIONS: u64 = 4;
/// The format can contain lists of lists, but no known writer uses them.
const MAX_NESTING: usize = 4;
/// The size of the smallest metadata pair: an empty key, a type and one byte.
const MIN_PAIR_BYTES: u64 = 8 + 4 + 1;
/// The size of the smallest tensor description: an empty name, no dimensions, a type and an offset.
const MIN_TENSOR_BYTES: u64 = 8 + 4 + 4 + 8;

/// Reads the header of the file at `path`.
pub(super) fn parse(path: &Path) -> Result<Gguf> {
    let size = file_size(path)?;
    let file = File::open(path).map_err(|error| io_error("read", path, &error))?;
    let mut reader = Reader { path, file: BufReader::new(file), position: 0, size };
    if reader.array::<4>("the letters \"GGUF\"")? != MAGIC {
        return Err(damaged(path, 0, "the letters \"GGUF\" are missing"));
    }
    let version = reader.u32("the version")?;
    if !(2..=3).contains(&version) {
        return Err(damaged(path, 4, format!("the version is {version}, but only versions 2 and 3 are supported")));
    }
    // Files are untrusted input. `count` rejects counts that the remaining bytes cannot contain, before memory is reserved.
    let tensor_count = reader.count("tensors", MIN_TENSOR_BYTES)?;
    let pair_count = reader.count("metadata pairs", MIN_PAIR_BYTES)?;
    let mut metadata = BTreeMap::new();
    for _ in 0..pair_count {
        let position = reader.position;
        let key = reader.text("a metadata key")?;
        let kind = reader.u32("a metadata type")?;
        let value = reader.value(kind, 0)?;
        if metadata.insert(key.clone(), value).is_some() {
            return Err(damaged(path, position, format!("the metadata key {key:?} occurs twice")));
        }
    }
    let mut tensors = Vec::new();
    for _ in 0..tensor_count {
        tensors.push(reader.tensor()?);
    }
    let alignment = match metadata.get("general.alignment") {
        None => DEFAULT_ALIGNMENT,
        Some(value) => (value.as_usize().map(|value| value as u64))
            .filter(|value| value.is_power_of_two() && *value <= 1 << 20)
            .ok_or_else(|| {
                damaged(path, 0, format!("`general.alignment` is {value:?}, which is not a power of two"))
            })?,
    };
    place_tensors(path, &mut tensors, reader.position.next_multiple_of(alignment), (alignment, size))?;
    Ok(Gguf { path: path.to_owned(), files: vec![path.to_owned()], metadata, tensors })
}

/// Converts the offsets of the tensors to positions in the file. Returns an error if a tensor is outside of the file or
/// overlaps another one, or if two tensors have the same name.
fn place_tensors(path: &Path, tensors: &mut [Tensor], start: u64, (alignment, size): (u64, u64)) -> Result<()> {
    let mut names = BTreeSet::new();
    for tensor in tensors.iter_mut() {
        let name = &tensor.name;
        let end = start.checked_add(tensor.offset).and_then(|begin| begin.checked_add(tensor.bytes));
        if !tensor.offset.is_multiple_of(alignment) || end.is_none_or(|end| end > size) {
            let Tensor { offset, bytes, .. } = tensor;
            let message =
                format!("the tensor {name:?} has {bytes} bytes at {start} + {offset}, but the file has {size} bytes");
            return Err(damaged(path, start, message));
        }
        if !names.insert(name.clone()) {
            return Err(damaged(path, start, format!("the tensor {name:?} occurs twice")));
        }
        tensor.offset += start;
    }
    let mut ranges: Vec<(u64, u64)> = tensors.iter().map(|tensor| (tensor.offset, tensor.bytes)).collect();
    ranges.sort_unstable();
    match ranges.windows(2).find(|pair| pair[0].0 + pair[0].1 > pair[1].0) {
        None => Ok(()),
        Some(pair) => Err(damaged(path, pair[1].0, "two tensors overlap")),
    }
}

/// Reads a file sequentially and knows how many bytes remain.
struct Reader<'a> {
    path: &'a Path,
    file: BufReader<File>,
    position: u64,
    size: u64,
}

impl Reader<'_> {
    fn error(&self, what: impl Display) -> Error {
        damaged(self.path, self.position, what)
    }

    fn remaining(&self) -> u64 {
        self.size.saturating_sub(self.position)
    }

    fn bytes(&mut self, count: u64, what: &str) -> Result<Vec<u8>> {
        let fits = usize::try_from(count).ok().filter(|_| count <= self.remaining());
        let Some(length) = fits else {
            return Err(
                self.error(format!("{what} should have {count} bytes, but only {} bytes remain", self.remaining()))
            );
        };
        let mut bytes = vec![0; length];
        self.file.read_exact(&mut bytes).map_err(|error| io_error("read", self.path, &error))?;
        self.position += count;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        let bytes = self.bytes(N as u64, what)?;
        Ok(std::array::from_fn(|i| bytes[i]))
    }

    fn u32(&mut self, what: &str) -> Result<u32> {
        self.array(what).map(u32::from_le_bytes)
    }

    fn u64(&mut self, what: &str) -> Result<u64> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// Reads the number of items that follow. Returns an error if the file is too short for items of `min_bytes` each.
    fn count(&mut self, what: &str, min_bytes: u64) -> Result<u64> {
        let count = self.u64(&format!("the number of {what}"))?;
        if count.checked_mul(min_bytes).is_some_and(|bytes| bytes <= self.remaining()) {
            Ok(count)
        } else {
            Err(self.error(format!("{count} {what} should follow, but only {} bytes remain", self.remaining())))
        }
    }

    fn text(&mut self, what: &str) -> Result<String> {
        let length = self.u64("the length of a text")?;
        let bytes = self.bytes(length, what)?;
        // A token of a vocabulary can be a part of a UTF-8 character, so invalid bytes are replaced.
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Reads a metadata value. `kind` is its type, numbered as in the GGUF specification.
    fn value(&mut self, kind: u32, depth: usize) -> Result<MetadataValue> {
        use MetadataValue::{Bool, Float, Integer, List, Text};
        let field = "a metadata value";
        Ok(match kind {
            0 => Integer(u8::from_le_bytes(self.array(field)?).into()),
            1 => Integer(i8::from_le_bytes(self.array(field)?).into()),
            2 => Integer(u16::from_le_bytes(self.array(field)?).into()),
            3 => Integer(i16::from_le_bytes(self.array(field)?).into()),
            4 => Integer(u32::from_le_bytes(self.array(field)?).into()),
            5 => Integer(i32::from_le_bytes(self.array(field)?).into()),
            6 => Float(f32::from_le_bytes(self.array(field)?).into()),
            7 => match self.array::<1>(field)? {
                [0] => Bool(false),
                [1] => Bool(true),
                [other] => return Err(self.error(format!("a boolean is {other}"))),
            },
            8 => Text(self.text("a metadata text")?),
            // Lists of lists recurse, and a file must not be able to overflow the stack.
            9 if depth < MAX_NESTING => {
                let element = self.u32("the type of a list")?;
                let count = self.count("list elements", min_value_bytes(element))?;
                List((0..count).map(|_| self.value(element, depth + 1)).collect::<Result<_>>()?)
            }
            9 => return Err(self.error(format!("lists are nested more than {MAX_NESTING} levels deep"))),
            10 => Integer(u64::from_le_bytes(self.array(field)?).into()),
            11 => Integer(i64::from_le_bytes(self.array(field)?).into()),
            12 => Float(f64::from_le_bytes(self.array(field)?)),
            other => return Err(self.error(format!("the metadata type {other} is unknown"))),
        })
    }

    fn tensor(&mut self) -> Result<Tensor> {
        let name = self.text("a tensor's name")?;
        let rank = u64::from(self.u32("a tensor's rank")?);
        if rank > MAX_DIMENSIONS {
            return Err(self.error(format!(
                "the tensor {name:?} has {rank} dimensions, but at most {MAX_DIMENSIONS} are allowed"
            )));
        }
        let mut shape = Vec::new();
        for _ in 0..rank {
            let size = self.u64("a dimension")?;
            let size = usize::try_from(size).map_err(|_| self.error(format!("a dimension of {name:?} is {size}")))?;
            shape.push(size);
        }
        // ggml writes the fastest dimension first.
        shape.reverse();
        let kind = self.u32("a tensor's type")?;
        let block = BlockType::from_code(kind).ok_or_else(|| {
            let names = BlockType::ALL.map(BlockType::name).join(", ");
            self.error(format!("the tensor {name:?} has the ggml type {kind}, but only {names} are supported"))
        })?;
        let offset = self.u64("a tensor's offset")?;
        let bytes = block.bytes_of(&shape).ok_or_else(|| {
            let message =
                format!("the tensor {name:?} of {shape:?} does not consist of entire {} blocks", block.name());
            self.error(message)
        })?;
        Ok(Tensor { name, file: 0, block, shape, offset, bytes })
    }
}

/// Returns the size of the smallest value of a type. A list has at least a type and a count.
fn min_value_bytes(kind: u32) -> u64 {
    match kind {
        0 | 1 | 7 => 1,
        2 | 3 => 2,
        4..=6 => 4,
        8 | 10..=12 => 8,
        _ => 12,
    }
}
