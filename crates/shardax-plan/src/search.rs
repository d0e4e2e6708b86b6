//! Search over meshes, `remat` and micro-batches: estimates all, and compiles the best.

use std::collections::BTreeSet;
use std::fmt;

use shardax::prelude::*;
use shardax::shape::AxisName;

use crate::cli::planned;
use crate::device_spec::{DeviceSpec, Network};
use crate::error::{reason, value_error};
use crate::estimator::{AXES, Estimate, Estimator, mesh_axes};
use crate::units::{bytes, seconds};
use crate::{Plan, Remat, Report, Setup};

/// The setups to try.
#[derive(Clone, Debug)]
pub struct Search {
    /// The values of `remat`.
    pub remats: Vec<Remat>,
    /// The largest numbers of rows for each group of devices that shares rows. If the setup has a micro-batch, only
    /// that one is tried.
    pub rows: Vec<usize>,
    /// The number of fastest setups to compile; half as many setups with the least memory are compiled too. A larger
    /// number can find a better setup, because estimates are less exact than the compiler's figures.
    pub compile: usize,
}

impl Default for Search {
    fn default() -> Self {
        Search { remats: Remat::ALL.to_vec(), rows: vec![1, 2, 4], compile: 4 }
    }
}

/// A setup that was compiled.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The mesh, `remat` and micro-batch.
    pub setup: Setup,
    /// Estimated memory of one device, in bytes.
    pub memory: f64,
    /// Estimated bytes that one device sends in a step.
    pub sent: f64,
    /// Estimated time of the step in seconds.
    pub step: f64,
    /// The report after compilation.
    pub report: Report,
    /// True if no other compiled setup has both less time per row and less memory.
    pub on_frontier: bool,
    /// The rules of its shardings, for the axes in its mesh; empty if the plan has none.
    pub rules: Vec<(String, Vec<String>)>,
}

impl Candidate {
    fn rows(&self) -> f64 {
        self.setup.micro_batch.unwrap_or(1) as f64
    }

    /// Memory, and time per row.
    fn figures(&self) -> (f64, f64) {
        let step = self.report.roofline.as_ref().map_or(self.step, |r| r.step);
        (self.report.memory.total(), step / self.rows())
    }

    /// Returns the command-line options, such as `--mesh fsdp=8,model=4 --remat full --micro-batch 16`.
    pub fn options(&self) -> String {
        options(&self.setup)
    }

    /// Returns the lines of a program that make the mesh, whose axes are `Auto` as in the plan, and the rules.
    pub fn program(&self) -> String {
        let axes = self.setup.axes.iter().map(|(name, size)| format!("({:?}, {size})", name.to_string()));
        let mut text = format!("let mesh = make_mesh([{}])?.auto();", axes.collect::<Vec<_>>().join(", "));
        let (split, replicated): (Vec<_>, Vec<_>) = self.rules.iter().partition(|(_, axes)| !axes.is_empty());
        for (i, (name, axes)) in split.iter().enumerate() {
            let axes: Vec<String> = axes.iter().map(|axis| format!("{axis:?}")).collect();
            let axes = if let [axis] = &axes[..] { axis.clone() } else { format!("({})", axes.join(", ")) };
            text += &match i {
                0 => format!("\nlet rules = Rules::new(&mesh, [({name:?}, {axes})])"),
                _ => format!("\n    .and({name:?}, {axes})"),
            };
        }
        if split.is_empty() && !replicated.is_empty() {
            text += "\nlet rules = Rules::default()";
        }
        replicated.iter().for_each(|(name, _)| text += &format!("\n    .replicated({name:?})"));
        if !self.rules.is_empty() {
            text.push(';');
        }
        text
    }
}

fn options(setup: &Setup) -> String {
    let axes = setup.axes.iter().map(|(name, size)| format!("{name}={size}")).collect::<Vec<_>>().join(",");
    let batch = setup.micro_batch.unwrap_or(1);
    format!("--mesh {axes} --remat {} --micro-batch {batch}", setup.remat.name())
}

