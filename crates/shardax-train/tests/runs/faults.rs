//! Faults that a run holds.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::training::{Run, expected};
use super::{Running, says, send, wait_for};

/// A process is stopped for as long as a network might stall; `SHARDAX_TEST_STALL` says for how many seconds.
#[test]
fn a_process_that_stalls_is_named_and_waited_for() {
    let stall: u64 = std::env::var("SHARDAX_TEST_STALL").ok().and_then(|n| n.parse().ok()).unwrap_or(7);
    let run = Run::new().pace(20).steps(150).with("SHARDAX_COLLECTIVE_PATIENCE", 2);
    let Some(mut command) = run.processes(2) else { return };
    let running = Running::start(&mut command, &run.folder.join("err"));
    let pids: Vec<String> = (0..2).map(|rank| run.pid(rank)).collect();
    wait_for("step", || run.last(1));
    send("STOP", &pids[1]);
    std::thread::sleep(Duration::from_secs(stall));
    let text = running.text();
    send("CONT", &pids[1]);
    says(&text, &["process 1 on ", " has not been heard of for 3 s", "processes [1] have not reached "]);
    let (status, text) = running.end(60);
    assert!(status.success(), "{text}");
    says(&text, &["process 1 is heard of again, after "]);
    assert_eq!(run.weights(), format!("{:?}", expected(150)));
}

/// A notice while another process is stopped: the run reacts to it when that process continues.
#[test]
fn a_notice_waits_for_a_process_that_stalls() {
    let run = Run::new().pace(20).with("SHARDAX_COLLECTIVE_PATIENCE", 2);
    let Some(mut command) = run.processes(2) else { return };
    let running = Running::start(&mut command, &run.folder.join("err"));
    let pids: Vec<String> = (0..2).map(|rank| run.pid(rank)).collect();
    wait_for("step", || run.last(1));
    send("STOP", &pids[1]);
    send("TERM", &pids[0]);
    std::thread::sleep(Duration::from_secs(4));
    send("CONT", &pids[1]);
    let (status, text) = running.end(60);
    assert_eq!(status.code(), Some(75), "{text}");
    let step = run.last(0).expect("a step");
    assert_eq!(run.saved(), [step]);
    assert_eq!(run.state_at(step), expected(step));
}

/// A small disk, which is removed after the test.
struct Disk(PathBuf);

