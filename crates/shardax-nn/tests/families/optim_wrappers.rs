//! Ten steps of optimizers that wrap others or the loss, of optimizers of matrices and of earlier steps; projections.

use shardax_nn::optim::projections::*;
use shardax_nn::optim::*;
use shardax_nn::prelude::*;

use super::optimizers::{Run, some};
use crate::golden_support::{Case, Fun, many};

type Params = (Array, Array);

fn largest_update(u: &Params) -> Array {
    maximum(u.0.abs().max(..), u.1.abs().max(..))
}

pub fn function(case: &Case) -> Option<Fun> {
    match case.op.as_str() {
        "projection" => return projection(case.param("name").as_str()?),
        "lbfgs_linesearch" => return many(|inputs| searched(&inputs[0])),
        "dynamic_scale" => return many(|inputs| scaled(&inputs[0])),
        _ => {}
    }
    let run = Run::of(case)?;
    // A condition on the step, so that some updates are skipped.
    fn third(step: &Array) -> Array {
        remainder(step, 3).not_equal(1)
    }
    match case.op.as_str() {
        "muon" => run.ten(muon(0.1)),
        "sam" => run.ten(sam(sgd_momentum(0.1, 0.9, false), (normalize(), sgd(0.5)))),
        "lbfgs" => run.ten((ScaleByLbfgs { memory_size: 4, ..scale_by_lbfgs() }, scale_by_learning_rate(0.01))),
        "optimistic_gradient_descent" => run.ten(optimistic_gradient_descent(0.1)),
        "rprop" => run.ten(rprop(0.1)),
        "conditionally_transform" => {
            run.ten((conditionally_transform(shardax_nn::optim::trace(0.9, false), third), sgd(0.1)))
        }
        "conditionally_mask" => run.ten(conditionally_mask(sgd_momentum(0.1, 0.9, false), third)),
        "flatten" => run.ten(flatten(adam(0.1))),
        "monitor" => {
            run.ten((snapshot("norm", |u: &Params| global_norm(u)), sgd(0.1), snapshot("largest", largest_update)))
        }
        "skip_not_finite" => run.ten(MultiSteps { should_skip: Some(skip_not_finite()), ..multi_steps(sgd(0.1), 3) }),
        "skip_large_updates" => {
            run.ten(MultiSteps { should_skip: Some(skip_large_updates(75.0)), ..multi_steps(sgd(0.1), 2) })
        }
        "lookahead" => looking(run, lookahead(adam(0.1), 3, 0.5)),
        "followed" => followed(run),
        "lookahead_reset" => looking(run, Lookahead { reset_state: true, ..lookahead(adam(0.1), 3, 0.5) }),
        _ => None,
    }
}

/// The fast parameters of each step, then the slow ones.
fn looking(run: Run, optimizer: Lookahead<Adam>) -> Option<Fun> {
    many(move |inputs| {
        let offset = &inputs[0];
        let params = LookaheadParams::init_synced(run.tree(&array(100), offset));
        let state = optimizer.init(&params)?;
        type Carry = (LookaheadParams<Params>, LookaheadState<<Adam as GradientTransformation<Params>>::State>);
        let step = |(params, state): Carry, i: Array| -> Result<(Carry, Vec<Array>)> {
            let fast = run.gradients(&i, offset)?;
            let slow = tree_utils::zeros_like(&fast)?;
            let (updates, state) = optimizer.update(LookaheadParams { fast, slow }, state, &params)?;
            let params = apply_updates(params, updates)?;
            let values = tree::leaves(&params).iter().map(some).collect();
            Ok(((params, state), values))
        };
        Ok(scan(step, (params, state), arange(0..10))?.1)
    })
}

/// Copies that follow the parameters; see the family's Python file.
fn followed(run: Run) -> Option<Fun> {
    many(move |inputs| {
        let offset = &inputs[0];
        let [params, slow, copied] = [100, 50, 60].map(|step| run.tree(&array(step), offset));
        let step = |(params, slow, copied): (Params, Params, Params), i: Array| -> Result<_> {
            let updates = tree::map(|g| g * -0.1, run.gradients(&i, offset)?)?;
            let params = apply_updates(params, updates)?;
            let slow = incremental_update(params.clone(), slow, 0.1)?;
            let copied = periodic_update(params.clone(), copied, i, 3)?;
            let values: Vec<Array> = tree::leaves(&(slow.clone(), copied.clone())).iter().map(some).collect();
            Ok(((params, slow, copied), values))
        };
        Ok(scan(step, (params, slow, copied), arange(0..10))?.1)
    })
}

