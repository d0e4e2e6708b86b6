//! Descriptions of the devices to compile for: TPUs by slice, GPUs by model and number.

use std::fmt;
use std::path::Path;

use super::Topology;
use crate::error::{Error, Result};
use crate::named_value::Value;
use crate::permissions;
use crate::plugin::Plugin;

/// TPU slices of one kind.
///
/// ```no_run
/// use shardax_pjrt::{Plugin, TpuTopology};
///
/// let slices = TpuTopology { num_slices: 2, ..TpuTopology::new("v5p:8x8x16") };
/// println!("{}", slices.topology(&Plugin::find("tpu")?)?); // v5p:8x8x16, 2048 × TPU v5
/// # Ok::<(), shardax_pjrt::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TpuTopology {
    /// Generation and chips along each dimension of a slice: `v5e:2x4`, `v5p:8x8x16`, `v6e:16x16`, `tpu7x:2x2x1`.
    /// Chips are counted, not cores: the cloud's `v5p-2048` is `v5p:8x8x16`.
    pub slice: String,
    /// The dimensions that wrap around; by default none. On v4 and v5p, slices of complete cubes wrap around in all
    /// three.
    pub wrap: Option<[bool; 3]>,
    /// The number of slices, connected by the data centre's network. 1 by default.
    pub num_slices: usize,
    /// The chips of a host along each dimension; by default the plugin's, 2×2×1.
    pub chips_per_host_bounds: Option<[usize; 3]>,
}

impl TpuTopology {
    /// One slice of this name.
    pub fn new(slice: impl Into<String>) -> TpuTopology {
        TpuTopology { slice: slice.into(), wrap: None, num_slices: 1, chips_per_host_bounds: None }
    }

    /// Makes the topology with the TPU plugin.
    ///
    /// # Errors
    /// Returns an error if the plugin does not know the name, or the sizes are zero, too large, or not multiples of a
    /// host's.
    pub fn topology(&self, plugin: &Plugin) -> Result<Topology> {
        let chips = chips(&self.slice)?;
        check_count(&self.slice, chips.saturating_mul(self.num_slices))?;
        let mut options = Vec::new();
        if let Some(wrap) = self.wrap {
            options.push(("wrap", Value::Ints(wrap.map(i64::from).to_vec())));
        }
        if self.num_slices > 1 {
            options.push(("num_slices", Value::Int(self.num_slices as i64)));
        }
        if let Some(bounds) = self.chips_per_host_bounds {
            let bounds = bounds.map(|n| i64::try_from(n).unwrap_or(i64::MAX)).to_vec();
            options.push(("chips_per_host_bounds", Value::Ints(bounds)));
        }
        Topology::new(plugin, &self.slice, &options)
    }
}

/// One slice of this name.
impl From<&str> for TpuTopology {
    fn from(slice: &str) -> TpuTopology {
        TpuTopology::new(slice)
    }
}

/// GPUs of one model: hosts with several GPUs, in groups that a faster network connects.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GpuTopology {
    /// The model.
    pub gpu: GpuSpec,
    /// Groups of hosts (the plugin's partitions). 1 by default.
    pub num_slices: usize,
    /// Hosts per group. 1 by default.
    pub hosts: usize,
    /// GPUs per host. 8 by default.
    pub gpus_per_host: usize,
}

impl GpuTopology {
    /// One host with eight GPUs.
    pub fn new(gpu: GpuSpec) -> GpuTopology {
        GpuTopology { gpu, num_slices: 1, hosts: 1, gpus_per_host: 8 }
    }

    /// Makes the topology with the CUDA plugin.
    ///
    /// # Errors
    /// Returns an error if a number is zero, there are too many devices, or the plugin cannot read the description.
    pub fn topology(&self, plugin: &Plugin) -> Result<Topology> {
        let sizes = [self.num_slices, self.hosts, self.gpus_per_host];
        let shape = sizes.map(|n| n.to_string()).join("x");
        let name = format!("{}:{shape}", self.gpu);
        check_count(&name, sizes.iter().fold(1usize, |n, &size| n.saturating_mul(size)))?;
        let options = [("target_config", Value::String(self.gpu.text())), ("topology", Value::String(shape))];
        Topology::new(plugin, &name, &options)
    }
}

