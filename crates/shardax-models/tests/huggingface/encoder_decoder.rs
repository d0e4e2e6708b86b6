//! T5 and Whisper (`tools/huggingface/towers.py`).

use std::path::Path;

use shardax_models::{
    BertOptions, Config, EncoderDecoder, EncoderDecoderPositions, Florence, GenerateOptions, LoadOptions, Pretrained,
    log_mel,
};
use shardax_nn::prelude::*;

use super::common::{Folder, fails};
use super::saved::save_again;
use super::{alike, case, compiled, fails_in_trace, folder, quick, rows, setup};

/// Returns the inputs of a case in the layout of the model, and the options with the mask of tokens.
fn inputs(case: &impl Fn(&str) -> Result<Array>) -> Result<(Array, BertOptions)> {
    Ok(match case("attention_mask") {
        Ok(mask) => (case("input_ids").or_else(|_| case("input_values"))?, BertOptions::new().attention_mask(mask)),
        Err(_) => match case("pixel_values") {
            Ok(images) => (images, BertOptions::new()),
            // transformers stores the bands before the frames.
            Err(_) => (case("input_features")?.transpose([0, 2, 1]), BertOptions::new()),
        },
    })
}

/// Compares models of texts. Each case has the token that starts a text.
const TEXTS: [(&str, i32); 17] = [
    ("longt5_local", 0),
    ("t5", 0),
    ("t5_gated", 0),
    ("longt5", 0),
    ("mt5", 0),
    ("umt5", 0),
    ("bart", 3),
    ("mbart", 3),
    ("blenderbot", 3),
    ("blenderbot_small", 3),
    ("plbart", 3),
    ("mvp", 3),
    ("marian", 3),
    ("pegasus", 3),
    ("m2m_100", 3),
    ("fsmt", 3),
    ("fsmt_tied", 3),
];

/// Models that read sound or images, and the token that starts a text.
const OTHERS: [(&str, i32); 7] = [
    ("blip", 3),
    ("whisper", 3),
    ("trocr", 3),
    ("trocr_sines", 3),
    ("trocr_small", 3),
    ("donut", 3),
    ("donut_small", 3),
];

/// Models that read samples of sound or features that another program computes, and the token that starts a text.
const SAMPLES: [(&str, i32); 3] = [("moonshine", 1), ("moonshine_biases", 1), ("speech_to_text", 3)];

fn forward(model: EncoderDecoder, inputs: Array, mask: Option<Array>, targets: Array) -> Array {
    let options = mask.into_iter().fold(BertOptions::new(), BertOptions::attention_mask);
    model.forward(inputs, targets, &options)
}

/// Compares the logits of a model, computed at once and in two steps.
fn check_logits(name: &str) -> Result<()> {
    let decode = jit(|mut model: EncoderDecoder, inputs: Array, mask: Option<Array>, targets: Array| {
        let options = mask.into_iter().fold(BertOptions::new(), BertOptions::attention_mask);
        let input = model.attend_to(model.encode(inputs, &options), &options);
        model.init_cache(targets.shape()[0], targets.shape()[1]);
        let first = model.decode(targets.get((.., ..3)), &input);
        concatenate(&[first, model.decode(targets.get((.., 3..)), &input)], 1)
    });
    let (case, model) = (case(name)?, EncoderDecoder::from_pretrained(folder(name))?);
    let (inputs, _) = inputs(&case)?;
    let arguments = (&model, &inputs, case("attention_mask").ok(), case("decoder_input_ids")?);
    let logits = jit(forward).call(arguments.clone())?;
    alike(name, &logits, &case("logits")?)?;
    alike(name, &decode.call(arguments)?, &case("logits")?)
}

#[test]
fn encoder_decoders_have_the_logits_of_transformers() -> Result<()> {
    setup();
    let mut models = TEXTS.into_iter().chain(OTHERS).step_by(quick::one_of(7));
    models.try_for_each(|(name, _)| check_logits(name))
}

