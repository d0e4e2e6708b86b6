//! Adapters as the files of `peft` (`tools/huggingface/adapters.py`).

use std::path::Path;

use safetensors::tensor::Dtype;
use shardax_models::huggingface::Weights;
use shardax_models::{
    Adapter, Bert, BertOptions, Clap, Clip, ClipSeg, Config, Decoder, DecoderConfig, Detr, EncoderDecoder,
    ExpertsConfig, Florence, Levit, MobileVit, Pretrained, RtDetr, Segformer, SoundEncoder, Swin, Vit,
};
use shardax_nn::prelude::*;

use super::common::{Folder, fails};
use super::rejected::changed;
use super::{alike, case, folder, quick, setup};

/// Computes the logits of a model with an adapter.
fn apply_adapter(adapter: Adapter, model: Decoder, tokens: Array) -> Result<Array> {
    Ok(adapter.apply(&model)?.forward(tokens))
}

/// Early versions of peft write the file of PyTorch, and adapters in half precision are computed in float32.
#[test]
fn adapters_of_early_versions_equal_peft() -> Result<()> {
    setup();
    let (case, config) = (case("adapter_older")?, Config::open(folder("llama"))?);
    let adapter = Adapter::from_pretrained(&config, folder("adapter_older"))?;
    let model = Decoder::from_pretrained(folder("llama"))?;
    let logits = jit(apply_adapter).call((&adapter, &model, case("input_ids")?))?;
    alike("adapter_older", &logits, &case("logits")?)
}

/// One adapter of queries, keys and values, or of a gate and the first layer of an MLP.
#[test]
fn adapters_of_joined_layers_equal_peft() -> Result<()> {
    setup();
    for (name, model, count) in
        [("adapter_gpt2", "gpt2", 10), ("adapter_phi3", "phi3", 12), ("adapter_gpt_neox", "gpt_neox", 8)]
    {
        let (case, config) = (case(name)?, Config::open(folder(model))?);
        let adapter = Adapter::from_pretrained(&config, folder(name))?;
        assert_eq!(adapter.layers.len(), count, "{name}");
        let model = Decoder::from_pretrained(folder(model))?;
        let logits = jit(apply_adapter).call((&adapter, &model, case("input_ids")?))?;
        alike(name, &logits, &case("logits")?)?;
        // The parts share their first matrix, so the saved file is the file of peft.
        let temp = Folder::new();
        adapter.save_pretrained(&config, temp.join("a"))?;
        has_equal_arrays(&folder(name), &temp.join("a"))?;
    }
    Ok(())
}

/// Layers that files store as one have different matrices after training. The joined matrices have the sum of their ranks.
#[test]
fn joined_layers_are_saved_with_the_sum_of_their_ranks() -> Result<()> {
    setup();
    let temp = Folder::new();
    let tokens = array([[3, 1, 4, 1, 5]]);
    // Equal parts, rows, and rows in groups of heads. The output layer of GPT-NeoX has another name in its files.
    for (name, targets) in [
        ("gpt2", &["attention.query", "attention.value", "mlp.up"][..]),
        ("phi3", &["attention.key", "mlp.gate", "mlp.up"]),
        ("gpt_neox", &["attention.query", "attention.key", "attention.value", "head"]),
    ] {
        let (model, config) = (Decoder::from_pretrained(folder(name))?, Config::open(folder(name))?);
        let mut adapter = Adapter::new(&model, targets.iter().copied(), 2, 3.0, &mut Rngs::new(0))?;
        fill_second_matrices(&mut adapter)?;
        adapter.save_pretrained(&config, temp.join(name))?;
        let again = Adapter::from_pretrained(&config, temp.join(name))?;
        let both = |adapter: Adapter, again: Adapter, model: Decoder, tokens: Array| -> Result<[Array; 3]> {
            let plain = model.forward(&tokens);
            Ok([apply_adapter(adapter, model.clone(), tokens.clone())?, apply_adapter(again, model, tokens)?, plain])
        };
        let [expected, result, plain] = jit(both).call((&adapter, &again, &model, &tokens))?;
        alike(name, &result, &expected)?;
        assert_ne!(expected.to_bytes()?, plain.to_bytes()?, "{name}");
        let saved = Weights::open(temp.join(name).join("adapter_model.safetensors"))?;
        assert_eq!(saved.contains("base_model.model.lm_head.lora_A.weight"), targets.contains(&"head"), "{name}");
    }
    let model = Decoder::from_pretrained(folder("gpt2"))?;
    let fused = Adapter::new(&model, ["attention.query"], 2, 1.0, &mut Rngs::new(0))?.with_magnitudes(&model)?;
    let config = Config::open(folder("gpt2"))?;
    fails(fused.save_pretrained(&config, temp.join("b")), &["c_attn", "one adapter for all parts"]);
    Ok(())
}

