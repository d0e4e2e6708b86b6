//! shardax against JAX: every reference value under `tests/golden`, with its gradients, tangents and batches.

#[allow(dead_code)]
mod golden_support;

use golden_support::compare::{differ, is_blind};
use golden_support::quick::eight_devices as setup;
use golden_support::{check_family, one_of};
use shardax_alloc as _;

const IN_SHARDAX_NN: &str = "losses and layers are in shardax-nn, which compares them";

/// Known failures and differences: a path, or the beginning of paths, and the reason.
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
    ("scipy/expi_edges/out", "∞ at ∞, the limit and SciPy's value, where JAX has NaN"),
    ("scipy/spence_f32/vjp", "log(x) / (1 - x) everywhere, where JAX's reverse mode has NaN around 3/2"),
    ("scipy/spence_f64/vjp", "log(x) / (1 - x) everywhere, where JAX's reverse mode has NaN around 3/2"),
    ("science/minimize/out", "the minimum, where JAX's line search gives up on the way"),
    ("stats/betabinom_logpmf_f64/out", "betaln in float64 has nine digits in JAX"),
    ("stats/betabinom_logpmf_f64/vjp", "betaln in float64 has nine digits in JAX"),
    ("stats/betabinom_pmf_f64/out", "betaln in float64 has nine digits in JAX"),
    ("stats/cauchy_logcdf_edges/out", "-∞ at -∞, the logarithm of 0, where JAX has -18.9"),
    ("stats/cauchy_logsf_edges/out", "-∞ at ∞, the logarithm of 0, where JAX has -18.9"),
    ("stats/gamma_logpdf_edges/out", "NaN of NaN, where JAX has -∞"),
    ("stats/gumbel_l_logpdf_edges/out", "-∞, the logarithm of 0, where JAX has NaN"),
    ("stats/gumbel_l_pdf_edges/out", "a density of 0 at the ends, where JAX has NaN"),
    ("stats/gumbel_r_logpdf_edges/out", "-∞, the logarithm of 0, where JAX has NaN"),
    ("stats/gumbel_r_pdf_edges/out", "a density of 0 at the ends, where JAX has NaN"),
    ("stats/kde_integrals/jvp", "a tangent of the covariance that is not symmetric, of which JAX reads one triangle"),
    ("stats/kde_integrals/vjp", "a cotangent of the covariance is symmetric; JAX's is of one triangle"),
    ("narrow/convert_f4_e2m1fn/out", "the largest number, 6, is the integer 6, where JAX returns the largest integer"),
    ("narrow/operations_f4_e2m1fn/out", "sums are made in float32 and rounded once"),
    ("narrow/operations_f8_e5m2/out", "sums are made in float32 and rounded once"),
    ("narrow/scaled_dot_general_nvfp4_bf16/out", "numbers halfway between two of float4 go to the other"),
    ("edges/log2_c64/jvp", "a slope of 0 at infinity, where JAX 0.12 has NaN"),
    ("edges/log2_c64/vjp", "a slope of 0 at infinity, where JAX 0.12 has NaN"),
    ("edges/log2_f32/vjp", "finite at the smallest normal number, where JAX 0.12 divides by a subnormal one"),
    ("edges/arcsinh_c64/jvp", "a slope of 0 at infinity with a NaN part, as of arccosh, where JAX has NaN"),
    ("edges/arcsinh_c64/vjp", "a slope of 0 at infinity with a NaN part, as of arccosh, where JAX has NaN"),
    ("edges/lgamma_f32", "subnormal numbers are 0 on CPU, and the slope at -0 is +∞, the limit, where JAX 0.12 has -∞"),
    ("edges/digamma_f32/out", "+∞ at -0, the limit and SciPy's value, where JAX 0.12 has -∞"),
    ("edges/digamma_f32/jvp", "the slope far below 0, where JAX's has the wrong sign"),
    ("edges/digamma_f32/vjp", "the slope far below 0, where JAX's has the wrong sign"),
    ("unary/digamma_f32_edge/out", "+∞ at -0, the limit and SciPy's value, where JAX 0.12 has -∞"),
    ("edges/arctan2_f32/jvp", "slopes of 0 at infinities, where JAX has NaN"),
    ("edges/arctan2_f32/vjp", "slopes of 0 at infinities, where JAX has NaN"),
    ("edges/cumlogsumexp_f32/jvp", "a slope of 0 next to an infinite number, where JAX has the other's exponential"),
    ("edges/cumlogsumexp_f32/vjp", "a slope of 0 next to an infinite number, where JAX has the other's exponential"),
    (
        "edges/cumlogsumexp_reverse_f32/jvp",
        "a slope of 0 next to an infinite number, where JAX has the other's exponential",
    ),
    (
        "edges/cumlogsumexp_reverse_f32/vjp",
        "a slope of 0 next to an infinite number, where JAX has the other's exponential",
    ),
    ("edges/logaddexp_f32/jvp", "a slope of 0 next to an infinite number, where JAX has the other's exponential"),
    ("edges/logaddexp_f32/vjp", "a slope of 0 next to an infinite number, where JAX has the other's exponential"),
    ("edges/gelu_f32/jvp", "the slope of large numbers, where JAX has NaN"),
    ("edges/gelu_f32/vjp", "the slope of large numbers, where JAX has NaN"),
    ("edges/soft_sign_f32/jvp", "a slope of 0 at infinities, where JAX has NaN"),
    ("edges/soft_sign_f32/vjp", "a slope of 0 at infinities, where JAX has NaN"),
    ("scipy/bessel_jn_edges/out", "numbers at 0 and where JAX's recurrence overflows"),
    ("scipy/bessel_jn_f32/out", "numbers where JAX's recurrence overflows"),
    ("scipy/bessel_jn_f32/jvp", "mpmath's slopes, where JAX's recurrence overflows or loses digits"),
    ("scipy/bessel_jn_f32/vjp", "mpmath's slopes, where JAX's recurrence overflows or loses digits"),
    ("stats/gamma_pdf_edges/out", "NaN of NaN, where JAX has 0"),
    ("stats/gumbel_r_logsf_tails/jvp", "a slope far above, where JAX has NaN"),
    ("stats/gumbel_r_logsf_tails/out", "-90, where JAX has −∞"),
    ("stats/gumbel_r_logsf_tails/vjp", "a slope far above, where JAX has NaN"),
    ("stats/wrapcauchy_logpdf_edges/out", "NaN of NaN, where JAX has -∞"),
    ("stats/wrapcauchy_pdf_edges/out", "NaN of NaN, where JAX has 0"),
    ("random/key_from_seed_x64", "seeds count 32 bits, as without JAX's 64-bit mode"),
];

