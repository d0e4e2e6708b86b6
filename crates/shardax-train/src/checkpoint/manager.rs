//! A folder of checkpoints, one for each step that was saved.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;
use shardax::config::warn;
use shardax::error::{Error, ErrorKind, Result};
use shardax::prelude::*;

use super::fault::{Fault, failed};
use super::format::COMMIT;
use super::restore::agreed;
use super::snapshot::{Memory, Snapshot};
use super::write::{Job, UNFINISHED, sync_folder, unfinished};
use super::{Checkpoint, RestoreOptions, SaveArgs, at};

/// Numbers that tell how good a step is, by their names.
pub type Metrics = BTreeMap<String, f64>;

/// Which of two steps is the better one, by what `best_fn` says of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BestMode {
    /// The larger.
    #[default]
    Max,
    /// The smaller.
    Min,
}

type BestFn = Arc<dyn Fn(&Metrics) -> f64 + Send + Sync>;

/// What a [`CheckpointManager`] keeps, and when. The names are Orbax's.
#[derive(Clone)]
pub struct CheckpointManagerOptions {
    max_to_keep: Option<usize>,
    keep_period: Option<u64>,
    save_interval_steps: u64,
    best: Option<(BestFn, BestMode)>,
    asynchronous: bool,
    read_only: bool,
    fall_back: bool,
    timeout: Duration,
}

impl Default for CheckpointManagerOptions {
    fn default() -> Self {
        CheckpointManagerOptions {
            max_to_keep: None,
            keep_period: None,
            save_interval_steps: 1,
            best: None,
            asynchronous: true,
            read_only: false,
            fall_back: true,
            timeout: Duration::from_secs(600),
        }
    }
}

impl fmt::Debug for CheckpointManagerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CheckpointManagerOptions")
            .field("max_to_keep", &self.max_to_keep)
            .field("keep_period", &self.keep_period)
            .field("save_interval_steps", &self.save_interval_steps)
            .field("best_mode", &self.best.as_ref().map(|(_, mode)| mode))
            .finish_non_exhaustive()
    }
}

impl CheckpointManagerOptions {
    /// Every step that is given is kept for ever.
    pub fn new() -> Self {
        CheckpointManagerOptions::default()
    }

    /// Keeps the last `n` checkpoints, or with [`best_fn`](Self::best_fn) the best `n` and the last; others are removed
    /// when a new one is whole. At least one is kept.
    pub fn max_to_keep(mut self, n: usize) -> Self {
        self.max_to_keep = Some(n.max(1));
        self
    }

    /// Keeps, beside those, the steps that are multiples of `period`.
    pub fn keep_period(mut self, period: u64) -> Self {
        self.keep_period = Some(period.max(1));
        self
    }

    /// Saves the steps that are multiples of `steps` (1); others are passed over.
    pub fn save_interval_steps(mut self, steps: u64) -> Self {
        self.save_interval_steps = steps.max(1);
        self
    }

    /// How good a step is, from its metrics. A step without metrics, or of which this is NaN, is worse than all others.
    pub fn best_fn(mut self, f: impl Fn(&Metrics) -> f64 + Send + Sync + 'static, mode: BestMode) -> Self {
        self.best = Some((Arc::new(f), mode));
        self
    }

    /// Whether `save` returns as soon as the values are copied from the devices, and a thread writes them (the default).
    pub fn enable_async_checkpointing(mut self, enable: bool) -> Self {
        self.asynchronous = enable;
        self
    }

    /// Nothing is written or removed: for programs that look at the checkpoints of another.
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// Whether [`restore_latest`](CheckpointManager::restore_latest) takes the checkpoint before one that is damaged, with
    /// a warning that names it (the default), or fails.
    pub fn fall_back(mut self, fall_back: bool) -> Self {
        self.fall_back = fall_back;
        self
    }

    /// How long processes wait for each other's parts (600 s).
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}

/// The checkpoints of a training in one folder, each in a folder of its own, named by its step.
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
/// A checkpoint appears under its name whole, or not at all: whatever ends the program, the one before stays. What a
/// program that was ended left half-written is removed when the next manager of the folder is made.
///
/// Over several processes all of them make a manager of one folder, which they all see, and call the same methods.
#[derive(Debug)]
pub struct CheckpointManager {
    folder: PathBuf,
    options: CheckpointManagerOptions,
    writer: Option<JoinHandle<Result<()>>>,
    /// What `best_fn` said of each step.
    scores: Arc<Mutex<BTreeMap<u64, f64>>>,
    memory: Memory,
    /// Held while this program may be writing.
    _lock: Option<fs::File>,
}

