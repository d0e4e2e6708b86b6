//! The options of the attention layer, and how a layer is built from them.

use shardax::choice::{Choice, IntoChoice};
use shardax::lax::Precision;
use shardax::nn::initializers::{self, Initializer};
use shardax::prelude::*;
use shardax::tree::AxisNames;

use super::super::kernel::{KernelBuilder, KernelLayer};
use super::super::{LayerNorm, LinearGeneral};
use super::{MultiHeadAttention, Own, QueryGrowth, Sequence};
use crate::attention::{Implementation, Rope};
use crate::check::value_error;
use crate::{IntoAxisNames, Rngs};

/// The options of a [`MultiHeadAttention`].
#[derive(Clone, Debug)]
pub struct MultiHeadAttentionBuilder {
    num_heads: usize,
    in_features: usize,
    qkv_features: Option<usize>,
    out_features: Option<usize>,
    num_kv_heads: Option<usize>,
    value_features: Option<usize>,
    in_kv_features: Option<usize>,
    use_bias: bool,
    normalize_qk: bool,
    dtype: Option<DType>,
    param_dtype: Option<DType>,
    kernel_init: Initializer,
    bias_init: Initializer,
    out_kernel_init: Option<Initializer>,
    out_bias_init: Option<Initializer>,
    kernel_axes: Option<AxisNames>,
    out_kernel_axes: Option<AxisNames>,
    sequence_axis: Option<&'static str>,
    own: Own,
}

fn chosen<T>(choice: impl IntoChoice<T>) -> Option<Choice<T>> {
    Some(choice.into_choice())
}

