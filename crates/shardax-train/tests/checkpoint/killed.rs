//! Training that is killed at any moment (`kill -9`) resumes from its last checkpoint, which must be complete.
//!
//! `SHARDAX_TEST_KILLS=200 cargo test -p shardax-train --test checkpoint killed -- --nocapture` prints the table.

use std::io::{BufRead, BufReader};
use std::time::{Duration, Instant};

use shardax_nn::prelude::*;
use shardax_train::checkpoint::{CheckpointManager, CheckpointManagerOptions};

use super::{Folder, bits, child, names, setup};

const FOLDER: &str = "SHARDAX_TEST_CHECKPOINTS";
const STEPS: u64 = 100_000;

type State = (Vec<Linear>, Array);

fn begin() -> State {
    let mut rngs = Rngs::new(0);
    ((0..4).map(|_| Linear::new(256, 256, &mut rngs)).collect(), array(0))
}

/// A step; the state after it does not depend on what ended the program before.
fn next(state: State) -> Result<State> {
    let (layers, count) = state;
    let count = count + 1;
    let moved = tree::map(|x| x * 0.75 + (&count % 7).astype(DType::F32) * 0.125, layers)?;
    Ok((moved, count))
}

/// The program of the process that is killed.
#[test]
#[ignore = "a child of the test below"]
fn train() -> Result<()> {
    let Some(folder) = std::env::var_os(FOLDER) else { return Ok(()) };
    let mut checkpoints = CheckpointManager::new(&folder, CheckpointManagerOptions::new().max_to_keep(2))?;
    let (mut state, mut step) = (begin(), 0);
    if let Some(last) = checkpoints.restore_latest(&state)? {
        (state, step) = (last.tree, last.step);
    }
    println!("begins at {step}");
    let advance = jit(next).donate_argnums([0]);
    while step < STEPS {
        state = advance.call(state)?;
        step += 1;
        checkpoints.save(step, &state)?;
        // The save before is on the disk.
        println!("came to {step}");
    }
    Ok(())
}

fn came_to(line: String) -> Option<u64> {
    line.strip_prefix("came to ")?.parse().ok()
}

#[test]
fn a_training_that_is_killed_resumes() -> Result<()> {
    setup();
    let kills: usize = std::env::var("SHARDAX_TEST_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(6);
    let folder = Folder::new();
    let runs = folder.join("runs");
    std::fs::create_dir(&runs).expect("a folder");
    let (mut reference, mut at) = (begin(), 0u64);
    let advance = jit(next);
    let mut random = fastrand::Rng::with_seed(kills as u64);
    let (mut unfinished, mut lost, mut killed_while_writing) = (0, Vec::new(), 0);
    let mut latest = 0;
    for kill in 0..kills {
        let mut child = child::start(
            child::command("killed::train")
                .env(FOLDER, &runs)
                .env("SHARDAX_COMPILATION_CACHE_DIR", folder.join("cache")),
        );
        let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines().map_while(std::io::Result::ok);
        let begins = lines.by_ref().find_map(|line| line.strip_prefix("begins at ")?.parse::<u64>().ok());
        assert_eq!(begins, Some(latest), "kill {kill}: it begins where the last checkpoint was");
        // One in eight is killed as it begins; the others at any moment after their first step.
        let mut came = latest;
        if kill % 8 != 7 {
            came = lines.by_ref().find_map(came_to).expect("it makes a step");
        }
        let until = Instant::now() + Duration::from_micros(random.u64(0..120_000));
        while Instant::now() < until {
            std::thread::sleep(Duration::from_micros(100));
        }
        child.kill().expect("it is a child of ours");
        child.wait().expect("it is a child of ours");
        came = lines.filter_map(came_to).last().unwrap_or(came);

        let half = names(&runs).iter().any(|name| name.ends_with(".unfinished"));
        killed_while_writing += usize::from(half);
        let checkpoints = CheckpointManager::new(&runs, CheckpointManagerOptions::new().read_only(true))?;
        let steps = checkpoints.all_steps()?;
        for step in &steps {
            checkpoints.checkpoint(*step)?.verify()?;
        }
        latest = steps.last().copied().unwrap_or(0);
        // A step that it came to had the one before it on the disk.
        assert!(latest + 1 >= came, "kill {kill}: it came to step {came}, and the last checkpoint is {latest}");
        lost.push(came.saturating_sub(latest));
        unfinished += usize::from(latest < came);
        if latest > 0 {
            while at < latest {
                reference = advance.call(reference)?;
                at += 1;
            }
            assert_eq!(bits(&checkpoints.restore(latest, &begin())?)?, bits(&reference)?, "kill {kill}: step {latest}");
        }
    }
    let damaged = names(&runs).iter().filter(|name| name.contains("damaged")).count();
    println!("kills {kills}; while a checkpoint was written {killed_while_writing}; damaged checkpoints {damaged}");
    println!("steps lost: none {}, the one in flight {unfinished}, more 0; the last step {latest}", kills - unfinished);
    assert_eq!((damaged, lost.into_iter().max().unwrap_or(0) > 1), (0, false));
    // How far it comes in the time before a kill is the machine's matter.
    assert!(latest > 0, "it came on: {latest} steps");
    // The next manager must remove the files of the interrupted save.
    drop(CheckpointManager::new(&runs, CheckpointManagerOptions::new())?);
    assert!(names(&runs).iter().all(|name| !name.ends_with(".unfinished")));
    Ok(())
}
