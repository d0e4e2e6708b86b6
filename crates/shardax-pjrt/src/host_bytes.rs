//! Host memory that a plugin can use in place.

/// Host data that buffers can share, see [`crate::Client::buffer_from_host_shared`].
pub trait HostBytes: Send + Sync {
    /// The data. Every call must return the same slice.
    fn bytes(&self) -> &[u8];
}
