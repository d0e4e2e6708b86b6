//! A pool of message buffers. It exists because allocating fresh memory takes longer than filling it.

use std::cmp::Reverse;
use std::sync::Mutex;

use crate::lock;

/// The largest number of buffers in the pool.
const POOL_SIZE: usize = 64;
/// The capacity in bytes above which a buffer is freed instead of kept.
const MAX_CAPACITY: usize = 8 << 20;

#[derive(Default)]
pub(crate) struct Buffers(Mutex<Vec<Vec<u8>>>);

impl Buffers {
    /// A buffer of this length with arbitrary contents.
    pub(crate) fn take(&self, len: usize) -> Vec<u8> {
        if len == 0 {
            return Vec::new();
        }
        let mut pool = lock(&self.0);
        // Take the smallest buffer that is large enough. Among equals, take the most recently used one, because it may
        // still be in the processor's cache.
        let candidates = pool.iter().enumerate().filter(|(_, buffer)| buffer.capacity() >= len);
        let best =
            candidates.min_by_key(|&(index, buffer)| (buffer.capacity(), Reverse(index))).map(|(index, _)| index);
        let mut buffer = best.map_or_else(Vec::new, |index| pool.remove(index));
        drop(pool); // growing the buffer can take long
        buffer.resize(len, 0);
        buffer
    }

    /// Puts buffers back into the pool. If the pool is full, the ones that were unused for longest are freed.
    pub(crate) fn put_back(&self, buffers: impl IntoIterator<Item = Vec<u8>>) {
        let mut pool = lock(&self.0);
        pool.extend(buffers.into_iter().filter(|buffer| (1..=MAX_CAPACITY).contains(&buffer.capacity())));
        let surplus = pool.len().saturating_sub(POOL_SIZE);
        pool.drain(..surplus);
    }
}
