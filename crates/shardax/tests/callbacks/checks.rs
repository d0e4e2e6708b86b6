//! `check!` and `checkify`. Texts equal JAX 0.10.2's for the same functions.

use crate::common::quick::setup;
use shardax::prelude::*;

fn positive(x: Array) -> Result<Array> {
    check!(x.greater(0), "must be positive, got {x}, twice {y}", x, y = &x * 2)?;
    Ok(x + 1)
}

/// The error of a function of one array, as text.
#[track_caller]
fn error_of<F: Function<(Array,)>>(f: F, x: impl Into<Array>, checks: Checks) -> Option<String> {
    let (error, _) = checkify(f).errors(checks).call(x.into()).expect("it runs");
    let text = error.get().expect("it can be read");
    assert_eq!(error.throw().err().map(|e| e.message().to_owned()).is_some(), text.is_some());
    text
}

#[track_caller]
fn user<F: Function<(Array,)>>(f: F, x: impl Into<Array>) -> String {
    error_of(f, x, Checks::USER).unwrap_or_default()
}

fn says(x: &str, twice: &str) -> String {
    format!("must be positive, got {x}, twice {twice} (`check` failed)")
}

fn message<T>(result: Result<T>) -> String {
    result.err().map(|e| e.message().to_owned()).unwrap_or_default()
}

#[test]
fn a_check_is_an_error_at_once_or_must_be_functionalized() -> Result<()> {
    setup();
    assert_eq!(message(positive((-1.0f32).into())), says("-1.0", "-2.0"));
    assert_eq!(positive(1.0f32.into())?.item::<f32>()?, 2.0);
    let unfit = "Cannot abstractly evaluate a checkify.check which was not functionalized. This probably means you tried to stage (jit/scan/pmap/...) a `check` without functionalizing it through `checkify.checkify`.";
    for x in [1.0f32, -1.0] {
        assert_eq!(message(jit(positive).call(x)), unfit);
        assert_eq!(message(jit(grad(positive)).call(x)), unfit);
    }
    assert_eq!(message(pmap(positive).call(ones([8]))), unfit);
    assert_eq!(vmap(positive).call(ones([3]))?.to_vec::<f32>()?, [2.0; 3]);
    assert_eq!(message(vmap(positive).call(array([1.0f32, -2.0, 3.0]))), says("-2.0", "-4.0"));
    assert_eq!(grad(positive).call(1.0f32)?.item::<f32>()?, 1.0);
    for _ in 0..2 {
        let error = grad(positive).call(-1.0f32).err().expect("it fails");
        assert_eq!(error.message(), says("-1.0", "-2.0"));
        assert!(error.location().is_some_and(|at| at.file().ends_with("checks.rs")), "{error}");
        assert_eq!(error.kind(), shardax::ErrorKind::Check);
    }
    Ok(())
}

#[test]
fn mistakes_in_checks_are_errors() {
    setup();
    let text = message(checkify(|x: Array| check!(x.greater(0), "no")).call(arange(0..3)));
    assert_eq!(text, "check takes a scalar pred as argument, got bool[3]");
    let text = message(checkify(|x: Array| check!(x, "no")).call(1.0f32));
    assert!(text.starts_with("check takes a scalar pred as argument, got float32[]"), "{text}");
    let text = message(checkify(|x: Array| check!(x.greater(0), "no {q}", x)).call(1.0f32));
    assert!(text.contains("asks for") && text.contains('q'), "{text}");
}

/// Returns the result of `positive`, or the error of its check.
fn positive_or_error(x: Array) -> Result<Array> {
    let (error, y) = checkify(positive).call(x)?;
    error.throw()?;
    Ok(y)
}

