//! Processes that join by a store in a shared folder, without a launcher and without MPI. Each test has a time limit.

#[path = "../../shardax/tests/common/mod.rs"]
mod common;

use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use common::child::{self, Ended};
use shardax::distributed::{self, Options, preemption};
use shardax::multihost::reached_preemption_sync_point;
use shardax::prelude::*;

const CASE: &str = "SHARDAX_TEST_CASE";

fn command(folder: &Path, case: &str, (rank, size): (usize, usize)) -> Command {
    let mut command = child::command("member");
    command.env(CASE, case).env("SHARDAX_COORDINATOR_ADDRESS", format!("file:{}", folder.display()));
    command.env("SHARDAX_NUM_PROCESSES", size.to_string()).env("SHARDAX_PROCESS_ID", rank.to_string());
    command.env("SHARDAX_NUM_CPU_DEVICES", "1");
    command.env("SHARDAX_COLLECTIVE_TIMEOUT", "4").env("SHARDAX_COLLECTIVE_PATIENCE", "1");
    command
}

/// Runs a job; fails if one of its processes does not end in two minutes.
fn job(folder: &Path, case: &str, size: usize) -> Vec<Ended> {
    let start = |rank| child::start(&mut command(folder, case, (rank, size)));
    let running: Vec<Child> = (0..size).map(start).collect();
    running.into_iter().map(child::wait).collect()
}

