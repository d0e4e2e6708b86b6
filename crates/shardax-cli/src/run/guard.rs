//! A process that outlives this command and ends the program if this command is killed, because a killed command cannot
//! do so itself.

use std::fs::File;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Reads the process group of each attempt, and 0 after its end. At the end of the input, which comes when the writer
/// has ended in any way, it ends the last group, with SIGKILL after `$1` tenths of a second.
const SCRIPT: &str = r#"
trap '' TERM INT HUP USR1 USR2
group=0
while read -r line; do group=$line; done
[ "$group" != 0 ] || exit 0
kill -s TERM -- "-$group" 2>/dev/null
tenths=0
while kill -s 0 -- "-$group" 2>/dev/null && [ "$tenths" -lt "$1" ]; do
    sleep 0.1
    tenths=$((tenths + 1))
done
kill -s KILL -- "-$group" 2>/dev/null
"#;

/// A running guard; dropping it ends it.
pub(super) struct Guard(Child);

impl Guard {
    /// Starts the guard. It keeps `lock` open, so that the folder stays locked until the program has ended.
    pub fn start(grace: Duration, lock: Option<&File>) -> Option<Guard> {
        let tenths = grace.as_millis().div_ceil(100).min(i32::MAX as u128);
        let mut command = Command::new("sh");
        command.args(["-c", SCRIPT, "shardax-run-guard", &tenths.to_string()]);
        command.stdin(Stdio::piped()).stderr(Stdio::null());
        let lock = lock.and_then(|file| file.try_clone().ok());
        command.stdout(lock.map_or_else(Stdio::null, Stdio::from));
        // Only this command receives the terminal's signals.
        command.process_group(0);
        command.spawn().ok().map(Guard)
    }

    /// Watches this process group; 0 for none.
    pub fn watch(&mut self, group: u32) {
        if let Some(input) = &mut self.0.stdin {
            let _ = writeln!(input, "{group}");
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.watch(0);
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}
