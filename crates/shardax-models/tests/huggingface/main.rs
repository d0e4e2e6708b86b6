//! Models that `transformers` and `peft` saved, with the values that they compute (`tools/huggingface`).

mod adapters;
#[path = "../../../shardax-train/tests/common/mod.rs"]
mod common;
mod configurations;
mod encoder_decoder;
mod fuzz;
mod images;
#[path = "../../../shardax/tests/common/mutants.rs"]
mod mutating;
#[path = "../../../shardax/tests/common/quick.rs"]
#[allow(dead_code)]
mod quick;
mod rejected;
mod sound;
mod varied;

use std::path::{Path, PathBuf};

use common::{Folder, fails};
use shardax_models::huggingface::{KeyMap, Layout, Weights, load};
use shardax_models::{
    Adapter, Bert, BertOptions, ChineseClip, Clip, Config, CrossEncoder, Deberta, Decoder, DecoderConfig,
    GenerateOptions, LoadOptions, MobileBert, ModernBert, Pretrained, Sam, SentenceEncoder, Siglip, Vit,
};
use shardax_nn::prelude::*;

/// Every decoder that there are files of.
const DECODERS: [&str; 133] = [
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
    assert_eq!(got.shape(), want.shape(), "{name}");
    assert!(allclose(got, want, 1e-4, 1e-4)?, "{name}: {}", (got - want).abs().max(..).item::<f32>()?);
    // Logits that are all zero would pass the comparison.
    assert!(want.abs().max(..).item::<f32>()? > 0.1, "{name}");
    Ok(())
}

