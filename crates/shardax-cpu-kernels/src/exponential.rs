//! Exponentials minus 1, hyperbolic sines and cosines and the error function of f64.
//!
//! XLA (xla-cpu-pjrt 0.0.1) computes each of them with two exponentials of the C library's accuracy, or two rational functions of many
//! terms.

use pulp::Simd;

use crate::Result;
use crate::elementwise::{Function, LN_2, ROUND, apply, multiply_add, polynomial};
use crate::softmax::EXP;

/// Larger numbers are left to the library, because their exponentials overflow.
const MAX_EXPONENT: f64 = 700.0;

/// From this number on, a hyperbolic sine is computed from exponentials, which do not cancel.
const MIN_SINH: f64 = 0.5;

/// (sinh x - x) / x³ as a polynomial of x² up to [`MIN_SINH`]: its Taylor series.
const SINH: [f64; 7] = [
    1.0 / 6.0,
    1.0 / 120.0,
    1.0 / 5_040.0,
    1.0 / 362_880.0,
    1.0 / 39_916_800.0,
    1.0 / 6_227_020_800.0,
    1.0 / 1_307_674_368_000.0,
];

/// From this number on, the error function is computed as 1 - erfc, which does not cancel.
const MIN_ERFC: f64 = 0.75;

/// The error function of larger numbers is 1.
const MAX_ERFC: f64 = 6.0;

/// erf(x) / x - 1 as a polynomial of x² up to [`MIN_ERFC`], as all polynomials here fitted with the weights of the errors of the result.
const ERF: [f64; 11] = [
    0.1283791670955126,
    -0.37612638903183715,
    0.11283791670952632,
    -0.026866170644436735,
    0.0052239776155158695,
    -0.0008548326195086108,
    0.00012055289823096455,
    -1.492420269438574e-05,
    1.643078069704866e-06,
    -1.5940874121363262e-07,
    1.1475369331869565e-08,
];

/// erfc(x) exp(x²) as a polynomial of (x - 3) / (x + 3) up to [`MAX_ERFC`].
const ERFC: [f64; 13] = [
    0.1790011511813544,
    -0.32623356004492915,
    0.24560380169422866,
    -0.1501159361278924,
    0.07166584754890763,
    -0.024392387271106115,
    0.004269847953904992,
    0.0007106916069494664,
    -0.0005888208592510773,
    6.086611927491312e-05,
    8.337121865014725e-05,
    1.0803596748698119e-06,
    -4.451330559122663e-06,
];

/// Computes the exponentials of the elements minus 1, with errors of at most 2 units in the last place. `out` must have as many elements as
/// `x`.
///
/// # Errors
/// Returns an error if the numbers of elements differ.
pub fn expm1(x: &[f64], out: &mut [f64], threads: usize) -> Result<()> {
    apply::<Expm1, f64>(x, out, threads)
}

/// Computes the hyperbolic sines of the elements, with errors of at most 2 units in the last place. `out` must have as many elements as
/// `x`.
///
/// # Errors
/// Returns an error if the numbers of elements differ.
pub fn sinh(x: &[f64], out: &mut [f64], threads: usize) -> Result<()> {
    apply::<Sinh, f64>(x, out, threads)
}

/// Computes the hyperbolic cosines of the elements, with errors of at most 2 units in the last place. `out` must have as many elements as
/// `x`.
///
/// # Errors
/// Returns an error if the numbers of elements differ.
pub fn cosh(x: &[f64], out: &mut [f64], threads: usize) -> Result<()> {
    apply::<Cosh, f64>(x, out, threads)
}

