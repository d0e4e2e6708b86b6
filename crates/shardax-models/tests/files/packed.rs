//! Models whose weights stay in few bits, and the kernels of GPTQ, AWQ and gpt-oss.

use shardax_models::huggingface::{KeyMap, Layout, Weights, load};
use shardax_models::{Adapter, Config, Decoder, GenerateOptions, LoadOptions, Packed, Pretrained};
use shardax_nn::prelude::*;

use super::common::{Folder, fails};
use super::gguf::{Value, written};
use super::sharded::is_split;
use super::{golden, setup};

/// Creates rows of `width` small numbers in blocks of this type.
fn blocks(rng: &mut fastrand::Rng, kind: u32, rows: usize, width: usize) -> Vec<u8> {
    // The number of elements and bytes in a block, and the positions of its float16 numbers.
    let (elements, size, halves): (usize, usize, &[usize]) = match kind {
        2 => (32, 18, &[0]),
        3 => (32, 20, &[0, 2]),
        8 => (32, 34, &[0]),
        12 => (256, 144, &[0, 2]),
        _ => (256, 210, &[208]),
    };
    let mut bytes = Vec::new();
    for _ in 0..rows * width / elements {
        let mut block: Vec<u8> = (0..size).map(|_| rng.u8(..)).collect();
        for at in halves {
            // About 0.001 in float16.
            block[*at..at + 2].copy_from_slice(&[rng.u8(..), 0x14]);
        }
        bytes.extend(block);
    }
    bytes
}

/// Returns a Llama with matrices of several types.
fn llama() -> Vec<u8> {
    let (metadata, tensors) = llama_parts();
    written(&metadata, &tensors)
}

type Tensors = Vec<(&'static str, u32, &'static [usize], Vec<u8>)>;

/// Returns the metadata and the tensors of a Llama whose matrices have several types.
fn llama_parts() -> (Vec<(&'static str, Value<'static>)>, Tensors) {
    let rng = &mut fastrand::Rng::with_seed(0);
    let metadata = vec![
        ("general.architecture", Value::Text("llama")),
        ("llama.block_count", Value::U32(1)),
        ("llama.embedding_length", Value::U32(256)),
        ("llama.feed_forward_length", Value::U32(256)),
        ("llama.attention.head_count", Value::U32(4)),
        ("llama.attention.head_count_kv", Value::U32(2)),
        ("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
    ];
    // The numbers are ggml types: Q6_K is 14, Q4_K 12, Q4_0 2, Q8_0 8 and Q4_1 3.
    let matrices: [(&'static str, u32, &'static [usize]); 8] = [
        ("token_embd.weight", 14, &[40, 256]),
        ("blk.0.attn_q.weight", 12, &[256, 256]),
        ("blk.0.attn_k.weight", 2, &[128, 256]),
        ("blk.0.attn_v.weight", 14, &[128, 256]),
        ("blk.0.attn_output.weight", 8, &[256, 256]),
        ("blk.0.ffn_gate.weight", 3, &[256, 256]),
        ("blk.0.ffn_up.weight", 12, &[256, 256]),
        ("blk.0.ffn_down.weight", 2, &[256, 256]),
    ];
    let mut tensors: Vec<_> = matrices
        .into_iter()
        .map(|(name, kind, shape)| (name, kind, shape, blocks(rng, kind, shape[0], shape[1])))
        .collect();
    for name in ["blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight"] {
        tensors.push((name, 0, &[256], 1.0f32.to_le_bytes().repeat(256)));
    }
    (metadata, tensors)
}

/// Returns the metadata of one of several files.
fn split_metadata(number: u32, count: u32) -> Vec<(&'static str, Value<'static>)> {
    vec![("split.no", Value::U32(number)), ("split.count", Value::U32(count))]
}

/// A model in several files is opened by its first file.
#[test]
fn split_files_are_one_model() -> Result<()> {
    setup();
    let temp = Folder::new();
    let single_file = Decoder::from_pretrained(temp.write("llama.gguf", llama()))?;
    let (mut metadata, mut tensors) = llama_parts();
    let tensors_of_second_file = tensors.split_off(5);
    metadata.extend(split_metadata(0, 2));
    metadata.push(("split.tensors.count", Value::U32(11)));
    let first = temp.write("tiny-00001-of-00002.gguf", written(&metadata, &tensors));
    fails(Decoder::from_pretrained(&first).map(drop), &["tiny-00002-of-00002.gguf"]);
    let second = temp.write("tiny-00002-of-00002.gguf", written(&split_metadata(1, 2), &tensors_of_second_file));
    let model = Decoder::from_pretrained(&first)?;
    for ((path, left), right) in tree::leaves_with_path(&model).iter().zip(tree::leaves(&single_file)) {
        assert_eq!(left.to_bytes()?, right.to_bytes()?, "{path}");
    }
    fails(Decoder::from_pretrained(&second).map(drop), &["it is file 2 of 2, but you must open the first file"]);
    temp.write("tiny-00002-of-00002.gguf", written(&split_metadata(1, 2), &tensors_of_second_file[1..]));
    fails(Decoder::from_pretrained(&first).map(drop), &["10 tensors with 10 different names, but should have 11"]);
    let misnamed = temp.write("other.gguf", written(&metadata, &tensors));
    fails(Decoder::from_pretrained(&misnamed).map(drop), &["does not end with -00001-of-00002.gguf"]);
    Ok(())
}

/// QLoRA: only the adapter has gradients, and they equal the gradients with dequantized weights.
#[test]
fn adapters_of_packed_models_have_the_gradients_of_widened_ones() -> Result<()> {
    setup();
    let temp = Folder::new();
    let path = temp.write("llama.gguf", llama());
    let (packed, wide) = (Packed::<Decoder>::from_pretrained(&path)?, Decoder::from_pretrained(&path)?);
    let layers = ["attention.query", "attention.out", "mlp.up", "mlp.down"];
    let adapter = Adapter::new(&wide, layers, 4, 8.0, &mut Rngs::new(0))?;
    // The second matrices start as zeros, so the gradients of the first ones are zeros too.
    let adapter = tree::map(|x| x + 0.01, adapter)?;
    let tokens = array([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]]);
    fn loss_of(model: Decoder, tokens: &Array) -> Result<Array> {
        let logits = model.forward(tokens.get((.., ..-1)));
        Ok(softmax_cross_entropy_with_integer_labels(logits, tokens.get((.., 1..))).mean(..))
    }
    let through_packed =
        |adapter: Adapter, model: Packed<Decoder>, tokens: Array| loss_of(adapter.apply(&model.unpack()?)?, &tokens);
    fn through_wide(adapter: Adapter, model: Decoder, tokens: Array) -> Result<Array> {
        loss_of(adapter.apply(&model)?, &tokens)
    }
    let (loss, grads) = jit(value_and_grad(through_packed)).call((&adapter, &packed, &tokens))?;
    let (expected_loss, expected) = jit(value_and_grad(through_wide)).call((&adapter, &wide, &tokens))?;
    assert!(allclose(&loss, &expected_loss, 1e-5, 1e-6)?);
    for ((path, grad), expected) in tree::leaves_with_path(&grads).iter().zip(tree::leaves(&expected)) {
        assert!(allclose(grad, &expected, 1e-3, 1e-6)?, "{path}");
        assert!(expected.abs().max(..).item::<f32>()? > 1e-6, "{path}");
    }
    Ok(())
}

