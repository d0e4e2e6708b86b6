//! Reads checkpoints: the manifest, and slices of arrays with their checksums.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use shardax::DType;
use shardax::array::HostBuffer;
use shardax::error::{Error, ErrorKind};

use super::fault::{Fault, damaged, failed};
use super::format::{COMMIT, Entry, FORMAT, MANIFEST, Manifest, Part, VERSION};
use super::slices::{Block, Run, Runs};
use super::write::{replaced, unfinished};
use crate::data::file;

/// Reads the manifest of the checkpoint in this folder, and checks that its files exist and have the right sizes.
pub(super) fn open(folder: &Path) -> Result<Manifest, Fault> {
    let manifest = folder.join(MANIFEST);
    let text = match file::read(&manifest) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(missing(folder, &manifest)),
        Err(error) => return Err(failed("read", &manifest, &error).into()),
    };
    let commit = folder.join(COMMIT);
    let sum = file::read(&commit).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => damaged(&commit, "it is missing"),
        _ => failed("read", &commit, &error).into(),
    })?;
    let sum = String::from_utf8_lossy(&sum);
    let own = format!("{:08x}", crc32fast::hash(&text));
    if sum.trim() != own {
        return Err(damaged(&manifest, format!("its checksum is {own}, and `{COMMIT}` says {:?}", sum.trim())));
    }
    check_version(&manifest, &text)?;
    let read: Manifest = serde_json::from_slice(&text).map_err(|error| damaged(&manifest, error))?;
    check_places(&manifest, &read)?;
    for file in &read.files {
        let path = folder.join(&file.name);
        let bytes = match fs::metadata(&path) {
            Ok(found) if !found.is_file() => return Err(damaged(&path, "it is not a regular file")),
            Ok(found) => found.len(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(damaged(&path, "it is missing")),
            Err(error) => return Err(failed("read", &path, &error).into()),
        };
        if bytes != file.bytes {
            return Err(damaged(&path, format!("it has {bytes} bytes, and was written with {}", file.bytes)));
        }
    }
    Ok(read)
}

/// The error of a missing manifest.
fn missing(folder: &Path, manifest: &Path) -> Fault {
    if folder.join(COMMIT).exists() {
        return damaged(manifest, "it is missing");
    }
    let before = replaced(folder);
    let (what, help) = match (folder.exists(), unfinished(folder).exists()) {
        _ if before.exists() => {
            ("the program that replaced it was ended", "the one before has `.replaced` at the end of its name")
        }
        (_, true) => ("its writing was not finished", "restore the checkpoint before it"),
        (true, _) => ("the folder holds no manifest", "name the folder that was saved to, or one step of a manager's"),
        _ => ("there is no such folder", "look at the path; `CheckpointManager::all_steps` lists what is there"),
    };
    Error::new(ErrorKind::Value, format!("no checkpoint at {}: {what}", folder.display())).help(help).into()
}

/// Checks the version first: another version's manifest may have other meanings.
fn check_version(manifest: &Path, text: &[u8]) -> Result<(), Fault> {
    let head: serde_json::Value = serde_json::from_slice(text).map_err(|error| damaged(manifest, error))?;
    let (format, version) = (head["format"].as_str(), head["version"].as_u64());
    if format == Some(FORMAT) && version == Some(u64::from(VERSION)) {
        return Ok(());
    }
    let what = match (format, version) {
        (Some(FORMAT), Some(version)) => format!(
            "{} has version {version} of the format, and this shardax ({}) reads version {VERSION}",
            manifest.display(),
            env!("CARGO_PKG_VERSION")
        ),
        _ => format!("{} is not a checkpoint of shardax: its format is {}", manifest.display(), head["format"]),
    };
    Err(Error::new(ErrorKind::Value, what).help("read it with the shardax that wrote it, or a newer one").into())
}

/// A bound on chunks and headers, so that a wrong number does not allocate.
const LONGEST: u64 = 1 << 30;

