//! Writes checkpoints: to a temporary folder first, which is then renamed.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

use safetensors::tensor::{Metadata, TensorInfo};
use shardax::config::warn;
use shardax::error::{Error, ErrorKind, Result};
use shardax::{distributed, process_count, process_index};

use super::fault::failed;
use super::format::{CHUNK, COMMIT, Entry, FORMAT, File, Index, MANIFEST, Manifest, Part, VERSION, tensor_name};
use super::parallel::map_parallel;
use super::snapshot::{ArrayCopy, PartCopy, Snapshot};

/// The suffix of a folder that is being written or removed.
pub(super) const UNFINISHED: &str = ".unfinished";

/// The fraction of the timeout after which a save is reported as slow.
const SLOW_FRACTION: f64 = 0.2;

/// A checkpoint to be written by all processes together.
pub(super) struct Job {
    /// The final folder.
    pub path: PathBuf,
    /// The snapshot. An error is passed on, so that the other processes hear of it.
    pub snapshot: Result<Snapshot>,
    pub step: Option<u64>,
    pub metrics: BTreeMap<String, Option<f64>>,
    pub metadata: serde_json::Value,
    /// True if the save can replace an existing checkpoint.
    pub replace: bool,
    /// The time to wait for other processes.
    pub timeout: Duration,
}

impl Job {
    /// Writes the checkpoint. When it is complete, process 0 calls `after`, and the others wait for it. On every
    /// process this fails unless all of them have written their parts.
    pub fn run(mut self, after: impl FnOnce() -> Result<()>) -> Result<()> {
        let begin = Instant::now();
        let _span = tracing::info_span!("save", step = self.step, path = %self.path.display()).entered();
        let path = self.path.clone();
        let saved = self.write(after);
        let seconds = begin.elapsed().as_secs_f64();
        match &saved {
            Ok(()) => tracing::info!(seconds, "saved"),
            Err(error) => tracing::error!(seconds, %error, "not saved"),
        }
        if seconds > SLOW_FRACTION * self.timeout.as_secs_f64() && process_index() == 0 {
            warn(
                &format!("it took {seconds:.0} s to write the checkpoint {}", path.display()),
                "the disk is slow: save less often (`save_interval_steps`), or to another disk",
            );
        }
        saved
    }

    /// Writes the checkpoint to a temporary folder and moves it to its path.
    ///
    /// Process 0 creates and locks the folder, every process writes its files there, and process 0 commits. There is a
    /// barrier after each of the three steps. A process that fails reaches all barriers nevertheless, because the
    /// others would wait for it.
    fn write(&mut self, after: impl FnOnce() -> Result<()>) -> Result<()> {
        let temporary = unfinished(&self.path);
        let is_single_process = process_count() == 1;
        let is_committer = process_index() == 0;
        let claim = if is_committer { claim(&temporary, self.replace, self.timeout).map(Some) } else { Ok(None) };
        if is_single_process && let Err(error) = &claim {
            return Err(error.clone());
        }
        self.wait("begun")?;
        let has_folder = claim.is_ok();
        let snapshot = std::mem::replace(&mut self.snapshot, Err(Error::new(ErrorKind::Value, "taken")));
        // The claim is held until the checkpoint is at its final path, and the one that it replaced is removed.
        let (claimed, _claim) = match claim {
            Ok(claim) => (Ok(()), claim),
            Err(error) => (Err(error), None),
        };
        let written = claimed.and(snapshot).and_then(|snapshot| write_parts(&temporary, snapshot));
        if is_single_process {
            let committed = written.and_then(|index| self.commit(&temporary, vec![index]));
            // Frees the disk space that the next checkpoint may need.
            return committed.inspect_err(|_| drop(fs::remove_dir_all(&temporary))).and_then(|()| after());
        }
        // Process 0 reads from these files which processes failed, and why.
        let reported = match &written {
            Ok(index) => write_json(&temporary.join(index_name(process_index())), index),
            Err(error) => {
                let failed = Index::Failed(error.message().to_owned());
                write_json(&temporary.join(index_name(process_index())), &failed)
            }
        };
        self.wait("written")?;
        let committed = if is_committer {
            self.gather(&temporary).and_then(|indexes| self.commit(&temporary, indexes))
        } else {
            Ok(())
        };
        if committed.is_err() && has_folder {
            drop(fs::remove_dir_all(&temporary));
        }
        let after = if is_committer && committed.is_ok() { after() } else { Ok(()) };
        self.wait("committed")?;
        // This process's error comes first, because it is the most specific.
        written?;
        reported?;
        committed.and(after)?;
        if self.path.join(COMMIT).exists() {
            Ok(())
        } else {
            let message =
                format!("the checkpoint {} was not written: process 0 or another failed", self.path.display());
            Err(Error::new(ErrorKind::Runtime, message).help("the error of process 0 states the reason"))
        }
    }

