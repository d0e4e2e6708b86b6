//! A pool of message buffers: allocating fresh memory takes longer than filling it.

use std::cmp::Reverse;
use std::sync::Mutex;

use crate::lock;

/// The number of buffers in the pool, and the largest capacity.
const POOL_SIZE: usize = 64;
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
        // The smallest that is large enough, and among equals the most recently used, which is still in the cache.
        let fits = pool.iter().enumerate().filter(|(_, buffer)| buffer.capacity() >= len);
        let best = fits.min_by_key(|&(at, buffer)| (buffer.capacity(), Reverse(at))).map(|(at, _)| at);
        let mut buffer = best.map_or_else(Vec::new, |at| pool.remove(at));
        drop(pool);
        buffer.resize(len, 0);
        buffer
    }

    pub(crate) fn give(&self, buffers: impl IntoIterator<Item = Vec<u8>>) {
        let mut pool = lock(&self.0);
        pool.extend(buffers.into_iter().filter(|buffer| (1..=MAX_CAPACITY).contains(&buffer.capacity())));
        let surplus = pool.len().saturating_sub(POOL_SIZE);
        pool.drain(..surplus);
    }
}
