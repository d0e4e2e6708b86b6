//! Constructors of shardax's errors.

use shardax::{Error, ErrorKind, Result};

#[track_caller]
pub(crate) fn value(message: impl Into<String>, help: &str) -> Error {
    Error::new(ErrorKind::Value, message).help(help)
}

#[track_caller]
pub(crate) fn value_error<T>(message: impl Into<String>, help: &str) -> Result<T> {
    Err(value(message, help))
}

/// The first line of an error's message.
pub(crate) fn reason(error: &Error) -> String {
    error.message().lines().next().unwrap_or_default().to_owned()
}
