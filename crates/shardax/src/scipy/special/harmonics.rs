//! Spherical harmonics.

use super::check_real;
use crate::core::array::Array;
use crate::core::program::trace::or_failed;
use crate::dtype::DType;
use crate::error::{Result, err};
use crate::ops::control_flow::fori_loop;
use crate::ops::lax;
use crate::ops::numpy::{abs, broadcast_args, convert, cos, promote_dtypes, sin, sqrt, to_inexact, to_strong_type};
use crate::ops::operators::ArrayLike;
use crate::ops::promotion::convert_clamped;
use crate::ops::select::where_;

/// Returns the spherical harmonics `Yₙᵐ(θ, φ)` of degree `n` and order `m`, complex. `theta` is the angle from the pole, from 0 to π,
/// and `phi` the azimuth. The harmonics are orthonormal over the sphere, with the sign `(-1)ᵐ` of Condon and Shortley.
///
/// `n_max` is the largest degree: a degree above it counts as `n_max`. The harmonics are computed by a recurrence of `n_max` steps
/// over the degree. They are 0 where `|m|` exceeds `n`. Operands of several shapes broadcast.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::scipy::special::sph_harm_y;
/// let y = sph_harm_y(array([0, 1, 2]), array([0, -1, 2]), 0.5, 1.0, 2);
/// assert!((y.get(0).real().item::<f32>()? - 0.282095).abs() < 1e-6);
/// assert!((y.get(1).imag().item::<f32>()? + 0.139381).abs() < 1e-6);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error if a degree or an order is not an integer, or an angle is complex.
#[track_caller]
pub fn sph_harm_y(
    n: impl ArrayLike,
    m: impl ArrayLike,
    theta: impl ArrayLike,
    phi: impl ArrayLike,
    n_max: usize,
) -> Array {
    let (numbers, angles) = ([n.into_array(), m.into_array()], [theta.into_array(), phi.into_array()]);
    or_failed(&angles[0], || {
        check_real("sph_harm_y", &angles)?;
        for number in &numbers {
            number.check()?;
            if !number.dtype().is_integer() {
                return Err(err!(Type, "sph_harm_y requires integer degrees and orders, got {}", number.type_name())
                    .help("convert them with `astype(DType::I32)`"));
            }
        }
        let last = i32::try_from(n_max).ok().filter(|&last| last < i32::MAX).ok_or_else(|| {
            err!(Value, "sph_harm_y cannot have {n_max} as its largest degree")
                .help("pass the largest degree as `n_max`, at most 2147483646")
        })?;
        let angles = promote_dtypes(&[&angles[0], &angles[1]], |dtype| wide(to_inexact(dtype)))?;
        // The smallest integer has no absolute value.
        let numbers = numbers.map(|number| convert_clamped(&number, DType::I32).maximum(-i32::MAX));
        let args = broadcast_args("sph_harm_y", &[&numbers[..], &angles[..]].concat())?;
        let (degree, order) = (&args[0], &args[1]);
        let [theta, phi] = [&args[2], &args[3]].map(|angle| to_strong_type(angle, angle.dtype()));
        let size = legendre(degree, &abs(order), &theta, last)?;
        let is_odd_and_negative = order.less(0) & (order % 2).not_equal(0);
        let signed = where_(is_odd_and_negative, -&size, &size);
        let turn = convert(order, phi.dtype(), false) * &phi;
        Ok(lax::complex(&signed * cos(&turn), signed * sin(turn)))
    })
}

/// Half precision has no complex numbers.
fn wide(dtype: DType) -> DType {
    if dtype.byte_size() < 4 { DType::F32 } else { dtype }
}

/// Returns the associated Legendre functions of `cos(theta)`, normalized over the sphere. `order` is not negative.
fn legendre(degree: &Array, order: &Array, theta: &Array, last: i32) -> Result<Array> {
    let (cosine, sine) = (cos(theta), sin(theta));
    let order_squared = convert(order, theta.dtype(), false).square();
    // The carry has the shape and the sharding of all operands. The function of degree 0 is the root of 1 / 4π.
    let zero = &cosine * 0 + (degree * order) * 0;
    let first = &zero + (0.25 * std::f64::consts::FRAC_1_PI).sqrt();
    let (_, value) = fori_loop(
        1,
        last + 1,
        |step: Array, (before, value): (Array, Array)| {
            let at = convert(&step, theta.dtype(), false);
            // Up to the order, the functions whose degree is their order; then the recurrence over the degree.
            let is_diagonal = order.greater_equal(&step);
            let diagonal = &value * &sine * -sqrt(1 + 0.5 / &at);
            // Distances of the diagonal are replaced, because roots of negative numbers would make slopes NaN.
            let distance = where_(&is_diagonal, 1, at.square() - &order_squared);
            let distance_before = where_(&is_diagonal, 0, (&at - 1).square() - &order_squared);
            let share_before = sqrt(distance_before / (4 * (&at - 1).square() - 1).abs());
            let scale = sqrt((4 * at.square() - 1) / distance);
            let next = where_(&is_diagonal, diagonal, scale * (&cosine * &value - share_before * &before));
            let is_done = degree.less(&step);
            (where_(&is_done, &before, &value), where_(&is_done, &value, next))
        },
        (zero, first),
    )?;
    Ok(where_(order.greater(degree), 0, value))
}
