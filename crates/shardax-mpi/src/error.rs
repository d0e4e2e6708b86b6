//! The error type: a kind and a message.

use std::fmt;

/// The result of a fallible call in this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of this crate or of MPI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The class of the failure.
    pub kind: Kind,
    /// The cause, and what to do about it.
    pub message: String,
}

/// Classes of failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// No usable MPI library was found.
    NoLibrary,
    /// The library belongs to another MPI than the launcher.
    WrongLibrary,
    /// The argument can never be valid.
    InvalidArgument,
    /// The object is in the wrong state, for example joined already.
    FailedPrecondition,
    /// Other processes did not arrive in time.
    DeadlineExceeded,
    /// Another process reported an error of its own.
    Failed,
    /// MPI reported an error, for example that a process has died.
    Mpi,
}

impl Error {
    /// Makes an error of this kind with this message.
    pub fn new(kind: Kind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into() }
    }

    pub(crate) fn invalid_argument(message: impl Into<String>) -> Error {
        Error::new(Kind::InvalidArgument, message)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
