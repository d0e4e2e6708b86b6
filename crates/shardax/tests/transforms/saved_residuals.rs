//! The values that gradients keep.

use shardax::ad_checkpoint::{ResidualOrigin, SavedResidual, saved_residuals};
use shardax::prelude::*;
use shardax::{CheckpointPolicy, shape_dtype_struct};

use super::common::quick::setup;

fn layer(w: &Array, x: &Array) -> Array {
    w.dot(x).sin()
}

fn network(w1: Array, w2: Array, x: Array) -> Array {
    layer(&w2, &layer(&w1, &x))
}

/// Returns what each line says before the place in the code.
fn summaries(residuals: &[SavedResidual]) -> Vec<String> {
    let lines = residuals.iter().map(ToString::to_string);
    lines.map(|line| line.split(" from crates").next().unwrap_or(&line).to_owned()).collect()
}

#[test]
fn gradients_keep_arguments_and_slopes() -> Result<()> {
    setup();
    let args = (ones([5, 4]), ones([6, 5]), ones(4));
    let mut kept = summaries(&saved_residuals(network, args.clone())?);
    kept.sort();
    // The same as JAX 0.12 keeps.
    let want = [
        "float32[4] from the argument [2]",
        "float32[5,4] from the argument [0]",
        "float32[5] output of cos",
        "float32[5] output of sin",
        "float32[6,5] from the argument [1]",
        "float32[6] output of cos",
    ];
    assert_eq!(kept, want);
    let checkpointed = summaries(&saved_residuals(checkpoint(network), args)?);
    assert_eq!(checkpointed.len(), 3, "{checkpointed:?}");
    assert!(checkpointed.iter().all(|line| line.contains("from the argument")), "{checkpointed:?}");
    Ok(())
}

#[test]
fn residuals_have_names_lines_and_types() -> Result<()> {
    setup();
    let scale = array([2.0f32, 3.0]);
    let f = |x: Array| checkpoint_name((x * &scale).sin(), "inner").sin().sum(..);
    let named = checkpoint(f).policy(CheckpointPolicy::save_only_these_names(["inner"]));
    let kept = saved_residuals(named, shape_dtype_struct([2], DType::F32))?;
    let origins: Vec<&ResidualOrigin> = kept.iter().map(|residual| &residual.origin).collect();
    let is_named = |origin: &&ResidualOrigin| {
        matches!(origin, ResidualOrigin::Named(name, line)
        if name == "inner" && line.file().ends_with("saved_residuals.rs"))
    };
    assert!(origins.iter().any(is_named), "{kept:?}");
    assert!(origins.contains(&&ResidualOrigin::Captured), "{kept:?}");
    assert!(kept.iter().all(|residual| residual.aval.byte_size().is_ok_and(|size| size == 8)), "{kept:?}");
    Ok(())
}

#[test]
fn functions_without_residuals_keep_nothing() -> Result<()> {
    setup();
    assert_eq!(saved_residuals(|x: Array| x * 2.0, ones(3))?, []);
    assert_eq!(saved_residuals(|x: Array| x + 1, array([1, 2]))?, []);
    let error = saved_residuals(|x: Array| x.reshape([7]), ones(3)).expect_err("a wrong shape");
    assert!(error.to_string().contains("reshape"), "{error}");
    Ok(())
}
