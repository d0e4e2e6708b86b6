//! Tile registers, on systems and processors without them: no value of a type exists.

use super::amx::Missing;

/// Registers that are prepared: a type with a value, because the compiler warns of code after a call that cannot return.
pub(super) type Configured = Option<Missing>;

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{Bf16Tiles, Int8Tiles, tile_registers};

/// The names that vectors of other systems use.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Missing;

    pub(in crate::low_precision) type Bf16Tiles = Missing;
    pub(in crate::low_precision) type Int8Tiles = Missing;

    /// Returns `None`.
    pub(in crate::low_precision) fn tile_registers() -> Option<Missing> {
        None
    }

    impl Missing {
        pub(in crate::low_precision) fn new(missing: Missing) -> Self {
            missing
        }
    }
}
