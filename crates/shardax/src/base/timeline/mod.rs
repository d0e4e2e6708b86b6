//! Profiles: timelines of threads and devices.

mod formats;
mod session;

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Instant, SystemTime};

pub(crate) use formats::Encoded;
pub use session::{ProfileData, ProfileSession};
use shardax_pjrt as pjrt;

use crate::error::{AtCaller, Result, err};

// Read at the start of every span, so that spans cost nothing while no profile is recorded.
static ACTIVE: AtomicBool = AtomicBool::new(false);
/// The levels of the profile being recorded; see [`ProfileOptions`].
static HOST_LEVEL: AtomicU8 = AtomicU8::new(0);
static DEVICE_LEVEL: AtomicU8 = AtomicU8::new(0);
static RECORDING: Mutex<Option<Recording>> = Mutex::new(None);
/// Signals that a device has finished a program of the profile.
static FINISHED: Condvar = Condvar::new();
/// The plugin of this process's devices, once they exist.
static PLUGIN: OnceLock<pjrt::Plugin> = OnceLock::new();

/// The timeline of an event.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Track {
    /// A host thread: its number and name.
    Thread(u64, String),
    /// A device, by its id.
    Device(usize, String),
}

/// An event with a duration. Times are in nanoseconds since the start of the recording.
struct Event {
    track: Track,
    name: Cow<'static, str>,
    begin: u64,
    end: u64,
    /// The number of the training step, if the event is one.
    step: Option<i64>,
}

struct Recording {
    number: u64,
    start: Instant,
    started_at: SystemTime,
    events: Vec<Event>,
    /// The number of device executions that have not finished yet.
    under_way: usize,
    /// The plugin's own profiler, if it has one.
    devices: Option<pjrt::Profiler>,
}

impl Recording {
    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

fn recording() -> MutexGuard<'static, Option<Recording>> {
    RECORDING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns `true` while a profile is being recorded.
#[inline]
fn is_active() -> bool {
    ACTIVE.load(Ordering::Relaxed)
}

/// Returns `true` while a profile with host events of this level is being recorded.
#[inline]
fn is_active_at(level: u8) -> bool {
    is_active() && HOST_LEVEL.load(Ordering::Relaxed) >= level
}

/// Host events of the user's annotations.
const ANNOTATIONS: u8 = 1;
/// Host events of the library: calls, compilations and transfers.
const LIBRARY: u8 = 2;

/// Options of a profile, which set the recorded events (JAX's `ProfileOptions`). JAX's `python_tracer_level` has no
/// counterpart, because there are no calls of Python.
///
/// ```
/// # use shardax::profiler::ProfileOptions;
/// # let folder = std::env::temp_dir().join(format!("shardax-profile-options-{}", std::process::id()));
/// // A long profile: annotations and programs, without the library's own events.
/// let profile = ProfileOptions::new().host_tracer_level(1).trace(&folder)?;
/// profile.stop()?;
/// # std::fs::remove_dir_all(&folder).ok();
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProfileOptions {
    host: u8,
    device: u8,
}

impl Default for ProfileOptions {
    fn default() -> Self {
        ProfileOptions { host: LIBRARY, device: 1 }
    }
}

impl ProfileOptions {
    /// Returns a profile of everything: annotations, the library's own events, and programs on devices.
    pub fn new() -> Self {
        ProfileOptions::default()
    }

    /// Sets the events of host threads: 0 for none, 1 for annotations ([`annotate`], [`step_trace_annotation`]), and 2
    /// for calls, compilations and transfers too. Higher levels are equal to 2, the default.
    pub fn host_tracer_level(mut self, level: u8) -> Self {
        self.host = level;
        self
    }

    /// Sets the events of devices: 0 for none, and 1 for each program and the events of the plugin's own profiler.
    /// Higher levels are equal to 1, the default.
    pub fn device_tracer_level(mut self, level: u8) -> Self {
        self.device = level;
        self
    }

