//! Powers and cube roots.
//!
//! XLA (xla-cpu-pjrt 0.0.1) calls the C library for each of them. Here they have no branches, so that they become vector instructions.
//! Results of f32 are computed in f64 and rounded once.

use std::marker::PhantomData;

use pulp::{Arch, Simd, WithSimd};

use crate::Result;
use crate::elementwise::{ROUND, multiply_add, polynomial};
use crate::per_type::per_type;
use crate::tasks::run_tasks;
use crate::view::check;

/// The elements of a task.
const TASK: usize = 1 << 15;

/// log2((1 + s) / (1 - s)) / s as a polynomial of s², for quotients between the roots of 1/2 and 2, interpolated at Chebyshev nodes, as
/// all polynomials here.
const LOG_2: [f64; 6] = [
    2.8853900817778504,
    0.9617966941123595,
    0.5770779426302618,
    0.41220922733052445,
    0.3199066608891474,
    0.28288718263073565,
];

/// 2ˣ from -1/2 to 1/2.
const EXP_2: [f64; 8] = [
    0.9999999999595618,
    0.6931471805568324,
    0.24022651213498092,
    0.055504109063258665,
    0.009618025613318034,
    0.0013333478473685416,
    0.00015469729214118296,
    1.5303700711365693e-05,
];

/// The cube root of 1 + x from 0 to 1.
const CUBE_ROOT: [f64; 11] = [
    1.000000000119138,
    0.33333330439994113,
    -0.11110993308285687,
    0.06170939537609136,
    -0.04099205678272202,
    0.029369281547737235,
    -0.020823451024586707,
    0.01307264083542308,
    -0.0063399362533124145,
    0.001999315510593598,
    -0.0002975108149902464,
];

/// The cube roots of 1, 2 and 4.
const ROOTS_OF_POWERS: [f64; 3] = [1.0, 1.2599210498948732, 1.5874010519681994];

/// Larger exponents are limited to this even integer: of f32, they are even integers too.
const LARGE_EXPONENT: f64 = 1_099_511_627_776.0;

/// 2 to a power of this size overflows and underflows in f32.
const MAX_POWER: f64 = 200.0;

mod f32_bits {
    pub const MAGNITUDE: u32 = 0x7fff_ffff;
    pub const ONE: u32 = 0x3f80_0000;
    pub const INFINITY: u32 = 0x7f80_0000;
    pub const MIN_POSITIVE: u32 = 0x0080_0000;
    pub const ROOT_OF_HALF: u32 = 0x3f35_04f3;
    pub const MANTISSA: u32 = 23;
}

mod f64_bits {
    pub const MAGNITUDE: u64 = u64::MAX >> 1;
    pub const MANTISSA: u32 = 52;
    /// The first 26 bits of a number.
    pub const HALF: u64 = !((1 << 27) - 1);
    pub const TWO_TO_52: f64 = 4_503_599_627_370_496.0;
}

/// The elements of `x` to the powers of the elements of `y`. Results have an error of at most 0.51 units in the last place, and special
/// values are IEEE 754's: a number to the power 0 is 1, and a negative number to a power that is no integer is NaN.
///
/// ```
/// let mut out = [0.0; 3];
/// shardax_cpu_kernels::pow(&[2.0, -2.0, 0.0], &[0.5, 3.0, -1.0], &mut out, 1)?;
/// assert_eq!(out, [std::f32::consts::SQRT_2, -8.0, f32::INFINITY]);
/// # Ok::<(), shardax_cpu_kernels::ShapeError>(())
/// ```
///
/// # Errors
/// Returns an error if the numbers of elements differ.
pub fn pow(x: &[f32], y: &[f32], out: &mut [f32], threads: usize) -> Result<()> {
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

per_type!(CubeRoots for [f32, f64] {
    fn cube_roots(x: &[Self], out: &mut [Self], threads: usize) = cube_roots_of;
});

mod sealed {
    use pulp::Simd;

    pub trait Sealed: super::CubeRoots + Copy + Send + Sync {
        fn cube_root<S: Simd>(self, simd: S) -> Self;
    }
}

use sealed::Sealed;

/// An element of the arrays of [`cbrt`]: f32 or f64.
pub trait Radicand: Sealed {}
impl Radicand for f32 {}
impl Radicand for f64 {}

/// The cube roots of the elements, with an error of at most 0.51 units in the last place in f32, and 0.7 in f64.
///
/// ```
/// let mut out = [0.0; 3];
/// shardax_cpu_kernels::cbrt(&[8.0, -0.001, f64::INFINITY], &mut out, 1)?;
/// assert_eq!(out, [2.0, -0.1, f64::INFINITY]);
/// # Ok::<(), shardax_cpu_kernels::ShapeError>(())
/// ```
///
/// # Errors
/// Returns an error if the numbers of elements differ.
pub fn cbrt<T: Radicand>(x: &[T], out: &mut [T], threads: usize) -> Result<()> {
    T::cube_roots(x, out, threads)
}

fn cube_roots_of<T: Radicand>(x: &[T], out: &mut [T], threads: usize) -> Result<()> {
    check("the elements of the result", out.len(), x.len())?;
    let tasks = x.chunks(TASK).zip(out.chunks_mut(TASK)).collect();
    run_tasks(
        tasks,
        threads.max(1),
        || (),
        |(), (x, out)| {
            Arch::new().dispatch(Roots { x, out, element: PhantomData });
        },
    );
    Ok(())
}

struct Powers<'a> {
    x: &'a [f32],
    y: &'a [f32],
    out: &'a mut [f32],
}

