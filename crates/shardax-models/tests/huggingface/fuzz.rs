//! Files changed at random: each is loaded or an error, in bounded time and memory.
//!
//!     MUTANTS=100000 cargo test -p shardax-models --test huggingface mutated -- --nocapture

use std::time::{Duration, Instant};

use shardax_models::{Adapter, Config, Decoder, Pretrained};
use shardax_nn::prelude::*;

use super::common::Folder;
use super::refused::copy;
use super::{Weights, folder, setup};

/// Replacements of values.
const PIECES: [&str; 16] = [
    "0",
    "-1",
    "1",
    "2",
    "3",
    "1e308",
    "18446744073709551615",
    "4294967296",
    "0.5",
    "null",
    "true",
    "[]",
    "{}",
    "\"\"",
    "\"gemma\"",
    "\"full_attention\"",
];

/// One to four changes of some bytes: a bit, a byte, a piece cut out, doubled, or put in the place of a value.
fn mutated(bytes: &[u8], text: std::ops::Range<usize>, rng: &mut fastrand::Rng) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..rng.usize(1..=4) {
        let end = text.end.min(bytes.len());
        if text.start >= end {
            break;
        }
        let at = rng.usize(text.start..end);
        match rng.u8(0..7) {
            0 => bytes[at] ^= 1 << rng.u8(0..8),
            1 => bytes[at] = rng.u8(..),
            2 => drop(bytes.drain(at..(at + rng.usize(1..16)).min(end))),
            3 => {
                let piece = bytes[at..(at + rng.usize(1..16)).min(end)].to_vec();
                bytes.splice(at..at, piece);
            }
            4 if bytes[at].is_ascii_digit() => bytes[at] = rng.u8(b'0'..=b'9'),
            _ => {
                // The value behind the next colon.
                let Some(from) = (at..end).find(|i| bytes[*i] == b':').map(|i| i + 1) else { continue };
                let to = (from..end).find(|i| b",}]".contains(&bytes[*i])).unwrap_or(end);
                bytes.splice(from..to, rng.choice(PIECES).unwrap_or("0").bytes());
            }
        }
    }
    bytes
}

/// Mutants of a file, and how many of them are loaded.
fn run(name: &str, bytes: &[u8], text: std::ops::Range<usize>, here: &Folder, load: impl Fn() -> Result<()>) {
    let count = std::env::var("MUTANTS").ok().and_then(|n| n.parse().ok()).unwrap_or(60);
    let (mut loaded, mut slowest) = (0, Duration::ZERO);
    for seed in 0..count {
        let mutant = mutated(bytes, text.clone(), &mut fastrand::Rng::with_seed(seed));
        here.write(name, &mutant);
        let start = Instant::now();
        match load() {
            Ok(()) => loaded += 1,
            Err(error) => assert!(!error.to_string().is_empty(), "{name}, mutant {seed}"),
        }
        slowest = slowest.max(start.elapsed());
        assert!(slowest < Duration::from_secs(60), "{name}, mutant {seed} took {slowest:?}");
    }
    println!("{name}: {count} mutants, {loaded} load, the slowest in {slowest:?}");
    here.write(name, bytes);
}

#[test]
fn mutated_configurations_and_weights_are_loaded_or_errors() -> Result<()> {
    setup();
    for kind in ["gemma3", "gpt2"] {
        let here = Folder::new();
        let (config, weights) = (copy(kind, "config.json"), copy(kind, "model.safetensors"));
        here.write("config.json", &config);
        here.write("model.safetensors", &weights);
        run("config.json", &config, 0..config.len(), &here, || Decoder::from_pretrained(&here.0).map(drop));
        let header = 8 + u64::from_le_bytes(std::array::from_fn(|i| weights[i])) as usize;
        run("model.safetensors", &weights, 0..header, &here, || Decoder::from_pretrained(&here.0).map(drop));
    }
    Ok(())
}

#[test]
fn mutated_indexes_and_adapters_are_loaded_or_errors() -> Result<()> {
    setup();
    let here = Folder::new();
    for name in ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"] {
        here.write(name, copy("llama", name));
    }
    let index = copy("llama", "model.safetensors.index.json");
    run("model.safetensors.index.json", &index, 0..index.len(), &here, || Weights::open(&here.0).map(drop));
    let config = Config::open(folder("llama"))?;
    let load = || Adapter::from_pretrained(&config, &here.0).map(drop);
    for name in ["adapter_config.json", "adapter_model.safetensors"] {
        here.write(name, copy("adapter", name));
    }
    let about = copy("adapter", "adapter_config.json");
    run("adapter_config.json", &about, 0..about.len(), &here, load);
    let weights = copy("adapter", "adapter_model.safetensors");
    let header = 8 + u64::from_le_bytes(std::array::from_fn(|i| weights[i])) as usize;
    run("adapter_model.safetensors", &weights, 0..header, &here, load);
    Ok(())
}
