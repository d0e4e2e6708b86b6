//! One start of the program.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ExitStatus};

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group, test_kill_process_group};
use shardax::distributed::preemption;

use super::Options;

/// The end of an attempt.
#[derive(Debug)]
pub(super) enum End {
    Done,
    Preempted,
    Failed { status: u8, why: String },
}

/// A launcher with its processes, or the program itself.
pub(super) struct Attempt(Child);

impl Attempt {
    pub fn start(options: &Options, processes: usize, restart: u32) -> Result<Attempt, String> {
        let mut command = options.launcher.command(options, processes)?;
        command.env("SHARDAX_RESTART", restart.to_string());
        // Start the program in a separate process group, so that only this command receives the terminal's signals and
        // can decide which of them to pass on.
        command.process_group(0);
        let child = command.spawn();
        child.map(Attempt).map_err(|error| format!("cannot start {}: {error}", command.get_program().display()))
    }

    /// The end of the attempt, if it has ended.
    pub fn poll(&mut self) -> Option<End> {
        self.0.try_wait().ok().flatten().map(end_of)
    }

    /// Notifies the program of a preemption. The signal is SIGUSR1 because launchers pass it on. At SIGTERM they would
    /// end their processes within a second instead, and a program could not save.
    pub fn preempt(&self) {
        self.send(|pid| kill_process(pid, Signal::USR1));
    }

    pub fn terminate(&self) {
        self.send(|pid| kill_process_group(pid, Signal::TERM));
    }

    pub fn kill(&self) {
        self.send(|pid| kill_process_group(pid, Signal::KILL));
    }

    /// The process group of the attempt.
    pub fn group(&self) -> u32 {
        self.0.id()
    }

    /// Ends the processes that the attempt has left in its group: first with SIGTERM, after `grace` with SIGKILL.
    pub fn end_group(&self, grace: Duration) {
        let Some(group) = self.pid() else { return };
        if !exists(group) {
            return;
        }
        let start = Instant::now();
        self.terminate();
        while exists(group) && start.elapsed() < grace {
            std::thread::sleep(super::POLL);
        }
        self.kill();
        // SIGKILL takes effect a moment later. A process that nobody waits for remains in the group, but does not run.
        let killed = Instant::now();
        while exists(group) && killed.elapsed() < Duration::from_secs(1) {
            std::thread::sleep(super::POLL);
        }
    }

    fn pid(&self) -> Option<Pid> {
        i32::try_from(self.0.id()).ok().and_then(Pid::from_raw)
    }

    fn send(&self, signal: impl Fn(Pid) -> rustix::io::Result<()>) {
        if let Some(pid) = self.pid() {
            // A process that has just ended does not need the signal.
            let _ = signal(pid);
        }
    }
}

fn end_of(status: ExitStatus) -> End {
    match (status.code(), status.signal()) {
        (Some(0), _) => End::Done,
        (Some(preemption::EXIT_STATUS), _) => End::Preempted,
        (Some(code), _) => End::Failed { status: code as u8, why: format!("it ended with status {code}") },
        (None, signal) => {
            let signal = signal.unwrap_or(0);
            End::Failed { status: 128 + signal as u8, why: format!("it was ended by signal {signal}") }
        }
    }
}

/// Returns `true` if the process group has a process.
fn exists(group: Pid) -> bool {
    test_kill_process_group(group).is_ok()
}
