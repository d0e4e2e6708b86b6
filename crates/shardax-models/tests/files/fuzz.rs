//! Mutants of GGUF and PyTorch files: each is loaded or is an error (`shardax/tests/common/mutants.rs`).

use std::path::Path;

use shardax_models::gguf::Gguf;
use shardax_models::huggingface::Weights;
use shardax_models::{Decoder, Pretrained};
use shardax_nn::prelude::*;

use super::common::Folder;
use super::mutating::{self, Format};
use super::{golden, setup};

/// The memory limit in MiB for a process that also loads the plugin.
const PLUGIN: u64 = 3 << 10;

/// Writes a file with the format's extension, and reads it with `load`.
fn format<'a>(
    name: &'static str,
    (file, ending): (&str, &'static str),
    temp: &Path,
    load: impl Fn(&Path) -> Result<()> + 'a,
) -> Format<'a> {
    let copy = temp.join(format!("{name}.{ending}"));
    let read = move |mutant: &Path| {
        std::fs::copy(mutant, &copy).expect("the mutant");
        load(&copy)
    };
    Format::new(name, vec![std::fs::read(golden(file)).expect("a file")], read).memory(PLUGIN)
}

fn read_all(path: &Path) -> Result<()> {
    let weights = Weights::open(path)?;
    weights.names().try_for_each(|name| weights.get(name).map(drop))
}

fn formats(temp: &Path) -> Vec<Format<'static>> {
    let header = |path: &Path| Gguf::open(path).map(drop);
    let model = |path: &Path| Decoder::from_pretrained(path).map(drop);
    vec![
        format("gguf blocks", ("gguf/blocks.gguf", "gguf"), temp, read_all),
        format("gguf header", ("gguf/gpt2.gguf", "gguf"), temp, header).within(|bytes| 0..bytes.len().min(2500)),
        format("gguf model", ("gguf/llama.gguf", "gguf"), temp, model).within(|bytes| 0..bytes.len().min(2500)),
        format("pytorch file", ("pytorch/tensors.pt", "pt"), temp, read_all),
    ]
}

#[test]
#[ignore = "run by `mutated_files_are_loaded_or_errors`"]
fn reads_mutants() -> Result<()> {
    setup();
    let Some(folder) = mutating::folder() else { return Ok(()) };
    mutating::read(&formats(&folder), &folder);
    Ok(())
}

#[test]
fn mutated_files_are_loaded_or_errors() -> Result<()> {
    setup();
    let folder = Folder::new();
    mutating::run("fuzz::reads_mutants", &formats(&folder.0), &folder.0, 60);
    Ok(())
}
