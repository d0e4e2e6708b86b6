//! Checkpoints: the values and gradients equal those without a checkpoint; only the stored and the recomputed values
//! differ.

use shardax::prelude::*;

use crate::common::quick::setup;
use crate::{check_gradient, same};

fn layer(w: Array, x: Array) -> Array {
    x.matmul(&w).tanh().sin()
}

fn weights() -> Array {
    array([[0.5f32, -0.3, 0.2], [0.1, 0.4, -0.6], [-0.2, 0.7, 0.3]])
}

fn inputs() -> Array {
    array([[0.3f32, 0.1, -0.5], [-0.7, 0.2, 0.4]])
}

/// Two layers with the policy, or without a checkpoint.
fn network(policy: Option<CheckpointPolicy>) -> impl Fn(Array, Array) -> Result<Array> {
    move |w, x| match &policy {
        None => Ok(layer(w.clone(), layer(w, x)).sum(..)),
        Some(policy) => {
            let layer = checkpoint(layer).policy(policy.clone());
            Ok(layer.call((&w, layer.call((&w, x))?))?.sum(..))
        }
    }
}

fn policies() -> [CheckpointPolicy; 6] {
    [
        CheckpointPolicy::NothingSaveable,
        CheckpointPolicy::EverythingSaveable,
        CheckpointPolicy::DotsSaveable,
        CheckpointPolicy::DotsWithNoBatchDimsSaveable,
        CheckpointPolicy::save_only_these_names(["hidden"]),
        CheckpointPolicy::offload_dot_with_no_batch_dims("device", "pinned_host"),
    ]
}

#[test]
fn checkpoint_keeps_values_and_gradients() -> Result<()> {
    setup();
    let (w, x) = (weights(), inputs());
    let plain = network(None);
    for policy in policies() {
        let with_policy = network(Some(policy.clone()));
        same(&with_policy(w.clone(), x.clone())?, &plain(w.clone(), x.clone())?);
        let (got, want) = (value_and_grad(&with_policy).call((&w, &x))?, value_and_grad(&plain).call((&w, &x))?);
        same(&got.0, &want.0);
        same(&got.1, &want.1);
        same(&jit(grad(&with_policy)).call((&w, &x))?, &want.1);
        check_gradient(|w| with_policy(w, x.clone()), &w)?;
        // Forward, second order, mapped.
        fn along(f: &dyn Fn(Array) -> Result<Array>, x: &Array) -> Result<(Array, Array)> {
            jvp(|x: Array| f(x), x, &ones([2, 3]))
        }
        let (got, want) = (along(&|x| with_policy(w.clone(), x), &x)?, along(&|x| plain(w.clone(), x), &x)?);
        same(&got.1, &want.1);
        fn curve(f: &dyn Fn(Array, Array) -> Result<Array>, w: &Array, x: &Array) -> Result<Array> {
            grad(|x: Array| -> Result<Array> { Ok(grad(|x: Array| f(w.clone(), x)).call(x)?.square().sum(..)) }).call(x)
        }
        same(&curve(&with_policy, &w, &x)?, &curve(&plain, &w, &x)?);
        fn rows(f: &dyn Fn(Array, Array) -> Result<Array>, w: &Array, x: &Array) -> Result<Array> {
            vmap(grad(|w: Array, x: Array| f(w, x.expand_dims(0)))).in_axes((None, 0)).call((w, x))
        }
        same(&rows(&with_policy, &w, &x)?, &rows(&plain, &w, &x)?);
    }
    Ok(())
}

/// The number of times that a primitive occurs in the program of the gradient.
fn count(policy: Option<CheckpointPolicy>, primitive: &str) -> Result<usize> {
    let program = make_program(grad(network(policy)), (weights(), inputs()))?.to_string();
    fn name_ends(rest: &str) -> bool {
        rest.starts_with([' ', '['])
    }
    Ok(program.split(&format!("= {primitive}")).skip(1).filter(|rest| name_ends(rest)).count())
}

