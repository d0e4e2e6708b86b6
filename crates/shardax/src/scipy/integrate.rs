//! Integrals of samples, as in
//! [`jax.scipy.integrate`](https://docs.jax.dev/en/latest/jax.scipy.html#module-jax.scipy.integrate).

use crate::core::array::Array;
use crate::core::program::trace::at_caller;
use crate::error::err;
use crate::ops::lax;
use crate::ops::numpy::{promote_dtypes, to_inexact};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::composite::composite1;
use crate::shape::{AxisNumber, normalize_axis};

/// The integral of samples `y` at places `x` along `axis`, by the trapezoidal rule. `x` is a vector of the axis' size, or
/// of the shape of `y`.
///
/// [`numpy::trapezoid`](crate::numpy::trapezoid) is for equal distances.
///
/// ```
/// # use shardax::prelude::*;
/// let x = array([0.0f32, 1.0, 3.0]);
/// let area = shardax::scipy::integrate::trapezoid(&x, &x, -1);
/// assert_eq!(area.item::<f32>()?, 4.5);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// Fails for shapes that do not fit.
#[track_caller]
pub fn trapezoid(y: impl ArrayLike, x: impl ArrayLike, axis: impl AxisNumber) -> Array {
    let axis = axis.axis_number();
    let (y, x) = (y.into_array(), x.into_array());
    let made = at_caller(|| {
        let args = promote_dtypes(&[&y, &x], to_inexact)?;
        let axis = normalize_axis(axis as isize, y.ndim())?;
        let n = y.shape()[axis];
        if x.shape() != [n] && x.shape() != y.shape() {
            return Err(err!(Value, "trapezoid got places of {} for samples of {}", x.type_name(), y.type_name())
                .help("give a vector with a place for each sample along the axis"));
        }
        composite1("trapezoid_at", axis, &args, |&axis, args| {
            let last = |x: &Array| if x.ndim() == args[0].ndim() { x.moveaxis(axis as i32, -1) } else { x.clone() };
            let (y, x) = (last(&args[0]), last(&args[1]));
            let ends = |x: &Array, from: usize| {
                let (d, n) = (x.ndim() - 1, x.shape()[x.ndim() - 1].max(1));
                lax::slice_in_dim(x, from.min(x.shape()[d]), (n - 1 + from).min(x.shape()[d]), d)
            };
            let width = ends(&x, 1) - ends(&x, 0);
            Ok(vec![(width * (ends(&y, 1) + ends(&y, 0))).sum(-1) * 0.5])
        })
    });
    Array::from_result(made, &y)
}
