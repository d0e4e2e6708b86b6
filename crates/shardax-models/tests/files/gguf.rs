//! GGUF files: values, configurations, tokenizers and errors.

use shardax_models::gguf::{Gguf, MetadataValue};
use shardax_models::huggingface::Weights;
use shardax_models::{Config, Decoder, Pretrained};
use shardax_nn::prelude::*;

use super::common::{Folder, fails};
use super::{golden, same_arrays, setup};

/// Random bits in every type decode to the same numbers as in llama.cpp's Python package.
#[test]
fn blocks_are_the_numbers_of_ggml() -> Result<()> {
    setup();
    same_arrays(&Weights::open(golden("gguf/blocks.safetensors"))?, &Weights::open(golden("gguf/blocks.gguf"))?)
}

/// Copies the folder and replaces fields of `config.json` that the format cannot store.
fn folder_with(name: &str, fields: &[(&str, &str)]) -> Folder {
    let temp = Folder::new();
    let text = std::fs::read(golden(name).join("config.json")).expect("a file");
    let mut config: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(&text).expect("JSON");
    for (field, value) in fields {
        config.insert((*field).to_owned(), serde_json::from_str(value).expect("JSON"));
    }
    temp.write("config.json", serde_json::to_vec(&config).expect("JSON"));
    for file in std::fs::read_dir(golden(name)).expect("a folder") {
        let path = file.expect("a file").path();
        let file = path.file_name().and_then(|name| name.to_str()).expect("a name");
        if file.starts_with("model") {
            temp.write(file, std::fs::read(&path).expect("a file"));
        }
    }
    temp
}

/// The models of each architecture.
const MODELS: [&str; 25] = [
    "gpt2",
    "llama",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3",
    "phi",
    "phi3",
    "arcee",
    "cohere",
    "glm4",
    "gpt_oss",
    "granite",
    "olmo2",
    "olmo3",
    "smollm3",
    "starcoder2",
    "ernie4_5",
    "exaone4",
    "seed_oss",
    "qwen3vl",
];

/// Rotary positions of OLMo 3 that are scaled only in layers without a window.
const OLMO3_POSITIONS: &str = r#"{"full_attention": {"factor": 4.0, "original_max_position_embeddings": 8, "rope_theta": 500.0,
    "rope_type": "yarn"}, "sliding_attention": {"rope_theta": 500.0, "rope_type": "default"}}"#;

/// Files with llama.cpp's names, row order, norms and transposed kernels have the logits of the folder.
#[test]
fn models_have_the_logits_of_their_folders() -> Result<()> {
    setup();
    let forward = jit(|model: Decoder, tokens: Array| model.forward(tokens));
    let tokens = array([[3, 1, 4, 1, 5, 9, 2, 6, 5], [30, 29, 2, 7, 11, 13, 17, 19, 23]]);
    for name in MODELS {
        let fields: &[(&str, &str)] = match name {
            "gemma2" | "gemma3" => &[("query_pre_attn_scalar", "8")],
            // The format cannot store windows of single layers.
            "qwen2" => &[("use_sliding_window", "false"), ("layer_types", "null")],
            // The format has the layers without rotary positions of the published model, and no windows for these types.
            "smollm3" => &[("no_rope_layers", "null"), ("no_rope_layer_interval", "4")],
            "starcoder2" => &[("sliding_window", "null")],
            // The format has one base for all layers.
            "olmo3" => &[("rope_parameters", OLMO3_POSITIONS)],
            _ => &[],
        };
        let folder = folder_with(if name == "qwen3vl" { "qwen3" } else { name }, fields);
        let expected = forward.call((&Decoder::from_pretrained(&folder.0)?, &tokens))?;
        let model = Decoder::from_pretrained(golden(&format!("gguf/{name}.gguf")))?;
        let logits = forward.call((&model, &tokens))?;
        let error = (&logits - &expected).abs().max(..).item::<f32>()?;
        assert!(error < 1e-5, "{name}: {error}");
        assert!(expected.abs().max(..).item::<f32>()? > 0.1, "{name}");
    }
    Ok(())
}

