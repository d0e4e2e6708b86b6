//! Rotations in three dimensions, as in
//! [`jax.scipy.spatial.transform`](https://docs.jax.dev/en/latest/jax.scipy.html#module-jax.scipy.spatial.transform).

use std::f64::consts::PI;

use crate::core::array::Array;
use crate::core::program::trace::at_caller;
use crate::default_dtype;
use crate::error::{AtCaller, Result, err};
use crate::linalg::eigh;
use crate::ops::constants::zeros_like;
use crate::ops::elementwise::arctan2;
use crate::ops::index::{Ellipsis, IntoIndex};
use crate::ops::numpy::{concatenate, hypot, promote_dtypes, remainder, stack, to_inexact, where_};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::reduce::in_accumulator;
use crate::ops::primitive::stop_gradient::stop_gradient;
use crate::random::{self, RandomKey};
use crate::rank_promotion;

/// The angle in radians below which functions of angles are computed by their series.
const SMALL_ANGLE: f64 = 1e-3;

/// Rotations in three dimensions, stored as quaternions of norm 1.
///
/// Angles are in radians; [`radians`](crate::numpy::radians) and [`degrees`](crate::numpy::degrees) convert them. `a * b`
/// applies `b` first. The leading dimensions of two operands are broadcast together.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::scipy::spatial::transform::Rotation;
/// let quarter = Rotation::from_euler("z", std::f32::consts::FRAC_PI_2)?;
/// let turned = quarter.apply(array([1.0f32, 0.0, 0.0]))?;
/// assert!(allclose(turned, array([0.0f32, 1.0, 0.0]), 0.0, 1e-6)?);
/// let half = &quarter * &quarter;
/// assert!(allclose(half.magnitude(), std::f32::consts::PI, 1e-6, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, Debug, shardax_macros::Tree)]
pub struct Rotation {
    quat: Array,
}

impl Rotation {
    /// Creates rotations of quaternions `[..., 4]`, of any norm but 0, with the scalar part last.
    ///
    /// # Errors
    /// Returns an error if the last dimension is not 4.
    #[track_caller]
    pub fn from_quat(quat: impl ArrayLike) -> Result<Rotation> {
        let quat = checked("quaternions", quat, &[4])?;
        Ok(at_caller(|| Rotation::normalized(&quat)))
    }

    /// Creates rotations of rotation vectors `[..., 3]`: the axis, times the angle in radians.
    ///
    /// # Errors
    /// Returns an error if the last dimension is not 3.
    #[track_caller]
    pub fn from_rotvec(rotvec: impl ArrayLike) -> Result<Rotation> {
        let rotvec = checked("rotation vectors", rotvec, &[3])?;
        Ok(at_caller(|| {
            let quat = in_accumulator(&rotvec, |rotvec| {
                // Next to 0, series of the square, which has derivatives of every order there. The norm has none.
                let square = rotvec.square().sum_keepdims(-1);
                let is_small = square.less_equal(SMALL_ANGLE * SMALL_ANGLE);
                let half = where_(&is_small, 1, &square).sqrt() / 2;
                let quarter = &square / 4;
                let sine = 0.5 - &quarter / 12 + quarter.square() / 240;
                let cosine = 1 - &quarter / 2 + quarter.square() / 24;
                let scale = where_(&is_small, sine, half.sin() / (2 * &half));
                concatenate(&[rotvec * scale, where_(is_small, cosine, half.cos())], -1)
            });
            Rotation { quat }
        }))
    }

    /// Creates rotations of rotation matrices `[..., 3, 3]`. The matrices must be orthogonal and have the determinant 1.
    ///
    /// # Errors
    /// Returns an error if the last two dimensions are not 3.
    #[track_caller]
    pub fn from_matrix(matrix: impl ArrayLike) -> Result<Rotation> {
        let matrix = checked("rotation matrices", matrix, &[3, 3])?;
        Ok(at_caller(|| {
            let m = |row: usize, column: usize| matrix.get((Ellipsis, row, column));
            let trace = m(0, 0) + m(1, 1) + m(2, 2);
            // Each component can be computed from the largest one, which loses no digits.
            let mut best = stack(&[m(2, 1) - m(1, 2), m(0, 2) - m(2, 0), m(1, 0) - m(0, 1), 1 + &trace], -1);
            let mut largest = trace.clone();
            for i in (0..3).rev() {
                let (j, k) = ((i + 1) % 3, (i + 2) % 3);
                let mut parts = [(); 4].map(|()| m(k, j) - m(j, k));
                parts[i] = 1 - &trace + 2 * m(i, i);
                parts[j] = m(j, i) + m(i, j);
                parts[k] = m(k, i) + m(i, k);
                let is_larger = m(i, i).greater_equal(&largest);
                best = where_(is_larger.expand_dims(-1), stack(&parts, -1), best);
                largest = largest.maximum(m(i, i));
            }
            Rotation::normalized(&best)
        }))
    }

