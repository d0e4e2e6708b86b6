//! Decoders (`tools/huggingface/generate.py`).

use std::collections::BTreeMap;

use shardax_models::{
    Batcher, Biases, BlipAnswerer, BlipMatcher, ChineseClip, Clap, Clip, ClipSeg, Config, Decoder, DecoderConfig,
    EncoderDecoder, ExpertsConfig, Florence, GenerateOptions, GroundingDino, LoadOptions, NextToken, NormKind, Owl,
    Positions, Pretrained, QkNorm, Sam, Siglip,
};
use shardax_nn::prelude::*;

use super::common::fails;
use super::{alike, case, chosen_models, folder, has_any, rows, setup};

/// Every decoder that there are files of.
pub(super) const DECODERS: [&str; 155] = [
    "gpt2",
    "llama",
    "llama3",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3",
    "phi",
    "phi3",
    "linear",
    "yarn",
    "arcee",
    "seed_oss",
    "helium",
    "ernie4_5",
    "granite",
    "smollm3",
    "olmo",
    "olmo2",
    "olmo3",
    "cohere",
    "cohere2",
    "stablelm",
    "stablelm_parallel",
    "starcoder2",
    "glm",
    "glm4",
    "gptj",
    "gpt_neox",
    "gpt_neox_sequential",
    "falcon",
    "falcon_new",
    "falcon_sequential",
    "mixtral",
    "qwen2_moe",
    "qwen3_moe",
    "olmoe",
    "glm4_moe",
    "granitemoe",
    "gpt_oss",
    "deepseek_v3",
    "deepseek_v2",
    "deepseek_v2_greedy",
    "deepseek_v32",
    "glm_moe_dsa",
    "glm_moe_dsa_shared",
    "opt",
    "opt_plain",
    "bloom",
    "mpt",
    "internlm3",
    "ministral",
    "cwm",
    "hunyuan_v1_dense",
    "exaone",
    "nemotron",
    "jais2",
    "exaone4",
    "hyperclovax",
    "vaultgemma",
    "gpt_bigcode",
    "gpt_bigcode_heads",
    "gpt_neo",
    "dots1",
    "minimax_m2",
    "flex_olmo",
    "granitemoeshared",
    "ernie4_5_moe",
    "glm4_moe_lite",
    "youtu",
    "opt_sums",
    "cohere_norms",
    "stablelm_norms",
    "mpt_bounds",
    "olmoe_bounds",
    "codegen",
    "openai",
    "persimmon",
    "biogpt",
    "xglm",
    "apertus",
    "ministral3",
    "exaone_moe",
    "hunyuan_v1_moe",
    "solar_open",
    "sarvam_moe",
    "sarvam_mla",
    "falcon_alibi",
    "granite4",
    "granite4_experts",
    "llama4",
    "lfm2",
    "lfm2_moe",
    "qwen3_next",
    "qwen3_5_moe",
    "qwen3_5",
    "kimi_linear",
    "mimo_v2_flash",
    "olmo_hybrid",
    "olmo_hybrid_plain",
    "olmo_hybrid_split",
    "phimoe",
    "nanochat",
    "minicpm3",
    "flint",
    "mellum",
    "hy_v3",
    "mistral4",
    "granite_swa",
    "granitemoe_swa",
    "afmoe",
    "cohere2_moe",
    "axk1",
    "modernbert_decoder",
    "mamba2",
    "bamba",
    "granite4_hybrid",
    "nemotron_h",
    "falcon_h1",
    "falcon_h1_norm",
    "mamba",
    "falcon_mamba",
    "jamba",
    "gemma3n",
    "gemma4",
    "gemma4_experts",
    "laguna",
    "laguna_features",
    "lfm3",
    "dbrx",
    "dbrx_plain",
    "bitnet",
    "kolibri1",
    "lara_mini",
    "apertus1p5",
    "gpt_neox_japanese",
    "bert_generation",
    "cohere_compass",
    "gpt2_unscaled",
    "gpt2_layer_scales",
    "recurrent_gemma",
    "minimax",
    "bailing_hybrid",
    "bailing_hybrid_plain",
    "longcat_flash",
    "beam",
    "diffllama",
    "diffllama_heads",
    "doge",
    "doge_sparse",
    "axk2",
    "zamba2",
    "zamba2_plain",
];

