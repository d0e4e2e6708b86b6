//! The positions of values among the elements of an ascending array.
//!
//! XLA (xla-cpu-pjrt 0.0.1) computes each step of a bisection for all values before the next step. Here each thread
//! bisects for some values at a time, so that the processor can overlap their reads. If the elements are about equally
//! far apart, like the edges of a histogram, a table of equal intervals names the few elements that a value must be
//! compared with.

use std::hint::select_unpredictable;

use pulp::{Arch, Simd, WithSimd};

use crate::Result;
use crate::elementwise::ROUND;
use crate::per_type::per_type;
use crate::tasks::run_tasks;
use crate::view::{ShapeError, check};

/// The number of values that are searched at a time.
const LANES: usize = 16;

/// The number of values of a task.
const VALUES_PER_TASK: usize = 1 << 13;

/// The number of intervals for each element, so that most intervals contain no element, and the maximum number of intervals.
const INTERVALS_PER_ELEMENT: usize = 4;
const MAX_INTERVALS: usize = 1 << 16;

/// The maximum number of elements of an interval: they are compared one by one.
const MAX_IN_INTERVAL: u32 = 8;

/// The number of values whose keys and estimates are computed together.
const EVEN_BLOCK: usize = 64;

/// The minimum number of values for each element that are worth a table.
const VALUES_PER_ELEMENT: usize = 4;

per_type!(Search for [f32, f64, i32, i64, u32, u64] {
    fn search_sorted(
        sorted: &[Self],
        values: &[Self],
        counts_equal: bool,
        counts: &mut [i32],
        threads: usize
    ) = search_sorted_of;
});

/// An element of [`search_sorted`].
pub trait SearchKey: Search + Copy + Send + Sync {
    /// An integer with the same order.
    #[doc(hidden)]
    type Key: Ord + Copy + Default + Send + Sync;
    #[doc(hidden)]
    fn key(self) -> Self::Key;
    /// A number that does not descend where keys ascend.
    #[doc(hidden)]
    fn place(self) -> f64;
}

macro_rules! integer_keys {
    ($($t:ident)*) => { $(
        impl SearchKey for $t {
            type Key = $t;

            #[inline(always)]
            fn key(self) -> $t {
                self
            }

            #[inline(always)]
            fn place(self) -> f64 {
                self as f64
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
            #[inline(always)]
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

            #[inline(always)]
            fn place(self) -> f64 {
                // Subnormal numbers equal 0, as their keys do.
                let place = if self.abs() < $t::MIN_POSITIVE { 0.0 } else { self as f64 };
                if self.is_nan() { f64::INFINITY } else { place }
            }
        }
    )* };
}
float_keys!(f32 i32 f64 i64);

/// Counts, for each value, the elements of an ascending array that are less than it, or that are at most it with `counts_equal`.
/// NaN is greater than all numbers, and subnormal numbers equal 0.
///
/// The array must be ascending; otherwise the counts are unspecified. Allocates at most two integers for each value:
/// the keys of the elements, and a table of intervals.
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
/// Returns an error if there is not one count for each value, or if the array has more than 2³¹ - 1 elements.
pub fn search_sorted<T: SearchKey>(
    sorted: &[T],
    values: &[T],
    counts_equal: bool,
    counts: &mut [i32],
    threads: usize,
) -> Result<()> {
    T::search_sorted(sorted, values, counts_equal, counts, threads)
}

fn search_sorted_of<T: SearchKey>(
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
    let tasks = values.chunks(VALUES_PER_TASK).zip(counts.chunks_mut(VALUES_PER_TASK)).collect();
    let even = EvenElements::of(sorted, values.len());
    let intervals = if even.is_none() { Intervals::of(sorted, values.len()) } else { None };
    // The comparison is a constant of each call, so that every loop is compiled for one of them.
    fn run<T: SearchKey>(
        keys: &[T::Key],
        (even, intervals): (&Option<EvenElements>, &Option<Intervals>),
        sorted: &[T],
        is_before: impl Fn(T::Key, T::Key) -> bool + Copy,
        (values, counts): (&[T], &mut [i32]),
    ) {
        match (even, intervals) {
            (Some(even), _) => even.search(keys, is_before, values, counts),
            (None, Some(intervals)) => intervals.search(keys, is_before, values, counts),
            (None, None) if keys.is_empty() => search(sorted.len(), |i| sorted[i].key(), is_before, values, counts),
            (None, None) => search(keys.len(), |i| keys[i], is_before, values, counts),
        }
    }
    run_tasks(
        tasks,
        threads.max(1),
        || (),
        |(), task: (&[T], &mut [i32])| match counts_equal {
            true => run(&keys, (&even, &intervals), sorted, |key, value| key <= value, task),
            false => run(&keys, (&even, &intervals), sorted, |key, value| key < value, task),
        },
    );
    Ok(())
}

/// Elements that are about equally far apart, as the edges of a histogram with equal bins are: a product is the number of the elements
/// before a value, or one less or more.
struct EvenElements {
    first: f64,
    /// The number of elements for each unit of length.
    scale: f64,
    /// The largest estimate: at least one element follows it.
    last_estimate: f64,
}

impl EvenElements {
    /// Returns `None` if there are few values, or if an estimate could differ by more.
    fn of<T: SearchKey>(sorted: &[T], values: usize) -> Option<EvenElements> {
        if values / VALUES_PER_ELEMENT < sorted.len() || sorted.len() < 2 {
            return None;
        }
        let (first, last) = (sorted.first()?.place(), sorted.last()?.place());
        let scale = (sorted.len() - 1) as f64 / (last - first);
        if !(first.is_finite() && scale > 0.0 && scale.is_finite()) {
            return None;
        }
        let even = EvenElements { first, scale, last_estimate: (sorted.len() - 2) as f64 };
        // Estimates do not descend. Therefore a value between elements `i` and `i + 1` has an estimate from `i - 1` to `i + 1`, and
        // comparing it with the element at its estimate and with the next one is enough.
        let estimates = sorted.iter().map(|element| even.estimate(element.place()));
        estimates.enumerate().all(|(i, estimate)| estimate as usize == i || estimate as usize + 1 == i).then_some(even)
    }

    fn search<T: SearchKey>(
        &self,
        keys: &[T::Key],
        is_before: impl Fn(T::Key, T::Key) -> bool,
        values: &[T],
        counts: &mut [i32],
    ) {
        Arch::new().dispatch(EvenSearch { elements: self, keys, is_before, values, counts });
    }

    /// The nearest integer. The sum has it in its last bits.
    #[inline(always)]
    fn estimate(&self, place: f64) -> u32 {
        let estimate = ((place - self.first) * self.scale).max(0.0).min(self.last_estimate);
        (estimate + ROUND).to_bits() as u32
    }
}

/// A search among even elements.
struct EvenSearch<'a, T: SearchKey, F> {
    elements: &'a EvenElements,
    keys: &'a [T::Key],
    is_before: F,
    values: &'a [T],
    counts: &'a mut [i32],
}

