//! Sorting rows of several arrays by the first of them, the keys.
//!
//! XLA (xla-cpu-pjrt 0.0.1) sorts tuples by a comparator that it compiles. Here the keys of a row and the index of its
//! element are packed in one integer, with the highest key first. Sorting the integers sorts the keys. Equal keys must
//! keep their order, and they do, because the indices are distinct. Long rows are sorted only by the digits of the
//! keys, which keeps the order of equal keys too.

use crate::Result;
use crate::per_type::per_type;
use crate::radix::{is_fast, radix_sort, radix_sort_from};
use crate::tasks::run_tasks;
use crate::view::{ShapeError, check};

/// The comparison of the bits of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyOrder {
    /// As unsigned integers.
    Unsigned,
    /// As signed integers.
    Signed,
    /// As floats whose infinity has these bits. NaNs are last.
    Float {
        /// The bits of infinity.
        infinity: u64,
    },
}

/// An operand of [`sort`]: native-endian elements of 1, 2, 4, 8 or 16 bytes.
#[derive(Clone, Copy, Debug)]
pub struct SortOperand<'a> {
    /// The elements.
    pub data: &'a [u8],
    /// The bytes of an element.
    pub width: usize,
}

/// The maximum number of bits of all keys of [`sort`], because keys and index must fit in an integer of 128 bits.
pub const MAX_KEY_BITS: usize = 96;

/// The bits of the index of an element.
const INDEX_BITS: usize = 32;

/// The minimum number of elements of a task.
const MIN_ELEMENTS_PER_TASK: usize = 1 << 14;

/// Sorts each row of `n` elements of all operands. The first operands are the keys; you must pass one order for each of
/// them. The sort is stable, and elements keep their bits. For floats, -0 equals 0, and all NaNs are equal and come
/// last.
///
/// Allocates 16 or 32 bytes for each element of a row, for each thread.
///
/// ```
/// use shardax_cpu_kernels::{KeyOrder, SortOperand, sort};
///
/// let (keys, names) = ([3u8, 1, 2, 1], *b"abcd");
/// let (mut sorted, mut sorted_names) = ([0; 4], [0; 4]);
/// let operands = [SortOperand { data: &keys, width: 1 }, SortOperand { data: &names, width: 1 }];
/// sort(4, &operands, &[KeyOrder::Unsigned], &mut [&mut sorted, &mut sorted_names], 1)?;
/// assert_eq!((sorted, &sorted_names), ([1, 1, 2, 3], b"bdca"));
/// # Ok::<(), shardax_cpu_kernels::ShapeError>(())
/// ```
///
/// # Errors
/// Returns an error if the operands have different numbers of elements, the last row is incomplete, keys have more than
/// [`MAX_KEY_BITS`] bits, or a row has 2³² elements or more.
pub fn sort(
    n: usize,
    operands: &[SortOperand<'_>],
    keys: &[KeyOrder],
    results: &mut [&mut [u8]],
    threads: usize,
) -> Result<()> {
    check("the results of a sort", results.len(), operands.len())?;
    let Some(first) = operands.get(..keys.len()).and_then(|keys| keys.first()) else {
        return Err(ShapeError(format!("{} operands for {} keys", operands.len(), keys.len())));
    };
    let count = first.data.len() / first.width.max(1);
    for (operand, result) in operands.iter().zip(results.iter()) {
        if !matches!(operand.width, 1 | 2 | 4 | 8 | 16) {
            return Err(ShapeError(format!("an element of {} bytes", operand.width)));
        }
        check("the bytes of an operand", operand.data.len(), count * operand.width)?;
        check("the bytes of a result", result.len(), count * operand.width)?;
    }
    let bits: usize = operands[..keys.len()].iter().map(|key| 8 * key.width).sum();
    if bits > MAX_KEY_BITS || n > u32::MAX as usize {
        return Err(ShapeError(format!("keys of {bits} bits for rows of {n} elements")));
    }
    if count == 0 {
        return Ok(());
    }
    if !count.is_multiple_of(n) {
        return Err(ShapeError(format!("{count} elements in rows of {n}")));
    }
    // A task is about `MIN_ELEMENTS_PER_TASK` elements of entire rows, so that short rows do not need a task each.
    let rows = MIN_ELEMENTS_PER_TASK.div_ceil(n);
    let mut sources: Vec<_> = operands.iter().map(|o| (o.data.chunks(rows * n * o.width), o.width)).collect();
    let mut targets: Vec<_> = results.iter_mut().zip(operands).map(|(r, o)| r.chunks_mut(rows * n * o.width)).collect();
    let tasks: Vec<Task<'_>> = (0..count.div_ceil(rows * n))
        .map(|_| Task {
            operands: sources
                .iter_mut()
                .filter_map(|(parts, width)| parts.next().map(|data| SortOperand { data, width: *width }))
                .collect(),
            results: targets.iter_mut().filter_map(Iterator::next).collect(),
        })
        .collect();
    if bits + INDEX_BITS <= 64 {
        run_tasks(tasks, threads.max(1), Default::default, |memory, task| task.sort::<u64>(n, keys, memory))
    } else {
        run_tasks(tasks, threads.max(1), Default::default, |memory, task| task.sort::<u128>(n, keys, memory))
    }
    Ok(())
}

/// An integer that holds keys and an index.
trait Packed: Copy + Ord + Send {
    const ZERO: Self;
    fn with_key(self, bits: usize, key: u64) -> Self;
    fn with_index(self, index: u32) -> Self;
    fn index(self) -> usize;
    /// The bits of the keys.
    fn key_bits(self) -> u64;
}

macro_rules! packed {
    ($($t:ident)*) => { $(
        impl Packed for $t {
            const ZERO: $t = 0;

            #[inline]
            fn with_key(self, bits: usize, key: u64) -> $t {
                // The first key may fill an integer of its own.
                self.unbounded_shl(bits as u32) | key as $t
            }

            #[inline]
            fn with_index(self, index: u32) -> $t {
                self << INDEX_BITS | index as $t
            }

            #[inline]
            fn index(self) -> usize {
                self as u32 as usize
            }

            #[inline]
            fn key_bits(self) -> u64 {
                (self >> INDEX_BITS) as u64
            }
        }
    )* };
}
packed!(u64 u128);

/// Some rows of all operands and results.
struct Task<'a> {
    operands: Vec<SortOperand<'a>>,
    results: Vec<&'a mut [u8]>,
}

