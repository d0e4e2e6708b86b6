//! User functions that are part of a tree's structure.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// A function that only equals its clones, because closures cannot be compared.
pub(crate) struct Shared<F: ?Sized>(pub(crate) Arc<F>);

impl<F: ?Sized> Clone for Shared<F> {
    fn clone(&self) -> Self {
        Shared(self.0.clone())
    }
}

impl<F: ?Sized> PartialEq for Shared<F> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl<F: ?Sized> Eq for Shared<F> {}

impl<F: ?Sized> Hash for Shared<F> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).hash(state);
    }
}

impl<F: ?Sized> fmt::Debug for Shared<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a function")
    }
}