    /// Waits until all processes have completed a stage of the save.
    fn wait(&self, stage: &str) -> Result<()> {
        let name = format!("checkpoint {} {stage}", self.path.display());
        distributed::wait_at_barrier(&name, self.timeout)
    }

    /// Reads the indexes that all processes wrote.
    fn gather(&self, temporary: &Path) -> Result<Vec<Index>> {
        (0..process_count()).map(|rank| read_index(temporary, rank)).collect()
    }

    /// Commits the checkpoint, which is complete as soon as its folder is renamed.
    fn commit(&self, temporary: &Path, indexes: Vec<Index>) -> Result<()> {
        let manifest = self.merge_indexes(indexes)?;
        let text = write_json(&temporary.join(MANIFEST), &manifest)?;
        write_file(&temporary.join(COMMIT), format!("{:08x}\n", crc32fast::hash(&text)).as_bytes())?;
        sync_folder(temporary)?;
        let old = replaced(&self.path);
        if self.replace && self.path.exists() {
            // The writer of the current checkpoint may still be removing the one before it.
            let folder = fs::File::open(&self.path).map_err(|error| failed("open", &self.path, &error))?;
            let begin = Instant::now();
            while !lock(&folder, &self.path, begin, self.timeout)? {}
            // A program that was interrupted here left an old checkpoint.
            remove(&old)?;
            fs::rename(&self.path, &old).map_err(|error| failed("move", &self.path, &error))?;
        }
        fs::rename(temporary, &self.path).map_err(|error| failed("move a checkpoint to", &self.path, &error))?;
        sync_folder(parent(&self.path))?;
        if self.replace { remove(&old) } else { Ok(()) }
    }

    /// Merges the indexes of all processes into a manifest.
    fn merge_indexes(&self, indexes: Vec<Index>) -> Result<Manifest> {
        let mut manifest = Manifest {
            format: FORMAT.to_owned(),
            version: VERSION,
            written_by: env!("CARGO_PKG_VERSION").to_owned(),
            step: self.step,
            processes: indexes.len(),
            chunk: CHUNK,
            metrics: self.metrics.clone(),
            metadata: self.metadata.clone(),
            numbers: Vec::new(),
            arrays: Vec::new(),
            files: Vec::new(),
        };
        // Process 0 saves the values that all processes must agree on; the others only send digests to compare.
        let mut copies: Vec<(String, u32)> = Vec::new();
        for (rank, index) in indexes.into_iter().enumerate() {
            let Index::Written { files, arrays, host_local, numbers } = index else { continue };
            if rank == 0 {
                (manifest.files, manifest.arrays, manifest.numbers, copies) = (files, arrays, numbers, host_local);
                continue;
            }
            let before = manifest.files.len();
            manifest.files.extend(files);
            merge(&mut manifest.arrays, arrays, rank, before)?;
            if let Some(((path, _), _)) = copies.iter().zip(&host_local).find(|(a, b)| a != b) {
                return Err(differing_value(rank, "array", path));
            }
            if let Some(((path, _), _)) = manifest.numbers.iter().zip(&numbers).find(|(a, b)| a != b) {
                return Err(differing_value(rank, "number", path));
            }
        }
        Ok(manifest)
    }
}

/// The error of a value that must be the same in every process.
fn differing_value(rank: usize, kind: &str, path: &str) -> Error {
    let message = format!("the {kind} `{path}` to save has another value in process {rank} than in process 0");
    Error::new(ErrorKind::Value, message).help(
        "a value that each process has on its devices is saved once: make it the same everywhere, or an array over the \
         devices of all processes",
    )
}

