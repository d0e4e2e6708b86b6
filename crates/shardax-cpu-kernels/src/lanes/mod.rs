//! Batches of small matrices: 16 at a time, each in its own lane of the processor's vectors.
//!
//! XLA (xla-cpu-pjrt 0.0.1) and LAPACK compute one small matrix after the other, with loops that are too short for
//! vectors. Here element `i` of all matrices is one array, and the loops over lanes become vector instructions of the
//! processor, chosen at run time: all functions are inlined into the body of a `WithSimd`. No lane depends on another, so you get the same bits for a matrix in any batch and with any number of threads.

mod cholesky;
mod eigh;
mod lu;
mod qr;
mod refine;
mod svd;
mod triangular;

pub(crate) use cholesky::cholesky;
pub(crate) use eigh::eigh;
pub(crate) use lu::lu;
pub(crate) use qr::qr;
pub(crate) use svd::svd;
pub(crate) use triangular::triangular_solve;

use pulp::Simd;

use crate::real::Real;

/// The number of matrices that are computed together.
pub(crate) const LANES: usize = 16;

/// An element of each matrix.
pub(crate) type Lanes<T> = [T; LANES];

/// The smallest batch that is worth it: below, most lanes would be empty.
pub(crate) const MIN_BATCH: usize = 4;

/// The largest number of rows and of columns of matrices that are factorized or solved by lanes.
pub(crate) const MAX_SIDE: usize = 32;

/// The minimum number of multiply-adds of a thread.
pub(crate) const MIN_MULTIPLY_ADDS_PER_THREAD: usize = 1 << 18;

/// Memory for matrices of this many elements.
pub(crate) fn zeros<T: Real>(size: usize) -> Vec<Lanes<T>> {
    vec![[T::ZERO; LANES]; size]
}

/// The number of elements of a matrix that are copied to or from lanes together: a line of the cache of f32. Matrices whose size is a power
/// of two share a few sets of the cache, so that a line is read once, and not again for each of its elements.
const ELEMENTS: usize = 16;

/// The largest size of matrices whose lines stay in the cache anyway.
const MAX_NEAR: usize = 64;

/// Copies at most `LANES` matrices of `size` elements to their lanes. Lanes without a matrix are zero.
pub(crate) fn interleave<T: Real>(from: &[T], size: usize, to: &mut [Lanes<T>]) {
    if from.len() < LANES * size {
        to.fill([T::ZERO; LANES]);
    }
    if from.len() == LANES * size && size <= MAX_NEAR {
        for (element, to) in to.iter_mut().enumerate() {
            *to = std::array::from_fn(|lane| from[lane * size + element]);
        }
        return;
    }
    for (block, to) in to.chunks_mut(ELEMENTS).enumerate() {
        for (lane, matrix) in from.chunks_exact(size).enumerate() {
            to.iter_mut().zip(&matrix[block * ELEMENTS..]).for_each(|(to, x)| to[lane] = *x);
        }
    }
}

/// Copies the lanes to matrices of `size` elements.
pub(crate) fn deinterleave<T: Copy>(from: &[Lanes<T>], size: usize, to: &mut [T]) {
    for (block, from) in from.chunks(ELEMENTS).enumerate() {
        for (lane, matrix) in to.chunks_exact_mut(size).enumerate() {
            matrix[block * ELEMENTS..].iter_mut().zip(from).for_each(|(x, from)| *x = from[lane]);
        }
    }
}

/// Subtracts a product from a sum in each lane.
#[inline(always)]
fn subtract_product<T: Real, S: Simd>(simd: S, sum: &mut Lanes<T>, a: &Lanes<T>, b: &Lanes<T>) {
    for lane in 0..LANES {
        sum[lane] = T::multiply_add(simd, -a[lane], b[lane], sum[lane]);
    }
}

/// Rotates two columns, or rows, in each lane: `(c x - s y, s x + c y)`.
#[inline(always)]
fn rotate<T: Real>(x: &mut Lanes<T>, y: &mut Lanes<T>, cos: &Lanes<T>, sin: &Lanes<T>) {
    for lane in 0..LANES {
        let (c, s, a, b) = (cos[lane], sin[lane], x[lane], y[lane]);
        x[lane] = c * a - s * b;
        y[lane] = s * a + c * b;
    }
}

/// Two different elements of a slice; `first` is before `second`.
#[inline(always)]
fn pair<T>(x: &mut [T], first: usize, second: usize) -> (&mut T, &mut T) {
    let (head, tail) = x.split_at_mut(second);
    (&mut head[first], &mut tail[0])
}

/// Exchanges the elements of two arrays in the lanes where `is_exchanged`.
#[inline(always)]
fn exchange<T: Copy>(x: &mut Lanes<T>, y: &mut Lanes<T>, is_exchanged: &[bool; LANES]) {
    for lane in 0..LANES {
        let (a, b) = (x[lane], y[lane]);
        x[lane] = if is_exchanged[lane] { b } else { a };
        y[lane] = if is_exchanged[lane] { a } else { b };
    }
}

/// The cosine and the sine of the rotation that annihilates the element `off` of the symmetric `[p off; off q]`.
#[inline(always)]
fn rotation<T: Real>(p: T, q: T, off: T) -> (T, T) {
    let theta = (q - p) / (off + off);
    let tangent = T::ONE / (theta.magnitude() + (theta * theta + T::ONE).root());
    let tangent = if theta < T::ZERO { -tangent } else { tangent };
    let cos = T::ONE / (tangent * tangent + T::ONE).root();
    (cos, tangent * cos)
}

/// A power of two for each lane that makes the largest of these elements about 1, and whether all of them are finite. Elements that are not
/// finite become 0.
#[inline(always)]
fn scale<T: Real>(a: &mut [Lanes<T>]) -> (Lanes<T>, [bool; LANES]) {
    let (mut largest, mut is_finite) = ([T::ZERO; LANES], [true; LANES]);
    for element in a.iter() {
        for lane in 0..LANES {
            let size = element[lane].magnitude();
            largest[lane] = if size > largest[lane] { size } else { largest[lane] };
            is_finite[lane] &= element[lane].is_finite();
        }
    }
    let powers: Lanes<T> =
        std::array::from_fn(|lane| if is_finite[lane] { largest[lane].power_of_two() } else { T::ONE });
    for element in a.iter_mut() {
        for lane in 0..LANES {
            element[lane] = if is_finite[lane] { element[lane] / powers[lane] } else { T::ZERO };
        }
    }
    (powers, is_finite)
}

/// Sorts values, in each lane, and the columns of matrices of `n` columns with them, by exchanges of neighbours.
#[inline(always)]
fn sort_columns<T: Real, const N: usize>(
    values: &mut [Lanes<T>],
    matrices: [&mut [Lanes<T>]; N],
    is_before: impl Fn(T, T) -> bool,
) {
    let n = values.len();
    let mut matrices = matrices;
    for end in (1..n).rev() {
        for i in 0..end {
            let is_exchanged: [bool; LANES] =
                std::array::from_fn(|lane| is_before(values[i + 1][lane], values[i][lane]));
            if !is_exchanged.contains(&true) {
                continue;
            }
            let (x, y) = pair(values, i, i + 1);
            exchange(x, y, &is_exchanged);
            for matrix in &mut matrices {
                for row in matrix.chunks_exact_mut(n) {
                    let (x, y) = pair(row, i, i + 1);
                    exchange(x, y, &is_exchanged);
                }
            }
        }
    }
}