impl Disk {
    fn mount(at: &Path, size: &str) -> Option<Disk> {
        std::fs::create_dir_all(at).expect("a folder");
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", size, "tmpfs"]).arg(at).output();
        if mount.is_ok_and(|output| output.status.success()) {
            return Some(Disk(at.to_owned()));
        }
        println!("skipped: no disk can be mounted here");
        None
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

/// The run continues, and saves again as soon as there is room.
#[test]
fn a_disk_that_is_full_for_a_while_is_held() {
    let run = Run::new().pace(30).steps(200).save_every(20);
    let Some(disk) = Disk::mount(&run.checkpoints(), "size=256k") else { return };
    let running = Running::start(&mut run.alone(), &run.folder.join("err"));
    wait_for("checkpoint", || (!run.saved().is_empty()).then_some(()));
    let filler = run.checkpoints().join("filler");
    let _ = std::fs::write(&filler, vec![0; 1 << 20]);
    wait_for("warning", || running.text().contains("a checkpoint was not written").then_some(()));
    std::fs::remove_file(&filler).expect("it is there");
    let (status, text) = running.end(60);
    assert!(status.success(), "{text}");
    says(&text, &["(1 of 4 in a row that end the run)", "No space left on device", "the run continues"]);
    assert_eq!(run.saved(), [180, 200]);
    assert_eq!(run.weights(), format!("{:?}", expected(200)));
    drop(disk);
}

/// A disk that stays full ends the run and keeps the earlier checkpoints.
#[test]
fn a_disk_that_stays_full_ends_the_run() {
    let run = Run::new().pace(10).steps(1000).save_every(20);
    let Some(disk) = Disk::mount(&run.checkpoints(), "size=256k") else { return };
    let running = Running::start(&mut run.alone(), &run.folder.join("err"));
    wait_for("checkpoint", || (!run.saved().is_empty()).then_some(()));
    let _ = std::fs::write(run.checkpoints().join("filler"), vec![0; 1 << 20]);
    let (status, text) = running.end(60);
    assert_eq!(status.code(), Some(3), "{text}");
    says(&text, &["(3 of 4 in a row that end the run)", "No space left on device"]);
    let saved = run.saved();
    let last_step = *saved.last().expect("what was saved before");
    assert_eq!(run.state_at(last_step), expected(last_step));
    drop(disk);
}

/// Of several processes one cannot write; none takes the checkpoint for complete.
#[test]
fn a_disk_that_is_full_for_one_process_is_held_by_all() {
    let run = Run::new().pace(20).steps(120).save_every(20);
    let Some(mut command) = run.processes(2) else { return };
    let running = Running::start(&mut command, &run.folder.join("err"));
    wait_for("step", || run.last(1));
    // Where process 0 would make the folder of the step.
    std::fs::create_dir(run.checkpoints().join("60.unfinished")).expect("a folder");
    let (status, text) = running.end(60);
    assert!(status.success(), "{text}");
    assert_eq!(text.matches("a checkpoint was not written").count(), 2, "{text}");
    says(&text, &["60.unfinished exists already", "the checkpoint ", "was not written: process 0 or another failed"]);
    assert_eq!((run.saved(), run.weights()), (vec![100, 120], format!("{:?}", expected(120))));
}

/// A library that is loaded before the C library: calls of the system that misbehave.
fn misbehaving(run: &Run) -> Option<PathBuf> {
    let (source, library) = (run.folder.join("faults.c"), run.folder.join("faults.so"));
    std::fs::write(&source, include_str!("faults.c")).expect("a file");
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status();
    if built.is_ok_and(|status| status.success()) {
        return Some(library);
    }
    println!("skipped: no C compiler");
    None
}

/// The wall clock jumps by an hour back and forth, several times a second.
#[test]
fn a_clock_that_jumps_changes_nothing() {
    let run = Run::new().pace(5).steps(200).save_every(50);
    let Some(library) = misbehaving(&run) else { return };
    let mut command = run.alone();
    let running = Running::start(command.env("LD_PRELOAD", library).env("FAULT_CLOCK", "1"), &run.folder.join("err"));
    let (status, text) = running.end(60);
    assert!(status.success(), "{text}");
    assert!(!text.contains("panicked"), "{text}");
    assert_eq!((run.saved(), run.weights()), (vec![150, 200], format!("{:?}", expected(200))));
    // What is measured is not the wall clock's.
    let log = shardax_train::log::JsonLines::read(run.folder.join("metrics.jsonl")).expect("a log");
    let rates: Vec<f64> = log.iter().map(|line| line.values["steps_per_second"]).collect();
    assert!(rates.iter().all(|rate| (0.1..250.0).contains(rate)), "{rates:?}");
}

/// Syncing a file takes a second and a half: steps go on meanwhile, and a line says so.
#[test]
fn a_slow_disk_is_waited_for_with_a_line() {
    let run = Run::new().pace(5).steps(60).save_every(30).with("SHARDAX_TEST_SAVE_TIMEOUT", 5);
    let Some(library) = misbehaving(&run) else { return };
    let mut command = run.alone();
    let running = Running::start(command.env("LD_PRELOAD", library).env("FAULT_SYNC", "1500"), &run.folder.join("err"));
    let (status, text) = running.end(60);
    assert!(status.success(), "{text}");
    says(&text, &["s to write the checkpoint ", "the disk is slow"]);
    assert_eq!((run.saved(), run.weights()), (vec![30, 60], format!("{:?}", expected(60))));
}
