//! Values that backward rules log, and refs that they add to: the numbers are JAX 0.12.0.1's (`defvjp_with_logs`,
//! `defremat_with_logs`, `defvjp_with_accums`).

use std::collections::BTreeMap;

use shardax::prelude::*;
use shardax::tree::Flat;
use shardax::{Arg, Ref, VjpFn};

use crate::close;
use crate::common::quick::setup;

type Logs = BTreeMap<String, Flat>;

/// The sine. Its backward rule logs the cotangent, and a number computed from the cotangent and the residual.
fn logging_sine(name: &'static str) -> impl Function<(Array,), Output = Array> {
    custom_vjp(|x: Array| x.sin()).defvjp_with_logs(
        |x: Array| (x.sin(), x),
        move |x: Array, ct: Array| {
            let norm = (&x * &ct).sum(..);
            let logs = BTreeMap::from([(name.to_owned(), ct.clone()), (format!("{name}_norm"), norm)]);
            ((x.cos() * ct,), logs)
        },
    )
}

fn logs_of<F: Function<(Array,), Output = Array>>(f: F, x: &Array, ct: &Array) -> Result<(Array, Logs)> {
    let (_, pull_back) = vjp(f, x)?;
    let ((slope,), logs) = pull_back.with_logs(ct)?;
    Ok((slope, logs))
}

#[track_caller]
fn logged(logs: &Logs, key: &str, shape: &[usize], want: &[f64]) {
    let value: Array = logs[key].build().expect("one array");
    assert_eq!(value.shape(), shape, "{key}");
    close(&value, want);
}

fn values() -> Array {
    array([0.5f32, 1.0, 2.0])
}

#[test]
fn with_logs_returns_what_rules_log() -> Result<()> {
    setup();
    let f = logging_sine("ct");
    let tripled = |x: Array| -> Result<Array> { Ok(f.call(x)? * 3.0) };
    let slopes = [2.6327477, 1.6209068, -1.2484405];
    let (slope, logs) = logs_of(tripled, &values(), &ones(3))?;
    close(&slope, &slopes);
    assert_eq!(logs.keys().collect::<Vec<_>>(), ["ct", "ct_norm"]);
    logged(&logs, "ct", &[3], &[3.0; 3]);
    logged(&logs, "ct_norm", &[], &[10.5]);
    // Two functions log under their own keys; others drop the values.
    let g = logging_sine("b");
    let (slope, logs) = logs_of(|x: Array| f.call(g.call(x)?), &values(), &ones(3))?;
    close(&slope, &[0.7786439, 0.36003947, -0.25563914]);
    logged(&logs, "ct_norm", &[], &[2.2301939]);
    logged(&logs, "b", &[3], &[0.88726, 0.66636676, 0.6143003]);
    logged(&logs, "b_norm", &[], &[2.3385973]);
    let sum = |x: Array| -> Result<Array> { Ok(tripled(x)?.sum(..)) };
    close(&grad(sum).call(values())?, &slopes);
    close(&jit(grad(sum)).call(values())?, &slopes);
    // A backward pass that does not reach the rule, and one of a derivative inside of the function.
    let unreached = |x: Array| -> Result<Array> { Ok(stop_gradient(f.call(&x)?) + x) };
    assert!(logs_of(unreached, &values(), &ones(3))?.1.is_empty());
    let inner = |x: Array| grad(|x: Array| -> Result<Array> { Ok((x.sin() * f.call(0.5f32)?).sum(..)) }).call(x);
    assert!(logs_of(inner, &values(), &ones(3))?.1.is_empty());
    Ok(())
}

