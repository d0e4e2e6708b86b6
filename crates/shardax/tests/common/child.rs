//! Tests in processes of their own: other settings, and ends that would take the other tests along.
#![allow(dead_code)]

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The end of a child: its status and output.
#[derive(Debug)]
pub struct Ended {
    pub status: ExitStatus,
    pub out: String,
    pub err: String,
}

/// Returns the command that runs only one ignored test of this binary.
pub fn command(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
    command.args(["--exact", test, "--ignored", "--nocapture", "-q"]);
    command
}

pub fn start(command: &mut Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it can be started")
}

/// Reads a pipe to its end on a thread, because a child whose pipe is full waits.
fn read(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Waits for it; fails when it takes longer than two minutes.
pub fn wait(mut child: Child) -> Ended {
    let (out, err) = (read(child.stdout.take()), read(child.stderr.take()));
    let start = Instant::now();
    let status = loop {
        match child.try_wait().expect("it is a child of ours") {
            Some(status) => break status,
            None if start.elapsed() > Duration::from_secs(120) => {
                child.kill().expect("it is a child of ours");
                panic!("a process does not end: {:?} {:?}", out.join(), err.join());
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    Ended { status, out: out.join().expect("its output"), err: err.join().expect("its errors") }
}

/// Runs it; fails unless it ends well.
#[track_caller]
pub fn run(command: &mut Command) -> Ended {
    let ended = wait(start(command));
    assert!(ended.status.success(), "{}\n{}\n{}", ended.status, ended.out, ended.err);
    ended
}

/// A folder of one test, which is removed at its end.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Folder {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("shardax-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).expect("a folder for the test");
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A plugin that fails where the environment asks for it (`faulty_plugin.c`), and the variables that have it used.
/// `None`
/// where there is no C compiler.
pub fn faulty_plugin(folder: &Path) -> Option<Vec<(&'static str, PathBuf)>> {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../shardax-pjrt/tests/common/faulty_plugin.c");
    let plugin = folder.join("faulty_plugin.so");
    let built = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&plugin).arg(source).status();
    if !built.is_ok_and(|status| status.success()) {
        eprintln!("no C compiler: skipped");
        return None;
    }
    let real = shardax_pjrt::Plugin::cpu().expect("the CPU plugin").path().to_owned();
    Some(vec![("SHARDAX_CPU_PLUGIN", plugin), ("FAULTY_PLUGIN_OF", real)])
}