#[test]
fn adapters_equal_peft() -> Result<()> {
    setup();
    let (case, config) = (case("adapter")?, Config::open(folder("llama"))?);
    let (model, adapter) =
        (Decoder::from_pretrained(folder("llama"))?, Adapter::from_pretrained(&config, folder("adapter"))?);
    assert_eq!((adapter.layers.len(), adapter.scale()), (6, 1.5));
    let logits = |adapter: &Adapter| jit(apply_adapter).call((adapter, &model, case("input_ids")?));
    alike("adapter", &logits(&adapter)?, &case("logits")?)?;
    let patterns = Adapter::from_pretrained(&config, folder("adapter_patterns"))?;
    let pattern_case = super::case("adapter_patterns")?;
    let result = jit(apply_adapter).call((&patterns, &model, pattern_case("input_ids")?))?;
    alike("patterns", &result, &pattern_case("logits")?)?;
    // A saved adapter computes the same bits.
    let temp = Folder::new();
    adapter.save_pretrained(&config, temp.join("a"))?;
    let again = Adapter::from_pretrained(&config, temp.join("a"))?;
    assert_eq!(logits(&again)?.to_bytes()?, logits(&adapter)?.to_bytes()?);

    // Adapters that do not fit the model or the files.
    let mut rngs = Rngs::new(0);
    fails(Adapter::new(&model, ["attention.key", "nothing"], 2, 1.0, &mut rngs), &["no layer \"nothing\"", "key path"]);
    fails(Adapter::new(&model, ["head"], 0, 1.0, &mut rngs), &["a positive rank", "got 0 and 1"]);
    let experts = ExpertsConfig { capacity_factor: None, ..ExpertsConfig::new(4, 16) };
    let mixture = DecoderConfig { experts: Some(experts), ..DecoderConfig::new(32, 1, 16, 2) };
    let mixture = Decoder::new(&mixture, &mut rngs)?;
    let expert_adapter = Adapter::new(&mixture, ["gate"], 2, 1.0, &mut rngs)?;
    assert_eq!(expert_adapter.layers["blocks[0].experts.experts.layers.gate"].lora_a.shape(), [4, 16, 2]);
    fails(expert_adapter.with_magnitudes(&mixture), &["several experts", "attention"]);
    let gpt2 = Decoder::from_pretrained(folder("gpt2"))?;
    fails(adapter.apply(&gpt2), &["\"blocks[0].mlp.up\" is for a kernel of [16, 24]", "[16, 64]"]);
    fails(Adapter::from_pretrained(&Config::open(folder("gpt2"))?, folder("adapter")), &["a layer", "does not have"]);
    // Options of `peft` that are not supported, and ranks that differ from the files.
    let about = std::fs::read_to_string(folder("adapter").join("adapter_config.json")).expect("a file");
    std::fs::copy(folder("adapter").join("adapter_model.safetensors"), temp.join("adapter_model.safetensors"))
        .expect("a copy");
    for (from, to, said) in [
        ("\"use_dora\": false", "\"use_dora\": true", "lora_magnitude_vector"),
        ("\"peft_type\": \"LORA\"", "\"peft_type\": \"IA3\"", "`peft_type` is not \"LORA\""),
        ("\"bias\": \"none\"", "\"bias\": \"all\"", "adapters cannot change biases"),
        ("\"r\": 2", "\"r\": 3", "not a matrix of rank 3"),
        (
            "\"init_lora_weights\": true",
            "\"init_lora_weights\": \"pissa\"",
            "which also changes the weights of the model",
        ),
        ("\"init_lora_weights\": true", "\"init_lora_weights\": \"olora\"", "`init_lora_weights` is \"olora\""),
        ("\"rank_pattern\": {}", "\"rank_pattern\": {\"q_proj\": 4}", "not a matrix of rank 4"),
        ("\"rank_pattern\": {}", "\"rank_pattern\": {\"q_.*\": 4}", "which is not the end of a layer's name"),
    ] {
        assert!(about.contains(from), "{from}");
        temp.write("adapter_config.json", about.replace(from, to));
        fails(Adapter::from_pretrained(&config, &temp.0), &[said]);
    }
    Ok(())
}

