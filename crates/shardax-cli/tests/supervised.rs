//! `shardax-run`: programs that fail, hang on, are preempted or cannot go on. Each test has a time limit.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use shardax::distributed;
use shardax::prelude::*;
use shardax_train::checkpoint::{CheckpointManager, CheckpointManagerOptions};
use shardax_train::data::{Source, Stream};
use shardax_train::{Control, MultiMetric, Trainer};

const FOLDER: &str = "SHARDAX_TEST_RUN";

struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("shardax-cli-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).expect("a folder for the test");
        Folder(path)
    }

    /// Creates a shell script, whose folder is `$0`'s. Another process writes it. If this process wrote it, a process that
    /// another test starts at that moment would have it open for writing too, and the system runs no file that is being
    /// written.
    fn script(&self, text: &str) -> PathBuf {
        let (path, source) = (self.0.join("program"), self.0.join("program.text"));
        std::fs::write(&source, format!("#!/bin/sh\ncd {}\n{text}\n", self.0.display())).expect("a file");
        let status = Command::new("install").args(["-m", "755"]).args([&source, &path]).status();
        assert!(status.expect("install starts").success());
        path
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.join(name)).unwrap_or_default()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

struct Running(Child, PathBuf);

impl Running {
    fn start(folder: &Folder, arguments: &[&str], program: &[&str]) -> Running {
        let err = folder.0.join("err");
        let mut command = Command::new(env!("CARGO_BIN_EXE_shardax-run"));
        command.args(arguments).arg("--").args(program).env(FOLDER, &folder.0);
        let inherited = std::env::var_os("PATH").unwrap_or_default();
        let path = [folder.0.clone()].into_iter().chain(std::env::split_paths(&inherited));
        command.env("PATH", std::env::join_paths(path).expect("a path"));
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        command.env("OMPI_MCA_rtc_hwloc_vmhole", "none").env("SHARDAX_NUM_CPU_DEVICES", "1");
        command.env("SHARDAX_COMPILATION_CACHE_DIR", folder.0.join("cache"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(std::fs::File::create(&err).expect("a file"));
        Running(command.spawn().expect("it starts"), err)
    }

    fn text(&self) -> String {
        std::fs::read_to_string(&self.1).unwrap_or_default()
    }

    #[track_caller]
    fn end(mut self, seconds: u64) -> (ExitStatus, String) {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().expect("it is a child of ours") {
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
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn send(signal: &str, process: &str) {
    let status = Command::new("kill").args([&format!("-{signal}"), process]).status().expect("kill");
    assert!(status.success(), "kill -{signal} {process}");
}

/// Returns the last step that a process has written, if it has written one.
fn last_step(folder: &Folder, rank: usize) -> Option<u64> {
    folder.read(&format!("last-{rank}")).parse().ok()
}

#[track_caller]
fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "no {what} after a minute");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[track_caller]
fn says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
}

const QUICK: [&str; 2] = ["--backoff", "0.05"];

/// Runs a script to its end.
#[track_caller]
fn run(script: &str, arguments: &[&str]) -> (Option<i32>, String, Folder) {
    let folder = Folder::new();
    let program = folder.script(script);
    let arguments: Vec<&str> = QUICK.iter().chain(arguments).copied().collect();
    let (status, text) = Running::start(&folder, &arguments, &[program.to_str().expect("a path")]).end(30);
    (status.code(), text, folder)
}

#[test]
fn a_program_that_succeeds_runs_once() {
    let (status, text, folder) = run("echo $SHARDAX_RESTART >> starts", &[]);
    assert_eq!((status, text.as_str(), folder.read("starts").as_str()), (Some(0), "", "0\n"));
}

#[test]
fn a_program_that_fails_is_restarted_so_often() {
    let (status, text, folder) = run("echo $SHARDAX_RESTART >> starts; exit 9", &["--restarts", "2"]);
    assert_eq!((status, folder.read("starts").as_str()), (Some(9), "0\n1\n2\n"));
    says(&text, &["attempt 1 failed: it ended with status 9", "restarts 1 processes", "ends, after 2 restarts"]);
    let (status, text, _folder) = run("test -e here && exit 0; touch here; kill -9 $$", &["--restarts", "2"]);
    assert_eq!(status, Some(0), "{text}");
    says(&text, &["attempt 1 failed: it was ended by signal 9"]);
}

/// Four attempts may be made; two without a new checkpoint are enough.
#[test]
fn a_run_without_progress_ends() {
    let script = "echo x >> starts; mkdir -p steps/10 && touch steps/10/commit; exit 1";
    let folder = Folder::new();
    let program = folder.script(script);
    let steps = folder.0.join("steps");
    let arguments = ["--restarts", "9", "--backoff", "0.05", "--checkpoints", steps.to_str().expect("a path")];
    let (status, text) = Running::start(&folder, &arguments, &[program.to_str().expect("a path")]).end(30);
    assert_eq!((status.code(), folder.read("starts").as_str()), (Some(1), "x\nx\nx\n"), "{text}");
    says(&text, &["restarts 1 processes from step 10", "ends: 2 attempts in a row made no new checkpoint, at step 10"]);
}

/// The program was preempted, but this command was not. The command must start it again, without counting a failure.
#[test]
fn a_preempted_program_is_restarted_and_that_is_no_failure() {
    let script = "n=$(cat n 2>/dev/null || echo 0); n=$((n + 1)); echo $n > n; mkdir -p steps/$n; touch steps/$n/commit
        test $n = 4 || exit 75";
    let folder = Folder::new();
    let program = folder.script(script);
    let steps = folder.0.join("steps");
    let arguments = ["--restarts", "0", "--backoff", "0.05", "--checkpoints", steps.to_str().expect("a path")];
    let (status, text) = Running::start(&folder, &arguments, &[program.to_str().expect("a path")]).end(30);
    assert_eq!(status.code(), Some(0), "{text}");
    says(&text, &["the program was preempted, and this command was not", "restarts 1 processes from step 3"]);
}

#[test]
fn a_signal_is_passed_on_and_a_second_ends_all() {
    for signal in ["TERM", "INT", "USR1", "USR2", "HUP"] {
        let folder = Folder::new();
        let program = folder.script("trap 'echo told > told; exit 75' USR1; touch ready; while :; do sleep 0.05; done");
        let running = Running::start(&folder, &QUICK, &[program.to_str().expect("a path")]);
        wait_for("program", || folder.0.join("ready").exists().then_some(()));
        send(signal, &running.0.id().to_string());
        let (status, text) = running.end(20);
        assert_eq!((status.code(), folder.read("told").as_str()), (Some(75), "told\n"), "{text}");
        says(&text, &["the program saves and ends; a second signal ends it at once"]);
    }
    let folder = Folder::new();
    let program = folder.script("trap '' USR1 TERM; touch ready; while :; do sleep 0.05; done");
    let arguments = ["--grace", "0.5"];
    let running = Running::start(&folder, &arguments, &[program.to_str().expect("a path")]);
    wait_for("program", || folder.0.join("ready").exists().then_some(()));
    send("TERM", &running.0.id().to_string());
    std::thread::sleep(Duration::from_millis(300));
    send("TERM", &running.0.id().to_string());
    let (status, text) = running.end(20);
    assert_eq!(status.code(), Some(128 + 9), "{text}");
}

/// Hosts come and go: each attempt has as many processes as there is room for, and waits where that is too few.
#[test]
fn the_number_of_processes_follows_the_available_hosts() {
    let folder = Folder::new();
    // A launcher that only says how many it would start.
    let launcher = folder.script("case $1 in -n) echo $2 >> starts; sleep 0.3; exit 1;; esac");
    std::fs::rename(launcher, folder.0.join("mpirun")).expect("a file");
    let count = folder.0.join("count");
    std::fs::write(&count, "7").expect("a file");
    let available = format!("cat {}", count.display());
    let arguments = ["-n", "2:4", "--restarts", "2", "--backoff", "0.05", "--available", &available];
    let running = Running::start(&folder, &arguments, &["true"]);
    wait_for("first attempt", || folder.read("starts").contains('4').then_some(()));
    std::fs::write(&count, "1").expect("a file");
    wait_for("line", || running.text().contains("waits: 1 processes can be started, but 2 are needed").then_some(()));
    std::fs::write(&count, "3").expect("a file");
    let (status, text) = running.end(30);
    assert_eq!(status.code(), Some(1), "{text}");
    says(&text, &["restarts 3 processes"]);
    assert_eq!(folder.read("starts"), "4\n3\n3\n");
}

/// The processes of a script that has started some, from the file in which it has written their numbers.
fn are_running(folder: &Folder) -> bool {
    fn running(process: &str) -> bool {
        // A process that has ended may be a zombie until it is waited for.
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.trim_start().starts_with('Z'))
    }
    folder.read("pids").lines().any(running)
}

#[test]
fn processes_that_an_attempt_leaves_are_ended() {
    let (status, text, folder) = run("sleep 97 & echo $! >> pids; exit 3", &["--restarts", "2"]);
    assert_eq!((status, folder.read("pids").lines().count()), (Some(3), 3), "{text}");
    assert!(!are_running(&folder));
    // One that ignores SIGTERM, after a success.
    let script = "(trap '' TERM; sleep 97 & echo $! >> pids; wait) & while ! test -e pids; do sleep 0.05; done";
    let (status, text, folder) = run(script, &["--grace", "0.3"]);
    assert_eq!(status, Some(0), "{text}");
    assert!(!folder.read("pids").is_empty() && !are_running(&folder));
}

#[test]
fn a_program_ends_when_its_supervisor_is_killed() {
    let folder = Folder::new();
    let program =
        folder.script("sleep 97 & echo $! >> pids; echo $$ >> pids; touch ready; trap '' TERM; sleep 96; wait");
    let steps = folder.0.join("steps");
    let arguments = ["--grace", "1", "--checkpoints", steps.to_str().expect("a path")];
    let program = [program.to_str().expect("a path")];
    let running = Running::start(&folder, &arguments, &program);
    wait_for("program", || folder.0.join("ready").exists().then_some(()));
    assert!(are_running(&folder));
    send("KILL", &running.0.id().to_string());
    // The folder is locked until the program has ended.
    let (status, text) = Running::start(&folder, &arguments, &["true"]).end(20);
    assert_eq!(status.code(), Some(2), "{text}");
    wait_for("end", || (!are_running(&folder)).then_some(()));
    wait_for("unlocked folder", || {
        let (status, _) = Running::start(&folder, &arguments, &["true"]).end(20);
        (status.code() == Some(0)).then_some(())
    });
}

#[test]
fn a_folder_has_one_supervisor() {
    let folder = Folder::new();
    let program = folder.script("touch ready; while ! test -e go; do sleep 0.05; done");
    let steps = folder.0.join("steps");
    let arguments = ["--checkpoints", steps.to_str().expect("a path")];
    let program = [program.to_str().expect("a path")];
    let running = Running::start(&folder, &arguments, &program);
    wait_for("program", || folder.0.join("ready").exists().then_some(()));
    let process = running.0.id().to_string();
    let (status, text) = Running::start(&folder, &arguments, &program).end(20);
    assert_eq!(status.code(), Some(2), "{text}");
    says(
        &text,
        &["steps belongs to a run that has not ended: process ", &process, ", since ", "choose another folder"],
    );
    std::fs::write(folder.0.join("go"), "").expect("a file");
    assert_eq!(running.end(20).0.code(), Some(0));
    assert_eq!(Running::start(&folder, &arguments, &program).end(20).0.code(), Some(0));
}

/// A time beyond what can be counted is for ever, and not at once.
#[test]
fn a_grace_without_end_kills_nothing() {
    let folder = Folder::new();
    let program = folder
        .script("trap 'sleep 0.5; touch saved; exit 0' TERM; trap '' USR1; touch ready; while :; do sleep 0.05; done");
    let running = Running::start(&folder, &["--grace", "1e300"], &[program.to_str().expect("a path")]);
    wait_for("program", || folder.0.join("ready").exists().then_some(()));
    let process = running.0.id().to_string();
    send("TERM", &process);
    wait_for("line", || running.text().contains("a second signal").then_some(()));
    send("TERM", &process);
    let (status, text) = running.end(20);
    assert_eq!(status.code(), Some(0), "{text}");
    assert!(folder.0.join("saved").exists());
}

#[test]
fn programs_that_cannot_start_are_errors() {
    let folder = Folder::new();
    for (arguments, program, text) in [
        (&["--launcher", "srun", "-n", "2"][..], "true", "`srun` is not in PATH"),
        (&[][..], "/nowhere/program", "cannot start /nowhere/program: No such file"),
        (&["--available", "echo many"][..], "true", "must print a number of processes"),
        (&["--launcher", "none", "-n", "2"][..], "true", "--launcher=none starts one process, not 2"),
        (&["-n", "4:2"][..], "true", "write a number such as `4`"),
        (&["--grace", "nan"][..], "true", "such as `2.5`"),
        (&["--backoff=nan"][..], "true", "such as `2.5`"),
        (&["--backoff=-1"][..], "true", "such as `2.5`"),
    ] {
        let (status, said) = Running::start(&folder, arguments, &[program]).end(20);
        assert_eq!(status.code(), Some(2), "{said}");
        says(&said, &[text]);
    }
}

/// The processes of the tests below.
#[test]
fn child() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    if let Err(error) = train(Path::new(&folder)) {
        eprintln!("process {}: {error}", process_index());
        std::process::exit(3);
    }
}

/// The steps of the training.
fn steps() -> u64 {
    std::env::var("SHARDAX_TEST_STEPS").ok().and_then(|text| text.parse().ok()).unwrap_or(150)
}

/// The weights of a training that nothing disturbs.
fn expected(steps: u64) -> Vec<i32> {
    let mut state: Vec<i32> = (0..12).collect();
    let mut data = (64usize, |i: usize| Ok(array(i as i32))).stream().shuffled(5).repeat();
    for _ in 0..steps {
        let x = data.next_item().expect("endless").and_then(|x| x.item::<i32>()).expect("a number");
        let sum = state.iter().fold(0i32, |sum, y| sum.wrapping_add(*y));
        state = state.iter().map(|y| y.wrapping_mul(1_664_525).wrapping_add(sum).wrapping_add(x)).collect();
    }
    state
}

fn train(folder: &Path) -> Result<()> {
    distributed::initialize()?;
    let split = NamedSharding::new(&make_mesh([("x", device_count())])?, P!["x"]);
    let begin = make_array_from_callback([12], DType::I32, &split, |i| Ok(arange(i[0].start as i32..i[0].end as i32)))?;
    let step = jit(|w: Array, x: Array| (&w * 1_664_525 + w.sum(..) + x, MultiMetric::new()));
    let step = step.out_shardings((&split, None::<shardax::ShardingLike>));
    let mut data = (64usize, |i: usize| Ok(array(i as i32))).stream().shuffled(5).repeat();
    let options = CheckpointManagerOptions::new().save_interval_steps(10).max_to_keep(2);
    let mut checkpoints = CheckpointManager::new(folder.join("steps"), options)?;
    std::fs::write(folder.join(format!("pid-{}", process_index())), std::process::id().to_string()).expect("a file");
    let trainer = Trainer::new(steps()).quiet().checkpoints(&mut checkpoints).hook(|at| {
        std::fs::write(folder.join(format!("last-{}", process_index())), at.step.to_string()).expect("a file");
        std::thread::sleep(Duration::from_millis(20));
        Ok(Control::Continue)
    });
    let state = trainer.run(begin, &mut data, |w, x| step.call((w, x)))?;
    let weights = shardax::multihost::process_allgather_tiled(&state)?.to_vec::<i32>()?;
    if process_index() == 0 {
        std::fs::write(folder.join("weights"), format!("{weights:?} {}", process_count())).expect("a file");
    }
    Ok(())
}

/// A process of a job is killed, the next attempt has fewer processes and is preempted, and the run is started again with
/// more: the weights equal the weights of an undisturbed run.
#[test]
fn a_job_that_loses_a_process_resumes_from_its_last_checkpoint() {
    if Command::new("mpirun").arg("--version").output().is_err() {
        assert!(std::env::var_os("CI").is_none(), "CI must have mpirun");
        return println!("skipped: no mpirun");
    }
    let folder = Folder::new();
    let program = std::env::current_exe().expect("this program has a path");
    let program = [program.to_str().expect("a path"), "child", "--exact", "--nocapture", "--test-threads=1", "-q"];
    let (steps, count) = (folder.0.join("steps"), folder.0.join("count"));
    std::fs::write(&count, "3").expect("a file");
    let available = format!("cat {}", count.display());
    let steps = steps.to_str().expect("a path").to_owned();
    let arguments =
        ["-n", "2:4", "--restarts", "3", "--backoff", "0.1", "--available", &available, "--checkpoints", &steps];
    let running = Running::start(&folder, &arguments, &program);
    wait_for("checkpoint", || last_step(&folder, 2).filter(|step| *step > 25));
    // One process is killed while fewer hosts are available, so the next attempt has two processes.
    std::fs::write(&count, "2").expect("a file");
    send("KILL", &folder.read("pid-1"));
    wait_for("restart", || running.text().contains("restarts 2 processes from step ").then_some(()));
    let killed_at = last_step(&folder, 0).expect("a step");
    wait_for("progress", || last_step(&folder, 0).filter(|step| *step > killed_at + 15));
    // The supervisor passes the signal on: the program saves, and the supervisor ends with the status of a preemption.
    send("TERM", &running.0.id().to_string());
    let (status, text) = running.end(60);
    assert_eq!(status.code(), Some(75), "{text}");
    says(&text, &["attempt 1 failed", "SIGTERM: the program saves and ends", "preempted (SIGUSR1"]);
    std::fs::write(&count, "4").expect("a file");
    let (status, text) = Running::start(&folder, &arguments, &program).end(60);
    assert_eq!(status.code(), Some(0), "{text}");
    assert_eq!(folder.read("weights"), format!("{:?} 4", expected(150)));
}

/// A small disk; `None` where none can be mounted.
struct Disk(PathBuf);

impl Disk {
    fn mount(at: PathBuf) -> Option<Disk> {
        std::fs::create_dir_all(&at).expect("a folder");
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=512k", "tmpfs"]).arg(&at).output();
        mount.is_ok_and(|output| output.status.success()).then_some(Disk(at))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

/// A job of four processes has random signals, kills, stops and a full disk for `SHARDAX_TEST_SOAK` minutes, by default for
/// some seconds; its weights equal the weights of an undisturbed run.
#[test]
fn soak() {
    if Command::new("mpirun").arg("--version").output().is_err() {
        assert!(std::env::var_os("CI").is_none(), "CI must have mpirun");
        return println!("skipped: no mpirun");
    }
    let minutes_of_variable = std::env::var("SHARDAX_TEST_SOAK").ok().and_then(|text| text.parse::<f64>().ok());
    let (minutes, longest_pause) = minutes_of_variable.map_or((0.2, 500), |minutes| (minutes, 4000));
    let folder = Folder::new();
    let folder_of_steps = folder.0.join("steps");
    let disk = Disk::mount(folder_of_steps.clone());
    // At a step in 30 ms, and half of the time for restarts.
    let total = (minutes * 60.0 * 15.0) as u64;
    let program = std::env::current_exe().expect("this program has a path");
    let program = ["env", &format!("SHARDAX_TEST_STEPS={total}"), program.to_str().expect("a path")].map(str::to_owned);
    let test_arguments = ["child", "--exact", "--nocapture", "--test-threads=1", "-q"].map(str::to_owned);
    let program: Vec<&str> = program.iter().chain(&test_arguments).map(String::as_str).collect();
    let steps = folder_of_steps.to_str().expect("a path").to_owned();
    let arguments = ["-n", "4", "--restarts", "100000", "--backoff", "0.1", "--checkpoints", &steps];
    let mut running = Running::start(&folder, &arguments, &program);
    let (mut random, mut counts) = (fastrand::Rng::with_seed(total), [0; 4]);
    let mut draw = |below: u64| random.u64(0..below);
    let mut fault_step = 0;
    while running.0.try_wait().expect("it is a child of ours").is_none() {
        // Each fault meets a run that has come on since the one before.
        std::thread::sleep(Duration::from_millis(300 + draw(longest_pause)));
        let step = last_step(&folder, 0).unwrap_or(0);
        if step < fault_step + 25 || step + 100 > total {
            continue;
        }
        fault_step = step;
        let process = folder.read(&format!("pid-{}", draw(4)));
        let kind = draw(4) as usize;
        counts[kind] += 1;
        fn signal(name: &str, process: &str) {
            drop(Command::new("kill").args([&format!("-{name}"), process]).output())
        }
        match kind {
            0 => signal("TERM", &process),
            1 => signal("KILL", &process),
            2 => {
                signal("STOP", &process);
                std::thread::sleep(Duration::from_millis(draw(6000)));
                signal("CONT", &process);
            }
            _ if disk.is_some() => {
                let filler = folder_of_steps.join("filler");
                let _ = std::fs::write(&filler, vec![0; 1 << 20]);
                std::thread::sleep(Duration::from_millis(300));
                let _ = std::fs::remove_file(&filler);
            }
            _ => {}
        }
    }
    let (status, text) = running.end(1);
    assert_eq!(status.code(), Some(0), "{text}");
    assert_eq!(folder.read("weights"), format!("{:?} 4", expected(total)), "{text}");
    assert_ne!(counts, [0; 4], "there were no faults");
    let [terminated, killed, stopped, full] = counts;
    println!(
        "{total} steps; SIGTERM {terminated}, SIGKILL {killed}, stopped {stopped}, disk full {full}: the same weights"
    );
    println!(
        "restarts {}; checkpoints not written {}",
        text.matches("restarts 4").count(),
        text.matches("was not written").count()
    );
}
