//! A supervisor: starts a program in several processes, passes signals on, and restarts it from its last checkpoint.

mod attempt;
mod guard;
mod launcher;
mod lock;
mod progress;

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use shardax::distributed::preemption;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

use attempt::{Attempt, End};
use guard::Guard;
pub use launcher::Launcher;
use progress::{available, latest_checkpoint};

/// Runs a program in several processes, and restarts it from its last checkpoint when it fails.
///
/// This command passes SIGTERM, SIGINT, SIGUSR1 and SIGUSR2 on to the program as SIGUSR1, so that a `Trainer` saves and ends
/// with status 75. This command then ends with status 75 too. A second signal ends all processes immediately.
#[derive(clap::Parser, Clone, Debug)]
#[command(name = "shardax-run", version)]
pub struct Options {
    /// The number of processes, or a minimum and a maximum such as `2:4`.
    #[arg(short = 'n', long, value_name = "N|MIN:MAX", default_value = "1")]
    pub processes: Processes,
    /// The number of restarts after failures.
    #[arg(long, default_value_t = 3)]
    pub restarts: u32,
    /// Seconds before the first restart. They are doubled for each further restart without a new checkpoint, up to 60.
    #[arg(long, default_value_t = 1.0, value_parser = seconds)]
    pub backoff: f64,
    /// The folder of the program's checkpoints. Two attempts in a row without a new checkpoint end the run. Only one
    /// `shardax-run` at a time can use a folder.
    #[arg(long, value_name = "FOLDER")]
    pub checkpoints: Option<PathBuf>,
    /// A shell command that prints the number of processes that can be started now. It runs before each attempt.
    #[arg(long, value_name = "COMMAND")]
    pub available: Option<String>,
    /// The command that starts the processes. By default a single process needs none; several processes are started by `srun` in
    /// a Slurm allocation, and otherwise by `mpirun`.
    #[arg(long, value_enum, default_value_t = Launcher::Auto)]
    pub launcher: Launcher,
    /// An argument for the launcher, such as `--launcher-arg=--hostfile=hosts`. Can be repeated.
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    pub launcher_arg: Vec<String>,
    /// Seconds from SIGTERM to SIGKILL for processes that remain after an attempt.
    #[arg(long, default_value_t = 10.0, value_parser = seconds)]
    pub grace: f64,
    /// The program and its arguments.
    #[arg(last = true, required = true)]
    pub program: Vec<OsString>,
}

/// The minimal and maximal number of processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Processes {
    /// The minimum.
    pub min: usize,
    /// The maximum.
    pub max: usize,
}

impl FromStr for Processes {
    type Err = String;

    fn from_str(text: &str) -> Result<Processes, String> {
        let (min, max) = text.split_once(':').unwrap_or((text, text));
        match (positive(min), positive(max)) {
            (Some(min), Some(max)) if min <= max => Ok(Processes { min, max }),
            _ => Err("write a number such as `4`, or a minimum and a maximum such as `2:4`".to_owned()),
        }
    }
}

fn positive(text: &str) -> Option<usize> {
    text.parse().ok().filter(|n| *n > 0)
}

/// Parses seconds of at least 0.
fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds: &f64| *seconds >= 0.0);
    seconds.ok_or_else(|| "write seconds of at least 0, such as `2.5`".to_owned())
}

/// Converts seconds to a duration. A time that is too long for a duration becomes the longest one.
fn duration(seconds: f64) -> Duration {
    // Negative numbers and NaN come only from programs that build the options themselves.
    let longest = if seconds > 0.0 { Duration::MAX } else { Duration::ZERO };
    Duration::try_from_secs_f64(seconds).unwrap_or(longest)
}

/// The number of attempts in a row without a new checkpoint after which a run ends.
const MAX_STALLED_ATTEMPTS: u32 = 2;
const MAX_BACKOFF: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

/// Runs the program until it succeeds, is preempted, or has failed too often; returns the exit status.
///
/// # Errors
/// Returns an error if nothing could be started.
pub fn supervise(options: &Options) -> Result<u8, String> {
    let signals = signals()?;
    let lock = options.checkpoints.as_deref().map_or(Ok(None), lock::lock)?;
    let guard = Guard::start(duration(options.grace), lock.as_ref());
    let mut run = Run { options, signals, guard, stopping: false, failures: 0, stalled: 0, attempts: 0 };
    let status = run.run();
    drop((run, lock));
    status
}

fn signals() -> Result<Receiver<i32>, String> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGUSR1, SIGUSR2, SIGHUP])
        .map_err(|error| format!("signals cannot be handled: {error}"))?;
    let (sender, receiver) = channel();
    let thread = std::thread::Builder::new().name("signals".to_owned());
    let thread = thread.spawn(move || signals.forever().try_for_each(|signal| sender.send(signal)));
    thread.map(|_| receiver).map_err(|error| format!("no thread could be started: {error}"))
}

struct Run<'a> {
    options: &'a Options,
    signals: Receiver<i32>,
    /// `None` if no shell could be started.
    guard: Option<Guard>,
    /// True after a signal: the run is not restarted any more.
    stopping: bool,
    failures: u32,
    /// Attempts in a row without a new checkpoint.
    stalled: u32,
    attempts: u32,
}