/// Compares the logits of a decoder whose adapter is read from `peft`'s files, and from files that were saved here.
fn check_decoder(name: &str, base: &str) -> Result<Adapter> {
    let (case, config) = (case(name)?, Config::open(folder(base))?);
    let model = Decoder::from_pretrained(folder(base))?;
    let adapter = Adapter::from_pretrained(&config, folder(name))?;
    let apply = jit(|adapter: Adapter, model: Decoder, tokens: Array| -> Result<Array> {
        Ok(adapter.apply(&model)?.forward(tokens))
    });
    alike(name, &apply.call((&adapter, &model, case("input_ids")?))?, &case("logits")?)?;
    let temp = Folder::new();
    adapter.save_pretrained(&config, temp.join("a"))?;
    let again = Adapter::from_pretrained(&config, temp.join("a"))?;
    alike(name, &apply.call((&again, &model, case("input_ids")?))?, &case("logits")?)?;
    Ok(adapter)
}

#[test]
fn adapters_with_column_lengths_equal_peft() -> Result<()> {
    setup();
    let adapter = check_decoder("adapter_dora", "llama")?;
    assert_eq!(adapter.magnitudes.len(), 6);
    // The column lengths receive gradients, and a new adapter does not change the model.
    let model = Decoder::from_pretrained(folder("llama"))?;
    let fresh = Adapter::new(&model, ["attention.query"], 2, 3.0, &mut Rngs::new(0))?.with_magnitudes(&model)?;
    let tokens = array([[3, 1, 4]]);
    assert!(allclose(fresh.apply(&model)?.forward(&tokens), model.forward(&tokens), 1e-5, 1e-5)?);
    fn loss(adapter: Adapter, model: Decoder) -> Result<Array> {
        Ok(adapter.apply(&model)?.forward(array([[3, 1, 4]])).square().mean(..))
    }
    let grads = jit(grad(loss)).call((&fresh, &model))?;
    assert!(grads.magnitudes["blocks[0].attention.query"].abs().max(..).item::<f32>()? > 0.0);
    Ok(())
}

