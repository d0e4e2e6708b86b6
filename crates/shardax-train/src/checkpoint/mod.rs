//! Checkpoints: trees of arrays on disk, from which a run resumes bit by bit, on any devices.
//!
//! Use [`save`] and [`restore`] for one tree in one folder, and [`CheckpointManager`] for the checkpoints of a run.
//!
//! ```
//! use shardax_nn::prelude::*;
//! use shardax_train::checkpoint;
//! # let folder = std::env::temp_dir().join(format!("shardax-doc-checkpoint-{}", std::process::id()));
//!
//! let model = Linear::new(4, 2, &mut Rngs::new(7));
//! checkpoint::save(&folder, &model)?;
//!
//! let other = Linear::new(4, 2, &mut Rngs::new(0));
//! let restored = checkpoint::restore(&folder, &other)?;
//! assert_eq!(restored.kernel.to_vec::<f32>()?, model.kernel.to_vec::<f32>()?);
//! # std::fs::remove_dir_all(&folder).ok();
//! # Ok::<(), shardax::Error>(())
//! ```
//!
//! A checkpoint is a folder: `device-N.safetensors` with the slices of arrays that device `N` wrote, `manifest.json`
//! with the key path, type and location of each slice and the checksums of all, and `commit`, written last. Replicated
//! slices are written once. Any reader of safetensors reads the files; complex numbers are pairs there, in a last
//! dimension of 2.

mod fault;
mod folder;
mod format;
mod manager;
mod options;
mod parallel;
mod read;
mod restore;
mod slices;
mod snapshot;
mod write;

use std::panic::Location;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use shardax::error::{Error, ErrorKind, Result};
use shardax::prelude::*;

pub use manager::{CheckpointManager, Metrics, Restored};
pub use options::{BestMode, CheckpointManagerOptions};
pub use restore::RestoreOptions;

use fault::Fault;
use format::Manifest;
use snapshot::{Keep, Snapshot};
use write::Job;

/// Records the caller's line in an error.
#[track_caller]
fn at<T>(result: Result<T>) -> Result<T> {
    let location = Location::caller();
    result.map_err(|error| error.at(location))
}

/// Makes a path absolute, so that it stays valid when the program changes its working directory.
fn absolute(path: &Path) -> Result<PathBuf> {
    let absolute = std::path::absolute(path).ok().filter(|path| path.file_name().is_some());
    absolute.ok_or_else(|| {
        Error::new(ErrorKind::Value, format!("{:?} names no folder for checkpoints", path.display()))
            .help("pass the path of a folder; it need not exist yet")
    })
}

/// Options of a save, and the data that is saved with a tree.
///
/// ```
/// use shardax_train::checkpoint::SaveArgs;
/// let args = SaveArgs::new().metric("loss", 0.25).metadata(serde_json::json!({ "epoch": 3 }));
/// ```
#[derive(Clone, Debug, Default)]
pub struct SaveArgs {
    metrics: Metrics,
    metadata: Value,
    force: bool,
}

impl SaveArgs {
    /// Creates options without metrics or metadata.
    pub fn new() -> Self {
        SaveArgs::default()
    }

    /// Adds a metric of the step, by which [`best_fn`](CheckpointManagerOptions::best_fn) can rank it.
    pub fn metric(mut self, name: impl Into<String>, value: f64) -> Self {
        self.metrics.insert(name.into(), value);
        self
    }

    /// Adds metrics of the step.
    pub fn metrics<N: Into<String>>(mut self, metrics: impl IntoIterator<Item = (N, f64)>) -> Self {
        self.metrics.extend(metrics.into_iter().map(|(name, value)| (name.into(), value)));
        self
    }

    /// Sets metadata: any JSON, such as the position in the data. Saving fails if it is nested more than 120 deep.
    pub fn metadata(mut self, metadata: Value) -> Self {
        self.metadata = metadata;
        self
    }

    /// Saves a step of a manager even if it is not due. With [`save_with`] you can replace an existing checkpoint,
    /// which remains until the new one is complete.
    pub fn force(mut self, force: bool) -> Self {
        self.force = force;
        self
    }
}

