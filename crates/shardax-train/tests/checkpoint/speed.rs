//! The time to save and restore a gibibyte, compared with the disk's, and the time that steps wait for data.
//!
//! `cargo test --release -p shardax-train --test checkpoint speed -- --include-ignored --nocapture` prints the table;
//! `TMPDIR` says which disk.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::time::{Duration, Instant};

use shardax::prelude::*;
use shardax_train::checkpoint::{self, CheckpointManager, CheckpointManagerOptions};
use shardax_train::data::{Example, Source, Stream, text_windows};
use shardax_train::{Control, MultiMetric, Trainer};

use super::{Folder, bits, setup};

const BYTES: usize = 1 << 30;

/// Seconds of processors that this process has used, all of its threads together: what a busy machine does not change.
fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let ticks = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
    ticks.filter_map(|n| n.parse::<f64>().ok()).sum::<f64>() / 100.0
}

fn rate(begin: Instant) -> f64 {
    BYTES as f64 / (1 << 20) as f64 / begin.elapsed().as_secs_f64()
}

#[test]
#[ignore = "writes several GiB"]
fn a_gibibyte() -> Result<()> {
    setup();
    let folder = Folder::new();
    let rows = NamedSharding::new(&make_mesh([("x", 8)])?, P!["x"]);
    fn make(seed: u32, rows: &NamedSharding) -> Result<Vec<Array>> {
        (0..16).map(|i| device_put(&random::bits(random::key(seed + i), [1 << 12, 1 << 12]), rows)).collect()
    }
    let tree = block_until_ready(make(0, &rows)?)?;
    // The same values, since some disks write what repeats itself only once.
    let values: Vec<u8> = bits(&tree)?.concat();
    let mut read_back = vec![0u8; 4 << 20];
    println!(
        "MiB/s: disk write + fsync, save, disk read, restore; seconds that the caller of an asynchronous save waits"
    );
    let options = CheckpointManagerOptions::new().max_to_keep(1);
    let mut checkpoints = CheckpointManager::new(folder.join("run"), options)?;
    for round in 0..4 {
        let (begin, used) = (Instant::now(), cpu());
        let path = folder.join("raw");
        let mut file = File::create(&path).expect("a file");
        for chunk in values.chunks(4 << 20) {
            file.write_all(chunk).expect("a disk");
        }
        file.sync_all().expect("a disk");
        let (write, write_cpu) = (rate(begin), cpu() - used);

        let (begin, used) = (Instant::now(), cpu());
        checkpoint::save(folder.join("x"), &tree)?;
        let (save, save_cpu) = (rate(begin), cpu() - used);

        let (begin, used) = (Instant::now(), cpu());
        let mut file = File::open(&path).expect("a file");
        while file.read(&mut read_back).expect("a disk") > 0 {}
        let (read, read_cpu) = (rate(begin), cpu() - used);

        let (begin, used) = (Instant::now(), cpu());
        let restored = block_until_ready(checkpoint::restore(folder.join("x"), &tree)?)?;
        let (restore, restore_cpu) = (rate(begin), cpu() - used);
        drop(restored);
        std::fs::remove_file(&path).expect("the file");
        std::fs::remove_dir_all(folder.join("x")).expect("the folder");

        let begin = Instant::now();
        checkpoints.save(round + 1, &tree)?;
        let stall = begin.elapsed().as_secs_f64();
        checkpoints.wait_until_finished()?;
        println!(
            "{write:.0}, {save:.0} ({:.2}); {read:.0}, {restore:.0} ({:.2}); {stall:.3} s; of processors \
             {write_cpu:.2}, {save_cpu:.2}; {read_cpu:.2}, {restore_cpu:.2} s",
            save / write,
            restore / read
        );
    }
    Ok(())
}