#[test]
fn policies_decide_what_is_recomputed() -> Result<()> {
    setup();
    // Two layers, each with a product forward; the gradient has two for the weights and one for the inner input.
    assert_eq!((count(None, "tanh")?, count(None, "dot_general")?), (2, 5));
    assert_eq!(count(None, "optimization_barrier")?, 0);
    assert_eq!(count(Some(CheckpointPolicy::NothingSaveable), "tanh")?, 4);
    assert_eq!(count(Some(CheckpointPolicy::NothingSaveable), "dot_general")?, 7);
    assert_eq!(count(Some(CheckpointPolicy::NothingSaveable), "optimization_barrier")?, 2);
    assert_eq!(count(Some(CheckpointPolicy::DotsSaveable), "tanh")?, 4);
    assert_eq!(count(Some(CheckpointPolicy::DotsSaveable), "dot_general")?, 5);
    assert_eq!(count(Some(CheckpointPolicy::EverythingSaveable), "tanh")?, 2);

    fn named(x: Array) -> Array {
        checkpoint_name(x.erf(), "hidden").sin().exp()
    }
    fn program(policy: CheckpointPolicy) -> Result<shardax::program::Program> {
        make_program(grad(checkpoint(named).policy(policy)), 0.5f32)
    }
    let text = program(CheckpointPolicy::save_only_these_names(["hidden"]))?.to_string();
    assert_eq!((text.matches("= erf").count(), text.matches("= sin").count()), (1, 2), "{text}");
    let text = program(CheckpointPolicy::save_only_these_names(["another"]))?.to_string();
    assert_eq!((text.matches("= erf").count(), text.matches("= sin").count()), (2, 2), "{text}");
    Ok(())
}

/// Each primitive is computed as often as in JAX's programs for the same policies.
#[test]
fn policies_of_names_of_both_and_of_ones_own() -> Result<()> {
    setup();
    use CheckpointPolicy as Policy;
    fn named(x: Array) -> Array {
        checkpoint_name(x.erf(), "hidden").sin().exp()
    }
    fn counts(policy: Policy) -> Result<(usize, usize)> {
        let text = make_program(grad(checkpoint(named).policy(policy)), 0.5f32)?.to_string();
        Ok((text.matches("= erf").count(), text.matches("= sin").count()))
    }
    let custom_policy =
        || Policy::save_if(|op| op.name() == "sin" && op.outputs()[0].size() == 1 && op.inputs().len() == 1);
    // An operation that occurs twice was computed again.
    assert_eq!(counts(Policy::save_any_names_but_these(["another"]))?, (1, 2));
    assert_eq!(counts(Policy::save_any_names_but_these(["hidden"]))?, (2, 2));
    assert_eq!(counts(Policy::save_anything_except_these_names(["hidden"]))?, (1, 1));
    assert_eq!(counts(custom_policy())?, (2, 1));
    assert_eq!(
        counts(Policy::save_from_both_policies(Policy::save_only_these_names(["hidden"]), custom_policy()))?,
        (1, 1)
    );
    let twice = Policy::save_if(|op| op.params() == "name=hidden");
    assert_eq!((twice.clone() == twice, twice == custom_policy()), (true, false));
    assert_eq!(counts(twice)?, (1, 2));
    fn slope(policy: Policy) -> Result<f32> {
        grad(checkpoint(named).policy(policy)).call(0.5f32)?.item::<f32>()
    }
    assert_eq!(slope(custom_policy())?, grad(named).call(0.5f32)?.item::<f32>()?);
    Ok(())
}

/// The policy that saves and offloads values of these names.
fn save_and_offload(saved: &[&'static str], offloaded: &[&'static str]) -> Result<CheckpointPolicy> {
    let (saved, offloaded) = (saved.iter().copied(), offloaded.iter().copied());
    CheckpointPolicy::save_and_offload_only_these_names(saved, offloaded, "device", "pinned_host")
}

