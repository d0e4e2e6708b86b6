//! Cases of files, examples, and arrays on many devices.

use std::path::PathBuf;

use shardax::prelude::*;
use shardax_train::checkpoint::{self, CheckpointManager, CheckpointManagerOptions};
use shardax_train::data::{Example, HostArray, Source, Stream};
use shardax_train::log::{JsonLines, Logger};
use shardax_train::serialization;

use super::cases::Phases;

/// A folder that is removed when it is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        Folder(std::env::temp_dir().join(format!("shardax-growth-{}", std::process::id())))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn many(n: usize) -> Result<Vec<Array>> {
    (0..n).map(|i| Array::from_slice(&[i as f32; 4], &[4])).collect()
}

pub fn checkpoint_arrays(n: usize, phases: &mut Phases) -> Result<()> {
    let (tree, folder) = (many(n)?, Folder::new());
    phases.time("save", || checkpoint::save(&folder.0, &tree))?;
    phases.time("restore", || checkpoint::restore(&folder.0, &tree)).map(drop)
}

/// The time of saving and listing when there are `n` steps.
pub fn checkpoint_steps(n: usize, phases: &mut Phases) -> Result<()> {
    let (tree, folder) = (many(4)?, Folder::new());
    let mut manager = CheckpointManager::new(&folder.0, CheckpointManagerOptions::new())?;
    for step in 0..n as u64 {
        manager.save(step, &tree)?;
    }
    manager.wait_until_finished()?;
    let mut state = n as u64;
    phases.repeat("save", 5, || {
        state += 1;
        manager.save(state, &tree)?;
        manager.wait_until_finished()
    })?;
    phases.repeat("list", 5, || manager.all_steps())?;
    phases.repeat("open", 5, || CheckpointManager::new(&folder.0, CheckpointManagerOptions::new()))?;
    phases.repeat("restore", 5, || manager.restore_latest(&tree))
}

/// An array with a shard on each of `n` devices.
pub fn shards(n: usize, phases: &mut Phases) -> Result<()> {
    shardax::config::set_num_cpu_devices(n)?;
    let mesh = make_mesh([("x", n)])?.auto();
    let (x, sharding, folder) = (ones([n, 4]), NamedSharding::new(&mesh, P!["x"]), Folder::new());
    phases.repeat("put", 3, || block_until_ready(device_put(&x, &sharding)?))?;
    let placed = block_until_ready(device_put(&x, &sharding)?)?;
    phases.repeat("read", 3, || (&placed + 0.0).to_vec::<f32>())?;
    let resharded = NamedSharding::new(&mesh, P![None, None]);
    phases.repeat("replicate", 3, || block_until_ready(device_put(&placed, &resharded)?))?;
    phases.time("save", || checkpoint::save(&folder.0, &placed))?;
    phases.time("restore", || checkpoint::restore(&folder.0, &placed)).map(drop)
}

pub fn packed_arrays(n: usize, phases: &mut Phases) -> Result<()> {
    let tree = many(n)?;
    let bytes = phases.time("to_bytes", || serialization::to_bytes(&tree))?;
    phases.time("from_bytes", || serialization::from_bytes(&tree, &bytes)).map(drop)
}

pub fn log_lines(n: usize, phases: &mut Phases) -> Result<()> {
    let folder = Folder::new();
    let path = folder.0.join("log.jsonl");
    let mut log = JsonLines::new(&path)?;
    phases.time("write", || {
        log.begin(0)?;
        for step in 0..n as u64 {
            log.log(step, &[("loss".to_owned(), 0.25)].into())?;
        }
        log.flush()
    })?;
    phases.time("read", || JsonLines::read(&path))?;
    // A run that continues begins a log that has `n` lines.
    phases.time("continue", || JsonLines::new(&path)?.begin(n as u64)).map(drop)
}

/// The time of a program when the cache on disk has `n` others.
pub fn cache_files(n: usize, phases: &mut Phases) -> Result<()> {
    let folder = Folder::new();
    shardax::config::set_compilation_cache_dir(&folder.0)?;
    (0..n).try_for_each(compile)?;
    phases.time("compile", || compile(n))?;
    shardax::clear_caches();
    phases.time("find", || compile(0)).map(drop)
}

/// Compiles the program number `i`.
fn compile(i: usize) -> Result<()> {
    jit(move |x: Array| x.sin() + i as f32).lower(ones([4]))?.compile().map(drop)
}

fn number_example(i: usize) -> Result<Example> {
    Ok(Example::from([("x".to_owned(), HostArray::from_slice(&[i as i32], &[1])?)]))
}

pub fn examples(n: usize, phases: &mut Phases) -> Result<()> {
    let mut batches = (n, number_example).stream().shuffled(7).batch(8);
    phases.time("first batch", || batches.next_item().transpose())?;
    phases.time("1,000 batches", || (0..1000).try_for_each(|_| batches.next_item().transpose().map(drop)))?;
    let position = batches.position();
    let mut resumed = (n, number_example).stream().shuffled(7).batch(8);
    phases.time("seek", || {
        resumed.seek(&position)?;
        resumed.next_item().transpose()
    })?;
    Ok(())
}