impl WithSimd for Powers<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        for ((x, y), out) in self.x.iter().zip(self.y).zip(self.out) {
            *out = power(simd, *x, *y);
        }
    }
}

struct Roots<'a, T> {
    x: &'a [T],
    out: &'a mut [T],
    element: PhantomData<T>,
}

impl<T: Radicand> WithSimd for Roots<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        self.x.iter().zip(self.out).for_each(|(x, out)| *out = x.cube_root(simd));
    }
}

/// A power as 2 to the power `y log2 |x|`, with the sign that an odd exponent keeps. Comparisons with subnormal numbers are comparisons
/// of their bits, because XLA's threads read them as 0.
#[inline(always)]
fn power<S: Simd>(simd: S, x: f32, y: f32) -> f32 {
    let (magnitude, y_magnitude) = (x.to_bits() & f32_bits::MAGNITUDE, y.to_bits() & f32_bits::MAGNITUDE);
    let is_tiny = (y_magnitude > 0) & (y_magnitude < f32_bits::MIN_POSITIVE);
    // The power of a subnormal exponent is the power of the smallest normal one: 0, 1 or infinity.
    let exponent = f64::from(if is_tiny { f32::MIN_POSITIVE.copysign(y) } else { y });
    let power = exp2(simd, log2_of_magnitude(simd, magnitude) * exponent) as f32;
    let is_number = (magnitude <= f32_bits::INFINITY) & (y_magnitude <= f32_bits::INFINITY);
    let power = if is_number { power } else { f32::NAN };
    // Its logarithm 0 times infinity would be NaN.
    let is_unit = (magnitude == f32_bits::ONE) & is_number;
    let power = if is_unit { 1.0 } else { power };
    // The sum has the integer next to the exponent in its last bits.
    let limited = exponent.clamp(-LARGE_EXPONENT, LARGE_EXPONENT);
    let rounded = limited + ROUND;
    let is_integer = rounded - ROUND == limited;
    let is_integer = is_integer & !is_tiny;
    let is_odd = is_integer & (rounded.to_bits() & 1 == 1);
    let is_negative = x.to_bits() > f32_bits::MAGNITUDE;
    let signed = f32::from_bits(power.to_bits() ^ (u32::from(is_negative & is_odd) << 31));
    // Zero and infinity have powers with any exponent.
    let has_sign_only = (magnitude == 0) | (magnitude == f32_bits::INFINITY);
    let is_complex = is_negative & !is_integer & !has_sign_only;
    let real = if is_complex { f32::NAN } else { signed };
    let is_one = (y_magnitude == 0) | (x.to_bits() == f32_bits::ONE);
    if is_one { 1.0 } else { real }
}

/// The logarithm to base 2 of the number with these bits, which are not negative.
#[inline(always)]
fn log2_of_magnitude<S: Simd>(simd: S, magnitude: u32) -> f64 {
    // A subnormal number is its bits times 2⁻¹⁴⁹.
    let is_subnormal = magnitude < f32_bits::MIN_POSITIVE;
    let as_integer = (magnitude.cast_signed() as f32).to_bits();
    let bits = if is_subnormal { as_integer } else { magnitude };
    let shift = if is_subnormal { -149.0 } else { 0.0 };
    let exponent = bits.wrapping_sub(f32_bits::ROOT_OF_HALF).cast_signed() >> f32_bits::MANTISSA;
    let fraction = bits.wrapping_sub((exponent << f32_bits::MANTISSA).cast_unsigned());
    let f = f64::from(f32::from_bits(fraction));
    let s = (f - 1.0) / (f + 1.0);
    let whole = f64::from(exponent) + shift;
    let logarithm = multiply_add(simd, polynomial(simd, s * s, LOG_2), s, whole);
    let special = if magnitude == 0 { f64::NEG_INFINITY } else { f64::INFINITY };
    let is_special = (magnitude == 0) | (magnitude >= f32_bits::INFINITY);
    if is_special { special } else { logarithm }
}

