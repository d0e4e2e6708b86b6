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
    loss(case).or_else(|| steps(case, Run::of(case)?))
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
