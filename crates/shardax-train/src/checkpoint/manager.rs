//! A folder of checkpoints, one for each step that was saved.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use serde_json::Value;
use shardax::config::warn;
use shardax::distributed;
use shardax::error::{Error, ErrorKind, Result};
use shardax::prelude::*;

use super::fault::{Fault, failed};
use super::folder::{clean, lock_of, prune, ranked, remove, steps};
use super::options::CheckpointManagerOptions;
use super::restore::agreed;
use super::snapshot::{Keep, Memory};
use super::write::Job;
use super::{Checkpoint, RestoreOptions, SaveArgs, at};

/// Metrics of a step by name.
pub type Metrics = BTreeMap<String, f64>;

/// The checkpoints of a training run in one folder, each in a subfolder named by its step.
///
/// ```
/// use shardax_nn::prelude::*;
/// use shardax_train::checkpoint::{CheckpointManager, CheckpointManagerOptions};
/// # let folder = std::env::temp_dir().join(format!("shardax-doc-manager-{}", std::process::id()));
///
/// let mut state = TrainState::create(zeros([2]), sgd(0.1))?;
/// let options = CheckpointManagerOptions::new().max_to_keep(2).save_interval_steps(10);
/// let mut checkpoints = CheckpointManager::new(&folder, options)?;
/// let mut start = 0;
/// if let Some(last) = checkpoints.restore_latest(&state)? {
///     (state, start) = (last.tree, last.step);
/// }
/// for step in start + 1..=45 {
///     state = state.apply_gradients(ones([2]))?;
///     checkpoints.save(step, &state)?;
/// }
/// checkpoints.wait_until_finished()?;
/// assert_eq!(checkpoints.all_steps()?, [30, 40]);
/// # std::fs::remove_dir_all(&folder).ok();
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// A checkpoint appears under its name complete or not at all, so if the program is killed, the previous one still
/// exists. The next manager of the folder removes incomplete files of an interrupted program.
///
/// In a multi-process program every process must create a manager of the same shared folder and call the same methods
/// in the same order, because a save waits for every process.
#[derive(Debug)]
pub struct CheckpointManager {
    folder: PathBuf,
    options: CheckpointManagerOptions,
    writer: Option<JoinHandle<Result<()>>>,
    /// The value of `best_fn` for each step.
    scores: Arc<Mutex<BTreeMap<u64, f64>>>,
    memory: Memory,
    /// The folder's lock: this program may be writing.
    _lock: Option<fs::File>,
}

/// A checkpoint that [`CheckpointManager::restore_latest`] found.
#[derive(Clone, Debug)]
pub struct Restored<T> {
    /// The step that was saved.
    pub step: u64,
    /// The tree.
    pub tree: T,
    /// The metadata that was saved with it.
    pub metadata: Value,
    /// The step's metrics.
    pub metrics: Metrics,
}

impl CheckpointManager {
    /// Opens the checkpoints in this folder, and creates it if necessary.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be created or read.
    #[track_caller]
    pub fn new(folder: impl AsRef<Path>, options: CheckpointManagerOptions) -> Result<Self> {
        at(Self::open(folder.as_ref(), options))
    }

    fn open(folder: &Path, options: CheckpointManagerOptions) -> Result<Self> {
        if let Some((_, mode)) = &options.best {
            mode.value("best_fn")?;
        }
        let folder = super::absolute(folder)?;
        let mut lock = None;
        if !options.read_only {
            fs::create_dir_all(&folder).map_err(|error| failed("create the folder", &folder, &error))?;
        }
        if !options.read_only && process_index() == 0 {
            lock = lock_of(&folder);
            if lock.is_some() {
                clean(&folder)?;
            }
        }
        let (scores, memory) = (Arc::default(), Memory::default());
        Ok(CheckpointManager { folder, options, writer: None, scores, memory, _lock: lock })
    }

    /// Returns the folder.
    pub fn directory(&self) -> &Path {
        &self.folder
    }

    /// Lists the saved steps in increasing order, without one that is still being written.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be read.
    #[track_caller]
    pub fn all_steps(&self) -> Result<Vec<u64>> {
        at(steps(&self.folder))
    }

    /// Returns the latest saved step.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be read.
    #[track_caller]
    pub fn latest_step(&self) -> Result<Option<u64>> {
        Ok(self.all_steps()?.pop())
    }

    /// Returns the best saved step by `best_fn`; the latest one if there is no such function.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be read.
    #[track_caller]
    pub fn best_step(&self) -> Result<Option<u64>> {
        at(steps(&self.folder)).map(|steps| ranked(&self.folder, &self.options, &self.scores, steps).pop())
    }

    /// Returns `true` if `save` would save this step. You can ask first if preparing the tree is expensive.
    pub fn should_save(&self, step: u64) -> bool {
        !self.options.read_only && step.is_multiple_of(self.options.save_interval_steps)
    }

