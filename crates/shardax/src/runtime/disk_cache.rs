//! The persistent compilation cache, so that later processes need not compile.
//!
//! The name of a file is the SHA-256 of everything that the executable depends on: the program, its options, the plugin
//! and the machine. The file contains this SHA-256 again, because a file can be renamed, then the executable with a
//! digest, and the signature. Any number of processes can share a folder: files appear atomically, and a process that
//! finds no file compiles. The files are executed, so nobody else may have written them (`pjrt::permissions`).

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};
use shardax_pjrt as pjrt;

use crate::{config, warning};

type Key = [u8; 32];

/// The resolution of the time of a file's last use.
const LAST_USE_RESOLUTION: Duration = Duration::from_secs(3600);

/// Loads the executable from disk, or compiles it and writes it to disk. Only compilation can fail: a problem with the
/// files is a warning. The key is the text without locations, so moved source lines do not recompile.
pub(super) fn load_or_compile(
    client: &pjrt::Client,
    text: &str,
    plain: &str,
    options: &pjrt::CompileOptions,
    signature: pjrt::Signature,
) -> pjrt::Result<pjrt::Executable> {
    // A program for one device can run on any device, so the key does not contain the device.
    let mut keyed_options = options.clone();
    if keyed_options.device_ids.len() == 1 {
        keyed_options.device_ids.clear();
    }
    load_or_make(
        client,
        (&format!("{keyed_options:?}"), plain),
        &|bytes| client.deserialize(bytes, options, signature.clone()),
        &|| client.compile(text, options, signature.clone()),
        &pjrt::Executable::serialize,
    )
}

/// Like [`load_or_compile`], for any result of a program and settings.
pub(super) fn load_or_make<T>(
    client: &pjrt::Client,
    (settings, text): (&str, &str),
    load: &dyn Fn(&[u8]) -> pjrt::Result<T>,
    make: &dyn Fn() -> pjrt::Result<T>,
    serialize: &dyn Fn(&T) -> pjrt::Result<Vec<u8>>,
) -> pjrt::Result<T> {
    // A plugin without an identity has no cache key.
    let (Some(folder), Ok(plugin_id)) = (folder(), client.plugin_id()) else { return make() };
    let key = key(plugin_id, settings, text);
    let path = folder.join(name(&key));
    match read(&path, &key).and_then(|bytes| load(&bytes)) {
        Ok(loaded) => return Ok(loaded),
        Err(error) if error.code == pjrt::Code::NotFound => {}
        Err(error) => warn_once(&format!("compiling again instead of using {}: {error}", path.display())),
    }
    let program = make()?;
    let written = serialize(&program).and_then(|bytes| write(&folder, &path, &key, &bytes).map_err(unknown));
    if let Err(error) = written {
        // A full disk would fail for each program, so the problem is reported only once.
        static HAS_WARNED: AtomicBool = AtomicBool::new(false);
        if !HAS_WARNED.swap(true, Ordering::Relaxed) {
            warn_once(&format!("cannot write {}: {error}", path.display()));
        }
    }
    Ok(program)
}

fn warn_once(what: &str) {
    let help = "programs are compiled all the same; empty the folder, or name another one, or none, in \
                SHARDAX_COMPILATION_CACHE_DIR";
    warning::warn(&format!("compilation cache: {what}"), help);
}

fn unknown(error: io::Error) -> pjrt::Error {
    pjrt::Error::new(pjrt::Code::Unknown, error.to_string())
}

/// The folder, if there is one and nobody else can write to it. Each folder is checked once.
fn folder() -> Option<PathBuf> {
    static LAST: Mutex<Option<(PathBuf, bool)>> = Mutex::new(None);
    let folder = config::compilation_cache_dir()?;
    // Holds the lock during the check, so that its message appears once.
    let mut last_checked = LAST.lock().unwrap_or_else(|e| e.into_inner());
    let is_usable = match &*last_checked {
        Some((checked, is_usable)) if *checked == folder => *is_usable,
        _ => match pjrt::permissions::make_folder(&folder) {
            Ok(()) => true,
            Err(error) => {
                warn_once(&format!("{} is not used: {error}", folder.display()));
                false
            }
        },
    };
    *last_checked = Some((folder.clone(), is_usable));
    is_usable.then_some(folder)
}

