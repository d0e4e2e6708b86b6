//! shardax-nn against Flax and Optax: the reference values of the families `nn…` and `optim…`.

#[path = "../../shardax/tests/golden_support/mod.rs"]
#[allow(dead_code)]
mod golden_support;

mod families;

use golden_support::check_family;
use golden_support::quick::eight_devices;
use shardax_alloc as _;

/// Known failures and differences: a path or a prefix of paths, and the reason.
const PENDING: &[(&str, &str)] = &[
    ("losses/ctc_loss/jvp", "slopes of logaddexp keep digits: float64 to seven digits, JAX to three"),
    ("losses/ctc_loss/vjp", "slopes of logaddexp keep digits: half of the error of JAX beside float64"),
    ("nn_half/embed_f16/out", "gradients of repeated rows are added in float32, where JAX rounds each sum"),
    ("nn_half/global_norm_f16/out", "a norm that float16 has, where the sum of squares overflows in JAX"),
    ("nn_half/embed_bf16/out", "gradients of repeated rows are added in float32, where JAX's stop at 1024"),
    ("optimizers/amsgrad_f32/out", "the bias correction, which is exact here, but loses digits in Optax in float32"),
    ("optimizers/radam_f32/out", "the bias correction, which is exact here, but loses digits in Optax in float32"),
];

macro_rules! families {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            eight_devices();
            check_family(stringify!($name), families::$name::function, PENDING);
        }
    )*
        const FAMILIES: &[(&str, fn(&golden_support::Case) -> Option<golden_support::Fun>)] =
            &[$((stringify!($name), families::$name::function)),*];
    };
}

families! { nn optim optimizers optim_wrappers losses nn_half nn_layers attention nn_train contrib }

/// Cases whose functions themselves add operands of different ranks.
const OPERANDS_OF_DIFFERENT_RANKS: &[&str] = &["nn_layers/mha_cross", "nn_train/gpt", "optim_wrappers/dynamic_scale"];

/// One case of fifteen; all with `SHARDAX_TEST_SLICES=all`.
#[test]
fn layers_where_rank_promotion_is_an_error() {
    eight_devices();
    golden_support::ranks::check_ranks(FAMILIES, golden_support::one_of(15), OPERANDS_OF_DIFFERENT_RANKS);
}

/// `cargo xtask platforms` runs it, in several processes: see `golden_support::other_platforms`.
#[test]
#[ignore = "a table, made by a command of its own"]
fn families_on_topologies() -> shardax::Result<()> {
    golden_support::other_platforms::table("shardax-nn: ", FAMILIES)
}

/// `cargo xtask texts` runs it: see `golden_support::texts`.
#[test]
#[ignore = "hashes that a command of its own compares"]
fn texts_of_families() {
    eight_devices();
    golden_support::texts::write("shardax-nn", FAMILIES, &larger());
}

/// Attention of the sizes that its implementations are for.
fn larger() -> Vec<golden_support::texts::Sized> {
    use shardax_nn::prelude::*;
    fn heads(queries: usize, keys: usize, features: usize, dtype: DType) -> Vec<(Vec<usize>, DType)> {
        [queries, keys, keys].map(|n| (vec![2, n, 4, features], dtype)).to_vec()
    }
    fn causal(x: &[Array]) -> Result<Vec<Array>> {
        let options = AttentionOptions::new().is_causal(true);
        Ok(vec![options.dot_product_attention(&x[0], &x[1], &x[2])])
    }
    fn plain(x: &[Array]) -> Result<Vec<Array>> {
        Ok(vec![dot_product_attention(&x[0], &x[1], &x[2])])
    }
    vec![
        ("attention_f32", heads(128, 128, 64, DType::F32), plain),
        ("attention_bf16", heads(128, 128, 64, DType::Bf16), plain),
        ("attention_causal", heads(512, 512, 64, DType::F32), causal),
        ("attention_causal_bf16", heads(2048, 2048, 128, DType::Bf16), causal),
        ("attention_one_query", heads(1, 2048, 64, DType::F32), plain),
        ("attention_few_queries", heads(4, 1024, 64, DType::Bf16), plain),
        ("attention_long", heads(8192, 8192, 64, DType::F32), causal),
        ("attention_f64", heads(64, 64, 32, DType::F64), plain),
    ]
}
