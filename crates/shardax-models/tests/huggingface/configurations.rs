//! Configurations of published models, and every field of the configuration classes.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use shardax_models::{Bert, Config, Decoder, Pretrained};
use shardax_nn::prelude::*;

use super::common::fails;
use super::setup;

const DEFAULTS: &str = include_str!("../../src/huggingface/defaults.json");
/// Fields of published models that change sizes, positions and blocks, and the message if the model is rejected.
const PUBLISHED: &str = include_str!("configurations.json");
const PAGE: &str = include_str!("../../../../docs/models.md");

/// Classes of models that are not decoders.
const OTHERS: [&str; 141] = [
    "fsmt",
    "speech_to_text",
    "grounding-dino",
    "mm-grounding-dino",
    "bit",
    "prompt_depth_anything",
    "clipseg",
    "clipseg_text_model",
    "clipseg_vision_model",
    "convbert",
    "florence2",
    "florence_vision",
    "mobilevit",
    "rt_detr",
    "rt_detr_resnet",
    "rt_detr_v2",
    "wav2vec2-bert",
    "wav2vec2-conformer",
    "luke",
    "albert",
    "audio-spectrogram-transformer",
    "bart",
    "beit",
    "bert",
    "big_bird",
    "blenderbot",
    "blenderbot-small",
    "blip",
    "blip_text_model",
    "blip_vision_model",
    "camembert",
    "chinese_clip",
    "chinese_clip_text_model",
    "chinese_clip_vision_model",
    "clip",
    "clip_text_model",
    "clip_vision_model",
    "convnext",
    "convnextv2",
    "data2vec-audio",
    "data2vec-text",
    "data2vec-vision",
    "deberta",
    "deberta-v2",
    "deit",
    "depth_anything",
    "detr",
    "dinov2",
    "dinov2_with_registers",
    "dinov3_vit",
    "distilbert",
    "donut-swin",
    "dpt",
    "efficientnet",
    "electra",
    "ernie",
    "esm",
    "fnet",
    "gte",
    "hubert",
    "ijepa",
    "jina_embeddings_v3",
    "layoutlm",
    "led",
    "longformer",
    "longt5",
    "m2m_100",
    "marian",
    "mbart",
    "megatron-bert",
    "metaclip_2",
    "metaclip_2_text_model",
    "metaclip_2_vision_model",
    "mobilebert",
    "mobilenet_v1",
    "mobilenet_v2",
    "modernbert",
    "mpnet",
    "mt5",
    "mllama_text_model",
    "mvp",
    "nomic_bert",
    "owlv2",
    "owlv2_text_model",
    "owlv2_vision_model",
    "owlvit",
    "owlvit_text_model",
    "owlvit_vision_model",
    "pegasus",
    "plbart",
    "poolformer",
    "regnet",
    "rembert",
    "resnet",
    "roberta",
    "roberta-prelayernorm",
    "roformer",
    "sam",
    "sam_mask_decoder",
    "sam_prompt_encoder",
    "sam_vision_model",
    "pvt_v2",
    "segformer",
    "siglip",
    "siglip2",
    "siglip2_text_model",
    "siglip2_vision_model",
    "siglip_text_model",
    "siglip_vision_model",
    "swin",
    "swinv2",
    "t5",
    "table-transformer",
    "trocr",
    "umt5",
    "unispeech",
    "unispeech-sat",
    "vit",
    "vit_mae",
    "vit_msn",
    "vitpose",
    "vitpose_backbone",
    "wav2vec2",
    "wavlm",
    "whisper",
    "xlm-roberta",
    "xlm-roberta-xl",
    "yolos",
    "altclip",
    "altclip_text_model",
    "altclip_vision_model",
    "glpn",
    "moonshine",
    "pvt",
    "sew",
    "levit",
    "conditional_detr",
    "clap",
    "clap_audio_model",
    "clap_text_model",
    "deformable_detr",
];

/// Fields that change no logits.
const WITHOUT_EFFECT: [&str; 35] = [
    "reorder_and_upcast_attn",
    "time_step_init_scheme",
    "time_step_min",
    "time_step_scale",
    "use_associative_scan",
    "use_mambapy",
    "chunk_size",
    "mamba_chunk_size",
    "num_logits_to_keep",
    "rescale_prenorm_residual",
    "residual_in_fp32",
    "time_step_floor",
    "time_step_max",
    "use_mamba_kernels",
    "init_device",
    "init_std",
    "initializer_range",
    "is_decoder",
    "layerdrop",
    "layer_types",
    "max_position_embeddings",
    "max_seq_len",
    "max_window_layers",
    "n_positions",
    "num_mtp_layers",
    "original_max_position_embeddings",
    "output_router_logits",
    "pretraining_tp",
    "rope_parameters",
    "slow_but_exact",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "sliding_window",
    "use_cache",
    "hidden_act",
];

