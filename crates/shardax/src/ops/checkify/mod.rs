//! Checks that programs carry: `check!`, and what [`checkify`](crate::checkify()) makes of them.
//!
//! A check is an equation with an effect. Discharging a program's checks threads the first error of each kind through it:
//! whether it happened, the number of its message, and the values that the message tells.

mod automatic;
mod check;
mod discharge;
mod error;

pub use check::{check, check_error};
pub(crate) use discharge::{Errors, counting, discharge};
pub use error::CheckError;

/// Which mistakes [`checkify`](crate::checkify()) looks for. Sets are joined with `|`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Checks(u8);

impl Checks {
    /// What [`check!`](crate::check!) says (JAX's `user_checks`).
    pub const USER: Checks = Checks(1);
    /// An operation whose result holds a NaN (`nan_checks`).
    pub const NAN: Checks = Checks(2);
    /// A division by zero (`div_checks`).
    pub const DIV: Checks = Checks(4);
    /// An index out of bounds (`index_checks`).
    pub const INDEX: Checks = Checks(8);
    /// NaN and divisions by zero (`float_checks`).
    pub const FLOAT: Checks = Checks(2 | 4);
    /// All that are made without being asked for (`automatic_checks`).
    pub const AUTOMATIC: Checks = Checks(2 | 4 | 8);
    /// All (`all_checks`).
    pub const ALL: Checks = Checks(1 | 2 | 4 | 8);
    /// NaN in the result of any operation, also of one that hands on what it is given.
    pub(crate) const DEBUG_NANS: Checks = Checks(16);
    /// The same of infinities.
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
