//! Tries meshes, what layers keep, and micro-batches: by theory all, by the compiler the best.

use std::collections::BTreeSet;
use std::fmt;

use shardax::prelude::*;
use shardax::program::Flops;
use shardax::shape::AxisName;
use shardax::stages::Collective;

use crate::cli::planned;
use crate::error::{value, value_error};
use crate::memory::Holder;
use crate::network::{self, Group, Traffic};
use crate::roofline::Roofline;
use crate::spec::{Network, Spec};
use crate::units::{bytes, seconds};
use crate::{Plan, Remat, Report, Setup};

/// The axes of the meshes that are tried.
const AXES: [&str; 3] = ["data", "fsdp", "model"];

/// What is tried.
#[derive(Clone, Debug)]
pub struct Search {
    /// What layers keep.
    pub remats: Vec<Remat>,
    /// How many rows each group of devices that shares them has, at most; where the setup has a micro-batch, that one
    /// alone is tried.
    pub rows: Vec<usize>,
    /// How many of the best are compiled.
    pub compile: usize,
}

impl Default for Search {
    fn default() -> Self {
        Search { remats: Remat::ALL.to_vec(), rows: vec![1, 2, 4], compile: 4 }
    }
}

/// A way to set the step up.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Its mesh, what its layers keep, its micro-batch.
    pub setup: Setup,
    /// The memory of one device, in bytes, by theory.
    pub memory: f64,
    /// The step's time in seconds, by theory.
    pub step: f64,
    /// What the compiler says, of those that were compiled.
    pub report: Option<Report>,
    /// Whether no other that was compiled takes less time for a row and less memory.
    pub on_frontier: bool,
}

impl Candidate {
    fn rows(&self) -> f64 {
        self.setup.micro_batch.unwrap_or(1) as f64
    }

    /// Memory, and the time for one row, as well as they are known.
    fn figures(&self) -> (f64, f64) {
        let compiled = self.report.as_ref().and_then(|r| Some((r.memory.total(), r.roofline.as_ref()?.step)));
        let (memory, step) = compiled.unwrap_or((self.memory, self.step));
        (memory, step / self.rows())
    }

    /// `--mesh data=1,fsdp=8,model=4 --remat full --micro-batch 16`
    pub fn options(&self) -> String {
        let axes = self.setup.axes.iter().map(|(name, size)| format!("{name}={size}")).collect::<Vec<_>>().join(",");
        let batch = self.setup.micro_batch.unwrap_or(1);
        format!("--mesh {axes} --remat {} --micro-batch {batch}", self.setup.remat.name())
    }
}

/// What was found: its `Display` is a table, and the mesh and the rules of the best.
#[derive(Clone, Debug)]
pub struct Found {
    /// Those that were compiled, by the time for a row.
    pub compiled: Vec<Candidate>,
    /// How many were thought of.
    pub tried: usize,
    /// How many of them do not fit, by theory.
    pub too_large: usize,
    /// Axes that split nothing of the step: meshes that have them are left out.
    pub idle: Vec<String>,
    /// The rules of the best, where the plan says them.
    pub rules: Vec<(String, Vec<String>)>,
    best: Report,
}

/// What one compiled setup tells of others.
struct Base {
    remat: Remat,
    report: Report,
    /// How many devices share a row, and how many rows they have.
    model: f64,
    rows: f64,
}

