//! Checkpoints: trees of arrays on the disk, from which a training goes on bit by bit, on any devices.
//!
//! [`save`] and [`restore`] are for one tree in one folder, [`CheckpointManager`] for those of a training.
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
//! A checkpoint is a folder: `device-N.safetensors` with the parts of arrays that device `N` had first,
//! `manifest.json` with the key path, type and place of each and checksums of all, and `commit`, written last. Of what
//! several devices hold alike one copy is written. Any reader of safetensors reads the files; complex numbers are pairs
//! there, in a last dimension of 2.

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
use format::{Manifest, dtype_named};
use snapshot::{Keep, Snapshot};
use write::Job;

/// Records the caller's line in an error.
#[track_caller]
fn at<T>(result: Result<T>) -> Result<T> {
    let location = Location::caller();
    result.map_err(|error| error.at(location))
}

/// A path that stays the same where the program changes its folder.
fn absolute(path: &Path) -> Result<PathBuf> {
    let found = std::path::absolute(path).ok().filter(|path| path.file_name().is_some());
    found.ok_or_else(|| {
        Error::new(ErrorKind::Value, format!("{:?} names no folder for checkpoints", path.display()))
            .help("give the path of a folder, which may be a new one")
    })
}

/// What is saved beside a tree, and how.
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
    /// Nothing beside it.
    pub fn new() -> Self {
        SaveArgs::default()
    }

    /// A number that tells how good it is.
    pub fn metric(mut self, name: impl Into<String>, value: f64) -> Self {
        self.metrics.insert(name.into(), value);
        self
    }

    /// Numbers that tell how good it is.
    pub fn metrics<N: Into<String>>(mut self, metrics: impl IntoIterator<Item = (N, f64)>) -> Self {
        self.metrics.extend(metrics.into_iter().map(|(name, value)| (name.into(), value)));
        self
    }

    /// Any JSON: the position in the data, the program's arguments. Saving fails where it is nested more than 120 deep.
    pub fn metadata(mut self, metadata: Value) -> Self {
        self.metadata = metadata;
        self
    }

    /// Saves a step of a manager that is none of those to be saved; with [`save_with`] a checkpoint that is there is
    /// replaced.
    pub fn force(mut self, force: bool) -> Self {
        self.force = force;
        self
    }
}

/// Saves a tree in a folder, which must not be there yet; the folders above it are made. Returns when all is on the disk.
///
/// Saved are the arrays, with their key paths, dtypes and weak types, and the plain numbers. Over several processes all
/// of them call it, each writes what its devices have, and the folder must be one that all see.
///
/// Fails when the folder is there already or cannot be written, and for an array that has no values; then nothing is left
/// there.
#[track_caller]
pub fn save<T: Tree>(path: impl AsRef<Path>, tree: &T) -> Result<()> {
    at(write_tree(path.as_ref(), tree, &SaveArgs::new()))
}

/// The same, with metrics and data of the user's, or in the place of a checkpoint that is there.
#[track_caller]
pub fn save_with<T: Tree>(path: impl AsRef<Path>, tree: &T, args: &SaveArgs) -> Result<()> {
    at(write_tree(path.as_ref(), tree, args))
}

/// Levels of lists and objects that metadata may have: what reads JSON counts the manifest's own as well, up to 128.
const DEEPEST: usize = 120;

impl SaveArgs {
    /// What is saved of a tree, and the metadata. An error is one of the snapshot, of which the other processes hear.
    fn taken<T: Tree>(&self, tree: &T, keep: Keep) -> (Result<Snapshot>, Value) {
        match self.check() {
            Ok(()) => (Snapshot::of(tree, keep), self.metadata.clone()),
            Err(error) => (Err(error), Value::Null),
        }
    }

    /// Fails for metadata that could be written and not read back.
    fn check(&self) -> Result<()> {
        // Without recursion, which deep metadata would end.
        let mut left = vec![(&self.metadata, 0)];
        while let Some((value, depth)) = left.pop() {
            if depth > DEEPEST {
                let what = format!("metadata is nested more than {DEEPEST} deep");
                return Err(Error::new(ErrorKind::Value, what).help("save it flatter, or as text in a string"));
            }
            match value {
                Value::Array(items) => left.extend(items.iter().map(|item| (item, depth + 1))),
                Value::Object(fields) => left.extend(fields.values().map(|item| (item, depth + 1))),
                _ => {}
            }
        }
        Ok(())
    }
}