#[test]
fn with_logs_passes_through_jit_checkpoint_loops_and_vmap() -> Result<()> {
    setup();
    let f = &logging_sine("ct");
    let tripled = |x: Array| -> Result<Array> { Ok(f.call(x)? * 3.0) };
    let slopes = [2.6327477, 1.6209068, -1.2484405];
    let in_jit = jit(|x: Array| -> Result<(Array, Array, Array)> {
        let (slope, logs) = logs_of(jit(tripled), &x, &ones(3))?;
        Ok((slope, logs["ct"].build()?, logs["ct_norm"].build()?))
    });
    let (slope, ct, norm) = in_jit.call(values())?;
    close(&slope, &slopes);
    close(&ct, &[3.0; 3]);
    close(&norm, &[10.5]);
    for (slope, logs) in
        [logs_of(jit(tripled), &values(), &ones(3))?, logs_of(checkpoint(tripled), &values(), &ones(3))?]
    {
        close(&slope, &slopes);
        logged(&logs, "ct", &[3], &[3.0; 3]);
        logged(&logs, "ct_norm", &[], &[10.5]);
    }

    // Steps are stacked in the order of the loop.
    let steps = |x: Array| -> Result<Array> {
        let step = |c: Array, k: Array| -> Result<(Array, Array)> { Ok((f.call(&c)? * k, c)) };
        Ok(scan(step, x, array([1.0f32, 2.0]))?.0)
    };
    let (slope, logs) = logs_of(steps, &values(), &ones(3))?;
    close(&slope, &[1.5572878, 0.72007895, -0.5112783]);
    logged(&logs, "ct", &[2, 3], &[1.77452, 1.3327335, 1.2286006, 2.0, 2.0, 2.0]);
    logged(&logs, "ct_norm", &[2], &[4.6771946, 4.4603877]);
    let (_, logs) = logs_of(jit(steps), &values(), &ones(3))?;
    logged(&logs, "ct_norm", &[2], &[4.6771946, 4.4603877]);

    let cts = array([1.0f32, 2.0, 3.0]);
    let (slope, logs) = logs_of(vmap(|x: Array| f.call(x)), &values(), &cts)?;
    close(&slope, &[0.87758255, 1.0806046, -1.2484405]);
    logged(&logs, "ct", &[3], &[1.0, 2.0, 3.0]);
    logged(&logs, "ct_norm", &[3], &[0.5, 2.0, 6.0]);
    let per_device =
        vmap(|x: Array, ct: Array| -> Result<Array> { logs_of(|x: Array| f.call(x), &x, &ct)?.1["ct_norm"].build() });
    close(&per_device.call((values(), cts))?, &[0.5, 2.0, 6.0]);
    Ok(())
}

#[test]
fn with_logs_says_which_branch_logged() -> Result<()> {
    setup();
    let (f, g) = (&logging_sine("ct"), &logging_sine("b"));
    let branches = |x: Array| {
        let tripled = |x: Array| -> Result<Array> { Ok(f.call(x)? * 3.0) };
        cond(x.get(0).greater(0.0), tripled, |x: Array| g.call(x), x)
    };
    let (slope, logs) = logs_of(branches, &values(), &ones(3))?;
    close(&slope, &[2.6327477, 1.6209068, -1.2484405]);
    assert_eq!(logs.len(), 4);
    // The false branch is branch 0, as in JAX.
    let (index, [other, ran]): (Array, [Option<Array>; 2]) = logs["ct"].build()?;
    assert_eq!((index.item::<i32>()?, other.is_none()), (1, true));
    close(&ran.expect("the true branch logs it"), &[3.0; 3]);
    let (_, [other, ran]): (Array, [Option<Array>; 2]) = logs["b_norm"].build()?;
    assert!(ran.is_none());
    close(&other.expect("the false branch logs it"), &[0.0]);
    let (_, logs) = logs_of(branches, &-values(), &ones(3))?;
    let (index, [_, ran]): (Array, [Option<Array>; 2]) = logs["ct"].build()?;
    assert_eq!(index.item::<i32>()?, 0);
    close(&ran.expect("the true branch logs it"), &[0.0; 3]);
    Ok(())
}

#[test]
fn with_logs_stacks_the_values_of_devices() -> Result<()> {
    setup();
    let mesh = make_mesh([("x", 2), ("y", 4)])?;
    let _mesh = set_mesh(&mesh)?;
    let f = &logging_sine("ct");
    let x = reshard(array([0.0f32, 1.0, 2.0, 3.0]), P!["x"]);
    let mapped = shard_map(|x: Array| f.call(x), &mesh).in_specs(P!["x"]).out_specs(P!["x"]);
    let (slope, logs) = logs_of(mapped, &x, &reshard(ones(4), P!["x"]))?;
    close(&slope, &[1.0, 0.5403023, -0.41614684, -0.9899925]);
    logged(&logs, "ct", &[4], &[1.0; 4]);
    logged(&logs, "ct_norm", &[2], &[1.0, 5.0]);
    assert_eq!(logs["ct_norm"].build::<Array>()?.type_name(), "float32[2@x]");
    Ok(())
}

