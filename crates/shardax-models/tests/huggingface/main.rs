//! Models that `transformers` and `peft` saved, with the values that they compute (`tools/huggingface`).

mod adapters;
mod blip;
#[path = "../../../shardax-train/tests/common/mod.rs"]
mod common;
mod configurations;
mod decoders;
mod encoder_decoder;
mod encoders;
mod fuzz;
mod images;
#[path = "../../../shardax/tests/common/mutants.rs"]
mod mutating;
mod objects;
#[path = "../../../shardax/tests/common/quick.rs"]
#[allow(dead_code)]
mod quick;
mod rejected;
mod saved;
mod sound;
mod training;
mod varied;

use std::path::{Path, PathBuf};

use shardax_alloc as _;
use shardax_models::huggingface::Weights;
use shardax_nn::prelude::*;

/// The texts in the names of the models to compare, which `SHARDAX_TEST_MODELS` sets (separated by commas), and the distance in
/// the list between models that are compared. If the variable is set, the distance is 1.
fn chosen_models() -> (Vec<String>, usize) {
    match std::env::var("SHARDAX_TEST_MODELS") {
        Ok(only) => (only.split(',').map(str::to_owned).collect(), 1),
        Err(_) => (vec![String::new()], quick::one_of(32)),
    }
}

/// Returns `true` if a name has one of these texts.
fn has_any(name: &str, texts: &[String]) -> bool {
    texts.iter().any(|text| name.contains(text))
}

fn setup() {
    config::set_num_cpu_devices(4).expect("four CPU devices");
    config::set_compiler_options(quick::QUICK);
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// Returns the inputs of a model, and its logits.
fn case(name: &str) -> Result<impl Fn(&str) -> Result<Array>> {
    let case = Weights::open(folder(name).join("case.safetensors"))?;
    Ok(move |name: &str| case.get(name))
}

#[track_caller]
fn alike(name: &str, got: &Array, want: &Array) -> Result<()> {
    alike_within(name, got, want, 1e-4)
}

#[track_caller]
fn alike_within(name: &str, got: &Array, want: &Array, tolerance: f64) -> Result<()> {
    assert_eq!(got.shape(), want.shape(), "{name}");
    // Compared on the host: an operation on arrays would be compiled for each shape.
    let (got, want) = (got.to_f64_vec()?, want.to_f64_vec()?);
    let differences = got.iter().zip(&want).map(|(got, want)| ((got - want).abs(), tolerance + tolerance * want.abs()));
    let worst = differences.max_by(|a, b| (a.0 - a.1).total_cmp(&(b.0 - b.1)));
    assert!(worst.is_none_or(|(difference, allowed)| difference <= allowed), "{name}: {worst:?}");
    // Logits that are all zero would pass the comparison.
    assert!(want.iter().any(|want| want.abs() > 0.1), "{name}");
    Ok(())
}

/// Returns the results of a function of a model, computed by one program. Outside of `jit`, each operation is compiled for
/// itself, which takes several times as long.
fn compiled<M: Tree, R: Tree>(model: &M, f: impl Fn(&M) -> R) -> Result<R> {
    jit(|model: M| f(&model)).call(model)
}

/// Asserts that a function fails while it is traced, with an error that contains each of these texts. Outside of `jit`, the
/// operations before the one that fails would be compiled.
#[track_caller]
fn fails_in_trace(f: impl Fn() -> Array, words: &[&str]) {
    common::fails(eval_shape(|()| f(), ()), words);
}

fn rows(x: &Array) -> Result<Vec<Vec<i32>>> {
    let (all, width) = (x.to_vec::<i32>()?, x.shape()[1]);
    Ok(all.chunks(width).map(<[i32]>::to_vec).collect())
}
