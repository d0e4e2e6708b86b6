//! Run-time checks in programs: `check!`, and the transformation behind [`checkify`](crate::checkify()).
//!
//! A check is an equation with an effect. Discharging a program's checks replaces them by a state that is threaded through
//! the program. For each kind of error, the state holds the first error: a failed flag, the number of its message, and the
//! values in the message.

mod automatic;
mod check;
mod discharge;
mod error;

pub use check::{check, check_error};
pub(crate) use discharge::{Errors, counting, discharge};
pub use error::CheckError;

/// The kinds of errors that [`checkify`](crate::checkify()) detects. You can combine them with `|`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Checks(u8);

impl Checks {
    /// Explicit [`check!`](crate::check!)s (JAX's `user_checks`).
    pub const USER: Checks = Checks(1);
    /// An operation whose result holds a NaN (`nan_checks`).
    pub const NAN: Checks = Checks(2);
    /// A division by zero (`div_checks`).
    pub const DIV: Checks = Checks(4);
    /// An index out of bounds (`index_checks`).
    pub const INDEX: Checks = Checks(8);
    /// NaN and divisions by zero (`float_checks`).
    pub const FLOAT: Checks = Checks(2 | 4);
    /// All automatic checks (`automatic_checks`).
    pub const AUTOMATIC: Checks = Checks(2 | 4 | 8);
    /// All checks (`all_checks`).
    pub const ALL: Checks = Checks(1 | 2 | 4 | 8);
    /// NaN in the result of any operation, including operations that only pass on a NaN of an operand.
    pub(crate) const DEBUG_NANS: Checks = Checks(16);
    /// Infinities in the result of any operation.
    pub(crate) const DEBUG_INFS: Checks = Checks(32);

    pub(crate) fn has(self, other: Checks) -> bool {
        self.0 & other.0 != 0
    }
}

impl std::ops::BitOr for Checks {
    type Output = Checks;
    fn bitor(self, other: Checks) -> Checks {
        Checks(self.0 | other.0)
    }
}
