//! Reports, and their text form.

use std::fmt;

use shardax::program::Flops;

use crate::memory::{Advice, Memory};
use crate::network::{self, Traffic};
use crate::plan::{Facts, Plan};
use crate::roofline::{ASSUMPTIONS, Roofline};
use crate::target::Target;
use crate::units::{bytes, seconds};

/// The predictions for a step on some devices. Its `Display` is a page of text.
#[derive(Clone, Debug)]
pub struct Report {
    /// The name of the step.
    pub step: String,
    /// The name of the devices.
    pub target: String,
    /// The number of devices.
    pub devices: usize,
    /// The axes of the mesh; empty for a step on one device.
    pub mesh: Vec<(String, usize)>,
    /// The compiler.
    pub compiler: String,
    /// Limitations of the figures.
    pub notes: Vec<String>,
    /// FLOPs of one step on all devices together.
    pub flops: Flops,
    /// The matmul FLOPs of one device in one step. If they exceed an even share, devices repeat work, and you should
    /// split another dimension.
    pub matmul_flops_per_device: f64,
    /// The memory traffic of one device in one step, in bytes.
    pub bytes_accessed: f64,
    /// The memory of one device.
    pub memory: Memory,
    /// Changes that need less memory.
    pub helps: Vec<Advice>,
    /// Communication, by axes and kind.
    pub traffic: Vec<Traffic>,
    /// Times at published speeds; `None` if they are unknown.
    pub roofline: Option<Roofline>,
    /// The source of the speeds.
    pub source: Option<String>,
}

impl Report {
    pub(crate) fn new(plan: &Plan, target: &Target, facts: Facts) -> Report {
        let spec = target.spec();
        // The compiler's limit for programs is less than the published memory, so it takes precedence.
        let compiler_limit = target.topology().and_then(|_| facts.mesh.as_ref()?.devices().first()?.memory_limit());
        let limit = compiler_limit.map(|n| n as f64).or(spec.map(|s| s.memory));
        let memory = Memory::from_facts(plan, &facts, limit);
        let traffic = network::traffic(target, facts.mesh.as_ref(), &facts.collectives);
        let devices = target.num_devices();
        let bytes_accessed = facts.bytes_accessed;
        let mut notes = Vec::new();
        let mesh: Vec<(String, usize)> =
            facts.mesh.iter().flat_map(|m| m.axes()).map(|(name, size)| (name.to_string(), *size)).collect();
        let idle: Vec<&(String, usize)> = mesh.iter().filter(|(axis, n)| *n > 1 && !plan.splits_along(axis)).collect();
        for (axis, size) in &idle {
            notes.push(format!("the axis {axis:?} splits nothing: its {size} devices repeat the work"));
        }
        // Matmuls in host functions are not visible in the compiled program; they are shared by the devices that split
        // the work.
        let sharing = devices as f64 / idle.iter().map(|(_, n)| *n as f64).product::<f64>();
        let hidden = facts.matmul_flops < 0.9 * plan.flops.model() / sharing;
        let matmul_flops_per_device = if hidden { plan.flops.matmuls / sharing } else { facts.matmul_flops };
        let repeats = matmul_flops_per_device * devices as f64 / plan.flops.matmuls;
        if hidden {
            notes.push("some matmuls are not visible in the compiled program: each device is assumed to compute an even share of them".to_owned());
        } else if idle.is_empty() && repeats > 1.1 {
            notes.push(format!(
                "a device computes {repeats:.1} times its even share of the matmuls, because some work is not split over all axes"
            ));
        }
        if let (Some(_), Some(why)) = (spec, target.without_compiler()) {
            notes.push(format!(
                "compiled by the CPU's compiler instead of the platform's own ({why}): it fuses less, so temporaries and memory traffic are larger, and it may widen bfloat16 to float32 in temporaries and collectives, which doubles their bytes"
            ));
        }
        if plan.flops.unbounded_loops > 0 {
            let n = plan.flops.unbounded_loops;
            notes.push(format!("the trip counts of {n} loops are unknown: their FLOPs count once"));
        }
        if traffic.iter().any(|t| t.at_least) {
            notes.push("some collectives are in loops with unknown trip counts: they count once".to_owned());
        }
        Report {
            step: plan.name().to_owned(),
            target: target.name().to_owned(),
            devices,
            mesh,
            compiler: facts.by,
            notes,
            flops: plan.flops,
            matmul_flops_per_device,
            bytes_accessed,
            helps: memory.advice(),
            roofline: spec.map(|spec| {
                let model = plan.flops.model() / devices as f64;
                Roofline::of(spec, matmul_flops_per_device, model, bytes_accessed, &traffic)
            }),
            source: spec.map(|s| s.source.to_string()),
            memory,
            traffic,
        }
    }

