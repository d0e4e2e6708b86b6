//! Tests that each need a separate process.

use std::process::{Child, Command, Stdio};

/// Returns the command that runs only one ignored test of this binary.
pub fn command(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
    command.args(["--exact", test, "--ignored", "--nocapture", "-q"]);
    command
}

pub fn start(command: &mut Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().expect("it can be started")
}
