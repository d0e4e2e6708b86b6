//! Host memory that a plugin may use in place.

/// Host data that buffers may share, see [`crate::Client::buffer_from_host_shared`].
pub trait HostBytes: Send + Sync {
    /// The data; the same slice each time.
    fn bytes(&self) -> &[u8];
}
