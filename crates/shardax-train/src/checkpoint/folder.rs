//! The folder of a manager: lists, ranks and removes its checkpoints.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use shardax::choice::Choice;
use shardax::error::Result;
use shardax::process_index;

use super::Checkpoint;
use super::fault::failed;
use super::format::COMMIT;
use super::options::{BestMode, CheckpointManagerOptions};
use super::write::{UNFINISHED, sync_folder, unfinished};

/// Locks the folder for this program; `None` if another program has locked it, or the lock file cannot be opened.
pub(super) fn lock_of(folder: &Path) -> Option<fs::File> {
    let path = folder.join(".lock");
    if path.exists() && !path.is_file() {
        // Opening a FIFO would block.
        return None;
    }
    let file = fs::File::options().create(true).append(true).open(&path).ok()?;
    match file.try_lock() {
        Err(fs::TryLockError::WouldBlock) => None,
        _ => Some(file),
    }
}

/// Removes what an interrupted program left half-written.
pub(super) fn clean(folder: &Path) -> Result<()> {
    for name in names(folder)? {
        let stem = name.strip_suffix(UNFINISHED).and_then(|step| step.parse::<u64>().ok());
        let path = folder.join(&name);
        // The manager writes only folders, so it did not create a file of that name.
        if stem.is_some() && path.is_dir() {
            fs::remove_dir_all(&path).map_err(|error| failed("remove", &path, &error))?;
        }
    }
    Ok(())
}

fn names(folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    let entries = match fs::read_dir(folder) {
        // A reader may look at the folder before the first checkpoint is saved.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(names),
        entries => entries.map_err(|error| failed("read the folder", folder, &error))?,
    };
    for entry in entries {
        names.extend(entry.map_err(|error| failed("read the folder", folder, &error))?.file_name().into_string());
    }
    Ok(names)
}

/// Lists the complete checkpoints in a folder, in order.
pub(super) fn steps(folder: &Path) -> Result<Vec<u64>> {
    let mut names = names(folder)?;
    names.retain(|name| folder.join(name).join(COMMIT).exists());
    let mut steps: Vec<u64> = names.iter().filter_map(|name| parse_step(name)).collect();
    steps.sort_unstable();
    Ok(steps)
}

/// The step of a checkpoint's folder. The manager never writes a name such as `007`.
fn parse_step(name: &str) -> Option<u64> {
    name.parse::<u64>().ok().filter(|step| step.to_string() == name)
}

/// Orders the steps from the worst to the best; equal ones by their number.
pub(super) fn ranked(
    folder: &Path,
    options: &CheckpointManagerOptions,
    scores: &Mutex<BTreeMap<u64, f64>>,
    mut steps: Vec<u64>,
) -> Vec<u64> {
    let Some((best, mode)) = &options.best else { return steps };
    // Scores are remembered, because reading them opens each checkpoint. The lock is held by one save at a time.
    let mut scores = scores.lock().unwrap_or_else(PoisonError::into_inner);
    for step in &steps {
        // A checkpoint that cannot be read now may be readable later.
        if !scores.contains_key(step)
            && let Ok(checkpoint) = Checkpoint::read(&folder.join(step.to_string()))
        {
            scores.insert(*step, best(&checkpoint.metrics()).unwrap_or(f64::NAN));
        }
    }
    let score = |step: &u64| rank(scores.get(step).copied().unwrap_or(f64::NAN), *mode);
    steps.sort_by(|a, b| score(a).total_cmp(&score(b)));
    steps
}

/// Removes the checkpoints that the options do not retain.
pub(super) fn prune(
    folder: &Path,
    options: &CheckpointManagerOptions,
    scores: &Mutex<BTreeMap<u64, f64>>,
) -> Result<()> {
    let Some(most) = options.max_to_keep else { return Ok(()) };
    let steps = steps(folder)?;
    let latest = steps.last().copied();
    let mut ranked = ranked(folder, options, scores, steps);
    ranked.truncate(ranked.len().saturating_sub(most));
    for step in ranked {
        let is_periodic = options.keep_period.is_some_and(|period| step.is_multiple_of(period));
        if Some(step) != latest && !is_periodic {
            remove(folder, step)?;
        }
    }
    Ok(())
}

/// Removes a checkpoint atomically: readers never see a part of it.
pub(super) fn remove(folder: &Path, step: u64) -> Result<()> {
    let path = folder.join(step.to_string());
    if process_index() > 0 || !path.exists() {
        return Ok(());
    }
    let temporary = unfinished(&path);
    let removed = match fs::rename(&path, &temporary) {
        Ok(()) => fs::remove_dir_all(&temporary),
        // Something else has the temporary name. Without its commit file the folder is no longer a checkpoint.
        Err(_) => fs::remove_file(path.join(COMMIT)).and_then(|()| fs::remove_dir_all(&path)),
    };
    removed.map_err(|error| failed("remove", &path, &error))?;
    sync_folder(folder)
}

/// Returns a number that is larger for a better score.
fn rank(score: f64, mode: Choice<BestMode>) -> f64 {
    match mode {
        _ if score.is_nan() => f64::NEG_INFINITY,
        Choice::Value(BestMode::Min) => -score,
        // The manager returns an error for a text that names no mode.
        Choice::Value(BestMode::Max) | Choice::Unknown(_) => score,
    }
}
