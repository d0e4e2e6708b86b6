//! Devices of a client.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::api::{Api, text};
use crate::client::ClientInner;
use crate::error::Result;
use crate::named_value::{self, Value};
use crate::raw::*;

/// A device of a client. Cloning increments a reference count; devices are equal if client and id are.
#[derive(Clone)]
pub struct Device {
    client: Arc<ClientInner>,
    index: u32,
}

pub(crate) struct DeviceInfo {
    pub(crate) raw: *mut RawDevice,
    description: Description,
    local_hardware_id: i32,
    is_addressable: bool,
}

/// Properties of a device, attached or part of a topology.
pub(crate) struct Description {
    pub id: usize,
    pub process_index: usize,
    pub kind: String,
    pub text: String,
    pub attributes: Vec<(String, Value)>,
}

impl Description {
    /// # Safety
    /// `description` is a live description of this plugin.
    pub unsafe fn read(api: &Api, description: *mut RawDeviceDescription) -> Result<Description> {
        // SAFETY: the description is live and owns its texts.
        unsafe {
            let mut id = DescriptionId { description, ..Default::default() };
            api.call(&mut id)?;
            let mut process = DescriptionProcessIndex { description, ..Default::default() };
            api.call(&mut process)?;
            let mut kind = DescriptionKind { description, ..Default::default() };
            api.call(&mut kind)?;
            let mut debug = DescriptionDebugString { description, ..Default::default() };
            api.call(&mut debug)?;
            let mut attributes = DescriptionAttributes { description, ..Default::default() };
            let attributes = match api.call(&mut attributes) {
                Ok(()) => named_value::from_raw(attributes.attributes, attributes.num_attributes).unwrap_or_default(),
                Err(_) => Vec::new(),
            };
            Ok(Description {
                id: usize::try_from(id.id).unwrap_or(0),
                process_index: usize::try_from(process.process_index).unwrap_or(0),
                kind: text(kind.text, kind.text_size).into_owned(),
                text: text(debug.text, debug.text_size).into_owned(),
                attributes,
            })
        }
    }
}

/// Memory of a device, in bytes. Fields that a platform does not report are `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// Bytes in use.
    pub bytes_in_use: i64,
    /// Largest number of bytes in use so far.
    pub peak_bytes_in_use: Option<i64>,
    /// Number of allocations.
    pub num_allocs: Option<i64>,
    /// Largest allocation so far.
    pub largest_alloc_size: Option<i64>,
    /// Bytes that you can allocate.
    pub bytes_limit: Option<i64>,
    /// Bytes that the allocator has reserved.
    pub bytes_reserved: Option<i64>,
    /// Largest number of bytes reserved so far.
    pub peak_bytes_reserved: Option<i64>,
    /// Bytes that the allocator can reserve.
    pub bytes_reservable_limit: Option<i64>,
    /// Largest allocation that is possible.
    pub largest_free_block_bytes: Option<i64>,
    /// Size of the allocator's pool.
    pub pool_bytes: Option<i64>,
    /// Largest size of the pool so far.
    pub peak_pool_bytes: Option<i64>,
}

impl DeviceInfo {
    /// # Safety
    /// `raw` is a live device of a client of this plugin.
    pub(crate) unsafe fn read(api: &Api, raw: *mut RawDevice, is_addressable: bool) -> Result<DeviceInfo> {
        // SAFETY: the device is live and owns its description.
        unsafe {
            let mut get = DeviceGetDescription { device: raw, ..Default::default() };
            api.call(&mut get)?;
            let mut local = DeviceLocalHardwareId { device: raw, local_hardware_id: -1, ..Default::default() };
            let _ = api.call(&mut local); // not defined for devices of other processes
            Ok(DeviceInfo {
                raw,
                description: Description::read(api, get.description)?,
                local_hardware_id: local.local_hardware_id,
                is_addressable,
            })
        }
    }
}

impl DeviceInfo {
    pub(crate) fn id(&self) -> usize {
        self.description.id
    }

    pub(crate) fn kind(&self) -> &str {
        &self.description.kind
    }

    pub(crate) fn is_addressable(&self) -> bool {
        self.is_addressable
    }