fn write_tree<T: Tree>(path: &Path, tree: &T, args: &SaveArgs) -> Result<()> {
    let path = absolute(path)?;
    if path.exists() && !args.force {
        return Err(Error::new(ErrorKind::Value, format!("{} is there already", path.display()))
            .help("save to another folder, or replace it with `save_with(.., &SaveArgs::new().force(true))`"));
    }
    let (snapshot, metadata) = args.taken(tree, Keep::There);
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

/// The tree that was saved in a folder, in the place of one like it: [`Checkpoint::restore`].
#[track_caller]
pub fn restore<T: Tree>(path: impl AsRef<Path>, like: &T) -> Result<T> {
    let found = absolute(path.as_ref()).map_err(Fault::from).and_then(|path| Checkpoint::read(&path));
    at(restore::agreed(found).and_then(|found| found.fill(like, &RestoreOptions::new())).map_err(Error::from))
}

/// A checkpoint on the disk, whose files are there and as long as they were.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    path: PathBuf,
    manifest: Manifest,
}

/// An array that was saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayInfo {
    /// Its key path, as `.params.conv1.kernel`.
    pub path: String,
    /// Its sizes.
    pub shape: Vec<usize>,
    /// Its dtype.
    pub dtype: DType,
    /// How it lay, as text.
    pub sharding: String,
}

impl Checkpoint {
    /// The checkpoint in this folder.
    ///
    /// Fails when there is none, when another version of the format wrote it, and when a file is missing or was cut off;
    /// the message names the file.
    #[track_caller]
    pub fn open(path: impl AsRef<Path>) -> Result<Checkpoint> {
        at(absolute(path.as_ref()).and_then(|path| Checkpoint::read(&path).map_err(Error::from)))
    }

    fn read(path: &Path) -> Result<Checkpoint, Fault> {
        Ok(Checkpoint { path: path.to_owned(), manifest: read::open(path)? })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The step that a [`CheckpointManager`] saved it as.
    pub fn step(&self) -> Option<u64> {
        self.manifest.step
    }

    /// What was saved beside the tree; null where nothing was.
    pub fn metadata(&self) -> &Value {
        &self.manifest.metadata
    }

    /// The metrics; NaN where one was not finite.
    pub fn metrics(&self) -> Metrics {
        self.manifest.metrics.iter().map(|(name, x)| (name.clone(), x.unwrap_or(f64::NAN))).collect()
    }

    /// The arrays, in the order of the tree.
    pub fn arrays(&self) -> Vec<ArrayInfo> {
        let info = |entry: &format::Entry| ArrayInfo {
            path: entry.path.clone(),
            shape: entry.shape.clone(),
            dtype: dtype_named(&entry.dtype).unwrap_or(DType::Float0),
            sharding: entry.sharding.clone(),
        };
        self.manifest.arrays.iter().map(info).collect()
    }

    /// The tree that was saved, in the place of one like it, whose arrays may be given by their types alone
    /// ([`shape_dtype_struct`], [`eval_shape`]).
    ///
    /// An array goes where the given one lies, however it lay when it was saved, or to the default device where its type
    /// is given; each device reads its part. Floating point numbers become those of the given dtype, integers those of a
    /// wider one.
    ///
    /// Fails when the tree has other key paths, shapes or plain numbers (the message names them), and when a file is not
    /// as it was written. [`RestoreOptions`] allow more.
    #[track_caller]
    pub fn restore<T: Tree>(&self, like: &T) -> Result<T> {
        self.restore_with(like, &RestoreOptions::new())
    }

    /// The same, in part, elsewhere or otherwise.
    #[track_caller]
    pub fn restore_with<T: Tree>(&self, like: &T, options: &RestoreOptions) -> Result<T> {
        at(self.fill(like, options).map_err(Error::from))
    }

    fn fill<T: Tree>(&self, like: &T, options: &RestoreOptions) -> Result<T, Fault> {
        restore::restore(&self.path, &self.manifest, like, options)
    }

    /// Reads all of it, and compares the checksums.
    ///
    /// Fails, naming the file and the bytes, where they differ.
    #[track_caller]
    pub fn verify(&self) -> Result<()> {
        let mut files = read::Files::new(&self.path, &self.manifest);
        at(self.manifest.arrays.iter().try_for_each(|entry| files.verify(entry)).map_err(Error::from))
    }
}
