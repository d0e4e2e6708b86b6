//! Notices that this job is about to end: signals of schedulers, Ctrl-C, and other events that a program looks for.
//!
//! A training loop should call
//! [`multihost::reached_preemption_sync_point`](crate::multihost::reached_preemption_sync_point) after each step;
//! `shardax_train::Trainer` does so automatically.
//!
//! | signal | sent by |
//! |---|---|
//! | `SIGTERM` | Kubernetes at the start of its grace period, `scancel`, `timeout`, `kill` |
//! | `SIGUSR1`, `SIGUSR2` | Slurm's `--signal`, `shardax-run` |
//! | `SIGINT` | Ctrl-C |
//!
//! A second signal ends the process at once. Signals within a second of the first count as the
//! same notice, because some launchers send several.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use signal_hook::low_level;

use crate::error::{Result, err};

/// The exit status of a process that saved its state and ended because of a notice: `EX_TEMPFAIL` of `sysexits.h`, a
/// failure that disappears if you run the program again.
pub const EXIT_STATUS: i32 = 75;

const SIGNALS: [i32; 4] = [SIGTERM, SIGUSR1, SIGUSR2, SIGINT];

/// Signals that arrive within this time of the first one are the same notice.
const REPEATED_SIGNAL_WINDOW: Duration = Duration::from_secs(1);

static NOTICE: Mutex<Option<Notice>> = Mutex::new(None);
/// The number of live [`Listening`] values.
static LISTENERS: AtomicUsize = AtomicUsize::new(0);

struct Notice {
    reason: String,
    at: Instant,
}

fn notice_of_process() -> MutexGuard<'static, Option<Notice>> {
    NOTICE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Treats the signals of a preemption as notices until the returned value is dropped. Afterwards they end the process
/// again. Signals that the process ignored before, for example `SIGINT` under `nohup`-like shells, stay ignored.
///
/// ```
/// let listening = shardax::distributed::preemption::listen()?;
/// assert_eq!(shardax::distributed::preemption::notice(), None);
/// drop(listening);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if the system does not accept a handler or a thread.
pub fn listen() -> Result<Listening> {
    static STARTED: Mutex<bool> = Mutex::new(false);
    // The handlers stay for the rest of the process; without a listener they restore the usual behavior.
    let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
    if !*started {
        start().map_err(|error| {
            err!(Runtime, "the signals of a preemption cannot be handled: {error}")
                .help("pass `OnPreemption::Ignore` to `Trainer::on_preemption` to run without handling signals")
        })?;
        *started = true;
    }
    LISTENERS.fetch_add(1, Ordering::SeqCst);
    Ok(Listening(()))
}

/// While this value exists, the signals of a preemption are notices.
#[must_use = "signals are handled only while it lives"]
pub struct Listening(());

impl Drop for Listening {
    fn drop(&mut self) {
        LISTENERS.fetch_sub(1, Ordering::SeqCst);
    }
}

impl fmt::Debug for Listening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Listening")
    }
}

/// Gives notice like a signal, for example when a cloud announces that it takes back a spot instance. Only the first
/// reason is kept.
///
/// ```no_run
/// std::thread::spawn(|| {
///     let announced = || std::path::Path::new("/run/spot-termination").exists();
///     while !announced() {
///         std::thread::sleep(std::time::Duration::from_secs(5));
///     }
///     shardax::distributed::preemption::notify("the spot instance ends");
/// });
/// ```
pub fn notify(reason: &str) {
    notice_of_process().get_or_insert_with(|| Notice { reason: reason.to_owned(), at: Instant::now() });
}

/// Calls a function at this interval on a separate thread until it returns the reason of a preemption, and then
/// [notifies](notify).
///
/// # Errors
/// Returns an error if no thread can be started.
pub fn poll(interval: Duration, mut look: impl FnMut() -> Option<String> + Send + 'static) -> Result<()> {
    let thread = std::thread::Builder::new().name("shardax-notices".to_owned()).spawn(move || {
        loop {
            if let Some(reason) = look() {
                return notify(&reason);
            }
            std::thread::sleep(interval);
        }
    });
    thread.map(drop).map_err(|error| {
        err!(Runtime, "no thread could be started to look for notices: {error}")
            .help("raise the limit of threads (`ulimit -u`), or end other programs")
    })
}

/// Returns the reason of the first notice that this process received, such as `SIGTERM`.
pub fn notice() -> Option<String> {
    notice_of_process().as_ref().map(|notice| notice.reason.clone())
}

/// Returns `true` if signals are currently treated as notices.
pub fn is_listening() -> bool {
    LISTENERS.load(Ordering::SeqCst) > 0
}

fn start() -> std::io::Result<()> {
    let before = Dispositions::read();
    let handled: Vec<i32> = SIGNALS.into_iter().filter(|signal| !before.ignores(*signal)).collect();
    let mut signals = Signals::new(&handled)?;
    let thread = std::thread::Builder::new().name("shardax-signals".to_owned()).spawn(move || {
        for signal in signals.forever() {
            heard(signal, &before);
        }
    });
    thread.map(drop)
}

fn heard(signal: i32, before: &Dispositions) {
    let name = low_level::signal_name(signal).unwrap_or("a signal");
    if LISTENERS.load(Ordering::SeqCst) == 0 {
        // If the program has a handler, it has been called too. Otherwise the signal must have its previous effect.
        if !before.handles(signal) {
            drop(low_level::emulate_default_handler(signal));
        }
        return;
    }
    let second = notice_of_process().as_ref().is_some_and(|first| first.at.elapsed() > REPEATED_SIGNAL_WINDOW);
    if second {
        eprintln!("shardax: {name} again: the process ends at once, without saving");
        drop(low_level::emulate_default_handler(signal));
    }
    notify(name);
}

/// Reads a mask of signals from the text of `/proc/self/status`. An absent mask has no signals.
fn signal_mask(status: &str, name: &str) -> u64 {
    let text = status.lines().find_map(|line| line.strip_prefix(name));
    text.and_then(|text| u64::from_str_radix(text.trim(), 16).ok()).unwrap_or(0)
}

/// The dispositions of signals before this module handled them. Bit `n - 1` of each mask represents signal `n`.
struct Dispositions {
    ignored: u64,
    handled: u64,
}

impl Dispositions {
    /// Reads the masks of ignored and handled signals, which the kernel prints in hexadecimal digits.
    fn read() -> Dispositions {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        Dispositions { ignored: signal_mask(&status, "SigIgn:"), handled: signal_mask(&status, "SigCgt:") }
    }

    fn ignores(&self, signal: i32) -> bool {
        self.ignored >> (signal - 1) & 1 == 1
    }

    fn handles(&self, signal: i32) -> bool {
        self.handled >> (signal - 1) & 1 == 1
    }
}
