//! Values by key in files of a folder that all hosts see.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Kind, Result};
use crate::key_value::KeyValue;
use crate::rendezvous::unique;

/// Values by key in files of a folder that all hosts of a job see. A file appears under its name when it is complete.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// The beginning of this process's temporary names.
    temporary: String,
    count: AtomicU64,
}

/// The beginning of the names of values' files. The names of temporary files begin with a dot.
const VALUE: &str = "value-";
/// The longest part of a key in a file's name; file systems allow 255 bytes.
const MAX_KEY_PART_LEN: usize = 150;

impl Folder {
    /// Uses a folder, and creates it if it does not exist.
    ///
    /// # Errors
    /// Returns [`Kind::FailedPrecondition`] if it cannot be created or written to.
    pub fn new(path: impl Into<PathBuf>) -> Result<Folder> {
        let folder = Folder { path: path.into(), temporary: format!(".{}-", unique()), count: AtomicU64::new(0) };
        fs::create_dir_all(&folder.path).map_err(|error| folder.error("make", &error))?;
        let probe = folder.write(&[])?;
        fs::remove_file(&probe).map_err(|error| folder.error("write to", &error))?;
        Ok(folder)
    }

    fn error(&self, what: &str, error: &io::Error) -> Error {
        let message = format!("cannot {what} the shared folder {} of the processes: {error}", self.path.display());
        Error::new(Kind::FailedPrecondition, message)
    }

    fn file(&self, key: &str) -> PathBuf {
        self.path.join(name(key))
    }

    /// Writes a value under a temporary name.
    fn write(&self, value: &[u8]) -> Result<PathBuf> {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let path = self.path.join(format!("{}{number}", self.temporary));
        match fs::File::create_new(&path).and_then(|mut file| file.write_all(value)) {
            Ok(()) => Ok(path),
            Err(error) => {
                let _ = fs::remove_file(&path);
                Err(self.error("write to", &error))
            }
        }
    }

    fn removed(&self, path: &Path) -> Result<()> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(self.error("remove a file of", &error)),
            _ => Ok(()),
        }
    }
}

impl KeyValue for Folder {
    fn set(&self, key: &str, value: &[u8], _readers: &[usize]) -> Result<()> {
        let written = self.write(value)?;
        fs::rename(&written, self.file(key)).map_err(|error| self.error("write to", &error))
    }

    fn set_new(&self, key: &str, value: &[u8], _readers: &[usize]) -> Result<bool> {
        let written = self.write(value)?;
        // Creating a link fails if the file exists, whereas renaming would replace it.
        let linked = fs::hard_link(&written, self.file(key));
        self.removed(&written)?;
        match linked {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(self.error("write to", &error)),
        }
    }

    fn get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        let path = self.file(key);
        let value = fs::metadata(&path).and_then(|metadata| {
            if metadata.is_file() {
                fs::read(&path)
            } else {
                // Reading a pipe would wait for a writer.
                Err(io::Error::other(format!("{} is not a regular file", path.display())))
            }
        });
        match value {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.error("read a file of", &error)),
        }
    }

    fn remove(&self, key: &str) -> Result<()> {
        self.removed(&self.file(key))
    }

    fn remove_all(&self, prefix: &str) -> Result<()> {
        let begin = format!("{VALUE}{}", escaped(prefix));
        let entries = fs::read_dir(&self.path).map_err(|error| self.error("read", &error))?;
        let matching = entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(&begin));
        matching.map(|entry| entry.path()).try_for_each(|path| self.removed(&path))
    }
}

/// The name of a key's file.
fn name(key: &str) -> String {
    let name = format!("{VALUE}{}", escaped(key));
    if name.len() <= MAX_KEY_PART_LEN {
        return name;
    }
    // FNV-1a with 128 bits.
    const PRIME: u128 = (1 << 88) + 0x13b;
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    let hash = key.bytes().fold(BASIS, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME));
    format!("{}~{hash:032x}", &name[..MAX_KEY_PART_LEN])
}