/// One host with eight GPUs.
impl From<GpuSpec> for GpuTopology {
    fn from(gpu: GpuSpec) -> GpuTopology {
        GpuTopology::new(gpu)
    }
}

/// The description of a GPU, for a compiler without access to it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GpuSpec {
    /// NVIDIA A100 SXM with 80 GB.
    A100,
    /// NVIDIA H100 SXM with 80 GB.
    H100,
    /// NVIDIA H200 SXM with 141 GB.
    H200,
    /// NVIDIA B200 with 192 GB.
    B200,
    /// Another GPU: a `GpuTargetConfigProto` as text, in XLA's format (`XLA_FLAGS=--xla_gpu_dump_...` or its `specs`).
    /// Fields that the plugin does not know are errors.
    Text(String),
}

/// The properties in which the named GPUs differ.
struct Numbers {
    name: &'static str,
    major: u32,
    /// It has instructions that only this generation supports.
    accelerated: bool,
    cores: u32,
    fpus_per_core: u32,
    shared_per_core: u32,
    shared_per_block: u32,
    l2_bytes: u64,
    memory_bytes: u64,
    bytes_per_second: u64,
    gigahertz: &'static str,
}

/// From the vendor's data sheets and CUDA's programming guide (compute capabilities 8.0, 9.0 and 10.0). The memory is
/// the part that is available to programs.
const A100: Numbers = Numbers {
    name: "NVIDIA A100-SXM4-80GB",
    major: 8,
    accelerated: false,
    cores: 108,
    fpus_per_core: 64,
    shared_per_core: 164 << 10,
    shared_per_block: 163 << 10,
    l2_bytes: 40 << 20,
    memory_bytes: 84_995_473_408,
    bytes_per_second: 2_039_000_000_000,
    gigahertz: "1.41",
};
const H100: Numbers = Numbers {
    name: "NVIDIA H100 80GB HBM3",
    major: 9,
    accelerated: true,
    cores: 132,
    fpus_per_core: 128,
    shared_per_core: 228 << 10,
    shared_per_block: 227 << 10,
    l2_bytes: 50 << 20,
    memory_bytes: 84_942_979_072,
    bytes_per_second: 3_352_000_000_000,
    gigahertz: "1.98",
};
const H200: Numbers =
    Numbers { name: "NVIDIA H200", memory_bytes: 150_110_011_392, bytes_per_second: 4_800_000_000_000, ..H100 };
const B200: Numbers = Numbers {
    name: "NVIDIA B200",
    major: 10,
    cores: 148,
    l2_bytes: 126 << 20,
    memory_bytes: 191_514_083_328,
    bytes_per_second: 8_000_000_000_000,
    ..H100
};

impl Numbers {
    fn text(&self) -> String {
        let feature = if self.accelerated { " feature_extension: ACCELERATED_FEATURES" } else { "" };
        let fields = [
            ("threads_per_block_limit", 1024.to_string()),
            ("threads_per_warp", 32.to_string()),
            ("threads_per_core_limit", 2048.to_string()),
            ("registers_per_core_limit", 65536.to_string()),
            ("registers_per_block_limit", 65536.to_string()),
            ("block_dim_limit_x", i32::MAX.to_string()),
            ("block_dim_limit_y", 65535.to_string()),
            ("block_dim_limit_z", 65535.to_string()),
            ("core_count", self.cores.to_string()),
            ("fpus_per_core", self.fpus_per_core.to_string()),
            ("clock_rate_ghz", self.gigahertz.to_owned()),
            ("shared_memory_per_block", (48 << 10).to_string()),
            ("shared_memory_per_block_optin", self.shared_per_block.to_string()),
            ("shared_memory_per_core", self.shared_per_core.to_string()),
            ("l2_cache_size", self.l2_bytes.to_string()),
            ("device_memory_size", self.memory_bytes.to_string()),
            ("memory_bandwidth", self.bytes_per_second.to_string()),
            ("cuda_compute_capability", format!("{{ major: {}{feature} }}", self.major)),
        ];
        let mut text = String::from("gpu_device_info {\n");
        for (name, value) in fields {
            let colon = if value.starts_with('{') { "" } else { ":" };
            text.push_str(&format!("  {name}{colon} {value}\n"));
        }
        // The cuDNN version that convolutions are compiled for.
        text.push_str("}\nplatform_name: \"CUDA\"\ndnn_version_info { major: 9 minor: 8 }\n");
        text.push_str(&format!("device_description_str: {:?}\n", self.name));
        text
    }
}