#[test]
fn errors_travel_through_every_transformation() -> Result<()> {
    setup();
    let single_check = says("-1.0", "-2.0");
    assert_eq!(user(positive, -1.0f32), single_check);
    assert_eq!(user(jit(positive), -1.0f32), single_check);
    assert_eq!(user(grad(positive), -1.0f32), single_check);
    assert_eq!(user(checkpoint(positive), -1.0f32), single_check);
    assert_eq!(user(grad(checkpoint(|x: Array| Ok(positive(x)?.sin()))), -1.0f32), single_check);
    assert_eq!(user(positive, 1.0f32), "");
    let (error, y) = jit(checkify(positive)).call(-1.0f32)?;
    assert_eq!((error.get()?, y.item::<f32>()?), (Some(single_check.clone()), 0.0));
    // The last entry that fails.
    assert_eq!(user(vmap(positive), array([1.0f32, -2.0, -3.0, 4.0])), says("-3.0", "-6.0"));
    let (error, y) = vmap(checkify(positive)).call(array([1.0f32, -2.0, -3.0]))?;
    assert_eq!(
        error.get()?.unwrap_or_default(),
        format!("at mapped index 1: {}\nat mapped index 2: {}", says("-2.0", "-4.0"), says("-3.0", "-6.0"))
    );
    assert_eq!(message(error.throw()), says("-3.0", "-6.0"));
    assert_eq!(y.to_vec::<f32>()?, [2.0, -1.0, -2.0]);
    // The first of two, and the error of a nested function that is thrown again.
    fn two(x: Array) -> Result<Array> {
        check!(x.greater(0), "first {x}", x)?;
        check!(x.greater(1), "second {}", x)?;
        Ok(x)
    }
    assert_eq!(user(two, -1.0f32), "first -1.0 (`check` failed)");
    assert_eq!(user(two, 0.5f32), "second 0.5 (`check` failed)");
    assert_eq!(user(positive_or_error, -1.0f32), single_check);
    assert_eq!(message(positive_or_error((-1.0f32).into())), single_check);
    fn matrix(x: Array) -> Result<()> {
        check!(x.sum(..).greater(100), "arr {x}", x)
    }
    assert_eq!(
        user(matrix, arange(0..6).astype(DType::F32).reshape([2, 3])),
        "arr [[0. 1. 2.]\n [3. 4. 5.]] (`check` failed)"
    );
    Ok(())
}

#[test]
fn errors_travel_through_loops_and_branches() -> Result<()> {
    setup();
    let half = says("-0.5", "-1.0");
    fn scanned(x: Array) -> Result<(Array, Array)> {
        scan_n(|c: Array| Ok((positive(c.clone())? - 2, c)), x, 3)
    }
    assert_eq!(user(scanned, 1.5f32), half);
    assert_eq!(user(jit(scanned), 1.5f32), half);
    assert_eq!(user(scanned, 9.0f32), "");
    fn body(c: Array) -> Result<Array> {
        Ok(positive(c)? - 2)
    }
    assert_eq!(user(|x: Array| while_loop(|c: Array| c.greater(-5), body, x), 1.5f32), half);
    fn condition(c: Array) -> Result<Array> {
        let _ = positive(c.clone())?;
        Ok(c.greater(-5))
    }
    fn f(x: Array) -> Result<Array> {
        while_loop(condition, |c: Array| c - 1, x)
    }
    assert_eq!(user(f, 1.5f32), half);
    assert_eq!(checkify(f).call(1.5f32)?.1.item::<f32>()?, -5.5);
    let branch = |x: Array| cond(x.greater(0), |x: Array| x, positive, x);
    assert_eq!(user(branch, -1.5f32), says("-1.5", "-3.0"));
    assert_eq!(user(branch, 1.5f32), "");
    // Entries of a batch that choose otherwise.
    assert_eq!(user(vmap(branch), array([1.0f32, 2.0])), "");
    assert_eq!(user(vmap(branch), array([1.0f32, -2.0, 3.0])), says("-2.0", "-4.0"));
    let (error, y) = vmap(checkify(branch)).call(array([1.0f32, -2.0, 3.0]))?;
    assert_eq!(error.get()?.unwrap_or_default(), format!("at mapped index 1: {}", says("-2.0", "-4.0")));
    assert_eq!(y.to_vec::<f32>()?, [1.0, -1.0, 3.0]);
    fn steps(x: Array) -> Result<Array> {
        while_loop(|c: Array| c.greater(0), |c: Array| Ok(positive(c)? - 2), x)
    }
    let (error, _) = vmap(checkify(steps)).call(array([1.0f32, 5.0]))?;
    assert_eq!(error.get()?, None);
    // JAX rejects a check in a batched loop. Here the checks of entries that have left the loop are ignored.
    assert_eq!(user(vmap(steps), array([1.0f32, 5.0])), "");
    let steps = |x: Array| while_loop(|c: Array| c.greater(-2), |c: Array| Ok(positive(c)? - 2), x);
    assert_eq!(user(vmap(steps), array([1.0f32, 2.5])), says("0.0", "0.0"));
    let branch = |x: Array| cond(x.less(0), |x: Array| x, positive, x);
    assert_eq!(user(vmap(branch), array([1.0f32, -2.0, 3.0])), "");
    // A value of one type in the first step and one of another in the second: the message that stands first.
    fn mixed(x: Array) -> Result<(Array, ())> {
        fn body(c: Array) -> Result<(Array, ())> {
            check!(c.greater(0), "one {c}", c)?;
            check!(c.greater(2), "two {}", c.astype(DType::I32))?;
            Ok((c - 2, ()))
        }
        scan_n(body, x, 3)
    }
    assert_eq!(user(mixed, 3.0f32), "one -1.0 (`check` failed)");
    Ok(())
}

