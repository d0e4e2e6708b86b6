//! The training that the tests interrupt. Its numbers are exact, so a lost, repeated or partial step is visible.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use shardax::distributed::{self, preemption};
use shardax::prelude::*;
use shardax_train::checkpoint::{CheckpointManager, CheckpointManagerOptions};
use shardax_train::data::{Source, Stream};
use shardax_train::log::JsonLines;
use shardax_train::{Average, Control, MultiMetric, OnPreemption, Trainer};

use super::Folder;

/// The folder of the run. `child` does nothing if it is not set.
const FOLDER: &str = "SHARDAX_TEST_RUN";
const STEPS: &str = "SHARDAX_TEST_STEPS";
/// The minimum duration of a step in milliseconds.
const PACE: &str = "SHARDAX_TEST_PACE";
const EVERY: &str = "SHARDAX_TEST_EVERY";
const THEN: &str = "SHARDAX_TEST_THEN";

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn step_of(state: Array, x: Array) -> (Array, MultiMetric) {
    // The sum is over all devices, in integers that wrap around.
    let next_state = &state * 1_664_525 + state.sum(..) + x;
    let loss = Average::of((next_state.get(0) % 1000).astype(DType::F32));
    (next_state, MultiMetric::new().with("loss", loss))
}

fn begin() -> Result<(Array, NamedSharding)> {
    let split = NamedSharding::new(&make_mesh([("x", device_count())])?.auto(), P!["x"]);
    let state = make_array_from_callback([8], DType::I32, &split, |index| {
        Ok(arange(index[0].start as i32..index[0].end as i32))
    })?;
    Ok((state, split))
}

fn data() -> impl Stream<Item = Array> {
    (64usize, |i: usize| Ok(array(i as i32))).stream().shuffled(5).repeat()
}

/// The program of a process that the tests interrupt.
#[test]
fn child() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    if let Err(error) = run(Path::new(&folder)) {
        eprintln!("process {}: {error}", process_index());
        std::process::exit(3);
    }
}

fn run(folder: &Path) -> Result<()> {
    let _listening = preemption::listen()?;
    distributed::initialize()?;
    let file = |name: &str| folder.join(format!("{name}-{}", process_index()));
    // The file appears complete or not at all, because the test waits for it and then reads it.
    std::fs::write(file("pid.new"), std::process::id().to_string()).expect("a file");
    std::fs::rename(file("pid.new"), file("pid")).expect("a file");
    let (state, split) = begin()?;
    let step = jit(step_of).out_shardings((&split, None::<shardax::ShardingLike>)).donate_argnums([0]);
    let options = CheckpointManagerOptions::new()
        .save_interval_steps(number(EVERY, 1_000_000))
        .max_to_keep(2)
        .timeout(Duration::from_secs(number("SHARDAX_TEST_SAVE_TIMEOUT", 60)));
    let mut checkpoints = CheckpointManager::new(folder.join("checkpoints"), options)?;
    let pace = Duration::from_millis(number(PACE, 0));
    let ending = std::env::var(THEN).unwrap_or_default();
    let mut trainer = Trainer::new(number(STEPS, u64::MAX))
        .log_every(20)
        .quiet()
        .logger(JsonLines::new(folder.join("metrics.jsonl"))?)
        .checkpoints(&mut checkpoints)
        .hook(|at| {
            std::fs::write(file("last"), at.step.to_string()).expect("a file");
            Ok(Control::Continue)
        });
    if ending == "return" {
        trainer = trainer.on_preemption(OnPreemption::Return);
    }
    if ending == "poll" {
        let (begun, after) = (std::time::Instant::now(), Duration::from_millis(300));
        preemption::poll(Duration::from_millis(10), move || {
            (begun.elapsed() > after).then(|| "spot notice".to_owned())
        })?;
    }
    let state = trainer.run(state, &mut data(), |state, x| {
        std::thread::sleep(pace);
        step.call((state, x))
    })?;
    // Signals have their usual effect from here on.
    drop(_listening);
    if ending == "return" {
        eprintln!("returned because of {:?}", preemption::notice());
    }
    if ending == "sleep" {
        std::fs::write(file("done"), "").expect("a file");
        std::thread::sleep(Duration::from_secs(50));
    }
    let weights = shardax::multihost::process_allgather_tiled(&state)?.to_vec::<i32>()?;
    if process_index() == 0 {
        std::fs::write(folder.join("weights"), format!("{weights:?}")).expect("a file");
    }
    Ok(())
}