/// What [`CheckpointManager::restore_latest`] found.
#[derive(Clone, Debug)]
pub struct Restored<T> {
    /// The step that was saved.
    pub step: u64,
    /// The tree.
    pub tree: T,
    /// What was saved beside it.
    pub metadata: Value,
    /// The step's metrics.
    pub metrics: Metrics,
}

impl CheckpointManager {
    /// The checkpoints in this folder, which is made if there is none.
    ///
    /// Fails when the folder cannot be made or read.
    #[track_caller]
    pub fn new(folder: impl AsRef<Path>, options: CheckpointManagerOptions) -> Result<Self> {
        at(Self::open(folder.as_ref(), options))
    }

    fn open(folder: &Path, options: CheckpointManagerOptions) -> Result<Self> {
        let folder = super::absolute(folder)?;
        let mut lock = None;
        if !options.read_only && process_index() == 0 {
            fs::create_dir_all(&folder).map_err(|error| failed("make the folder", &folder, &error))?;
            lock = lock_of(&folder);
            if lock.is_some() {
                clean(&folder)?;
            }
        }
        let (scores, memory) = (Arc::default(), Memory::default());
        Ok(CheckpointManager { folder, options, writer: None, scores, memory, _lock: lock })
    }

    /// The folder.
    pub fn directory(&self) -> &Path {
        &self.folder
    }

    /// The steps that there are, from the first to the last. One that is still being written is none of them.
    #[track_caller]
    pub fn all_steps(&self) -> Result<Vec<u64>> {
        at(steps(&self.folder))
    }

    /// The last of them.
    #[track_caller]
    pub fn latest_step(&self) -> Result<Option<u64>> {
        Ok(self.all_steps()?.pop())
    }

    /// The best of them by `best_fn`, and the last where there is no such function.
    #[track_caller]
    pub fn best_step(&self) -> Result<Option<u64>> {
        at(steps(&self.folder)).map(|steps| ranked(&self.folder, &self.options, &self.scores, steps).pop())
    }

    /// Whether `save` would save this step.
    pub fn should_save(&self, step: u64) -> bool {
        !self.options.read_only && step.is_multiple_of(self.options.save_interval_steps)
    }

    /// Saves a tree as this step, if it is one to be saved, and says whether it was. Waits for the values and for the save
    /// before, then copies them; a thread writes them. Afterwards the arrays may be donated.
    ///
    /// Fails when the save before failed; when the step is before the last that there is; for an array that has no
    /// values. What fails while it is written is returned by the next `save`, or by
    /// [`wait_until_finished`](Self::wait_until_finished).
    #[track_caller]
    pub fn save<T: Tree>(&mut self, step: u64, tree: &T) -> Result<bool> {
        at(self.save_step(step, tree, &SaveArgs::new()))
    }

    /// The same, with metrics, with data of the user's, or where it is not one of the steps to be saved.
    #[track_caller]
    pub fn save_with<T: Tree>(&mut self, step: u64, tree: &T, args: &SaveArgs) -> Result<bool> {
        at(self.save_step(step, tree, args))
    }

