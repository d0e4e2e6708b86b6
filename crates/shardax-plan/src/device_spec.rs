//! Published figures of devices: memory, speed, links.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;

use serde_json::Value;
use shardax::Result;

use crate::error::value;

/// A device as its vendor describes it. Speeds are peaks, in operations or bytes per second, so a real step can only be
/// slower.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceSpec {
    /// The name in topologies: `v5p`, `h100`.
    pub name: Cow<'static, str>,
    /// The memory of one device, in bytes.
    pub memory: f64,
    /// Dense bfloat16 matmuls, without sparsity.
    pub flops: f64,
    /// Bandwidth of its memory.
    pub memory_bandwidth: f64,
    /// The network between neighbours.
    pub network: Network,
    /// Bandwidth per device to other slices or hosts.
    pub outside: f64,
    /// The source of the figures.
    pub source: Cow<'static, str>,
}

/// The network between devices of a slice or host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Network {
    /// A torus.
    Torus {
        /// 2 or 3.
        dims: usize,
        /// The bandwidth of one link in one direction.
        link: f64,
    },
    /// A switch between the devices of a host.
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
    /// The host's memory, between simulated devices.
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
    // Two links for each dimension; vendors add up both directions.
    Network::Torus { dims, link: both_ways_of_chip / (4 * dims) as f64 }
}

static SPECS: [DeviceSpec; 7] = [
    DeviceSpec {
        name: Cow::Borrowed("v5e"),
        memory: 16.0 * GB,
        flops: 197.0 * TFLOPS,
        memory_bandwidth: 819.0 * GB,
        network: torus(2, 400.0 * GB),
        outside: 25.0 * GBIT,
        source: Cow::Borrowed(
            "cloud.google.com/tpu/docs/v5e: 197 TFLOPs, 16 GB at 819 GBps, ICI 400 GBps both ways, 2 × 100 Gbps for a host of 8",
        ),
    },
    DeviceSpec {
        name: Cow::Borrowed("v5p"),
        memory: 95.0 * GIB,
        flops: 459.0 * TFLOPS,
        memory_bandwidth: 2765.0 * GB,
        network: torus(3, 1200.0 * GB),
        outside: 50.0 * GBIT,
        source: Cow::Borrowed(
            "cloud.google.com/tpu/docs/v5p: 459 TFLOPs, 95 GiB at 2,765 GBps, ICI 1,200 GBps both ways, DCN 50 Gbps",
        ),
    },
    DeviceSpec {
        name: Cow::Borrowed("v6e"),
        memory: 32.0 * GB,
        flops: 918.0 * TFLOPS,
        memory_bandwidth: 1638.0 * GB,
        network: torus(2, 800.0 * GB),
        outside: 100.0 * GBIT,
        source: Cow::Borrowed(
            "cloud.google.com/tpu/docs/v6e: 918 TFLOPs, 32 GB at 1,638 GBps, ICI 800 GBps both ways, 4 × 200 Gbps for a host of 8",
        ),
    },
    DeviceSpec {
        name: Cow::Borrowed("a100"),
        memory: 80.0 * GB,
        flops: 312.0 * TFLOPS,
        memory_bandwidth: 2039.0 * GB,
        network: Network::Switch { bandwidth: 300.0 * GB },
        outside: 200.0 * GBIT,
        source: Cow::Borrowed(
            "NVIDIA A100 80GB SXM data sheet: 312 TFLOPS, 2,039 GB/s, NVLink 600 GB/s both ways; DGX A100: 8 × 200 Gb/s InfiniBand",
        ),
    },
    DeviceSpec {
        name: Cow::Borrowed("h100"),
        memory: 80.0 * GB,
        flops: 989.0 * TFLOPS,
        memory_bandwidth: 3350.0 * GB,
        network: Network::Switch { bandwidth: 450.0 * GB },
        outside: 400.0 * GBIT,
        source: Cow::Borrowed(
            "NVIDIA H100 SXM data sheet: 1,979 TFLOPS with sparsity, 80 GB at 3.35 TB/s, NVLink 900 GB/s both ways; DGX H100: 8 × 400 Gb/s InfiniBand",
        ),
    },
    DeviceSpec {
        name: Cow::Borrowed("h200"),
        memory: 141.0 * GB,
        flops: 989.0 * TFLOPS,
        memory_bandwidth: 4800.0 * GB,
        network: Network::Switch { bandwidth: 450.0 * GB },
        outside: 400.0 * GBIT,
        source: Cow::Borrowed(
            "NVIDIA H200 SXM data sheet: 1,979 TFLOPS with sparsity, 141 GB at 4.8 TB/s, NVLink 900 GB/s both ways; DGX H200: 8 × 400 Gb/s InfiniBand",
        ),
    },
    DeviceSpec {
        name: Cow::Borrowed("b200"),
        memory: 180.0 * GB,
        flops: 2250.0 * TFLOPS,
        memory_bandwidth: 8000.0 * GB,
        network: Network::Switch { bandwidth: 900.0 * GB },
        outside: 400.0 * GBIT,
        source: Cow::Borrowed(
            "NVIDIA DGX B200 data sheet: 8 GPUs with 1,440 GB at 64 TB/s, 14.4 TB/s NVLink both ways, 8 × 400 Gb/s; 4,500 TFLOPS with sparsity each",
        ),
    },
];

