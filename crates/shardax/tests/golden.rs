//! shardax against JAX: every reference value under `tests/golden`, with its gradients, tangents and batches.

mod common;
mod golden_support;

use common::setup;
use golden_support::check_family;

/// What is known to fail or to differ: a path, or the beginning of paths, and the reason.
const PENDING: &[(&str, &str)] = &[
    ("sort/argsort_f64", "indices are int32, as without JAX's 64-bit mode"),
    ("random/key_from_seed_x64", "seeds count 32 bits, as without JAX's 64-bit mode"),
    ("random/orthogonal", "needs a QR decomposition"),
];

macro_rules! families {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            setup();
            check_family(stringify!($name), golden_support::$name::function, PENDING);
        }
    )*};
}

families! { unary binary select convert reduce dot shape sort index conv window random }

#[test]
fn promotion() {
    setup();
    golden_support::promotion::check();
}