impl Search {
    /// Searches: each of the `remats` is compiled once on one mesh, from which memory and communication of all meshes
    /// follow by theory; those that fit are put in order by their time for a row, and the best compiled.
    ///
    /// Fails when nothing is published of the devices, and when nothing fits.
    pub fn run(&self, plan: &dyn Fn(&Setup) -> Result<Plan>, setup: &Setup) -> Result<Found> {
        let Some(spec) = setup.target.spec() else {
            return value_error(
                format!("nothing is published of {}", setup.target),
                "search for devices of a kind that `--help` lists",
            );
        };
        setup.target.prepare()?;
        let bases = self.bases(plan, setup)?;
        let mut all = Vec::new();
        let (mut tried, mut too_large) = (0, 0);
        let mut idle = BTreeSet::new();
        for sizes in meshes(setup.target.num_devices(), most_along_model(setup, spec)) {
            let axes: Vec<(AxisName, usize)> = AXES.iter().map(|name| AxisName::from(*name)).zip(sizes).collect();
            let groups = sizes[0] * sizes[1];
            for &rows in &self.rows {
                let batch = setup.micro_batch.unwrap_or(rows * groups);
                let one = Setup { axes: axes.clone(), micro_batch: Some(batch), ..setup.clone() };
                // Sizes that do not divide are no mesh for this step.
                let Ok(lowered) = plan(&one) else { continue };
                // Devices along an axis that splits nothing would repeat the work of others.
                let mut used = axes.iter().filter(|(_, size)| *size > 1).map(|(axis, _)| axis.to_string());
                if let Some(axis) = used.find(|axis| !lowered.splits_along(axis)) {
                    idle.insert(axis);
                    break;
                }
                for base in &bases {
                    tried += 1;
                    let candidate = base.estimate(spec, &lowered, &Setup { remat: base.remat, ..one.clone() })?;
                    let limit = base.report.memory.limit.unwrap_or(spec.memory);
                    match candidate.memory <= limit {
                        true => all.push(candidate),
                        false => too_large += 1,
                    }
                }
                if setup.micro_batch.is_some() {
                    break;
                }
            }
        }
        all.sort_by(|a, b| a.figures().1.total_cmp(&b.figures().1));
        let mut compiled = Vec::new();
        for candidate in all {
            if compiled.len() >= self.compile.max(1) {
                break;
            }
            let Ok(report) = planned(plan, &candidate.setup) else { continue };
            if report.memory.fits() == Some(true) {
                compiled.push(Candidate { report: Some(report), ..candidate });
            }
        }
        compiled.sort_by(|a, b| a.figures().1.total_cmp(&b.figures().1));
        let figures: Vec<(f64, f64)> = compiled.iter().map(Candidate::figures).collect();
        for (i, candidate) in compiled.iter_mut().enumerate() {
            let mine = figures[i];
            candidate.on_frontier = !figures.iter().any(|f| *f != mine && f.0 <= mine.0 && f.1 <= mine.1);
        }
        let Some((best, report)) = compiled.first().and_then(|best| Some((best, best.report.as_ref()?))) else {
            return value_error(
                format!("none of {tried} setups fits {}", setup.target),
                "plan for more devices, shorter sequences or a smaller model",
            );
        };
        let rules = plan(&best.setup)?.rules;
        let best = report.clone();
        Ok(Found { compiled, tried, too_large, idle: idle.into_iter().collect(), rules, best })
    }

    /// Each way of keeping, compiled on a mesh on which all axes have something to do.
    fn bases(&self, plan: &dyn Fn(&Setup) -> Result<Plan>, setup: &Setup) -> Result<Vec<Base>> {
        let devices = setup.target.num_devices();
        let mut last = None;
        let mut bases = Vec::new();
        for model in [2, 1] {
            if !devices.is_multiple_of(model) {
                continue;
            }
            let sizes = [1, devices / model, model];
            let axes = AXES.iter().map(|name| AxisName::from(*name)).zip(sizes).collect();
            let base = Setup { axes, micro_batch: Some(devices / model), ..setup.clone() };
            for &remat in &self.remats {
                let one = Setup { remat, ..base.clone() };
                match plan(&one).and_then(|plan| plan.report(&one.target)) {
                    Ok(report) => bases.push(Base { remat, report, model: model as f64, rows: 1.0 }),
                    Err(error) => last = Some(error),
                }
            }
            if !bases.is_empty() {
                return Ok(bases);
            }
        }
        Err(last.unwrap_or_else(|| value("no way of keeping was given", "give at least one of none, dots, full")))
    }
}

