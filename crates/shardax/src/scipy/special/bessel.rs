//! Bessel functions of the first kind, and modified ones.

use super::{check_real, real_elementwise};
use crate::core::array::{Array, array};
use crate::core::function::Function;
use crate::core::program::trace::at_caller;
use crate::error::{Result, err};
use crate::ops::control_flow::{ScanOptions, custom_jvp};
use crate::ops::numpy::{arange, concatenate, promote_dtypes, remainder, to_inexact, where_};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::special::{BESSEL_I0, BESSEL_I0E, BESSEL_I1};
use crate::ops::primitive::unary::BESSEL_I1E;
use crate::rank_promotion;

/// Returns the modified Bessel function of the first kind, of order 0.
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

/// Computes `exp(-|x|)` times [`i0`], which does not overflow.
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

/// Returns the modified Bessel function of the first kind, of order 1.
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

/// Computes `exp(-|x|)` times [`i1`], which does not overflow.
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

/// Returns the Bessel functions of the first kind of the orders 0 to `v`, along a new first axis. They are computed by
/// a recurrence that starts at order `n_iter` (50 in JAX), which must be above `|z|`. The result has the dtype of `z`.
///
/// JAX's recurrence overflows if it starts far above `|z|`, and its derivatives lose their digits. Here, both values
/// and derivatives are accurate.
///
/// ```
/// # use shardax::prelude::*;
/// let j = shardax::scipy::special::bessel_jn(array([1.0f32, 2.5]), 1, 20);
/// assert_eq!(j.shape(), [2, 2]);
/// assert!(allclose(j.get(1), array([0.44005059f32, 0.49709410]), 1e-5, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for `v` above `n_iter`.
#[track_caller]
pub fn bessel_jn(z: impl ArrayLike, v: usize, n_iter: usize) -> Array {
    let z = z.into_array();
    let result = check_real("bessel_jn", std::slice::from_ref(&z)).and_then(|()| {
        at_caller(|| {
            if v > n_iter {
                return Err(err!(
                    Value,
                    "bessel_jn: order {v} is above {n_iter}, the order at which the recurrence starts"
                )
                .help("start at a higher order: `n_iter` is 50 in JAX"));
            }
            let z = promote_dtypes(&[&z], to_inexact)?.remove(0);
            orders(&z, v, n_iter)
        })
    });
    Array::from_result(result, &z)
}

/// The functions of the orders 0 to `v`. The derivative of an order is half the difference of its two neighbors, because
/// differentiating the recurrence would lose most digits.
fn orders(z: &Array, v: usize, n_iter: usize) -> Result<Array> {
    custom_jvp(move |z: Array| downwards(&z, v, n_iter))
        .defjvp(move |(z,): (Array,), (t,): (Array,)| -> Result<(Array, Array)> {
            let _ranks = rank_promotion::allow();
            let values = orders(&z, v + 1, n_iter.max(v + 1))?;
            // J₋₁ is -J₁.
            let lower = concatenate(&[-values.get(1..2), values.get(..v)], 0);
            Ok((values.get(..v + 1), (lower - values.get(1..v + 2)) * 0.5 * t))
        })
        .apply((z.clone(),))
}

/// Miller's recurrence, from order `n_iter` downwards. It starts with arbitrary values, which are divided by the sum that must be 1 at the
/// end. Each step divides the values by their magnitude, because they grow by `2 n_iter / |z|` and would overflow.
fn downwards(z: &Array, v: usize, n_iter: usize) -> Result<Array> {
    let _ranks = rank_promotion::allow();
    let is_zero = z.equal(0);
    let divisor = where_(&is_zero, 1.0, z);
    let [zero, unit] = [0.0, 1.0].map(|value| &divisor * 0 + value);
    let step = |(j_above2, j_above, sum): (Array, Array, Array), k: Array| {
        let j = 2.0 * (&k + 1.0) * &j_above / &divisor - j_above2;
        let sum = where_(remainder(&k, 2).equal(0), &sum + 2.0 * &j, sum);
        let size = j.abs();
        let scale = where_(size.greater(1.0), 1.0 / &size, 1.0);
        let j = j * &scale;
        ((j_above * &scale, j.clone(), sum * &scale), (j, scale))
    };
    let indices = arange(0..n_iter as i32 + 1).astype(z.dtype());
    let ((_, j0, sum), (scaled_values, scales)) =
        ScanOptions::new().reverse(true).scan(step, (zero.clone(), unit, zero), indices)?;
    // Each value was only scaled up to its own step. Multiplying by the scales of all later steps makes the values comparable.
    let first_scale = scales.get(..1) * 0 + 1;
    let later_scales = concatenate(&[first_scale, scales.get(..v).cumprod(0)], 0);
    // J₀ + 2 J₂ + 2 J₄ + … is 1, but the loop also added J₀ twice.
    let values = scaled_values.get(..v + 1) * later_scales / (sum - j0);
    let mut at_zero = vec![0.0f32; v + 1];
    at_zero[0] = 1.0;
    let at_zero = array(at_zero).astype(z.dtype()).reshape([vec![v + 1], vec![1; z.ndim()]].concat());
    Ok(where_(is_zero, at_zero, values))
}