    /// Creates rotations of modified Rodrigues parameters `[..., 3]`: the axis, times the tangent of a quarter of the angle.
    ///
    /// # Errors
    /// Returns an error if the last dimension is not 3.
    #[track_caller]
    pub fn from_mrp(mrp: impl ArrayLike) -> Result<Rotation> {
        let mrp = checked("modified Rodrigues parameters", mrp, &[3])?;
        Ok(at_caller(|| {
            let quat = in_accumulator(&mrp, |mrp| {
                let square = mrp.square().sum_keepdims(-1);
                concatenate(&[2 * mrp, 1 - &square], -1) / (1 + square)
            });
            Rotation { quat }
        }))
    }

    /// Creates rotations of angles in radians about the axes of `seq`, one to three letters: `x`, `y`, `z` for axes that stay
    /// fixed, `X`, `Y`, `Z` for axes that turn with the body. `angles` is `[..., n]` for n letters; for one letter, it may be
    /// a scalar.
    ///
    /// # Errors
    /// Returns an error for other letters, a mixture of both kinds, an axis that follows itself, or angles of another shape.
    #[track_caller]
    pub fn from_euler(seq: &str, angles: impl ArrayLike) -> Result<Rotation> {
        let (axes, turns) = parse_axes(seq, 1..=3).at_caller()?;
        let angles = angles.into_array();
        let angles = if angles.ndim() == 0 { angles.expand_dims(0) } else { angles };
        let angles = checked("Euler angles", angles, &[axes.len()])?;
        Ok(at_caller(|| {
            let about = |n: usize| {
                let half = angles.get((Ellipsis, n)) / 2;
                let mut parts = [(); 4].map(|()| zeros_like(&half));
                parts[axes[n]] = half.sin();
                parts[3] = half.cos();
                Rotation { quat: stack(&parts, -1) }
            };
            (1..axes.len()).fold(about(0), |whole, n| if turns { whole * about(n) } else { about(n) * whole })
        }))
    }

    /// Creates the rotation by 0.
    pub fn identity() -> Rotation {
        Rotation { quat: Array::from([0.0, 0.0, 0.0, 1.0]).astype(default_dtype::float()) }
    }

    /// Creates `num` rotations that are uniformly distributed.
    #[track_caller]
    pub fn random(key: impl RandomKey, num: usize) -> Rotation {
        at_caller(|| Rotation::normalized(&random::normal_dtype(key, [num, 4], default_dtype::float())))
    }

    /// Concatenates batches of rotations along their first dimension.
    ///
    /// # Errors
    /// Returns an error if a rotation is single, or if the shapes do not fit.
    #[track_caller]
    pub fn concatenate(rotations: &[Rotation]) -> Result<Rotation> {
        if rotations.is_empty() || rotations.iter().any(Rotation::is_single) {
            return Err(err!(
                Value,
                "Rotation::concatenate needs at least one batch of rotations, and no single rotation"
            ))
            .at_caller();
        }
        let parts: Vec<&Array> = rotations.iter().map(|r| &r.quat).collect();
        Rotation::checked(concatenate(&parts, 0)).at_caller()
    }

    /// Returns the quaternions, `[..., 4]`, with the scalar part last.
    pub fn as_quat(&self) -> Array {
        self.quat.clone()
    }

    /// Returns the same rotations with scalar parts that are not negative.
    #[track_caller]
    pub fn canonical(&self) -> Rotation {
        at_caller(|| {
            // The scalar part decides, or, if it is 0, the first component that is not.
            let sign = [2, 1, 0, 3]
                .map(|i| self.part(i).sign())
                .into_iter()
                .reduce(|rest, sign| where_(sign.equal(0), rest, &sign))
                .unwrap_or_else(|| self.part(3));
            Rotation { quat: &self.quat * where_(sign.less(0), -1, 1).expand_dims(-1).astype(self.quat.dtype()) }
        })
    }

    /// Returns rotation matrices, `[..., 3, 3]`.
    #[track_caller]
    pub fn as_matrix(&self) -> Array {
        at_caller(|| {
            let [x, y, z, w] = [0, 1, 2, 3].map(|i| self.part(i));
            let rows = [
                [x.square() - y.square() - z.square() + w.square(), 2 * (&x * &y - &z * &w), 2 * (&x * &z + &y * &w)],
                [2 * (&x * &y + &z * &w), w.square() - x.square() + y.square() - z.square(), 2 * (&y * &z - &x * &w)],
                [2 * (&x * &z - &y * &w), 2 * (&y * &z + &x * &w), w.square() - x.square() - y.square() + z.square()],
            ];
            stack(&rows.map(|row| stack(&row, -1)), -2)
        })
    }