/// The result of a search. Its `Display` is a table, with the mesh and the rules of the best setup.
#[derive(Clone, Debug)]
pub struct Found {
    /// The compiled setups by time per row; at least one.
    pub compiled: Vec<Candidate>,
    /// The number of estimated setups.
    pub tried: usize,
    /// The number of setups whose estimate does not fit.
    pub too_large: usize,
    /// Axes that split nothing in the step. Meshes with them are skipped, because they would only repeat work.
    pub idle: Vec<String>,
    /// The options of setups that failed, with reasons: setups that do not fit or compile after all, and meshes that
    /// the step does not support.
    pub failed: Vec<(String, String)>,
    best: Report,
}

/// A setup with its estimate.
struct EstimatedSetup {
    setup: Setup,
    estimate: Estimate,
}

/// The estimates of a search.
struct Estimates {
    /// The setups whose estimate fits.
    fitting: Vec<EstimatedSetup>,
    /// The number of estimated setups.
    tried: usize,
    /// The number of setups whose estimate does not fit.
    too_large: usize,
}

impl EstimatedSetup {
    fn time_per_row(&self) -> f64 {
        self.estimate.step / self.setup.micro_batch.unwrap_or(1) as f64
    }
}

impl Search {
    /// Runs the search. Each of the `remats` is compiled on a few meshes, from which memory and communication of all
    /// meshes are estimated. From the setups that fit, the search compiles the fastest per row, and half as many with
    /// the least memory.
    ///
    /// ```no_run
    /// use shardax_plan::{Search, Setup, Target, models};
    /// let setup = Setup::new(Target::new("h100:1x8")?);
    /// setup.target.prepare()?;
    /// let result = Search::default().run(&models::mlp, &setup)?;
    /// println!("{result}"); // a table, with the mesh and the rules of the fastest
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the speeds of the devices are unknown, or nothing fits.
    pub fn run(&self, plan: &dyn Fn(&Setup) -> Result<Plan>, setup: &Setup) -> Result<Found> {
        let Some(spec) = setup.target.spec() else {
            return value_error(
                format!("the speeds of {} are unknown, because nothing is published about them", setup.target),
                "search for devices of a kind that `--help` lists, or describe yours in a file",
            );
        };
        setup.target.prepare()?;
        let mut failed: Vec<(String, String)> = Vec::new();
        let (lowered, idle) = self.lower_all(plan, setup, spec, &mut failed);
        let Estimates { mut fitting, tried, too_large } =
            self.estimate_all(plan, setup, spec, &lowered, &mut failed)?;

        // Compile the fastest setups first, then the smallest ones that remain.
        let mut compiled: Vec<Candidate> = Vec::new();
        fitting.sort_by(|a, b| a.time_per_row().total_cmp(&b.time_per_row()));
        compile_first(plan, self.compile.max(1), &mut fitting, &mut compiled, &mut failed)?;
        // The sort is stable, so that the fastest of the setups with equal memory comes first.
        fitting.sort_by(|a, b| a.estimate.memory.total_cmp(&b.estimate.memory));
        compile_first(plan, self.compile.div_ceil(2), &mut fitting, &mut compiled, &mut failed)?;

        compiled.sort_by(|a, b| a.figures().1.total_cmp(&b.figures().1));
        let figures: Vec<(f64, f64)> = compiled.iter().map(Candidate::figures).collect();
        for (candidate, (memory, time)) in compiled.iter_mut().zip(&figures) {
            candidate.on_frontier = !figures.iter().any(|(m, t)| m <= memory && t <= time && (m, t) != (memory, time));
        }
        let Some(best) = compiled.first().map(|best| best.report.clone()) else {
            let why = failed.first().map_or(String::new(), |(what, why)| format!("; {what}: {why}"));
            return value_error(
                format!("none of {tried} setups fits {}{why}", setup.target),
                "plan for more devices, shorter sequences or a smaller model",
            );
        };
        Ok(Found { compiled, tried, too_large, idle: idle.into_iter().map(str::to_owned).collect(), failed, best })
    }

