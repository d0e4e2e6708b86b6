//! Executables: compiled programs, loaded on devices or cross-compiled.

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

/// A compiled program, loaded on its devices. It dereferences to [`CompiledProgram`], which has its properties.
pub struct Executable {
    /// Declared before `client`, because it must be dropped first.
    program: CompiledProgram,
    pub(crate) loaded: NonNull<RawLoaded>,
    /// A flag for each parameter that is true if it is donated. Empty if no parameter is donated.
    pub(crate) donated: Vec<bool>,
    /// In the order in which arguments are passed; empty for a portable executable.
    pub(crate) devices: Vec<Device>,
    device_ids: Vec<usize>,
    /// Set by the first launch.
    pub(crate) launched: AtomicBool,
    /// The bytes that it was loaded from. They are kept because the CPU plugin (xla-cpu-pjrt 0.0.1) serializes a loaded
    /// program without its machine code, which then fails when it runs ("Function … not found"). Test:
    /// `transfer::serialized_programs_run_again`.
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

    /// The client of its devices.
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

    /// Serializes the program, for [`Client::deserialize`] with the same plugin version on an equal processor.
    ///
    /// # Errors
    /// Returns an error if the platform cannot serialize programs, or does not report its processor.
    pub fn serialize(&self) -> Result<Vec<u8>> {
        match &self.bytes {
            Some(bytes) => Ok(bytes.to_vec()),
            None => self.program.cache_entry(self.client.plugin_id()?),
        }
    }

    fn read_devices(&mut self) -> Result<()> {
        let mut args = LoadedAddressableDevices { executable: self.loaded.as_ptr(), ..Default::default() };
        // SAFETY: the executable is live and owns the list.
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
        // SAFETY: this crate owns it; running executions keep what they need.
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
