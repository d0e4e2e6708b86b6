//! Sorting by the digits of keys. A sort by comparisons moves an item about as many times as the number of items has bits, and each
//! digit moves it once.
//!
//! Long arrays are divided by their highest digit until the parts fit into a cache. Each part is sorted by its other digits, the lowest
//! one first. Bits that are equal in all keys are skipped.

/// The maximum number of bits of a digit: the counts of all values of a digit fit into the first-level cache.
const MAX_DIGIT: u32 = 11;

/// The maximum number of bits of a key that is sorted by all digits. Longer keys are sorted by as many of their highest bits as the number of
/// items has, and items that agree in these by the other bits.
const MAX_BITS: u32 = 3 * MAX_DIGIT;

/// The number of items for which digits take less time than comparisons: clearing the counts dominates for fewer items.
const MIN_ITEMS: usize = 1 << 10;

/// The maximum number of items that are sorted by their lowest digit first. More are divided into parts of about `PART` items, because
/// they do not fit into a cache.
const MAX_CACHED: usize = 1 << 14;
const PART: usize = 1 << 10;

/// The maximum number of items that are sorted by insertion.
const MAX_INSERTED: usize = 24;

/// Returns `true` if [`radix_sort`] is faster than the sort of the standard library for this many items.
pub(crate) fn is_fast(items: usize, bits: u32) -> bool {
    bits <= u64::BITS && items >= MIN_ITEMS
}

/// Sorts by keys. Items with equal keys keep their order. `key` returns the bits of an item's key. `spare` is memory that the caller
/// keeps for the next call.
pub(crate) fn radix_sort<T: Copy>(items: &mut [T], spare: &mut Vec<T>, key: impl Fn(T) -> u64 + Copy) {
    let bits = differing_bits(items.iter().map(|item| key(*item)));
    sort_bits(items, spare, bits, key);
}

/// Sorts items whose keys differ in the lowest `bits` bits only.
fn sort_bits<T: Copy>(items: &mut [T], spare: &mut Vec<T>, bits: u32, key: impl Fn(T) -> u64 + Copy) {
    let Some(first) = items.first().copied() else { return };
    let shift = if bits > MAX_BITS { bits - (items.len().ilog2() + 1) } else { 0 };
    sort_part(items, sized(spare, items.len(), first), bits - shift, false, |item| key(item) >> shift);
    if shift > 0 {
        sort_ties(items, spare, shift, key);
    }
}

/// Sorts items that are sorted except for the lowest `bits` bits of their keys.
fn sort_ties<T: Copy>(items: &mut [T], spare: &mut Vec<T>, bits: u32, key: impl Fn(T) -> u64 + Copy) {
    for ties in items.chunk_by_mut(|a, b| key(*a) >> bits == key(*b) >> bits) {
        if ties.len() <= MAX_INSERTED {
            insertion_sort(ties, bits, key);
        } else if ties.len() < MIN_ITEMS {
            ties.sort_by_key(|item| key(*item));
        } else {
            // The highest bits that differ are lower ones, so this ends.
            radix_sort(ties, spare, key);
        }
    }
}

/// Sorts the items that `item` returns for each index, and stores them in `items`. `write` is called with the number of each item and the
/// items from it on, in their order.
///
/// Unlike [`radix_sort`], the first division into parts reads the items from where they are, and `spare` needs memory for the longest
/// part only.
pub(crate) fn radix_sort_from<T: Copy>(
    items: &mut [T],
    spare: &mut Vec<T>,
    key: impl Fn(T) -> u64 + Copy,
    item: impl Fn(usize) -> T + Copy,
    mut write: impl FnMut(usize, &[T]),
) {
    // Few items fit in the cache, so they are sorted there at once.
    let len = items.len();
    let bits = differing_bits((0..len).map(|index| key(item(index))));
    if len <= MAX_CACHED || bits == 0 {
        items.iter_mut().enumerate().for_each(|(index, to)| *to = item(index));
        sort_bits(items, spare, bits, key);
        return write(0, items);
    }
    // Others are first divided by the highest digit into parts that fit. The keys of a part agree in that digit, so
    // only the bits below `shift` are left to sort by.
    let mut ends = [0; 1 << MAX_DIGIT];
    let digit_bits = bits_of_parts(len, bits);
    let (ends, shift) = (&mut ends[..1 << digit_bits], bits - digit_bits);
    move_by_digit((0..len).map(item), items, ends, |item| (key(item) >> shift) as usize);
    let mut start = 0;
    for end in ends.iter().map(|end| *end as usize).filter(|end| *end > 0) {
        let part = &mut items[start..end];
        sort_bits(part, spare, shift, key);
        write(start, part);
        start = end;
    }
}

