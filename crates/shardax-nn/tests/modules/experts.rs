//! Mixtures of experts against a dense reference, and split over devices.

use shardax_nn::prelude::*;
use shardax_nn::{ExpertGroups, RouterScores};

use super::setup;

type Experts = MixtureOfExperts<Sequential<(Linear, Apply, Linear)>>;

fn expert(rngs: &mut Rngs) -> Sequential<(Linear, Apply, Linear)> {
    Sequential((Linear::new(6, 12, rngs), Apply(relu), Linear::new(12, 6, rngs)))
}

fn experts(k: usize) -> Result<Experts> {
    MixtureOfExperts::new(8, k, 6, &mut Rngs::new(0), expert)
}

/// With enough capacity, a token gets the weighted sum of its experts.
#[test]
fn experts_equal_the_dense_sum() -> Result<()> {
    setup();
    let x = random::normal(random::key(1), [2, 10, 6]);
    for k in [1, 2, 3] {
        let dense_sum = jit(|moe: Experts, x: Array| {
            let probabilities = softmax(moe.router.forward(&x), -1);
            let (weights, _) = lax::top_k(&probabilities, k);
            let least = weights.get((Ellipsis, k as i64 - 1)).expand_dims(-1);
            let chosen = where_(probabilities.greater_equal(least), &probabilities, 0);
            let weights = &chosen / chosen.sum_keepdims(-1);
            let per_expert: Vec<Array> =
                (0..8).map(|e| Ok(moe.experts.layer(e)?.forward(&x))).collect::<Result<_>>()?;
            let shares = probabilities.greater_equal(probabilities.max_keepdims(-1)).astype(DType::F32).mean(1);
            let balance = (shares * probabilities.mean(1)).sum(-1).mean(..) * 8;
            Ok((einsum("gte,egtd->gtd", &[&weights, &stack(&per_expert, 0)]), balance))
        });
        let moe = experts(k)?.capacity_factor(None);
        let (routed, (want, balance)) = (moe.forward(&x)?, dense_sum.call((&moe, &x))?);
        assert_eq!(routed.dropped.item::<f32>()?, 0.0);
        assert!(allclose(&routed.y, want, 1e-4, 1e-5)?, "k = {k}");
        if k == 1 {
            assert!(allclose(routed.balance_loss, balance, 1e-5, 0.0)?);
        }
    }
    Ok(())
}

/// The experts of a token come from the kept groups even if a correction makes all of their scores negative.
#[test]
fn experts_with_negative_corrections_come_from_the_kept_groups() -> Result<()> {
    setup();
    let groups = ExpertGroups { count: 2, kept: 1, ranked_by: 1 };
    let mut moe = experts(2)?.scores(RouterScores::Sigmoid).groups(groups);
    // The second group has the larger sums of scores between 0 and 1 and corrections.
    moe.correction = Some(array([-9.0f32, -9.0, -9.0, -9.0, -2.0, -2.0, -2.0, -2.0]));
    let chosen = moe.choose(random::normal(random::key(1), [2, 10, 6]))?;
    assert!(chosen.experts.min(..).item::<i32>()? >= 4);
    Ok(())
}

/// Choices beyond the capacity are dropped, first choices last.
#[test]
fn experts_have_so_much_room() -> Result<()> {
    setup();
    let mut moe = experts(1)?.capacity_factor(1.0);
    // All tokens choose the first expert, which has room for one of eight.
    moe.router.kernel = zeros([6, 8]).at((.., 0)).set(1);
    let routed = moe.forward(ones([1, 8, 6]))?;
    assert_eq!(routed.dropped.item::<f32>()?, 0.875);
    let norms = routed.y.abs().sum(-1).ravel().to_vec::<f32>()?;
    assert!(norms[0] > 0.0 && norms[1..].iter().all(|n| *n == 0.0), "{norms:?}");
    assert!(routed.balance_loss.item::<f32>()? > 7.0);
    Ok(())
}

fn objective(routed: Routed) -> (Array, Array) {
    (routed.y.square().mean(..) + routed.balance_loss * 0.1, routed.y)
}

/// Experts that are sharded over devices return the same results, gradients and losses as on one device.
#[test]
fn experts_over_devices_equal_one_device() -> Result<()> {
    setup();
    let mesh = make_mesh([("expert", 4)])?;
    let moe = experts(2)?;
    let x = random::normal(random::key(1), [4, 10, 6]);
    fn on_one(moe: Experts, x: Array) -> Result<(Array, Array)> {
        Ok(objective(moe.forward(x)?))
    }
    let ((want, want_y), want_grads) = jit(value_and_grad(on_one).has_aux()).call((&moe, &x))?;

    // The router whole on each device, the experts and the rows of x split.
    let rules = Rules::new(&mesh, [("expert", "expert")]);
    fn split(moe: Experts, x: Array) -> Result<(Array, Array)> {
        let (loss, y) = objective(moe.forward_over(x, "expert")?);
        Ok((pmean(loss, "expert"), y))
    }
    fn apart(moe: Experts, x: Array, mesh: &Mesh) -> Result<(Array, Array)> {
        let router = moe.router.clone();
        let experts = moe.experts.clone();
        let inside = |(router, experts): (Linear, Stack<Sequential<(Linear, Apply, Linear)>>), x: Array| {
            let mut moe = moe.clone();
            (moe.router, moe.experts) = (router, experts);
            split(moe, x)
        };
        shard_map(inside, mesh)
            .in_specs(((P![], P!["expert"]), P!["expert"]))
            .out_specs((P![], P!["expert"]))
            .call(((router, experts), x))
    }
    let placed = rules.device_put(&moe)?;
    let ((got, got_y), got_grads) =
        jit(value_and_grad(|moe: Experts, x: Array| apart(moe, x, &mesh)).has_aux()).call((&placed, &x))?;
    assert!(allclose(got, want, 1e-5, 0.0)?);
    assert!(allclose(got_y, want_y, 1e-4, 1e-5)?);
    for ((path, got), want) in tree::leaves_with_path(&got_grads).into_iter().zip(tree::leaves(&want_grads)) {
        assert!(allclose(got, want, 1e-3, 1e-5)?, "{path}");
    }
    Ok(())
}