#[test]
fn adapters_with_fully_trained_modules_equal_peft() -> Result<()> {
    setup();
    let adapter = check_decoder("adapter_saved", "llama")?;
    let names: Vec<&str> = adapter.replaced.keys().map(String::as_str).collect();
    assert_eq!(names, ["blocks[0].norm.0.scale", "blocks[1].norm.0.scale", "head.kernel"]);
    let model = Decoder::from_pretrained(folder("llama"))?;
    let new = Adapter::new(&model, ["attention.query"], 2, 3.0, &mut Rngs::new(0))?;
    fails(new.clone().with_copies(&model, ["nothing"]), &["no layer \"nothing\""]);
    let other = Decoder::from_pretrained(folder("qwen3"))?;
    fails(
        new.with_copies(&model, ["head"])?.apply(&other),
        &["\"blocks[0].attention.query\" is for a kernel of [16, 16]"],
    );
    // The model uses its token table also as the last layer.
    let about = std::fs::read_to_string(folder("adapter_saved").join("adapter_config.json")).expect("a file");
    let temp = Folder::new();
    temp.write("adapter_config.json", about);
    let tied = Config::open(folder("qwen3"))?;
    fails(Adapter::from_pretrained(&tied, &temp.0), &["`modules_to_save` has \"lm_head\"", "as the last layer too"]);
    Ok(())
}

#[test]
fn adapters_of_single_experts_equal_peft() -> Result<()> {
    setup();
    let adapter = check_decoder("adapter_experts", "mixtral")?;
    assert_eq!(adapter.layers["blocks[0].experts.experts.layers.up"].lora_b.shape(), [4, 2, 24]);
    Ok(())
}

/// Adapters of arrays of experts: peft stores the matrices of all experts as one.
#[test]
fn adapters_of_expert_arrays_equal_peft() -> Result<()> {
    setup();
    let adapters = [("adapter_arrays_interleaved", "gpt_oss"), ("adapter_arrays", "qwen3_moe")];
    for (name, base) in adapters.into_iter().step_by(quick::one_of(2)) {
        let (case, config) = (case(name)?, Config::open(folder(base))?);
        let model = Decoder::from_pretrained(folder(base))?;
        let adapter = Adapter::from_pretrained(&config, folder(name))?;
        let apply = jit(|adapter: Adapter, model: Decoder, tokens: Array| -> Result<Array> {
            Ok(adapter.apply(&model)?.forward(tokens))
        });
        alike(name, &apply.call((&adapter, &model, case("input_ids")?))?, &case("logits")?)?;
        let temp = Folder::new();
        adapter.save_pretrained(&config, temp.join("a"))?;
        has_equal_arrays(&folder(name), &temp.join("a"))?;
    }
    Ok(())
}

/// peft adapts all linear layers of models with experts as if the experts were layers, with other ranks for joined ones. The adapter
/// that is saved here has separate matrices of the gate and of the first layer.
#[test]
fn adapters_of_all_linear_layers_equal_peft() -> Result<()> {
    setup();
    let adapter = check_decoder("adapter_all_linear", "qwen3_moe")?;
    assert!(adapter.layers.keys().any(|path| path.ends_with("experts.router")));
    let (model, config) = (Decoder::from_pretrained(folder("qwen3_moe"))?, Config::open(folder("qwen3_moe"))?);
    let temp = Folder::new();
    let mut rngs = Rngs::new(0);
    let mut trained = Adapter::new(&model, ["gate", "up", "down"], 2, 3.0, &mut rngs)?;
    fill_second_matrices(&mut trained)?;
    trained.save_pretrained(&config, temp.join("a"))?;
    let again = Adapter::from_pretrained(&config, temp.join("a"))?;
    let gate = "blocks[1].experts.experts.layers.gate";
    assert_eq!([&trained, &again].map(|adapter| adapter.layers[gate].lora_a.shape()[2]), [2, 4]);
    assert!(again.layers.keys().eq(trained.layers.keys()));
    let [expected, result] = [&trained, &again].map(|adapter| {
        let lora = &adapter.layers[gate];
        lora.lora_a.matmul(&*lora.lora_b)
    });
    alike(gate, &result, &expected)?;
    // peft exchanges the dimensions of the experts of Llama 4.
    let (model, config) = (Decoder::from_pretrained(folder("llama4"))?, Config::open(folder("llama4"))?);
    let experts = Adapter::new(&model, ["experts.layers.down"], 2, 3.0, &mut rngs)?;
    fails(experts.save_pretrained(&config, temp.join("b")), &["which peft cannot adapt", "leave this layer out"]);
    Ok(())
}

