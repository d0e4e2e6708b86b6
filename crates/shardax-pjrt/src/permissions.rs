//! Who may have written what is run: plugins, and compiled programs.
//!
//! Both are machine code, so a file that somebody else can write is a way to run somebody else's code. What is run belongs
//! to this user or to root, and nobody else may write to it or to its folder. (A group that has its owner's number is that
//! user's own, as most systems make them.)

use std::fs::{self, File, Metadata};
use std::io;
use std::path::Path;

use crate::error::{Code, Error, Result};

/// Opens a file to read that only this user and root can have written.
///
/// # Errors
/// It is not there, is not a plain file (a FIFO would be waited for), belongs to somebody else, or may be written to by
/// others.
pub fn open_trusted(path: &Path) -> Result<File> {
    // Before it is opened, since opening is an act for some that are no files.
    check_file(&fs::metadata(path).map_err(error)?)?;
    let mut options = File::options();
    options.read(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
    let file = options.open(path).map_err(error)?;
    check_file(&file.metadata().map_err(error)?)?;
    Ok(file)
}

/// Makes a folder for this user alone, where there is none, whatever habits the user has.
///
/// # Errors
/// It cannot be made; or there is one, and it is not as [`check_folder`] wants it.
pub fn make_folder(path: &Path) -> Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    let made = builder.create(path);
    made.map_err(|e| error(e).during(format_args!("cannot make the folder {}", path.display())))?;
    check_folder(path)
}

/// Checks that nobody but this user and root can put files into a folder.
///
/// # Errors
/// It is not there, is no folder, belongs to somebody else, or may be written to by others.
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

    let refused = |why: String| Err(Error::new(Code::PermissionDenied, why));
    // SAFETY: it takes nothing.
    let user = unsafe { libc::geteuid() };
    let (owner, mode) = (metadata.uid(), metadata.mode());
    if owner != user && owner != 0 {
        return refused(format!(
            "it belongs to user {owner}, and this process runs as user {user}, which runs only what is its own or \
             root's; copy it, or change its owner (chown)"
        ));
    }
    let group_is_others = metadata.gid() != owner;
    if mode & 0o002 != 0 || (mode & 0o020 != 0 && group_is_others) {
        return refused(format!(
            "others may write to it (mode {:o}), and what lies there is run; `chmod go-w` takes that from them",
            mode & 0o7777
        ));
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
