//! The links and the time of collectives.

use std::collections::{BTreeMap, BTreeSet};

use shardax::prelude::*;
use shardax::shape::AxisName;
use shardax::stages::Collective;

use crate::device_spec::{Link, Network};
use crate::target::Target;

/// A group of devices along some axes of a mesh, located in the network.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Group {
    /// The number of devices.
    pub size: usize,
    /// The number of slices or hosts.
    pub outer: usize,
    /// For a torus: the number of devices along each dimension, and whether it is a ring.
    pub dims: Vec<(usize, bool)>,
}

impl Group {
    /// Returns the group that contains the first position of the mesh.
    pub fn new(target: &Target, mesh: &Mesh, axes: &[AxisName]) -> Group {
        let sizes: Vec<(bool, usize)> = mesh.axes().iter().map(|(name, size)| (axes.contains(name), *size)).collect();
        let mut positions = vec![0usize];
        let mut stride = 1;
        for (moves, size) in sizes.iter().rev() {
            if *moves {
                positions = positions.iter().flat_map(|p| (0..*size).map(move |i| p + i * stride)).collect();
            }
            stride *= size;
        }
        let places: Vec<(usize, Vec<usize>)> = positions.iter().map(|&p| target.place(mesh, p)).collect();
        let torus = matches!(target.spec().map(|s| s.network), Some(Network::Torus { .. }));
        let outer: BTreeSet<usize> = places.iter().map(|(slice, at)| if torus { *slice } else { at[0] }).collect();
        let mut dims = Vec::new();
        if torus {
            let count = places.first().map_or(0, |(_, at)| at.len());
            for dim in 0..count {
                let coordinates: BTreeSet<usize> = places.iter().map(|(_, place)| place[dim]).collect();
                // Only a group that spans the dimension uses the links that wrap around.
                let spans = target.sizes.get(dim).is_some_and(|size| coordinates.len() == *size);
                if coordinates.len() > 1 {
                    dims.push((coordinates.len(), spans && target.is_ring(dim)));
                }
            }
        }
        Group { size: positions.len(), outer: outer.len().max(1), dims }
    }
}

/// The bytes that each device sends in one run of a collective, with ring algorithms, or directly for an all-to-all.
pub(crate) fn volume(kind: CollectiveKind, bytes: f64, size: usize) -> f64 {
    let remote_share = size.saturating_sub(1) as f64 / size.max(1) as f64;
    match kind {
        CollectiveKind::AllReduce => 2.0 * bytes * remote_share,
        CollectiveKind::AllGather | CollectiveKind::ReduceScatter | CollectiveKind::AllToAll => bytes * remote_share,
        _ => bytes,
    }
}

/// The bottleneck link, and the seconds of one run there; `None` if the speeds are unknown.
pub(crate) fn time(target: &Target, group: &Group, c: &Collective) -> (Link, Option<f64>) {
    let Some(spec) = target.spec() else { return (Link::Host, None) };
    let bytes = c.bytes as f64;
    let is_torus = matches!(spec.network, Network::Torus { .. });
    let (near, far) = if is_torus { (Link::Ici, Link::Dcn) } else { (Link::NvLink, Link::InfiniBand) };
    // Between slices, for which the program has no axis.
    let unnamed = c.axes.is_empty() && matches!(c.kind, CollectiveKind::Send | CollectiveKind::Recv);
    if unnamed {
        return (far, Some(bytes / spec.outside));
    }
    let inner_size = group.size.div_ceil(group.outer);
    let sums = if c.kind == CollectiveKind::AllReduce { 2.0 } else { 1.0 };
    let permutes = matches!(c.kind, CollectiveKind::CollectivePermute | CollectiveKind::Send | CollectiveKind::Recv);
    let inner = match spec.network {
        _ if inner_size <= 1 => 0.0,
        Network::Switch { bandwidth } => volume(c.kind, bytes, inner_size) / bandwidth,
        Network::Torus { link, .. } if permutes => bytes / link,
        Network::Torus { link, .. } if c.kind == CollectiveKind::AllToAll => {
            // Half of the bytes cross the middle of each dimension.
            let times = group.dims.iter().map(|(size, is_ring)| {
                let links = if *is_ring { 8.0 } else { 4.0 };
                *size as f64 * bytes / (links * link)
            });
            times.fold(0.0, f64::max)
        }
        Network::Torus { link, .. } => {
            // Both directions of a ring; back and forth on a line.
            let links: f64 = group.dims.iter().map(|(_, ring)| if *ring { 2.0 } else { 1.0 }).sum();
            volume(c.kind, bytes, inner_size) / (links.max(1.0) * link)
        }
    };
    if group.outer <= 1 {
        return (near, Some(inner));
    }
    // Data for a host or slice arrives over the links of all its members.
    let remote_share = (group.outer - 1) as f64 / group.outer as f64;
    let outer = match c.kind {
        CollectiveKind::AllToAll => bytes * remote_share / spec.outside,
        _ if permutes => bytes / spec.outside,
        _ => sums * bytes * remote_share / (inner_size as f64 * spec.outside),
    };
    if outer >= inner { (far, Some(outer)) } else { (near, Some(inner)) }
}