/// The message of a failed check of a block with these values.
fn failed_block(k: usize, text: &str) -> String {
    format!("at mapped index {k}: block [{text}] (`check` failed)")
}

#[test]
fn errors_of_devices_are_distinguished() -> Result<()> {
    setup();
    let mesh = make_mesh([("i", 8)])?;
    fn block(x: Array) -> Result<Array> {
        check!(x.greater(0).all(..), "block {x}", x)?;
        Ok(x + 1)
    }
    let f = shard_map(block, &mesh).in_specs((P!["i"],)).out_specs(P!["i"]);
    let (error, y) = jit(checkify(|x: Array| f.call(x))).call(arange(0..8).astype(DType::F32) - 5)?;
    let errors: Vec<String> =
        ["-5.", "-4.", "-3.", "-2.", "-1.", "0."].iter().enumerate().map(|(k, t)| failed_block(k, t)).collect();
    assert_eq!(error.get()?.unwrap_or_default(), errors.join("\n"));
    assert_eq!(message(error.throw()), "block [0.] (`check` failed)");
    assert_eq!(y.to_vec::<f32>()?, [-4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0]);
    let (error, _) = checkify(pmap(positive)).call(arange(0..8).astype(DType::F32) - 1)?;
    let want = format!("at mapped index 0: {}\nat mapped index 1: {}", says("-1.0", "-2.0"), says("0.0", "0.0"));
    assert_eq!(error.get()?.unwrap_or_default(), want);
    let (error, _) = pmap(checkify(positive)).call(arange(0..8).astype(DType::F32) - 1)?;
    assert_eq!(error.get()?.unwrap_or_default(), want);
    // Through calls of compiled functions, which may have checks of their own before and after.
    let x = || arange(0..8).astype(DType::F32) - 1;
    let lines = [failed_block(0, "-1."), failed_block(1, "0.")].join("\n");
    let compiled = || jit(shard_map(block, &mesh).in_specs((P!["i"],)).out_specs(P!["i"]));
    assert_eq!(user(compiled(), x()), lines);
    let inner = compiled();
    assert_eq!(user(jit(move |x: Array| inner.call(x)), x()), lines);
    assert_eq!(user(checkpoint(compiled()), x()), lines);
    let inner = compiled();
    assert_eq!(user(jit(move |x: Array| inner.call(positive(x.sum(..))? * 0 + x)), x()), lines);
    let (inner, later) = (compiled(), jit(|x: Array| positive(x.sum(..) + 100)));
    assert_eq!(user(move |x: Array| later.call(inner.call(x)?), x()), lines);
    let inner = compiled();
    assert_eq!(user(jit(move |x: Array| Ok(inner.call(x)?.sum(..))), x() + 2), "");
    // Around the map, inside of a loop, and after another check.
    let looped = |x: Array| scan_n(|c: Array| Ok((f.call(positive(c.sum(..))? * 0 + &c)? - 2, ())), x, 3);
    let (error, _) = checkify(looped).call(arange(0..8).astype(DType::F32) + 1)?;
    assert_eq!(error.get()?.unwrap_or_default(), "block [0.] (`check` failed)");
    Ok(())
}

