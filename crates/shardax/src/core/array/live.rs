//! The live arrays of this process, as weak references.
//!
//! Every concrete array is registered when it is created, in a part of the table that belongs to its thread. Dropping an
//! array does not remove its entry; instead, a part removes its dead entries whenever its length has doubled. Registering
//! costs about 20 ns. Until a dead entry is removed, it keeps the allocation of the array's description, but not its
//! buffers.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::{Array, Concrete};

/// The arrays that some of the threads created.
struct Part {
    arrays: Vec<Weak<Concrete>>,
    /// The length at which dead entries are removed.
    limit: usize,
}

const PARTS: usize = 16;
/// The shortest length at which a part is swept. It is small so that the allocator reuses memory that is still in the
/// cache.
const MIN_SWEPT_LEN: usize = 64;

// Every new array is registered, so threads use different parts, which hardly ever wait for each other.
static LIVE: [Mutex<Part>; PARTS] = [const { Mutex::new(Part { arrays: Vec::new(), limit: MIN_SWEPT_LEN }) }; PARTS];

thread_local! {
    static PART_OF_THREAD: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// The index of this thread's part.
fn part_of_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    // A thread that ends may still create arrays in the destructors of its other thread locals, so this local may be
    // gone.
    PART_OF_THREAD
        .try_with(|own| {
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

/// Registers a new array.
pub(super) fn enter(array: &Arc<Concrete>) {
    let mut part = lock(&LIVE[part_of_thread()]);
    if part.arrays.len() >= part.limit {
        // Dropping a dead entry only frees a description without values, so no user's destructor runs under the lock.
        part.arrays.retain(|array| array.strong_count() > 0);
        part.limit = MIN_SWEPT_LEN.max(2 * part.arrays.len());
        let limit = part.limit;
        part.arrays.shrink_to(2 * limit);
    }
    part.arrays.push(Arc::downgrade(array));
}

/// The live arrays that are neither deleted nor donated.
pub(crate) fn all() -> Vec<Arc<Concrete>> {
    // The references are dropped after the locks are released, because one of them may be the last.
    let live: Vec<Arc<Concrete>> =
        LIVE.iter().flat_map(|part| lock(part).arrays.iter().filter_map(Weak::upgrade).collect::<Vec<_>>()).collect();
    live.into_iter().filter(|array| array.check_alive().is_ok()).collect()
}

/// Returns the live arrays of this process: arrays that are held by a variable, a model, a compiled function or a
/// cache. Deleted and donated arrays, plain numbers and traced values are not included. You can use it to find what
/// keeps memory in use; [`profiler::device_memory_profile`](crate::profiler::device_memory_profile) groups the same
/// arrays by the line that created them.
///
/// The result keeps the returned arrays alive. Other threads can create and drop arrays at the same time.
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
    all().into_iter().map(Array::from_shared).collect()
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
        // Other tests may share the part if there are many threads.
        let part = lock(&LIVE[part_of_thread()]);
        assert!(part.arrays.len() <= part.limit && part.arrays.len() < 900, "{}", part.arrays.len());
        drop(part);
        let live = super::all();
        assert!(keep.iter().all(|a| live.iter().any(|c| a.concrete_ref().is_some_and(|a| std::ptr::eq(a, &**c)))));
    }
}
