//! Cumulative sums, products, maxima, minima, and logarithms of sums of exponentials.
//!
//! XLA (xla-cpu-pjrt 0.0.1) rewrites a window that grows along an axis as a tree of blocks. Along an axis that is not the
//! last one, its loops go down the columns: the cumulative sum of a f32[4096,4096] along axis 0 takes 600 ms instead of 25.

use crate::per_type::per_type;
use crate::row_sums::row_sums;
use crate::tasks::run_tasks;
use crate::view::check;
use crate::{Result, View};

/// The operation of [`cumulative`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cumulative {
    /// Sums.
    Sum,
    /// Products.
    Product,
    /// Maxima; NaN after a NaN.
    Max,
    /// Minima; NaN after a NaN.
    Min,
}

/// The number of columns that are computed together, so that their totals stay in the first-level cache.
const COLUMNS: usize = 2048;

/// The minimum number of elements of a thread.
const MIN_ELEMENTS_PER_THREAD: usize = 1 << 17;

/// The minimum number of elements of a thread, if each costs an exponential and a logarithm.
const MIN_LOG_ELEMENTS_PER_THREAD: usize = 1 << 13;

/// The number of rows that are computed together if there is one column. Each row is a chain of additions, and an
/// addition must wait several cycles for the one before it, so several chains run at once.
const CHAINS: usize = 4;

per_type!(CumulativeOf for [f32, f64, i32, i64, u32, u64] {
    fn cumulative(
        x: View<'_, Self>,
        operation: Cumulative,
        is_reversed: bool,
        out: &mut [Self],
        threads: usize
    ) = cumulative_of;
});

mod sealed {
    /// Writes cumulative sums of rows: the elements, the elements of a row, whether from the end, and the results.
    pub type RowSums<T> = fn(&[T], usize, bool, &mut [T]);

    /// The arithmetic of elements, in the type of their totals.
    pub trait Sealed: super::CumulativeOf + Copy + Send + Sync + Default {
        type Total: Copy + Send;
        /// The function that writes the cumulative sums of rows of `n` elements by vectors, if there is one.
        const ROW_SUMS: Option<RowSums<Self>> = None;
        fn widen(self) -> Self::Total;
        fn narrow(total: Self::Total) -> Self;
        /// The total to continue with: a result that overflows stays infinite.
        fn carried(total: Self::Total, result: Self) -> Self::Total;
        fn add(a: Self::Total, b: Self::Total) -> Self::Total;
        fn multiply(a: Self::Total, b: Self::Total) -> Self::Total;
        fn max(a: Self::Total, b: Self::Total) -> Self::Total;
        fn min(a: Self::Total, b: Self::Total) -> Self::Total;
    }
}

use sealed::{RowSums, Sealed};

/// An element of the arrays of [`cumulative`]: f32, f64, i32, i64, u32 or u64.
pub trait Accumulate: Sealed {}

macro_rules! floats {
    ($($t:ident $row_sums:expr;)*) => { $(
        impl Accumulate for $t {}

        // Totals are f64, so that rounding errors of f32 do not grow along the axis.
        impl Sealed for $t {
            type Total = f64;

            const ROW_SUMS: Option<RowSums<$t>> = $row_sums;

            #[inline]
            fn widen(self) -> f64 {
                self.into()
            }

            #[inline]
            fn narrow(total: f64) -> $t {
                total as $t
            }

            #[inline]
            fn carried(total: f64, result: $t) -> f64 {
                if result.is_infinite() { result.into() } else { total }
            }

            #[inline]
            fn add(a: f64, b: f64) -> f64 {
                a + b
            }

            #[inline]
            fn multiply(a: f64, b: f64) -> f64 {
                a * b
            }

            #[inline]
            fn max(a: f64, b: f64) -> f64 {
                let larger = if b > a { b } else { a };
                // Zeros are equal, and 0 is larger than -0.
                let larger = if b == a { f64::from_bits(a.to_bits() & b.to_bits()) } else { larger };
                if b.is_nan() { b } else { larger }
            }

            #[inline]
            fn min(a: f64, b: f64) -> f64 {
                let smaller = if b < a { b } else { a };
                let smaller = if b == a { f64::from_bits(a.to_bits() | b.to_bits()) } else { smaller };
                if b.is_nan() { b } else { smaller }
            }
        }
    )* };
}
floats! {
    f32 Some(row_sums);
    f64 None;
}