#[test]
fn with_logs_of_other_kinds_of_rules() -> Result<()> {
    setup();
    let normalize = custom_vjp(|x: Array| &x / x.sum(..)).defremat_with_logs(
        |x: Array| (&x / x.sum(..), x.sum(..)),
        |sum: Array, (x,): (Array,)| (&x / &sum, (x / &sum, sum)),
        |(y, sum): (Array, Array), ct: Array| {
            (((&ct - (&ct * &y).sum(..)) / &sum,), BTreeMap::from([("sum".to_owned(), sum)]))
        },
    );
    let normalize = &normalize;
    let squares = |x: Array| -> Result<Array> { Ok(normalize.call(x)?.square().sum(..)) };
    let x = array([1.0f32, 3.0]);
    for (slope, logs) in [logs_of(checkpoint(squares), &x, &ones(()))?, logs_of(squares, &x, &ones(()))?] {
        close(&slope, &[-0.1875, 0.0625]);
        logged(&logs, "sum", &[], &[4.0]);
    }

    let clip = custom_vjp(|_bound: f32, x: Array| x).nondiff_argnums(Arg::<0>).defvjp_with_logs(
        |_bound: f32, x: Array| (x, ()),
        |bound: f32, (), ct: Array| {
            let clipped = ct.clip(-bound, bound);
            ((clipped.clone(),), BTreeMap::from([("lost".to_owned(), ct - clipped)]))
        },
    );
    let (slope, logs) = logs_of(|x: Array| clip.call((2.0f32, x)), &x, &array([1.0f32, 5.0]))?;
    close(&slope, &[1.0, 2.0]);
    logged(&logs, "lost", &[2], &[0.0, 3.0]);

    let flagged = custom_vjp(|x: Array| x).symbolic_zeros().defvjp_with_logs(
        |x: shardax::control_flow::CustomVjpPrimal| (x.value, ()),
        |(), ct: Option<Array>| {
            let ct = ct.unwrap_or(zeros(2));
            ((ct.clone(),), BTreeMap::from([("seen".to_owned(), ct)]))
        },
    );
    logged(&logs_of(|x: Array| flagged.call(x), &x, &x)?.1, "seen", &[2], &[1.0, 3.0]);
    // A rule may log nothing.
    let silent = custom_vjp(|x: Array| x).defvjp_with_logs(|x: Array| (x, ()), |(), ct: Array| ((ct,), ()));
    assert!(logs_of(|x: Array| silent.call(x), &x, &x)?.1.is_empty());
    Ok(())
}

#[test]
fn with_logs_rejects_repeated_keys_and_values_without_names() {
    setup();
    let f = &logging_sine("ct");
    let twice = |x: Array| f.call(f.call(x)?);
    let sum = |x: Array| -> Result<Array> { Ok(twice(x)?.sum(..)) };
    let message = "Duplicate backward-pass log key \"ct\"";
    for error in [logs_of(twice, &values(), &ones(3)).err(), grad(sum).call(values()).err()] {
        let error = error.expect("the key is repeated").to_string();
        assert!(error.contains(message), "{error}");
    }
    // Also where one of the calls is in a program of its own.
    let nested = |x: Array| f.call(jit(|x: Array| f.call(x)).call(x)?);
    let error = logs_of(nested, &values(), &ones(3)).err().expect("the key is repeated").to_string();
    assert!(error.contains(message), "{error}");

    let unnamed =
        custom_vjp(|x: Array| x).defvjp_with_logs(|x: Array| (x, ()), |(), ct: Array| ((ct.clone(),), vec![ct]));
    let error = grad(|x: Array| -> Result<Array> { Ok(unnamed.call(x)?.sum(..)) }).call(values());
    let error = error.err().expect("a list has no names").to_string();
    assert!(error.contains("must be a map or a struct of backward-pass log entries"), "{error}");
}

/// A backward rule adds to a captured ref, in a loop as well: the sums of JAX's accumulators, 12 on top of 10.
#[test]
fn backward_rules_add_to_refs() -> Result<()> {
    setup();
    let sum: Ref = new_ref(array(10.0f32))?;
    let into = sum.clone();
    let product = custom_vjp(|w: Array, x: Array| w * x).defvjp(
        |w: Array, x: Array| (&w * &x, (w, x)),
        move |(w, x): (Array, Array), ct: Array| -> Result<(Array, Array)> {
            into.add(&ct * &x)?;
            Ok((zeros(()), ct * w))
        },
    );
    let steps = |w: Array, x: Array| -> Result<Array> {
        let step = |c: Array, k: Array| -> Result<(Array, ())> { Ok((product.call((&w, c))? + k, ())) };
        Ok(scan(step, x, array([1.0f32, 2.0, 3.0]))?.0)
    };
    let (y, pull_back): (Array, VjpFn<(Array, Array), Array>) = vjp(steps, (2.0f32, 0.5f32))?;
    let (_, slope) = pull_back.call(1.0)?;
    close(&y, &[15.0]);
    close(&slope, &[8.0]);
    close(&sum.get(), &[22.0]);
    Ok(())
}
