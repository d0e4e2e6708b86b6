//! Memory for messages, used again: fresh memory takes longer to get than to fill.

use std::cmp::Reverse;
use std::sync::Mutex;

use crate::lock;

/// How many are kept, and how large those are.
const KEPT: usize = 64;
const LARGEST: usize = 8 << 20;

#[derive(Default)]
pub(crate) struct Buffers(Mutex<Vec<Vec<u8>>>);

impl Buffers {
    /// Memory of this length, with anything in it.
    pub(crate) fn take(&self, len: usize) -> Vec<u8> {
        if len == 0 {
            return Vec::new();
        }
        let mut kept = lock(&self.0);
        // The one that fits best, and of those the last given, which is in the cache.
        let fits = kept.iter().enumerate().filter(|(_, buffer)| buffer.capacity() >= len);
        let best = fits.min_by_key(|&(at, buffer)| (buffer.capacity(), Reverse(at))).map(|(at, _)| at);
        let mut buffer = best.map_or_else(Vec::new, |at| kept.remove(at));
        drop(kept);
        buffer.resize(len, 0);
        buffer
    }

    pub(crate) fn give(&self, buffers: impl IntoIterator<Item = Vec<u8>>) {
        let mut kept = lock(&self.0);
        kept.extend(buffers.into_iter().filter(|buffer| (1..=LARGEST).contains(&buffer.capacity())));
        let surplus = kept.len().saturating_sub(KEPT);
        kept.drain(..surplus);
    }
}