/// Saves a tree in a new folder, and creates its parents. Returns when everything is on disk.
///
/// The checkpoint has the arrays, with their key paths, dtypes and weak types, and the plain numbers. In a
/// multi-process program every process must call it, because each writes the slices of its own devices; all must see
/// the same folder.
///
/// # Errors
/// Returns an error if the folder exists or cannot be written, and for an array without values; then it leaves no
/// files.
///
/// # Examples
/// ```
/// use shardax_nn::prelude::*;
/// use shardax_train::checkpoint;
/// # let path = std::env::temp_dir().join(format!("shardax-doc-save-{}", std::process::id()));
/// let model = Linear::new(2, 3, &mut Rngs::new(0));
/// checkpoint::save(&path, &model)?;
/// let restored = checkpoint::restore(&path, &Linear::new(2, 3, &mut Rngs::new(1)))?;
/// assert_eq!(restored.kernel.to_vec::<f32>()?, model.kernel.to_vec::<f32>()?);
/// # std::fs::remove_dir_all(&path)?;
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn save<T: Tree>(path: impl AsRef<Path>, tree: &T) -> Result<()> {
    at(write_tree(path.as_ref(), tree, &SaveArgs::new()))
}

/// Saves a tree with [`SaveArgs`]: with metrics and metadata, or replacing an existing checkpoint.
///
/// # Errors
/// Returns an error in the same cases as [`save`], but not for an existing checkpoint if the arguments replace it.
#[track_caller]
pub fn save_with<T: Tree>(path: impl AsRef<Path>, tree: &T, args: &SaveArgs) -> Result<()> {
    at(write_tree(path.as_ref(), tree, args))
}

/// The maximal depth of metadata. `serde_json` reads 128 levels, and the manifest itself has some.
const MAX_METADATA_DEPTH: usize = 120;

impl SaveArgs {
    pub(crate) fn is_forced(&self) -> bool {
        self.force
    }

    /// Takes a snapshot of a tree, with the metadata. An error is returned in place of the snapshot, so that other
    /// processes hear of it.
    fn take_snapshot<T: Tree>(&self, tree: &T, keep: Keep) -> (Result<Snapshot>, Value) {
        match self.check() {
            Ok(()) => (Snapshot::of(tree, keep), self.metadata.clone()),
            Err(error) => (Err(error), Value::Null),
        }
    }

    /// Fails for metadata that could be written but not read back.
    fn check(&self) -> Result<()> {
        // An explicit stack: recursion would overflow on deep metadata.
        let mut stack = vec![(&self.metadata, 0)];
        while let Some((value, depth)) = stack.pop() {
            if depth > MAX_METADATA_DEPTH {
                let message = format!("metadata is nested more than {MAX_METADATA_DEPTH} deep");
                return Err(
                    Error::new(ErrorKind::Value, message).help("flatten the metadata, or save it as text in a string")
                );
            }
            match value {
                Value::Array(items) => stack.extend(items.iter().map(|item| (item, depth + 1))),
                Value::Object(fields) => stack.extend(fields.values().map(|item| (item, depth + 1))),
                _ => {}
            }
        }
        Ok(())
    }
}

fn write_tree<T: Tree>(path: &Path, tree: &T, args: &SaveArgs) -> Result<()> {
    let path = absolute(path)?;
    if path.exists() && !args.force {
        return Err(Error::new(ErrorKind::Value, format!("{} exists already", path.display()))
            .help("save to another folder, or replace it with `save_with(.., &SaveArgs::new().force(true))`"));
    }
    let (snapshot, metadata) = args.take_snapshot(tree, Keep::InPlace);
    let job = Job {
        path,
        snapshot,
        step: None,
        metrics: args.metrics.iter().map(|(name, x)| (name.clone(), x.is_finite().then_some(*x))).collect(),
        metadata,
        replace: args.force,
        timeout: Duration::from_secs(600),
    };
    job.run(|| Ok(()))
}

/// Restores the tree that was saved in a folder. `like` is a tree of the same structure, shapes and dtypes, such as a new model;
/// see [`Checkpoint::restore`]. [`save`] has an example.
///
/// # Errors
/// Returns an error if there is no checkpoint in the folder, if its files are damaged, or if `like` is not a tree
/// like the saved one.
#[track_caller]
pub fn restore<T: Tree>(path: impl AsRef<Path>, like: &T) -> Result<T> {
    let checkpoint = absolute(path.as_ref()).map_err(Fault::from).and_then(|path| Checkpoint::read(&path));
    at(restore::agreed("read the checkpoint", checkpoint)
        .and_then(|checkpoint| checkpoint.fill(like, &RestoreOptions::new()))
        .map_err(Error::from))
}