    /// Returns rotation vectors, `[..., 3]`: the axis, times the angle in radians, which is at most π.
    #[track_caller]
    pub fn as_rotvec(&self) -> Array {
        at_caller(|| {
            let Rotation { quat } = self.upper();
            let vector = quat.get((Ellipsis, ..3));
            // The sine of half the angle.
            let square = vector.square().sum_keepdims(-1);
            let is_small = square.less_equal(SMALL_ANGLE * SMALL_ANGLE / 4.0);
            let sine = where_(&is_small, 1, &square).sqrt();
            let angle = 2 * arctan2(&sine, quat.get((Ellipsis, 3..)));
            let series = 2 + &square / 3 + 3 * square.square() / 20;
            vector * where_(is_small, series, angle / sine)
        })
    }

    /// Returns modified Rodrigues parameters, `[..., 3]`, of norm 1 at most.
    #[track_caller]
    pub fn as_mrp(&self) -> Array {
        at_caller(|| {
            let Rotation { quat } = self.upper();
            quat.get((Ellipsis, ..3)) / (1 + quat.get((Ellipsis, 3..)))
        })
    }

    /// Returns the angles in radians about the three axes of `seq`, `[..., 3]`, as [`from_euler`](Rotation::from_euler) takes
    /// them. If two axes coincide after the rotation (gimbal lock), one of their angles is 0.
    ///
    /// Source: [Bernardes and Viollet 2022](https://doi.org/10.1371/journal.pone.0276302).
    ///
    /// # Errors
    /// Returns an error for other than three letters, and for letters that `from_euler` does not take.
    #[track_caller]
    pub fn as_euler(&self, seq: &str) -> Result<Array> {
        let (axes, turns) = parse_axes(seq, 3..=3).at_caller()?;
        Ok(at_caller(|| {
            // The formula is for fixed axes. Axes that turn are fixed axes in reverse order.
            let [i, j, last] = if turns { [axes[2], axes[1], axes[0]] } else { [axes[0], axes[1], axes[2]] };
            let symmetric = i == last;
            let k = if symmetric { 3 - i - j } else { last };
            let is_even = (i + 1) % 3 == j;
            let sign = if is_even { 1 } else { -1 };
            let part = |n: usize| self.part(n);
            let [a, b, c, d] = match symmetric {
                true => [part(3), part(i), part(j), part(k) * sign],
                false => [part(3) - part(j), part(i) + part(k) * sign, part(j) + part(3), part(k) * sign - part(i)],
            };
            let middle = 2 * arctan2(hypot(&c, &d), hypot(&a, &b));
            let (half_sum, half_difference) = (arctan2(b, a), arctan2(d, c));
            let (is_zero, is_pi) = (middle.less_equal(1e-7), (&middle - PI).abs().less_equal(1e-7));
            let is_locked = &is_zero | &is_pi;
            let turn = if turns { 1 } else { -1 };
            let locked = where_(is_zero, 2 * &half_sum, 2 * turn * &half_difference);
            let (difference, sum) = (&half_sum - &half_difference, half_sum + half_difference);
            let (first, third) = if turns { (sum, difference) } else { (difference, sum) };
            let [mut first, mut third] = [where_(&is_locked, locked, first), where_(is_locked, 0, third)];
            // The angle of the last of the fixed axes has the sign of their order.
            if !symmetric {
                *(if turns { &mut first } else { &mut third }) *= sign;
            }
            let middle = if symmetric { middle } else { middle - PI / 2.0 };
            let wrapped = |angle: Array| remainder(angle + PI, 2.0 * PI) - PI;
            stack(&[first, middle, third].map(wrapped), -1)
        }))
    }

    /// Rotates vectors `[..., 3]`. Their leading dimensions are broadcast with the rotations'.
    ///
    /// # Errors
    /// Returns an error if the last dimension is not 3, or if the shapes do not fit.
    #[track_caller]
    pub fn apply(&self, vectors: impl ArrayLike) -> Result<Array> {
        let vectors = checked("vectors", vectors, &[3])?;
        at_caller(|| {
            let _ranks = rank_promotion::allow();
            let turned = (self.as_matrix() * vectors.expand_dims(-2)).sum(-1);
            turned.check()?;
            Ok(turned)
        })
        .at_caller()
    }

