//! Benchmarks of checkpoints, input pipelines, and sharded initialization.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use shardax::prelude::*;
use shardax::{Error, ErrorKind};
use shardax_train::checkpoint::{self, CheckpointManager, CheckpointManagerOptions};
use shardax_train::data::{Example, Source, Stream, text_windows};

use crate::DEVICES;
use crate::clock::{MIN_RUNS, Timing, measure, measure_parts};
use crate::data::line;

const MIB: usize = 1 << 20;
/// The number of arrays in a checkpoint.
const ARRAYS: usize = 16;
/// The duration of a simulated training step.
const STEP: Duration = Duration::from_millis(20);

/// The size of a checkpoint: `BENCH_MIB` (1024) MiB.
fn bytes() -> usize {
    let mib = std::env::var("BENCH_MIB").ok().and_then(|text| text.parse().ok()).unwrap_or(1024usize);
    mib.max(ARRAYS) * MIB
}

/// Random numbers, split over all devices.
fn tree(seed: i32) -> Result<Vec<Array>> {
    let rows = NamedSharding::new(&line(DEVICES, "x")?, P!["x"]);
    let shape = [bytes() / ARRAYS / 4096, 1024];
    let arrays = (0..ARRAYS as i32).map(|i| device_put(&random::bits(random::key(seed + i), shape), &rows));
    block_until_ready(arrays.collect::<Result<Vec<_>>>()?)
}

/// Runs `f` with an empty temporary folder.
fn in_folder<R>(f: impl FnOnce(&Path) -> Result<R>) -> Result<R> {
    let folder = std::env::temp_dir().join(format!("shardax-bench-{}", std::process::id()));
    fs::create_dir_all(&folder).map_err(|error| failed(&folder, &error))?;
    let result = f(&folder);
    let _ = fs::remove_dir_all(&folder);
    result
}

fn failed(path: &Path, error: &std::io::Error) -> Error {
    Error::new(ErrorKind::Runtime, format!("{}: {error}", path.display()))
}

pub fn checkpoint_save() -> Result<Timing> {
    let tree = tree(0)?;
    in_folder(|folder| {
        let path = folder.join("x");
        measure_parts(MIN_RUNS, || {
            let start = Instant::now();
            checkpoint::save(&path, &tree)?;
            let time = start.elapsed();
            fs::remove_dir_all(&path).map_err(|error| failed(&path, &error))?;
            Ok(time)
        })
    })
}

pub fn checkpoint_restore() -> Result<Timing> {
    let tree = tree(0)?;
    in_folder(|folder| {
        let path = folder.join("x");
        checkpoint::save(&path, &tree)?;
        measure_parts(MIN_RUNS, || {
            let start = Instant::now();
            drop(block_until_ready(checkpoint::restore(&path, &tree)?)?);
            Ok(start.elapsed())
        })
    })
}

/// The time that `save` blocks the program if a thread writes in the background.
pub fn checkpoint_stall() -> Result<Timing> {
    let tree = tree(0)?;
    in_folder(|folder| {
        let mut manager = CheckpointManager::new(folder, CheckpointManagerOptions::new().max_to_keep(1))?;
        let mut step = 0;
        measure_parts(MIN_RUNS, || {
            step += 1;
            let start = Instant::now();
            manager.save(step, &tree)?;
            let time = start.elapsed();
            manager.wait_until_finished()?;
            Ok(time)
        })
    })
}

/// A step of 20 ms while a thread writes checkpoints.
pub fn step_while_saving() -> Result<Timing> {
    let tree = tree(0)?;
    let increment = jit(|x: Array| x + 1);
    in_folder(|folder| {
        let mut manager = CheckpointManager::new(folder, CheckpointManagerOptions::new().max_to_keep(1))?;
        let (mut step, mut x) = (0, zeros([1024]));
        measure_parts(150, || {
            // Every fifty steps, which take about as long as writing.
            if step % 50 == 0 {
                manager.save(step, &tree)?;
            }
            step += 1;
            let start = Instant::now();
            x = block_until_ready(increment.call(&x)?)?;
            std::thread::sleep(STEP);
            Ok(start.elapsed())
        })
    })
}

