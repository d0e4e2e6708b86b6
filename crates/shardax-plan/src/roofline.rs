//! Lower bounds of the time of a step, from published speeds.

use shardax::prelude::*;

use crate::device_spec::DeviceSpec;
use crate::network::Traffic;

/// The times of one step in seconds. They are lower bounds if the [`ASSUMPTIONS`] hold, so you should expect a real
/// step to take longer.
#[derive(Clone, Debug, PartialEq)]
pub struct Roofline {
    /// All matmuls at the devices' peak.
    pub compute: f64,
    /// All memory traffic at full bandwidth.
    pub memory: f64,
    /// All collectives in sequence.
    pub communication: f64,
    /// The part of the communication that does not overlap with compute.
    pub exposed: f64,
    /// The entire step.
    pub step: f64,
    /// Model FLOPs utilization: the share of the devices' peak that the model's matmuls use, each counted once.
    pub mfu: f64,
    /// Hardware FLOPs utilization, which includes recomputation by `checkpoint` and repeated work.
    pub hfu: f64,
}

/// The assumptions of the roofline.
pub const ASSUMPTIONS: [&str; 7] = [
    "matmuls run at the peak of bfloat16, whatever their dtype",
    "memory is read and written at its full bandwidth; each fused operation reads its operands and writes its results once",
    "compute and memory traffic overlap entirely: the slower of the two counts",
    "gathers, scatters and permutes of the program overlap with that as long as it lasts; all-reduces, all-to-alls and what goes between slices do not",
    "collectives go by rings, both ways where a dimension of a torus is closed, by all members' links between hosts or slices, without latency or contention",
    "the input is there in time; nothing is lost to starting, to stragglers or to failures",
    "a step's model FLOPs are its matmuls without those that `checkpoint` recomputes, and those that several devices repeat",
];

/// Returns true if a collective can overlap with compute.
fn overlaps(kind: CollectiveKind) -> bool {
    use CollectiveKind::*;
    matches!(kind, AllGather | ReduceScatter | CollectivePermute)
}

impl Roofline {
    /// The roofline of a step with the matmul FLOPs of one device, its even share of the `model`'s, and memory traffic.
    pub(crate) fn of(spec: &DeviceSpec, products: f64, model: f64, bytes: f64, traffic: &[Traffic]) -> Roofline {
        let compute = products / spec.flops;
        let memory = bytes / spec.memory_bandwidth;
        let busy = compute.max(memory);
        let (mut overlapped, mut alone) = (0.0, 0.0);
        for t in traffic {
            *(if overlaps(t.kind) { &mut overlapped } else { &mut alone }) += t.seconds.unwrap_or(0.0);
        }
        let exposed = alone + (overlapped - busy).max(0.0);
        let step = busy + exposed;
        // A step without work has no utilization, rather than NaN.
        let shares = [model / spec.flops, compute].map(|time| if step > 0.0 { time / step } else { 0.0 });
        Roofline { compute, memory, communication: overlapped + alone, exposed, step, mfu: shares[0], hfu: shares[1] }
    }
}
