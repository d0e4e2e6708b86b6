//! Hashes of the StableHLO text of every check, for every platform: a change of structure leaves them all as they are.
//! `cargo xtask texts` writes and compares them.
//!
//! Nothing is compiled, so GPUs and TPUs need no plugin.

use std::collections::hash_map::DefaultHasher;
use std::fmt::Write as _;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};

use shardax::prelude::*;

use super::check::{Check, checks_of};
use super::split::{MESHES, WAYS, place};
use super::{Case, Fun, family};

const PLATFORMS: [&str; 4] = ["cpu", "cuda", "tpu", "cpu portable"];

/// A program that is lowered in addition to the checks: its name, the types of its arguments, and the function.
pub type Sized = (&'static str, Vec<(Vec<usize>, DType)>, fn(&[Array]) -> Result<Vec<Array>>);

/// The lines of a run, and the program whose texts are printed (`SHARDAX_TEST_TEXTS_SHOW`).
pub struct Texts {
    lines: String,
    shown: Option<String>,
}

impl Texts {
    pub fn new() -> Texts {
        Texts { lines: String::new(), shown: std::env::var("SHARDAX_TEST_TEXTS_SHOW").ok() }
    }

    /// Adds the lines of a program.
    pub fn add(&mut self, name: &str, inputs: &[Array], run: &dyn Fn(&[Array]) -> Result<Vec<Array>>) {
        if self.shown.as_ref().is_some_and(|shown| shown != name) {
            return;
        }
        let lower = || jit(|xs: Vec<Array>| run(&xs)).lower(inputs.to_vec());
        let lowered = catch_unwind(AssertUnwindSafe(lower));
        for platform in PLATFORMS {
            let text = match &lowered {
                Ok(Ok(lowered)) => lowered.text_for(platform).map_err(|error| error.message().to_owned()),
                Ok(Err(error)) => Err(error.message().to_owned()),
                Err(_) => Err("a panic".to_owned()),
            };
            if self.shown.is_some() {
                println!("{name} on {platform}:\n{}", text.as_ref().unwrap_or_else(|error| error));
            }
            let mut hasher = DefaultHasher::new();
            text.hash(&mut hasher);
            let _ = writeln!(self.lines, "{name}|{platform}|{:016x}", hasher.finish());
        }
    }

    /// Adds the lines to the file that `SHARDAX_TEST_TEXTS_OUT` names.
    pub fn write(self) {
        use std::io::Write as _;
        if let (Some(path), None) = (std::env::var_os("SHARDAX_TEST_TEXTS_OUT"), &self.shown) {
            let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).expect("a file");
            file.write_all(self.lines.as_bytes()).expect("the lines can be written");
        }
    }
}

/// Writes the texts of all checks of these families, on one device and split over one of eight, and of larger programs.
///
/// `SHARDAX_TEST_TEXTS_EVERY` chooses one check in so many.
pub fn write(package: &str, families: &[(&'static str, fn(&Case) -> Option<Fun>)], larger: &[Sized]) {
    let mut texts = Texts::new();
    let mesh = make_mesh(MESHES[0].iter().copied()).expect("a mesh").auto();
    let every = std::env::var("SHARDAX_TEST_TEXTS_EVERY").map_or(1, |every| every.parse().expect("a number"));
    let mut number = 0;
    for (name, function) in families {
        let cases = family(name);
        for case in &cases {
            // Cases whose function does not exist, or panics on this platform, are left out.
            let Some(f) = catch_unwind(AssertUnwindSafe(|| function(case))).ok().flatten() else { continue };
            for check in checks_of(case, &f) {
                number += 1;
                if number % every != 0 {
                    continue;
                }
                let path = format!("{package}/{}", check.path());
                texts.add(&path, &check.inputs, &*check.run);
                if let Some(inputs) = place(&check, &mesh, WAYS[number % WAYS.len()]) {
                    let split = Check { inputs, ..check };
                    texts.add(&format!("{path} split"), &split.inputs, &*split.run);
                }
            }
        }
    }
    for (name, types, f) in larger {
        let inputs: Vec<Array> = types.iter().map(|(shape, dtype)| shape_dtype_struct(shape, *dtype)).collect();
        texts.add(&format!("{package}/larger/{name}"), &inputs, f);
        let gradient = |xs: &[Array]| -> Result<Vec<Array>> {
            let loss = |xs: Vec<Array>| -> Result<Array> {
                let sums = f(&xs)?.into_iter().map(|y| y.astype(DType::F32).square().sum(..));
                Ok(sums.reduce(|a, b| a + b).expect("a result"))
            };
            grad(loss).call(xs.to_vec())
        };
        texts.add(&format!("{package}/larger/{name} gradient"), &inputs, &gradient);
    }
    texts.write();
}
