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
use super::parallel::each;
use super::snapshot::{ArrayCopy, PartCopy, Snapshot};

/// The suffix of a folder that is being written or removed.
pub(super) const UNFINISHED: &str = ".unfinished";

/// A save that takes more than this part of the timeout is reported.
const SLOW: f64 = 0.2;

/// A checkpoint to be written by all processes together.
pub(super) struct Job {
    /// The final folder.
    pub path: PathBuf,
    /// The snapshot. An error is passed on, so that the other processes hear of it.
    pub snapshot: Result<Snapshot>,
    pub step: Option<u64>,
    pub metrics: BTreeMap<String, Option<f64>>,
    pub metadata: serde_json::Value,
    /// True if an existing checkpoint may be replaced.
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
        if seconds > SLOW * self.timeout.as_secs_f64() && process_index() == 0 {
            warn(
                &format!("it took {seconds:.0} s to write the checkpoint {}", path.display()),
                "the disk is slow: save less often (`save_interval_steps`), or to another disk",
            );
        }
        saved
    }

    fn write(&mut self, after: impl FnOnce() -> Result<()>) -> Result<()> {
        let temporary = unfinished(&self.path);
        let alone = process_count() == 1;
        let first = process_index() == 0;
        let made = if first { claim(&temporary, self.replace, self.timeout).map(Some) } else { Ok(None) };
        if alone && let Err(error) = &made {
            return Err(error.clone());
        }
        self.wait("begun")?;
        let begun = made.is_ok();
        let snapshot = std::mem::replace(&mut self.snapshot, Err(Error::new(ErrorKind::Value, "taken")));
        // The claim is held until the checkpoint is at its final path, and the one that it replaced is gone.
        let (made, _claim) = match made {
            Ok(claim) => (Ok(()), claim),
            Err(error) => (Err(error), None),
        };
        let written = made.and(snapshot).and_then(|snapshot| write_parts(&temporary, snapshot));
        if alone {
            let committed = written.and_then(|own| self.commit(&temporary, vec![own]));
            // Frees the disk space that the next checkpoint may need.
            return committed.inspect_err(|_| drop(fs::remove_dir_all(&temporary))).and_then(|()| after());
        }
        // A process that fails reports it in a file, which process 0 reads, and still reaches both barriers: the others
        // must not wait for it.
        let own = match &written {
            Ok(index) => write_json(&temporary.join(index_name(process_index())), index),
            Err(error) => {
                let failed = Index::Failed(error.message().to_owned());
                write_json(&temporary.join(index_name(process_index())), &failed)
            }
        };
        self.wait("written")?;
        let committed =
            if first { self.gather(&temporary).and_then(|all| self.commit(&temporary, all)) } else { Ok(()) };
        if committed.is_err() && begun {
            drop(fs::remove_dir_all(&temporary));
        }
        let after = if first && committed.is_ok() { after() } else { Ok(()) };
        self.wait("committed")?;
        written?;
        own?;
        committed.and(after)?;
        match self.path.join(COMMIT).exists() {
            true => Ok(()),
            false => {
                let what =
                    format!("the checkpoint {} was not written: process 0 or another failed", self.path.display());
                Err(Error::new(ErrorKind::Runtime, what).help("process 0 has the error that says why"))
            }
        }
    }

    fn wait(&self, what: &str) -> Result<()> {
        let name = format!("checkpoint {} {what}", self.path.display());
        distributed::wait_at_barrier(&name, self.timeout)
    }

    /// Reads the indexes that all processes wrote.
    fn gather(&self, temporary: &Path) -> Result<Vec<Index>> {
        let read = |rank: usize| {
            let file = temporary.join(index_name(rank));
            let text = crate::data::file::read(&file).map_err(|error| {
                failed("read", &file, &error).help(format!(
                    "process {rank} could not write it, and says why; or it writes to another disk: all processes must \
                     see one file system"
                ))
            })?;
            let index = serde_json::from_slice(&text)
                .map_err(|error| Error::new(ErrorKind::Runtime, format!("cannot read {}: {error}", file.display())))?;
            drop(fs::remove_file(&file));
            match index {
                Index::Failed(why) => {
                    Err(Error::new(ErrorKind::Runtime, format!("process {rank} could not write its part: {why}")))
                }
                written => Ok(written),
            }
        };
        (0..process_count()).map(read).collect()
    }

    /// Commits the checkpoint: from here on it is complete.
    fn commit(&self, temporary: &Path, all: Vec<Index>) -> Result<()> {
        let mut manifest = Manifest {
            format: FORMAT.to_owned(),
            version: VERSION,
            written_by: env!("CARGO_PKG_VERSION").to_owned(),
            step: self.step,
            processes: all.len(),
            chunk: CHUNK,
            metrics: self.metrics.clone(),
            metadata: self.metadata.clone(),
            numbers: Vec::new(),
            arrays: Vec::new(),
            files: Vec::new(),
        };
        let mut copies: Vec<(String, u32)> = Vec::new();
        for (rank, index) in all.into_iter().enumerate() {
            let Index::Written { files, arrays, host_local, numbers } = index else { continue };
            if rank == 0 {
                (manifest.files, manifest.arrays, manifest.numbers, copies) = (files, arrays, numbers, host_local);
                continue;
            }
            let before = manifest.files.len();
            manifest.files.extend(files);
            merge(&mut manifest.arrays, arrays, rank, before)?;
            let differs = |what: &str, path: &str| {
                let text = format!("process {rank} has another {what} `{path}` than process 0 in what is to be saved");
                Error::new(ErrorKind::Value, text).help(
                    "a value that each process has on its own devices is saved once: make it the same everywhere, or an \
                     array over the devices of all processes",
                )
            };
            if let Some(((path, _), _)) = copies.iter().zip(&host_local).find(|(a, b)| a != b) {
                return Err(differs("array", path));
            }
            if let Some(((path, _), _)) = manifest.numbers.iter().zip(&numbers).find(|(a, b)| a != b) {
                return Err(differs("number", path));
            }
        }
        let text = write_json(&temporary.join(MANIFEST), &manifest)?;
        write_file(&temporary.join(COMMIT), format!("{:08x}\n", crc32fast::hash(&text)).as_bytes())?;
        sync_folder(temporary)?;
        let old = replaced(&self.path);
        if self.replace && self.path.exists() {
            // Its writer may still be removing the one before it.
            let folder = fs::File::open(&self.path).map_err(|error| failed("open", &self.path, &error))?;
            let begin = Instant::now();
            while !lock(&folder, &self.path, begin, self.timeout)? {}
            // A leftover of a program that was interrupted here.
            remove(&old)?;
            fs::rename(&self.path, &old).map_err(|error| failed("move", &self.path, &error))?;
        }
        fs::rename(temporary, &self.path).map_err(|error| failed("move a checkpoint to", &self.path, &error))?;
        sync_folder(parent(&self.path))?;
        if self.replace { remove(&old) } else { Ok(()) }
    }
}

