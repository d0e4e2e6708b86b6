//! Variables of the environment that set something: read and checked in one place.

use std::ffi::OsStr;
use std::time::Duration;

use crate::error::{Error, Result};

/// A variable of the environment that has a value of type `T`.
#[derive(Debug)]
pub struct Setting<T: 'static> {
    name: &'static str,
    /// The values that it may have, for errors.
    takes: &'static str,
    parse: fn(&str) -> Option<T>,
}

impl<T> Setting<T> {
    /// The variable of this name; `takes` describes in errors the values that `parse` understands.
    pub const fn new(name: &'static str, takes: &'static str, parse: fn(&str) -> Option<T>) -> Self {
        Setting { name, takes, parse }
    }

    /// The variable's name.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// The value; `None` where the variable is not set, or empty.
    ///
    /// # Errors
    /// The variable has a value that the setting does not take: the message has both.
    pub fn read(&self) -> Result<Option<T>> {
        self.of(std::env::var_os(self.name).as_deref())
    }

    /// The value where it is valid. [`Setting::read`] has said before what is wrong with another.
    pub fn get(&self) -> Option<T> {
        self.read().ok().flatten()
    }

    /// As [`Setting::read`], of this value of the variable.
    pub(crate) fn of(&self, given: Option<&OsStr>) -> Result<Option<T>> {
        let Some(given) = given.filter(|given| !given.is_empty()) else { return Ok(None) };
        let parsed = given.to_str().and_then(self.parse);
        parsed.map(Some).ok_or_else(|| {
            Error::invalid_argument(format!(
                "the environment variable {} is {given:?}, and takes {}: correct it, or unset it",
                self.name, self.takes
            ))
        })
    }
}

impl Setting<Duration> {
    /// A time in seconds.
    pub const fn seconds(name: &'static str) -> Self {
        Setting::new(name, "a number of seconds of at least 0, such as 10 or 0.5", |text| {
            Duration::try_from_secs_f64(text.trim().parse().ok()?).ok()
        })
    }
}

/// How long a process waits at its end for the programs under way.
pub(crate) const EXIT_SECONDS: Setting<Duration> = Setting::seconds("SHARDAX_EXIT_SECONDS");
/// How long the installation of a plugin may take.
pub(crate) const INSTALL_SECONDS: Setting<Duration> = Setting::seconds("SHARDAX_INSTALL_SECONDS");

/// Fails where a setting that is read later, without a way to report it, has a value that it does not take.
///
/// # Errors
/// The message has the variable, its value and what it takes.
pub fn check_settings() -> Result<()> {
    EXIT_SECONDS.read()?;
    INSTALL_SECONDS.read().map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_a_setting_does_not_take_are_errors() {
        let seconds = |text: &str| EXIT_SECONDS.of(Some(OsStr::new(text)));
        assert_eq!(seconds("0.5").unwrap(), Some(Duration::from_millis(500)));
        assert_eq!(seconds(" 7 ").unwrap(), Some(Duration::from_secs(7)));
        assert_eq!((seconds("").unwrap(), EXIT_SECONDS.of(None).unwrap()), (None, None));
        for text in ["ten", "-1", "nan", "inf", "1e300", "10s"] {
            let error = seconds(text).unwrap_err().to_string();
            for part in ["SHARDAX_EXIT_SECONDS", &format!("{text:?}"), "a number of seconds"] {
                assert!(error.contains(part), "{error}");
            }
        }
    }
}
