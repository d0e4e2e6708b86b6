//! The user's source line of an operation, even if the library requested the operation.
//!
//! `#[track_caller]` carries a line through functions, but not into closures. Therefore the innermost line outside of
//! the library is recorded here, and replaces every location inside the library.

use std::cell::Cell;
use std::panic::Location;

use crate::local::{CellKey, Restore};

/// A line of source code.
pub(crate) type Line = &'static Location<'static>;

// The user's innermost line. Calls inside the library do not change it, so that errors show the user's code.
thread_local! {
    static LINE: Cell<Option<Line>> = const { Cell::new(None) };
}

/// The path of this crate, which is a prefix of its siblings' paths: `crates/shardax` in
/// `crates/shardax/src/base/source.rs`.
fn stem() -> &'static str {
    let end = file!().len() - "/src/base/source.rs".len();
    let root = &file!()[..end];
    // A registry's folder ends in the version.
    root.strip_suffix(concat!("-", env!("CARGO_PKG_VERSION"))).unwrap_or(root)
}

/// Returns `true` if a location is in the sources of shardax, shardax-nn or shardax-train, or of the standard library,
/// which calls user functions.
fn is_own(location: Line) -> bool {
    if location.file().starts_with("/rustc/") || location.file().contains("/rustlib/src/rust/library/") {
        return true;
    }
    let Some(rest) = location.file().strip_prefix(stem()) else { return false };
    rest.split_once(['/', '\\']).is_some_and(|(_, inner)| inner.starts_with("src"))
}

/// The location, if it is in user code. If it is inside the library, the user's innermost line; `None` if that is
/// unknown.
pub(crate) fn user_line(location: Line) -> Option<Line> {
    if is_own(location) { LINE.get() } else { Some(location) }
}

/// The user's innermost recorded line.
pub(crate) fn line() -> Option<Line> {
    LINE.get()
}

/// Records `location` as the user's innermost line until the guard is dropped, if it is in user code.
pub(crate) fn enter_at(location: Line) -> Restore<Option<Line>> {
    LINE.guard(user_line(location))
}

/// Records the caller's line. It is the first step of a function that passes closures on.
#[track_caller]
pub(crate) fn enter() -> Restore<Option<Line>> {
    enter_at(Location::caller())
}

/// Runs `f` with the library's operations attributed to `location`.
pub(crate) fn with_source<R>(location: Line, f: impl FnOnce() -> R) -> R {
    let _line = enter_at(location);
    f()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_shardax_are_distinguished_from_the_users() {
        assert!(is_own(Location::caller()), "{}", stem());
        assert!(stem().ends_with("shardax"), "{}", stem());
    }
}
