//! What makers publish of their devices: memory, speed, links.

use std::fmt;

/// A device as its maker describes it. Speeds are peaks: in operations, or bytes, a second.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// Its name in topologies: `v5p`, `h100`.
    pub name: &'static str,
    /// The memory of one device, in bytes.
    pub memory: f64,
    /// Dense products of bfloat16, without sparsity.
    pub flops: f64,
    /// Reading and writing its memory.
    pub memory_bandwidth: f64,
    /// How it is joined to its neighbours.
    pub network: Network,
    /// Sending to devices of other slices or hosts, for each device.
    pub outside: f64,
    /// Where the figures are from.
    pub source: &'static str,
}

/// What joins devices that are near each other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Network {
    /// A torus of so many dimensions; each link carries so much each way.
    Torus {
        /// 2 or 3.
        dims: usize,
        /// The bandwidth of one link in one direction.
        link: f64,
    },
    /// A switch among the devices of a host, by which each sends so much.
    Switch {
        /// The bandwidth of one device in one direction.
        bandwidth: f64,
    },
}

/// The kind of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Link {
    /// The torus of a slice of TPUs.
    Ici,
    /// The switch of a host of GPUs.
    NvLink,
    /// The data centre's network, between slices of TPUs.
    Dcn,
    /// The network between hosts of GPUs.
    InfiniBand,
    /// One host's memory, between the devices that it simulates.
    Host,
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Link::Ici => "ICI",
            Link::NvLink => "NVLink",
            Link::Dcn => "DCN",
            Link::InfiniBand => "InfiniBand",
            Link::Host => "host memory",
        })
    }
}

const GB: f64 = 1e9;
const GIB: f64 = (1u64 << 30) as f64;
const TFLOPS: f64 = 1e12;
/// A gigabit.
const GBIT: f64 = 1e9 / 8.0;

const fn torus(dims: usize, both_ways_of_chip: f64) -> Network {
    // Two links for each dimension, and each counts both ways.
    Network::Torus { dims, link: both_ways_of_chip / (4 * dims) as f64 }
}

pub(crate) const SPECS: [Spec; 7] = [
    Spec {
        name: "v5e",
        memory: 16.0 * GB,
        flops: 197.0 * TFLOPS,
        memory_bandwidth: 819.0 * GB,
        network: torus(2, 400.0 * GB),
        outside: 25.0 * GBIT,
        source: "cloud.google.com/tpu/docs/v5e: 197 TFLOPs, 16 GB at 819 GBps, ICI 400 GBps both ways, 2 × 100 Gbps for a host of 8",
    },
    Spec {
        name: "v5p",
        memory: 95.0 * GIB,
        flops: 459.0 * TFLOPS,
        memory_bandwidth: 2765.0 * GB,
        network: torus(3, 1200.0 * GB),
        outside: 50.0 * GBIT,
        source: "cloud.google.com/tpu/docs/v5p: 459 TFLOPs, 95 GiB at 2,765 GBps, ICI 1,200 GBps both ways, DCN 50 Gbps",
    },
    Spec {
        name: "v6e",
        memory: 32.0 * GB,
        flops: 918.0 * TFLOPS,
        memory_bandwidth: 1638.0 * GB,
        network: torus(2, 800.0 * GB),
        outside: 100.0 * GBIT,
        source: "cloud.google.com/tpu/docs/v6e: 918 TFLOPs, 32 GB at 1,638 GBps, ICI 800 GBps both ways, 4 × 200 Gbps for a host of 8",
    },
    Spec {
        name: "a100",
        memory: 80.0 * GB,
        flops: 312.0 * TFLOPS,
        memory_bandwidth: 2039.0 * GB,
        network: Network::Switch { bandwidth: 300.0 * GB },
        outside: 200.0 * GBIT,
        source: "NVIDIA A100 80GB SXM data sheet: 312 TFLOPS, 2,039 GB/s, NVLink 600 GB/s both ways; DGX A100: 8 × 200 Gb/s InfiniBand",
    },
    Spec {
        name: "h100",
        memory: 80.0 * GB,
        flops: 989.0 * TFLOPS,
        memory_bandwidth: 3350.0 * GB,
        network: Network::Switch { bandwidth: 450.0 * GB },
        outside: 400.0 * GBIT,
        source: "NVIDIA H100 SXM data sheet: 1,979 TFLOPS with sparsity, 80 GB at 3.35 TB/s, NVLink 900 GB/s both ways; DGX H100: 8 × 400 Gb/s InfiniBand",
    },
    Spec {
        name: "h200",
        memory: 141.0 * GB,
        flops: 989.0 * TFLOPS,
        memory_bandwidth: 4800.0 * GB,
        network: Network::Switch { bandwidth: 450.0 * GB },
        outside: 400.0 * GBIT,
        source: "NVIDIA H200 SXM data sheet: 1,979 TFLOPS with sparsity, 141 GB at 4.8 TB/s, NVLink 900 GB/s both ways; DGX H200: 8 × 400 Gb/s InfiniBand",
    },
    Spec {
        name: "b200",
        memory: 180.0 * GB,
        flops: 2250.0 * TFLOPS,
        memory_bandwidth: 8000.0 * GB,
        network: Network::Switch { bandwidth: 900.0 * GB },
        outside: 400.0 * GBIT,
        source: "NVIDIA DGX B200 data sheet: 8 GPUs with 1,440 GB at 64 TB/s, 14.4 TB/s NVLink both ways, 8 × 400 Gb/s; 4,500 TFLOPS with sparsity each",
    },
];

impl Spec {
    /// The device of this name.
    pub fn named(name: &str) -> Option<&'static Spec> {
        SPECS.iter().find(|spec| spec.name == name)
    }

    /// The names that are known.
    pub fn names() -> impl Iterator<Item = &'static str> {
        SPECS.iter().map(|spec| spec.name)
    }
}
