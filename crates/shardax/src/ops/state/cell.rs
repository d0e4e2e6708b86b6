//! The value of a ref that was made outside of every trace.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::core::array::Array;
use crate::error::Result;

/// A shared value. Two cells are equal if they are the same object.
///
/// The value has separate memory, so that no other array can delete or donate it.
#[derive(Clone)]
pub(crate) struct Cell(Arc<Inner>);

struct Inner {
    value: Mutex<Array>,
    /// The lock of the thread that computes a new value from the old one. It is locked before `value`, so that other
    /// threads can read the value meanwhile.
    turn: Mutex<()>,
}

/// The right to replace the value of a cell.
pub(crate) type Turn<'a> = MutexGuard<'a, ()>;

impl Cell {
    /// Creates a cell with a copy of this value.
    pub fn new(value: &Array) -> Result<Self> {
        Ok(Cell(Arc::new(Inner { value: Mutex::new(copied(value)?), turn: Mutex::new(()) })))
    }

    fn lock(&self) -> MutexGuard<'_, Array> {
        self.0.value.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no other thread computes a new value.
    pub fn turn(&self) -> Turn<'_> {
        self.0.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a number that orders cells. Threads lock several cells in this order, so that they cannot deadlock.
    pub fn address(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    pub fn get(&self) -> Array {
        self.lock().clone()
    }

    pub fn set(&self, value: Array) {
        *self.lock() = value;
    }

    /// Changes the value. If the change fails, the value stays.
    pub fn update<R>(&self, _turn: &Turn<'_>, f: impl FnOnce(&mut Array) -> Result<R>) -> Result<R> {
        // `f` changes a copy without the lock, because it can run programs that read the cell.
        let mut new = self.get();
        let out = f(&mut new)?;
        new.check()?;
        self.set(new);
        Ok(out)
    }
}

/// Copies an array to separate memory. A plain number needs none.
pub(super) fn copied(x: &Array) -> Result<Array> {
    // A donated buffer would otherwise disappear from the cell.
    if x.concrete_ref().is_some() { x.copy() } else { Ok(x.clone()) }
}

impl PartialEq for Cell {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Cell {}

impl Hash for Cell {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.address().hash(state);
    }
}

impl fmt::Debug for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cell({:p})", Arc::as_ptr(&self.0))
    }
}
