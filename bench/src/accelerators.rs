//! Benchmarks that are sized for GPUs and TPUs: attention, and a training step of GPT-2. On CPU they run only if you name
//! them, because they take minutes there.

use shardax_models::{Activation, Biases, Decoder, DecoderConfig, NormKind, Positions};
use shardax_nn::optim::{adamw, tree_utils};
use shardax_nn::prelude::*;
use shardax_nn::{AttentionOptions, Implementation};

use crate::clock::{Timing, measure, measure_steps};
use crate::data::uniform;

const VOCABULARY: usize = 50304;
const ROWS: usize = 8;
const LENGTH: usize = 1024;

/// Causal attention in bfloat16 with its gradients, `[batch, sequence, heads, features]`.
pub fn attention(implementation: Option<Implementation>) -> Result<Timing> {
    let shape = [4, 2048, 16, 64];
    let options = AttentionOptions::new().is_causal(true).implementation(implementation);
    let loss =
        move |q: Array, k: Array, v: Array| options.dot_product_attention(q, k, v).astype(DType::F32).square().sum(..);
    let f = jit(grad(loss).argnums((Arg::<0>, Arg::<1>, Arg::<2>)));
    let [q, k, v] = [uniform(&shape, 0)?, uniform(&shape, 1)?, uniform(&shape, 2)?].map(|x| x.astype(DType::Bf16));
    measure(|| block_until_ready(f.call((&q, &k, &v))?))
}

/// GPT-2's architecture with an untied output layer: 124 million parameters, and 39 million in the last layer.
fn gpt2() -> Result<Decoder> {
    let config = DecoderConfig {
        norm: NormKind::Layer,
        positions: Positions::Learned(LENGTH),
        activation: Activation::GeluTanh,
        gated: false,
        biases: Biases::ALL,
        ..DecoderConfig::new(VOCABULARY, 12, 768, 12)
    };
    Decoder::new(&config, &mut Rngs::new(0))
}

/// Rows of tokens in steps of 7, each with another start. Targets are the tokens shifted by 1.
fn token_rows(shift: usize) -> Vec<i32> {
    let positions = (0..ROWS).flat_map(|row| (0..LENGTH).map(move |i| (row, i + shift)));
    positions.map(|(row, i)| ((row * 31 + i * 7) % VOCABULARY) as i32).collect()
}

/// A step of AdamW: parameters in float32, the model in bfloat16.
pub fn gpt2_step() -> Result<Timing> {
    let tokens = Array::from_vec(token_rows(0), &[ROWS, LENGTH])?;
    let targets = Array::from_vec(token_rows(1), &[ROWS, LENGTH])?;
    // Matrices are cast to bfloat16 for the products. The optimizer keeps them in float32, because small updates would
    // be lost otherwise.
    let loss = |model: Decoder, tokens: Array, targets: Array| -> Result<Array> {
        let logits = tree_utils::cast(&model, Some(DType::Bf16))?.forward(tokens).astype(DType::F32);
        Ok(softmax_cross_entropy_with_integer_labels(logits, targets).mean(..))
    };
    let step = jit(move |mut state: Optimizer<Decoder>, tokens: Array, targets: Array| -> Result<_> {
        let (loss, grads) = value_and_grad(loss).call((&state.model, tokens, targets))?;
        state.update(grads)?;
        Ok((state, loss))
    })
    .donate_argnums([0]);
    let mut state = Optimizer::new(gpt2()?, adamw(1e-3, 1e-4))?;
    measure_steps(|| {
        let (next, loss) = block_until_ready(step.call((&state, &tokens, &targets))?)?;
        state = next;
        Ok(loss)
    })
}
