//! Softmax of rows and of columns.
//!
//! XLA (xla-cpu-pjrt 0.0.1) reads the entire array four times: for the maxima, the exponentials, the sums and the
//! quotients. Here a row, or a block of columns, can stay in the processor's cache between these steps.

use half::{bf16, f16};
use pulp::{Arch, Simd, WithSimd};

use crate::Result;
use crate::attention::exp;
use crate::elementwise::{ROUND, multiply_add, polynomial};
use crate::few_rows::Weight;
use crate::per_type::per_type;
use crate::rounded::Rounded;
use crate::tasks::run_tasks;
use crate::view::{View, check};

/// The minimum number of elements of a task.
const ELEMENTS_PER_TASK: usize = 1 << 14;

/// The number of exponentials that are computed together, of several rows if rows are short, because a loop over few elements
/// uses no vectors.
const BLOCK: usize = 1 << 12;

/// The number of exponentials that are added up in the type of the elements. The sums of such parts of a row are added up in f64.
const PART: usize = 1 << 12;

/// The number of maxima and of sums of f64 that are computed together, for vectorization.
const LANES: usize = 16;

/// The number of elements of a block of columns, and its minimum number of columns. Blocks of fewer columns stay in a cache, but the
/// processor prefetches such short parts of rows too late. Two threads that share shorter rows take more time than one (4,096 × 1,000 on
/// Zen 3: 6.4 ms, and 11 to 16 on two threads), probably because each fetches parts that the other one writes.
const COLUMN_BLOCK: usize = 1 << 16;
const MIN_COLUMNS: usize = 1 << 10;

/// The number of rows whose exponentials are added up in the type of the elements. The sums of such parts of a column are added up in f64.
const PART_ROWS: usize = 256;

/// Exponentials of f64 at most as large are 0: the next ones are subnormal.
const SMALLEST: f64 = -708.396;

/// log 2 in two parts. Products of the first one with an integer of 20 bits are exact.
const LN_2: [f64; 2] = [0.6931471803691238, 1.9082149292705877e-10];

/// (eʳ - 1 - r) / r² between the halves of log 2, interpolated at Chebyshev nodes.
pub(crate) const EXP: [f64; 10] = [
    0.5,
    0.16666666666666669,
    0.041666666666623824,
    0.008333333333330039,
    0.0013888888917367081,
    0.00019841269863171557,
    2.4801521057868204e-05,
    2.7557268276905696e-06,
    2.7620201591031547e-07,
    2.5100472505694996e-08,
];

