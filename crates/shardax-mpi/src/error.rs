//! The error type: what kind of failure, and a message that a person can act on.

use std::fmt;

/// Result of every fallible call in this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// Class of the failure, for programs to branch on.
    pub kind: Kind,
    /// What happened, for people.
    pub message: String,
}

/// Classes of failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// No MPI library was found, or none that can be used.
    NoLibrary,
    /// The library belongs to another MPI than the launcher.
    WrongLibrary,
    /// The caller passed something that can never work.
    InvalidArgument,
    /// The thing asked for is in the wrong state, e.g. it was joined already.
    FailedPrecondition,
    /// Others did not come in time.
    DeadlineExceeded,
    /// MPI reported an error, e.g. that a process has died.
    Mpi,
}

impl Error {
    /// An error of this class with this message.
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
