//! Configurations and files that a model would compute otherwise, or that are damaged.

use std::path::Path;

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use shardax_models::huggingface::{KeyMap, Layout, Weights, load};
use shardax_models::{Bert, Clip, Config, Decoder, EncoderDecoder, MobileNet, Pretrained, Vit};
use shardax_nn::prelude::*;

use super::common::{Folder, fails};
use super::{fails_in_trace, folder, setup};

pub fn copy(from: &str, name: &str) -> Vec<u8> {
    std::fs::read(folder(from).join(name)).expect("a file")
}

/// Loads the model in this folder with the class of its type.
fn load_of(kind: &str, folder: &Path) -> Result<()> {
    match kind {
        "vit" => Vit::from_pretrained(folder).map(drop),
        "bert" => Bert::from_pretrained(folder).map(drop),
        "bart" | "t5" => EncoderDecoder::from_pretrained(folder).map(drop),
        _ => Decoder::from_pretrained(folder).map(drop),
    }
}

/// A field that changes the results of `transformers` is rejected if this crate does not support it.
#[test]
fn fields_that_are_not_understood_are_rejected() -> Result<()> {
    setup();
    let temp = Folder::new();
    for (kind, field, said) in [
        ("llama", r#""model_type": "rwkv""#, "the model_type \"rwkv\" is not one of the"),
        ("llama", r#""model_type": "lama""#, "llama, llama4"),
        ("llama", r#""model_type": "rwkv""#, "docs/models.md lists all types"),
        ("llama", r#""sliding_window": 4"#, "field `sliding_window` is 4"),
        // transformers does not mask later positions then.
        ("deepseek_v3", r#""is_causal": false"#, "field `is_causal` is false"),
        ("bart", r#""is_causal": false"#, "field `is_causal` is false"),
        ("t5", r#""is_causal": false"#, "field `is_causal` is false"),
        ("llama", r#""attn_logit_softcapping": 50.0"#, "field `attn_logit_softcapping` is 50.0"),
        ("llama", r#""final_logit_softcapping": 30.0"#, "field `final_logit_softcapping` is 30.0"),
        ("llama", r#""partial_rotary_factor": 0.5"#, "field `partial_rotary_factor` is 0.5"),
        (
            "llama",
            r#""quantization_config": {"bits": 8}"#,
            "`quantization_config` of config.json has the quant_method None",
        ),
        ("llama", r#""residual_multiplier": 0.2"#, "field `residual_multiplier` is 0.2"),
        (
            "llama",
            r#""rope_scaling": {"type": "nonsense"}"#,
            "rotary positions of the kind \"nonsense\" are not supported",
        ),
        ("llama", r#""rope_parameters": {"rope_type": "axial"}"#, "rotary positions of the kind \"axial\""),
        ("llama", r#""sliding_window": 4"#, "LoadOptions::new().ignore_field(\"sliding_window\")"),
        ("llama", r#""rope_parameters": {"rope_type": "default", "beta": 1}"#, "field `beta` is 1"),
        ("llama", r#""rope_parameters": {"beta": 1}"#, "LoadOptions::new().ignore_field(\"rope_parameters.beta\")"),
        ("llama", r#""rope_parameters": {"partial_rotary_factor": 0.5}"#, "`partial_rotary_factor` is 0.5"),
        ("llama", r#""rope_parameters": {"rope_type": "linear"}"#, "missing field `factor`"),
        ("llama", r#""layer_types": ["full_attention"]"#, "`layer_types` has 1 entries for 2 layers"),
        ("xglm", r#""pad_token_id": 2"#, "`pad_token_id` is 2"),
        ("llama", r#""hidden_act": "sine""#, "the activation \"sine\" is not supported"),
        ("llama", r#""num_key_value_heads": 3"#, "num_key_value_heads (3) does not divide num_attention_heads (4)"),
        ("qwen2", r#""num_key_value_heads": 32"#, "num_key_value_heads (32) does not divide"),
        (
            "llama",
            r#""rope_scaling": {"type": "mrope", "mrope_section": [2, 1, 1]}"#,
            "kind \"mrope\" are not supported",
        ),
        ("llama", r#""rope_parameters": {"rope_type": "deepseek_yarn"}"#, "kind \"deepseek_yarn\" are not supported"),
        ("doge", r#""is_moe": true"#, "`is_moe` is true, but its router"),
        ("zamba2", r#""use_long_context": true"#, "`use_long_context` is true"),
        ("zamba2", r#""attention_head_dim": 3"#, "field `attention_head_dim` must be 8, got 3"),
        ("longcat_flash", r#""mla_scale_q_lora": false"#, "`mla_scale_q_lora` is false, but"),
        ("longcat_flash", r#""zero_expert_type": "drop""#, "`zero_expert_type` is \"drop\", but"),
        ("longcat_flash", r#""attention_method": "GQA""#, "`attention_method` is \"GQA\", but"),
        ("longcat_flash", r#""zero_expert_num": 65537"#, "field `zero_expert_num` is 65537, but"),
        (
            "longcat_flash",
            r#""zero_expert_num": 4000000000"#,
            "must be an integer from 0 to 2147483647, got 4000000000",
        ),
        ("axk2", r#""n_group": 2"#, "`n_group` is 2, but"),
        ("mimo_v2_flash", r#""swa_num_key_value_heads": 4"#, "`swa_num_key_value_heads` is 4, but"),
        ("mimo_v2_flash", r#""hybrid_layer_pattern": [1, 1, 0]"#, "`hybrid_layer_pattern` differs"),
        ("mimo_v2_flash", r#""add_full_attention_sink_bias": true"#, "`add_full_attention_sink_bias` is true, but"),
        ("kimi_linear", r#""mla_use_nope": false"#, "`mla_use_nope` is false"),
        ("kimi_linear", r#""moe_router_activation_func": "softmax""#, "`moe_router_activation_func` is \"softmax\""),
        (
            "kimi_linear",
            r#""linear_attn_config": {"full_attn_layers": [2], "kda_layers": [1, 2, 3]}"#,
            "`full_attn_layers` and `kda_layers` do not have each layer once",
        ),
        ("deepseek_v32", r#""index_head_dim": 2"#, "does not describe an indexer for 4 rotated features"),
        ("deepseek_v32", r#""indexer_types": ["full", "shared"]"#, "some layers share the positions of others"),
        ("glm_moe_dsa", r#""indexer_types": ["full", "half"]"#, "the indexer \"half\" is not supported"),
        ("glm_moe_dsa", r#""indexer_types": ["full"]"#, "the list of indexers has 1 entries for 2 layers"),
        ("glm_moe_dsa", r#""indexer_types": ["shared", "full"]"#, "true for the first layer"),
        ("zamba2", r#""is_causal": false"#, "field `is_causal` is false"),
        ("longcat_flash", r#""zero_expert_num": 65537"#, "`zero_expert_num` is 65537, but can be at most 65536"),
        ("bailing_hybrid", r#""kda_lower_bound": 5.0"#, "rate_bound must be a finite number below 0, got 5"),
        (
            "beam",
            r#""rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 50.0}}"#,
            "`rope_parameters` has no entry `full_attention`",
        ),
        ("gpt_oss", r#""swiglu_limit": 3.0"#, "field `swiglu_limit` is 3.0"),
        ("mistral", r#""intermediate_size": 20"#, "config.json, `intermediate_size` is 20"),
        ("mistral", r#""num_hidden_layers": 3"#, "config.json, `num_hidden_layers` is 3"),
        ("llama", r#""head_dim": 3"#, "config.json: rotary positions need an even head_dim, got 3"),
        ("mixtral", r#""num_experts_per_tok": 7"#, "config.json: each token uses 7 of 4 experts"),
        (
            "gemma3n",
            r#""altup_num_inputs": 9223372036854775808"#,
            "`altup_num_inputs` is 9223372036854775808, but can be at most",
        ),
        ("llama", r#""rms_norm_eps": -1"#, "field `rms_norm_eps` must be a finite number of at least 0, got -1"),
        ("llama", r#""rms_norm_eps": 1e300"#, "field `rms_norm_eps` must be a finite number of at least 0, got 1e+300"),
        (
            "llama",
            r#""rope_parameters": {"rope_theta": 0}"#,
            "field `rope_theta` must be a finite number above 0, got 0",
        ),
        (
            "gemma2",
            r#""attn_logit_softcapping": 0.0"#,
            "field `attn_logit_softcapping` must be a finite number above 0",
        ),
        ("bert", r#""layer_norm_eps": -1e-5"#, "field `layer_norm_eps` must be a finite number of at least 0"),
        ("llama", r#""hidden_act": "sine""#, "field `hidden_act` is \"sine\""),
        ("llama", r#""vocab_size": -1"#, "field `vocab_size` must be a positive integer, got -1"),
        ("llama", r#""vocab_size": null"#, "missing field `vocab_size`"),
        ("llama", r#""num_hidden_layers": 50000000"#, "`num_hidden_layers` is 50000000"),
        ("llama", r#""num_hidden_layers": 90000"#, "config.json has 90000 layers"),
        (
            "llama",
            r#""vocab_size": 4000000000000000000"#,
            "config.json (`vocab_size` is 4000000000000000000): a decoder's",
        ),
        (
            "llama",
            r#""head_dim": 9223372036854775808"#,
            "(`head_dim` is 9223372036854775808): a decoder's query kernel",
        ),
        ("llama", r#""vocab_size": 4000000000"#, "config.json has a token table of 4000000000 by 16"),
        ("llama", r#""intermediate_size": 4000000000"#, "config.json has a MLP kernel of 16 by 4000000000"),
        (
            "llama",
            r#""head_dim": 4000000000"#,
            "config.json has a query kernel of 16 by 16000000000 (`head_dim` is 4000000000)",
        ),
        ("mistral", r#""attention_bias": true"#, "field `attention_bias` is true"),
        ("afmoe", r#""attention_bias": true"#, "field `attention_bias` is true"),
        ("qwen2", r#""layer_types": ["full_attention", "chunked_attention"]"#, "layer type \"chunked_attention\""),
        (
            "phi",
            r#""rope_parameters": {"partial_rotary_factor": 0.1}"#,
            "`partial_rotary_factor` of 0.1 rotates 0 features",
        ),
        ("phi3", r#""rope_parameters": {"rope_type": "longrope"}"#, "missing field `short_factor`"),
        ("gpt2", r#""n_head": 5"#, "n_head (5) does not divide n_embd (16)"),
        ("gpt2", r#""n_positions": 4000000000"#, "config.json has a position table of 4000000000 by 16"),
        ("bert", r#""model_type": "deberta""#, "the model_type \"deberta\" is not one of bert, ernie, roberta"),
        ("bert", r#""position_embedding_type": "relative_key""#, "field `position_embedding_type` is"),
        ("bert", r#""is_decoder": true"#, "field `is_decoder` is true"),
        ("bert", r#""tie_word_embeddings": false"#, "field `tie_word_embeddings` is false"),
        ("bert", r#""max_position_embeddings": 4000000000"#, "a position table of 4000000000 by 16"),
        ("vit", r#""model_type": "swin""#, "the model_type \"swin\" is not one of vit"),
        ("vit", r#""use_mask_token": true"#, "field `use_mask_token` is true"),
        ("vit", r#""image_size": 4000000000"#, "config.json has a position table"),
        ("vit", r#""patch_size": 3"#, "patch_size (3) does not divide image_size (8)"),
    ] {
        // Copy the model, and replace or add one field of its configuration.
        for entry in std::fs::read_dir(folder(kind)).expect("a folder") {
            let path = entry.expect("an entry").path();
            temp.write(
                path.file_name().and_then(|name| name.to_str()).expect("a name"),
                std::fs::read(&path).expect("a file"),
            );
        }
        let config = String::from_utf8(copy(kind, "config.json")).expect("a text");
        let name = field.split('"').nth(1).expect("a name");
        let mut fields: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&config).expect("JSON");
        let new: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(&format!("{{{field}}}")).expect("JSON");
        fields.insert(name.to_owned(), new[name].clone());
        temp.write("config.json", serde_json::to_string(&fields).expect("JSON"));
        let error = load_of(kind, &temp.0).err().unwrap_or_else(|| panic!("{kind} takes {field}")).to_string();
        assert!(error.contains(said), "{kind}, {field}: {error}");
    }
    let text = r#"{"model_type": "clip", "text_config": {"is_causal": false}, "vision_config": {}}"#;
    fails(Clip::read(&Config::from_json(text)?).map(drop), &["\"text_config\"", "field `is_causal` is false"]);
    assert!(Bert::read(&Config::from_json(r#"{"model_type": "bert", "is_causal": false}"#)?).is_ok());
    fails(Config::from_json("[]"), &["config.json is not a configuration"]);
    fails(Decoder::from_config(&Config::from_json("{}")?, &mut Rngs::new(0)), &["missing field `model_type`"]);
    Ok(())
}

/// Configurations of older versions of `transformers`, with the fields of published checkpoints.
#[test]
fn older_configurations_are_the_same_models() -> Result<()> {
    for (kind, without, with) in [
        (
            "llama",
            &["rope_parameters", "head_dim"][..],
            r#""rope_theta": 500.0, "rope_scaling": null, "torch_dtype": "float16""#,
        ),
        (
            "llama3",
            &["rope_parameters"],
            r#""rope_theta": 10000.0, "rope_scaling": {"type": "llama3", "rope_type": "llama3", "factor": 4.0,
               "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8}"#,
        ),
        ("qwen2", &["layer_types", "rope_parameters"], r#""rope_theta": 10000.0"#),
        ("gemma2", &["layer_types", "rope_parameters"], r#""rope_theta": 10000.0, "cache_implementation": "hybrid""#),
        ("phi", &["rope_parameters"], r#""rope_theta": 10000.0, "partial_rotary_factor": 0.5"#),
        ("phi3", &["rope_parameters"], r#""rope_theta": 10000.0, "auto_map": {"AutoConfig": "x"}"#),
        ("gpt2", &["tie_word_embeddings", "n_inner"], r#""n_ctx": 1024, "task_specific_params": {"a": 1}"#),
    ] {
        // Replace the fields of the current version by the fields of the older one.
        let new = Config::open(folder(kind))?;
        let mut fields: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(&new.to_json()).expect("JSON");
        let more: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(&format!("{{{with}}}")).expect("JSON");
        without.iter().for_each(|name| drop(fields.remove(*name)));
        fields.extend(more);
        let old = Config::from_json(&serde_json::to_string(&fields).expect("JSON"))?;
        assert_eq!(Decoder::read(&old)?.0, Decoder::read(&new)?.0, "{kind}");
    }
    Ok(())
}

/// Changes the arrays of a safetensors file.
pub(super) fn changed(file: &[u8], change: impl FnOnce(&mut Vec<(String, Dtype, Vec<usize>, Vec<u8>)>)) -> Vec<u8> {
    let read = SafeTensors::deserialize(file).expect("a file");
    let mut arrays: Vec<_> = read
        .tensors()
        .into_iter()
        .map(|(name, view)| (name, view.dtype(), view.shape().to_vec(), view.data().to_vec()))
        .collect();
    change(&mut arrays);
    let views = arrays.iter().map(|(name, dtype, shape, bytes)| {
        (name, TensorView::new(*dtype, shape.clone(), bytes).expect("as many bytes as the shape says"))
    });
    safetensors::serialize(views, None).expect("a file")
}

/// Arrays that the model does not have must not be ignored.
#[test]
fn arrays_that_are_not_understood_are_rejected() -> Result<()> {
    setup();
    let temp = Folder::new();
    let add = |kind: &str, name: &str, shape: &[usize], value: f32| {
        let bytes = value.to_le_bytes().repeat(shape.iter().product());
        let new = (name.to_owned(), Dtype::F32, shape.to_vec(), bytes);
        temp.write("config.json", copy(kind, "config.json"));
        temp.write("model.safetensors", changed(&copy(kind, "model.safetensors"), |arrays| arrays.push(new)));
        load_of(kind, &temp.0)
    };
    for (kind, name) in [
        ("llama3", "model.layers.1.self_attn.q_proj.weight"),
        ("mistral", "model.layers.0.self_attn.q_proj.bias"),
        ("qwen3", "model.layers.0.mlp.up_proj.bias"),
        ("gemma", "model.layers.0.self_attn.q_norm.weight"),
        ("phi3", "model.layers.0.self_attn.qkv_proj.weight_scale"),
        ("gpt2", "transformer.h.2.ln_1.weight"),
        ("bert", "bert.encoder.layer.2.output.dense.bias"),
        ("vit", "vit.encoder.layer.0.layer_scale.weight"),
    ] {
        fails(add(kind, name, &[16], 0.0), &["1 arrays that the model of config.json does not have", name]);
    }
    // Buffers of older files, and heads of other models, are ignored.
    add("gpt2", "transformer.h.0.attn.bias", &[1, 1, 12, 12], 1.0)?;
    add("mistral", "model.layers.0.self_attn.rotary_emb.inv_freq", &[2], 1.0)?;
    add("bert", "bert.pooler.dense.weight", &[16, 16], 1.0)?;
    // The copy of a token table must have the same values.
    fails(
        add("qwen3", "lm_head.weight", &[33, 16], 1.0),
        &["\"lm_head.weight\" and \"model.embed_tokens.weight\"", "differ"],
    );
    let with_copy = changed(&copy("qwen3", "model.safetensors"), |arrays| {
        let mut copy = arrays.iter().find(|(name, ..)| name == "model.embed_tokens.weight").expect("a table").clone();
        copy.0 = "lm_head.weight".to_owned();
        arrays.push(copy);
    });
    temp.write("config.json", copy("qwen3", "config.json"));
    temp.write("model.safetensors", with_copy);
    load_of("qwen3", &temp.0)?;

    // An array of int8 without scales.
    let quantized = changed(&copy("mistral", "model.safetensors"), |arrays| {
        let kernel = arrays.iter_mut().find(|(name, ..)| name.ends_with("up_proj.weight")).expect("a kernel");
        (kernel.1, kernel.3) = (Dtype::I8, vec![1; kernel.2.iter().product()]);
    });
    temp.write("config.json", copy("mistral", "config.json"));
    temp.write("model.safetensors", quantized);
    fails(load_of("mistral", &temp.0), &["up_proj.weight", "has the dtype int8", "quantization is not supported"]);
    Ok(())
}

/// A transposed matrix has the right number of elements, but must still be rejected.
#[test]
fn transposed_arrays_are_rejected() -> Result<()> {
    setup();
    let temp = Folder::new();
    temp.write("config.json", copy("mistral", "config.json"));
    for name in ["mlp.up_proj.weight", "mlp.down_proj.weight", "self_attn.k_proj.weight", "embed_tokens.weight"] {
        let transposed = changed(&copy("mistral", "model.safetensors"), |arrays| {
            let array = arrays.iter_mut().find(|(path, ..)| path.ends_with(name)).expect("a matrix");
            array.2.reverse();
        });
        temp.write("model.safetensors", transposed);
        fails(load_of("mistral", &temp.0), &[name, "with the layout"]);
    }
    Ok(())
}

/// Published files of Qwen3-VL with experts store the inputs of all experts before the outputs. transformers saves new
/// models in the opposite order.
#[test]
fn experts_in_either_order_load_the_same_model() -> Result<()> {
    setup();
    let temp = Folder::new();
    temp.write("config.json", copy("qwen3_vl_moe", "config.json"));
    let swapped = changed(&copy("qwen3_vl_moe", "model.safetensors"), |arrays| {
        for (_, _, shape, bytes) in arrays.iter_mut().filter(|(name, ..)| name.contains("mlp.experts.")) {
            let [experts, rows, columns] = shape[..] else { panic!("{shape:?}") };
            // The byte at which the `i`-th element of the transposed matrices starts.
            let source = |i: usize| {
                let (expert, column, row) = (i / (rows * columns), i / rows % columns, i % rows);
                4 * (expert * rows * columns + row * columns + column)
            };
            let values = (0..experts * rows * columns).flat_map(|i| bytes[source(i)..source(i) + 4].to_vec());
            (*bytes, *shape) = (values.collect(), vec![experts, columns, rows]);
        }
    });
    temp.write("model.safetensors", swapped);
    let [expected, found] = [folder("qwen3_vl_moe"), temp.0.clone()].map(Decoder::from_pretrained);
    for ((path, a), b) in tree::leaves_with_path(&expected?).iter().zip(tree::leaves(&found?)) {
        assert_eq!(a.to_bytes()?, b.to_bytes()?, "{path}");
    }
    Ok(())
}

/// Errors name the file and the position in it.
#[test]
fn damaged_files_are_errors() -> Result<()> {
    setup();
    let temp = Folder::new();
    let write = |name: &str, bytes: &[u8]| drop(temp.write(name, bytes));
    let gpt2 = || Decoder::from_pretrained(&temp.0);

    fails(gpt2(), &["cannot read", "config.json", "save_pretrained"]);
    write("config.json", b"{");
    fails(gpt2(), &["config.json is not a configuration", "EOF"]);
    write("config.json", &copy("gpt2", "config.json"));
    fails(gpt2(), &["has none of the files model.safetensors, "]);
    temp.write("consolidated.safetensors", "");
    temp.write("notes.txt", "");
    fails(gpt2(), &["pytorch_model.bin.index.json, but consolidated.safetensors", "rename a file"]);
    let intact = copy("gpt2", "model.safetensors");
    write("model.safetensors", &intact[..intact.len() - 4]);
    fails(gpt2(), &["model.safetensors is damaged", "at byte 8, the header's array", "is at"]);
    write("model.safetensors", &[&intact[..], &[0; 4]].concat());
    fails(gpt2(), &["model.safetensors is damaged", "follow the header"]);
    write("model.safetensors", &intact[..100]);
    fails(gpt2(), &["at byte 0, a header of", "but only 92 bytes remain"]);
    write("model.safetensors", &intact[..5]);
    fails(gpt2(), &["at byte 0, 8 bytes should follow, but only 5 bytes remain"]);
    let mut damaged = intact.clone();
    damaged[9] = b'!';
    write("model.safetensors", &damaged);
    fails(gpt2(), &["at byte 8, the header is not valid JSON"]);
    write("model.safetensors", &copy("vit", "model.safetensors"));
    fails(gpt2(), &["has no array \"wte.weight\", which contains `embed.embedding`"]);
    write("model.safetensors", &intact);
    write("config.json", String::from_utf8_lossy(&copy("gpt2", "config.json")).replace("33", "34").as_bytes());
    fails(gpt2(), &["wte.weight", "has the shape [33, 16]", "does not fit `embed.embedding` of [34, 16]"]);

    // Two arrays at the same position.
    let header = br#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    write("one.safetensors", &[&(header.len() as u64).to_le_bytes()[..], header, &[0; 4]].concat());
    fails(Weights::open(temp.join("one.safetensors")), &["an array starts at 0, but the previous array ends at 4"]);

    // An index of several files.
    write("config.json", &copy("llama", "config.json"));
    std::fs::remove_file(temp.join("model.safetensors")).expect("the file");
    let index = copy("llama", "model.safetensors.index.json");
    write("model.safetensors.index.json", &index);
    fails(Decoder::from_pretrained(&temp.0), &["which is not in its folder", "model-00001-of-0000"]);
    write("model.safetensors.index.json", &index[..index.len() / 2]);
    fails(Weights::open(&temp.0), &["index.json is damaged", "not an index of files"]);
    write("model.safetensors.index.json", br#"{"weight_map":{"a":"../a.safetensors"}}"#);
    fails(Weights::open(&temp.0), &["\"../a.safetensors\" is not the name of a file in the same folder"]);
    write("a.safetensors", &intact);
    write("model.safetensors.index.json", br#"{"weight_map":{"a":"a.safetensors"}}"#);
    fails(Weights::open(&temp.0), &["the array \"a\" should be in a.safetensors, but is not"]);

    let weights = Weights::open(folder("gpt2"))?;
    fails(weights.get("none"), &["has no array \"none\""]);
    let keys = KeyMap::new().array("kernel", "transformer.wte.weight", Layout::Part { index: 5, of: 3 });
    fails(load(&weights, &array(1.0f32), &keys, &Rules::default()), &["the `KeyMap` has no array name for ``"]);
    let layer = Linear::builder(33, 16).use_bias(false).build(&mut Rngs::new(0));
    fails(load(&weights, &layer, &keys, &Rules::default()), &["with the layout Part { index: 5, of: 3 }"]);
    Ok(())
}

/// A sparse file of 8 TB, and a pipe without a writer.
#[test]
#[cfg(unix)]
fn files_of_any_size_and_kind_are_errors() -> Result<()> {
    setup();
    let temp = Folder::new();
    let header = br#"{"a":{"dtype":"U8","shape":[8796093022208],"data_offsets":[0,8796093022208]}}"#;
    let path = temp.write("sparse.safetensors", [&(header.len() as u64).to_le_bytes()[..], header].concat());
    let file = std::fs::OpenOptions::new().write(true).open(&path).expect("a file");
    if file.set_len(8 + header.len() as u64 + 8_796_093_022_208).is_ok() {
        fails(Weights::open(&path)?.get("a"), &["has 8796093022208 bytes"]);
    }
    let pipe = temp.join("config.json");
    let status = std::process::Command::new("mkfifo").arg(&pipe).status();
    if status.is_ok_and(|status| status.success()) {
        fails(Decoder::from_pretrained(&temp.0), &["config.json is not a regular file"]);
        fails(Weights::open(&pipe), &["config.json is not a regular file"]);
    }
    Ok(())
}

/// Layers that are called for an array without a dimension of positions, by the name of the layer.
#[test]
fn arrays_without_positions_are_rejected() -> Result<()> {
    setup();
    let (mut layers, x) = (Vec::new(), ones([16]));
    // The layers of these models are all layers that replace attention.
    for name in ["lfm2", "qwen3_next", "mamba2", "mamba", "deepseek_v3"] {
        let mut decoder = Decoder::from_pretrained(folder(name))?;
        decoder.init_cache(1, 4);
        for block in &mut decoder.blocks {
            let results = [
                block.conv.as_mut().map(|layer| ("ShortConv", layer.decode(x.clone(), None))),
                block.delta.as_ref().map(|layer| ("GatedDelta", layer.forward(&x))),
                block.delta.as_mut().map(|layer| ("GatedDelta", layer.decode(x.clone(), None))),
                block.state_space.as_ref().map(|layer| ("StateSpace", layer.forward(&x))),
                block.state_space.as_mut().map(|layer| ("StateSpace", layer.decode(x.clone(), None))),
                block.selective.as_ref().map(|layer| ("SelectiveState", layer.forward(&x))),
                block.selective.as_mut().map(|layer| ("SelectiveState", layer.decode(x.clone(), None))),
                block.latent.as_mut().map(|layer| ("LatentAttention", layer.decode(x.clone(), None, None))),
            ];
            for (layer, result) in results.into_iter().flatten() {
                layers.push(layer);
                fails(result.check(), &[layer, "[batch, length, features]", "float32[16]"]);
            }
        }
    }
    layers.sort();
    layers.dedup();
    assert_eq!(layers, ["GatedDelta", "LatentAttention", "SelectiveState", "ShortConv", "StateSpace"]);
    Ok(())
}

/// Older versions of transformers wrote the number `Infinity`, which JSON does not have.
#[test]
fn infinities_are_read_as_python_writes_them() -> Result<()> {
    setup();
    let config = String::from_utf8(copy("mamba2", "config.json")).expect("a text");
    let mut fields: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&config).expect("JSON");
    fields.insert("time_step_limit".to_owned(), "LIMIT".into());
    fields.insert("_name_or_path".to_owned(), "Infinity".into());
    let config_with =
        |limit: &str| Config::from_json(&serde_json::to_string(&fields).expect("JSON").replace("\"LIMIT\"", limit));
    let expected = Decoder::read(&config_with(r#"[0.5, {"__float__": "Infinity"}]"#)?)?.0;
    let config = config_with("[0.5, Infinity]")?;
    assert_eq!(Decoder::read(&config)?.0, expected);
    assert_eq!(config.get("_name_or_path").and_then(|name| name.as_str()), Some("Infinity"));
    for limit in ["[0.5, -Infinity]", "[0.5, NaN]", "[0.5, Infinite]"] {
        fails(config_with(limit), &["is not a configuration"]);
    }
    Ok(())
}

/// A layer that sees the positions that the layer before it chooses returns an error without them, unless it sees all positions.
#[test]
fn layers_without_chosen_positions_are_errors() -> Result<()> {
    setup();
    let model = Decoder::from_pretrained(folder("glm_moe_dsa_shared"))?;
    let mut block = model.blocks[2].clone();
    assert_eq!(eval_shape(|()| block.forward(zeros([1, 4, 16])), ())?.shape(), [1, 4, 16]);
    fails_in_trace(|| block.forward(zeros([1, 5, 16])), &["no earlier layer has chosen 4 of the 5 positions"]);
    block.init_cache(&[1, 6]);
    fails_in_trace(
        || block.clone().decode(zeros([1, 1, 16]), None, None),
        &["no earlier layer has chosen 4 of the 6 positions"],
    );
    Ok(())
}

/// A block that uses a shared layer returns an error without it, instead of the output of its state space alone.
#[test]
fn blocks_without_their_shared_layer_are_errors() -> Result<()> {
    setup();
    let model = Decoder::from_pretrained(folder("zamba2"))?;
    let user = model.blocks.iter().find(|block| block.shared.is_some()).expect("a block that uses a shared layer");
    fails_in_trace(|| user.forward(zeros([1, 4, 32])), &["`shared.layer` is None"]);
    fails_in_trace(|| user.clone().decode(zeros([1, 1, 32]), None, None), &["`shared.layer` is None"]);
    Ok(())
}

/// Messages name the file and lead to the fix.
#[test]
fn files_that_were_not_downloaded_are_errors() -> Result<()> {
    setup();
    let temp = Folder::new();
    let write = |name: &str, bytes: &[u8]| std::fs::write(temp.join(name), bytes).expect("a file");
    write("config.json", &copy("gpt2", "config.json"));
    write("model.safetensors", b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n");
    fails(Decoder::from_pretrained(&temp.0), &["model.safetensors is a pointer of Git LFS", "git lfs pull"]);
    std::fs::remove_file(temp.join("model.safetensors")).expect("the file");
    write("config.json", &copy("llama", "config.json"));
    write("model.safetensors.index.json", &copy("llama", "model.safetensors.index.json"));
    let part = "model-00001-of-00002.safetensors";
    write(part, &copy("llama", part));
    let words = ["index.json lists the file model-00002-of-00002.safetensors", "download all files"];
    fails(Decoder::from_pretrained(&temp.0), &words);
    // Without the last layer, the fix is a field.
    let mut config: serde_json::Value = serde_json::from_slice(&copy("gpt2", "config.json")).expect("JSON");
    config["tie_word_embeddings"] = false.into();
    write("config.json", config.to_string().as_bytes());
    write("model.safetensors", &copy("gpt2", "model.safetensors"));
    fails(Decoder::from_pretrained(&temp.0), &["no array \"lm_head.weight\"", "\"tie_word_embeddings\" to true"]);
    Ok(())
}

/// Sums of sizes do not overflow, and the files then bound the sizes.
#[test]
fn sums_of_large_sizes_are_large() -> Result<()> {
    for field in ["min_depth", "depth_divisible_by"] {
        let config = format!(r#"{{"model_type": "mobilenet_v2", "{field}": 18446744073709551615}}"#);
        let (read, _) = MobileNet::read(&Config::from_json(&config)?)?;
        assert_eq!(read.last_features, Some(usize::MAX), "{field}");
    }
    Ok(())
}

/// The message about an array names its file and, of several arrays that are read as one, the one that differs.
#[test]
fn arrays_that_differ_are_named() -> Result<()> {
    setup();
    let temp = Folder::new();
    temp.write("config.json", copy("mixtral", "config.json"));
    let name = "model.layers.0.block_sparse_moe.experts.2.w1.weight";
    for (dtype, shape, words) in [
        (Dtype::F32, vec![16, 24], "has the shape [16, 24]"),
        (Dtype::F64, vec![24, 16], "has the dtype float64"),
        (Dtype::I32, vec![24, 16], "has the dtype int32"),
    ] {
        let other = changed(&copy("mixtral", "model.safetensors"), |arrays| {
            let expert = arrays.iter_mut().find(|(other, ..)| other == name).expect("an expert");
            let bytes = if dtype == Dtype::F64 { 8 } else { 4 };
            (expert.1, expert.2, expert.3) = (dtype, shape.clone(), vec![0; 24 * 16 * bytes]);
        });
        temp.write("model.safetensors", other);
        fails(load_of("mixtral", &temp.0), &[name, "model.safetensors", words]);
    }
    Ok(())
}

/// Fields that may be 0 are no fractions and not negative, which would be other positions in silence.
#[test]
fn counts_and_tokens_are_integers_of_at_least_0() {
    for value in ["-1", "1.5", "1e30"] {
        let config = |text: &str| Config::from_json(&format!("{{{}}}", text.replace('?', value)));
        for read in [
            config(r#""model_type": "roberta", "pad_token_id": ?"#).and_then(|config| Bert::read(&config).map(drop)),
            config(r#""model_type": "gte", "type_vocab_size": ?"#).and_then(|config| Bert::read(&config).map(drop)),
            config(r#""model_type": "clip", "text_config": {"eos_token_id": ?}"#)
                .and_then(|config| Clip::read(&config).map(drop)),
            config(r#""model_type": "dinov3_vit", "num_register_tokens": ?"#)
                .and_then(|config| Vit::read(&config).map(drop)),
        ] {
            fails(read, &["must be an integer from 0", value.trim_end_matches("30")]);
        }
    }
}