/// 2 to a power, or a number that is 0 or infinity in f32. The power of NaN is a number.
#[inline(always)]
fn exp2<S: Simd>(simd: S, x: f64) -> f64 {
    let x = x.clamp(-MAX_POWER, MAX_POWER);
    let rounded = x + ROUND;
    let rest = x - (rounded - ROUND);
    let scale = f64::from_bits((rounded.to_bits() << 52).wrapping_add(1.0f64.to_bits()));
    polynomial(simd, rest, EXP_2) * scale
}

/// A cube root in parts.
struct CubeRoot {
    /// The radicand from 1 to 8: 2ʲ (1 + f), with `j` 0, 1 or 2.
    radicand: f64,
    /// About its root.
    root: f64,
    /// The power of two that the root is multiplied with.
    scale: f64,
}

/// The cube root of 2ᵉ times a fraction from 1 to 2.
#[inline(always)]
fn cube_root<S: Simd>(simd: S, fraction: f64, exponent: i32) -> CubeRoot {
    // The exponent of f64 is greater than -1200, and the product has the exact quotient in its upper bits.
    let positive = exponent + 1200;
    let third = positive.wrapping_mul(43_691) >> 17;
    let rest = positive - 3 * third;
    let [one, two, four] = ROOTS_OF_POWERS;
    let (root_of_power, power) = if rest == 1 { (two, 2.0) } else { (four, 4.0) };
    let (root_of_power, power) = if rest == 0 { (one, 1.0) } else { (root_of_power, power) };
    let scale = f64::from_bits(u64::from((third - 400 + 1023).cast_unsigned()) << f64_bits::MANTISSA);
    CubeRoot { radicand: fraction * power, root: polynomial(simd, fraction - 1.0, CUBE_ROOT) * root_of_power, scale }
}

impl Sealed for f32 {
    #[inline(always)]
    fn cube_root<S: Simd>(self, simd: S) -> f32 {
        let magnitude = self.to_bits() & f32_bits::MAGNITUDE;
        // A subnormal number is its bits times 2⁻¹⁴⁹.
        let is_subnormal = magnitude < f32_bits::MIN_POSITIVE;
        let as_integer = (magnitude.cast_signed() as f32).to_bits();
        let (bits, shift) = if is_subnormal { (as_integer, -149) } else { (magnitude, 0) };
        let exponent = (bits >> f32_bits::MANTISSA).cast_signed() - 127 + shift;
        let fraction = f32::from_bits(bits & ((1 << f32_bits::MANTISSA) - 1) | f32_bits::ONE);
        let CubeRoot { root, scale, .. } = cube_root(simd, f64::from(fraction), exponent);
        let root = ((root * scale) as f32).copysign(self);
        let is_special = (magnitude == 0) | (magnitude >= f32_bits::INFINITY);
        if is_special { self } else { root }
    }
}

impl Sealed for f64 {
    /// The polynomial has more than 24 bits of the root, and one step of Halley's method triples them.
    #[inline(always)]
    fn cube_root<S: Simd>(self, simd: S) -> f64 {
        let magnitude = self.to_bits() & f64_bits::MAGNITUDE;
        // A subnormal number is its bits times 2⁻¹⁰⁷⁴. They are converted without an instruction that old processors lack.
        let is_subnormal = magnitude < f64::MIN_POSITIVE.to_bits();
        let as_integer = (f64::from_bits(magnitude | f64_bits::TWO_TO_52.to_bits()) - f64_bits::TWO_TO_52).to_bits();
        let (bits, shift) = if is_subnormal { (as_integer, -1074) } else { (magnitude, 0) };
        let exponent = (bits >> f64_bits::MANTISSA) as i32 - 1023 + shift;
        let fraction = f64::from_bits(bits & ((1 << f64_bits::MANTISSA) - 1) | 1.0f64.to_bits());
        let CubeRoot { radicand, root, scale } = cube_root(simd, fraction, exponent);
        // The square of 26 bits is exact, so that only the quotient is rounded before the step.
        let root = f64::from_bits(root.to_bits() & f64_bits::HALF);
        let quotient = radicand / (root * root);
        let root = root + root * ((quotient - root) / (root + root + quotient));
        let root = (root * scale).copysign(self);
        let is_special = (magnitude == 0) | (magnitude >= f64::INFINITY.to_bits());
        if is_special { self } else { root }
    }
}
