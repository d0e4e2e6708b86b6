//! Sums along an axis with weights of which most are zero, as in resized images.
//!
//! A product with the matrix of weights multiplies each element of the axis with every column. Here zeros are skipped: linear interpolation
//! needs two products for an element of the result, whatever the size of the image.

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};

use crate::per_type::per_type;
use crate::tasks::run_tasks;
use crate::view::check;
use crate::{Result, View};

/// The number of weights that are used in one pass over the elements of a sum.
const WEIGHTS_OF_PASS: usize = 4;

/// The elements of a vector.
const VECTOR: usize = 8;

/// The minimum number of neighbouring elements that have the same weight. With fewer, `LANES` rows are transposed first.
const MIN_NEIGHBOURS: usize = 8;
const LANES: usize = 16;

/// The minimum number of elements of a task, of the operand and the result together.
const MIN_ELEMENTS_PER_TASK: usize = 1 << 15;

per_type!(WeightedSumsOf for [f32, f64] {
    fn weighted_sums(x: View<'_, Self>, weights: View<'_, Self>, sums: &mut [Self], threads: usize) = weighted_sums_of;
});

mod sealed {
    pub trait Sealed: super::WeightedSumsOf + Copy + Default + PartialEq + Send + Sync {
        /// Returns `a + w[0] x[0] + w[1] x[1] + w[2] x[2] + w[3] x[3]`.
        fn add_products(a: Self, w: [Self; super::WEIGHTS_OF_PASS], x: [Self; super::WEIGHTS_OF_PASS]) -> Self;
        fn add_product(a: Self, w: Self, x: Self) -> Self;
        fn are_finite(x: &[Self]) -> bool;
    }
}

use sealed::Sealed;

/// An element of [`weighted_sums`]: f32 or f64.
pub trait Weighted: Sealed {}

macro_rules! weighted {
    ($($t:ident)*) => { $(
        impl Weighted for $t {}

        impl Sealed for $t {
            #[inline(always)]
            fn add_products(a: $t, w: [$t; WEIGHTS_OF_PASS], x: [$t; WEIGHTS_OF_PASS]) -> $t {
                w.iter().zip(x).fold(a, |sum, (w, x)| sum + w * x)
            }

            #[inline(always)]
            fn add_product(a: $t, w: $t, x: $t) -> $t {
                a + w * x
            }

            // Without an early end, so that the loop is computed in vectors.
            #[inline(always)]
            fn are_finite(x: &[$t]) -> bool {
                x.iter().fold(true, |are_finite, x| are_finite & x.is_finite())
            }
        }
    )* };
}
weighted!(f32 f64);

/// Adds up the elements along axis 1 of `x: [batch, m, columns]` with weights `[m, n]`: a sum for each column of the weights, so that `sums`
/// has the shape `[batch, n, columns]`. Products with zeros are skipped, unless `x` has infinities or NaN near them, so that the result
/// has the same infinities and NaN as a product with the matrix.
///
/// ```
/// use shardax_cpu_kernels::{View, weighted_sums};
///
/// let x = View::new(&[1, 2, 1], &[1.0f32, 3.0])?;
/// let weights = View::new(&[2, 4], &[1.0, 0.75, 0.25, 0.0, 0.0, 0.25, 0.75, 1.0])?;
/// let mut sums = [0.0; 4];
/// weighted_sums(x, weights, &mut sums, 1)?;
/// assert_eq!(sums, [1.0, 1.5, 2.5, 3.0]);
/// # Ok::<(), shardax_cpu_kernels::ShapeError>(())
/// ```
///
/// # Errors
/// Returns an error if the shapes do not fit.
pub fn weighted_sums<T: Weighted>(x: View<'_, T>, weights: View<'_, T>, sums: &mut [T], threads: usize) -> Result<()> {
    T::weighted_sums(x, weights, sums, threads)
}

fn weighted_sums_of<T: Weighted>(x: View<'_, T>, weights: View<'_, T>, sums: &mut [T], threads: usize) -> Result<()> {
    let [batch, m, columns] = x.dims("the operand")?;
    let [rows, n] = weights.dims("the weights")?;
    check("the rows of the weights", rows, m)?;
    check("the elements of the result", sums.len(), batch * n * columns)?;
    if sums.is_empty() || m == 0 {
        sums.fill(T::default());
        return Ok(());
    }
    let weights = Weights::new(weights.data(), m, n);
    let matrices = MIN_ELEMENTS_PER_TASK.div_ceil((m + n) * columns).next_multiple_of(LANES);
    let parts = x.data().chunks(matrices * m * columns).zip(sums.chunks_mut(matrices * n * columns));
    let tasks = parts.map(|(x, sums)| Task { weights: &weights, columns, x, sums }).collect();
    run_tasks(tasks, threads.max(1), || (), |(), task| Arch::new().dispatch(task));
    Ok(())
}

/// A matrix of weights, and the weights of each column that are not zero, with their rows.
struct Weights<'a, T> {
    matrix: &'a [T],
    m: usize,
    n: usize,
    places: Vec<Range<usize>>,
    nonzero: Vec<(usize, T)>,
}