/// Reads and removes the index that process `rank` wrote.
fn read_index(temporary: &Path, rank: usize) -> Result<Index> {
    let file = temporary.join(index_name(rank));
    let text = crate::data::file::read(&file).map_err(|error| {
        failed("read", &file, &error).help(format!(
            "either process {rank} could not write it, and its error states the reason, or it writes to another disk: \
             all processes must see one file system"
        ))
    })?;
    let index = serde_json::from_slice(&text)
        .map_err(|error| Error::new(ErrorKind::Runtime, format!("cannot read {}: {error}", file.display())))?;
    drop(fs::remove_file(&file));
    match index {
        Index::Failed(reason) => {
            Err(Error::new(ErrorKind::Runtime, format!("process {rank} could not write its part: {reason}")))
        }
        written => Ok(written),
    }
}

/// Removes a folder, if it exists.
fn remove(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", path, &error)),
        _ => Ok(()),
    }
}

/// Adds the slices that process `rank` wrote. Its files are numbered after `first_file` others.
fn merge(arrays: &mut [Entry], added: Vec<Entry>, rank: usize, first_file: usize) -> Result<()> {
    let [types_of_first, types_of_rank] =
        [&*arrays, &added].map(|entries| entries.iter().map(describe).collect::<Vec<_>>());
    let difference = types_of_first.iter().zip(&types_of_rank).find(|(a, b)| a != b);
    if difference.is_some() || arrays.len() != added.len() {
        let (first, other) = match difference {
            Some((first, other)) => (first.clone(), other.clone()),
            None => (arrays.len().to_string(), added.len().to_string()),
        };
        let message =
            format!("the processes save different trees: process 0 has {first} arrays, process {rank} {other}");
        return Err(
            Error::new(ErrorKind::Value, message).help("all processes must save the same tree, at the same step")
        );
    }
    for (entry, added) in arrays.iter_mut().zip(added) {
        entry.parts.extend(added.parts.into_iter().map(|part| Part { file: part.file + first_file, ..part }));
    }
    Ok(())
}

/// The type and path of an array, for comparison and errors.
fn describe(entry: &Entry) -> String {
    format!("{}{:?} at `{}`", entry.dtype, entry.shape, entry.path)
}

/// The temporary folder in which a checkpoint is written.
pub(super) fn unfinished(path: &Path) -> PathBuf {
    with_suffix(path, UNFINISHED)
}

/// The temporary path of an old checkpoint while a new one takes its place.
pub(super) fn replaced(path: &Path) -> PathBuf {
    with_suffix(path, ".replaced")
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(suffix);
    path.with_file_name(name)
}

fn index_name(rank: usize) -> String {
    format!("process-{rank:05}.json")
}

/// Creates the temporary folder of a checkpoint, and locks it. If checkpoints are replaced, it waits for a concurrent
/// writer, and removes the folder of an interrupted one.
fn claim(path: &Path, replace: bool, timeout: Duration) -> Result<fs::File> {
    let begin = Instant::now();
    let parent = parent(path);
    fs::create_dir_all(parent).map_err(|error| failed("create the folder", parent, &error))?;
    // The folder is created, opened and locked in three steps, so another writer can act in between: each step may find
    // that the folder was moved or locked, and then all are repeated.
    loop {
        let is_new = match fs::create_dir(path) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && !replace => {
                let path = path.display();
                let message = format!("{path} exists already: another program writes this checkpoint, or was stopped");
                return Err(Error::new(ErrorKind::Runtime, message)
                    .help("remove it if no other program runs; a `CheckpointManager` does so when it starts"));
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => false,
            Err(error) => return Err(failed("create the folder", path, &error)),
        };
        let folder = match fs::File::open(path) {
            // Another writer has moved it to its final path.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            folder => folder.map_err(|error| failed("create the folder", path, &error))?,
        };
        if !lock(&folder, path, begin, timeout)? {
            continue;
        }
        // The previous owner may have moved it to its final path before it released the lock.
        match (is_new, is_at(&folder, path)) {
            (true, true) => return Ok(folder),
            (false, true) => remove(path)?,
            (_, false) => {}
        }
    }
}

/// Tries to lock a folder. If another program or thread has locked it, waits a moment and returns false, or an error
/// after `timeout`.
fn lock(folder: &fs::File, path: &Path, begin: Instant, timeout: Duration) -> Result<bool> {
    const POLL: Duration = Duration::from_millis(10);
    // Some file systems have no locks. There, concurrent writers are not detected.
    if !matches!(folder.try_lock(), Err(fs::TryLockError::WouldBlock)) {
        return Ok(true);
    }
    if begin.elapsed() >= timeout {
        let message = format!("{} is written by another program or thread", path.display());
        return Err(Error::new(ErrorKind::Runtime, message)
            .help("save to another folder, or wait until the other program ends"));
    }
    std::thread::sleep(POLL);
    Ok(false)
}

