//! NumPy's files: `.npy`, and `.npz`, which is a zip file of them.

use std::fmt::Display;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use shardax::config::warn;
use shardax::error::{Error, ErrorKind, Result};
use shardax::prelude::*;

use super::file::{open, read_up_to, room, unreadable, wrong};
use super::{Example, HostArray};

/// Reads the array in a `.npy` file.
///
/// Supports booleans, integers, floating-point and complex numbers in either byte order and in row-major or
/// column-major order; the result is row-major.
///
/// # Errors
/// Returns an error, with the file and the offset, if the array has another dtype or the file is truncated.
#[track_caller]
pub fn npy(path: impl AsRef<Path>) -> Result<HostArray> {
    let location = std::panic::Location::caller();
    read(path.as_ref()).map_err(|error| error.at(location))
}

fn read(path: &Path) -> Result<HostArray> {
    let file = open(path).and_then(|file| Ok((file.metadata()?.len(), file)));
    let (len, file) = file.map_err(|error| unreadable(path, &error))?;
    match parse(path, "", len, &mut BufReader::new(file))? {
        Parsed::Array(array) => Ok(array),
        Parsed::Foreign => Err(Location { path, entry: "" }.error(0, NO_HEADER)),
        Parsed::Other(descr) => {
            let message = format!("{} has no numbers: its dtype is {descr:?}", path.display());
            Err(Error::new(ErrorKind::Type, message).help("save numbers, such as indices into a list of texts"))
        }
    }
}

/// Reads the arrays in a `.npz` file by name. It skips entries of texts or objects, and files that are not arrays, with a
/// warning. It also skips folders and hidden files, such as the ones that macOS adds to zip files, without a warning.
///
/// # Errors
/// Returns an error if the file cannot be read or is damaged, or if one of its arrays has a dtype that shardax does
/// not have.
#[track_caller]
pub fn npz(path: impl AsRef<Path>) -> Result<Example> {
    let location = std::panic::Location::caller();
    unpack(path.as_ref()).map_err(|error| error.at(location))
}

fn unpack(path: &Path) -> Result<Example> {
    let mut file = open(path).map_err(|error| unreadable(path, &error))?;
    let end = file.metadata().map_or(0, |about| about.len());
    // The end-of-directory record is in the last 66 kB; the zip crate would search the whole file for it.
    let tail = file.seek(SeekFrom::Start(end.saturating_sub(66_000))).and_then(|_| read_up_to(&mut file, 66_000));
    let tail = tail.map_err(|error| unreadable(path, &error))?;
    if !tail.windows(4).any(|bytes| bytes == b"PK\x05\x06") {
        return Err(wrong(path, end, "it is not a zip file: its directory is missing"));
    }
    let mut archive = zip::ZipArchive::new(BufReader::new(file))
        .map_err(|error| wrong(path, end, format!("it is not a zip file: {error}")))?;
    let mut out = Example::new();
    for index in 0..archive.len() {
        let mut entry =
            archive.by_index(index).map_err(|error| wrong(path, 0, format!("it is not a zip file: {error}")))?;
        let (name, len) = (entry.name().to_owned(), entry.size());
        if entry.is_dir() || name.rsplit('/').next().is_some_and(|file| file.starts_with('.')) {
            continue;
        }
        let described = format!(" of the entry {name:?}");
        match parse(path, &described, len, &mut entry)? {
            Parsed::Array(array) => {
                out.insert(name.strip_suffix(".npy").unwrap_or(&name).to_owned(), array);
            }
            Parsed::Foreign if name.ends_with(".npy") => {
                return Err(Location { path, entry: &described }.error(0, NO_HEADER));
            }
            Parsed::Foreign => warn(
                &format!("{}: skipping the entry {name:?}, which is no array", path.display()),
                "save other files next to the arrays' file",
            ),
            Parsed::Other(descr) => warn(
                &format!(
                    "{}: skipping the entry {name:?}, which has no numbers: its dtype is {descr:?}",
                    path.display()
                ),
                "save texts and objects to another file",
            ),
        }
    }
    Ok(out)
}

const NO_HEADER: &str = "there is no header of NumPy's format";

/// The contents of a file.
enum Parsed {
    Array(HostArray),
    /// Bytes of another format.
    Foreign,
    /// Texts, objects or records of this dtype.
    Other(String),
}

