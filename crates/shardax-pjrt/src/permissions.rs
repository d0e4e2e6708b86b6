//! Permission checks of files with machine code: plugins and compiled programs.
//!
//! A file that another user can write lets that user run code in this process. Therefore such files must belong to this
//! user or to root, and nobody else may be able to write to them or their folders. A group with the same number as the
//! owner is private to this user, because most systems create one for each user.

use std::fs::{self, File, Metadata};
use std::io;
use std::path::Path;

use crate::error::{Code, Error, Result};

/// Opens a file that only this user and root can have written, for reading.
///
/// # Errors
/// Returns an error if the file does not exist, is not a regular file (opening a FIFO would block), belongs to another
/// user, or is writable by others.
pub fn open_trusted(path: &Path) -> Result<File> {
    // Checked before it is opened, because opening a FIFO or a device has effects.
    check_file(&fs::metadata(path).map_err(error)?)?;
    let mut options = File::options();
    options.read(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
    let file = options.open(path).map_err(error)?;
    check_file(&file.metadata().map_err(error)?)?;
    Ok(file)
}

/// Creates a folder for this user only, regardless of the umask, if it does not exist.
///
/// # Errors
/// Returns an error if the folder cannot be created, or exists and fails [`check_folder`].
pub fn make_folder(path: &Path) -> Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path).map_err(|e| error(e).during(format_args!("cannot make the folder {}", path.display())))?;
    check_folder(path)
}

/// Checks that nobody except this user and root can write to a folder.
///
/// # Errors
/// Returns an error if it does not exist, is not a folder, belongs to another user, or is writable by others.
pub fn check_folder(path: &Path) -> Result<()> {
    let metadata = fs::metadata(path).map_err(error)?;
    if !metadata.is_dir() {
        return Err(Error::invalid_argument(format!("{} is not a folder", path.display())));
    }
    check_owner(&metadata).map_err(|e| e.during(format_args!("its folder {}", path.display())))
}

fn check_file(metadata: &Metadata) -> Result<()> {
    if !metadata.is_file() {
        return Err(Error::invalid_argument("it is not a file"));
    }
    check_owner(metadata)
}

#[cfg(unix)]
fn check_owner(metadata: &Metadata) -> Result<()> {
    use std::os::unix::fs::MetadataExt;

    // SAFETY: it takes no arguments.
    let user = unsafe { libc::geteuid() };
    let (owner, mode) = (metadata.uid(), metadata.mode());
    if owner != user && owner != 0 {
        let message = format!(
            "it belongs to user {owner}, but this process runs as user {user}, which runs only its own files and \
             root's; copy it, or change its owner (chown)"
        );
        return Err(Error::new(Code::PermissionDenied, message));
    }
    let group_is_others = metadata.gid() != owner;
    if mode & 0o002 != 0 || (mode & 0o020 != 0 && group_is_others) {
        let message = format!(
            "others may write to it (mode {:o}), and its contents are run as code; `chmod go-w` removes that \
             permission",
            mode & 0o7777
        );
        return Err(Error::new(Code::PermissionDenied, message));
    }
    Ok(())
}

#[cfg(not(unix))]
fn check_owner(_: &Metadata) -> Result<()> {
    Ok(())
}

fn error(error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::NotFound => Error::new(Code::NotFound, "there is no such file"),
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            Error::new(Code::PermissionDenied, error.to_string())
        }
        io::ErrorKind::StorageFull => Error::new(Code::Unavailable, error.to_string()),
        _ => Error::new(Code::Unknown, error.to_string()),
    }
}