/// Decoders whose rotary positions depend on the length of the text. The keys in a cache keep the scale of the length
/// at which they were computed.
const SCALED_BY_LENGTH: [&str; 2] = ["dynamic", "longrope"];

/// Models of text and images whose text the decoder reads: all folders whose configuration has an object for
/// images, for texts or for both. One folder has the rotary positions of Hunyuan models.
fn texts() -> Vec<String> {
    let entries = std::fs::read_dir(folder("")).expect("the folder of models");
    let names = entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned());
    let objects = ["vision_config", "text_config", "thinker_config"];
    let has_text = |name: &String| {
        let Ok(config) = Config::open(folder(name)) else { return false };
        let read = Decoder::read(&config);
        let has_object = objects.iter().any(|object| config.get(object).is_some());
        let is_other = || {
            Clip::read(&config).is_ok()
                || ChineseClip::read(&config).is_ok()
                || Siglip::read(&config).is_ok()
                || Sam::read(&config).is_ok()
                || Owl::read(&config).is_ok()
                || GroundingDino::read(&config).is_ok()
                || EncoderDecoder::read(&config).is_ok()
                || Florence::read(&config).is_ok()
                || ClipSeg::read(&config).is_ok()
                || Clap::read(&config).is_ok()
                || BlipAnswerer::read(&config).is_ok()
                || BlipMatcher::read(&config).is_ok()
        };
        assert!(!has_object || read.is_ok() || is_other(), "{name}: {}", read.expect_err("an error"));
        has_object && read.is_ok()
    };
    let mut names: Vec<String> = names.filter(has_text).chain(["hunyuan_alpha".to_owned()]).collect();
    names.sort();
    // Older files of Qwen models have the fields of the text next to the object of images.
    assert!(names.len() > 20 && names.contains(&"qwen2_vl".to_owned()), "{names:?}");
    names
}

#[test]
fn decoders_have_the_logits_of_transformers() -> Result<()> {
    setup();
    let forward = jit(|model: Decoder, tokens: Array| model.forward(tokens));
    let decode = jit(|mut model: Decoder, tokens: Array| {
        let first = model.decode(tokens.get((.., ..3)));
        (first, model.decode(tokens.get((.., 3..))))
    });
    // Unless all decoders are requested, this test compares a sixteenth of them, every second one of these also with a cache. The
    // next test compares others.
    let texts = texts();
    let names = DECODERS.into_iter().chain(texts.iter().map(String::as_str)).chain(SCALED_BY_LENGTH);
    let (only, every) = chosen_models();
    for (i, name) in names.enumerate().filter(|(_, name)| has_any(name, &only)).step_by(every.div_ceil(2)) {
        let (case, model) = (case(name)?, Decoder::from_pretrained(folder(name))?);
        let (tokens, want) = (case("input_ids")?, case("logits")?);
        alike(name, &forward.call((&model, &tokens))?, &want)?;
        if SCALED_BY_LENGTH.contains(&name) || !i.is_multiple_of(every) {
            continue;
        }
        let mut decoder = model.clone();
        decoder.init_cache(tokens.shape()[0], tokens.shape()[1]);
        let (first, rest) = decode.call((&decoder, &tokens))?;
        alike(name, &concatenate(&[first, rest], 1), &want)?;
    }
    Ok(())
}

/// Generates greedily from prompts of several lengths in one batch.
#[test]
fn decoders_write_the_tokens_of_transformers() -> Result<()> {
    setup();
    let (only, every) = chosen_models();
    for name in DECODERS.into_iter().filter(|name| has_any(name, &only)).skip(every.min(2) - 1).step_by(every) {
        let (case, model) = (case(name)?, Decoder::from_pretrained(folder(name))?);
        let lengths = case("lengths")?.to_vec::<i32>()?;
        let prompts: Vec<Vec<i32>> = rows(&case("prompts")?)?
            .into_iter()
            .zip(lengths)
            .map(|(row, length)| row[row.len() - length as usize..].to_vec())
            .collect();
        let want = rows(&case("generated")?)?;
        assert_eq!(model.generate(&prompts, &GenerateOptions::new(5))?, want, "{name}");
    }
    Ok(())
}