#[test]
fn fsmt_and_speech_to_text_have_the_logits_of_transformers() -> Result<()> {
    setup();
    for name in ["fsmt", "speech_to_text"] {
        check_logits(name)?;
        save_again::<EncoderDecoder>(name, &Folder::new().join(name))?;
    }
    let speech = EncoderDecoder::from_pretrained(folder("speech_to_text"))?;
    fails(speech.encode(zeros([1, 6, 9]), &BertOptions::new()).check(), &["[batch, frames, 6]", "[1, 6, 9]"]);
    fails(speech.sound_features(zeros([1, 100])).check(), &["the model reads features of sound", "`encode`"]);
    let read = |text: &str| EncoderDecoder::read(&Config::from_json(text)?).map(|(config, _)| config);
    // The defaults of the classes are the sizes of published models.
    let published = read(r#"{"model_type": "fsmt"}"#)?;
    assert_eq!((published.source_vocab_size, published.tie_embeddings), (Some(42024), false));
    let tied = r#"{"model_type": "fsmt", "tie_word_embeddings": true, "src_vocab_size": 30}"#;
    fails(read(tied), &["the vocabularies have 30 and 42024 tokens"]);
    let small = read(r#"{"model_type": "speech_to_text"}"#)?;
    assert_eq!(small.frames.map(|frames| frames.kernels), Some(vec![5, 5]));
    fails(read(r#"{"model_type": "speech_to_text", "conv_kernel_sizes": [5]}"#), &["`num_conv_layers` must be 1"]);
    fails(read(r#"{"model_type": "speech_to_text", "conv_channels": 5}"#), &["`conv_channels` is 5", "be even"]);
    Ok(())
}

/// With padding, and with and without tokens that see all tokens.
#[test]
fn led_has_the_logits_of_transformers() -> Result<()> {
    setup();
    let (case, model) = (case("led")?, EncoderDecoder::from_pretrained(folder("led"))?);
    let (inputs, targets, mask) = (case("input_ids")?, case("decoder_input_ids")?, case("attention_mask")?);
    let near = BertOptions::new().attention_mask(mask);
    let everywhere = near.clone().global_attention(case("global_attention_mask")?);
    for (options, logits) in [(&everywhere, "logits"), (&near, "logits_near")] {
        alike(logits, &compiled(&model, |model| model.forward(&inputs, &targets, options))?, &case(logits)?)?;
    }
    save_again::<EncoderDecoder>("led", &Folder::new().join("led"))?;
    let bart = EncoderDecoder::from_pretrained(folder("bart"))?;
    fails_in_trace(|| bart.encode(&inputs, &everywhere), &["all tokens of the model see all tokens"]);
    let config = |window: &str| {
        let text = format!(r#"{{"model_type": "led", "encoder_layers": 2, "attention_window": {window}}}"#);
        EncoderDecoder::read(&Config::from_json(&text)?).map(|(config, _)| config)
    };
    assert_eq!(config("[4, 6]")?.windows, [2, 3]);
    fails(config("[4]"), &["`attention_window` has 1 entries for 2 layers"]);
    fails(config("5"), &["`attention_window` has 5, but must be even"]);
    Ok(())
}

/// Compares the tokens that a model writes after `start`.
fn check_tokens((name, start): (&str, i32)) -> Result<()> {
    let (case, model) = (case(name)?, EncoderDecoder::from_pretrained(folder(name))?);
    let ((inputs, _), expected) = (inputs(&case)?, rows(&case("generated")?)?);
    let write = |options: &GenerateOptions| match case("attention_mask") {
        Ok(mask) => model.generate_masked(&inputs, mask, &[start], options),
        Err(_) => model.generate(&inputs, &[start], options),
    };
    assert_eq!(write(&GenerateOptions::new(6))?, expected, "{name}");
    // Each text ends with its first stop token.
    let stop = expected[0][2];
    let until = |row: &Vec<i32>| row[..row.iter().position(|t| *t == stop).map_or(row.len(), |at| at + 1)].to_vec();
    let written = write(&GenerateOptions::new(6).stop_tokens([stop]))?;
    assert_eq!(written, expected.iter().map(until).collect::<Vec<_>>(), "{name}");
    Ok(())
}

#[test]
fn encoder_decoders_write_the_tokens_of_transformers() -> Result<()> {
    setup();
    // A slice has other models than the test above.
    let models = TEXTS.into_iter().chain(OTHERS).skip(quick::one_of(5) - 1).step_by(quick::one_of(9));
    for model in models {
        check_tokens(model)?;
    }
    let model = EncoderDecoder::from_pretrained(folder("whisper"))?;
    let features = zeros([1, 20, 8]);
    fails(model.generate(&features, &[], &GenerateOptions::new(2)), &["the prompt [] is empty"]);
    fails(model.generate(&features, &[33], &GenerateOptions::new(2)), &["[33]", "33 of the model"]);
    fails(model.generate(&features, &[3], &GenerateOptions::new(17)), &["do not fit", "16 positions"]);
    fails(model.generate(zeros([1, 24, 8]), &[3], &GenerateOptions::new(2)), &["12 tokens", "10 positions"]);
    Ok(())
}

#[test]
fn texts_of_samples_equal_transformers() -> Result<()> {
    setup();
    for (name, start) in SAMPLES {
        check_logits(name)?;
        check_tokens((name, start))?;
        save_again::<EncoderDecoder>(name, &Folder::new().join(name))?;
    }
    Ok(())
}

/// The configurations of Moonshine, and sound that is too short.
#[test]
fn moonshine_rejects_other_sizes() -> Result<()> {
    setup();
    let model = EncoderDecoder::from_pretrained(folder("moonshine"))?;
    fails_in_trace(|| model.encode(zeros([1, 894]), &BertOptions::new()), &["at least 895 samples", "[1, 894]"]);
    assert_eq!(model.encode(zeros([1, 895]), &BertOptions::new()).shape(), [1, 1, 24]);
    fails_in_trace(|| model.encode(zeros([1, 9, 9]), &BertOptions::new()), &["[batch, samples]", "[1, 9, 9]"]);
    let read = |fields: &str| {
        let text = format!(r#"{{"model_type": "moonshine"{fields}}}"#);
        EncoderDecoder::read(&Config::from_json(&text)?).map(|(read, _)| read)
    };
    // The fields of a published model.
    let tiny = read(
        r#", "architectures": ["MoonshineForConditionalGeneration"], "attention_bias": false, "attention_dropout": 0.0,
        "bos_token_id": 1, "decoder_hidden_act": "silu", "decoder_num_attention_heads": 8, "decoder_num_hidden_layers": 6,
        "decoder_num_key_value_heads": 8, "decoder_start_token_id": 1, "encoder_hidden_act": "gelu",
        "encoder_num_attention_heads": 8, "encoder_num_hidden_layers": 6, "encoder_num_key_value_heads": 8, "eos_token_id": 2,
        "hidden_size": 288, "initializer_range": 0.02, "intermediate_size": 1152, "is_encoder_decoder": true,
        "max_position_embeddings": 194, "pad_head_dim_to_multiple_of": 8, "partial_rotary_factor": 0.9, "rope_scaling": null,
        "rope_theta": 10000.0, "torch_dtype": "float32", "use_cache": true, "vocab_size": 32768"#,
    )?;
    assert_eq!(tiny.positions, EncoderDecoderPositions::Rotary { base: 10_000.0, features: 32 });
    for (fields, words) in [
        (r#", "decoder_num_attention_heads": 4"#, "`decoder_num_attention_heads` must be 8"),
        (r#", "encoder_num_key_value_heads": 4"#, "`encoder_num_key_value_heads` must be 8"),
        (r#", "hidden_size": 100"#, "does not divide hidden_size"),
        (r#", "rope_scaling": {"rope_type": "linear", "factor": 2.0}"#, "rotary positions are scaled"),
        (r#", "architectures": ["MoonshineModel"]"#, "does not generate text"),
    ] {
        fails(read(fields), &[words]);
    }
    Ok(())
}

#[test]
fn saved_encoder_decoders_are_the_files_of_transformers() -> Result<()> {
    setup();
    let temp = Folder::new();
    let names = [
        "blip",
        "longt5",
        "longt5_local",
        "t5",
        "t5_gated",
        "umt5",
        "bart",
        "m2m_100",
        "whisper",
        "trocr",
        "trocr_small",
        "donut",
    ];
    for name in names.into_iter().step_by(quick::one_of(3)) {
        save_again::<EncoderDecoder>(name, &temp.join(name))?;
    }
    Ok(())
}

/// Saves all models.
pub(super) fn save_all(to: &Path) -> Result<()> {
    TEXTS
        .into_iter()
        .chain(OTHERS)
        .chain(SAMPLES)
        .chain([("led", 3)])
        .try_for_each(|(name, _)| save_again::<EncoderDecoder>(name, &to.join(name)))
}

#[test]
fn encoder_decoders_are_split_as_they_are_read() -> Result<()> {
    setup();
    let mesh = make_mesh([("data", 2), ("model", 2)])?;
    let rules = Rules::new(&mesh, [("batch", "data"), ("heads", "model"), ("mlp", "model")]);
    for name in ["t5", "whisper"].into_iter().step_by(quick::one_of(2)) {
        let case = case(name)?;
        let model = EncoderDecoder::from_pretrained_with(folder(name), &LoadOptions::new().rules(&rules))?;
        let leaves = tree::leaves(&model);
        let split = leaves.iter().filter(|leaf| !leaf.sharding().expect("a sharding").is_fully_replicated()).count();
        assert!(split > 20, "{name}");
        let rows = |x: &Array| device_put(x, &NamedSharding::new(&mesh, P!["data"]));
        let mask = case("attention_mask").ok().map(|mask| rows(&mask)).transpose()?;
        let arguments = (&model, rows(&inputs(&case)?.0)?, mask, rows(&case("decoder_input_ids")?)?);
        alike(name, &jit(forward).call(arguments)?, &case("logits")?)?;
    }
    Ok(())
}

/// Returns a sample of the sound in `towers.py`.
fn sound_sample(i: i32) -> f32 {
    let i = f64::from(i);
    (0.4 * (0.05 * i).sin() + 0.2 * (2e-5 * i * i).sin()) as f32
}

/// Compares the features of a sound with the features in transformers.
#[test]
fn sound_features_equal_transformers() -> Result<()> {
    setup();
    let case = case("mel")?;
    let mut sound: Vec<f32> = (0..16_000).map(sound_sample).collect();
    sound.resize(32_000, 0.0);
    for bins in [80, 128].into_iter().step_by(quick::one_of(2)) {
        let features =
            jit(move |sound: Array| log_mel(sound, bins)).call(Array::from_vec(sound.clone(), &[1, 32_000])?)?;
        assert_eq!(features.shape(), [1, 200, bins]);
        let sampled = features.transpose([0, 2, 1]).take(arange(0..20) * 10, 2);
        alike("mel", &sampled, &case(&format!("features_{bins}"))?)?;
    }
    let model = EncoderDecoder::from_pretrained(folder("whisper"))?;
    assert_eq!(model.sound_features(zeros([2, 1000])).shape(), [2, 20, 8]);
    fails_in_trace(|| model.sound_features(zeros([1, 3201])), &["[1, 3201]", "3200 samples"]);
    fails(log_mel(zeros([200]), 80).check(), &["80 bands from 200 samples"]);
    let t5 = EncoderDecoder::from_pretrained(folder("t5"))?;
    fails_in_trace(|| t5.sound_features(zeros([1, 10])), &["the model reads texts"]);
    Ok(())
}

/// Reads the fields of published configurations, and fields that no model supports.
#[test]
fn configurations_of_encoder_decoders_load_or_say_why() -> Result<()> {
    setup();
    let read = |text: &str| EncoderDecoder::read(&Config::from_json(text)?).map(|(config, _)| config);
    let small = read(
        r#"{"architectures": ["T5WithLMHeadModel"], "d_ff": 2048, "d_kv": 64, "d_model": 512, "decoder_start_token_id": 0,
        "dropout_rate": 0.1, "eos_token_id": 1, "initializer_factor": 1.0, "is_encoder_decoder": true,
        "layer_norm_epsilon": 1e-06, "model_type": "t5", "n_positions": 512, "num_heads": 8, "num_layers": 6,
        "output_past": true, "pad_token_id": 0, "relative_attention_num_buckets": 32, "vocab_size": 32128,
        "task_specific_params": {"summarization": {"num_beams": 4}}}"#,
    )?;
    assert_eq!((small.gated, small.tie_embeddings, small.logits_scale), (false, true, Some(512f64.sqrt().recip())));
    let flan = read(r#"{"model_type": "t5", "feed_forward_proj": "gated-gelu", "tie_word_embeddings": false}"#)?;
    assert_eq!((flan.gated, flan.tie_embeddings, flan.logits_scale), (true, false, None));
    let tiny = read(
        r#"{"architectures": ["WhisperForConditionalGeneration"], "begin_suppress_tokens": [220, 50257], "model_type": "whisper",
        "forced_decoder_ids": [[1, 50259]], "num_hidden_layers": 4, "max_length": 448, "suppress_tokens": [1, 2]}"#,
    )?;
    assert_eq!((tiny.mel_bins, tiny.decoder.layers, tiny.vocab_size), (Some(80), 4, 51_865));
    let images = |encoder: &str, decoder: &str| {
        let encoder = format!(r#"{{"model_type": "vit", "image_size": 384, "qkv_bias": false{encoder}}}"#);
        let decoder = format!(r#"{{"model_type": "trocr", "is_decoder": true, "add_cross_attention": true{decoder}}}"#);
        read(&format!(
            r#"{{"architectures": ["VisionEncoderDecoderModel"], "model_type": "vision-encoder-decoder", "is_encoder_decoder": true,
            "tie_word_embeddings": false, "encoder": {encoder}, "decoder": {decoder}}}"#
        ))
    };
    // The fields of a published model, and of one whose encoder has as many features as its decoder.
    let trocr = images(
        "",
        r#", "cross_attention_hidden_size": 768, "decoder_start_token_id": 2, "max_position_embeddings": 512"#,
    )?;
    assert_eq!((trocr.first_position, trocr.images.as_ref().map(|images| images.is_projected)), (2, Some(false)));
    let same = images("", r#", "d_model": 768, "use_learned_position_embeddings": false"#)?;
    assert_eq!(same.images.map(|images| images.is_projected), Some(false));
    // The fields of Donut.
    let donut = read(
        r#"{"architectures": ["VisionEncoderDecoderModel"], "model_type": "vision-encoder-decoder", "is_encoder_decoder": true,
        "decoder": {"model_type": "mbart", "is_decoder": true, "add_cross_attention": true, "add_final_layer_norm": true,
        "is_encoder_decoder": false, "scale_embedding": true, "decoder_layers": 4, "encoder_layers": 12, "vocab_size": 57525,
        "max_position_embeddings": 768, "d_model": 1024}, "encoder": {"model_type": "donut-swin", "depths": [2, 2, 14, 2],
        "embed_dim": 128, "hidden_size": 1024, "image_size": [2560, 1920], "num_heads": [4, 8, 16, 32], "num_layers": 4,
        "path_norm": true, "use_absolute_embeddings": false, "window_size": 10}}"#,
    )?;
    assert_eq!((donut.sum_norms, donut.final_norm, donut.first_position), (false, true, 2));
    assert_eq!(images("", "")?.images.map(|images| images.is_projected), Some(true));
    fails(images("", r#", "cross_attention_hidden_size": 512"#), &["`cross_attention_hidden_size` must be 768"]);
    fails(images("", r#", "model_type": "gpt2""#), &["\"gpt2\" is not one of trocr, mbart"]);
    fails(images(r#", "model_type": "resnet""#, ""), &["\"resnet\" is not one of vit"]);
    fails(
        images(r#", "model_type": "donut-swin", "use_absolute_embeddings": true"#, ""),
        &["`use_absolute_embeddings` is true"],
    );
    fails(images("", r#", "decoder_attention_heads": 7"#), &["decoder_attention_heads (7) does not divide d_model"]);
    let model = EncoderDecoder::from_pretrained(folder("trocr"))?;
    fails(
        model.encode(zeros([2, 8]), &BertOptions::new()).check(),
        &["[2, 8] are not [batch, rows, columns, channels]"],
    );
    fails_in_trace(|| model.sound_features(zeros([1, 10])), &["the model reads images"]);
    // Fields and types that would change the results.
    fails(read(r#"{"model_type": "whisper", "scale_embedding": true}"#), &["field `scale_embedding` is true"]);
    fails(read(r#"{"model_type": "t5", "feed_forward_proj": "gated-nonsense"}"#), &["\"nonsense\" is not supported"]);
    fails(
        read(r#"{"model_type": "t5", "architectures": ["T5EncoderModel"]}"#),
        &["\"T5EncoderModel\"", "does not generate text"],
    );
    fails(read(r#"{"model_type": "t5", "num_heads": 0}"#), &["`num_heads` must be a positive integer"]);
    // Published files of BLIP have the fields of the base class in both objects.
    let base = r#""num_channels": 3, "remove_invalid_values": false, "typical_p": 1.0, "torchscript": false, "bad_words_ids": null"#;
    let blip = |class: &str, channels: &str| {
        let vision = base.replace("\"num_channels\": 3", channels);
        read(&format!(
            r#"{{"model_type": "blip", "architectures": ["{class}"], "image_text_hidden_size": 256,
            "text_config": {{"add_cross_attention": false, "num_attention_heads": 12, "is_encoder_decoder": false}},
            "vision_config": {{{vision}}}}}"#
        ))
    };
    blip("BlipForConditionalGeneration", r#""num_channels": 3"#)?;
    fails(blip("BlipForConditionalGeneration", r#""num_channels": 1"#), &["field `num_channels` must be 3, got 1"]);
    fails(blip("BlipForQuestionAnswering", r#""num_channels": 3"#), &["\"BlipForQuestionAnswering\"", "generate"]);
    // A text that is shorter than a block has no sums of blocks.
    let long = EncoderDecoder::from_pretrained(folder("longt5"))?;
    let short = long.encode(array([[5, 6, 7]]), &BertOptions::new());
    short.check()?;
    assert_eq!(short.shape(), [1, 3, 16]);
    fails(read(r#"{"model_type": "prophetnet"}"#), &["\"prophetnet\" is not one of t5, longt5"]);
    fails(
        read(r#"{"model_type": "longt5", "encoder_attention_type": "full"}"#),
        &["`encoder_attention_type` is \"full\""],
    );
    fails(read(r#"{"model_type": "marian", "decoder_vocab_size": 7}"#), &["separate token embeddings"]);
    let bart = read(
        r#"{"_num_labels": 3, "activation_dropout": 0.0, "activation_function": "gelu", "add_final_layer_norm": false,
        "architectures": ["BartForConditionalGeneration"], "attention_dropout": 0.0, "classif_dropout": 0.0, "d_model": 1024,
        "decoder_attention_heads": 16, "decoder_ffn_dim": 4096, "decoder_layerdrop": 0.0, "decoder_layers": 12,
        "early_stopping": true, "force_bos_token_to_be_generated": true, "forced_bos_token_id": 0, "model_type": "bart",
        "max_position_embeddings": 1024, "normalize_before": false, "num_hidden_layers": 12, "prefix": " ",
        "scale_embedding": false, "vocab_size": 50264}"#,
    )?;
    assert_eq!((bart.sum_norms, bart.first_position, bart.decoder.layers), (true, 2, 12));
    Ok(())
}

#[test]
fn florence_writes_the_texts_of_transformers() -> Result<()> {
    setup();
    let (case, model) = (case("florence2")?, Florence::from_pretrained(folder("florence2"))?);
    let forward = jit(|model: Florence, inputs: [Array; 4]| {
        let [images, tokens, mask, targets] = inputs;
        model.forward(images, tokens, targets, &BertOptions::new().attention_mask(mask))
    });
    let images = case("pixel_values")?;
    let inputs = [images.clone(), case("input_ids")?, case("attention_mask")?, case("decoder_input_ids")?];
    alike("florence2", &forward.call((&model, inputs))?, &case("logits")?)?;
    let written = model.generate(&images, case("prompts")?, &[2], &GenerateOptions::new(6))?;
    assert_eq!(written, rows(&case("generated")?)?);
    save_again::<Florence>("florence2", &Folder::new().join("florence2"))?;

    let written = model.generate(&images, array([[30, 30, 5]; 2]), &[2], &GenerateOptions::new(1));
    fails(written, &["a text has 2 image tokens (30), but an image 10 features"]);
    fails_in_trace(|| model.image_features(zeros([1, 3, 24, 20])), &["[1, 3, 24, 20]", "[batch, rows, columns, 3]"]);
    fails_in_trace(|| model.image_features(zeros([1, 24, 80, 3])), &["3 by 10 features, but only 8 have positions"]);
    let read = |text: &str| Florence::read(&Config::from_json(text)?).map(|(read, _)| read);
    // The defaults of the classes are the largest published model, except for the vocabulary.
    let large = read(r#"{"model_type": "florence2", "text_config": {"vocab_size": 51328}}"#)?;
    assert_eq!((large.images.stages.len(), large.text.features), (4, 1024));
    for (vision, words) in [
        (r#""patch_padding": [3, 1]"#, "the lists of stages must have 4 entries"),
        (r#""patch_padding": [3, 1, 1, -1]"#, "`patch_padding` must be integers of at least 0"),
        (r#""patch_prenorm": [1, 0, 0, 0]"#, "`patch_prenorm` must be a list of true and false"),
        (r#""window_size": 4000000000"#, "`window_size` is 4000000000, but can be at most"),
        (r#""num_groups": [3, 8, 16, 32]"#, "num_groups (3) does not divide embed_dim (128)"),
        (r#""projection_dim": 768"#, "field `projection_dim` must be 1024, got 768"),
        (r#""mlp_ratio": 0.0001"#, "`mlp_ratio` is 0.0001"),
        (r#""mlp_bias": true"#, "field `mlp_bias` is true"),
    ] {
        let text = r#""text_config": {"vocab_size": 51328}"#;
        fails(read(&format!(r#"{{"model_type": "florence2", {text}, "vision_config": {{{vision}}}}}"#)), &[words]);
    }
    fails(read(r#"{"model_type": "florence2"}"#), &["`image_token_id` is 51289, which is not in the vocabulary"]);
    fails(read(r#"{"model_type": "florence2", "text_config": {"model_type": "t5"}}"#), &["not \"bart\""]);
    Ok(())
}