impl DeviceSpec {
    /// Returns the device with this name; `None` if it is not one of [`names`](Self::names). You can describe other
    /// devices in a file ([`from_file`](Self::from_file)).
    ///
    /// ```
    /// # use shardax_plan::DeviceSpec;
    /// let h100 = DeviceSpec::named("h100").expect("it is known");
    /// assert_eq!((h100.memory, h100.flops), (80e9, 989e12)); // bytes, operations per second
    /// assert!(DeviceSpec::named("abacus").is_none());
    /// ```
    pub fn named(name: &str) -> Option<&'static DeviceSpec> {
        SPECS.iter().find(|spec| spec.name == name)
    }

    /// Returns the known names.
    pub fn names() -> impl Iterator<Item = &'static str> {
        SPECS.iter().map(|spec| &*spec.name)
    }

    /// Reads a device from a JSON file, in bytes, operations and seconds:
    ///
    /// ```
    /// # use shardax_plan::{Network, DeviceSpec};
    /// # let file = std::env::temp_dir().join(format!("shardax-spec-{}.json", std::process::id()));
    /// let text = r#"{
    ///   "name": "big", "source": "its maker's data sheet",
    ///   "memory": 192e9, "flops": 1.3e15, "memory_bandwidth": 5.3e12,
    ///   "switch": 448e9, "outside": 50e9
    /// }"#;
    /// std::fs::write(&file, text).unwrap();
    /// let spec = DeviceSpec::from_file(&file)?;
    /// assert_eq!((spec.memory, spec.network), (192e9, Network::Switch { bandwidth: 448e9 }));
    /// # std::fs::remove_file(file).ok();
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// A torus has `"torus"`, `2` or `3` dimensions, and the bandwidth of a `"link"` in one direction, instead of
    /// `"switch"`. `"source"` is optional.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or is not JSON. Returns an error if a figure is missing: you must
    /// state all of them except `"source"`, because the estimates need them.
    #[track_caller]
    pub fn from_file(path: impl AsRef<Path>) -> Result<DeviceSpec> {
        // Every figure is required: with a default, a planner would report wrong times without notice.
        let file = path.as_ref().display().to_string();
        let help = "write {\"name\", \"memory\", \"flops\", \"memory_bandwidth\", \"outside\"} and \"switch\", or \
                    \"torus\" and \"link\", in bytes and seconds";
        let spec = std::fs::read_to_string(path.as_ref())
            .map_err(|e| e.to_string())
            .and_then(|text| serde_json::from_str::<Value>(&text).map_err(|e| e.to_string()))
            .and_then(|json| DeviceSpec::from_json(&json, &file));
        spec.map_err(|problem| value(format!("{file} does not describe a device: {problem}"), help))
    }

    /// Reads a device from JSON. The error is the problem with the JSON.
    fn from_json(json: &Value, file: &str) -> std::result::Result<DeviceSpec, String> {
        let network = match (&json["torus"], &json["switch"]) {
            (Value::Null, _) => Network::Switch { bandwidth: positive_field(json, "switch")? },
            (dims, Value::Null) => match dims.as_u64() {
                Some(dims @ (2 | 3)) => Network::Torus { dims: dims as usize, link: positive_field(json, "link")? },
                _ => return Err(format!("a \"torus\" has 2 or 3 dimensions, got {dims}")),
            },
            _ => return Err("it has a \"torus\" and a \"switch\"".to_owned()),
        };
        Ok(DeviceSpec {
            name: text_field(json, "name").ok_or_else(|| format!("\"name\" must be a text, got {}", json["name"]))?,
            memory: positive_field(json, "memory")?,
            flops: positive_field(json, "flops")?,
            memory_bandwidth: positive_field(json, "memory_bandwidth")?,
            network,
            outside: positive_field(json, "outside")?,
            source: text_field(json, "source").unwrap_or(Cow::Owned(file.to_owned())),
        })
    }
}

fn positive_field(json: &Value, name: &str) -> std::result::Result<f64, String> {
    let positive = json[name].as_f64().filter(|n| *n > 0.0 && n.is_finite());
    positive.ok_or_else(|| format!("{name:?} must be a number above 0, got {}", json[name]))
}

fn text_field(json: &Value, name: &str) -> Option<Cow<'static, str>> {
    json[name].as_str().map(|text| Cow::Owned(text.to_owned()))
}
