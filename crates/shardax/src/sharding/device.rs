//! Devices, and the PJRT client that owns them.

use std::fmt;
use std::sync::{Mutex, OnceLock};

use shardax_pjrt as pjrt;

use super::distributed;
use crate::client_options;
use crate::config;
use crate::error::{AtCaller, Error, Result, err};
use crate::local::{Guard, Guarded, GuardedKey};
use crate::settings;
use crate::timeline;

/// A device: a CPU (real or simulated), a GPU or a TPU core. It can also be the description of a device in a
/// [`Topology`](crate::Topology). You can compile programs for described devices without having them.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Device(Kind);

#[derive(Clone, PartialEq, Eq, Hash)]
enum Kind {
    Attached(pjrt::Device),
    Described(pjrt::TopologyDevice),
}

/// Calls `$device.method()` on a device of either kind.
macro_rules! either {
    ($device:expr, $method:ident) => {
        match &$device.0 {
            Kind::Attached(device) => device.$method(),
            Kind::Described(device) => device.$method(),
        }
    };
}

impl Device {
    pub(crate) fn described(device: pjrt::TopologyDevice) -> Device {
        Device(Kind::Described(device))
    }

    /// Returns the id of the device, unique among the devices of all processes.
    pub fn id(&self) -> usize {
        either!(self, id)
    }

    /// Returns the kind of hardware, as named by the plugin.
    pub fn kind(&self) -> &str {
        either!(self, kind)
    }

    /// Returns the process that owns the device.
    pub fn process_index(&self) -> usize {
        either!(self, process_index)
    }

    /// Returns `true` if this process owns the device.
    pub fn is_addressable(&self) -> bool {
        match &self.0 {
            Kind::Attached(device) => device.is_addressable(),
            Kind::Described(_) => false,
        }
    }

    /// `cpu`, `cuda`, …
    pub fn platform(&self) -> &str {
        match &self.0 {
            Kind::Attached(device) => device.platform_name(),
            Kind::Described(device) => device.topology().platform_name(),
        }
    }

    /// The topology of a described device.
    pub(crate) fn topology(&self) -> Option<&pjrt::Topology> {
        match &self.0 {
            Kind::Attached(_) => None,
            Kind::Described(device) => Some(device.topology()),
        }
    }

    /// Returns the coordinates of a TPU chip in its slice. For a GPU in a topology these are its group of hosts, its
    /// host, and its number. `None` if the platform has no coordinates.
    pub fn coords(&self) -> Option<[usize; 3]> {
        match self.attribute("coords")? {
            pjrt::Value::Ints(coordinates) => {
                let coordinates: Vec<usize> =
                    coordinates.iter().map(|&n| usize::try_from(n)).collect::<std::result::Result<_, _>>().ok()?;
                coordinates.try_into().ok()
            }
            _ => None,
        }
    }

    /// Returns the index of a TPU core on its chip. `None` if the platform has no such index.
    pub fn core_on_chip(&self) -> Option<usize> {
        self.number("core_on_chip")
    }

    /// Returns the slice of the device. Devices of different slices are connected by the data centre's network. `None`
    /// if the platform has no slices, or if there is only one.
    pub fn slice_index(&self) -> Option<usize> {
        self.number("slice_index")
    }

    /// Returns the bytes of memory available to programs. `None` if the platform does not report them.
    pub fn memory_limit(&self) -> Option<usize> {
        self.number("device_memory_bytes_limit").or_else(|| match &self.0 {
            Kind::Attached(device) => usize::try_from(device.memory_stats().ok()?.bytes_limit?).ok(),
            Kind::Described(_) => None,
        })
    }

    fn attribute(&self, name: &str) -> Option<&pjrt::Value> {
        either!(self, attributes).iter().find(|(known, _)| known == name).map(|(_, value)| value)
    }

    fn number(&self, name: &str) -> Option<usize> {
        match self.attribute(name)? {
            pjrt::Value::Int(n) => usize::try_from(*n).ok(),
            _ => None,
        }
    }

    /// Returns the PJRT device. Fails for a described device.
    pub(crate) fn attached(&self) -> Result<&pjrt::Device> {
        match &self.0 {
            Kind::Attached(device) => Ok(device),
            Kind::Described(device) => Err(err!(
                Runtime,
                "{self} is a device of the topology {}: it is only a description, so nothing can be stored or run on it",
                device.topology()
            )
            .help("compile for it with `lowered.compile_for(&topology)`; use `devices()` to run")),
        }
    }
}

