//! Low-rank adaptation.

use shardax::lax::DotOptions;
use shardax::nn::initializers::{self, Initializer};
use shardax::prelude::*;

use super::{Layer, Linear, promoted};
use crate::check::input_features;
use crate::shardings::sharding_for_dot;
use crate::{LoRAParam, Rngs};

/// A product of two small matrices that adapts a layer, while the layer's weights stay frozen.
///
/// The matrices are of the kind [`LoRAParam`], so you can train only them with `Optimizer::wrt(model, adam(1e-3),
/// Filter::of::<LoRAParam>())`.
///
/// Source: [Hu et al. 2021](https://arxiv.org/abs/2106.09685).
///
/// ```
/// use shardax_nn::prelude::*;
/// let mut rngs = Rngs::new(0);
/// let base = Linear::new(3, 4, &mut rngs);
/// let mut adapted = LoRA::new(3, 2, 4, &mut rngs).around(base.clone());
/// // The second matrix starts as zeros, so that the layer does not change at first.
/// let x = ones([16, 3]);
/// assert_eq!(adapted.forward(&x).to_vec::<f32>()?, base.forward(&x).to_vec::<f32>()?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Module, Clone, Debug)]
pub struct LoRA<B = ()> {
    /// `[in, rank]`
    pub lora_a: LoRAParam,
    /// `[rank, out]`, zeros at first.
    pub lora_b: LoRAParam,
    /// The layer that is adapted.
    pub base_module: B,
    #[tree(static)]
    dtype: Option<DType>,
}

/// The options of a [`LoRA`].
#[derive(Clone, Debug)]
pub struct LoRABuilder {
    sizes: [usize; 3],
    dtype: Option<DType>,
    param_dtype: Option<DType>,
    a_initializer: Initializer,
    b_initializer: Initializer,
}

impl LoRABuilder {
    /// Sets the dtype to compute in. Default: the policy's, or the promoted dtype of input and parameters.
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.dtype = Some(dtype);
        self
    }

    /// Sets the dtype of the matrices. Default: the policy's, float32.
    pub fn param_dtype(mut self, dtype: DType) -> Self {
        self.param_dtype = Some(dtype);
        self
    }

    /// Sets the initializer of the first matrix. Default He uniform.
    pub fn a_initializer(mut self, init: Initializer) -> Self {
        self.a_initializer = init;
        self
    }

    /// Sets the initializer of the second matrix. Default zeros.
    pub fn b_initializer(mut self, init: Initializer) -> Self {
        self.b_initializer = init;
        self
    }

    /// Builds the matrices. Their initial values are drawn from the stream `params`.
    #[track_caller]
    pub fn build(self, rngs: &mut Rngs) -> LoRA {
        let policy = rngs.policy();
        let ([from, rank, to], param_dtype) = (self.sizes, self.param_dtype.unwrap_or(policy.param_dtype));
        let lora_a = self.a_initializer.init(&rngs.params(), &[from, rank], param_dtype).into();
        let lora_b = self.b_initializer.init(&rngs.params(), &[rank, to], param_dtype).into();
        LoRA { lora_a, lora_b, base_module: (), dtype: self.dtype.or(policy.dtype) }
    }
}

impl LoRA {
    /// Creates matrices of this rank from `in_features` to `out_features`. The rank should be much smaller than both.
    #[track_caller]
    pub fn new(in_features: usize, lora_rank: usize, out_features: usize, rngs: &mut Rngs) -> Self {
        LoRA::builder(in_features, lora_rank, out_features).build(rngs)
    }

    /// Returns a builder of the matrices.
    pub fn builder(in_features: usize, lora_rank: usize, out_features: usize) -> LoRABuilder {
        LoRABuilder {
            sizes: [in_features, lora_rank, out_features],
            dtype: None,
            param_dtype: None,
            a_initializer: initializers::he_uniform(),
            b_initializer: initializers::zeros(),
        }
    }

    /// Adds the product to the output of `base_module`. You can wrap any layer that maps `in_features` to
    /// `out_features`.
    pub fn around<B: Layer>(self, base_module: B) -> LoRA<B> {
        LoRA { lora_a: self.lora_a, lora_b: self.lora_b, base_module, dtype: self.dtype }
    }
}

impl LoRA {
    /// Returns `x · a · b`, `[..., out]` for `x` of `[..., in]`.
    #[track_caller]
    pub fn forward(&self, x: impl ArrayLike) -> Array {
        self.adapt(x.into_array()).1
    }
}

impl<B: Layer> LoRA<B> {
    /// Returns `x · a · b`, `[..., out]` for `x` of `[..., in]`, added to the result of the adapted layer.
    #[track_caller]
    pub fn forward(&mut self, x: impl ArrayLike) -> Array {
        let (x, y) = self.adapt(x.into_array());
        y + self.base_module.forward(x)
    }
}

impl<B> LoRA<B> {
    /// Returns `x` in the computation dtype, and `x · a · b`.
    #[track_caller]
    fn adapt(&self, x: Array) -> (Array, Array) {
        if let Err(error) = input_features("LoRA", &x, &self.lora_a) {
            let failed = Array::from_error(error, &x);
            return (failed.clone(), failed);
        }
        let arrays = [x, self.lora_a.clone().into_inner(), self.lora_b.clone().into_inner()];
        let [x, a, b] = match self.dtype {
            Some(dtype) => arrays.map(|x| x.astype(dtype)),
            None => promoted(arrays),
        };
        let low_rank = sharding_for_dot(DotOptions::new(), &x, &a).dot(&x, a);
        let y = sharding_for_dot(DotOptions::new(), &low_rank, &b).dot(&low_rank, b);
        (x, y)
    }
}

impl<B: Layer> Layer for LoRA<B> {
    #[track_caller]
    fn forward(&mut self, x: Array) -> Array {
        LoRA::<B>::forward(self, x)
    }
}

/// A [`Linear`] layer with a [`LoRA`].
///
/// ```
/// use shardax_nn::prelude::*;
/// let layer = LoRALinear::new(3, 4, 2, &mut Rngs::new(0));
/// assert_eq!(layer.forward(ones([16, 3])).shape(), [16, 4]);
/// assert_eq!(layer.state_of(Filter::of::<LoRAParam>()).len(), 2);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Module, Clone, Debug)]
pub struct LoRALinear {
    /// The layer that is adapted.
    pub linear: Linear,
    /// The matrices that adapt it.
    pub lora: LoRA,
}

impl LoRALinear {
    /// Creates a layer from `in_features` to `out_features`, and matrices of this rank that adapt it.
    #[track_caller]
    pub fn new(in_features: usize, out_features: usize, lora_rank: usize, rngs: &mut Rngs) -> Self {
        let linear = Linear::new(in_features, out_features, rngs);
        LoRALinear { linear, lora: LoRA::new(in_features, lora_rank, out_features, rngs) }
    }

    /// Applies the layer. `x` is `[..., in]`, the result `[..., out]`.
    #[track_caller]
    pub fn forward(&self, x: impl ArrayLike) -> Array {
        let x = x.into_array();
        self.linear.forward(&x) + self.lora.forward(x)
    }
}

impl Layer for LoRALinear {
    #[track_caller]
    fn forward(&mut self, x: Array) -> Array {
        LoRALinear::forward(self, x)
    }
}
