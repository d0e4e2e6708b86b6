//! Ten steps of the optimizers of `optax.contrib`, and further losses.

use shardax_nn::losses::DiceOptions;
use shardax_nn::optim::contrib::*;
use shardax_nn::optim::*;
use shardax_nn::prelude::*;

use super::optim::schedule_of;
use super::optimizers::Run;
use crate::golden_support::{Case, Fun, many, three, two};

pub fn function(case: &Case) -> Option<Fun> {
    fn onecycle() -> OnecycleOptions {
        OnecycleOptions::new().pct_start(0.4).pct_final(0.9).div_factor(10.0).final_div_factor(100.0)
    }
    match case.op.as_str() {
        "linear_onecycle" => return schedule_of(onecycle().linear_onecycle_schedule(10, 2.0)),
        "cosine_onecycle" => return schedule_of(onecycle().cosine_onecycle_schedule(10, 2.0)),
        _ => {}
    }
    loss(case).or_else(|| descent(case)).or_else(|| steps(case, Run::of(case)?))
}

/// A loss whose least value is 0.5.
fn bowl(x: Array) -> Array {
    0.5 + (array([1.0f32, 4.0, 0.25, 2.0]) * x.square()).sum(..)
}

/// The parameters after each step of an optimizer that receives the loss.
fn descended<S: Tree>(
    steps: usize,
    start: impl Fn(&Array) -> Result<S> + 'static,
    update: impl Fn(Array, S, &Array, Array) -> Result<(Array, S)> + 'static,
) -> Option<Fun> {
    many(move |inputs| {
        let step = |(x, state): (Array, S)| -> Result<((Array, S), Array)> {
            let (value, grads) = value_and_grad(bowl).call(&x)?;
            let (updates, state) = update(grads, state, &x, value)?;
            let x = apply_updates(x, updates)?;
            Ok(((x.clone(), state), x))
        };
        Ok(vec![scan_n(step, (inputs[0].clone(), start(&inputs[0])?), steps)?.1])
    })
}

fn descent(case: &Case) -> Option<Fun> {
    fn by_momo(optimizer: Momo) -> Option<Fun> {
        let first = optimizer.clone();
        descended(10, move |x| first.init(x), move |g, s, x, v| optimizer.update_with_value(g, s, x, v))
    }
    fn by_momo_adam(optimizer: MomoAdam) -> Option<Fun> {
        let first = optimizer.clone();
        descended(10, move |x| first.init(x), move |g, s, x, v| optimizer.update_with_value(g, s, x, v))
    }
    match case.op.as_str() {
        "momo" => by_momo(momo(0.3)),
        "momo_adaptive" => by_momo(Momo { weight_decay: 0.1, lower_bound: 0.1, adapt_lower_bound: true, ..momo(0.3) }),
        "momo_adam" => by_momo_adam(momo_adam(0.3)),
        "momo_adam_adaptive" => {
            by_momo_adam(MomoAdam { weight_decay: 0.1, lower_bound: 0.1, adapt_lower_bound: true, ..momo_adam(0.3) })
        }
        "sophia" => {
            let optimizer = Sophia { update_interval: 3, gamma: 0.3, ..sophia(0.1) };
            let first = optimizer.clone();
            descended(
                8,
                move |x| first.init(x, &random::key(0)),
                move |g, s, x, _| optimizer.update_with(g, s, x, bowl),
            )
        }
        "split_real_and_imaginary" => many(|inputs| {
            let (real, imag) = (inputs[0].get(0), inputs[0].get(1));
            let optimizer = split_real_and_imaginary(adam(0.1));
            let grads = lax::complex(&imag, &real);
            let params = lax::complex(&real, &imag);
            let state = optimizer.init(&params)?;
            let step = |(params, state): (Array, _)| -> Result<((Array, _), Array)> {
                let (updates, state) = optimizer.update(grads.clone(), state, &params)?;
                let params = apply_updates(params, updates)?;
                let parts = stack(&[params.real(), params.imag()], 0);
                Ok(((params, state), parts))
            };
            Ok(vec![scan_n(step, (params, state), 5)?.1])
        }),
        "power_iteration" => many(|inputs| {
            let (value, vector) = power_iteration(positive(&inputs[0]))?;
            Ok(vec![value, vector])
        }),
        "matrix_inverse_pth_root" => {
            let p = case.int("p") as usize;
            many(move |inputs| Ok(vec![matrix_inverse_pth_root(positive(&inputs[0]), p)?.0]))
        }
        "nnls" => many(|inputs| Ok(vec![nnls(&inputs[0], &inputs[1], 50)?])),
        "fenchel_young" => many(|inputs| {
            let loss = make_fenchel_young_loss(|scores: Array| logsumexp(scores, ..));
            Ok(vec![loss(inputs[0].clone(), inputs[1].clone())?])
        }),
        _ => None,
    }
}

/// A symmetric positive definite matrix.
fn positive(x: &Array) -> Array {
    x.matmul(x.mt()) + eye(x.shape()[0])
}