    /// Starts recording; see [`trace`].
    ///
    /// # Errors
    /// Returns an error if another profile is being recorded, because a process can record only one at a time.
    #[track_caller]
    pub fn trace(self, folder: impl AsRef<Path>) -> Result<Profile> {
        begin_profile(self, Some(folder.as_ref())).at_caller()
    }
}

/// A profile being recorded; see [`trace`]. Dropping it writes the profile.
#[must_use = "the profile ends where this is dropped"]
#[derive(Debug)]
pub struct Profile {
    /// The folder to write it to; `None` to keep it in memory.
    folder: Option<PathBuf>,
    number: u64,
}

/// Starts recording a profile. When it is stopped or dropped, it is written below `folder`.
///
/// It shows, for each thread, calls of compiled functions by name, compilations, transfers and annotations
/// ([`annotate`]), and for each device the start and end of each program. `tensorboard --logdir folder` finds it under
/// `plugins/profile`; the file `….trace.json.gz` opens in Perfetto or chrome://tracing.
///
/// Plugins for GPUs and TPUs have their own profiler for events inside a program, and both files contain its output.
/// The CPU plugin has none.
///
/// # Errors
/// Returns an error if a profile is already being recorded.
#[track_caller]
pub fn trace(folder: impl AsRef<Path>) -> Result<Profile> {
    ProfileOptions::new().trace(folder)
}

fn begin_profile(options: ProfileOptions, folder: Option<&Path>) -> Result<Profile> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let mut current = recording();
    if current.is_some() {
        return Err(err!(Runtime, "Only one profile may be run at a time.").help("stop the running profile first"));
    }
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    HOST_LEVEL.store(options.host, Ordering::Relaxed);
    DEVICE_LEVEL.store(options.device, Ordering::Relaxed);
    let devices = recorder();
    let failed = devices.as_ref().err().cloned();
    let (start, started_at, devices) = (Instant::now(), SystemTime::now(), devices.unwrap_or_default());
    *current = Some(Recording { number, start, started_at, events: Vec::new(), under_way: 0, devices });
    ACTIVE.store(true, Ordering::Relaxed);
    drop(current);
    if let Some(error) = failed {
        warn_without_devices("start", &error)
    }
    Ok(Profile { folder: folder.map(Path::to_owned), number })
}

/// Includes this plugin's devices in profiles, also in the one being recorded.
pub(crate) fn watch(plugin: &pjrt::Plugin) {
    let _ = PLUGIN.set(plugin.clone());
    let mut current = recording();
    let Some(without) = current.as_mut().filter(|r| is_active() && r.devices.is_none()) else { return };
    match recorder() {
        Ok(devices) => without.devices = devices,
        Err(error) => {
            drop(current);
            warn_without_devices("start", &error)
        }
    }
}

/// Starts the plugin's profiler.
fn recorder() -> pjrt::Result<Option<pjrt::Profiler>> {
    PLUGIN.get().filter(|_| DEVICE_LEVEL.load(Ordering::Relaxed) > 0).map_or(Ok(None), pjrt::Plugin::start_profiler)
}

const IN_USE: &str = "end other profilers (CUPTI serves one), and see that this user may read the GPU's counters";

/// Warns, instead of failing, that a profile does not contain the devices' own part.
fn warn_without_devices<T: Default>(what: &str, error: &pjrt::Error) -> T {
    let message = format!("the plugin cannot {what} its own profile, so this one shows whole programs alone: {error}");
    crate::warning::warn(&message, IN_USE);
    T::default()
}

impl Profile {
    /// Stops the profile, waits for its programs, and writes it. Returns the files.
    ///
    /// # Errors
    /// Returns an error if they cannot be written.
    #[track_caller]
    pub fn stop(self) -> Result<Vec<PathBuf>> {
        self.finish().at_caller()
    }

    fn finish(&self) -> Result<Vec<PathBuf>> {
        match (self.encode()?, &self.folder) {
            (Some(encoded), Some(folder)) => encoded.write_below(folder),
            _ => Ok(Vec::new()),
        }
    }

    /// Ends the profile. Returns `None` if it has already ended.
    pub(crate) fn encode(&self) -> Result<Option<Encoded>> {
        let mut current = recording();
        if current.as_ref().is_none_or(|r| r.number != self.number) {
            return Ok(None);
        }
        ACTIVE.store(false, Ordering::Relaxed);
        while current.as_ref().is_some_and(|r| r.under_way > 0) {
            current = FINISHED.wait(current).unwrap_or_else(PoisonError::into_inner);
        }
        // The plugin records only one profile at a time, so the next one must start after this one has ended.
        let devices = current.as_mut().and_then(|r| r.devices.take());
        drop(current);
        let recorded = devices.map_or(Ok(Vec::new()), pjrt::Profiler::stop);
        let Some(mut done) = recording().take() else { return Ok(None) };
        let recorded = recorded.unwrap_or_else(|error| warn_without_devices("end", &error));
        for error in formats::recorder_errors(&recorded) {
            crate::warning::warn(&format!("the plugin's profiler reports: {error}"), IN_USE);
        }
        done.events.sort_by(|a, b| (&a.track, a.begin).cmp(&(&b.track, b.begin)));
        one_after_the_other(&mut done.events);
        let encoded = formats::encode(&done.events, &recorded, done.started_at);
        encoded.map(Some).map_err(|e| err!(Runtime, "cannot encode the profile: {e}"))
    }
}

impl Drop for Profile {
    fn drop(&mut self) {
        if let Err(error) = self.finish() {
            crate::warning::warn(error.message(), "pass a folder that can be written to");
        }
    }
}

/// Separates overlapping events, because a device starts a program only after it has finished the earlier ones.
fn one_after_the_other(events: &mut [Event]) {
    for i in 1..events.len() {
        let (before, this) = events.split_at_mut(i);
        let (before, this) = (&before[i - 1], &mut this[0]);
        if matches!(this.track, Track::Device(..)) && this.track == before.track {
            this.begin = this.begin.max(before.end).min(this.end);
        }
    }
}

