//! The dtypes of a whole model.

use shardax::prelude::*;

/// The dtypes of a whole model: those of its parameters, and those that its layers compute in. [`Rngs`](crate::Rngs) take
/// it to every layer that they make, so that a model is written once; what a layer's builder says comes first.
///
/// Statistics of normalization layers and the softmax of attention are computed in float32 whatever the policy is.
///
/// ```
/// use shardax_nn::prelude::*;
/// let mut rngs = Rngs::new(0).with_policy(Policy::bf16_compute());
/// let layer = Linear::new(2, 3, &mut rngs);
/// assert_eq!(layer.kernel.dtype(), DType::F32);
/// assert_eq!(layer.forward(ones([1, 2])).dtype(), DType::Bf16);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Policy {
    /// The dtype of parameters. Default float32.
    pub param_dtype: DType,
    /// The dtype to compute in. Default: what a layer's input and parameters promote to.
    pub dtype: Option<DType>,
}

impl Default for Policy {
    fn default() -> Self {
        Policy { param_dtype: DType::F32, dtype: None }
    }
}

impl Policy {
    /// Parameters in float32, computing in bfloat16: mixed precision.
    pub fn bf16_compute() -> Self {
        Policy { dtype: Some(DType::Bf16), ..Policy::default() }
    }

    /// Parameters and computing in bfloat16: what serves a model that was trained.
    pub fn bf16() -> Self {
        Policy { param_dtype: DType::Bf16, dtype: Some(DType::Bf16) }
    }

    /// Parameters in float32, computing in float16, whose small gradients need a scaled loss:
    /// [`DynamicScale`](crate::optim::DynamicScale).
    pub fn f16_compute() -> Self {
        Policy { dtype: Some(DType::F16), ..Policy::default() }
    }
}
