//! Losses and schedules of Optax, the streams of keys of a model of Flax NNX, and products in float8.

use shardax_nn::OverwriteWithGradient;
use shardax_nn::optim::*;
use shardax_nn::prelude::*;

use super::optim::schedule_of;
use crate::golden_support::{Case, Fun, many, two};

pub fn function(case: &Case) -> Option<Fun> {
    if case.name.starts_with("schedule_") {
        return schedule_of(schedule(case)?);
    }
    loss(case).or_else(|| super::nn::function(case)).or_else(|| streams(&case.op)).or_else(|| fp8(&case.op))
}

fn loss(case: &Case) -> Option<Fun> {
    let number = |name: &str| case.param(name).as_f64();
    match case.op.as_str() {
        "safe_softmax_cross_entropy" => two(|x, y| safe_softmax_cross_entropy(x, y)),
        "poly_loss_cross_entropy" => two(|x, y| poly_loss_cross_entropy(x, y, 2.0)),
        "sigmoid_focal_loss" => {
            let (alpha, gamma) = (number("alpha"), number("gamma").unwrap_or(2.0));
            two(move |x, y| sigmoid_focal_loss(x, y, alpha, gamma))
        }
        "hinge_loss" => two(|x, y| hinge_loss(x, y)),
        "perceptron_loss" => two(|x, y| perceptron_loss(x, y)),
        "kl_divergence_with_log_targets" => two(|x, y| kl_divergence_with_log_targets(x, y)),
        "generalized_kl_divergence" => two(|x, y| generalized_kl_divergence(x, y)),
        "cosine_distance" => two(|x, y| cosine_distance(x, y, 0.0)),
        "cosine_similarity" => {
            let epsilon = number("epsilon")?;
            two(move |x, y| cosine_similarity(x, y, epsilon))
        }
        "ntxent" => {
            let temperature = number("temperature")?;
            two(move |x, y| ntxent(x, y, temperature))
        }
        // JAX returns the forward probabilities too, so they are compared as well.
        "ctc_loss" => many(|x| {
            let (loss, blanks, emits) = ctc_loss_with_forward_probs(&x[0], &x[1], &x[2], &x[3], 0, -1e5);
            Ok(vec![loss, blanks, emits])
        }),
        _ => None,
    }
}

fn schedule(case: &Case) -> Option<Schedule> {
    let number = |name: &str| case.param(name).as_f64();
    let steps = |name: &str| case.param(name).as_u64().map(|n| n as usize);
    Some(match case.op.as_str() {
        "warmup_constant" => {
            warmup_constant_schedule(number("init_value")?, number("peak_value")?, steps("warmup_steps")?)
        }
        "piecewise_interpolate_linear" => {
            piecewise_interpolate_schedule(Interpolate::Linear, number("init_value")?, [(3, 2.0), (8, 0.1)])
        }
        "piecewise_interpolate_cosine" => {
            piecewise_interpolate_schedule(Interpolate::Cosine, number("init_value")?, [(3, 2.0), (8, 0.1)])
        }
        "linear_onecycle" => linear_onecycle_schedule(steps("transition_steps")?, number("peak_value")?),
        "cosine_onecycle" => cosine_onecycle_schedule(steps("transition_steps")?, number("peak_value")?),
        "exponential_decay_constant" => {
            exponential_decay(number("init_value")?, steps("transition_steps")?, number("decay_rate")?).into()
        }
        "sgdr" => sgdr_schedule([(0.0, 0.1, 2, 5, 0.01), (0.01, 0.05, 1, 9, 0.0)]),
        _ => return None,
    })
}

/// A product that trains in float8, with its next scales as gradients.
fn fp8(op: &str) -> Option<Fun> {
    if op != "fp8_dot" {
        return None;
    }
    many(|xs| {
        let overwritten = |i: usize| OverwriteWithGradient::new(xs[i].clone());
        let dot_general = Fp8DotGeneral {
            input_amax_history: overwritten(2),
            kernel_amax_history: overwritten(3),
            output_grad_amax_history: overwritten(4),
            input_scale: overwritten(5),
            kernel_scale: overwritten(6),
            output_grad_scale: overwritten(7),
        };
        Ok(vec![dot_general.dot(&xs[0], &xs[1])])
    })
}

/// Weights of layers made in turn, with layers between them that draw keys only.
fn streams(op: &str) -> Option<Fun> {
    match op {
        // Each layer must draw from the stream in Flax's order. The normalizations draw nothing that is compared, but
        // move the stream.
        "nnx_streams" => many(|_| {
            let mut rngs = Rngs::new(0).with("dropout", 5);
            let mut kernels = vec![Linear::new(3, 4, &mut rngs).kernel];
            LayerNorm::new(4, &mut rngs);
            kernels.push(Linear::new(4, 4, &mut rngs).kernel);
            RmsNorm::new(4, &mut rngs);
            kernels.push(Conv::new(2, 3, [3, 3], &mut rngs).kernel);
            GroupNorm::new(4, 2, &mut rngs);
            kernels.push(Embed::new(5, 3, &mut rngs).embedding);
            BatchNorm::new(4, &mut rngs);
            let mut dropout = Dropout::new(0.4, &mut rngs);
            kernels.push(Linear::new(4, 2, &mut rngs).kernel);
            let mut second = Dropout::new(0.4, &mut rngs);
            let x = ones([12]);
            let dropped = [dropout.forward(&x), dropout.forward(&x), second.forward(&x)];
            Ok(kernels.iter().map(|k| k.ravel().get(..6)).chain(dropped).collect())
        }),
        "nnx_streams_default" => many(|_| {
            let mut rngs = Rngs::new(3);
            let first = Linear::new(3, 4, &mut rngs);
            let mut dropout = Dropout::new(0.5, &mut rngs);
            let second = Linear::new(4, 3, &mut rngs);
            let third = Linear::new(3, 2, &mut rngs);
            let dropped = dropout.forward(ones([8]));
            Ok(vec![first.kernel, second.kernel, third.kernel, dropped])
        }),
        _ => None,
    }
}
