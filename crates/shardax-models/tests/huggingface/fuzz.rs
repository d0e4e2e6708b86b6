//! Mutants of configurations, weights and adapters: each is loaded or is an error (`shardax/tests/common/mutants.rs`).

use std::ops::Range;
use std::path::Path;

use serde_json::{Value, json};
use shardax_models::huggingface::Weights;
use shardax_models::{Adapter, Bert, ClipSeg, Config, Decoder, Florence, MobileVit, Pretrained, RtDetr, SoundEncoder};
use shardax_nn::prelude::*;

use super::common::Folder;
use super::mutating::{self, Format};
use super::quick::one_of;
use super::rejected::copy;
use super::{folder, setup};

/// The memory limit in MiB for a process that also loads the plugin.
const PLUGIN: u64 = 3 << 10;

/// Returns the length and the header of a safetensors file.
fn header(bytes: &[u8]) -> Range<usize> {
    0..8 + u64::from_le_bytes(std::array::from_fn(|i| bytes[i])) as usize
}

/// Returns the file with the correct length of its header.
fn measured(mut bytes: Vec<u8>) -> Vec<u8> {
    let Some(text) = bytes.get(8..) else { return bytes };
    let mut values = serde_json::Deserializer::from_slice(text).into_iter::<serde_json::Value>();
    if let Some(Ok(_)) = values.next() {
        let length = values.byte_offset() as u64;
        bytes[..8].copy_from_slice(&length.to_le_bytes());
    }
    bytes
}

/// Replaces a file in a copy of a folder, and loads the folder.
fn format<'a>(
    name: &'static str,
    (from, file): (&'static str, &'static str),
    other_files: &[(&str, &str)],
    temp: &Path,
    load: impl Fn(&Path) -> Result<()> + 'a,
) -> Format<'a> {
    let temp = temp.join(name);
    std::fs::create_dir_all(&temp).expect("a folder");
    for (from, file) in other_files {
        std::fs::write(temp.join(file), copy(from, file)).expect("a file");
    }
    let read = move |mutant: &Path| {
        std::fs::copy(mutant, temp.join(file)).expect("the mutant");
        load(&temp)
    };
    let format = Format::new(name, vec![copy(from, file)], read).memory(PLUGIN);
    if file.ends_with("safetensors") { format.within(header).repaired(measured) } else { format }
}

fn formats(temp: &Path) -> Result<Vec<Format<'static>>> {
    const CONFIG: &str = "config.json";
    const WEIGHTS: &str = "model.safetensors";
    const ABOUT: &str = "adapter_config.json";
    const ADAPTER: &str = "adapter_model.safetensors";
    let decoder = |temp: &Path| Decoder::from_pretrained(temp).map(drop);
    let config = Config::open(folder("llama"))?;
    let adapter = move |temp: &Path| Adapter::from_pretrained(&config, temp).map(drop);
    let parts = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"].map(|part| ("llama", part));
    let index = ("llama", "model.safetensors.index.json");
    Ok(vec![
        format("config.json of gemma3", ("gemma3", CONFIG), &[("gemma3", WEIGHTS)], temp, decoder),
        format("config.json of gpt2", ("gpt2", CONFIG), &[("gpt2", WEIGHTS)], temp, decoder),
        format("safetensors of gemma3", ("gemma3", WEIGHTS), &[("gemma3", CONFIG)], temp, decoder),
        format("safetensors of gpt2", ("gpt2", WEIGHTS), &[("gpt2", CONFIG)], temp, decoder),
        format("index of weights", index, &parts, temp, |temp| Weights::open(temp).map(drop)),
        format("adapter_config.json", ("adapter", ABOUT), &[("adapter", ADAPTER)], temp, adapter.clone()),
        format("adapter_model.safetensors", ("adapter", ADAPTER), &[("adapter", ABOUT)], temp, adapter),
    ])
}

#[test]
#[ignore = "run by `mutated_models_are_loaded_or_errors`"]
fn reads_mutants() -> Result<()> {
    setup();
    let Some(folder) = mutating::folder() else { return Ok(()) };
    mutating::read(&formats(&folder)?, &folder);
    Ok(())
}

#[test]
fn mutated_models_are_loaded_or_errors() -> Result<()> {
    setup();
    let folder = Folder::new();
    mutating::run("fuzz::reads_mutants", &formats(&folder.0)?, &folder.0, 60);
    Ok(())
}

/// Returns the configuration with one field missing, or with another value, for each field of it and of its objects and lists.
fn changed(config: &Value) -> Vec<Value> {
    let others =
        [json!(null), json!("nonsense"), json!(true), json!(-1), json!(0), json!(1), json!(1.5), json!([]), json!({})];
    let sizes = [json!(3), json!(1u64 << 40), json!(u64::MAX), json!(1e300), json!([1u64 << 40, 1]), json!([[2]])];
    let others: Vec<Value> = others.into_iter().chain(sizes).collect();
    match config {
        Value::Object(fields) => {
            let each = fields.iter().flat_map(|(name, value)| {
                let with = |value: Value| {
                    let mut fields = fields.clone();
                    fields.insert(name.clone(), value);
                    Value::Object(fields)
                };
                let mut missing = fields.clone();
                missing.remove(name);
                let inner = changed(value).into_iter().map(with);
                inner.chain(others.iter().cloned().map(with)).chain([Value::Object(missing)]).collect::<Vec<Value>>()
            });
            each.collect()
        }
        Value::Array(entries) if !entries.is_empty() => {
            let with = |value: Value| {
                let mut entries = entries.clone();
                entries[0] = value;
                Value::Array(entries)
            };
            let shorter = Value::Array(entries[1..].to_vec());
            changed(&entries[0]).into_iter().chain(others).map(with).chain([shorter]).collect()
        }
        _ => Vec::new(),
    }
}

/// Loads the model of a folder with each of these configurations. Returns how many of them load.
fn load_changed<M: Pretrained>(name: &str) -> usize {
    let temp = Folder::new();
    std::fs::write(temp.join("model.safetensors"), copy(name, "model.safetensors")).expect("a file");
    let config: Value = serde_json::from_slice(&copy(name, "config.json")).expect("JSON");
    let loads = changed(&config).into_iter().step_by(one_of(48)).filter(|config| {
        std::fs::write(temp.join("config.json"), config.to_string()).expect("a file");
        M::from_pretrained(&temp.0).is_ok()
    });
    loads.count()
}

/// No field of a configuration makes loading a model panic or allocate more memory than there is.
#[test]
fn changed_fields_are_loaded_or_errors() {
    setup();
    let count = load_changed::<Decoder>("recurrent_gemma")
        + load_changed::<Decoder>("minimax")
        + load_changed::<Bert>("convbert")
        + load_changed::<SoundEncoder>("wav2vec2_bert_adapter")
        + load_changed::<SoundEncoder>("wav2vec2_conformer")
        + load_changed::<Florence>("florence2")
        + load_changed::<MobileVit>("mobilevit")
        + load_changed::<ClipSeg>("clipseg_pixels")
        + load_changed::<RtDetr>("rt_detr_v2");
    // Fields without an effect can have any value.
    assert!(count > 0, "no configuration loads");
}
