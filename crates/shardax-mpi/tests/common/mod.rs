//! Jobs of several processes for the tests.
//!
//! `SHARDAX_TEST_MPIRUN` lists launchers, separated by `:`; the default is `mpirun` on the `PATH`. Without a launcher the
//! tests print a message and pass, except under `CI`.
#![allow(dead_code)]

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The time limit of a job in seconds, unless `SHARDAX_TEST_JOB_LIMIT` is set.
const LIMIT: u64 = 120;
/// The lines of standard error that say how a job ended.
const LAST_LINES: usize = 60;
/// The processes of all jobs that run at the same time: jobs wait more than they compute.
const PROCESSES: usize = 8;
/// Tells a process of a job which case to run.
pub const CASE: &str = "SHARDAX_TEST_MPI_CASE";

/// The launchers to try.
pub fn launchers() -> Vec<PathBuf> {
    let named = std::env::var_os("SHARDAX_TEST_MPIRUN");
    let libraries: Vec<PathBuf> = match &named {
        Some(list) => std::env::split_paths(list).collect(),
        None => {
            let folders = std::env::var_os("PATH").unwrap_or_default();
            std::env::split_paths(&folders).map(|folder| folder.join("mpirun")).filter(|p| p.exists()).take(1).collect()
        }
    };
    assert!(
        !libraries.is_empty() || std::env::var_os("CI").is_none(),
        "no mpirun was found, and CI must have one: apt-get install openmpi-bin"
    );
    if libraries.is_empty() {
        println!("skipped: no mpirun in PATH or SHARDAX_TEST_MPIRUN");
    }
    libraries
}

struct Job(Child);

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A job's share of [`PROCESSES`], until it is dropped.
struct Turn(usize);

static RUNNING: Mutex<usize> = Mutex::new(0);
static ENDED: Condvar = Condvar::new();

impl Turn {
    /// Waits until other jobs leave room for a job of so many processes, however large it is.
    fn wait(processes: usize) -> Turn {
        let share = processes.min(PROCESSES);
        let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        let mut running =
            ENDED.wait_while(running, |running| *running + share > PROCESSES).unwrap_or_else(PoisonError::into_inner);
        *running += share;
        Turn(share)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *RUNNING.lock().unwrap_or_else(PoisonError::into_inner) -= self.0;
        ENDED.notify_all();
    }
}

pub struct Outcome {
    pub success: bool,
    /// Standard output, then standard error.
    pub text: String,
    /// The launcher's exit status and the last lines of standard error.
    pub end: String,
    /// From its start, without the wait for other jobs.
    pub took: Duration,
}

/// Runs the test `child` of this program in several processes.
pub fn job(launcher: &PathBuf, case: &str, processes: usize, variables: &[(&str, &str)]) -> Outcome {
    run(launcher, case, &["child", "--exact", "--nocapture", "--test-threads=1"], processes, variables)
}

/// Runs this program in several processes.
pub fn run(
    launcher: &PathBuf,
    case: &str,
    arguments: &[&str],
    processes: usize,
    variables: &[(&str, &str)],
) -> Outcome {
    let _turn = Turn::wait(processes);
    // Two tests may run the same case at the same time.
    static JOBS: AtomicUsize = AtomicUsize::new(0);
    let number = JOBS.fetch_add(1, Ordering::Relaxed);
    let dir = std::env::temp_dir().join(format!("shardax-mpi-{}-{number}-{case}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let (out, err) = (dir.join("out"), dir.join("err"));
    let mut command = Command::new(launcher);
    command.args(["-n", &processes.to_string()]);
    let version = Command::new(launcher).arg("--version").output().unwrap();
    if String::from_utf8_lossy(&version.stdout).contains("Open MPI") {
        command.args(["--oversubscribe", "--bind-to", "none"]);
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        // Open MPI maps its description of the machine at an address that may be in its own stack.
        command.env("OMPI_MCA_rtc_hwloc_vmhole", "none");
    }
    command.arg(std::env::current_exe().unwrap()).args(arguments);
    command.env(CASE, case).envs(variables.iter().copied()).env_remove("SHARDAX_TEST_MPIRUN");
    command.stdin(Stdio::null());
    command.stdout(std::fs::File::create(&out).unwrap()).stderr(std::fs::File::create(&err).unwrap());
    let mut job = Job(command.spawn().unwrap());
    let start = Instant::now();
    let limit = std::env::var("SHARDAX_TEST_JOB_LIMIT").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(LIMIT);
    let status = loop {
        match job.0.try_wait().unwrap() {
            Some(status) => break Some(status),
            None if start.elapsed() > Duration::from_secs(limit) => break None,
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let took = start.elapsed();
    drop(job);
    // A process that was killed may have written half a character.
    let [out, err] = [out, err].map(|file| std::fs::read(file).unwrap_or_default());
    let [out, err] = [out, err].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let lines: Vec<&str> = err.lines().collect();
    let last_lines = lines[lines.len().saturating_sub(LAST_LINES)..].join("\n");
    let text = out + &err;
    let _ = std::fs::remove_dir_all(&dir);
    let status = status.unwrap_or_else(|| panic!("{case} under {} ran past {limit} s:\n{text}", launcher.display()));
    Outcome { success: status.success(), end: format!("{status}\n{last_lines}"), text, took }
}
