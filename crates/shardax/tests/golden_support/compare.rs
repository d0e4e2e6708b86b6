//! Comparison of an array with JAX's: the tolerance follows the values' scale, so that zeros never pass for an answer.

use shardax::dtype::Scalar;
use shardax::prelude::*;

use super::Host;

/// Compares an array with JAX's: `|got - want| <= tol * (scale + |want|)`, where the scale is the largest magnitude
/// that JAX has there, 1 at most. NaN equals NaN, infinities equal themselves, and `tol = 0` means every bit.
pub fn differ(got: &Array, want: &Host, tol: f64) -> Result<(), String> {
    if (got.dtype(), got.shape()) != (want.dtype, want.shape.as_slice()) {
        return Err(format!("got {}, want {}{:?}", got.type_name(), want.dtype, want.shape));
    }
    let bytes = got.to_bytes().map_err(|e| e.to_string())?;
    let (found, wanted) = (scalars(want.dtype, &bytes), want.scalars());
    let scale = scale(&wanted);
    let range = Range::of(want.dtype);
    let far = |(g, w): (&Scalar, &Scalar)| !close(*g, *w, tol, scale, range);
    match found.iter().zip(&wanted).position(far) {
        None => Ok(()),
        Some(i) if wanted.len() <= 12 => Err(format!("got {found:?}, want {wanted:?} (first difference at {i})")),
        Some(i) => {
            let count = found.iter().zip(&wanted).filter(|pair| far(*pair)).count();
            Err(format!("{count} of {} differ, first at {i}: got {:?}, want {:?}", wanted.len(), found[i], wanted[i]))
        }
    }
}

/// Returns true if zeros would pass for JAX's other values: a comparison that cannot fail.
pub fn is_blind(want: &Host, tol: f64) -> bool {
    let zeros = scalars(want.dtype, &vec![0; want.bytes.len()]);
    let expected = want.scalars();
    let scale = scale(&expected);
    let range = Range::of(want.dtype);
    let is_zero = |w: &Scalar| w.to_f64().abs().max(w.imag().abs()) < range.tiny;
    !expected.iter().all(is_zero) && zeros.iter().zip(&expected).all(|(z, w)| close(*z, *w, tol, scale, range))
}

impl Host {
    pub fn scalars(&self) -> Vec<Scalar> {
        scalars(self.dtype, &self.bytes)
    }
}

fn scalars(dtype: DType, bytes: &[u8]) -> Vec<Scalar> {
    bytes.chunks_exact(dtype.byte_size()).map(|b| Scalar::read(dtype, b)).collect()
}

/// The largest finite magnitude, 1 at most.
fn scale(values: &[Scalar]) -> f64 {
    let magnitudes = values.iter().map(|v| v.to_f64().hypot(v.imag()));
    magnitudes.filter(|m| m.is_finite()).fold(0.0, f64::max).min(1.0)
}

/// The largest number of a dtype.
#[derive(Clone, Copy)]
struct Range {
    /// The smallest number that is not denormal: those below may be flushed to zero.
    tiny: f64,
    /// A sum of terms near the largest number may overflow, depending on its order and so on the processor: from here
    /// on a number and the infinity of its sign are alike.
    edge: f64,
}

impl Range {
    fn of(dtype: DType) -> Self {
        let (tiny, largest) = match dtype.real() {
            DType::F64 => (f64::MIN_POSITIVE, f64::MAX),
            DType::F16 => (f64::from(f32::MIN_POSITIVE), 65504.0),
            _ => (f64::from(f32::MIN_POSITIVE), f64::from(f32::MAX)),
        };
        Range { tiny, edge: largest / 4.0 }
    }
}

fn close(got: Scalar, want: Scalar, tol: f64, scale: f64, range: Range) -> bool {
    let overflows = |a: f64, b: f64| a.is_infinite() && b.abs() >= range.edge && a.signum() == b.signum();
    let part = |g: f64, w: f64| {
        (g.is_nan() && w.is_nan())
            || g.to_bits() == w.to_bits()
            || (tol > 0.0 && g.abs() < range.tiny && w.abs() < range.tiny)
            || (tol > 0.0 && (g == w || overflows(g, w) || overflows(w, g)))
            || (tol > 0.0 && w.is_finite() && (g - w).abs() <= tol * (scale + w.abs()))
    };
    match (got, want) {
        (Scalar::Int(g), Scalar::Int(w)) => g == w,
        (Scalar::Bool(g), Scalar::Bool(w)) => g == w,
        // The tolerance of a complex number is relative to its length.
        (Scalar::Complex(..), Scalar::Complex(..)) if tol > 0.0 => {
            let length = want.to_f64().hypot(want.imag());
            let distance = (got.to_f64() - want.to_f64()).hypot(got.imag() - want.imag());
            (length.is_finite() && distance <= tol * (scale + length))
                || (part(got.to_f64(), want.to_f64()) && part(got.imag(), want.imag()))
        }
        _ => part(got.to_f64(), want.to_f64()) && part(got.imag(), want.imag()),
    }
}
