//! Maxima and exponentials of rows of scores, in operations that vectorize.
//!
//! They are inlined into the loops over queries: as calls into another module, the forward pass takes 4 to 10 % longer.

/// The number of elements processed together, for vectorization.
const CHUNK_LEN: usize = 16;

/// The maximum, ignoring NaN.
#[inline]
pub(super) fn largest(row: &[f32]) -> f32 {
    // One maximum per lane, because a single running maximum is a chain of dependent comparisons that cannot vectorize.
    let mut maxima = [f32::NEG_INFINITY; CHUNK_LEN];
    let (chunks, remainder) = row.as_chunks::<CHUNK_LEN>();
    for chunk in chunks {
        maxima.iter_mut().zip(chunk).for_each(|(max, &x)| *max = larger(*max, x));
    }
    maxima.iter().chain(remainder).fold(f32::NEG_INFINITY, |max, &x| larger(max, x))
}

/// Returns `b` if it is larger, otherwise `a`, so that a NaN in `b` is ignored.
#[inline]
fn larger(a: f32, b: f32) -> f32 {
    if b > a { b } else { a }
}

/// Replaces each `x` by `exp(x - max)`, and returns the sum.
#[inline]
pub(super) fn exponentials(row: &mut [f32], max: f32) -> f32 {
    let mut sums = [0.0; CHUNK_LEN];
    let (chunks, remainder) = row.as_chunks_mut::<CHUNK_LEN>();
    for chunk in chunks {
        chunk.iter_mut().zip(&mut sums).for_each(|(x, sum)| exponential(x, max, sum));
    }
    remainder.iter_mut().zip(&mut sums).for_each(|(x, sum)| exponential(x, max, sum));
    sums.iter().sum()
}

/// Replaces `x` by `exp(x - max)` and adds it to `sum`.
#[inline]
fn exponential(x: &mut f32, max: f32, sum: &mut f32) {
    *x = exp(*x - max);
    *sum += *x;
}

/// The exponential of a number that is at most 0, to 2 units in the last place, in operations that vectorize:
/// `2ⁿ eʳ`, where `eʳ` is the polynomial of Cephes' `expf`. Below the smallest normal number it is 0.
#[inline]
pub(super) fn exp(x: f32) -> f32 {
    // Adding and subtracting it rounds to the nearest integer, which meanwhile is in the last bits.
    const ROUND: f32 = 12_582_912.0;
    const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    const SMALLEST: f32 = -87.336;
    const CUBE_COEFFICIENTS: [f32; 6] =
        [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5e-1];
    let rounded = x.clamp(SMALLEST, 0.0) * std::f32::consts::LOG2_E + ROUND;
    let power = f32::from_bits(rounded.to_bits().wrapping_add(127) << 23);
    let n = rounded - ROUND;
    let r = x - n * LN_2[0] - n * LN_2[1];
    let polynomial = CUBE_COEFFICIENTS[1..].iter().fold(CUBE_COEFFICIENTS[0], |sum, c| sum * r + c);
    let y = (polynomial * r * r + r + 1.0) * power;
    if x < SMALLEST { 0.0 } else { y }
}

#[cfg(test)]
mod tests {
    use super::exp;

    #[test]
    fn exponentials_are_accurate() {
        for i in 0..200_000 {
            let x = -(i as f32) * 0.0005;
            let (found, want) = (f64::from(exp(x)), f64::from(x).exp());
            let unit = f64::from(f32::EPSILON) * want.max(f64::from(f32::MIN_POSITIVE));
            assert!(
                (found - want).abs() <= 2.0 * unit || want < f64::from(f32::MIN_POSITIVE) * 1.01,
                "{x}: {found} {want}"
            );
        }
        assert_eq!([exp(0.0), exp(f32::NEG_INFINITY), exp(-100.0), exp(f32::MIN)], [1.0, 0.0, 0.0, 0.0]);
        assert!(exp(f32::NAN).is_nan());
    }
}
