//! The size of an error.

use shardax::prelude::*;

/// See [`Limits::units`].
const MARGIN: f64 = 1024.0;

/// The limits of a floating point type.
#[derive(Clone, Copy)]
pub struct Limits {
    pub smallest_normal: f64,
    pub largest: f64,
    pub epsilon: f64,
}

impl Limits {
    pub fn of(dtype: DType) -> Limits {
        match dtype {
            DType::F64 => Limits { smallest_normal: f64::MIN_POSITIVE, largest: f64::MAX, epsilon: f64::EPSILON },
            _ => Limits {
                smallest_normal: f64::from(f32::MIN_POSITIVE),
                largest: f64::from(f32::MAX),
                epsilon: f64::from(f32::EPSILON),
            },
        }
    }

    /// Returns true if the type represents an argument exactly, and not as a subnormal number, because XLA's programs read
    /// subnormal numbers as 0.
    pub fn has(&self, x: f64) -> bool {
        let exact = self.epsilon == f64::EPSILON || f64::from(x as f32) == x;
        exact && (x == 0.0 || x.abs() >= self.smallest_normal * 2.0) && x.abs() <= self.largest
    }

    /// Returns true if a number of this size is in the range of the type.
    pub fn represents(&self, value: f64) -> bool {
        value == 0.0 || (value.abs() >= self.smallest_normal && value.abs() <= self.largest)
    }

    /// The distance of a result from the true value, in units in the last place of the true value. Results below the
    /// normal numbers may be 0, and results beyond the largest number infinite; so may results within a factor of
    /// [`MARGIN`] of these limits, because a term of the sum or a factor of the product that they are may exceed the limits.
    pub fn units(&self, result: f64, value: f64) -> f64 {
        let (small, large) = (self.smallest_normal * MARGIN, self.largest / MARGIN);
        let is_at_limit = if value.abs() > large {
            result * value.signum() > large
        } else {
            value.abs() < small && result.abs() < small
        };
        if is_at_limit {
            return 0.0;
        }
        let exponent = value.abs().max(self.smallest_normal).log2().floor();
        let units = (result - value).abs() / (exponent.exp2() * self.epsilon);
        // Both may be infinite, but of different signs.
        if units.is_nan() { f64::INFINITY } else { units }
    }
}
