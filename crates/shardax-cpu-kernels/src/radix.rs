//! Sorting by the digits of keys, the lowest digit first. Each digit moves every item once, whereas a sort by comparisons moves an
//! item about as many times as the number of items has bits.

/// The bits of a digit: the counts of all values of a digit fit into the first-level cache.
const DIGIT_BITS: u32 = 11;

/// The maximum number of bits of a key. More digits take longer than comparisons.
const MAX_BITS: u32 = 3 * DIGIT_BITS;

/// The numbers of items and of bytes for which digits take less time than comparisons: clearing the counts dominates for fewer
/// items, and items that do not fit into a cache are moved to a place that is not in the cache either.
const MIN_ITEMS: usize = 1 << 10;
const MAX_BYTES: usize = 1 << 21;

/// Returns `true` if [`radix_sort`] is faster than the sort of the standard library for this many items.
pub(crate) fn is_fast<T>(items: usize, bits: u32) -> bool {
    bits <= MAX_BITS && (MIN_ITEMS..=MAX_BYTES / size_of::<T>()).contains(&items)
}

/// Sorts by keys of this many bits. Items with equal keys keep their order. `key_bits` returns the bits of an item's key from a
/// bit on. `spare` is memory that the caller keeps for the next call.
pub(crate) fn radix_sort<T: Copy>(items: &mut [T], spare: &mut Vec<T>, bits: u32, key_bits: impl Fn(T, u32) -> usize) {
    let digits = bits.div_ceil(DIGIT_BITS);
    let digit_bits = bits.div_ceil(digits.max(1));
    let mask = (1usize << digit_bits) - 1;
    let mut places = [0u32; 1 << DIGIT_BITS];
    spare.clear();
    spare.extend_from_slice(items);
    let (mut source, mut target) = (&mut *items, &mut spare[..]);
    let mut is_in_spare = false;
    for digit in 0..digits {
        let shift = digit * digit_bits;
        places.fill(0);
        for item in &*source {
            places[key_bits(*item, shift) & mask] += 1;
        }
        // The number of items with a digit becomes the place of the first of them.
        let mut before = 0;
        for place in &mut places {
            (*place, before) = (before, before + *place);
        }
        for item in &*source {
            let place = &mut places[key_bits(*item, shift) & mask];
            target[*place as usize] = *item;
            *place += 1;
        }
        std::mem::swap(&mut source, &mut target);
        is_in_spare = !is_in_spare;
    }
    if is_in_spare {
        target.copy_from_slice(source);
    }
}
