//! The client: a plugin's devices, and the making of buffers and executables on them.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, OnceLock};

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
use crate::launch_limiter::LaunchLimiter;
use crate::memory::Memory;
use crate::named_value::{self, Value};
use crate::plugin::Plugin;
use crate::raw::*;
use crate::settings::check_settings;

/// A running instance of a plugin, with its devices. Cloning is a reference count.
///
/// It is torn down when the last client, device, buffer and executable of it is gone.
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
    /// The ids of the devices, and the place of each among them.
    ids: Vec<usize>,
    by_id: HashMap<usize, usize>,
    by_raw: HashMap<*mut RawDevice, usize>,
    pub(crate) platform_name: String,
    platform_version: String,
    process_index: usize,
    /// Some devices stand for those of other processes, which the plugin does not know of.
    has_owners: bool,
    /// Device memory is host memory, so it can be read in place.
    pub(crate) is_cpu: bool,
    /// Keeps the number of launches under way below what the plugin can take.
    pub(crate) gate: LaunchLimiter,
    /// A launch on several devices failed inside a plugin that cannot do another one after that.
    pub(crate) broken: AtomicBool,
    plugin_id: OnceLock<String>,
    topology_plugin_id: String,
}

// SAFETY: PJRT clients may be used from any thread; everything else is immutable or atomic.
unsafe impl Send for ClientInner {}
unsafe impl Sync for ClientInner {}

impl Client {
    /// As many devices as the CPU plugin can simulate: it takes the rest of a device's number, divided by 2048, for the
    /// number of a process.
    pub const MAX_CPU_DEVICES: usize = 2048;

    /// Starts a client. The CPU plugin takes `cpu_device_count` (`Value::Int`, default 4).
    ///
    /// # Errors
    /// The plugin cannot start, e.g. for want of the hardware, or `cpu_device_count` is not between 1 and
    /// [`Client::MAX_CPU_DEVICES`]. Unknown options are ignored by the CPU plugin.
    pub fn new(plugin: &Plugin, options: &[(&str, Value)]) -> Result<Client> {
        Client::start(plugin, options, None, None)
    }

    /// Starts a client of a plugin that knows other processes, each of which starts one: they meet in the store. Such
    /// plugins take `node_id`, this process's number, and `num_nodes` (`Value::Int`).
    ///
    /// # Errors
    /// As for [`Client::new`]; the plugin's, when the others do not come.
    pub fn with_store(plugin: &Plugin, options: &[(&str, Value)], store: Arc<dyn KeyValueStore>) -> Result<Client> {
        Client::start(plugin, options, None, Some(store))
    }

