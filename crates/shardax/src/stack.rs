//! Recursion as deep as what users nest: where little of the stack is left, more is added.

/// What must be left for one level: of a function being traced, of a program being interpreted, of a tree.
const NEEDED: usize = 384 << 10;
/// What is added at a time.
const ADDED: usize = 8 << 20;

/// Runs `f`, one level of a recursion that goes as deep as what the user nests, with enough stack.
pub(crate) fn grow<R>(f: impl FnOnce() -> R) -> R {
    stacker::maybe_grow(NEEDED, ADDED, f)
}
