//! Topologies: TPUs and GPUs that you can compile programs for without having the hardware.

use std::fmt;

use shardax_pjrt as pjrt;
pub use shardax_pjrt::{GpuSpec, GpuTopology, TpuTopology};

use super::abstract_mesh::MeshAxis;
use super::device::Device;
use super::mesh::Mesh;
use super::mesh_utils::{self, MeshOptions};
use crate::error::{AtCaller, Result, err};
use crate::shape::AxisName;

/// A description of TPUs or GPUs. On a machine without them you can compile programs for them
/// ([`Lowered::compile_for`](crate::Lowered::compile_for)) with the platform's own compiler.
///
/// The compiler is part of the platform's PJRT plugin, which you install with pip: `libtpu`, or `jax-cuda12-pjrt` and
/// `nvidia-cuda-nvcc-cu12`. No client is started, and nothing runs.
///
/// ```no_run
/// # use shardax::prelude::*;
/// let topology = Topology::tpu("v5e:2x4")?;
/// let mesh = topology.mesh([("data", 2), ("model", 4)])?;
/// let x = shape_dtype_struct_on([1024, 1024], DType::Bf16, NamedSharding::new(&mesh, P!["data", "model"]));
/// let compiled = jit(|x: Array| x.dot(&x)).lower(&x)?.compile_for(&topology)?;
/// println!("{}", compiled.collectives()?);
/// println!("{} bytes", compiled.memory_analysis()?.temporaries);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Topology(pjrt::Topology);

impl Topology {
    /// Creates a TPU topology: `Topology::tpu("v5p:8x8x16")`, or with options, as in `Topology::tpu(TpuTopology {
    /// num_slices: 2, ..TpuTopology::new("v5p:2x2x2") })`.
    ///
    /// # Errors
    /// Returns an error if the TPU plugin is not found, or if it does not know the name.
    #[track_caller]
    pub fn tpu(slices: impl Into<TpuTopology>) -> Result<Self> {
        plugin("tpu").and_then(|plugin| Ok(Topology(slices.into().topology(&plugin)?))).at_caller()
    }

    /// Creates an NVIDIA GPU topology. `Topology::gpu(GpuSpec::H100)` is one host with eight GPUs;
    /// `Topology::gpu(GpuTopology { hosts: 128, ..GpuTopology::new(GpuSpec::H100) })` has 1,024 GPUs.
    ///
    /// # Errors
    /// Returns an error if the CUDA plugin is not found, or if it cannot read the description.
    #[track_caller]
    pub fn gpu(gpus: impl Into<GpuTopology>) -> Result<Self> {
        plugin("cuda").and_then(|plugin| Ok(Topology(gpus.into().topology(&plugin)?))).at_caller()
    }

    /// Returns the devices, in the plugin's order.
    pub fn devices(&self) -> Vec<Device> {
        self.0.devices().into_iter().map(Device::described).collect()
    }

    /// Returns the number of devices.
    pub fn num_devices(&self) -> usize {
        self.0.num_devices()
    }

    /// Returns the name of the topology: `v5e:2x4`, `h100:1x1x8`.
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// Returns the name of the platform: `cuda`, `tpu`.
    pub fn platform(&self) -> &str {
        self.0.platform_name()
    }

    /// Creates a mesh of all devices, in an order that suits their network. You should name the axes that communicate
    /// most last ([`create_device_mesh`](mesh_utils::create_device_mesh)). If there are several slices, they are spread
    /// over the first axis whose size their number divides
    /// ([`create_hybrid_device_mesh`](mesh_utils::create_hybrid_device_mesh)).
    ///
    /// # Errors
    /// Returns an error if the product of the sizes is not the number of devices.
    #[track_caller]
    pub fn mesh(&self, axes: impl IntoIterator<Item = impl MeshAxis>) -> Result<Mesh> {
        let axes: Vec<(AxisName, usize)> = axes.into_iter().map(MeshAxis::into_axis).collect();
        self.ordered(&axes.iter().map(|(_, size)| *size).collect::<Vec<_>>())
            .and_then(|devices| Mesh::new(devices, axes))
            .at_caller()
    }

    /// The devices in the order of a mesh of this shape.
    pub(crate) fn ordered(&self, shape: &[usize]) -> Result<Vec<Device>> {
        let devices = self.devices();
        let options = MeshOptions { allow_split_physical_axes: true };
        let slices = mesh_utils::slices(&devices).len();
        if slices == 1 {
            return mesh_utils::create_device_mesh(shape, &devices, options);
        }
        let outer = shape.iter().position(|size| size % slices == 0).ok_or_else(|| {
            err!(Value, "none of the mesh axes of sizes {shape:?} can go over the {slices} slices of {self}").help(format!(
                "make one of the sizes a multiple of {slices}, or choose with `mesh_utils::create_hybrid_device_mesh`"
            ))
        })?;
        let (mut inner, mut across) = (shape.to_vec(), vec![1; shape.len()]);
        inner[outer] /= slices;
        across[outer] = slices;
        mesh_utils::create_hybrid_device_mesh(&inner, &across, &devices, options)
    }

    pub(crate) fn pjrt(&self) -> &pjrt::Topology {
        &self.0
    }
}

fn plugin(platform: &str) -> Result<pjrt::Plugin> {
    pjrt::Plugin::find(platform).map_err(|e| err!(Plugin, "{e}"))
}

/// `Topology(v5e:2x4, 8 × TPU v5 lite)`
impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Topology({})", self.0)
    }
}

impl fmt::Debug for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
