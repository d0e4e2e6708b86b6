//! The arrays of this process that are alive, as weak references.
//!
//! Every concrete array is entered when it is made, in the part of its thread. Nothing is done when it is dropped: a
//! part that has doubled is swept. An entry costs some 20 ns and keeps the allocation of the array's description, not
//! its buffers, until the sweep.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::{Array, Concrete};

/// The arrays made by some of the threads.
struct Part {
    arrays: Vec<Weak<Concrete>>,
    /// The length at which dead entries are removed.
    limit: usize,
}

const PARTS: usize = 16;
/// A part is swept from this length on. Small, so that the allocator reuses memory that is still in the cache.
const SHORT: usize = 64;

static LIVE: [Mutex<Part>; PARTS] = [const { Mutex::new(Part { arrays: Vec::new(), limit: SHORT }) }; PARTS];

thread_local! {
    static OWN: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// The index of this thread's part.
fn own() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    // A thread that ends may still make arrays, in the destructors of its other locals.
    OWN.try_with(|own| {
        if own.get() == usize::MAX {
            own.set(NEXT.fetch_add(1, Ordering::Relaxed) % PARTS);
        }
        own.get()
    })
    .unwrap_or(0)
}

fn lock(part: &Mutex<Part>) -> MutexGuard<'_, Part> {
    part.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Enters a new array.
pub(super) fn enter(array: &Arc<Concrete>) {
    let mut part = lock(&LIVE[own()]);
    if part.arrays.len() >= part.limit {
        // A dead entry frees a description without values: no destructor of a user's runs under the lock.
        part.arrays.retain(|array| array.strong_count() > 0);
        part.limit = SHORT.max(2 * part.arrays.len());
        let limit = part.limit;
        part.arrays.shrink_to(2 * limit);
    }
    part.arrays.push(Arc::downgrade(array));
}

/// The arrays that are alive now, neither deleted nor donated.
pub(crate) fn all() -> Vec<Arc<Concrete>> {
    // The references are dropped after the locks: one of them may be the last.
    let found: Vec<Arc<Concrete>> =
        LIVE.iter().flat_map(|part| lock(part).arrays.iter().filter_map(Weak::upgrade).collect::<Vec<_>>()).collect();
    found.into_iter().filter(|array| array.check_alive().is_ok()).collect()
}

/// The arrays of this process that are alive: those that a variable, a model, a captured value of a compiled function
/// or a cache holds. Deleted and donated arrays are not among them, nor plain numbers and traced values. For finding
/// what keeps memory in use; [`profiler::device_memory_profile`](crate::profiler::device_memory_profile) groups the
/// same arrays by the line that made them.
///
/// The arrays that are returned stay alive with the result. Other threads may make and drop arrays meanwhile.
///
/// ```
/// # use shardax::prelude::*;
/// let large = || shardax::live_arrays().iter().filter(|a| a.shape() == [777, 3]).count();
/// let x = zeros([777, 3]);
/// let y = &x + 1;
/// assert_eq!(large(), 2);
/// drop(x);
/// assert_eq!(large(), 1);
/// # drop(y);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn live_arrays() -> Vec<Array> {
    all().into_iter().map(Array::of_concrete).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prelude::*;

    #[test]
    fn a_part_does_not_grow_with_dropped_arrays() {
        let keep: Vec<Array> = (0..100).map(|i| array([i])).collect();
        for i in 0..1000 {
            drop(array([i]));
        }
        // Other tests may share the part, if there are many threads.
        let part = lock(&LIVE[own()]);
        assert!(part.arrays.len() <= part.limit && part.arrays.len() < 900, "{}", part.arrays.len());
        drop(part);
        let live = super::all();
        assert!(keep.iter().all(|a| live.iter().any(|c| a.concrete_ref().is_some_and(|a| std::ptr::eq(a, &**c)))));
    }
}