impl<T: SearchKey, F: Fn(T::Key, T::Key) -> bool> WithSimd for EvenSearch<'_, T, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        for (values, counts) in self.values.chunks(EVEN_BLOCK).zip(self.counts.chunks_mut(EVEN_BLOCK)) {
            // These loops have no lookups, so that they become vector instructions.
            let (mut estimates, mut value_keys) = ([0; EVEN_BLOCK], [T::Key::default(); EVEN_BLOCK]);
            estimates.iter_mut().zip(values).for_each(|(at, value)| *at = self.elements.estimate(value.place()));
            value_keys.iter_mut().zip(values).for_each(|(key, value)| *key = value.key());
            for ((count, estimate), value) in counts.iter_mut().zip(estimates).zip(value_keys) {
                let neighbors = &self.keys[estimate as usize..][..2];
                let is_before = [neighbors[0], neighbors[1]].map(|key| i32::from((self.is_before)(key, value)));
                *count = estimate.cast_signed() + is_before[0] + is_before[1];
            }
        }
    }
}

/// Equal intervals between the first and the last element of an ascending array.
struct Intervals {
    first: f64,
    /// The number of intervals for each unit of length.
    scale: f64,
    /// The number of elements before each interval, and before the end of the last one.
    starts: Vec<u32>,
    /// No interval has more than one element, as between the edges of a histogram of equal bins.
    is_single: bool,
}

impl Intervals {
    /// Returns `None` if the table costs more than it saves, or the elements are too unevenly spread.
    fn of<T: SearchKey>(sorted: &[T], values: usize) -> Option<Intervals> {
        if values / VALUES_PER_ELEMENT < sorted.len() {
            return None;
        }
        let count = (INTERVALS_PER_ELEMENT * sorted.len()).min(MAX_INTERVALS);
        let (first, last) = (sorted.first()?.place(), sorted.last()?.place());
        let scale = count as f64 / (last - first);
        if !(first.is_finite() && scale > 0.0 && scale.is_finite()) {
            return None;
        }
        let mut intervals = Intervals { first, scale, starts: vec![0; count + 1], is_single: false };
        for element in sorted {
            let interval = intervals.interval(element.place());
            intervals.starts[interval + 1] += 1;
        }
        let most = intervals.starts.iter().copied().max()?;
        if most > MAX_IN_INTERVAL {
            return None;
        }
        intervals.is_single = most <= 1;
        for interval in 0..count {
            intervals.starts[interval + 1] += intervals.starts[interval];
        }
        Some(intervals)
    }

    /// The interval of a place. It does not descend where places ascend, because subtraction, multiplication and rounding do not.
    #[inline]
    fn interval(&self, place: f64) -> usize {
        let interval = (place - self.first) * self.scale;
        interval.max(0.0).min((self.starts.len() - 2) as f64) as u32 as usize
    }

    /// Counts the elements before each value: all elements of earlier intervals, and some of the value's interval.
    fn search<T: SearchKey>(
        &self,
        keys: &[T::Key],
        is_before: impl Fn(T::Key, T::Key) -> bool,
        values: &[T],
        counts: &mut [i32],
    ) {
        for (value, count) in values.iter().zip(counts) {
            let interval = self.interval(value.place());
            let (start, end) = (self.starts[interval] as usize, self.starts[interval + 1] as usize);
            let key = value.key();
            if self.is_single {
                // Nobody can predict whether the interval has an element.
                let has_element = start < end;
                let is_element_before = is_before(keys[start.min(keys.len() - 1)], key);
                *count = (start + usize::from(has_element & is_element_before)) as i32;
                continue;
            }
            let before = keys[start..end].iter().take_while(|element| is_before(**element, key)).count();
            *count = (start + before) as i32;
        }
    }
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
