//! A manager of checkpoints: the steps it saves and retains, and files that other programs left.

use std::fs;
use std::sync::mpsc::sync_channel;

use shardax::prelude::*;
use shardax_train::checkpoint::{self, BestMode, CheckpointManager, CheckpointManagerOptions, SaveArgs};

use super::{Folder, fails, names, setup};

type Options = CheckpointManagerOptions;

fn value(x: f32) -> (Array, Vec<Array>) {
    (array([x; 3]), vec![array(x)])
}

fn of(tree: &(Array, Vec<Array>)) -> f32 {
    tree.1[0].item().expect("a number")
}

#[test]
fn the_last_are_kept_and_steps_between_are_passed_over() -> Result<()> {
    setup();
    let folder = Folder::new();
    let options = Options::new().max_to_keep(3).save_interval_steps(2).keep_period(8);
    let mut checkpoints = CheckpointManager::new(folder.join("deep/in"), options.clone())?;
    assert_eq!((checkpoints.latest_step()?, checkpoints.best_step()?), (None, None));
    assert!(checkpoints.restore_latest(&value(0.0))?.is_none());
    let saved: Vec<bool> = (1..=18).map(|step| checkpoints.save(step, &value(step as f32))).collect::<Result<_>>()?;
    assert_eq!(saved, (1..=18).map(|step| step % 2 == 0).collect::<Vec<_>>());
    assert!(checkpoints.save_with(19, &value(19.0), &SaveArgs::new().force(true))?);
    checkpoints.wait_until_finished()?;
    assert_eq!(checkpoints.all_steps()?, [8, 16, 18, 19]);
    assert_eq!(of(&checkpoints.restore(16, &value(0.0))?), 16.0);
    fails(checkpoints.restore(4, &value(0.0)), &["has no step 4", "[8, 16, 18, 19]"]);
    assert!(!checkpoints.save_with(16, &value(0.0), &SaveArgs::new()).is_ok_and(|saved| saved));
    fails(checkpoints.save(16, &value(0.0)), &["step 16 is not after step 19", "delete"]);
    checkpoints.delete(19)?;
    assert_eq!(of(&checkpoints.restore_latest(&value(0.0))?.expect("a checkpoint").tree), 18.0);
    // The same step again exists already.
    assert!(!checkpoints.save(18, &value(0.0))?);
    checkpoints.close()?;

    let early = CheckpointManager::new(folder.join("none"), Options::new().read_only(true))?;
    assert!(early.latest_step()?.is_none() && !folder.join("none").exists());
    // The user's own folders are not steps.
    fs::create_dir(folder.join("deep/in/0018")).expect("a folder");
    fs::copy(folder.join("deep/in/18/commit"), folder.join("deep/in/0018/commit")).expect("a file");
    let mut reader = CheckpointManager::new(folder.join("deep/in"), options.read_only(true))?;
    assert_eq!(reader.all_steps()?, [8, 16, 18]);
    assert_eq!(reader.latest_step()?, Some(18));
    fails(reader.save(20, &value(0.0)), &["opened as read-only"]);
    Ok(())
}

#[test]
fn the_best_are_kept_and_the_last() -> Result<()> {
    setup();
    let folder = Folder::new();
    let options = Options::new().max_to_keep(2).best_fn(|metrics| metrics.get("accuracy").copied(), BestMode::Max);
    let mut checkpoints = CheckpointManager::new(&folder.0, options)?;
    for (step, accuracy) in [0.5, 0.9, 0.7, f64::NAN, 0.8, 0.1].into_iter().enumerate() {
        let args = SaveArgs::new().metric("accuracy", accuracy);
        checkpoints.save_with(step as u64, &value(accuracy as f32), &args)?;
    }
    checkpoints.save(6, &value(0.0))?;
    checkpoints.wait_until_finished()?;
    assert_eq!((checkpoints.all_steps()?, checkpoints.best_step()?), (vec![1, 4, 6], Some(1)));
    drop(checkpoints);
    let ranked = |mode: &str| Options::new().best_fn(|metrics| metrics.get("accuracy").copied(), mode).read_only(true);
    assert_eq!(CheckpointManager::new(&folder.0, ranked("min"))?.best_step()?, Some(4));
    let error = CheckpointManager::new(&folder.0, ranked("least")).err().expect("no mode has this name").to_string();
    assert!(error.contains("unknown mode \"least\"") && error.contains("\"max\", \"min\""), "{error}");
    Ok(())
}

