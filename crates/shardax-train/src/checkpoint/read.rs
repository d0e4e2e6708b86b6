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
    // The commit file is written last, with the checksum of the manifest: without it the checkpoint is incomplete.
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
    let manifest_sum = format!("{:08x}", crc32fast::hash(&text));
    if sum.trim() != manifest_sum {
        let message = format!("its checksum is {manifest_sum}, but `{COMMIT}` contains {:?}", sum.trim());
        return Err(damaged(&manifest, message));
    }
    check_version(&manifest, &text)?;
    let decoded: Manifest = serde_json::from_slice(&text).map_err(|error| damaged(&manifest, error))?;
    check_places(&manifest, &decoded)?;
    for file in &decoded.files {
        check_size(&folder.join(&file.name), file.bytes)?;
    }
    Ok(decoded)
}

/// Checks that a file exists and has this size. Its contents are checked when they are read.
fn check_size(path: &Path, expected: u64) -> Result<(), Fault> {
    let bytes = match fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() => return Err(damaged(path, "it is not a regular file")),
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(damaged(path, "it is missing")),
        Err(error) => return Err(failed("read", path, &error).into()),
    };
    if bytes == expected {
        Ok(())
    } else {
        Err(damaged(path, format!("it has {bytes} bytes, but was written with {expected}")))
    }
}

/// The error of a missing manifest.
fn missing(folder: &Path, manifest: &Path) -> Fault {
    if folder.join(COMMIT).exists() {
        return damaged(manifest, "it is missing");
    }
    let before = replaced(folder);
    let (reason, help) = match (folder.exists(), unfinished(folder).exists()) {
        _ if before.exists() => (
            "the program that was replacing it was interrupted",
            "the previous checkpoint is in the folder whose name ends in `.replaced`",
        ),
        (_, true) => ("it was not written completely", "restore the checkpoint before it"),
        (true, _) => {
            ("the folder contains no manifest", "pass the folder that was saved to, or one step of a manager's folder")
        }
        _ => ("there is no such folder", "check the path; `CheckpointManager::all_steps` lists the existing steps"),
    };
    Error::new(ErrorKind::Value, format!("no checkpoint at {}: {reason}", folder.display())).help(help).into()
}

/// Checks the version first: another version's manifest can have other meanings.
fn check_version(manifest: &Path, text: &[u8]) -> Result<(), Fault> {
    let head: serde_json::Value = serde_json::from_slice(text).map_err(|error| damaged(manifest, error))?;
    let (format, version) = (head["format"].as_str(), head["version"].as_u64());
    if format == Some(FORMAT) && version == Some(u64::from(VERSION)) {
        return Ok(());
    }
    let message = match (format, version) {
        (Some(FORMAT), Some(version)) => format!(
            "{} has version {version} of the format, but this version of shardax ({}) reads version {VERSION}",
            manifest.display(),
            env!("CARGO_PKG_VERSION")
        ),
        _ => format!("{} is not a checkpoint of shardax: its format is {}", manifest.display(), head["format"]),
    };
    Err(Error::new(ErrorKind::Value, message)
        .help("read it with the version of shardax that wrote it, or a newer one")
        .into())
}

/// The maximal size of chunks and headers, so that a damaged number does not allocate more.
const MAX_CHUNK_BYTES: u64 = 1 << 30;

