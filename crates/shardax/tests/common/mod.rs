//! Helpers of the integration tests.
#![allow(dead_code)]

pub mod child;
pub mod quick;
pub mod snapshot;
pub mod values;

/// Simulates eight CPU devices, for programs that are compiled as users compile them; a test calls this or
/// [`quick::setup`] first.
pub fn setup() {
    quick::eight_devices();
}

/// Resident memory in MiB, without what the allocator has ready for the next call: glibc keeps what a thread gave back in
/// that thread's arena, in amounts that depend on how the threads met.
pub fn resident_mib() -> usize {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it takes a number, and may be called at any time from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) / 256
}