/// The gradient of a checked function at -1, with the error of its checks.
fn slope_of_checked(
    f: &dyn Fn(Array) -> Result<(shardax::checkify::CheckError, Array)>,
) -> Result<(Array, shardax::checkify::CheckError)> {
    let g = |x: Array| f(x).map(|(error, y)| (y, error));
    grad(g).has_aux().call(-1.0f32)
}

/// Rules are kept where a function with checks is differentiated after its error became a value.
#[test]
fn custom_rules_stay() -> Result<()> {
    setup();
    let jvp_rule =
        custom_jvp(|x: Array| Ok(positive(x)? * 2)).defjvp(|(x,): (Array,), (t,): (Array,)| ((x + 1) * 2, t * 7));
    let vjp_rule =
        custom_vjp(|x: Array| Ok(positive(x)? * 2)).defvjp(|x: Array| ((x + 1) * 2, ()), |_: (), ct: Array| (ct * 9,));
    assert_eq!(user(|x: Array| jvp_rule.call(x), -1.0f32), says("-1.0", "-2.0"));
    assert_eq!(user(|x: Array| vjp_rule.call(x), -1.0f32), says("-1.0", "-2.0"));
    let (d, error) = slope_of_checked(&|x| checkify(|x: Array| jvp_rule.call(x)).call(x))?;
    // The rule replaces the function, including its checks.
    assert_eq!((d.item::<f32>()?, error.get()?), (7.0, None));
    let (d, error) = slope_of_checked(&|x| checkify(|x: Array| vjp_rule.call(x)).call(x))?;
    assert_eq!((d.item::<f32>()?, error.get()?), (9.0, None));
    Ok(())
}

/// The message of a NaN that a primitive returned.
fn nan_by(primitive: &str) -> Option<String> {
    Some(format!("nan generated by primitive: {primitive}."))
}

#[test]
fn mistakes_of_numbers_are_found() -> Result<()> {
    setup();
    assert_eq!(error_of(|x: Array| x.log(), -1.0f32, Checks::NAN), nan_by("log"));
    assert_eq!(error_of(|x: Array| (x.clone() * f32::INFINITY).sin() + x.log(), 0.0f32, Checks::NAN), nan_by("mul"));
    assert_eq!(error_of(jit(|x: Array| x.log()), -1.0f32, Checks::NAN), nan_by("log"));
    assert_eq!(error_of(vmap(|x: Array| x.log()), array([1.0f32, -2.0, 3.0]), Checks::NAN), nan_by("log"));
    fn logs(x: Array) -> Result<(Array, Array)> {
        scan_n(|c: Array| (c.log(), c), x, 5)
    }
    assert_eq!(error_of(logs, 2.0f32, Checks::NAN), nan_by("log"));
    assert_eq!(error_of(|x: Array| x.sort(-1), array([1.0f32, f32::NAN]), Checks::NAN), None);
    assert_eq!(error_of(|x: Array| where_(x.greater(0), &x, 1.0), array([1.0f32, f32::NAN]), Checks::NAN), None);
    let zero = Some("division by zero".to_owned());
    assert_eq!(error_of(|x: Array| &x / (&x - &x), -1.0f32, Checks::DIV), zero);
    assert_eq!(error_of(|x: Array| &x / (&x - &x), -1.0f32, Checks::FLOAT), zero);
    assert_eq!(error_of(|x: Array| (&x - &x) / (&x - &x), -1.0f32, Checks::NAN), nan_by("div"));
    assert_eq!(error_of(|x: Array| &x / (&x - &x), -1.0f32, Checks::NAN), None);
    // Only the requested checks are added. The user's own check is not among them.
    fn with_log(x: Array) -> Result<(Array, Array)> {
        Ok((positive(x.clone())?, x.log()))
    }
    assert_eq!(error_of(with_log, -1.0f32, Checks::AUTOMATIC), nan_by("log"));
    assert_eq!(error_of(with_log, -1.0f32, Checks::ALL), Some(says("-1.0", "-2.0")));
    Ok(())
}

