//! NumPy's files: `.npy`, and `.npz`, which is a zip file of them.

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
/// column-major order; the result is row-major. Fails, with the file and the offset, for others, and if it is
/// truncated.
#[track_caller]
pub fn npy(path: impl AsRef<Path>) -> Result<HostArray> {
    let location = std::panic::Location::caller();
    let path = path.as_ref();
    let open = || open(path).and_then(|file| Ok((file.metadata()?.len(), file)));
    let opened = open().map_err(|error| unreadable(path, &error));
    let read = opened.and_then(|(len, file)| match parse(path, "", len, &mut BufReader::new(file))? {
        Parsed::Array(array) => Ok(array),
        Parsed::Other(descr) => {
            let what = format!("{} has no numbers: its dtype is {descr:?}", path.display());
            Err(Error::new(ErrorKind::Type, what).help("save numbers, such as indices into a list of texts"))
        }
    });
    read.map_err(|error| error.at(location))
}

/// Reads the arrays in a `.npz` file by name. Entries of texts or objects are left out, with a warning.
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
        return Err(wrong(path, end, "it is not a zip file: its directory is not there"));
    }
    let broken = |at: u64, error: zip::result::ZipError| wrong(path, at, format!("it is not a zip file: {error}"));
    let mut archive = zip::ZipArchive::new(BufReader::new(file)).map_err(|error| broken(end, error))?;
    let mut out = Example::new();
    for at in 0..archive.len() {
        let mut entry = archive.by_index(at).map_err(|error| broken(0, error))?;
        let (name, len) = (entry.name().to_owned(), entry.size());
        let array = parse(path, &format!(" of the entry {name:?}"), len, &mut entry)?;
        match array {
            Parsed::Array(array) => {
                out.insert(name.strip_suffix(".npy").unwrap_or(&name).to_owned(), array);
            }
            Parsed::Other(descr) => warn(
                &format!(
                    "{}: the entry {name:?} has no numbers, and is left out: its dtype is {descr:?}",
                    path.display()
                ),
                "save texts and objects to another file",
            ),
        }
    }
    Ok(out)
}

/// The contents of a file.
enum Parsed {
    Array(HostArray),
    /// Texts, objects or records of this dtype.
    Other(String),
}

/// Reads an array of `len` bytes with its header; decompresses no more than the header says. `inside` is the location
/// in the file, for messages.
fn parse(path: &Path, inside: &str, len: u64, reader: &mut impl Read) -> Result<Parsed> {
    let fail = |at: usize, what: String| wrong(path, at as u64, format!("{what}{inside}"));
    let mut next = |at: usize, count: usize| {
        read_up_to(reader, count as u64).map_err(|error| fail(at, format!("bytes cannot be read: {error}")))
    };
    let whole = |bytes: Vec<u8>, at: usize, count: usize| match bytes.len() == count {
        true => Ok(bytes),
        false => Err(fail(at + bytes.len(), "the header ends".to_owned())),
    };
    let magic = next(0, 8)?;
    if !magic.starts_with(b"\x93NUMPY") {
        return Err(fail(0, "there is no header of NumPy's format".to_owned()));
    }
    let width = match whole(magic, 0, 8)?[6] {
        1 => 2,
        2 | 3 => 4,
        version => return Err(fail(6, format!("version {version} is not known"))),
    };
    let length = whole(next(8, width)?, 8, width)?.iter().rev().fold(0, |n, b| n << 8 | usize::from(*b));
    let start = 8 + width;
    let header = whole(next(start, length)?, start, length)?;
    let data = start + length;
    let header = String::from_utf8_lossy(&header);
    let odd = || fail(start, format!("the header is {:?}", header.trim()));
    let Header { descr, fortran, shape } = Header::of(&header).ok_or_else(odd)?;
    let descr = descr.as_str();
    let (order, kind) = descr.split_at_checked(1).unwrap_or(("", descr));
    let dtype = match kind {
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
            return Err(fail(
                start,
                format!(
                    "numbers of the type {descr:?} have lost their name, as NumPy saves bfloat16, float8 and int4 (save \
                     `x.view(\"{bits}\")`, and give the array its dtype here with `lax::bitcast_convert_type`, or \
                     `astype` for fewer than 8 bits)"
                ),
            ));
        }
        _ if is_no_number(descr) => return Ok(Parsed::Other(descr.to_owned())),
        _ => return Err(fail(start, format!("numbers of the type {descr:?} are not known"))),
    };
    let size = dtype.byte_size();
    let want = shape.iter().try_fold(size, |n, d| n.checked_mul(*d)).ok_or_else(odd)?;
    let follow = |have: u64| fail(data, format!("{want} bytes of numbers should follow, and {have} do,"));
    let left = len.saturating_sub(data as u64);
    if left != want as u64 {
        return Err(follow(left));
    }
    room(left).map_err(|error| fail(data, error.to_string()))?;
    let mut values = next(data, want)?;
    if values.len() != want {
        return Err(follow(values.len() as u64));
    }
    // Reading to the end also makes the zip crate check the entry's checksum.
    if !next(data + want, 1)?.is_empty() {
        return Err(fail(data + want, "bytes follow that do not belong to it,".to_owned()));
    }
    if order == ">" {
        let part = if dtype.is_complex() { size / 2 } else { size };
        values.chunks_exact_mut(part).for_each(<[u8]>::reverse);
    }
    if dtype == DType::Bool
        && let Some(at) = values.iter().position(|b| *b > 1)
    {
        return Err(fail(data + at, format!("the byte {} is not a boolean", values[at])));
    }
    if fortran && shape.len() > 1 {
        values = row_major(&values, &shape, size);
    }
    HostArray::from_bytes(values, dtype, &shape).map(Parsed::Array)
}

