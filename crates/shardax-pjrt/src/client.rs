//! Clients: the devices of a plugin, and the functions that create buffers and executables.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::api::{Api, slice, text};
use crate::buffer::Buffer;
use crate::cache_entry;
use crate::device::{Device, DeviceInfo};
use crate::element::{ElementType, ShapeText, dense_byte_size};
use crate::error::{Code, Error, Result};
use crate::event::{self, Event, no_event};
use crate::exit;
use crate::host_bytes::HostBytes;
use crate::key_value_store::{self, KeyValueStore};
use crate::launch_failure::Launch;
use crate::launch_limiter::LaunchLimiter;
use crate::memory::Memory;
use crate::named_value::{self, Value};
use crate::plugin::Plugin;
use crate::raw::*;
use crate::settings::check_settings;

/// A running instance of a plugin with its devices. Cloning increments a reference count.
///
/// It is destroyed with its last client handle, device, buffer and executable.
#[derive(Clone)]
pub struct Client {
    pub(crate) inner: Arc<ClientInner>,
    devices: Arc<[Device]>,
    addressable: Arc<[Device]>,
}

pub(crate) struct ClientInner {
    pub(crate) plugin: Plugin,
    pub(crate) raw: *mut RawClient,
    pub(crate) devices: Vec<DeviceInfo>,
    /// Ids of the devices, and the index of each id.
    ids: Vec<usize>,
    by_id: HashMap<usize, usize>,
    by_raw: HashMap<*mut RawDevice, usize>,
    pub(crate) platform_name: String,
    platform_version: String,
    process_index: usize,
    /// Some devices are placeholders for devices of other processes, which the plugin does not know.
    has_owners: bool,
    /// Device memory is host memory and can be read in place.
    pub(crate) is_cpu: bool,
    /// Limits the launches in flight to what the plugin supports.
    pub(crate) limiter: LaunchLimiter,
    /// A multi-device launch failed inside the plugin, which would hang in the next one.
    pub(crate) broken: AtomicBool,
    /// The executions in flight that call host functions, and finished ones that failed.
    host_calls: Mutex<Vec<(Arc<Event>, Arc<Launch>)>>,
    plugin_id: OnceLock<String>,
    topology_plugin_id: String,
}

// SAFETY: PJRT clients may be used from any thread; everything else is immutable or atomic.
unsafe impl Send for ClientInner {}
unsafe impl Sync for ClientInner {}

impl Client {
    /// The largest number of devices that the CPU plugin can simulate, because it interprets the device number divided
    /// by 2048 as the number of a process.
    pub const MAX_CPU_DEVICES: usize = 2048;

    /// Starts a client. The CPU plugin has the option `cpu_device_count` (`Value::Int`, default 4).
    ///
    /// # Errors
    /// Returns an error if the plugin cannot start, for example without its hardware, or `cpu_device_count` is not
    /// between 1 and [`Client::MAX_CPU_DEVICES`]. The CPU plugin ignores unknown options.
    pub fn new(plugin: &Plugin, options: &[(&str, Value)]) -> Result<Client> {
        Client::start(plugin, options, None, None)
    }

    /// Starts a client of a plugin that supports several processes. Each process starts a client, and they find each
    /// other through the store. Such plugins require the options `node_id`, the number of this process, and `num_nodes`
    /// (both `Value::Int`).
    ///
    /// # Errors
    /// Returns the errors of [`Client::new`], and the plugin's error if the other processes do not join.
    pub fn with_store(plugin: &Plugin, options: &[(&str, Value)], store: Arc<dyn KeyValueStore>) -> Result<Client> {
        Client::start(plugin, options, None, Some(store))
    }