/// Writes texts in two slots, so that each begins while others continue, with so little room that texts are moved.
#[test]
fn batched_decoders_write_the_tokens_of_transformers() -> Result<()> {
    setup();
    let (only, every) = chosen_models();
    // A slice has each kind of cache.
    let kinds = ["llama4", "deepseek_v32", "recurrent_gemma", "minimax", "bamba", "zamba2", "qwen3_next", "lfm2"];
    let is_chosen = |name: &str| if every == 1 { has_any(name, &only) } else { kinds.contains(&name) };
    for name in DECODERS.into_iter().filter(|name| is_chosen(name)) {
        let (case, model) = (case(name)?, Decoder::from_pretrained(folder(name))?);
        let lengths = case("lengths")?.to_vec::<i32>()?;
        let prompts = rows(&case("prompts")?)?;
        let want = rows(&case("generated")?)?;
        let room = prompts.iter().map(Vec::len).max().unwrap_or(0) + 6;
        let mut batcher = Batcher::new(model, 2, room)?;
        let mut waiting = prompts.iter().zip(lengths).map(|(row, length)| &row[row.len() - length as usize..]);
        let mut written: BTreeMap<u64, Vec<i32>> = BTreeMap::new();
        let mut add = |next: NextToken| written.entry(next.text).or_default().push(next.token);
        loop {
            let prompt = if batcher.is_full() { None } else { waiting.next() };
            if let Some(prompt) = prompt {
                add(batcher.add(prompt, &GenerateOptions::new(5))?);
            } else if batcher.active() == 0 {
                break;
            }
            batcher.step()?.into_iter().for_each(&mut add);
        }
        assert_eq!(written.into_values().collect::<Vec<_>>(), want, "{name}");
    }
    Ok(())
}

/// Each text has the positions of its own length, also if it becomes longer than the original length of the model.
#[test]
fn texts_of_scaled_positions_have_their_own_length() -> Result<()> {
    setup();
    for name in SCALED_BY_LENGTH {
        let (case, model) = (case(name)?, Decoder::from_pretrained(folder(name))?);
        let lengths = case("long_lengths")?.to_vec::<i32>()?;
        let prompts: Vec<Vec<i32>> = rows(&case("long_prompts")?)?
            .into_iter()
            .zip(lengths)
            .map(|(row, length)| row[row.len() - length as usize..].to_vec())
            .collect();
        let want = rows(&case("long_generated")?)?;
        assert_eq!(model.generate(&prompts, &GenerateOptions::new(10))?, want, "{name}");
        let mut batcher = Batcher::new(model, 4, 20)?;
        let mut written: BTreeMap<u64, Vec<i32>> = BTreeMap::new();
        for prompt in &prompts {
            let next = batcher.add(prompt, &GenerateOptions::new(10))?;
            written.entry(next.text).or_default().push(next.token);
        }
        while batcher.active() > 0 {
            for next in batcher.step()? {
                written.entry(next.text).or_default().push(next.token);
            }
        }
        assert_eq!(written.into_values().collect::<Vec<_>>(), want, "{name}");
    }
    Ok(())
}