fn rows(x: &Array) -> Result<Vec<Vec<i32>>> {
    let (all, width) = (x.to_vec::<i32>()?, x.shape()[1]);
    Ok(all.chunks(width).map(<[i32]>::to_vec).collect())
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

#[test]
fn vit_has_the_logits_of_transformers() -> Result<()> {
    setup();
    let forward = jit(|model: Vit, images: Array| model.forward(images));
    for name in [
        "vit",
        "deit",
        "deit_teacher",
        "vit_msn",
        "ijepa",
        "beit",
        "beit_model",
        "data2vec_vision",
        "vit_mae",
        "vit_mae_pretraining",
    ] {
        let (case, model) = (case(name)?, Vit::from_pretrained(folder(name))?);
        alike(name, &forward.call((&model, case("pixel_values")?))?, &case("logits")?)?;
    }
    Ok(())
}

#[test]
fn bert_has_the_logits_of_transformers() -> Result<()> {
    setup();
    let (case, model) = (case("bert")?, Bert::from_pretrained(folder("bert"))?);
    let forward = jit(|model: Bert, tokens: Array, mask: Array, kinds: Array| {
        model.forward(tokens, &BertOptions::new().attention_mask(mask).token_type_ids(kinds))
    });
    let arguments = (&model, case("input_ids")?, case("attention_mask")?, case("token_type_ids")?);
    alike("bert", &forward.call(arguments)?, &case("logits")?)
}

/// Encoders with BERT's blocks and their heads. The inputs contain masked padding.
const ENCODERS: [&str; 42] = [
    "bert_model",
    "bert_classes",
    "bert_tokens",
    "roberta",
    "roberta_classes",
    "xlm_roberta_tokens",
    "distilbert",
    "distilbert_classes",
    "camembert",
    "mpnet",
    "mpnet_model",
    "mpnet_classes",
    "albert",
    "albert_classes",
    "electra",
    "electra_replaced",
    "electra_classes",
    "nomic_bert",
    "nomic_bert_model",
    "gte",
    "gte_model",
    "ernie",
    "ernie_classes",
    "data2vec",
    "roformer",
    "roformer_classes",
    "jina_v3",
    "jina_v3_masked",
    "esm",
    "esm_absolute",
    "roberta_prelayernorm",
    "megatron_bert",
    "megatron_bert_classes",
    "xlm_roberta_xl",
    "layoutlm",
    "layoutlm_classes",
    "rembert",
    "rembert_classes",
    "longformer",
    "longformer_classes",
    "big_bird",
    "big_bird_classes",
];

/// ModernBERT and its heads. The inputs contain masked padding.
const MODERN: [&str; 4] = ["modernbert", "modernbert_model", "modernbert_classes", "modernbert_tokens"];

/// DeBERTa and its heads. The inputs contain masked padding.
const DEBERTA: [&str; 5] = ["deberta", "deberta_classes", "deberta_v2", "deberta_v2_classes", "deberta_v2_tokens"];

/// MobileBERT and its heads. The inputs contain masked padding.
const MOBILE: [&str; 4] = ["mobilebert", "mobilebert_classes", "mobilebert_tokens", "mobilebert_model"];

/// Each encoder runs with its mask, because the inputs contain padding.
#[test]
fn encoders_have_the_results_of_transformers() -> Result<()> {
    setup();
    let forward = jit(|model: Bert, tokens: Array, mask: Array, boxes: Option<Array>, global: Option<Array>| {
        let options = BertOptions::new().attention_mask(mask);
        let options = boxes.into_iter().fold(options, BertOptions::boxes);
        model.forward(tokens, &global.into_iter().fold(options, BertOptions::global_attention))
    });
    for name in ENCODERS.into_iter().step_by(quick::one_of(12)) {
        let (case, model) = (case(name)?, Bert::from_pretrained(folder(name))?);
        let arguments = (
            &model,
            case("input_ids")?,
            case("attention_mask")?,
            case("bbox").ok(),
            case("global_attention_mask").ok(),
        );
        alike(name, &forward.call(arguments)?, &case("logits")?)?;
    }
    // The classes differ, so each of them needs a separate program.
    let modern = jit(|model: ModernBert, tokens: Array, mask: Array| {
        model.forward(tokens, &BertOptions::new().attention_mask(mask))
    });
    for name in MODERN.into_iter().step_by(quick::one_of(MODERN.len())) {
        let (case, model) = (case(name)?, ModernBert::from_pretrained(folder(name))?);
        let features = modern.call((&model, case("input_ids")?, case("attention_mask")?))?;
        alike(name, &features, &case("logits")?)?;
    }
    let deberta = jit(|model: Deberta, tokens: Array, mask: Array| {
        model.forward(tokens, &BertOptions::new().attention_mask(mask))
    });
    for name in DEBERTA.into_iter().step_by(quick::one_of(DEBERTA.len())) {
        let (case, model) = (case(name)?, Deberta::from_pretrained(folder(name))?);
        let features = deberta.call((&model, case("input_ids")?, case("attention_mask")?))?;
        alike(name, &features, &case("logits")?)?;
    }
    let mobile = jit(|model: MobileBert, tokens: Array, mask: Array| {
        model.forward(tokens, &BertOptions::new().attention_mask(mask))
    });
    for name in MOBILE.into_iter().step_by(quick::one_of(MOBILE.len())) {
        let (case, model) = (case(name)?, MobileBert::from_pretrained(folder(name))?);
        let features = mobile.call((&model, case("input_ids")?, case("attention_mask")?))?;
        alike(name, &features, &case("logits")?)?;
    }
    let sentences = ["sentence", "sentence_modern", "sentence_last", "sentence_gemma"];
    for name in sentences.into_iter().step_by(quick::one_of(4)) {
        let (case, model) = (case(name)?, SentenceEncoder::from_pretrained(folder(name))?);
        let mask = BertOptions::new().attention_mask(case("attention_mask")?);
        alike(name, &model.forward(case("input_ids")?, &mask), &case("logits")?)?;
    }
    // A decoder whose positions attend to all positions predicts masked tokens, and cannot continue a text.
    let (case, model) = (case("eurobert")?, Decoder::from_pretrained(folder("eurobert"))?);
    let tokens = case("input_ids")?;
    alike("eurobert", &model.forward(&tokens), &case("logits")?)?;
    fails(model.generate(&rows(&tokens)?, &GenerateOptions::new(1)), &["cannot continue a text"]);
    let decoder = SentenceEncoder::from_pretrained(folder("sentence_last"))?;
    let padded_start = BertOptions::new().attention_mask(array([[0, 1, 1]]));
    fails(
        decoder.forward(array([[1, 2, 3]]), &padded_start).check(),
        &["begins with padding", "at the end of each text"],
    );
    Ok(())
}

#[test]
fn configurations_of_mobilebert_load_or_say_why() -> Result<()> {
    setup();
    let read = |fields: &str| {
        let text = format!(r#"{{"model_type": "mobilebert"{fields}}}"#);
        MobileBert::read(&Config::from_json(&text)?).map(|(read, _)| read)
    };
    // The fields of a published model.
    let uncased = read(
        r#", "attention_probs_dropout_prob": 0.1, "classifier_activation": false, "embedding_size": 128, "hidden_act": "relu",
        "hidden_dropout_prob": 0.0, "hidden_size": 512, "initializer_range": 0.02, "intermediate_size": 512,
        "intra_bottleneck_size": 128, "key_query_shared_bottleneck": true, "layer_norm_eps": 1e-12, "max_position_embeddings": 512,
        "normalization_type": "no_norm", "num_attention_heads": 4, "num_feedforward_networks": 4, "num_hidden_layers": 24,
        "trigram_input": true, "true_hidden_size": 128, "type_vocab_size": 2, "use_bottleneck": true,
        "use_bottleneck_attention": false, "vocab_size": 30522"#,
    )?;
    assert_eq!((uncased.num_feedforward_networks, uncased.classifier_activation), (4, false));
    for (fields, words) in [
        (r#", "trigram_input": false"#, "`trigram_input` must be true"),
        (r#", "use_bottleneck_attention": true"#, "`use_bottleneck_attention` must be false"),
        (r#", "normalization_type": "layer_norm""#, "`normalization_type` \"layer_norm\""),
        (r#", "num_attention_heads": 3"#, "num_attention_heads (3) does not divide intra_bottleneck_size"),
        (r#", "true_hidden_size": 512"#, "`true_hidden_size` must be 128"),
        (r#", "embedding_size": 512"#, "`hidden_size` must be more than `embedding_size`"),
        (r#", "num_feedforward_networks": 1001"#, "must be at most 1000"),
        (r#", "tie_word_embeddings": false"#, "`tie_word_embeddings` is false"),
        (r#", "architectures": ["MobileBertForNextSentencePrediction"]"#, "\"NextSentencePrediction\""),
    ] {
        fails(read(fields), &[words]);
    }
    let model = MobileBert::from_pretrained(folder("mobilebert"))?;
    let options = BertOptions::new();
    fails(model.forward(array([3, 4]), &options).check(), &["[2] is not [batch, length]"]);
    fails(model.forward(array([[40]]), &options).check(), &["the token 40"]);
    assert_eq!(model.encode(zeros_dtype([2, 0], DType::I32), &options).shape(), [2, 0, 16]);
    Ok(())
}

/// BigBird computes all scores of short texts only.
#[test]
fn texts_with_blocks_of_scores_are_errors() -> Result<()> {
    setup();
    let read = |fields: &str| {
        Config::from_json(&format!(
            r#"{{"model_type": "big_bird", "vocab_size": 33, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
            "num_attention_heads": 4, "max_position_embeddings": 20, "block_size": 1, "num_random_blocks": 2{fields}}}"#
        ))
    };
    let encode = |fields: &str, length: usize| {
        let model = Bert::from_config(&read(fields)?, &mut Rngs::new(0))?;
        Ok::<_, Error>(model.encode(zeros_dtype([1, length], DType::I32), &BertOptions::new()))
    };
    encode("", 9)?.check()?;
    fails(encode("", 10)?.check(), &["a text has 10 tokens", "for more than 9 tokens"]);
    encode(r#", "attention_type": "original_full""#, 20)?.check()?;
    for (fields, words) in [
        (r#", "attention_type": "random""#, "`attention_type` \"random\""),
        (r#", "use_bias": false"#, "`use_bias` is false"),
        (r#", "rescale_embeddings": true"#, "`rescale_embeddings` is true"),
        (r#", "is_decoder": true"#, "`is_decoder` is true"),
    ] {
        fails(Bert::read(&read(fields)?), &[words]);
    }
    Ok(())
}

#[test]
fn options_that_few_encoders_read_are_checked() -> Result<()> {
    setup();
    let (model, plain) = (Bert::from_pretrained(folder("layoutlm"))?, Bert::from_pretrained(folder("bert"))?);
    let forward = |boxes: Array| model.forward(array([[3, 4]]), &BertOptions::new().boxes(boxes));
    let default = model.forward(array([[3, 4]]), &BertOptions::new());
    assert!(allclose(&default, &forward(zeros_dtype([1, 2, 4], DType::I32)), 1e-6, 1e-6)?);
    fails(forward(array([[[0, 0, 1, 1]]])).check(), &["boxes have the shape [1, 1, 4], not [1, 2, 4]"]);
    // The left edge is after the right one.
    fails(forward(array([[[3, 0, 1, 1], [0, 0, 1, 1]]])).check(), &["-2"]);
    fails(forward(array([[[0, 0, 1, 1], [0, 0, 1, 20]]])).check(), &["20"]);
    let global = BertOptions::new().global_attention(array([[1, 0]]));
    fails(plain.forward(array([[3, 4]]), &global).check(), &["all tokens of the model see all tokens"]);
    let options = BertOptions::new().boxes(zeros_dtype([1, 2, 4], DType::I32));
    fails(plain.forward(array([[3, 4]]), &options).check(), &["does not read boxes"]);
    Ok(())
}

#[test]
fn cross_encoders_have_the_scores_of_transformers() -> Result<()> {
    setup();
    let names = ["cross_encoder", "cross_encoder_plain", "cross_encoder_decoder"];
    for name in names.into_iter().step_by(quick::one_of(3)) {
        let (case, model) = (case(name)?, CrossEncoder::from_pretrained(folder(name))?);
        let (tokens, mask) = (case("input_ids")?, BertOptions::new().attention_mask(case("attention_mask")?));
        alike(name, &model.logits(&tokens, &mask), &case("logits")?)?;
        alike(name, &model.forward(&tokens, &mask), &case("scores")?)?;
    }
    fails(CrossEncoder::from_pretrained(folder("bert_tokens")), &["BertForTokenClassification"]);
    let temp = Folder::new();
    std::fs::copy(folder("cross_encoder/model.safetensors"), temp.join("model.safetensors")).expect("a copy");
    let config = std::fs::read_to_string(folder("cross_encoder/config.json")).expect("a configuration");
    let other = config.replacen('{', r#"{"sentence_transformers": {"activation_fn": "torch.nn.GLU"},"#, 1);
    std::fs::write(temp.join("config.json"), other).expect("a file");
    fails(CrossEncoder::from_pretrained(temp.join("")), &["the activation function \"GLU\" is not supported"]);
    Ok(())
}

#[test]
fn texts_longer_than_the_positions_are_errors() -> Result<()> {
    setup();
    let tokens = zeros_dtype([1, 5000], DType::I32);
    let (bert, gpt2) = (Bert::from_pretrained(folder("bert"))?, Decoder::from_pretrained(folder("gpt2"))?);
    for logits in [bert.forward(&tokens, &BertOptions::new()), gpt2.forward(&tokens)] {
        let error = logits.check().expect_err("too many tokens");
        assert!(error.message().contains("texts of 5000 tokens are too long for"), "{error}");
    }
    Ok(())
}

#[test]
fn tokens_outside_of_the_vocabulary_are_errors() -> Result<()> {
    setup();
    let (bert, gpt2) = (Bert::from_pretrained(folder("bert"))?, Decoder::from_pretrained(folder("gpt2"))?);
    let modern = ModernBert::from_pretrained(folder(MODERN[0]))?;
    let options = BertOptions::new();
    for token in [-1, 1 << 20] {
        let tokens = array([[1, token]]);
        for logits in [bert.forward(&tokens, &options), modern.forward(&tokens, &options), gpt2.forward(&tokens)] {
            let error = logits.check().expect_err("an unknown token");
            assert!(
                error
                    .message()
                    .contains(&format!("the token {token} is not in the vocabulary, which has the tokens 0 to")),
                "{error}"
            );
            assert!(error.location().is_some_and(|line| line.file().ends_with("main.rs")), "{error}");
        }
    }
    bert.forward(array([[1u8, 2]]), &options).check()?;
    // A traced function does not know the values.
    let traced = jit(|model: Decoder, tokens: Array| model.forward(tokens)).call((&gpt2, array([[1, 1 << 20]])))?;
    assert!(traced.get((0, 1, 0)).item::<f32>()?.is_nan());
    Ok(())
}

/// The ends of the names of arrays that are not saved: tables of sines and of distances, which the models compute, counts of batches, which norms
/// with constant means do not have, and poolers, which no result depends on.
const NOT_SAVED: [&str; 9] = [
    "roformer.encoder.embed_positions.weight",
    "num_batches_tracked",
    "layoutlm.pooler.dense.weight",
    "layoutlm.pooler.dense.bias",
    "bert.pooler.weight",
    "bert.pooler.bias",
    "encoder.pooler.dense.weight",
    "encoder.pooler.dense.bias",
    "relative_position_index",
];

/// Models whose files contain tables of sines under the names that other models have for learned positions.
const WITH_SINES: [&str; 2] = ["marian", "pegasus"];

/// A model whose convolution is one array that transformers divides into three equal parts when it saves it. Here the parts have
/// the sizes of queries, keys and values. transformers joins the parts when it loads a file, so that it can load both.
const DIVIDED_INTO_OTHER_PARTS: &str = "olmo_hybrid_split";

/// Saves the model of a folder, loads it again, and compares the arrays.
fn save_again<M: Pretrained>(name: &str, to: &Path) -> Result<()> {
    let (model, config) = (M::from_pretrained(folder(name))?, Config::open(folder(name))?);
    model.save_pretrained(&config, to)?;
    let again = M::from_pretrained(to)?;
    for ((path, a), b) in tree::leaves_with_path(&model).iter().zip(tree::leaves(&again)) {
        assert_eq!(a.to_bytes()?, b.to_bytes()?, "{name}: {path}");
    }
    let (old, new) = (Weights::open(folder(name))?, Weights::open(to)?);
    let is_computed = |array: &str| WITH_SINES.contains(&name) && array.ends_with("embed_positions.weight");
    // The end begins with the name of a part of the model, as `bert`, which is not the end of another one, as `albert`.
    let is_end =
        |array: &str, end: &str| array.strip_suffix(end).is_some_and(|start| start.is_empty() || start.ends_with('.'));
    let is_saved = |array: &&str| !is_computed(array) && !NOT_SAVED.iter().any(|end| is_end(array, end));
    let names: Vec<_> = old.names().filter(is_saved).collect();
    assert_eq!(names, new.names().collect::<Vec<_>>(), "{name}");
    let is_divided_otherwise = |array: &str| name == DIVIDED_INTO_OTHER_PARTS && array.contains("conv1d");
    for array in names.into_iter().filter(|array| !is_divided_otherwise(array)) {
        assert_eq!(old.shape(array), new.shape(array), "{name}: {array}");
        assert_eq!(old.get(array)?.to_bytes()?, new.get(array)?.to_bytes()?, "{name}: {array}");
    }
    Ok(())
}

/// Saves one of so many models of each class, which `tools/huggingface/check.py` reads with `transformers` and `peft`.
fn save_models(to: &Path, every: usize) -> Result<()> {
    for name in DECODERS.into_iter().step_by(every) {
        save_again::<Decoder>(name, &to.join(name))?;
    }
    save_again::<Vit>("vit", &to.join("vit"))?;
    // Files without a head contain a pooler, which the models do not have here. Files of ESM contain a head for
    // contacts and older names of norms.
    for name in ["bert"]
        .into_iter()
        .chain(ENCODERS)
        .filter(|name| !name.ends_with("_model") && *name != "jina_v3" && !name.starts_with("esm"))
        .step_by(every)
    {
        save_again::<Bert>(name, &to.join(name))?;
    }
    for name in MODERN.into_iter().filter(|name| *name != "modernbert_model").step_by(every) {
        save_again::<ModernBert>(name, &to.join(name))?;
    }
    for name in MOBILE.into_iter().filter(|name| *name != "mobilebert_model").step_by(every) {
        save_again::<MobileBert>(name, &to.join(name))?;
    }
    let config = Config::open(folder("llama"))?;
    Adapter::from_pretrained(&config, folder("adapter"))?.save_pretrained(&config, to.join("adapter"))
}

#[test]
fn saved_models_are_the_files_of_transformers() -> Result<()> {
    setup();
    let temp = Folder::new();
    save_models(&temp.0, quick::one_of(16))?;
    let model = Decoder::from_pretrained(folder("llama"))?;
    let config_of_qwen3 = Config::open(folder("qwen3"))?;
    fails(model.save_pretrained(&config_of_qwen3, temp.join("x")), &["the configuration does not describe this model"]);
    let mut cached = model.clone();
    cached.init_cache(1, 4);
    fails(cached.save_pretrained(&Config::open(folder("llama"))?, temp.join("x")), &["the configuration", "caches"]);
    Ok(())
}

/// Run `tools/huggingface/check.py` after this test.
#[test]
#[ignore = "writes folders for another program"]
fn saved_folders() -> Result<()> {
    setup();
    let root = std::env::var("SAVED").expect("SAVED names a folder");
    let to = Path::new(&root);
    save_models(to, 1)?;
    images::save_all(to, 1)?;
    sound::save_all(to, 1)?;
    encoder_decoder::save_all(to)
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