/// The traffic of collectives of one kind over the same axes.
#[derive(Clone, Debug, PartialEq)]
pub struct Traffic {
    /// The mesh axes; empty for traffic between slices.
    pub axes: Vec<String>,
    /// The kind of collective.
    pub kind: CollectiveKind,
    /// The number of devices in a group.
    pub participants: usize,
    /// The number of runs in a step.
    pub runs: usize,
    /// The data on one device for all runs: operands or results, whichever are larger.
    pub bytes: f64,
    /// The bytes that one device sends for all runs, with ring algorithms, or directly for an all-to-all.
    pub sent: f64,
    /// The bottleneck link.
    pub link: Link,
    /// The seconds of all runs in sequence; `None` if the speeds are unknown.
    pub seconds: Option<f64>,
    /// True if some are in loops with unknown trip counts. They are counted once.
    pub at_least: bool,
    /// The number of collectives in the program.
    pub count: usize,
    /// The number of asynchronous collectives among them.
    pub asynchronous: usize,
    /// The communication time in seconds that the schedule hides: the work scheduled between each collective's start
    /// and end, at most the collective's duration. `None` if the speeds are unknown.
    pub hidden: Option<f64>,
}

/// The collectives grouped by axes and kind.
pub(crate) fn traffic(target: &Target, mesh: Option<&Mesh>, collectives: &[Collective]) -> Vec<Traffic> {
    let mut groups: BTreeMap<(Vec<String>, CollectiveKind), Traffic> = BTreeMap::new();
    for c in collectives {
        let group = match mesh {
            Some(mesh) => Group::new(target, mesh, &c.axes),
            // Without a mesh the step runs on one device.
            None => Group { size: c.participants, outer: 1, dims: Vec::new() },
        };
        let (link, seconds) = time(target, &group, c);
        let runs = c.runs.unwrap_or(c.count);
        let axes: Vec<String> = c.axes.iter().map(ToString::to_string).collect();
        let sum = groups.entry((axes.clone(), c.kind)).or_insert_with(|| Traffic {
            axes,
            kind: c.kind,
            participants: c.participants,
            runs: 0,
            bytes: 0.0,
            sent: 0.0,
            link,
            seconds: seconds.map(|_| 0.0),
            at_least: false,
            count: 0,
            asynchronous: 0,
            hidden: seconds.map(|_| 0.0),
        });
        let all_runs = seconds.map(|seconds| seconds * runs as f64);
        let hidden = work_between(target, c).zip(all_runs).map(|(work, duration)| work.min(duration));
        sum.count += c.count;
        sum.asynchronous += c.asynchronous;
        sum.hidden = sum.hidden.zip(hidden).map(|(a, b)| a + b);
        sum.runs += runs;
        sum.bytes += (c.bytes * runs) as f64;
        sum.sent += volume(c.kind, c.bytes as f64, c.participants.max(1)) * runs as f64;
        sum.seconds = sum.seconds.zip(all_runs).map(|(a, b)| a + b);
        sum.at_least |= c.runs.is_none();
    }
    groups.into_values().collect()
}