/// Replaces the second matrices, which are zero in a new adapter.
fn fill_second_matrices(adapter: &mut Adapter) -> Result<()> {
    for (seed, lora) in adapter.layers.values_mut().enumerate() {
        let shape = lora.lora_b.shape().to_vec();
        let numbers = (0..shape.iter().product()).map(|i| ((7 * i + seed) % 5) as f32 * 0.2 - 0.4);
        lora.lora_b = Array::from_vec(numbers.collect::<Vec<_>>(), &shape)?.into();
    }
    Ok(())
}

/// Asserts that two folders have adapters with the same arrays.
fn has_equal_arrays(old: &Path, new: &Path) -> Result<()> {
    let [old, new] = [old, new].map(|at| Weights::open(at.join("adapter_model.safetensors")));
    let (old, new) = (old?, new?);
    assert_eq!(old.names().collect::<Vec<_>>(), new.names().collect::<Vec<_>>());
    for array in old.names() {
        assert_eq!(old.get(array)?.to_bytes()?, new.get(array)?.to_bytes()?, "{array}");
    }
    Ok(())
}

/// Adapters of models of images, and of encoders with decoders.
#[test]
fn adapters_of_other_models_equal_peft() -> Result<()> {
    setup();
    let read = |name: &str, base: &str| Adapter::from_pretrained(&Config::open(folder(base))?, folder(name));
    let name = "adapter_vit";
    let (vit, arrays) = (Vit::from_pretrained(folder("vit"))?, case(name)?);
    let adapted = read(name, "vit")?.apply(&vit)?;
    let logits = jit(|model: Vit, images: Array| model.forward(images)).call((&adapted, arrays("pixel_values")?))?;
    alike(name, &logits, &arrays("logits")?)?;

    let name = "adapter_clip";
    let (clip, arrays) = (Clip::from_pretrained(folder("clip"))?, case(name)?);
    let adapted = read(name, "clip")?.apply(&clip)?;
    let forward = jit(|model: Clip, tokens: Array, images: Array| model.forward(tokens, images));
    let logits = forward.call((&adapted, arrays("input_ids")?, arrays("pixel_values")?))?;
    alike(name, &logits, &arrays("logits")?)?;

    for (name, base) in [("adapter_t5", "t5"), ("adapter_whisper", "whisper")] {
        let (model, arrays) = (EncoderDecoder::from_pretrained(folder(base))?, case(name)?);
        let inputs = match base {
            "t5" => arrays("input_ids")?,
            _ => arrays("input_features")?.transpose([0, 2, 1]),
        };
        let adapted = read(name, base)?.apply(&model)?;
        let forward =
            |model: EncoderDecoder, inputs: Array, targets: Array| model.forward(inputs, targets, &BertOptions::new());
        let logits = jit(forward).call((&adapted, inputs, arrays("decoder_input_ids")?))?;
        alike(name, &logits, &arrays("logits")?)?;
    }
    Ok(())
}

/// Compares the results of a model of any class whose adapter is read from `peft`'s files.
fn check_model<M: Pretrained>(base: &str, inputs: &[&str], forward: fn(M, Vec<Array>) -> Array) -> Result<()> {
    let name = format!("adapter_{base}");
    let case = case(&name)?;
    let adapter = Adapter::from_pretrained(&Config::open(folder(base))?, folder(&name))?;
    let adapted = adapter.apply(&M::from_pretrained(folder(base))?)?;
    let inputs = inputs.iter().map(|input| case(input)).collect::<Result<Vec<_>>>()?;
    alike(&name, &jit(forward).call((&adapted, inputs))?, &case("logits")?)
}