/// A checkpoint on disk, whose files exist and have the right sizes.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    path: PathBuf,
    manifest: Manifest,
}

/// A saved array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayInfo {
    /// Its key path, as `.params.conv1.kernel`.
    pub path: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its dtype.
    pub dtype: DType,
    /// Its sharding when it was saved, as text.
    pub sharding: String,
}

impl Checkpoint {
    /// Opens the checkpoint in this folder.
    ///
    /// # Errors
    /// Returns an error if there is none, when another version of the format wrote it, and if a file is missing or
    /// truncated; the message names the file.
    #[track_caller]
    pub fn open(path: impl AsRef<Path>) -> Result<Checkpoint> {
        at(absolute(path.as_ref()).and_then(|path| Checkpoint::read(&path).map_err(Error::from)))
    }

    fn read(path: &Path) -> Result<Checkpoint, Fault> {
        Ok(Checkpoint { path: path.to_owned(), manifest: read::open(path)? })
    }

    /// Returns the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the step that a [`CheckpointManager`] saved it as.
    pub fn step(&self) -> Option<u64> {
        self.manifest.step
    }

    /// Returns the metadata that was saved with the tree; null without any.
    pub fn metadata(&self) -> &Value {
        &self.manifest.metadata
    }

    /// Returns the metrics; NaN for one that was not finite.
    pub fn metrics(&self) -> Metrics {
        self.manifest.metrics.iter().map(|(name, x)| (name.clone(), x.unwrap_or(f64::NAN))).collect()
    }

    /// Returns the arrays, in the order of the tree.
    pub fn arrays(&self) -> Vec<ArrayInfo> {
        let infos = self.manifest.arrays.iter().map(|entry| ArrayInfo {
            path: entry.path.clone(),
            shape: entry.shape.clone(),
            dtype: DType::from_name(&entry.dtype).unwrap_or(DType::Float0),
            sharding: entry.sharding.clone(),
        });
        infos.collect()
    }

    /// Restores the saved tree. `like` must be a tree of the same structure. Its arrays can be types only
    /// ([`shape_dtype_struct`], [`eval_shape`]), so that you need no memory for initial values.
    ///
    /// Each array is restored with the sharding of the corresponding array in `like`, regardless of its sharding when
    /// it was saved, or on the default device if `like` has only its type. Each device reads only its slice.
    /// Floating-point numbers are converted to the dtype in `like`, and integers to a wider one.
    ///
    /// # Errors
    /// Returns an error if the tree has other key paths, shapes or plain numbers (the message names them), and if a
    /// file is damaged. [`RestoreOptions`] allow more.
    #[track_caller]
    pub fn restore<T: Tree>(&self, like: &T) -> Result<T> {
        self.restore_with(like, &RestoreOptions::new())
    }

    /// Restores the saved tree with [`RestoreOptions`].
    ///
    /// # Errors
    /// Returns an error in the same cases as [`restore`](Self::restore), as far as the options do not allow the
    /// difference.
    #[track_caller]
    pub fn restore_with<T: Tree>(&self, like: &T, options: &RestoreOptions) -> Result<T> {
        at(self.fill(like, options).map_err(Error::from))
    }

    fn fill<T: Tree>(&self, like: &T, options: &RestoreOptions) -> Result<T, Fault> {
        restore::restore(&self.path, &self.manifest, like, options)
    }

    /// Reads the entire checkpoint and compares the checksums. You can use it to check a copy, since
    /// [`restore`](Self::restore) reads and checks only the slices that it needs.
    ///
    /// # Errors
    /// Returns an error if they differ; the error names the file and the bytes.
    #[track_caller]
    pub fn verify(&self) -> Result<()> {
        let mut files = read::Files::new(&self.path, &self.manifest);
        at(self.manifest.arrays.iter().try_for_each(|entry| files.verify(entry)).map_err(Error::from))
    }
}