    /// Returns the inverse rotations.
    #[track_caller]
    pub fn inv(&self) -> Rotation {
        at_caller(|| {
            let _ranks = rank_promotion::allow();
            Rotation { quat: &self.quat * Array::from([-1, -1, -1, 1]).astype(self.quat.dtype()) }
        })
    }

    /// Returns the angles of the rotations in radians, at least 0 and at most π.
    #[track_caller]
    pub fn magnitude(&self) -> Array {
        at_caller(|| {
            let vector = self.quat.get((Ellipsis, ..3));
            (2 * arctan2(norm(&vector), self.quat.get((Ellipsis, 3..)).abs())).squeeze(-1)
        })
    }

    /// Returns the mean of a batch of rotations, with one of the `weights` for each, `[n]`, or without weights: the rotation
    /// whose sum of squared distances is least.
    ///
    /// # Errors
    /// Returns an error for other than one leading dimension, or if the number of weights is another.
    #[track_caller]
    pub fn mean<'a>(&self, weights: impl Into<Option<&'a Array>>) -> Result<Rotation> {
        let weights = weights.into();
        at_caller(|| {
            let [n, _] = *self.quat.shape() else {
                let name = self.quat.type_name();
                return Err(err!(
                    Value,
                    "Rotation::mean needs one dimension of rotations, and the quaternions are {name}"
                ));
            };
            let weighted = match weights {
                None => self.quat.clone(),
                Some(weights) if weights.shape() == [n] => weights.expand_dims(-1) * &self.quat,
                Some(weights) => {
                    let name = weights.type_name();
                    return Err(err!(Value, "Rotation::mean needs {n} weights for {n} rotations, and got {name}"));
                }
            };
            let (_, vectors) = eigh(weighted.mt().matmul(&self.quat));
            Rotation::checked(vectors.get((.., -1)))
        })
        .at_caller()
    }

    /// Returns the rotation at an index of the first dimension, or the rotations at an array of indices.
    ///
    /// # Errors
    /// Returns an error if the rotation is single, or if the index is out of range.
    #[track_caller]
    pub fn get(&self, index: impl IntoIndex) -> Result<Rotation> {
        if self.is_single() {
            return Err(err!(Value, "a single rotation has no elements")).at_caller();
        }
        Rotation::checked(self.quat.get(index)).at_caller()
    }

    /// Returns `true` if this is one rotation without leading dimensions.
    pub fn is_single(&self) -> bool {
        self.quat.ndim() == 1
    }

    fn part(&self, n: usize) -> Array {
        self.quat.get((Ellipsis, n))
    }

    /// Returns the same rotations, with scalar parts that are not negative.
    fn upper(&self) -> Rotation {
        let is_lower = self.quat.get((Ellipsis, 3..)).less(0);
        Rotation { quat: where_(is_lower, -&self.quat, &self.quat) }
    }

    fn checked(quat: Array) -> Result<Rotation> {
        quat.check()?;
        Ok(Rotation { quat })
    }

    fn normalized(quat: &Array) -> Rotation {
        // Divided by the largest component, whose slope has no effect, so that no square leaves the range of the dtype.
        let quat = quat / stop_gradient(quat.abs().max_keepdims(-1));
        Rotation { quat: &quat / quat.square().sum_keepdims(-1).sqrt() }
    }

    fn composed(&self, other: &Rotation) -> Rotation {
        let _ranks = rank_promotion::allow();
        let [a, b, c, d] = [0, 1, 2, 3].map(|i| self.part(i));
        let [e, f, g, h] = [0, 1, 2, 3].map(|i| other.part(i));
        let parts = [
            &d * &e + &h * &a + &b * &g - &c * &f,
            &d * &f + &h * &b + &c * &e - &a * &g,
            &d * &g + &h * &c + &a * &f - &b * &e,
            &d * &h - &a * &e - &b * &f - &c * &g,
        ];
        Rotation::normalized(&stack(&parts, -1))
    }
}

macro_rules! products {
    ($($left:ty, $right:ty;)*) => {$(
        impl std::ops::Mul<$right> for $left {
            type Output = Rotation;

            #[track_caller]
            fn mul(self, other: $right) -> Rotation {
                at_caller(|| self.composed(&other))
            }
        }
    )*};
}

products! {
    Rotation, Rotation;
    Rotation, &Rotation;
    &Rotation, Rotation;
    &Rotation, &Rotation;
}