per_type!(SoftmaxOf for [f32, f64] {
    fn softmax(n: usize, x: &[Self], y: &mut [Self], threads: usize) = softmax_of;
    fn softmax_columns(x: View<'_, Self>, y: &mut [Self], threads: usize) = softmax_columns_of;
});

per_type!(SoftmaxOfHalf for [bf16, f16] {
    fn softmax_half(n: usize, x: &[Self], y: &mut [Self], threads: usize) = softmax_half_of;
});

mod sealed {
    use pulp::Simd;

    /// The steps of a softmax.
    pub trait Sealed:
        super::SoftmaxOf
        + Copy
        + Default
        + Send
        + Sync
        + Into<f64>
        + PartialOrd
        + std::ops::Sub<Output = Self>
        + std::ops::AddAssign
        + std::ops::MulAssign
    {
        const NEG_INFINITY: Self;
        /// The maximum, ignoring NaN.
        fn largest(row: &[Self]) -> Self;
        /// The exponential of a number that is at most 0.
        fn exp<S: Simd>(self, simd: S) -> Self;
        fn sum(part: &[Self]) -> f64;
        fn narrow(wide: f64) -> Self;
    }
}

use sealed::Sealed;

/// An element of the rows of [`softmax`]: f32 or f64.
pub trait Logit: Sealed {}
impl Logit for f32 {}
impl Logit for f64 {}

impl Sealed for f32 {
    const NEG_INFINITY: f32 = f32::NEG_INFINITY;

    #[inline(always)]
    fn largest(row: &[f32]) -> f32 {
        exp::largest(row)
    }

    #[inline(always)]
    fn exp<S: Simd>(self, simd: S) -> f32 {
        exp::exp(simd, self)
    }

    #[inline(always)]
    fn sum(part: &[f32]) -> f64 {
        exp::sum(part).into()
    }

    #[inline(always)]
    fn narrow(wide: f64) -> f32 {
        wide as f32
    }
}

impl Sealed for f64 {
    const NEG_INFINITY: f64 = f64::NEG_INFINITY;

    #[inline(always)]
    fn largest(row: &[f64]) -> f64 {
        let mut maxima = [f64::NEG_INFINITY; LANES];
        let (chunks, remainder) = row.as_chunks::<LANES>();
        for chunk in chunks {
            maxima.iter_mut().zip(chunk).for_each(|(max, x)| *max = if *x > *max { *x } else { *max });
        }
        maxima.iter().chain(remainder).fold(f64::NEG_INFINITY, |max, x| if *x > max { *x } else { max })
    }

    /// `2ⁿ eʳ`, to 1 unit in the last place.
    #[inline(always)]
    fn exp<S: Simd>(self, simd: S) -> f64 {
        let rounded = multiply_add(simd, self.clamp(SMALLEST, 0.0), std::f64::consts::LOG2_E, ROUND);
        let power = f64::from_bits((rounded.to_bits() << 52).wrapping_add(1.0f64.to_bits()));
        let n = rounded - ROUND;
        let r = multiply_add(simd, n, -LN_2[1], multiply_add(simd, n, -LN_2[0], self));
        let y = multiply_add(simd, polynomial(simd, r, EXP), r * r, r) + 1.0;
        if self < SMALLEST { 0.0 } else { y * power }
    }

    #[inline(always)]
    fn sum(part: &[f64]) -> f64 {
        let mut sums = [0.0; LANES];
        let (chunks, remainder) = part.as_chunks::<LANES>();
        for chunk in chunks {
            chunk.iter().zip(&mut sums).for_each(|(x, sum)| *sum += *x);
        }
        sums.iter().chain(remainder).sum()
    }

    #[inline(always)]
    fn narrow(wide: f64) -> f64 {
        wide
    }
}

/// An element of the rows of [`softmax_half`]: bf16 or f16.
pub trait HalfLogit: SoftmaxOfHalf + Weight + Rounded<f32> {}
impl HalfLogit for bf16 {}
impl HalfLogit for f16 {}

/// Computes `exp(x) / sum(exp(x))` of each row of `n` elements, without overflow. A row is NaN if it contains NaN or
/// infinity, or only negative infinity.
///
/// ```
/// let mut y = [0.0; 4];
/// shardax_cpu_kernels::softmax(2, &[1000.0f32, 1000.0, 0.0, f32::NEG_INFINITY], &mut y, 1)?;
/// assert_eq!(y, [0.5, 0.5, 1.0, 0.0]);
/// # Ok::<(), shardax_cpu_kernels::ShapeError>(())
/// ```
///
/// # Errors
/// Returns an error if the numbers of elements do not fit.
pub fn softmax<T: Logit>(n: usize, x: &[T], y: &mut [T], threads: usize) -> Result<()> {
    T::softmax(n, x, y, threads)
}

fn softmax_of<T: Logit>(n: usize, x: &[T], y: &mut [T], threads: usize) -> Result<()> {
    check("the elements of rows", x.len(), x.len() / n.max(1) * n)?;
    check("the elements of the result", y.len(), x.len())?;
    if x.is_empty() {
        return Ok(());
    }
    let rows = ELEMENTS_PER_TASK.div_ceil(n) * n;
    let tasks = x.chunks(rows).zip(y.chunks_mut(rows)).collect();
    run_tasks(tasks, threads.max(1), || (), |(), (x, y)| Arch::new().dispatch(Rows { n, x, y }));
    Ok(())
}

/// Computes the softmax of rows of `n` elements of half precision like [`softmax`], in f32, and rounds each result once. A block of rows is
/// widened in the processor's cache. Allocates the larger of 16 KiB and a row of f32 for each thread.
///
/// ```
/// use half::bf16;
///
/// let x = [3.0, 3.0, 0.0, f32::NEG_INFINITY].map(bf16::from_f32);
/// let mut y = [bf16::ZERO; 4];
/// shardax_cpu_kernels::softmax_half(2, &x, &mut y, 1)?;
/// assert_eq!(y.map(f32::from), [0.5, 0.5, 1.0, 0.0]);
/// # Ok::<(), shardax_cpu_kernels::ShapeError>(())
/// ```
///
/// # Errors
/// Returns an error if the numbers of elements do not fit.
pub fn softmax_half<T: HalfLogit>(n: usize, x: &[T], y: &mut [T], threads: usize) -> Result<()> {
    T::softmax_half(n, x, y, threads)
}

fn softmax_half_of<T: HalfLogit>(n: usize, x: &[T], y: &mut [T], threads: usize) -> Result<()> {
    check("the elements of rows", x.len(), x.len() / n.max(1) * n)?;
    check("the elements of the result", y.len(), x.len())?;
    if x.is_empty() {
        return Ok(());
    }
    let rows = ELEMENTS_PER_TASK.div_ceil(n) * n;
    let block = ((BLOCK / n).max(1) * n).min(x.len());
    let tasks = x.chunks(rows).zip(y.chunks_mut(rows)).collect();
    run_tasks(
        tasks,
        threads.max(1),
        || vec![0.0; block],
        |block, (x, y)| Arch::new().dispatch(HalfRows { n, x, y, block }),
    );
    Ok(())
}

/// Computes `exp(x) / sum(exp(x))` of each column of matrices `[batch, rows, columns]`, like [`softmax`] of rows. You can use it along any
/// axis, because the leading dimensions are the batch and the trailing ones the columns.
///
/// ```
/// use shardax_cpu_kernels::{View, softmax_columns};
///
/// let mut y = [0.0; 4];
/// softmax_columns(View::new(&[1, 2, 2], &[1000.0f32, 0.0, 1000.0, f32::NEG_INFINITY])?, &mut y, 1)?;
/// assert_eq!(y, [0.5, 1.0, 0.5, 0.0]);
/// # Ok::<(), shardax_cpu_kernels::ShapeError>(())
/// ```
///
/// # Errors
/// Returns an error if `y` does not have as many elements as `x`, or `x` does not have three dimensions.
pub fn softmax_columns<T: Logit>(x: View<'_, T>, y: &mut [T], threads: usize) -> Result<()> {
    T::softmax_columns(x, y, threads)
}

fn softmax_columns_of<T: Logit>(x: View<'_, T>, y: &mut [T], threads: usize) -> Result<()> {
    let [_, rows, columns] = x.dims("the operand")?;
    check("the elements of the result", y.len(), x.data().len())?;
    if y.is_empty() {
        return Ok(());
    }
    let width = (COLUMN_BLOCK / rows).max(MIN_COLUMNS).min(columns);
    let mut tasks = Vec::new();
    for (x, y) in x.data().chunks_exact(rows * columns).zip(y.chunks_exact_mut(rows * columns)) {
        let start = tasks.len();
        tasks.extend((0..columns.div_ceil(width)).map(|_| Columns { rows: Vec::with_capacity(rows) }));
        for (x, y) in x.chunks_exact(columns).zip(y.chunks_exact_mut(columns)) {
            let parts = x.chunks(width).zip(y.chunks_mut(width));
            tasks[start..].iter_mut().zip(parts).for_each(|(task, part)| task.rows.push(part));
        }
    }
    run_tasks(tasks, threads.max(1), || (), |(), task| Arch::new().dispatch(task));
    Ok(())
}

/// A block of columns: the parts of all rows of a matrix and of its result.
struct Columns<'a, T> {
    rows: Vec<(&'a [T], &'a mut [T])>,
}

