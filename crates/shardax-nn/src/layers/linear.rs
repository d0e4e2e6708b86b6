//! Linear layers and embeddings.

use shardax::nn::initializers::{self, Distribution, Fan, Initializer};
use shardax::prelude::*;
use shardax::tree::AxisNames;

use super::{compute_dtype, last_axis};
use crate::{IntoAxisNames, Rngs};

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
    #[tree(axis_names = kernel_axes)]
    pub kernel: Array,
    /// `[out]`
    #[tree(axis_names = bias_axes)]
    pub bias: Option<Array>,
    #[tree(static)]
    dtype: Option<DType>,
    #[tree(static)]
    kernel_axes: Option<AxisNames>,
    #[tree(static)]
    bias_axes: Option<AxisNames>,
}

/// The options of a [`Linear`].
#[derive(Clone, Debug)]
pub struct LinearBuilder {
    sizes: [usize; 2],
    use_bias: bool,
    dtype: Option<DType>,
    param_dtype: Option<DType>,
    kernel_axes: Option<AxisNames>,
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
            param_dtype: None,
            kernel_axes: None,
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

    /// The dtype to compute in. Default: the policy's, or what input and parameters promote to.
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.dtype = Some(dtype);
        self
    }

    /// The dtype of the parameters. Default: the policy's, float32.
    pub fn param_dtype(mut self, dtype: DType) -> Self {
        self.param_dtype = Some(dtype);
        self
    }

    /// The logical names of the kernel's dimensions, in and out; the bias has the latter. See [`Rules`](crate::Rules).
    pub fn kernel_axes(mut self, names: impl IntoAxisNames) -> Self {
        self.kernel_axes = Some(names.into_axis_names());
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
        let policy = rngs.policy();
        let param_dtype = self.param_dtype.unwrap_or(policy.param_dtype);
        let kernel = self.kernel_init.init(&rngs.params(), &self.sizes, param_dtype);
        // Zeros need no key, but drawing one keeps later layers in step with Flax.
        let bias =
            if self.use_bias { Some(self.bias_init.init(&rngs.params(), &self.sizes[1..], param_dtype)) } else { None };
        let bias_axes = last_axis(&self.kernel_axes);
        Linear { kernel, bias, dtype: self.dtype.or(policy.dtype), kernel_axes: self.kernel_axes, bias_axes }
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
    #[tree(axis_names = axes)]
    pub embedding: Array,
    #[tree(static)]
    dtype: Option<DType>,
    #[tree(static)]
    axes: Option<AxisNames>,
}

/// The options of an [`Embed`].
#[derive(Clone, Debug)]
pub struct EmbedBuilder {
    sizes: [usize; 2],
    dtype: Option<DType>,
    param_dtype: Option<DType>,
    embedding_init: Initializer,
    axes: Option<AxisNames>,
}

impl Embed {
    /// `num_embeddings` vectors of `features` numbers, normal with variance `1 / features`.
    #[track_caller]
    pub fn new(num_embeddings: usize, features: usize, rngs: &mut Rngs) -> Self {
        Embed::builder(num_embeddings, features).build(rngs)
    }

    /// A table with options.
    pub fn builder(num_embeddings: usize, features: usize) -> EmbedBuilder {
        EmbedBuilder {
            sizes: [num_embeddings, features],
            dtype: None,
            param_dtype: None,
            embedding_init: initializers::variance_scaling(1.0, Fan::In, Distribution::Normal).axes(-2, 0),
            axes: None,
        }
    }

    /// The vectors of `indices`, integers of any shape; the result has one axis more. An index beyond the table gives NaN.
    #[track_caller]
    pub fn forward(&self, indices: impl Operand) -> Array {
        let dtype = compute_dtype(self.dtype, &[&self.embedding]);
        self.embedding.astype(dtype).take(indices.into_array(), 0)
    }

    /// The product of `x`, `[..., features]`, with every vector: logits, where the table is the output layer too.
    #[track_caller]
    pub fn attend(&self, x: impl Operand) -> Array {
        let x = x.into_array();
        let dtype = compute_dtype(self.dtype, &[&x, &self.embedding]);
        x.astype(dtype).dot(self.embedding.astype(dtype).t())
    }
}

impl EmbedBuilder {
    /// The dtype of the results. Default: the policy's, or the table's.
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.dtype = Some(dtype);
        self
    }

    /// The dtype of the table. Default: the policy's, float32.
    pub fn param_dtype(mut self, dtype: DType) -> Self {
        self.param_dtype = Some(dtype);
        self
    }

    /// How the table is made. Default normal, with variance `1 / features`.
    pub fn embedding_init(mut self, init: Initializer) -> Self {
        self.embedding_init = init;
        self
    }

    /// The logical names of the table's dimensions. See [`Rules`](crate::Rules).
    pub fn axes(mut self, names: impl IntoAxisNames) -> Self {
        self.axes = Some(names.into_axis_names());
        self
    }

    /// The table, drawn from the stream `params`.
    #[track_caller]
    pub fn build(self, rngs: &mut Rngs) -> Embed {
        let policy = rngs.policy();
        let param_dtype = self.param_dtype.unwrap_or(policy.param_dtype);
        let embedding = self.embedding_init.init(&rngs.params(), &self.sizes, param_dtype);
        Embed { embedding, dtype: self.dtype.or(policy.dtype), axes: self.axes }
    }
}
