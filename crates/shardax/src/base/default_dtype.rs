//! The floating point dtype of functions that are called without one.
//!
//! The library's own functions and layers state the dtype of their results, so that a change of the default does not
//! change them. `clippy.toml` lists the functions that use the default, and Clippy rejects them in the sources of the
//! library.

use crate::dtype::DType;
use crate::flag::Flag;
use crate::settings;

static X64: Flag = Flag::new(&settings::ENABLE_X64);

/// Sets whether the default has 64 bits.
pub(crate) fn set_x64(on: bool) {
    X64.set(on);
}

/// Returns `true` if the default has 64 bits.
pub(crate) fn is_x64() -> bool {
    X64.get()
}

/// The dtype of a function that a program calls without one.
pub(crate) fn float() -> DType {
    if is_x64() { DType::F64 } else { DType::F32 }
}

/// The dtype of indices that the host counts with `usize`.
pub(crate) fn index() -> DType {
    if is_x64() { DType::I64 } else { DType::I32 }
}

/// The dtype of a plain number. It adopts the dtype of other operands, so it can be wide anywhere.
pub(crate) fn for_number(narrow: DType) -> DType {
    match narrow {
        DType::F32 if is_x64() => DType::F64,
        DType::Complex64 if is_x64() => DType::Complex128,
        other => other,
    }
}