    /// Lowers the step for all meshes and micro-batches that it supports. Returns the plans, and the axes that split
    /// nothing, which the meshes of the plans do not have.
    fn lower_all(
        &self,
        plan: &dyn Fn(&Setup) -> Result<Plan>,
        setup: &Setup,
        spec: &DeviceSpec,
        failed: &mut Vec<(String, String)>,
    ) -> (Vec<(Setup, Plan)>, BTreeSet<&'static str>) {
        let devices = setup.target.num_devices();
        let mut idle: BTreeSet<&'static str> = BTreeSet::new();
        let mut lowered: Vec<(Setup, Plan)> = Vec::new();
        for sizes in meshes(devices, most_along_model(setup, spec)) {
            let axes = mesh_axes(AXES.into_iter().zip(sizes));
            // Devices along `model` share their rows; all other axes split rows.
            let groups = devices / sizes[2];
            for rows in self.rows.iter().take(if setup.micro_batch.is_some() { 1 } else { usize::MAX }) {
                let micro_batch = setup.micro_batch.or(Some(rows * groups));
                let candidate = Setup { axes: axes.clone(), micro_batch, ..setup.clone() };
                if idle.iter().any(|axis| spans(&axes, axis)) {
                    break;
                }
                match plan(&candidate) {
                    Ok(plan) => {
                        // Devices along an axis that splits nothing would repeat the work of others.
                        let unused = AXES.into_iter().filter(|axis| spans(&axes, axis) && !plan.splits_along(axis));
                        idle.extend(unused);
                        lowered.push((candidate, plan));
                    }
                    // The step does not support this mesh, because sizes are not divisible.
                    Err(error) => failed.push((options(&candidate), reason(&error))),
                }
            }
        }
        // Some plans were lowered before their axis was known to be idle.
        lowered.retain(|(setup, _)| !idle.iter().any(|axis| setup.axis(axis) > 1));
        (lowered, idle)
    }

    /// Estimates all lowered plans with each `remat`, from a few samples that are compiled for each `remat`.
    fn estimate_all(
        &self,
        plan: &dyn Fn(&Setup) -> Result<Plan>,
        setup: &Setup,
        spec: &DeviceSpec,
        lowered: &[(Setup, Plan)],
        failed: &mut Vec<(String, String)>,
    ) -> Result<Estimates> {
        let used_axes = AXES.into_iter().filter(|axis| lowered.iter().any(|(setup, _)| setup.axis(axis) > 1));
        let axes: Vec<&'static str> = used_axes.collect();
        let rows = match setup.micro_batch {
            Some(batch) => (batch / setup.target.num_devices()).max(1),
            None => self.rows.iter().copied().min().unwrap_or(1),
        };
        let mut estimates = Estimates { fitting: Vec::new(), tried: 0, too_large: 0 };
        let mut estimators: Vec<Estimator> = Vec::new();
        for &remat in &self.remats {
            let estimator = match Estimator::new(plan, setup, remat, &axes, rows) {
                Ok(estimator) => estimator,
                Err(error) => {
                    failed.push((format!("--remat {}", remat.name()), reason(&error)));
                    continue;
                }
            };
            // Steps without layers to recompute are equal for every `remat`.
            if estimators.iter().any(|other| estimator.equals(other)) {
                continue;
            }
            for (setup, lowered) in lowered.iter().filter(|(setup, _)| estimator.covers(setup)) {
                estimates.tried += 1;
                let setup = Setup { remat, ..setup.clone() };
                let estimate = estimator.estimate(spec, lowered, &setup)?;
                if estimate.memory <= estimator.limit().unwrap_or(spec.memory) {
                    estimates.fitting.push(EstimatedSetup { setup, estimate })
                } else {
                    estimates.too_large += 1
                }
            }
            estimators.push(estimator);
        }
        Ok(estimates)
    }
}

