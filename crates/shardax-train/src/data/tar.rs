//! WebDataset: tar files in which the members with one stem make an example.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use ::tar::{self, EntryType};
use serde_json::{Value, json};
use shardax::error::{Error, ErrorKind, Result};

use super::file::{open, read_up_to, room, unreadable, wrong};
use super::stream::{Stream, number};

/// The examples of tar files in order: `0001.jpg` and `0001.cls` are the members `jpg` and `cls` of one. An example
/// has the bytes of each member by its extension, and `__key__`, the stem.
///
/// The position is a file and an offset in it, so that you can resume without reading the examples before it again.
///
/// Fails, with the file and the offset, if a file is truncated, is not a tar file, or is shorter than a position in it.
/// Links are errors because their bytes are elsewhere. You can avoid them with `tar --dereference --hard-dereference`,
/// which writes the files instead.
#[derive(Debug)]
pub struct WebDataset {
    files: Vec<PathBuf>,
    /// The index of the file, and the offset of the next example.
    at: (usize, u64),
    open: Option<BufReader<fs::File>>,
    failed: bool,
}

/// The members of an example by extension.
type Members = BTreeMap<String, Vec<u8>>;

impl WebDataset {
    /// Reads the examples of these files, in order.
    pub fn new<P: AsRef<Path>>(files: impl IntoIterator<Item = P>) -> Self {
        let files = files.into_iter().map(|path| path.as_ref().to_owned()).collect();
        WebDataset { files, at: (0, 0), open: None, failed: false }
    }

    /// Reads the members of the next example.
    fn example(&mut self) -> Result<Option<Members>> {
        while let Some(path) = self.files.get(self.at.0) {
            let mut file = match self.open.take() {
                Some(file) => file,
                None => open_at(path, self.at.1)?,
            };
            let (example, next) = members(path, &mut file, self.at.1)?;
            match next {
                Some(next) => {
                    self.at.1 = next;
                    self.open = Some(file);
                }
                None => self.at = (self.at.0 + 1, 0),
            }
            if example.is_some() {
                return Ok(example);
            }
        }
        Ok(None)
    }
}

/// Opens a file at the offset of an example.
fn open_at(path: &Path, offset: u64) -> Result<BufReader<fs::File>> {
    let mut file = open(path).map_err(|error| unreadable(path, &error))?;
    let len = file.metadata().map_err(|error| unreadable(path, &error))?.len();
    if offset > 0 && offset >= len {
        let message = format!("an example should begin, but the file ends at byte {len}: it was longer before");
        return Err(wrong(path, offset, message));
    }
    file.seek(SeekFrom::Start(offset)).map_err(|error| unreadable(path, &error))?;
    Ok(BufReader::with_capacity(1 << 16, file))
}

/// A reader that counts bytes.
struct Counted<R>(R, Rc<Cell<u64>>);

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.0.read(out)?;
        self.1.set(self.1.get() + read as u64);
        Ok(read)
    }
}

