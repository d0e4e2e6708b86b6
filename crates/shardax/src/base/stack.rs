//! Stack growth for recursion as deep as users nest.

/// The stack needed for one level: a function being traced, a program being interpreted, a tree.
const NEEDED: usize = 384 << 10;
/// The size of an additional stack.
const ADDED: usize = 8 << 20;

/// Runs `f`, one level of a recursion as deep as users nest, with enough stack.
pub(crate) fn grow<R>(f: impl FnOnce() -> R) -> R {
    stacker::maybe_grow(NEEDED, ADDED, f)
}