macro_rules! families {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            setup();
            check_family(stringify!($name), golden_support::$name::function, PENDING);
        }
    )*
        const FAMILIES: &[(&str, fn(&golden_support::Case) -> Option<golden_support::Fun>)] =
            &[$((stringify!($name), golden_support::$name::function)),*];
    };
}

families! {
    unary binary select convert reduce dot shape sort index conv window control transform nn random linalg edges half numpy
    systematic fft image special distributions matrices numpy_options stats scipy experimental narrow pallas science
}

/// `tools/golden/generate.py` finds families by their files. Each needs a file of functions here or in shardax-nn.
#[test]
fn every_family_of_reference_values_is_compared() {
    let tests = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let index = std::fs::read_to_string(tests.join("golden/index.txt")).expect("the index of cases");
    let names = index.lines().filter_map(|line| line.strip_prefix('[')?.strip_suffix(".safetensors]"));
    fn in_shardax_nn(name: &str, tests: &std::path::Path) -> bool {
        tests.join(format!("../../shardax-nn/tests/families/{name}.rs")).exists()
    }
    let missing: Vec<&str> =
        names.filter(|name| !FAMILIES.iter().any(|(known, _)| known == name) && !in_shardax_nn(name, &tests)).collect();
    assert!(
        missing.is_empty(),
        "write tests/golden_support/{{family}}.rs and name the family in `families!` of tests/golden.rs: {missing:?}"
    );
}

/// The families of the slice that `cargo test` runs: programs of the others take the compiler long to split.
const QUICKLY_SPLIT: [&str; 9] = ["unary", "binary", "select", "convert", "reduce", "dot", "shape", "index", "numpy"];

