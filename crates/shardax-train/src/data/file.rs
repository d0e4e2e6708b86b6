//! Files of data, and what is wrong with them.

use std::fmt::Display;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use shardax::error::{Error, ErrorKind, Result};

/// The bytes of a file, unpacked where it is a gzip file.
pub(super) struct Bytes {
    path: PathBuf,
    all: Vec<u8>,
    at: usize,
}

/// The error of a file that is not what it should be.
pub(crate) fn wrong(path: &Path, offset: u64, what: impl Display) -> Error {
    let message = format!("{} is damaged, or of another format: at byte {offset}, {what}", path.display());
    Error::new(ErrorKind::Value, message).help("get the file again; a gzip file's bytes are counted unpacked")
}

/// The error of a file that cannot be read.
pub(crate) fn unreadable(path: &Path, error: &io::Error) -> Error {
    Error::new(ErrorKind::Runtime, format!("cannot read {}: {error}", path.display())).help("look at the path")
}

/// The text of a file.
#[cfg(feature = "tokenizers")]
pub(crate) fn text(path: &Path) -> Result<String> {
    let bytes = fs::read(path).map_err(|error| unreadable(path, &error))?;
    String::from_utf8(bytes).map_err(|error| {
        let what = format!("at byte {}, {} is no text in UTF-8", error.utf8_error().valid_up_to(), path.display());
        Error::new(ErrorKind::Value, what).help("convert it (`iconv -t utf-8`), or take its bytes as tokens")
    })
}

impl Bytes {
    pub fn read(path: &Path) -> Result<Bytes> {
        let raw = fs::read(path).map_err(|error| unreadable(path, &error))?;
        let mut all = raw;
        if all.starts_with(&[0x1f, 0x8b]) {
            let mut unpacked = Vec::new();
            let read = flate2::read::MultiGzDecoder::new(all.as_slice()).read_to_end(&mut unpacked);
            read.map_err(|error| wrong(path, unpacked.len() as u64, format!("it cannot be unpacked: {error}")))?;
            all = unpacked;
        }
        Ok(Bytes { path: path.to_owned(), all, at: 0 })
    }

    /// The next bytes, which are `what`.
    pub fn take(&mut self, count: usize, what: &str) -> Result<&[u8]> {
        let (at, len) = (self.at, self.all.len());
        let Some(end) = at.checked_add(count).filter(|end| *end <= len) else {
            let left = len - at;
            return Err(wrong(&self.path, at as u64, format!("{count} bytes of {what} should follow, and {left} do")));
        };
        self.at = end;
        Ok(&self.all[at..end])
    }

    /// The next number, big-endian.
    pub fn u32_be(&mut self, what: &str) -> Result<u32> {
        let bytes = self.take(4, what)?;
        Ok(bytes.iter().fold(0, |n, b| n << 8 | u32::from(*b)))
    }

    /// How many bytes there are in all.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Fails where bytes are left.
    pub fn end(&self) -> Result<()> {
        match self.all.len() - self.at {
            0 => Ok(()),
            left => Err(self.wrong(format!("{left} bytes follow that do not belong to it"))),
        }
    }

    /// The error of what begins here.
    pub fn wrong(&self, what: impl Display) -> Error {
        wrong(&self.path, self.at as u64, what)
    }
}
