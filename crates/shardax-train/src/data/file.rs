//! Data files: opens, decompresses and reads them within memory limits, and reports damaged ones.

use std::fmt::Display;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Seek};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;

use shardax::error::{Error, ErrorKind, Result};

/// The error of a file that is damaged or of another format.
pub(crate) fn wrong(path: &Path, offset: u64, what: impl Display) -> Error {
    let message = format!("{} is damaged, or of another format: at byte {offset}, {what}", path.display());
    Error::new(ErrorKind::Value, message)
        .help("replace the file with an undamaged copy; in a gzip file, the offset counts decompressed bytes")
}

/// The error of a file that cannot be read.
pub(crate) fn unreadable(path: &Path, error: &io::Error) -> Error {
    Error::new(ErrorKind::Runtime, format!("cannot read {}: {error}", path.display()))
        .help("check that the path is correct and that this user may use it")
}

/// Reads a file as text.
#[cfg(feature = "tokenizers")]
pub(crate) fn text(path: &Path) -> Result<String> {
    let bytes = read(path).map_err(|error| unreadable(path, &error))?;
    String::from_utf8(bytes).map_err(|error| {
        let message =
            format!("at byte {}, {} is not a text in UTF-8", error.utf8_error().valid_up_to(), path.display());
        Error::new(ErrorKind::Value, message).help("convert it (`iconv -t utf-8`), or use its bytes as tokens")
    })
}

/// Opens a regular file. Opening a FIFO would block, and a device can have no end.
pub(crate) fn open(path: &Path) -> io::Result<fs::File> {
    let about = fs::metadata(path)?;
    let message = match about.file_type() {
        kind if kind.is_file() => return fs::File::open(path),
        kind if kind.is_dir() => "it is a folder, but a file is needed",
        _ => "it is a FIFO, a socket or a device, but a regular file is needed",
    };
    Err(io::Error::new(io::ErrorKind::InvalidInput, message))
}

/// Reads the bytes of a regular file.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = open(path)?;
    room(file.metadata()?.len())?;
    read_up_to(&mut file, u64::MAX)
}

/// Reads up to `count` bytes. Memory grows with the bytes read, so that a wrong count does not allocate.
pub(crate) fn read_up_to(reader: &mut impl Read, count: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < count {
        let part = (bytes.len() as u64).max(1 << 16).min(count - bytes.len() as u64);
        room(part)?;
        bytes.try_reserve(part as usize).map_err(io::Error::from)?;
        if (reader.by_ref().take(part).read_to_end(&mut bytes)? as u64) < part {
            break;
        }
    }
    Ok(bytes)
}

/// Fails if `more` bytes do not fit in memory.
pub(crate) fn room(more: u64) -> io::Result<()> {
    // Small allocations are not worth the system call.
    if more < 64 << 20 {
        return Ok(());
    }
    let free = free_memory();
    if more <= free {
        Ok(())
    } else {
        let message = format!("{more} bytes do not fit in memory: only {free} bytes are free");
        Err(io::Error::new(io::ErrorKind::OutOfMemory, message))
    }
}

/// Fails if `count` items of `each` bytes do not fit in memory. `what` names all of them in the error.
pub(super) fn room_for(count: usize, each: usize, what: &str, help: &str) -> Result<()> {
    room((count as u64).saturating_mul(each as u64))
        .map_err(|error| Error::new(ErrorKind::Value, format!("{what}: {error}")).help(help))
}

/// The memory that this program can still allocate, in bytes; the maximum if the system does not report it.
fn free_memory() -> u64 {
    let about = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let machine = about.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.split_whitespace().next());
    let machine = machine.and_then(|kib| kib.parse::<u64>().ok()).map(|kib| kib.saturating_mul(1024));
    let group = read_number("/sys/fs/cgroup/memory.max").zip(read_number("/sys/fs/cgroup/memory.current"));
    let group = group.map(|(most, used)| most.saturating_sub(used));
    machine.into_iter().chain(group).min().unwrap_or(isize::MAX as u64)
}

