//! Tile registers, on systems and processors without them: no value of a type exists.

use super::amx::Missing;

/// Registers that are prepared.
pub(super) type Configured = Missing;