macro_rules! options {
    ($($(#[$doc:meta])* $name:ident: $t:ty => $($field:ident).+, $wrap:expr;)*) => {$(
        $(#[$doc])*
        pub fn $name(mut self, $name: $t) -> Self {
            self.$($field).+ = $wrap($name);
            self
        }
    )*};
}

impl MultiHeadAttentionBuilder {
    /// Returns the default options, which are Flax NNX's.
    pub(super) fn new(num_heads: usize, in_features: usize) -> MultiHeadAttentionBuilder {
        MultiHeadAttentionBuilder {
            num_heads,
            in_features,
            // `None` means the number that follows from `in_features` or `num_heads` when the layer is built.
            qkv_features: None,
            out_features: None,
            num_kv_heads: None,
            value_features: None,
            in_kv_features: None,
            use_bias: true,
            normalize_qk: false,
            dtype: None,
            param_dtype: None,
            kernel_init: initializers::lecun_normal(),
            bias_init: initializers::zeros(),
            out_kernel_init: None,
            out_bias_init: None,
            kernel_axes: None,
            out_kernel_axes: None,
            sequence_axis: None,
            own: Own {
                dropout_rate: 0.0,
                broadcast_dropout: true,
                is_causal: false,
                scale: None,
                local_window_size: None,
                soft_cap: None,
                implementation: None,
                rope: None,
                normalize_after_rope: false,
                qkv_bound: None,
                query_growth: None,
                softplus_gate: false,
                precision: None,
            },
        }
    }

    options! {
        /// Sets the number of features of all heads of the query together. Default: the features of the input.
        qkv_features: usize => qkv_features, Some;
        /// Sets the number of features of the result. Default: the features of the input.
        out_features: usize => out_features, Some;
        /// Sets the number of heads of keys and values; several heads of the query share each of them. Default: the number of
        /// heads of the query.
        num_kv_heads: usize => num_kv_heads, Some;
        /// Sets the number of features of the value of each head. Default: the features of each head's query and key.
        value_features: usize => value_features, Some;
        /// Sets the number of features of the input of keys and values. Default: the features of the query's input.
        in_kv_features: usize => in_kv_features, Some;
        /// Sets whether the linear layers have biases. Default true.
        use_bias: bool => use_bias, std::convert::identity;
        /// Sets whether the queries and keys of each head are normalized. Default false.
        normalize_qk: bool => normalize_qk, std::convert::identity;
        /// Sets the dtype to compute in. Default: the policy's, or the promoted dtype of input and parameters.
        dtype: DType => dtype, Some;
        /// Sets the dtype of the parameters. Default: the policy's, float32.
        param_dtype: DType => param_dtype, Some;
        /// Sets the initializer of the kernels. Default LeCun normal.
        kernel_init: Initializer => kernel_init, std::convert::identity;
        /// Sets the initializer of the biases. Default zeros.
        bias_init: Initializer => bias_init, std::convert::identity;
        /// Sets the initializer of the output kernel. Default: the initializer of the other kernels.
        out_kernel_init: Initializer => out_kernel_init, Some;
        /// Sets the initializer of the output bias. Default: the initializer of the other biases.
        out_bias_init: Initializer => out_bias_init, Some;
        /// Sets the probability that a weight is zeroed in training. Default 0.
        dropout_rate: f64 => own.dropout_rate, std::convert::identity;
        /// Sets whether all examples and heads share one dropout mask. Default true.
        broadcast_dropout: bool => own.broadcast_dropout, std::convert::identity;
        /// Sets whether attention is causal: no position attends to a later one. Default false.
        is_causal: bool => own.is_causal, std::convert::identity;
        /// Sets the factor of the dot products of queries and keys. Default `1 / sqrt(depth)`.
        scale: f64 => own.scale, Some;
        /// Limits the scores, see [`soft_cap`](crate::AttentionOptions::soft_cap). Default none.
        soft_cap: f64 => own.soft_cap, Some;
        /// Sets the implementation, see [`implementation`](crate::AttentionOptions::implementation). The default depends on platform, dtypes and size.
        implementation: impl IntoChoice<Implementation> => own.implementation, chosen;
        /// Sets the rotary embedding of queries and keys. Default none.
        rope: Rope => own.rope, Some;
        /// Sets whether queries and keys are rotated before their norms, as in Hunyuan's models. Default false.
        normalize_after_rope: bool => own.normalize_after_rope, std::convert::identity;
        /// Sets the bound of the elements of queries, keys and values before queries and keys are rotated, as in MPT. Default
        /// none.
        qkv_bound: f64 => own.qkv_bound, Some;
        /// Sets a factor of queries that grows with their position, as in Ministral 3. Default none.
        query_growth: QueryGrowth => own.query_growth, Some;
        /// Sets whether the function of the gate is softplus instead of the sigmoid, as in Laguna. Default false.
        softplus_gate: bool => own.softplus_gate, std::convert::identity;
        /// Sets the precision of the matmuls on accelerators. Default:
        /// [`default_matmul_precision`](shardax::default_matmul_precision).
        precision: impl IntoChoice<Precision> => own.precision, chosen;
    }

    /// Restricts attention to `left` positions before the query's position and `right` positions after it. Default all.
    pub fn local_window_size(mut self, left: usize, right: usize) -> Self {
        self.own.local_window_size = Some((left, right));
        self
    }

    /// Sets the logical names of the dimensions of the input kernels, `[in, heads, depth]`. See [`Rules`](crate::Rules).
    pub fn kernel_axes(mut self, names: impl IntoAxisNames) -> Self {
        self.kernel_axes = Some(names.into_axis_names());
        self
    }

    /// Sets the logical names of the dimensions of the output kernel, `[heads, depth, out]`.
    pub fn out_kernel_axes(mut self, names: impl IntoAxisNames) -> Self {
        self.out_kernel_axes = Some(names.into_axis_names());
        self
    }

    /// Sets the logical name of the dimension of positions, for example `length`. If the rules shard this dimension over a
    /// mesh axis, the layer computes [`ring_attention`](crate::ring_attention) around this axis, except in decoding.
    pub fn sequence_axis(mut self, name: &'static str) -> Self {
        self.sequence_axis = Some(name);
        self
    }

    /// Builds the layer. It draws weights from the stream `params` in the order query, key, value, norms, out. If sizes do not
    /// divide each other, the layer's results are an error.
    #[track_caller]
    pub fn build(self, rngs: &mut Rngs) -> MultiHeadAttention {
        let features = self.qkv_features.unwrap_or(self.in_features);
        let (heads, key_heads) = (self.num_heads, self.num_kv_heads.unwrap_or(self.num_heads));
        let error = divides("heads", heads, "qkv_features", features).and(divides(
            "num_kv_heads",
            key_heads,
            "num_heads",
            heads,
        ));
        let depth = features.checked_div(heads).unwrap_or(0);
        let kv_features = self.in_kv_features.unwrap_or(self.in_features);
        // The order of these lines is the order in which Flax draws weights.
        let query = self.input_projection(self.in_features, heads, depth).build(rngs);
        let value_depth = self.value_features.unwrap_or(depth);
        let [key, value] = [depth, value_depth].map(|depth| self.key_projection(kv_features, key_heads, depth, rngs));
        let query_ln = self.normalize_qk.then(|| self.head_norm(depth, rngs));
        let key_ln = self.normalize_qk.then(|| self.head_norm(depth, rngs));
        let out = LinearGeneral::builder([heads, value_depth], [self.out_features.unwrap_or(self.in_features)]);
        let (kernel_init, bias_init) =
            (self.out_kernel_init.unwrap_or(self.kernel_init), self.out_bias_init.unwrap_or(self.bias_init));
        let mut out = self.with_shared_options(out, kernel_init, bias_init, &self.out_kernel_axes).build(rngs);
        if let Err(error) = error {
            out.kernel = Array::from_error(error, &out.kernel);
        }
        let (cached_key, cached_value, cache_index) = (None, None, None);
        let sequence = self.sequence_axis.map(|name| Sequence { name, rules: rngs.rules() });
        let heads_axis = self.kernel_axes.as_ref().and_then(|axes| axes.get(1).copied().flatten());
        let out_sharding = rngs.rules().sharding([Some("batch"), None, heads_axis, None]);
        MultiHeadAttention {
            query,
            key: Some(key),
            value: Some(value),
            out,
            query_ln,
            key_ln,
            query_norm: None,
            key_norm: None,
            value_norm: None,
            query_scale: None,
            key_scale: None,
            gate: None,
            gate_bias: None,
            difference: None,
            value_scores: None,
            out_norm: None,
            sinks: None,
            cached_key,
            cached_value,
            cache_index,
            own: self.own,
            sequence,
            out_sharding,
        }
    }

    /// Returns a builder of the projection of queries, keys or values.
    fn input_projection(&self, in_features: usize, heads: usize, depth: usize) -> KernelBuilder<LinearGeneral> {
        let builder = LinearGeneral::builder([in_features], [heads, depth]);
        self.with_shared_options(builder, self.kernel_init, self.bias_init, &self.kernel_axes)
    }

    /// Builds the projection of keys or values. If the rules split heads over more devices than there are key heads, as for
    /// multi-query attention, every device has all of them.
    #[track_caller]
    fn key_projection(&self, in_features: usize, heads: usize, depth: usize, rngs: &mut Rngs) -> LinearGeneral {
        let builder = self.input_projection(in_features, heads, depth);
        let Some(axes) = self.kernel_axes.as_ref().filter(|axes| axes.len() == 3) else { return builder.build(rngs) };
        if rngs.rules().divides(axes, [in_features, heads, depth])[1] {
            builder.build(rngs)
        } else {
            builder.kernel_axes([axes[0], None, axes[2]]).build(rngs)
        }
    }

    /// Builds the norm of each head's query or key.
    #[track_caller]
    fn head_norm(&self, depth: usize, rngs: &mut Rngs) -> LayerNorm {
        let builder = LayerNorm::builder(depth).use_bias(false);
        let builder = self.dtype.into_iter().fold(builder, |b, dtype| b.dtype(dtype));
        self.param_dtype.into_iter().fold(builder, |b, dtype| b.param_dtype(dtype)).build(rngs)
    }

    /// Sets the options that all projections share.
    fn with_shared_options<L: KernelLayer>(
        &self,
        builder: KernelBuilder<L>,
        kernel_init: Initializer,
        bias_init: Initializer,
        axes: &Option<AxisNames>,
    ) -> KernelBuilder<L> {
        let builder = builder.use_bias(self.use_bias).kernel_init(kernel_init).bias_init(bias_init);
        let builder = axes.iter().fold(builder, |b, axes| b.kernel_axes(axes));
        let builder = self.dtype.into_iter().fold(builder, |b, dtype| b.dtype(dtype));
        let builder = self.own.precision.into_iter().fold(builder, KernelBuilder::precision);
        self.param_dtype.into_iter().fold(builder, |b, dtype| b.param_dtype(dtype))
    }
}

/// Checks that an option divides another option.
#[track_caller]
fn divides(name: &str, divisor: usize, dividend_name: &str, dividend: usize) -> Result<()> {
    if divisor > 0 && dividend.is_multiple_of(divisor) {
        return Ok(());
    }
    value_error(format!("MultiHeadAttention: {name} ({divisor}) must divide {dividend_name} ({dividend})"))
}