/// Fields that change no logits of one class where the other fields have their defaults.
const WITHOUT_EFFECT_ALONE: [(&str, &str); 85] = [
    // The sizes of blocks in which the class computes, and of initial values.
    ("minimax", "block_size"),
    ("recurrent_gemma", "w_init_variance_scale"),
    // The base is in the default of another object.
    ("apertus1p5_text", "rope_theta"),
    // The base is in another object, and heads of classes are not read.
    ("eurobert", "classifier_pooling"),
    ("laguna", "rope_theta"),
    ("lfm3", "rope_theta"),
    // The bound of a factor in training, a base that each type of layers has itself, and MLPs of layers that share keys.
    ("gemma3n_text", "altup_coef_clip"),
    ("gemma4_text", "rope_theta"),
    ("gemma4_unified_text", "rope_theta"),
    ("gemma4_unified_text", "use_double_wide_mlp"),
    ("gemma4_text", "use_double_wide_mlp"),
    // The class does not read these fields, and there is one group of experts.
    ("nemotron_h", "attention_bias"),
    ("nemotron_h", "expand"),
    ("nemotron_h", "mamba_proj_bias"),
    ("nemotron_h", "mamba_ssm_cache_dtype"),
    ("nemotron_h", "moe_shared_expert_overlap"),
    ("nemotron_h", "n_shared_experts"),
    ("nemotron_h", "num_nextn_predict_layers"),
    ("nemotron_h", "tie_word_embeddings"),
    ("nemotron_h", "topk_group"),
    // There are no experts, and no positions.
    ("doge", "norm_topk_prob"),
    ("doge", "num_experts"),
    ("doge", "num_experts_per_tok"),
    ("zamba2", "rope_theta"),
    // It changes the loss.
    ("bailing_hybrid", "mtp_loss_scaling_factor"),
    ("bamba", "z_loss_coefficient"),
    // Steps have an own field for their bounds.
    ("mamba2", "time_step_rank"),
    // There is no norm, and another field has the size.
    ("falcon_h1", "mamba_norm_before_gate"),
    ("falcon_h1", "mamba_expand"),
    ("axk1", "num_key_value_heads"),
    ("minicpm3", "num_key_value_heads"),
    ("mistral4", "num_key_value_heads"),
    ("mistral4", "topk_group"),
    ("mistral4", "rope_theta"),
    // A softmax over the chosen experts is already normalized, and no layer is dense.
    ("cohere2_moe", "norm_topk_prob"),
    ("cohere2_moe", "prefix_dense_sliding_window_pattern"),
    // The dtype of a sum, and options of training.
    ("hy_v3", "enable_moe_fp32_combine"),
    ("modernbert-decoder", "initializer_cutoff_factor"),
    ("phimoe", "input_jitter_noise"),
    // The class ignores this name.
    ("mellum", "rope_theta"),
    ("axk2", "head_dim"),
    ("beam", "rope_theta"),
    ("zamba2", "use_conv_bias"),
    // The size of the MLPs must be a multiple of both.
    ("lfm2", "block_multiple_of"),
    // Each head has its own key.
    ("axk2", "num_key_value_heads"),
    ("bailing_hybrid", "num_key_value_heads"),
    ("deepseek_v3", "num_key_value_heads"),
    ("deepseek_v32", "num_key_value_heads"),
    ("glm_moe_dsa", "num_key_value_heads"),
    ("glm_moe_dsa", "topk_group"),
    ("kimi_linear", "num_key_value_heads"),
    ("kimi_linear", "topk_group"),
    ("mimo_v2_flash", "topk_group"),
    // New weights are drawn from these numbers.
    ("diffllama", "lambda_std_dev"),
    ("olmo_hybrid", "linear_a_log_max"),
    ("olmo_hybrid", "linear_a_log_min"),
    ("olmo_hybrid", "linear_dt_init_floor"),
    ("olmo_hybrid", "linear_dt_max"),
    ("olmo_hybrid", "linear_dt_min"),
    // Another field has the size.
    ("deepseek_v32", "head_dim"),
    ("glm_moe_dsa", "head_dim"),
    ("glm4_moe_lite", "num_key_value_heads"),
    ("youtu", "num_key_value_heads"),
    // There is one group.
    ("glm4_moe", "topk_group"),
    ("glm4_moe_lite", "topk_group"),
    ("glm4v_moe_text", "topk_group"),
    ("dots1", "topk_group"),
    ("exaone_moe", "topk_group"),
    ("sarvam_mla", "topk_group"),
    ("sarvam_moe", "topk_group"),
    ("solar_open", "topk_group"),
    // The windows begin after the last layer, or have no size.
    ("qwen2_moe", "use_sliding_window"),
    ("smollm3", "use_sliding_window"),
    ("qwen2_vl_text", "use_sliding_window"),
    ("qwen2_5_vl_text", "use_sliding_window"),
    ("qwen2_5_omni_text", "use_sliding_window"),
    // The default rotary positions have a base.
    ("apertus", "rope_theta"),
    ("cwm", "rope_theta"),
    ("ministral3", "rope_theta"),
    // The class ignores the field, or the field limits texts only in other programs.
    ("biogpt", "layer_norm_eps"),
    ("codegen", "n_ctx"),
    // Both values have the same meaning.
    ("ernie4_5_moe", "moe_layer_end_index"),
    // Fields that select another way to compute the same result.
    ("zamba2", "use_mem_eff_path"),
    ("gpt_bigcode", "attention_softmax_in_fp32"),
    ("gpt_bigcode", "scale_attention_softmax_in_fp32"),
];

