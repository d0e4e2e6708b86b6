//! Copies to the host that run in the background.

use crate::error::Result;
use crate::event::Event;

/// A copy to the host that the plugin has begun, in row-major order.
pub(crate) struct HostCopy {
    bytes: Vec<u8>,
    done: Option<Event>,
}

impl HostCopy {
    /// Allocates memory and begins to copy to it.
    ///
    /// # Safety
    /// `begin` writes to the slice only until its event completes.
    pub(crate) unsafe fn begin(len: usize, begin: impl FnOnce(&mut [u8]) -> Result<Event>) -> Result<HostCopy> {
        let mut bytes = vec![0; len];
        let done = Some(begin(&mut bytes)?);
        Ok(HostCopy { bytes, done })
    }

    /// Waits for the bytes.
    pub(crate) fn wait(mut self) -> Result<Vec<u8>> {
        // Taken after the wait: until then, dropping the copy must keep the memory.
        self.done.as_ref().map_or(Ok(()), Event::wait_ref)?;
        self.done = None;
        Ok(std::mem::take(&mut self.bytes))
    }
}

impl Drop for HostCopy {
    fn drop(&mut self) {
        if let Some(done) = self.done.take() {
            // The plugin may still write to the memory.
            let bytes = std::mem::take(&mut self.bytes);
            done.on_ready(move |_| drop(bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Client, ElementType, Plugin};

    /// Uses a type narrower than a byte, because the CPU plugin packs it and therefore copies it as well.
    #[test]
    fn a_read_takes_over_the_copy_that_has_begun() {
        let client = Client::new(&Plugin::cpu().unwrap(), &[]).unwrap();
        let data: Vec<u8> = (0..1 << 16).map(|i| (i % 16) as u8).collect();
        let device = &client.devices()[0];
        let x = client.buffer_from_host(&data, ElementType::U4, &[256, 256], device).unwrap();
        for _ in 0..3 {
            x.copy_to_host_async().unwrap();
            x.copy_to_host_async().unwrap();
            assert!(x.begun_copy().is_some());
            assert_eq!(x.with_bytes(<[u8]>::to_vec).unwrap(), data);
            assert!(x.begun_copy().is_none());
            x.copy_to_host_async().unwrap();
            let mut out = vec![0; data.len()];
            x.to_host(&mut out).unwrap();
            assert!(out == data && x.begun_copy().is_none());
            // Without one that has begun.
            assert_eq!(x.with_bytes(<[u8]>::to_vec).unwrap(), data);
        }
        x.copy_to_host_async().unwrap();
        x.delete().unwrap();
        assert!(x.with_bytes(<[u8]>::to_vec).is_err() && x.copy_to_host_async().is_err());
        // Read in place.
        let x = client.buffer_from_host(&data, ElementType::U8, &[256, 256], device).unwrap();
        x.copy_to_host_async().unwrap();
        assert!(x.begun_copy().is_none());
        // The memory of copies that nobody reads lives until the plugin has written it.
        for _ in 0..200 {
            let dropped = client.buffer_from_host(&data, ElementType::U4, &[1 << 16], device).unwrap();
            dropped.copy_to_host_async().unwrap();
        }
    }
}
