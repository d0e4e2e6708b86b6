//! shardax-nn against Flax and Optax: the reference values of the families `nn` and `optim`.

#[path = "../../shardax/tests/golden_support/mod.rs"]
#[allow(dead_code)]
mod golden_support;

mod families;

use golden_support::check_family;

/// What is known to fail or to differ: a path, or the beginning of paths, and the reason.
const PENDING: &[(&str, &str)] = &[];

#[test]
fn nn() {
    check_family("nn", families::nn::function, PENDING);
}

#[test]
fn optim() {
    check_family("optim", families::optim::function, PENDING);
}