    fn save_step<T: Tree>(&mut self, step: u64, tree: &T, args: &SaveArgs) -> Result<bool> {
        if self.options.read_only {
            let what = format!("the checkpoints in {} are for reading only", self.folder.display());
            return Err(Error::new(ErrorKind::Value, what).help("make the manager without `read_only`"));
        }
        if !args.force && !self.should_save(step) {
            return Ok(false);
        }
        self.finish()?;
        match steps(&self.folder)?.pop() {
            Some(latest) if latest == step => return Ok(false),
            Some(latest) if latest >= step => {
                let what = format!("step {step} is not after step {latest}, the last in {}", self.folder.display());
                return Err(Error::new(ErrorKind::Value, what).help(
                    "`delete` the steps that come after the one that was gone back to, or save to another folder",
                ));
            }
            _ => {}
        }
        let alone = process_count() == 1;
        let snapshot = Snapshot::of(tree, self.options.asynchronous.then_some(&self.memory));
        if alone && let Err(error) = snapshot {
            return Err(error);
        }
        let job = Job {
            path: self.folder.join(step.to_string()),
            snapshot,
            step: Some(step),
            metrics: args.metrics.iter().map(|(name, x)| (name.clone(), x.is_finite().then_some(*x))).collect(),
            metadata: args.metadata.clone(),
            replace: false,
            timeout: self.options.timeout,
        };
        let (folder, options, scores) = (self.folder.clone(), self.options.clone(), self.scores.clone());
        let work = move || {
            job.run()?;
            if process_index() == 0 { prune(&folder, &options, &scores) } else { Ok(()) }
        };
        if !self.options.asynchronous {
            return work().map(|()| true);
        }
        let thread = std::thread::Builder::new().name("shardax-checkpoint".to_owned()).spawn(work);
        self.writer = Some(thread.map_err(|error| {
            Error::new(ErrorKind::Runtime, format!("no thread could be started to write a checkpoint: {error}"))
        })?);
        Ok(true)
    }

    /// Waits until what was saved is on the disk.
    ///
    /// Fails when it could not be written: the checkpoints before it are whole.
    #[track_caller]
    pub fn wait_until_finished(&mut self) -> Result<()> {
        at(self.finish())
    }

    fn finish(&mut self) -> Result<()> {
        match self.writer.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(Error::new(ErrorKind::Runtime, "the thread that writes checkpoints panicked")),
        }
    }

    /// Waits, and ends. Without it the same happens where the manager is dropped, and an error becomes a warning.
    #[track_caller]
    pub fn close(mut self) -> Result<()> {
        at(self.finish())
    }

    /// What there is of this step.
    ///
    /// Fails when there is no such step, or its files are damaged.
    #[track_caller]
    pub fn checkpoint(&self, step: u64) -> Result<Checkpoint> {
        at(self.find(step).map_err(Error::from))
    }

    fn find(&self, step: u64) -> Result<Checkpoint, Fault> {
        let path = self.folder.join(step.to_string());
        if !path.exists() {
            let have = steps(&self.folder)?;
            let what = format!("{} has no step {step}; it has {have:?}", self.folder.display());
            return Err(Error::new(ErrorKind::Value, what)
                .help("a step is there when it was saved, written and kept")
                .into());
        }
        Checkpoint::read(&path)
    }

    /// The tree that was saved as this step, in the place of one like it. [`Checkpoint::restore`] says what may differ.
    #[track_caller]
    pub fn restore<T: Tree>(&self, step: u64, like: &T) -> Result<T> {
        self.restore_with(step, like, &RestoreOptions::new())
    }

    /// The same, in part, elsewhere or otherwise.
    #[track_caller]
    pub fn restore_with<T: Tree>(&self, step: u64, like: &T, options: &RestoreOptions) -> Result<T> {
        at(self.restore_step(step, like, options).map(|found| found.tree).map_err(Error::from))
    }

    fn restore_step<T: Tree>(&self, step: u64, like: &T, options: &RestoreOptions) -> Result<Restored<T>, Fault> {
        let found = agreed(self.find(step))?;
        let tree = found.fill(like, options)?;
        Ok(Restored { step, tree, metadata: found.metadata().clone(), metrics: found.metrics() })
    }

    /// The last tree that was saved, with its step; `None` where nothing was saved yet.
    ///
    /// A checkpoint that is damaged is passed over for the one before it, and set aside under the name `STEP.damaged`,
    /// with a warning that says what is wrong with it. Fails when no checkpoint is whole, and when the tree is not the one
    /// that was saved.
    #[track_caller]
    pub fn restore_latest<T: Tree>(&mut self, like: &T) -> Result<Option<Restored<T>>> {
        at(self.latest(like, &RestoreOptions::new()))
    }

    /// The same, in part, elsewhere or otherwise.
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
                    self.set_aside(step);
                    worst.get_or_insert(error);
                }
                Err(fault) => return Err(fault.into()),
            }
        }
        worst.map_or(Ok(None), Err)
    }

    /// Out of the way of the step's next save.
    fn set_aside(&self, step: u64) {
        if self.options.read_only || process_index() > 0 {
            return;
        }
        let name = |n: usize| match n {
            0 => format!("{step}.damaged"),
            n => format!("{step}.damaged-{n}"),
        };
        let free = (0..).map(|n| self.folder.join(name(n))).find(|path| !path.exists());
        if let Some(path) = free {
            drop(fs::rename(self.folder.join(step.to_string()), path));
        }
    }

    /// Removes a step. Nothing happens where there is none.
    #[track_caller]
    pub fn delete(&mut self, step: u64) -> Result<()> {
        at(self.finish().and_then(|()| remove(&self.folder, step)))
    }
}