/// The time of the work that is scheduled between the start and the end of a collective; `None` if the speeds are
/// unknown.
fn work_between(target: &Target, c: &Collective) -> Option<f64> {
    let spec = target.spec()?;
    Some((c.flops_between as f64 / spec.flops).max(c.bytes_between as f64 / spec.memory_bandwidth))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(target: &str, axes: [(&'static str, usize); 2], along: &[&str], kind: CollectiveKind) -> (Link, f64) {
        let target = Target::new(target).expect("a name").by_cpu();
        target.prepare().expect("64 devices");
        let mesh = target.mesh(axes).expect("a mesh");
        let axes: Vec<AxisName> = along.iter().map(|name| AxisName::from(*name)).collect();
        let group = Group::new(&target, &mesh, &axes);
        let gigabyte = Collective {
            kind,
            axes,
            participants: group.size,
            bytes: 1_000_000_000,
            count: 1,
            runs: Some(1),
            in_loop: false,
            asynchronous: 0,
            flops_between: 0,
            bytes_between: 0,
        };
        let (link, time) = time(&target, &group, &gigabyte);
        (link, time.expect("speeds are published"))
    }

    fn near(got: (Link, f64), link: Link, time: f64) {
        assert!(got.0 == link && (got.1 - time).abs() < 1e-9 * time.max(1.0), "{got:?}, not {link} in {time}");
    }

    #[test]
    fn links_within_and_between_hosts() {
        use CollectiveKind::*;
        near(seconds("h100:8x8", [("fsdp", 8), ("model", 8)], &["model"], AllGather), Link::NvLink, 7.0 / 8.0 / 450.0);
        near(
            seconds("h100:8x8", [("fsdp", 8), ("model", 8)], &["model"], AllReduce),
            Link::NvLink,
            2.0 * 7.0 / 8.0 / 450.0,
        );
        // One device of each host: its own link carries all data for the host.
        near(
            seconds("h100:8x8", [("fsdp", 8), ("model", 8)], &["fsdp"], AllGather),
            Link::InfiniBand,
            7.0 / 8.0 / 50.0,
        );
        // All devices of each host share the data.
        near(
            seconds("h100:8x8", [("fsdp", 8), ("model", 8)], &["fsdp", "model"], ReduceScatter),
            Link::InfiniBand,
            7.0 / 8.0 / (8.0 * 50.0),
        );
        near(
            seconds("h100:8x8", [("fsdp", 8), ("model", 8)], &["fsdp", "model"], AllToAll),
            Link::InfiniBand,
            7.0 / 8.0 / 50.0,
        );
        near(
            seconds("h100:8x8", [("fsdp", 8), ("model", 8)], &["fsdp"], CollectivePermute),
            Link::InfiniBand,
            1.0 / 50.0,
        );
    }

    #[test]
    fn links_of_a_torus() {
        use CollectiveKind::*;
        // A torus with wrap-around: both directions in each dimension of the group. The last 16 are a plane, the first
        // 4 a ring.
        near(seconds("v5p:4x4x4", [("fsdp", 4), ("model", 16)], &["model"], AllGather), Link::Ici, 15.0 / 16.0 / 400.0);
        near(
            seconds("v5p:4x4x4", [("fsdp", 4), ("model", 16)], &["fsdp"], AllReduce),
            Link::Ici,
            2.0 * 3.0 / 4.0 / 200.0,
        );
        near(seconds("v5p:4x4x4", [("fsdp", 4), ("model", 16)], &["fsdp"], AllToAll), Link::Ici, 4.0 / 800.0);
        // Without wrap-around: a line of eight.
        near(seconds("v5e:8x8", [("fsdp", 8), ("model", 8)], &["model"], AllGather), Link::Ici, 7.0 / 8.0 / 50.0);
        near(seconds("v5e:8x8", [("fsdp", 8), ("model", 8)], &["model"], CollectivePermute), Link::Ici, 1.0 / 50.0);
        // Slices: each of 32 chips sends its part of the data for the other slice.
        let slices = seconds("2*v5e:4x8", [("data", 2), ("model", 32)], &["data", "model"], AllGather);
        near(slices, Link::Ici, 31.0 / 32.0 / 100.0);
        near(seconds("2*v5e:4x8", [("data", 2), ("model", 32)], &["data"], AllReduce), Link::Dcn, 2.0 * 0.5 / 3.125);
    }
}