    /// Starts a client of a plugin that supports one process, with placeholders for the devices of other processes:
    /// `owner` returns the process of a device id, and `process_index` is this process. Programs are
    /// [partitioned](Client::partition) over all devices, and compiled and run on this process's devices.
    ///
    /// # Errors
    /// Returns the errors of [`Client::new`], and an error if no device belongs to this process.
    pub fn with_owners(
        plugin: &Plugin,
        options: &[(&str, Value)],
        process_index: usize,
        owner: impl Fn(usize) -> usize,
    ) -> Result<Client> {
        Client::start(plugin, options, Some((process_index, &owner)), None)
    }

    fn start(
        plugin: &Plugin,
        options: &[(&str, Value)],
        owners: Option<(usize, &dyn Fn(usize) -> usize)>,
        store: Option<Arc<dyn KeyValueStore>>,
    ) -> Result<Client> {
        check_settings()?;
        check_device_count(options)?;
        let raw_options = named_value::to_raw(options);
        let mut args =
            ClientCreate { create_options: raw_options.as_ptr(), num_options: raw_options.len(), ..Default::default() };
        if let Some(store) = store {
            key_value_store::pass(store, &mut args);
        }
        // SAFETY: the options and what they point to outlive the call; the store is never freed.
        unsafe { plugin.api().call(&mut args)? };
        let mut inner = ClientInner {
            plugin: plugin.clone(),
            raw: args.client,
            devices: Vec::new(),
            ids: Vec::new(),
            by_id: HashMap::new(),
            by_raw: HashMap::new(),
            platform_name: String::new(),
            platform_version: String::new(),
            process_index: 0,
            has_owners: false,
            is_cpu: false,
            limiter: LaunchLimiter::new(0),
            broken: AtomicBool::new(false),
            host_calls: Mutex::default(),
            plugin_id: OnceLock::new(),
            topology_plugin_id: String::new(),
        };
        inner.describe()?;
        if inner.devices.is_empty() {
            // The CPU plugin (xla-cpu-pjrt 0.0.1) accepts a client of zero devices.
            return Err(Error::invalid_argument("the client has no devices; ask for at least one"));
        }
        if let Some((process_index, owner)) = owners {
            inner.set_owners(process_index, owner)?;
        }
        let inner = Arc::new(inner);
        exit::register_client(&inner);
        let devices: Arc<[Device]> = (0..inner.devices.len()).map(|index| Device::new(inner.clone(), index)).collect();
        let addressable = devices.iter().filter(|d| d.is_addressable()).cloned().collect();
        Ok(Client { inner, devices, addressable })
    }

    /// The plugin of this client.
    pub fn plugin(&self) -> &Plugin {
        &self.inner.plugin
    }

    /// `cpu`, `cuda`, `tpu`, …
    pub fn platform_name(&self) -> &str {
        &self.inner.platform_name
    }

    /// The version that the platform reports.
    pub fn platform_version(&self) -> &str {
        &self.inner.platform_version
    }

    /// The number of this process among the processes that share the devices; 0 if it is the only one.
    pub fn process_index(&self) -> usize {
        self.inner.process_index
    }

    /// Waits until all executions that call host functions are done, including executions without results.
    ///
    /// # Errors
    /// Returns the first error of such an execution since the last call. You cannot call it from a host function,
    /// because that would wait for itself.
    pub fn wait_for_host_calls(&self) -> Result<()> {
        crate::ffi::check_outside()?;
        let calls = std::mem::take(&mut *self.inner.host_calls.lock().unwrap_or_else(PoisonError::into_inner));
        // The fold does not stop at the first error, so that every call is awaited.
        calls.iter().map(|(event, launch)| event.wait_ref().and_then(|()| launch.check())).fold(Ok(()), Result::and)
    }

    /// Returns true if an execution on several devices failed inside the plugin. All further ones are rejected, because
    /// the next one would hang. Executions on one device and transfers still work. To run on several devices again,
    /// create a new client of the same plugin.
    #[inline]
    pub fn is_broken(&self) -> bool {
        self.inner.is_broken()
    }

