//! Encoders of sound (`tools/huggingface/towers.py`).

use std::path::Path;

use shardax_models::huggingface::SoundHead;
use shardax_models::{BertOptions, Clap, Config, LoadOptions, Pretrained, SoundEncoder, SpectrogramEncoder};
use shardax_nn::prelude::*;

use super::common::{Folder, fails};
use super::quick::one_of;
use super::saved::save_again;
use super::{alike, case, compiled, fails_in_trace, folder, setup};

fn forward(model: SoundEncoder, sound: Array, mask: Array) -> Array {
    model.forward(sound, &BertOptions::new().attention_mask(mask))
}

/// Encoders of samples.
const SOUNDS: [&str; 22] = [
    "wav2vec2",
    "wav2vec2_classes",
    "wav2vec2_model",
    "wav2vec2_adapters",
    "wav2vec2_languages",
    "hubert",
    "hubert_model",
    "wavlm",
    "wavlm_model",
    "wavlm_classes",
    "unispeech",
    "unispeech_sat",
    "data2vec_audio",
    "wav2vec2_conformer",
    "wav2vec2_conformer_rotary",
    "wav2vec2_bert",
    "wav2vec2_bert_adapter",
    "wav2vec2_bert_model",
    "wav2vec2_bert_classes",
    "sew",
    "sew_classes",
    "sew_model",
];

/// Encoders of spectrograms.
const SPECTROGRAMS: [&str; 2] = ["spectrogram", "spectrogram_model"];

/// Encoders of sounds and texts.
const CLAPS: [&str; 2] = ["clap_fused", "clap"];

/// Saves one of so many encoders of sound.
pub(super) fn save_all(to: &Path, every: usize) -> Result<()> {
    for name in SOUNDS.into_iter().step_by(every) {
        save_again::<SoundEncoder>(name, &to.join(name))?;
    }
    SPECTROGRAMS
        .into_iter()
        .step_by(every)
        .try_for_each(|name| save_again::<SpectrogramEncoder>(name, &to.join(name)))?;
    CLAPS.into_iter().step_by(every).try_for_each(|name| save_again::<Clap>(name, &to.join(name)))
}