fn steps(case: &Case, run: Run) -> Option<Fun> {
    // The numbers equal the numbers in the generator of the reference cases.
    match case.op.as_str() {
        "acprop" => run.ten(acprop(0.1)),
        "ademamix" => run.ten(ademamix(0.1)),
        "simplified_ademamix" => run.ten(simplified_ademamix(0.1)),
        "adopt" => run.ten(adopt(0.1)),
        "adopt_nesterov" => {
            let scaled = ScaleByAdopt { nesterov: true, use_clipping: false, eps: 1e-2, ..scale_by_adopt() };
            run.ten((scaled, scale_by_learning_rate(0.1)))
        }
        "madgrad" => run.ten(madgrad(0.1)),
        "cocob" => run.ten(cocob(1.0)),
        "dadapt_adamw" => run.ten(DAdaptAdamW { weight_decay: 0.1, estim_lr0: 1e-2, ..dadapt_adamw(1.0) }),
        "prodigy" => run.ten(Prodigy { weight_decay: 0.1, estim_lr0: 1e-2, ..prodigy(1.0) }),
        "prodigy_safeguard" => run.ten(Prodigy { safeguard_warmup: true, estim_lr0: 1e-2, ..prodigy(1.0) }),
        "dog" => run.ten(dog(1.0)),
        "dog_distance" => {
            let first = ScaleByDog { init_step: DogStep::Distance(0.5), ..scale_by_dog() };
            run.ten((first, scale_by_learning_rate(1.0)))
        }
        "dog_learning_rate" => {
            let first = ScaleByDog { init_step: DogStep::LearningRate(0.01), ..scale_by_dog() };
            run.ten((first, scale_by_learning_rate(1.0)))
        }
        "dowg" => run.ten(dowg(1.0)),
        "mechanize" => run.ten(Mechanize { s_init: 1e-2, ..mechanize(sgd(1.0)) }),
        "optimistic_adam" => run.ten(optimistic_adam(0.1)),
        "galore" => {
            let scaled = ScaleByGalore { rank: 3, scale: 0.5, ..scale_by_galore(scale_by_adam()) };
            run.ten((scaled, scale_by_learning_rate(0.1)))
        }
        "galore_sign" => {
            let scaled = ScaleByGalore { rank: 3, update_proj_gap: 4, ..scale_by_galore(scale_by_sign()) };
            run.ten((scaled, scale_by_learning_rate(0.1)))
        }
        _ => None,
    }
}

fn loss(case: &Case) -> Option<Fun> {
    match case.op.as_str() {
        "reduce_on_plateau" => many(|xs| {
            let plateau = ReduceOnPlateau {
                factor: 0.5,
                patience: 2,
                cooldown: 2,
                accumulation_size: 2,
                min_scale: 0.2,
                ..reduce_on_plateau()
            };
            // The inputs are losses. The results are the factor and the number of losses without progress after each.
            fn step(
                state: ReduceOnPlateauState,
                loss: Array,
                plateau: &ReduceOnPlateau,
            ) -> Result<(ReduceOnPlateauState, Vec<Array>)> {
                let (updates, state) = plateau.update_with_value(ones(2), state, loss)?;
                let observed = vec![updates.get(0), state.plateau_count.clone()];
                Ok((state, observed))
            }
            Ok(scan(
                |state: ReduceOnPlateauState, loss: Array| step(state, loss, &plateau),
                plateau.init(&ones(2))?,
                xs[0].clone(),
            )?
            .1)
        }),
        "polyak" => {
            let polyak =
                ScaleByPolyak { f_min: 1.0, max_learning_rate: 0.75, clamp: case.flag("clamp"), ..scale_by_polyak() };
            many(move |xs| Ok(vec![polyak.update_with_value(-&xs[0], &xs[1])?]))
        }
        "dice_loss" => two(|x, y| dice_loss(x, y)),
        "dice_loss_options" => {
            let options = DiceOptions::new().smooth(0.5).alpha(0.3).beta(0.7).ignore_background(true);
            let options = options.class_weights(array([1.0f32, 2.0, 3.0]));
            two(move |x, y| options.dice_loss(x, y))
        }
        "binary_dice_loss" => two(|x, y| binary_dice_loss(x, y)),
        "multiclass_generalized_dice_loss" => two(|x, y| multiclass_generalized_dice_loss(x, y)),
        "multiclass_hinge_loss" => two(|x, y| multiclass_hinge_loss(x, y)),
        "multiclass_perceptron_loss" => two(|x, y| multiclass_perceptron_loss(x, y)),
        "multiclass_sparsemax_loss" => two(|x, y| multiclass_sparsemax_loss(x, y)),
        "sparsemax_loss" => two(|x, y| sparsemax_loss(x, y)),
        "ranking_softmax_loss" => two(|x, y| ranking_softmax_loss(x, y, None)),
        "ranking_softmax_loss_masked" => three(|x, y, m| ranking_softmax_loss(x, y, &m.greater(0))),
        "triplet_margin_loss" => three(|a, p, n| triplet_margin_loss(a, p, n, 1.0)),
        _ => None,
    }
}