fn config_of(fields: &Map<String, Value>) -> Result<Config> {
    Config::from_json(&Value::Object(fields.clone()).to_string())
}

/// Returns the architecture and the names of the arrays as text.
fn read(fields: &Map<String, Value>) -> Result<String> {
    Ok(format!("{:?}", Decoder::read(&config_of(fields)?)?))
}

/// Lists the classes of decoders, with the fields that they need.
fn classes() -> Vec<(String, Map<String, Value>, Map<String, Value>)> {
    let classes: BTreeMap<String, Map<String, Value>> = serde_json::from_str(DEFAULTS).expect("JSON");
    let decoders = classes.into_iter().filter(|(kind, _)| !OTHERS.contains(&kind.as_str()));
    let with_fields = |(kind, defaults): (String, Map<String, Value>)| {
        let mut fields = Map::from_iter([("model_type".to_owned(), Value::from(kind.clone()))]);
        if ["deepseek_v2", "deepseek_ocr2_text"].contains(&kind.as_str()) {
            fields.insert("num_experts_per_tok".to_owned(), 6.into());
        }
        if kind == "dots1" {
            for (name, count) in [("n_routed_experts", 128), ("num_experts_per_tok", 6), ("n_shared_experts", 2)] {
                fields.insert(name.to_owned(), count.into());
            }
        }
        if kind == "granitemoehybrid" {
            fields.insert("layer_types".to_owned(), json!([vec!["mamba"; 31], vec!["attention"]].concat()));
        }
        if kind == "cohere_compass_text" {
            // transformers cannot compute a model without these either.
            let rope =
                json!({"full_attention": {"rope_type": "default", "rope_theta": 50.0}, "sliding_attention": null});
            fields.insert("rope_parameters".to_owned(), rope);
        }
        if ["glm4_moe", "glm4v_moe_text", "qwen3_omni_moe_text"].contains(&kind.as_str()) {
            // Its default heads do not divide its default features.
            fields.insert("head_dim".to_owned(), 128.into());
        }
        (kind, defaults, fields)
    };
    decoders.map(with_fields).collect()
}

/// Returns another value for a field, which a model that ignores the field would accept.
fn other(value: &Value) -> Option<Value> {
    Some(match value {
        Value::Bool(on) => json!(!on),
        Value::Number(number) if number.is_u64() => json!((number.as_u64()? * 2).max(1)),
        Value::Number(number) => json!(number.as_f64()? * 2.0 + 1.0),
        Value::String(_) => json!("nonsense"),
        _ => return None,
    })
}

