//! shardax-nn against Flax and Optax: the reference values of the families `nn…` and `optim…`.

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

#[test]
fn optim_ten() {
    check_family("optim_ten", families::optim_ten::function, PENDING);
}

#[test]
fn optim_more() {
    check_family("optim_more", families::optim_more::function, PENDING);
}

#[test]
fn nn_more() {
    check_family("nn_more", families::nn_more::function, PENDING);
}

#[test]
fn nn_half() {
    check_family("nn_half", families::nn_half::function, PENDING);
}

#[test]
fn nn_layers() {
    check_family("nn_layers", families::nn_layers::function, PENDING);
}

#[test]
fn nn_train() {
    check_family("nn_train", families::nn_train::function, PENDING);
}
