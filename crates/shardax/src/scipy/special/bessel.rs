//! Modified Bessel functions of the first kind.

use super::real_elementwise;
use crate::core::array::Array;
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::special::BESSEL_I0E;
use crate::ops::primitive::unary::BESSEL_I1E;

/// The modified Bessel function of the first kind, of order 0.
#[track_caller]
pub fn i0(x: impl ArrayLike) -> Array {
    real_elementwise("i0", &[x.into_array()], |x| x[0].abs().exp() * BESSEL_I0E.apply(x))
}

/// `exp(-|x|)` times [`i0`], which does not overflow.
#[track_caller]
pub fn i0e(x: impl ArrayLike) -> Array {
    real_elementwise("i0e", &[x.into_array()], |x| BESSEL_I0E.apply(x))
}

/// The modified Bessel function of the first kind, of order 1.
#[track_caller]
pub fn i1(x: impl ArrayLike) -> Array {
    real_elementwise("i1", &[x.into_array()], |x| x[0].abs().exp() * BESSEL_I1E.apply(&x[0]))
}

/// `exp(-|x|)` times [`i1`], which does not overflow.
#[track_caller]
pub fn i1e(x: impl ArrayLike) -> Array {
    real_elementwise("i1e", &[x.into_array()], |x| BESSEL_I1E.apply(&x[0]))
}
