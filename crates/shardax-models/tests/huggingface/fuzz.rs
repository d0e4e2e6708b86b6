//! Mutants of the files of `transformers` and `peft`: each is loaded or is an error (`shardax-train/tests/common/mutants.rs`).

use std::path::Path;

use shardax_models::{Adapter, Config, Decoder, Pretrained};
use shardax_nn::prelude::*;

use super::common::Folder;
use super::mutating::{self, Format, unchanged};
use super::refused::copy;
use super::{Weights, folder, setup};

/// What loads a folder.
type Load = fn(&Path) -> Result<()>;

/// The name, the model whose files it is of, the file and what loads it.
const FORMATS: [(&str, &str, &str, Load); 7] = [
    ("config.json of gemma3", "gemma3", "config.json", decoder),
    ("config.json of gpt2", "gpt2", "config.json", decoder),
    ("safetensors of gemma3", "gemma3", "model.safetensors", decoder),
    ("safetensors of gpt2", "gpt2", "model.safetensors", decoder),
    ("model.safetensors.index.json", "llama", "model.safetensors.index.json", |here| Weights::open(here).map(drop)),
    ("adapter_config.json", "adapter", "adapter_config.json", adapter),
    ("safetensors of an adapter", "adapter", "adapter_model.safetensors", adapter),
];

fn decoder(here: &Path) -> Result<()> {
    Decoder::from_pretrained(here).map(drop)
}

fn adapter(here: &Path) -> Result<()> {
    Adapter::from_pretrained(&Config::open(folder("llama"))?, here).map(drop)
}

/// The formats, whose mutants stand in a folder with a model's other files.
fn formats(all: &Folder) -> Vec<Format<'_>> {
    let format = |(name, kind, file, load): (&'static str, &str, &'static str, Load)| {
        let here = all.join(&name.replace(' ', "_"));
        for entry in std::fs::read_dir(folder(kind)).expect("a folder").flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            all.write(&here.join(&name).to_string_lossy(), copy(kind, &name));
        }
        let read = move |mutant: &Path| {
            std::fs::copy(mutant, here.join(file)).expect("the mutant");
            load(&here)
        };
        Format { name, seeds: vec![copy(kind, file)], repair: unchanged, read: Box::new(read), memory: 24 << 10 }
    };
    FORMATS.into_iter().map(format).collect()
}

#[test]
#[ignore = "of `mutated_models_are_loaded_or_errors`, which starts it"]
fn reads_mutants() {
    setup();
    let folder = Folder::new();
    mutating::read(formats(&folder), &folder.0);
}

#[test]
fn mutated_models_are_loaded_or_errors() {
    let folder = Folder::new();
    mutating::run("fuzz::reads_mutants", &formats(&folder), &folder.0, 60);
}