/// The cost of a save for a training whose steps donate their state: the call, and the time that steps lose while it is
/// copied and written, compared with plain copies of as much memory.
#[test]
#[ignore = "writes several GiB"]
fn a_gibibyte_that_the_next_step_donates() -> Result<()> {
    setup();
    let folder = Folder::new();
    let rows = NamedSharding::new(&make_mesh([("x", 8)])?, P!["x"]);
    fn make(seed: u32, rows: &NamedSharding) -> Result<Array> {
        device_put(&random::bits(random::key(seed), [1 << 12, 1 << 12]), rows)
    }
    let mut state = block_until_ready((0..16).map(|seed: u32| make(seed, &rows)).collect::<Result<Vec<_>>>()?)?;
    // A step that takes long enough for the threads of a copy to run at the same time.
    let step = jit(|state: Vec<Array>| tree::map(|x| x + 1, state)).donate_argnums([0]);
    fn ms(begin: Instant) -> f64 {
        begin.elapsed().as_secs_f64() * 1e3
    }
    let one_step = |state: &mut Vec<Array>| -> Result<f64> {
        let begin = Instant::now();
        *state = block_until_ready(step.call(std::mem::take(state))?)?;
        Ok(ms(begin))
    };
    let from = vec![1u8; BYTES];
    let mut to = from.clone();
    let mut copy = |threads: usize| {
        let begin = Instant::now();
        std::thread::scope(|scope| {
            let size = BYTES / threads;
            for (to, from) in to.chunks_mut(size).zip(from.chunks(size)) {
                scope.spawn(|| to.copy_from_slice(from));
            }
        });
        ms(begin)
    };
    copy(1);
    println!("ms: a copy by 1 and by 2 threads: {:.0}, {:.0}", copy(1), copy(2));
    drop((from, to));

    let options = CheckpointManagerOptions::new().max_to_keep(1);
    let mut checkpoints = CheckpointManager::new(folder.join("run"), options)?;
    println!("ms: a step, `save`, the first step after it, what all steps together lose until it is on the disk");
    for round in 1..=5 {
        let mut durations_without_saves = (0..9).map(|_| one_step(&mut state)).collect::<Result<Vec<_>>>()?;
        durations_without_saves.sort_by(f64::total_cmp);
        let usual = durations_without_saves[4];
        let begin = Instant::now();
        checkpoints.save(round, &state)?;
        let save = ms(begin);
        let mut after = vec![one_step(&mut state)?];
        while checkpoints.latest_step()? != Some(round) {
            after.push(one_step(&mut state)?);
        }
        let lost = save + after.iter().sum::<f64>() - usual * after.len() as f64;
        println!("{usual:.0}, {save:.1}, {:.0}, {lost:.0} in {} steps", after[0], after.len());
        checkpoints.wait_until_finished()?;
    }
    Ok(())
}

/// The rows of a batch, of 16 KiB each: debug builds take ten times as long to gather them.
const ROWS: usize = if cfg!(debug_assertions) { 32 } else { 256 };

/// Steps of 20 ms, whose batches (4 MiB in optimized builds) are read from a file and put on eight devices: on a thread
/// that reads ahead they are there when a step asks for them, which waits for less than a hundredth of the time.
///
/// Other programs may take the processors from that thread for a while, so it is the best of several windows that
/// counts, next to the best window of steps that read in turns.
#[test]
fn a_step_does_not_wait_for_its_data() -> Result<()> {
    setup();
    let folder = Folder::new();
    let path = folder.join("text");
    std::fs::write(&path, (0..32 << 20).map(|i| (i % 251) as u8).collect::<Vec<_>>()).expect("a disk");
    let rows = NamedSharding::new(&make_mesh([("x", 8)])?, P!["x"]);
    let batches = || -> Result<_> {
        let rows = rows.clone();
        let place = move |batch: Example| batch["tokens"].to_array_on(&rows);
        Ok(text_windows(&path, 4 << 10)?.stream().shuffled(0).batch(ROWS).map(place))
    };
    // A step of 20 ms hides the reading of a batch only if another thread reads ahead.
    let ahead = waits(80, &mut batches()?.prefetch(4))?;
    let without_saving = waits(20, &mut batches()?)?;
    println!(
        "the share of time that steps of 20 ms wait for data, in windows of ten: {ahead:.4?}, in turns {without_saving:.4?}"
    );
    fn least(waits: &[f64]) -> f64 {
        waits.iter().copied().fold(1.0, f64::min)
    }
    assert!(
        least(&ahead) < least(&without_saving) / 2.0 && least(&without_saving) > 0.03,
        "{ahead:.4?}, {without_saving:.4?}"
    );
    Ok(())
}

/// The share of time that so many steps of 20 ms wait for these batches, in windows of ten.
fn waits(steps: u64, data: &mut impl Stream<Item = Array>) -> Result<Vec<f64>> {
    let mut waits = Vec::new();
    let watch = |_: u64, values: &BTreeMap<String, f64>| {
        waits.push(values["time/input_wait"]);
        Ok(Control::Continue)
    };
    let _ = Trainer::new(steps).log_every(10).quiet().on_log(watch).run(zeros(()), data, |state, batch: Array| {
        assert_eq!(batch.shape(), [ROWS, 4 << 10]);
        std::thread::sleep(Duration::from_millis(20));
        Ok((state, MultiMetric::new()))
    })?;
    Ok(waits)
}