/// Computes the error function of the elements, with errors of at most 2 units in the last place. `out` must have as many elements as `x`.
///
/// ```
/// let mut out = [0.0; 3];
/// shardax_cpu_kernels::erf(&[0.0, f64::INFINITY, f64::NEG_INFINITY], &mut out, 1)?;
/// assert_eq!(out, [0.0, 1.0, -1.0]);
/// # Ok::<(), shardax_cpu_kernels::ShapeError>(())
/// ```
///
/// # Errors
/// Returns an error if the numbers of elements differ.
pub fn erf(x: &[f64], out: &mut [f64], threads: usize) -> Result<()> {
    apply::<Erf, f64>(x, out, threads)
}

/// Returns a power of two and `y`. The exponential of `x` is `power * y + power`.
#[inline(always)]
fn exponential<S: Simd>(simd: S, x: f64) -> (f64, f64) {
    let rounded = multiply_add(simd, x, std::f64::consts::LOG2_E, ROUND);
    let power = f64::from_bits((rounded.to_bits() << 52).wrapping_add(1.0f64.to_bits()));
    let n = rounded - ROUND;
    let (high, low) = (multiply_add(simd, n, -LN_2[0], x), n * LN_2[1]);
    let r = high - low;
    let error = (high - r) - low;
    (power, multiply_add(simd, r * r, polynomial(simd, r, EXP), error) + r)
}

struct Expm1;

impl Function<f64> for Expm1 {
    #[inline(always)]
    fn by_polynomial<S: Simd>(simd: S, x: f64) -> f64 {
        let (power, y) = exponential(simd, x);
        // The power of a number close to 0 is 1, so that nothing cancels. The zero keeps its sign.
        if x == 0.0 { x } else { multiply_add(simd, power, y, power - 1.0) }
    }

    #[inline(always)]
    fn is_regular(x: f64) -> bool {
        x.abs() < MAX_EXPONENT
    }

    fn by_library(x: f64) -> f64 {
        x.exp_m1()
    }
}

struct Sinh;

impl Function<f64> for Sinh {
    #[inline(always)]
    fn by_polynomial<S: Simd>(simd: S, x: f64) -> f64 {
        let square = x * x;
        let small = multiply_add(simd, x * square, polynomial(simd, square, SINH), x);
        let (power, y) = exponential(simd, x.abs());
        let exp_m1 = multiply_add(simd, power, y, power - 1.0);
        let large = 0.5 * (exp_m1 + exp_m1 / (exp_m1 + 1.0));
        if square < MIN_SINH * MIN_SINH { small } else { large.copysign(x) }
    }

    #[inline(always)]
    fn is_regular(x: f64) -> bool {
        x.abs() < MAX_EXPONENT
    }

    fn by_library(x: f64) -> f64 {
        x.sinh()
    }
}

struct Cosh;

impl Function<f64> for Cosh {
    #[inline(always)]
    fn by_polynomial<S: Simd>(simd: S, x: f64) -> f64 {
        let (power, y) = exponential(simd, x.abs());
        let exp = multiply_add(simd, power, y, power);
        0.5 * (exp + 1.0 / exp)
    }

    #[inline(always)]
    fn is_regular(x: f64) -> bool {
        Sinh::is_regular(x)
    }

    fn by_library(x: f64) -> f64 {
        x.cosh()
    }
}

struct Erf;

impl Function<f64> for Erf {
    #[inline(always)]
    fn by_polynomial<S: Simd>(simd: S, x: f64) -> f64 {
        // A comparison that is false for NaN.
        let size = if x.abs() > MAX_ERFC { MAX_ERFC } else { x.abs() };
        let square = size * size;
        let small = multiply_add(simd, x, polynomial(simd, square, ERF), x);
        let (power, y) = exponential(simd, -square);
        let exp = multiply_add(simd, power, y, power);
        let erfc = exp * polynomial(simd, (size - 3.0) / (size + 3.0), ERFC);
        if size < MIN_ERFC { small } else { (1.0 - erfc).copysign(x) }
    }

    #[inline(always)]
    fn is_regular(_x: f64) -> bool {
        true
    }

    fn by_library(x: f64) -> f64 {
        x
    }
}