    /// The identity of the plugin, the devices and the processor: everything that compiled programs depend on, except
    /// the program and its options. Processes with equal ids can exchange compiled programs.
    ///
    /// # Errors
    /// Returns an error if the system does not report its processor.
    pub fn plugin_id(&self) -> Result<&str> {
        if let Some(plugin_id) = self.inner.plugin_id.get() {
            return Ok(plugin_id);
        }
        let plugin_id = cache_entry::plugin_id(self)?;
        Ok(self.inner.plugin_id.get_or_init(|| plugin_id))
    }

    /// All devices, including the devices of other processes.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// The devices of this process.
    pub fn addressable_devices(&self) -> &[Device] {
        &self.addressable
    }

    /// The device with this id.
    pub fn device_by_id(&self, id: usize) -> Option<&Device> {
        self.inner.by_id.get(&id).map(|&at| &self.devices[at])
    }

    pub(crate) fn ids(&self) -> &[usize] {
        &self.inner.ids
    }

    /// The counterpart of [`Client::plugin_id`] for programs that were compiled for a topology.
    pub(crate) fn topology_plugin_id(&self) -> &str {
        &self.inner.topology_plugin_id
    }

    /// Copies dense row-major host data to a device. The data is copied during the call.
    ///
    /// # Errors
    /// Returns an error if the data's length does not match the shape, the device belongs to another client or process,
    /// or memory is exhausted.
    pub fn buffer_from_host(&self, data: &[u8], ty: ElementType, dims: &[i64], device: &Device) -> Result<Buffer> {
        // SAFETY: the plugin may not read the data after the call.
        let (buffer, _done) = unsafe { self.put(data, ty, dims, device, None, IMMUTABLE_ONLY_DURING_CALL)? };
        Ok(buffer)
    }

    /// Copies dense row-major host data to a memory.
    ///
    /// # Errors
    /// Returns the errors of [`Client::buffer_from_host`], and an error if the platform cannot store data there.
    pub fn buffer_from_host_in(&self, data: &[u8], ty: ElementType, dims: &[i64], memory: &Memory) -> Result<Buffer> {
        // SAFETY: the plugin may not read the data after the call.
        let (buffer, _done) =
            unsafe { self.put(data, ty, dims, memory.device(), Some(memory), IMMUTABLE_ONLY_DURING_CALL)? };
        Ok(buffer)
    }

    /// Passes dense row-major host data to a device, without a copy if the plugin can use host memory and the data is
    /// aligned to 64 bytes. Any number of buffers can share the data.
    ///
    /// The plugin keeps the `Arc` until it no longer needs the data. Donating such a buffer copies it first.
    ///
    /// # Errors
    /// Returns the errors of [`Client::buffer_from_host`].
    pub fn buffer_from_host_shared(
        &self,
        data: Arc<dyn HostBytes>,
        ty: ElementType,
        dims: &[i64],
        device: &Device,
    ) -> Result<Buffer> {
        // SAFETY: the Arc keeps the data alive and unchanged until the plugin reports that it no longer needs it.
        let (buffer, done) = unsafe { self.put(data.bytes(), ty, dims, device, None, IMMUTABLE_ZERO_COPY)? };
        done.on_ready(move |_| drop(data));
        Ok(buffer)
    }