    /// Formatted as `data=2,fsdp=4`.
    pub(crate) fn mesh_text(&self) -> String {
        if self.mesh.is_empty() {
            "one device".to_owned()
        } else {
            self.mesh.iter().map(|(name, size)| format!("{name}={size}")).collect::<Vec<_>>().join(",")
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} on {} ({} devices, {})", self.step, self.target, self.devices, self.mesh_text())?;
        writeln!(f, "compiled by {}", self.compiler)?;
        self.notes.iter().try_for_each(|note| writeln!(f, "note: {note}"))?;
        self.write_memory(f)?;
        self.write_flops(f)?;
        self.write_collectives(f)?;
        self.roofline.as_ref().map_or(Ok(()), |roofline| self.write_roofline(roofline, f))
    }
}

/// The sections of the text, in its order.
impl Report {
    fn write_memory(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nmemory of one device")?;
        for (holder, size) in &self.memory.by {
            writeln!(f, "  {holder:<26}{:>12}", bytes(*size))?;
        }
        let total = self.memory.total();
        match self.memory.limit {
            None => writeln!(f, "  {:<26}{:>12}", "all", bytes(total))?,
            Some(limit) => {
                let share = 100.0 * total / limit;
                writeln!(f, "  {:<26}{:>12} of {} ({share:.0}%)", "all", bytes(total), bytes(limit))?;
                // Each piece of advice has its own estimate, so that the reader can choose the smallest change that fits.
                if total > limit {
                    writeln!(f, "  It does not fit. What would help:")?;
                    for Advice { what, needs, compiled } in &self.helps {
                        let how = if *compiled { "compiled" } else { "estimated" };
                        let fits = if *needs <= limit { ", which fits" } else { "" };
                        writeln!(f, "    {what}: {} ({how}){fits}", bytes(*needs))?;
                    }
                }
            }
        }

        if self.memory.donated > 0.0 || self.memory.aliased > 0.0 {
            writeln!(
                f,
                "  {} of arguments are donated, and results reuse {} of this",
                bytes(self.memory.donated),
                bytes(self.memory.aliased)
            )?;
        }
        Ok(())
    }

    fn write_flops(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nFLOPs of one step: {}", self.flops)?;
        writeln!(
            f,
            "  on one device {:.3e} of matmuls, {} of memory traffic",
            self.matmul_flops_per_device,
            bytes(self.bytes_accessed)
        )?;
        if self.flops.recomputed > 0.0 {
            writeln!(f, "  {:.0}% of the matmuls are recomputed", 100.0 * self.flops.recomputed / self.flops.matmuls)?;
        }
        Ok(())
    }

    fn write_collectives(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\ncollectives of one step, on one device")?;
        if self.traffic.is_empty() {
            writeln!(f, "  none")?;
        } else {
            writeln!(
                f,
                "  {:<22}{:<20}{:>7}{:>12}{:>12}  {:<12}{:>10}{:>10}{:>12}",
                "axes", "kind", "runs", "data", "sent", "link", "time", "async", "hidden"
            )?;
        }
        if self.traffic.iter().any(|t| t.hidden.is_some()) {
            writeln!(
                f,
                "  async: collectives with a separate start and end; hidden: the part of their time during which other work is scheduled"
            )?;
        }
        for t in &self.traffic {
            // Collectives over devices that no mesh axis joins are between the slices of a topology.
            let axes = if t.axes.is_empty() {
                "between slices".to_owned()
            } else {
                format!("{} ({})", t.axes.join("+"), t.participants)
            };
            let time = t.seconds.map_or("".to_owned(), seconds);
            let runs = format!("{}{}", t.runs, if t.at_least { "+" } else { "" });
            let asynchronous = format!("{}/{}", t.asynchronous, t.count);
            let hidden = t.hidden.map_or("".to_owned(), seconds);
            writeln!(
                f,
                "  {axes:<22}{:<20}{runs:>7}{:>12}{:>12}  {:<12}{time:>10}{asynchronous:>10}{hidden:>12}",
                t.kind,
                bytes(t.bytes),
                bytes(t.sent),
                t.link
            )?;
        }
        Ok(())
    }

    fn write_roofline(&self, r: &Roofline, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nroofline of one step: no run is faster if the assumptions hold")?;
        writeln!(
            f,
            "  compute {}, memory {}, communication {}",
            seconds(r.compute),
            seconds(r.memory),
            seconds(r.communication)
        )?;
        writeln!(f, "  step {} ({} of it communication that nothing overlaps)", seconds(r.step), seconds(r.exposed))?;
        writeln!(f, "  MFU at most {:.1}%, HFU at most {:.1}%", 100.0 * r.mfu, 100.0 * r.hfu)?;
        writeln!(f, "assumptions")?;
        ASSUMPTIONS.iter().try_for_each(|line| writeln!(f, "  - {line}"))?;
        self.source.iter().try_for_each(|source| writeln!(f, "  - figures: {source}"))
    }
}