/// Computes the logits of a model of texts or of sound with a mask.
macro_rules! with_mask {
    ($model:ty) => {
        |model: $model, inputs| model.forward(inputs[0].clone(), &BertOptions::new().attention_mask(inputs[1].clone()))
    };
}

/// Models of images, of objects and of sound, whose layers transformers 5 renamed in part.
#[test]
fn adapters_of_many_kinds_equal_peft() -> Result<()> {
    setup();
    let checks: [fn() -> Result<()>; 15] = [
        || check_model("rt_detr", &["pixel_values"], |model: RtDetr, inputs| model.forward(&inputs[0]).0),
        || {
            check_model("clipseg", &["input_ids", "pixel_values"], |model: ClipSeg, inputs| {
                model.forward(&inputs[0], &inputs[1])
            })
        },
        || check_model("segformer", &["pixel_values"], |model: Segformer, inputs| model.forward(&inputs[0])),
        || check_model("recurrent_gemma", &["input_ids"], |model: Decoder, inputs| model.forward(&inputs[0])),
        || check_model("minimax", &["input_ids"], |model: Decoder, inputs| model.forward(&inputs[0])),
        || {
            let inputs = ["pixel_values", "input_ids", "attention_mask", "decoder_input_ids"];
            check_model("florence2", &inputs, |model: Florence, inputs| {
                let options = BertOptions::new().attention_mask(&inputs[2]);
                model.forward(&inputs[0], &inputs[1], &inputs[3], &options)
            })
        },
        || check_model("mobilevit", &["pixel_values"], |model: MobileVit, inputs| model.forward(&inputs[0])),
        || check_model("detr", &["pixel_values"], |model: Detr, inputs| model.forward(&inputs[0]).0),
        || check_model("levit", &["pixel_values"], |model: Levit, inputs| model.forward(&inputs[0])),
        || {
            check_model("clap", &["input_ids", "attention_mask", "input_features"], |model: Clap, inputs| {
                let options = BertOptions::new().attention_mask(&inputs[1]);
                model.forward(&inputs[0], &inputs[2], None, &options)
            })
        },
        || check_model("convbert", &["input_ids", "attention_mask"], with_mask!(Bert)),
        || check_model("wav2vec2_conformer", &["input_values", "attention_mask"], with_mask!(SoundEncoder)),
        || check_model("wav2vec2_bert", &["input_features", "attention_mask"], with_mask!(SoundEncoder)),
        || check_model("swin", &["pixel_values"], |model: Swin, inputs| model.forward(&inputs[0])),
        || check_model("dinov2", &["pixel_values"], |model: Vit, inputs| model.forward(&inputs[0])),
    ];
    checks.iter().step_by(quick::one_of(2)).try_for_each(|check| check())
}

#[test]
fn adapters_of_encoders_equal_peft() -> Result<()> {
    setup();
    let (case, config) = (case("adapter_bert")?, Config::open(folder("bert_classes"))?);
    let model = Bert::from_pretrained(folder("bert_classes"))?;
    let adapter = Adapter::from_pretrained(&config, folder("adapter_bert"))?;
    assert_eq!(adapter.replaced.keys().collect::<Vec<_>>(), ["classifier.bias", "classifier.kernel"]);
    let apply = jit(|adapter: Adapter, model: Bert, tokens: Array| -> Result<Array> {
        Ok(adapter.apply(&model)?.forward(tokens, &BertOptions::new()))
    });
    alike("bert", &apply.call((&adapter, &model, case("input_ids")?))?, &case("logits")?)?;
    let temp = Folder::new();
    adapter.save_pretrained(&config, temp.join("a"))?;
    let again = Adapter::from_pretrained(&config, temp.join("a"))?;
    alike("again", &apply.call((&again, &model, case("input_ids")?))?, &case("logits")?)
}