/// `CpuDevice(id=0)`
impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let platform = self.platform();
        let (head, tail) = platform.split_at(platform.len().min(1));
        write!(f, "{}{tail}Device(id={})", head.to_uppercase(), self.id())
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The client of this process. It is created at first use, and replaced after a failure that XLA does not survive.
pub(crate) struct Client {
    pub pjrt: pjrt::Client,
    pub devices: Vec<Device>,
    pub local_devices: Vec<Device>,
    /// The name in lower case: `cpu`, `cuda`, `tpu`.
    pub platform_name: String,
    next: OnceLock<Box<Client>>,
}

// Starting takes long and must happen once, so threads that need the client wait on `STARTING`.
static CLIENT: OnceLock<Client> = OnceLock::new();
static STARTING: Mutex<()> = Mutex::new(());

/// Returns the client. If it failed to start, the next call tries again.
pub(crate) fn client() -> Result<&'static Client> {
    if let Some(client) = latest().filter(|client| !client.pjrt.is_broken()) {
        return Ok(client);
    }
    let starting = STARTING.lock().unwrap_or_else(|e| e.into_inner());
    match latest() {
        None => {
            let client = start()?;
            config::freeze(client.local_devices.len());
            let client = CLIENT.get_or_init(|| client);
            // The lock is released first, because the hook for warnings may ask for the client.
            drop(starting);
            if client.platform_name == "cpu" && distributed::processes().is_none() {
                distributed::warn_if_alone();
            }
            timeline::watch(client.pjrt.plugin());
            Ok(client)
        }
        Some(client) if client.pjrt.is_broken() => {
            let fresh = start()?;
            Ok(client.next.get_or_init(|| Box::new(fresh)))
        }
        Some(client) => Ok(client),
    }
}

/// The advice after a failure that XLA does not survive.
pub(crate) const NEW_CLIENT_HELP: &str = "there is a new client: create meshes and arrays again, from what `devices()` returns now. Earlier arrays can be read, and moved with `device_put`";

/// Fails for a device of a failed client.
pub(crate) fn check_current(device: &Device) -> Result<()> {
    let attached = device.attached()?;
    if client()?.pjrt.devices().iter().any(|current| current.shares_client_with(attached)) {
        Ok(())
    } else {
        Err(err!(Runtime, "{device} belongs to a client whose earlier multi-device execution failed inside the plugin")
            .help(NEW_CLIENT_HELP))
    }
}

/// The number of clients that failed before this one.
pub(crate) fn client_number() -> usize {
    let Some(mut client) = CLIENT.get() else { return 0 };
    let mut number = 0;
    while let Some(next) = client.next.get() {
        (client, number) = (next, number + 1);
    }
    number + usize::from(client.pjrt.is_broken())
}

/// The current client, if one was started.
pub(crate) fn latest() -> Option<&'static Client> {
    let mut latest = CLIENT.get()?;
    while let Some(next) = latest.next.get() {
        latest = next;
    }
    Some(latest)
}

fn plugin_error(error: pjrt::Error) -> Error {
    err!(Plugin, "{error}")
}

fn start() -> Result<Client> {
    settings::check()?;
    let platform = config::platform()?;
    let pjrt = match (platform.as_str(), distributed::processes()) {
        ("cpu", Some(processes)) => processes.client(&pjrt::Plugin::cpu().map_err(plugin_error)?)?,
        ("cpu", None) => {
            let count = [("cpu_device_count", pjrt::Value::Int(config::num_cpu_devices()? as i64))];
            pjrt::Client::new(&pjrt::Plugin::cpu().map_err(plugin_error)?, &count)?
        }
        (other, processes) => {
            let options = client_options::of(other)?;
            let plugin = pjrt::Plugin::find(other).map_err(plugin_error)?;
            match processes {
                Some(processes) => processes.client_with_store(&plugin, options)?,
                None => pjrt::Client::new(&plugin, &options)?,
            }
        }
    };
    let devices: Vec<Device> = pjrt.devices().iter().cloned().map(|d| Device(Kind::Attached(d))).collect();
    let local_devices = pjrt.addressable_devices().iter().cloned().map(|d| Device(Kind::Attached(d))).collect();
    let platform_name = pjrt.platform_name().to_lowercase();
    Ok(Client { pjrt, devices, local_devices, platform_name, next: OnceLock::new() })
}