macro_rules! integers {
    ($($t:ident)*) => { $(
        impl Accumulate for $t {}

        impl Sealed for $t {
            type Total = $t;

            #[inline]
            fn widen(self) -> $t {
                self
            }

            #[inline]
            fn narrow(total: $t) -> $t {
                total
            }

            #[inline]
            fn carried(total: $t, _result: $t) -> $t {
                total
            }

            #[inline]
            fn add(a: $t, b: $t) -> $t {
                a.wrapping_add(b)
            }

            #[inline]
            fn multiply(a: $t, b: $t) -> $t {
                a.wrapping_mul(b)
            }

            #[inline]
            fn max(a: $t, b: $t) -> $t {
                Ord::max(a, b)
            }

            #[inline]
            fn min(a: $t, b: $t) -> $t {
                Ord::min(a, b)
            }
        }
    )* };
}
integers!(i32 i64 u32 u64);

/// Combines each element of `x`, `[batch, rows, columns]`, with all elements before it along the rows, or with all
/// after it if `is_reversed`. You can use it along any axis, because the leading dimensions are the batch and the
/// trailing ones the columns.
///
/// Sums and products of f32 are computed in f64, and each result is rounded once; one that overflows stays infinite. Integers wrap around. Allocates 16 KiB and a few words for
/// each row.
///
/// ```
/// use shardax_cpu_kernels::{Cumulative, View, cumulative};
///
/// let x = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0];
/// let mut sums = [0.0; 6];
/// cumulative(View::new(&[1, 3, 2], &x)?, Cumulative::Sum, false, &mut sums, 1)?;
/// assert_eq!(sums, [1.0, 2.0, 4.0, 6.0, 9.0, 12.0]);
/// # Ok::<(), shardax_cpu_kernels::ShapeError>(())
/// ```
///
/// # Errors
/// Returns an error if the shapes do not agree with this description.
pub fn cumulative<T: Accumulate>(
    x: View<'_, T>,
    operation: Cumulative,
    is_reversed: bool,
    out: &mut [T],
    threads: usize,
) -> Result<()> {
    T::cumulative(x, operation, is_reversed, out, threads)
}

fn cumulative_of<T: Accumulate>(
    x: View<'_, T>,
    operation: Cumulative,
    is_reversed: bool,
    out: &mut [T],
    threads: usize,
) -> Result<()> {
    let shape = x.dims("the operand")?;
    check("the elements of the result", out.len(), x.data().len())?;
    if out.is_empty() {
        return Ok(());
    }
    let threads = threads.min(out.len() / MIN_ELEMENTS_PER_THREAD);
    if let (Cumulative::Sum, Some(row_sums), [_, _, 1]) = (operation, T::ROW_SUMS, shape) {
        let size = CHAINS * shape[1];
        let tasks = x.data().chunks(size).zip(out.chunks_mut(size)).collect();
        run_tasks(tasks, threads, || (), |(), (x, out)| row_sums(x, shape[1], is_reversed, out));
        return Ok(());
    }
    match operation {
        Cumulative::Sum => combine(x.data(), shape, T::widen, totals(T::add), is_reversed, out, threads),
        Cumulative::Product => combine(x.data(), shape, T::widen, totals(T::multiply), is_reversed, out, threads),
        Cumulative::Max => combine(x.data(), shape, T::widen, totals(T::max), is_reversed, out, threads),
        Cumulative::Min => combine(x.data(), shape, T::widen, totals(T::min), is_reversed, out, threads),
    }
    Ok(())
}

/// Returns the step of a total: the total to continue with, and the result.
fn totals<T: Accumulate>(
    f: impl Fn(T::Total, T::Total) -> T::Total + Copy + Sync,
) -> impl Fn(T::Total, T) -> (T::Total, T) + Copy + Sync {
    move |total, x| {
        let combined = f(total, x.widen());
        let result = T::narrow(combined);
        (T::carried(combined, result), result)
    }
}

/// Computes cumulative `log(sum(exp(x)))` of `x`, `[batch, rows, columns]`, along the rows: of each element and all
/// elements before it, or all after it if `is_reversed`. The sums are in f64 and relative to the largest exponent, so
/// that they cannot overflow. Allocates 32 KiB and a few words for each row.
///
/// ```
/// use shardax_cpu_kernels::{View, cumulative_logsumexp};
///
/// let mut out = [0.0; 3];
/// cumulative_logsumexp(View::new(&[1, 3, 1], &[0.0f32, 0.0, f32::NEG_INFINITY])?, false, &mut out, 1)?;
/// assert_eq!(out, [0.0, 2f32.ln(), 2f32.ln()]);
/// # Ok::<(), shardax_cpu_kernels::ShapeError>(())
/// ```
///
/// # Errors
/// Returns an error if `out` does not have as many elements as `x`, or `x` does not have three dimensions.
pub fn cumulative_logsumexp<T: Accumulate<Total = f64>>(
    x: View<'_, T>,
    is_reversed: bool,
    out: &mut [T],
    threads: usize,
) -> Result<()> {
    let shape = x.dims("the operand")?;
    check("the elements of the result", out.len(), x.data().len())?;
    if out.is_empty() {
        return Ok(());
    }
    let threads = threads.min(out.len() / MIN_LOG_ELEMENTS_PER_THREAD);
    combine(x.data(), shape, |x| (x.widen(), 1.0), add_exponential, is_reversed, out, threads);
    Ok(())
}