/// Reads the members of the example at `offset`, the reader's position. Also returns the offset of the next one; `None`
/// at the end of the file.
fn members(path: &Path, file: &mut BufReader<fs::File>, offset: u64) -> Result<(Option<Members>, Option<u64>)> {
    let len = file.get_ref().metadata().map_err(|error| unreadable(path, &error))?.len();
    let count = Rc::new(Cell::new(0));
    let mut archive = tar::Archive::new(Counted(&mut *file, count.clone()));

    let mut entries = archive.entries().map_err(|error| unreadable_tar(path, offset, &error))?;
    let (mut example, mut key): (Members, Option<String>) = (Members::new(), None);
    loop {
        // Members begin at multiples of 512 bytes.
        let begin = offset.saturating_add(count.get().next_multiple_of(512));
        let Some(entry) = entries.next() else { break };
        let mut entry = entry.map_err(|error| unreadable_tar(path, begin, &error))?;
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        // Entries without bytes: folders, and headers for the whole file.
        if matches!(entry.header().entry_type(), EntryType::Directory | EntryType::XGlobalHeader) {
            continue;
        }
        let (folder, file_name) = name.rsplit_once('/').map_or(("", name.as_str()), |(folder, name)| (folder, name));
        // Hidden files are not examples: macOS adds `._0001.jpg` to each file.
        let Some((stem, ending)) = file_name.split_once('.').filter(|(stem, _)| !stem.is_empty()) else {
            // The bytes are read, so that the reader is at the next member.
            io::copy(&mut entry, &mut io::sink()).map_err(|error| unreadable_tar(path, begin, &error))?;
            continue;
        };
        let member_key = if folder.is_empty() { stem.to_owned() } else { format!("{folder}/{stem}") };
        if key.get_or_insert_with(|| member_key.clone()) != &member_key {
            // The first member of the next example: step back to read its header again.
            let back = i64::try_from(count.get() - (begin - offset)).unwrap_or(0);
            file.seek_relative(-back).map_err(|error| unreadable(path, &error))?;
            example.insert("__key__".to_owned(), key.unwrap_or_default().into_bytes());
            return Ok((Some(example), Some(begin)));
        }
        check(path, begin, &name, &mut entry)?;
        let start = offset.saturating_add(entry.raw_file_position());
        let remaining = len.saturating_sub(start);
        if entry.header().entry_type() != EntryType::GNUSparse && entry.size() > remaining {
            let message = format!("{} bytes of a member should follow, but {remaining} do", entry.size());
            return Err(wrong(path, start, message));
        }
        let size = entry.size();
        let bytes = room(size).and_then(|()| read_up_to(&mut entry, size));
        let bytes = bytes.map_err(|error| unreadable_tar(path, begin, &error))?;
        if bytes.len() as u64 != size {
            return Err(wrong(path, start, format!("{size} bytes of {name:?} should follow, but {} do", bytes.len())));
        }
        if example.insert(ending.to_owned(), bytes).is_some() {
            return Err(wrong(path, begin, format!("the member {name:?} appears twice")));
        }
    }
    if let Some(key) = key {
        example.insert("__key__".to_owned(), key.into_bytes());
        return Ok((Some(example), None));
    }
    Ok((None, None))
}

fn unreadable_tar(path: &Path, offset: u64, error: &io::Error) -> Error {
    wrong(path, offset, format!("it cannot be read as tar: {error}"))
}

/// Fails for a member whose bytes are elsewhere or in an unknown form, because skipping it would change the examples.
fn check<R: Read>(path: &Path, begin: u64, name: &str, entry: &mut tar::Entry<'_, R>) -> Result<()> {
    match problem(entry) {
        Some(problem) => Err(wrong(path, begin, format!("the member {name:?} {problem}"))),
        None => Ok(()),
    }
}

/// Returns why a member cannot be read.
fn problem<R: Read>(entry: &mut tar::Entry<'_, R>) -> Option<String> {
    // The tar crate reads the last eight bytes of a size that is not in octal digits.
    let size = &entry.header().as_bytes()[124..128];
    if size[0] & 0x80 != 0 && size != [0x80, 0, 0, 0] {
        return Some("has a size of more than 64 bits".to_owned());
    }
    let kind = entry.header().entry_type();
    match kind {
        EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {}
        EntryType::Link | EntryType::Symlink => {
            let problem =
                "is a link, and its bytes are elsewhere: write it with `tar --dereference --hard-dereference`";
            return Some(problem.to_owned());
        }
        kind => return Some(format!("is not a file: its type is {:?}", char::from(kind.as_byte()))),
    }
    let extensions = match entry.pax_extensions() {
        Ok(extensions) => extensions,
        Err(error) => return Some(error.to_string()),
    };
    let mut keys = extensions.into_iter().flatten().filter_map(io::Result::ok);
    let is_sparse = keys.any(|extension| extension.key_bytes().starts_with(b"GNU.sparse."));
    is_sparse.then(|| "is sparse in the POSIX form: write it with `tar --format=gnu`, or without `--sparse`".to_owned())
}

impl Stream for WebDataset {
    type Item = Members;

    fn next_item(&mut self) -> Option<Result<Self::Item>> {
        if self.failed {
            return None;
        }
        let example = self.example();
        // The stream cannot resume after a damaged place.
        self.failed = example.is_err();
        example.transpose()
    }

    fn position(&self) -> Value {
        json!({ "file": self.at.0, "offset": self.at.1 })
    }

    fn seek(&mut self, position: &Value) -> Result<()> {
        let (file, offset) = (number(position, "file")? as usize, number(position, "offset")?);
        if file > self.files.len() {
            let message = format!("the position {position} belongs to more than {} files", self.files.len());
            return Err(Error::new(ErrorKind::Value, message).help("use the same files as when the position was saved"));
        }
        (self.at, self.open, self.failed) = ((file, offset), None, false);
        Ok(())
    }
}
