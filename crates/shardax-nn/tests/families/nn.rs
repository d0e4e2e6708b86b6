//! Losses, layers and first weights; activations as in shardax's own tests.

use shardax_nn::prelude::*;

use super::given;
use crate::golden_support::{self, Case, Fun, many, one, three, two};

pub fn function(case: &Case) -> Option<Fun> {
    golden_support::nn::function(case).or_else(|| loss(case)).or_else(|| layer(case)).or_else(|| weights(case))
}

fn loss(case: &Case) -> Option<Fun> {
    match case.op.as_str() {
        "softmax_cross_entropy" => two(|x, y| softmax_cross_entropy(x, y)),
        "softmax_cross_entropy_with_integer_labels" => two(|x, y| softmax_cross_entropy_with_integer_labels(x, y)),
        "sigmoid_binary_cross_entropy" => two(|x, y| sigmoid_binary_cross_entropy(x, y)),
        "l2_loss" => two(|x, y| l2_loss(x, y)),
        "squared_error" => two(|x, y| squared_error(x, y)),
        "huber_loss" => two(|x, y| huber_loss(x, y, 1.0)),
        "log_cosh" => two(|x, y| log_cosh(x, y)),
        "smooth_labels" => {
            let alpha = case.param("alpha").as_f64()?;
            one(move |x| smooth_labels(x, alpha))
        }
        "cosine_similarity" => two(|x, y| cosine_similarity(x, y, 0.0)),
        "kl_divergence" => two(|x, y| kl_divergence(x, y)),
        "accuracy" => two(|x, y| accuracy(x, y)),
        "masked_mean_loss" => {
            three(|x, y, mask| (softmax_cross_entropy_with_integer_labels(x, y) * mask).sum(..) / mask.sum(..))
        }
        _ => None,
    }
}

fn layer(case: &Case) -> Option<Fun> {
    // Weights and statistics come from the case, so only the computation is compared.
    fn batch_norm(x: &[Array]) -> BatchNorm {
        let layer = BatchNorm::builder(x[1].size()).momentum(0.9).build(&mut Rngs::new(0));
        given(layer, [("scale", &x[1]), ("bias", &x[2]), ("mean", &x[3]), ("var", &x[4])])
    }
    match case.op.as_str() {
        "layer_norm" => three(|x, scale, bias| {
            given(LayerNorm::new(4, &mut Rngs::new(0)), [("scale", scale), ("bias", bias)]).forward(x)
        }),
        "rms_norm" => two(|x, scale| given(RmsNorm::new(4, &mut Rngs::new(0)), [("scale", scale)]).forward(x)),
        "group_norm" => three(|x, scale, bias| {
            given(GroupNorm::new(4, 2, &mut Rngs::new(0)), [("scale", scale), ("bias", bias)]).forward(x)
        }),
        "batch_norm_train" => many(|x| {
            let mut layer = batch_norm(x);
            let y = layer.forward(&x[0]);
            Ok(vec![y, layer.mean.into_inner(), layer.var.into_inner()])
        }),
        "batch_norm_eval" => many(|x| {
            let mut layer = batch_norm(x);
            layer.eval();
            Ok(vec![layer.forward(&x[0])])
        }),
        "dot_product_attention" => three(|q, k, v| dot_product_attention(q, k, v)),
        "dropout" => {
            let rate = case.param("rate").as_f64()?;
            one(move |x| Dropout::new(rate, &mut Rngs::new(0).with("dropout", 3)).forward(x))
        }
        _ => None,
    }
}

fn four_keys(mut r: Rngs) -> [Array; 4] {
    [r.params(), r.params(), r.dropout(), r.params()].map(random::key_data)
}

/// The initial weights of layers, which are compared with Flax.
fn weights(case: &Case) -> Option<Fun> {
    let function: fn() -> Vec<Array> = match case.op.as_str() {
        "nnx_rngs" => || [four_keys(Rngs::new(0)), four_keys(Rngs::new(42))].concat(),
        "nnx_rngs_named" => || {
            let mut r = Rngs::new(1).with("params", 2).with("dropout", 3);
            [r.params(), r.dropout(), r.dropout(), r.next("other")].map(random::key_data).to_vec()
        },
        "nnx_linear_init" => || tree::leaves(&Linear::new(3, 4, &mut Rngs::new(0))),
        "nnx_conv_init" => || tree::leaves(&Conv::new(2, 3, [3, 3], &mut Rngs::new(0))),
        "nnx_two_layers_init" => || {
            let mut rngs = Rngs::new(7);
            vec![Linear::new(2, 3, &mut rngs).kernel, Linear::new(3, 2, &mut rngs).kernel]
        },
        "nnx_embed_init" => || vec![Embed::new(5, 3, &mut Rngs::new(0)).embedding],
        // Large kernels are compared by their first elements and by sums.
        "nnx_cnn_init" => || {
            let mut rngs = Rngs::new(0);
            let kernels = [
                Conv::new(3, 32, [3, 3], &mut rngs).kernel,
                Conv::new(32, 64, [3, 3], &mut rngs).kernel,
                Linear::new(4096, 10, &mut rngs).kernel,
            ];
            let first = kernels.iter().map(|k| k.ravel().get(..8));
            first.chain(kernels.iter().map(|k| stack(&[k.sum(..), k.square().sum(..)], 0))).collect()
        },
        _ => return None,
    };
    many(move |_| Ok(function()))
}