impl<T: Logit> WithSimd for Columns<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let width = self.rows.first().map_or(0, |(x, _)| x.len());
        let mut maxima = vec![T::NEG_INFINITY; width];
        for (x, _) in &self.rows {
            maxima.iter_mut().zip(*x).for_each(|(max, x)| *max = if *x > *max { *x } else { *max });
        }
        let (mut sums, mut totals) = (vec![T::default(); width], vec![0.0f64; width]);
        for part in self.rows.chunks_mut(PART_ROWS) {
            sums.fill(T::default());
            for (x, y) in part {
                for (((y, x), max), sum) in y.iter_mut().zip(*x).zip(&maxima).zip(&mut sums) {
                    *y = (*x - *max).exp(simd);
                    *sum += *y;
                }
            }
            totals.iter_mut().zip(&sums).for_each(|(total, sum)| *total += (*sum).into());
        }
        let factors: Vec<T> = totals.iter().map(|total| T::narrow(1.0 / total)).collect();
        for (_, y) in &mut self.rows {
            y.iter_mut().zip(&factors).for_each(|(y, factor)| *y *= *factor);
        }
    }
}

struct Rows<'a, T> {
    n: usize,
    x: &'a [T],
    y: &'a mut [T],
}

impl<T: Logit> WithSimd for Rows<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let n = self.n;
        let block = (BLOCK / n).max(1) * n;
        for (x, y) in self.x.chunks(block).zip(self.y.chunks_mut(block)) {
            for (x, y) in x.chunks_exact(n).zip(y.chunks_exact_mut(n)) {
                let max = T::largest(x);
                x.iter().zip(y).for_each(|(x, y)| *y = *x - max);
            }
            divide_exponentials(simd, n, y);
        }
    }
}

/// Replaces rows of differences to the maximum by their softmax.
#[inline(always)]
fn divide_exponentials<T: Logit, S: Simd>(simd: S, n: usize, y: &mut [T]) {
    y.iter_mut().for_each(|y| *y = y.exp(simd));
    for y in y.chunks_exact_mut(n) {
        let total: f64 = y.chunks(PART).map(T::sum).sum();
        let factor = T::narrow(1.0 / total);
        y.iter_mut().for_each(|y| *y *= factor);
    }
}

/// Rows of half precision. `block` is memory for the rows that are computed together.
struct HalfRows<'a, T> {
    n: usize,
    x: &'a [T],
    y: &'a mut [T],
    block: &'a mut [f32],
}

impl<T: HalfLogit> WithSimd for HalfRows<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (n, size) = (self.n, self.block.len());
        for (x, y) in self.x.chunks(size).zip(self.y.chunks_mut(size)) {
            let block = &mut self.block[..x.len()];
            block.iter_mut().zip(x).for_each(|(wide, x)| *wide = x.widened());
            for row in block.chunks_exact_mut(n) {
                let max = f32::largest(row);
                row.iter_mut().for_each(|x| *x -= max);
            }
            divide_exponentials(simd, n, block);
            y.iter_mut().zip(block).for_each(|(y, wide)| *y = T::rounded(*wide));
        }
    }
}
