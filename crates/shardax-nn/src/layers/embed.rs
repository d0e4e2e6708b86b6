//! Embeddings.

use shardax::lax::DotOptions;
use shardax::nn::initializers::{self, Distribution, Fan, Initializer};
use shardax::prelude::*;
use shardax::tree::AxisNames;

use super::compute_dtype;
use crate::shardings::{sharding_for_dot, sharding_for_rows};
use crate::{IntoAxisNames, Rngs};

/// A table of vectors that is indexed by integers, for example by tokens.
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
    /// Creates a table of `num_embeddings` vectors of `features` numbers. The numbers are drawn from a normal distribution with
    /// variance `1 / features`.
    #[track_caller]
    pub fn new(num_embeddings: usize, features: usize, rngs: &mut Rngs) -> Self {
        Embed::builder(num_embeddings, features).build(rngs)
    }

    /// Returns a builder of a table.
    pub fn builder(num_embeddings: usize, features: usize) -> EmbedBuilder {
        EmbedBuilder {
            sizes: [num_embeddings, features],
            dtype: None,
            param_dtype: None,
            embedding_init: initializers::variance_scaling(1.0, Fan::In, Distribution::Normal).axes(-2, 0),
            axes: None,
        }
    }

    /// Returns the vector of each index. `indices` are integers of any shape, and the result has one more axis. If an index is out
    /// of bounds, its vector is NaN.
    #[track_caller]
    pub fn forward(&self, indices: impl ArrayLike) -> Array {
        let dtype = compute_dtype(self.dtype, &[&self.embedding]);
        let (table, indices) = (self.embedding.astype(dtype), indices.into_array());
        match sharding_for_rows(&table, &indices) {
            Some(spec) => table.at(&indices).fill_value(f64::NAN).out_sharding(spec).get(),
            None => table.take(indices, 0),
        }
    }

    /// Returns the dot products of `x`, `[..., features]`, with every vector. You can use it to compute logits if the table is also
    /// the output layer.
    #[track_caller]
    pub fn attend(&self, x: impl ArrayLike) -> Array {
        let x = x.into_array();
        let dtype = compute_dtype(self.dtype, &[&x, &self.embedding]);
        let (x, kernel) = (x.astype(dtype), self.embedding.astype(dtype).t());
        sharding_for_dot(DotOptions::new(), &x, &kernel).dot(x, kernel)
    }
}

impl EmbedBuilder {
    /// Sets the dtype of the results. Default: the policy's, or the table's.
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.dtype = Some(dtype);
        self
    }

    /// Sets the dtype of the table. Default: the policy's `param_dtype`, which is float32 unless you change it.
    pub fn param_dtype(mut self, dtype: DType) -> Self {
        self.param_dtype = Some(dtype);
        self
    }

    /// Sets the initializer of the table. Default normal, with variance `1 / features`.
    pub fn embedding_init(mut self, init: Initializer) -> Self {
        self.embedding_init = init;
        self
    }

    /// Sets the logical names of the table's dimensions. See [`Rules`](crate::Rules).
    pub fn axes(mut self, names: impl IntoAxisNames) -> Self {
        self.axes = Some(names.into_axis_names());
        self
    }

    /// Builds the table, drawn from the stream `params`.
    #[track_caller]
    pub fn build(self, rngs: &mut Rngs) -> Embed {
        let policy = rngs.policy();
        let param_dtype = self.param_dtype.unwrap_or(policy.param_dtype);
        let embedding = self.embedding_init.init(&rngs.params(), &self.sizes, param_dtype);
        Embed { embedding, dtype: self.dtype.or(policy.dtype), axes: self.axes }
    }
}