/// The location of an array, for errors: a file, and the entry in it.
#[derive(Clone, Copy)]
struct Location<'a> {
    path: &'a Path,
    /// The text to append to messages.
    entry: &'a str,
}

impl Location<'_> {
    fn error(self, offset: usize, problem: impl Display) -> Error {
        wrong(self.path, offset as u64, format!("{problem}{}", self.entry))
    }

    /// Reads up to `count` bytes at this offset.
    fn read(self, reader: &mut impl Read, offset: usize, count: usize) -> Result<Vec<u8>> {
        read_up_to(reader, count as u64).map_err(|error| self.error(offset, format!("bytes cannot be read: {error}")))
    }

    /// Reads exactly `count` bytes of the header.
    fn read_header(self, reader: &mut impl Read, offset: usize, count: usize) -> Result<Vec<u8>> {
        let bytes = self.read(reader, offset, count)?;
        if bytes.len() == count { Ok(bytes) } else { Err(self.error(offset + bytes.len(), "the header ends")) }
    }
}

/// Reads an array of `len` bytes with its header. It decompresses no more bytes than the header states, so that a
/// damaged file does not fill memory.
fn parse(path: &Path, entry: &str, len: u64, reader: &mut impl Read) -> Result<Parsed> {
    let location = Location { path, entry };
    let magic = location.read(reader, 0, 8)?;
    if !magic.starts_with(b"\x93NUMPY") {
        return Ok(Parsed::Foreign);
    }
    if magic.len() < 8 {
        return Err(location.error(magic.len(), "the header ends"));
    }
    let width = match magic[6] {
        1 => 2,
        2 | 3 => 4,
        version => return Err(location.error(6, format!("version {version} is not known"))),
    };
    let length = location.read_header(reader, 8, width)?.iter().rev().fold(0, |n, b| n << 8 | usize::from(*b));
    let start = 8 + width;
    let header = location.read_header(reader, start, length)?;
    let data = start + length;
    let header = String::from_utf8_lossy(&header);
    let invalid = || location.error(start, format!("the header is {:?}", header.trim()));
    let Header { descr, fortran, shape } = Header::parse(&header).ok_or_else(invalid)?;
    let Some(dtype) = parse_dtype(&descr, location, start)? else { return Ok(Parsed::Other(descr)) };
    let size = dtype.byte_size();
    let expected = shape.iter().try_fold(size, |n, d| n.checked_mul(*d)).ok_or_else(invalid)?;
    let wrong_length =
        |have: u64| location.error(data, format!("{expected} bytes of numbers should follow, but {have} do,"));
    let remaining = len.saturating_sub(data as u64);
    if remaining != expected as u64 {
        return Err(wrong_length(remaining));
    }
    room(remaining).map_err(|error| location.error(data, error))?;
    let mut values = location.read(reader, data, expected)?;
    if values.len() != expected {
        return Err(wrong_length(values.len() as u64));
    }
    // Reading to the end also makes the zip crate check the entry's checksum.
    if !location.read(reader, data + expected, 1)?.is_empty() {
        return Err(location.error(data + expected, "bytes follow that do not belong to it,"));
    }
    if descr.starts_with('>') {
        let part = if dtype.is_complex() { size / 2 } else { size };
        values.chunks_exact_mut(part).for_each(<[u8]>::reverse);
    }
    if dtype == DType::Bool
        && let Some(index) = values.iter().position(|b| *b > 1)
    {
        return Err(location.error(data + index, format!("the byte {} is not a boolean", values[index])));
    }
    if fortran && shape.len() > 1 {
        values = row_major(&values, &shape, size);
    }
    HostArray::from_bytes(values, dtype, &shape).map(Parsed::Array)
}

