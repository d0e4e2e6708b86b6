//! Options of generation, and texts that begin and end at different times.

use std::collections::BTreeMap;

use shardax_models::{Batcher, Decoder, End, GenerateOptions, Pretrained};
use shardax_nn::prelude::*;

use super::common::{Folder, fails};
use super::{golden, setup};

/// Returns a prompt whose tokens differ between texts.
fn varied_prompt(length: usize, text: usize) -> Vec<i32> {
    (0..length).map(|i| ((text * 7 + i * 5) % 30 + 3) as i32).collect()
}

/// Generates texts of several lengths with few slots and little memory. Each result must equal the text that is
/// generated alone.
#[test]
fn generate_batch_equals_single_texts() -> Result<()> {
    setup();
    // A slice has one cache of keys, one of latent values and one of recurrent states.
    let names = ["gpt2", "llama", "gemma3", "deepseek_v3", "qwen2", "lfm2", "qwen3_next"];
    for name in names.into_iter().step_by(crate::quick::one_of(3)) {
        let model = Decoder::from_pretrained(golden(name))?;
        // There are only two lengths of prompts, because `generate` compiles a program for each length.
        let lengths = [(6, 5), (1, 6), (6, 2), (1, 1), (6, 6), (1, 3), (6, 6)];
        let texts: Vec<(Vec<i32>, GenerateOptions)> = (lengths.into_iter().enumerate())
            .map(|(text, (length, new))| (varied_prompt(length, text), GenerateOptions::new(new)))
            .collect();
        let mut batcher = Batcher::new(model.clone(), 3, if name == "gpt2" { 12 } else { 24 })?;
        let mut written: BTreeMap<u64, Vec<i32>> = BTreeMap::new();
        let mut waiting = texts.iter();
        loop {
            // A new text begins in each step in which a slot is free.
            if !batcher.is_full()
                && let Some((prompt, options)) = waiting.next()
            {
                let next = batcher.add(prompt, options)?;
                written.entry(next.text).or_default().push(next.token);
            }
            if batcher.active() == 0 && waiting.len() == 0 {
                break;
            }
            for next in batcher.step()? {
                written.entry(next.text).or_default().push(next.token);
            }
        }
        for ((prompt, _), written) in texts.iter().zip(written.values()) {
            let single = &model.generate(std::slice::from_ref(prompt), &GenerateOptions::new(6))?[0];
            assert_eq!(*written, single[..written.len()], "{name} {prompt:?}");
        }
        assert!(written.values().map(Vec::len).eq(lengths.map(|(_, new)| new)), "{name}: {written:?}");
    }
    Ok(())
}

#[test]
fn batched_texts_have_options_of_their_own() -> Result<()> {
    setup();
    let model = Decoder::from_pretrained(golden("llama"))?;
    let mut batcher = Batcher::new(model.clone(), 2, 64)?;
    fn run(batcher: &mut Batcher, options: &[GenerateOptions]) -> Result<Vec<Vec<i32>>> {
        let mut written: BTreeMap<u64, Vec<i32>> = BTreeMap::new();
        for options in options {
            let next = batcher.add(&[3, 1, 4], options)?;
            written.insert(next.text, vec![next.token]);
        }
        while batcher.active() > 0 {
            for next in batcher.step()? {
                written.entry(next.text).or_default().push(next.token);
            }
        }
        Ok(written.into_values().collect())
    }
    let drawn = GenerateOptions::new(12).temperature(2.0).seed(5);
    let greedy = GenerateOptions::new(12);
    let results = run(&mut batcher, &[drawn.clone(), greedy.clone()])?;
    assert_eq!(results[1], model.generate(&[vec![3, 1, 4]], &greedy)?[0]);
    assert_ne!(results[0], results[1]);
    // Sampled tokens depend only on the seed, not on the other texts.
    assert_eq!(run(&mut batcher, &[greedy.clone(), drawn.clone()])?[1], results[0]);
    assert_ne!(run(&mut batcher, &[drawn.seed(6)])?[0], results[0]);

    let stop = results[1][2];
    let first = results[1].iter().position(|token| *token == stop).expect("a token");
    let stopped = run(&mut batcher, &[GenerateOptions::new(12).stop_tokens([stop])])?;
    assert_eq!(stopped[0], results[1][..=first]);
    let once = batcher.add(&[3], &GenerateOptions::new(1))?;
    assert_eq!((once.end, batcher.active()), (Some(End::Length), 0));

    let text = batcher.add(&[3], &greedy)?.text;
    batcher.add(&[4], &greedy)?;
    fails(batcher.add(&[5], &greedy), &["all 2 slots have a text"]);
    batcher.remove(text);
    assert_eq!((batcher.active(), batcher.is_full()), (1, false));
    fails(batcher.add(&[], &greedy), &["the prompt is empty"]);
    fails(batcher.add(&[33], &greedy), &["the token 33", "33 tokens"]);
    fails(batcher.add(&[3; 60], &greedy), &["a prompt of 60 tokens and 12 new tokens", "at most 64"]);
    fails(Batcher::new(Decoder::from_pretrained(golden("gpt2"))?, 1, 13).map(drop), &["a room of 13", "2 to 12"]);
    Ok(())
}

