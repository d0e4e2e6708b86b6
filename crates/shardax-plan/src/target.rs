//! The devices to plan for, attached or not.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use shardax::prelude::*;
use shardax::shape::AxisName;
use shardax::sharding::MeshAxis;
use shardax::{Device, Error, config, devices};

use crate::device_spec::{DeviceSpec, Network};
use crate::error::{reason, value, value_error};

/// The devices to plan for: `v5p:8x8x16`, `2*v5e:16x16` (slices), `h100:128x8` (hosts, and GPUs per host), `cpu:8`, or
/// `big.json:4x8` for a device that a file describes ([`DeviceSpec::from_file`]).
///
/// ```
/// # use shardax_plan::Target;
/// let target: Target = "h100:2x8".parse()?;
/// assert_eq!((target.num_devices(), target.spec().map(|s| &*s.name)), (16, Some("h100")));
/// assert!("v5p:8x8".parse::<Target>().is_err());
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Target {
    name: String,
    spec: Option<Arc<DeviceSpec>>,
    /// The number of slices, or 1; then the chips along each dimension, hosts and GPUs per host, or CPUs.
    pub(crate) slices: usize,
    pub(crate) sizes: Vec<usize>,
    /// The compiler's description of the devices, or the reason why there is none.
    topology: std::result::Result<Topology, String>,
}

impl FromStr for Target {
    type Err = Error;

    fn from_str(name: &str) -> Result<Target> {
        Target::new(name)
    }
}

impl Target {
    /// Returns the devices with this name. If their platform's compiler is not installed, the CPU's is used instead, as
    /// it is for devices that a file describes.
    ///
    /// # Errors
    /// Returns an error if the name is unknown, has the wrong number of dimensions, or the file does not describe a
    /// device.
    #[track_caller]
    pub fn new(name: &str) -> Result<Target> {
        let help = "write `v5e:4x8`, `v5p:4x4x8`, `2*v5p:4x4x4`, `h100:8`, `h100:128x8`, `cpu:8` or `FILE.json:4x8`";
        let (slices, one) = match name.split_once('*') {
            Some((slices, one)) => (slices.parse().unwrap_or(0), one),
            None => (1, name),
        };
        let (kind, shape) = match one.rsplit_once(':') {
            _ if one.ends_with(".json") => (one, ""),
            parts => parts.unwrap_or((one, "")),
        };
        let by_file = kind.ends_with(".json");
        let sizes: Vec<usize> = match shape {
            "" => vec![8],
            _ => shape.split('x').map(|n| n.parse().unwrap_or(0)).collect(),
        };
        if slices == 0 || sizes.contains(&0) {
            return value_error(format!("{name:?} names no devices"), help);
        }
        let spec = if by_file {
            Some(Arc::new(DeviceSpec::from_file(kind)?))
        } else {
            DeviceSpec::named(kind).map(|spec| Arc::new(spec.clone()))
        };
        let no_compiler = Err("no compiler is known for a device that a file describes".to_owned());
        let (sizes, described) = match (spec.as_deref(), kind) {
            (None, "cpu") if sizes.len() == 1 && slices == 1 => (sizes, Err("CPUs are simulated".to_owned())),
            (Some(DeviceSpec { network: Network::Torus { dims, .. }, .. }), _) if sizes.len() == *dims => {
                let wrap = (*dims == 3 && sizes.iter().all(|n| n % 4 == 0)).then_some([true; 3]);
                let topology = TpuTopology { num_slices: slices, wrap, ..TpuTopology::new(one) };
                (sizes, if by_file { no_compiler } else { Topology::tpu(topology).map_err(|e| reason(&e)) })
            }
            (Some(DeviceSpec { network: Network::Switch { .. }, .. }), _) if sizes.len() <= 2 && slices == 1 => {
                let (hosts, gpus_per_host) = match sizes[..] {
                    [hosts, gpus] => (hosts, gpus),
                    // Whole hosts with eight devices, if there is more than one.
                    [n] if n > 8 && n % 8 == 0 => (n / 8, 8),
                    _ => (1, sizes[0]),
                };
                let described = if by_file {
                    no_compiler
                } else {
                    GpuSpec::named(kind)
                        .map_err(Error::from)
                        .and_then(|gpu| Topology::gpu(GpuTopology { hosts, gpus_per_host, ..GpuTopology::new(gpu) }))
                        .map_err(|e| reason(&e))
                };
                (vec![hosts, gpus_per_host], described)
            }
            (None, _) => {
                let names = DeviceSpec::names().collect::<Vec<_>>().join(", ");
                return value_error(format!("{kind:?} is none of cpu, {names}"), help);
            }
            _ => return value_error(format!("{name:?} has the wrong number of dimensions for such devices"), help),
        };
        Ok(Target { name: name.to_owned(), spec, slices, sizes, topology: described })
    }

    /// Returns the name that was passed to [`Target::new`].
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the published figures; `None` for CPUs.
    pub fn spec(&self) -> Option<&DeviceSpec> {
        self.spec.as_deref()
    }

