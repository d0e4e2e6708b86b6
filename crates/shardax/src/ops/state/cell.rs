//! The value of a ref that was made outside of every trace.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::core::array::Array;
use crate::error::Result;

/// A shared value. Two cells are equal if they are the same one.
#[derive(Clone)]
pub(crate) struct Cell(Arc<Mutex<Array>>);

impl Cell {
    pub fn new(value: Array) -> Self {
        Cell(Arc::new(Mutex::new(value)))
    }

    fn lock(&self) -> MutexGuard<'_, Array> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn get(&self) -> Array {
        self.lock().clone()
    }

    pub fn set(&self, value: Array) {
        *self.lock() = value;
    }

    /// Changes the value; a failed change leaves it.
    pub fn update<R>(&self, f: impl FnOnce(&mut Array) -> Result<R>) -> Result<R> {
        let mut value = self.lock();
        let mut new = value.clone();
        let out = f(&mut new)?;
        new.check()?;
        *value = new;
        Ok(out)
    }
}

impl PartialEq for Cell {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Cell {}

impl Hash for Cell {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).hash(state);
    }
}

impl fmt::Debug for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cell({:p})", Arc::as_ptr(&self.0))
    }
}