/// The memory of a thread for packed items.
type Memory<P> = [Vec<P>; 2];

impl Task<'_> {
    /// Sorts the rows. The integers of a row, and memory of the same size, are kept for the next task.
    fn sort<P: Packed>(self, n: usize, keys: &[KeyOrder], memory: &mut Memory<P>) {
        let Task { operands, mut results } = self;
        let bits: usize = operands.iter().zip(keys).map(|(key, _)| 8 * key.width).sum();
        let rows = operands.first().map_or(0, |first| first.data.len() / first.width / n);
        for row in 0..rows {
            if sort_pairs(&operands, keys, &mut results, row, n, memory) {
                continue;
            }
            let [packed, spare] = &mut *memory;
            packed.clear();
            packed.resize(n, P::ZERO);
            for (operand, order) in operands.iter().zip(keys) {
                pack(&operand.data[row_bytes(row, n, operand.width)], operand.width, *order, packed);
            }
            packed.iter_mut().zip(0..).for_each(|(packed, index)| *packed = packed.with_index(index));
            // Digits of the keys are enough, because the indices ascend before the sort, and digits keep the order.
            if is_fast(n, bits as u32) {
                radix_sort(packed, spare, P::key_bits)
            } else {
                packed.sort_unstable()
            }
            for (operand, result) in operands.iter().zip(&mut results) {
                let part = row_bytes(row, n, operand.width);
                let (from, to) = (&operand.data[part.clone()], &mut result[part]);
                match operand.width {
                    1 => gather::<P, 1>(from, packed, to),
                    2 => gather::<P, 2>(from, packed, to),
                    4 => gather::<P, 4>(from, packed, to),
                    8 => gather::<P, 8>(from, packed, to),
                    _ => gather::<P, 16>(from, packed, to),
                }
            }
        }
    }
}

/// The bytes of a row of `n` elements.
fn row_bytes(row: usize, n: usize, width: usize) -> std::ops::Range<usize> {
    row * n * width..(row + 1) * n * width
}

/// Appends a key to the packed integers of a row.
fn pack<P: Packed>(row: &[u8], width: usize, order: KeyOrder, packed: &mut [P]) {
    match width {
        1 => pack_as(row, order, packed, |b: [u8; 1]| b[0].into()),
        2 => pack_as(row, order, packed, |b| u16::from_ne_bytes(b).into()),
        4 => pack_as(row, order, packed, |b| u32::from_ne_bytes(b).into()),
        _ => pack_as(row, order, packed, u64::from_ne_bytes),
    }
}

