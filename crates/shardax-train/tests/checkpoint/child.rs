//! Tests in processes of their own.

use std::process::{Child, Command, Stdio};

/// The command that runs an ignored test of this binary alone.
pub fn command(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
    command.args(["--exact", test, "--ignored", "--nocapture", "-q"]);
    command
}

pub fn start(command: &mut Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().expect("it can be started")
}