#[test]
fn generation_config_is_honoured() -> Result<()> {
    let temp = Folder::new();
    let options = |text: &str| {
        temp.write("generation_config.json", text);
        GenerateOptions::from_pretrained(&temp.0, 9)
    };
    let greedy = GenerateOptions::new(9);
    assert_eq!(options("{}")?, greedy);
    assert_eq!(options(r#"{"eos_token_id": [5, 6], "bos_token_id": 1}"#)?, greedy.clone().stop_tokens([5, 6]));
    // Without `do_sample`, the options of sampling have no effect.
    assert_eq!(options(r#"{"temperature": 0.6, "top_p": 0.9, "eos_token_id": 5}"#)?, greedy.clone().stop_tokens([5]));
    let sampled = r#"{"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.9, "repetition_penalty": 1.1, "num_beams": 1}"#;
    let expected = greedy.clone().temperature(0.6).top_k(20).top_p(0.9).repetition_penalty(1.1);
    assert_eq!(options(sampled)?, expected);
    assert_eq!(options(r#"{"do_sample": true}"#)?, greedy.clone().temperature(1.0).top_k(50));
    assert_eq!(options(r#"{"do_sample": true, "top_k": 0, "min_p": 0.1}"#)?, greedy.temperature(1.0).min_p(0.1));
    fails(options(r#"{"num_beams": 4}"#), &["field `num_beams` of", "is 4"]);
    fails(options(r#"{"forced_eos_token_id": 2}"#), &["field `forced_eos_token_id`"]);
    fails(options(r#"{"do_sample": true, "temperature": "hot"}"#), &["`temperature`", "which is not a number"]);
    fails(options(r#"{"do_sample": true, "top_p": 2}"#), &["top_p is 2"]);
    fails(options("["), &["generation_config.json is not a JSON object"]);
    std::fs::remove_file(temp.join("generation_config.json")).expect("a file");
    fails(GenerateOptions::from_pretrained(&temp.0, 9), &["cannot read", "config.json"]);
    temp.write("config.json", r#"{"eos_token_id": 7, "model_type": "llama"}"#);
    assert_eq!(GenerateOptions::from_pretrained(&temp.0, 9)?, GenerateOptions::new(9).stop_tokens([7]));
    Ok(())
}

#[test]
fn options_that_exclude_tokens_leave_one() -> Result<()> {
    setup();
    let model = Decoder::from_pretrained(golden("llama"))?;
    let (prompt, greedy) = ([vec![3, 1, 4]], GenerateOptions::new(3));
    let all_but = |left: i32| (0..33).filter(move |token| *token != left).map(|token| (token, f32::NEG_INFINITY));
    assert_eq!(model.generate(&prompt, &greedy.clone().logit_bias(all_but(7)))?, [vec![7, 7, 7]]);
    // The second token would repeat the first.
    let options = greedy.clone().logit_bias(all_but(7)).no_repeat_ngram(1);
    fails(model.generate(&prompt, &options), &["text 0 has no next token", "no_repeat_ngram"]);
    for term in [f32::NAN, f32::INFINITY] {
        fails(
            model.generate(&prompt, &greedy.clone().logit_bias([(5, term)])),
            &["the logit bias of token 5 is", "finite"],
        );
    }
    // A temperature close to 0 chooses the likeliest token.
    let expected = model.generate(&prompt, &greedy)?;
    for options in [greedy.clone(), greedy.clone().top_p(0.9).min_p(0.1), greedy.top_k(8)] {
        assert_eq!(model.generate(&prompt, &options.temperature(1e-30))?, expected);
    }
    Ok(())
}

/// A model whose logits are NaN must return an error instead of token 0.
#[test]
fn texts_of_weights_that_are_nan_are_errors() -> Result<()> {
    setup();
    let model = Decoder::from_pretrained(golden("llama"))?;
    let broken = tree::map(|x| if x.dtype().is_float() { x * f32::NAN } else { x }, model)?;
    for options in [GenerateOptions::new(3), GenerateOptions::new(3).temperature(1.0).top_p(0.9)] {
        fails(broken.generate(&[vec![3, 1]], &options), &["text 0 has no next token", "logits are NaN", "weights"]);
        let mut batcher = Batcher::new(broken.clone(), 2, 24)?;
        fails(batcher.add(&[3, 1], &options), &["text 0 has no next token", "logits are NaN", "weights"]);
    }
    Ok(())
}
