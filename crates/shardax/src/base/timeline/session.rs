//! Profiles that are kept in memory.

use std::path::{Path, PathBuf};

use super::{Encoded, Profile, ProfileOptions, begin_profile};
use crate::error::{AtCaller, Result, err};

/// A profile being recorded that returns its data instead of writing files (JAX's `ProfileSession`). Dropping it ends the
/// profile without data.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::profiler::ProfileSession;
/// let session = ProfileSession::start()?;
/// ones([8]).sum(..).item::<f32>()?;
/// let data = session.stop()?;
/// assert!(!data.xplane().is_empty());
/// # Ok::<(), shardax::Error>(())
/// ```
#[must_use = "the profile ends where this is dropped"]
#[derive(Debug)]
pub struct ProfileSession(Profile);

impl ProfileSession {
    /// Starts recording. [`ProfileOptions::session`] sets the recorded events.
    ///
    /// # Errors
    /// Returns an error if a profile is already being recorded.
    #[track_caller]
    pub fn start() -> Result<ProfileSession> {
        ProfileOptions::new().session()
    }

    /// Stops the profile, waits for its programs, and returns it.
    ///
    /// # Errors
    /// Returns an error if the profile cannot be encoded.
    #[track_caller]
    pub fn stop(self) -> Result<ProfileData> {
        self.0
            .encode()
            .and_then(|encoded| {
                let encoded = encoded.ok_or_else(|| {
                    err!(Runtime, "the profile was ended by another thread")
                        .help("call `stop` or `stop_trace` only once for each profile, on one thread")
                })?;
                Ok(ProfileData(encoded))
            })
            .at_caller()
    }
}

impl ProfileOptions {
    /// Starts recording a profile that is kept in memory; see [`ProfileSession`].
    ///
    /// # Errors
    /// Returns an error if another profile is being recorded, because a process can record only one at a time.
    #[track_caller]
    pub fn session(self) -> Result<ProfileSession> {
        begin_profile(self, None).map(ProfileSession).at_caller()
    }
}

/// A recorded profile in memory, in both formats; see [`ProfileSession`].
#[derive(Debug)]
pub struct ProfileData(Encoded);

impl ProfileData {
    /// Returns the serialized `XSpace` that TensorBoard reads.
    pub fn xplane(&self) -> &[u8] {
        &self.0.xplane
    }

    /// Returns the trace events as gzipped JSON, for Perfetto and chrome://tracing.
    pub fn trace_json_gz(&self) -> &[u8] {
        &self.0.trace
    }

    /// Writes the profile below `folder`, as [`trace`](super::trace) does (JAX's `export_profile_data`). Returns the
    /// files.
    ///
    /// # Errors
    /// Returns an error if they cannot be written.
    #[track_caller]
    pub fn export(&self, folder: impl AsRef<Path>) -> Result<Vec<PathBuf>> {
        self.0.write_below(folder.as_ref()).at_caller()
    }
}