/// Removes a folder, if it exists.
fn remove(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", path, &error)),
        _ => Ok(()),
    }
}

/// Adds the slices that process `rank` wrote; its files follow `before` others.
fn merge(arrays: &mut [Entry], theirs: Vec<Entry>, rank: usize, before: usize) -> Result<()> {
    let kind = |entry: &Entry| (entry.path.clone(), entry.dtype.clone(), entry.shape.clone());
    let odd = arrays.iter().map(kind).zip(theirs.iter().map(kind)).find(|(a, b)| a != b);
    if odd.is_some() || arrays.len() != theirs.len() {
        let (own, other) = odd.map_or((arrays.len().to_string(), theirs.len().to_string()), |(a, b)| {
            let text = |(path, dtype, shape): (String, String, Vec<usize>)| format!("{dtype}{shape:?} at `{path}`");
            (text(a), text(b))
        });
        let what = format!("the processes save different trees: process 0 has {own} arrays, process {rank} {other}");
        return Err(Error::new(ErrorKind::Value, what).help("all processes must save the same tree, at the same step"));
    }
    for (entry, their) in arrays.iter_mut().zip(theirs) {
        entry.parts.extend(their.parts.into_iter().map(|part| Part { file: part.file + before, ..part }));
    }
    Ok(())
}