/// A named part of a thread's time; see [`annotate`].
#[must_use = "the stretch ends where this is dropped"]
#[derive(Debug)]
pub struct Annotation(Option<(Cow<'static, str>, u64, u64)>, Option<i64>);

/// Annotates the work of this thread until the result is dropped, if a profile is recorded (JAX's `TraceAnnotation`).
pub fn annotate(name: impl Into<Cow<'static, str>>) -> Annotation {
    if is_active_at(ANNOTATIONS) { begin(name.into(), None) } else { Annotation(None, None) }
}

/// Like [`annotate`], for the library's own work. The name is only computed if it is recorded.
#[inline]
pub(crate) fn span(name: impl FnOnce() -> Cow<'static, str>) -> Annotation {
    if is_active_at(LIBRARY) { begin(name(), None) } else { Annotation(None, None) }
}

#[cold]
fn begin(name: Cow<'static, str>, step: Option<i64>) -> Annotation {
    Annotation(recording().as_ref().map(|r| (name, r.number, r.now())), step)
}

/// Annotates a training step with its number until the result is dropped, if a profile is recorded (JAX's
/// `StepTraceAnnotation`). TensorBoard's overview divides the profile into these steps.
///
/// ```
/// # use shardax::prelude::*;
/// for i in 0..3 {
///     let _step = shardax::profiler::step_trace_annotation("train", i);
///     ones([8]).sum(..).item::<f32>()?;
/// }
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn step_trace_annotation(name: impl Into<Cow<'static, str>>, step_num: i64) -> Annotation {
    if is_active_at(ANNOTATIONS) { begin(name.into(), Some(step_num)) } else { Annotation(None, None) }
}

/// The profile between [`start_trace`] and [`stop_trace`].
static STARTED: Mutex<Option<Profile>> = Mutex::new(None);

/// Starts recording a profile that [`stop_trace`] writes below `folder`. With [`trace`], the profile ends with the
/// scope of a value instead.
///
/// ```
/// # use shardax::profiler;
/// # let folder = std::env::temp_dir().join(format!("shardax-start-trace-{}", std::process::id()));
/// profiler::start_trace(&folder)?;
/// let files = profiler::stop_trace()?;
/// assert!(!files.is_empty());
/// # std::fs::remove_dir_all(&folder).ok();
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if a profile is already being recorded.
#[track_caller]
pub fn start_trace(folder: impl AsRef<Path>) -> Result<()> {
    let profile = trace(folder)?;
    *STARTED.lock().unwrap_or_else(PoisonError::into_inner) = Some(profile);
    Ok(())
}

/// Stops the profile that [`start_trace`] started, waits for its programs, and writes it. Returns the files.
///
/// # Errors
/// Returns an error if none was started, or if the files cannot be written.
#[track_caller]
pub fn stop_trace() -> Result<Vec<PathBuf>> {
    let started = STARTED.lock().unwrap_or_else(PoisonError::into_inner).take();
    started
        .ok_or_else(|| err!(Runtime, "No profile started").help("call `start_trace` first"))
        .and_then(|profile| profile.finish())
        .at_caller()
}

impl Drop for Annotation {
    fn drop(&mut self) {
        if let Some((name, number, begin)) = self.0.take() {
            record(number, this_thread(), name, begin, self.1);
        }
    }
}

/// Adds an event that ends now.
fn record(number: u64, track: Track, name: Cow<'static, str>, begin: u64, step: Option<i64>) {
    if let Some(current) = recording().as_mut().filter(|r| r.number == number) {
        let end = current.now().max(begin);
        current.events.push(Event { track, name, begin, end, step });
    }
}

fn this_thread() -> Track {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static NUMBER: u64 = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    let name = std::thread::current().name().unwrap_or("thread").to_owned();
    Track::Thread(NUMBER.try_with(|n| *n).unwrap_or(0), name)
}

/// A time in a profile: the number of the profile, and the time.
#[derive(Clone, Copy)]
pub(crate) struct Timestamp(u64, u64);

/// The current time; `None` if no profile of devices is recorded.
#[inline]
pub(crate) fn now() -> Option<Timestamp> {
    if is_active() && DEVICE_LEVEL.load(Ordering::Relaxed) > 0 {
        recording().as_ref().map(|r| Timestamp(r.number, r.now()))
    } else {
        None
    }
}

/// Records when each device finishes a program that was launched at this time. Each of `devices` has an id, a name, and
/// an event.
#[cold]
pub(crate) fn launched(
    Timestamp(number, begin): Timestamp,
    name: &str,
    devices: impl Iterator<Item = (usize, String, pjrt::Event)>,
) {
    for (id, device, ready) in devices {
        match recording().as_mut().filter(|r| r.number == number) {
            Some(current) => current.under_way += 1,
            None => return,
        }
        let (track, name) = (Track::Device(id, device), name.to_owned());
        ready.on_ready(move |_| {
            record(number, track, name.into(), begin, None);
            if let Some(current) = recording().as_mut().filter(|r| r.number == number) {
                current.under_way -= 1;
            }
            FINISHED.notify_all();
        });
    }
}
