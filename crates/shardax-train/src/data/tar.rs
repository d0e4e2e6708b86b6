//! WebDataset: tar files of which the members with one stem make an example.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use shardax::error::{Error, ErrorKind, Result};

use super::file::{unreadable, wrong};
use super::stream::{Stream, number};

const BLOCK: u64 = 512;

/// The examples of tar files, one after the other: `0001.jpg` and `0001.cls` are the members `jpg` and `cls` of one. An
/// example is the bytes of each member by its ending, and `__key__`, the stem.
///
/// Its position is a file and a place in it: to go on, nothing is read twice.
///
/// Fails, with the file and the place, where one is cut off or no tar file.
#[derive(Debug)]
pub struct WebDataset {
    files: Vec<PathBuf>,
    /// The file, and where the next example begins in it.
    at: (usize, u64),
    open: Option<BufReader<fs::File>>,
    /// Where the reader is.
    offset: u64,
    failed: bool,
}

struct Member {
    name: String,
    bytes: Vec<u8>,
    /// Where its header begins.
    begin: u64,
}

impl WebDataset {
    /// The examples of these files, in their order.
    pub fn new<P: AsRef<Path>>(files: impl IntoIterator<Item = P>) -> Self {
        let files = files.into_iter().map(|path| path.as_ref().to_owned()).collect();
        WebDataset { files, at: (0, 0), open: None, offset: 0, failed: false }
    }

    /// The file that is read now, where the next example begins.
    fn file(&mut self) -> Result<Option<&mut BufReader<fs::File>>> {
        let Some(path) = self.files.get(self.at.0) else { return Ok(None) };
        if self.open.is_none() {
            let mut file = fs::File::open(path).map_err(|error| unreadable(path, &error))?;
            file.seek(SeekFrom::Start(self.at.1)).map_err(|error| unreadable(path, &error))?;
            (self.open, self.offset) = (Some(BufReader::with_capacity(1 << 16, file)), self.at.1);
        }
        Ok(self.open.as_mut())
    }

    /// The next bytes; `None` at the end of the file, where nothing of them is there.
    fn read(&mut self, count: u64, what: &str) -> Result<Option<Vec<u8>>> {
        let (path, offset) = (self.files.get(self.at.0).cloned().unwrap_or_default(), self.offset);
        let Some(file) = self.file()? else { return Ok(None) };
        let mut bytes = Vec::new();
        let read = file.take(count).read_to_end(&mut bytes).map_err(|error| unreadable(&path, &error))? as u64;
        self.offset += read;
        match read {
            _ if read == count => Ok(Some(bytes)),
            0 => Ok(None),
            _ => Err(wrong(&path, offset, format!("{count} bytes of {what} should follow, and {read} do"))),
        }
    }

    /// The next member of the file; `None` at its end.
    fn member(&mut self) -> Result<Option<Member>> {
        let mut long: Option<String> = None;
        let mut first = None;
        loop {
            let begin = self.offset;
            let path = self.files.get(self.at.0).cloned().unwrap_or_default();
            let fail = |what: &str| wrong(&path, begin, what);
            // Two blocks of nothing are the end; files without them are read as well.
            let Some(header) = self.read(BLOCK, "a header")? else { return Ok(None) };
            if header.iter().all(|b| *b == 0) {
                return Ok(None);
            }
            let first = *first.get_or_insert(begin);
            let octal = |range: std::ops::Range<usize>| {
                let text = String::from_utf8_lossy(&header[range]).into_owned();
                u64::from_str_radix(text.trim_matches(['\0', ' ']), 8).ok()
            };
            let sum: u64 =
                header.iter().enumerate().map(|(i, b)| if (148..156).contains(&i) { 32 } else { u64::from(*b) }).sum();
            if octal(148..156) != Some(sum) {
                return Err(fail("a header's checksum is not right"));
            }
            // GNU's form for what is too large for octal digits.
            let size = match header[124] & 0x80 {
                0 => octal(124..136),
                _ => Some(header[128..136].iter().fold(0, |n, b| n << 8 | u64::from(*b))),
            };
            let size = size.ok_or_else(|| fail("a header has no size"))?;
            let bytes = self.read(size, "a member")?;
            let bytes = match bytes {
                Some(bytes) => bytes,
                None if size == 0 => Vec::new(),
                None => return Err(fail("a member's bytes are not there")),
            };
            let padding = size.next_multiple_of(BLOCK) - size;
            if padding > 0 && self.read(padding, "padding")?.is_none() {
                return Err(fail("the file ends within a member"));
            }
            let text = |bytes: &[u8]| {
                let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
                String::from_utf8_lossy(&bytes[..end]).into_owned()
            };
            match header[156] {
                b'L' => long = Some(text(&bytes)),
                b'x' => long = pax_path(&bytes).or(long),
                b'0' | 0 | b'7' => {
                    let prefix = if &header[257..262] == b"ustar" { text(&header[345..500]) } else { String::new() };
                    let short = text(&header[..100]);
                    let short = if prefix.is_empty() { short } else { format!("{prefix}/{short}") };
                    return Ok(Some(Member { name: long.unwrap_or(short), bytes, begin: first }));
                }
                // Folders, links and what concerns the whole file.
                _ => long = None,
            }
        }
    }

    /// The members of the next example.
    fn example(&mut self) -> Result<Option<BTreeMap<String, Vec<u8>>>> {
        while self.at.0 < self.files.len() {
            let mut example: BTreeMap<String, Vec<u8>> = BTreeMap::new();
            let mut key: Option<String> = None;
            loop {
                let Some(member) = self.member()? else {
                    self.at = (self.at.0 + 1, 0);
                    self.open = None;
                    break;
                };
                let (folder, name) = member.name.rsplit_once('/').map_or(("", member.name.as_str()), |(f, n)| (f, n));
                let Some((stem, ending)) = name.split_once('.') else { continue };
                let own = if folder.is_empty() { stem.to_owned() } else { format!("{folder}/{stem}") };
                if key.get_or_insert_with(|| own.clone()) != &own {
                    // The first member of the next example: read again then.
                    self.at.1 = member.begin;
                    self.open = None;
                    break;
                }
                example.insert(ending.to_owned(), member.bytes);
            }
            if let Some(key) = key {
                example.insert("__key__".to_owned(), key.into_bytes());
                return Ok(Some(example));
            }
        }
        Ok(None)
    }
}

/// The path in a header of the newer kind: lines of a length, a name and a value.
fn pax_path(bytes: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(bytes);
    text.lines().find_map(|line| Some(line.split_once(' ')?.1.strip_prefix("path=")?.to_owned()))
}

impl Stream for WebDataset {
    type Item = BTreeMap<String, Vec<u8>>;

    fn next_item(&mut self) -> Option<Result<Self::Item>> {
        if self.failed {
            return None;
        }
        let example = self.example();
        // What follows a damaged place is not known.
        self.failed = example.is_err();
        example.transpose()
    }

    fn position(&self) -> Value {
        json!({ "file": self.at.0, "offset": self.at.1 })
    }

    fn seek(&mut self, position: &Value) -> Result<()> {
        let (file, offset) = (number(position, "file")? as usize, number(position, "offset")?);
        if file > self.files.len() {
            let what = format!("the position {position} is one in more than {} files", self.files.len());
            return Err(Error::new(ErrorKind::Value, what).help("give the same files as before"));
        }
        (self.at, self.open, self.failed) = ((file, offset), None, false);
        Ok(())
    }
}