fn escaped(key: &str) -> String {
    let escaped = key.bytes().map(|byte| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => char::from(byte).to_string(),
        b'/' => "+".to_owned(),
        byte => format!("={byte:02x}"),
    });
    escaped.collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::store::Store;

    fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("shardax-mpi-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        path
    }

    #[test]
    fn a_folder_stores_any_key_and_value() {
        let path = folder("any");
        let store = Folder::new(&path).unwrap();
        let long = "k".repeat(400);
        let keys = ["", "a", "a/b", "a b", "[0, 1]/\"x\"", "ä", "..", ".hidden", &long, &format!("{long}2")];
        for (i, key) in keys.iter().enumerate() {
            assert_eq!(store.get(key).unwrap(), None, "{key:?}");
            assert!(store.set_new(key, &vec![i as u8; i * 100], &[]).unwrap());
            assert!(!store.set_new(key, b"other", &[]).unwrap());
        }
        for (i, key) in keys.iter().enumerate() {
            assert_eq!(store.get(key).unwrap(), Some(vec![i as u8; i * 100]), "{key:?}");
        }
        // Removing a key again is not an error, because another process may have removed it.
        store.set("a", b"new", &[]).unwrap();
        assert_eq!(store.get("a").unwrap(), Some(b"new".to_vec()));
        store.remove_all("a/").unwrap();
        store.remove("a").unwrap();
        store.remove("a").unwrap();
        assert_eq!(
            (store.get("a").unwrap(), store.get("a/b").unwrap(), store.get("a b").unwrap().is_some()),
            (None, None, true)
        );
        let pipe = std::process::Command::new("mkfifo").arg(store.file("pipe")).status().unwrap();
        assert!(pipe.success());
        assert!(store.get("pipe").unwrap_err().message.contains("value-pipe is not a regular file"));
        fs::remove_dir_all(&path).unwrap();
        assert!(store.set("a", b"x", &[]).unwrap_err().message.contains("cannot write to the shared folder"));
        assert!(
            Folder::new("/proc/nothing").unwrap_err().message.contains("cannot make the shared folder /proc/nothing")
        );
    }

    fn join(path: &Path, rank: usize) -> Result<(Arc<dyn KeyValue>, Vec<String>)> {
        let values = Arc::new(Folder::new(path).unwrap());
        crate::rendezvous::meet(values, (rank, 2), "host", Duration::from_secs(60))
    }

    fn run_barriers(path: &Path, rank: usize) {
        let store = Store::new(Arc::new(Folder::new(path).unwrap()), rank, 3);
        let limit = Duration::from_secs(20);
        for round in 0..20u8 {
            let values = store.exchange("round", &[0, 1, 2], &[round, rank as u8], limit).unwrap();
            assert_eq!(values, [0, 1, 2].map(|rank| vec![round, rank]));
            store.barrier(&format!("once {round}"), limit).unwrap();
        }
        // All have read what came before.
        store.barrier("end", limit).unwrap();
    }

    /// If two processes have one number, the one that asked first gets the error, even before process 0 has joined.
    #[test]
    fn two_processes_with_one_number_are_an_error() {
        let path = folder("twice");
        std::thread::scope(|scope| {
            let first = scope.spawn(|| join(&path, 1));
            std::thread::sleep(Duration::from_millis(300));
            let second = scope.spawn(|| join(&path, 1));
            let error = first.join().unwrap().err().unwrap();
            assert!(error.message.contains("there are two processes 1"), "{}", error.message);
            assert_eq!(join(&path, 0).unwrap().1, ["host", "host"]);
            assert!(second.join().unwrap().is_ok());
        });
        fs::remove_dir_all(&path).unwrap();
    }

    /// Three processes, as threads: rounds of a barrier have their own values, and nothing of them stays.
    #[test]
    fn barriers_leave_nothing_behind() {
        let path = folder("barriers");
        std::thread::scope(|scope| {
            let path = &path;
            [0, 1, 2].map(|rank| scope.spawn(move || run_barriers(path, rank))).map(|t| t.join().unwrap())
        });
        let remaining: BTreeSet<String> =
            fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        assert!(remaining.iter().all(|name| name.contains("+end+0+")), "{remaining:?}");
        let store = Store::new(Arc::new(Folder::new(&path).unwrap()), 1, 3);
        let error = store.exchange("late", &[0, 1], &[], Duration::from_millis(50)).unwrap_err();
        assert!(
            error.message.contains("1 of 2 processes reached the barrier \"late\" within 50ms; missing: processes [0]")
        );
        fs::remove_dir_all(&path).unwrap();
    }
}