/// The speed of the disk itself: plain writes followed by `fsync`.
pub fn disk_write() -> Result<Timing> {
    let chunk = noise();
    in_folder(|folder| {
        let path = folder.join("x");
        measure_parts(MIN_RUNS, || {
            let start = Instant::now();
            write(&path, &chunk).map_err(|error| failed(&path, &error))?;
            Ok(start.elapsed())
        })
    })
}

pub fn disk_read() -> Result<Timing> {
    let chunk = noise();
    in_folder(|folder| {
        let path = folder.join("x");
        write(&path, &chunk).map_err(|error| failed(&path, &error))?;
        let mut into = vec![0; 4 * MIB];
        measure_parts(MIN_RUNS, || {
            let start = Instant::now();
            let mut file = File::open(&path).map_err(|error| failed(&path, &error))?;
            while file.read(&mut into).map_err(|error| failed(&path, &error))? > 0 {}
            Ok(start.elapsed())
        })
    })
}

/// 4 MiB of incompressible data.
fn noise() -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(0);
    (0..4 * MIB).map(|_| random.u8(..)).collect()
}

fn write(path: &Path, chunk: &[u8]) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    for _ in 0..bytes() / chunk.len() {
        file.write_all(chunk)?;
    }
    file.sync_all()
}

/// A step of 20 ms that reads 256 windows of 4096 bytes at random offsets of a file, as int32 on eight devices: while the step
/// before runs, or between the steps.
pub fn data_prefetch(is_ahead: bool) -> Result<Timing> {
    let rows = NamedSharding::new(&line(DEVICES, "x")?, P!["x"]);
    in_folder(|folder| {
        let path = folder.join("text");
        write(&path, &noise()).map_err(|error| failed(&path, &error))?;
        let data = text_windows(&path, 4096)?
            .stream()
            .shuffled(0)
            .batch(256)
            .map(move |batch: Example| batch["tokens"].to_array_on(&rows));
        // With prefetching, batches are read on another thread while the step runs, which is a pause here.
        let mut data: Box<dyn Stream<Item = Array>> =
            if is_ahead { Box::new(data.prefetch(4)) } else { Box::new(data) };
        measure(|| {
            let batch = data.next_item().ok_or_else(|| Error::new(ErrorKind::Runtime, "the data ended"))??;
            std::thread::sleep(STEP);
            Ok(batch)
        })
    })
}

/// Reading 256 arrays of 65,536 elements: all copies to the host at once, or one after the other. The elements are int4, which
/// the CPU plugin copies to the host as other plugins copy all types.
pub fn read_tree(at_once: bool) -> Result<Timing> {
    let tree = (0..256).map(|i| block_until_ready(((arange(0..1 << 16) + i) % 8).astype(DType::I4)));
    let tree = tree.collect::<Result<Vec<_>>>()?;
    measure(|| {
        if at_once {
            tree.iter().try_for_each(Array::copy_to_host_async)?;
        }
        tree.iter().map(Array::to_bytes).collect::<Result<Vec<_>>>()
    })
}

/// Initialization of sixteen normal matrices, where each device computes only its rows.
pub fn init_sharded() -> Result<Timing> {
    let rows = NamedSharding::new(&line(DEVICES, "x")?, P!["x"]);
    let side = [bytes() / ARRAYS / 4096, 1024];
    // Each device should compute only its own rows. The printed memory shows it, because a device that computed entire
    // arrays would need more for other data than for results.
    let init = jit(move || -> Vec<Array> {
        (0..ARRAYS as i32).map(|i| random::normal(random::fold_in(random::key(0), i), side)).collect()
    })
    .out_shardings(&rows)
    .lower(())?
    .compile()?;
    let memory = init.memory_analysis()?;
    eprintln!(
        "  of {} MiB a device holds {} of results and {} of other data",
        bytes() / MIB,
        memory.outputs / MIB as i64,
        memory.temporaries / MIB as i64
    );
    measure(|| block_until_ready(init.call(())?))
}
