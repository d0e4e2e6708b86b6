//! The reference cases where the promotion of ranks is an error: functions of the library may still broadcast their own arrays.

use std::panic::{AssertUnwindSafe, catch_unwind};

use shardax::prelude::*;
use shardax::{RankPromotion, numpy_rank_promotion};

use super::check::{Check, checks_of};
use super::{Case, Fun, family};

/// Traces one check in `every` of these families. Fails if the rule rejects one, unless its path begins with a path in
/// `operands`: those cases apply elementwise functions to operands of different ranks, as a program would.
pub fn check_ranks(families: &[(&'static str, fn(&Case) -> Option<Fun>)], every: usize, operands: &[&str]) {
    let (mut number, mut met, mut failures) = (0, Vec::new(), Vec::new());
    // The check only traces, so nothing is compiled.
    for (name, function) in families {
        for case in &family(name) {
            let Some(f) = catch_unwind(AssertUnwindSafe(|| function(case))).ok().flatten() else { continue };
            for check in checks_of(case, &f) {
                number += 1;
                if number % every != 0 {
                    continue;
                }
                let Some(error) = rank_error(&check) else { continue };
                match operands.iter().find(|path| check.path().starts_with(**path)) {
                    Some(path) => met.push(*path),
                    None => failures.push(format!("{}: {error}", check.path())),
                }
            }
        }
    }
    if every == 1 {
        let needless = operands.iter().filter(|path| !met.contains(path));
        failures.extend(needless.map(|path| format!("{path}: no case there has operands of different ranks")));
    }
    assert!(
        failures.is_empty(),
        "a function that broadcasts its own arrays must begin with `rank_promotion::allow()`:\n{}",
        failures.join("\n")
    );
}

/// The error of tracing a check where the promotion of ranks is an error, if it is about ranks.
fn rank_error(check: &Check<'_>) -> Option<String> {
    let _strict = numpy_rank_promotion(RankPromotion::Raise);
    let run = |xs: Vec<Array>| (check.run)(&xs);
    let trace = || eval_shape::<(Vec<Array>,), _, _>(run, check.inputs.clone()).err();
    let error = catch_unwind(AssertUnwindSafe(trace)).ok().flatten()?;
    error.message().contains("numpy_rank_promotion='raise'").then(|| error.message().to_owned())
}