impl<'a, T: Weighted> Weights<'a, T> {
    fn new(matrix: &'a [T], m: usize, n: usize) -> Self {
        let mut counts = vec![0; n];
        for row in matrix.chunks_exact(n) {
            counts.iter_mut().zip(row).for_each(|(count, w)| *count += usize::from(*w != T::default()));
        }
        let mut end = 0;
        let mut places: Vec<Range<usize>> = Vec::with_capacity(n);
        for count in counts {
            places.push(end..end);
            end += count;
        }
        let mut nonzero = vec![(0, T::default()); end];
        for (k, row) in matrix.chunks_exact(n).enumerate() {
            for (w, place) in row.iter().zip(&mut places) {
                if *w != T::default() {
                    nonzero[place.end] = (k, *w);
                    place.end += 1;
                }
            }
        }
        Weights { matrix, m, n, places, nonzero }
    }
}

/// The sums of consecutive matrices.
struct Task<'a, T> {
    weights: &'a Weights<'a, T>,
    columns: usize,
    x: &'a [T],
    sums: &'a mut [T],
}

impl<T: Weighted> WithSimd for Task<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Task { weights, columns, x, sums } = self;
        let (m, n) = (weights.m * columns, weights.n * columns);
        if columns >= MIN_NEIGHBOURS {
            for (x, sums) in x.chunks_exact(m).zip(sums.chunks_exact_mut(n)) {
                sums_of_matrix(weights, columns, x, sums);
            }
            return;
        }
        let mut scratch = vec![T::default(); (m + n) * LANES];
        let (transposed, transposed_sums) = scratch.split_at_mut(m * LANES);
        for (x, sums) in x.chunks(m * LANES).zip(sums.chunks_mut(n * LANES)) {
            if x.len() < transposed.len() {
                // The remaining lanes may not keep infinities of earlier rows.
                transposed.fill(T::default());
            }
            for (lane, x) in x.chunks_exact(m).enumerate() {
                transposed.chunks_exact_mut(LANES).zip(x).for_each(|(lanes, x)| lanes[lane] = *x);
            }
            sums_of_matrix(weights, columns * LANES, transposed, transposed_sums);
            for (lane, sums) in sums.chunks_exact_mut(n).enumerate() {
                transposed_sums.chunks_exact(LANES).zip(sums).for_each(|(lanes, sum)| *sum = lanes[lane]);
            }
        }
    }
}

#[inline(always)]
fn sums_of_matrix<T: Weighted>(weights: &Weights<'_, T>, columns: usize, x: &[T], sums: &mut [T]) {
    let skips_zeros = T::are_finite(x);
    let mut column = Vec::new();
    for (j, sums) in sums.chunks_exact_mut(columns).enumerate() {
        let mut terms = &weights.nonzero[weights.places[j].clone()];
        if !skips_zeros {
            column.clear();
            column.extend((0..weights.m).map(|k| (k, weights.matrix[k * weights.n + j])));
            terms = &column;
        }
        match *terms {
            [a, b] => {
                sums_of_terms([a, b], columns, x, sums);
                continue;
            }
            [a, b, c, d] => {
                sums_of_terms([a, b, c, d], columns, x, sums);
                continue;
            }
            _ => sums.fill(T::default()),
        }
        let (passes, remainder) = terms.as_chunks::<WEIGHTS_OF_PASS>();
        for pass in passes {
            let [a, b, c, d] = pass.map(|(k, _)| &x[k * columns..][..columns]);
            let w = pass.map(|(_, w)| w);
            for ((((sum, a), b), c), d) in sums.iter_mut().zip(a).zip(b).zip(c).zip(d) {
                *sum = T::add_products(*sum, w, [*a, *b, *c, *d]);
            }
        }
        for (k, w) in remainder {
            let x = &x[k * columns..][..columns];
            sums.iter_mut().zip(x).for_each(|(sum, x)| *sum = T::add_product(*sum, *w, *x));
        }
    }
}

/// The sums of as many terms, as in interpolation. The vectors are explicit, because the compiler would compute short rows, such as the features
/// of a pixel, one element after the other.
#[inline(always)]
fn sums_of_terms<T: Weighted, const TERMS: usize>(terms: [(usize, T); TERMS], columns: usize, x: &[T], sums: &mut [T]) {
    let rows = terms.map(|(k, w)| (w, x[k * columns..][..columns].as_chunks::<VECTOR>()));
    let (vectors, remainder) = sums.as_chunks_mut::<VECTOR>();
    for (i, vector) in vectors.iter_mut().enumerate() {
        let mut sum = [T::default(); VECTOR];
        for (w, (x, _)) in &rows {
            for lane in 0..VECTOR {
                sum[lane] = T::add_product(sum[lane], *w, x[i][lane]);
            }
        }
        *vector = sum;
    }
    for (i, sum) in remainder.iter_mut().enumerate() {
        *sum = rows.iter().fold(T::default(), |sum, (w, (_, x))| T::add_product(sum, *w, x[i]));
    }
}