    /// # Safety
    /// `data` stays valid and unchanged for as long as `semantics` allows the plugin to use it; the event completes
    /// when that time ends.
    unsafe fn put(
        &self,
        data: &[u8],
        ty: ElementType,
        dims: &[i64],
        device: &Device,
        memory: Option<&Memory>,
        semantics: i32,
    ) -> Result<(Buffer, Event)> {
        self.check_device(device)?;
        let needed = dense_byte_size(ty, dims)
            .ok_or_else(|| Error::invalid_argument(format!("{} is not a valid shape", ShapeText(ty, dims))))?;
        if data.len() != needed {
            return Err(Error::invalid_argument(format!(
                "host data of {} bytes was passed for {}, which has {needed} bytes",
                data.len(),
                ShapeText(ty, dims)
            )));
        }
        let mut args = BufferFromHostBuffer {
            client: self.inner.raw,
            data: data.as_ptr().cast(),
            element_type: ty.to_raw(),
            dims: dims.as_ptr(),
            num_dims: dims.len(),
            semantics,
            device: device.raw(),
            memory: memory.map_or(std::ptr::null_mut(), Memory::raw),
            ..Default::default()
        };
        // SAFETY: data and dims match; the caller guarantees the lifetime of the data.
        unsafe {
            self.api().call(&mut args)?;
            let buffer = Buffer::from_raw(args.buffer, device.clone(), ty, dims)?;
            let done = Event::from_raw(&self.inner.plugin, args.done_with_host_buffer)
                .map(|event| event.with_client(&self.inner))
                .ok_or_else(|| no_event("PJRT_Client_BufferFromHostBuffer"))?;
            Ok((buffer, done))
        }
    }

    pub(crate) fn check_device(&self, device: &Device) -> Result<()> {
        if !Arc::ptr_eq(&self.inner, device.client()) {
            if device.client().is_broken() {
                return Err(Error::failed_precondition(format!(
                    "{device} belongs to an earlier client, in which a multi-device execution failed inside the \
                     plugin; use the devices of this client"
                )));
            }
            return Err(Error::invalid_argument(format!("{device} belongs to another client")));
        }
        if !device.is_addressable() {
            return Err(Error::invalid_argument(format!(
                "{device} belongs to process {}, but this is process {}",
                device.process_index(),
                self.process_index()
            )));
        }
        Ok(())
    }

    pub(crate) fn has_owners(&self) -> bool {
        self.inner.has_owners
    }

    pub(crate) fn api(&self) -> &Api {
        self.inner.plugin.api()
    }
}

/// Fails if the options ask for a number of CPU devices that the plugin does not support.
fn check_device_count(options: &[(&str, Value)]) -> Result<()> {
    for (name, value) in options {
        if let ("cpu_device_count", Value::Int(count)) = (*name, value)
            && !(1..=Client::MAX_CPU_DEVICES as i64).contains(count)
        {
            return Err(Error::invalid_argument(format!(
                "cpu_device_count is {count}, but must be between 1 and {}",
                Client::MAX_CPU_DEVICES
            )));
        }
    }
    Ok(())
}

impl ClientInner {
    /// Sets the process that each device belongs to. Fails if no device belongs to this process.
    fn set_owners(&mut self, process_index: usize, owner: impl Fn(usize) -> usize) -> Result<()> {
        self.process_index = process_index;
        self.has_owners = true;
        self.devices.iter_mut().for_each(|device| device.set_owner(owner(device.id()), process_index));
        if self.devices.iter().any(DeviceInfo::is_addressable) {
            Ok(())
        } else {
            Err(Error::invalid_argument(format!("no device belongs to this process, {process_index}")))
        }
    }

    fn describe(&mut self) -> Result<()> {
        let plugin = self.plugin.clone();
        let api = plugin.api();
        let client = self.raw;
        // SAFETY: the client is live, and owns everything that these calls return.
        unsafe {
            let mut name = ClientPlatformName { client, ..Default::default() };
            api.call(&mut name)?;
            self.platform_name = text(name.text, name.text_size).to_lowercase();
            let mut version = ClientPlatformVersion { client, ..Default::default() };
            api.call(&mut version)?;
            self.platform_version = text(version.text, version.text_size).into_owned();
            let mut process = ClientProcessIndex { client, ..Default::default() };
            api.call(&mut process)?;
            self.process_index = usize::try_from(process.process_index).unwrap_or(0);
            let mut local = ClientAddressableDevices { client, ..Default::default() };
            api.call(&mut local)?;
            let local = slice(local.devices, local.num_devices);
            let mut list = ClientDevices { client, ..Default::default() };
            api.call(&mut list)?;
            for &device in slice(list.devices, list.num_devices) {
                self.devices.push(DeviceInfo::read(api, device, local.contains(&device))?);
            }
        }
        self.ids = self.devices.iter().map(DeviceInfo::id).collect();
        self.by_id = self.ids.iter().copied().zip(0..).collect();
        self.by_raw = self.devices.iter().map(|device| device.raw).zip(0..).collect();
        let kinds = self.devices.iter().map(DeviceInfo::kind);
        self.topology_plugin_id = cache_entry::topology_plugin_id(&self.plugin, &self.platform_name, kinds);
        self.is_cpu = self.platform_name.eq_ignore_ascii_case("cpu");
        self.limiter = LaunchLimiter::new(self.devices.len());
        Ok(())
    }

