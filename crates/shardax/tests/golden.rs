//! shardax against JAX: every reference value under `tests/golden`, with its gradients, tangents and batches.

mod common;
mod golden_support;

use common::setup;
use golden_support::check_family;

const IN_SHARDAX_NN: &str = "losses and layers are in shardax-nn, which compares them";

/// What is known to fail or to differ: a path, or the beginning of paths, and the reason.
const PENDING: &[(&str, &str)] = &[
    ("nn/batch_norm", IN_SHARDAX_NN),
    ("nn/group_norm", IN_SHARDAX_NN),
    ("nn/layer_norm", IN_SHARDAX_NN),
    ("nn/rms_norm", IN_SHARDAX_NN),
    ("nn/cosine_similarity", IN_SHARDAX_NN),
    ("nn/dot_product_attention", IN_SHARDAX_NN),
    ("nn/huber_loss", IN_SHARDAX_NN),
    ("nn/kl_divergence", IN_SHARDAX_NN),
    ("nn/l2_loss", IN_SHARDAX_NN),
    ("nn/log_cosh", IN_SHARDAX_NN),
    ("nn/masked_mean_loss", IN_SHARDAX_NN),
    ("nn/nnx_", IN_SHARDAX_NN),
    ("nn/sigmoid_binary_cross_entropy", IN_SHARDAX_NN),
    ("nn/smooth_labels", IN_SHARDAX_NN),
    ("nn/softmax_cross_entropy", IN_SHARDAX_NN),
    ("nn/squared_error", IN_SHARDAX_NN),
    ("sort/argsort_f64", "indices are int32, as without JAX's 64-bit mode"),
    ("random/key_from_seed_x64", "seeds count 32 bits, as without JAX's 64-bit mode"),
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

families! { unary binary select convert reduce dot shape sort index conv window control transform nn random linalg }

#[test]
fn promotion() {
    setup();
    golden_support::promotion::check();
}
