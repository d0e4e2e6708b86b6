//! Integrals of samples, as in
//! [`jax.scipy.integrate`](https://docs.jax.dev/en/latest/jax.scipy.html#module-jax.scipy.integrate).

use crate::core::array::Array;
use crate::core::program::trace::or_failed;
use crate::error::err;
use crate::ops::lax;
use crate::ops::numpy::{promote_dtypes, to_inexact};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::composite::composite1;
use crate::shape::{AxisNumber, normalize_axis};

/// Integrates samples `y` at the points `x` along `axis` with the trapezoidal rule. `x` is a vector with one point for
/// each sample, or has the shape of `y`.
///
/// For equidistant points, use [`numpy::trapezoid`](crate::numpy::trapezoid).
///
/// ```
/// # use shardax::prelude::*;
/// let x = array([0.0f32, 1.0, 3.0]);
/// let area = shardax::scipy::integrate::trapezoid(&x, &x, -1);
/// assert_eq!(area.item::<f32>()?, 4.5);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for shapes that do not fit.
#[track_caller]
pub fn trapezoid(y: impl ArrayLike, x: impl ArrayLike, axis: impl AxisNumber) -> Array {
    let axis = axis.axis_number();
    let (y, x) = (y.into_array(), x.into_array());
    or_failed(&y, || {
        let args = promote_dtypes(&[&y, &x], to_inexact)?;
        let axis = normalize_axis(axis as isize, y.ndim())?;
        let n = y.shape()[axis];
        if x.shape() != [n] && x.shape() != y.shape() {
            return Err(err!(Value, "trapezoid got places of {} for samples of {}", x.type_name(), y.type_name())
                .help("pass a vector with one point for each sample along the axis"));
        }
        composite1("trapezoid_at", axis, &args, |&axis, args| {
            let y = args[0].moveaxis(axis as i32, -1);
            let x = if args[1].ndim() == y.ndim() { args[1].moveaxis(axis as i32, -1) } else { args[1].clone() };
            let width = interval_ends(&x, 1) - interval_ends(&x, 0);
            Ok(vec![(width * (interval_ends(&y, 1) + interval_ends(&y, 0))).sum(-1) * 0.5])
        })
    })
}

/// The left (`side` 0) or right (`side` 1) ends of the intervals between neighbors along the last axis.
fn interval_ends(x: &Array, side: usize) -> Array {
    let axis = x.ndim() - 1;
    let size = x.shape()[axis];
    lax::slice_in_dim(x, side.min(size), (size.max(1) - 1 + side).min(size), axis)
}