/// Returns all devices, including devices of other processes, in the order of their ids.
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let all = devices()?;
/// assert_eq!((all.len(), all[3].to_string().as_str()), (8, "CpuDevice(id=3)"));
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if the plugin cannot be found or loaded, or if the processes cannot join.
#[track_caller]
pub fn devices() -> Result<Vec<Device>> {
    client().map(|c| c.devices.clone()).at_caller()
}

/// Returns the platform of the devices: `cpu`, `gpu` or `tpu`.
///
/// ```
/// # use shardax::prelude::*;
/// let is_small = shardax::default_backend()? == "cpu";
/// # assert!(is_small || devices()?[0].platform() != "cpu");
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if the plugin cannot be found or loaded.
#[track_caller]
pub fn default_backend() -> Result<String> {
    client()
        .map(|c| match c.devices[0].platform() {
            "cuda" | "rocm" => "gpu".to_owned(),
            platform => platform.to_owned(),
        })
        .at_caller()
}

/// Returns the devices of this process.
///
/// # Errors
/// Returns an error if the plugin cannot be found or loaded; the help says how you can install it.
#[track_caller]
pub fn local_devices() -> Result<Vec<Device>> {
    client().map(|c| c.local_devices.clone()).at_caller()
}

/// Returns the number of devices of all processes; 0 if the plugin cannot be loaded ([`devices`] returns the error).
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// assert_eq!(device_count(), 8);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn device_count() -> usize {
    client().map(|c| c.devices.len()).unwrap_or(0)
}

/// Returns the number of devices of this process.
pub fn local_device_count() -> usize {
    client().map(|c| c.local_devices.len()).unwrap_or(0)
}

/// Returns the index of this process among all processes of the program; 0 in a program of one process.
pub fn process_index() -> usize {
    client().map(|c| c.pjrt.process_index()).unwrap_or(0)
}

/// Returns the number of processes of the program, which must have joined it with [`initialize`](crate::distributed::initialize),
/// except on a TPU slice, whose hosts the plugin connects.
pub fn process_count() -> usize {
    client().map(|c| c.devices.iter().map(|d| d.process_index()).max().unwrap_or(0) + 1).unwrap_or(1)
}

/// The default device of arrays.
pub(crate) fn uncommitted_device() -> Result<Device> {
    if let Some(device) = chosen_device() {
        return Ok(device);
    }
    client()?.local_devices.first().cloned().ok_or_else(|| {
        err!(Plugin, "the plugin reports no device")
            .help("run `shardax-doctor` to find out which devices the plugin sees")
    })
}

// `default_device` applies to one thread, so that threads can use different devices.
thread_local! {
    static CHOSEN: Guarded<Device> = const { Guarded::new() };
}

/// The device set by [`default_device`]. Programs without other placement depend on it.
pub(crate) fn chosen_device() -> Option<Device> {
    CHOSEN.with_last(|device| device.cloned())
}

/// Returns `true` if [`default_device`] has set this device.
pub(crate) fn is_chosen(device: Option<&Device>) -> bool {
    CHOSEN.with_last(|chosen| chosen == device)
}

/// Restores the previous default device when dropped.
#[must_use = "the device is the default one only while the guard lives"]
pub struct DeviceGuard {
    _guard: Guard<Device>,
}

/// Makes this the default device of the thread until the guard is dropped (JAX's context manager of that name). New
/// arrays are placed there, and programs run there if their arguments are uncommitted. Arrays are not committed to it,
/// so they still move to the devices of committed arrays.
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let third = &local_devices()?[2];
/// {
///     let _third = shardax::default_device(third)?;
///     assert_eq!(ones(4).devices()?, [third.clone()]);
/// }
/// assert_eq!(ones(4).devices()?, local_devices()?[..1]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error for a device of another process or of a failed client.
#[track_caller]
pub fn default_device(device: &Device) -> Result<DeviceGuard> {
    check_current(device).at_caller()?;
    if !device.is_addressable() {
        let e = err!(Value, "default_device cannot be {device}: it belongs to process {}", device.process_index());
        return Err(e.help("choose one of `local_devices()`")).at_caller();
    }
    Ok(DeviceGuard { _guard: CHOSEN.guard(device.clone()) })
}
