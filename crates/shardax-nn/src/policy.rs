//! Mixed-precision policies.

use shardax::prelude::*;

/// The dtypes of a model's parameters and computations. [`Rngs`](crate::Rngs) pass the policy to every layer that is built
/// with them, so that you write the model's code only once. A layer's builder can override the policy.
///
/// Statistics of normalization layers and the softmax of attention are always computed in float32.
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
    /// The dtype to compute in. Default: the promoted dtype of a layer's input and parameters.
    pub dtype: Option<DType>,
}

impl Default for Policy {
    fn default() -> Self {
        Policy { param_dtype: DType::F32, dtype: None }
    }
}

impl Policy {
    /// Creates a policy with parameters and computations in float64. Its inputs should be float64 too, for example with
    /// [`enable_x64`](config::enable_x64).
    pub fn f64() -> Self {
        Policy { param_dtype: DType::F64, dtype: Some(DType::F64) }
    }

    /// Creates a policy with parameters in float32 and computations in bfloat16: mixed precision. You should prefer it for
    /// training on accelerators, because bfloat16 has the range of float32 and needs no scaled loss.
    pub fn bf16_compute() -> Self {
        Policy { dtype: Some(DType::Bf16), ..Policy::default() }
    }

    /// Creates a policy with parameters and computations in bfloat16. Use it for inference with a trained model; in training,
    /// small updates of bfloat16 parameters are rounded away.
    pub fn bf16() -> Self {
        Policy { param_dtype: DType::Bf16, dtype: Some(DType::Bf16) }
    }

    /// Creates a policy with parameters in float32 and computations in float16. Small gradients need a scaled loss:
    /// [`DynamicScale`](crate::optim::DynamicScale).
    pub fn f16_compute() -> Self {
        Policy { dtype: Some(DType::F16), ..Policy::default() }
    }
}