    /// Returns the number of devices.
    pub fn num_devices(&self) -> usize {
        self.sizes.iter().fold(self.slices, |n, size| n.saturating_mul(*size))
    }

    /// Returns the description by the platform's own compiler; `None` if it is not installed.
    pub fn topology(&self) -> Option<&Topology> {
        self.topology.as_ref().ok()
    }

    /// Returns the reason why the platform's own compiler is not used; `None` if it is used.
    pub fn without_compiler(&self) -> Option<&str> {
        self.topology.as_ref().err().map(String::as_str)
    }

    /// Uses the CPU's compiler instead of the platform's own, for example to compare the two.
    pub fn by_cpu(self) -> Target {
        self.by_cpu_because("the CPU's compiler was requested")
    }

    /// Uses the CPU's compiler, for this reason.
    pub(crate) fn by_cpu_because(self, why: &str) -> Target {
        Target { topology: Err(self.topology.err().unwrap_or_else(|| why.to_owned())), ..self }
    }

    /// Makes the host simulate this number of CPU devices, if they are used instead. You must call it before anything
    /// uses devices, because their number cannot change afterwards.
    ///
    /// # Errors
    /// Returns an error if the number is too large to simulate, or devices are already in use.
    #[track_caller]
    pub fn prepare(&self) -> Result<()> {
        let simulated = config::set_num_cpu_devices(self.num_devices());
        match self.topology {
            // They may be used later, for a step that the platform's compiler rejects.
            Ok(_) => Ok(()),
            Err(_) => simulated,
        }
    }

    /// A mesh of all devices, ordered as by [`Topology::mesh`], or of the same number of simulated CPUs.
    ///
    /// # Errors
    /// Returns an error if the sizes do not multiply to the number of devices.
    #[track_caller]
    pub fn mesh(&self, axes: impl IntoIterator<Item = impl MeshAxis>) -> Result<Mesh> {
        let axes: Vec<(AxisName, usize)> = axes.into_iter().map(MeshAxis::into_axis).collect();
        let count = axes.iter().fold(1usize, |n, (_, size)| n.saturating_mul(*size));
        if count != self.num_devices() {
            let mesh = axes.iter().map(|(name, size)| format!("{name}={size}")).collect::<Vec<_>>().join(",");
            return value_error(
                format!("the mesh {mesh} has {count} devices, but {} has {}", self.name, self.num_devices()),
                "choose sizes that multiply to the number of devices",
            );
        }
        match &self.topology {
            Ok(topology) => topology.mesh(axes),
            Err(_) => {
                let devices: Vec<Device> = devices()?.into_iter().take(count).collect();
                if devices.len() < count {
                    return value_error(
                        format!("{count} CPU devices must simulate {}, but there are {}", self.name, devices.len()),
                        "call `target.prepare()` before anything uses devices",
                    );
                }
                Mesh::new(devices, axes)
            }
        }
    }

    /// The location of the device at a position of the mesh: its slice with coordinates, or its host with a number.
    pub(crate) fn place(&self, mesh: &Mesh, position: usize) -> (usize, Vec<usize>) {
        let device = &mesh.devices()[position];
        if self.topology.is_ok()
            && let Some(at) = device.coords()
        {
            return match self.spec().map(|s| s.network) {
                Some(Network::Torus { .. }) => (device.slice_index().unwrap_or(0), at.to_vec()),
                _ => (0, vec![at[1], at[2]]),
            };
        }
        // Simulated devices are in the order of the mesh.
        let mut remaining = position;
        let mut coordinates = vec![0; self.sizes.len()];
        for (coordinate, size) in coordinates.iter_mut().zip(&self.sizes).rev() {
            *coordinate = remaining % size;
            remaining /= size;
        }
        (remaining, coordinates)
    }

    /// Returns true if the links of this dimension of the torus form a ring.
    pub(crate) fn is_ring(&self, dim: usize) -> bool {
        let size = self.sizes.get(dim).copied().unwrap_or(1);
        match self.sizes.len() {
            // Three-dimensional slices of complete 4×4×4 cubes wrap around; two-dimensional ones only as complete pods.
            3 => self.sizes.iter().all(|n| n % 4 == 0),
            _ => size == 16,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)
    }
}

/// The axes of a mesh with their sizes, major first.
pub(crate) type Axes = Vec<(AxisName, usize)>;

/// Parses a mesh in the format of the command line: `data=2,fsdp=4`.
///
/// Each part must be a name with a size.
#[track_caller]
pub(crate) fn parse_axes(text: &str) -> Result<Axes> {
    let parts = text.split(',').filter(|part| !part.trim().is_empty());
    parts
        .map(|part| {
            parse_axis(part).ok_or_else(|| value(format!("{part:?} is not an axis"), "write a mesh as data=2,fsdp=4"))
        })
        .collect()
}

fn parse_axis(part: &str) -> Option<(AxisName, usize)> {
    let (name, size) = part.split_once('=')?;
    Some((AxisName::from(name.trim().to_owned()), size.trim().parse().ok().filter(|n| *n > 0)?))
}
