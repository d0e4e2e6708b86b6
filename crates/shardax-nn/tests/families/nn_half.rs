//! Half precision: every layer and loss at sizes at which sums in 16 bits fail.

use shardax_nn::prelude::*;

use super::given;
use super::optimizers::some;
use crate::golden_support::{Case, Fun, many};

const WIDE: usize = 8192;

/// The shapes of the arguments, and the number that is added to each.
type Arguments<'a> = &'a [(&'a [usize], i32)];

/// A function of the arguments.
type Body = fn(&[Array]) -> Array;

pub fn function(case: &Case) -> Option<Fun> {
    let dtype = case.dtype("dtype")?;
    if case.op == "batch_norm" {
        return many(move |inputs| {
            let [x, scale, bias] = &numbers(&inputs[0], &[(&[WIDE, 4], 2), (&[4], 0), (&[4], 0)], dtype)[..] else {
                unreachable!("three arguments")
            };
            let mut layer = BatchNorm::builder(4).momentum(0.9).build(&mut rngs());
            layer = given(layer, [("scale", scale), ("bias", bias)]);
            let y = layer.forward(x);
            layer.eval();
            let after = layer.forward(x);
            Ok([y, layer.mean.into_inner(), layer.var.into_inner(), after].iter().map(some).collect())
        });
    }
    let (arguments, body) = layer(&case.op).or_else(|| loss(&case.op))?;
    many(move |inputs| {
        let arguments = numbers(&inputs[0], arguments, dtype);
        let objective = |x: Vec<Array>| body(&x).astype(DType::F32).square().sum(..);
        let grads = grad(objective).call(arguments.clone())?;
        Ok([body(&arguments)].iter().chain(&grads).map(some).collect())
    })
}

fn rngs() -> Rngs {
    Rngs::new(0)
}

/// The arguments; see the family's Python file.
pub fn numbers(offset: &Array, arguments: Arguments, dtype: DType) -> Vec<Array> {
    let inputs = |(salt, &(shape, shift)): (usize, &(&[usize], i32))| {
        let i = arange(0..shape.iter().product::<usize>() as i32);
        let centred: Array = remainder(i * 7919 + (offset + salt) * 101, 251) - 125;
        (centred.astype(DType::F32) / 64 + shift).astype(dtype).reshape(shape)
    };
    arguments.iter().enumerate().map(inputs).collect()
}

fn layer(op: &str) -> Option<(Arguments<'static>, Body)> {
    // The sizes are large enough for a sum in half precision to lose digits, so a kernel that accumulates in it
    // fails.
    Some(match op {
        "linear" => (&[(&[4, 4096], 0), (&[4096, 8], 0), (&[8], 0)], |x| {
            let mut layer = Linear::new(1, 1, &mut rngs());
            (layer.kernel, layer.bias) = (x[1].clone(), Some(x[2].clone()));
            layer.forward(&x[0] / 64)
        }),
        "conv" => (&[(&[2, 6, 6, 256], 0), (&[3, 3, 256, 4], 0), (&[4], 0)], |x| {
            let mut layer = Conv::new(1, 1, [3, 3], &mut rngs());
            (layer.kernel, layer.bias) = (x[1].clone(), Some(x[2].clone()));
            layer.forward(&x[0] / 64)
        }),
        "layer_norm" => (&[(&[2, WIDE], 2), (&[WIDE], 0), (&[WIDE], 0)], |x| {
            given(LayerNorm::new(1, &mut rngs()), [("scale", &x[1]), ("bias", &x[2])]).forward(&x[0])
        }),
        "rms_norm" => (&[(&[2, WIDE], 2), (&[WIDE], 0)], |x| {
            given(RmsNorm::new(1, &mut rngs()), [("scale", &x[1])]).forward(&x[0])
        }),
        "group_norm" => (&[(&[2, 16, 16, 64], 2), (&[64], 0), (&[64], 0)], |x| {
            given(GroupNorm::new(1, 4, &mut rngs()), [("scale", &x[1]), ("bias", &x[2])]).forward(&x[0])
        }),
        "embed" => (&[(&[7, 4], 0)], |x| embed(&x[0]).forward(remainder(arange(0..4096), 7))),
        "attend" => (&[(&[3, 4096], 0), (&[5, 4096], 0)], |x| embed(&x[1]).attend(&x[0] / 64)),
        "dot_product_attention" => (&[(&[1, 4, 2, 64], 0), (&[1, 2048, 2, 64], 0), (&[1, 2048, 2, 64], 0)], |x| {
            dot_product_attention(&x[0], &x[1], &x[2])
        }),
        "dropout" => (&[(&[4096], 0)], |x| Dropout::without_rngs(0.3).forward_with(&x[0], &random::key(3))),
        _ => return None,
    })
}

fn embed(table: &Array) -> Embed {
    given(Embed::new(1, 1, &mut rngs()), [("embedding", table)])
}

/// The labels 0 and 1, one-hot in the dtype of the logits.
fn first_classes(logits: &Array) -> Array {
    one_hot(arange(0..2), WIDE).astype(logits.dtype())
}

fn loss(op: &str) -> Option<(Arguments<'static>, Body)> {
    // Sums of thousands of terms, which a reduction in half precision would get wrong.
    const ROWS: Arguments<'static> = &[(&[2, WIDE], 0)];
    const PAIR: Arguments<'static> = &[(&[WIDE], 0), (&[WIDE], 0)];
    const TARGETS: Arguments<'static> = &[(&[2, WIDE], 0), (&[2, WIDE], 2)];
    Some(match op {
        "softmax_cross_entropy" => (ROWS, |x| softmax_cross_entropy(&x[0], first_classes(&x[0]))),
        "softmax_cross_entropy_with_integer_labels" => {
            (ROWS, |x| softmax_cross_entropy_with_integer_labels(&x[0], arange(0..2)))
        }
        "safe_softmax_cross_entropy" => (ROWS, |x| safe_softmax_cross_entropy(&x[0], first_classes(&x[0]))),
        "sigmoid_binary_cross_entropy" => (PAIR, |x| sigmoid_binary_cross_entropy(&x[0], &x[1]).mean(..)),
        "squared_error" => (PAIR, |x| mse(&x[0], &x[1])),
        "l2_loss" => (PAIR, |x| l2_loss(&x[0], &x[1]).mean(..)),
        "huber_loss" => (PAIR, |x| huber_loss(&x[0], &x[1], 1.0).mean(..)),
        "log_cosh" => (PAIR, |x| log_cosh(&x[0], &x[1]).mean(..)),
        "hinge_loss" => (PAIR, |x| hinge_loss(&x[0], &x[1]).mean(..)),
        "cosine_similarity" => (&[(&[2, WIDE], 0), (&[2, WIDE], 1)], |x| cosine_similarity(&x[0], &x[1], 0.0)),
        "smooth_labels" => (&[(&[2, WIDE], 1)], |x| smooth_labels(&x[0], 0.1).sum(-1)),
        "kl_divergence" => (TARGETS, |x| kl_divergence(&x[0], &x[1] / 4096)),
        "generalized_kl_divergence" => (TARGETS, |x| generalized_kl_divergence(&x[0], &x[1] / 4096)),
        "perceptron_loss" => (PAIR, |x| perceptron_loss(&x[0], &x[1]).mean(..)),
        "poly_loss_cross_entropy" => (ROWS, |x| poly_loss_cross_entropy(&x[0], first_classes(&x[0]), 2.0)),
        "sigmoid_focal_loss" => (&[(&[WIDE], 0)], |x| {
            let labels: Array = remainder(arange(0..WIDE as i32), 2);
            sigmoid_focal_loss(&x[0], labels.astype(x[0].dtype()), Some(0.25), 2.0).mean(..)
        }),
        "kl_divergence_with_log_targets" => {
            (&[(&[2, WIDE], 0), (&[2, WIDE], 0)], |x| kl_divergence_with_log_targets(&x[0], &x[1] - 8))
        }
        "cosine_distance" => (&[(&[2, WIDE], 0), (&[2, WIDE], 1)], |x| cosine_distance(&x[0], &x[1], 0.0)),
        "ntxent" => (&[(&[6, WIDE], 0)], |x| ntxent(&x[0], remainder(arange(0..6), 3), 0.5)),
        "ctc_loss" => (&[(&[2, 64, 6], 0)], |x| {
            fn nothing(shape: [usize; 2], x: &[Array]) -> Array {
                zeros_dtype(shape, x[0].dtype())
            }
            let labels: Array = remainder(arange(0..16).reshape([2, 8]), 5) + 1;
            ctc_loss(&x[0], nothing([2, 64], x), labels, nothing([2, 8], x), 0, -1e5)
        }),
        "global_norm" => (&[(&[256, 1024], 0)], |x| global_norm(&(x[0].clone(), x[0].get(..1)))),
        _ => return None,
    })
}
