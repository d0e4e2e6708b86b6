//! Attention with every option of `jax.nn.dot_product_attention`, and its second derivatives.

use shardax_nn::prelude::*;

use crate::golden_support::{Case, Fun, many};

pub fn function(case: &Case) -> Option<Fun> {
    match case.op.as_str() {
        "attention" => super::nn_layers::attention(case),
        "masked" => many(|x| {
            let options = AttentionOptions::new().bias(&x[3]).mask(&x[4]);
            Ok(vec![options.dot_product_attention(&x[0], &x[1], &x[2])])
        }),
        "second" => many(|x| {
            fn first(x: Vec<Array>) -> Array {
                let options = AttentionOptions::new().is_causal(true).bias(&x[3]);
                options.dot_product_attention(&x[0], &x[1], &x[2]).astype(DType::F32).square().sum(..)
            }
            fn slope(x: Vec<Array>) -> Result<Array> {
                let gradients = grad(first).call(x)?;
                Ok(gradients.iter().map(|g| g.astype(DType::F32).sin().sum(..)).fold(zeros(()), |a, b| a + b))
            }
            grad(slope).call(x.to_vec())
        }),
        _ => None,
    }
}
