//! Memories of devices.

use std::fmt;

use crate::api::{slice, text};
use crate::device::Device;
use crate::error::{Code, Error, Result};
use crate::raw::*;

/// A memory that a device can address: device memory, or host memory.
#[derive(Clone)]
pub struct Memory {
    device: Device,
    raw: *mut RawMemory,
    kind: String,
}

// SAFETY: memories are immutable, may be used from any thread, and live as long as the client, which the device owns.
unsafe impl Send for Memory {}
unsafe impl Sync for Memory {}

impl Memory {
    /// # Safety
    /// `raw` is null or a live memory of the device's client.
    unsafe fn read(device: &Device, raw: *mut RawMemory) -> Result<Memory> {
        if raw.is_null() {
            return Err(Error::new(Code::Internal, format!("{device} has a memory that the plugin does not return")));
        }
        let mut args = MemoryKind { memory: raw, ..Default::default() };
        // SAFETY: the memory is live and owns the text.
        let kind = unsafe {
            device.client().plugin.api().call(&mut args)?;
            text(args.text, args.text_size).into_owned()
        };
        Ok(Memory { device: device.clone(), raw, kind })
    }

    /// The kind: `device`, `pinned_host`, `unpinned_host`, …
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// The device that this handle was obtained from. Other devices can address the memory too.
    pub fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn raw(&self) -> *mut RawMemory {
        self.raw
    }
}

impl Device {
    /// The memories that the device can address.
    ///
    /// # Errors
    /// Returns an error if the plugin does not report memories, or the device belongs to another process.
    pub fn addressable_memories(&self) -> Result<Vec<Memory>> {
        self.check_addressable()?;
        let mut args = DeviceAddressableMemories { device: self.raw(), ..Default::default() };
        // SAFETY: the device is live and owns the memories.
        unsafe {
            self.client().plugin.api().call(&mut args)?;
            slice(args.memories, args.num_memories).iter().map(|&raw| Memory::read(self, raw)).collect()
        }
    }

    /// The memory that data is stored in by default.
    ///
    /// # Errors
    /// Returns an error if the plugin does not report memories, or the device belongs to another process.
    pub fn default_memory(&self) -> Result<Memory> {
        self.check_addressable()?;
        let mut args = DeviceDefaultMemory { device: self.raw(), ..Default::default() };
        // SAFETY: the device is live and owns the memory.
        unsafe {
            self.client().plugin.api().call(&mut args)?;
            Memory::read(self, args.memory)
        }
    }

    fn check_addressable(&self) -> Result<()> {
        if self.is_addressable() {
            Ok(())
        } else {
            Err(Error::invalid_argument(format!(
                "the memories of {self} are known only to its process, {}",
                self.process_index()
            )))
        }
    }
}

impl crate::Buffer {
    /// The memory that stores the buffer.
    ///
    /// # Errors
    /// Returns an error if the plugin does not report memories.
    pub fn memory(&self) -> Result<Memory> {
        let mut args = BufferMemory { buffer: self.raw(), ..Default::default() };
        // SAFETY: the buffer is live; its memory lives as long as the client.
        unsafe {
            self.device().client().plugin.api().call(&mut args)?;
            Memory::read(self.device(), args.memory)
        }
    }
}

impl PartialEq for Memory {
    fn eq(&self, other: &Memory) -> bool {
        self.raw == other.raw
    }
}

impl Eq for Memory {}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({} of {})", self.kind, self.device)
    }
}
