//! Errors of this crate.

use std::fmt::Display;
use std::fs;
use std::io;
use std::path::Path;

use shardax::error::{Error, ErrorKind, Result};

/// Returns the error for a value that cannot be used. `help` says how to fix it.
pub(crate) fn value_error(what: impl Display, help: impl Into<String>) -> Error {
    Error::new(ErrorKind::Value, what.to_string()).help(help.into())
}

/// Returns the error for a file that is damaged or has another format. `offset` is where the problem is.
pub(crate) fn damaged(path: &Path, offset: u64, what: impl Display) -> Error {
    value_error(
        format!("{} is damaged or has another format: at byte {offset}, {what}", path.display()),
        "download or convert the file again",
    )
}

/// Returns the error for a file that cannot be read or written. `action` is the verb of the message.
pub(crate) fn io_error(action: &str, path: &Path, error: &io::Error) -> Error {
    Error::new(ErrorKind::Runtime, format!("cannot {action} {}: {error}", path.display()))
        .help("check that the path is correct and that you have the permission to access it")
}

/// Returns the size of a regular file. A pipe or a folder is an error, because opening a pipe would block until
/// another process writes to it.
pub(crate) fn file_size(path: &Path) -> Result<u64> {
    let metadata = fs::metadata(path).map_err(|error| io_error("read", path, &error))?;
    if metadata.is_file() {
        Ok(metadata.len())
    } else {
        let message = format!("{} is not a regular file", path.display());
        Err(value_error(message, "pass the path of a file, or of the folder that contains it"))
    }
}

/// Reads an entire configuration file. A file that is too large to be one is an error, so that it cannot exhaust the memory.
pub(crate) fn read_small(path: &Path) -> Result<Vec<u8>> {
    const MAX_BYTES: u64 = 100_000_000;
    match file_size(path)? {
        size if size > MAX_BYTES => {
            let message = format!("{} has {size} bytes, which is more than the limit of {MAX_BYTES}", path.display());
            Err(value_error(message, "pass the file that `save_pretrained` wrote"))
        }
        _ => fs::read(path).map_err(|error| io_error("read", path, &error)),
    }
}
