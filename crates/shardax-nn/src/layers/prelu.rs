//! The activation with a learned slope.

use shardax::prelude::*;

/// A rectifier whose slope for negative numbers is a parameter: `max(0, x) + negative_slope * min(0, x)`.
///
/// The parameter is a scalar, as in Flax. Assign an array to it for slopes of your own, for example one for each feature.
///
/// ```
/// use shardax_nn::prelude::*;
/// let layer = PReLU::new(0.25);
/// assert_eq!(layer.forward(array([-2.0f32, 3.0])).to_vec::<f32>()?, [-0.5, 3.0]);
/// // One slope for each feature, the last dimension.
/// let layer = PReLU { negative_slope: array([0.5f32, 0.25]) };
/// assert_eq!(layer.forward(array([[-2.0f32, -2.0]])).to_vec::<f32>()?, [-1.0, -0.5]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Module, Clone, Debug)]
pub struct PReLU {
    /// The slope for negative numbers, `[]` or a shape that broadcasts to the inputs.
    pub negative_slope: Array,
}

impl PReLU {
    /// Creates a layer with this slope, in float32. Flax's default is 0.01.
    #[track_caller]
    pub fn new(negative_slope: f64) -> Self {
        PReLU { negative_slope: full((), negative_slope).astype(DType::F32) }
    }

    /// Applies the activation to each element. The result has the dtype of `x`.
    #[track_caller]
    pub fn forward(&self, x: impl ArrayLike) -> Array {
        let x = x.into_array();
        let slope = self.negative_slope.astype(x.dtype());
        // A slope for each feature has fewer dimensions than the input.
        let missing = x.ndim().saturating_sub(slope.ndim());
        let slope = slope.reshape([&vec![1; missing][..], slope.shape()].concat());
        where_(x.greater_equal(0), &x, slope * &x)
    }
}