impl Drop for CheckpointManager {
    fn drop(&mut self) {
        if let Err(error) = self.finish() {
            warn(&format!("the last checkpoint was not written: {error}"), "call `close` to have it as an error");
        }
    }
}

/// Holds the folder for this program; `None` where another has it. Where locks are not known it is held as well.
fn lock_of(folder: &Path) -> Option<fs::File> {
    let path = folder.join(".lock");
    let file = fs::File::options().create(true).append(true).open(&path).ok()?;
    match file.try_lock() {
        Err(fs::TryLockError::WouldBlock) => None,
        _ => Some(file),
    }
}

/// Removes what a program that was ended left half-written.
fn clean(folder: &Path) -> Result<()> {
    for name in names(folder)? {
        let stem = name.strip_suffix(UNFINISHED).and_then(|step| step.parse::<u64>().ok());
        if stem.is_some() {
            let path = folder.join(&name);
            fs::remove_dir_all(&path).map_err(|error| failed("remove", &path, &error))?;
        }
    }
    Ok(())
}

fn names(folder: &Path) -> Result<Vec<String>> {
    let cannot = |error| failed("read the folder", folder, &error);
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(cannot)? {
        names.extend(entry.map_err(cannot)?.file_name().into_string());
    }
    Ok(names)
}

/// The whole checkpoints in a folder, in order.
fn steps(folder: &Path) -> Result<Vec<u64>> {
    let whole = |step: &u64| folder.join(step.to_string()).join(COMMIT).exists();
    let mut steps: Vec<u64> = names(folder)?.iter().filter_map(|name| name.parse().ok()).filter(whole).collect();
    steps.sort_unstable();
    Ok(steps)
}

/// The steps from the worst to the best; those that are equally good in their order.
fn ranked(
    folder: &Path,
    options: &CheckpointManagerOptions,
    scores: &Mutex<BTreeMap<u64, f64>>,
    mut steps: Vec<u64>,
) -> Vec<u64> {
    let Some((best, mode)) = &options.best else { return steps };
    let mut scores = scores.lock().unwrap_or_else(PoisonError::into_inner);
    let mut score = |step: u64| {
        let read = || {
            let metrics = Checkpoint::read(&folder.join(step.to_string())).ok().map(|found| found.metrics());
            metrics.filter(|metrics| !metrics.is_empty()).map_or(f64::NAN, |metrics| best(&metrics))
        };
        let score = *scores.entry(step).or_insert_with(read);
        match mode {
            _ if score.is_nan() => f64::NEG_INFINITY,
            BestMode::Max => score,
            BestMode::Min => -score,
        }
    };
    steps.sort_by(|a, b| score(*a).total_cmp(&score(*b)));
    steps
}

/// Removes the checkpoints that are not to be kept.
fn prune(folder: &Path, options: &CheckpointManagerOptions, scores: &Mutex<BTreeMap<u64, f64>>) -> Result<()> {
    let Some(most) = options.max_to_keep else { return Ok(()) };
    let all = steps(folder)?;
    let latest = all.last().copied();
    let mut ranked = ranked(folder, options, scores, all);
    ranked.truncate(ranked.len().saturating_sub(most));
    let periodic = |step: u64| options.keep_period.is_some_and(|period| step.is_multiple_of(period));
    ranked
        .into_iter()
        .filter(|step| Some(*step) != latest && !periodic(*step))
        .try_for_each(|step| remove(folder, step))
}

/// Removes a checkpoint, so that it is never there in part.
fn remove(folder: &Path, step: u64) -> Result<()> {
    let path = folder.join(step.to_string());
    if process_index() > 0 || !path.exists() {
        return Ok(());
    }
    let gone = unfinished(&path);
    let removed = fs::rename(&path, &gone).and_then(|()| fs::remove_dir_all(&gone));
    removed.map_err(|error| failed("remove", &path, &error))?;
    sync_folder(folder)
}