#[track_caller]
fn says(ended: &Ended, texts: &[&str]) {
    let text = format!("{}\n{}", ended.out, ended.err);
    for part in texts {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
}

/// A process of a job.
#[test]
#[ignore = "run by another test"]
fn member() -> Result<()> {
    let case = std::env::var(CASE).expect("set by the other tests");
    let join = match case.as_str() {
        "missing" => Options::default().initialization_timeout(Duration::from_millis(300)).initialize(),
        _ => distributed::initialize(),
    };
    let joined = join.unwrap_or_else(|error| {
        println!("[{error}]");
        std::process::exit(7);
    });
    assert!(joined);
    let rank = process_index();
    match case.as_str() {
        "works" => works(rank)?,
        "killed" if rank == 1 => {
            let process_id = std::process::id().to_string();
            Command::new("kill").args(["-9", &process_id]).status().expect("kill");
        }
        "fails" if rank == 1 => std::process::exit(3),
        "killed" | "fails" => std::thread::sleep(Duration::from_secs(60)),
        other => panic!("no case {other}"),
    }
    Ok(())
}

fn works(rank: usize) -> Result<()> {
    let limit = Duration::from_secs(30);
    assert_eq!((process_count(), device_count(), local_device_count()), (3, 3, 1));
    assert_eq!(jit(|x: Array| x.sum(..)).call(arange(0..4))?.item::<i32>()?, 6);
    for _ in 0..3 {
        distributed::wait_at_barrier("the same name", limit)?;
    }
    if rank > 0 {
        let error = distributed::wait_at_barrier("late", Duration::from_millis(100)).expect_err("one is missing");
        println!("[{error}]");
    } else {
        std::thread::sleep(Duration::from_secs(1));
    }
    distributed::wait_at_barrier("late", limit)?;
    // Each process has its part of an array, and cannot compute with the parts of other processes.
    let rows = NamedSharding::new(&make_mesh([("x", 3)])?, P!["x"]);
    let parts = make_array_from_callback([3], DType::I32, &rows, |at| Ok(array([at[0].start as i32])))?;
    assert_eq!(parts.addressable_data(0)?.to_vec::<i32>()?, [rank as i32]);
    let error = jit(|x: Array| x.sum(..)).call(&parts).expect_err("there is no MPI");
    println!("[{error}]");
    for step in 1..=1000 {
        std::thread::sleep(Duration::from_millis(5));
        if rank == 1 && step == 5 {
            preemption::notify("a notice");
        }
        if reached_preemption_sync_point(step)? {
            println!("[stops after {step}: {}]", preemption::notice().unwrap_or_default());
            break;
        }
    }
    Ok(())
}

/// The time at which a process stopped, from its output.
fn stops_after(ended: &Ended) -> Option<String> {
    ended.out.split("[stops after ").nth(1).and_then(|text| text.split(':').next()).map(str::to_owned)
}

/// Twice in one folder, as a job that is restarted.
#[test]
fn processes_join_by_a_folder() {
    let folder = child::Folder::new();
    for _ in 0..2 {
        let entries = job(&folder.0, "works", 3);
        for (rank, ended) in entries.iter().enumerate() {
            assert!(ended.status.success(), "{rank}: {ended:?}");
            says(
                ended,
                &[
                    "which exchange data by MPI on CPU",
                    "have joined by a store, without MPI",
                    "start the program with `mpirun`",
                ],
            );
            says(ended, &["a notice"]);
        }
        says(&entries[1], &["2 of 3 processes reached the barrier \"late\" within 100ms; missing: processes [0]"]);
        assert!(
            stops_after(&entries[0]).is_some()
                && entries.iter().all(|ended| stops_after(ended) == stops_after(&entries[0])),
            "{entries:?}"
        );
        says(&entries[0], &[": a notice, process 1]"]);
        let files: Vec<String> = std::fs::read_dir(&folder.0)
            .expect("the folder")
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .collect();
        // The job's own values are gone; what stays is overwritten by the next job.
        assert_eq!(files.len(), 5, "{files:?}");
    }
}

/// No launcher would end the others.
#[test]
fn a_process_that_dies_or_fails_ends_the_others() {
    let folder = child::Folder::new();
    for (case, texts) in [
        ("killed", ["process 1 on ", " has not been heard of for ", "ends, because process 1 on "]),
        ("fails", ["process 1 on ", " has failed with status 3", "ends, because process 1 on "]),
    ] {
        let begun = Instant::now();
        let values = job(&folder.0, case, 3);
        assert!(begun.elapsed() < Duration::from_secs(30), "{case} took {:?}", begun.elapsed());
        for rank in [0, 2] {
            assert_eq!(values[rank].status.code(), Some(1), "{case}: {:?}", values[rank]);
        }
        // The next process watches it.
        says(&values[2], &texts);
        says(&values[0], &texts[2..]);
    }
}

fn with_address(address: &str) -> Options {
    Options::default().coordinator_address(address)
}

/// Asserts that processes cannot join with these options, for a reason that has this text.
fn assert_rejected(options: Options, text: &str) {
    let error = options.initialize().expect_err("it is rejected").to_string();
    assert!(error.contains(text) && error.contains("help: "), "{text:?} is not in, or no help: {error}");
}

#[test]
fn processes_that_cannot_join_are_errors() {
    let folder = child::Folder::new();
    let start_alone = |size| child::wait(child::start(&mut command(&folder.0, "missing", (0, size))));
    let ended = start_alone(3);
    assert_eq!(ended.status.code(), Some(7));
    says(&ended, &["[", "processes [1, 2] of 3 did not join within 300ms"]);
    let second = child::wait(child::start(&mut command(&folder.0, "missing", (1, 2))));
    says(&second, &["process 1 of 2 waited for 300ms, and process 0 did not answer"]);
    // Two with the same number.
    let children: Vec<Child> = [0, 1, 1].map(|rank| child::start(&mut command(&folder.0, "missing", (rank, 3)))).into();
    let children: Vec<Ended> = children.into_iter().map(child::wait).collect();
    assert!(children.iter().all(|ended| ended.status.code() == Some(7)), "{children:?}");

    fn two(address: &str) -> Options {
        with_address(address).num_processes(2).process_id(0)
    }
    assert_rejected(two("10.0.0.1:1234"), "invalid address \"10.0.0.1:1234\" of the coordinator: expected `file:`");
    assert_rejected(two("file:here"), "expected `file:` and the path of a folder");
    assert_rejected(with_address("file:/tmp").process_id(0), "num_processes is not set");
    assert_rejected(with_address("file:/tmp").num_processes(2), "process_id is not set");
    assert_rejected(
        with_address("file:/tmp").num_processes(2).process_id(2),
        "process_id is 2, but there are 2 processes",
    );
    assert_rejected(
        with_address("file:/tmp").num_processes(usize::MAX).process_id(0),
        "but at most 1048576 processes can join",
    );
    assert_rejected(Options::default().num_processes(2), "without coordinator_address");
    assert_rejected(two("file:/proc/none"), "cannot make the shared folder /proc/none of the processes");
    assert!(!with_address("file:/tmp").num_processes(1).process_id(0).initialize().expect("one is alone"));
}
