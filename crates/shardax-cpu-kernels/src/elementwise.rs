//! Sines, cosines, tangents and logarithms.
//!
//! XLA (xla-cpu-pjrt 0.0.1) calls the C library for each of them. Here they are polynomials, which the compiler can
//! turn into vector instructions. Numbers for which the polynomials are not accurate, such as angles of more than 1.6
//! million, are left to the library.

use pulp::{Arch, Simd, WithSimd};

use crate::Result;
use crate::per_type::per_type;
use crate::tasks::run_tasks;
use crate::view::check;

/// The elements of a task.
const ELEMENTS_PER_TASK: usize = 1 << 15;

/// The elements that are checked together for numbers that are left to the library.
const BLOCK: usize = 64;

/// Rounds a number of at most 51 bits to the nearest integer: you add this constant and subtract it again. In between,
/// the integer is in the lowest bits of the sum, from which you can read it.
pub(crate) const ROUND: f64 = 6_755_399_441_055_744.0;

/// π / 2 in parts. Products of the first two with an integer of 20 bits are exact.
const HALF_PI: [f64; 3] = [1.5707963267341256, 6.077100506303966e-11, 2.0222662487959506e-21];

/// The sum of the second and the third part.
const HALF_PI_REST: f64 = HALF_PI[1] + HALF_PI[2];

/// The largest angle whose quotient by π / 2 has at most 20 bits.
const MAX_ANGLE: f64 = 1_600_000.0;

/// (sin r - r) / r³ and (cos r - 1 + r²/2) / r⁴ as polynomials of r², from 0 to π/4, interpolated at Chebyshev nodes. The first ones are
/// accurate enough for f32.
const SIN_F32: [f64; 4] = [-0.16666666663854168, 0.008333331874273714, -0.000198400864995936, 2.7249895230611676e-06];
const COS_F32: [f64; 4] =
    [0.041666666664320264, -0.0013888887671652504, 2.480060018036381e-05, -2.7300933687212943e-07];
const SIN_F64: [f64; 6] = [
    -0.16666666666666666,
    0.008333333333330948,
    -0.00019841269836756774,
    2.7557316101617874e-06,
    -2.505113165023518e-08,
    1.5918115263265974e-10,
];
const COS_F64: [f64; 6] = [
    0.041666666666666664,
    -0.0013888888888887398,
    2.480158729876456e-05,
    -2.7557317271145144e-07,
    2.087614614655861e-09,
    -1.1382623647474604e-11,
];

/// (log((1 + s) / (1 - s)) - 2 s) / s³ as a polynomial of s², for quotients between the roots of 1/2 and 2.
pub(crate) const LOG: [f64; 7] = [
    0.666666666666667,
    0.39999999999899444,
    0.2857142862600327,
    0.22222211130259878,
    0.18182889455674947,
    0.15331710618210767,
    0.14616585424888667,
];

/// log 2 in two parts. Products of the first one with an exponent are exact.
pub(crate) const LN_2: [f64; 2] = [0.6931471804855391, 7.440617110012397e-11];

per_type!(Circular for [f32, f64] {
    fn sines(x: &[Self], out: &mut [Self], threads: usize) = sines_of;
    fn cosines(x: &[Self], out: &mut [Self], threads: usize) = cosines_of;
});

mod sealed {
    pub trait Sealed: super::Circular {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
}

/// An element of the arrays of [`sin`] and [`cos`]: f32 or f64.
pub trait Angle: sealed::Sealed {}
impl Angle for f32 {}
impl Angle for f64 {}

/// Computes the sines of the elements. `out` must have as many elements as `x`.
///
/// # Errors
/// Returns an error if the numbers of elements differ.
pub fn sin<T: Angle>(x: &[T], out: &mut [T], threads: usize) -> Result<()> {
    T::sines(x, out, threads)
}

/// Computes the cosines of the elements. `out` must have as many elements as `x`.
///
/// # Errors
/// Returns an error if the numbers of elements differ.
pub fn cos<T: Angle>(x: &[T], out: &mut [T], threads: usize) -> Result<()> {
    T::cosines(x, out, threads)
}

/// Computes the tangents of the elements. `out` must have as many elements as `x`.
///
/// # Errors
/// Returns an error if the numbers of elements differ.
pub fn tan(x: &[f32], out: &mut [f32], threads: usize) -> Result<()> {
    apply::<Tan, f32>(x, out, threads)
}

/// Computes the natural logarithms of the elements. `out` must have as many elements as `x`.
///
/// ```
/// let mut out = [0.0; 3];
/// shardax_cpu_kernels::log(&[1.0, 0.0, f64::INFINITY], &mut out, 1)?;
/// assert_eq!(out, [0.0, f64::NEG_INFINITY, f64::INFINITY]);
/// # Ok::<(), shardax_cpu_kernels::ShapeError>(())
/// ```
///
/// # Errors
/// Returns an error if the numbers of elements differ.
pub fn log(x: &[f64], out: &mut [f64], threads: usize) -> Result<()> {
    apply::<Log, f64>(x, out, threads)
}

fn sines_of<T: Copy + Send + Sync>(x: &[T], out: &mut [T], threads: usize) -> Result<()>
where
    Sin: Function<T>,
{
    apply::<Sin, T>(x, out, threads)
}

fn cosines_of<T: Copy + Send + Sync>(x: &[T], out: &mut [T], threads: usize) -> Result<()>
where
    Cos: Function<T>,
{
    apply::<Cos, T>(x, out, threads)
}

/// A function of one number.
pub(crate) trait Function<T>: Send + Sync {
    /// The function of a number for which [`Self::is_regular`] is true.
    fn by_polynomial<S: Simd>(simd: S, x: T) -> T;
    fn is_regular(x: T) -> bool;
    fn by_library(x: T) -> T;
}

pub(crate) fn apply<F: Function<T>, T: Copy + Send + Sync>(x: &[T], out: &mut [T], threads: usize) -> Result<()> {
    check("the elements of the result", out.len(), x.len())?;
    let tasks = x.chunks(ELEMENTS_PER_TASK).zip(out.chunks_mut(ELEMENTS_PER_TASK)).collect();
    run_tasks(
        tasks,
        threads.max(1),
        || (),
        |(), (x, out)| {
            Arch::new().dispatch(Part::<F, T> { x, out, function: std::marker::PhantomData });
        },
    );
    Ok(())
}

struct Part<'a, F, T> {
    x: &'a [T],
    out: &'a mut [T],
    function: std::marker::PhantomData<F>,
}