/// Rotations at times, interpolated between them with constant angular velocity.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::scipy::spatial::transform::{Rotation, Slerp};
/// let keys = Rotation::from_euler("z", array([[0.0f32], [1.0], [3.0]]))?;
/// let slerp = Slerp::new(array([0.0f32, 1.0, 2.0]), &keys)?;
/// assert!(allclose(slerp.call(array([0.5f32, 1.5]))?.magnitude(), array([0.5f32, 2.0]), 1e-5, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, Debug, shardax_macros::Tree)]
pub struct Slerp {
    times: Array,
    rotations: Array,
    rotvecs: Array,
}

impl Slerp {
    /// Creates an interpolator of a batch of rotations at ascending times `[n]`.
    ///
    /// # Errors
    /// Returns an error for fewer than two rotations, for more than one leading dimension, or for another number of times.
    #[track_caller]
    pub fn new(times: impl ArrayLike, rotations: &Rotation) -> Result<Slerp> {
        let times = times.into_array();
        at_caller(|| {
            rotations.quat.check()?;
            times.check()?;
            let [n, _] = *rotations.quat.shape() else {
                return Err(err!(Value, "Slerp needs a batch of rotations, and got {}", rotations.quat.type_name()));
            };
            if n < 2 || times.shape() != [n] {
                let name = times.type_name();
                return Err(err!(
                    Value,
                    "Slerp needs at least two rotations with a time each, and got {n} with times {name}"
                ));
            }
            let [before, after] =
                [&rotations.quat.get(..n - 1), &rotations.quat.get(1..)].map(|quat| Rotation { quat: quat.clone() });
            let rotvecs = (before.inv() * after).as_rotvec();
            let times = times.astype(rotations.quat.dtype());
            Ok(Slerp { times, rotations: before.quat, rotvecs })
        })
        .at_caller()
    }

    /// Returns the rotations at a time, or at times `[k]`. Before the first and after the last rotation, the nearest velocity
    /// goes on.
    ///
    /// # Errors
    /// Returns an error for times of more than one dimension.
    #[track_caller]
    pub fn call(&self, times: impl ArrayLike) -> Result<Rotation> {
        let times = times.into_array();
        at_caller(|| {
            times.check()?;
            let times = times.astype(self.times.dtype());
            if times.ndim() > 1 {
                return Err(err!(Value, "Slerp needs a time or a vector of times, and got {}", times.type_name()));
            }
            let last = self.rotations.shape()[0] - 1;
            let below = (self.times.searchsorted(&times) - 1).maximum(0).minimum(last);
            let (start, end) = (self.times.take(&below, 0), self.times.take(&below + 1, 0));
            let share = ((&times - &start) / (end - start)).expand_dims(-1);
            let from = Rotation { quat: self.rotations.take(&below, 0) };
            let _ranks = rank_promotion::allow();
            Ok(from * Rotation::from_rotvec(self.rotvecs.take(&below, 0) * share)?)
        })
        .at_caller()
    }
}

/// Returns the norm over the last dimension, which remains with size 1. The slope at 0 is 0.
fn norm(x: &Array) -> Array {
    let square = x.square().sum_keepdims(-1);
    let is_zero = square.equal(0);
    where_(&is_zero, 0, where_(&is_zero, 1, &square).sqrt())
}

/// Converts to an inexact array that ends with these dimensions.
#[track_caller]
fn checked(name: &str, x: impl ArrayLike, last: &[usize]) -> Result<Array> {
    let x = x.into_array();
    at_caller(|| {
        x.check()?;
        if !x.shape().ends_with(last) {
            return Err(err!(Value, "{name} end with the dimensions {last:?}, and got {}", x.type_name()));
        }
        let x = promote_dtypes(&[&x], to_inexact)?.swap_remove(0);
        match x.dtype().is_complex() {
            true => Err(err!(Type, "{name} are real, and got {}", x.type_name())),
            false => Ok(x),
        }
    })
    .at_caller()
}

/// Returns the axes that the letters name, and whether they turn with the body.
fn parse_axes(seq: &str, lengths: std::ops::RangeInclusive<usize>) -> Result<(Vec<usize>, bool)> {
    let turns = seq.chars().all(|c| c.is_ascii_uppercase());
    let letters = if turns { "XYZ" } else { "xyz" };
    let axes: Option<Vec<usize>> = seq.chars().map(|c| letters.find(c)).collect();
    match axes {
        Some(axes) if lengths.contains(&axes.len()) && axes.windows(2).all(|pair| pair[0] != pair[1]) => {
            Ok((axes, turns))
        }
        _ => {
            let (least, most) = (lengths.start(), lengths.end());
            let count = if least == most { format!("{most}") } else { format!("{least} to {most}") };
            Err(err!(
                Value,
                "the axes {seq:?} are not {count} of x, y, z or of X, Y, Z without one that follows itself"
            ))
        }
    }
}