/// Adds an exponential. The total is the largest exponent so far, and the sum of exponentials divided by the exponential of the
/// largest exponent.
fn add_exponential<T: Accumulate<Total = f64>>((largest, sum): (f64, f64), x: T) -> ((f64, f64), T) {
    let x = x.widen();
    let (largest, sum) = if x > largest {
        (x, sum * (largest - x).exp() + 1.0)
    } else if x == largest {
        // The difference of equal infinities would be NaN.
        (largest, sum + 1.0)
    } else {
        (largest, sum + (x - largest).exp())
    };
    ((largest, sum), T::narrow(largest + sum.ln()))
}

/// Combines the elements along the rows. `start` is the total of the first element, and `step` adds an element to a total,
/// and returns the total and the result.
fn combine<T: Accumulate, Total: Copy + Send>(
    x: &[T],
    [_, rows, columns]: [usize; 3],
    start: impl Fn(T) -> Total + Copy + Sync,
    step: impl Fn(Total, T) -> (Total, T) + Copy + Sync,
    is_reversed: bool,
    out: &mut [T],
    threads: usize,
) {
    if columns == 1 {
        let tasks = x.chunks(CHAINS * rows).zip(out.chunks_mut(CHAINS * rows)).collect();
        return run_tasks(tasks, threads, || (), |(), (x, out)| chains(x, rows, start, step, is_reversed, out));
    }
    // A task is a block of columns of one matrix: the parts of all its rows.
    let blocks = columns.div_ceil(COLUMNS);
    let mut tasks: Vec<Vec<(&[T], &mut [T])>> = Vec::new();
    for (x, out) in x.chunks_exact(rows * columns).zip(out.chunks_exact_mut(rows * columns)) {
        let start = tasks.len();
        tasks.extend((0..blocks).map(|_| Vec::with_capacity(rows)));
        for (x, out) in x.chunks_exact(columns).zip(out.chunks_exact_mut(columns)) {
            let parts = x.chunks(COLUMNS).zip(out.chunks_mut(COLUMNS));
            tasks[start..].iter_mut().zip(parts).for_each(|(task, part)| task.push(part));
        }
    }
    run_tasks(
        tasks,
        threads,
        || (),
        |(), task| {
            if !is_reversed {
                rows_of(task.into_iter(), start, step)
            } else {
                rows_of(task.into_iter().rev(), start, step)
            }
        },
    );
}

/// Combines rows, element by element.
fn rows_of<'a, T: Accumulate + 'a, Total: Copy>(
    rows: impl Iterator<Item = (&'a [T], &'a mut [T])>,
    start: impl Fn(T) -> Total,
    step: impl Fn(Total, T) -> (Total, T),
) {
    let mut totals: Vec<Total> = Vec::new();
    for (x, out) in rows {
        if totals.is_empty() {
            totals.extend(x.iter().map(|x| start(*x)));
            out.copy_from_slice(x);
            continue;
        }
        for ((total, x), out) in totals.iter_mut().zip(x).zip(out) {
            (*total, *out) = step(*total, *x);
        }
    }
}

/// Combines the elements of each of at most `CHAINS` rows.
fn chains<T: Accumulate, Total: Copy>(
    x: &[T],
    n: usize,
    start: impl Fn(T) -> Total,
    step: impl Fn(Total, T) -> (Total, T) + Copy,
    is_reversed: bool,
    out: &mut [T],
) {
    if x.len() == CHAINS * n {
        return chains_of::<T, Total, CHAINS>(x, n, start, step, is_reversed, out);
    }
    for (x, out) in x.chunks_exact(n).zip(out.chunks_exact_mut(n)) {
        chains_of::<T, Total, 1>(x, n, &start, step, is_reversed, out);
    }
}

fn chains_of<T: Accumulate, Total: Copy, const N: usize>(
    x: &[T],
    n: usize,
    start: impl Fn(T) -> Total,
    step: impl Fn(Total, T) -> (Total, T),
    is_reversed: bool,
    out: &mut [T],
) {
    let first = if is_reversed { n - 1 } else { 0 };
    let mut totals: [Total; N] = std::array::from_fn(|row| start(x[row * n + first]));
    for row in 0..N {
        out[row * n + first] = x[row * n + first];
    }
    for i in 1..n {
        let i = if is_reversed { n - 1 - i } else { i };
        for (row, total) in totals.iter_mut().enumerate() {
            (*total, out[row * n + i]) = step(*total, x[row * n + i]);
        }
    }
}
