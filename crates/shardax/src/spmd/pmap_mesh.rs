//! The mesh of a `pmap`: one axis over as many devices as the size of the mapped axis.

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock};

use crate::error::{Result, err};
use crate::shape::AxisName;
use crate::sharding::device::client;
use crate::sharding::{Device, Mesh, devices};

/// The inputs that decide the devices.
pub(crate) struct Choice<'a> {
    /// The size of the mapped axis, if an argument has one.
    pub size: Option<usize>,
    /// The size that the user gave.
    pub asked: Option<usize>,
    pub axis: AxisName,
    /// The candidates that the user gave, in order.
    pub devices: Option<&'a [Device]>,
    pub backend: Option<&'a str>,
}

impl Choice<'_> {
    /// Returns the mesh; `mapped` names the function in errors.
    pub fn mesh(&self, mapped: &dyn Fn() -> String) -> Result<Mesh> {
        let Some(size) = self.size else {
            return Err(err!(Value, "pmap requires at least one argument with a mapped axis.")
                .help("to give every device the same value, use `device_put(x, &NamedSharding::new(&mesh, P![]))`, or map an extra argument such as `arange(0..n)`"));
        };
        if let Some(want) = self.asked
            && want != size
        {
            return Err(err!(Value, "Specified axis_size {want} doesn't match received axis_size {size}.")
                .help("leave axis_size out: it follows from the arguments"));
        }
        if let Some(backend) = self.backend {
            check_backend(backend)?;
        }
        let candidates = match self.devices {
            Some([]) => {
                return Err(err!(Value, "'devices' argument to pmap must be non-empty, or None.")
                    .help("leave `devices` out to use the first ones"));
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

/// Fails when the process works with another platform.
fn check_backend(asked: &str) -> Result<()> {
    let have = client()?.platform_name.as_str();
    if asked == have || (asked == "gpu" && matches!(have, "cuda" | "rocm")) {
        return Ok(());
    }
    Err(err!(Value, "Unknown backend {asked}. Available backends are [{have:?}]").help(format!(
        "a process works with one platform: set SHARDAX_PLATFORM={asked} (or call `config::set_platform`) before it uses a device, or leave `backend` out"
    )))
}

/// The mesh of one axis over these devices; equal ones are one object, so that shardings compare by pointer.
fn mesh_of(devices: &[Device], axis: AxisName) -> Result<Mesh> {
    type Meshes = Mutex<HashMap<(Vec<Device>, AxisName), Mesh>>;
    static MESHES: OnceLock<Meshes> = OnceLock::new();
    let mut meshes = MESHES.get_or_init(Default::default).lock().unwrap_or_else(|e| e.into_inner());
    if let Some(mesh) = meshes.get(&(devices.to_vec(), axis)) {
        return Ok(mesh.clone());
    }
    let mesh = Mesh::new(devices.to_vec(), [(axis, devices.len())])?;
    meshes.insert((devices.to_vec(), axis), mesh.clone());
    Ok(mesh)
}
