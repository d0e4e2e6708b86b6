//! The progress of a run, and the available hosts.

use std::path::Path;
use std::process::Command;

/// The latest complete step in a folder of checkpoints.
pub fn latest_checkpoint(folder: &Path) -> Option<u64> {
    let entries = std::fs::read_dir(folder).ok()?.flatten();
    let complete = entries.filter(|entry| entry.path().join("commit").exists());
    complete.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).max()
}

/// The number that a shell command prints.
pub fn available(command: &str) -> Result<usize, String> {
    let output = Command::new("sh").args(["-c", command]).output();
    let output = output.map_err(|error| format!("cannot run `{command}`: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let number = text.trim().parse().ok().filter(|_| output.status.success());
    number.ok_or_else(|| {
        format!("`{command}` ({}) must print a number of processes, but printed {text:?}", output.status)
    })
}