fn pack_as<P: Packed, const W: usize>(row: &[u8], order: KeyOrder, packed: &mut [P], bits: impl Fn([u8; W]) -> u64) {
    let sign = 1u64 << (8 * W - 1);
    let keys = row.as_chunks::<W>().0.iter().map(|b| bits(*b));
    match order {
        KeyOrder::Unsigned => push_keys::<P, W>(packed, keys),
        KeyOrder::Signed => push_keys::<P, W>(packed, keys.map(|key| key ^ sign)),
        KeyOrder::Float { infinity } => push_keys::<P, W>(packed, keys.map(|key| float_key(key, sign, infinity))),
    }
}

/// Appends keys of `W` bytes to packed integers.
fn push_keys<P: Packed, const W: usize>(packed: &mut [P], keys: impl Iterator<Item = u64>) {
    packed.iter_mut().zip(keys).for_each(|(packed, key)| *packed = packed.with_key(8 * W, key));
}

/// Maps the bits of a floating-point number to an unsigned integer that sorts like the number. NaN sorts last.
#[inline]
fn float_key(bits: u64, sign: u64, infinity: u64) -> u64 {
    let all_bits = sign | (sign - 1);
    let magnitude = bits & !sign;
    if magnitude > infinity {
        all_bits
    } else if bits & sign == 0 || magnitude == 0 {
        // -0 is 0.
        magnitude | sign
    } else {
        // Negative numbers are in reverse order.
        bits ^ all_bits
    }
}

