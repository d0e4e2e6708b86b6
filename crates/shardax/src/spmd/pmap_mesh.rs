//! The mesh of a `pmap`, which has one axis with one device for each slice of the arguments.

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock};

use crate::error::{Result, err};
use crate::shape::AxisName;
use crate::sharding::device::client;
use crate::sharding::{Device, Mesh, devices};

/// The options and arguments that decide which devices a `pmap` uses.
pub(crate) struct Choice<'a> {
    /// The size of the mapped axis, if an argument has one.
    pub size: Option<usize>,
    /// The size that the user set.
    pub axis_size: Option<usize>,
    pub axis: AxisName,
    /// The devices that the user set, in order.
    pub devices: Option<&'a [Device]>,
    pub backend: Option<&'a str>,
}

impl Choice<'_> {
    /// Returns the mesh. `mapped` names the mapped axis in errors.
    pub fn mesh(&self, mapped: &dyn Fn() -> String) -> Result<Mesh> {
        let Some(size) = self.size else {
            return Err(err!(Value, "pmap requires at least one argument with a mapped axis.")
                .help("to give every device the same value, use `device_put(x, &NamedSharding::new(&mesh, P![]))`, or map an extra argument such as `arange(0..n)`"));
        };
        // The checks are JAX's, in its order, so that the errors are the same.
        if let Some(axis_size) = self.axis_size
            && axis_size != size
        {
            return Err(err!(Value, "Specified axis_size {axis_size} doesn't match received axis_size {size}.")
                .help("remove `axis_size`, because it follows from the arguments"));
        }
        if let Some(backend) = self.backend {
            check_backend(backend)?;
        }
        let candidates = match self.devices {
            Some([]) => {
                return Err(err!(Value, "'devices' argument to pmap must be non-empty, or None.")
                    .help("remove `devices` to use the first devices"));
            }
            Some(devices) => devices.to_vec(),
            None => devices()?,
        };
        let count = candidates.len();
        if size == 0 || size > count {
            return Err(err!(
                Value,
                "pmap maps {}, of size {size}, over devices, but there are {count} devices: compiling computation requires {size} logical devices (the batch size {size} must be divisible by num_devices, with a leading axis of one slice for each device)",
                mapped()
            )
            .help(format!(
                "reshape it so that the mapped axis has one slice for each device: for a batch of b examples, `x.reshape([n, b / n, …])` with n at most {count}"
            )));
        }
        mesh_of(&candidates[..size], self.axis)
    }
}

/// Fails if the process uses another platform.
fn check_backend(backend: &str) -> Result<()> {
    let platform = client()?.platform_name.as_str();
    if backend == platform || (backend == "gpu" && matches!(platform, "cuda" | "rocm")) {
        return Ok(());
    }
    Err(err!(Value, "Unknown backend {backend}. Available backends are [{platform:?}]").help(format!(
        "a process can use one platform: set SHARDAX_PLATFORM={backend} (or call `config::set_platform`) before it uses a device, or remove `backend`"
    )))
}

/// Returns the mesh of one axis over these devices. Equal meshes are one object, so that shardings compare by pointer; the
/// lock protects the table of all meshes.
fn mesh_of(devices: &[Device], axis: AxisName) -> Result<Mesh> {
    type Meshes = Mutex<HashMap<(Vec<Device>, AxisName), Mesh>>;
    static MESHES: OnceLock<Meshes> = OnceLock::new();
    // Holds the lock while a mesh is created, so that two threads cannot create two meshes for one key.
    let mut meshes = MESHES.get_or_init(Default::default).lock().unwrap_or_else(|e| e.into_inner());
    if let Some(mesh) = meshes.get(&(devices.to_vec(), axis)) {
        return Ok(mesh.clone());
    }
    let mesh = Mesh::new(devices.to_vec(), [(axis, devices.len())])?;
    meshes.insert((devices.to_vec(), axis), mesh.clone());
    Ok(mesh)
}