/// The message of an index that is out of bounds.
fn out_of_bounds(shape: &str, index: i32, axis: usize, size: usize) -> String {
    format!(
        "out-of-bounds indexing for array of shape {shape}: index {index} is out of bounds for axis {axis} with size {size}. "
    )
}

#[test]
fn indices_out_of_bounds_are_found() -> Result<()> {
    setup();
    fn three() -> Array {
        arange(0..3).astype(DType::F32)
    }
    let error_for =
        |f: &dyn Fn(Array) -> Array, i: Array| error_of(|i: Array| f(i), i, Checks::INDEX).unwrap_or_default();
    fn five() -> Array {
        Array::from(5)
    }
    let want = out_of_bounds("(3,)", 5, 0, 3);
    assert_eq!(error_for(&|i| three().get(i), five()), want);
    assert_eq!(error_for(&|i| three().get(i), array([1, 5, -7])), want);
    assert_eq!(
        error_for(&|i| ones([2, 3]).get((array([1, 1, 1]), i)), array([1, 5, -7])),
        out_of_bounds("(2, 3)", 5, 1, 3)
    );
    assert_eq!(error_for(&|i| three().at(i).set(1), five()), want);
    assert_eq!(error_for(&|i| three().at(i).add(1), array([0, 5])), want);
    assert_eq!(error_for(&|i| lax::dynamic_slice(&three(), &[i], &[2]), five()), want);
    assert_eq!(error_for(&|i| lax::dynamic_update_slice(&three(), &ones([2]), &[i]), five()), want);
    // An axis of size 1.
    fn row() -> Array {
        ones([1, 4])
    }
    let want_one = out_of_bounds("(1, 4)", 5, 0, 1);
    assert_eq!(error_for(&|i| row().get(i), five()), want_one);
    assert_eq!(error_for(&|i| row().get((i, 0)), five()), out_of_bounds("(1,)", 5, 0, 1));
    assert_eq!(error_for(&|i| row().get((i, ..)), array([0, 5])), want_one);
    assert_eq!(error_for(&|i| row().at(i).set(1), five()), want_one);
    assert_eq!(error_for(&|i| row().at(i).add(1), five()), want_one);
    assert_eq!(error_for(&|i| lax::dynamic_index_in_dim(&row(), i, 0), five()), want_one);
    assert_eq!(error_for(&|i| row().get(i), array([0, -1])), "");
    assert_eq!(error_for(&|i| three().get(i), array([0, 2, -1])), "");
    assert_eq!(error_for(&|i| three().at(i).add(1), array([0, -1])), "");
    fn batched(i: Array) -> Result<Array> {
        vmap(|i: Array| three().get(i)).call(i)
    }
    assert_eq!(error_of(batched, array([0, 5]), Checks::INDEX), Some(want));
    Ok(())
}