impl Run<'_> {
    fn run(&mut self) -> Result<u8, String> {
        // Each round starts an attempt, waits for its end, and decides whether another one could succeed.
        loop {
            let Some(processes) = self.wait_for_hosts()? else { return Ok(preemption_status()) };
            let before = self.latest();
            if self.attempts > 0 {
                let from = before.map_or_else(|| "the beginning".to_owned(), |step| format!("step {step}"));
                print_line(&format!("restarts {processes} processes from {from}"));
            }
            let mut attempt = Attempt::start(self.options, processes, self.attempts)?;
            self.attempts += 1;
            self.guard(attempt.group());
            let end = self.watch(&mut attempt);
            // A remaining process would train at the same time as the next attempt.
            attempt.end_group(duration(self.options.grace));
            self.guard(0);
            let after = self.latest();
            if after > before {
                self.stalled = 0
            } else {
                self.stalled += 1
            }
            match end {
                End::Done => return Ok(0),
                End::Preempted if self.stopping => return Ok(preemption_status()),
                End::Preempted => {
                    // Without the folder the progress is unknown, so a preemption counts as a failure. Otherwise a
                    // program that always reports a preemption would be restarted forever.
                    if self.options.checkpoints.is_none() {
                        self.failures += 1;
                    }
                    print_line("the program was preempted, and this command was not");
                }
                End::Failed { status, .. } if self.stopping => return Ok(status),
                End::Failed { ref why, .. } => {
                    self.failures += 1;
                    print_line(&format!("attempt {} failed: {why}", self.attempts));
                }
            }
            let status = match end {
                End::Failed { status, .. } => status,
                _ => preemption_status(),
            };
            if self.failures > self.options.restarts {
                print_line(&format!("ends, after {} restarts", self.attempts - 1));
                return Ok(status);
            }
            // A program that fails twice at the same step would probably fail there again.
            if self.options.checkpoints.is_some() && self.stalled >= MAX_STALLED_ATTEMPTS {
                let progress =
                    after.map_or_else(|| "without any checkpoint".to_owned(), |step| format!("at step {step}"));
                print_line(&format!(
                    "ends: {MAX_STALLED_ATTEMPTS} attempts in a row made no new checkpoint, {progress}"
                ));
                return Ok(status);
            }
            if !self.pause(self.backoff()) {
                return Ok(status);
            }
        }
    }

    /// Sets the process group that the guard ends if this command is killed.
    fn guard(&mut self, group: u32) {
        if let Some(guard) = &mut self.guard {
            guard.watch(group);
        }
    }

    fn latest(&self) -> Option<u64> {
        self.options.checkpoints.as_deref().and_then(latest_checkpoint)
    }

    fn backoff(&self) -> Duration {
        let doubled = 2f64.powi(self.stalled.saturating_sub(1).min(16) as i32);
        duration(self.options.backoff * doubled).min(MAX_BACKOFF)
    }

    /// Waits. Returns false if a signal arrives.
    fn pause(&mut self, time: Duration) -> bool {
        match self.signals.recv_timeout(time) {
            Ok(_) => self.stopping = true,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(time),
        }
        !self.stopping
    }

    /// Waits until enough processes can be started, and returns their number; `None` after a signal.
    fn wait_for_hosts(&mut self) -> Result<Option<usize>, String> {
        let Processes { min, max } = self.options.processes;
        let Some(command) = &self.options.available else { return Ok(Some(max)) };
        let mut has_reported = false;
        loop {
            let count = available(command)?;
            if count >= min {
                return Ok(Some(count.min(max)));
            }
            if !std::mem::replace(&mut has_reported, true) {
                print_line(&format!("waits: {count} processes can be started, but {min} are needed"));
            }
            if !self.pause(Duration::from_secs(1)) {
                return Ok(None);
            }
        }
    }

    /// Waits for the end of an attempt, and passes signals on.
    fn watch(&mut self, attempt: &mut Attempt) -> End {
        let mut kill_at: Option<Instant> = None;
        loop {
            if let Some(end) = attempt.poll() {
                return end;
            }
            if kill_at.is_some_and(|at| Instant::now() >= at) {
                attempt.kill();
            }
            let Ok(signal) = self.signals.recv_timeout(POLL) else { continue };
            match std::mem::replace(&mut self.stopping, true) {
                false => {
                    let name = signal_hook::low_level::signal_name(signal).unwrap_or("a signal");
                    print_line(&format!("{name}: the program saves and ends; a second signal ends it at once"));
                    attempt.preempt();
                }
                true => {
                    attempt.terminate();
                    // `None` if the time is beyond what an `Instant` can represent, so that nothing is killed.
                    kill_at = Instant::now().checked_add(duration(self.options.grace));
                }
            }
        }
    }
}

fn preemption_status() -> u8 {
    preemption::EXIT_STATUS as u8
}

fn print_line(text: &str) {
    eprintln!("shardax-run: {text}");
}