    /// Starts a client of a plugin that knows one process, some of whose devices stand for other processes' own:
    /// `owner` gives the process of the device with an id, `process_index` is this one. Programs are
    /// [partitioned](Client::partition) over all devices, and compiled and run on this process's.
    ///
    /// # Errors
    /// As for [`Client::new`]; also when no device is this process's.
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
        for (name, value) in options {
            if let ("cpu_device_count", Value::Int(count)) = (*name, value)
                && !(1..=Client::MAX_CPU_DEVICES as i64).contains(count)
            {
                return Err(Error::invalid_argument(format!(
                    "cpu_device_count is {count}, and must be between 1 and {}",
                    Client::MAX_CPU_DEVICES
                )));
            }
        }
        let raw_options = named_value::to_raw(options);
        let mut args =
            ClientCreate { create_options: raw_options.as_ptr(), num_options: raw_options.len(), ..Default::default() };
        if let Some(store) = store {
            key_value_store::pass(store, &mut args);
        }
        // SAFETY: the options and what they point to live through the call, the store for ever.
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
            gate: LaunchLimiter::new(0),
            broken: AtomicBool::new(false),
            plugin_id: OnceLock::new(),
            topology_plugin_id: String::new(),
        };
        inner.describe()?;
        if inner.devices.is_empty() {
            return Err(Error::invalid_argument("the client has no devices; ask for at least one"));
        }
        if let Some((process_index, owner)) = owners {
            inner.process_index = process_index;
            inner.has_owners = true;
            inner.devices.iter_mut().for_each(|device| device.set_owner(owner(device.id()), process_index));
            if !inner.devices.iter().any(DeviceInfo::is_addressable) {
                return Err(Error::invalid_argument(format!("no device belongs to this process, {process_index}")));
            }
        }
        let inner = Arc::new(inner);
        exit::watch(&inner);
        let device = |index| Device::new(inner.clone(), index);
        let devices: Arc<[Device]> = (0..inner.devices.len()).map(device).collect();
        let addressable = devices.iter().filter(|d| d.is_addressable()).cloned().collect();
        Ok(Client { inner, devices, addressable })
    }

    /// The plugin that it runs on.
    pub fn plugin(&self) -> &Plugin {
        &self.inner.plugin
    }

    /// `cpu`, `cuda`, `tpu`, …
    pub fn platform_name(&self) -> &str {
        &self.inner.platform_name
    }

    /// What the platform says of its version.
    pub fn platform_version(&self) -> &str {
        &self.inner.platform_version
    }

    /// This process's place among those that share the devices; 0 when it is alone.
    pub fn process_index(&self) -> usize {
        self.inner.process_index
    }

    /// Whether an execution on several devices failed inside the plugin, which would hang in the next one: all further
    /// ones are refused. Executions on one device and transfers still work. A new client on the same plugin does all.
    #[inline]
    pub fn is_broken(&self) -> bool {
        self.inner.is_broken()
    }

    /// All that compiled programs depend on, but for the programs and their options: the plugin's file and versions, the
    /// devices, the processor. Equal in two processes that can exchange compiled programs.
    ///
    /// # Errors
    /// The system does not say what its processor is.
    pub fn plugin_id(&self) -> Result<&str> {
        if let Some(plugin_id) = self.inner.plugin_id.get() {
            return Ok(plugin_id);
        }
        let plugin_id = cache_entry::plugin_id(self)?;
        Ok(self.inner.plugin_id.get_or_init(|| plugin_id))
    }

    /// All devices, those of other processes included.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// The devices that this process can use.
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

    /// As [`Client::plugin_id`], of programs that were compiled for a topology.
    pub(crate) fn topology_plugin_id(&self) -> &str {
        &self.inner.topology_plugin_id
    }

    /// Puts dense row-major host data on a device. The data is copied during the call.
    ///
    /// # Errors
    /// The data's length does not fit the shape, the device is another client's or another process's, or memory is
    /// short.
    pub fn buffer_from_host(&self, data: &[u8], ty: ElementType, dims: &[i64], device: &Device) -> Result<Buffer> {
        // SAFETY: the plugin may not look at the data after the call.
        let (buffer, _done) = unsafe { self.put(data, ty, dims, device, None, IMMUTABLE_ONLY_DURING_CALL)? };
        Ok(buffer)
    }

    /// Copies dense row-major host data into a memory.
    ///
    /// # Errors
    /// As for [`Client::buffer_from_host`], and when the platform cannot put data there.
    pub fn buffer_from_host_in(&self, data: &[u8], ty: ElementType, dims: &[i64], memory: &Memory) -> Result<Buffer> {
        // SAFETY: the plugin may not look at the data after the call.
        let (buffer, _done) =
            unsafe { self.put(data, ty, dims, memory.device(), Some(memory), IMMUTABLE_ONLY_DURING_CALL)? };
        Ok(buffer)
    }

    /// Puts dense row-major host data on a device, without a copy where the plugin can use host memory and the data is
    /// aligned to 64 bytes. The same data may back any number of buffers.
    ///
    /// The plugin keeps the `Arc` until it is done with the data. Donating such a buffer copies it first.
    ///
    /// # Errors
    /// As for [`Client::buffer_from_host`].
    pub fn buffer_from_host_shared(
        &self,
        data: Arc<dyn HostBytes>,
        ty: ElementType,
        dims: &[i64],
        device: &Device,
    ) -> Result<Buffer> {
        // SAFETY: the Arc keeps the data alive and unchanged until the plugin says that it is done with it.
        let (buffer, done) = unsafe { self.put(data.bytes(), ty, dims, device, None, IMMUTABLE_ZERO_COPY)? };
        done.on_ready(move |_| drop(data));
        Ok(buffer)
    }

    /// # Safety
    /// `data` stays valid, and unchanged by others, for as long as `semantics` lets the plugin use it; the event says
    /// when that ends.
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
            .ok_or_else(|| Error::invalid_argument(format!("{} is no shape for data", ShapeText(ty, dims))))?;
        if data.len() != needed {
            return Err(Error::invalid_argument(format!(
                "host data of {} bytes was given for {}, which takes {needed} bytes",
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
        // SAFETY: data and dims fit each other, and the caller answers for how long the data lives.
        unsafe {
            self.api().call(&mut args)?;
            let buffer = Buffer::from_raw(args.buffer, device.clone(), ty, dims)?;
            let done = Event::from_raw(&self.inner.plugin, args.done_with_host_buffer)
                .map(|event| event.keeping(&self.inner))
                .ok_or_else(|| no_event("PJRT_Client_BufferFromHostBuffer"))?;
            Ok((buffer, done))
        }
    }

    pub(crate) fn check_device(&self, device: &Device) -> Result<()> {
        if !Arc::ptr_eq(&self.inner, device.client()) {
            if device.client().is_broken() {
                return Err(Error::failed_precondition(format!(
                    "{device} belongs to an earlier client, in which an execution on several devices failed inside the \
                     plugin; use the devices of this one"
                )));
            }
            return Err(Error::invalid_argument(format!("{device} belongs to another client")));
        }
        if !device.is_addressable() {
            return Err(Error::invalid_argument(format!(
                "{device} belongs to process {}, and this is process {}",
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

impl ClientInner {
    fn describe(&mut self) -> Result<()> {
        let plugin = self.plugin.clone();
        let api = plugin.api();
        let client = self.raw;
        // SAFETY: the client is live, and so is what it hands out.
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
            let mut all = ClientDevices { client, ..Default::default() };
            api.call(&mut all)?;
            for &device in slice(all.devices, all.num_devices) {
                self.devices.push(DeviceInfo::read(api, device, local.contains(&device))?);
            }
        }
        self.ids = self.devices.iter().map(DeviceInfo::id).collect();
        self.by_id = self.ids.iter().copied().zip(0..).collect();
        self.by_raw = self.devices.iter().map(|device| device.raw).zip(0..).collect();
        let kinds = self.devices.iter().map(DeviceInfo::kind);
        self.topology_plugin_id = cache_entry::topology_plugin_id(&self.plugin, &self.platform_name, kinds);
        self.is_cpu = self.platform_name.eq_ignore_ascii_case("cpu");
        self.gate = LaunchLimiter::new(self.devices.len());
        Ok(())
    }

    /// Place of a device in `devices`.
    pub(crate) fn index_of(&self, raw: *mut RawDevice) -> Result<usize> {
        self.by_raw
            .get(&raw)
            .copied()
            .ok_or_else(|| Error::new(Code::Internal, "the plugin named a device that it did not list"))
    }

    /// Number for a launch on several devices.
    ///
    /// The CPU plugin matches the participants of a collective by this number, the device ids and the collective's
    /// channel, in one table for the whole process. Two clients that run at the same time under the same number meet
    /// in each other's collectives: wrong results or a crash. Other platforms compare the number between processes,
    /// which only those could agree on.
    #[inline]
    pub(crate) fn launch_id(&self) -> i32 {
        static NEXT: AtomicI32 = AtomicI32::new(1);
        if !self.is_cpu {
            return 0;
        }
        (NEXT.fetch_add(1, Ordering::Relaxed) & i32::MAX).max(1)
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    /// Refuses launches on several devices once one has failed in a plugin that would hang in the next.
    #[inline]
    pub(crate) fn check_not_broken(&self) -> Result<()> {
        if self.is_broken() {
            return Err(Error::failed_precondition(
                "an earlier execution on several devices failed inside the plugin, which would hang in the next one; \
                 make a new Client",
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
                // SAFETY: buffers and executables hold the client, so none is left.
                let _ = unsafe { self.0.api().call(&mut args) };
            }
        }
        self.gate.clear();
        if self.is_broken() {
            return; // its threads wait for each other for ever, and so would this one
        }
        let owned = Owned(self.plugin.clone(), self.raw);
        if event::in_callback() {
            // On a thread of the plugin, destroying would wait for this very thread.
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
