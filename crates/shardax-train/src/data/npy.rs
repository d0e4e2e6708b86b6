//! NumPy's files: `.npy`, and `.npz`, which is a zip file of them.

use std::fs;
use std::io::{BufReader, Read};
use std::path::Path;

use shardax::error::Result;
use shardax::prelude::*;

use super::file::{unreadable, wrong};
use super::{Example, HostArray};

/// The array in a `.npy` file.
///
/// Read are booleans, integers, floating point and complex numbers in either byte order and either order of dimensions;
/// the result is row-major. Fails, with the file and the place, for others, and where it is cut off.
#[track_caller]
pub fn npy(path: impl AsRef<Path>) -> Result<HostArray> {
    let location = std::panic::Location::caller();
    let path = path.as_ref();
    let read = || {
        let mut file = fs::File::open(path).map_err(|error| unreadable(path, &error))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(|error| unreadable(path, &error))?;
        parse(path, "", &bytes)
    };
    read().map_err(|error| error.at(location))
}

/// The arrays in a `.npz` file, by their names.
#[track_caller]
pub fn npz(path: impl AsRef<Path>) -> Result<Example> {
    let location = std::panic::Location::caller();
    unpack(path.as_ref()).map_err(|error| error.at(location))
}

fn unpack(path: &Path) -> Result<Example> {
    let file = fs::File::open(path).map_err(|error| unreadable(path, &error))?;
    let end = file.metadata().map_or(0, |about| about.len());
    let broken = |at: u64, error: zip::result::ZipError| wrong(path, at, format!("it is no zip file: {error}"));
    let mut archive = zip::ZipArchive::new(BufReader::new(file)).map_err(|error| broken(end, error))?;
    let mut out = Example::new();
    for at in 0..archive.len() {
        let mut entry = archive.by_index(at).map_err(|error| broken(0, error))?;
        let (name, start) = (entry.name().to_owned(), entry.data_start());
        let mut bytes = Vec::new();
        let read = entry.read_to_end(&mut bytes);
        read.map_err(|error| wrong(path, start, format!("the entry {name:?} cannot be read: {error}")))?;
        let array = parse(path, &format!(" of the entry {name:?}"), &bytes)?;
        out.insert(name.strip_suffix(".npy").unwrap_or(&name).to_owned(), array);
    }
    Ok(out)
}

/// `inside` says where the bytes are in the file.
fn parse(path: &Path, inside: &str, bytes: &[u8]) -> Result<HostArray> {
    let fail = |at: usize, what: String| wrong(path, at as u64, format!("{what}{inside}"));
    let number = |at: usize, count: usize| -> Result<usize> {
        let part = bytes.get(at..at + count).ok_or_else(|| fail(bytes.len(), "the header ends".to_owned()))?;
        Ok(part.iter().rev().fold(0, |n, b| n << 8 | usize::from(*b)))
    };
    if !bytes.starts_with(b"\x93NUMPY") {
        return Err(fail(0, "there is no header of NumPy's format".to_owned()));
    }
    let (start, length): (usize, usize) = match number(6, 1)? {
        1 => (10, number(8, 2)?),
        2 | 3 => (12, number(8, 4)?),
        version => return Err(fail(6, format!("version {version} is not known"))),
    };
    let data = start.saturating_add(length);
    let header = bytes.get(start..data).ok_or_else(|| fail(bytes.len(), "the header ends".to_owned()))?;
    let header = String::from_utf8_lossy(header);
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
        _ => return Err(fail(start, format!("numbers of the type {descr:?} are not known"))),
    };
    let size = dtype.byte_size();
    let want = shape.iter().try_fold(size, |n, d| n.checked_mul(*d)).ok_or_else(odd)?;
    let mut values = match bytes.get(data..).filter(|values| values.len() == want) {
        Some(values) => values.to_vec(),
        None => {
            let have = bytes.len().saturating_sub(data);
            return Err(fail(data, format!("{want} bytes of numbers should follow, and {have} do,")));
        }
    };
    if order == ">" {
        let part = if dtype.is_complex() { size / 2 } else { size };
        values.chunks_exact_mut(part).for_each(<[u8]>::reverse);
    }
    if dtype == DType::Bool
        && let Some(at) = values.iter().position(|b| *b > 1)
    {
        return Err(fail(data + at, format!("the byte {} is no boolean", values[at])));
    }
    if fortran && shape.len() > 1 {
        values = row_major(&values, &shape, size);
    }
    HostArray::from_bytes(values, dtype, &shape)
}

/// The same values with the last dimension innermost, of which the first was.
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