/// Offloaded values move to the host once and back once; saved values are neither recomputed nor moved.
#[test]
fn policies_that_offload() -> Result<()> {
    setup();
    use CheckpointPolicy as Policy;
    fn named(x: Array) -> Array {
        checkpoint_name(checkpoint_name(x.erf(), "hidden").sin(), "last").exp()
    }
    fn counts(policy: Policy) -> Result<[usize; 4]> {
        let text = make_program(grad(checkpoint(named).policy(policy)), 0.5f32)?.to_string();
        Ok(["= erf", "= sin", "device_put[memory_kind=pinned_host]", "device_put[memory_kind=device]"]
            .map(|what| text.matches(what).count()))
    }
    assert_eq!(counts(save_and_offload(&[], &["hidden"])?)?, [1, 2, 1, 1]);
    assert_eq!(counts(save_and_offload(&["hidden"], &["last"])?)?, [1, 1, 1, 1]);
    assert_eq!(counts(save_and_offload(&["hidden"], &[])?)?, [1, 2, 0, 0]);
    assert_eq!(counts(save_and_offload(&[], &["another"])?)?, [2, 2, 0, 0]);
    // One of them keeps it where it is.
    let combined =
        Policy::save_from_both_policies(save_and_offload(&[], &["hidden"])?, Policy::save_only_these_names(["hidden"]));
    assert_eq!(counts(combined)?, [1, 2, 0, 0]);
    let combined =
        Policy::save_from_both_policies(Policy::NothingSaveable, save_and_offload(&[], &["hidden", "last"])?);
    assert_eq!(counts(combined)?, [1, 1, 2, 2]);
    for policy in [save_and_offload(&["hidden"], &["last"])?, save_and_offload(&[], &["hidden"])?] {
        let slope = jit(grad(checkpoint(named).policy(policy))).call(0.5f32)?.item::<f32>()?;
        assert_eq!(slope, jit(grad(named)).call(0.5f32)?.item::<f32>()?);
    }
    let error = save_and_offload(&["a", "b"], &["b"]).expect_err("a name in both lists");
    assert!(error.message().contains("should not intersect") && error.message().ends_with("[\"b\"]"), "{error}");
    Ok(())
}

#[test]
fn a_loop_needs_less_memory() -> Result<()> {
    setup();
    fn temporary(checkpointed: bool) -> Result<i64> {
        fn layers(w: Array, x: Array) -> Array {
            (0..8).fold(x, |x, _| x.matmul(&w).tanh())
        }
        let f = move |w: Array, x: Array| -> Result<Array> {
            let recomputed = checkpoint(layers);
            let step = |x: Array| {
                if checkpointed { Ok((recomputed.call((&w, x))?, ())) } else { Ok((layers(w.clone(), x), ())) }
            };
            Ok(scan_n(step, x, 16)?.0.sum(..))
        };
        fn ty() -> Array {
            shape_dtype_struct([64, 64], DType::F32)
        }
        let compiled = jit(grad(f)).lower((ty(), ty()))?.compile()?;
        Ok(compiled.memory_analysis()?.temporaries)
    }
    let (kept, again) = (temporary(false)?, temporary(true)?);
    assert!(again * 3 < kept, "{again} bytes against {kept}");
    Ok(())
}

#[test]
fn the_body_of_a_scan_keeps_its_carries_alone() -> Result<()> {
    setup();
    let (w, xs) = (weights(), ones([5, 2, 3]));
    let run = |w: Array, checkpointed: bool| -> Result<Array> {
        let step = |x: Array, y: Array| {
            let x = layer(w.clone(), x + y);
            (x.clone(), x.sum(..))
        };
        let (x, sums) = if checkpointed {
            let step = checkpoint(step).prevent_cse(false);
            scan(|x: Array, y: Array| step.call((x, y)), inputs(), xs.clone())?
        } else {
            scan(step, inputs(), xs.clone())?
        };
        Ok(x.sum(..) + sums.square().sum(..))
    };
    same(&grad(|w: Array| run(w, true)).call(&w)?, &grad(|w: Array| run(w, false)).call(&w)?);
    let program = |checkpointed| make_program(grad(move |w: Array| run(w, checkpointed)), &w);
    let stored =
        |program: &str| program.lines().find(|l| l.contains("= scan")).unwrap_or_default().matches("5,2,3").count();
    let (kept, again) = (program(false)?.to_string(), program(true)?.to_string());
    assert!(stored(&again) < stored(&kept), "{again}\n{kept}");
    Ok(())
}

#[test]
fn gradients_inside_and_outside_of_shard_map() -> Result<()> {
    setup();
    let mesh = make_mesh([("i", 2)])?;
    let (w, x) = (weights(), inputs());
    let plain = network(None);
    let want = grad(&plain).call((&w, &x))?;
    for check in [true, false] {
        let with_policy = network(Some(CheckpointPolicy::NothingSaveable));
        let sharded = shard_map(move |w: Array, x: Array| Ok(psum(with_policy(w, x)?, "i")), &mesh)
            .in_specs((P![], P!["i"]))
            .out_specs(P![])
            .check_vma(check);
        same(&grad(sharded).call((&w, &x))?, &want);
        let with_policy = network(Some(CheckpointPolicy::DotsSaveable));
        let inside = move |w: Array, x: Array| -> Result<Array> {
            let g = grad(|w: Array| with_policy(w, x.clone())).call(w)?;
            Ok(if check { g } else { psum(g, "i") })
        };
        let inside = shard_map(inside, &mesh).in_specs((P![], P!["i"])).out_specs(P![]).check_vma(check);
        same(&jit(inside).call((&w, &x))?, &want);
    }
    Ok(())
}

