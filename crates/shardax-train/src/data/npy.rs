//! NumPy's files: `.npy`, and `.npz`, which is a zip file of them.

use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use shardax::error::Result;
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
    let read = opened.and_then(|(len, file)| parse(path, "", len, &mut BufReader::new(file)));
    read.map_err(|error| error.at(location))
}

/// Reads the arrays in a `.npz` file by name.
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
        out.insert(name.strip_suffix(".npy").unwrap_or(&name).to_owned(), array);
    }
    Ok(out)
}

/// Reads an array of `len` bytes with its header; decompresses no more than the header says. `inside` is the location
/// in the file, for messages.
fn parse(path: &Path, inside: &str, len: u64, reader: &mut impl Read) -> Result<HostArray> {
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
    let after = |key: &str| header.split_once(key).map(|(_, rest)| rest.trim_start_matches([' ', ':']));
    let descr = after("'descr'").and_then(|rest| rest.strip_prefix('\'')?.split('\'').next()).ok_or_else(odd)?;
    let fortran = after("'fortran_order'").ok_or_else(odd)?.starts_with("True");
    let shape = after("'shape'").and_then(|rest| rest.strip_prefix('(')?.split(')').next()).ok_or_else(odd)?;
    let shape: Vec<usize> = shape
        .split(',')
        .map(str::trim)
        .filter(|text| !text.is_empty())
        .map(|text| text.parse().map_err(|_| odd()))
        .collect::<Result<_>>()?;
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
    HostArray::from_bytes(values, dtype, &shape)
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