/// Checks numbers and names that later steps rely on.
fn check_places(path: &Path, manifest: &Manifest) -> Result<(), Fault> {
    for file in &manifest.files {
        // A file outside the folder does not belong to the checkpoint.
        if Path::new(&file.name).file_name() != Some(OsStr::new(&file.name)) {
            return Err(damaged(path, format!("it names the file {:?}, which is not in its folder", file.name)));
        }
        if file.header_bytes > file.bytes.min(MAX_CHUNK_BYTES) {
            return Err(damaged(path, format!("the header of {:?} has {} bytes", file.name, file.header_bytes)));
        }
    }
    if manifest.chunk as u64 > MAX_CHUNK_BYTES {
        return Err(damaged(path, format!("its checksums are of {} bytes each", manifest.chunk)));
    }
    let mut paths = BTreeSet::new();
    for entry in &manifest.arrays {
        if !paths.insert(&entry.path) {
            return Err(damaged(path, format!("it has `{}` twice", entry.path)));
        }
        let dtype = DType::from_name(&entry.dtype)
            .ok_or_else(|| damaged(path, format!("`{}` has the dtype {:?}", entry.path, entry.dtype)))?;
        let parts = entry.parts.iter().try_fold(0usize, |n, part| n.checked_add(byte_size(dtype, &part.shape)?));
        if parts.is_none() || parts != byte_size(dtype, &entry.shape) {
            return Err(damaged(path, format!("the parts of `{}` do not make it up", entry.path)));
        }
        for part in &entry.parts {
            let inside = part.start.len() == entry.shape.len() && part.shape.len() == entry.shape.len() && {
                let ends = part.start.iter().zip(&part.shape).map(|(start, size)| start.checked_add(*size));
                ends.zip(&entry.shape).all(|(end, size)| end.is_some_and(|end| end <= *size))
            };
            let file = manifest.files.get(part.file);
            let bytes = byte_size(dtype, &part.shape).filter(|bytes| {
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
            let message = format!("the parts {:?} + {:?} and {:?} + {:?}", a.start, a.shape, b.start, b.shape);
            return Err(damaged(path, format!("{message} of `{}` overlap", entry.path)));
        }
    }
    Ok(())
}

/// The size of an array in bytes; `None` if it overflows.
fn byte_size(dtype: DType, shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(dtype.byte_size(), |n, d| n.checked_mul(*d))
}

impl Part {
    /// The end along dimension `d`.
    fn end(&self, d: usize) -> usize {
        self.start[d] + self.shape[d]
    }

    fn overlaps(&self, other: &Part) -> bool {
        (0..self.start.len()).all(|d| self.start[d].max(other.start[d]) < self.end(d).min(other.end(d)))
    }
}

/// Finds two slices that overlap. All have the same rank.
fn overlapping(parts: &[Part]) -> Option<(&Part, &Part)> {
    // Sweeps along the dimension with the most splits, so that a slice is compared only with the few that have not
    // ended yet. Comparing all pairs would take long for an array with thousands of slices.
    let along = (0..parts.first()?.start.len())
        .max_by_key(|d| parts.iter().map(|part| part.start[*d]).collect::<BTreeSet<_>>().len());
    let mut sorted: Vec<&Part> = parts.iter().collect();
    sorted.sort_by_key(|part| along.map(|d| part.start[d]));
    let mut open: Vec<&Part> = Vec::new();
    for part in sorted {
        open.retain(|other| along.is_none_or(|d| other.end(d) > part.start[d]));
        if let Some(other) = open.iter().find(|other| other.overlaps(part)) {
            return Some((other, part));
        }
        open.push(part);
    }
    None
}

/// A requested slice of an array, and its bytes.
pub(super) struct RequestedSlice {
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

    fn path(&self, index: usize) -> PathBuf {
        self.folder.join(&self.manifest.files[index].name)
    }

    /// Returns a file, which is opened and checked at the first call.
    fn file(&mut self, index: usize) -> Result<&mut fs::File, Fault> {
        let file = match self.open[index].take() {
            Some(file) => file,
            None => self.open_file(index)?,
        };
        Ok(self.open[index].insert(file))
    }

    /// Opens a file and checks its header.
    fn open_file(&self, index: usize) -> Result<fs::File, Fault> {
        let path = self.path(index);
        let mut file = file::open(&path).map_err(|error| failed("read", &path, &error))?;
        let entry = &self.manifest.files[index];
        let mut head = vec![0; entry.header_bytes.min(entry.bytes) as usize];
        file.read_exact(&mut head).map_err(|error| failed("read", &path, &error))?;
        if crc32fast::hash(&head) != entry.header_crc32 {
            let message = format!("its header, bytes 0..{}, has changed since it was written", head.len());
            return Err(damaged(&path, message));
        }
        Ok(file)
    }

    /// Reads slices of an array: each chunk of a file at most once, and only the chunks needed.
    pub fn read(&mut self, entry: &Entry, element: usize, slices: &mut [RequestedSlice]) -> Result<(), Fault> {
        let mut missing: Vec<usize> = slices.iter().map(|slice| slice.bytes.len()).collect();
        for part in &entry.parts {
            let from = Block { start: &part.start, shape: &part.shape };
            let mut runs: Vec<(usize, Runs, Option<Run>)> = Vec::new();
            for (index, slice) in slices.iter().enumerate() {
                let mut shared = Runs::between(from, Block { start: &slice.start, shape: &slice.shape }, element);
                if let Some(run) = shared.next() {
                    runs.push((index, shared, Some(run)));
                }
            }
            if !runs.is_empty() {
                self.read_part(entry, part, element, &mut runs, slices, &mut missing)?;
            }
        }
        match missing.iter().position(|bytes| *bytes > 0) {
            None => Ok(()),
            Some(index) => {
                let RequestedSlice { start, shape, .. } = &slices[index];
                let file = self.folder.join(MANIFEST);
                Err(damaged(&file, format!("no file contains the elements {start:?} + {shape:?} of `{}`", entry.path)))
            }
        }
    }

    /// Reads all of an array and checks it.
    pub fn verify(&mut self, entry: &Entry) -> Result<(), Fault> {
        let element = DType::from_name(&entry.dtype).map_or(1, |dtype| dtype.byte_size());
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
        Err(damaged(&path, format!("bytes {bytes:?}, of `{}`, have changed since they were written", entry.path)))
    }

    /// Reads the chunks of a part that `runs` need, and copies their bytes to the slices. `runs` has the index of a
    /// slice, its next run, and the runs after that, in order.
    fn read_part(
        &mut self,
        entry: &Entry,
        part: &Part,
        element: usize,
        runs: &mut [(usize, Runs, Option<Run>)],
        slices: &mut [RequestedSlice],
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
            // If the entire chunk has one destination, it is read there directly.
            if let [(index, later, run)] = runs
                && let Some(current) = run.filter(|run| run.from <= begin && run.from + run.len >= end)
            {
                let to = current.to + begin - current.from;
                self.fetch(entry, part, number, &mut slices[*index].bytes[to..to + end - begin])?;
                missing[*index] = missing[*index].saturating_sub(end - begin);
                if current.from + current.len == end {
                    *run = later.next();
                }
                continue;
            }
            buffer.resize(end - begin, 0);
            self.fetch(entry, part, number, &mut buffer)?;
            for (index, later, run) in runs.iter_mut() {
                while let Some(current) = run.filter(|run| run.from < end) {
                    let low = current.from.max(begin);
                    let high = end.min(current.from + current.len);
                    let to = current.to + low - current.from;
                    slices[*index].bytes[to..to + high - low].copy_from_slice(&buffer[low - begin..high - begin]);
                    missing[*index] = missing[*index].saturating_sub(high - low);
                    if current.from + current.len > end {
                        break; // the run continues in the next chunk
                    }
                    *run = later.next();
                }
            }
        }
        Ok(())
    }
}