#[test]
fn texts_end_at_stop_tokens_and_streams_say_so() -> Result<()> {
    setup();
    let (case, model) = (case("llama")?, Decoder::from_pretrained(folder("llama"))?);
    let want = rows(&case("generated")?)?;
    let (prompts, lengths) = (rows(&case("prompts")?)?, case("lengths")?.to_vec::<i32>()?);
    let prompts = [prompts[0].clone(), prompts[1][prompts[1].len() - lengths[1] as usize..].to_vec()];
    let stop = want[0][1];
    let until = |row: &[i32]| row.iter().position(|t| *t == stop).map_or(row.to_vec(), |at| row[..=at].to_vec());
    let options = GenerateOptions::new(5).stop_tokens([stop]);
    assert_eq!(model.generate(&prompts, &options)?, [until(&want[0]), until(&want[1])]);
    let streamed: Vec<Vec<Option<i32>>> = model.stream(&prompts, &options)?.collect::<Result<_>>()?;
    assert_eq!(streamed[0], [Some(want[0][0]), Some(want[1][0])]);
    assert!(streamed.iter().skip(until(&want[0]).len()).all(|tokens| tokens[0].is_none()));

    // Sampled tokens depend on the seed, and are among the tokens that the filters keep.
    let sample = |seed, k| model.generate(&prompts, &GenerateOptions::new(5).temperature(2.0).top_k(k).seed(seed));
    assert_eq!(sample(0, 20)?, sample(0, 20)?);
    assert_ne!(sample(0, 20)?, sample(1, 20)?);
    assert_eq!(sample(3, 1)?, want);
    let likeliest = GenerateOptions::new(5).temperature(1.0).top_p(1e-6);
    assert_eq!(model.generate(&prompts, &likeliest)?, want);
    assert_eq!(model.generate(&[], &options)?, Vec::<Vec<i32>>::new());
    assert_eq!(model.generate(&prompts, &GenerateOptions::new(0))?, [[0; 0]; 2]);

    let generate = |options: GenerateOptions| model.generate(&[vec![3]], &options);
    fails(model.generate(&[vec![3], vec![]], &options), &["prompt 1 is empty"]);
    fails(model.generate(&[vec![33]], &options), &["the token 33", "33 tokens"]);
    fails(generate(GenerateOptions::new(3).temperature(f64::NAN)), &["the temperature is NaN"]);
    fails(generate(GenerateOptions::new(3).top_k(0)), &["top_k is 0"]);
    fails(generate(GenerateOptions::new(3).top_p(1.5)), &["top_p is 1.5"]);
    fails(generate(GenerateOptions::new(usize::MAX)), &["do not fit"]);
    let gpt2 = Decoder::from_pretrained(folder("gpt2"))?;
    fails(gpt2.generate(&[vec![3; 10]], &GenerateOptions::new(4)), &["do not fit", "12 positions"]);
    assert_eq!(gpt2.generate(&[vec![3; 10]], &GenerateOptions::new(3))?[0].len(), 3);
    Ok(())
}

#[test]
fn a_decoder_is_split_as_it_is_read_and_has_other_dtypes() -> Result<()> {
    setup();
    let case = case("gpt2")?;
    let (tokens, want) = (case("input_ids")?, case("logits")?);
    let forward = jit(|model: Decoder, tokens: Array| model.forward(tokens));
    let mesh = make_mesh([("model", 4)])?;
    let rules = Rules::new(&mesh, [("heads", "model"), ("mlp", "model")]);
    let split = Decoder::from_pretrained_with(folder("gpt2"), &LoadOptions::new().rules(&rules))?;
    alike("split", &forward.call((&split, &tokens))?, &want)?;
    let parts = tree::leaves_with_path(&split);
    let array_at =
        |end: &str| parts.iter().find(|(path, _)| path.ends_with(end)).map(|(_, x)| x.clone()).expect("an array");
    assert_eq!(array_at("attention.query.kernel").addressable_data(0)?.shape(), [16, 1, 4]);
    assert_eq!(array_at("mlp.down.kernel").addressable_data(3)?.shape(), [16, 16]);
    let options = GenerateOptions::new(4);
    let replicated = Decoder::from_pretrained(folder("gpt2"))?;
    assert_eq!(
        split.generate(&[vec![3, 4], vec![5]], &options)?,
        replicated.generate(&[vec![3, 4], vec![5]], &options)?
    );
    let half = Decoder::from_pretrained_with(folder("gpt2"), &LoadOptions::new().policy(Policy::bf16()))?;
    assert!(tree::leaves(&half).iter().all(|leaf| leaf.dtype() == DType::Bf16));
    let logits = forward.call((&half, &tokens))?.astype(DType::F32);
    assert!(allclose(&logits, &want, 0.1, 0.1)?, "{}", (logits - want).abs().max(..).item::<f32>()?);
    // The states of state spaces are float32 in half precision too.
    for name in ["granite4_hybrid", "falcon_h1"] {
        let case = self::case(name)?;
        let half = Decoder::from_pretrained_with(folder(name), &LoadOptions::new().policy(Policy::bf16()))?;
        let logits = forward.call((&half, case("input_ids")?))?.astype(DType::F32);
        let difference = (logits - case("logits")?).abs().max(..).item::<f32>()?;
        assert!(difference < 0.05, "{name}: {difference}");
    }
    Ok(())
}

