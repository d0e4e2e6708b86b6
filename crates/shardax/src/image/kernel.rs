//! Resampling kernels of images.

use std::f64::consts::PI;

use crate::core::array::Array;
use crate::error::{Result, err};
use crate::ops::numpy::where_;

/// The interpolation method.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ResizeMethod {
    /// The nearest pixel.
    Nearest,
    /// Linear interpolation of the two nearest pixels in each dimension.
    Linear,
    /// Cubic interpolation of four pixels, with the kernel of
    /// [Keys, Cubic convolution interpolation for digital image
    /// processing](https://doi.org/10.1109/TASSP.1981.1163711).
    Cubic,
    /// A sinc over six pixels, windowed by a sinc that is three times as wide
    /// ([Duchon, Lanczos filtering in one and two
    /// dimensions](https://doi.org/10.1175/1520-0450(1979)018%3C1016:LFIOAT%3E2.0.CO;2)).
    Lanczos3,
    /// A sinc over ten pixels, windowed by a sinc that is five times as wide.
    Lanczos5,
    /// A text that names no method. The function that receives it returns an error.
    #[doc(hidden)]
    Unknown(&'static str),
}

/// JAX's names, such as `"bilinear"` or `"lanczos3"`.
impl From<&'static str> for ResizeMethod {
    fn from(name: &'static str) -> Self {
        match name {
            "nearest" => ResizeMethod::Nearest,
            "linear" | "bilinear" | "trilinear" | "triangle" => ResizeMethod::Linear,
            "cubic" | "bicubic" | "tricubic" => ResizeMethod::Cubic,
            "lanczos3" => ResizeMethod::Lanczos3,
            "lanczos5" => ResizeMethod::Lanczos5,
            _ => ResizeMethod::Unknown(name),
        }
    }
}

impl ResizeMethod {
    /// Returns an error for a text that names no method.
    pub(super) fn check(self, function: &str) -> Result<()> {
        match self {
            ResizeMethod::Unknown(text) => Err(err!(Value, "{function} got the unknown method {text:?}").help(
                "the methods are \"nearest\", \"linear\", \"bilinear\", \"trilinear\", \"triangle\", \"cubic\", \"bicubic\", \"tricubic\", \
                 \"lanczos3\" and \"lanczos5\"",
            )),
            _ => Ok(()),
        }
    }

    /// Returns the weight of a pixel at this distance, which must not be negative.
    pub(super) fn weight(self, distance: &Array) -> Array {
        match self {
            ResizeMethod::Nearest | ResizeMethod::Linear => (-distance + 1).maximum(0),
            ResizeMethod::Cubic => cubic(distance),
            ResizeMethod::Lanczos3 => lanczos(distance, 3.0),
            ResizeMethod::Lanczos5 => lanczos(distance, 5.0),
            ResizeMethod::Unknown(_) => distance.clone(),
        }
    }
}

/// The cubic kernel: a polynomial on each of the first two unit distances, with slope -½ at 1.
fn cubic(x: &Array) -> Array {
    let near = ((1.5 * x - 2.5) * x) * x + 1.0;
    let far = ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0;
    let y = where_(x.greater_equal(1), far, near);
    where_(x.greater_equal(2), 0.0, y)
}

/// The Lanczos kernel: a sinc, windowed by a sinc that is `radius` times as wide.
fn lanczos(x: &Array, radius: f64) -> Array {
    let product = (x * PI).sin() * (x * PI / radius).sin() * radius;
    let squared = where_(x.not_equal(0), x * x * (PI * PI), 1.0);
    // The quotient is 0 / 0 at 0 and inaccurate near it, where the kernel is 1.
    let y = where_(x.greater(1e-3), product / squared, 1.0);
    where_(x.greater(radius), 0.0, y)
}
