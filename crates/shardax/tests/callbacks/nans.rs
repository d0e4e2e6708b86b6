//! `debug_nans` and `debug_infs`: in a process of their own, where all results are searched.

use crate::common::{child, quick::setup};
use shardax::prelude::*;

#[test]
fn nans_and_infinities_are_errors() {
    child::run(&mut child::command("nans::checks_of_nans_and_infinities"));
}

fn bad(x: Array) -> Array {
    let y = x.sin() + &x;
    x.log() * 2 + y // LOG
}

fn inverse(x: Array) -> Array {
    1.0 / x * 2
}

#[track_caller]
fn says<T>(result: Result<T>, text: &str) {
    let error = result.err().unwrap_or_else(|| panic!("no error that says {text}"));
    assert_eq!(error.kind(), shardax::ErrorKind::FloatingPoint, "{error}");
    assert!(error.message().starts_with(text), "{error}");
    let location = error.location().map(|location| (location.file().to_owned(), location.line() as usize));
    let line = 1 + include_str!("nans.rs").lines().position(|l| l.ends_with("// LOG")).expect("the line is marked");
    if text.ends_with("log") {
        assert_eq!(location, Some((file!().to_owned(), line)), "{error}");
    }
}

#[test]
#[ignore = "run by nans_and_infinities_are_errors"]
fn checks_of_nans_and_infinities() -> Result<()> {
    setup();
    let log = "invalid value (nan) encountered in log";
    let f = jit(bad);
    assert!(f.call(-1.0f32)?.item::<f32>()?.is_nan());
    config::set_debug_nans(true);
    says(bad((-1.0f32).into()).item::<f32>(), log);
    // Also where it was compiled before.
    says(f.call(-1.0f32), log);
    assert!(f.call(1.0f32)?.item::<f32>()?.is_finite());
    says(value_and_grad(bad).call(-1.0f32), log);
    says(jit(value_and_grad(bad)).call(-1.0f32), log);
    says(jit(vmap(bad)).call(array([1.0f32, -1.0])), log);
    // JAX names only the loop or the branch, and nothing for several devices.
    says(jit(|x: Array| scan_n(|c: Array| (bad(c), ()), x, 3)).call(-1.0f32), log);
    says(jit(|x: Array| fori_loop(0, 3, |_: Array, c: Array| bad(c), x)).call(-1.0f32), log);
    says(jit(|x: Array| cond(x.greater(5), |x: Array| x, bad, x)).call(-1.0f32), log);
    says(pmap(bad).call(arange(0..8).astype(DType::F32) - 1), log);
    let mesh = make_mesh([("i", 8)])?;
    let blocks = jit(shard_map(bad, &mesh).in_specs((P!["i"],)).out_specs(P!["i"]));
    says(blocks.call(arange(0..8).astype(DType::F32) - 1), log);
    says(jit(bad).donate_argnums([0]).call(array([-1.0f32])), log);
    // As JAX: a gradient that is 0 times infinity, a NaN that is given, one that no result holds.
    let root = jit(grad(|x: Array| where_(x.greater(0), x.sqrt(), 0.0)));
    says(root.call(0.0f32), "invalid value (nan) encountered in mul");
    says(jit(|x: Array| x * 2).call(f32::NAN), "invalid value (nan) encountered in mul");
    says(jit(|x: Array| x).call(f32::NAN), "invalid value (nan) encountered in a result of lambda, but its operations");
    assert_eq!(jit(|x: Array| where_(x.greater(5), x.log(), &x)).call(-1.0f32)?.item::<f32>()?, -1.0);
    assert!(jit(inverse).call(0.0f32)?.item::<f32>()?.is_infinite());
    config::set_debug_nans(false);
    assert!(f.call(-1.0f32)?.item::<f32>()?.is_nan());
    config::update("jax_debug_infs", "true")?;
    says(jit(inverse).call(0.0f32), "invalid value (inf) encountered in div");
    says(pmap(inverse).call(arange(0..8).astype(DType::F32)), "invalid value (inf) encountered in div");
    assert!(f.call(-1.0f32)?.item::<f32>()?.is_nan());
    Ok(())
}
