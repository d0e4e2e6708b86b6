//! The floating point dtype of functions that are called without one.

use std::panic::Location;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::dtype::DType;
use crate::source;

static X64: AtomicBool = AtomicBool::new(false);

/// Sets whether the default has 64 bits.
pub(crate) fn set_x64(on: bool) {
    X64.store(on, Relaxed);
}

/// Returns `true` if the default has 64 bits.
pub(crate) fn is_x64() -> bool {
    X64.load(Relaxed)
}

/// The dtype of a function that a program calls without one. Calls by shardax's own functions and layers get float32,
/// because these state the dtype of their results.
#[track_caller]
pub(crate) fn float() -> DType {
    if is_x64() && !source::is_own(Location::caller()) { DType::F64 } else { DType::F32 }
}

/// The dtype of indices that the host counts with `usize`.
pub(crate) fn index() -> DType {
    if is_x64() { DType::I64 } else { DType::I32 }
}

/// The dtype of a plain number. It adopts the dtype of other operands, so it may be wide anywhere.
pub(crate) fn of_number(narrow: DType) -> DType {
    match narrow {
        DType::F32 if is_x64() => DType::F64,
        DType::Complex64 if is_x64() => DType::Complex128,
        other => other,
    }
}
