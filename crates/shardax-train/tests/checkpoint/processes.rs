//! Checkpoints of several processes: each writes its part, and another number of processes can resume.

use std::path::Path;

use launch::{CASE, launchers};
use shardax::prelude::*;
use shardax::{distributed, multihost};
use shardax_train::checkpoint::{CheckpointManager, CheckpointManagerOptions};
use shardax_train::data::{Example, HostArray, Source, Stream};
use shardax_train::log::JsonLines;
use shardax_train::{Average, Control, MultiMetric, Trainer};

use super::{Folder, fails, launch, names};

const FOLDER: &str = "SHARDAX_TEST_CHECKPOINTS";

type Tree = (Array, Array, Array, Array);

/// Split over all devices; over some, with copies on others; whole on all; each process's own.
fn state(begin: i32) -> Result<Tree> {
    let n = device_count();
    let (line, grid) = (make_mesh([("x", n)])?, make_mesh([("i", n / 2), ("j", 2)])?);
    fn of(sharding: NamedSharding, begin: i32) -> Result<Array> {
        make_array_from_callback([24, 8], DType::I32, &sharding, |index| {
            let rows = arange(index[0].start as i32..index[0].end as i32).reshape([-1, 1]);
            Ok(rows * 8 + arange(index[1].start as i32..index[1].end as i32) + begin)
        })
    }
    let split = of(NamedSharding::new(&line, P!["x"]), begin)?;
    let part = of(NamedSharding::new(&grid, P![None, "j"]), begin)?;
    Ok((split, part, of(NamedSharding::new(&line, P![]), begin)?, array(begin)))
}

fn check(tree: &Tree, begin: i32) -> Result<()> {
    let want: Vec<i32> = (begin..begin + 24 * 8).collect();
    for array in [&tree.0, &tree.1, &tree.2] {
        assert_eq!(multihost::process_allgather_tiled(array)?.to_vec::<i32>()?, want);
    }
    assert_eq!(tree.3.item::<i32>()?, begin);
    Ok(())
}

/// The program of a process of a job; nothing when the tests run.
#[test]
fn child() {
    let Ok(case) = std::env::var(CASE) else { return };
    let folder = std::env::var_os(FOLDER).expect("a folder");
    if let Err(error) = distributed::initialize().and_then(|_| run(&case, Path::new(&folder))) {
        eprintln!("process {}: {error}", process_index());
        std::process::exit(3);
    }
}

/// Twelve steps of a loop whose weights are split over all devices, or as many as there are left after a checkpoint.
fn train(folder: &Path, steps: u64) -> Result<()> {
    let mesh = make_mesh([("x", device_count())])?.auto();
    let (split, whole) = (NamedSharding::new(&mesh, P!["x"]), NamedSharding::new(&mesh, P![]));
    let weights = make_array_from_callback([8], DType::F32, &split, |index| Ok(zeros([index[0].len()])))?;
    // Data of the host is the whole, on each process; a batch is of each process's part where that is asked for.
    let host = HostArray::from_slice(&(0..16).collect::<Vec<i32>>(), &[16])?;
    assert_eq!((host.to_array_on(&split)?.shape(), host.to_array_on(&whole)?.shape()), (&[16][..], &[16][..]));
    assert_eq!(host.to_array_of_process(&split)?.shape(), [16 * process_count()]);
    let local_part = HostArray::from_slice(&[process_index() as i32; 16], &[16])?.to_array_on(&split);
    assert!(process_count() == 1 || local_part.is_err_and(|e| e.message().contains("is not the same on each process")));
    let step = jit(|w: Array, x: Array| {
        let loss = (&x * &w).sum(1).mean(..);
        (w - (&x - 0.5).mean(0) * 0.1, MultiMetric::new().with("loss", Average::of(loss)))
    })
    .out_shardings((&split, UNSPECIFIED))
    .donate_argnums([0]);
    fn row(i: usize) -> Result<Example> {
        Ok(Example::from([("x".to_owned(), HostArray::from_slice(&[(i * i % 11) as f32 / 11.0; 8], &[8])?)]))
    }
    let rows = (64usize, row).stream().shuffled(5).shard(process_index(), process_count());
    let mut data = rows.batch(8 / process_count()).map(move |batch| batch["x"].to_array_of_process(&split)).prefetch(2);
    let options = CheckpointManagerOptions::new().save_interval_steps(3).timeout(std::time::Duration::from_secs(20));
    let mut checkpoints = CheckpointManager::new(folder.join("run"), options)?;
    let mut sums: Vec<f64> = Vec::new();
    let state = Trainer::new(steps)
        .log_every(2)
        .quiet()
        .logger(JsonLines::new(folder.join("run/metrics.jsonl"))?)
        .checkpoints(&mut checkpoints)
        .check_finite()
        .check_replicas_every(4)
        .evaluate_every(4, "test", |w: &Array| {
            let sum = jit(|w: Array| w.sum(..)).out_shardings(&whole).call(w)?;
            Ok(MultiMetric::new().with("sum", Average::of(sum)))
        })
        .on_log(|_, values| {
            sums.extend(values.get("test/sum"));
            Ok(Control::Continue)
        })
        .run(weights, &mut data, |w, x| step.call((w, x)))?;
    let values = multihost::process_allgather_tiled(&state)?.to_vec::<f32>()?;
    if process_index() == 0 {
        let text: Vec<String> = values.iter().map(|x| format!("{:.5}", x)).collect();
        std::fs::write(folder.join(format!("weights-{steps}-{}", process_count())), text.join(" ")).expect("a file");
    }
    assert!(sums.iter().all(|sum| sum.is_finite()) && !sums.is_empty());
    Ok(())
}