/// Returns the weights after this many steps of an uninterrupted run.
pub fn expected(steps: u64) -> Vec<i32> {
    let (mut state, mut data) = ((0..8).collect::<Vec<i32>>(), data());
    for _ in 0..steps {
        let x = data.next_item().expect("endless").and_then(|x| x.item::<i32>()).expect("a number");
        let sum = state.iter().fold(0i32, |sum, y| sum.wrapping_add(*y));
        state = state.iter().map(|y| y.wrapping_mul(1_664_525).wrapping_add(sum).wrapping_add(x)).collect();
    }
    state
}

/// A run in its own folder.
pub struct Run {
    pub folder: Folder,
    variables: Vec<(String, String)>,
}

impl Run {
    pub fn new() -> Run {
        let run = Run { folder: Folder::new(), variables: Vec::new() };
        let folder = run.folder.0.display().to_string();
        let cache = run.folder.join("cache").display().to_string();
        run.with(FOLDER, folder).with("SHARDAX_COMPILATION_CACHE_DIR", cache).with("SHARDAX_NUM_CPU_DEVICES", 1)
    }

    pub fn with(mut self, name: &str, value: impl ToString) -> Run {
        self.variables.retain(|(known, _)| known != name);
        self.variables.push((name.to_owned(), value.to_string()));
        self
    }

    pub fn steps(self, steps: u64) -> Run {
        self.with(STEPS, steps)
    }

    pub fn pace(self, millis: u64) -> Run {
        self.with(PACE, millis)
    }

    pub fn save_every(self, steps: u64) -> Run {
        self.with(EVERY, steps)
    }

    pub fn then(self, what: &str) -> Run {
        self.with(THEN, what)
    }

    fn arguments() -> [&'static str; 5] {
        ["training::child", "--exact", "--nocapture", "--test-threads=1", "-q"]
    }

    /// Returns the command for a single process.
    pub fn alone(&self) -> Command {
        let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
        self.finish(command.args(Self::arguments()));
        command
    }

    /// Returns the command for several processes, or `None` without a launcher.
    pub fn processes(&self, count: usize) -> Option<Command> {
        let launcher = super::launch::launchers().pop()?;
        let mut command = Command::new(launcher);
        command.args(["-n", &count.to_string(), "--oversubscribe", "--bind-to", "none"]);
        command.arg(std::env::current_exe().expect("this program has a path")).args(Self::arguments());
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        command.env("OMPI_MCA_rtc_hwloc_vmhole", "none");
        self.finish(&mut command);
        Some(command)
    }

    fn finish(&self, command: &mut Command) {
        for rank in 0..16 {
            let _ = std::fs::remove_file(self.folder.join(&format!("pid-{rank}")));
        }
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
    }

    fn read(&self, name: &str) -> Option<String> {
        std::fs::read_to_string(self.folder.join(name)).ok()
    }

    /// Waits for the process of a rank, and returns its id.
    pub fn pid(&self, rank: usize) -> String {
        super::wait_for("process", || self.read(&format!("pid-{rank}")))
    }

    /// Returns the last step of a rank.
    pub fn last(&self, rank: usize) -> Option<u64> {
        self.read(&format!("last-{rank}"))?.parse().ok()
    }

    pub fn weights(&self) -> String {
        self.read("weights").expect("the weights at the end of the run")
    }

    pub fn checkpoints(&self) -> PathBuf {
        self.folder.join("checkpoints")
    }

    /// Returns the steps on disk whose files are complete.
    pub fn saved(&self) -> Vec<u64> {
        let options = CheckpointManagerOptions::new().read_only(true);
        let checkpoints = CheckpointManager::new(self.checkpoints(), options).expect("checkpoints");
        let steps = checkpoints.all_steps().expect("steps");
        for step in &steps {
            checkpoints.checkpoint(*step).expect("a checkpoint").verify().expect("whole");
        }
        steps
    }

    /// Returns the state that was saved at a step.
    pub fn state_at(&self, step: u64) -> Vec<i32> {
        let options = CheckpointManagerOptions::new().read_only(true);
        let checkpoints = CheckpointManager::new(self.checkpoints(), options).expect("checkpoints");
        let state = checkpoints.restore(step, &zeros_dtype([8], DType::I32)).expect("the state");
        state.to_vec().expect("values")
    }
}
