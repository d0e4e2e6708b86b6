//! Functions that change gradients in the backward pass.

use shardax::control_flow::custom_vjp;
use shardax::prelude::*;

/// Returns the tree unchanged, and multiplies gradients that pass back through it by `scale`. With a negative `scale`, it is
/// a gradient reversal.
///
/// ```
/// use shardax_nn::optim::scale_gradient;
/// use shardax_nn::prelude::*;
/// let f = |x: Array| -> Result<Array> { Ok(scale_gradient(x, 0.5)?.square()) };
/// let (value, slope) = value_and_grad(f).call(3.0f32)?;
/// assert_eq!((value.item::<f32>()?, slope.item::<f32>()?), (9.0, 3.0));
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if an array of the tree failed.
#[track_caller]
pub fn scale_gradient<P: Tree>(inputs: P, scale: f64) -> Result<P> {
    if scale == 1.0 {
        return Ok(inputs);
    }
    let scaled = |x: Array| {
        let like = x.clone();
        custom_vjp(|x: Array| x)
            .defvjp(|x: Array| (x, ()), move |(), cotangent: Array| (cotangent * scale,))
            .call(x)
            .unwrap_or_else(|error| Array::from_error(error, &like))
    };
    tree::map(|x: Array| if scale == 0.0 { stop_gradient(x) } else { scaled(x) }, inputs)
}