/// Returns true if the open folder is at this path. It may have been moved or replaced since it was opened.
fn is_at(folder: &fs::File, path: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        match (folder.metadata(), fs::metadata(path)) {
            (Ok(open), Ok(current)) => (open.dev(), open.ino()) == (current.dev(), current.ino()),
            _ => false,
        }
    }
    #[cfg(not(unix))]
    {
        let _ = folder;
        path.is_dir()
    }
}

/// Writes a file for each of this process's devices that has slices to write.
fn write_parts(folder: &Path, snapshot: Snapshot) -> Result<Index> {
    let writes_local_arrays = process_index() == 0;
    let mut arrays: Vec<Entry> = Vec::with_capacity(snapshot.arrays.len());
    let mut host_local = Vec::new();
    // Slices by device, each with its array.
    let mut by_device: BTreeMap<usize, Vec<(usize, Tensor, PartCopy)>> = BTreeMap::new();
    for (index, array) in snapshot.arrays.into_iter().enumerate() {
        let ArrayCopy { path, dtype, weak, shape, sharding, host_local: is_local, parts } = array;
        if is_local {
            let mut sum = crc32fast::Hasher::new();
            parts.iter().try_for_each(|part| part.data.with(|bytes| sum.update(bytes)))?;
            host_local.push((path.clone(), sum.finalize()));
        }
        if writes_local_arrays || !is_local {
            let name = tensor_name(&path).to_owned();
            for part in parts {
                by_device.entry(part.device).or_default().push((index, Tensor { name: name.clone(), dtype }, part));
            }
        }
        arrays.push(Entry { path, dtype: dtype.to_string(), weak, shape, sharding, parts: Vec::new() });
    }
    let mut files = Vec::new();
    let written = synced(|sync| {
        map_parallel(
            by_device.into_iter().collect(),
            || (),
            |(), (device, mut parts)| {
                // Larger elements first, so that all values are aligned, as the safetensors format requires.
                parts.sort_by_key(|(index, tensor, _)| (std::cmp::Reverse(tensor.dtype.byte_size()), *index));
                write_safetensors(folder, format!("device-{device:05}.safetensors"), parts, sync)
            },
        )
    })?;
    for (file, parts) in written {
        for (index, mut part) in parts {
            part.file = files.len();
            arrays[index].parts.push(part);
        }
        files.push(file);
    }
    Ok(Index::Written { files, arrays, host_local, numbers: snapshot.numbers })
}

/// The array that a slice belongs to.
struct Tensor {
    name: String,
    dtype: shardax::DType,
}

/// A file to be synced to disk.
type Written = (PathBuf, fs::File);

/// The number of bytes that are written between syncs.
const SYNC_BYTES: usize = 64 << 20;

/// Writes files; another thread syncs each to disk while the next one is written.
fn synced<T>(write: impl FnOnce(&SyncSender<Written>) -> Result<T>) -> Result<T> {
    let (send, files) = sync_channel::<Written>(16);
    std::thread::scope(|scope| {
        let syncs = scope.spawn(move || {
            files
                .into_iter()
                .try_for_each(|(path, file)| file.sync_all().map_err(|error| failed("write", &path, &error)))
        });
        let written = write(&send);
        drop(send);
        let synced = syncs.join().unwrap_or_else(|_| {
            Err(Error::new(
                ErrorKind::Runtime,
                "internal error: the thread that writes a checkpoint panicked; please report this",
            ))
        });
        // An error of the syncing thread comes first, because it closes the writer's channel.
        synced.and(written)
    })
}

