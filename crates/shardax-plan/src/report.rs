//! What is reported of a step, and as text.

use std::fmt;

use shardax::program::Flops;

use crate::memory::{Advice, Memory};
use crate::network::{self, Traffic};
use crate::plan::{Facts, Plan};
use crate::roofline::{ASSUMPTIONS, Roofline};
use crate::target::Target;
use crate::units::{bytes, seconds};

/// What a step needs and takes on some devices. Its `Display` is a page of text.
#[derive(Clone, Debug)]
pub struct Report {
    /// The step's function.
    pub step: String,
    /// The devices, by the name that they were asked for by.
    pub target: String,
    /// How many devices there are.
    pub devices: usize,
    /// The axes of the mesh; none of a step for one device.
    pub mesh: Vec<(String, usize)>,
    /// Who compiled it.
    pub compiler: String,
    /// What is to be known of the figures.
    pub notes: Vec<String>,
    /// Of one step on all devices together.
    pub flops: Flops,
    /// The products that one device does in one step: more than its even share of them all where devices repeat work.
    pub products_per_device: f64,
    /// What one device reads and writes of its memory in one step.
    pub bytes_accessed: f64,
    /// The memory of one device.
    pub memory: Memory,
    /// What would need less of it.
    pub helps: Vec<Advice>,
    /// Communication, by axes and kinds.
    pub traffic: Vec<Traffic>,
    /// Times by published speeds; `None` where nothing is published of the devices.
    pub roofline: Option<Roofline>,
    /// Where those speeds are from.
    pub source: Option<String>,
}

impl Report {
    pub(crate) fn of(plan: &Plan, target: &Target, facts: Facts) -> Report {
        let spec = target.spec();
        let own = target.topology().and_then(|_| facts.mesh.as_ref()?.devices().first()?.memory_limit());
        let limit = own.map(|n| n as f64).or(spec.map(|s| s.memory));
        let memory = Memory::of_facts(plan, &facts, limit);
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
        // What the compiled program does not show, calls of the host's functions say, is shared by those that have
        // parts.
        let sharing = devices as f64 / idle.iter().map(|(_, n)| *n as f64).product::<f64>();
        let hidden = facts.products < 0.9 * plan.flops.model() / sharing;
        let products_per_device = if hidden { plan.flops.products / sharing } else { facts.products };
        let repeats = products_per_device * devices as f64 / plan.flops.products;
        if hidden {
            notes.push("the compiled program does not show all of its products: a device is taken to do its even share of them".to_owned());
        } else if idle.is_empty() && repeats > 1.1 {
            notes.push(format!(
                "a device does {repeats:.1} times its even share of the products: some work is not split over all axes"
            ));
        }
        if let (Some(_), Some(why)) = (spec, target.without_compiler()) {
            notes.push(format!(
                "compiled by the CPU's compiler in the place of the platform's own ({why}): it fuses less, so that temporaries and bytes are more, and may widen bfloat16 to float32 in temporaries and collectives, up to twice the bytes"
            ));
        }
        if plan.flops.unbounded_loops > 0 {
            let n = plan.flops.unbounded_loops;
            notes.push(format!("the steps of {n} loops are known only when they run: their FLOPs count once"));
        }
        if traffic.iter().any(|t| t.at_least) {
            notes.push("some collectives are in loops that do not say how often they run: they count once".to_owned());
        }
        Report {
            step: plan.name().to_owned(),
            target: target.name().to_owned(),
            devices,
            mesh,
            compiler: facts.by,
            notes,
            flops: plan.flops,
            products_per_device,
            bytes_accessed,
            helps: memory.advice(),
            roofline: spec.map(|spec| {
                let model = plan.flops.model() / devices as f64;
                Roofline::of(spec, products_per_device, model, bytes_accessed, &traffic)
            }),
            source: spec.map(|s| s.source.to_string()),
            memory,
            traffic,
        }
    }

    /// `data=2,fsdp=4`
    pub(crate) fn mesh_text(&self) -> String {
        match self.mesh.is_empty() {
            true => "one device".to_owned(),
            false => self.mesh.iter().map(|(name, size)| format!("{name}={size}")).collect::<Vec<_>>().join(","),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} on {} ({} devices, {})", self.step, self.target, self.devices, self.mesh_text())?;
        writeln!(f, "compiled by {}", self.compiler)?;
        self.notes.iter().try_for_each(|note| writeln!(f, "note: {note}"))?;

        writeln!(f, "\nmemory of one device")?;
        for (holder, held) in &self.memory.by {
            writeln!(f, "  {holder:<26}{:>12}", bytes(*held))?;
        }
        let total = self.memory.total();
        match self.memory.limit {
            None => writeln!(f, "  {:<26}{:>12}", "all", bytes(total))?,
            Some(limit) => {
                let share = 100.0 * total / limit;
                writeln!(f, "  {:<26}{:>12} of {} ({share:.0}%)", "all", bytes(total), bytes(limit))?;
                if total > limit {
                    writeln!(f, "  It does not fit. What would help:")?;
                    for Advice { what, needs, compiled } in &self.helps {
                        let how = if *compiled { "compiled" } else { "by theory" };
                        let fits = if *needs <= limit { ", which fits" } else { "" };
                        writeln!(f, "    {what}: {} ({how}){fits}", bytes(*needs))?;
                    }
                }
            }
        }

        writeln!(f, "\nFLOPs of one step: {}", self.flops)?;
        let all = self.flops.products;
        writeln!(
            f,
            "  on one device {:.3e} of products, {} of memory traffic",
            self.products_per_device,
            bytes(self.bytes_accessed)
        )?;
        if self.flops.recomputed > 0.0 {
            writeln!(f, "  {:.0}% of the products are done a second time", 100.0 * self.flops.recomputed / all)?;
        }

        writeln!(f, "\ncollectives of one step, on one device")?;
        if self.traffic.is_empty() {
            writeln!(f, "  none")?;
        } else {
            writeln!(
                f,
                "  {:<22}{:<20}{:>7}{:>12}{:>12}  {:<12}{:>10}",
                "axes", "kind", "runs", "data", "sent", "link", "time"
            )?;
        }
        for t in &self.traffic {
            let axes = match t.axes.is_empty() {
                true => "between slices".to_owned(),
                false => format!("{} ({})", t.axes.join("+"), t.participants),
            };
            let time = t.seconds.map_or("".to_owned(), seconds);
            let runs = format!("{}{}", t.runs, if t.at_least { "+" } else { "" });
            writeln!(
                f,
                "  {axes:<22}{:<20}{runs:>7}{:>12}{:>12}  {:<12}{time:>10}",
                t.kind,
                bytes(t.bytes),
                bytes(t.sent),
                t.link
            )?;
        }

        let Some(r) = &self.roofline else { return Ok(()) };
        writeln!(f, "\nroofline of one step: no run is faster where the assumptions hold")?;
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
