//! Runs on a cluster: notices of preemption at any moment, processes that stop for a while, disks that are full or slow,
//! clocks that jump. Each test has a time limit.

#[path = "../common/mod.rs"]
mod common;
mod faults;
#[path = "../../../shardax-mpi/tests/common/mod.rs"]
mod launch;
mod live;
mod preempted;
mod traced;
mod training;

use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use common::Folder;

/// Sends a signal.
fn send(signal: &str, process: &str) {
    let status = Command::new("kill").args([&format!("-{signal}"), process]).status().expect("kill");
    assert!(status.success(), "kill -{signal} {process}");
}

/// A process that is ended with the test.
struct Running {
    child: Child,
    err: std::path::PathBuf,
}

impl Running {
    /// Starts a command, whose standard error goes to a file.
    fn start(command: &mut Command, err: &Path) -> Running {
        let file = std::fs::File::create(err).expect("a file");
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file).spawn().expect("it starts");
        Running { child, err: err.to_owned() }
    }

    fn id(&self) -> String {
        self.child.id().to_string()
    }

    fn text(&self) -> String {
        std::fs::read_to_string(&self.err).unwrap_or_default()
    }

    /// Waits for its end, and fails after so many seconds.
    #[track_caller]
    fn end(mut self, seconds: u64) -> (ExitStatus, String) {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("it is a child of ours") {
                return (status, self.text());
            }
            assert!(
                begun.elapsed() < Duration::from_secs(seconds),
                "still running after {seconds} s:\n{}",
                self.text()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until there is something; fails after a minute.
#[track_caller]
fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "no {what} after a minute");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[track_caller]
fn says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
}
