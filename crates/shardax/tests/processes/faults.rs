//! What goes wrong ends within its time, in every process, with a word on what it was.

use std::time::{Duration, Instant};

use shardax::ErrorKind;

use crate::launch::Outcome;
use crate::*;

/// Runs one fault in a job of its own; `bound` says how many seconds it may take.
#[track_caller]
fn fault(name: &str, processes: usize, bound: u64, variables: &[(&str, &str)], look: impl Fn(&Outcome)) {
    for launcher in launchers() {
        let begun = Instant::now();
        let outcome = job(&launcher, &format!("fault-{name}"), processes, variables);
        let took = begun.elapsed();
        println!("{name} under {} took {took:?}:\n{}", launcher.display(), outcome.text);
        assert!(took < Duration::from_secs(bound), "{name} took {took:?}:\n{}", outcome.text);
        look(&outcome);
    }
}

#[track_caller]
fn says(outcome: &Outcome, texts: &[&str]) {
    for text in texts {
        assert!(outcome.text.contains(text), "{text:?} is not in:\n{}", outcome.text);
    }
}

/// A sum over the devices of all processes.
fn sum() -> Result<Array> {
    jit(|x: Array| x.sum(..)).call(&counted(device_count())?)
}

/// What a process does whose job has a fault.
pub fn child(what: &str) -> Result<()> {
    if what == "late_start" {
        arange(0..2).block_until_ready()?;
        println!("[{}]", shardax::distributed::initialize().unwrap_err());
        return Ok(());
    }
    if what == "alone" {
        return arange(0..2).block_until_ready();
    }
    if let Err(error) = shardax::distributed::initialize() {
        println!("[{error}]");
        std::process::exit(7);
    }
    let (rank, total) = (process_index(), (device_count() * (device_count() - 1) / 2) as f32);
    assert_eq!(sum()?.item::<f32>()?, total);
    match what {
        "killed" => {
            if rank == 1 {
                // As by the system, when memory is short.
                let own = std::process::id().to_string();
                std::process::Command::new("kill").args(["-9", &own]).status().unwrap();
            }
            sum()?.block_until_ready()?;
        }
        "fails" if rank == 1 => return Err(shardax::Error::new(ErrorKind::Value, "the data set is not here")),
        "panics" if rank == 1 => panic!("something else"),
        "fails" | "panics" => sum()?.block_until_ready()?,
        "finishes" if rank == 0 => {
            let error = sum()?.block_until_ready().unwrap_err();
            println!("[0: {error}]");
            return Err(error);
        }
        "finishes" => {}
        "swapped" => {
            let (f, g) = (jit(|x: Array| x.sum(..) + 1.0), jit(|x: Array| x.max(..) * 2.0));
            let x = counted(device_count())?;
            f.call(&x)?.block_until_ready()?;
            g.call(&x)?.block_until_ready()?;
            let first = if rank == 0 { f.call(&x) } else { g.call(&x) };
            let error = first.and_then(|y| y.block_until_ready()).unwrap_err();
            println!("[{rank}: {error}]");
            // It stays so.
            assert!(f.call(&x).and_then(|y| y.block_until_ready()).is_err());
            assert!(jit(|x: Array| x.min(..)).call(&x).is_err());
            // What this process does alone goes on.
            assert_eq!(arange(0..4).sum(..).item::<i32>()?, 6);
            return Err(error);
        }
        "late" => {
            if rank == 1 {
                std::thread::sleep(Duration::from_secs(3));
            }
            assert_eq!(sum()?.item::<f32>()?, total);
            println!("[{rank} has it]");
        }
        other => panic!("no fault {other}"),
    }
    Ok(())
}

const QUICK: [(&str, &str); 3] =
    [("SHARDAX_COLLECTIVE_TIMEOUT", "4"), ("SHARDAX_COLLECTIVE_PATIENCE", "1"), ("SHARDAX_NUM_CPU_DEVICES", "1")];

#[test]
fn a_killed_process_ends_the_job() {
    fault("killed", 3, 20, &[], |outcome| {
        assert!(!outcome.success);
    });
}

#[test]
fn a_process_that_fails_ends_the_job() {
    fault("fails", 2, 20, &[], |outcome| {
        assert!(!outcome.success);
        says(outcome, &["the data set is not here"]);
    });
}

#[test]
fn a_process_that_panics_ends_the_job() {
    fault("panics", 2, 20, &[], |outcome| {
        assert!(!outcome.success);
        says(outcome, &["something else"]);
    });
}

#[test]
fn a_process_that_finishes_early_is_named() {
    fault("finishes", 2, 25, &QUICK, |outcome| {
        assert!(!outcome.success);
        says(
            outcome,
            &["process 1 has finished and waits for the others", "processes [1] have not come to call 0 of `"],
        );
        says(outcome, &["[0: ", "within 4s processes [1] have not come"]);
    });
}

// SPEC 136
#[test]
fn programs_in_another_order_are_an_error_on_all() {
    fault("swapped", 2, 25, &QUICK, |outcome| {
        assert!(!outcome.success);
        says(outcome, &["[0: ", "process 1 is at call 0 of `", "[1: ", "process 0 is at call 0 of `"]);
        says(outcome, &["all processes must run the same computations in the same order"]);
    });
}

#[test]
fn a_late_process_is_named_and_waited_for() {
    let patient = [("SHARDAX_COLLECTIVE_TIMEOUT", "60"), ("SHARDAX_COLLECTIVE_PATIENCE", "1")];
    fault("late", 2, 30, &patient, |outcome| {
        assert!(outcome.success, "{}", outcome.text);
        says(outcome, &["processes [1] have not come to call 0 of `lambda", "for 1 s", "[0 has it]", "[1 has it]"]);
    });
}

#[test]
fn joining_after_devices_are_in_use_is_an_error() {
    fault("late_start", 2, 20, &[], |outcome| {
        says(outcome, &["must be called before any computations are executed: 1 devices are in use already"]);
    });
}

#[test]
fn a_process_that_does_not_join_is_told() {
    fault("alone", 2, 20, &[], |outcome| {
        assert!(outcome.success, "{}", outcome.text);
        says(outcome, &["this is process 1 of 2 started by mpirun", "and it runs alone", "distributed::initialize()"]);
    });
}

#[test]
fn a_library_that_is_not_there_is_an_error() {
    fault("library", 2, 20, &[("SHARDAX_MPI_LIBRARY", "/nowhere/libmpi.so.40")], |outcome| {
        assert!(!outcome.success);
        says(outcome, &["[plugin error: this process is 1 of 2 started by mpirun", "/nowhere/libmpi.so.40"]);
    });
}

/// Needs a second MPI: `SHARDAX_OTHER_MPI` names its library.
#[test]
fn a_library_of_another_mpi_is_an_error() {
    let Some(library) = std::env::var_os("SHARDAX_OTHER_MPI") else { return };
    fault("library", 2, 20, &[("SHARDAX_MPI_LIBRARY", library.to_str().unwrap())], |outcome| {
        assert!(!outcome.success);
        says(outcome, &["belongs to another MPI than the launcher", "SHARDAX_MPI_LIBRARY"]);
    });
}
