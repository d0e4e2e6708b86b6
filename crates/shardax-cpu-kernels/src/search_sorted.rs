//! The positions of values among the elements of an ascending array.
//!
//! XLA (xla-cpu-pjrt 0.0.1) computes each step of a bisection for all values before the next step. Here each thread bisects for
//! some values at a time, so that the processor overlaps their reads, and the values are read once.

use std::hint::select_unpredictable;

use crate::Result;
use crate::tasks::run_tasks;
use crate::view::{ShapeError, check};

/// The number of values that are searched at a time.
const LANES: usize = 16;

/// The number of values of a task.
const TASK: usize = 1 << 13;

/// An element of [`search_sorted`].
pub trait SearchKey: Copy + Send + Sync {
    /// An integer with the same order.
    #[doc(hidden)]
    type Key: Ord + Copy + Default + Send + Sync;
    #[doc(hidden)]
    fn key(self) -> Self::Key;
}

macro_rules! integer_keys {
    ($($t:ident)*) => { $(
        impl SearchKey for $t {
            type Key = $t;

            #[inline]
            fn key(self) -> $t {
                self
            }
        }
    )* };
}
integer_keys!(i32 i64 u32 u64);

macro_rules! float_keys {
    ($($t:ident $key:ident)*) => { $(
        impl SearchKey for $t {
            type Key = $key;

            /// NaN is greater than all numbers. Subnormal numbers equal 0, because XLA's comparisons flush them.
            #[inline]
            fn key(self) -> $key {
                let magnitude = (self.to_bits() << 1 >> 1) as $key;
                if magnitude > $t::INFINITY.to_bits() as $key {
                    $key::MAX
                } else if magnitude < $t::MIN_POSITIVE.to_bits() as $key {
                    0
                } else if self.to_bits() as $key >= 0 {
                    magnitude
                } else {
                    -magnitude
                }
            }
        }
    )* };
}
float_keys!(f32 i32 f64 i64);

/// Counts, for each value, the elements of an ascending array that are less than it, or that are at most it with `counts_equal`.
/// NaN is greater than all numbers, and subnormal numbers equal 0.
///
/// Allocates at most as many elements as there are values.
///
/// ```
/// use shardax_cpu_kernels::search_sorted;
///
/// let mut counts = [0; 3];
/// search_sorted(&[1.0f32, 2.0, 2.0, 5.0], &[2.0, 0.5, 9.0], false, &mut counts, 1)?;
/// assert_eq!(counts, [1, 0, 4]);
/// # Ok::<(), shardax_cpu_kernels::ShapeError>(())
/// ```
///
/// # Errors
/// There is not one count for each value, or the array has more than 2³¹ - 1 elements.
pub fn search_sorted<T: SearchKey>(
    sorted: &[T],
    values: &[T],
    counts_equal: bool,
    counts: &mut [i32],
    threads: usize,
) -> Result<()> {
    check("the counts of a search", counts.len(), values.len())?;
    if i32::try_from(sorted.len()).is_err() {
        return Err(ShapeError(format!("a search in {} elements", sorted.len())));
    }
    if sorted.is_empty() {
        counts.fill(0);
        return Ok(());
    }
    // The keys of all elements are computed once, unless few of them are read.
    let keys: Vec<T::Key> = match sorted.len() <= values.len() {
        true => sorted.iter().map(|element| element.key()).collect(),
        false => Vec::new(),
    };
    let tasks = values.chunks(TASK).zip(counts.chunks_mut(TASK)).collect();
    run_tasks(
        tasks,
        threads.max(1),
        || (),
        |(), (values, counts): (&[T], &mut [i32])| match (keys.is_empty(), counts_equal) {
            (true, true) => search(sorted.len(), |i| sorted[i].key(), |key, value| key <= value, values, counts),
            (true, false) => search(sorted.len(), |i| sorted[i].key(), |key, value| key < value, values, counts),
            (false, true) => search(keys.len(), |i| keys[i], |key, value| key <= value, values, counts),
            (false, false) => search(keys.len(), |i| keys[i], |key, value| key < value, values, counts),
        },
    );
    Ok(())
}

/// Bisects for [`LANES`] values at a time. `key(i)` is the key of element `i` of `n`.
fn search<T: SearchKey>(
    n: usize,
    key: impl Fn(usize) -> T::Key,
    is_before: impl Fn(T::Key, T::Key) -> bool,
    values: &[T],
    counts: &mut [i32],
) {
    for (values, counts) in values.chunks(LANES).zip(counts.chunks_mut(LANES)) {
        let mut value_keys = [T::Key::default(); LANES];
        value_keys.iter_mut().zip(values).for_each(|(key, value)| *key = value.key());
        // The first element that is not before a value is one of the `size` elements from `start`, or the one behind them.
        let (mut start, mut size) = ([0; LANES], n);
        while size > 1 {
            let half = size / 2;
            for (start, value_key) in start.iter_mut().zip(value_keys) {
                let is_later = is_before(key(*start + half - 1), value_key);
                // Nobody can predict a branch here.
                *start = select_unpredictable(is_later, *start + half, *start);
            }
            size -= half;
        }
        for ((count, start), value_key) in counts.iter_mut().zip(start).zip(value_keys) {
            *count = (start + usize::from(is_before(key(start), value_key))) as i32;
        }
    }
}