    /// Saves a tree as this step if the step is due, and returns true if it was.
    ///
    /// It waits for the previous save, but not for the values: a thread copies them as soon as they are computed, and
    /// writes them. You can donate the arrays at once, because an operation that donates or deletes them waits for that
    /// copy.
    ///
    /// # Errors
    /// Returns an error if the previous save failed, if the step is not after the latest saved one, or if an array was
    /// deleted or carries an error. Later errors, including errors of an array's computation, are returned by the next
    /// `save` or by [`wait_until_finished`](Self::wait_until_finished).
    #[track_caller]
    pub fn save<T: Tree>(&mut self, step: u64, tree: &T) -> Result<bool> {
        at(self.save_step(step, tree, &SaveArgs::new()))
    }

    /// Saves with [`SaveArgs`]: with metrics, with metadata, or although the step is not due.
    ///
    /// # Errors
    /// Returns an error in the same cases as [`save`](Self::save).
    #[track_caller]
    pub fn save_with<T: Tree>(&mut self, step: u64, tree: &T, args: &SaveArgs) -> Result<bool> {
        at(self.save_step(step, tree, args))
    }

    fn save_step<T: Tree>(&mut self, step: u64, tree: &T, args: &SaveArgs) -> Result<bool> {
        if self.options.read_only {
            let message = format!("the checkpoints in {} were opened as read-only", self.folder.display());
            return Err(Error::new(ErrorKind::Value, message).help("create the manager without `read_only`"));
        }
        if !args.force && !self.should_save(step) {
            return Ok(false);
        }
        self.finish()?;
        match steps(&self.folder)?.pop() {
            Some(latest) if latest == step => return Ok(false),
            Some(latest) if latest >= step => {
                let message = format!("step {step} is not after step {latest}, the last in {}", self.folder.display());
                return Err(Error::new(ErrorKind::Value, message)
                    .help("delete the later steps first (`delete`), or save to another folder"));
            }
            _ => {}
        }
        // The step may have been saved before, with other metrics, and deleted.
        self.scores.lock().unwrap_or_else(PoisonError::into_inner).remove(&step);
        let is_single_process = process_count() == 1;
        let keep = if self.options.asynchronous { Keep::Retained } else { Keep::InPlace };
        let (snapshot, metadata) = args.take_snapshot(tree, keep);
        // With several processes the error is passed on: the others must hear of it instead of waiting.
        if is_single_process && let Err(error) = snapshot {
            return Err(error);
        }
        let mut job = Job {
            path: self.folder.join(step.to_string()),
            snapshot,
            step: Some(step),
            metrics: args.metrics.iter().map(|(name, x)| (name.clone(), x.is_finite().then_some(*x))).collect(),
            metadata,
            replace: false,
            timeout: self.options.timeout,
        };
        let (folder, options, scores) = (self.folder.clone(), self.options.clone(), self.scores.clone());
        if !self.saves_in_background() {
            return job.run(|| prune(&folder, &options, &scores)).map(|()| true);
        }
        let memory = self.memory.clone();
        let thread = std::thread::Builder::new().name("shardax-checkpoint".to_owned()).spawn(move || {
            // The copy comes first, because the next step may wait for it.
            job.snapshot = job.snapshot.and_then(|snapshot| snapshot.copied(&memory));
            job.run(|| prune(&folder, &options, &scores))
        });
        self.writer = Some(thread.map_err(|error| {
            Error::new(ErrorKind::Runtime, format!("no thread could be started to write a checkpoint: {error}"))
        })?);
        Ok(true)
    }

    /// Returns true if a save is written while the program continues, so that its failure is known at the next one.
    pub(crate) fn saves_in_background(&self) -> bool {
        // Without a store, processes wait for each other on their devices, in the order of the program's computations.
        let ordered = process_count() > 1 && !distributed::is_initialized();
        self.options.asynchronous && !ordered
    }

    /// Waits until all saves are on disk. You should call it, or [`close`](Self::close), before the program ends;
    /// otherwise you see a failed save only as a warning.
    ///
    /// # Errors
    /// Returns an error if one could not be written: the checkpoints before it are complete.
    #[track_caller]
    pub fn wait_until_finished(&mut self) -> Result<()> {
        at(self.finish())
    }

