//! A page that is rewritten during a run.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use shardax::error::{Error, ErrorKind, Result};

use super::Report;
use crate::log::{Line, Logger};

/// A logger that writes a page about the run, which browsers reload by themselves. The page is one file; no server is
/// needed.
///
/// ```
/// use shardax_train::log::Logger;
/// use shardax_train::report::LiveReport;
/// # let path = std::env::temp_dir().join(format!("shardax-doc-live-{}.html", std::process::id()));
/// let mut page = LiveReport::new(&path, "digits");
/// page.log(100, &[("loss".to_owned(), 0.25)].into())?;
/// page.flush()?;
/// assert!(std::fs::read_to_string(&path).unwrap().contains("http-equiv=\"refresh\""));
/// // The page of a run that has ended stays as it is.
/// drop(page);
/// assert!(!std::fs::read_to_string(&path).unwrap().contains("http-equiv=\"refresh\""));
/// # std::fs::remove_file(&path).ok();
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Debug)]
pub struct LiveReport {
    path: PathBuf,
    title: String,
    every: Duration,
    lines: Vec<Line>,
    written: Option<Instant>,
}

/// The number of points of a curve from which only every second, third, … one is drawn.
const MAX_POINTS: usize = 2000;

impl LiveReport {
    /// Creates a page that is rewritten every 5 s.
    pub fn new(path: impl AsRef<Path>, title: &str) -> Self {
        let (path, title) = (path.as_ref().to_owned(), title.to_owned());
        LiveReport { path, title, every: Duration::from_secs(5), lines: Vec::new(), written: None }
    }

    /// Sets how often the page is rewritten and reloaded, at most once a second.
    pub fn every(mut self, interval: Duration) -> Self {
        self.every = interval.max(Duration::from_secs(1));
        self
    }

    /// Begins the curves with the lines of an earlier part of the run. You can read them with
    /// [`JsonLines::read`](crate::log::JsonLines::read).
    pub fn earlier(mut self, lines: Vec<Line>) -> Self {
        self.lines = lines;
        self
    }

    fn write(&mut self, is_running: bool) -> Result<()> {
        let stride = self.lines.len().div_ceil(MAX_POINTS).max(1);
        // The first and the last line are always included.
        let (first, later) = self.lines.split_at(self.lines.len().min(1));
        let later = later.iter().rev().step_by(stride).rev();
        let thinned: Vec<Line> = first.iter().chain(later).cloned().collect();
        let step = self.lines.last().map_or_else(|| "no step yet".to_owned(), |line| format!("step {}", line.step));
        let date = httpdate::fmt_http_date(SystemTime::now());
        let ended = if is_running { "" } else { ", ended" };
        let report = Report::new(&self.title).state(format!("{step}{ended}, last written {date}"));
        let mut report = report.curves(&[("run", &thinned)])?;
        if is_running {
            report = report.refresh(self.every);
        }
        // Renamed when it is complete, so that a browser never reads a part of it.
        let new = self.path.with_extension("html.unfinished");
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let written = folder.map_or(Ok(()), fs::create_dir_all);
        let written =
            written.and_then(|()| fs::write(&new, report.to_html())).and_then(|()| fs::rename(&new, &self.path));
        self.written = Some(Instant::now());
        written.map_err(|error| {
            Error::new(ErrorKind::Runtime, format!("cannot write {}: {error}", self.path.display()))
                .help("check that the path is correct and that the disk has space")
        })
    }
}

impl Logger for LiveReport {
    fn begin(&mut self, step: u64) -> Result<()> {
        self.lines.retain(|line| line.step <= step);
        Ok(())
    }

    fn log(&mut self, step: u64, values: &BTreeMap<String, f64>) -> Result<()> {
        self.lines.push(Line { step, values: values.clone() });
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        match self.written {
            Some(written) if written.elapsed() < self.every => Ok(()),
            _ => self.write(true),
        }
    }
}

impl Drop for LiveReport {
    fn drop(&mut self) {
        if !self.lines.is_empty() {
            let _ = self.write(false);
        }
    }
}