    /// Sets the process that owns the device, if the plugin knows only one process.
    pub(crate) fn set_owner(&mut self, owner: usize, process_index: usize) {
        self.description.process_index = owner;
        self.is_addressable = owner == process_index;
    }
}

impl Device {
    pub(crate) fn new(client: Arc<ClientInner>, index: usize) -> Device {
        Device { client, index: index as u32 }
    }

    fn info(&self) -> &DeviceInfo {
        &self.client.devices[self.index as usize]
    }

    #[inline]
    pub(crate) fn client(&self) -> &Arc<ClientInner> {
        &self.client
    }

    /// Returns true if both belong to the same client, so that data can be copied between them.
    #[inline]
    pub fn shares_client_with(&self, other: &Device) -> bool {
        Arc::ptr_eq(&self.client, &other.client)
    }

    /// The index among the client's devices.
    #[inline]
    pub(crate) fn index(&self) -> usize {
        self.index as usize
    }

    pub(crate) fn raw(&self) -> *mut RawDevice {
        self.info().raw
    }

    /// Id that is unique among the client's devices, in all processes.
    pub fn id(&self) -> usize {
        self.info().description.id
    }

    /// `cpu`, `cuda`, `tpu`, …
    pub fn platform_name(&self) -> &str {
        &self.client.platform_name
    }

    /// Number of the hardware device in this machine; -1 if there is none.
    pub fn local_hardware_id(&self) -> i32 {
        self.info().local_hardware_id
    }

    /// The vendor's name of the device, e.g. `cpu`, `NVIDIA H100`.
    pub fn kind(&self) -> &str {
        &self.info().description.kind
    }

    /// The process that owns the device.
    pub fn process_index(&self) -> usize {
        self.info().description.process_index
    }

    /// Returns true if this process can use the device.
    pub fn is_addressable(&self) -> bool {
        self.info().is_addressable
    }

    /// The plugin's description.
    pub fn description(&self) -> &str {
        &self.info().description.text
    }

    /// Other properties that the plugin reports, such as the coordinates of a TPU core.
    pub fn attributes(&self) -> &[(String, Value)] {
        &self.info().description.attributes
    }

    /// Memory in use and its limits.
    ///
    /// # Errors
    /// Returns [`crate::Code::Unimplemented`] on platforms that do not record them, such as the CPU plugin.
    pub fn memory_stats(&self) -> Result<MemoryStats> {
        let mut args = DeviceMemoryStats { device: self.raw(), ..Default::default() };
        // SAFETY: the device is live.
        unsafe { self.client.plugin.api().call(&mut args)? };
        Ok(MemoryStats {
            bytes_in_use: args.bytes_in_use,
            peak_bytes_in_use: args.peak_bytes_in_use_is_set.then_some(args.peak_bytes_in_use),
            num_allocs: args.num_allocs_is_set.then_some(args.num_allocs),
            largest_alloc_size: args.largest_alloc_size_is_set.then_some(args.largest_alloc_size),
            bytes_limit: args.bytes_limit_is_set.then_some(args.bytes_limit),
            bytes_reserved: args.bytes_reserved_is_set.then_some(args.bytes_reserved),
            peak_bytes_reserved: args.peak_bytes_reserved_is_set.then_some(args.peak_bytes_reserved),
            bytes_reservable_limit: args.bytes_reservable_limit_is_set.then_some(args.bytes_reservable_limit),
            largest_free_block_bytes: args.largest_free_block_bytes_is_set.then_some(args.largest_free_block_bytes),
            pool_bytes: args.pool_bytes_is_set.then_some(args.pool_bytes),
            peak_pool_bytes: args.peak_pool_bytes_is_set.then_some(args.peak_pool_bytes),
        })
    }
}

impl PartialEq for Device {
    #[inline]
    fn eq(&self, other: &Device) -> bool {
        self.index == other.index && Arc::ptr_eq(&self.client, &other.client)
    }
}

impl Eq for Device {}

impl Hash for Device {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (Arc::as_ptr(&self.client) as usize).hash(state);
        self.index.hash(state);
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device {} ({})", self.id(), self.kind())
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("id", &self.id()).field("kind", &self.kind()).finish_non_exhaustive()
    }
}
