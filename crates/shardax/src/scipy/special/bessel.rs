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
/// at order `n_iter` (50 in JAX), which must be above `|z|`. The result has the dtype of `z`.
///
/// JAX's recurrence overflows if it begins far above `|z|`, and its slopes lose their digits. Values and slopes here are
/// accurate.
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
            orders(&z, v, n_iter)
        })
    });
    Array::from_result(made, &z)
}

/// The functions of the orders 0 to `v`, whose slopes are half the difference of the two neighbours. A slope of the
/// recurrence itself would lose most digits.
fn orders(z: &Array, v: usize, n_iter: usize) -> Result<Array> {
    let slopes = move |(z,): (Array,), (t,): (Array,)| -> Result<(Array, Array)> {
        let all = orders(&z, v + 1, n_iter.max(v + 1))?;
        // The function of order -1 is the negative of that of order 1.
        let before = concatenate(&[-all.get(1..2), all.get(..v)], 0);
        Ok((all.get(..v + 1), (before - all.get(1..v + 2)) * 0.5 * t))
    };
    custom_jvp(move |z: Array| downwards(&z, v, n_iter)).defjvp(slopes).apply((z.clone(),))
}

/// Miller's recurrence: from order `n_iter` downwards, from any start, divided by the sum that must be 1. Values are
/// divided by their magnitude after each step, because they grow by `2 n_iter / |z|` and would overflow.
fn downwards(z: &Array, v: usize, n_iter: usize) -> Result<Array> {
    let is_zero = z.equal(0);
    let divisor = where_(&is_zero, 1.0, z);
    let at = |value: f64| &divisor * 0 + value;
    let step = |(before, last, sum): (Array, Array, Array), k: Array| {
        let next = 2.0 * (&k + 1.0) * &last / &divisor - before;
        let sum = where_(remainder(&k, 2).equal(0), &sum + 2.0 * &next, sum);
        let size = next.abs();
        let scale = where_(size.greater(1.0), 1.0 / &size, 1.0);
        let next = next * &scale;
        ((last * &scale, next.clone(), sum * &scale), (next, scale))
    };
    let indices = arange(0..n_iter as i32 + 1).astype(z.dtype());
    let ((_, first, sum), (all, scales)) =
        ScanOptions::default().reverse(true).scan(step, (at(0.0), at(1.0), at(0.0)), indices)?;
    // Each value was divided by the magnitudes until its own step; now by those of all later steps too.
    let one = scales.get(..1) * 0 + 1;
    let later = concatenate(&[one, scales.get(..v).cumprod(0)], 0);
    // The sum has the first one twice.
    let values = all.get(..v + 1) * later / (sum - first);
    let mut at_zero = vec![0.0f32; v + 1];
    at_zero[0] = 1.0;
    let at_zero = array(at_zero).astype(z.dtype()).reshape([vec![v + 1], vec![1; z.ndim()]].concat());
    Ok(where_(is_zero, at_zero, values))
}
