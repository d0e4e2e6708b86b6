//! Powers of f64.
//!
//! XLA (xla-cpu-pjrt 0.0.1) calls the C library for each of them. Here the logarithm is a sum of two numbers, because its product with the
//! exponent must have as many digits after the point as the result.

use pulp::{Arch, Simd, WithSimd};

use crate::Result;
use crate::elementwise::{ROUND, multiply_add, polynomial};
use crate::tasks::run_tasks;
use crate::view::check;

/// The elements of a task.
const TASK: usize = 1 << 15;

/// The elements that are checked together for powers that are left to the library.
const BLOCK: usize = 64;

/// log2((1 + s) / (1 - s)) / s as a polynomial of s²: the first two coefficients as sums of two numbers, and the others fitted for
/// quotients between the roots of 1/2 and 2.
const LOG_2_CONSTANT: [f64; 2] = [2.8853900817779268, 4.0710547481862066e-17];
const LOG_2_LINEAR: [f64; 2] = [0.9617966939259756, 5.0577616648125907e-17];
const LOG_2: [f64; 8] = [
    0.5770780163555851,
    0.41219858311137103,
    0.32059889790773166,
    0.26230819918413145,
    0.22195223915168902,
    0.19240238504501808,
    0.16843214179086777,
    0.17296385722076194,
];

/// (2ˣ - 1) / x from -1/2 to 1/2.
const EXP_2: [f64; 11] = [
    std::f64::consts::LN_2,
    0.24022650695910133,
    0.055504108664821736,
    0.009618129107592957,
    0.0013333558146380851,
    0.00015403530458632772,
    1.5252733865876976e-05,
    1.321543450635013e-06,
    1.0178047100446409e-07,
    7.073918861764175e-09,
    4.457299262256355e-10,
];

/// Powers of two of at least this size are left to the library, because they may overflow or be subnormal.
const MAX_POWER: f64 = 1000.0;

const MANTISSA: u32 = 52;
const ROOT_OF_HALF: u64 = 0x3fe6_a09e_667f_3bcd;

/// The elements of `x` to the powers of the elements of `y`. Results have an error of at most 1 unit in the last place, and special values
/// are IEEE 754's. Powers of numbers that are not positive, and the largest and smallest results, take the library's time.
///
/// ```
/// let mut out = [0.0; 3];
/// shardax_cpu_kernels::pow_f64(&[9.0, -2.0, 0.0], &[0.5, 3.0, -1.0], &mut out, 1)?;
/// assert_eq!(out, [3.0, -8.0, f64::INFINITY]);
/// # Ok::<(), shardax_cpu_kernels::ShapeError>(())
/// ```
///
/// # Errors
/// Returns an error if the numbers of elements differ.
pub fn pow_f64(x: &[f64], y: &[f64], out: &mut [f64], threads: usize) -> Result<()> {
    check("the elements of the exponent", y.len(), x.len())?;
    check("the elements of the result", out.len(), x.len())?;
    let tasks = x.chunks(TASK).zip(y.chunks(TASK)).zip(out.chunks_mut(TASK)).collect();
    run_tasks(
        tasks,
        threads.max(1),
        || (),
        |(), ((x, y), out)| {
            Arch::new().dispatch(Powers { x, y, out });
        },
    );
    Ok(())
}

struct Powers<'a> {
    x: &'a [f64],
    y: &'a [f64],
    out: &'a mut [f64],
}

impl WithSimd for Powers<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        for ((x, y), out) in self.x.chunks(BLOCK).zip(self.y.chunks(BLOCK)).zip(self.out.chunks_mut(BLOCK)) {
            for ((x, y), out) in x.iter().zip(y).zip(out.iter_mut()) {
                *out = power(simd, *x, *y);
            }
            // In a loop of its own, because the compiler vectorizes no loop that calls a function.
            let has_irregular = out.iter().fold(false, |any, power| any | power.is_nan());
            if has_irregular {
                let powers = x.iter().zip(y).zip(out).filter(|(_, power)| power.is_nan());
                powers.for_each(|((x, y), power)| *power = x.powf(*y));
            }
        }
    }
}

/// The power of a positive number, or NaN if it is left to the library.
#[inline(always)]
fn power<S: Simd>(simd: S, x: f64, y: f64) -> f64 {
    if size_of::<S::f64s>() == size_of::<f64>() {
        // Rounding errors of products need an instruction for products and sums.
        return f64::NAN;
    }
    // x is 2ᵏ m, with m between the roots of 1/2 and 2, and s = (m - 1) / (m + 1).
    let shifted = x.to_bits().wrapping_sub(ROOT_OF_HALF);
    let k = f64::from((shifted.cast_signed() >> MANTISSA) as i32);
    let m = f64::from_bits((shifted & ((1 << MANTISSA) - 1)).wrapping_add(ROOT_OF_HALF));
    let (difference, sum) = (m - 1.0, m + 1.0);
    let sum_low = m - (sum - 1.0);
    let inverse = 1.0 / sum;
    let s = difference * inverse;
    let s_low = (multiply_add(simd, -s, sum, difference) - s * sum_low) * inverse;
    let z = s * s;
    let z_low = multiply_add(simd, s, s, -z) + 2.0 * s * s_low;
    // Each sum and product is one of two numbers: its value, and its rounding error with the smaller terms.
    let higher_terms = z * polynomial(simd, z, LOG_2);
    let linear = LOG_2_LINEAR[0] + higher_terms;
    let linear_low = (LOG_2_LINEAR[0] - linear) + higher_terms + LOG_2_LINEAR[1];
    let term = z * linear;
    let term_low = multiply_add(simd, z, linear, -term) + z * linear_low + z_low * linear;
    let factor = LOG_2_CONSTANT[0] + term;
    let factor_low = (LOG_2_CONSTANT[0] - factor) + term + (term_low + LOG_2_CONSTANT[1]);
    let fraction = s * factor;
    let fraction_low = multiply_add(simd, s, factor, -fraction) + s * factor_low + s_low * factor;
    let log = k + fraction;
    let log_low = (k - log) + fraction + fraction_low;
    let exponent = y * log;
    let exponent_low = multiply_add(simd, y, log, -exponent) + y * log_low;
    let rounded = exponent + ROUND;
    let remainder = (exponent - (rounded - ROUND)) + exponent_low;
    let scale = f64::from_bits((rounded.to_bits() << MANTISSA).wrapping_add(1.0f64.to_bits()));
    let result = multiply_add(simd, remainder, polynomial(simd, remainder, EXP_2), 1.0) * scale;
    let is_normal = x >= f64::MIN_POSITIVE;
    let is_regular = is_normal & (x < f64::INFINITY) & (exponent.abs() < MAX_POWER);
    if is_regular { result } else { f64::NAN }
}
