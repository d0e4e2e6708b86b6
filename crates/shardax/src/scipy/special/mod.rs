//! Special functions, as in
//! [`jax.scipy.special`](https://docs.jax.dev/en/latest/jax.scipy.html#module-jax.scipy.special).
//!
//! Integers are converted to floating point; half precision is computed in float32. Operands of several shapes
//! broadcast. Functions of real numbers fail for complex ones.
//!
//! ```
//! # use shardax::prelude::*;
//! use shardax::scipy::special;
//! let p = array([0.1f32, 0.5, 0.9]);
//! assert!(allclose(special::expit(special::logit(&p)), &p, 1e-6, 1e-6)?);
//! let slope = grad(|a: Array| special::gammainc(a, 2.0)).call(array(1.5f32))?;
//! assert!((slope.item::<f32>()? + 0.277433).abs() < 1e-4);
//! # Ok::<(), shardax::Error>(())
//! ```

mod bessel;
mod counting;
mod entropy;
mod gamma;
mod harmonics;
mod integrals;
mod normal;

pub use bessel::*;
pub use counting::*;
pub use entropy::*;
pub use gamma::*;
pub use harmonics::*;
pub use integrals::*;
pub use normal::*;

pub use crate::nn::{log_softmax, softmax};

use crate::core::array::Array;
use crate::core::program::trace::{at_caller, or_failed};
use crate::error::{Result, err};
use crate::ops::numpy::{broadcast_args, promote_dtypes, to_inexact};

/// Applies `f` to the operands in their common floating point dtype and shape.
#[track_caller]
pub(super) fn elementwise(name: &str, args: &[Array], f: impl FnOnce(&[Array]) -> Array) -> Array {
    or_failed(&args[0], || {
        let operands: Vec<&Array> = args.iter().collect();
        Ok(f(&broadcast_args(name, &promote_dtypes(&operands, to_inexact)?)?))
    })
}

/// Like [`elementwise`], but fails for complex numbers.
#[track_caller]
pub(super) fn real_elementwise(name: &str, args: &[Array], f: impl FnOnce(&[Array]) -> Array) -> Array {
    let result = check_real(name, args).map(|()| elementwise(name, args, f));
    Array::from_result(result, &args[0])
}

/// Fails if an operand carries an error or is complex.
#[track_caller]
pub(in crate::scipy) fn check_real(name: &str, args: &[Array]) -> Result<()> {
    at_caller(|| {
        args.iter().try_for_each(Array::check)?;
        args.iter().find(|x| x.dtype().is_complex()).map_or(Ok(()), |x| {
            Err(err!(Type, "{name} does not support complex-valued inputs, got {}", x.type_name())
                .help("pass the real or imaginary part, which `real(..)` and `imag(..)` return"))
        })
    })
}

/// Returns the logarithm of the sum of exponentials over `axes`; see [`Array::logsumexp`].
///
/// ```
/// # use shardax::prelude::*;
/// let x = shardax::scipy::special::logsumexp(array([0.0f32, 0.0]), ..);
/// assert!((x.item::<f32>()? - 2f32.ln()).abs() < 1e-6);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn logsumexp(x: impl crate::ops::operators::ArrayLike, axes: impl crate::ops::numpy::IntoReduction) -> Array {
    x.into_array().logsumexp(axes)
}