impl GpuSpec {
    /// The GPU of this name: `a100`, `h100`, `h200` or `b200`, in any case.
    ///
    /// # Errors
    /// Returns an error if the name is unknown.
    pub fn named(name: &str) -> Result<GpuSpec> {
        match name.to_lowercase().as_str() {
            "a100" => Ok(GpuSpec::A100),
            "h100" => Ok(GpuSpec::H100),
            "h200" => Ok(GpuSpec::H200),
            "b200" => Ok(GpuSpec::B200),
            _ => Err(Error::invalid_argument(format!(
                "no GPU is known as {name:?}; known are a100, h100, h200 and b200. Any other can be described in a \
                 file (GpuSpec::from_file)"
            ))),
        }
    }

    /// The GPU that a file describes: a `GpuTargetConfigProto` as text.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, or is not text.
    pub fn from_file(path: &Path) -> Result<GpuSpec> {
        use std::io::Read;

        let mut text = String::new();
        permissions::open_trusted(path)
            .and_then(|mut file| {
                file.read_to_string(&mut text).map_err(|error| Error::invalid_argument(error.to_string()))
            })
            .map_err(|error| error.during(format_args!("cannot read the GPU's description {}", path.display())))?;
        Ok(GpuSpec::Text(text))
    }

    /// The `GpuTargetConfigProto`, as text.
    pub fn text(&self) -> String {
        match self {
            GpuSpec::A100 => A100.text(),
            GpuSpec::H100 => H100.text(),
            GpuSpec::H200 => H200.text(),
            GpuSpec::B200 => B200.text(),
            GpuSpec::Text(text) => text.clone(),
        }
    }
}

/// Formatted as `h100`; others by the name in their description.
impl fmt::Display for GpuSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GpuSpec::A100 => "a100",
            GpuSpec::H100 => "h100",
            GpuSpec::H200 => "h200",
            GpuSpec::B200 => "b200",
            GpuSpec::Text(text) => {
                let named = text.split_once("device_description_str:").and_then(|(_, after)| after.split('"').nth(1));
                named.unwrap_or("gpu")
            }
        })
    }
}

/// The largest number of devices: with many more, a plugin never finishes.
const MAX_DEVICES: usize = 1 << 17;

/// Rejects sizes for which plugins end the process (zero or negative) or never return.
fn check_count(name: &str, count: usize) -> Result<()> {
    if (1..=MAX_DEVICES).contains(&count) {
        return Ok(());
    }
    Err(Error::invalid_argument(format!(
        "the topology {name:?} has {count} devices, and must have between 1 and {MAX_DEVICES}"
    )))
}

/// The number of chips of a slice.
fn chips(slice: &str) -> Result<usize> {
    let (generation, sizes) = slice.split_once(':').ok_or_else(|| invalid_slice(slice))?;
    let sizes = sizes.strip_suffix("_twisted").or(sizes.strip_suffix("_untwisted")).unwrap_or(sizes);
    let sizes: Vec<usize> = sizes
        .split('x')
        .map(str::parse::<usize>)
        .collect::<std::result::Result<_, _>>()
        .map_err(|_| invalid_slice(slice))?;
    if generation.is_empty() || !(2..=3).contains(&sizes.len()) {
        return Err(invalid_slice(slice));
    }
    Ok(sizes.iter().fold(1usize, |n, &size| n.saturating_mul(size)))
}

/// Checks the name and options that a user passes directly to the plugin.
pub(super) fn check(name: &str, options: &[(&str, Value)]) -> Result<()> {
    let sizes = name
        .rsplit([':', '=', '_', ' '])
        .find(|part| part.contains('x') && part.starts_with(|c: char| c.is_ascii_digit()));
    if let Some(sizes) = sizes {
        check_count(name, product(sizes))?;
    }
    for (option, value) in options {
        match (*option, value) {
            ("topology", Value::String(shape)) => check_count(shape, product(shape))?,
            ("num_slices", Value::Int(n)) => check_count(name, usize::try_from(*n).unwrap_or(0))?,
            _ => {}
        }
    }
    Ok(())
}