/// The dtype that a header names; `None` for texts, objects and records.
fn parse_dtype(descr: &str, location: Location<'_>, offset: usize) -> Result<Option<DType>> {
    // Without a byte order, numbers have the machine's.
    let kind = descr.strip_prefix(['<', '>', '|', '=']).unwrap_or(descr);
    Ok(Some(match kind {
        "b1" => DType::Bool,
        "i1" => DType::I8,
        "i2" => DType::I16,
        "i4" => DType::I32,
        "i8" => DType::I64,
        "u1" => DType::U8,
        "u2" => DType::U16,
        "u4" => DType::U32,
        "u8" => DType::U64,
        "f2" => DType::F16,
        "f4" => DType::F32,
        "f8" => DType::F64,
        "c8" => DType::Complex64,
        "c16" => DType::Complex128,
        // NumPy forgets the names of JAX's own dtypes.
        "V1" | "V2" => {
            let bits = if kind == "V1" { "uint8" } else { "uint16" };
            return Err(location.error(
                offset,
                format!(
                    "numbers of the type {descr:?} have lost their name, as NumPy saves bfloat16, float8 and int4 (save \
                     `x.view(\"{bits}\")`, and give the array its dtype here with `lax::bitcast_convert_type`, or \
                     `astype` for fewer than 8 bits)"
                ),
            ));
        }
        _ if is_no_number(descr) => return Ok(None),
        _ => return Err(location.error(offset, format!("numbers of the type {descr:?} are not known"))),
    }))
}

/// The header of an array: a dictionary in Python's notation.
struct Header {
    /// The dtype, or the text of a list for records.
    descr: String,
    fortran: bool,
    shape: Vec<usize>,
}

impl Header {
    /// Parses a header in any notation that NumPy reads: with either quotes, with entries in any order and repeated
    /// (the last one counts), and with Python 2's numbers such as `3L`. `None` for others.
    fn parse(text: &str) -> Option<Header> {
        let mut entries = text.trim().strip_prefix('{')?.strip_suffix('}')?.trim();
        let (mut descr, mut fortran, mut shape) = (None, None, None);
        while !entries.is_empty() {
            let (key, after) = quoted(entries)?;
            let after = after.trim_start().strip_prefix(':')?.trim_start();
            let end = value_end(after)?;
            let (value, after) = (after[..end].trim(), &after[end..]);
            match key {
                "descr" => descr = Some(quoted(value).map_or(value, |(name, _)| name).to_owned()),
                "fortran_order" => fortran = Some(matches!(value, "True" | "1")),
                "shape" => shape = Some(numbers(value)?),
                _ => return None,
            }
            entries = after.strip_prefix(',').unwrap_or(after).trim_start();
        }
        Some(Header { descr: descr?, fortran: fortran?, shape: shape? })
    }
}

/// Splits a text in quotes from the text after it.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let quote = text.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    text[1..].split_once(quote)
}

/// The number of bytes before the comma that ends a value. Commas in quotes and brackets do not end it.
fn value_end(text: &str) -> Option<usize> {
    let (mut depth, mut quote) = (0usize, None);
    for (i, c) in text.char_indices() {
        match (quote, c) {
            (Some(open), _) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, '(' | '[') => depth += 1,
            (None, ')' | ']') => depth = depth.checked_sub(1)?,
            (None, ',') if depth == 0 => return Some(i),
            _ => {}
        }
    }
    (depth == 0 && quote.is_none()).then_some(text.len())
}

/// The numbers of a tuple.
fn numbers(text: &str) -> Option<Vec<usize>> {
    let inside = text.strip_prefix('(')?.strip_suffix(')')?;
    let parts = inside.split(',').map(str::trim).filter(|part| !part.is_empty());
    parts.map(|part| part.strip_suffix(['L', 'l']).unwrap_or(part).parse().ok()).collect()
}

/// Returns true for a dtype of texts, objects, times or records, which no array can have.
fn is_no_number(descr: &str) -> bool {
    let kind = descr.trim_start_matches(['<', '>', '|', '=']);
    kind.starts_with(['U', 'S', 'O', 'a', 'M', 'm', 'V', '[', 'T'])
}

/// Converts values from column-major to row-major order.
fn row_major(values: &[u8], shape: &[usize], size: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(values.len());
    let count = shape.iter().product::<usize>();
    let mut index = vec![0; shape.len()];
    for _ in 0..count {
        let place = index.iter().zip(shape).rev().fold(0, |place, (index, size)| place * size + index);
        out.extend_from_slice(&values[place * size..(place + 1) * size]);
        for d in (0..index.len()).rev() {
            index[d] += 1;
            if index[d] < shape[d] {
                break;
            }
            index[d] = 0;
        }
    }
    out
}
