//! How long a step takes at least, by the published speeds of its devices.

use shardax::prelude::*;

use crate::device_spec::DeviceSpec;
use crate::network::Traffic;

/// The times of one step, in seconds. No run is faster where the assumptions hold.
#[derive(Clone, Debug, PartialEq)]
pub struct Roofline {
    /// All products at the devices' peak.
    pub compute: f64,
    /// All bytes at their memory's bandwidth.
    pub memory: f64,
    /// All collectives, one after another.
    pub communication: f64,
    /// Of that, what nothing can be computed beside.
    pub exposed: f64,
    /// The whole step.
    pub step: f64,
    /// The share of all devices' peak that the model's own products take up, each counted once: model FLOPs
    /// utilization.
    pub mfu: f64,
    /// The same with what is computed again, by `checkpoint` or by several devices: hardware FLOPs utilization.
    pub hfu: f64,
}

/// What the roofline takes for granted.
pub const ASSUMPTIONS: [&str; 7] = [
    "products run at the peak of bfloat16, whatever their dtype",
    "memory is read and written at its full bandwidth; each fused operation reads its operands and writes its results once",
    "compute and memory traffic overlap entirely: the slower of the two counts",
    "gathers, scatters and permutes of the program overlap with that as long as it lasts; all-reduces, all-to-alls and what goes between slices do not",
    "collectives go by rings, both ways where a dimension of a torus is closed, by all members' links between hosts or slices, without latency or contention",
    "the input is there in time; nothing is lost to starting, to stragglers or to failures",
    "a step's model FLOPs are its products without those that `checkpoint` does a second time, and those that several devices repeat",
];

/// Whether compute can go on beside it.
fn overlaps(kind: CollectiveKind) -> bool {
    use CollectiveKind::*;
    matches!(kind, AllGather | ReduceScatter | CollectivePermute)
}

impl Roofline {
    /// Of a step with so many operations of products on one device, its even share of those of the `model`, and bytes.
    pub(crate) fn of(spec: &DeviceSpec, products: f64, model: f64, bytes: f64, traffic: &[Traffic]) -> Roofline {
        let compute = products / spec.flops;
        let memory = bytes / spec.memory_bandwidth;
        let busy = compute.max(memory);
        let sum = |beside: bool| -> f64 {
            traffic.iter().filter(|t| overlaps(t.kind) == beside).filter_map(|t| t.seconds).sum()
        };
        let (beside, alone) = (sum(true), sum(false));
        let exposed = alone + (beside - busy).max(0.0);
        let step = busy + exposed;
        let share = |time: f64| if step > 0.0 { time / step } else { 0.0 };
        Roofline {
            compute,
            memory,
            communication: beside + alone,
            exposed,
            step,
            mfu: share(model / spec.flops),
            hfu: share(compute),
        }
    }
}