fn key(plugin_id: &str, settings: &str, text: &str) -> Key {
    let mut hash = Sha256::new();
    for part in [pjrt::ENTRY_FORMAT, plugin_id, settings, text] {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

fn name(key: &Key) -> String {
    key.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn read(path: &Path, key: &Key) -> pjrt::Result<Vec<u8>> {
    let mut file = pjrt::permissions::open_trusted(path)?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(unknown)?;
    if !bytes.starts_with(key) {
        let reason = "the file is damaged, or of another program";
        return Err(pjrt::Error::new(pjrt::Code::DataLoss, reason));
    }
    bytes.drain(..key.len());
    let used = file.metadata().and_then(|m| m.modified()).map(|at| at.elapsed().unwrap_or_default());
    if used.is_ok_and(|ago| ago > LAST_USE_RESOLUTION) {
        let _ = file.set_modified(SystemTime::now());
    }
    Ok(bytes)
}

/// Writes to a temporary name first, so no other process ever sees a partial file.
fn write(folder: &Path, path: &Path, key: &Key, executable: &[u8]) -> io::Result<()> {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let temporary = folder.join(format!("{TEMPORARY}{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
    let written = create(&temporary).and_then(|mut file| {
        file.write_all(key)?;
        file.write_all(executable)
    });
    let placed = written.and_then(|()| fs::rename(&temporary, path));
    if placed.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    make_room(folder, (key.len() + executable.len()) as u64);
    placed
}

const TEMPORARY: &str = "tmp-";

/// The file that records the last check of the folder's size: its date is the time of the check, its text is the limit.
const LAST_CHECK: &str = "last-check";

/// The time for which new processes rely on the last check of the size of the folder.
const CHECK_EVERY: Duration = Duration::from_secs(60);

fn create(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Limits the size of the folder. A process checks it after its first file, unless another process did so lately, and then
/// after each sixteenth of the size.
fn make_room(folder: &Path, written: u64) {
    static UNCHECKED_BYTES: AtomicU64 = AtomicU64::new(u64::MAX / 2);
    let limit = config::compilation_cache_max_size();
    let unchecked = UNCHECKED_BYTES.fetch_add(written, Ordering::Relaxed).saturating_add(written);
    if unchecked <= limit / 16 {
        return;
    }
    UNCHECKED_BYTES.store(0, Ordering::Relaxed);
    // A check reads the dates of all files, which takes too long for each of a thousand short processes.
    let note = folder.join(LAST_CHECK);
    let limit_of_last_check = fs::read_to_string(&note).ok().and_then(|text| text.parse::<u64>().ok());
    let age = fs::metadata(&note).and_then(|metadata| metadata.modified()).map(|at| at.elapsed().unwrap_or_default());
    let is_first = unchecked >= u64::MAX / 2;
    if is_first && age.is_ok_and(|age| age < CHECK_EVERY) && limit_of_last_check == Some(limit) {
        return;
    }
    let _ = create(&note).and_then(|mut file| file.write_all(limit.to_string().as_bytes()));
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(metadata) = entry.metadata() else { continue }; // another process was faster
        let used = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_ours = name.len() == 64 && name.bytes().all(|b| b.is_ascii_hexdigit());
        // Files left over from processes killed while writing.
        let is_leftover = name.starts_with(TEMPORARY) && used.elapsed().is_ok_and(|ago| ago > LAST_USE_RESOLUTION);
        if is_leftover {
            let _ = fs::remove_file(entry.path());
        } else if is_ours && metadata.is_file() {
            files.push((used, metadata.len(), entry.path()));
        }
    }
    let mut size: u64 = files.iter().map(|(_, len, _)| len).sum();
    files.sort();
    for (_, len, path) in files {
        if size <= limit {
            break;
        }
        let _ = fs::remove_file(path);
        size -= len;
    }
}