/// `x * tanh(x)` with rules for rematerialization: `fwd` computes the hyperbolic tangent, `rem` reads it.
fn gated() -> impl Function<(Array,), Output = Array> {
    custom_vjp(|x: Array| &x * x.tanh()).defremat(
        |x: Array| {
            let gate = x.tanh();
            (x * &gate, gate)
        },
        |gate: Array, (x,): (Array,)| (&x * &gate, (x.logistic(), x, gate)),
        // The program contains the logistic function as an operation. Its slope needs only the gate.
        |(marker, x, gate): (Array, Array, Array), ct: Array| {
            (ct * (&gate + x * (1 - gate.square())) + marker.greater(2).astype(DType::F32),)
        },
    )
}

/// Under `checkpoint` only the residuals of `fwd` are saved, whatever the policy is: the recomputation has no
/// hyperbolic tangent.
/// JAX 0.12's `defremat` has the same slopes.
#[test]
fn defremat_recomputes_by_its_own_rule() -> Result<()> {
    setup();
    let x = array([0.3f32, -1.2, 2.0]);
    fn plain(x: Array) -> Array {
        &x * x.tanh()
    }
    let want = grad(move |x: Array| plain(plain(x)).sum(..)).call(&x)?;
    fn twice(x: Array) -> Result<Array> {
        Ok(gated().call(gated().call(x)?)?.sum(..))
    }
    for policy in policies() {
        let f = || grad(checkpoint(twice).policy(policy.clone()));
        assert!(allclose(f().call(&x)?, &want, 1e-5, 1e-6)?, "{policy:?}");
        let lowered = jit(f()).lower(&x)?;
        let text = lowered.as_text();
        fn count(op: &str, text: &str) -> usize {
            text.matches(op).count()
        }
        assert_eq!(
            (count("stablehlo.tanh", text), count("stablehlo.logistic", text) > 0),
            (2, true),
            "{policy:?}: {text}"
        );
    }
    // Outside of a checkpoint, mapped, in a loop, and not differentiated.
    assert!(allclose(grad(twice).call(&x)?, &want, 1e-5, 1e-6)?);
    assert!(allclose(gated().call(&x)?, plain(x.clone()), 1e-6, 1e-6)?);
    assert!(allclose(jit(gated()).call(&x)?, plain(x.clone()), 1e-6, 1e-6)?);
    let rows = stack(&[x.clone(), &x * 2], 0);
    let mapped = vmap(checkpoint(|x: Array| gated().call(x)));
    let slope = grad(move |rows: Array| -> Result<Array> { Ok(mapped.call(rows)?.sum(..)) }).call(&rows)?;
    let expected = grad(move |rows: Array| plain(rows).sum(..)).call(&rows)?;
    assert!(allclose(slope, expected, 1e-5, 1e-6)?);
    fn looped(x: Array) -> Result<Array> {
        let step = checkpoint(|x: Array| gated().call(x));
        Ok(scan(|x: Array, _: Array| -> Result<(Array, ())> { Ok((step.call(x)?, ())) }, x, arange(0..2))?.0.sum(..))
    }
    assert!(allclose(jit(grad(looped)).call(&x)?, &want, 1e-5, 1e-6)?);
    // A rule that returns too few cotangents.
    let wrong = custom_vjp(|x: Array, y: Array| x * y).defremat(
        |x: Array, y: Array| (x * y, ()),
        |(), (x, y): (Array, Array)| (&x * &y, (x, y)),
        |(x, _): (Array, Array), ct: Array| (ct * x,),
    );
    let error = grad(move |x: Array| wrong.call((x, 2.0))).call(1.0f32).unwrap_err().to_string();
    assert!(error.contains("it has 2 arrays, but the rule returned 1"), "{error}");
    Ok(())
}
