//! Encoders of texts (`tools/huggingface/generate.py`).

use shardax_models::{
    Bert, BertOptions, Config, CrossEncoder, Deberta, Decoder, GenerateOptions, MobileBert, ModernBert, Pretrained,
    SentenceEncoder,
};
use shardax_nn::prelude::*;

use super::common::{Folder, fails};
use super::{alike, case, fails_in_trace, folder, quick, rows, setup};

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
pub(super) const ENCODERS: [&str; 49] = [
    "luke",
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
    "convbert",
    "convbert_model",
    "convbert_classes",
    "fnet",
    "fnet_classes",
    "fnet_tokens",
];

/// ModernBERT and its heads. The inputs contain masked padding.
pub(super) const MODERN: [&str; 4] = ["modernbert", "modernbert_model", "modernbert_classes", "modernbert_tokens"];

/// DeBERTa and its heads. The inputs contain masked padding.
const DEBERTA: [&str; 5] = ["deberta", "deberta_classes", "deberta_v2", "deberta_v2_classes", "deberta_v2_tokens"];

/// MobileBERT and its heads. The inputs contain masked padding.
pub(super) const MOBILE: [&str; 4] = ["mobilebert", "mobilebert_classes", "mobilebert_tokens", "mobilebert_model"];

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
    for name in ["eurobert", "mistral_not_causal"] {
        let (case, model) = (case(name)?, Decoder::from_pretrained(folder(name))?);
        let tokens = case("input_ids")?;
        alike(name, &model.forward(&tokens), &case("logits")?)?;
        fails(model.generate(&rows(&tokens)?, &GenerateOptions::new(1)), &["cannot continue a text"]);
    }
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
    fails_in_trace(|| model.forward(array([3, 4]), &options), &["[2] is not [batch, length]"]);
    fails_in_trace(|| model.forward(array([[40]]), &options), &["the token 40"]);
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
        eval_shape(|model: Bert| model.encode(zeros_dtype([1, length], DType::I32), &BertOptions::new()), &model)
    };
    assert_eq!(encode("", 9)?.shape()[1], 9);
    fails(encode("", 10), &["a text has 10 tokens", "for more than 9 tokens"]);
    assert_eq!(encode(r#", "attention_type": "original_full""#, 20)?.shape()[1], 20);
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
            assert!(error.location().is_some_and(|line| line.file().ends_with("encoders.rs")), "{error}");
        }
    }
    bert.forward(array([[1u8, 2]]), &options).check()?;
    // A traced function does not know the values.
    let traced = jit(|model: Decoder, tokens: Array| model.forward(tokens)).call((&gpt2, array([[1, 1 << 20]])))?;
    assert!(traced.get((0, 1, 0)).item::<f32>()?.is_nan());
    Ok(())
}
