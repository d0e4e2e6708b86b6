//! Bessel functions of the first kind, and modified ones.

use super::{check_real, real_elementwise};
use crate::core::array::Array;
use crate::core::program::trace::at_caller;
use crate::error::{Result, err};
use crate::ops::control_flow::ScanOptions;
use crate::ops::numpy::{arange, promote_dtypes, remainder, to_inexact, where_};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::special::{BESSEL_I0, BESSEL_I0E, BESSEL_I1};
use crate::ops::primitive::unary::BESSEL_I1E;

/// The modified Bessel function of the first kind, of order 0.
///
/// ```
/// # use shardax::prelude::*;
/// assert!((shardax::scipy::special::i0(1.0).item::<f32>()? - 1.266066).abs() < 1e-5);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn i0(x: impl ArrayLike) -> Array {
    real_elementwise("i0", &[x.into_array()], |x| BESSEL_I0.apply(x))
}

/// `exp(-|x|)` times [`i0`], which does not overflow.
///
/// ```
/// # use shardax::prelude::*;
/// assert!((shardax::scipy::special::i0e(1.0).item::<f32>()? - 0.465760).abs() < 1e-5);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn i0e(x: impl ArrayLike) -> Array {
    real_elementwise("i0e", &[x.into_array()], |x| BESSEL_I0E.apply(x))
}

/// The modified Bessel function of the first kind, of order 1.
///
/// ```
/// # use shardax::prelude::*;
/// assert!((shardax::scipy::special::i1(1.0).item::<f32>()? - 0.565159).abs() < 1e-5);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn i1(x: impl ArrayLike) -> Array {
    real_elementwise("i1", &[x.into_array()], |x| BESSEL_I1.apply(x))
}

/// `exp(-|x|)` times [`i1`], which does not overflow.
///
/// ```
/// # use shardax::prelude::*;
/// assert!((shardax::scipy::special::i1e(1.0).item::<f32>()? - 0.207910).abs() < 1e-5);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn i1e(x: impl ArrayLike) -> Array {
    real_elementwise("i1e", &[x.into_array()], |x| BESSEL_I1E.apply(&x[0]))
}

/// The Bessel functions of the first kind of the orders 0 to `v`, along a new first axis, by a recurrence that begins
/// at order `n_iter` (50 in JAX). The dtype is that of `z`; NaN at 0, as in JAX.
///
/// The recurrence overflows if it begins far above `|z|`: in float32 the result for 1.0 is NaN from order 50, also in JAX.
///
/// Fails for `v` above `n_iter`.
///
/// ```
/// # use shardax::prelude::*;
/// let j = shardax::scipy::special::bessel_jn(array([1.0f32, 2.5]), 1, 20);
/// assert_eq!(j.shape(), [2, 2]);
/// assert!(allclose(j.get(1), array([0.44005059f32, 0.49709410]), 1e-5, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn bessel_jn(z: impl ArrayLike, v: usize, n_iter: usize) -> Array {
    let z = z.into_array();
    let made = check_real("bessel_jn", std::slice::from_ref(&z)).and_then(|()| {
        at_caller(|| {
            if v > n_iter {
                return Err(err!(Value, "bessel_jn: order {v} is above that at which the recurrence begins, {n_iter}")
                    .help("begin at a higher order: `n_iter` is 50 in JAX"));
            }
            let z = promote_dtypes(&[&z], to_inexact)?.remove(0);
            downwards(&z, v, n_iter)
        })
    });
    Array::from_result(made, &z)
}

/// Miller's algorithm: the recurrence from `n_iter` down to 0, normalized by `J₀ + 2 (J₂ + J₄ + …) = 1`.
fn downwards(z: &Array, v: usize, n_iter: usize) -> Result<Array> {
    let at = |value: f64| z * 0 + value;
    let step = |(before, last, sum): (Array, Array, Array), k: Array| {
        let next = 2.0 * (&k + 1.0) * &last / z - before;
        let sum = where_(remainder(&k, 2).equal(0), &sum + 2.0 * &next, sum);
        ((last, next.clone(), sum), next)
    };
    let orders = arange(0..n_iter as i32 + 1).astype(z.dtype());
    let ((_, first, sum), all) =
        ScanOptions::default().reverse(true).scan(step, (at(0.0), at(1e-16), at(0.0)), orders)?;
    // The sum has the first one twice.
    Ok(all.get(..v + 1) / (sum - first))
}
