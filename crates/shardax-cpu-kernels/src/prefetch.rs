//! Requests for memory that a loop reads soon. The processor itself requests lines of the cache within a page only, and too late if the loop
//! computes much, so that a matrix from memory would take the time of reading plus the time of computing.
#![expect(unsafe_code, reason = "the instruction takes a pointer")]

/// The bytes between the line that a loop reads and the line that it should request: memory takes as long as the loop takes for them.
pub(crate) const AHEAD: usize = 8192;

/// Requests the line of the cache that contains this element. The element can be behind the end of the data.
#[inline(always)]
pub(crate) fn prefetch<T>(data: &[T], index: usize) {
    let line = data.as_ptr().wrapping_add(index);
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a request reads nothing, and addresses without memory are ignored.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}