/// Checks numbers and names that later steps rely on.
fn check_places(path: &Path, manifest: &Manifest) -> Result<(), Fault> {
    for file in &manifest.files {
        // A file outside the folder does not belong to the checkpoint.
        if Path::new(&file.name).file_name() != Some(OsStr::new(&file.name)) {
            return Err(damaged(path, format!("it names the file {:?}, which is not in its folder", file.name)));
        }
        if file.header_bytes > file.bytes.min(LONGEST) {
            return Err(damaged(path, format!("the header of {:?} has {} bytes", file.name, file.header_bytes)));
        }
    }
    if manifest.chunk as u64 > LONGEST {
        return Err(damaged(path, format!("its checksums are of {} bytes each", manifest.chunk)));
    }
    let mut paths = BTreeSet::new();
    for entry in &manifest.arrays {
        if !paths.insert(&entry.path) {
            return Err(damaged(path, format!("it has `{}` twice", entry.path)));
        }
        let dtype = DType::of_name(&entry.dtype)
            .ok_or_else(|| damaged(path, format!("`{}` has the dtype {:?}", entry.path, entry.dtype)))?;
        let elements = |shape: &[usize]| shape.iter().try_fold(dtype.byte_size(), |n, d| n.checked_mul(*d));
        let parts = entry.parts.iter().try_fold(0usize, |n, part| n.checked_add(elements(&part.shape)?));
        if parts.is_none() || parts != elements(&entry.shape) {
            return Err(damaged(path, format!("the parts of `{}` do not make it up", entry.path)));
        }
        for part in &entry.parts {
            let inside = part.start.len() == entry.shape.len() && part.shape.len() == entry.shape.len() && {
                let ends = part.start.iter().zip(&part.shape).map(|(start, size)| start.checked_add(*size));
                ends.zip(&entry.shape).all(|(end, size)| end.is_some_and(|end| end <= *size))
            };
            let file = manifest.files.get(part.file);
            let bytes = elements(&part.shape).filter(|bytes| {
                let end = part.offset.checked_add(*bytes as u64);
                inside && file.is_some_and(|file| end.is_some_and(|end| end <= file.bytes))
            });
            let chunks = bytes.filter(|_| manifest.chunk > 0).map(|bytes| bytes.div_ceil(manifest.chunk));
            if chunks != Some(part.crc32.len()) {
                return Err(damaged(path, format!("a part of `{}` is not inside of it, or of its file", entry.path)));
            }
        }
        // The slices have as many elements as the array, and no two overlap: together they cover it.
        if let Some((a, b)) = overlapping(&entry.parts) {
            let what = format!("the parts {:?} + {:?} and {:?} + {:?}", a.start, a.shape, b.start, b.shape);
            return Err(damaged(path, format!("{what} of `{}` overlap", entry.path)));
        }
    }
    Ok(())
}

/// Finds two slices that overlap, of slices of the same rank.
fn overlapping(parts: &[Part]) -> Option<(&Part, &Part)> {
    let end = |part: &Part, d: usize| part.start[d] + part.shape[d];
    let meet = |a: &Part, b: &Part| {
        let rank = a.start.len();
        (0..rank).all(|d| a.start[d].max(b.start[d]) < end(a, d).min(end(b, d)))
    };
    // Sweeps along the dimension with the most splits: a slice is compared only with the few that have not ended yet.
    let splits = |d: &usize| parts.iter().map(|part| part.start[*d]).collect::<BTreeSet<_>>().len();
    let along = (0..parts.first()?.start.len()).max_by_key(splits);
    let mut sorted: Vec<&Part> = parts.iter().collect();
    sorted.sort_by_key(|part| along.map(|d| part.start[d]));
    let mut open: Vec<&Part> = Vec::new();
    for part in sorted {
        open.retain(|other| along.is_none_or(|d| end(other, d) > part.start[d]));
        if let Some(other) = open.iter().find(|other| meet(other, part)) {
            return Some((other, part));
        }
        open.push(part);
    }
    None
}

/// A requested slice of an array, and its bytes.
pub(super) struct Wanted {
    pub start: Vec<usize>,
    pub shape: Vec<usize>,
    pub bytes: HostBuffer,
}

/// The files of a checkpoint, opened on demand.
pub(super) struct Files<'a> {
    folder: &'a Path,
    manifest: &'a Manifest,
    open: Vec<Option<fs::File>>,
}

impl<'a> Files<'a> {
    pub fn new(folder: &'a Path, manifest: &'a Manifest) -> Self {
        Files { folder, manifest, open: manifest.files.iter().map(|_| None).collect() }
    }

    fn path(&self, at: usize) -> PathBuf {
        self.folder.join(&self.manifest.files[at].name)
    }

    /// Opens a file and checks its header.
    fn file(&mut self, at: usize) -> Result<&mut fs::File, Fault> {
        let file = match self.open[at].take() {
            Some(file) => file,
            None => self.opened(at)?,
        };
        Ok(self.open[at].insert(file))
    }

    fn opened(&self, at: usize) -> Result<fs::File, Fault> {
        let path = self.path(at);
        let mut file = file::open(&path).map_err(|error| failed("read", &path, &error))?;
        let about = &self.manifest.files[at];
        let mut head = vec![0; about.header_bytes.min(about.bytes) as usize];
        file.read_exact(&mut head).map_err(|error| failed("read", &path, &error))?;
        if crc32fast::hash(&head) != about.header_crc32 {
            let what = format!("its header, bytes 0..{}, is not what was written", head.len());
            return Err(damaged(&path, what));
        }
        Ok(file)
    }

