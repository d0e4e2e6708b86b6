//! Topologies: descriptions of devices to compile for, attached or not.

mod target;

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

pub use target::{GpuSpec, GpuTopology, TpuTopology};

use crate::api::{slice, text};
use crate::cache_entry;
use crate::device::Description;
use crate::error::{Error, Result};
use crate::named_value::{self, Value};
use crate::plugin::Plugin;
use crate::raw::*;

/// A description of devices that need not be attached, for [`Topology::compile`]. Cloning increments a reference count.
#[derive(Clone)]
pub struct Topology(Arc<Inner>);

struct Inner {
    plugin: Plugin,
    raw: *mut RawTopology,
    name: String,
    platform_name: String,
    platform_version: String,
    attributes: Vec<(String, Value)>,
    devices: Vec<Description>,
}

// SAFETY: a topology is immutable and may be used from any thread.
unsafe impl Send for Inner {}
unsafe impl Sync for Inner {}

impl Topology {
    /// Makes a topology by the name and options that the plugin defines.
    ///
    /// libtpu accepts names such as `v5e:2x4`, with the options `wrap` and `chips_per_host_bounds` (three `Value::Ints`
    /// each) and `num_slices` (`Value::Int`). The CUDA plugin accepts any name, with `target_config` (a
    /// `GpuTargetConfigProto` as text) and `topology` (`"1x2x8"`: slices, hosts per slice, devices per host). See
    /// [`TpuTopology`](crate::TpuTopology) and [`GpuTopology`](crate::GpuTopology).
    ///
    /// # Errors
    /// Returns an error if the plugin cannot compile for devices that are not attached, or does not know the name or an
    /// option; or the sizes would end the process.
    pub fn new(plugin: &Plugin, name: &str, options: &[(&str, Value)]) -> Result<Topology> {
        let context = |error: Error| error.during(format_args!("cannot create the topology {name:?}"));
        target::check(name, options).map_err(context)?;
        let raw_options = named_value::to_raw(options);
        let mut args = TopologyCreate {
            name: name.as_ptr().cast(),
            name_size: name.len(),
            create_options: raw_options.as_ptr(),
            num_options: raw_options.len(),
            ..Default::default()
        };
        // SAFETY: the name, the options and what they point to outlive the call.
        unsafe { plugin.api().call(&mut args) }.map_err(context)?;
        if args.topology.is_null() {
            return Err(context(Error::new(crate::Code::Internal, "the plugin returned no topology")));
        }
        // From here on, dropping `inner` cleans up.
        let mut inner = Inner {
            plugin: plugin.clone(),
            raw: args.topology,
            name: name.to_owned(),
            platform_name: String::new(),
            platform_version: String::new(),
            attributes: Vec::new(),
            devices: Vec::new(),
        };
        inner.describe().map_err(context)?;
        if inner.devices.is_empty() {
            return Err(context(Error::invalid_argument("it has no devices")));
        }
        Ok(Topology(Arc::new(inner)))
    }

    /// The plugin of this topology.
    pub fn plugin(&self) -> &Plugin {
        &self.0.plugin
    }

    /// The name that was passed to [`Topology::new`].
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// `cuda`, `tpu`, …
    pub fn platform_name(&self) -> &str {
        &self.0.platform_name
    }

    /// The version that the platform reports.
    pub fn platform_version(&self) -> &str {
        &self.0.platform_version
    }

    /// Other properties that the plugin reports, such as which dimensions of a torus wrap around.
    pub fn attributes(&self) -> &[(String, Value)] {
        &self.0.attributes
    }

    /// The number of devices.
    pub fn num_devices(&self) -> usize {
        self.0.devices.len()
    }

    /// The devices, in the plugin's order, which is not the order of their ids.
    pub fn devices(&self) -> Vec<TopologyDevice> {
        (0..self.0.devices.len()).map(|index| TopologyDevice { topology: self.clone(), index: index as u32 }).collect()
    }

    /// The identity that is stored in compiled programs and checked when they are loaded.
    pub(crate) fn plugin_id(&self) -> String {
        cache_entry::topology_plugin_id(
            &self.0.plugin,
            &self.0.platform_name,
            self.0.devices.iter().map(|d| d.kind.as_str()),
        )
    }

    pub(crate) fn raw(&self) -> *mut RawTopology {
        self.0.raw
    }
}

impl Inner {
    fn describe(&mut self) -> Result<()> {
        let (api, topology) = (self.plugin.api(), self.raw);
        // SAFETY: the topology is live and owns everything that these calls return.
        unsafe {
            let mut name = TopologyPlatformName { topology, ..Default::default() };
            api.call(&mut name)?;
            self.platform_name = text(name.text, name.text_size).to_lowercase();
            let mut version = TopologyPlatformVersion { topology, ..Default::default() };
            if api.call(&mut version).is_ok() {
                self.platform_version = text(version.text, version.text_size).into_owned();
            }
            let mut attributes = TopologyAttributes { topology, ..Default::default() };
            if api.call(&mut attributes).is_ok() {
                self.attributes =
                    named_value::from_raw(attributes.attributes, attributes.num_attributes).unwrap_or_default();
            }
            let mut list = TopologyDescriptions { topology, ..Default::default() };
            api.call(&mut list)?;
            let descriptions = slice(list.descriptions, list.num_descriptions);
            self.devices = descriptions.iter().map(|&raw| Description::read(api, raw)).collect::<Result<_>>()?;
        }
        Ok(())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let mut args = TopologyDestroy { topology: self.raw, ..Default::default() };
        // SAFETY: this crate owns it; devices and programs that need it keep it alive.
        let _ = unsafe { self.plugin.api().call(&mut args) };
    }
}

impl PartialEq for Topology {
    fn eq(&self, other: &Topology) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Topology {}

/// Formatted as `v5e:2x4, 8 × TPU v5 lite`.
impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.0.devices.first().map_or("", |device| device.kind.as_str());
        write!(f, "{}, {} × {kind}", self.0.name, self.0.devices.len())
    }
}

impl fmt::Debug for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Topology({self})")
    }
}

/// A device of a topology. Devices are equal if topology and id are.
#[derive(Clone)]
pub struct TopologyDevice {
    topology: Topology,
    index: u32,
}

impl TopologyDevice {
    fn description(&self) -> &Description {
        &self.topology.0.devices[self.index as usize]
    }

    /// The topology of the device.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Id that is unique in the topology, neither dense nor in the order of the list.
    pub fn id(&self) -> usize {
        self.description().id
    }

    /// The vendor's name of the device, e.g. `TPU v5 lite`, `NVIDIA H100 80GB HBM3`.
    pub fn kind(&self) -> &str {
        &self.description().kind
    }

    /// The process that would own the device.
    pub fn process_index(&self) -> usize {
        self.description().process_index
    }

    /// The plugin's description.
    pub fn text(&self) -> &str {
        &self.description().text
    }

    /// Other properties that the plugin reports.
    pub fn attributes(&self) -> &[(String, Value)] {
        &self.description().attributes
    }
}

impl PartialEq for TopologyDevice {
    fn eq(&self, other: &TopologyDevice) -> bool {
        self.index == other.index && self.topology == other.topology
    }
}

impl Eq for TopologyDevice {}

impl Hash for TopologyDevice {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (Arc::as_ptr(&self.topology.0) as usize).hash(state);
        self.index.hash(state);
    }
}

impl fmt::Debug for TopologyDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TopologyDevice").field("id", &self.id()).field("kind", &self.kind()).finish_non_exhaustive()
    }
}
