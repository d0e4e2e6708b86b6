//! Errors of this crate.

use std::fmt::Display;
use std::fs;
use std::io;
use std::path::Path;

use shardax::error::{Error, ErrorKind, Result};

/// The error of a value that cannot be used, with its fix.
pub(crate) fn value_error(what: impl Display, help: impl Into<String>) -> Error {
    Error::new(ErrorKind::Value, what.to_string()).help(help.into())
}

/// The error of a file that is damaged or of another format.
pub(crate) fn damaged(path: &Path, offset: u64, what: impl Display) -> Error {
    value_error(
        format!("{} is damaged, or of another format: at byte {offset}, {what}", path.display()),
        "get the file again",
    )
}

/// The error of a file that cannot be read or written.
pub(crate) fn io_error(action: &str, path: &Path, error: &io::Error) -> Error {
    Error::new(ErrorKind::Runtime, format!("cannot {action} {}: {error}", path.display()))
        .help("check that the path is correct and that this user may use it")
}

/// The size of a file. Fails for pipes and folders: opening a pipe would wait for its writer.
pub(crate) fn file_size(path: &Path) -> Result<u64> {
    let about = fs::metadata(path).map_err(|error| io_error("read", path, &error))?;
    match about.is_file() {
        true => Ok(about.len()),
        false => Err(value_error(format!("{} is not a file", path.display()), "give a file, or the folder of one")),
    }
}

/// The bytes of a small file.
pub(crate) fn read_small(path: &Path) -> Result<Vec<u8>> {
    /// Larger ones are no text that describes a model.
    const MOST: u64 = 100_000_000;
    match file_size(path)? {
        size if size > MOST => {
            let message = format!("{} has {size} bytes, and at most {MOST} are read", path.display());
            Err(value_error(message, "give the file that `save_pretrained` wrote"))
        }
        _ => fs::read(path).map_err(|error| io_error("read", path, &error)),
    }
}
