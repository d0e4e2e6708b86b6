//! Tokens a second of a decoder in a GGUF file (`bench/tokens.py` writes files and measures llama.cpp with them).

use std::path::Path;

use shardax_models::{Decoder, GenerateOptions, LoadOptions, Packed, Pretrained};
use shardax_nn::prelude::*;

use crate::clock::now;

/// The lengths of the prompt and of the text after it.
const PROMPT: usize = 256;
const NEW: usize = 32;
const RUNS: usize = 3;

/// Prints the tokens a second of the prompt and of the text. Weights of 16 bits are computed in bfloat16, and others stay in
/// few bits.
pub fn run(file: &Path) -> Result<()> {
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let [prompt, text] = if name.contains("bf16") {
        let model = Decoder::from_pretrained_with(file, &LoadOptions::new().policy(Policy::bf16()))?;
        measure(|prompts, options| model.stream(prompts, options))?
    } else {
        let model = Packed::<Decoder>::from_pretrained(file)?;
        measure(|prompts, options| model.stream(prompts, options))?
    };
    println!("{name}\tshardax\t{prompt:.1}\t{text:.2}\t{:.0} MiB", crate::peak_mib());
    Ok(())
}

/// The best rates of several runs after one that compiles.
fn measure<T: Iterator<Item = Result<Vec<Option<i32>>>>>(
    stream: impl Fn(&[Vec<i32>], &GenerateOptions) -> Result<T>,
) -> Result<[f64; 2]> {
    let prompt: Vec<i32> = (0..PROMPT as i32).map(|i| 7 * i % 1000 + 3).collect();
    let mut best = [0.0f64; 2];
    for _ in 0..=RUNS {
        let start = now();
        let mut text = stream(std::slice::from_ref(&prompt), &GenerateOptions::new(NEW + 1))?;
        text.next().transpose()?;
        let after_prompt = now();
        text.by_ref().try_for_each(|tokens| tokens.map(drop))?;
        let [first, rest] = [after_prompt - start, now() - after_prompt].map(|time| time.as_secs_f64());
        best = [best[0].max(PROMPT as f64 / first), best[1].max(NEW as f64 / rest)];
    }
    Ok(best)
}