/// Writes one file, chunk by chunk with their checksums; frees memory on the way.
fn write_safetensors(
    folder: &Path,
    name: String,
    parts: Vec<(usize, Tensor, PartCopy)>,
    sync: &SyncSender<Written>,
) -> Result<(File, Vec<(usize, Part)>)> {
    let path = folder.join(&name);
    let head = safetensors_header(&parts)
        .map_err(|error| Error::new(ErrorKind::Runtime, format!("cannot write {}: {error}", path.display())))?;
    let mut writer = ChunkWriter::create(&path, sync)?;
    writer.write(&head)?;
    let mut offset = head.len() as u64;
    let mut written = Vec::with_capacity(parts.len());
    for (index, _, PartCopy { start, shape, data, .. }) in parts {
        let begin = offset;
        let crc32 = data.with(|bytes| {
            offset += bytes.len() as u64;
            let sums = bytes.chunks(CHUNK).map(|chunk| writer.write(chunk).map(|()| crc32fast::hash(chunk)));
            sums.collect::<Result<Vec<u32>>>()
        })??;
        written.push((index, Part { file: 0, offset: begin, start, shape, crc32 }));
    }
    writer.finish()?;
    let header_crc32 = crc32fast::hash(&head);
    Ok((File { name, bytes: offset, header_bytes: head.len() as u64, header_crc32 }, written))
}

/// The header of a safetensors file with these slices, preceded by its length.
fn safetensors_header(parts: &[(usize, Tensor, PartCopy)]) -> std::result::Result<Vec<u8>, String> {
    let mut infos = Vec::with_capacity(parts.len());
    let mut end = 0;
    for (_, tensor, part) in parts {
        // The format has no complex numbers or keys. They are stored as pairs, with an additional dimension.
        let (dtype, values_per_element) = tensor.dtype.stored();
        let mut shape = part.shape.clone();
        if values_per_element > 1 {
            shape.push(values_per_element);
        }
        let bytes = part.shape.iter().product::<usize>() * tensor.dtype.byte_size();
        let data_offsets = (end, end + bytes);
        end = data_offsets.1;
        infos.push((tensor.name.clone(), TensorInfo { dtype, shape, data_offsets }));
    }
    let note = [("format".to_owned(), FORMAT.to_owned())].into();
    let metadata = Metadata::new(Some(note), infos).map_err(|error| error.to_string())?;
    let mut header = serde_json::to_vec(&metadata).map_err(|error| error.to_string())?;
    header.resize(header.len().next_multiple_of(8), b' ');
    Ok([&(header.len() as u64).to_le_bytes(), header.as_slice()].concat())
}

/// A file that is passed to the syncing thread after every [`SYNC_BYTES`], so that the last sync takes little time.
struct ChunkWriter<'a> {
    path: &'a Path,
    file: fs::File,
    sync: &'a SyncSender<Written>,
    unsynced: usize,
}

impl<'a> ChunkWriter<'a> {
    fn create(path: &'a Path, sync: &'a SyncSender<Written>) -> Result<Self> {
        let file = fs::File::create_new(path).map_err(|error| failed("write", path, &error))?;
        Ok(ChunkWriter { path, file, sync, unsynced: 0 })
    }

    fn write(&mut self, chunk: &[u8]) -> Result<()> {
        self.file.write_all(chunk).map_err(|error| failed("write", self.path, &error))?;
        self.unsynced += chunk.len();
        if self.unsynced < SYNC_BYTES {
            return Ok(());
        }
        self.unsynced = 0;
        let file = self.file.try_clone().map_err(|error| failed("write", self.path, &error))?;
        send(self.sync, self.path, file)
    }

    fn finish(self) -> Result<()> {
        send(self.sync, self.path, self.file)
    }
}

/// Passes a file to the syncing thread, which ends after an error.
fn send(sync: &SyncSender<Written>, path: &Path, file: fs::File) -> Result<()> {
    sync.send((path.to_owned(), file))
        .map_err(|_| Error::new(ErrorKind::Runtime, format!("cannot write {}", path.display())))
}

/// Writes a value as JSON, and returns the text.
fn write_json(path: &Path, value: &impl serde::Serialize) -> Result<Vec<u8>> {
    let text = serde_json::to_vec(value)
        .map_err(|error| Error::new(ErrorKind::Value, format!("cannot write {}: {error}", path.display())))?;
    write_file(path, &text)?;
    Ok(text)
}

/// Writes and syncs a file.
fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let written = fs::File::create(path).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    written.map_err(|error| failed("write", path, &error))
}

/// The parent folder of a path.
pub(super) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Syncs a folder: a new name in it is durable only then.
pub(super) fn sync_folder(path: &Path) -> Result<()> {
    fs::File::open(path).and_then(|folder| folder.sync_all()).map_err(|error| failed("write", path, &error))
}
