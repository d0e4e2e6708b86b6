//! The state of a run, read from its folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use shardax_train::log::{JsonLines, Line};

/// The log and the checkpoints of a run.
#[derive(Clone, Debug)]
pub struct Run {
    /// The log.
    pub log: PathBuf,
    /// The lines of the log.
    pub lines: Vec<Line>,
    /// The time since the log was written; `None` if the clock has jumped back.
    pub written: Option<Duration>,
    /// The complete checkpoints: steps, and the times since they were written.
    pub checkpoints: Vec<(u64, Option<Duration>)>,
    /// True while a checkpoint is being written.
    pub is_saving: bool,
}

/// The depth of the subfolders that are searched.
const MAX_DEPTH: usize = 2;

impl Run {
    /// Reads a run's folder, or its log.
    ///
    /// # Errors
    /// Returns an error if there is no log, or it does not consist of JSON lines.
    pub fn read(path: &Path) -> Result<Run, String> {
        let (log, folder) = if path.is_file() {
            (path.to_owned(), path.parent().unwrap_or(Path::new(".")))
        } else {
            let log = newest_log(path, MAX_DEPTH).ok_or_else(|| {
                format!("{} has no log of JSON lines (*.jsonl): add `.logger(JsonLines::new(..)?)`", path.display())
            })?;
            (log, path)
        };
        let lines = JsonLines::read(&log).map_err(|error| error.to_string())?;
        let mut run = Run { written: age(&log), log, lines, checkpoints: Vec::new(), is_saving: false };
        run.find_checkpoints(folder, MAX_DEPTH);
        run.checkpoints.sort_unstable();
        Ok(run)
    }

    /// The numbers of the last logged step.
    pub fn last(&self) -> Option<&Line> {
        self.lines.last()
    }

    /// Returns true if the last step of the run is logged. A run that ended before it was stopped or failed.
    pub fn is_finished(&self) -> bool {
        self.last().and_then(|line| line.values.get("time/remaining_seconds")).is_some_and(|left| *left <= 0.0)
    }

    /// The last value of a number.
    pub fn value(&self, name: &str) -> Option<f64> {
        self.lines.iter().rev().find_map(|line| line.values.get(name).copied())
    }

    /// Returns the finite values of a number, each with its step.
    pub fn curve(&self, name: &str) -> Vec<(f64, f64)> {
        let points = self.lines.iter().filter_map(|line| Some((line.step as f64, *line.values.get(name)?)));
        points.filter(|(_, x)| x.is_finite()).collect()
    }

    fn find_checkpoints(&mut self, folder: &Path, depth: usize) {
        for path in entries(folder) {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if !path.is_dir() {
                continue;
            }
            match name.parse::<u64>() {
                Ok(step) if path.join("commit").exists() => self.checkpoints.push((step, age(&path.join("commit")))),
                _ if name.ends_with(".unfinished") => self.is_saving = true,
                _ if depth > 1 => self.find_checkpoints(&path, depth - 1),
                _ => {}
            }
        }
    }
}

fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}

fn newest_log(folder: &Path, depth: usize) -> Option<PathBuf> {
    let logs = entries(folder).filter(|path| path.extension().is_some_and(|end| end == "jsonl") && path.is_file());
    logs.max_by_key(|path| modified(path)).or_else(|| {
        let below = entries(folder).filter(|path| depth > 1 && path.is_dir());
        below.filter_map(|path| newest_log(&path, depth - 1)).max_by_key(|path| modified(path))
    })
}

/// The time at which a file was last written.
fn modified(path: &Path) -> Option<std::time::SystemTime> {
    fs::metadata(path).and_then(|metadata| metadata.modified()).ok()
}

fn age(path: &Path) -> Option<Duration> {
    SystemTime::now().duration_since(fs::metadata(path).ok()?.modified().ok()?).ok()
}