impl<F: Function<T>, T: Copy> WithSimd for Part<'_, F, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        for (x, out) in self.x.chunks(BLOCK).zip(self.out.chunks_mut(BLOCK)) {
            x.iter().zip(out.iter_mut()).for_each(|(x, out)| *out = F::by_polynomial(simd, *x));
            // In a loop of its own, because the compiler vectorizes no loop that calls a function.
            let all_regular = x.iter().fold(true, |all, x| all & F::is_regular(*x));
            if !all_regular {
                let irregular = x.iter().zip(out).filter(|(x, _)| !F::is_regular(**x));
                irregular.for_each(|(x, out)| *out = F::by_library(*x));
            }
        }
    }
}

/// Returns `a * b + c`, with one rounding if the vectors of `S` have an instruction for it. Without one, `mul_add` would call a function for
/// each element.
#[inline(always)]
pub(crate) fn multiply_add<S: Simd>(_simd: S, a: f64, b: f64, c: f64) -> f64 {
    let is_scalar = size_of::<S::f64s>() == size_of::<f64>();
    if is_scalar { a * b + c } else { a.mul_add(b, c) }
}

/// The value of a polynomial. The first coefficient is the constant.
#[inline(always)]
pub(crate) fn polynomial<S: Simd, const N: usize>(simd: S, x: f64, coefficients: [f64; N]) -> f64 {
    coefficients.into_iter().rev().reduce(|sum, coefficient| multiply_add(simd, sum, x, coefficient)).unwrap_or(0.0)
}

/// The integer next to `x / (π / 2)`, and the same with its last bits as the bits of a float.
#[inline(always)]
fn quotient<S: Simd>(simd: S, x: f64) -> (f64, u64) {
    let rounded = multiply_add(simd, x, std::f64::consts::FRAC_2_PI, ROUND);
    (rounded - ROUND, rounded.to_bits())
}

/// The rest of an angle of f32 after a multiple of π / 2, and the number of that multiple.
#[inline(always)]
fn reduced<S: Simd>(simd: S, x: f32) -> (f64, u64) {
    let (quotient, number) = quotient(simd, x.into());
    (multiply_add(simd, -quotient, HALF_PI_REST, multiply_add(simd, -quotient, HALF_PI[0], x.into())), number)
}

/// Inverts the sign in the third and fourth quarter of a circle.
#[inline(always)]
fn with_sign(y: f64, quarter: u64) -> f64 {
    f64::from_bits(y.to_bits() ^ (quarter & 2) << 62)
}

/// The sine of an angle, or of an angle `quarters` quarters of a circle further.
#[inline(always)]
fn sine_f32<S: Simd>(simd: S, x: f32, quarters: u64) -> f32 {
    let (r, number) = reduced(simd, x);
    let quarter = number.wrapping_add(quarters);
    let is_cosine = quarter & 1 == 1;
    let z = r * r;
    // The coefficients of the function that the element needs.
    let mut coefficients = SIN_F32;
    for (coefficient, of_cosine) in coefficients.iter_mut().zip(COS_F32) {
        *coefficient = if is_cosine { of_cosine } else { *coefficient };
    }
    let (start, factor) = if is_cosine { (1.0 - 0.5 * z, z * z) } else { (r, r * z) };
    with_sign(multiply_add(simd, factor, polynomial(simd, z, coefficients), start), quarter) as f32
}