/// The header of an array: a dictionary in Python's notation.
struct Header {
    /// The dtype, or the text of a list for records.
    descr: String,
    fortran: bool,
    shape: Vec<usize>,
}

impl Header {
    /// Reads a header in any notation that NumPy reads: either quotes, entries in any order and more than once, of which
    /// the last counts, numbers of Python 2 such as `3L`. `None` for others.
    fn of(text: &str) -> Option<Header> {
        let mut rest = text.trim().strip_prefix('{')?.strip_suffix('}')?.trim();
        let (mut descr, mut fortran, mut shape) = (None, None, None);
        while !rest.is_empty() {
            let (key, after) = quoted(rest)?;
            let after = after.trim_start().strip_prefix(':')?.trim_start();
            let end = value_end(after)?;
            let (value, after) = (after[..end].trim(), &after[end..]);
            match key {
                "descr" => descr = Some(quoted(value).map_or(value, |(name, _)| name).to_owned()),
                "fortran_order" => fortran = Some(matches!(value, "True" | "1")),
                "shape" => shape = Some(numbers(value)?),
                _ => return None,
            }
            rest = after.strip_prefix(',').unwrap_or(after).trim_start();
        }
        Some(Header { descr: descr?, fortran: fortran?, shape: shape? })
    }
}

/// A text in quotes at the beginning, and what follows it.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let quote = text.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    text[1..].split_once(quote)
}

/// The number of bytes before the comma that ends a value: outside of quotes and brackets.
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

/// Returns true for a dtype of texts, objects, times or records, of which there are no arrays here.
fn is_no_number(descr: &str) -> bool {
    let kind = descr.trim_start_matches(['<', '>', '|', '=']);
    kind.starts_with(['U', 'S', 'O', 'a', 'M', 'm', 'V', '[', 'T'])
}

/// Converts values from column-major to row-major order.
fn row_major(values: &[u8], shape: &[usize], size: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(values.len());
    let count = shape.iter().product::<usize>();
    let mut at = vec![0; shape.len()];
    for _ in 0..count {
        let place = at.iter().zip(shape).rev().fold(0, |place, (at, size)| place * size + at);
        out.extend_from_slice(&values[place * size..(place + 1) * size]);
        for d in (0..at.len()).rev() {
            at[d] += 1;
            if at[d] < shape[d] {
                break;
            }
            at[d] = 0;
        }
    }
    out
}