/// A loop over the layers, and recomputing layers for the gradient, do not change the results.
#[test]
fn scanned_and_recomputed_layers_are_the_same_model() -> Result<()> {
    setup();
    let config = DecoderConfig { kv_heads: 2, ..DecoderConfig::new(40, 3, 16, 4) };
    let model = Decoder::new(&config, &mut Rngs::new(0))?;
    let again = DecoderConfig { checkpoint: Some(CheckpointPolicy::NothingSaveable), ..config.clone() };
    let (again, mut looped) = (Decoder::new(&again, &mut Rngs::new(0))?, model.clone());
    looped.stack = Some(Stack::from_layers(&std::mem::take(&mut looped.blocks))?);
    let tokens = array([[3, 1, 4, 1, 5, 9]]);
    fn loss(model: Decoder, tokens: Array) -> Array {
        model.forward(tokens).square().mean(..)
    }
    let run = jit(value_and_grad(loss));
    let (want, grads) = run.call((&model, &tokens))?;
    for model in [&again, &looped] {
        let (got, others) = run.call((model, &tokens))?;
        assert!(allclose(&got, &want, 1e-5, 1e-5)?);
        assert!(allclose(&others.embed.embedding, &grads.embed.embedding, 1e-4, 1e-5)?);
    }
    let prompts = [vec![3, 1, 4], vec![7]];
    let options = GenerateOptions::new(4);
    assert_eq!(looped.generate(&prompts, &options)?, model.generate(&prompts, &options)?);
    fails(DecoderConfig { kv_heads: 3, ..config.clone() }.check(), &["kv_heads (3) does not divide heads (4)"]);
    fails(DecoderConfig { layers: 0, ..config.clone() }.check(), &["layers must be positive"]);
    fails(DecoderConfig { vocab_size: usize::MAX, ..config.clone() }.check(), &["overflows"]);
    fails(DecoderConfig { head_dim: 3, ..config }.check(), &["even head_dim"]);
    Ok(())
}

/// Fields that layers would ignore are errors.
#[test]
fn configurations_with_fields_without_effect_are_rejected() -> Result<()> {
    let read = |name: &str| Config::open(folder(name)).and_then(|config| Ok(Decoder::read(&config)?.0));
    let shared = read("zamba2")?;
    shared.check()?;
    for (name, config) in [
        ("windows", DecoderConfig { windows: vec![Some(4); shared.layers], ..shared.clone() }),
        ("qk_norm", DecoderConfig { qk_norm: QkNorm::Head, ..shared.clone() }),
        ("bidirectional", DecoderConfig { bidirectional: true, ..shared.clone() }),
        ("value_dim", DecoderConfig { value_dim: Some(shared.head_dim + 1), ..shared.clone() }),
        ("scan_layers", DecoderConfig { scan_layers: true, ..shared.clone() }),
        ("norm", DecoderConfig { norm: NormKind::Layer, ..shared.clone() }),
        ("positions", DecoderConfig { positions: Positions::Alibi(8.0), ..shared.clone() }),
        ("without_rope", DecoderConfig { without_rope: vec![false, true], ..shared.clone() }),
        ("biases", DecoderConfig { biases: Biases::ALL, ..shared.clone() }),
        ("gated", DecoderConfig { gated: false, ..shared.clone() }),
        ("attention_scales", DecoderConfig { attention_scales: vec![1.0; shared.layers], ..shared.clone() }),
        ("parallel", DecoderConfig { parallel: true, ..shared.clone() }),
        ("mlp_scale", DecoderConfig { mlp_scale: Some(2.0), ..shared.clone() }),
        ("inner_norms", DecoderConfig { inner_norms: true, ..shared.clone() }),
    ] {
        fails(config.check(), &["shared layers do not read", name]);
    }
    let delayed = read("longcat_flash")?;
    delayed.check()?;
    let experts = delayed.experts.clone().map(|experts| ExpertsConfig { shared_hidden: Some(8), ..experts });
    for (name, config) in [
        ("experts.shared_hidden", DecoderConfig { experts, ..delayed.clone() }),
        ("parallel", DecoderConfig { parallel: true, ..delayed.clone() }),
    ] {
        fails(config.check(), &["experts.delayed is true", name]);
    }
    let gated = read("axk2")?;
    gated.check()?;
    fails(DecoderConfig { pre_norms: false, ..gated }.check(), &["norm_gates", "some layers do not normalize"]);
    Ok(())
}