fn run(case: &str, folder: &Path) -> Result<()> {
    if let Some(steps) = case.strip_prefix("train-") {
        return train(folder, steps.parse().expect("a number"));
    }
    let options = CheckpointManagerOptions::new().max_to_keep(2).timeout(std::time::Duration::from_secs(20));
    let mut checkpoints = CheckpointManager::new(folder, options)?;
    if let Some(step) = case.strip_prefix("restore-") {
        // `restore-11-1`: step 11, and where others write the next.
        let step: u64 = step.split('-').next().and_then(|step| step.parse().ok()).expect("a step");
        let latest = checkpoints.restore_latest(&state(0)?)?.expect("a checkpoint");
        assert_eq!(latest.step, step);
        check(&latest.tree, step as i32)?;
        check(&checkpoints.restore(step, &state(-1)?)?, step as i32)?;
        assert!(checkpoints.save(step + 1, &state(step as i32 + 1)?)?);
        return checkpoints.close();
    }
    for step in 8..=11 {
        checkpoints.save(step, &state(step as i32)?)?;
    }
    checkpoints.wait_until_finished()?;
    assert_eq!(checkpoints.all_steps()?, [10, 11]);
    // What each process has for itself must be the same.
    let mut other_state = state(12)?;
    other_state.3 = array(process_index() as i32);
    checkpoints.save(12, &other_state)?;
    match process_index() {
        0 => fails(
            checkpoints.wait_until_finished(),
            &["the array `[3]` to save has another value in process 1 than in process 0"],
        ),
        _ => fails(checkpoints.wait_until_finished(), &["was not written", "process 0"]),
    }
    // One that cannot write is an error on all.
    let gone = state(12)?;
    if process_index() == 1 {
        gone.3.delete()?;
    }
    checkpoints.save(12, &gone)?;
    match process_index() {
        0 => fails(checkpoints.wait_until_finished(), &["process 1 could not write its part", "deleted"]),
        1 => fails(checkpoints.wait_until_finished(), &["has been deleted"]),
        _ => fails(checkpoints.wait_until_finished(), &["was not written"]),
    }
    assert_eq!(checkpoints.all_steps()?, [10, 11]);
    checkpoints.close()
}

/// 2 processes of 2 devices save; 4 of 1, one of 4 and 2 of 4 go on, one after the other.
#[test]
fn another_number_of_processes_resumes() {
    for launcher in launchers() {
        let folder = Folder::new();
        let job_in = |folder: &Folder, case: &str, processes: usize, devices: usize| {
            let variables = [
                (FOLDER, folder.0.to_str().expect("a path")),
                ("SHARDAX_NUM_CPU_DEVICES", &devices.to_string()),
                ("SHARDAX_COLLECTIVE_TIMEOUT", "30"),
            ];
            let arguments = ["processes::child", "--exact", "--nocapture", "--test-threads=1"];
            let outcome = launch::run(&launcher, case, &arguments, processes, &variables);
            assert!(outcome.success, "{case} under {}:\n{}", launcher.display(), outcome.text);
        };
        let job = |case: &str, processes: usize, devices: usize| job_in(&folder, case, processes, devices);
        job("save", 2, 2);
        assert_eq!(names(&folder.0), [".lock", "10", "11"]);
        let files: Vec<String> =
            names(&folder.join("11")).into_iter().filter(|name| name.starts_with("device")).collect();
        assert_eq!(files.len(), 4);
        job("restore-11", 4, 1);
        job("restore-12", 1, 4);
        job("restore-13", 2, 4);
        assert_eq!(names(&folder.0), [".lock", "13", "14"]);

        // A run of 2 processes that 4 processes, and then a single one, resume must end with the state of an
        // uninterrupted run of one process.
        let folder_of_one = Folder::new();
        let parts = Folder::new();
        job_in(&folder_of_one, "train-12", 1, 4);
        job_in(&parts, "train-4", 2, 2);
        job_in(&parts, "train-8", 4, 1);
        job_in(&parts, "train-12", 1, 4);
        fn read(folder: &Folder, name: &str) -> String {
            std::fs::read_to_string(folder.join(name)).expect("the weights")
        }
        assert_eq!(read(&parts, "weights-12-1"), read(&folder_of_one, "weights-12-1"));
        fn steps(folder: &Folder) -> Vec<u64> {
            JsonLines::read(folder.join("run/metrics.jsonl")).expect("a log").iter().map(|line| line.step).collect()
        }
        assert_eq!(steps(&parts), steps(&folder_of_one));
    }
}