#[test]
fn a_step_that_is_saved_again_has_its_new_rank() -> Result<()> {
    setup();
    let folder = Folder::new();
    let options = Options::new().best_fn(|metrics| metrics.get("loss").copied(), BestMode::Min).max_to_keep(9);
    let mut checkpoints = CheckpointManager::new(&folder.0, options)?;
    for (step, loss) in [(1, 3.0), (2, 1.0)] {
        checkpoints.save_with(step, &value(0.0), &SaveArgs::new().metric("loss", loss))?;
    }
    checkpoints.wait_until_finished()?;
    assert_eq!(checkpoints.best_step()?, Some(2));
    checkpoints.delete(2)?;
    checkpoints.save_with(2, &value(0.0), &SaveArgs::new().metric("loss", 4.0))?;
    checkpoints.wait_until_finished()?;
    assert_eq!(checkpoints.best_step()?, Some(1));
    Ok(())
}

#[test]
fn stale_temporary_files_are_removed() -> Result<()> {
    setup();
    let folder = Folder::new();
    fn stale(folder: &Folder) {
        fs::create_dir(folder.join("7.unfinished")).expect("a folder");
        fs::write(folder.join("7.unfinished").join("device-00000.safetensors"), "half").expect("a file");
    }
    fs::write(folder.join("notes.unfinished"), "the user's").expect("a file");
    stale(&folder);
    let mut manager = CheckpointManager::new(&folder.0, Options::new())?;
    assert_eq!(names(&folder.0), [".lock", "notes.unfinished"]);
    // The first manager still exists, so the folder can belong to it.
    stale(&folder);
    let second = CheckpointManager::new(&folder.0, Options::new())?;
    assert!(folder.join("7.unfinished").exists());
    drop(second);
    manager.save(7, &value(7.0))?;
    fails(manager.wait_until_finished(), &["7.unfinished exists already", "another program"]);
    assert!(folder.join("7.unfinished").exists());
    // The error was reported once.
    assert!(manager.save(8, &value(8.0))?);
    drop(manager);
    let third = CheckpointManager::new(&folder.0, Options::new())?;
    assert_eq!(
        (names(&folder.0), third.all_steps()?),
        (vec![".lock".into(), "8".into(), "notes.unfinished".into()], vec![8])
    );
    Ok(())
}

#[test]
fn the_last_whole_one_is_restored() -> Result<()> {
    setup();
    let folder = Folder::new();
    let mut checkpoints = CheckpointManager::new(&folder.0, Options::new())?;
    for step in 1..=4 {
        checkpoints.save(step, &value(step as f32))?;
    }
    checkpoints.wait_until_finished()?;
    let file = |step: u64| folder.join(&step.to_string()).join("device-00000.safetensors");
    let mut bytes = fs::read(file(4)).expect("the file");
    *bytes.last_mut().expect("a byte") ^= 1;
    fs::write(file(4), &bytes).expect("the file");
    fs::remove_file(file(3)).expect("the file");

    let strict = CheckpointManager::new(&folder.0, Options::new().fall_back(false))?;
    let mut strict = strict;
    fails(strict.restore_latest(&value(0.0)), &["device-00000.safetensors", "have changed since they were written"]);
    drop(strict);
    // Another tree is the program's mistake: nothing is passed over.
    fails(checkpoints.restore_latest(&array(0.0)), &["the tree is not the one that was saved"]);

    let (send, warnings) = sync_channel(16);
    config::set_warning_hook(move |text| drop(send.try_send(text.to_owned())));
    let latest = checkpoints.restore_latest(&value(0.0))?.expect("a checkpoint");
    assert_eq!((latest.step, of(&latest.tree)), (2, 2.0));
    let messages: Vec<String> =
        warnings.try_iter().filter(|text| text.contains(&*folder.0.to_string_lossy())).collect();
    assert!(
        messages[0].contains("step 4 is passed over") && messages[1].contains("step 3 is passed over"),
        "{messages:?}"
    );
    assert!(messages[1].contains("it is missing"), "{messages:?}");
    assert_eq!(names(&folder.0), [".lock", "1", "2", "3.damaged", "4.damaged"]);
    // The renamed folders must not prevent the steps from being saved again.
    assert!(checkpoints.save(3, &value(3.5))?);
    checkpoints.wait_until_finished()?;
    assert_eq!(checkpoints.all_steps()?, [1, 2, 3]);
    // None is whole.
    for step in 1..=3 {
        fs::remove_file(file(step)).expect("the file");
    }
    fails(checkpoints.restore_latest(&value(0.0)), &["3/device-00000.safetensors", "it is missing"]);
    Ok(())
}