/// The temporary folder in which a checkpoint is written.
pub(super) fn unfinished(path: &Path) -> PathBuf {
    beside(path, UNFINISHED)
}

/// The temporary path of an old checkpoint while a new one takes its place.
pub(super) fn replaced(path: &Path) -> PathBuf {
    beside(path, ".replaced")
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(ending);
    path.with_file_name(name)
}

fn index_name(rank: usize) -> String {
    format!("process-{rank:05}.json")
}

/// Creates the temporary folder of a checkpoint, and locks it. Where checkpoints are replaced, a concurrent writer
/// waits, and what an interrupted program left there is removed.
fn claim(path: &Path, replace: bool, timeout: Duration) -> Result<fs::File> {
    let begin = Instant::now();
    let cannot = |error: io::Error| failed("make the folder", path, &error);
    let above = parent(path);
    fs::create_dir_all(above).map_err(|error| failed("make the folder", above, &error))?;
    loop {
        let is_new = match fs::create_dir(path) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && !replace => {
                let path = path.display();
                let what = format!("{path} is there already: another program writes this checkpoint, or was stopped");
                return Err(Error::new(ErrorKind::Runtime, what)
                    .help("remove it if no other program runs; a `CheckpointManager` does so when it starts"));
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => false,
            Err(error) => return Err(cannot(error)),
        };
        let folder = match fs::File::open(path) {
            // Another writer has moved it to its final path.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            folder => folder.map_err(cannot)?,
        };
        if !lock(&folder, path, begin, timeout)? {
            continue;
        }
        // The previous owner may have moved it to its final path before it released the lock.
        match (is_new, same(&folder, path)) {
            (true, true) => return Ok(folder),
            (false, true) => remove(path)?,
            (_, false) => {}
        }
    }
}

/// Locks a folder, or waits a moment if another program or thread has locked it: false then, and an error once
/// `timeout` is over.
fn lock(folder: &fs::File, path: &Path, begin: Instant, timeout: Duration) -> Result<bool> {
    const POLL: Duration = Duration::from_millis(10);
    // Some file systems have no locks: writers are not kept apart there.
    if !matches!(folder.try_lock(), Err(fs::TryLockError::WouldBlock)) {
        return Ok(true);
    }
    if begin.elapsed() >= timeout {
        let what = format!("{} is written by another program or thread", path.display());
        return Err(Error::new(ErrorKind::Runtime, what).help("save to another folder, or wait for it to end"));
    }
    std::thread::sleep(POLL);
    Ok(false)
}

/// True if the open folder is the one at this path.
fn same(folder: &fs::File, path: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let id = |about: fs::Metadata| (about.dev(), about.ino());
        folder.metadata().ok().map(id).is_some_and(|own| fs::metadata(path).ok().map(id) == Some(own))
    }
    #[cfg(not(unix))]
    {
        let _ = folder;
        path.is_dir()
    }
}

