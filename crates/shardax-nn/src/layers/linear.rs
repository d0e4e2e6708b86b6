//! Linear layers and embeddings.

use shardax::nn::initializers::{self, Distribution, Fan, Initializer};
use shardax::prelude::*;

use super::compute_dtype;
use crate::Rngs;

/// `x · kernel + bias` over the last axis.
///
/// ```
/// use shardax_nn::prelude::*;
/// let layer = Linear::new(3, 4, &mut Rngs::new(0));
/// assert_eq!(layer.kernel.shape(), [3, 4]);
/// assert_eq!(layer.forward(ones([8, 3])).shape(), [8, 4]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Module, Clone, Debug)]
pub struct Linear {
    /// `[in, out]`
    pub kernel: Array,
    /// `[out]`
    pub bias: Option<Array>,
    #[tree(static)]
    dtype: Option<DType>,
}

/// The options of a [`Linear`].
#[derive(Clone, Debug)]
pub struct LinearBuilder {
    sizes: [usize; 2],
    use_bias: bool,
    dtype: Option<DType>,
    param_dtype: DType,
    kernel_init: Initializer,
    bias_init: Initializer,
}

impl Linear {
    /// A layer from `in_features` to `out_features`: the kernel LeCun normal, the bias zero.
    #[track_caller]
    pub fn new(in_features: usize, out_features: usize, rngs: &mut Rngs) -> Self {
        Linear::builder(in_features, out_features).build(rngs)
    }

    /// A layer with options.
    pub fn builder(in_features: usize, out_features: usize) -> LinearBuilder {
        LinearBuilder {
            sizes: [in_features, out_features],
            use_bias: true,
            dtype: None,
            param_dtype: DType::F32,
            kernel_init: initializers::lecun_normal(),
            bias_init: initializers::zeros(),
        }
    }

    /// `x` is `[..., in]`, the result `[..., out]`.
    #[track_caller]
    pub fn forward(&self, x: impl Operand) -> Array {
        let x = x.into_array();
        let operands: Vec<&Array> = [&x, &self.kernel].into_iter().chain(&self.bias).collect();
        let dtype = compute_dtype(self.dtype, &operands);
        let y = x.astype(dtype).dot(self.kernel.astype(dtype));
        match &self.bias {
            Some(bias) => y + bias.astype(dtype),
            None => y,
        }
    }
}

impl LinearBuilder {
    /// Whether there is a bias. Default true.
    pub fn use_bias(mut self, use_bias: bool) -> Self {
        self.use_bias = use_bias;
        self
    }

    /// The dtype to compute in. Default: what input and parameters promote to.
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.dtype = Some(dtype);
        self
    }

    /// The dtype of the parameters. Default float32.
    pub fn param_dtype(mut self, dtype: DType) -> Self {
        self.param_dtype = dtype;
        self
    }

    /// How the kernel is made. Default LeCun normal.
    pub fn kernel_init(mut self, init: Initializer) -> Self {
        self.kernel_init = init;
        self
    }

    /// How the bias is made. Default zeros.
    pub fn bias_init(mut self, init: Initializer) -> Self {
        self.bias_init = init;
        self
    }

    /// The layer, its weights drawn from the stream `params`.
    #[track_caller]
    pub fn build(self, rngs: &mut Rngs) -> Linear {
        let kernel = self.kernel_init.init(&rngs.params(), &self.sizes, self.param_dtype);
        // Zeros need no key, but drawing one keeps later layers in step with Flax.
        let bias = if self.use_bias {
            Some(self.bias_init.init(&rngs.params(), &self.sizes[1..], self.param_dtype))
        } else {
            None
        };
        Linear { kernel, bias, dtype: self.dtype }
    }
}

/// A table of vectors, looked up by integers.
///
/// ```
/// use shardax_nn::prelude::*;
/// let table = Embed::new(10, 4, &mut Rngs::new(0));
/// assert_eq!(table.forward(array([[1, 2, 3]])).shape(), [1, 3, 4]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Module, Clone, Debug)]
pub struct Embed {
    /// `[num_embeddings, features]`
    pub embedding: Array,
}

impl Embed {
    /// `num_embeddings` vectors of `features` numbers, normal with variance `1 / features`.
    #[track_caller]
    pub fn new(num_embeddings: usize, features: usize, rngs: &mut Rngs) -> Self {
        let init = initializers::variance_scaling(1.0, Fan::In, Distribution::Normal).axes(-2, 0);
        Embed { embedding: init.init(&rngs.params(), &[num_embeddings, features], DType::F32) }
    }

    /// The vectors of `indices`, integers of any shape; the result has one axis more. An index beyond the table gives NaN.
    #[track_caller]
    pub fn forward(&self, indices: impl Operand) -> Array {
        self.embedding.take(indices.into_array(), 0)
    }

    /// The product of `x`, `[..., features]`, with every vector: logits, where the table is the output layer too.
    #[track_caller]
    pub fn attend(&self, x: impl Operand) -> Array {
        let x = x.into_array();
        let dtype = compute_dtype(None, &[&x, &self.embedding]);
        x.astype(dtype).dot(self.embedding.astype(dtype).t())
    }
}
