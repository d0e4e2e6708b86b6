//! Memories of devices, and the memory kinds of shardings.

use std::fmt;

use shardax_pjrt as pjrt;
pub use shardax_pjrt::MemoryStats;

use super::device::Device;
use crate::error::{AtCaller, Result, err};
use crate::shape::interned;

/// The name of a kind of memory: `device`, `pinned_host`, `unpinned_host`, or another kind of the platform.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemoryKind(&'static str);

impl MemoryKind {
    /// The device's own memory.
    pub const DEVICE: MemoryKind = MemoryKind("device");
    /// Page-locked host memory, which a device can read and write.
    pub const PINNED_HOST: MemoryKind = MemoryKind("pinned_host");

    pub fn new(name: &str) -> MemoryKind {
        MemoryKind(interned(name))
    }

    pub fn as_str(self) -> &'static str {
        self.0
    }

    /// Returns `true` if a value of this kind is in the default memory.
    pub fn is_default(kind: Option<MemoryKind>) -> bool {
        kind.is_none_or(|kind| kind == MemoryKind::DEVICE)
    }
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl fmt::Debug for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A memory space of a value, whatever its sharding. You can pass it to [`device_put`](crate::device_put) instead of a
/// sharding (JAX's `jax.memory.Space`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Space {
    /// The device's memory.
    Device,
    /// Host memory that the device can read and write: `pinned_host`.
    Host,
}

impl Space {
    pub(crate) fn kind(self) -> MemoryKind {
        match self {
            Space::Device => MemoryKind::DEVICE,
            Space::Host => MemoryKind::PINNED_HOST,
        }
    }
}

/// A memory that a device can address: the device's own memory, or a part of the host's.
#[derive(Clone, PartialEq, Eq)]
pub struct Memory {
    device: Device,
    kind: MemoryKind,
}

impl Memory {
    /// Returns the kind, as in [`NamedSharding::with_memory_kind`](crate::NamedSharding): `device`, `pinned_host`,
    /// `unpinned_host`, …
    pub fn kind(&self) -> &'static str {
        self.kind.0
    }

    /// Returns the device whose memory was requested. Others can address it too.
    pub fn device(&self) -> &Device {
        &self.device
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.kind, self.device)
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({self})")
    }
}

impl Device {
    fn memory_of_kind(&self, kind: MemoryKind) -> Memory {
        Memory { device: self.clone(), kind }
    }

    /// Returns the memories that the device can address. A described device has the usual memories of its platform.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let device = &local_devices()?[0];
    /// let kinds: Vec<&str> = device.addressable_memories()?.iter().map(|memory| memory.kind()).collect();
    /// assert!(kinds.contains(&device.default_memory()?.kind()));
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error for a device of another process, and if the plugin does not report them.
    #[track_caller]
    pub fn addressable_memories(&self) -> Result<Vec<Memory>> {
        let kinds: Vec<MemoryKind> = match (self.topology(), self.platform()) {
            (None, _) => {
                self.pjrt_memories().at_caller()?.iter().map(|memory| MemoryKind::new(memory.kind())).collect()
            }
            (Some(_), "tpu") => ["device", "pinned_host", "unpinned_host"].map(MemoryKind::new).to_vec(),
            (Some(_), _) => ["device", "pinned_host"].map(MemoryKind::new).to_vec(),
        };
        Ok(kinds.into_iter().map(|kind| self.memory_of_kind(kind)).collect())
    }

    /// Returns the default memory of arrays.
    ///
    /// # Errors
    /// Returns an error for a device of another process, and if the plugin does not report it.
    #[track_caller]
    pub fn default_memory(&self) -> Result<Memory> {
        let kind = match self.topology() {
            Some(_) => MemoryKind::DEVICE,
            None => {
                let memory = self.attached().and_then(|device| Ok(device.default_memory()?)).at_caller()?;
                MemoryKind::new(memory.kind())
            }
        };
        Ok(self.memory_of_kind(kind))
    }

    /// Returns the memory of this kind.
    ///
    /// # Errors
    /// Returns an error if the device has no memory of this kind. The error lists its memories.
    #[track_caller]
    pub fn memory(&self, kind: &str) -> Result<Memory> {
        let memories = self.addressable_memories()?;
        match memories.iter().find(|memory| memory.kind() == kind) {
            Some(memory) => Ok(memory.clone()),
            None => {
                let kinds: Vec<&str> = memories.iter().map(Memory::kind).collect();
                Err(no_such_memory(self, &kinds, kind)).at_caller()
            }
        }
    }

    /// Returns memory statistics in bytes, with JAX's names. Statistics that a platform does not report are `None`.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let error = local_devices()?[0].memory_stats().unwrap_err();
    /// assert_eq!(error.kind(), shardax::ErrorKind::NotImplemented);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if there are no statistics, as on the CPU and for a described device.
    #[track_caller]
    pub fn memory_stats(&self) -> Result<MemoryStats> {
        let stats = self.attached().and_then(|device| match device.memory_stats() {
            Ok(stats) => Ok(stats),
            Err(error) if error.code == pjrt::Code::Unimplemented => {
                Err(err!(NotImplemented, "memory_stats is not implemented on {}", self.platform().to_uppercase())
                    .help("`compiled.memory_analysis()` reports a program's memory, on every platform"))
            }
            Err(error) => Err(error.into()),
        });
        stats.at_caller()
    }

    fn pjrt_memories(&self) -> Result<Vec<pjrt::Memory>> {
        Ok(self.attached()?.addressable_memories()?)
    }

    /// The memory of this kind, or the default memory.
    pub(crate) fn pjrt_memory(&self, kind: Option<MemoryKind>) -> Result<pjrt::Memory> {
        let Some(kind) = kind else { return Ok(self.attached()?.default_memory()?) };
        let memories = self.pjrt_memories()?;
        let kinds: Vec<&str> = memories.iter().map(pjrt::Memory::kind).collect();
        match kinds.iter().position(|name| *name == kind.0) {
            Some(index) => Ok(memories[index].clone()),
            None => Err(no_such_memory(self, &kinds, kind.0)),
        }
    }

    /// Returns `true` if values of these kinds are in the same memory of the device.
    pub(crate) fn is_same_memory(&self, a: Option<MemoryKind>, b: Option<MemoryKind>) -> bool {
        a == b || self.kind_or_default(a) == self.kind_or_default(b)
    }

    fn kind_or_default(&self, kind: Option<MemoryKind>) -> Option<&'static str> {
        kind.map(MemoryKind::as_str).or_else(|| self.default_memory().ok().map(|memory| memory.kind()))
    }
}

fn no_such_memory(device: &Device, kinds: &[&str], kind: &str) -> crate::error::Error {
    err!(
        Value,
        "Could not find memory addressable by device {}. Device {} can address the following memory kinds: {}. Got memory kind: {kind}",
        device.kind(),
        device.kind(),
        kinds.join(", ")
    )
    .help(match kinds.first() {
        Some(first) => format!("name one of them, such as {first:?}, or none"),
        None => "leave the memory kind out".to_owned(),
    })
}
