//! The lock on a run's folder of checkpoints, so that only one supervisor at a time restarts programs that save there.

use std::fs::{File, TryLockError};
use std::io::{Read, Write};
use std::path::Path;
use std::time::SystemTime;

/// The file with the name of the holder. The system releases the lock when all processes that have the file open have
/// ended, so a crash leaves no lock.
const NAME: &str = ".shardax-run.lock";

/// Creates and locks a folder. Returns `None` if its file system has no locks.
///
/// Fails if another run has locked it; the message names the run.
pub(super) fn lock(folder: &Path) -> Result<Option<File>, String> {
    let path = folder.join(NAME);
    let file = std::fs::create_dir_all(folder)
        .and_then(|()| File::options().read(true).write(true).create(true).truncate(false).open(&path));
    // The program reports problems with its folder.
    let Ok(mut file) = file else { return Ok(None) };
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::Error(_)) => return Ok(None),
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            let _ = file.read_to_string(&mut holder);
            let holder = if holder.trim().is_empty() { "another shardax-run" } else { holder.trim() };
            return Err(format!(
                "{} belongs to a run that has not ended: {holder}; wait for its end or end it with SIGTERM, or choose \
                 another folder of checkpoints",
                folder.display()
            ));
        }
    }
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let since = httpdate::fmt_http_date(SystemTime::now());
    // A full disk leaves the lock without a name.
    let _ = file.set_len(0).and_then(|()| writeln!(file, "process {} on {host}, since {since}", std::process::id()));
    Ok(Some(file))
}