/// Returns the size of arrays in memory.
fn byte_count(leaves: &[Array]) -> usize {
    leaves.iter().map(|leaf| leaf.size() * leaf.dtype().bits() / 8).sum()
}

#[test]
fn packed_models_compute_as_widened_ones() -> Result<()> {
    setup();
    let temp = Folder::new();
    let path = temp.write("llama.gguf", llama());
    let (packed, wide) = (Packed::<Decoder>::from_pretrained(&path)?, Decoder::from_pretrained(&path)?);
    assert_eq!(packed.packed_count(), (8, 11));
    assert!(byte_count(&tree::leaves(&packed)) * 3 < byte_count(&tree::leaves(&wide)));

    let (left, right) = (packed.unpack()?, &wide);
    for ((path, left), (_, right)) in tree::leaves_with_path(&left).iter().zip(tree::leaves_with_path(right)) {
        assert_eq!(left.to_vec::<f32>()?, right.to_vec::<f32>()?, "{path}");
    }
    let tokens = array([[3, 1, 4, 1, 5]]);
    let forward = jit(|model: Packed<Decoder>, tokens: Array| -> Result<Array> { Ok(model.unpack()?.forward(tokens)) });
    let (found, expected) = (forward.call((&packed, &tokens))?, wide.forward(&tokens));
    assert!(allclose(&found, &expected, 1e-4, 1e-5)?);
    assert!(expected.abs().max(..).item::<f32>()? > 0.1);

    let prompts = [vec![3, 1, 4], vec![7]];
    let options = GenerateOptions::new(6);
    assert_eq!(packed.generate(&prompts, &options)?, wide.generate(&prompts, &options)?);
    Ok(())
}

