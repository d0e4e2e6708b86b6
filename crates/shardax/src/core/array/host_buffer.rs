//! Host memory that an array can use without a copy.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use shardax_pjrt::HostBytes;

use super::host::check_bytes;
use super::{Array, transfer};
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::error::{AtCaller, Result};
use crate::sharding::Device;
use crate::sharding::device::uncommitted_device;

/// The alignment that XLA's CPU backend requires to use host memory in place.
const ALIGNMENT: usize = 64;

/// Bytes read or computed on the host. [`Array::from_host_buffer`] makes them an array without a copy if the device can
/// use host memory.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::array::HostBuffer;
/// let mut buffer = HostBuffer::zeroed(8);
/// buffer[4..].copy_from_slice(&7u32.to_ne_bytes());
/// let x = Array::from_host_buffer(buffer.into(), DType::U32, &[2], None)?;
/// assert_eq!(x.to_vec::<u32>()?, [0, 7]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Debug)]
pub struct HostBuffer {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl HostBuffer {
    /// Creates a buffer of `len` zero bytes.
    pub fn zeroed(len: usize) -> Self {
        let memory = vec![0; len + ALIGNMENT];
        let start = memory.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        HostBuffer { memory, start, len }
    }
}

impl Deref for HostBuffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len]
    }
}

impl DerefMut for HostBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

impl HostBytes for HostBuffer {
    fn bytes(&self) -> &[u8] {
        self
    }
}

impl Array {
    /// Creates an array of `shape` from these bytes, row-major, in the machine's byte order. It is committed to a
    /// device, or uncommitted on the default device. Several devices can share one buffer.
    ///
    /// # Errors
    /// Returns an error if the length does not match the shape and the dtype, and for booleans other than 0 and 1.
    #[track_caller]
    pub fn from_host_buffer(
        buffer: Arc<HostBuffer>,
        dtype: DType,
        shape: &[usize],
        device: Option<&Device>,
    ) -> Result<Array> {
        let aval = Aval::new(dtype, shape);
        check_bytes(&buffer, &aval)
            .and_then(|()| {
                let destination = device.map_or_else(uncommitted_device, |device| Ok(device.clone()))?;
                transfer::array_of_shared(buffer, aval, destination, device.is_some())
            })
            .at_caller()
    }
}
