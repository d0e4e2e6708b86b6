//! Every public function with every dtype, rank 0 to 3, empty arrays and hostile parameters: never a panic, never a wait
//! without end, and the type that is traced is the type that is computed.
//!
//! The list of functions is read from the sources, so that none can be forgotten. A slice of the calls is made;
//! `SHARDAX_TEST_CENSUS=all` makes all of them.

mod cases;
#[path = "../common/mod.rs"]
mod common;
mod edges;
mod list;
mod table;

use std::collections::BTreeSet;

use common::quick::setup;
use shardax_alloc as _;

#[test]
fn every_public_function_has_an_entry() {
    let public: BTreeSet<String> = list::public_functions();
    assert!(public.len() > 400, "the sources were not read: {public:?}");
    let tested: BTreeSet<String> = table::TABLE.iter().map(|(name, _)| name.to_string()).collect();
    let excepted: BTreeSet<String> =
        table::EXCEPTED.iter().flat_map(|(names, _)| names.split_whitespace()).map(str::to_owned).collect();
    let listed: BTreeSet<String> = tested.union(&excepted).cloned().collect();
    let missing: Vec<_> = public.difference(&listed).collect();
    assert!(missing.is_empty(), "no entry in a file of tests/functions/table: {missing:#?}");
    let gone: Vec<_> = listed.difference(&public).collect();
    assert!(gone.is_empty(), "no such public function: {gone:#?}");
    let twice: Vec<_> = tested.intersection(&excepted).collect();
    assert!(twice.is_empty(), "tested and excepted: {twice:#?}");
}

/// A new function that computes numbers needs a reference case from JAX, or a reason in `table::NOT_GOLDEN`.
#[test]
fn every_numeric_function_is_compared_with_jax() {
    let called = list::called_by_golden_cases();
    let reasons: BTreeSet<&str> = table::NOT_GOLDEN.iter().flat_map(|(names, _)| names.split_whitespace()).collect();
    fn is_called(name: &str, called: &BTreeSet<String>) -> bool {
        let name = name.rsplit("::").next().unwrap_or(name);
        // `sum_keepdims` is `sum`; `normal` is `normal_dtype` of float32.
        let base = name.strip_suffix("_keepdims").unwrap_or(name);
        [base.to_owned(), format!("{base}_dtype"), format!("{base}_shape")].iter().any(|name| called.contains(name))
    }
    let names: Vec<&str> = table::TABLE.iter().map(|(name, _)| *name).collect();
    let missing: Vec<_> = names.iter().filter(|name| !is_called(name, &called) && !reasons.contains(**name)).collect();
    assert!(
        missing.is_empty(),
        "add a case to tools/golden/families and its call to tests/golden_support, or a reason to NOT_GOLDEN in \
         tests/functions/table.rs: no case calls {missing:#?}"
    );
    let needless: Vec<_> = reasons.iter().filter(|name| !names.contains(name) || is_called(name, &called)).collect();
    assert!(needless.is_empty(), "in NOT_GOLDEN without need: {needless:#?}");
}

#[test]
fn traced_functions_never_panic() {
    setup();
    cases::traced();
}

#[test]
fn transformed_functions_never_panic() {
    setup();
    cases::transformed();
}

#[test]
fn functions_run_as_they_are_traced() {
    setup();
    cases::executed();
}
