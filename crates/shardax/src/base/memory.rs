//! Memory of the host.

use std::{fs, io};

/// The size from which the machine's memory is compared: reading it takes as long as filling a few MiB.
const LARGE: usize = 64 << 20;

/// Reserves room for `more` bytes.
///
/// # Errors
/// Returns an error for more bytes than the allocator has, or than the machine has: an allocator that does not reserve the memory
/// that it maps, such as that of `shardax-alloc`, has room for any size, and the system would end the program that fills it.
pub fn reserve_bytes(bytes: &mut Vec<u8>, more: usize) -> io::Result<()> {
    bytes.try_reserve_exact(more)?;
    let total = if more < LARGE { None } else { total_memory() };
    match total {
        Some(total) if more as u64 > total => {
            let message = format!("the machine has only {total} bytes of memory");
            Err(io::Error::new(io::ErrorKind::OutOfMemory, message))
        }
        _ => Ok(()),
    }
}

/// The memory and swap of the machine in bytes; `None` if the system does not report them.
fn total_memory() -> Option<u64> {
    let about = fs::read_to_string("/proc/meminfo").ok()?;
    let kib = |name: &str| -> Option<u64> {
        about.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
    };
    Some(kib("MemTotal:")?.saturating_add(kib("SwapTotal:").unwrap_or(0)).saturating_mul(1024))
}
