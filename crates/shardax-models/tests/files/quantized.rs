//! Folders with quantized kernels (`tools/huggingface/quantized_folders.py`).

use shardax_models::huggingface::Weights;
use shardax_models::{Config, Decoder, Packed, Pretrained};
use shardax_nn::prelude::*;

use super::common::{Folder, fails};
use super::{golden, setup};

/// Each folder, and the largest difference of logits.
const FOLDERS: [&str; 12] = [
    "llama_fp8",
    "llama_fp8_static",
    "llama_ct_fp8",
    "llama_ct_int8",
    "llama_ct_w4",
    "llama_ct_w4_zeros",
    "llama_ct_nvfp4",
    "llama_nf4",
    "llama_fp4",
    "llama_bnb8",
    "bitnet_packed",
    "bitnet_online",
];

#[test]
fn quantized_folders_have_the_logits_of_dequantized_kernels() -> Result<()> {
    setup();
    let forward = jit(|model: Decoder, tokens: Array| model.forward(tokens));
    let packed_forward =
        jit(|model: Packed<Decoder>, tokens: Array| -> Result<Array> { Ok(model.unpack()?.forward(tokens)) });
    for name in FOLDERS {
        let case = Weights::open(golden(name).join("case.safetensors"))?;
        let (tokens, expected) = (case.get("input_ids")?, case.get("logits")?);
        let logits = forward.call((&Decoder::from_pretrained(golden(name))?, &tokens))?;
        let difference = (&logits - &expected).abs().max(..).item::<f32>()?;
        assert!(difference < 1e-4, "{name}: {difference}");
        // Integers of 4 bits stay in 4 bits.
        let packed = Packed::<Decoder>::from_pretrained(golden(name))?;
        assert_eq!(packed.packed_count().0, if name.starts_with("llama_ct_w4") { 7 } else { 0 }, "{name}");
        let logits = packed_forward.call((&packed, &tokens))?;
        let difference = (&logits - &expected).abs().max(..).item::<f32>()?;
        assert!(difference < 1e-3, "{name}: {difference}");
    }
    Ok(())
}

/// Each field of a `quantization_config` that is not supported, and words of the message.
#[test]
fn unsupported_quantization_says_which_field_it_is() -> Result<()> {
    setup();
    let folder = |name: &str, text: &str| -> Result<()> {
        let temp = Folder::new();
        let config = std::fs::read_to_string(golden(name).join("config.json")).expect("a configuration");
        let mut fields: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&config).expect("an object");
        let about = fields.get_mut("quantization_config").and_then(|about| about.as_object_mut()).expect("an object");
        about.extend(serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(text).expect("an object"));
        temp.write("config.json", serde_json::to_vec(&fields).expect("a text"));
        let weights = std::fs::read(golden(name).join("model.safetensors")).expect("a file");
        temp.write("model.safetensors", weights);
        Decoder::from_pretrained(temp.join("")).map(drop)
    };
    let cases: [(&str, &str, &[&str]); 14] = [
        ("llama_fp8", r#"{"quant_method": "hqq"}"#, &["hqq", "compressed-tensors"]),
        ("llama_fp8", r#"{"expert_dtype": "fp4"}"#, &["expert_dtype", "fp4"]),
        ("llama_fp8", r#"{"weight_block_size": [0, 4]}"#, &["[0,4]"]),
        ("llama_fp8", r#"{"weight_block_size": [7, 7]}"#, &["do not fit"]),
        ("llama_ct_w4", r#"{"transform_config": {"config_groups": {}}}"#, &["transform_config"]),
        ("llama_ct_w4", r#"{"sparsity_config": {"format": "sparse-24-bitmask"}}"#, &["sparse-24-bitmask"]),
        ("llama_ct_w4", r#"{"config_groups": {"group_0": {"weights": {"num_bits": 3}}}}"#, &["3 bits"]),
        ("llama_ct_w4", r#"{"format": "marlin-24"}"#, &["marlin-24"]),
        (
            "llama_ct_w4",
            r#"{"config_groups": {"a": {"weights": {"num_bits": 4}}, "b": {"weights": {"num_bits": 8}}}}"#,
            &["several formats"],
        ),
        ("llama_nf4", r#"{"bnb_4bit_quant_storage": "bfloat16"}"#, &["bnb_4bit_quant_storage", "bfloat16"]),
        ("bitnet_packed", r#"{"use_rms_norm": true}"#, &["use_rms_norm"]),
        ("bitnet_packed", r#"{"linear_class": "other"}"#, &["linear_class", "other"]),
        ("llama_fp8", r#"{"quant_method": "gptq", "format": "marlin"}"#, &["marlin"]),
        ("llama_fp8", r#"{"quant_method": "awq", "format": "gemv"}"#, &["gemv"]),
    ];
    for (name, text, words) in cases {
        fails(folder(name, text), words);
    }
    // A format that newer files name by another field has other zero points.
    let config = |text: &str| Config::from_json(&format!(r#"{{"quantization_config": {text}}}"#));
    let weights = || Weights::open(golden("quantized").join("gptq.safetensors"));
    let kernel = |text: &str| weights()?.quantized(&config(text)?)?.get("layer.weight");
    let [first, second, both] = [
        r#"{"quant_method": "gptq", "bits": 4, "format": "gptq"}"#,
        r#"{"quant_method": "gptq", "bits": 4, "format": "gptq_v2"}"#,
        r#"{"quant_method": "gptq", "bits": 4, "format": "gptq", "checkpoint_format": "gptq_v2"}"#,
    ]
    .map(kernel);
    let (first, second) = (first?, second?);
    assert!((&first - &second).abs().max(..).item::<f32>()? > 0.01);
    assert_eq!(second.to_bytes()?, both?.to_bytes()?);
    Ok(())
}
