//! Errors of checkpoint files, with the cause and the fix.

use std::fmt::Display;
use std::io;
use std::path::Path;

use shardax::error::{Error, ErrorKind};

/// The reason a checkpoint could not be read.
#[derive(Debug)]
pub(super) enum Fault {
    /// The files are not as they were written: another checkpoint may be intact.
    Damaged(Error),
    /// Any other error, which other checkpoints would return as well.
    Other(Error),
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Fault::Other(error)
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Damaged(error) | Fault::Other(error) => error,
        }
    }
}

/// Reports a checkpoint's file that is not as it was written.
pub(super) fn damaged(file: &Path, what: impl Display) -> Fault {
    let message = format!("the checkpoint's file {} is damaged: {what}", file.display());
    Fault::Damaged(Error::new(ErrorKind::Value, message).help(
        "restore another step (`all_steps` lists them, and `restore_latest` restores the last intact one), or copy the file again from an intact copy",
    ))
}

/// The error of a failed file operation; `what` is the operation, such as `write`.
pub(super) fn failed(what: &str, file: &Path, error: &io::Error) -> Error {
    let message = format!("cannot {what} {}: {error}", file.display());
    let help = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            "free space there, keep fewer checkpoints (`max_to_keep`), or save to another disk; what was saved before is \
             whole"
        }
        io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
            "name a folder that this user may write to, or mount it for writing"
        }
        io::ErrorKind::NotFound => "look at the path; all processes must see one file system there",
        _ => "check the disk, and that the path is correct",
    };
    Error::new(ErrorKind::Runtime, message).help(help)
}
