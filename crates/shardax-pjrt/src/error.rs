//! The error type: an absl status code with a message.

use std::fmt;

/// The result of a fallible call in this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of this crate or of the plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The class of the failure.
    pub code: Code,
    /// The cause, and what to do about it.
    pub message: String,
}

/// PJRT's status codes, which it shares with absl and gRPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum Code {
    /// The caller cancelled the operation.
    Cancelled = 1,
    /// No other code applies.
    Unknown = 2,
    /// The argument is invalid.
    InvalidArgument = 3,
    /// The deadline expired.
    DeadlineExceeded = 4,
    /// The requested entity does not exist.
    NotFound = 5,
    /// The entity to create already exists.
    AlreadyExists = 6,
    /// The caller lacks the permission.
    PermissionDenied = 7,
    /// Memory or another resource is exhausted.
    ResourceExhausted = 8,
    /// The system is not in a state in which the operation is possible.
    FailedPrecondition = 9,
    /// The operation was aborted.
    Aborted = 10,
    /// The argument is out of range.
    OutOfRange = 11,
    /// The operation is not implemented.
    Unimplemented = 12,
    /// An invariant is broken.
    Internal = 13,
    /// The service is unavailable at the moment.
    Unavailable = 14,
    /// Data is lost or damaged.
    DataLoss = 15,
    /// The caller is not authenticated.
    Unauthenticated = 16,
}

impl Code {
    /// The code with this number; [`Code::Unknown`] for numbers that absl does not define.
    pub fn from_raw(raw: i32) -> Code {
        use Code::*;
        match raw {
            1 => Cancelled,
            3 => InvalidArgument,
            4 => DeadlineExceeded,
            5 => NotFound,
            6 => AlreadyExists,
            7 => PermissionDenied,
            8 => ResourceExhausted,
            9 => FailedPrecondition,
            10 => Aborted,
            11 => OutOfRange,
            12 => Unimplemented,
            13 => Internal,
            14 => Unavailable,
            15 => DataLoss,
            16 => Unauthenticated,
            _ => Unknown,
        }
    }

    /// The name in absl's spelling, such as `INVALID_ARGUMENT`.
    pub fn name(self) -> &'static str {
        match self {
            Code::Cancelled => "CANCELLED",
            Code::Unknown => "UNKNOWN",
            Code::InvalidArgument => "INVALID_ARGUMENT",
            Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
            Code::NotFound => "NOT_FOUND",
            Code::AlreadyExists => "ALREADY_EXISTS",
            Code::PermissionDenied => "PERMISSION_DENIED",
            Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
            Code::FailedPrecondition => "FAILED_PRECONDITION",
            Code::Aborted => "ABORTED",
            Code::OutOfRange => "OUT_OF_RANGE",
            Code::Unimplemented => "UNIMPLEMENTED",
            Code::Internal => "INTERNAL",
            Code::Unavailable => "UNAVAILABLE",
            Code::DataLoss => "DATA_LOSS",
            Code::Unauthenticated => "UNAUTHENTICATED",
        }
    }
}

impl Error {
    /// Makes an error with this code and message.
    pub fn new(code: Code, message: impl Into<String>) -> Error {
        Error { code, message: message.into() }
    }

    /// Makes an error for an argument that can never be valid.
    pub fn invalid_argument(message: impl Into<String>) -> Error {
        Error::new(Code::InvalidArgument, message)
    }

    /// Makes an error for a wrong state, such as a deleted buffer.
    pub fn failed_precondition(message: impl Into<String>) -> Error {
        Error::new(Code::FailedPrecondition, message)
    }

    /// Prefixes the message with the activity during which the error occurred.
    pub fn during(mut self, activity: impl fmt::Display) -> Error {
        self.message = format!("{activity}: {}", self.message);
        self
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

impl std::error::Error for Error {}