    fn finish(&mut self) -> Result<()> {
        match self.writer.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(Error::new(
                ErrorKind::Runtime,
                "internal error: the thread that writes checkpoints panicked; please report this",
            )),
        }
    }

    /// Waits for all saves and closes the manager. If you drop the manager instead, it also waits, but prints errors as
    /// warnings.
    ///
    /// # Errors
    /// Returns the first error of the saves that have not been waited for.
    #[track_caller]
    pub fn close(mut self) -> Result<()> {
        at(self.finish())
    }

    /// Opens the checkpoint of this step, so that you can read its metadata, metrics and array types before you restore
    /// it.
    ///
    /// # Errors
    /// Returns an error if there is no such step, or its files are damaged.
    #[track_caller]
    pub fn checkpoint(&self, step: u64) -> Result<Checkpoint> {
        at(self.find(step).map_err(Error::from))
    }

    fn find(&self, step: u64) -> Result<Checkpoint, Fault> {
        let path = self.folder.join(step.to_string());
        if !path.exists() {
            let have = steps(&self.folder)?;
            let message = format!("{} has no step {step}; it has {have:?}", self.folder.display());
            return Err(Error::new(ErrorKind::Value, message)
                .help(
                    "a step exists after it was saved and written, until newer ones replace it; `all_steps` lists them",
                )
                .into());
        }
        Checkpoint::read(&path)
    }

    /// Restores the tree that was saved as this step, given a tree like it. [`Checkpoint::restore`] lists what can
    /// differ.
    ///
    /// # Errors
    /// Returns an error if there is no such step, if its files are damaged, or if `like` is not a tree like the
    /// saved one.
    #[track_caller]
    pub fn restore<T: Tree>(&self, step: u64, like: &T) -> Result<T> {
        self.restore_with(step, like, &RestoreOptions::new())
    }

    /// Restores `step` with [`RestoreOptions`].
    ///
    /// # Errors
    /// Returns an error in the same cases as [`restore`](Self::restore).
    #[track_caller]
    pub fn restore_with<T: Tree>(&self, step: u64, like: &T, options: &RestoreOptions) -> Result<T> {
        at(self.restore_step(step, like, options).map(|found| found.tree).map_err(Error::from))
    }

    fn restore_step<T: Tree>(&self, step: u64, like: &T, options: &RestoreOptions) -> Result<Restored<T>, Fault> {
        let checkpoint = agreed("read the checkpoint", self.find(step))?;
        let tree = checkpoint.fill(like, options)?;
        Ok(Restored { step, tree, metadata: checkpoint.metadata().clone(), metrics: checkpoint.metrics() })
    }

    /// Restores the last saved tree, with its step; `None` if nothing was saved yet.
    ///
    /// A damaged checkpoint is renamed to `STEP.damaged`, with a warning that names the damage, and the previous one is
    /// restored.
    ///
    /// # Errors
    /// Returns an error if no checkpoint is intact, and if the tree is not the saved one.
    #[track_caller]
    pub fn restore_latest<T: Tree>(&mut self, like: &T) -> Result<Option<Restored<T>>> {
        at(self.latest(like, &RestoreOptions::new()))
    }

    /// Restores the latest step with `RestoreOptions`.
    ///
    /// # Errors
    /// Returns an error in the same cases as [`restore_latest`](Self::restore_latest).
    #[track_caller]
    pub fn restore_latest_with<T: Tree>(&mut self, like: &T, options: &RestoreOptions) -> Result<Option<Restored<T>>> {
        at(self.latest(like, options))
    }

    fn latest<T: Tree>(&mut self, like: &T, options: &RestoreOptions) -> Result<Option<Restored<T>>> {
        self.finish()?;
        let mut worst = None;
        for step in steps(&self.folder)?.into_iter().rev() {
            match self.restore_step(step, like, options) {
                Ok(found) => return Ok(Some(found)),
                Err(Fault::Damaged(error)) if self.options.fall_back => {
                    warn(
                        &format!("step {step} is passed over: {}", error.message()),
                        "the one before it is restored; `CheckpointManagerOptions::fall_back(false)` makes it an error",
                    );
                    self.rename_damaged(step);
                    worst.get_or_insert(error);
                }
                Err(fault) => return Err(fault.into()),
            }
        }
        worst.map_or(Ok(None), Err)
    }

    /// Renames a damaged checkpoint, so that the step can be saved again.
    fn rename_damaged(&self, step: u64) {
        if self.options.read_only || process_index() > 0 {
            return;
        }
        let names = (0..).map(|n| if n == 0 { format!("{step}.damaged") } else { format!("{step}.damaged-{n}") });
        if let Some(path) = names.map(|name| self.folder.join(name)).find(|path| !path.exists()) {
            drop(fs::rename(self.folder.join(step.to_string()), path));
        }
    }

    /// Removes a step. Does nothing if it does not exist. In a multi-process program it is removed when `delete`
    /// returns in any process.
    ///
    /// # Errors
    /// Returns an error if the save in progress fails, because the manager waits for it first, or if the step's
    /// folder cannot be removed.
    #[track_caller]
    pub fn delete(&mut self, step: u64) -> Result<()> {
        let removed = self.finish().and_then(|()| remove(&self.folder, step));
        at(agreed("remove the checkpoint", removed.map_err(Fault::from)).map_err(Error::from))
    }
}

impl Drop for CheckpointManager {
    fn drop(&mut self) {
        if let Err(error) = self.finish() {
            warn(&format!("the last checkpoint was not written: {error}"), "call `close` to have it as an error");
        }
    }
}
