//! Scratch memory that threads keep between calls, because allocating a mebibyte in each call would cost page faults and
//! zeroing.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

/// The maximal number of blocks that a thread keeps.
const BLOCKS: usize = 3;
/// The maximal size of such a block. A transformed filter fits, including the padding between its matrices.
const ELEMENTS: usize = (1 << 20) + (1 << 12);

thread_local! {
    static KEPT: RefCell<Vec<Vec<f32>>> = const { RefCell::new(Vec::new()) };
}

/// Scratch memory of the thread. It has the contents of earlier calls, so you must write an element before you read it.
pub(crate) struct Scratch {
    memory: Vec<f32>,
    len: usize,
}

impl Scratch {
    /// Takes the smallest kept block of at least `len` elements, or allocates one.
    pub fn new(len: usize) -> Self {
        if len == 0 {
            return Scratch { memory: Vec::new(), len };
        }
        // The access fails while the thread ends.
        let memory = KEPT.try_with(|kept| {
            let mut kept = kept.borrow_mut();
            let fits = (0..kept.len()).filter(|i| kept[*i].len() >= len).min_by_key(|i| kept[*i].len());
            fits.map(|i| kept.swap_remove(i))
        });
        Scratch { memory: memory.ok().flatten().unwrap_or_else(|| vec![0.0; len]), len }
    }
}

impl Deref for Scratch {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.memory[..self.len]
    }
}

impl DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.memory[..self.len]
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let memory = std::mem::take(&mut self.memory);
        if memory.is_empty() || memory.len() > ELEMENTS {
            return;
        }
        // It fails while the thread ends, where nothing is to be kept.
        let _ = KEPT.try_with(|kept| {
            let mut kept = kept.borrow_mut();
            kept.push(memory);
            if kept.len() > BLOCKS {
                // The largest serve most calls.
                let smallest = (0..kept.len()).min_by_key(|i| kept[*i].len());
                smallest.map(|i| kept.swap_remove(i));
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept() -> Vec<usize> {
        let mut sizes: Vec<usize> = KEPT.with_borrow(|kept| kept.iter().map(Vec::len).collect());
        sizes.sort_unstable();
        sizes
    }

    #[test]
    fn the_largest_blocks_are_kept_within_bounds() {
        for len in [10, 0, 100, 50, ELEMENTS + 1] {
            assert_eq!(Scratch::new(len).len(), len);
        }
        assert_eq!(kept(), [10, 100]);
        let blocks = [30, 100, 200, 40].map(Scratch::new);
        assert!(blocks.iter().zip([30, 100, 200, 40]).all(|(scratch, len)| scratch.len() == len));
        drop(blocks);
        assert_eq!(kept(), [100, 100, 200]);
        // The smallest that is large enough.
        let small = Scratch::new(60);
        assert_eq!((small.memory.len(), kept()), (100, vec![100, 200]));
    }
}
