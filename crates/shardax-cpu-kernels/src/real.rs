//! The elements of the matrices that are decomposed.

use std::ops::Neg;

use faer::traits::RealField;

use crate::decompositions::{cholesky_of, eigh_of, qr_of, svd_of};
use crate::lu::lu_of;
use crate::per_type::per_type;
use crate::triangular_solve::{Triangle, triangular_solve_of};
use crate::values::{eigvalsh_of, svdvals_of};
use crate::vectors::Vectors;
use crate::{Float, View};

per_type!(Decompositions for [f32, f64] {
    fn cholesky(a: View<'_, Self>, l: &mut [Self], threads: usize) = cholesky_of;
    fn qr(a: View<'_, Self>, is_full: bool, q: &mut [Self], r: &mut [Self], threads: usize) = qr_of;
    fn eigh(a: View<'_, Self>, vectors: &mut [Self], values: &mut [Self], threads: usize) = eigh_of;
    fn eigvalsh(a: View<'_, Self>, values: &mut [Self], threads: usize) = eigvalsh_of;
    fn svdvals(a: View<'_, Self>, values: &mut [Self], threads: usize) = svdvals_of;
    fn svd(a: View<'_, Self>, is_full: bool, u: &mut [Self], s: &mut [Self], vt: &mut [Self], threads: usize) = svd_of;
    fn lu(
        a: View<'_, Self>,
        factors: &mut [Self],
        pivots: &mut [i32],
        permutation: &mut [i32],
        threads: usize
    ) = lu_of;
    fn triangular_solve(
        a: View<'_, Self>,
        b: View<'_, Self>,
        triangle: Triangle,
        x: &mut [Self],
        threads: usize
    ) = triangular_solve_of;
});

/// An element of the matrices that are decomposed: f32 or f64.
pub trait Real: Decompositions + Float + Vectors + RealField + Copy + Neg<Output = Self> {
    #[doc(hidden)]
    const NAN: Self;
    #[doc(hidden)]
    const ZERO: Self;
    #[doc(hidden)]
    const ONE: Self;
    #[doc(hidden)]
    const EPSILON: Self;
    #[doc(hidden)]
    const MIN_POSITIVE: Self;
    #[doc(hidden)]
    fn is_finite(self) -> bool;
    #[doc(hidden)]
    fn root(self) -> Self;
    #[doc(hidden)]
    fn magnitude(self) -> Self;
    /// The power of two with the exponent of a positive number; 1 for 0 and subnormal numbers.
    #[doc(hidden)]
    fn power_of_two(self) -> Self;
    #[doc(hidden)]
    fn widen(self) -> f64;
    #[doc(hidden)]
    fn narrow(wide: f64) -> Self;
}

macro_rules! real {
    ($($t:ident $exponent:literal),*) => { $(
        impl Real for $t {
            const NAN: $t = $t::NAN;
            const ZERO: $t = 0.0;
            const ONE: $t = 1.0;
            const EPSILON: $t = $t::EPSILON;
            const MIN_POSITIVE: $t = $t::MIN_POSITIVE;

            #[inline]
            fn is_finite(self) -> bool {
                $t::is_finite(self)
            }

            #[inline]
            fn root(self) -> $t {
                self.sqrt()
            }

            #[inline]
            fn magnitude(self) -> $t {
                self.abs()
            }

            #[inline]
            fn power_of_two(self) -> $t {
                let power = $t::from_bits(self.to_bits() & $exponent);
                if power > 0.0 { power } else { 1.0 }
            }

            #[inline]
            fn widen(self) -> f64 {
                f64::from(self)
            }

            #[inline]
            fn narrow(wide: f64) -> $t {
                wide as $t
            }
        }
    )* };
}
real!(f32 0x7f80_0000, f64 0x7ff0_0000_0000_0000);
