//! One start of the program.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ExitStatus};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
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
        // Signals of the terminal come to this command alone, which passes them on.
        command.process_group(0);
        let started = command.spawn();
        started.map(Attempt).map_err(|error| format!("cannot start {}: {error}", command.get_program().display()))
    }

    /// The end of the attempt, if it has ended.
    pub fn poll(&mut self) -> Option<End> {
        self.0.try_wait().ok().flatten().map(end_of)
    }

    /// Gives the program notice. Launchers pass SIGUSR1 on, where they end their processes at SIGTERM within a second.
    pub fn preempt(&self) {
        self.send(|pid| kill_process(pid, Signal::USR1));
    }

    pub fn terminate(&self) {
        self.send(|pid| kill_process_group(pid, Signal::TERM));
    }

    pub fn kill(&self) {
        self.send(|pid| kill_process_group(pid, Signal::KILL));
    }

    fn send(&self, signal: impl Fn(Pid) -> rustix::io::Result<()>) {
        if let Some(pid) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) {
            // One that has just ended needs none.
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