/// The rules split rows and groups like outputs and inputs.
#[test]
fn packed_models_are_split_over_a_mesh() -> Result<()> {
    setup();
    let temp = Folder::new();
    let path = temp.write("llama.gguf", llama());
    let mesh = make_mesh([("model", 2)])?;
    let rules = Rules::new(&mesh, [("heads", "model"), ("mlp", "model"), ("vocab", "model")]);
    let split = Packed::<Decoder>::from_pretrained_with(&path, &LoadOptions::new().rules(&rules))?;
    assert_eq!(tree::leaves(&split).iter().filter(|leaf| leaf.ndim() == 3 && is_split(leaf)).count(), 8);
    let packed = Packed::<Decoder>::from_pretrained(&path)?;
    let tokens = array([[3, 1, 4, 1, 5]]);
    let forward = jit(|model: Packed<Decoder>, tokens: Array| -> Result<Array> { Ok(model.unpack()?.forward(tokens)) });
    let (found, expected) = (forward.call((&split, &tokens))?, forward.call((&packed, &tokens))?);
    let (found, expected) = (found.to_vec::<f32>()?, expected.to_vec::<f32>()?);
    assert!(
        found.iter().zip(&expected).all(|(found, expected)| (found - expected).abs() < 1e-5 + 1e-4 * expected.abs())
    );
    Ok(())
}

/// The experts of gpt-oss in four bits have the logits of `transformers` with the dequantized numbers.
#[test]
fn experts_in_four_bits_have_the_logits_of_transformers() -> Result<()> {
    setup();
    let case = Weights::open(golden("gpt_oss_mxfp4/case.safetensors"))?;
    let (tokens, expected) = (case.get("input_ids")?, case.get("logits")?);
    // Gates and first layers are one array in the folder, and two in the GGUF file.
    for name in ["gpt_oss_mxfp4", "gguf/gpt_oss_mxfp4.gguf"] {
        let wide = Decoder::from_pretrained(golden(name))?;
        assert!(allclose(wide.forward(&tokens), &expected, 1e-4, 1e-4)?, "{name}");
        let packed = Packed::<Decoder>::from_pretrained(golden(name))?;
        assert_eq!(packed.packed_count().0, 3, "{name}");
        let forward =
            jit(|model: Packed<Decoder>, tokens: Array| -> Result<Array> { Ok(model.unpack()?.forward(tokens)) });
        assert!(allclose(forward.call((&packed, &tokens))?, &expected, 1e-4, 1e-4)?, "{name}");
    }
    assert!(expected.abs().max(..).item::<f32>()? > 0.1);
    Ok(())
}

/// The kernels of GPTQ, AWQ and the experts of gpt-oss decode according to their definitions.
#[test]
fn dequantize_parts_equals_each_format() -> Result<()> {
    setup();
    for (name, config) in [
        ("gptq", r#"{"quant_method": "gptq", "bits": 4}"#),
        ("gptq_order", r#"{"quant_method": "gptq", "bits": 4, "desc_act": true}"#),
        ("gptq8", r#"{"quant_method": "gptq", "bits": 8}"#),
        ("awq", r#"{"quant_method": "awq", "bits": 4, "version": "GEMM"}"#),
        ("mxfp4", r#"{"quant_method": "mxfp4"}"#),
    ] {
        let config = Config::from_json(&format!("{{\"quantization_config\": {config}}}"))?;
        let weights = Weights::open(golden(&format!("quantized/{name}.safetensors")))?.quantized(&config)?;
        let expected = weights.get("expected")?;
        let kernel = if name == "mxfp4" { "experts.up" } else { "layer.weight" };
        assert_eq!(weights.names().collect::<Vec<_>>().len(), 2, "{name}");
        let dequantized = weights.get(kernel)?;
        assert_eq!(dequantized.shape(), expected.shape(), "{name}");
        assert_eq!(dequantized.to_vec::<f32>()?, expected.to_vec::<f32>()?, "{name}");
    }
    // A layer that is loaded from quantized files has the dequantized weights.
    let keys = KeyMap::new().array("kernel", "layer.weight", Layout::Transposed);
    let layer = Linear::builder(64, 16).use_bias(false).build(&mut Rngs::new(0));
    let config = Config::from_json(r#"{"quantization_config": {"quant_method": "gptq", "bits": 4}}"#)?;
    let weights = Weights::open(golden("quantized/gptq.safetensors"))?.quantized(&config)?;
    let loaded = load(&weights, &layer, &keys, &Rules::default())?;
    assert_eq!(loaded.kernel.t().to_vec::<f32>()?, weights.get("expected")?.to_vec::<f32>()?);

    let read_other = |json: &str| Config::from_json(json).and_then(|config| weights.clone().quantized(&config));
    fails(read_other(r#"{"quantization_config": {"quant_method": "gptq", "bits": 3}}"#), &["GPTQ with 3 bits"]);
    fails(read_other(r#"{"quantization_config": {"quant_method": "awq", "version": "gemv"}}"#), &["version \"gemv\""]);
    fails(
        read_other(r#"{"quantization_config": {"quant_method": "hqq"}}"#),
        &["quant_method", "\"hqq\"", "gptq, awq", "fp8"],
    );
    Ok(())
}
