//! Activations, softmax's relatives and one-hot encoding. Losses, layers and optimizers are compared in `shardax-nn`.

use shardax::nn::{self, OneHotOptions};
use shardax::prelude::*;

use super::{Case, Fun, one};

pub fn function(case: &Case) -> Option<Fun> {
    // The names are JAX's.
    match case.op.as_str() {
        "relu" => one(|x| nn::relu(x)),
        "relu6" => one(|x| nn::relu6(x)),
        "gelu_tanh" => one(|x| nn::gelu(x)),
        "gelu_erf" => one(|x| nn::gelu_exact(x)),
        "silu" => one(|x| nn::silu(x)),
        "elu" => one(|x| nn::elu(x, 1.0)),
        "selu" => one(|x| nn::selu(x)),
        "celu" => one(|x| nn::celu(x, 1.0)),
        "leaky_relu" => one(|x| nn::leaky_relu(x, 0.01)),
        "softplus" => one(|x| nn::softplus(x)),
        "soft_sign" => one(|x| nn::soft_sign(x)),
        "sigmoid" => one(|x| nn::sigmoid(x)),
        "log_sigmoid" => one(|x| nn::log_sigmoid(x)),
        "hard_tanh" => one(|x| nn::hard_tanh(x)),
        "hard_sigmoid" => one(|x| nn::hard_sigmoid(x)),
        "mish" => one(|x| nn::mish(x)),
        "glu" => one(|x| nn::glu(x, -1)),
        "one_hot" if !case.param("k").is_null() => {
            let options = OneHotOptions::new().axis(case.axis("axis")).dtype(case.dtype("dtype")?);
            let classes = case.int("k") as usize;
            one(move |labels| options.one_hot(labels, classes))
        }
        "one_hot" => {
            let (classes, dtype) = (case.int("num_classes") as usize, case.dtype("dtype")?);
            let axis = case.param("axis").as_i64().unwrap_or(-1) as i32;
            one(move |labels| nn::one_hot(labels, classes).astype(dtype).moveaxis(-1, axis))
        }
        "accuracy" => super::two(|z, y| z.argmax(-1).equal(y).astype(DType::F32).mean(..)),
        _ => None,
    }
}
