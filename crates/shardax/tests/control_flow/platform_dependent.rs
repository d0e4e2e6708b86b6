//! `platform_dependent`: the branch of the platform, in texts, derivatives, batches, loops.

use shardax::control_flow::{platform_dependent, scan};
use shardax::export::ExportOptions;
use shardax::prelude::*;

use super::common::quick::setup;

fn chosen(x: Array) -> Result<Array> {
    platform_dependent(["cpu", "tpu", "default"], (|x: Array| x.sin(), |x: Array| x.exp(), |x: Array| x.tanh()), x)
}

#[test]
fn the_branch_of_the_platform_is_computed() -> Result<()> {
    setup();
    let x = random::normal(random::key(0), [4]);
    fn near(a: Array, b: Array) -> Result<()> {
        assert!(allclose(a, b, 1e-6, 1e-6)?);
        Ok(())
    }
    near(chosen(x.clone())?, x.sin())?;
    near(jit(chosen).call(&x)?, x.sin())?;
    // The program contains only the branch of its platform.
    let text = jit(chosen).lower(&x)?.as_text().to_string();
    let other_operations = ["exponential", "tanh", "stablehlo.case"];
    assert!(text.contains("sine") && other_operations.iter().all(|other| !text.contains(other)), "{text}");
    fn slope(x: Array) -> Result<Array> {
        Ok(chosen(x)?.sum(..))
    }
    near(grad(slope).call(&x)?, x.cos())?;
    near(grad(jit(slope)).call(&x)?, x.cos())?;
    near(vmap(chosen).call(&x)?, x.sin())?;
    fn step(carry: Array, x: Array) -> Result<(Array, Array)> {
        Ok((carry, chosen(x)?))
    }
    near(scan(step, array(0), x.clone())?.1, x.sin())?;
    fn loop_slope(x: Array) -> Result<Array> {
        Ok(scan(step, array(0), x)?.1.sum(..))
    }
    near(grad(loop_slope).call(&x)?, x.cos())?;
    let mesh = make_mesh([("x", 4)])?;
    let mapped = shard_map(chosen, &mesh).in_specs(P!["x"]).out_specs(P!["x"]);
    near(jit(mapped).call(&x)?, x.sin())
}

#[test]
fn texts_for_other_platforms_have_their_branches() -> Result<()> {
    setup();
    let exported = ExportOptions::new().platforms(["cpu", "tpu", "cuda"]).export(chosen, ones([4]))?;
    for (platform, operation) in [("cpu", "sine"), ("tpu", "exponential"), ("cuda", "tanh")] {
        let text = exported.mlir_module(platform).unwrap_or_default();
        assert!(text.contains(operation) && !text.contains("stablehlo.case"), "{platform}: {text}");
    }
    Ok(())
}

/// The error of branches for these platforms only.
fn error_with_only(names: &[&'static str]) -> String {
    let branches: [fn(Array) -> Array; 2] = [|x| x.sin(), |x| x.cos()];
    platform_dependent(names, branches, ones([2])).expect_err("no branch").to_string()
}

#[test]
fn platform_dependent_needs_a_branch_for_the_platform() {
    setup();
    for (names, words) in [
        (&["tpu", "cuda"][..], "platform_dependent has no branch for CPU"),
        (&["tpu", "abacus"], "unknown platform \"abacus\""),
        (&["cpu"], "2 branches for the platforms [\"cpu\"]"),
    ] {
        let error = error_with_only(names);
        assert!(error.contains(words) && error.contains("platform_dependent.rs"), "{error}");
    }
}
