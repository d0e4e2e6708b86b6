//! Checks of a library before `dlopen`, which crashes the process if the file is truncated.

use std::io::Read;
use std::path::Path;

use crate::error::{Code, Error, Result};
use crate::permissions;

const MACHINE: Option<(u16, &str)> = if cfg!(target_arch = "x86_64") {
    Some((62, "x86-64"))
} else if cfg!(target_arch = "aarch64") {
    Some((183, "aarch64"))
} else {
    None
};

/// Checks that `path` is a complete 64-bit shared library for this machine, in a place that only trusted users can
/// write.
pub(crate) fn check(path: &Path) -> Result<()> {
    let mut file = permissions::open_trusted(path)?;
    let size = file.metadata().map_err(|e| Error::new(Code::Unknown, e.to_string()))?.len();
    // Other systems have other formats. There, only the loader checks the file.
    if !cfg!(target_os = "linux") {
        return Ok(());
    }
    let mut header = [0u8; 64];
    let is_elf = file.read_exact(&mut header).is_ok() && header[..4] == *b"\x7fELF";
    if !is_elf {
        return Err(Error::new(Code::DataLoss, "it is not a shared library (no ELF header)"));
    }
    let (class, order, kind, machine) = (header[4], header[5], u16_at(&header, 16), u16_at(&header, 18));
    if class != 2 || order != 1 || kind != 3 {
        return Err(Error::new(Code::DataLoss, "it is not a 64-bit little-endian shared library"));
    }
    if let Some((number, name)) = MACHINE
        && machine != number
    {
        return Err(Error::new(Code::DataLoss, format!("it is a library for another machine; this one is {name}")));
    }
    // The section table is written last, so a file that contains its end is complete. Without one, only the program
    // table can be checked.
    let program_table = table_end(u64_at(&header, 32), u16_at(&header, 54), u16_at(&header, 56));
    let section_table = table_end(u64_at(&header, 40), u16_at(&header, 58), u16_at(&header, 60));
    for end in [program_table, section_table] {
        if end.is_none_or(|end| end > size) {
            return Err(Error::new(Code::DataLoss, "the file is truncated"));
        }
    }
    Ok(())
}

fn u16_at(header: &[u8; 64], offset: usize) -> u16 {
    u16::from_le_bytes(std::array::from_fn(|i| header[offset + i]))
}

fn u64_at(header: &[u8; 64], offset: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| header[offset + i]))
}

/// The end of a table of `count` entries of `size` bytes; `None` if it overflows.
fn table_end(offset: u64, size: u16, count: u16) -> Option<u64> {
    offset.checked_add(u64::from(size) * u64::from(count))
}
