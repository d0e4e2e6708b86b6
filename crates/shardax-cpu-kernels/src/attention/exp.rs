//! Maxima and exponentials of rows, in operations that vectorize.
//!
//! All functions must be inlined into a function that `pulp` compiles for the processor's vectors. Otherwise the
//! compiler can use only the short vectors that all processors have, and the functions take twice as long.

use pulp::Simd;

/// The number of elements processed together, for vectorization.
const CHUNK_LEN: usize = 16;

/// The maximum, ignoring NaN.
#[inline(always)]
pub(crate) fn largest(row: &[f32]) -> f32 {
    if row.len() < CHUNK_LEN {
        return row.iter().fold(f32::NEG_INFINITY, |max, &x| larger(max, x));
    }
    // One maximum per lane, because a single running maximum is a chain of dependent comparisons that cannot vectorize.
    let mut maxima = [f32::NEG_INFINITY; CHUNK_LEN];
    let (chunks, remainder) = row.as_chunks::<CHUNK_LEN>();
    for chunk in chunks {
        maxima.iter_mut().zip(chunk).for_each(|(max, &x)| *max = larger(*max, x));
    }
    maxima.iter().chain(remainder).fold(f32::NEG_INFINITY, |max, &x| larger(max, x))
}

/// Returns `b` if it is larger, otherwise `a`, so that a NaN in `b` is ignored.
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if b > a { b } else { a }
}

/// Replaces each `x` by `exp(x - max)`, and returns the sum.
#[inline(always)]
pub(crate) fn exponentials<S: Simd>(simd: S, row: &mut [f32], max: f32) -> f32 {
    // This is a separate loop, because together with the sums it would have more values than there are registers.
    row.iter_mut().for_each(|x| *x = exp(simd, *x - max));
    sum(row)
}

/// Returns the sum of a row.
#[inline(always)]
pub(crate) fn sum(row: &[f32]) -> f32 {
    if row.len() < CHUNK_LEN {
        return row.iter().sum();
    }
    let mut sums = [0.0; CHUNK_LEN];
    let (chunks, remainder) = row.as_chunks::<CHUNK_LEN>();
    for chunk in chunks {
        chunk.iter().zip(&mut sums).for_each(|(x, sum)| *sum += *x);
    }
    remainder.iter().zip(&mut sums).for_each(|(x, sum)| *sum += *x);
    sums.iter().sum()
}

/// The exponential of a number that is at most 0, to 2 units in the last place, in operations that vectorize:
/// `2ⁿ eʳ`, where `eʳ` is the polynomial of Cephes' `expf`. Below the smallest normal number it is 0.
#[inline(always)]
pub(crate) fn exp<S: Simd>(simd: S, x: f32) -> f32 {
    // Adding and subtracting it rounds to the nearest integer, which meanwhile is in the last bits.
    const ROUND: f32 = 12_582_912.0;
    const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    const SMALLEST: f32 = -87.336;
    const CUBE_COEFFICIENTS: [f32; 6] =
        [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5e-1];
    let rounded = multiply_add(simd, x.clamp(SMALLEST, 0.0), std::f32::consts::LOG2_E, ROUND);
    let power = f32::from_bits(rounded.to_bits().wrapping_add(127) << 23);
    let n = rounded - ROUND;
    let r = multiply_add(simd, n, -LN_2[1], multiply_add(simd, n, -LN_2[0], x));
    let polynomial = CUBE_COEFFICIENTS[1..].iter().fold(CUBE_COEFFICIENTS[0], |sum, c| multiply_add(simd, sum, r, *c));
    let y = multiply_add(simd, polynomial * r, r, r + 1.0) * power;
    if x < SMALLEST { 0.0 } else { y }
}

/// Returns `a * b + c`, with one rounding if the vectors of `S` have an instruction for it. Without one, `mul_add` would call a
/// function for each element.
#[inline(always)]
fn multiply_add<S: Simd>(_simd: S, a: f32, b: f32, c: f32) -> f32 {
    let is_scalar = size_of::<S::f32s>() == size_of::<f32>();
    if is_scalar { a * b + c } else { a.mul_add(b, c) }
}

#[cfg(test)]
mod tests {
    use pulp::{Arch, Scalar, Simd, WithSimd};

    use super::{exp, exponentials};

    /// Exponentials by the processor's vectors.
    struct Exponentials<'a>(&'a mut [f32]);

    impl WithSimd for Exponentials<'_> {
        type Output = f32;

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) -> f32 {
            exponentials(simd, self.0, 0.0)
        }
    }

    #[test]
    fn exponentials_are_accurate() {
        let x: Vec<f32> = (0..200_000).map(|i| -(i as f32) * 0.0005).collect();
        let mut by_vectors = x.clone();
        Arch::new().dispatch(Exponentials(&mut by_vectors));
        for (x, by_vectors) in x.into_iter().zip(by_vectors) {
            let want = f64::from(x).exp();
            let unit = f64::from(f32::EPSILON) * want.max(f64::from(f32::MIN_POSITIVE));
            for found in [f64::from(by_vectors), f64::from(exp(Scalar::new(), x))] {
                assert!(
                    (found - want).abs() <= 2.0 * unit || want < f64::from(f32::MIN_POSITIVE) * 1.01,
                    "{x}: {found} {want}"
                );
            }
        }
        let mut special = [0.0, f32::NEG_INFINITY, -100.0, f32::MIN, f32::NAN];
        Arch::new().dispatch(Exponentials(&mut special));
        assert_eq!(special[..4], [1.0, 0.0, 0.0, 0.0]);
        assert!(special[4].is_nan());
    }
}