/// Writes a metadata value.
#[allow(dead_code)] // Tests of texts use them all.
pub enum Value<'a> {
    U32(u32),
    F32(f32),
    Bool(bool),
    Text(&'a str),
    Texts(&'a [&'a str]),
    Numbers(&'a [f32]),
    Integers(&'a [i32]),
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// Writes a GGUF file of version 3 from metadata and tensors. A tensor has the number of its type, a row-major shape,
/// and bytes.
pub fn written(metadata: &[(&str, Value<'_>)], tensors: &[(&str, u32, &[usize], Vec<u8>)]) -> Vec<u8> {
    // The header: magic, version, and the numbers of tensors and of metadata entries.
    let mut out = b"GGUF\x03\0\0\0".to_vec();
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((metadata.len() as u64).to_le_bytes());
    // Each entry is a key, the number of its type, and a value. Lists (type 9) also have the type of their elements.
    for (key, value) in metadata {
        text(&mut out, key);
        let mut list = |kind: u32, count: usize| {
            out.extend(9u32.to_le_bytes());
            out.extend(kind.to_le_bytes());
            out.extend((count as u64).to_le_bytes());
        };
        match value {
            Value::U32(value) => out.extend([4u32.to_le_bytes(), value.to_le_bytes()].concat()),
            Value::F32(value) => out.extend([6u32.to_le_bytes(), value.to_le_bytes()].concat()),
            Value::Bool(value) => out.extend([&7u32.to_le_bytes()[..], &[u8::from(*value)]].concat()),
            Value::Text(value) => {
                out.extend(8u32.to_le_bytes());
                text(&mut out, value);
            }
            Value::Texts(values) => {
                list(8, values.len());
                values.iter().for_each(|value| text(&mut out, value));
            }
            Value::Numbers(values) => {
                list(6, values.len());
                out.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            }
            Value::Integers(values) => {
                list(5, values.len());
                out.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            }
        }
    }
    // The descriptions of the tensors, whose sizes begin with the last dimension, and then their data, aligned to 32 bytes.
    let mut offset = 0;
    for (name, kind, shape, bytes) in tensors {
        text(&mut out, name);
        out.extend((shape.len() as u32).to_le_bytes());
        out.extend(shape.iter().rev().flat_map(|size| (*size as u64).to_le_bytes()));
        out.extend(kind.to_le_bytes());
        out.extend((offset as u64).to_le_bytes());
        offset = (offset + bytes.len()).next_multiple_of(32);
    }
    for (_, _, _, bytes) in tensors {
        out.resize(out.len().next_multiple_of(32), 0);
        out.extend(bytes);
    }
    out
}

#[test]
fn damaged_files_are_errors() -> Result<()> {
    setup();
    let temp = Folder::new();
    let open = |bytes: &[u8]| Gguf::open(temp.write("a.gguf", bytes)).map(drop);
    // Files that end early, or that are not GGUF files.
    let file = std::fs::read(golden("gguf/llama.gguf")).expect("a file");
    open(&file)?;
    fails(open(b"GGU"), &["a.gguf is damaged", "the letters \"GGUF\" should have 4 bytes, but only 3 bytes remain"]);
    fails(open(b"GGML\0\0\0\0"), &["at byte 0, the letters \"GGUF\" are missing"]);
    fails(open(b"GGUF\x01\0\0\0"), &["the version is 1, but only versions 2 and 3 are supported"]);
    for end in [4, 8, 16, 24, 100, 500, 700, file.len() - 1] {
        fails(open(&file[..end]), &["a.gguf is damaged"]);
    }
    let mut too_many_tensors = file.clone();
    too_many_tensors[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
    fails(open(&too_many_tensors), &["tensors should follow"]);

    // Tensors and metadata that contradict themselves.
    let tensor = |kind: u32, shape: &'static [usize], bytes: usize| written(&[], &[("a", kind, shape, vec![0; bytes])]);
    fails(open(&tensor(99, &[2], 8)), &["the tensor \"a\" has the ggml type 99, but only F32, F16"]);
    fails(open(&tensor(8, &[2, 31], 64)), &["of [2, 31] does not consist of entire Q8_0 blocks"]);
    fails(open(&tensor(0, &[1 << 40, 1 << 40], 8)), &["does not consist of entire F32 blocks"]);
    fails(open(&tensor(0, &[64], 8)), &["the tensor \"a\" has 256 bytes at"]);
    fails(open(&written(&[], &[("a", 0, &[1], vec![0; 4]), ("a", 0, &[1], vec![0; 4])])), &["occurs twice"]);
    fails(open(&written(&[("x", Value::U32(1)), ("x", Value::U32(1))], &[])), &["metadata key \"x\" occurs twice"]);
    fails(open(&written(&[("general.alignment", Value::U32(3))], &[])), &["not a power of two"]);
    let mut boolean = written(&[("x", Value::Bool(true))], &[]);
    *boolean.last_mut().expect("a byte") = 2;
    fails(open(&boolean), &["a boolean is 2"]);
    Ok(())
}

#[test]
fn metadata_that_is_not_understood_is_an_error() -> Result<()> {
    setup();
    let temp = Folder::new();
    let config = |more: &[(&'static str, Value<'static>)]| {
        let mut metadata = vec![
            ("general.architecture", Value::Text("llama")),
            ("llama.block_count", Value::U32(1)),
            ("llama.embedding_length", Value::U32(16)),
            ("llama.feed_forward_length", Value::U32(16)),
            ("llama.attention.head_count", Value::U32(2)),
            ("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
        ];
        // Replace or add entries.
        for (key, value) in more {
            metadata.retain(|(other, _)| other != key);
            metadata.push((
                key,
                match value {
                    Value::U32(value) => Value::U32(*value),
                    Value::F32(value) => Value::F32(*value),
                    Value::Text(value) => Value::Text(value),
                    _ => Value::Bool(true),
                },
            ));
        }
        let table = ("token_embd.weight", 0, &[5, 16][..], vec![0; 320]);
        Config::open(temp.write("a.gguf", written(&metadata, &[table])))
    };
    let supported = config(&[])?;
    assert_eq!(supported.get("model_type").and_then(|value| value.as_str()), Some("llama"));
    assert_eq!(supported.get("rms_norm_eps").and_then(|value| value.as_f64()), Some(1e-5));
    assert_eq!(supported.get("vocab_size").and_then(|value| value.as_u64()), Some(5));
    fails(config(&[("general.architecture", Value::Text("rwkv"))]), &["its architecture is \"rwkv\"", "llama"]);
    fails(config(&[("llama.attention.clamp_kqv", Value::F32(8.0))]), &["`llama.attention.clamp_kqv` is Float(8.0)"]);
    assert_eq!(
        config(&[("llama.expert_count", Value::U32(8))])?.get("model_type").and_then(|kind| kind.as_str()),
        Some("mixtral")
    );
    fails(
        config(&[("llama.block_count", Value::Text("one"))]),
        &["`llama.block_count` is Text(\"one\"), which is not a size"],
    );
    // A list with an entry for each layer would not fit in memory.
    let window = ("llama.attention.sliding_window", Value::U32(4));
    fails(
        config(&[
            ("general.architecture", Value::Text("gemma3")),
            ("gemma3.block_count", Value::U32(u32::MAX)),
            ("gemma3.embedding_length", Value::U32(16)),
            ("gemma3.attention.head_count", Value::U32(2)),
            ("gemma3.attention.sliding_window", Value::U32(4)),
        ]),
        &["`gemma3.block_count` is 4294967295, but a model can have at most 100000 layers"],
    );
    fails(config(&[window, ("llama.attention.sliding_window_pattern", Value::Text("x"))]), &["pattern is Text(\"x\")"]);
    for (key, value) in
        [("llama.rope.freq_base", Value::Text("x")), ("llama.attention.layer_norm_rms_epsilon", Value::F32(f32::NAN))]
    {
        fails(config(&[(key, value)]), &[key, "which is not a finite number"]);
    }
    fails(config(&[("llama.rope.dimension_count", Value::U32(4))]), &["rotary positions apply to 4 of 8 features"]);
    fails(config(&[("llama.vocab_size", Value::U32(6))]), &["`vocab_size` is 6, but `token_embd.weight` has 5 rows"]);
    fails(
        config(&[("llama.rope.scaling.type", Value::Text("odd"))]),
        &["scaling of rotary positions is Some(\"odd\")"],
    );

    let file = Gguf::open(golden("gguf/llama.gguf"))?;
    assert_eq!(file.architecture()?, "llama");
    assert_eq!(file.metadata()["llama.block_count"], MetadataValue::Integer(2));
    assert!(file.tensors().any(|(name, shape)| name == "token_embd.weight" && shape == [33, 16]));
    Ok(())
}