/// The number in a file; `None` if it cannot be read or is not a number.
fn read_number(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The decompressed size from which the ratio is checked, and the largest ratio, which tables and images do not reach.
const COMPRESSION_LIMIT: (u64, u64) = (256 << 20, 200);

/// Opens a file, decompressing gzip files. Returns the size of an uncompressed one. A file that decompresses to
/// gigabytes of zeros is an error.
pub(super) fn unpacked(path: &Path) -> io::Result<(Box<dyn Read>, Option<u64>)> {
    let mut file = open(path)?;
    let mut start = Vec::new();
    file.by_ref().take(2).read_to_end(&mut start)?;
    file.rewind()?;
    Ok(if start == [0x1f, 0x8b] {
        (Box::new(Unpacked { gzip: MultiGzDecoder::new(file), count: 0, limit: COMPRESSION_LIMIT.0 }), None)
    } else {
        let len = file.metadata()?.len();
        (Box::new(file), Some(len))
    })
}

struct Unpacked {
    gzip: MultiGzDecoder<fs::File>,
    count: u64,
    /// The count at which the ratio is checked next.
    limit: u64,
}

impl Read for Unpacked {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.gzip.read(out)?;
        self.count += read as u64;
        if self.count > self.limit {
            let packed = self.gzip.get_mut().stream_position()?;
            if self.count / COMPRESSION_LIMIT.1 > packed {
                let message = format!(
                    "its first {packed} bytes unpack to more than {} bytes, which is suspicious: if it is correct, unpack \
                     it with `gzip -d`, and read that",
                    self.count
                );
                return Err(io::Error::new(io::ErrorKind::InvalidData, message));
            }
            self.limit += COMPRESSION_LIMIT.0;
        }
        Ok(read)
    }
}

/// The longest line of a table, in bytes.
const MAX_LINE_BYTES: usize = 16 << 20;

/// A reader that limits the length of lines, since CSV readers hold a line in memory.
pub(super) struct Lines<R> {
    inner: R,
    since: usize,
}

impl<R> Lines<R> {
    pub fn new(inner: R) -> Self {
        Lines { inner, since: 0 }
    }
}

impl<R: Read> Read for Lines<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(out)?;
        let last_newline = out[..read].iter().rposition(|b| *b == b'\n');
        self.since = last_newline.map_or(self.since + read, |index| read - index);
        if self.since > MAX_LINE_BYTES {
            Err(io::Error::new(io::ErrorKind::InvalidData, "a line is longer than 16 MiB"))
        } else {
            Ok(read)
        }
    }
}

/// A reader of a file's bytes that decompresses gzip files.
pub(super) struct Bytes {
    path: PathBuf,
    reader: BufReader<Box<dyn Read>>,
    at: u64,
    /// The size, if known.
    len: Option<u64>,
}

impl Bytes {
    pub fn open(path: &Path) -> Result<Bytes> {
        let (reader, len) = unpacked(path).map_err(|error| unreadable(path, &error))?;
        Ok(Bytes { path: path.to_owned(), reader: BufReader::new(reader), at: 0, len })
    }

    /// Reads the next bytes; `what` names them in errors.
    pub fn take(&mut self, count: usize, what: &str) -> Result<Vec<u8>> {
        if let Some(len) = self.len {
            let available = len.saturating_sub(self.at);
            if available < count as u64 {
                return Err(self.wrong(too_short(count, what, available)));
            }
            room(count as u64).map_err(|error| self.broken(&error))?;
        }
        let bytes = read_up_to(&mut self.reader, count as u64).map_err(|error| self.broken(&error))?;
        if bytes.len() < count {
            return Err(self.wrong(too_short(count, what, bytes.len() as u64)));
        }
        self.at += count as u64;
        Ok(bytes)
    }

    /// Reads the next number, big-endian.
    pub fn u32_be(&mut self, what: &str) -> Result<u32> {
        let bytes = self.take(4, what)?;
        Ok(bytes.iter().fold(0, |n, b| n << 8 | u32::from(*b)))
    }

    ///
    /// # Errors
    /// Returns an error if an uncompressed file does not fit in memory.
    pub fn fits(&self) -> Result<()> {
        room(self.len.unwrap_or(0)).map_err(|error| self.wrong(error))
    }

    /// True at the end of the file.
    pub fn at_exit(&mut self) -> Result<bool> {
        let is_empty = self.reader.fill_buf().map(<[u8]>::is_empty);
        is_empty.map_err(|error| self.broken(&error))
    }

    ///
    /// # Errors
    /// Returns an error if bytes are left.
    pub fn end(&mut self) -> Result<()> {
        if self.at_exit()? { Ok(()) } else { Err(self.wrong("bytes follow that do not belong to it")) }
    }

    fn broken(&self, error: &io::Error) -> Error {
        match error.kind() {
            io::ErrorKind::OutOfMemory => self.wrong(error),
            _ => self.wrong(format!("it cannot be unpacked: {error}")),
        }
    }

    /// Returns the error for what begins at the current offset.
    pub fn wrong(&self, what: impl Display) -> Error {
        wrong(&self.path, self.at, what)
    }
}

fn too_short(count: usize, what: &str, available: u64) -> String {
    format!("{count} bytes of {what} should follow, but {available} do")
}