/// Compiles setups from the front of `setups` until `count` more are compiled that fit.
fn compile_first(
    plan: &dyn Fn(&Setup) -> Result<Plan>,
    count: usize,
    setups: &mut Vec<EstimatedSetup>,
    compiled: &mut Vec<Candidate>,
    failed: &mut Vec<(String, String)>,
) -> Result<()> {
    let target = compiled.len() + count;
    while compiled.len() < target && !setups.is_empty() {
        let EstimatedSetup { setup, estimate } = setups.remove(0);
        match planned(plan, &setup) {
            Ok(report) if report.memory.fits() == Some(true) => {
                let Estimate { memory, sent, step } = estimate;
                let rules = rules(&plan(&setup)?, &setup);
                compiled.push(Candidate { setup, memory, sent, step, report, on_frontier: false, rules });
            }
            Ok(report) => {
                let limit = report.memory.limit.map_or(String::new(), |limit| format!(" of {}", bytes(limit)));
                failed.push((options(&setup), format!("it needs {}{limit}", bytes(report.memory.total()))));
            }
            Err(error) => failed.push((options(&setup), reason(&error))),
        }
    }
    Ok(())
}

/// Returns true if there is more than one device along this axis.
fn spans(axes: &[(AxisName, usize)], axis: &'static str) -> bool {
    axes.iter().any(|(name, size)| *size > 1 && *name == AxisName::from(axis))
}

/// The rules of a plan, for the axes with more than one device.
fn rules(plan: &Plan, setup: &Setup) -> Vec<(String, Vec<String>)> {
    let rules = plan
        .rules
        .iter()
        .map(|(name, axes)| (name.clone(), axes.iter().filter(|axis| setup.axis(axis) > 1).cloned().collect()));
    rules.collect()
}

/// The largest size of `model`, which communicates most: it stays within a host or a few chips.
fn most_along_model(setup: &Setup, spec: &DeviceSpec) -> usize {
    match spec.network {
        Network::Switch { .. } => setup.target.sizes.last().copied().unwrap_or(8),
        Network::Torus { .. } => 16,
    }
}

/// The sizes of all meshes of `devices` devices, axis by axis.
fn meshes(devices: usize, most_along_model: usize) -> Vec<[usize; AXES.len()]> {
    let mut meshes = Vec::new();
    for model in divisors(devices).filter(|model| *model <= most_along_model) {
        for expert in divisors(devices / model) {
            let remaining = devices / model / expert;
            meshes.extend(divisors(remaining).map(|fsdp| [remaining / fsdp, fsdp, model, expert]));
        }
    }
    meshes
}

fn divisors(n: usize) -> impl Iterator<Item = usize> {
    (1..=n).filter(move |d| n.is_multiple_of(*d))
}

impl Found {
    /// Returns the report of the setup with the least time per row.
    pub fn best(&self) -> &Report {
        &self.best
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Found { compiled, tried, too_large, idle, failed, .. } = self;
        let count = compiled.len();
        writeln!(
            f,
            "{tried} setups estimated, {too_large} do not fit; {count} compiled, the fastest and the smallest:"
        )?;
        writeln!(f, "  {:<62}{:>10}{:>12}{:>12}{:>8}", "setup", "memory", "step", "for a row", "MFU")?;
        for c in compiled {
            let (memory, row) = c.figures();
            let mfu = c.report.roofline.as_ref().map_or(0.0, |r| 100.0 * r.mfu);
            let mark = if c.on_frontier { "*" } else { " " };
            let step = seconds(row * c.rows());
            writeln!(f, "{mark} {:<62}{:>10}{step:>12}{:>12}{mfu:>7.1}%", c.options(), bytes(memory), seconds(row))?;
        }
        writeln!(f, "* no other setup needs both less memory and less time for a row")?;
        for axis in idle {
            writeln!(f, "no mesh has the axis {axis:?}, because it splits nothing in this step")?;
        }
        for (what, why) in failed {
            writeln!(f, "not planned: {what}: {why}")?;
        }
        let Some(best) = compiled.first() else { return Ok(()) };
        writeln!(f, "\nthe fastest:")?;
        best.program().lines().try_for_each(|line| writeln!(f, "    {line}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meshes_multiply_to_the_devices() {
        let shapes = meshes(8, 4);
        assert!(shapes.iter().all(|sizes| sizes.iter().product::<usize>() == 8 && sizes[2] <= 4));
        // Three factors of two on three axes; two factors and one if `model` has the others.
        assert_eq!((shapes.len(), meshes(1, 8)), (10 + 6 + 3, vec![[1, 1, 1, 1]]));
    }
}
