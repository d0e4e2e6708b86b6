//! Remainders of floating-point numbers.
//!
//! XLA (xla-cpu-pjrt 0.0.1) calls the C library for each remainder, whose loop subtracts multiples of the divisor bit
//! by bit. If the quotient has few bits, one division and exact products are enough, and the compiler can turn them
//! into vector instructions.

use crate::Result;
use crate::per_type::per_type;
use crate::tasks::run_tasks;
use crate::view::check;

/// The elements whose quotients are checked together.
const BLOCK: usize = 16;

/// The number of elements of a task.
const ELEMENTS_PER_TASK: usize = 1 << 15;

/// Adding this number to a number of at most 51 bits, and subtracting it again, rounds to the nearest integer.
const ROUND: f64 = 6_755_399_441_055_744.0;

/// The products of smaller divisors and quotients may be subnormal. All divisors of f32 are larger.
const MIN_DIVISOR: f64 = 1e-280;

per_type!(RemainderOf for [f32, f64] {
    fn remainder(x: &[Self], y: &[Self], out: &mut [Self], threads: usize) = remainder_of;
});

mod sealed {
    /// A number whose remainders can be computed in f64.
    pub trait Sealed: super::RemainderOf + Copy + Send + Sync {
        /// The remainder, if the second result is true.
        fn by_one_division(self, divisor: Self) -> (Self, bool);
        /// The remainder of any two numbers.
        fn by_library(self, divisor: Self) -> Self;
    }
}

use sealed::Sealed;

/// An element of the arrays of [`remainder`]: f32 or f64.
pub trait Remainder: Sealed {}

impl Remainder for f32 {}

impl Sealed for f32 {
    /// The product of a divisor and a quotient of 28 bits is exact in f64.
    #[inline]
    fn by_one_division(self, divisor: f32) -> (f32, bool) {
        let (x, y) = (f64::from(self), f64::from(divisor));
        let quotient = x / y;
        let remainder = x - (quotient + ROUND - ROUND) * y;
        (with_sign(remainder, x, y) as f32, is_small(quotient, y))
    }

    fn by_library(self, divisor: f32) -> f32 {
        self % divisor
    }
}

impl Remainder for f64 {}

impl Sealed for f64 {
    /// The divisor is a sum of two numbers of at most 27 bits, whose products with the quotient are exact.
    #[inline]
    fn by_one_division(self, divisor: f64) -> (f64, bool) {
        let quotient = self / divisor;
        let rounded = quotient + ROUND - ROUND;
        let high = f64::from_bits(divisor.to_bits() & !((1 << 27) - 1));
        let remainder = (self - rounded * high) - rounded * (divisor - high);
        (with_sign(remainder, self, divisor), is_small(quotient, divisor))
    }

    fn by_library(self, divisor: f64) -> f64 {
        self % divisor
    }
}

/// The remainder with the sign of `x`, from the difference of `x` and the nearest multiple of `y`.
#[inline]
fn with_sign(rest: f64, x: f64, y: f64) -> f64 {
    let is_other_side = (rest < 0.0) != (x < 0.0) && rest != 0.0;
    let nearest = if is_other_side { rest.abs() - y.abs() } else { rest };
    nearest.abs().copysign(x)
}

/// Returns true if the products of this quotient and the divisor are exact: the quotient has at most 24 bits, and no product
/// is subnormal.
#[inline]
fn is_small(quotient: f64, y: f64) -> bool {
    (quotient.abs() < 16_777_216.0) & (y.abs() < f64::INFINITY) & (y.abs() > MIN_DIVISOR)
}

/// Computes the remainders of dividing the elements of `x` by the elements of `y`, like the C function `fmod`. They are
/// exact and have the signs of `x`. All three slices must have the same number of elements.
///
/// ```
/// let mut out = [0.0; 3];
/// shardax_cpu_kernels::remainder(&[5.5f32, -5.5, 1e30], &[2.0, 2.0, 3.0], &mut out, 1)?;
/// assert_eq!(out, [1.5, -1.5, 1e30 % 3.0]);
/// # Ok::<(), shardax_cpu_kernels::ShapeError>(())
/// ```
///
/// # Errors
/// Returns an error if the numbers of elements differ.
pub fn remainder<T: Remainder>(x: &[T], y: &[T], out: &mut [T], threads: usize) -> Result<()> {
    T::remainder(x, y, out, threads)
}

fn remainder_of<T: Remainder>(x: &[T], y: &[T], out: &mut [T], threads: usize) -> Result<()> {
    check("the elements of the divisor", y.len(), x.len())?;
    check("the elements of the result", out.len(), x.len())?;
    let tasks =
        x.chunks(ELEMENTS_PER_TASK).zip(y.chunks(ELEMENTS_PER_TASK)).zip(out.chunks_mut(ELEMENTS_PER_TASK)).collect();
    run_tasks(tasks, threads, || (), |(), ((x, y), out)| remainders(x, y, out));
    Ok(())
}

fn remainders<T: Remainder>(x: &[T], y: &[T], out: &mut [T]) {
    for ((x, y), out) in x.chunks(BLOCK).zip(y.chunks(BLOCK)).zip(out.chunks_mut(BLOCK)) {
        let mut all_small = true;
        for ((x, y), out) in x.iter().zip(y).zip(out.iter_mut()) {
            let (rest, is_small) = x.by_one_division(*y);
            *out = rest;
            all_small &= is_small;
        }
        if !all_small {
            out.iter_mut().zip(x).zip(y).for_each(|((out, x), y)| *out = x.by_library(*y));
        }
    }
}
