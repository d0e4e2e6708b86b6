//! The measured sizes of each case, in a file and as a table.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::Side;
use super::cases::Case;

/// The end of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Measured,
    OutOfTime,
    OutOfMemory,
    Failed,
}

impl Outcome {
    fn text(self) -> &'static str {
        match self {
            Outcome::Measured => "",
            Outcome::OutOfTime => "over the time",
            Outcome::OutOfMemory => "over the memory",
            Outcome::Failed => "an error",
        }
    }
}

/// A case at one size on one side.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    pub case: String,
    pub side: String,
    pub size: usize,
    pub outcome: Outcome,
    /// The cost of each phase: ms of CPU time, or a count.
    pub phases: BTreeMap<String, f64>,
    pub peak_mib: f64,
}

impl Record {
    pub fn summary(&self) -> String {
        let phases: Vec<String> = self.phases.iter().map(|(name, cost)| format!("{name} {}", digits(*cost))).collect();
        format!("{} {} {:.0} MiB", self.outcome.text(), phases.join(", "), self.peak_mib)
    }
}

/// All records, and the file that they are appended to.
pub struct Results {
    records: Vec<Record>,
    file: File,
}

impl Results {
    /// Reads the records of an earlier run.
    pub fn open(path: &Path) -> Result<Results, Box<dyn Error>> {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let records = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
        Ok(Results { records, file: OpenOptions::new().create(true).append(true).open(path)? })
    }

    pub fn add(&mut self, record: Record) -> Result<(), Box<dyn Error>> {
        writeln!(self.file, "{}", serde_json::to_string(&record)?)?;
        self.records.push(record);
        Ok(())
    }

    pub fn find(&self, case: &str, side: Side, size: usize) -> Option<&Record> {
        self.records.iter().find(|r| r.case == case && r.side == side.name() && r.size == size)
    }

    /// The phases of a case, in the order of the program.
    pub fn phases(&self, case: &Case) -> Vec<&str> {
        case.phases
            .iter()
            .filter(|phase| {
                self.records.iter().any(|record| record.case == case.name && record.phases.contains_key(**phase))
            })
            .copied()
            .collect()
    }

    /// The sizes and costs of a phase.
    pub fn costs(&self, case: &Case, side: Side, phase: &str) -> Vec<(f64, f64)> {
        case.sizes
            .iter()
            .filter_map(|size| Some((*size as f64, *self.find(case.name, side, *size)?.phases.get(phase)?)))
            .collect()
    }

    /// Returns the texts of the costs of one side, and of their power.
    fn cells(&self, case: &Case, side: Side, costs: &[(f64, f64)]) -> (String, String) {
        let mut texts: Vec<String> = costs.iter().map(|(_, cost)| digits(*cost)).collect();
        // If a size was not measured, its outcome says why.
        let stopped = case
            .sizes
            .iter()
            .find_map(|size| self.find(case.name, side, *size).filter(|record| record.outcome != Outcome::Measured));
        texts.extend(stopped.map(|record| record.outcome.text().to_owned()));
        (texts.join(", "), power(costs).map_or(String::new(), |power| format!("{power:.2}")))
    }

    /// A row for each phase of each case.
    pub fn table(&self, cases: &[&Case]) -> String {
        let mut text =
            String::from("| growing size | phase | sizes | shardax | exponent | JAX | exponent | peak MiB |\n");
        text.push_str("|:--|:--|:--|--:|--:|--:|--:|--:|\n");
        for case in cases {
            for (i, phase) in self.phases(case).into_iter().enumerate() {
                let [ours, jax] = [Side::Shardax, Side::Jax].map(|side| (side, self.costs(case, side, phase)));
                let [(ours_text, ours_power), (jax_text, jax_power)] =
                    [ours, jax].map(|(side, costs)| self.cells(case, side, &costs));
                let peak = case.sizes.iter().rev().find_map(|size| self.find(case.name, Side::Shardax, *size));
                let sizes: Vec<String> = case.sizes.iter().map(|size| counted(*size)).collect();
                let (name, sizes, peak) = match i {
                    0 => (case.grows, sizes.join(", "), peak.map_or(String::new(), |r| format!("{:.0}", r.peak_mib))),
                    _ => ("", String::new(), String::new()),
                };
                // Writing to a string cannot fail.
                let _ = writeln!(
                    text,
                    "| {name} | {phase} | {sizes} | {ours_text} | {ours_power} | {jax_text} | {jax_power} | {peak} |"
                );
            }
        }
        text
    }
}

/// Costs below this limit are not fitted, because they do not depend on the size.
const MIN_FITTED: f64 = 1.0;

/// The power of the size with which a cost grows, which is the slope of the line through the logarithms.
pub fn power(costs: &[(f64, f64)]) -> Option<f64> {
    let points: Vec<(f64, f64)> =
        costs.iter().filter(|(_, cost)| *cost >= MIN_FITTED).map(|(size, cost)| (size.ln(), cost.ln())).collect();
    if points.len() < 2 {
        return None;
    }
    let count = points.len() as f64;
    let (mean_x, mean_y) = points.iter().fold((0.0, 0.0), |(x, y), point| (x + point.0 / count, y + point.1 / count));
    let covariance: f64 = points.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    let variance: f64 = points.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
    (variance > 0.0).then_some(covariance / variance)
}

/// Three digits.
pub fn digits(cost: f64) -> String {
    match cost {
        c if c < 1.0 => format!("{c:.3}"),
        c if c < 100.0 => format!("{c:.1}"),
        c => format!("{c:.0}"),
    }
}

/// A size in words: `10 k`, `1 M`.
pub fn counted(size: usize) -> String {
    match size {
        0..10_000 => size.to_string(),
        10_000..1_000_000 => format!("{} k", size / 1000),
        1_000_000..1_000_000_000 => format!("{} M", size / 1_000_000),
        _ => format!("{} G", size / 1_000_000_000),
    }
}
