//! shardax-nn against Flax and Optax: the reference values of the families `nn…` and `optim…`.

#[path = "../../shardax/tests/golden_support/mod.rs"]
#[allow(dead_code)]
mod golden_support;

mod families;

use golden_support::check_family;

/// Known failures and differences: a path or a prefix of paths, and the reason.
const PENDING: &[(&str, &str)] = &[];

macro_rules! families {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            check_family(stringify!($name), families::$name::function, PENDING);
        }
    )*
        const FAMILIES: &[(&str, fn(&golden_support::Case) -> Option<golden_support::Fun>)] =
            &[$((stringify!($name), families::$name::function)),*];
    };
}

families! { nn optim optim_ten optim_more nn_more nn_half nn_layers attention nn_train contrib }

/// `cargo xtask platforms` runs it, in several processes: see `golden_support::other_platforms`.
#[test]
#[ignore = "a table, made by a command of its own"]
fn families_on_topologies() -> shardax::Result<()> {
    golden_support::other_platforms::table("shardax-nn: ", FAMILIES)
}