impl Base {
    /// Activations are in proportion to the rows of a device, and split over `model`; what goes along `fsdp` is the
    /// parameters, what goes along `model` the activations, and along `data` the gradients.
    fn estimate(&self, spec: &Spec, plan: &Plan, setup: &Setup) -> Result<Candidate> {
        let [data, fsdp, model] = AXES.map(|name| setup.axis(name) as f64);
        let batch = setup.micro_batch.unwrap_or(1) as f64;
        let rows = batch / (data * fsdp);
        let held = &self.report.memory;
        let parameters = plan.argument_bytes(Some(Holder::Parameters));
        let within = held.of(Holder::ActivationsAndTemporaries) - held.of(Holder::Parameters);
        let activations = within.max(0.0) * rows / self.rows * self.model / model;
        let memory = plan.argument_bytes(None) + parameters + activations;

        let mesh = setup.mesh()?;
        let base_rows = self.rows * self.report.devices as f64 / self.model;
        let flops: Flops = self.report.flops * (batch / base_rows);
        let bytes = self.report.bytes_accessed * batch / base_rows;
        let mut traffic: Vec<Traffic> = Vec::new();
        let mut add = |axis: &str, kind: CollectiveKind, bytes: f64, runs: usize| {
            let axes = vec![AxisName::from(axis)];
            let group = Group::of(&setup.target, &mesh, &axes);
            if group.size > 1 {
                let runs = runs.max(1);
                let one = Collective {
                    kind,
                    axes,
                    participants: group.size,
                    bytes: (bytes / runs as f64) as usize,
                    count: runs,
                    runs: Some(runs),
                    in_loop: false,
                };
                traffic.extend(network::traffic(&setup.target, Some(&mesh), &[one]));
            }
        };
        for t in &self.report.traffic {
            match &t.axes.iter().map(String::as_str).collect::<Vec<_>>()[..] {
                ["fsdp"] => add("fsdp", t.kind, t.bytes * self.model / model, t.runs),
                ["model"] => add("model", t.kind, t.bytes * rows / self.rows, t.runs),
                _ => {}
            }
        }
        // Gradients of parameters that are not split over `fsdp` go along `data`, as those that are do.
        add("data", CollectiveKind::AllReduce, parameters, 1);
        let roofline = {
            let n = self.report.devices as f64;
            Roofline::of(spec, flops.products / n, flops.model() / n, bytes, &traffic)
        };
        Ok(Candidate { setup: setup.clone(), memory, step: roofline.step, report: None, on_frontier: false })
    }
}

/// `model` talks most: it stays within a host, or a few chips.
fn most_along_model(setup: &Setup, spec: &Spec) -> usize {
    match spec.network {
        Network::Switch { .. } => setup.target.sizes.last().copied().unwrap_or(8),
        Network::Torus { .. } => 16,
    }
}

/// The sizes of all meshes of so many devices.
fn meshes(devices: usize, most_along_model: usize) -> Vec<[usize; 3]> {
    let divisors = |n: usize| (1..=n).filter(move |d| n.is_multiple_of(*d));
    let of_model = |model: usize| divisors(devices / model).map(move |fsdp| [devices / model / fsdp, fsdp, model]);
    divisors(devices).filter(|model| *model <= most_along_model).flat_map(of_model).collect()
}

impl Found {
    /// The report of the one that takes least time for a row.
    pub fn best(&self) -> &Report {
        &self.best
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Found { compiled, tried, too_large, idle, rules, .. } = self;
        writeln!(
            f,
            "{tried} setups by theory, of which {too_large} do not fit; the best {} compiled:",
            compiled.len()
        )?;
        idle.iter()
            .try_for_each(|axis| writeln!(f, "no mesh has the axis {axis:?}: it splits nothing of this step"))?;
        writeln!(f, "  {:<62}{:>10}{:>12}{:>12}{:>8}", "setup", "memory", "step", "for a row", "MFU")?;
        for c in compiled {
            let (memory, row) = c.figures();
            let mfu = c.report.as_ref().and_then(|r| r.roofline.as_ref()).map_or(0.0, |r| 100.0 * r.mfu);
            let mark = if c.on_frontier { "*" } else { " " };
            let step = seconds(row * c.rows());
            writeln!(f, "{mark} {:<62}{:>10}{step:>12}{:>12}{mfu:>7.1}%", c.options(), bytes(memory), seconds(row))?;
        }
        writeln!(f, "* less memory, or less time for a row, than every other")?;
        let Some(best) = compiled.first() else { return Ok(()) };
        let axes = best.setup.axes.iter().filter(|(_, size)| *size > 1);
        let axes = axes.map(|(name, size)| format!("({:?}, {size})", name.to_string())).collect::<Vec<_>>().join(", ");
        writeln!(f, "\nthe fastest:\n    let mesh = make_mesh([{axes}])?;")?;
        let there = |axis: &&String| best.setup.axis(axis) > 1;
        for (i, (name, axes)) in rules.iter().enumerate() {
            let axes: Vec<String> = axes.iter().filter(there).map(|axis| format!("{axis:?}")).collect();
            let axes = match &axes[..] {
                [] => "None::<&str>".to_owned(),
                [axis] => axis.clone(),
                axes => format!("({})", axes.join(", ")),
            };
            match i {
                0 => writeln!(f, "    let rules = Rules::new(&mesh, [({name:?}, {axes})])")?,
                _ => writeln!(f, "        .and({name:?}, {axes})")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meshes_multiply_to_the_devices() {
        let all = meshes(8, 4);
        assert!(all.iter().all(|sizes| sizes.iter().product::<usize>() == 8 && sizes[2] <= 4));
        assert_eq!((all.len(), meshes(1, 8)), (4 + 3 + 2, vec![[1, 1, 1]]));
    }
}
