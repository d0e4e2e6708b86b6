//! Environment variables of shardax: parsing and checking.

use std::ffi::OsStr;
use std::time::Duration;

use crate::error::{Error, Result};

/// An environment variable with a value of type `T`.
#[derive(Debug)]
pub struct Setting<T: 'static> {
    name: &'static str,
    /// The valid values, for errors.
    expected: &'static str,
    parser: fn(&str) -> Option<T>,
}

impl<T> Setting<T> {
    /// The setting of a variable. Errors describe the values that `parser` accepts by `expected`.
    pub const fn new(name: &'static str, expected: &'static str, parser: fn(&str) -> Option<T>) -> Self {
        Setting { name, expected, parser }
    }

    /// The variable's name.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// The value; `None` if the variable is not set or empty.
    ///
    /// # Errors
    /// Returns an error if the variable has an invalid value. The message contains the value and describes the valid
    /// ones.
    pub fn read(&self) -> Result<Option<T>> {
        self.parse(std::env::var_os(self.name).as_deref())
    }

    /// The value, or `None` if it is invalid; [`Setting::read`] reports that.
    pub fn get(&self) -> Option<T> {
        self.read().ok().flatten()
    }

    /// Like [`Setting::read`], for a text instead of the variable's value.
    pub(crate) fn parse(&self, text: Option<&OsStr>) -> Result<Option<T>> {
        let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(None) };
        let value = text.to_str().and_then(self.parser);
        value.map(Some).ok_or_else(|| {
            Error::invalid_argument(format!(
                "invalid value {text:?} for the environment variable {}: expected {}; correct the variable, or unset \
                 it",
                self.name, self.expected
            ))
        })
    }
}

impl Setting<Duration> {
    /// A duration in seconds.
    pub const fn seconds(name: &'static str) -> Self {
        Setting::new(name, "a number of seconds of at least 0, such as 10 or 0.5", |text| {
            Duration::try_from_secs_f64(text.trim().parse().ok()?).ok()
        })
    }
}

/// The time limit for programs in flight at the end of the process.
pub(crate) const EXIT_SECONDS: Setting<Duration> = Setting::seconds("SHARDAX_EXIT_SECONDS");
/// The time limit for installing a plugin.
pub(crate) const INSTALL_SECONDS: Setting<Duration> = Setting::seconds("SHARDAX_INSTALL_SECONDS");

/// Checks the settings that are read later, where an error cannot be reported.
///
/// # Errors
/// Returns an error if a variable has an invalid value: the message has the value and the valid ones.
pub fn check_settings() -> Result<()> {
    EXIT_SECONDS.read()?;
    INSTALL_SECONDS.read().map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(text: &str) -> Result<Option<Duration>> {
        EXIT_SECONDS.parse(Some(OsStr::new(text)))
    }

    #[test]
    fn invalid_values_are_errors() {
        assert_eq!(seconds("0.5").unwrap(), Some(Duration::from_millis(500)));
        assert_eq!(seconds(" 7 ").unwrap(), Some(Duration::from_secs(7)));
        assert_eq!((seconds("").unwrap(), EXIT_SECONDS.parse(None).unwrap()), (None, None));
        for text in ["ten", "-1", "nan", "inf", "1e300", "10s"] {
            let error = seconds(text).unwrap_err().to_string();
            for part in ["SHARDAX_EXIT_SECONDS", &format!("{text:?}"), "a number of seconds"] {
                assert!(error.contains(part), "{error}");
            }
        }
    }
}