    /// The index of a device in `devices`.
    pub(crate) fn index_of(&self, raw: *mut RawDevice) -> Result<usize> {
        self.by_raw
            .get(&raw)
            .copied()
            .ok_or_else(|| Error::new(Code::Internal, "the plugin returned a device that it did not list"))
    }

    /// Returns the id of a multi-device launch.
    ///
    /// The CPU plugin (xla-cpu-pjrt 0.0.1) matches the participants of a collective by this number, the device ids and
    /// the channel, in one table of the process. Collectives of two clients under the same number would exchange data
    /// with each other, which leads to wrong results or a crash. Other platforms compare the number between processes,
    /// so it must be 0 there. Test: `hazards::clients_running_at_the_same_time_are_independent`.
    #[inline]
    pub(crate) fn launch_id(&self) -> i32 {
        static NEXT: AtomicI32 = AtomicI32::new(1);
        if !self.is_cpu {
            return 0;
        }
        (NEXT.fetch_add(1, Ordering::Relaxed) & i32::MAX).max(1)
    }

    /// Adds an execution that calls functions of the host.
    pub(crate) fn calls_host(&self, completion: &[Arc<Event>], launch: &Arc<Launch>) {
        let mut calls = self.host_calls.lock().unwrap_or_else(PoisonError::into_inner);
        // A loop may run many steps without waiting for them. Before the list grows, successful executions are dropped.
        if calls.len() >= calls.capacity() {
            let mut errors = 0;
            calls.retain(|(event, launch)| {
                let done = event.is_ready();
                let failed = done && event.wait_ref().and_then(|()| launch.check()).is_err();
                errors += usize::from(failed);
                !done || (failed && errors == 1)
            });
        }
        calls.extend(completion.iter().map(|event| (event.clone(), launch.clone())));
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    /// Rejects multi-device launches after one has failed inside a plugin that would hang in the next.
    #[inline]
    pub(crate) fn check_not_broken(&self) -> Result<()> {
        if self.is_broken() {
            return Err(Error::failed_precondition(
                "an earlier multi-device execution failed inside the plugin, which would hang in the next one; make a \
                 new Client",
            ));
        }
        Ok(())
    }
}

impl Drop for ClientInner {
    fn drop(&mut self) {
        struct Owned(Plugin, *mut RawClient);
        // SAFETY: a client may be destroyed on any thread.
        unsafe impl Send for Owned {}
        impl Owned {
            fn destroy(self) {
                let mut args = ClientDestroy { client: self.1, ..Default::default() };
                // SAFETY: buffers and executables keep the client alive, so none is left.
                let _ = unsafe { self.0.api().call(&mut args) };
            }
        }
        self.limiter.clear();
        if self.is_broken() {
            return; // its threads wait for each other forever, and destroying it would wait for them
        }
        let owned = Owned(self.plugin.clone(), self.raw);
        if event::in_callback() {
            // Destroying the client waits for the plugin's threads, and this is one of them.
            let _ = std::thread::Builder::new().spawn(move || owned.destroy());
        } else {
            owned.destroy();
        }
    }
}

impl PartialEq for Client {
    fn eq(&self, other: &Client) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Eq for Client {}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("platform_name", &self.platform_name())
            .field("devices", &self.devices.len())
            .finish_non_exhaustive()
    }
}
