//! Optimizers over three updates, and schedules.

use shardax_nn::optim::*;
use shardax_nn::prelude::{Array, stack, tree};

use crate::golden_support::{Case, Fun, many, two};

/// The parameters; Optax orders a dict by key.
type Params = (Array, Array);

pub fn function(case: &Case) -> Option<Fun> {
    if case.name.starts_with("schedule_") {
        return schedule_of(schedule(case)?);
    }
    // Options of the case; a case without one does not use it.
    let number = |name: &str| case.param(name).as_f64();
    let rate = number("learning_rate");
    match case.op.as_str() {
        "sgd" => run(sgd(rate?)),
        "sgd_momentum" | "sgd_nesterov" => run(sgd_momentum(rate?, number("momentum")?, case.flag("nesterov"))),
        "adam" => run(adam(rate?)),
        "adam_options" => {
            let (b1, b2, eps, eps_root) = (number("b1")?, number("b2")?, number("eps")?, number("eps_root")?);
            let scale = ScaleByAdam { b1, b2, eps, eps_root, ..scale_by_adam() };
            run((scale, scale_by_learning_rate(rate?)))
        }
        "adam_nesterov" => run((ScaleByAdam { nesterov: true, ..scale_by_adam() }, scale_by_learning_rate(rate?))),
        "adamw" => run(adamw(rate?, number("weight_decay")?)),
        "rmsprop" => run(rmsprop(rate?)),
        "adagrad" => run(adagrad(rate?)),
        "lion" => run(lion(rate?)),
        "lamb" => run(lamb(rate?, 0.0)),
        "clip_by_global_norm" => run((clip_by_global_norm(number("max_norm")?), sgd(rate?))),
        "clip" => run((clip(number("max_delta")?), sgd(rate?))),
        "add_decayed_weights" => run((add_decayed_weights(number("weight_decay")?), sgd(rate?))),
        "sgd_schedule" => run(sgd(exponential_decay(0.1, 1, 0.5))),
        "multi_steps" => run(multi_steps(sgd(rate?), case.int("every_k_schedule") as usize)),
        "global_norm" => two(|w, b| global_norm(&(w.clone(), b.clone()))),
        _ => None,
    }
}

/// The values of the first 13 steps.
pub fn schedule_of(schedule: Schedule) -> Option<Fun> {
    many(move |_| Ok(vec![stack(&(0..13).map(|i| schedule.at(i)).collect::<Vec<_>>(), 0)]))
}

/// Three updates: the parameters after each, then the leaves of the state after the last.
fn run<T: GradientTransformation<Params> + 'static>(optimizer: T) -> Option<Fun> {
    many(move |x| {
        let mut params = (x[1].clone(), x[0].clone());
        let mut state = optimizer.init(&params)?;
        let (mut ws, mut bs) = (Vec::new(), Vec::new());
        for step in 0..3 {
            let updates;
            (updates, state) = optimizer.update((x[3].get(step), x[2].get(step)), state, &params)?;
            params = apply_updates(params, updates)?;
            bs.push(params.0.clone());
            ws.push(params.1.clone());
        }
        Ok([vec![stack(&ws, 0), stack(&bs, 0)], tree::leaves(&state)].concat())
    })
}

fn schedule(case: &Case) -> Option<Schedule> {
    let number = |name: &str| case.param(name).as_f64();
    let steps = |name: &str| case.param(name).as_u64().map(|n| n as usize);
    // The exponential part, which is also the second phase of a warmup.
    let exponential = |first: &str| {
        Some(ExponentialDecay {
            staircase: case.flag("staircase"),
            transition_begin: steps("transition_begin").unwrap_or(0),
            end_value: number("end_value"),
            ..exponential_decay(number(first)?, steps("transition_steps")?, number("decay_rate")?)
        })
    };
    let (init, end) = (number("init_value"), number("end_value"));
    Some(match case.op.as_str() {
        "constant" => constant_schedule(number("value")?),
        "exponential_decay" | "exponential_decay_staircase" => exponential("init_value")?.into(),
        "cosine_decay" => cosine_decay_schedule(init?, steps("decay_steps")?, number("alpha")?),
        "linear" | "polynomial" => Schedule::Polynomial {
            init_value: init?,
            end_value: end?,
            power: number("power").unwrap_or(1.0),
            transition_steps: steps("transition_steps")?,
            transition_begin: steps("transition_begin").unwrap_or(0),
        },
        "piecewise_constant" => {
            let scales = case.param("boundaries_and_scales").as_object()?;
            let pairs = scales.iter().map(|(at, scale)| Some((at.parse().ok()?, scale.as_f64()?)));
            piecewise_constant_schedule(init?, pairs.collect::<Option<Vec<_>>>()?)
        }
        "warmup_cosine_decay" => warmup_cosine_decay_schedule(
            init?,
            number("peak_value")?,
            steps("warmup_steps")?,
            steps("decay_steps")?,
            end?,
        ),
        "warmup_exponential_decay" => {
            warmup_exponential_decay_schedule(init?, steps("warmup_steps")?, exponential("peak_value")?)
        }
        _ => return None,
    })
}