/// A field with its default has no effect. Any other value must change the model, be rejected, or have no effect
/// according to its name.
#[test]
fn every_field_of_the_classes_is_read_or_refused() {
    setup();
    let mut faults = Vec::new();
    for (kind, defaults, fields) in classes() {
        let absent = read(&fields).unwrap_or_else(|error| panic!("{kind}: {error}"));
        for (name, default) in &defaults {
            let is_needed = default.is_null() && fields.contains_key(name);
            if is_needed || (name == "rope_theta" && !default.is_number()) {
                continue;
            }
            let read_with = |value: Value| {
                let mut fields = fields.clone();
                fields.insert(name.clone(), value);
                read(&fields)
            };
            // The default has no effect.
            match read_with(default.clone()) {
                Ok(read) if read == absent => {}
                Ok(_) => faults.push(format!("{kind}: {name} is {default}, which is not the default")),
                Err(error) => faults.push(format!("{kind}: {name} is {default}: {error}")),
            }
            // Another value changes the model or is rejected, unless the name shows that it has no effect.
            let is_harmless = WITHOUT_EFFECT.contains(&name.as_str())
                || WITHOUT_EFFECT_ALONE.contains(&(kind.as_str(), name.as_str()))
                || name.contains("dropout")
                || name.ends_with("_pdrop")
                || name.ends_with("_token_id")
                || name.starts_with("summary_");
            let Some(value) = other(default) else { continue };
            if !is_harmless && read_with(value.clone()).is_ok_and(|read| read == absent) {
                faults.push(format!("{kind}: {name} is {value}, which is ignored"));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn published_configurations_load_or_say_why() -> Result<()> {
    setup();
    let published: BTreeMap<String, Map<String, Value>> = serde_json::from_str(PUBLISHED).expect("JSON");
    let (mut rows, mut faults) = (Vec::new(), Vec::new());
    for (name, entry) in &published {
        let fields = entry["config"].as_object().expect("an object");
        let kind = fields["model_type"].as_str().expect("a text");
        let read = config_of(fields).and_then(|config| Decoder::read(&config).map(drop));
        let row = match (entry.get("refused").and_then(Value::as_str), read) {
            (None, Ok(())) => format!("| {name} | `{kind}` | loads |"),
            (None, Err(error)) => {
                faults.push(format!("{name}: {error}"));
                continue;
            }
            (Some(words), read) => {
                fails(read, &[words]);
                format!("| {name} | `{kind}` | {words} |")
            }
        };
        rows.push(row);
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    let missing: Vec<&str> = rows.iter().map(String::as_str).filter(|row| !PAGE.contains(*row)).collect();
    assert!(missing.is_empty(), "docs/models.md should have:\n{}", missing.join("\n"));
    Ok(())
}

/// Returns which layers of GLM-5 share the choice of positions, by a configuration of five layers with these fields.
fn shared(text: &str) -> Result<Vec<bool>> {
    let config = format!(r#"{{"model_type": "glm_moe_dsa", "num_hidden_layers": 5, {text}}}"#);
    let (decoder, _) = Decoder::read(&Config::from_json(&config)?)?;
    Ok(decoder.latent.and_then(|latent| latent.sparse).map_or(Vec::new(), |sparse| sparse.shared))
}

/// The layers of GLM-5 that share the choice of positions are a list, a pattern of letters, or follow from a distance.
#[test]
fn layers_that_share_positions_have_three_forms() -> Result<()> {
    setup();
    let expected = [false, false, true, true, false];
    assert_eq!(shared(r#""indexer_types": ["full", "full", "shared", "shared", "full"]"#)?, expected);
    assert_eq!(shared(r#""index_topk_pattern": "FFSSF""#)?, expected);
    // The first two layers choose, and then every third one after the second.
    assert_eq!(shared(r#""index_topk_freq": 3"#)?, expected);
    assert_eq!(shared(r#""index_topk_freq": 3, "index_skip_topk_offset": 3"#)?, [false, false, false, true, true]);
    assert!(shared(r#""index_topk_freq": 1"#)?.is_empty());
    Ok(())
}

/// Configurations of encoders that have the fields of early versions.
#[test]
fn configurations_of_encoders_load_or_say_why() -> Result<()> {
    setup();
    let read = |text: &str| Bert::read(&Config::from_json(text)?).map(|(config, _)| config);
    let albert = read(
        r#"{"model_type": "albert", "architectures": ["AlbertForMaskedLM"], "attention_probs_dropout_prob": 0,
        "classifier_dropout_prob": 0.1, "down_scale_factor": 1, "embedding_size": 128, "gap_size": 0, "hidden_act": "gelu_new",
        "hidden_dropout_prob": 0, "hidden_size": 768, "initializer_range": 0.02, "inner_group_num": 1, "intermediate_size": 3072,
        "layer_norm_eps": 1e-12, "max_position_embeddings": 512, "net_structure_type": 0, "num_attention_heads": 12,
        "num_hidden_groups": 1, "num_hidden_layers": 12, "num_memory_blocks": 0, "type_vocab_size": 2, "vocab_size": 30000}"#,
    )?;
    assert_eq!((albert.num_hidden_layers, albert.block_order.len(), albert.embedding_size), (1, 12, 128));
    let nomic = r#"{"model_type": "nomic_bert", "architectures": ["NomicBertModel"], "activation_function": "swiglu",
        "attn_pdrop": 0.0, "causal": false, "dense_seq_output": true, "embd_pdrop": 0.0, "fused_bias_fc": true,
        "fused_dropout_add_ln": true, "initializer_range": 0.02, "layer_norm_epsilon": 1e-12, "max_trained_positions": 2048,
        "mlp_fc1_bias": false, "mlp_fc2_bias": false, "n_embd": 384, "n_head": 12, "n_inner": 1536, "n_layer": 6,
        "n_positions": 8192, "pad_vocab_size_multiple": 64, "parallel_block": false, "prenorm": false, "qkv_proj_bias": false,
        "resid_pdrop": 0.0, "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": false,
        "rotary_scaling_factor": null, "scale_attn_weights": true, "summary_type": "cls_index", "type_vocab_size": 2,
        "use_flash_attn": true, "use_rms_norm": false, "use_xentropy": true, "vocab_size": 30528}"#;
    let small = read(nomic)?;
    assert_eq!((small.hidden_size, small.num_hidden_layers, small.intermediate_size), (384, 6, 1536));
    fails(read(&nomic.replace("\"prenorm\": false", "\"prenorm\": true")), &["field `prenorm` is true"]);
    fails(read(r#"{"model_type": "mpnet", "relative_attention_num_buckets": 16}"#), &["must be 32"]);
    Ok(())
}

/// Fields of single layers must agree with the fields of all layers.
#[test]
fn windows_of_encoders_are_read_or_refused() -> Result<()> {
    setup();
    let read = |window: &str| {
        let text = format!(
            r#"{{"model_type": "longformer", "attention_mode": "longformer", "attention_window": {window}, "num_hidden_layers": 2,
            "gradient_checkpointing": false, "ignore_attention_mask": false, "sep_token_id": 2}}"#
        );
        Ok::<_, Error>(Bert::read(&Config::from_json(&text)?)?.0.windows)
    };
    assert_eq!(read("512")?, [256, 256]);
    assert_eq!(read("[4, 6]")?, [2, 3]);
    fails(read("[4]").map(drop), &["`attention_window` has 1 entries for 2 layers"]);
    fails(read("[4, 5]").map(drop), &["`attention_window` has 5, but must be even"]);
    fails(read("0").map(drop), &["field `attention_window` must be a positive integer"]);
    Ok(())
}

#[test]
fn fields_of_single_layers_are_checked() -> Result<()> {
    setup();
    fn read(text: &str) -> Result<shardax_models::DecoderConfig> {
        let config = format!(
            r#"{{"model_type": "step3p5", "num_hidden_layers": 2, "sliding_window": 4, "num_sliding_attention_heads": 96,
            "layer_types": ["full_attention", "sliding_attention"], {text}}}"#
        );
        Ok(Decoder::read(&Config::from_json(&config)?)?.0)
    }
    let config = read(r#""per_layer_config": {"1": {"num_attention_heads": 96}}, "swiglu_limits": [null, 7]"#)?;
    assert_eq!(config.layer_heads.iter().map(|sizes| sizes.heads).collect::<Vec<_>>(), [64, 96]);
    assert_eq!(config.experts.map(|experts| experts.bounds), Some(vec![None, Some(7.0)]));
    fails(read(r#""per_layer_config": {"1": {"head_dim": 4}}"#), &["`per_layer_config` differs from"]);
    fails(read(r#""swiglu_limits_shared": [0.5]"#), &["`swiglu_limits_shared` has 1 entries for 2 layers"]);
    fails(read(r#""swiglu_limits": [0.5, "much"]"#), &["the entry \"much\" of `swiglu_limits`"]);
    fails(read(r#""rope_parameters": {"full_attention": {"rope_theta": 9.0}}"#), &["no object `sliding_attention`"]);
    fails(read(r#""rope_theta": [1.0, 2.0, 3.0]"#), &["`rope_theta` has 3 entries for 2 layers"]);
    fails(read(r#""rope_theta": [1.0, "much"]"#), &["must have a number for each layer"]);
    fails(read(r#""attention_other_setting": {"head_dim": 64}"#), &["`head_dim` is 64, but transformers"]);
    fails(read(r#""moe_layers_enum": "1,two""#), &["`moe_layers_enum` must have the indices"]);
    Ok(())
}

/// A field of an object is removed by its name with the names of the objects that contain it.
#[test]
fn fields_of_objects_can_be_ignored() -> Result<()> {
    setup();
    let config = Config::from_json(
        r#"{"model_type": "mistral3", "text_config": {"model_type": "llama",
        "rope_parameters": {"rope_type": "default", "beta": 1}}}"#,
    )?;
    fails(Decoder::read(&config), &["ignore_field(\"text_config.rope_parameters.beta\")"]);
    Decoder::read(&config.without("text_config.rope_parameters.beta"))?;
    Ok(())
}

#[test]
fn absent_fields_are_the_defaults_of_transformers() -> Result<()> {
    setup();
    let read = |text: &str| Ok::<_, Error>(Decoder::read(&Config::from_json(text)?)?.0);
    let mistral = read(r#"{"model_type": "mistral"}"#)?;
    assert_eq!((mistral.windows[0], mistral.kv_heads), (Some(4096), 8));
    assert_eq!(read(r#"{"model_type": "mistral", "sliding_window": null}"#)?.windows[0], None);
    // The older name takes precedence.
    let both_names = r#"{"model_type": "llama", "rope_parameters": {"rope_type": "default", "rope_theta": 9.0},
        "rope_scaling": {"type": "linear", "factor": 2.0}}"#;
    let older = r#"{"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 2.0}}"#;
    assert_eq!(read(both_names)?, read(older)?);
    assert_ne!(read(both_names)?, read(r#"{"model_type": "llama"}"#)?);
    Ok(())
}

/// Published files have the base in the object for attention. A base next to the object takes precedence.
#[test]
fn bases_of_dbrx_are_read_from_both_places() -> Result<()> {
    setup();
    let read = |fields: &str| {
        let text = format!(
            r#"{{"model_type": "dbrx", "d_model": 16, "n_heads": 4, "n_layers": 1, "vocab_size": 33, "attn_config": {fields}}}"#
        );
        Ok::<_, Error>(Decoder::read(&Config::from_json(&text)?)?.0)
    };
    let next_to_object = read(r#"{"kv_n_heads": 2}, "rope_theta": 500000"#)?;
    assert_eq!(read(r#"{"kv_n_heads": 2, "rope_theta": 500000}"#)?, next_to_object);
    assert_eq!(read(r#"{"kv_n_heads": 2, "rope_theta": 7}, "rope_theta": 500000"#)?, next_to_object);
    assert_ne!(read(r#"{"kv_n_heads": 2}"#)?, next_to_object);
    fails(read(r#"{"rope_theta": -1}"#).map(drop), &["field `rope_theta` must be a finite number above 0, got -1"]);
    Ok(())
}

/// A text whose absent fields depend on the entire model must have them, and the base of its rotary positions.
#[test]
fn texts_with_other_defaults_need_all_fields() {
    setup();
    let read = |kind: &str, more: &str| {
        let text = format!(
            r#"{{"model_type": "{kind}", "text_config": {{"model_type": "llama", "vocab_size": 32, "hidden_size": 16, "intermediate_size": 24,
            "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 0.001 {more}}}}}"#
        );
        Config::from_json(&text).and_then(|config| Decoder::read(&config).map(drop))
    };
    fails(read("voxtral", ""), &["missing field `text_config.head_dim`"]);
    fails(read("voxtral", r#", "head_dim": 4"#), &["missing field `text_config.rope_parameters.rope_theta`"]);
    assert!(read("voxtral", r#", "head_dim": 4, "rope_theta": 100.0"#).is_ok());
    // The field outside of the object has no effect here.
    fails(read("glmasr", r#", "rope_theta": 100.0"#), &["missing field `text_config.rope_parameters.rope_theta`"]);
    assert!(read("glmasr", r#", "rope_parameters": {"rope_type": "default", "rope_theta": 100.0}"#).is_ok());
}
