//! Estimates of many setups from a few compiled ones. A search estimates all setups, and compiles only the best.

use shardax::prelude::*;
use shardax::shape::AxisName;
use shardax::stages::Collective;

use crate::device_spec::DeviceSpec;
use crate::error::value;
use crate::memory::Holder;
use crate::network::{self, Group, Traffic};
use crate::roofline::Roofline;
use crate::{Plan, Remat, Report, Setup};

/// The axes of the meshes that a search tries.
pub(crate) const AXES: [&str; 4] = ["data", "fsdp", "model", "expert"];

/// The estimate for a setup.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Estimate {
    /// The memory of one device, in bytes.
    pub memory: f64,
    /// Bytes that one device sends.
    pub sent: f64,
    /// The time of the step in seconds.
    pub step: f64,
}

/// A compiled setup.
#[derive(Debug)]
struct Sample {
    report: Report,
    /// The bytes of the rows of a device, or of a group of devices that share rows.
    rows: f64,
    /// Each device has all parameters.
    replicated_parameters: bool,
}

/// The samples for one `remat`.
#[derive(Debug)]
pub(crate) struct Estimator {
    /// The axis of all devices in the first two samples.
    main: &'static str,
    few_rows: Sample,
    more_rows: Sample,
    /// For each other axis: its size in the sample, and whether it splits rows.
    along: Vec<(&'static str, usize, bool, Sample)>,
}

fn rows_of(plan: &Plan) -> f64 {
    plan.argument_bytes(Some(Holder::Batch)).max(1.0)
}

/// The axes with these sizes, without axes of size 1.
pub(crate) fn mesh_axes(sizes: impl IntoIterator<Item = (&'static str, usize)>) -> Vec<(AxisName, usize)> {
    let axes: Vec<(AxisName, usize)> =
        sizes.into_iter().filter(|(_, size)| *size > 1).map(|(name, size)| (AxisName::from(name), size)).collect();
    if axes.is_empty() { vec![(AxisName::from(AXES[0]), 1)] } else { axes }
}

impl Sample {
    /// Compiles a step with the devices along `main` and another axis of this size, and this many rows for each device.
    fn compile(
        plan: &dyn Fn(&Setup) -> Result<Plan>,
        setup: &Setup,
        main: &'static str,
        other: (&'static str, usize),
        rows: usize,
    ) -> Result<Sample> {
        let devices = setup.target.num_devices();
        let sizes = [(main, devices / other.1), other];
        let setup = Setup { axes: mesh_axes(sizes), micro_batch: Some(rows * devices), ..setup.clone() };
        let plan = plan(&setup)?;
        let replicated_parameters = plan.has_replicated_parameters();
        Ok(Sample { rows: rows_of(&plan), replicated_parameters, report: plan.report(&setup.target)? })
    }
}

impl Estimator {
    /// Compiles the samples for one `remat`: all devices along `fsdp`, or `data` if that splits nothing, with few rows
    /// and with twice as many; and one sample with devices along each other useful axis.
    ///
    /// # Errors
    /// Returns an error if the samples cannot be compiled.
    pub fn new(
        plan: &dyn Fn(&Setup) -> Result<Plan>,
        setup: &Setup,
        remat: Remat,
        axes: &[&'static str],
        rows: usize,
    ) -> Result<Estimator> {
        let devices = setup.target.num_devices();
        let main = if axes.contains(&"fsdp") { "fsdp" } else { "data" };
        let setup = Setup { remat, ..setup.clone() };
        // If the sizes are not divisible by the number of devices, some of the devices are along `data`.
        let mut few_rows = Err(value("there is no device", "plan for at least one device"));
        let mut with_data = 1;
        for size in (1..=devices).filter(|n| devices.is_multiple_of(*n)) {
            with_data = size;
            few_rows = Sample::compile(plan, &setup, main, ("data", size), rows);
            if few_rows.is_ok() || main == "data" {
                break;
            }
        }
        let few_rows = few_rows?;
        let more_rows = Sample::compile(plan, &setup, main, ("data", with_data), 2 * rows)?;
        let part = (2..=devices).find(|n| devices.is_multiple_of(*n));
        let mut along = Vec::new();
        for &axis in axes.iter().filter(|axis| **axis != main && **axis != "data") {
            let Some(part) = part else { continue };
            // The step may not support this axis. The search then skips meshes with it, because `covers` is false.
            let Ok(sample) = Sample::compile(plan, &setup, main, (axis, part), rows) else { continue };
            let splits_rows = sample.rows < 1.5 * few_rows.rows;
            along.push((axis, part, splits_rows, sample));
        }
        Ok(Estimator { main, few_rows, more_rows, along })
    }

    /// Returns the memory of a device for programs, in bytes.
    pub fn limit(&self) -> Option<f64> {
        self.few_rows.report.memory.limit
    }

    /// Returns `true` if the samples have the same figures as the samples of another `remat`.
    pub fn equals(&self, other: &Estimator) -> bool {
        self.figures_of_sample() == other.figures_of_sample()
    }

    fn figures_of_sample(&self) -> (f64, f64, f64) {
        let report = &self.few_rows.report;
        (report.memory.total(), report.bytes_accessed, report.matmul_flops_per_device)
    }

    /// Returns true if there are samples for all axes of a setup.
    pub fn covers(&self, setup: &Setup) -> bool {
        setup.axes.iter().filter(|(_, size)| *size > 1).all(|(axis, _)| {
            let axis = axis.to_string();
            axis == "data" || axis == self.main || self.along.iter().any(|(name, ..)| *name == axis)
        })
    }

    /// Estimates the figure that `read` returns, by linear interpolation between the samples with few and with more
    /// rows. Each other axis splits a part of the figure, which its sample measures, and repeats the remainder.
    fn figure(&self, read: &dyn Fn(&Report) -> f64, rows: f64, setup: &Setup) -> f64 {
        let (few, more) = (read(&self.few_rows.report), read(&self.more_rows.report));
        let few_rows = self.few_rows.rows;
        let slope = ((more - few) / (self.more_rows.rows - few_rows).max(1.0)).clamp(0.0, few / few_rows);
        let mut figure = few + slope * (rows - few_rows);
        for (axis, part, _, sample) in &self.along {
            let interpolated = few + slope * (sample.rows - few_rows);
            let share = read(&sample.report) / interpolated.max(f64::MIN_POSITIVE);
            let split = ((1.0 - share) / (1.0 - 1.0 / *part as f64)).clamp(0.0, 1.0);
            figure *= 1.0 - split + split / setup.axis(axis) as f64;
        }
        figure
    }

    /// Estimates memory, communication and time of a lowered plan. The bytes of its arguments are exact, and gradients
    /// are as large as the parameters.
    ///
    /// # Errors
    /// Returns an error if the axes of `setup` do not fit its target's devices.
    pub fn estimate(&self, spec: &DeviceSpec, plan: &Plan, setup: &Setup) -> Result<Estimate> {
        let rows = rows_of(plan);
        let parameters = plan.argument_bytes(Some(Holder::Parameters));
        // Memory: arguments, gradients, and activations, which grow with the rows.
        let memory = plan.argument_bytes(None) + parameters + self.figure(&activation_bytes, rows, setup);
        // Memory traffic: the optimizer's, and the remainder, which grows with the rows.
        let update = update_bytes(parameters, plan.argument_bytes(Some(Holder::OptimizerState)));
        let bytes = self.figure(&bytes_without_update, rows, setup) + update;
        let products = self.figure(&|r| r.matmul_flops_per_device, rows, setup);
        let model = plan.flops().model() / self.few_rows.report.devices as f64;

        let traffic = self.traffic(rows, parameters, setup)?;
        let roofline = Roofline::of(spec, products, model, bytes, &traffic);
        Ok(Estimate { memory, sent: traffic.iter().map(|t| t.sent).sum(), step: roofline.step })
    }

    fn traffic(&self, rows: f64, parameters: f64, setup: &Setup) -> Result<Vec<Traffic>> {
        let mesh = setup.mesh()?;
        let mut collectives: Vec<Collective> = Vec::new();
        // Traffic along the main axis: parameters for all rows, and data in proportion to the rows.
        for t in self.few_rows.report.traffic.iter().filter(|t| t.axes == [self.main]) {
            let mut axes = t.axes.clone();
            if self.few_rows.replicated_parameters && self.main != "data" {
                // Gradients are summed over both axes at once.
                axes.push("data".to_owned());
            }
            let bytes = self.figure(&|report| bytes_of_kind(report, t), rows, setup);
            collectives.extend(collective(setup, &mesh, &axes, (t.kind, bytes, t.runs)));
        }
        // Traffic along another axis: activations in proportion to the rows. If the axis splits rows too, sums and
        // gathers are of parameters.
        for (axis, _, splits_rows, sample) in &self.along {
            for t in sample.report.traffic.iter().filter(|t| t.axes.iter().any(|a| a == axis)) {
                use CollectiveKind::*;
                let of_parameters = *splits_rows && matches!(t.kind, AllReduce | AllGather | ReduceScatter);
                let share = if of_parameters { 1.0 } else { rows / sample.rows };
                collectives.extend(collective(setup, &mesh, &t.axes, (t.kind, t.bytes * share, t.runs)));
            }
        }
        // Gradients of a device's shards of the parameters.
        if self.main != "data" && !self.few_rows.replicated_parameters {
            let sum = (CollectiveKind::AllReduce, parameters, 1);
            collectives.extend(collective(setup, &mesh, &["data".to_owned()], sum));
        }
        // Each collective is an entry of its own, even if another has the same kind and axes.
        let traffic = collectives.chunks(1).flat_map(|c| network::traffic(&setup.target, Some(&mesh), c));
        Ok(traffic.collect())
    }
}

/// Returns a collective over the axes that the mesh has, unless its groups have one device. `bytes` are of all runs.
fn collective(
    setup: &Setup,
    mesh: &Mesh,
    axes: &[String],
    (kind, bytes, runs): (CollectiveKind, f64, usize),
) -> Option<Collective> {
    let axes = axes.iter().map(|axis| AxisName::from(axis.clone()));
    let axes: Vec<AxisName> = axes.filter(|axis| mesh.axis_size(*axis).is_some()).collect();
    let group = Group::new(&setup.target, mesh, &axes);
    let runs = runs.max(1);
    (group.size > 1).then(|| Collective {
        kind,
        axes,
        participants: group.size,
        bytes: (bytes / runs as f64) as usize,
        count: runs,
        runs: Some(runs),
        in_loop: false,
        asynchronous: 0,
        flops_between: 0,
        bytes_between: 0,
    })
}

/// The bytes that collectives of the kind and axes of `like` move.
fn bytes_of_kind(report: &Report, like: &Traffic) -> f64 {
    report.traffic.iter().filter(|t| t.kind == like.kind && t.axes == like.axes).map(|t| t.bytes).sum()
}

/// The bytes of activations and temporaries, without the gradients, which are as large as the parameters.
fn activation_bytes(report: &Report) -> f64 {
    let memory = &report.memory;
    (memory.bytes(Holder::ActivationsAndTemporaries) - memory.bytes(Holder::Parameters)).max(0.0)
}

/// The memory traffic of a step without the optimizer's update.
fn bytes_without_update(report: &Report) -> f64 {
    let memory = &report.memory;
    let update = update_bytes(memory.bytes(Holder::Parameters), memory.bytes(Holder::OptimizerState));
    (report.bytes_accessed - update).max(0.0)
}

/// The memory traffic of an optimizer's update, which reads parameters, state and gradients, and writes parameters and
/// state.
fn update_bytes(parameters: f64, state: f64) -> f64 {
    2.0 * (parameters + state) + 2.0 * parameters
}
