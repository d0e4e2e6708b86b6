//! Stack growth for recursion over functions and trees that users can nest to any depth.

/// The stack needed for one level: a function being traced, a program being interpreted, a tree.
const MIN_REMAINING_BYTES: usize = 384 << 10;
/// The size of an additional stack.
const ADDED_BYTES: usize = 8 << 20;

/// Runs `f`, one level of such a recursion, with enough stack.
pub(crate) fn grow<R>(f: impl FnOnce() -> R) -> R {
    stacker::maybe_grow(MIN_REMAINING_BYTES, ADDED_BYTES, f)
}