#[test]
fn state_can_be_donated_during_a_save() -> Result<()> {
    setup();
    let folder = Folder::new();
    let mut checkpoints = CheckpointManager::new(&folder.0, Options::new())?;
    let advance = jit(|x: Vec<Array>| tree::map(|x| x + 1.0, x)).donate_argnums([0]);
    let mut state: Vec<Array> = (0..8).map(|i| zeros([1 << 20]) + i as f32).collect();
    let _ = advance.call(tree::map(|x| x + 0.0, state.clone())?)?;
    for step in 1..=3 {
        checkpoints.save(step, &state)?;
        // The memory is another's, or gone, before it can have been written.
        state = advance.call(state)?;
        if step == 3 {
            state.iter().try_for_each(Array::delete)?;
        }
    }
    checkpoints.wait_until_finished()?;
    for step in 1..=3 {
        let restored = checkpoints.restore(step, &vec![zeros([1 << 20]); 8])?;
        for (i, array) in restored.iter().enumerate() {
            let want = i as f32 + step as f32 - 1.0;
            assert!(array.to_vec::<f32>()?.iter().all(|x| *x == want), "array {i} of step {step}");
        }
    }
    Ok(())
}

#[test]
fn a_file_with_the_name_of_a_folder_stops_nothing_else() -> Result<()> {
    setup();
    let folder = Folder::new();
    for name in ["3.unfinished", "1.unfinished", "5", "2.damaged"] {
        fs::write(folder.join(name), "the user's").expect("a file");
    }
    fs::create_dir(folder.join(".lock")).expect("a folder");
    fn options() -> CheckpointManagerOptions {
        Options::new().max_to_keep(1).enable_async_checkpointing(false)
    }
    let mut checkpoints = CheckpointManager::new(&folder.0, options())?;
    fails(checkpoints.save(1, &value(1.0)), &["1.unfinished exists already", "remove it"]);
    fs::rename(folder.join("1.unfinished"), folder.join("moved")).expect("a file");
    checkpoints.save(1, &value(1.0))?;
    fs::rename(folder.join("moved"), folder.join("1.unfinished")).expect("a file");
    // The one before is removed all the same.
    checkpoints.save(2, &value(2.0))?;
    assert_eq!(checkpoints.all_steps()?, [2]);
    fails(checkpoints.save(3, &value(3.0)), &["3.unfinished exists already"]);
    checkpoints.save(4, &value(4.0))?;
    fails(checkpoints.save(5, &value(5.0)), &["cannot move a checkpoint to", "5"]);
    assert_eq!(of(&checkpoints.restore_latest(&value(0.0))?.expect("a checkpoint").tree), 4.0);
    assert_eq!(names(&folder.0), [".lock", "1.unfinished", "2.damaged", "3.unfinished", "4", "5"]);
    Ok(())
}

#[test]
fn concurrent_saves_of_one_checkpoint_leave_a_complete_one() -> Result<()> {
    setup();
    let folder = Folder::new();
    let path = folder.join("x");
    fn tree(x: f32) -> Vec<Array> {
        (0..20).map(|i| full([1000], x + i as f32)).collect::<Vec<_>>()
    }
    checkpoint::save(&path, &tree(0.0))?;
    // What a program left there that was ended.
    fs::create_dir(folder.join("x.unfinished")).expect("a folder");
    fs::write(folder.join("x.unfinished/device-00000.safetensors"), "half").expect("a file");
    for round in 1..4 {
        let save = |i: usize| checkpoint::save_with(&path, &tree((100 * i) as f32), &SaveArgs::new().force(true));
        let results: Vec<Result<()>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (1..7).map(|i| scope.spawn(move || save(i))).collect();
            threads.into_iter().map(|thread| thread.join().expect("it ends")).collect()
        });
        results.into_iter().collect::<Result<Vec<()>>>()?;
        let opened = checkpoint::Checkpoint::open(&path)?;
        opened.verify()?;
        let first_elements: Vec<f32> =
            opened.restore(&tree(0.0))?.iter().map(|x| x.get(0).item()).collect::<Result<_>>()?;
        assert!(
            first_elements.iter().enumerate().all(|(i, x)| *x == first_elements[0] + i as f32),
            "round {round}: {first_elements:?}"
        );
        assert_eq!(names(&folder.0), ["x"], "round {round}");
    }
    Ok(())
}