    /// Reads slices of an array: each chunk of a file at most once, and only the chunks needed.
    pub fn read(&mut self, entry: &Entry, element: usize, wanted: &mut [Wanted]) -> Result<(), Fault> {
        let mut missing: Vec<usize> = wanted.iter().map(|wanted| wanted.bytes.len()).collect();
        for part in &entry.parts {
            let from = Block { start: &part.start, shape: &part.shape };
            let mut runs: Vec<(usize, Runs, Option<Run>)> = Vec::new();
            for (at, wanted) in wanted.iter().enumerate() {
                let mut all = Runs::between(from, Block { start: &wanted.start, shape: &wanted.shape }, element);
                if let Some(first) = all.next() {
                    runs.push((at, all, Some(first)));
                }
            }
            if !runs.is_empty() {
                self.read_part(entry, part, element, &mut runs, wanted, &mut missing)?;
            }
        }
        match missing.iter().position(|bytes| *bytes > 0) {
            None => Ok(()),
            Some(at) => {
                let Wanted { start, shape, .. } = &wanted[at];
                let file = self.folder.join(MANIFEST);
                Err(damaged(&file, format!("no file has the elements {start:?} + {shape:?} of `{}`", entry.path)))
            }
        }
    }

    /// Reads all of an array and checks it.
    pub fn verify(&mut self, entry: &Entry) -> Result<(), Fault> {
        let element = DType::of_name(&entry.dtype).map_or(1, |dtype| dtype.byte_size());
        for part in &entry.parts {
            let size = part.shape.iter().product::<usize>() * element;
            let mut buffer = vec![0; size.min(self.manifest.chunk)];
            for number in 0..part.crc32.len() {
                let begin = number * self.manifest.chunk;
                let end = size.min(begin + self.manifest.chunk);
                self.fetch(entry, part, number, &mut buffer[..end - begin])?;
            }
        }
        Ok(())
    }

    /// Reads a chunk of a part.
    fn fetch(&mut self, entry: &Entry, part: &Part, number: usize, out: &mut [u8]) -> Result<(), Fault> {
        let path = self.path(part.file);
        let offset = part.offset + (number * self.manifest.chunk) as u64;
        let file = self.file(part.file)?;
        let read = file.seek(SeekFrom::Start(offset)).and_then(|_| file.read_exact(out));
        read.map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => damaged(&path, "it ends too early"),
            _ => failed("read", &path, &error).into(),
        })?;
        if part.crc32.get(number) == Some(&crc32fast::hash(out)) {
            return Ok(());
        }
        let bytes = offset..offset + out.len() as u64;
        Err(damaged(&path, format!("bytes {bytes:?}, of `{}`, are not what was written", entry.path)))
    }

    fn read_part(
        &mut self,
        entry: &Entry,
        part: &Part,
        element: usize,
        runs: &mut [(usize, Runs, Option<Run>)],
        wanted: &mut [Wanted],
        missing: &mut [usize],
    ) -> Result<(), Fault> {
        let size = part.shape.iter().product::<usize>() * element;
        let step = self.manifest.chunk;
        let mut buffer = Vec::new();
        for number in 0..part.crc32.len() {
            let (begin, end) = (number * step, size.min((number + 1) * step));
            if runs.iter().all(|(.., run)| run.is_none_or(|run| run.from >= end)) {
                continue;
            }
            // The whole chunk goes to one destination: read it there directly.
            if let [(at, rest, run)] = runs
                && let Some(now) = run.filter(|now| now.from <= begin && now.from + now.len >= end)
            {
                let to = now.to + begin - now.from;
                self.fetch(entry, part, number, &mut wanted[*at].bytes[to..to + end - begin])?;
                missing[*at] = missing[*at].saturating_sub(end - begin);
                if now.from + now.len == end {
                    *run = rest.next();
                }
                continue;
            }
            buffer.resize(end - begin, 0);
            self.fetch(entry, part, number, &mut buffer)?;
            for (at, rest, run) in runs.iter_mut() {
                while let Some(now) = run.filter(|now| now.from < end) {
                    let low = now.from.max(begin);
                    let high = end.min(now.from + now.len);
                    let to = now.to + low - now.from;
                    wanted[*at].bytes[to..to + high - low].copy_from_slice(&buffer[low - begin..high - begin]);
                    missing[*at] = missing[*at].saturating_sub(high - low);
                    if now.from + now.len > end {
                        break;
                    }
                    *run = rest.next();
                }
            }
        }
        Ok(())
    }
}
