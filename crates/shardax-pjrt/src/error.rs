//! The error type: an absl status code and a message that a person can act on.

use std::fmt;

/// Result of every fallible call in this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// Class of the failure, for programs to branch on.
    pub code: Code,
    /// What happened, for people.
    pub message: String,
}

/// Status codes that PJRT shares with absl and gRPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum Code {
    /// The caller gave it up.
    Cancelled = 1,
    /// No other code says it.
    Unknown = 2,
    /// What was passed in is wrong by itself.
    InvalidArgument = 3,
    /// It took too long.
    DeadlineExceeded = 4,
    /// What was asked for is not there.
    NotFound = 5,
    /// What was to be made is there already.
    AlreadyExists = 6,
    /// The caller may not.
    PermissionDenied = 7,
    /// No memory, or no other resource, is left.
    ResourceExhausted = 8,
    /// The state is not one in which it can be done.
    FailedPrecondition = 9,
    /// It was ended from within.
    Aborted = 10,
    /// Beyond the end of what there is.
    OutOfRange = 11,
    /// The plugin does not have it.
    Unimplemented = 12,
    /// What always holds does not.
    Internal = 13,
    /// Not now; perhaps later.
    Unavailable = 14,
    /// Data is lost or damaged.
    DataLoss = 15,
    /// Who calls is not known.
    Unauthenticated = 16,
}

impl Code {
    /// The code with this number; [`Code::Unknown`] for a number that absl does not define.
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

    /// The name in absl's spelling, e.g. `INVALID_ARGUMENT`.
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
    /// An error of this class with this message.
    pub fn new(code: Code, message: impl Into<String>) -> Error {
        Error { code, message: message.into() }
    }

    /// The caller passed something that can never work.
    pub fn invalid_argument(message: impl Into<String>) -> Error {
        Error::new(Code::InvalidArgument, message)
    }

    /// The thing asked for is in the wrong state, e.g. a buffer that was deleted.
    pub fn failed_precondition(message: impl Into<String>) -> Error {
        Error::new(Code::FailedPrecondition, message)
    }

    /// The same error with the activity it happened in put before the message.
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