#[test]
fn encoders_of_sound_have_the_results_of_transformers() -> Result<()> {
    setup();
    for name in SOUNDS.into_iter().step_by(one_of(3)) {
        let (case, model) = (case(name)?, SoundEncoder::from_pretrained(folder(name))?);
        let (sound, mask) = (case("input_values")?, case("attention_mask")?);
        alike(name, &jit(forward).call((&model, &sound, mask))?, &case("logits")?)?;
    }
    let model = SoundEncoder::from_pretrained(folder("wav2vec2_bert_adapter"))?;
    fails_in_trace(|| model.forward(zeros([1, 400]), &BertOptions::new()), &["[1, 400]", "[batch, frames, 6]"]);
    let model = SoundEncoder::from_pretrained(folder("wav2vec2_bert"))?;
    fails_in_trace(|| model.forward(zeros([1, 0, 6]), &BertOptions::new()), &["[1, 0, 6]", "[batch, frames, 6]"]);
    let read = |fields: &str| {
        let text = format!(r#"{{"model_type": "wav2vec2-bert", "vocab_size": 33{fields}}}"#);
        SoundEncoder::read(&Config::from_json(&text)?).map(|(read, _)| read)
    };
    // The defaults of the class are the published model.
    assert_eq!(read("")?.input_features, Some(160));
    assert_eq!(read(r#", "add_adapter": true"#)?.frame_adapter.map(|about| about.features), Some(1024));
    for (fields, words) in [
        (r#", "conv_depthwise_kernel_size": 4"#, "`conv_depthwise_kernel_size` is 4, but must be odd"),
        (r#", "position_embeddings_type": "learned""#, "`position_embeddings_type` \"learned\" is not supported"),
        (r#", "use_intermediate_ffn_before_adapter": true"#, "`use_intermediate_ffn_before_adapter` is true"),
        (r#", "add_adapter": true, "output_hidden_size": 1000"#, "does not divide output_hidden_size (1000)"),
        (r#", "add_adapter": true, "adapter_kernel_size": 4000000000"#, "`adapter_kernel_size` is 4000000000"),
        (
            r#", "add_adapter": true, "architectures": ["Wav2Vec2BertForSequenceClassification"]"#,
            "`add_adapter` is true",
        ),
        (r#", "left_max_position_embeddings": -1"#, "field `left_max_position_embeddings` must be an integer from 0"),
    ] {
        fails(read(fields), &[words]);
    }
    let model = SoundEncoder::from_pretrained(folder("sew"))?;
    fails_in_trace(|| model.forward(zeros([1, 29]), &BertOptions::new()), &["29 samples", "a frame of 30"]);
    let model = SoundEncoder::from_pretrained(folder("hubert"))?;
    let (sound, mask) = (case("hubert")?("input_values")?, ones([2, 400]));
    let unmasked = model.forward(&sound, &BertOptions::new());
    alike("hubert", &unmasked, &forward(model.clone(), sound, mask))?;
    fails_in_trace(|| model.forward(zeros([400]), &BertOptions::new()), &["[400]", "[batch, samples]"]);
    fails_in_trace(|| model.forward(zeros([1, 19]), &BertOptions::new()), &["19 samples", "a frame of 20"]);
    Ok(())
}

#[test]
fn adapters_of_languages_replace_the_letters() -> Result<()> {
    setup();
    let (case, from) = (case("wav2vec2_languages")?, folder("wav2vec2_languages"));
    let (model, config) = SoundEncoder::from_pretrained_for(&from, "fra", &LoadOptions::new())?;
    let sound = case("input_values")?;
    let logits = |model| compiled(model, |model: &SoundEncoder| model.forward(&sound, &BertOptions::new()));
    alike("fra", &logits(&model)?, &case("logits_fra")?)?;
    // The saved files have the adapter and the letters of the language.
    let to = Folder::new();
    model.save_pretrained(&config, &to.0)?;
    let again = SoundEncoder::from_pretrained(&to.0)?;
    alike("fra", &logits(&again)?, &case("logits_fra")?)?;
    let load = |folder: &Path, language: &str| SoundEncoder::from_pretrained_for(folder, language, &LoadOptions::new());
    fails(load(&from, "deu").map(|(_, config)| config), &["no file adapter.deu.safetensors"]);
    fails(load(&from, "../fra").map(|(_, config)| config), &["\"../fra\" is not the code of a language"]);
    let adapter = to.join("adapter.fra.safetensors");
    std::fs::copy(from.join("adapter.fra.safetensors"), &adapter).expect("a copy");
    std::fs::copy(folder("wav2vec2").join("model.safetensors"), to.join("model.safetensors")).expect("a copy");
    fails(load(&to.0, "fra").map(|(_, config)| config), &["adapter.fra.safetensors has the array", "adapter_layer"]);
    Ok(())
}

#[test]
fn encoders_of_spectrograms_have_the_results_of_transformers() -> Result<()> {
    setup();
    for name in SPECTROGRAMS.into_iter().step_by(one_of(2)) {
        let (case, model) = (case(name)?, SpectrogramEncoder::from_pretrained(folder(name))?);
        let logits =
            jit(|model: SpectrogramEncoder, x: Array| model.forward(x)).call((&model, case("input_values")?))?;
        alike(name, &logits, &case("logits")?)?;
    }
    let model = SpectrogramEncoder::from_pretrained(folder("spectrogram"))?;
    fails_in_trace(|| model.forward(zeros([1, 9, 16])), &["[1, 9, 16]", "[batch, 20, 9]"]);
    let read = |text: &str| SpectrogramEncoder::read(&Config::from_json(text)?).map(|(read, _)| read);
    // The fields of a published model.
    let audioset = read(
        r#"{"architectures": ["ASTForAudioClassification"], "attention_probs_dropout_prob": 0.0, "frequency_stride": 10,
        "hidden_act": "gelu", "hidden_dropout_prob": 0.0, "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072,
        "layer_norm_eps": 1e-12, "max_length": 1024, "model_type": "audio-spectrogram-transformer", "num_attention_heads": 12,
        "num_hidden_layers": 12, "num_mel_bins": 128, "patch_size": 16, "qkv_bias": true, "time_stride": 10,
        "torch_dtype": "float32", "transformers_version": "4.25.0.dev0"}"#,
    )?;
    assert_eq!((audioset.max_length, audioset.classes), (1024, Some(2)));
    for (fields, words) in [
        (r#""num_mel_bins": 8"#, "`num_mel_bins` is 8, which is less than a patch of 16"),
        (r#""architectures": ["ASTForCTC"]"#, "the class \"ASTForCTC\""),
        (r#""num_attention_heads": 5"#, "num_attention_heads (5) does not divide hidden_size"),
        (r#""mlp_ratio": 3"#, "field `mlp_ratio` is 3"),
    ] {
        fails(read(&format!(r#"{{"model_type": "audio-spectrogram-transformer", {fields}}}"#)), &[words]);
    }
    Ok(())
}

#[test]
fn clap_has_the_logits_of_transformers() -> Result<()> {
    setup();
    let forward = jit(|model: Clap, tokens: Array, mask: Array, sounds: Array, is_longer: Array| {
        model.forward(tokens, sounds, Some(&is_longer), &BertOptions::new().attention_mask(mask))
    });
    for name in CLAPS.into_iter().step_by(one_of(2)) {
        let (case, model) = (case(name)?, Clap::from_pretrained(folder(name))?);
        let inputs = (case("input_ids")?, case("attention_mask")?, case("input_features")?, case("is_longer")?);
        let logits = forward.call((&model, inputs.0, inputs.1, inputs.2, inputs.3))?;
        alike(name, &logits, &case("logits_per_audio")?)?;
    }
    let mesh = make_mesh([("data", 2), ("model", 2)])?;
    let rules = Rules::new(&mesh, [("batch", "data"), ("heads", "model"), ("mlp", "model")]);
    let model = Clap::from_pretrained_with(folder("clap"), &LoadOptions::new().rules(&rules))?;
    let (case, place) = (case("clap")?, |x: Array, spec| device_put(x, &NamedSharding::new(&mesh, spec)));
    let (tokens, mask) = (place(case("input_ids")?, P![])?, place(case("attention_mask")?, P![])?);
    let (sounds, is_longer) = (place(case("input_features")?, P![])?, place(case("is_longer")?, P![])?);
    let logits = forward.call((&model, tokens, mask, sounds, is_longer))?;
    alike("clap", &logits, &case("logits_per_audio")?)?;
    fails_in_trace(
        || model.sound_features(zeros([1, 1, 33, 8]), None),
        &["[1, 1, 33, 8]", "[batch, 1, frames, 8]", "32"],
    );
    let read = |fields: &str| {
        let text = format!(r#"{{"model_type": "clap"{fields}}}"#);
        Clap::read(&Config::from_json(&text)?).map(|(read, _)| read)
    };
    // The defaults of the class are the sizes of a published model.
    let base = read("")?;
    assert_eq!((base.audio.embed_dim, base.text.num_hidden_layers, base.fusion), (96, 12, None));
    assert_eq!(read(r#", "audio_config": {"enable_fusion": true}"#)?.fusion, Some(24));
    for (fields, words) in [
        (r#""enable_fusion": true, "fusion_type": "channel_map""#, "`fusion_type` \"channel_map\" is not supported"),
        (r#""patch_stride": [2, 2]"#, "`patch_stride` is 2, but must be `patch_size`, which is 4"),
        (r#""patch_stride": [4, 2]"#, "field `patch_stride` must be a number or two equal numbers"),
        (r#""num_mel_bins": 60"#, "num_mel_bins (60) does not divide spec_size (256)"),
        (r#""window_size": 9"#, "the last stage has only 8 by 8 patches"),
        (r#""hidden_size": 700"#, "field `hidden_size` must be 768, got 700"),
        (r#""enable_patch_layer_norm": false"#, "must be true"),
    ] {
        fails(read(&format!(r#", "audio_config": {{{fields}}}"#)), &[words]);
    }
    Ok(())
}

#[test]
fn saved_encoders_of_sound_are_the_files_of_transformers() -> Result<()> {
    setup();
    save_all(&Folder::new().0, one_of(6))
}

#[test]
fn encoders_of_sound_are_split_as_they_are_read() -> Result<()> {
    setup();
    let mesh = make_mesh([("data", 2), ("model", 2)])?;
    let rules = Rules::new(&mesh, [("batch", "data"), ("heads", "model"), ("mlp", "model")]);
    let model = SoundEncoder::from_pretrained_with(folder("wav2vec2"), &LoadOptions::new().rules(&rules))?;
    let split = tree::leaves(&model).iter().filter(|leaf| !leaf.sharding().expect("one").is_fully_replicated()).count();
    assert!(split >= 20, "{split} arrays are split");
    Ok(())
}

/// The configurations of published models load, or are rejected with this message.
#[test]
fn configurations_of_sound_load_or_say_why() -> Result<()> {
    setup();
    let read = |text: &str| SoundEncoder::read(&Config::from_json(text)?).map(|(read, _)| read);
    let base = read(
        r#"{"activation_dropout": 0.1, "apply_spec_augment": true, "architectures": ["Wav2Vec2ForCTC"], "attention_dropout": 0.1,
        "codevector_dim": 256, "contrastive_logits_temperature": 0.1, "conv_bias": false, "conv_dim": [512, 512, 512, 512, 512, 512, 512],
        "conv_kernel": [10, 3, 3, 3, 3, 2, 2], "conv_stride": [5, 2, 2, 2, 2, 2, 2], "ctc_loss_reduction": "sum",
        "ctc_zero_infinity": false, "diversity_loss_weight": 0.1, "do_stable_layer_norm": false, "feat_extract_activation": "gelu",
        "feat_extract_dropout": 0.0, "feat_extract_norm": "group", "feat_proj_dropout": 0.1, "feat_quantizer_dropout": 0.0,
        "final_dropout": 0.1, "gradient_checkpointing": false, "hidden_act": "gelu", "hidden_dropout": 0.1, "hidden_dropout_prob": 0.1,
        "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072, "layer_norm_eps": 1e-05, "layerdrop": 0.1,
        "mask_feature_length": 10, "mask_feature_prob": 0.0, "mask_time_length": 10, "mask_time_prob": 0.05, "model_type": "wav2vec2",
        "num_attention_heads": 12, "num_codevector_groups": 2, "num_codevectors_per_group": 320, "num_conv_pos_embedding_groups": 16,
        "num_conv_pos_embeddings": 128, "num_feat_extract_layers": 7, "num_hidden_layers": 12, "num_negatives": 100,
        "pad_token_id": 0, "proj_codevector_dim": 256, "transformers_version": "4.7.0.dev0", "vocab_size": 32}"#,
    )?;
    assert_eq!((base.head, base.pre_norms, base.has_mask), (SoundHead::Letters(32), false, true));
    let pretrained = read(r#"{"model_type": "wav2vec2", "architectures": ["Wav2Vec2ForPreTraining"]}"#)?;
    assert_eq!(pretrained.head, SoundHead::None);
    for (fields, words) in [
        (r#""model_type": "wav2vec2", "add_adapter": true"#, "`add_adapter` is true"),
        (r#""model_type": "wav2vec2", "adapter_attn_dim": 16"#, "`do_stable_layer_norm` is false"),
        (r#""model_type": "wavlm", "num_buckets": 6"#, "`num_buckets` is 6"),
        (r#""model_type": "wavlm", "max_bucket_distance": 80"#, "`max_bucket_distance` is 80"),
        (r#""model_type": "wav2vec2", "conv_dim": [512]"#, "have different lengths"),
        (r#""model_type": "wav2vec2", "feat_extract_norm": "batch""#, "`feat_extract_norm` \"batch\""),
        (r#""model_type": "wav2vec2", "num_conv_pos_embedding_groups": 5"#, "does not divide hidden_size"),
        (r#""model_type": "wav2vec2", "architectures": ["Wav2Vec2ForXVector"]"#, "\"Wav2Vec2ForXVector\""),
        (r#""model_type": "sew", "squeeze_factor": 1"#, "`squeeze_factor` is 1, which is not supported"),
        (r#""model_type": "hubert", "conv_pos_batch_norm": true"#, "`conv_pos_batch_norm` is true"),
        (
            r#""model_type": "hubert", "architectures": ["HubertForSequenceClassification"], "use_weighted_layer_sum": true"#,
            "`use_weighted_layer_sum` is true",
        ),
    ] {
        fails(read(&format!("{{{fields}}}")), &[words]);
    }
    Ok(())
}
