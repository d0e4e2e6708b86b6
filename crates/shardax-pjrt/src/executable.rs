//! Executables: a compiled program on devices that run it, and one without.

mod compile;
mod cross_compiled;
mod program;

use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::AtomicBool;

pub use cross_compiled::CrossCompiledExecutable;
pub use program::{CompiledProgram, MemoryAnalysis};

use crate::api::{Api, slice};
use crate::client::Client;
use crate::device::Device;
use crate::error::Result;
use crate::raw::*;

/// A compiled program, loaded on its devices. What can be asked of any [`CompiledProgram`] can be asked of it.
pub struct Executable {
    /// Goes before the client does.
    program: CompiledProgram,
    pub(crate) loaded: NonNull<RawLoaded>,
    /// For each parameter whether it is donated; empty when none is.
    pub(crate) donated: Vec<bool>,
    /// In the order in which arguments are passed; empty for a portable executable.
    pub(crate) devices: Vec<Device>,
    device_ids: Vec<usize>,
    /// Whether it has been launched before.
    pub(crate) launched: AtomicBool,
    /// What it was loaded from: of a program that it has loaded, the CPU plugin writes bytes without the machine code.
    bytes: Option<Box<[u8]>>,
    pub(crate) client: Client,
}

// SAFETY: PJRT executables may be used from any thread; the rest is immutable.
unsafe impl Send for Executable {}
unsafe impl Sync for Executable {}

impl Deref for Executable {
    type Target = CompiledProgram;

    fn deref(&self) -> &CompiledProgram {
        &self.program
    }
}

impl Executable {
    pub(crate) fn api(&self) -> &Api {
        self.client.api()
    }

    /// The client that it runs on.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// This process's devices, in the order in which arguments are passed; empty for a portable executable.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// Ids of [`Executable::devices`].
    pub fn device_ids(&self) -> &[usize] {
        &self.device_ids
    }

    /// The compiled program as bytes, for [`Client::deserialize`] by the same plugin version on a like processor.
    ///
    /// # Errors
    /// The platform cannot, or does not say what its processor is.
    pub fn serialize(&self) -> Result<Vec<u8>> {
        match &self.bytes {
            Some(bytes) => Ok(bytes.to_vec()),
            None => self.program.cache_entry(self.client.plugin_id()?),
        }
    }

    fn read_devices(&mut self) -> Result<()> {
        let mut args = LoadedAddressableDevices { executable: self.loaded.as_ptr(), ..Default::default() };
        // SAFETY: the executable is live, and so is the list.
        let raw = unsafe {
            self.api().call(&mut args)?;
            slice(args.devices, args.num_devices)
        };
        for &device in raw {
            let index = self.client.inner.index_of(device)?;
            self.devices.push(Device::new(self.client.inner.clone(), index));
        }
        self.device_ids = self.devices.iter().map(Device::id).collect();
        Ok(())
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        let mut args = LoadedDestroy { executable: self.loaded.as_ptr(), ..Default::default() };
        // SAFETY: it is ours; runs under way keep what they need.
        let _ = unsafe { self.api().call(&mut args) };
    }
}

impl fmt::Debug for Executable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Executable")
            .field("parameters", &self.parameters.len())
            .field("outputs", &self.outputs.len())
            .field("device_ids", &self.device_ids)
            .finish_non_exhaustive()
    }
}