/// The error of an invalid slice name.
fn invalid_slice(slice: &str) -> Error {
    Error::invalid_argument(format!(
        "{slice:?} is not a TPU topology: write the generation (v2, v3, v4, v5e, v5p, v6e, tpu7x) and the chips along \
         each dimension, as in v5e:2x4 or v5p:8x8x16"
    ))
}

/// The product of sizes such as `2x4`; 0 if one is not a number.
fn product(sizes: &str) -> usize {
    sizes.split('x').map(|n| n.parse::<usize>().unwrap_or(0)).fold(1usize, usize::saturating_mul)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_slices_are_read() {
        assert_eq!(chips("v5e:2x4").unwrap(), 8);
        assert_eq!(chips("v5p:8x8x16").unwrap(), 1024);
        assert_eq!(chips("v4:4x4x8_twisted").unwrap(), 128);
        for wrong in ["", "v5e", "v5e:", ":2x4", "v5e:2", "v5e:2x", "v5e:-2x4", "v5e:2x2x2x2", "v5p-2048"] {
            assert!(chips(wrong).unwrap_err().message.contains("is not a TPU topology"), "{wrong}");
        }
    }

    /// Each of these ended the process or never returned inside a plugin.
    fn shape(text: &str) -> [(&'static str, Value); 1] {
        [("topology", Value::String(text.to_owned()))]
    }

    #[test]
    fn sizes_that_end_the_process_are_rejected() {
        for (name, options) in [
            ("v5e:0x4", vec![]),
            ("v5e=0x4", vec![]),
            ("v5e:100000x100000", vec![]),
            ("h100", shape("-1x1x8").to_vec()),
            ("h100", shape("1x1x10000000").to_vec()),
            ("h100", shape("").to_vec()),
            ("v5e:2x4", vec![("num_slices", Value::Int(-1))]),
        ] {
            let error = check(name, &options).unwrap_err();
            assert!(error.message.contains("and must have between 1 and"), "{name}: {error}");
        }
        check("v5e:2x4", &[]).unwrap();
        check("TPU v5 lite:4x4", &[]).unwrap();
        check("h100", &shape("2x2x8")).unwrap();
    }

    #[test]
    fn gpu_descriptions_name_the_gpu() {
        for (name, kind) in [("a100", "A100"), ("H100", "H100"), ("h200", "H200"), ("b200", "B200")] {
            let spec = GpuSpec::named(name).unwrap();
            assert_eq!(spec.to_string(), name.to_lowercase());
            assert!(spec.text().contains(&format!("device_description_str: \"NVIDIA {kind}")), "{}", spec.text());
            assert!(GpuSpec::Text(spec.text()).to_string().starts_with(&format!("NVIDIA {kind}")));
        }
        assert!(
            GpuSpec::H100
                .text()
                .contains("cuda_compute_capability { major: 9 feature_extension: ACCELERATED_FEATURES }")
        );
        assert!(GpuSpec::named("h101").unwrap_err().message.contains("known are a100, h100, h200 and b200"));
    }

    #[test]
    fn a_file_describes_a_gpu() {
        let path = std::env::temp_dir().join(format!("shardax-gpu-{}.txt", std::process::id()));
        std::fs::write(&path, GpuSpec::H200.text().replace("NVIDIA H200", "one like it")).unwrap();
        let spec = GpuSpec::from_file(&path).unwrap();
        assert_eq!(spec.to_string(), "one like it");
        assert!(spec.text().contains("memory_bandwidth: 4800000000000"), "{}", spec.text());
        std::fs::write(&path, [0xff, 0xfe]).unwrap();
        let no_text = GpuSpec::from_file(&path).unwrap_err();
        std::fs::remove_file(&path).unwrap();
        for error in [no_text, GpuSpec::from_file(&path).unwrap_err()] {
            let message = error.to_string();
            assert!(
                message.contains("cannot read the GPU's description") && message.contains("shardax-gpu-"),
                "{message}"
            );
        }
    }
}