/// Sorts a long row of two operands by the first one, whose elements have four or eight bytes. Each element of the other operand, of four
/// bytes, is packed with its key, so that it moves with the key, and is not read in another order at the end. Returns `false` if the row
/// is short or has other operands, so that the caller must sort it.
fn sort_pairs<P: Packed>(
    operands: &[SortOperand<'_>],
    keys: &[KeyOrder],
    results: &mut [&mut [u8]],
    row: usize,
    n: usize,
    memory: &mut Memory<P>,
) -> bool {
    let ([key, other], [order], [sorted_keys, sorted]) = (operands, keys, results) else { return false };
    if other.width != 4 || !is_fast(n, 8 * key.width as u32) {
        return false;
    }
    let (keys_part, part) = (row_bytes(row, n, key.width), row_bytes(row, n, 4));
    let from = [&key.data[keys_part.clone()], &other.data[part.clone()]];
    let to = [&mut sorted_keys[keys_part], &mut sorted[part]];
    match key.width {
        4 => pairs_of::<P, 4>(
            from,
            to,
            *order,
            memory,
            |b| u32::from_ne_bytes(b).into(),
            |key| (key as u32).to_ne_bytes(),
        ),
        8 => pairs_of::<P, 8>(from, to, *order, memory, u64::from_ne_bytes, u64::to_ne_bytes),
        _ => false,
    }
}

/// Sorts pairs of a key of `W` bytes and an element of four bytes. Returns `false` if the bits of a key do not follow from its order.
fn pairs_of<P: Packed, const W: usize>(
    [keys, others]: [&[u8]; 2],
    [sorted_keys, sorted]: [&mut [u8]; 2],
    order: KeyOrder,
    memory: &mut Memory<P>,
    bits: impl Fn([u8; W]) -> u64 + Copy,
    bytes: impl Fn(u64) -> [u8; W],
) -> bool {
    let sign = 1 << (8 * W - 1);
    let from = (keys.as_chunks::<W>().0, others.as_chunks::<4>().0);
    let to = (sorted_keys.as_chunks_mut::<W>().0, sorted.as_chunks_mut::<4>().0);
    match order {
        KeyOrder::Unsigned => pairs_by(from, to, memory, bits, bytes),
        KeyOrder::Signed => pairs_by(from, to, memory, |b| bits(b) ^ sign, |key| bytes(key ^ sign)),
        KeyOrder::Float { infinity } => {
            let is_other = |bits: u64| (bits == sign) | (bits & !sign > infinity);
            if from.0.iter().fold(false, |any, b| any | is_other(bits(*b))) {
                return false;
            }
            pairs_by(from, to, memory, |b| key_of_float(bits(b), sign), |key| bytes(float_of_key(key, sign)));
        }
    }
    true
}

/// Returns an unsigned integer with the order of the float that has these bits. It is no NaN and not -0.
#[inline(always)]
fn key_of_float(bits: u64, sign: u64) -> u64 {
    bits ^ if bits & sign == 0 { sign } else { sign | (sign - 1) }
}

/// The inverse of [`key_of_float`].
#[inline(always)]
fn float_of_key(key: u64, sign: u64) -> u64 {
    key ^ if key & sign == 0 { sign | (sign - 1) } else { sign }
}

/// Sorts pairs by the keys that `to_key` returns for the bytes of the first operand. `from_key` is its inverse.
fn pairs_by<P: Packed, const W: usize>(
    (keys, others): (&[[u8; W]], &[[u8; 4]]),
    (sorted_keys, sorted): (&mut [[u8; W]], &mut [[u8; 4]]),
    [items, spare]: &mut Memory<P>,
    to_key: impl Fn([u8; W]) -> u64 + Copy,
    from_key: impl Fn(u64) -> [u8; W],
) {
    let n = keys.len().min(others.len());
    items.resize(n, P::ZERO);
    radix_sort_from(
        items,
        spare,
        P::key_bits,
        // The key is in the upper part of an item and the other element in the lower one, so that they move together.
        |index| P::ZERO.with_key(8 * W, to_key(keys[index])).with_index(u32::from_ne_bytes(others[index])),
        |start, items: &[P]| {
            let results = sorted_keys[start..].iter_mut().zip(&mut sorted[start..]);
            for ((sorted_key, sorted), item) in results.zip(items) {
                *sorted_key = from_key(item.key_bits());
                *sorted = (item.index() as u32).to_ne_bytes();
            }
        },
    );
}

/// Writes the elements of a row in their new order.
fn gather<P: Packed, const W: usize>(from: &[u8], packed: &[P], to: &mut [u8]) {
    let (from, to) = (from.as_chunks::<W>().0, to.as_chunks_mut::<W>().0);
    to.iter_mut().zip(packed).for_each(|(to, packed)| *to = from[packed.index()]);
}

per_type!(SortRows for [i8, u8, i16, u16, i32, u32, i64, u64] {
    fn sort_keys(n: usize, x: &[Self], out: &mut [Self], threads: usize) = sort_keys_of;
});

/// An element of the rows of [`sort_keys`].
pub trait SortKey: SortRows + Copy + Ord + Send + Sync {
    /// An unsigned integer with the same order.
    #[doc(hidden)]
    fn key_bits(self) -> u64;
}

macro_rules! sort_keys {
    ($($t:ident $unsigned:ident)*) => { $(
        impl SortKey for $t {
            #[inline]
            fn key_bits(self) -> u64 {
                // The sign of negative numbers sorts before the sign of positive numbers.
                (self.wrapping_sub($t::MIN) as $unsigned).into()
            }
        }
    )* };
}
sort_keys!(i8 u8 u8 u8 i16 u16 u16 u16 i32 u32 u32 u32 i64 u64 u64 u64);

/// Sorts each row of `n` integers. Allocates the memory of a row for each thread.
///
/// # Errors
/// Returns an error unless the slices have the same length, and complete rows.
pub fn sort_keys<T: SortKey>(n: usize, x: &[T], out: &mut [T], threads: usize) -> Result<()> {
    T::sort_keys(n, x, out, threads)
}

fn sort_keys_of<T: SortKey>(n: usize, x: &[T], out: &mut [T], threads: usize) -> Result<()> {
    check("the elements of the result", out.len(), x.len())?;
    if x.is_empty() {
        return Ok(());
    }
    if !x.len().is_multiple_of(n) {
        return Err(ShapeError(format!("{} elements in rows of {n}", x.len())));
    }
    let size = MIN_ELEMENTS_PER_TASK.div_ceil(n) * n;
    let tasks = x.chunks(size).zip(out.chunks_mut(size)).collect();
    run_tasks(tasks, threads.max(1), Vec::new, |spare, (x, out): (&[T], &mut [T])| {
        if is_fast(n, 8 * size_of::<T>() as u32) {
            for (x, out) in x.chunks_exact(n).zip(out.chunks_exact_mut(n)) {
                radix_sort_from(out, spare, T::key_bits, |index| x[index], |_, _| ());
            }
        } else {
            out.copy_from_slice(x);
            out.chunks_exact_mut(n).for_each(<[T]>::sort_unstable);
        }
    });
    Ok(())
}
