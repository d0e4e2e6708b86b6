//! Host memory that a plugin may use in place.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ptr::NonNull;

/// Host data that buffers may share, see [`crate::Client::buffer_from_host_shared`].
pub trait HostBytes: Send + Sync {
    /// The data; the same slice each time.
    fn bytes(&self) -> &[u8];
}

/// Bytes at an address that plugins can use in place.
pub struct AlignedBytes {
    data: NonNull<u8>,
    len: usize,
}

// SAFETY: it owns its memory as a Vec<u8> does.
unsafe impl Send for AlignedBytes {}
unsafe impl Sync for AlignedBytes {}

impl AlignedBytes {
    /// Alignment in bytes.
    pub const ALIGNMENT: usize = 64;

    /// `len` zero bytes.
    ///
    /// # Panics
    /// `len` exceeds `isize::MAX`. Aborts when memory is short, as `Vec` does.
    pub fn zeroed(len: usize) -> AlignedBytes {
        if len == 0 {
            // 64 is a non-null, aligned address, and nothing is ever read there.
            let data = NonNull::without_provenance(std::num::NonZero::new(Self::ALIGNMENT).expect("not zero"));
            return AlignedBytes { data, len };
        }
        let layout = Self::layout(len);
        // SAFETY: the size is not zero.
        let Some(data) = NonNull::new(unsafe { alloc_zeroed(layout) }) else { handle_alloc_error(layout) };
        AlignedBytes { data, len }
    }

    /// A copy of `bytes`.
    pub fn from_slice(bytes: &[u8]) -> AlignedBytes {
        let mut new = AlignedBytes::zeroed(bytes.len());
        new.as_mut_slice().copy_from_slice(bytes);
        new
    }

    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len, Self::ALIGNMENT).expect("no more than isize::MAX bytes")
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the memory is ours and initialized.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.len) }
    }

    /// The bytes, to be written.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), self.len) }
    }
}

impl Drop for AlignedBytes {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: allocated with this layout.
            unsafe { dealloc(self.data.as_ptr(), Self::layout(self.len)) };
        }
    }
}

impl fmt::Debug for AlignedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlignedBytes").field("len", &self.len).finish()
    }
}

impl HostBytes for AlignedBytes {
    fn bytes(&self) -> &[u8] {
        self.as_slice()
    }
}

macro_rules! plain {
    ($( $ty:ty )*) => { $(
        impl HostBytes for Vec<$ty> {
            fn bytes(&self) -> &[u8] {
                // SAFETY: every byte of a number is initialized.
                unsafe { std::slice::from_raw_parts(self.as_ptr().cast(), size_of_val(self.as_slice())) }
            }
        }
    )* };
}
plain!(u8 i8 u16 i16 u32 i32 u64 i64 f32 f64);