/// The number of bits up to the highest one that differs among the keys.
fn differing_bits(mut keys: impl Iterator<Item = u64>) -> u32 {
    let Some(first) = keys.next() else { return 0 };
    u64::BITS - keys.fold(0, |bits, key| bits | (key ^ first)).leading_zeros()
}

/// The first items of memory that grows if necessary.
fn sized<T: Copy>(memory: &mut Vec<T>, len: usize, fill: T) -> &mut [T] {
    if memory.len() < len {
        memory.resize(len, fill);
    }
    &mut memory[..len]
}

/// The bits of the digit that divides items into parts of about `PART`.
fn bits_of_parts(len: usize, bits: u32) -> u32 {
    (len / PART).ilog2().clamp(1, MAX_DIGIT.min(bits))
}

/// Sorts `source` by the lowest `bits` bits of its keys. The result is in `target` with `to_target`, otherwise in `source`. The other one
/// is overwritten.
fn sort_part<T: Copy>(source: &mut [T], target: &mut [T], bits: u32, to_target: bool, key: impl Fn(T) -> u64 + Copy) {
    let len = source.len();
    if bits == 0 || len <= MAX_INSERTED {
        insertion_sort(source, bits, key);
        if to_target {
            target.copy_from_slice(source);
        }
    } else if len <= MAX_CACHED {
        // Each digit moves the items to the other slice, so the number of digits decides where they end.
        let is_in_target = sort_cached(source, target, bits, key);
        match (is_in_target, to_target) {
            (true, false) => source.copy_from_slice(target),
            (false, true) => target.copy_from_slice(source),
            _ => {}
        }
    } else {
        let digit_bits = bits_of_parts(len, bits);
        let shift = bits - digit_bits;
        let mut ends = [0; 1 << MAX_DIGIT];
        move_by_digit(source.iter().copied(), target, &mut ends[..1 << digit_bits], |item| {
            (key(item) >> shift) as usize
        });
        let mut start = 0;
        for end in ends[..1 << digit_bits].iter().map(|end| *end as usize) {
            sort_part(&mut target[start..end], &mut source[start..end], shift, !to_target, key);
            start = end;
        }
    }
}

/// Sorts items that fit into a cache by their digits, the lowest one first. Returns `true` if the result is in `target`.
fn sort_cached<T: Copy>(source: &mut [T], target: &mut [T], bits: u32, key: impl Fn(T) -> u64 + Copy) -> bool {
    // Digits of fewer bits for few items, so that clearing the counts does not dominate.
    let max_digit = (source.len().ilog2() + 1).clamp(6, MAX_DIGIT);
    let digits = bits.div_ceil(max_digit);
    let digit_bits = bits.div_ceil(digits);
    let mut ends = [0; 1 << MAX_DIGIT];
    let (mut from, mut to) = (source, target);
    for digit in 0..digits {
        let shift = digit * digit_bits;
        move_by_digit(from.iter().copied(), to, &mut ends[..1 << digit_bits], |item| (key(item) >> shift) as usize);
        std::mem::swap(&mut from, &mut to);
    }
    digits % 2 == 1
}

/// Moves the items to `target` in the order of a digit, and stores where the items with each digit end. There is one element of `ends`
/// for each value of the digit, a power of two. Higher bits of the digit are ignored.
#[inline]
fn move_by_digit<T: Copy>(
    source: impl Iterator<Item = T> + Clone,
    target: &mut [T],
    ends: &mut [u32],
    digit: impl Fn(T) -> usize,
) {
    let mask = ends.len() - 1;
    ends.fill(0);
    for item in source.clone() {
        ends[digit(item) & mask] += 1;
    }
    // The number of items with a digit becomes the place of the first of them.
    let mut before = 0;
    for end in &mut *ends {
        (*end, before) = (before, before + *end);
    }
    for item in source {
        let place = &mut ends[digit(item) & mask];
        target[*place as usize] = item;
        *place += 1;
    }
}

/// Sorts few items by the lowest `bits` bits of their keys.
fn insertion_sort<T: Copy>(items: &mut [T], bits: u32, key: impl Fn(T) -> u64) {
    let mask = 1u64.unbounded_shl(bits).wrapping_sub(1);
    for i in 1..items.len() {
        let item = items[i];
        let mut place = i;
        while place > 0 && key(items[place - 1]) & mask > key(item) & mask {
            items[place] = items[place - 1];
            place -= 1;
        }
        items[place] = item;
    }
}