/// A scaled loss in float16; see the family's Python file.
fn scaled(offset: &Array) -> Result<Vec<Array>> {
    let (params, half) = (Run::small(DType::F32).tree(&array(100), offset), Run::small(DType::F16));
    // The updates are not applied where gradients are infinite, as often as that may be.
    let tx = apply_if_finite(adam(0.1), 1000);
    type State = ApplyIfFiniteState<<Adam as GradientTransformation<Params>>::State>;
    type Carry = (Params, State, DynamicScale);
    let step = |(params, state, dynamic_scale): Carry, i: Array| -> Result<(Carry, Vec<Array>)> {
        let x = half.tree(&i, offset).1;
        let loss = |(b, w): Params| {
            let y = w.astype(DType::F16) * &x + b.astype(DType::F16);
            dynamic_scale.scale_loss(y.square().mean(..))
        };
        let (loss, grads) = value_and_grad(loss).call(&params)?;
        let loss = loss / &dynamic_scale.scale;
        let Unscaled { dynamic_scale, is_finite, grads } = dynamic_scale.unscale(grads)?;
        let (updates, state) = tx.update(grads, state, &params)?;
        let params = apply_updates(params, updates)?;
        let (scale, steps) = (dynamic_scale.scale.clone(), dynamic_scale.fin_steps.clone());
        let values = vec![loss, scale, steps, is_finite, some(&params.0), some(&params.1)];
        Ok(((params, state, dynamic_scale), values))
    };
    let scale = DynamicScale { growth_interval: 3, scale: array(131072.0f32), ..DynamicScale::new() };
    Ok(scan(step, (params.clone(), tx.init(&params)?, scale), arange(0..10))?.1)
}

/// L-BFGS with its line search; see the family's Python file.
fn searched(offset: &Array) -> Result<Vec<Array>> {
    let run = Run::small(DType::F32);
    let params = run.tree(&array(100), offset);
    fn value_fn((b, w): Params) -> Array {
        let (ahead, behind) = (b.get(1..), b.get(..-1));
        let remainder: Array = 1 - &behind;
        let valley = ((ahead - behind.square()).square() * 2 + remainder.square()).sum(..);
        valley + (w.square() * 0.5 + (w + 1).cos()).sum(..)
    }
    let solver = lbfgs_linesearch();
    let step = |(params, state): (Params, LbfgsLinesearchState<Params>), _: Array| -> Result<_> {
        let (value, grad) = value_and_grad_from_state(value_fn, params.clone(), &state)?;
        let (updates, state) = solver.update_with(grad, state, &params, value.clone(), value_fn)?;
        let params = apply_updates(params, updates)?;
        let (rate, steps) = (state.1.learning_rate.clone(), state.1.num_linesearch_steps.clone());
        let values = vec![some(&params.0), some(&params.1), value, rate, steps];
        Ok(((params, state), values))
    };
    let state = solver.init(&params)?;
    Ok(scan(step, (params, state), arange(0..10))?.1)
}

fn projection(name: &str) -> Option<Fun> {
    type Project = fn(&Params, &Params) -> Result<Params>;
    let project: Project = match name {
        "non_negative" => |x, _| projection_non_negative(x),
        "box" => |x, _| projection_box(x, -0.5, 0.75),
        "hypercube" => |x, _| projection_hypercube(x, 0.75),
        "simplex" => |x, _| projection_simplex(x, 1.5),
        "l1_sphere" => |x, _| projection_l1_sphere(x, 1.5),
        "l1_ball" => |x, _| projection_l1_ball(x, 1.5),
        "l2_sphere" => |x, _| projection_l2_sphere(x, 1.5),
        "l2_ball" => |x, _| projection_l2_ball(x, 1.5),
        "linf_ball" => |x, _| projection_linf_ball(x, 0.5),
        "vector" => |x, a| projection_vector(x, a),
        "hyperplane" => |x, a| projection_hyperplane(x, a, 0.5),
        "halfspace" => |x, a| projection_halfspace(x, a, -3.0),
        _ => return None,
    };
    many(move |x| {
        let a = (arange(0.0f32..4.0) - 1, ones([2, 3]));
        let (x, y) = project(&(x[0].clone(), x[1].clone()), &a)?;
        Ok(vec![x, y])
    })
}
