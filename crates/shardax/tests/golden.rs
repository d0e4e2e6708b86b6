//! shardax against JAX: every reference value under `tests/golden`, with its gradients, tangents and batches.

mod common;
mod golden_support;

use common::setup;
use golden_support::check_family;

/// What is known to fail or to differ: a path, or the beginning of paths, and the reason.
const PENDING: &[(&str, &str)] = &[];

macro_rules! families {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            setup();
            check_family(stringify!($name), golden_support::$name::function, PENDING);
        }
    )*};
}

families! { unary binary }

#[test]
fn promotion() {
    setup();
    golden_support::promotion::check();
}
