//! The next step donates a state while it is saved. Every checkpoint is the state of its step, bit for bit.

use std::fs;

use shardax::prelude::*;
use shardax_train::checkpoint::{CheckpointManager, CheckpointManagerOptions};

use super::{Folder, fails, setup};

const ARRAYS: u32 = 8;
const SIZE: usize = 1 << 17;

/// Numbers that differ from element to element, and from step to step.
const BY: u32 = 1_664_525;
const PLUS: u32 = 1_013_904_223;

fn begin() -> Result<Vec<Array>> {
    let rows = NamedSharding::new(&make_mesh([("x", 8)])?, P!["x"]);
    (0..ARRAYS).map(|i| device_put(&(arange(0..SIZE as i32).astype(DType::U32) + i * 7919), &rows)).collect()
}

/// Checks the state after this number of steps.
fn check(state: &[Array], steps: u64) -> Result<()> {
    let (by, plus) =
        (0..steps).fold((1u32, 0u32), |(by, plus), _| (by.wrapping_mul(BY), plus.wrapping_mul(BY).wrapping_add(PLUS)));
    for (i, array) in state.iter().enumerate() {
        let begin = i as u32 * 7919;
        let odd = array
            .to_vec::<u32>()?
            .into_iter()
            .zip(begin..)
            .position(|(x, at)| x != at.wrapping_mul(by).wrapping_add(plus));
        assert_eq!(odd, None, "array {i} after {steps} steps");
    }
    Ok(())
}

/// Steps that donate run all the time; while one save is copied, the next steps wait for its memory. One save fails.
#[test]
fn every_checkpoint_is_the_state_of_its_step() -> Result<()> {
    setup();
    let folder = Folder::new();
    let step = jit(|state: Vec<Array>| tree::map(|x| x * BY + PLUS, state)).donate_argnums([0]);
    let mut checkpoints = CheckpointManager::new(&folder.0, CheckpointManagerOptions::new())?;
    let (mut state, mut at) = (begin()?, 0);
    let mut saved = Vec::new();
    for round in 0..16 {
        for _ in 0..=round % 3 {
            state = step.call(state)?;
            at += 1;
        }
        if round == 9 {
            // Its place is taken, and this save comes to nothing.
            let place = folder.join(&format!("{at}.unfinished"));
            fs::create_dir(&place).expect("a folder");
            checkpoints.save(at, &state)?;
            state = step.call(state)?;
            fails(checkpoints.save(at + 1, &state), &["exists already"]);
            fs::remove_dir(&place).expect("the folder");
            at += 1;
        }
        assert!(checkpoints.save(at, &state)?);
        saved.push(at);
    }
    // The last state is given away, too, and what comes of it deleted.
    step.call(state)?.iter().try_for_each(Array::delete)?;
    checkpoints.wait_until_finished()?;
    assert_eq!(checkpoints.all_steps()?, saved);
    let like = begin()?;
    for at in saved {
        check(&checkpoints.restore(at, &like)?, at)?;
    }
    Ok(())
}

/// An array that is deleted while it is saved is saved; one that was is an error of `save` itself.
#[test]
fn arrays_that_are_deleted_during_a_save_are_saved() -> Result<()> {
    setup();
    let folder = Folder::new();
    let mut checkpoints = CheckpointManager::new(&folder.0, CheckpointManagerOptions::new())?;
    let state = begin()?;
    checkpoints.save(1, &state)?;
    state.iter().try_for_each(Array::delete)?;
    fails(checkpoints.save(2, &state), &["a checkpoint's array `[0]`", "has been deleted"]);
    checkpoints.wait_until_finished()?;
    assert_eq!(checkpoints.all_steps()?, [1]);
    check(&checkpoints.restore(1, &begin()?)?, 0)
}

/// `save` does not wait for values; where they could not be computed, what comes next says so, and nothing is saved.
#[test]
fn values_that_could_not_be_computed_are_an_error_later() -> Result<()> {
    setup();
    let folder = Folder::new();
    let mut checkpoints = CheckpointManager::new(&folder.0, CheckpointManagerOptions::new())?;
    let sensor = pure_callback(
        |_, _| {
            std::thread::sleep(std::time::Duration::from_millis(200));
            Err(shardax::Error::new(shardax::ErrorKind::Runtime, "the sensor is gone"))
        },
        shape_dtype_struct([8], DType::F32),
    );
    let rows = NamedSharding::new(&make_mesh([("x", 8)])?, P!["x"]);
    let read = jit(move |x: Array| sensor.call(x)).call(device_put(&zeros([8]), &rows)?)?;
    assert!(checkpoints.save(1, &(ones([2]), read))?);
    fails(checkpoints.save(2, &(ones([2]), ones([8]))), &["a checkpoint's array `[1]`", "the sensor is gone"]);
    assert!(checkpoints.all_steps()?.is_empty() && checkpoints.save(2, &(ones([2]), ones([8])))?);
    checkpoints.close()
}