/// As [`sine_f32`]. The rest of the angle is a sum of two numbers.
#[inline(always)]
fn sine_f64<S: Simd>(simd: S, x: f64, quarters: u64) -> f64 {
    let (quotient, number) = quotient(simd, x);
    let quarter = number.wrapping_add(quarters);
    let first = x - quotient * HALF_PI[0];
    let second = quotient * HALF_PI[1];
    // The rounding error of the difference.
    let difference = first - second;
    let change = difference - first;
    let error = (first - (difference - change)) - (second + change);
    let correction = error - quotient * HALF_PI[2];
    let high = difference + correction;
    let low = (difference - high) + correction;
    let z = high * high;
    let sine = high + multiply_add(simd, high * z, polynomial(simd, z, SIN_F64), low * (1.0 - 0.5 * z));
    let half = 0.5 * z;
    let near = 1.0 - half;
    let cosine = near + multiply_add(simd, z * z, polynomial(simd, z, COS_F64), ((1.0 - near) - half) - high * low);
    with_sign(if quarter & 1 == 1 { cosine } else { sine }, quarter)
}

struct Sin;

impl Function<f32> for Sin {
    #[inline(always)]
    fn by_polynomial<S: Simd>(simd: S, x: f32) -> f32 {
        // The sums lose the sign of zero.
        let sine = sine_f32(simd, x, 0);
        if x == 0.0 { x } else { sine }
    }

    #[inline(always)]
    fn is_regular(x: f32) -> bool {
        x.abs() < MAX_ANGLE as f32
    }

    fn by_library(x: f32) -> f32 {
        x.sin()
    }
}

impl Function<f64> for Sin {
    #[inline(always)]
    fn by_polynomial<S: Simd>(simd: S, x: f64) -> f64 {
        let sine = sine_f64(simd, x, 0);
        if x == 0.0 { x } else { sine }
    }

    #[inline(always)]
    fn is_regular(x: f64) -> bool {
        x.abs() < MAX_ANGLE
    }

    fn by_library(x: f64) -> f64 {
        x.sin()
    }
}

struct Cos;

impl Function<f32> for Cos {
    #[inline(always)]
    fn by_polynomial<S: Simd>(simd: S, x: f32) -> f32 {
        sine_f32(simd, x, 1)
    }

    #[inline(always)]
    fn is_regular(x: f32) -> bool {
        Sin::is_regular(x)
    }

    fn by_library(x: f32) -> f32 {
        x.cos()
    }
}

impl Function<f64> for Cos {
    #[inline(always)]
    fn by_polynomial<S: Simd>(simd: S, x: f64) -> f64 {
        sine_f64(simd, x, 1)
    }

    #[inline(always)]
    fn is_regular(x: f64) -> bool {
        Sin::is_regular(x)
    }

    fn by_library(x: f64) -> f64 {
        x.cos()
    }
}

struct Tan;

impl Function<f32> for Tan {
    #[inline(always)]
    fn by_polynomial<S: Simd>(simd: S, x: f32) -> f32 {
        let (r, number) = reduced(simd, x);
        let z = r * r;
        let sine = multiply_add(simd, r * z, polynomial(simd, z, SIN_F32), r);
        let cosine = multiply_add(simd, z * z, polynomial(simd, z, COS_F32), 1.0 - 0.5 * z);
        let (numerator, denominator) = if number & 1 == 1 { (-cosine, sine) } else { (sine, cosine) };
        let tangent = (numerator / denominator) as f32;
        if x == 0.0 { x } else { tangent }
    }

    #[inline(always)]
    fn is_regular(x: f32) -> bool {
        Sin::is_regular(x)
    }

    fn by_library(x: f32) -> f32 {
        x.tan()
    }
}

struct Log;

impl Function<f64> for Log {
    /// `x` is 2ᵏ (1 + f), with 1 + f between the roots of 1/2 and 2. With s = f / (2 + f), its logarithm is a function of s² times s.
    #[inline(always)]
    fn by_polynomial<S: Simd>(simd: S, x: f64) -> f64 {
        const MANTISSA: u32 = 52;
        const ROOT_OF_HALF: u64 = 0x3fe6_a09e_667f_3bcd;
        let shifted = x.to_bits().wrapping_sub(ROOT_OF_HALF);
        // Of a regular number it is at least -1022, and an integer of 32 bits is converted by one instruction.
        let exponent = shifted.cast_signed() >> MANTISSA;
        let k = f64::from(exponent as i32);
        let f = f64::from_bits((shifted & ((1 << MANTISSA) - 1)).wrapping_add(ROOT_OF_HALF)) - 1.0;
        let s = f / (2.0 + f);
        let z = s * s;
        let series = z * polynomial(simd, z, LOG);
        let half_square = 0.5 * f * f;
        let small = multiply_add(simd, s, half_square + series, k * LN_2[1]);
        multiply_add(simd, k, LN_2[0], f - (half_square - small))
    }

    #[inline(always)]
    fn is_regular(x: f64) -> bool {
        let is_normal = x >= f64::MIN_POSITIVE;
        is_normal & (x < f64::INFINITY)
    }

    fn by_library(x: f64) -> f64 {
        x.ln()
    }
}