/// Layers of two kinds have the same names in the files of these models, and a saved adapter has the layers that it had before.
#[test]
fn saved_adapters_have_the_same_layers() -> Result<()> {
    setup();
    let temp = Folder::new();
    for (name, targets) in
        [("kimi_linear", ["latent.out", "delta.out"]), ("bailing_hybrid", ["latent.out", "delta.gate"])]
    {
        let (model, config) = (Decoder::from_pretrained(folder(name))?, Config::open(folder(name))?);
        let adapter = Adapter::new(&model, targets, 2, 3.0, &mut Rngs::new(0))?;
        adapter.save_pretrained(&config, temp.join(name))?;
        let again = Adapter::from_pretrained(&config, temp.join(name))?;
        assert!(again.layers.keys().eq(adapter.layers.keys()), "{name}: {:?}", again.layers.keys());
    }
    // The experts of DBRX are arrays, which are no layers in peft.
    let (model, config) = (Decoder::from_pretrained(folder("dbrx"))?, Config::open(folder("dbrx"))?);
    let adapter = Adapter::new(&model, ["experts.layers.down"], 2, 3.0, &mut Rngs::new(0))?;
    fails(adapter.save_pretrained(&config, temp.join("dbrx")), &["ffn.experts.mlp.w2", "which peft cannot adapt"]);
    Ok(())
}

/// peft cannot load an adapter of an encoder as an adapter of a model that generates text.
#[test]
fn saved_adapters_name_the_task() -> Result<()> {
    setup();
    let temp = Folder::new();
    let has_task = |name: &str, adapter: Adapter, task: &str| -> Result<bool> {
        adapter.save_pretrained(&Config::open(folder(name))?, temp.join(name))?;
        let about = std::fs::read_to_string(temp.join(name).join("adapter_config.json")).expect("a file");
        Ok(about.contains(&format!("\"task_type\": {task}")))
    };
    let (decoder, encoder) = (Decoder::from_pretrained(folder("llama"))?, Bert::from_pretrained(folder("bert"))?);
    let mut rngs = Rngs::new(0);
    let adapter = Adapter::new(&decoder, ["attention.query"], 2, 3.0, &mut rngs)?;
    assert!(has_task("llama", adapter, "\"CAUSAL_LM\"")?);
    let adapter = Adapter::new(&encoder, ["attention.query"], 2, 3.0, &mut rngs)?;
    assert!(has_task("bert", adapter, "null")?);
    Ok(())
}

/// The model has no pooler, because no result depends on it. peft adapts the pooler too if it adapts all linear layers.
#[test]
fn adapters_of_poolers_are_ignored() -> Result<()> {
    setup();
    let temp = Folder::new();
    let (model, config) = (Bert::from_pretrained(folder("bert_model"))?, Config::open(folder("bert_model"))?);
    let adapter = Adapter::new(&model, ["attention.query"], 2, 3.0, &mut Rngs::new(0))?;
    adapter.save_pretrained(&config, &temp.0)?;
    let file = std::fs::read(temp.join("adapter_model.safetensors")).expect("a file");
    let with_pooler = changed(&file, |arrays| {
        for part in ["lora_A", "lora_B"] {
            let name = format!("base_model.model.pooler.dense.{part}.weight");
            arrays.push((name, Dtype::F32, vec![2, 2], vec![0; 16]));
        }
    });
    temp.write("adapter_model.safetensors", with_pooler);
    let again = Adapter::from_pretrained(&config, &temp.0)?;
    assert!(again.layers.keys().eq(adapter.layers.keys()));
    // transformers has several layers in the place of this one, so peft would ignore its matrices.
    let (model, config) = (Decoder::from_pretrained(folder("lara_mini"))?, Config::open(folder("lara_mini"))?);
    let adapter = Adapter::new(&model, ["delta.query"], 2, 3.0, &mut Rngs::new(0))?;
    fails(adapter.save_pretrained(&config, temp.join("a")), &["linear_attn.in_proj", "which peft cannot adapt"]);
    Ok(())
}