/// Writes a file for each of this process's devices that has slices to write.
fn write_parts(folder: &Path, snapshot: Snapshot) -> Result<Index> {
    let owner = process_index() == 0;
    let mut arrays: Vec<Entry> = Vec::with_capacity(snapshot.arrays.len());
    let mut host_local = Vec::new();
    // Slices by device, each with its array.
    let mut by_device: BTreeMap<usize, Vec<(usize, Tensor, PartCopy)>> = BTreeMap::new();
    for (at, array) in snapshot.arrays.into_iter().enumerate() {
        let ArrayCopy { path, dtype, weak, shape, sharding, host_local: own, parts } = array;
        if own {
            let mut sum = crc32fast::Hasher::new();
            parts.iter().try_for_each(|part| part.data.with(|bytes| sum.update(bytes)))?;
            host_local.push((path.clone(), sum.finalize()));
        }
        if owner || !own {
            let name = tensor_name(&path).to_owned();
            for part in parts {
                by_device.entry(part.device).or_default().push((at, Tensor { name: name.clone(), dtype }, part));
            }
        }
        arrays.push(Entry { path, dtype: dtype.to_string(), weak, shape, sharding, parts: Vec::new() });
    }
    let mut files = Vec::new();
    let all = synced(|sync| {
        let write = |(): &mut (), (device, mut parts): (usize, Vec<(usize, Tensor, PartCopy)>)| {
            // Larger elements first, so that all values are aligned, as the safetensors format wants.
            parts.sort_by_key(|(at, of, _)| (std::cmp::Reverse(of.dtype.byte_size()), *at));
            write_safetensors(folder, format!("device-{device:05}.safetensors"), parts, sync)
        };
        each(by_device.into_iter().collect(), || (), write)
    })?;
    for (file, written) in all {
        for (at, mut part) in written {
            part.file = files.len();
            arrays[at].parts.push(part);
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
const PORTION: usize = 64 << 20;

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
        let synced =
            syncs.join().unwrap_or_else(|_| Err(Error::new(ErrorKind::Runtime, "the thread that writes panicked")));
        // An error of the syncing thread comes first: it is why the writer's channel closed.
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
    let mut infos = Vec::with_capacity(parts.len());
    let mut end = 0;
    for (_, of, part) in &parts {
        let (dtype, each) = of.dtype.stored();
        let mut shape = part.shape.clone();
        if each > 1 {
            shape.push(each);
        }
        let bytes = part.shape.iter().product::<usize>() * of.dtype.byte_size();
        let data_offsets = (end, end + bytes);
        end = data_offsets.1;
        infos.push((of.name.clone(), TensorInfo { dtype, shape, data_offsets }));
    }
    let note = [("format".to_owned(), FORMAT.to_owned())].into();
    let header = Metadata::new(Some(note), infos).map_err(|error| error.to_string());
    let header = header.and_then(|metadata| serde_json::to_vec(&metadata).map_err(|error| error.to_string()));
    let mut header =
        header.map_err(|error| Error::new(ErrorKind::Runtime, format!("cannot write {}: {error}", path.display())))?;
    header.resize(header.len().next_multiple_of(8), b' ');
    let head = [&(header.len() as u64).to_le_bytes(), header.as_slice()].concat();

    let cannot = |error: io::Error| failed("write", &path, &error);
    let mut file = fs::File::create_new(&path).map_err(cannot)?;
    file.write_all(&head).map_err(cannot)?;
    let mut offset = head.len() as u64;
    let mut written = Vec::with_capacity(parts.len());
    let hand_over = |file: fs::File| {
        let gone = |_| Error::new(ErrorKind::Runtime, format!("cannot write {}", path.display()));
        sync.send((path.clone(), file)).map_err(gone)
    };
    let mut portion = 0;
    for (at, _, PartCopy { start, shape, data, .. }) in parts {
        let begin = offset;
        let crc32 = data.with(|bytes| {
            offset += bytes.len() as u64;
            let chunk = |chunk: &[u8]| {
                file.write_all(chunk).map_err(cannot)?;
                portion += chunk.len();
                if portion >= PORTION {
                    portion = 0;
                    hand_over(file.try_clone().map_err(cannot)?)?;
                }
                Ok(crc32fast::hash(chunk))
            };
            bytes.chunks(CHUNK).map(chunk).collect::<Result<Vec<u32>>>()
        })??;
        written.push((at, Part { file: 0, offset: begin, start, shape, crc32 }));
    }
    hand_over(file)?;
    let header_crc32 = crc32fast::hash(&head);
    Ok((File { name, bytes: offset, header_bytes: head.len() as u64, header_crc32 }, written))
}

/// Writes a value as JSON, and returns the text.
fn write_json(path: &Path, value: &impl serde::Serialize) -> Result<Vec<u8>> {
    let text = serde_json::to_vec(value)
        .map_err(|error| Error::new(ErrorKind::Value, format!("cannot write {}: {error}", path.display())))?;
    write_file(path, &text)?;
    Ok(text)
}

fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let write = || -> io::Result<()> {
        let mut file = fs::File::create(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(|error| failed("write", path, &error))
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
    let sync = || fs::File::open(path)?.sync_all();
    sync().map_err(|error| failed("write", path, &error))
}