/// Every primitive with operands that are split inside `jit`: a slice of the checks; with `SHARDAX_TEST_SPLIT_EVERY=1` all, with
/// `SHARDAX_TEST_SPLIT_FAMILY` only the cases of one family.
#[test]
fn operands_split_by_the_compiler() {
    setup();
    let every = std::env::var("SHARDAX_TEST_SPLIT_EVERY").ok().and_then(|n| n.parse().ok());
    let only = std::env::var("SHARDAX_TEST_SPLIT_FAMILY").ok();
    fn chosen(name: &str, every: &Option<usize>, only: &Option<String>) -> bool {
        match only {
            Some(only) => only == name,
            None => every.is_some() || QUICKLY_SPLIT.contains(&name),
        }
    }
    let families: Vec<_> = FAMILIES.iter().copied().filter(|(name, _)| chosen(name, &every, &only)).collect();
    let every = every.unwrap_or(399);
    // What the compiler's partitioner is known to get wrong.
    let known_failures = golden_support::read::known(&golden_support::golden_dir().join("split_known.txt"));
    golden_support::split::check_split(&families, every, &known_failures);
}

/// Every operation from a file, in a loop and recomputed: a slice of the checks; with `SHARDAX_TEST_WAYS_EVERY=1` all, with
/// `SHARDAX_TEST_WAYS_FAMILY` only the cases of one family.
#[test]
fn operations_in_other_programs() {
    setup();
    let every = std::env::var("SHARDAX_TEST_WAYS_EVERY").ok().and_then(|n| n.parse().ok());
    let only = std::env::var("SHARDAX_TEST_WAYS_FAMILY").ok();
    fn chosen(name: &str, every: &Option<usize>, only: &Option<String>) -> bool {
        match only {
            Some(only) => only == name,
            None => every.is_some() || QUICKLY_SPLIT.contains(&name),
        }
    }
    let families: Vec<_> = FAMILIES.iter().copied().filter(|(name, _)| chosen(name, &every, &only)).collect();
    golden_support::ways::check_ways(&families, every.unwrap_or(101), PENDING, &[]);
}

/// Cases that apply operators and elementwise functions to operands of different ranks.
const OPERANDS_OF_DIFFERENT_RANKS: &[&str] = &[
    "binary/add_",
    "binary/and_",
    "binary/div_",
    "binary/eq_",
    "binary/ge_",
    "binary/gt_",
    "binary/le_",
    "binary/lt_",
    "binary/max_",
    "binary/mul_",
    "binary/ne_",
    "binary/pow_",
    "binary/sub_",
    "matrices/svd_weighted",
    "numpy/logical_",
    "pallas/layer_norm",
    "pallas/matmul",
    "scipy/expn_grid",
    "sort/one_hot_argmax",
    "special/xlog1py_mixed",
    "special/xlogy_mixed",
    "stats/poisson_entropy_rows",
    "stats/poisson_logpmf_integers",
    "systematic/binary.and",
    "systematic/sort.one_hot_argmax",
    "transform/grad_argnums",
];

/// One case of fifteen; all with `SHARDAX_TEST_SLICES=all`.
#[test]
fn functions_where_rank_promotion_is_an_error() {
    setup();
    golden_support::ranks::check_ranks(FAMILIES, one_of(15), OPERANDS_OF_DIFFERENT_RANKS);
}

/// `cargo xtask platforms` runs it, in several processes: see `golden_support::other_platforms`.
#[test]
#[ignore = "a table, made by a command of its own"]
fn families_on_topologies() -> shardax::Result<()> {
    golden_support::other_platforms::table("", FAMILIES)
}

/// `cargo xtask texts` runs it: see `golden_support::texts`.
#[test]
#[ignore = "hashes that a command of its own compares"]
fn texts_of_families() {
    setup();
    golden_support::texts::write("shardax", FAMILIES, &golden_support::larger::programs());
}

/// A vector of float32 on the host.
fn host(values: &[f32]) -> golden_support::Host {
    let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    golden_support::Host { dtype: shardax::DType::F32, shape: vec![values.len()], bytes }
}

#[test]
fn zeros_never_pass_for_other_values() {
    // Below the tolerance, and infinite: both compared by their own scale.
    for values in [&[3e-7f32, -2e-7][..], &[f32::INFINITY, 0.0], &[f32::NAN], &[1e30]] {
        assert!(!is_blind(&host(values), 0.4), "{values:?}");
        let zeros = shardax::numpy::zeros([values.len()]);
        assert!(differ(&zeros, &host(values), 0.4).is_err(), "{values:?}");
    }
    assert!(is_blind(&host(&[1.0, -0.5]), 0.6));
    // Nothing but zeros is what zeros may pass for.
    assert!(!is_blind(&host(&[0.0, -0.0]), 1e-5));
}

#[test]
fn promotion() {
    setup();
    golden_support::promotion::check();
}
